"""Random features where the posterior lives: importance sampling by leverage.

*The problem.* A prior f = sum_i w_i phi_i with frequencies theta_i from the spectral density S has an error that the
posterior sees through the data. With weights G = (K + noise)^-1 k(X, x), a wave e^{i theta . x} leaves the residual

    r_theta(x) = e^{i theta . x} - G(x)^T e^{i theta . X},     Var f(x) = int S |r_theta(x)|^2 d theta + noise |G(x)|^2.

Data determine the smooth and heavy part of the spectrum, where |r_theta| is nearly zero; S spends its features there.

*The proposal.* The leverage of a wave is its share of what the data leave open,

    lev(theta) = mean over reference points x of |r_theta(x)|^2 / Var f(x).

With frequencies from q and amplitudes sqrt(S / q) the kernel is unbiased whatever q is. The squared error among the
data is int S^2 lev^2 / q, far from them int S^2 / q. Every weighted sum of the two is least for

    q ~ S sqrt(lev^2 + b),

and b is the smallest for which int S^2 / q is below a bound. The bound is more generous where it is known where the
functions will be called, or where the errors of many bases average out.

*The tables.* For a radial kernel S is a density of log |theta / scale| times even directions, cut into shells; lev is
computed for a few hundred pilot waves, and smoothed over the log radius to a table over the shells. A table serves
any number of bases: a draw is an inverse CDF. Every other spectrum is a sum of convolutions of radial densities and
atoms (a product of kernels: the frequencies of its factors add; a spectral mixture: a normal and its centre), and the
waves of a kernel with linear forms are multiplied with monomials. Each summand, about each of its centres and times
each monomial, has tables of its own, one for each factor, and its share of the features by what data leave open of it.
Radii are even, by Hammersley nets or in strata; directions in three dimensions and more are near-designs, turned at
random.

*The pool.* Features of which only values are known, at the reference points and at the data, have a leverage, too.
From a pool of them, whose products sum to k, some are chosen by systematic resampling with probabilities
pi ~ m sqrt(lev^2 + b), with m their mean squares, and divided by sqrt(pi): `resampled`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.checks import normals
from ..core.functionals import Functionals, Observed
from ..core.modes import Sobol, as_numpy, is_wrapped, kept, outside, plain
from ..core.sites import Sites, concatenated
from ..evaluate import Basis, Cosines, Pairs, Products
from ..kernels import Kernel, coupled_covariance, coupled_diagonal
from ..kernels.base import SpectralMeasure, Term, same_coupling
from ..kernels.composed_measures import Atom, Convolution, Mixture, Moved, compound
from ..kernels.radial import Elliptical
from ..solvers import Cholesky, CholeskyState, FactoredPosterior, KernelOperator, covariance
from ..solvers.cholesky import solved
from .explicit import as_cosines, monomial_count, monomials
from .features import RANDOM, Coupled, FeatureSpec, orthogonal, rand, root_of, sobol
from .harmonics import leading_signs


@dataclass(frozen=True)
class Leverage:
    """Settings of the choice of features by leverage (`benchmarks/leverage.py`)."""

    num_pilot: int = 256
    """Waves whose residuals are computed, of a spectrum that is alone; several share half as many again."""
    num_shells: int = 512
    """Shells of log radius in a table."""
    num_reference: int = 64
    """Points at which the leverage is averaged."""
    largest_whole: int = 4000
    """Data of which all are used. Of more, those nearest to the reference points are."""
    num_data: int = 1024
    """How many those are, at the most."""
    num_runs: int = 21
    """Runs of neighbouring radii over which the leverage is averaged, at the most."""
    far: float = 1.2
    """The bound on int S^2 / q, by which squared errors may grow far from the data."""
    far_in_one_dim: float = 1.5
    """The same in one dimension, where radii in strata are so even that errors do not grow as much."""
    far_of_overlap: float = 1.1
    """The same for convolutions on common coordinates, in which the tables' errors multiply."""
    far_unexplained: float = 1.12
    """The same where data leave more open than the share `explained` of the variance: there is little to gain."""
    far_of_many: float = 2.5
    """The same for `many_bases` bases and more: their errors average out."""
    far_given: float = 4.0
    """The same where it is said where the functions will be called: no place is far."""
    explained: float = 0.15
    many_bases: int = 4
    smallest_gain: float = 1.05
    """Frequencies are from S itself where the expected gain among the data is less."""
    separated: int = 24
    """A product with at most this many atoms is a sum over these, each with tables of its own."""
    candidates: int = 32
    """Features in a pool, for each that is chosen."""


# --- Spectra: sums of convolutions of radial densities and atoms -----------------------------------------------------


@dataclass(frozen=True)
class _Profile:
    """A radial density; two are equal whose measures differ by their scale alone."""

    measure: Elliptical = field(compare=False)
    key: tuple | None

    def log_density(self, t: Tensor) -> Tensor:
        """That of t = log |theta / scale|."""
        p = self.measure.input_dim
        return self.measure.log_radial((2 * t).exp()) + p * t + log_area(p)


def log_area(p: int) -> float:
    """Of the unit sphere in p dimensions."""
    return math.log(2) + p / 2 * math.log(math.pi) - math.lgamma(p / 2)


@kept(64)
def shells(profile: _Profile, count: int) -> tuple[float, float, np.ndarray, np.ndarray]:
    """The first shell's lower end and the shells' width, in log radius; their middles `[c]` and masses `[c]`."""
    coarse = torch.arange(-80.0, 230.0, 0.5, dtype=torch.float64, device="cpu")
    mass = profile.log_density(coarse + 0.25).exp()
    below, above = mass.cumsum(0), mass.flip(0).cumsum(0).flip(0)
    inside = coarse[(below > 1e-10 * below[-1]) & (above > 1e-10 * below[-1])]
    low, high = float(inside[0]), float(inside[-1]) + 0.5
    step = (high - low) / count
    index = low + step * (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5)
    waves = profile.measure.waves  # points that a density that oscillates is averaged over
    within = step * ((torch.arange(waves, dtype=torch.float64, device="cpu") + 0.5) / waves - 0.5)
    masses = profile.log_density(index[:, None] + within).exp().mean(1)
    return low, step, as_numpy(index), as_numpy(masses / masses.sum())


# A uniform `[..]` for a place in a table, and an independent direction `[.., p]`, which atoms have no use for.
Position = tuple[Tensor, Tensor]


