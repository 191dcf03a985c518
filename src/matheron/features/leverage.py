"""Random features where the posterior lives: importance sampling of frequencies by leverage.

*Problem.* A prior draw is f = sum_i w_i phi_i, with frequencies theta_i from the kernel's spectral density S. Given
data X, with G(x) = (K + noise)^-1 k(X, x), the part of a wave e^{i theta . x} that they leave open is its residual

    r_theta(x) = e^{i theta . x} - G(x)^T e^{i theta . X},     Var f(x) = int S |r_theta(x)|^2 d theta + noise |G(x)|^2.

Data determine the smooth and heavy part of the spectrum: there r_theta is nearly zero, and S has most of its mass.

*Proposal.* The leverage of a wave is its share of the posterior variance, averaged over reference points x:

    lev(theta) = mean_x |r_theta(x)|^2 / Var f(x).

With frequencies from q and amplitudes sqrt(S / q) the kernel is unbiased for every q. The squared error of a draw is
int S^2 lev^2 / q among the data, and int S^2 / q far from them. Every weighted sum of these two is least for

    q ~ S sqrt(lev^2 + b),

and b is the smallest number for which int S^2 / q stays below a bound. docs/theory.md has the choice of bounds.

*Spectrum.* Each term of a kernel is a sum of summands (`Summand`), in which a frequency is a sum of independent parts,

    theta = atom + sum_j r_j scale_j direction_j.

The atoms are the harmonics of Periodic, the centres of a spectral mixture, or zero, each times the monomials of linear
forms. The radial factors (RBF, Matern, ..) have uniform directions and densities of log r, cut into shells of equal
width (`cut`). So q is a table over the shells of the first factor for each atom, times one for each other factor.

*Algorithm* (`leverage`).

1. Choose reference points and compute G there (`residuals.Reference`).
2. Take a few hundred pilot waves theta_k, along the whole spectrum of every summand, with weights (`radial_pilot`).
3. Compute |r_theta_k(x)|^2, hence Var f(x) as a weighted sum over k, and lev(theta_k) (`set_tables`).
4. Average lev over runs of neighbouring log r, and interpolate it to the shells (`tabulated`).
5. Find b by bisection, and with it q. The summands share the features in proportion to the roots of their squared
   errors (`propose`).
6. Draw from q by its inverse CDF (`Summand.waves`). Radii are at equal steps of the CDF, or on a Sobol net. The
   directions of a single factor in three or more dimensions are near-designs, rotated at random (`even`).

Steps 1 to 5 do not depend on the number of bases. The proposal q is chosen for values. Second derivatives weigh a
frequency by theta^4: where they are not observed, their features can have heavy tails for rough kernels (Matern-5/2).

*Pool.* Features of which only values are known, at reference points and data, have a leverage too. The products of all
features of a pool sum to k. Some of them are chosen by systematic resampling with probabilities pi ~ m sqrt(lev^2 + b),
where m are their mean squares, and divided by sqrt(pi): see `resampled`.
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

from ..core.modes import as_numpy, kept, outside, plain
from ..evaluate import Pairs, Products
from ..kernels.algebra import root_of
from ..kernels.base import Term
from ..kernels.composed_measures import components
from ..kernels.radial import Elliptical
from ..solvers import FactoredPosterior
from .explicit import as_cosines, leading_signs, monomial_count, monomials
from .features import RANDOM, Coupled, FeatureSpec, rand
from .quasi_random import even, fixed_net, sobol
from .residuals import Reference


@dataclass(frozen=True)
class Leverage:
    """Settings of leverage, chosen by `benchmarks/leverage.py`."""

    num_pilot: int = 256  # pilot waves; if there are several tables, they share 1.5 times as many
    num_runs: int = 21  # the number of neighbouring log radii over which the leverage of pilot waves is averaged
    num_shells: int = 512  # the number of shells in a table
    num_atoms: int = 24  # the atoms of a summand that have their own tables; further atoms share these
    largest_products: int = 32  # terms with more monomials than this have no leverage
    far: float = 1.2  # the bound on int S^2 / q, the squared error far from the data relative to that with q = S
    far_in_one_dim: float = 1.5  # in one dimension, weighted frequencies are more even
    far_of_many: float = 2.5  # with `many_bases` bases or more, whose errors average out
    many_bases: int = 4
    far_given: float = 4.0  # with `domain` or `where`, no point is far from the data
    smallest_gain: float = 1.05  # if the expected gain is less than this, S itself is used

    def bound(self, spec: FeatureSpec, one_dim: bool) -> float:
        """The bound on int S^2 / q for a spec, and for frequencies that are all one-dimensional or not."""
        if spec.domain is not None or spec.where is not None:
            return self.far_given
        if spec.num_bases >= self.many_bases:
            return self.far_of_many
        return self.far_in_one_dim if one_dim else self.far


# --- Radial factors --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """An elliptical measure as the key of a cache: profiles are equal if their measures differ by scale alone."""

    measure: Elliptical = field(compare=False)
    key: tuple | None


@dataclass(frozen=True, eq=False)
class RadialShells:
    """The law of t = log |theta / scale| of an elliptical measure, cut into shells of equal width."""

    measure: Elliptical
    low: float  # where the first shell begins
    step: float
    middles: np.ndarray  # [c]
    masses: np.ndarray  # [c]


@kept(64)
def cut(profile: Profile, count: int) -> RadialShells:
    """Cut the law of log r into `count` shells, without 1e-10 of the mass at either end."""
    measure, coarse = profile.measure, torch.arange(-80.0, 230.0, 0.5, dtype=torch.float64, device="cpu")
    mass = measure.log_density_of_radius(coarse + 0.25).exp()
    below, above = mass.cumsum(0), mass.flip(0).cumsum(0).flip(0)
    inside = coarse[(below > 1e-10 * below[-1]) & (above > 1e-10 * below[-1])]
    low, high = float(inside[0]), float(inside[-1]) + 0.5
    step = (high - low) / count
    middles = low + step * (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5)
    # An oscillating density is averaged over several points of each shell.
    within = step * ((torch.arange(measure.waves, dtype=torch.float64, device="cpu") + 0.5) / measure.waves - 0.5)
    masses = measure.log_density_of_radius(middles[:, None] + within).exp().mean(1)
    return RadialShells(measure, low, step, as_numpy(middles), as_numpy(masses / masses.sum()))


class RadialFactor:
    """A factor theta = r scale direction @ frame of a spectrum, with shells of log r.

    Args:
        measure: the law of r scale direction, elliptical and without a shift.
        frame: orthonormal rows `[p, d]`; None for the identity.
        half: whether one of theta and -theta is enough, since a cosine and a sine are the same pair for both.
        num_shells: the number of shells.
    """

    def __init__(self, measure: Elliptical, frame: Tensor | None, half: bool, num_shells: int) -> None:
        self.measure, self.frame, self.half, self.num_uniforms = measure, frame, half, measure.input_dim
        with outside():
            fixed = copy(measure)  # without a graph, because the choice of q is not differentiated
            vars(fixed).update({k: plain(v) for k, v in vars(measure).items() if isinstance(v, Tensor)})
        self.scale, key = fixed.scale, fixed.shape
        tabulated = cut if key is not None else cut.__wrapped__
        self.shells = tabulated(Profile(fixed, key and (type(measure), *key)), num_shells)

    def frequencies(self, own: Tensor) -> Tensor:
        """Scale and turn r direction `[.., p]` to frequencies `[.., d]`."""
        own = own * self.scale
        return own if self.frame is None else own @ self.frame

    def at(self, shell: np.ndarray, fraction: np.ndarray, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Compute frequencies `[.., f, d]` at places in the shells, and log density times shell width, `[.., f]`.

        Frequencies are constants; the density carries the gradient with respect to hyperparameters.
        """
        t = self.shells.low + self.shells.step * torch.from_numpy(shell + fraction)
        own = t.exp()[..., None] * direction
        log_mass = self.shells.measure.log_density_of_radius(t) + math.log(self.shells.step)
        if torch.is_grad_enabled():
            r2 = (own * (self.scale / self.measure.scale)).square().sum(-1)
            log_S = self.measure.log_radial(r2) - self.measure.scale.log().sum()
            log_mass = log_mass + log_S - log_S.detach()
        return self.frequencies(own), log_mass


