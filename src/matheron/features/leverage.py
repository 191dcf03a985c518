"""Random features where the posterior lives: importance sampling of frequencies by leverage.

*Problem.* Draw a prior f = sum_i w_i phi_i with frequencies theta_i from the kernel's spectral density S. Data X turn
it into a posterior, with weights G = (K + noise)^-1 k(X, x) at a point x. Of a wave e^{i theta . x} the data leave open

    r_theta(x) = e^{i theta . x} - G(x)^T e^{i theta . X},     Var f(x) = int S |r_theta(x)|^2 d theta + noise |G(x)|^2.

Data determine the smooth and heavy part of the spectrum: there r_theta is nearly zero, and S has most of its mass.

*Proposal.* The leverage of a wave is its share of the posterior variance, averaged over reference points x:

    lev(theta) = mean_x |r_theta(x)|^2 / Var f(x).

With frequencies from q and amplitudes sqrt(S / q) the kernel is unbiased for every q. The squared error of a draw is
int S^2 lev^2 / q among the data, and int S^2 / q far from them. Every weighted sum of these is least for

    q ~ S sqrt(lev^2 + b),

and b is the smallest number for which int S^2 / q stays below a bound. See docs/theory.md for the choice of bounds.

*Summands.* A term of a kernel is a sum of summands. The frequency of a summand is a sum of independent ones:

    theta = atom + sum_j r_j scale_j direction_j.

A radial factor (RBF, Matern, ..) has a density of log r, cut into shells, and uniform directions. The discrete factor
has atoms (Periodic, the centre of a component of a spectral mixture), times the monomials of linear forms.

*Tables.* The leverage of a few hundred pilot waves, which lie along the whole spectrum, is smoothed over the cells of
each factor to a table. Then q is a product of one q per factor. Summands share the features in proportion to the root
of their part of the error. A table serves any number of bases: drawing from it is an inverse CDF.

*Evenness.* The first uniform number of the waves is at equal steps, and the others are a Sobol net (a Hammersley net).
A single radial factor in three or more dimensions has near-designs for directions (`near_design`), rotated at random.

*Pool.* Features of which only values are known, at reference points and data, have a leverage too. From a pool whose
products sum to k, some are chosen by systematic resampling with probabilities pi ~ m sqrt(lev^2 + b), where m are their
mean squares, and divided by sqrt(pi): see `resampled`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.checks import normals
from ..core.functionals import Functionals
from ..core.modes import Sobol, as_numpy, is_wrapped, kept, outside, plain
from ..core.sites import Sites, concatenated
from ..evaluate import Pairs, Products
from ..kernels import coupled_covariance, coupled_diagonal
from ..kernels.base import SpectralMeasure, Term
from ..kernels.composed_measures import Atom, Convolution, Mixture, Moved, compound
from ..kernels.radial import Elliptical
from ..solvers import CholeskyState, FactoredPosterior, covariance
from ..solvers.cholesky import solved
from .explicit import as_cosines, monomial_count, monomials
from .features import RANDOM, Coupled, FeatureSpec, orthogonal, rand, root_of, sobol
from .harmonics import leading_signs


@dataclass(frozen=True)
class Leverage:
    """Settings of the choice of features by leverage, chosen by `benchmarks/leverage.py`."""

    num_pilot: int = 256  # pilot waves; several summands share half as many again
    num_shells: int = 512  # of log radius, in a table
    num_atoms: int = 24  # of a summand, of which the leverage is found one by one
    largest_cells: int = 1 << 18  # of a table; a term with more has no leverage
    num_runs: int = 21  # of neighbouring radii, over which the leverage of pilot waves is averaged
    num_reference: int = 64  # points over which the leverage is averaged
    largest_whole: int = 4000  # data of which all are used; of more, those nearest to the reference points
    num_data: int = 1024  # how many those are
    far: float = 1.2  # the bound on int S^2 / q: squared errors far from the data grow by at most this factor
    far_in_one_dim: float = 1.5  # weighted frequencies are more even there
    far_of_overlap: float = 1.1  # where several radial factors share coordinates, and errors of their tables multiply
    far_unexplained: float = 1.12  # where data leave open more than `unexplained` of the variance: little to gain
    unexplained: float = 0.15
    far_of_many: float = 2.5  # for `many_bases` bases and more, whose errors average out
    many_bases: int = 4
    far_given: float = 4.0  # where `domain` or `where` is given: no point is far
    smallest_gain: float = 1.05  # S itself is taken where the expected gain is less
    candidates: int = 32  # features in a pool, for each that is chosen


# --- Factors of a spectrum -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """A radial density; two are equal whose measures differ by their scale alone."""

    measure: Elliptical = field(compare=False)
    key: tuple | None


@dataclass(frozen=True, eq=False)
class RadialShells:
    """The law of t = log |theta / scale| of a radial density, cut into shells of equal width."""

    measure: Elliptical
    low: float  # where the first begins
    step: float
    middles: np.ndarray  # [c]
    masses: np.ndarray  # [c]

    def log_mass(self, t: Tensor) -> Tensor:
        """The log density of t, times the width of a shell."""
        return _log_density(self.measure, t) + math.log(self.step)


def _log_density(measure: Elliptical, t: Tensor) -> Tensor:
    return measure.log_radial((2 * t).exp()) + measure.input_dim * t + log_area(measure.input_dim)


def log_area(p: int) -> float:
    """The logarithm of the area of the unit sphere in p dimensions."""
    return math.log(2) + p / 2 * math.log(math.pi) - math.lgamma(p / 2)


@kept(64)
def cut(profile: Profile, count: int) -> RadialShells:
    """`count` shells for all but 1e-10 of the mass at either end."""
    measure, coarse = profile.measure, torch.arange(-80.0, 230.0, 0.5, dtype=torch.float64, device="cpu")
    mass = _log_density(measure, coarse + 0.25).exp()
    below, above = mass.cumsum(0), mass.flip(0).cumsum(0).flip(0)
    inside = coarse[(below > 1e-10 * below[-1]) & (above > 1e-10 * below[-1])]
    low, high = float(inside[0]), float(inside[-1]) + 0.5
    step = (high - low) / count
    middles = low + step * (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5)
    # A density that oscillates is averaged over several points of each shell.
    within = step * ((torch.arange(measure.waves, dtype=torch.float64, device="cpu") + 0.5) / measure.waves - 0.5)
    masses = _log_density(measure, middles[:, None] + within).exp().mean(1)
    return RadialShells(measure, low, step, as_numpy(middles), as_numpy(masses / masses.sum()))


class RadialFactor:
    """A factor with theta = r scale direction @ frame, whose log radius t = log r is cut into shells.

    Args:
        measure: the law of r scale direction, elliptical and without a shift.
        frame: orthonormal rows `[p, d]`: some axes, or axes that were turned. None for all axes.
        half: whether one of theta and -theta is enough, since a pair of features is the same for both.
    """

    def __init__(self, measure: Elliptical, frame: Tensor | None, half: bool, num_shells: int) -> None:
        self.measure, self.frame, self.half, self.num_uniforms = measure, frame, half, measure.input_dim
        self.dims = range(self.num_uniforms) if frame is None else frame.any(0).nonzero()[:, 0].tolist()
        with outside():
            fixed = copy(measure)  # without a graph: what the choice of q depends on
            vars(fixed).update({k: plain(v) for k, v in vars(measure).items() if isinstance(v, Tensor)})
        self.scale, key = fixed.scale, fixed.shape
        tabulated = cut if key is not None else cut.__wrapped__
        self.shells = tabulated(Profile(fixed, key and (type(measure), *key)), num_shells)

    def framed(self, own: Tensor) -> Tensor:
        """r direction `[.., p]` as frequencies `[.., d]`."""
        own = own * self.scale
        return own if self.frame is None else own @ self.frame

    def at(self, shell: np.ndarray, fraction: np.ndarray, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Frequencies `[.., f, d]` and the log density of t times a shell's width `[.., f]`, at places in the shells.

        Frequencies are constants; the density carries the gradient with respect to hyperparameters.
        """
        t = self.shells.low + self.shells.step * torch.from_numpy(shell + fraction)
        own, p = t.exp()[..., None] * direction, self.num_uniforms
        if not torch.is_grad_enabled():
            return self.framed(own), self.shells.log_mass(t)
        r2 = (own * (self.scale / self.measure.scale)).square().sum(-1)
        log_density = self.measure.log_radial(r2) - (self.measure.scale / self.scale).log().sum()
        return self.framed(own), log_density + p * t + log_area(p) + math.log(self.shells.step)