class RadialFactor:
    """A factor of a spectrum: theta = r * scale * direction @ frame, with a density of t = log r cut into shells.

    The rows of `frame` `[p, d]` are orthonormal: some axes, or axes that were turned; None where they are all axes.
    """

    def __init__(self, measure: Elliptical, frame: Tensor | None, half: bool, num_shells: int) -> None:
        self.measure, self.frame, self.half = measure, frame, half  # half: of theta and -theta one is enough
        self.num_uniforms = p = measure.input_dim
        self.dims = range(p) if frame is None else frame.any(0).nonzero()[:, 0].tolist()
        with outside():
            self.fixed = copy(measure)  # without a graph: what the choice of q depends on
            vars(self.fixed).update({k: plain(v) for k, v in vars(measure).items() if isinstance(v, Tensor)})
        self.profile = _Profile(self.fixed, None if self.fixed.shape is None else (type(measure), *self.fixed.shape))
        tabulated = shells if self.profile.key is not None else shells.__wrapped__
        self.low, self.step, self.index, self.masses = tabulated(self.profile, num_shells)

    def pilot(self, U: tuple[int, int, int], stretch: float, least: float) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """Pilot waves along the whole spectrum: frequencies `[k, d]`, S / q `[k]`, and places `[k]` in the table.

        Args:
            U: their uniforms, columns of a net: the number of waves, that of the net's columns, and the first of these.
            stretch: waves follow the density as it is, and with radii times this.
            least: and lie evenly from the median to where this share of the spectrum lies beyond; a power of ten.
        """
        made = unit_pilot if self.profile.key is not None else unit_pilot.__wrapped__
        own, ratio, t = made(self.profile, len(self.masses), self.half, U, stretch, least)
        own = own * self.fixed.scale
        return own if self.frame is None else own @ self.frame, ratio, t

    def position(self, U: Tensor) -> Position:
        """What `at` makes a wave from, of uniforms `[.., p]`: what these are even in, radii and directions are, too."""
        p = U.shape[-1]
        if p == 1:
            u = U[..., 0] if self.half else (2 * U[..., 0] - 1).abs()
            return u, torch.ones_like(U) if self.half else torch.where(U < 0.5, -1.0, 1.0).to(U)
        if p == 2:
            angle = (math.pi if self.half else 2 * math.pi) * U[..., 1]
            return U[..., 0], torch.stack([angle.cos(), angle.sin()], dim=-1)
        z = torch.special.ndtri(U)
        squared = z.square().sum(-1)
        u = torch.special.gammainc(torch.full_like(squared, p / 2), squared / 2)  # of a chi-squared variable
        return u, z / squared.sqrt()[..., None]

    def at(self, q: np.ndarray, which: np.ndarray, position: Position) -> tuple[Tensor, Tensor]:
        """Frequencies `[.., f, d]`, and log S / q `[.., f]`.

        Wave i has the probabilities q `[v, c]` of version `which[i]`. Frequencies are constants; S has the gradient of
        the measure's hyperparameters.
        """
        (u, direction), p = position, self.num_uniforms
        cell, fraction = inverse_cdf(q, which, u)
        t = self.low + self.step * torch.from_numpy(cell + fraction)
        scale, r = self.measure.scale, t.exp()
        own = r[..., None] * direction * self.fixed.scale  # [.., f, p]
        in_graph = torch.is_grad_enabled()
        r2 = (own / scale).square().sum(-1) if in_graph else r.square()
        log_S = self.measure.log_radial(r2) - (scale.log().sum() - self.fixed.scale.log().sum() if in_graph else 0)
        log_q = torch.from_numpy(np.log(q[which, cell] / self.step)) - p * t - log_area(p)
        return own if self.frame is None else own @ self.frame, log_S - log_q


@kept(64)
def unit_pilot(
    profile: _Profile, num_shells: int, half: bool, U: tuple[int, int, int], stretch: float, least: float
) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """The pilot waves of a radial density (see `RadialFactor.pilot`), of scale one: frequencies `[k, p]`."""
    unit, p, (count, columns, first) = copy(profile.measure), profile.measure.input_dim, U
    unit.scale = torch.ones(p, dtype=torch.float64, device="cpu")
    f = RadialFactor(unit, None, half, num_shells)
    shift = min(round(math.log(stretch) / f.step), num_shells)
    q = f.masses.copy()
    q[shift:] += f.masses[: num_shells - shift]
    beyond = f.masses[::-1].cumsum()[::-1]
    inside = (beyond <= 0.5) & (beyond > max(least, 1e-10))
    q += inside / max(inside.sum(), 1)
    q, position = (q / q.sum())[None], f.position(net(count, columns)[:, first : first + p])
    theta, log_ratio = f.at(q, np.zeros(count, dtype=int), position)
    return theta, as_numpy(log_ratio.exp()), as_numpy(theta.norm(dim=-1).log())


class AtomFactor:
    """A factor of a spectrum that is discrete: frequencies `[c, d]` with masses `[c]`; a cell is an atom."""

    num_uniforms = 1

    def __init__(self, theta: Tensor, mass: Tensor) -> None:
        self.theta, self.mass = theta, mass
        with outside():
            self.fixed = plain(theta)
            self.dims = self.fixed.any(0).nonzero()[:, 0].tolist()
            self.index = as_numpy(self.fixed.norm(dim=-1))
            self.masses = as_numpy(plain(mass) / plain(mass).sum())

    def pilot(self, U: tuple[int, int, int], stretch: float, least: float) -> tuple[Tensor, np.ndarray, np.ndarray]:
        """As of a radial factor: light atoms too, and rather even ones. The place of an atom is its size."""
        root, even = np.sqrt(self.masses), self.masses**0.25 * (self.masses > 0.01 * max(least, 1e-10))
        q = self.masses + root / root.sum() + even / max(even.sum(), 1e-300)
        q, (count, columns, first) = q / q.sum(), U
        cell, _ = inverse_cdf(q[None], np.zeros(count, dtype=int), net(count, columns)[:, first])
        return self.fixed[cell], self.masses[cell] / q[cell], self.index[cell]

    def position(self, U: Tensor) -> Position:
        return U[..., 0], U

    def at(self, q: np.ndarray, which: np.ndarray, position: Position) -> tuple[Tensor, Tensor]:
        cell, _ = inverse_cdf(q, which, position[0])
        return self.theta[cell], self.mass[cell].log() - torch.from_numpy(np.log(q[which, cell]))