def directed(U: Tensor, half: bool) -> tuple[Tensor, Tensor]:
    """Map uniforms `[.., p]` to one uniform number `[..]` for the radius and a direction `[.., p]`, equally even."""
    p = U.shape[-1]
    if p == 1:
        u = U[..., 0] if half else (2 * U[..., 0] - 1).abs()
        return u, torch.ones_like(U) if half else torch.where(U < 0.5, -1.0, 1.0).to(U)
    if p == 2:
        angle = (math.pi if half else 2 * math.pi) * U[..., 1]
        return U[..., 0], torch.stack([angle.cos(), angle.sin()], dim=-1)
    z = torch.special.ndtri(U)
    squared = z.square().sum(-1)
    # the distribution function of a chi-squared variable
    u = torch.special.gammainc(torch.full_like(squared, p / 2), squared / 2)
    return u, z / squared.sqrt()[..., None]


@kept(64)
def radial_pilot(
    shells: RadialShells, half: bool, count: int, columns: int, first: int, least: float
) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Make waves along the whole spectrum: r direction `[k, p]`, S / q `[k]` and log r `[k]`.

    A third of the waves follow the density, and a third the density of stretched radii. The others are spread evenly
    over log r, from the median to the radius beyond which the share `least` of the spectrum lies.

    Args:
        count, columns, first: the waves are made from the columns from `first` on of a net `[count, columns]`.
    """
    p, q = shells.measure.input_dim, shells.masses.copy()
    shift = min(round(math.log(1 + 3 / math.sqrt(p)) / shells.step), len(q))
    q[shift:] += shells.masses[: len(q) - shift]
    beyond = shells.masses[::-1].cumsum()[::-1]
    light = (beyond <= 0.5) & (beyond > max(least, 1e-10))
    q += light / max(light.sum(), 1)
    q /= q.sum()
    u, direction = directed(fixed_net(count, columns)[:, first : first + p], half)
    cell, fraction = inverse_cdf(q, u)
    t = shells.low + shells.step * torch.from_numpy(cell + fraction)
    ratio = as_numpy(shells.measure.log_density_of_radius(t).exp()) * shells.step / q[cell]
    return t.exp()[:, None] * direction, ratio, as_numpy(t)


def inverse_cdf(q: np.ndarray, u: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Find the cells `[.., f]` of probabilities q `[c]` in which uniforms u `[.., f]` fall, and the positions there."""
    cdf = q.cumsum()
    cdf /= cdf[-1]
    at = as_numpy(u)
    cell = np.minimum(np.searchsorted(cdf, at), len(q) - 1)
    return cell, np.clip(1 - (cdf[cell] - at) / q[cell], 0, 1)


