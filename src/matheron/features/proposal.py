"""Importance sampling of frequencies: what a kernel's spectrum is made of, cell by cell, and proposals over the cells.

A term's spectral measure is a convolution of factors. Each factor is cut into cells: shells of a radius, or single
atoms. A proposal gives every cell a probability; within a shell the direction is uniform, and so is log radius. The
density of what is drawn is then known exactly, and weights S / q make the kernel unbiased whatever the probabilities.
Nothing here needs special functions of single draws: shells are tabulated once for all bases.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.spatial import Turned
from ..kernels.spectral import Convolution, Elliptical, Embedded, Mixture, SpectralMeasure
from ..kernels.terms import Term

# Shells of one factor, and the share of its mass that may lie outside of them all.
NUM_SHELLS, LOST_MASS = 512, 1e-10
# A product with at most this many atoms becomes a sum of shells about them.
LARGEST_SEPARATED = 24
# Where the range of shells is searched: radii from 1e-35 to 1e100, in units of the measure's scale.
_SEARCHED = (-80.0, 230.0)


class Factor(ABC):
    """One factor of a term's spectrum: cells with masses `[c]` that sum to one, and an index along which they lie."""

    masses: Tensor  # [c]
    index: Tensor  # [c], increasing with the frequency
    num_uniforms: int  # of a direction, or a sign
    input_dim: int

    @abstractmethod
    def draw(self, cell: Tensor, fraction: Tensor, U: Tensor) -> Tensor:
        """Frequencies `[k, d]` in cells `[k]`, a fraction `[k]` of the way through; directions come from U `[k, p]`."""

    @abstractmethod
    def log_mass(self, theta: Tensor, cell: Tensor) -> Tensor:
        """The log density (or mass) of the measure at frequencies drawn from cells; differentiable."""

    @abstractmethod
    def log_proposal(self, q: Tensor, theta: Tensor, cell: Tensor | None = None) -> Tensor:
        """The log density (or mass) of a proposal with cell probabilities q `[c]`."""

    @abstractmethod
    def stretched(self, factor: float) -> Tensor:
        """Masses `[c]` of the measure with its frequencies times a factor, or something as wide."""

    def tail(self, least: float) -> Tensor:
        """Even masses `[c]` from the median out to where this share of the measure lies beyond."""
        beyond = self.masses.flip(0).cumsum(0).flip(0)
        inside = ((beyond <= 0.5) & (beyond > max(least, LOST_MASS))).double()
        return inside / inside.sum() if inside.any() else self.masses