def even_uniforms(num_bases: int, count: int, dims: int, generator: torch.Generator) -> Tensor:
    """Uniforms `[g, count, dims]`: a Sobol net in one dimension, and in more a Hammersley net."""
    net = sobol(num_bases, count, max(1, dims - 1), generator).cpu()
    if dims == 1:
        return net
    first = (torch.arange(count, device="cpu") + rand((num_bases, 1), generator).cpu()) / count
    return torch.cat([first[..., None], net], -1)


def directed(U: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """A uniform number `[..]` for the radius and a direction `[.., p]`, as even as the uniforms `[.., p]` are."""
    p = U.shape[-1]
    if p == 1:
        u = U[..., 0] if half else (2 * U[..., 0] - 1).abs()
        return u, torch.ones_like(U) if half else torch.where(U < 0.5, -1.0, 1.0).to(U)
    if p == 2:
        angle = (math.pi if half else 2 * math.pi) * U[..., 1]
        return U[..., 0], torch.stack([angle.cos(), angle.sin()], dim=-1)
    z = torch.special.ndtri(U)
    squared = z.square().sum(-1)
    u = torch.special.gammainc(torch.full_like(squared, p / 2), squared / 2)  # of a chi-squared variable
    return u, z / squared.sqrt()[..., None]


Net = tuple[int, int, int]  # the number of points, the number of columns, and the first column that is meant


@kept(32)
def net_points(count: int, dims: int) -> Tensor:
    """A Sobol net `[count, dims]` that is always the same, off the corners."""
    return Sobol(dims, seed=0).next(count).clamp_(2**-30, 1 - 2**-30)


@kept(64)
def pilot(shells: RadialShells, half: bool, net: Net, least: float) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Waves along the whole spectrum: r direction `[k, p]`, S / q `[k]`, and t `[k]`.

    They follow the density as it is, and with radii stretched; and lie evenly from the median to where the share
    `least` of the spectrum lies beyond.
    """
    (count, columns, first), p, q = net, shells.measure.input_dim, shells.masses.copy()
    shift = min(round(math.log(1 + 3 / math.sqrt(p)) / shells.step), len(q))
    q[shift:] += shells.masses[: len(q) - shift]
    beyond = shells.masses[::-1].cumsum()[::-1]
    light = (beyond <= 0.5) & (beyond > max(least, 1e-10))
    q += light / max(light.sum(), 1)
    q /= q.sum()
    u, direction = directed(net_points(count, columns)[:, first : first + p], half)
    cell, fraction = inverse_cdf(q, u)
    t = shells.low + shells.step * torch.from_numpy(cell + fraction)
    return t.exp()[:, None] * direction, as_numpy(shells.log_mass(t).exp()) / q[cell], as_numpy(t)


def inverse_cdf(q: np.ndarray, u: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The cells `[.., f]` with probabilities q `[c]` that uniforms u `[.., f]` fall in, and how far into these."""
    cdf = q.cumsum()
    cdf /= cdf[-1]
    at = as_numpy(u)
    cell = np.minimum(np.searchsorted(cdf, at), len(q) - 1)
    return cell, np.clip(1 - (cdf[cell] - at) / q[cell], 0, 1)


# --- Terms as sums of summands ---------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class LeverageTable:
    """What data leave open of features, by the cells of one coordinate or of several independent ones.

    `masses` are the shares of each coordinate's cells, and `levels` their leverage, scaled to a mean of one. `size` is
    the mean variance of the features at the reference points, and `left` the mean leverage. `propose` sets the
    probabilities of the cells, and the share of all features that have this table.
    """

    masses: list[np.ndarray] = field(default_factory=list)
    levels: list[np.ndarray] = field(default_factory=list)
    size: float = 1.0
    left: float = 1.0
    proposal: list[np.ndarray] = field(default_factory=list)
    share: float = 1.0


@dataclass(eq=False)
class Summand:
    """A part of a term: variance times the convolution of atoms and radial densities, times monomials.

    Atom c is a frequency `atoms[c]`, with the monomial `products[c]`, a product of coordinates of (x, 1). Its share of
    the variance is `mass[c]`, the heaviest first.
    """

    term: Term
    radial: list[RadialFactor]
    variance: Tensor
    atoms: Tensor  # [c, d]
    mass: Tensor  # [c], of sum one
    products: Tensor  # [c, degree]
    table: LeverageTable = field(default_factory=LeverageTable)

    @property
    def num_shells(self) -> int:
        return len(self.radial[0].shells.masses) if self.radial else 1

    @property
    def num_dims(self) -> int:
        return len({i for f in self.radial for i in f.dims})

    def near(self, settings: Leverage) -> np.ndarray:
        """For each atom, which of the pilot's atoms stands for it, `[c]`: itself, or one that is slightly heavier."""
        most = settings.num_atoms if self.radial else settings.num_pilot
        return np.arange(len(self.mass)) * min(len(self.mass), most) // len(self.mass)

    def pilot(self, near: np.ndarray, count: int, least: float) -> Pilot:
        """`count` waves about each of the pilot's atoms."""
        chosen = np.flatnonzero(np.diff(near, prepend=-1))
        first, columns = 0, sum(f.num_uniforms for f in self.radial)
        theta, ratios, places = plain(self.atoms)[chosen, None], np.ones((len(self.radial), count)), []
        for i, f in enumerate(self.radial):
            r, ratios[i], at = pilot(f.shells, f.half, (count, columns, first), least)
            theta, first = theta + f.framed(r), first + f.num_uniforms
            places.append(at)
        return Pilot(theta.flatten(0, 1), near, chosen, ratios, places)

    def waves(self, count: int, num_bases: int, generator: torch.Generator) -> tuple[Tensor, np.ndarray, Tensor]:
        """Frequencies `[g, f, d]`, their atoms `[g, f]`, and log S / q `[g, f]`, by the proposals of the table."""
        p = [f.num_uniforms for f in self.radial] or [1]
        if len(self.radial) == 1 and p[0] >= 3:
            places = [even(num_bases, count, p[0], generator)]
        else:
            U = even_uniforms(num_bases, count, sum(p), generator).split(p, -1)
            halves = [f.half for f in self.radial] or [True]
            places = [directed(own, half) for own, half in zip(U, halves, strict=True)]
        theta, atom, log_ratio = self.atoms, np.zeros((num_bases, count), dtype=int), self.mass.new_zeros(1)
        for i, (q, (u, direction)) in enumerate(zip(self.table.proposal, places, strict=True)):
            cell, fraction = inverse_cdf(q, u)
            log_ratio = log_ratio - torch.from_numpy(np.log(q))[cell]
            if i == 0 and len(self.mass) > 1:
                atom, cell = np.divmod(cell, self.num_shells)
                theta, log_ratio = self.atoms[atom], log_ratio + self.mass.log()[atom]
            if self.radial:
                own, log_mass = self.radial[i].at(cell, fraction, direction)
                theta, log_ratio = theta + own, log_ratio + log_mass
        return theta, atom, log_ratio


class Pilot(NamedTuple):
    """Waves of a summand that are always the same, up to its scales."""

    theta: Tensor  # [m k, d]: k of them about each of m atoms
    near: np.ndarray  # [c], which of the m atoms stands for each
    chosen: np.ndarray  # [m], these atoms
    ratios: np.ndarray  # [j, k], S / q of each radial factor
    places: list[np.ndarray]  # [k] for each radial factor, log radii


def summands(
    term: Term,
    input_dim: int,
    largest_products: int = 32,
    settings: Leverage = Leverage(),  # noqa: B008
) -> list[Summand]:
    """A term's summands; none where its spectrum is not made of radial densities and atoms, or has many monomials."""
    if term.own or not term.stationary or monomial_count(list(term.forms)) > largest_products:
        return []
    products, coefficients = torch.zeros(1, 0, dtype=torch.long, device="cpu"), term.variance.new_ones(1)
    if term.forms:
        A, coefficients = monomials([form.cpu() for form in term.forms])  # [p, m, d + 1], [m]
        products = A.argmax(-1).mT
    found = []
    for weight, measures in _convolutions(term.measure(input_dim)):
        radial: list[tuple[Elliptical, Tensor | None]] = []
        discrete: list[SpectralMeasure] = []
        for measure in measures:
            inner, frame = _framed(measure)
            if measure.atoms() is not None:
                discrete.append(measure)
            elif not isinstance(inner, Elliptical) or inner.density_dims is None:
                return []
            else:
                shift, inner = getattr(inner, "shift", None), copy(inner)
                if shift is not None:
                    discrete += [Atom(shift if frame is None else shift @ frame)] * bool(shift.any())
                    inner.shift = None  # pyright: ignore[reportAttributeAccessIssue]
                radial = _with(radial, inner, frame)
        atoms, mass = coefficients.new_zeros(1, input_dim), coefficients.new_ones(1)
        if discrete:
            listed = Convolution(discrete).atoms()
            if listed is None or len(listed[1]) * len(products) * (16 if radial else 1) > settings.largest_cells:
                return []
            # Of each pair +-theta one is enough, with the mass of both.
            sign = leading_signs(listed[0])
            some = (sign >= 0) & (listed[1].detach() > 1e-14 * listed[1].detach().max())
            atoms, mass = listed[0][some], torch.where(sign != 0, 2 * listed[1], listed[1])[some]
        num_atoms, of_atoms = len(mass), products
        if num_atoms * len(products) > 1 or term.forms:
            mass = (coefficients[:, None] * mass).flatten()
            order = mass.detach().argsort(descending=True, stable=True)
            atoms, mass, of_atoms = (
                atoms.repeat(len(products), 1)[order],
                mass[order],
                products.repeat_interleave(num_atoms, 0)[order],
            )
        num_shells = max(16, settings.num_shells // max(1, len(mass) // settings.num_atoms))
        # Without atoms, one of theta and -theta of the first factor is enough.
        factors = [
            RadialFactor(m, frame, half=not discrete and i == 0, num_shells=num_shells)
            for i, (m, frame) in enumerate(radial)
        ]
        variance, mass = term.variance * weight * mass.sum(), mass / mass.sum()
        found.append(Summand(term, factors, variance, atoms, mass, of_atoms))
    return found


def _convolutions(measure: SpectralMeasure) -> list[tuple[Tensor | float, list[SpectralMeasure]]]:
    """A measure as a mixture of convolutions: their weights, and the measures of each."""
    if isinstance(measure, Mixture):
        both = zip(measure.weights, measure.measures, strict=True)
        return [(w * weight, more) for w, part in both for weight, more in _convolutions(part)]
    if isinstance(measure, Convolution):
        choices: list[tuple[Tensor | float, list[SpectralMeasure]]] = [(1.0, [])]
        for part in measure.measures:
            choices = [(w * weight, [*had, *more]) for w, had in choices for weight, more in _convolutions(part)]
        return choices
    if isinstance(measure, Moved):
        return [(w, [measure.of(m) for m in more]) for w, more in _convolutions(measure.measure)]
    return [(1.0, [measure])]


def _framed(measure: SpectralMeasure) -> tuple[SpectralMeasure, Tensor | None]:
    """A measure without what embeds and turns it, and the frame `[p, d]` that does: theta = (its own) frame."""
    if not isinstance(measure, Moved):
        return measure, None
    inner, frame = _framed(measure.measure)
    p, d = measure.measure.input_dim, measure.input_dim
    frame = measure.moved(torch.eye(p, dtype=torch.float64, device="cpu") if frame is None else frame)
    return inner, None if torch.equal(frame, torch.eye(d, dtype=torch.float64, device="cpu")) else frame


def _with(
    found: list[tuple[Elliptical, Tensor | None]], inner: Elliptical, frame: Tensor | None
) -> list[tuple[Elliptical, Tensor | None]]:
    """One measure more; convolved with one in the same frame where the result is elliptical: one radius is better."""
    for i, (other, same) in enumerate(found):
        alike = frame is same or (frame is not None and same is not None and torch.equal(frame, same))
        if alike and (both := compound([other, inner])) is not None:
            return [*found[:i], (both, frame), *found[i + 1 :]]
    return [*found, (inner, frame)]


# --- Leverage: what the data leave open of a feature -----------------------------------------------------------------


class Reference:
    """Points x where the posterior matters, and the weights G = (K + noise)^-1 k(X, x) of the data there."""

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
        self.at_x = Sites(
            x, None if sites.outputs is None else torch.arange(len(x), device=X.device) % kernel.num_outputs
        )
        state = posterior.state if isinstance(posterior.state, CholeskyState) else None
        # A factor in float32 has digits enough, unless a graph is kept: then it is not asked.
        exact = state is not None and (state.L.dtype == torch.float64 or not state.L.requires_grad)
        if not exact or len(X) > settings.largest_whole:
            chosen = _nearest(X / lengths.to(X), x / lengths.to(X), settings.num_data)  # and a factor of our own
            sites, noise = sites[chosen], noise[chosen]
            state = None
        if posterior.sites.points.dtype != torch.float64:
            kernel = kernel.to(X.device, torch.float64)
        K_Xx = coupled_covariance(kernel, sites, self.at_x)  # [n, r]
        if state is None:
            K = covariance(kernel, sites)
            K.diagonal().add_(noise + 1e-10 * K.diagonal().mean())
            G = torch.cholesky_solve(K_Xx, torch.linalg.cholesky(K))
        else:
            G, noise = solved(plain(state.L), K_Xx.to(state.L)), noise + state.jitter
        self.sites = concatenated(self.at_x, sites)  # r + n of them
        self.noise_variance = as_numpy(noise @ G.double().square())  # [r]
        # Rounding adds about eps^2 |G|^2 to a residual's power, in which noise has |G|^2 of its variance.
        variance = float(coupled_diagonal(kernel, self.at_x).max())
        few = isinstance(sites, Sites) and float(noise.min()) > 1e-9 * variance
        self.G = G.float() if few else G

    def residual_power(self, values: Tensor) -> Tensor:
        """|phi_c(x) - G^T phi_c(X)|^2 `[r, c]` of features, from their values `[r + n, c]` at the sites."""
        at_x, at_X = values.to(self.G).split([len(self.at_x), len(self.G)])
        return torch.addmm(at_x, self.G.mT, at_X, alpha=-1).square_()

    @outside()
    def wave_power(self, theta: Tensor, products: Tensor | None, roots: Tensor | None, origin: Tensor) -> np.ndarray:
        """|r_theta(x)|^2 `[r, k]` of waves `[k, d]` times monomials `[k, degree]`, for complex waves.

        Of several outputs it is summed over the columns of the coupling's root, `roots` `[k, t, t]`.
        """
        theta, total = theta.to(self.G.device), None

        def waves_at(x: Tensor) -> Tensor:
            turns = (x - plain(origin).to(x)) @ (theta.mT / (2 * math.pi))
            P = turns.frac_().mul_(2 * math.pi).to(self.G)  # large phases would take the digits of float32
            return torch.cat([P.cos(), P.sin()], dim=1)

        if products is None and roots is None and isinstance(self.sites, Functionals):  # derivatives in closed form
            power = self.residual_power(self.sites.of_waves(waves_at(self.sites.points), theta))
            return as_numpy(power.unflatten(1, (2, -1)).sum(1).double())
        columns = [None] if roots is None else [R for R in roots.to(self.G).unbind(-1) if bool(R.any())]
        for column in columns:

            def values(at: Sites, column: Tensor | None = column) -> Tensor:
                waves = waves_at(at.points)
                factor = None if column is None else column[:, at.outputs].mT  # [p, k]
                if products is not None:
                    powers = torch.nn.functional.pad(at.points, (0, 1), value=1.0)[:, products].prod(-1).to(waves)
                    factor = powers if factor is None else factor * powers
                return waves if factor is None else waves * factor.repeat(1, 2)

            power = self.residual_power(self.sites.features(values))
            total = power if total is None else total + power
        assert total is not None
        return as_numpy(total.unflatten(1, (2, -1)).sum(1).double())


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
    points = net_points(count, d)
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


@torch.no_grad()
def set_tables(
    found: Sequence[Summand], spec: FeatureSpec, origin: Tensor, posterior: FactoredPosterior, settings: Leverage
) -> float:
    """Set the summands' tables by a pilot run; the mean posterior variance at the reference points is returned."""
    d, t, num = len(origin), posterior.kernel.num_outputs, settings.num_pilot
    variances = [float(plain(s.variance)) for s in found]
    # The posterior variance is hardly less than this share of the prior's: there the tail ends.
    least = float(plain(posterior.noise).min()) / (len(posterior.sites) * max(sum(variances), 1e-300))
    least, near = 10.0 ** math.floor(math.log10(max(least, 1e-10))), [s.near(settings) for s in found]
    rows = sum(int(own[-1]) + 1 for s, own in zip(found, near, strict=True) if s.radial)
    count = num if rows <= 1 else max(num // 8, min(num // 2, 3 * num // 2 // rows))
    with outside():
        pilots = [s.pilot(own, count if s.radial else 1, least) for s, own in zip(found, near, strict=True)]
    theta, lengths = torch.cat([pilot.theta for pilot in pilots]), [len(pilot.theta) for pilot in pilots]
    turns = torch.where(theta == 0, torch.nan, theta.abs()).nanmedian(0).values  # [d]; terms may leave some alone
    reference = Reference(posterior, spec.domain, spec.where, 1 / torch.nan_to_num(turns, nan=1.0), settings)
    products, roots = None, [root_of(s.term.coupling, t) for s in found]
    if degree := max(s.products.shape[1] for s in found):
        own = [torch.nn.functional.pad(s.products, (0, degree - s.products.shape[1]), value=d) for s in found]
        each = zip(own, pilots, strict=True)
        products = torch.cat([own[p.chosen].repeat_interleave(len(p.theta) // len(p.chosen), 0) for own, p in each])
    stacked = [plain(R).expand(length, t, t) for R, length in zip(roots, lengths, strict=True) if R is not None]
    powers = reference.wave_power(theta, products, torch.cat(stacked) if stacked else None, origin)  # [r, sum of m k]
    powers = np.split(powers, np.cumsum(lengths)[:-1], axis=1)
    variance = reference.noise_variance  # [r]
    for i, (s, p) in enumerate(zip(found, pilots, strict=True)):
        powers[i] = variances[i] * powers[i].reshape(len(variance), len(p.chosen), -1)  # [r, m, k]
        shares = np.bincount(p.near, as_numpy(s.mass))
        variance = variance + shares @ powers[i] @ p.ratios.prod(0) / powers[i].shape[2]
    relative = 1 / (np.maximum(variance, 1e-300) * len(variance))
    for s, p, v, power, root in zip(found, pilots, variances, powers, roots, strict=True):
        s.table = tabulated(s, p, np.tensordot(relative, power, 1), reference.at_x.points, settings)
        s.table.size *= v * (1.0 if root is None else float(root.detach().square().sum()) / t)
    return float(variance.mean())


def tabulated(s: Summand, p: Pilot, lev: np.ndarray, x: Tensor, settings: Leverage) -> LeverageTable:
    """The table of a summand from the leverage `[m, k]` of its pilot waves."""
    sizes = mass = as_numpy(s.mass)  # [c]
    if s.products.shape[1]:
        squares = torch.nn.functional.pad(x.cpu(), (0, 1), value=1.0).square()
        sizes = mass * as_numpy(squares[:, s.products].prod(-1).mean(0))
    cells = 0.5 * sizes / sizes.sum() + 0.5 / len(sizes)  # the atoms' shares without leverage
    table = LeverageTable(size=float(sizes.sum()))
    # Over directions a root of the mean square is best; in a product it would count what other factors account for.
    exponent = 2.0 if len(s.radial) == 1 else 1.0
    for i in range(max(1, len(s.radial))):
        level, masses = lev if i == 0 else (np.bincount(p.near, mass) @ lev)[None], np.ones(1)
        if s.radial:
            shells, others = s.radial[i].shells, np.delete(p.ratios, i, 0).prod(0)
            level = smoothed(p.places[i], level**exponent, others, shells.middles, settings.num_runs) ** (1 / exponent)
            masses = shells.masses
        if i == 0:
            level, masses = level[p.near] * (mass / cells)[:, None], cells[:, None] * masses
        table.left = max(float((level * masses).sum()), 1e-300)  # the same for all, but for the smoothing
        table.masses.append(masses.ravel())
        table.levels.append(level.ravel() / table.left)
    return table


def smoothed(at: np.ndarray, values: np.ndarray, weights: np.ndarray, index: np.ndarray, most: int) -> np.ndarray:
    """Positive values `[m, k]` at places `[k]`, averaged over runs of neighbours and interpolated in logarithms."""
    order = np.argsort(at, kind="stable")
    count = max(1, min(most, len(at) // 4))
    first = -(-np.arange(count) * len(at) // count)
    w = weights[order]
    middle = np.add.reduceat(at[order], first) / np.diff(np.append(first, len(at)))
    y = np.add.reduceat(w * values[:, order], first, axis=1) / np.maximum(np.add.reduceat(w, first), 1e-300)
    y = np.log(np.maximum(y, np.maximum(1e-12 * y.max(1, keepdims=True), 1e-300)))
    return np.exp([np.interp(index, middle, row) for row in y])


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
    each = [
        (v, m, np.square(lev * (left[v] / even[v])), m * np.square(lev))
        for v, table in enumerate(tables)
        for m, lev in zip(table.masses, table.levels, strict=True)
    ]

    def errors(b: float) -> tuple[np.ndarray, float, float]:
        """Shares; and squared errors far from the data, relative to plain ones, and among the data."""
        far, near = np.ones(len(tables)), left**2
        for v, m, tilted, own in each:
            t = np.sqrt(tilted + b)
            whole, inverse = m @ t, 1 / t
            far[v] *= whole * (m @ inverse)
            near[v] *= whole * (own @ inverse)
        shares = np.sqrt(near + b * even**2 * far)
        shares /= shares.sum()
        # Also with tables by their variance, which is all that counts far from data.
        farthest = max((even**2 * far / shares).sum(), (spread * far / shares).sum())
        return shares, farthest, (near / shares).sum()

    values = np.logspace(-2, 4, 37)
    first, last = 0, len(values) - 1
    while first < last:  # errors far from the data fall as b grows
        middle = (first + last) // 2
        first, last = (first, middle) if errors(values[middle])[1] <= bound else (middle + 1, last)
    shares, far, near = errors(values[first])
    plain_shares, _, plain_near = errors(values[-1])
    gains = far <= bound and math.sqrt(plain_near / near) >= smallest_gain
    b, shares = (values[first], shares) if gains else (values[-1], plain_shares)
    for v, m, tilted, _ in each:
        q = m * np.sqrt(tilted + b)
        tables[v].proposal.append(q / q.sum())
    for table, share in zip(tables, shares, strict=True):
        table.share = float(share)
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
    values = plain(values).to(reference.G)
    power = as_numpy(reference.residual_power(values).double())  # [r, C]
    left = (power / (reference.noise_variance + power.sum(1))[:, None]).mean(0)
    masses = np.maximum(as_numpy(values[: len(power)].square().mean(0).double()), 1e-300)
    masses, left = masses / masses.sum(), left / max(left.sum(), 1e-300)
    pool = LeverageTable(masses=[masses], levels=[left / masses])
    if not propose([pool], bound, settings.smallest_gain):
        return None
    (pi,) = pool.proposal
    u = (torch.arange(count, device="cpu") + rand((1,), generator).cpu()) / count
    chosen, _ = inverse_cdf(pi, u)
    return torch.from_numpy(chosen), torch.from_numpy(count * pi[chosen]).rsqrt()


def bound_given(spec: FeatureSpec, settings: Leverage) -> float | None:
    """The bound on int S^2 / q where it follows from what is asked for."""
    if spec.domain is not None or spec.where is not None:
        return settings.far_given
    return settings.far_of_many if spec.num_bases >= settings.many_bases else None


def _bound(found: Sequence[Summand], variance: float, settings: Leverage) -> float:
    """The same by the spectra, and the mean posterior variance: one for all."""
    whole = sum(s.table.size for s in found)
    if variance > settings.unexplained * whole:
        return settings.far_unexplained
    bounds = []
    for s in (s for s in found if s.table.size >= 0.01 * whole):
        overlap = sum(len(f.dims) for f in s.radial) > s.num_dims
        alone = settings.far_in_one_dim if s.num_dims <= 1 else settings.far
        bounds.append(settings.far_of_overlap if overlap else alone)
    return min(bounds, default=settings.far)


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
    """At most `count` features for all of some summands together, for each basis asked for, by their leverage.

    Args:
        found: the summands of some terms, by `spectra`.
        origin: about which phases are taken, `[d]`.
        posterior: the data that leverage is given.
    """
    # A spectrum of a few atoms is taken as it is.
    exact = [s for s in found if not s.radial]
    size = 2 * sum(len(s.mass) for s in exact)
    exact, size = (exact, size) if 2 * size <= count else ([], 0)
    drawn = [_features(s, s.atoms[None], np.arange(len(s.mass))[None], s.mass[None], origin) for s in exact]
    rest = [s for s in found if not any(s is other for other in exact)]
    if rest:
        variance = set_tables(found, spec, origin, posterior, settings)
        bound = bound_given(spec, settings) or _bound(found, variance, settings)
        propose([s.table for s in rest], bound, settings.smallest_gain)
        if spec.domain is None and spec.where is None:
            for s in (s for s in rest if s.products.shape[1]):
                # Far from the data any monomial may be most of the variance: half of the waves are shared evenly.
                q = s.table.proposal[0].reshape(len(s.mass), -1)
                q *= 0.5 + 0.5 / (len(q) * np.maximum(q.sum(1, keepdims=True), 1e-300))
        numbers = whole_numbers((count - size) // 2, np.array([s.table.share for s in rest]))
        for s, number in zip(rest, numbers.tolist(), strict=True):
            theta, atom, log_ratio = s.waves(number, spec.num_bases, generator)
            drawn.append(_features(s, theta, atom, log_ratio.exp() / number, origin))
    return drawn


def _features(s: Summand, theta: Tensor, atom: np.ndarray, power: Tensor, origin: Tensor) -> Coupled:
    """Cosines and sines of frequencies `[g, f, d]`, times the monomials of their atoms `[g, f]`.

    The squares of the amplitudes are variance * power `[g, f]`.
    """
    basis = Pairs(theta, (s.variance * power).sqrt())
    products = s.products[atom]  # [g, f, degree]
    if products.shape[-1]:
        one_hot = torch.eye(len(origin) + 1, dtype=torch.float64, device="cpu")
        A = one_hot[products.repeat_interleave(2, 1)].transpose(1, 2)  # [g, degree, 2 f, d + 1]
        basis = Products(A, A.new_ones(()), origin, as_cosines([basis]))
    return Coupled(basis, s.term.coupling, RANDOM)


def whole_numbers(total: int, shares: np.ndarray) -> np.ndarray:
    """`total` in whole numbers by shares, at least one each."""
    numbers = np.maximum(1, (total * shares / shares.sum()).astype(int))
    largest = numbers.argmax()
    numbers[largest] = max(1, numbers[largest] + total - numbers.sum())
    while numbers.sum() > max(total, len(numbers)):  # the largest alone could not make up for all that have one
        numbers[numbers.argmax()] -= 1
    return numbers


# --- Even directions -------------------------------------------------------------------------------------------------

# Sizes of sets: more directions are several sets, each rotated on its own. Few sizes, since sets are kept.
_SIZES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


def even(num_bases: int, count: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Stratified uniforms `[g, count]` for radii, and directions `[g, count, dim]` that are even at all of these."""
    sizes, low, width = strata(count)
    u = rand((num_bases, count), generator).cpu()
    # A rotation of each set, for each basis.
    Q = orthogonal(normals((len(sizes), num_bases, dim, dim), generator).cpu())
    directions = [near_design(size, dim) @ rotation for size, rotation in zip(sizes, Q, strict=True)]
    return torch.addcmul(low, width, u).clamp_(2**-54, 1 - 2**-53), torch.cat(directions, 1)


@kept(128)
def strata(count: int) -> tuple[list[int], Tensor, Tensor]:
    """The sizes of sets of near-designs, and where the strata of these begin, and how wide they are, `[count]`."""
    sizes, left = [], count
    for size in _SIZES:
        sizes += [size] * (left // size)
        left %= size
    low = np.concatenate([np.arange(size) / size for size in sizes])
    return sizes, torch.from_numpy(low), torch.from_numpy(1 / np.repeat(sizes, sizes))


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