# --- Summands and their tables ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class LeverageTable:
    """The leverage of features by the cells of one coordinate, or of several independent coordinates.

    `masses` are the shares of each coordinate's cells, and `levels` their leverage, scaled to a mean of one. `size` is
    the mean variance of the features at the reference points, and `left` the mean leverage. `propose` sets `proposal`,
    the probabilities of the cells, and `share`, the share of all features that are drawn from this table.
    """

    masses: list[np.ndarray] = field(default_factory=list)
    levels: list[np.ndarray] = field(default_factory=list)
    size: float = 1.0
    left: float = 1.0
    proposal: list[np.ndarray] = field(default_factory=list)
    share: float = 1.0


class Pilot(NamedTuple):
    """Waves of a summand at which leverage is computed. They are always the same, up to scales."""

    theta: Tensor  # [m k, d]: k of them about each of m atoms
    chosen: np.ndarray  # [m], these atoms
    near: np.ndarray  # [c], which of them stands for each atom: itself, or one that is slightly heavier
    ratios: np.ndarray  # [j, k], S / q of each radial factor
    places: list[np.ndarray]  # [k] for each radial factor, log r


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

    def pilot(self, num_atoms: int, count: int, least: float) -> Pilot:
        """Make `count` waves about each of `num_atoms` atoms by `radial_pilot`, or one if there is no radial factor."""
        c, count = len(self.mass), count if self.radial else 1
        near, chosen = np.arange(c) * num_atoms // c, -(-np.arange(num_atoms) * c // num_atoms)
        theta, ratios, places = plain(self.atoms)[chosen, None], np.ones((len(self.radial), count)), []
        columns, first = sum(f.num_uniforms for f in self.radial), 0
        for i, f in enumerate(self.radial):
            own, ratios[i], at = radial_pilot(f.shells, f.half, count, columns, first, least)
            theta, first = theta + f.frequencies(own), first + f.num_uniforms
            places.append(at)
        return Pilot(theta.flatten(0, 1), chosen, near, ratios, places)

    def waves(self, count: int, num_bases: int, generator: torch.Generator) -> tuple[Tensor, np.ndarray, Tensor]:
        """Draw frequencies `[g, f, d]`, their atoms `[g, f]` and log S / q `[g, f]` from the table's proposal."""
        p = [f.num_uniforms for f in self.radial] or [1]
        if len(self.radial) == 1 and p[0] >= 3:
            places = [even(num_bases, count, p[0], generator)]
        else:
            net = sobol(num_bases, count, max(1, sum(p) - 1), generator).cpu()
            if sum(p) > 1:  # a Hammersley net, whose first column has equal steps
                first = (torch.arange(count, device="cpu") + rand((num_bases, 1), generator).cpu()) / count
                net = torch.cat([first[..., None], net], -1)
            U = net.split(p, -1)
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