def inverse_cdf(q: np.ndarray, which: np.ndarray, u: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The cells `[.., f]` that uniforms u `[.., f]` fall in, and how far into these.

    Uniform i has the probabilities of version `which[i]` of q `[v, c]`: all versions are searched at once, their
    distributions one after another.
    """
    (v, c), cdf = q.shape, q.cumsum(1)
    cdf = (cdf / cdf[:, -1:] + np.arange(v)[:, None]).ravel()
    at, first = as_numpy(u) + which, which * c
    cell = np.clip(np.searchsorted(cdf, at), first, first + c - 1)
    return cell - first, np.clip(1 - (cdf[cell] - at) / q.ravel()[cell], 0, 1)


@dataclass(eq=False, kw_only=True)
class LeverageTable:
    """What data leave open of features that are drawn from a table, or from a table for each factor.

    `masses` are the shares of the cells of every factor, and `levels` their leverage, scaled to a mean of one. `size`
    is the mean variance of the features at the reference points, and `left` what the data leave open of it. `propose`
    gives the cells' probabilities, and the share of all features that are drawn by these tables.
    """

    masses: list[np.ndarray]
    levels: list[np.ndarray]
    size: float = 1.0
    left: float = 1.0
    proposal: list[np.ndarray] = field(default_factory=list)
    share: float = 1.0


@dataclass(eq=False)
class Summand:
    """A summand of a term's spectral measure: a sum of independent frequencies, those of its factors, about centres.

    There is a version of it, with tables of its own, for each centre and each monomial of the term, in this order.
    """

    term: Term
    factors: Sequence[RadialFactor | AtomFactor]
    variances: Tensor  # [v], of the versions
    monomials: Tensor  # [m, degree], as coordinates of (x, 1)
    centres: Tensor | None = None  # [v / m, d]
    tables: list[LeverageTable] = field(default_factory=list)

    @property
    def num_dims(self) -> int:
        return len({i for f in self.factors for i in f.dims})

    @property
    def even_dim(self) -> int:
        """The dimension of its directions where these are to be near-designs, else zero."""
        (first, *more) = self.factors
        return 0 if more or isinstance(first, AtomFactor) or first.num_uniforms < 3 else first.num_uniforms

    @property
    def num_uniforms(self) -> int:
        return sum(f.num_uniforms for f in self.factors)

    def positions(self, U: Tensor) -> list[Position]:
        """What the factors' waves are made from, of uniforms `[.., p]`."""
        each = zip(self.factors, U.split([f.num_uniforms for f in self.factors], -1), strict=True)
        return [f.position(own) for f, own in each]


def spectra(term: Term, input_dim: int, settings: Leverage = Leverage()) -> list[Summand] | None:  # noqa: B008
    """The summands of a term's spectral measure; None where one is not a convolution of radial densities and atoms."""
    choices: list[tuple[Tensor, list[SpectralMeasure]]] = [(term.variance, [])]
    for kernel in term.stationary:
        own = _summands(kernel.measure(input_dim))
        choices = [(v * w, [*had, *more]) for v, had in choices for w, more in own]
    found = []
    for variance, measures in choices:
        radial, discrete = [], []
        for measure in measures:
            if (atoms := measure.atoms()) is not None:
                discrete.append((measure, atoms))
                continue
            inner, frame = _framed(measure)
            if not isinstance(inner, Elliptical) or inner.density_dims is None:
                return None
            shift = getattr(inner, "shift", None)
            if shift is not None:
                inner = copy(inner)
                inner.shift = None  # pyright: ignore[reportAttributeAccessIssue]
                atom = Atom(shift if frame is None else shift @ frame)
                discrete += [(atom, atom.atoms())] * bool(shift.any())
            radial.append((inner, frame))
        found += _summed(term, variance, _compounded(radial), discrete, settings)
    return found


def _summands(measure: SpectralMeasure) -> list[tuple[Tensor | float, list[SpectralMeasure]]]:
    """A measure as a mixture of convolutions."""
    if isinstance(measure, Mixture):
        both = zip(measure.weights, measure.measures, strict=True)
        return [(w * weight, more) for w, part in both for weight, more in _summands(part)]
    if isinstance(measure, Convolution):
        choices: list[tuple[Tensor | float, list[SpectralMeasure]]] = [(1.0, [])]
        for part in measure.measures:
            choices = [(w * weight, [*had, *more]) for w, had in choices for weight, more in _summands(part)]
        return choices
    if isinstance(measure, Moved):
        return [(w, [measure.of(m) for m in more]) for w, more in _summands(measure.measure)]
    return [(1.0, [measure])]


def _framed(measure: SpectralMeasure) -> tuple[SpectralMeasure, Tensor | None]:
    """A measure without what embeds and turns it, and the frame `[p, d]` that does: theta = (its own) frame."""
    if not isinstance(measure, Moved):
        return measure, None
    inner, frame = _framed(measure.measure)
    p = measure.measure.input_dim
    frame = measure.moved(torch.eye(p, dtype=torch.float64, device="cpu") if frame is None else frame)
    whole = frame.shape[0] == frame.shape[1] and torch.equal(
        frame, torch.eye(len(frame), dtype=torch.float64, device="cpu")
    )
    return inner, None if whole else frame


def _compounded(measures: list[tuple[Elliptical, Tensor | None]]) -> list[tuple[Elliptical, Tensor | None]]:
    """Measures in frames, with those in one frame convolved where the result is elliptical: one radius is better."""
    found: list[tuple[Elliptical, Tensor | None]] = []
    for inner, frame in measures:
        for i, (other, same) in enumerate(found):
            alike = frame is same or (frame is not None and same is not None and torch.equal(frame, same))
            if alike and (both := compound([other, inner])) is not None:
                found[i] = both, frame
                break
        else:
            found.append((inner, frame))
    return found


def _summed(
    term: Term,
    variance: Tensor,
    radial: list[tuple[Elliptical, Tensor | None]],
    discrete: list[tuple[SpectralMeasure, tuple[Tensor, Tensor]]],
    settings: Leverage,
) -> list[Summand]:
    """A convolution of radial densities and atoms: about each of the atoms where these are few."""
    products, coefficients = torch.zeros(1, 0, dtype=torch.long, device="cpu"), variance.new_ones(1)
    if term.forms:
        A, coefficients = monomials([form.cpu() for form in term.forms])  # [p, m, d + 1], [m]
        products = A.argmax(-1).sort(0).values.mT

    def tables(half: bool) -> list[RadialFactor]:
        """A frequency and its negative are the same pair of features: one of the factors needs half of them."""
        each = enumerate(radial)
        return [RadialFactor(m, frame, half and i == 0, settings.num_shells) for i, (m, frame) in each]

    if not discrete:
        return [Summand(term, tables(True), variance * coefficients, products)]
    lists = [atoms for _, atoms in discrete]
    if len(lists) > 1 and (together := Convolution([measure for measure, _ in discrete]).atoms()) is not None:
        lists = [together]
    folded = [_folded(*atoms, half=i == 0) for i, atoms in enumerate(lists)]
    ((theta, mass), *more) = folded
    if not radial or more or len(mass) > settings.separated:
        factors = [*tables(False), *(AtomFactor(*atoms) for atoms in folded)]
        return [Summand(term, factors, variance * coefficients, products)]
    far, found = theta.detach().any(1), []
    if not bool(far.all()):
        found.append(Summand(term, tables(True), variance * mass[~far].sum() * coefficients, products))
    if bool(far.any()):
        variances = (variance * mass[far, None] * coefficients).flatten()
        found.append(Summand(term, tables(False), variances, products, theta[far]))
    return found


def _folded(theta: Tensor, mass: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """The atoms of some weight; of each pair +-theta one with the mass of both."""
    significant = mass.detach() > 1e-14 * mass.detach().max()
    if half:
        sign = leading_signs(theta)
        mass, significant = torch.where(sign != 0, 2 * mass, mass), significant & (sign >= 0)
    return theta[significant], mass[significant]


# --- Leverage: what the data leave open of a feature -----------------------------------------------------------------


# Functions `[e, m, p]` of p sites that waves are multiplied with: monomials, times columns of a coupling's root.
Envelopes = Callable[[Sites], Tensor]


class Reference:
    """Points where the posterior matters, and the weights G = (K + noise)^-1 k(X, x) of the data there."""

    @outside()  # the choice of features is not differentiated
    def __init__(
        self,
        posterior: FactoredPosterior,
        domain: Tensor | None,
        where: Tensor | None,
        lengths: Tensor,
        settings: Leverage = Leverage(),  # noqa: B008
    ) -> None:
        kernel, sites, lengths = posterior.kernel, posterior.sites.mapped(plain).double(), plain(lengths)
        kernel = kernel.mapped(plain) if any(map(is_wrapped, kernel.buffers())) else kernel
        X, noise = sites.places, plain(posterior.noise).double()
        x = reference_points(X.cpu(), plain(domain), plain(where), lengths, settings.num_reference).to(X.device)
        x = kernel.nearest(x)
        x_tasks = None if sites.outputs is None else torch.arange(len(x), device=X.device) % kernel.num_outputs
        state = posterior.state if isinstance(posterior.state, CholeskyState) else None
        # A factor in float32 has digits enough, unless a graph is kept: then it is not asked.
        exact = state is not None and (state.L.dtype == torch.float64 or not state.L.requires_grad)
        if not exact or len(X) > settings.largest_whole:
            chosen = _nearest(X / lengths.to(X), x / lengths.to(X), settings.num_data)  # and a factor of our own
            sites, noise = sites[chosen], noise[chosen]
            state = None
        if posterior.sites.points.dtype != torch.float64:
            kernel = kernel.to(X.device, torch.float64)
        K_Xx = coupled_covariance(kernel, sites, Sites(x, x_tasks))  # [n, r]
        if state is None:
            K = covariance(kernel, sites)
            K.diagonal().add_(noise + 1e-10 * K.diagonal().mean())
            self.G = torch.cholesky_solve(K_Xx, torch.linalg.cholesky(K))
        else:
            L = plain(state.L)
            self.G = solved(L, K_Xx.to(L))
            noise = noise + state.jitter
        self.x, self.sites = x, concatenated(Sites(x, x_tasks), sites)  # [r, d], and r + n of them
        self.noise_variance = as_numpy(noise @ self.G.double().square())  # [r]
        self.values_at_x = Sites(x, x_tasks)
        self._prior = kernel, self.values_at_x, K_Xx
        # Rounding adds about eps^2 |G|^2 to a residual's power, in which noise has |G|^2 of its variance.
        variance = float(coupled_diagonal(kernel, self._prior[1]).max())
        few = isinstance(sites, Sites) and float(noise.min()) > 1e-9 * variance
        self._G = self.G.float() if few else self.G

    @outside()
    @torch.no_grad()
    def variance(self) -> Tensor:
        """The posterior variance at the reference points, `[r]`."""
        kernel, sites, K_Xx = self._prior
        prior = coupled_diagonal(kernel, sites)
        return (prior - (K_Xx * self.G).sum(0)).maximum(1e-10 * prior)

    def residual_power(self, values: Tensor) -> Tensor:
        """|phi_c(x) - G^T phi_c(X)|^2 `[.., r, c]` of features, from what is observed of them `[.., r + n, c]` at the
        sites."""
        at_x, at_X = values.to(self._G).split([len(self.x), len(self.G)], dim=-2)
        return (at_x - self._G.mT @ at_X).square_()

    @outside()
    def wave_power(self, theta: Tensor, origin: Tensor, envelopes: Envelopes | None = None) -> np.ndarray:
        """|r_theta(x)|^2 `[e, r, k]` of k waves times functions of values `[e, m, p]`, `envelopes` at p sites.

        It is summed over m, the columns of a coupling's root.
        """
        if isinstance(self.sites, Functionals):
            return self._power_of_functionals(self.sites, theta, origin, envelopes)
        waves = self._waves(theta, origin, self.sites.points)
        if envelopes is None:
            power = self.residual_power(waves)[None]
        else:
            weights = envelopes(self.sites)
            each = weights.to(waves).split(max(1, (1 << 21) // (weights.shape[1] * waves.numel())))
            power = torch.cat([self.residual_power(f[..., None] * waves).sum(1) for f in each])
        return as_numpy(power.unflatten(-1, (2, -1)).sum(-2).double())

    def _waves(self, theta: Tensor, origin: Tensor, x: Tensor) -> Tensor:
        """Cosines and sines of k waves at points `[p, d]`: `[p, 2 k]`."""
        turns = (x - plain(origin).to(x)) @ (theta.to(x).mT / (2 * math.pi))
        P = turns.frac_().mul_(2 * math.pi).to(self._G)  # large phases would take the digits of float32
        return torch.cat([P.cos(), P.sin_()], dim=1)

    def _power_of_functionals(
        self, sites: Functionals, theta: Tensor, origin: Tensor, envelopes: Envelopes | None
    ) -> np.ndarray:
        """The same where slopes or sums are observed of the waves; products with the envelopes are differentiated."""
        if envelopes is None:
            waves = sites.of_waves(self._waves(theta, origin, sites.points), theta)
            return as_numpy(self.residual_power(waves)[None].unflatten(-1, (2, -1)).sum(-2).double())
        e, m, _ = envelopes(sites.sites[:1]).shape
        powers = []
        for i in range(e):
            of_columns = []
            for j in range(m):

                def product(at: Sites, i: int = i, j: int = j) -> Tensor:
                    waves = self._waves(theta, origin, at.points)
                    return waves * envelopes(at)[i, j][:, None].to(waves)

                of_columns.append(self.residual_power(sites.features(product)))
            powers.append(torch.stack(of_columns).sum(0))
        return as_numpy(torch.stack(powers).unflatten(-1, (2, -1)).sum(-2).double())


def _nearest(X: Tensor, x: Tensor, count: int) -> Tensor:
    """Which data `[m]` tell most at points x: those nearest to each."""
    if len(X) <= count:
        return torch.arange(len(X), device=X.device)
    return torch.cdist(x, X).topk(count // len(x), largest=False).indices.flatten().unique()


def reference_points(
    X: Tensor, domain: Tensor | None, where: Tensor | None, lengths: Tensor, count: int = Leverage.num_reference
) -> Tensor:
    """Points `[r, d]` that represent where paths will be called: the same at every draw.

    Those that were named (`where`, or in `domain`); else half in the data's box widened by 40%, half between neighbours
    among the data, which finds clusters: most of these at all small distances from a datum, since rough paths have
    frequencies of their own at each.
    """
    n, d = X.shape
    if where is not None and len(where):
        count = min(len(where), count)
        return where[torch.arange(count, device="cpu") * len(where) // count]  # spread evenly
    near = count // (4 if domain is not None else 2)
    points = net(count, d)
    if domain is None:
        low, high = X.aminmax(dim=0)
        half = torch.where(high > low, 0.7 * (high - low), lengths)
        low, size = (low + high) / 2 - half, 2 * half
    else:
        low, size = domain[0], domain[1] - domain[0]
    inside = low + size * points[near:]
    number = torch.arange(near, device="cpu")
    which = number % min(n, near) * n // min(n, near)  # spread evenly
    some = X[which]
    if n == 1:
        return torch.cat([inside, some + lengths * (2 * points[:near] - 1)])
    scaled = X / size
    neighbours = torch.cdist(scaled[which], scaled).topk(min(n, 2 * d + 1), largest=False).indices
    other = X[neighbours[number, 1 + number % (neighbours.shape[1] - 1)]]
    # How far from a datum to its neighbour: every fourth in the middle, the others evenly in the log distance.
    u = points[:near, :1]
    between = torch.where((number % 4 == 0)[:, None], 0.2 + 0.6 * u, 0.5 * (1 / 3000) ** (1 - u))
    return torch.cat([inside, some + between * (other - some)])


@kept(32)
def net(count: int, dims: int) -> Tensor:
    """A Sobol net `[count, dims]` that is always the same, off the corners."""
    return Sobol(dims, seed=0).next(count).clamp_(2**-30, 1 - 2**-30)


def smoothed(at: np.ndarray, values: np.ndarray, weights: np.ndarray, index: np.ndarray, most: int) -> np.ndarray:
    """Positive values `[v, k]` at places `[k]`, averaged over runs of neighbours and interpolated in logarithms."""
    order = np.argsort(at, kind="stable")
    count = max(1, min(most, len(at) // 4))
    first = -(-np.arange(count) * len(at) // count)
    w = weights[order]
    total = np.maximum(np.add.reduceat(w, first), 1e-300)
    middle = np.add.reduceat(at[order], first) / np.diff(np.append(first, len(at)))
    y = np.add.reduceat(w * values[:, order], first, axis=1) / total
    y = np.log(np.maximum(y, np.maximum(1e-12 * y.max(1, keepdims=True), 1e-300)))
    return np.exp([np.interp(index, middle, row) for row in y])


@torch.no_grad()
def set_levels(
    found: Sequence[Summand], spec: FeatureSpec, origin: Tensor, posterior: FactoredPosterior, settings: Leverage
) -> float:
    """Set the tables of all versions of some spectra by a pilot run; the mean posterior variance is returned."""
    total = sum(float(plain(s.variances).sum()) for s in found)
    # The posterior variance is hardly less than this share of the prior's: there the tail ends.
    least = float(plain(posterior.noise).min()) / (len(posterior.sites) * max(total, 1e-300))
    pilots = [(*_pilot(s, _pilot_count(s, found, posterior.kernel, settings), least), s) for s in found]
    theta = torch.cat([theta.flatten(0, 1) for theta, *_ in pilots]).abs()
    turns = torch.where(theta > 0, theta, torch.nan).nanmedian(0).values  # [d]; a term may leave a dimension alone
    reference = Reference(posterior, spec.domain, spec.where, 1 / torch.nan_to_num(turns, nan=1.0), settings)
    variance, powers = reference.noise_variance.copy(), []  # [r]
    outputs = posterior.kernel.num_outputs
    envelopes_of = [_envelopes(s.monomials, root_of(s.term.coupling, outputs), outputs > 1) for s in found]
    alone = [envelopes is None for envelopes in envelopes_of]
    together = [theta.flatten(0, 1) for (theta, *_), own in zip(pilots, alone, strict=True) if own]
    at_once = iter([])
    if together:
        power = reference.wave_power(torch.cat(together), origin)
        at_once = iter(np.split(power, np.cumsum([len(theta) for theta in together])[:-1], axis=-1))
    sizes = []
    at_x = reference.values_at_x
    for envelopes, (theta, ratios, _, s) in zip(envelopes_of, pilots, strict=True):
        centres, count, _ = theta.shape
        power = next(at_once) if envelopes is None else reference.wave_power(theta.flatten(0, 1), origin, envelopes)
        power = power.reshape(*power.shape[:2], centres, count).transpose(2, 0, 1, 3)  # [centres, m, r, k]
        variances = as_numpy(plain(s.variances))  # [v]
        powers.append(variances[:, None, None] * power.reshape(len(variances), -1, count))  # [v, r, k]
        squares = 1.0 if envelopes is None else as_numpy(envelopes(at_x).square().sum(1).mean(-1))
        sizes.append((variances.reshape(centres, -1) * squares).ravel())
        variance += powers[-1].sum(0) @ (math.prod(ratios) / count)
    relative = 1 / (np.maximum(variance, 1e-300) * len(variance))
    for (_, ratios, places, s), power, size in zip(pilots, powers, sizes, strict=True):
        s.tables = _tables(s, relative @ power, ratios, places, size, settings)
    return float(variance.mean())


def _pilot_count(s: Summand, found: Sequence[Summand], kernel: Kernel, settings: Leverage) -> int:
    """How many pilot waves a spectrum has about each of its centres: fewer of each where there are many products."""
    num, spectra = settings.num_pilot, sum(1 if s.centres is None else len(s.centres) for s in found)
    count = num if spectra == 1 else max(num // 8, min(num // 2, 3 * num // 2 // spectra))
    products = len(s.monomials) * (1 if s.term.coupling is None or spectra == 1 else kernel.num_outputs)
    return count if products <= 2 else min(count, max(num // 8, 2 * count // products))


@outside()
def _pilot(s: Summand, count: int, least: float) -> tuple[Tensor, list[np.ndarray], list[np.ndarray]]:
    """Frequencies `[centres, k, d]` along the whole spectrum; and of each factor S / q `[k]` and places `[k]`."""
    stretch, least = 1 + 3 / math.sqrt(max(s.num_dims, 1)), 10.0 ** math.floor(math.log10(max(least, 1e-10)))
    firsts = itertools.accumulate((f.num_uniforms for f in s.factors), initial=0)
    own = [f.pilot((count, s.num_uniforms, first), stretch, least) for f, first in zip(s.factors, firsts, strict=False)]
    theta = functools.reduce(torch.add, [part for part, *_ in own])
    theta = theta[None] if s.centres is None else theta + plain(s.centres)[:, None]
    return theta, [ratio for _, ratio, _ in own], [at for *_, at in own]


def _envelopes(monomials: Tensor, root: Tensor | None, coupled: bool) -> Envelopes | None:
    """Every monomial times every column of a coupling's root, at sites `[e, m, p]`; None where all are one."""
    if not monomials.shape[1] and (not coupled or root is None):
        return None

    def at(sites: Sites) -> Tensor:
        points = torch.nn.functional.pad(sites.points, (0, 1), value=1.0)  # (x, 1)
        factors = points.mT[monomials].prod(1)  # [e, p]
        if root is None or sites.outputs is None:
            return factors[:, None]
        R = plain(root).to(points)
        return factors[:, None] * R[sites.outputs][:, R.any(0)].mT

    return at


def _tables(
    s: Summand,
    lev: np.ndarray,
    ratios: list[np.ndarray],
    places: list[np.ndarray],
    sizes: np.ndarray,
    settings: Leverage,
) -> list[LeverageTable]:
    """The tables of all versions, from the leverage `[v, k]` of the pilot waves."""
    # Over directions a root of the mean square is best; in a product it would count what other factors account for.
    power = 2.0 if len(s.factors) == 1 else 1.0
    tables = [LeverageTable(masses=[], levels=[], size=float(size)) for size in sizes]
    for i, (f, at) in enumerate(zip(s.factors, places, strict=True)):
        others = math.prod((ratio for j, ratio in enumerate(ratios) if j != i), start=np.ones(lev.shape[1]))
        fitted = smoothed(at, lev**power, others, f.index, settings.num_runs) ** (1 / power)  # [v, c]
        left = np.maximum(fitted @ f.masses, 1e-300)  # [v]
        for table, level, mean in zip(tables, fitted, left, strict=True):
            table.masses.append(f.masses)
            table.levels.append(level / mean)
            table.left = float(mean)  # all factors have the same mean, but for the smoothing
    return tables


# --- The proposal ----------------------------------------------------------------------------------------------------


def propose(tables: Sequence[LeverageTable], bound: float, smallest_gain: float) -> bool:
    """Set every table's proposal q ~ S sqrt(lev^2 + b) and its share of the features, with the smallest b allowed.

    Without leverage half of the features are shared equally, half by variance; b is relative to those. They are taken
    where leverage gains too little: False is returned then.
    """
    sizes, left = (np.array([getattr(table, name) for table in tables]) for name in ("size", "left"))
    sizes, left = (each / (each.sum() or 1.0) for each in (sizes, left))  # [v]
    even = 0.5 * sizes + 0.5 / len(tables)
    spread = sizes**2 / (sizes**2 / even).sum()
    m, lev = (
        np.concatenate([own for table in tables for own in getattr(table, name)]) for name in ("masses", "levels")
    )
    lengths = np.array([len(own) for table in tables for own in table.masses])  # of the cells of all factors
    numbers = np.array([len(table.masses) for table in tables])
    cells, factors = np.cumsum(lengths) - lengths, np.cumsum(numbers) - numbers  # where each factor and table begins
    tilted = np.square(lev * np.repeat(np.repeat(left / even, numbers), lengths))

    def of_tables(sums: np.ndarray) -> np.ndarray:
        return np.multiply.reduceat(sums, factors)

    def at(b: float) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Proposals and shares; and squared errors far from the data, relative to plain ones, and among the data."""
        t = np.sqrt(tilted + b)
        q = m * t
        whole = np.add.reduceat(q, cells)
        far = of_tables(whole * np.add.reduceat(m / t, cells))  # sum of m^2 / q
        near = left**2 * of_tables(whole * np.add.reduceat(m * np.square(lev) / t, cells))
        shares = np.sqrt(near + b * even**2 * far)
        shares /= shares.sum()
        # Also with tables by their variance, which is all that counts far from data.
        farthest = max((even**2 * far / shares).sum(), (spread * far / shares).sum())
        return q / np.repeat(whole, lengths), shares, farthest, (near / shares).sum()

    values = np.logspace(-2, 4, 37)
    first, last = 0, len(values) - 1
    while first < last:  # errors far from the data fall as b grows
        middle = (first + last) // 2
        first, last = (first, middle) if at(values[middle])[2] <= bound else (middle + 1, last)
    q, shares, far, near = at(values[first])
    *plain_q, _, plain_near = at(values[-1])
    gains = far <= bound and math.sqrt(plain_near / near) >= smallest_gain
    if not gains:
        q, shares = plain_q
    split = iter(np.split(q, cells[1:]))
    for table, share in zip(tables, shares, strict=True):
        table.proposal, table.share = [next(split) for _ in table.masses], float(share)
    return gains


def resampled(
    values: Tensor,
    reference: Reference,
    count: int,
    bound: float,
    generator: torch.Generator,
    settings: Leverage = Leverage(),  # noqa: B008
) -> tuple[Tensor, Tensor] | None:
    """`count` features of a pool by their leverage: their numbers, and what to multiply them with, `[count]` each.

    The products phi_c(x) phi_c(x') of those that are chosen sum to the pool's in the mean: a feature that is chosen
    twice counts twice. None where leverage gains nothing.

    Args:
        values: of all features of the pool `[r + n, C]` at `reference.sites`.
        bound: on the squared error far from the data, relative to that of features chosen by their mean squares.
    """
    r, values = len(reference.x), plain(values).to(reference.G)
    left = as_numpy((reference.residual_power(values) / reference.variance()[:, None]).mean(0).double())  # [C]
    masses = np.maximum(as_numpy(values[:r].square().mean(0).double()), 1e-300)
    masses, left = masses / masses.sum(), left / max(left.sum(), 1e-300)
    pool = LeverageTable(masses=[masses], levels=[left / masses])
    if not propose([pool], bound, settings.smallest_gain):
        return None
    (pi,) = pool.proposal
    u = (torch.arange(count, device="cpu") + rand((1,), generator).cpu()) / count
    chosen, _ = inverse_cdf(pi[None], np.zeros(count, dtype=int), u)
    return torch.from_numpy(chosen), torch.from_numpy(count * pi[chosen]).rsqrt()


def bound_given(spec: FeatureSpec, settings: Leverage) -> float | None:
    """The bound on int S^2 / q where it follows from what is asked for."""
    if spec.domain is not None or spec.where is not None:
        return settings.far_given
    return settings.far_of_many if spec.num_bases >= settings.many_bases else None


def _bound(found: Sequence[Summand], variance: float, settings: Leverage) -> float:
    """The same by the spectra, and the mean posterior variance: one for all."""
    sizes = [sum(table.size for table in s.tables) for s in found]
    if variance > settings.explained * sum(sizes):
        return settings.far_unexplained
    bounds = []
    for s in (s for s, size in zip(found, sizes, strict=True) if size >= 0.01 * sum(sizes)):
        overlap = sum(len(f.dims) for f in s.factors) > s.num_dims
        alone = settings.far_in_one_dim if s.num_dims == 1 else settings.far
        bounds.append(settings.far_of_overlap if overlap else alone)
    return min(bounds, default=settings.far)


def _balance_monomials(found: Sequence[Summand]) -> None:
    """Far from the data one monomial may be most of the variance: each has half of an equal share at the least."""
    variance: dict[tuple[int, ...], float] = {}
    each = []
    for s in found:
        names = [tuple(monomial) for monomial in s.monomials.tolist()] * (len(s.tables) // len(s.monomials))
        each += zip(names, plain(s.variances).tolist(), s.tables, strict=True)
    for name, v, _ in each:
        variance[name] = variance.get(name, 0.0) + v
    for name, v, table in each:
        table.share = 0.5 * table.share + 0.5 * v / (variance[name] * len(variance))


# --- Draws -----------------------------------------------------------------------------------------------------------


def leverage(
    found: Sequence[Summand],
    count: int,
    spec: FeatureSpec,
    origin: Tensor,
    posterior: FactoredPosterior,
    generator: torch.Generator,
    settings: Leverage = Leverage(),  # noqa: B008
) -> list[Coupled]:
    """`count` features for all of some spectra together, for each basis asked for, by their leverage.

    Args:
        found: the `spectra` of some terms.
        origin: about which phases are taken, `[d]`.
        posterior: the data that leverage is given.
    """
    variance = set_levels(found, spec, origin, posterior, settings)
    bound = bound_given(spec, settings) or _bound(found, variance, settings)
    # A spectrum of a few atoms is taken as it is.
    exact = [s for s in found if len(s.factors) == 1 and isinstance(s.factors[0], AtomFactor)]
    size = sum(2 * len(s.tables) * len(s.tables[0].masses[0]) for s in exact)
    exact, size = (exact, size) if 2 * size <= count else ([], 0)
    drawn = [_atoms(s, spec.num_bases) for s in exact]
    rest = [s for s in found if not any(s is other for other in exact)]
    if rest:
        propose([table for s in rest for table in s.tables], bound, settings.smallest_gain)
        if spec.domain is None and spec.where is None and any(s.term.forms for s in rest):
            _balance_monomials(rest)
        drawn += waves(rest, count - size, spec.num_bases, generator)
    return coupled(drawn, origin)


class DrawnWaves(NamedTuple):
    """Waves of a term times monomials: pairs of a cosine and a sine, or single cosines with phases."""

    term: Term
    monomials: Tensor  # [f, degree]
    theta: Tensor  # [g, f, d]
    amplitude: Tensor  # [g, f]
    tau: Tensor | None = None  # [g, f]


def _atoms(s: Summand, num_bases: int) -> DrawnWaves:
    """All atoms, times all monomials."""
    (f,) = s.factors
    assert isinstance(f, AtomFactor)
    theta, amplitude = f.theta.repeat(len(s.monomials), 1), (s.variances[:, None] * f.mass).sqrt().flatten()
    monomials = s.monomials.repeat_interleave(len(f.mass), 0)
    return DrawnWaves(s.term, monomials, theta.expand(num_bases, -1, -1), amplitude.expand(num_bases, -1))


def waves(found: Sequence[Summand], count: int, num_bases: int, generator: torch.Generator) -> list[DrawnWaves]:
    """`count` features of some spectra by the proposals and shares of their tables."""
    shares = np.array([table.share for s in found for table in s.tables])
    if count < 4 * len(shares):
        numbers = whole_numbers(count, shares)
    else:  # even numbers, since frequencies come in pairs
        numbers = 2 * whole_numbers(count // 2, shares)
        numbers[0] += count % 2
    counts = np.split(numbers, np.cumsum([len(s.tables) for s in found])[:-1])
    directed: dict[int, list[Position]] = {}
    for dim in sorted({s.even_dim for s in found} - {0}):
        members = [-(-own // 2) for s, own in zip(found, counts, strict=True) if s.even_dim == dim]
        u, directions = even(num_bases, np.concatenate(members).tolist(), dim, generator)
        lengths = [int(own.sum()) for own in members]
        directed[dim] = list(zip(u.split(lengths, 1), directions.split(lengths, 1), strict=True))
    drawn = []
    for s, own in zip(found, counts, strict=True):
        halves = -(-own // 2)
        which = np.repeat(np.arange(len(own)), halves)  # the version of each wave
        if s.even_dim:
            positions = [directed[s.even_dim].pop(0)]
        else:
            positions = s.positions(stratified(num_bases, halves, s.num_uniforms, generator))
        q = [np.stack(each) for each in zip(*(table.proposal for table in s.tables), strict=True)]
        each = [f.at(own_q, which, at) for f, own_q, at in zip(s.factors, q, positions, strict=True)]
        theta, power = (functools.reduce(torch.add, part) for part in zip(*each, strict=True))
        if s.centres is not None:
            theta = theta + s.centres[which // len(s.monomials)]  # [g, f, d]
        per_wave = (2 * s.variances / torch.from_numpy(own))[which]  # [f]
        monomials = s.monomials[which % len(s.monomials)]
        drawn += _paired(DrawnWaves(s.term, monomials, theta, (per_wave * power.exp()).sqrt()), own, generator)
    return drawn


def stratified(num_bases: int, counts: np.ndarray, dims: int, generator: torch.Generator) -> Tensor:
    """Uniforms `[g, f, dims]` for each of some counts, one after another: of a Sobol net in one dimension; in more of a
    Hammersley net, the first one at equal steps, shifted, and the others from a Sobol net: as even for numbers that are
    no powers of two.
    """
    which = np.repeat(np.arange(len(counts)), counts)
    at = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    if dims > 1:
        u = (torch.from_numpy(at) + rand((num_bases, len(counts)), generator).cpu()[:, which]) / torch.from_numpy(
            counts
        )[which]
    nets = sobol(num_bases * len(counts), int(counts.max()), max(1, dims - 1), generator).cpu()
    net = nets.unflatten(0, (num_bases, len(counts)))[:, which, at]
    return net if dims == 1 else torch.cat([u[..., None], net], -1)


def _paired(drawn: DrawnWaves, counts: np.ndarray, generator: torch.Generator) -> list[DrawnWaves]:
    """Waves of some versions as `counts` features of each: pairs, and one single cosine where a count is odd."""
    if not (counts % 2).any():
        return [drawn]
    halves = -(-counts // 2)
    (num_bases, total), ends = drawn.amplitude.shape, np.cumsum(halves)
    # Any of a version's waves is the single one: they are not alike.
    order, last = torch.arange(total, device="cpu").expand(num_bases, -1).clone(), (ends - 1)[counts % 2 == 1]
    for end in last + 1:
        number = int(halves[ends == end][0])
        start = (rand((num_bases, 1), generator).cpu() * number).long()
        order[:, end - number : end] = end - number + (start + torch.arange(number, device="cpu")) % number
    theta, amplitude = drawn.theta.take_along_dim(order[..., None], 1), drawn.amplitude.take_along_dim(order, 1)
    tau, pairs = 2 * math.pi * rand((num_bases, len(last)), generator).cpu(), np.delete(np.arange(total), last)
    found = [DrawnWaves(drawn.term, drawn.monomials[last], theta[:, last], amplitude[:, last], tau)]
    if len(pairs):
        found.insert(0, DrawnWaves(drawn.term, drawn.monomials[pairs], theta[:, pairs], amplitude[:, pairs]))
    return found


def whole_numbers(total: int, shares: np.ndarray) -> np.ndarray:
    """`total` in whole numbers by shares, at least one each."""
    numbers = np.maximum(1, (total * shares / shares.sum()).astype(int))
    largest = numbers.argmax()
    numbers[largest] = max(1, numbers[largest] + total - numbers.sum())
    while numbers.sum() > max(total, len(numbers)):  # the largest alone could not make up for all that have one
        numbers[numbers.argmax()] -= 1
    return numbers


def coupled(drawn: Sequence[DrawnWaves], origin: Tensor, role: str = RANDOM) -> list[Coupled]:
    """Waves side by side where their coupling and the degree of their monomials are the same."""
    groups: list[list[DrawnWaves]] = []
    for one in drawn:
        for group in groups:
            same = same_coupling(group[0].term.coupling, one.term.coupling)
            if same and group[0].monomials.shape[1] == one.monomials.shape[1]:
                group.append(one)
                break
        else:
            groups.append([one])
    found: list[Coupled] = []
    for group in groups:
        pairs, singles = [w for w in group if w.tau is None], [w for w in group if w.tau is not None]
        bases: list[Basis] = []
        if pairs:
            bases.append(Pairs(torch.cat([w.theta for w in pairs], 1), torch.cat([w.amplitude for w in pairs], 1)))
        if singles:
            theta, amplitude, tau = (torch.cat(own, 1) for own in zip(*(w[2:] for w in singles), strict=True))
            bases.append(Cosines(theta, tau, amplitude))
        if group[0].monomials.shape[1]:
            columns = [w.monomials.repeat_interleave(2, 0) for w in pairs] + [w.monomials for w in singles]
            one_hot = torch.eye(len(origin) + 1, dtype=torch.float64, device="cpu")
            A = one_hot[torch.cat(columns).mT]  # [p, f, d + 1]
            cosines = as_cosines(bases)
            A = A.expand(cosines.num_bases, *A.shape)
            bases = [Products(A, A.new_ones(()), origin, cosines)]
        found += [Coupled(basis, group[0].term.coupling, role) for basis in bases]
    return found


# --- Even directions -------------------------------------------------------------------------------------------------

# Sizes of sets: more directions are several sets, each rotated on its own. Few sizes, since sets are kept.
_SIZES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


def even(num_bases: int, counts: Sequence[int], dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each of some counts, one after another: stratified uniforms `[g, count]` for radii, and directions
    `[g, count, dim]` that are even at all of these."""
    sizes = []
    for count in counts:
        for size in _SIZES:
            sizes += [size] * (count // size)
            count %= size
    u = rand((num_bases, sum(sizes)), generator).cpu()
    Q = orthogonal(
        normals((len(sizes), num_bases, dim, dim), generator).cpu()
    )  # a rotation of each set, for each basis
    of = torch.from_numpy(np.repeat(sizes, sizes))
    at = torch.from_numpy(np.concatenate([np.arange(size) for size in sizes]))
    directions = [near_design(size, dim) @ rotation for size, rotation in zip(sizes, Q, strict=True)]
    return ((at + u) / of).clamp_(2**-54, 1 - 2**-53), torch.cat(directions, 1)


@kept(128)
def near_design(size: int, dim: int) -> Tensor:
    """Directions `[size, dim]` that are even altogether and in every run of neighbours: always the same.

    Polynomials of degree 2t are integrated as by the sphere where the frame potential, the sum of (u_i . u_j)^2t over
    all pairs, is least. Thirty steps of descent on those of degrees 2, 4 and 6 find directions far better than a Sobol
    net's. Neighbours, which have radii alike, repel each other more. The potential does not know signs, as a pair of
    features does not; signs then balance neighbours. In float64: rounding has no say in where the descent leads.
    """
    start = torch.randn(size, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    u = torch.nn.functional.normalize(start, dim=1)
    if size == 1:
        return u
    at = torch.arange(size, dtype=torch.float64, device="cpu") / size
    near = 1 + 2 * (-(at[:, None] - at).abs() / 0.15).exp()  # [size, size]
    near.fill_diagonal_(0.0)
    expected, factors = 1.0, []
    for t in (1, 2, 3):
        expected *= (2 * t - 1) / (dim + 2 * t - 2)  # the mean of (u . v)^2t over the sphere
        factors.append(t / expected)
    for step in range(30):
        C = u @ u.mT
        C2 = C.square()
        slope = (C2 * factors[2]).add_(factors[1]).mul_(C2).add_(factors[0]).mul_(C).mul_(near)  # of the potential
        pull = slope @ u
        pull -= (pull * u).sum(1, keepdim=True) * u
        pull *= 0.15 * (1 - step / 30) / pull.norm(dim=1).mean().clamp_min(1e-300)
        u = torch.nn.functional.normalize(u - pull, dim=1)
    balance = torch.zeros(dim, dtype=torch.float64, device="cpu")
    for direction in u:
        if direction @ balance > 0:
            direction.neg_()
        balance = 0.9 * balance + direction
    return u


def with_components(terms: list[Term], input_dim: int, largest_envelopes: int = 32) -> list[tuple[Term, list[Summand]]]:
    """The terms whose frequencies can be sampled by importance, with the summands of their spectra.

    Args:
        largest_envelopes: monomials, each with frequencies of its own by leverage: beyond, products are random.
    """
    spectral = [t for t in terms if t.stationary and not t.own]
    stationary = [t for t in spectral if monomial_count(list(t.forms)) <= largest_envelopes]
    found = [(t, spectra(t, input_dim)) for t in stationary]
    return [(t, parts) for t, parts in found if parts is not None]


@torch.no_grad()
def posterior_at(kernel: Kernel, sites: Observed, noise: Tensor) -> FactoredPosterior:
    """The posterior given data at some sites, of this noise: for the choice of a basis, which needs no targets."""
    kernel, sites = kernel.to(noise.device, torch.float64), sites.double()
    operator = KernelOperator(kernel, sites, noise.double() + 1e-10 * coupled_diagonal(kernel, sites).mean())
    state = Cholesky().init(operator) if len(sites) <= Leverage.largest_whole else None
    return FactoredPosterior(kernel, sites, operator.noise, state)


def to_come(kernel: Kernel, X: Tensor, noise: float = 1e-6) -> tuple[Sites, Tensor]:
    """Points `[n, d]` as data to come of every output, and a noise that is as small as theirs may be.

    Frequencies for little noise also serve for more: those for much noise do not serve for less.

    Args:
        noise: of the data to come, in variances of the prior.
    """
    sites = Sites.every_output(X, kernel.num_outputs)
    return sites, noise * coupled_diagonal(kernel.to(X.device, torch.float64), sites.double())
