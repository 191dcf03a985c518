"""Boxes: where the Fourier series of some terms of a kernel repeats itself, and how many modes it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..kernels.terms import Term

LARGEST_DIM = 3
# Boxes are joined where one for all of their terms has at most this many times their modes, or this many in all.
JOIN_TIMES, _JOIN_BELOW = 2.0, 4096


@dataclass(frozen=True)
class Box:
    """The box of some terms: in each coordinate its period, the domain's side, and the modes -m to m."""

    terms: tuple[Term, ...]
    cut_off: tuple[bool, ...]  # a term's: cut off, or continued by its images
    dims: tuple[int, ...]
    period: tuple[float, ...]
    side: tuple[float, ...]
    fixed: tuple[bool, ...]  # whether the period is the kernel's own, along a coordinate where it repeats
    m: tuple[int, ...] = ()
    left_out: float = 0.0  # variance beyond the modes

    @property
    def shape(self) -> list[int]:
        return [2 * m + 1 for m in self.m]

    @property
    def num_modes(self) -> int:
        return math.prod(self.shape)

    @property
    def variance(self) -> float:
        return sum(float(t.variance.detach()) for t in self.terms)

    def along(self, axes: Sequence[int]) -> Box:
        """This box in some of its coordinates alone."""
        each = {name: getattr(self, name) for name in ("dims", "period", "side", "fixed", "m")}
        return replace(self, **{name: tuple(values[a] for a in axes if values) for name, values in each.items()})


def joined(boxes: list[Box], largest: int, times: float = JOIN_TIMES) -> list[Box]:
    """Fewer boxes for the same terms, where one for several of them has not many more modes than they have."""
    merged: list[Box] = []
    for box in sorted(boxes, key=lambda b: -b.num_modes):
        for i, other in enumerate(merged):
            both = _union(other, box)
            few = both is not None and both.num_modes <= max(_JOIN_BELOW, times * (box.num_modes + other.num_modes))
            if both is not None and few and both.num_modes <= largest:
                merged[i] = both
                break
        else:
            merged.append(box)
    return merged


def _union(a: Box, b: Box) -> Box | None:
    """One box for the terms of both: the longer period and the higher frequency in each coordinate."""
    dims = sorted({*a.dims, *b.dims})
    axes: list[tuple[float, float, bool, int]] = []  # of each, as a Box has them
    for i in dims:
        both = [(x, x.dims.index(i)) for x in (a, b) if i in x.dims]
        longest = max(x.period[k] for x, k in both)
        own = {x.period[k] for x, k in both if x.fixed[k]}
        if len(own) > 1:
            return None
        if own:  # a whole number of the kernel's own periods
            (p,) = own
            longest = p * math.ceil(longest / p - 1e-9)
        m = max(math.ceil(x.m[k] * longest / x.period[k] - 1e-9) for x, k in both)
        axes.append((longest, max(x.side[k] for x, k in both), bool(own), m))
    if len(dims) > LARGEST_DIM:
        return None
    period, side, fixed, m = zip(*axes, strict=True)
    left_out = a.left_out + b.left_out
    return Box(a.terms + b.terms, a.cut_off + b.cut_off, tuple(dims), period, side, fixed, m, left_out)


def own_period(term: Term, input_dim: int, i: int) -> float:
    """The period of a coordinate along which all factors repeat; infinite where one decays, NaN where none holds."""
    frequencies = []
    for kernel in term.stationary:
        if i not in kernel.active_dims(input_dim):
            continue
        atoms = kernel.measure(input_dim).atoms()
        if atoms is None:
            return math.inf
        theta, mass = atoms
        frequencies.append(theta[mass > 1e-14, i].detach().abs().cpu().double())
    theta = torch.cat(frequencies)
    theta = theta[theta > 0]
    if len(theta) == 0:
        return 1.0  # constant along this coordinate
    fundamental = float(theta.min())
    multiples = theta / fundamental
    return 2 * math.pi / fundamental if bool(((multiples - multiples.round()).abs() < 1e-6).all()) else math.nan
