"""What a kernel's spectrum is made of, cell by cell, and proposals over the cells.

A term's spectral measure is a convolution of factors. Each factor is cut into cells: shells of a radius, or single
atoms (`cells.py`). A proposal gives every cell a probability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...kernels.composed_measures import Convolution, Mixture, Moved, compound
from ...kernels.spectral import Elliptical, SpectralMeasure
from ...kernels.terms import Term
from .cells import Atoms, Shells, SpectralFactor, identity

# A product with at most this many atoms becomes a sum of shells about them.
LARGEST_SEPARATED = 24


@dataclass(eq=False)  # tensors are not compared
class Component:
    """One term of the kernel as a product of factors, with a proposal: a probability for each cell of each factor."""

    variance: Tensor
    factors: list[SpectralFactor]
    proposal: list[Tensor]  # [c] each
    share: float = 0.0  # of the draws
    envelope: tuple[int, ...] = ()  # coordinates of (x, 1) whose product the functions are multiplied with

    @property
    def num_uniforms(self) -> int:
        return sum(f.num_uniforms for f in self.factors)

    @property
    def num_dims(self) -> int:
        """Of the coordinates that the component depends on."""
        return len({i for f in self.factors for i in f.axes})

    @property
    def density_key(self) -> tuple | None:
        """The coordinates over which the term has a density, and its envelope: densities of one key add; or None."""
        first = self.factors[0]
        if len(self.factors) > 1 or not isinstance(first, Shells) or len(first.axes) > first.own_dim:
            return None  # an oblique plane has volume of its own
        return first.axes, self.envelope


def with_shares(pool: list[Component]) -> list[Component]:
    """The same with shares that sum to one."""
    whole = sum(c.share for c in pool)
    return [replace(c, share=c.share / whole) for c in pool]


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


def _separated(variance: Tensor, factors: list[SpectralFactor]) -> list[Component]:
    """Shells about each atom of a product with a few of them, which then have a density; else the product as it is."""
    atoms = [f for f in factors if isinstance(f, Atoms)]
    shells = [f for f in factors if isinstance(f, Shells)]
    if len(atoms) == len(shells) == 1 and shells[0].shift is None:
        (spectrum,), (radial,) = atoms, shells
        folded = Atoms(spectrum.theta, spectrum.mass, half=True)
        own = folded.theta @ radial.frame.mT
        beside = folded.theta - own @ radial.frame
        if len(folded.mass) <= LARGEST_SEPARATED and bool(beside.norm() <= 1e-12 * folded.theta.norm()):
            each = zip(radial.about(own), (variance * folded.mass).unbind(), strict=True)
            return [Component(own_variance, [shells], [shells.masses]) for shells, own_variance in each]
    return [Component(variance, factors, [f.masses for f in factors])]


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
        return measure, identity(measure.input_dim)
    inner, frame = _framed(measure.measure)
    return inner, measure.moved(frame)


def _factors(measures: list[SpectralMeasure]) -> list[SpectralFactor] | None:
    """Discrete measures as one list of atoms (or several, where together they are too many), others as shells."""
    atoms_of = [m.atoms() for m in measures]
    discrete = [m for m, atoms in zip(measures, atoms_of, strict=True) if atoms is not None]
    framed = [_framed(m) for m, atoms in zip(measures, atoms_of, strict=True) if atoms is None]
    if any(not isinstance(inner, Elliptical) or inner.density_dims is None for inner, _ in framed):
        return None
    radial = _compounded([(inner, frame) for inner, frame in framed if isinstance(inner, Elliptical)])
    alone = len(radial) == 1 and not discrete
    factors: list[SpectralFactor] = []
    for inner, frame in radial:
        # A frequency and its negative are the same pair of features: one of the factors needs half of them.
        factors.append(Shells(inner, frame, alone=alone, half=not any(f.half for f in factors)))
    if discrete:
        lists = [atoms for atoms in atoms_of if atoms is not None]
        whole = Convolution(discrete).atoms() if len(discrete) > 1 else None
        for theta, mass in lists if whole is None else [whole]:
            factors.append(Atoms(theta, mass, half=not any(f.half for f in factors)))
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