class Shells(Factor):
    """An elliptical measure in coordinates theta A^T of its own: cells are intervals of log |theta A^T / scale|.

    The rows of `frame` A `[p, d]` are orthonormal: some axes, or axes that were turned.
    """

    def __init__(self, measure: Elliptical, frame: Tensor, alone: bool, centre: Tensor | None = None) -> None:
        self.measure, self.frame, self.input_dim = measure, frame, frame.shape[1]
        self.whole = frame.shape[0] == frame.shape[1] and bool((frame == torch.eye(len(frame))).all())
        self.scale = measure.scale.detach()
        self.centre = centre  # of a measure that has no shift of its own, moved there and to its negative
        shift = getattr(measure, "shift", None) if centre is None else centre
        self.shift = None if shift is None else shift.detach()
        d = self.own_dim = len(frame)
        # A frequency and its negative are the same pair of features: alone, half of the directions (or signs) will do.
        self.half = alone and self.shift is None
        self.signed = self.shift is not None and not alone
        self.num_uniforms = {1: 0 if self.half else 1, 2: 1}.get(d, d) + self.signed
        self.log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        with torch.no_grad():
            step = 0.5
            coarse = torch.arange(*_SEARCHED, step, dtype=torch.float64)
            mass = self._log_shell(coarse + step / 2).exp() * step
            below, above = mass.cumsum(0), mass.flip(0).cumsum(0).flip(0)
            kept = ((below > LOST_MASS * below[-1]) & (above > LOST_MASS * below[-1])).nonzero()[:, 0]
            self.low, high = float(coarse[kept[0]]), float(coarse[kept[-1]]) + step
            self.step = (high - self.low) / NUM_SHELLS
            self.index = self.low + self.step * (torch.arange(NUM_SHELLS, dtype=torch.float64) + 0.5)
            waves = measure.waves
            within = self.step * ((torch.arange(waves, dtype=torch.float64) + 0.5) / waves - 0.5)
            masses = self._log_shell(self.index[:, None] + within).exp().mean(-1)
            self.masses = masses / masses.sum()

    def own(self, theta: Tensor) -> Tensor:
        """Frequencies `[k, d]` in the measure's own coordinates `[k, p]`."""
        return theta if self.whole else theta @ self.frame.mT

    def _log_shell(self, log_radius: Tensor) -> Tensor:
        """The log density of log |theta / scale|."""
        return self.measure.log_radial((2 * log_radius).exp()) + self.own_dim * log_radius + self.log_area

    def draw(self, cell: Tensor, fraction: Tensor, U: Tensor) -> Tensor:
        radius = (self.low + self.step * (cell + fraction)).exp()[:, None]
        d = self.own_dim
        if d == 1:
            direction = torch.ones_like(radius) if self.half else _sign(U[:, :1])
        elif d == 2:
            angle = (math.pi if self.half else 2 * math.pi) * U[:, 0]
            direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        else:
            direction = torch.nn.functional.normalize(torch.special.ndtri(U[:, :d]), dim=-1)
        theta = self.scale * direction * radius
        if self.shift is not None:
            theta = theta + (_sign(U[:, -1:]) * self.shift if self.signed else self.shift)
        return theta if self.whole else theta @ self.frame

    def log_mass(self, theta: Tensor, cell: Tensor) -> Tensor:
        at = self.own(theta)
        moved = [at] if self.centre is None else [at - self.centre, at + self.centre]
        parts = [part for x in moved if (part := self.measure.log_density(x)) is not None]
        return torch.stack(parts).logsumexp(0) - math.log(len(parts))

    def log_proposal(self, q: Tensor, theta: Tensor, cell: Tensor | None = None) -> Tensor:
        theta = self.own(theta)
        if self.shift is None:
            return self._log_centred(q, theta)
        both = [self._log_centred(q, theta + sign * self.shift) for sign in (-1, 1)]
        return torch.logaddexp(*both) - math.log(2)

    def _log_centred(self, q: Tensor, theta: Tensor) -> Tensor:
        log_radius = (theta / self.scale).norm(dim=-1).log()
        cell = ((log_radius - self.low) / self.step).clamp(-1, NUM_SHELLS).floor().long()
        inside = (cell >= 0) & (cell < NUM_SHELLS)
        log_q = torch.where(inside, q.log()[cell.clamp(0, NUM_SHELLS - 1)], -math.inf)
        return log_q - math.log(self.step) - self.own_dim * log_radius - self.log_area - self.scale.log().sum()

    def stretched(self, factor: float) -> Tensor:
        moved = round(math.log(factor) / self.step)
        return torch.cat([torch.zeros(moved, dtype=torch.float64), self.masses])[:NUM_SHELLS]


class Atoms(Factor):
    """A discrete measure: a cell is an atom."""

    num_uniforms = 0

    def __init__(self, theta: Tensor, mass: Tensor, alone: bool) -> None:
        kept = mass.detach() > 1e-14 * mass.detach().max()
        if alone:  # a frequency and its negative are the same pair of features
            leading = torch.zeros(len(theta), dtype=theta.dtype)
            for column in theta.detach().mT.flip(0):
                leading = torch.where(column != 0, column.sign(), leading)
            mass, kept = torch.where(leading != 0, 2 * mass, mass), kept & (leading >= 0)
        self.theta, self.mass = theta[kept], mass[kept]  # [c, d], [c]
        self.input_dim = theta.shape[1]
        self.index = self.theta.detach().norm(dim=-1)
        self.masses = self.mass.detach() / self.mass.detach().sum()

    def draw(self, cell: Tensor, fraction: Tensor, U: Tensor) -> Tensor:
        return self.theta[cell]

    def log_mass(self, theta: Tensor, cell: Tensor) -> Tensor:
        return self.mass[cell].log()

    def log_proposal(self, q: Tensor, theta: Tensor, cell: Tensor | None = None) -> Tensor:
        assert cell is not None
        return q[cell].log()

    def stretched(self, factor: float) -> Tensor:
        return self.masses.sqrt() / self.masses.sqrt().sum()

    def tail(self, least: float) -> Tensor:
        """Atoms are in no order: nearly even masses over those of some weight."""
        even = self.masses**0.25 * (self.masses > 0.01 * max(least, LOST_MASS))
        return even / even.sum() if even.any() else self.masses