def summands(term: Term, input_dim: int, settings: Leverage = Leverage()) -> list[Summand]:  # noqa: B008
    """List the summands of a term. There are none if its spectrum is not made of radial densities and few atoms."""
    if term.own or not term.stationary or monomial_count(list(term.forms)) > settings.largest_products:
        return []
    products, coefficients = torch.zeros(1, 0, dtype=torch.long, device="cpu"), term.variance.new_ones(1)
    if term.forms:
        A, coefficients = monomials([form.cpu() for form in term.forms])  # [p, m, d + 1], [m]
        products = A.argmax(-1).mT
    found = []
    for weight, radial, discrete in components(term.measure(input_dim)) or []:
        atoms, mass, each = coefficients.new_zeros(1, input_dim), coefficients, products
        if discrete is not None:
            # One of each pair +-theta is enough, with the mass of both.
            sign, (atoms, mass) = leading_signs(discrete[0]), discrete
            some = (sign >= 0) & (mass.detach() > 1e-14 * mass.detach().max())
            atoms, mass = atoms[some], torch.where(sign != 0, 2 * mass, mass)[some]
            mass, each = (coefficients[:, None] * mass).flatten(), products.repeat_interleave(len(atoms), 0)
        if len(mass) > 1:
            order = mass.detach().argsort(descending=True, stable=True)
            atoms, mass, each = atoms.repeat(len(mass) // len(atoms), 1)[order], mass[order], each[order]
        num_shells = max(16, settings.num_shells // max(1, len(mass) // settings.num_atoms))
        halves = [discrete is None and i == 0 for i in range(len(radial))]
        factors = [RadialFactor(m, frame, half, num_shells) for (m, frame), half in zip(radial, halves, strict=True)]
        variance = term.variance * weight * mass.sum()
        found.append(Summand(term, factors, variance, atoms, mass / mass.sum(), each))
    return found


@torch.no_grad()
def set_tables(
    found: Sequence[Summand], spec: FeatureSpec, origin: Tensor, posterior: FactoredPosterior, settings: Leverage
) -> None:
    """Set the tables of summands by the leverage of their pilot waves, all of which are evaluated together."""
    d, t, num = len(origin), posterior.kernel.num_outputs, settings.num_pilot
    variances = [float(plain(s.variance)) for s in found]
    # A lower bound on the posterior variance relative to the prior's, for data with this noise. It is rounded to a
    # power of ten, so that cached tables can be used again.
    least = float(plain(posterior.noise).min()) / (len(posterior.sites) * max(sum(variances), 1e-300))
    least = 10.0 ** math.floor(math.log10(max(least, 1e-10)))
    num_atoms = [min(len(s.mass), settings.num_atoms if s.radial else num) for s in found]
    num_tables = sum(m for s, m in zip(found, num_atoms, strict=True) if s.radial)
    count = num if num_tables <= 1 else max(num // 8, min(num // 2, 3 * num // 2 // num_tables))
    with outside():
        pilots = [s.pilot(m, count, least) for s, m in zip(found, num_atoms, strict=True)]
    theta, lengths = torch.cat([p.theta for p in pilots]), [len(p.theta) for p in pilots]
    typical = torch.where(theta == 0, torch.nan, theta.abs()).nanmedian(0).values  # [d]; terms may leave some alone
    reference = Reference(posterior, spec.domain, spec.where, 1 / torch.nan_to_num(typical, nan=1.0))
    products, roots = None, [None if t == 1 else root_of(s.term.coupling, t) for s in found]
    if degree := max(s.products.shape[1] for s in found):
        own = [torch.nn.functional.pad(s.products, (0, degree - s.products.shape[1]), value=d) for s in found]
        each = zip(own, pilots, strict=True)
        products = torch.cat([own[p.chosen].repeat_interleave(len(p.theta) // len(p.chosen), 0) for own, p in each])
    stacked = [plain(R).expand(length, t, t) for R, length in zip(roots, lengths, strict=True) if R is not None]
    powers = reference.wave_power(theta, products, torch.cat(stacked) if stacked else None, origin)  # [r, sum of m k]
    shares = [  # the fraction of the prior variance that each wave has, [m k]
        v * np.outer(np.bincount(p.near, as_numpy(s.mass)), p.ratios.prod(0) / p.ratios.shape[1]).ravel()
        for s, p, v in zip(found, pilots, variances, strict=True)
    ]
    variance = reference.noise_variance + powers @ np.concatenate(shares)  # [r]
    lev = np.split(
        1 / (np.maximum(variance, 1e-300) * len(variance)) @ powers, np.cumsum(lengths)[:-1]
    )  # [m k] of each
    for s, p, v, own, root in zip(found, pilots, variances, lev, roots, strict=True):
        s.table = tabulated(s, p, v * own.reshape(len(p.chosen), -1), reference.at_x.points, settings)
        s.table.size *= v * (1.0 if root is None else float(root.detach().square().sum()) / t)


def tabulated(s: Summand, p: Pilot, lev: np.ndarray, x: Tensor, settings: Leverage) -> LeverageTable:
    """Make the table of a summand from the leverage `[m, k]` of its pilot waves and the reference points x."""
    sizes = mass = as_numpy(s.mass)  # [c]
    if s.products.shape[1]:
        squares = torch.nn.functional.pad(x.cpu(), (0, 1), value=1.0).square()
        sizes = mass * as_numpy(squares[:, s.products].prod(-1).mean(0))
    cells = 0.5 * sizes / max(sizes.sum(), 1e-300) + 0.5 / len(sizes)  # the shares of the atoms without leverage
    table = LeverageTable(size=float(sizes.sum()))
    for i in range(max(1, len(s.radial))):
        level, masses = lev if i == 0 else (np.bincount(p.near, mass) @ lev)[None], np.ones(1)
        if s.radial:
            shells, others = s.radial[i].shells, np.delete(p.ratios, i, 0).prod(0)
            level = smoothed(p.places[i], level, others, shells.middles, settings.num_runs)
            masses = shells.masses
        if i == 0:
            level, masses = level[p.near] * (mass / cells)[:, None], cells[:, None] * masses
        table.left = max(float((level * masses).sum()), 1e-300)  # equal for all factors, up to the smoothing
        table.masses.append(masses.ravel())
        table.levels.append(level.ravel() / table.left)
    return table


def smoothed(at: np.ndarray, values: np.ndarray, weights: np.ndarray, index: np.ndarray, most: int) -> np.ndarray:
    """Average positive values `[m, k]` at places `[k]` over runs of neighbours, and interpolate their logarithms."""
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
    """Set the tables' proposals q ~ S sqrt(lev^2 + b) and shares of the features, with the smallest b within `bound`.

    Without leverage, q = S, and half of the features are shared equally and half by variance; b is relative to these
    shares. If leverage gains too little, they are set, and the result is False.
    """
    sizes, left = (np.array([getattr(table, name) for table in tables]) for name in ("size", "left"))
    sizes, left = (each / (each.sum() or 1.0) for each in (sizes, left))  # [v]
    even = 0.5 * sizes + 0.5 / len(tables)
    each = [
        (v, m, np.square(lev * (left[v] / even[v])), m * np.square(lev))
        for v, table in enumerate(tables)
        for m, lev in zip(table.masses, table.levels, strict=True)
    ]

    def errors(b: float) -> tuple[np.ndarray, float, float]:
        """Shares, the squared error far from the data relative to q = S, and the squared error among the data."""
        far, near = np.ones(len(tables)), left**2
        for v, m, tilted, own in each:
            t = np.sqrt(tilted + b)
            whole, inverse = m @ t, 1 / t
            far[v] *= whole * (m @ inverse)
            near[v] *= whole * (own @ inverse)
        shares = np.sqrt(near + b * even**2 * far)
        shares /= shares.sum()
        return shares, (even**2 * far / shares).sum(), (near / shares).sum()

    values = np.logspace(-2, 4, 37)
    first, last = 0, len(values) - 1
    while first < last:  # bisection: the error far from the data decreases as b grows
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
    values: Tensor, reference: Reference, count: int, bound: float, generator: torch.Generator
) -> tuple[Tensor, Tensor] | None:
    """Choose `count` features of a pool by leverage: their numbers and their factors, `[count]` each.

    With these factors, the products phi_c(x) phi_c(x') of the chosen features sum to the pool's in the mean. A feature
    that is chosen twice counts twice. None where leverage gains nothing.

    Args:
        values: values `[r + n, C]` of all features of the pool at `reference.sites`.
        bound: bound on the squared error far from the data, relative to choosing features by their mean squares.
    """
    values = plain(values).to(reference.G)
    power = as_numpy(reference.residual_power(values).double())  # [r, C]
    left = (power / (reference.noise_variance + power.sum(1))[:, None]).mean(0)
    masses = np.maximum(as_numpy(values[: len(power)].square().mean(0).double()), 1e-300)
    masses, left = masses / masses.sum(), left / max(left.sum(), 1e-300)
    pool = LeverageTable(masses=[masses], levels=[left / masses])
    if not propose([pool], bound, Leverage.smallest_gain):
        return None
    (pi,) = pool.proposal
    u = (torch.arange(count, device="cpu") + rand((1,), generator).cpu()) / count
    chosen, _ = inverse_cdf(pi, u)
    return torch.from_numpy(chosen), torch.from_numpy(count * pi[chosen]).rsqrt()


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
    """Draw at most `count` features by leverage for some summands together, for each basis of the spec.

    Features come in pairs, so that an odd `count` is rounded down.

    Args:
        found: the summands of some terms, from `summands`.
        origin: the point `[d]` about which phases are taken.
        posterior: the posterior that leverage is given.
    """
    exact = [s for s in found if not s.radial]  # a discrete measure with few atoms gets all of them, which is exact
    size = 2 * sum(len(s.mass) for s in exact)
    exact, size = (exact, size) if 2 * size <= count else ([], 0)
    drawn = [_features(s, s.atoms[None], np.arange(len(s.mass))[None], s.mass[None], origin) for s in exact]
    rest = [s for s in found if not any(s is other for other in exact)]
    if rest:
        set_tables(found, spec, origin, posterior, settings)
        one_dim = all(sum(f.num_uniforms for f in s.radial) <= 1 for s in found)
        propose([s.table for s in rest], settings.bound(spec, one_dim), settings.smallest_gain)
        if spec.domain is None and spec.where is None:
            for s in (s for s in rest if s.products.shape[1]):
                # Far from the data, any monomial can have most of the variance. Half of the waves are shared equally.
                q = s.table.proposal[0].reshape(len(s.mass), -1)
                q *= 0.5 + 0.5 / (len(q) * np.maximum(q.sum(1, keepdims=True), 1e-300))
        numbers = whole_numbers((count - size) // 2, np.array([s.table.share for s in rest]))
        for s, number in zip(rest, numbers, strict=True):
            theta, atom, log_ratio = s.waves(number, spec.num_bases, generator)
            drawn.append(_features(s, theta, atom, log_ratio.exp() / number, origin))
    return drawn


def _features(s: Summand, theta: Tensor, atom: np.ndarray, power: Tensor, origin: Tensor) -> Coupled:
    """Make cosines and sines of frequencies `[g, f, d]`, times the monomials of their atoms `[g, f]`.

    The squares of the amplitudes are the summand's variance times `power` `[g, f]`.
    """
    basis = Pairs(theta, (s.variance * power).sqrt())
    products = s.products[atom]  # [g, f, degree]
    if products.shape[-1]:
        one_hot = torch.eye(len(origin) + 1, dtype=torch.float64, device="cpu")
        A = one_hot[products.repeat_interleave(2, 1)].transpose(1, 2)  # [g, degree, 2 f, d + 1]
        basis = Products(A, A.new_ones(()), origin, as_cosines([basis]))
    return Coupled(basis, s.term.coupling, RANDOM)


def whole_numbers(total: int, sizes: np.ndarray) -> list[int]:
    """Split `total` into whole numbers in proportion to sizes, by largest remainders, with at least one each."""
    exact = sizes * (total / sizes.sum())
    numbers = np.maximum(1, exact.astype(int))
    while numbers.sum() > max(total, len(numbers)):  # what the smallest were given, the largest gives up
        numbers[numbers.argmax()] -= 1
    numbers[np.argsort(numbers - exact, kind="stable")[: max(0, total - numbers.sum())]] += 1
    return numbers.tolist()
