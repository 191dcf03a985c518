"""Importance sampling of frequencies: what a kernel's spectrum is made of, cell by cell, and proposals over the cells.

A term's spectral measure is a convolution of factors. Each factor is cut into cells: shells of a radius, or single
atoms. A proposal gives every cell a probability; within a shell the direction is uniform, and so is log radius. The
density of what is drawn is then known exactly, and weights S / q make the kernel unbiased whatever the probabilities.
Shells are tabulated once for all bases (`cells.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..kernels.spectral import Convolution, Elliptical, Mixture, Moved, SpectralMeasure, compound
from ..kernels.terms import Term
from .cells import Atoms, Factor, Shells

# A product with at most this many atoms becomes a sum of shells about them.
LARGEST_SEPARATED = 24


@dataclass
class Component:
    """One term of the kernel as a product of factors, with a proposal: a probability for each cell of each factor."""

    variance: Tensor
    factors: list[Factor]
    proposal: list[Tensor]  # [c] each
    share: float = 0.0  # of the draws

    @property
    def num_uniforms(self) -> int:
        return sum(f.num_uniforms for f in self.factors)

    @cached_property
    def num_dims(self) -> int:
        """Of the coordinates that the component depends on."""
        return int(torch.cat([f.directions for f in self.factors]).any(0).sum())

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
        folded = Atoms(spectrum.theta, spectrum.mass, half=True)
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
    if isinstance(measure, Moved):
        return [(w, [measure.of(m) for m in more]) for w, more in _alternatives(measure.measure)]
    return [(1.0, [measure])]


def _framed(measure: SpectralMeasure) -> tuple[SpectralMeasure, Tensor]:
    """A measure without what embeds and turns it, and the frame `[p, d]` that does: theta = (its own) A."""
    if not isinstance(measure, Moved):
        return measure, torch.eye(measure.input_dim, dtype=torch.float64)
    inner, frame = _framed(measure.measure)
    return inner, measure.moved(frame)


def _factors(measures: list[SpectralMeasure]) -> list[Factor] | None:
    """Discrete measures as one list of atoms (or several, where together they are too many), others as shells."""
    discrete = [m for m in measures if m.atoms() is not None]
    others = [m for m in measures if m.atoms() is None]
    framed = [_framed(m) for m in others]
    if any(not isinstance(inner, Elliptical) or inner.density_dims is None for inner, _ in framed):
        return None
    radial = _compounded([(inner, frame) for inner, frame in framed if isinstance(inner, Elliptical)])
    alone = len(radial) == 1 and not discrete
    factors: list[Factor] = []
    for inner, frame in radial:
        # A frequency and its negative are the same pair of features: one of the factors needs half of them.
        factors.append(Shells(inner, frame, alone=alone, half=not any(f.half for f in factors)))
    if discrete:
        whole = discrete[0].atoms() if len(discrete) == 1 else Convolution(discrete).atoms()
        lists = [whole] if whole is not None else [m.atoms() for m in discrete]
        for atoms in lists:
            assert atoms is not None
            factors.append(Atoms(*atoms, half=not any(f.half for f in factors)))
    return factors


def _compounded(measures: list[tuple[Elliptical, Tensor]]) -> list[tuple[Elliptical, Tensor]]:
    """Measures in frames, with those in one frame convolved where the result is elliptical: one radius is better."""
    found: list[tuple[Elliptical, Tensor]] = []
    for inner, frame in measures:
        for i, (other, same) in enumerate(found):
            if torch.equal(frame, same) and (both := compound([other, inner])) is not None:
                found[i] = both, frame
                break
        else:
            found.append((inner, frame))
    return found


@dataclass
class Draws:
    """Frequencies `[k, d]`, which component each is of, its cells `[k, factors]`, and its weight S / q `[k]`."""

    theta: Tensor
    component: Tensor
    cells: Tensor
    log_others: Tensor  # [k, factors]: log p / q of all factors but this one
    weight: Tensor


def num_uniforms(pool: Sequence[Component]) -> int:
    """Of a draw from the pool."""
    return max(c.num_uniforms for c in pool)


@dataclass
class Positions:
    """Which component each draw is of `[k]`; and of each component's own draws, for every factor of it, uniforms that
    choose the cell and what says where in it (see `Factor.located`)."""

    component: Tensor
    parts: list[list[tuple[Tensor, Tensor]]]


def positions(pool: Sequence[Component], U: Tensor) -> Positions:
    """One position for each row of uniforms `[k, p]`.

    The first uniform chooses the component by its share, and how far into its share it lies is a uniform again.
    """
    if len(pool) == 1:
        return Positions(torch.zeros(len(U), dtype=torch.long), [located(pool[0], U)])
    shares = torch.tensor([c.share for c in pool], dtype=torch.float64)
    component, within = _located(shares, U[:, 0])
    U = torch.cat([within.clamp(2**-40, 1 - 2**-40)[:, None], U[:, 1:]], dim=1)
    return Positions(component, [located(c, U[component == t]) for t, c in enumerate(pool)])


def located(c: Component, U: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The positions of one component's draws, from uniforms `[k, p]`."""
    widths = [f.num_uniforms for f in c.factors]
    parts = U[:, : sum(widths)].split(widths, dim=1)
    return [f.located(part) for f, part in zip(c.factors, parts, strict=True)]


def draw(pool: Sequence[Component], at: Positions) -> Draws:
    """Frequencies from the components' proposals."""
    component, count = at.component, len(at.component)
    if len(pool) == 1:
        (c,) = pool
        theta, cells, log_ratio = _drawn(c, at.parts[0])
        log_weight = log_ratio.sum(-1)
        return Draws(theta, component, cells, _others(log_ratio), (log_weight + c.variance.log()).exp())
    shares = torch.tensor([c.share for c in pool], dtype=torch.float64)
    width = max(len(c.factors) for c in pool)
    theta = shares.new_zeros(count, pool[0].factors[0].input_dim)
    cells = torch.zeros(count, width, dtype=torch.long)
    log_ratio = shares.new_zeros(count, width)
    for t, c in enumerate(pool):
        rows = (component == t).nonzero()[:, 0]
        if len(rows) == 0:
            continue
        own, cells[rows, : len(c.factors)], ratios = _drawn(c, at.parts[t])
        theta = theta.index_put((rows,), own)
        log_ratio = log_ratio.index_put((rows,), torch.nn.functional.pad(ratios, (0, width - ratios.shape[1])))
    variances = torch.stack([c.variance for c in pool])
    log_weight = log_ratio.sum(-1) + (variances.log() - shares.log())[component]
    weight = _combined(pool, theta, component, log_weight).exp()
    return Draws(theta, component, cells, _others(log_ratio), weight)


def _drawn(c: Component, at: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Frequencies `[k, d]` of one component, the cells `[k, f]` of its factors, and the factors' log p / q `[k, f]`."""
    parts, cells, ratios = [], [], []
    for factor, q, (u, rest) in zip(c.factors, c.proposal, at, strict=True):
        cell, within = _located(q, u)
        part = factor.draw(cell, within, rest)
        parts.append(part)
        cells.append(cell)
        ratios.append(factor.log_mass(part, cell) - factor.log_proposal(q, part, cell))
    return sum(parts[1:], start=parts[0]), torch.stack(cells, dim=-1), torch.stack(ratios, dim=-1)


def _others(log_ratio: Tensor) -> Tensor:
    """Log p / q of all factors but each, `[k, f]`."""
    return (log_ratio.sum(-1, keepdim=True) - log_ratio).detach()


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