@dataclass
class Component:
    """One term of the kernel as a product of factors, with a proposal: a probability for each cell of each factor."""

    variance: Tensor
    factors: list[Factor]
    proposal: list[Tensor]  # [c] each
    share: float = 0.0  # of the draws

    @property
    def num_uniforms(self) -> int:
        return len(self.factors) + sum(f.num_uniforms for f in self.factors)

    @property
    def density_dims(self) -> tuple[int, ...] | None:
        """The coordinates over which the term has a density that can be added to others'; None where it has none."""
        first = self.factors[0]
        if len(self.factors) > 1 or not isinstance(first, Shells):
            return None
        axes = tuple(first.frame.any(0).nonzero()[:, 0].tolist())
        return axes if len(axes) == first.own_dim else None  # a plane that is oblique has volume of its own


def components(term: Term, input_dim: int) -> list[Component] | None:
    """The term's spectrum in parts that can be drawn from; None where a factor of it cannot."""
    parts: list[tuple[Tensor, list[SpectralMeasure]]] = [(term.variance, [])]
    for measure in [k.measure(input_dim) for k in term.stationary]:
        choices = _alternatives(measure)
        parts = [(v * weight, [*had, *more]) for v, had in parts for weight, more in choices]
    found = []
    for variance, measures in parts:
        factors = _factors(measures)
        if factors is None:
            return None
        found += _separated(variance, factors)
    return found


def _separated(variance: Tensor, factors: list[Factor]) -> list[Component]:
    """Shells about each atom of a product with a few of them, which then have a density; else the product as it is."""
    atoms = [f for f in factors if isinstance(f, Atoms)]
    shells = [f for f in factors if isinstance(f, Shells)]
    if len(atoms) == len(shells) == 1 and shells[0].shift is None:
        (spectrum,), (radial,) = atoms, shells
        folded = Atoms(spectrum.theta, spectrum.mass, alone=True)
        beside = folded.theta - radial.own(folded.theta) @ radial.frame
        if len(folded.mass) <= LARGEST_SEPARATED and bool(beside.norm() <= 1e-12 * folded.theta.norm()):
            return [
                Component(variance * mass, [s := _about(radial, theta)], [s.masses])
                for theta, mass in zip(folded.theta, folded.mass, strict=True)
            ]
    return [Component(variance, factors, [f.masses for f in factors])]


def _about(radial: Shells, theta: Tensor) -> Shells:
    centre = radial.own(theta)
    return Shells(radial.measure, radial.frame, alone=True, centre=centre if centre.any() else None)


def _alternatives(measure: SpectralMeasure) -> list[tuple[Tensor | float, list[SpectralMeasure]]]:
    """A measure as a mixture of convolutions."""
    if isinstance(measure, Mixture):
        return [
            (w * weight, more)
            for w, part in zip(measure.weights, measure.measures, strict=True)
            for weight, more in _alternatives(part)
        ]
    if isinstance(measure, Convolution):
        choices: list[tuple[Tensor | float, list[SpectralMeasure]]] = [(1.0, [])]
        for part in measure.measures:
            choices = [(w * weight, [*had, *more]) for w, had in choices for weight, more in _alternatives(part)]
        return choices
    if isinstance(measure, Embedded | Turned):
        return [(w, [_moved(measure, m) for m in more]) for w, more in _alternatives(measure.measure)]
    return [(1.0, [measure])]


def _moved(outer: Embedded | Turned, measure: SpectralMeasure) -> Embedded | Turned:
    if isinstance(outer, Turned):
        return Turned(measure, outer.R)
    return Embedded(measure, outer.dims, outer.input_dim)


def _framed(measure: SpectralMeasure) -> tuple[SpectralMeasure, Tensor]:
    """A measure without what embeds and turns it, and the frame `[p, d]` that does: theta = (its own) A."""
    if not isinstance(measure, Embedded | Turned):
        return measure, torch.eye(measure.input_dim, dtype=torch.float64)
    inner, frame = _framed(measure.measure)
    if isinstance(measure, Turned):
        return inner, frame @ measure.R
    return inner, frame @ torch.eye(measure.input_dim, dtype=torch.float64)[measure.dims]


def _factors(measures: list[SpectralMeasure]) -> list[Factor] | None:
    """Discrete measures as one list of atoms (or several, where together they are too many), others as shells."""
    discrete = [m for m in measures if m.atoms() is not None]
    others = [m for m in measures if m.atoms() is None]
    factors: list[Factor] = []
    for m in others:
        inner, frame = _framed(m)
        if not isinstance(inner, Elliptical) or inner.density_dims is None:
            return None
        factors.append(Shells(inner, frame, alone=len(measures) == 1))
    if discrete:
        whole = discrete[0].atoms() if len(discrete) == 1 else Convolution(discrete).atoms()
        lists = [whole] if whole is not None else [m.atoms() for m in discrete]
        for atoms in lists:
            assert atoms is not None
            factors.append(Atoms(*atoms, alone=len(lists) == len(factors) + 1))
    return factors


@dataclass
class Draws:
    """Frequencies `[k, d]`, which component each is of, its cells `[k, factors]`, and its weight S / q `[k]`."""

    theta: Tensor
    component: Tensor
    cells: Tensor
    log_others: Tensor  # [k, factors]: log p / q of all factors but this one
    weight: Tensor


def draw(pool: Sequence[Component], U: Tensor) -> Draws:
    """Frequencies from the components' proposals, by their shares: one for each row of uniforms `[k, p]`.

    The first uniform chooses component and cell and the place in it, so that one stratified coordinate serves all.
    """
    shares = torch.tensor([c.share for c in pool], dtype=torch.float64)
    cells = torch.cat([c.share * c.proposal[0] for c in pool])
    sizes = torch.tensor([len(c.proposal[0]) for c in pool])
    first = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    chosen, fraction = _located(cells, U[:, 0])
    component = torch.searchsorted(first, chosen, right=True) - 1
    width = max(len(c.factors) for c in pool)
    theta = U.new_zeros(len(U), pool[0].factors[0].input_dim)
    places = torch.zeros(len(U), width, dtype=torch.long)
    log_ratio = U.new_zeros(len(U), width)
    for t, c in enumerate(pool):
        rows = (component == t).nonzero()[:, 0]
        if len(rows) == 0:
            continue
        total, own, used = 0.0, U[rows], 1
        for f, factor in enumerate(c.factors):
            if f == 0:
                cell, within = chosen[rows] - first[t], fraction[rows]
            else:
                cell, within = _located(c.proposal[f], own[:, used])
                used += 1
            part = factor.draw(cell, within, own[:, used : used + factor.num_uniforms])
            used += factor.num_uniforms
            total = total + part
            places[rows, f] = cell
            ratio = factor.log_mass(part, cell) - factor.log_proposal(c.proposal[f], part, cell)
            log_ratio = log_ratio.index_put((rows, torch.full_like(rows, f)), ratio)
        theta = theta.index_put((rows,), torch.as_tensor(total))
    log_weight = log_ratio.sum(-1)
    log_others = (log_weight[:, None] - log_ratio).detach()
    variances = torch.stack([c.variance for c in pool])
    log_weight = log_weight + (variances.log() - shares.log())[component]
    return Draws(theta, component, places, log_others, _combined(pool, theta, component, log_weight).exp())


def _sign(u: Tensor) -> Tensor:
    return torch.where(u < 0.5, -1.0, 1.0).to(u)


def _located(probability: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The cells `[k]` that uniforms `[k]` fall in, of probabilities `[c]`, and how far into them."""
    cdf = probability.cumsum(0)
    u = u.contiguous() * cdf[-1]
    cell = torch.searchsorted(cdf, u).clamp_max(len(cdf) - 1)
    return cell, (1 - (cdf[cell] - u) / probability[cell]).clamp(0, 1)


def _combined(pool: Sequence[Component], theta: Tensor, component: Tensor, log_weight: Tensor) -> Tensor:
    """Weights that see all components with a density over the same coordinates: sum of S over sum of share q."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for t, c in enumerate(pool):
        if c.density_dims is not None:
            groups.setdefault(c.density_dims, []).append(t)
    for members in groups.values():
        if len(members) == 1:
            continue
        rows = torch.isin(component, torch.tensor(members)).nonzero()[:, 0]
        at, log_S, log_q = theta[rows].detach(), [], []
        for c in (pool[t] for t in members):
            (factor,), (q,) = c.factors, c.proposal
            log_S.append(c.variance.log() + factor.log_mass(at, component[rows]))
            log_q.append(math.log(c.share) + factor.log_proposal(q, at))
        combined = torch.stack(log_S).logsumexp(0) - torch.stack(log_q).logsumexp(0)
        log_weight = log_weight.index_put((rows,), combined)
    return log_weight
