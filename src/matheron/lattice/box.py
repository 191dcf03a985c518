"""Boxes: the periods of the Fourier series of some terms of a kernel, and their numbers of modes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..features import LARGEST_DIM
from ..kernels.base import Term


@dataclass(frozen=True)
class Box:
    """The box of some terms: in each coordinate its period, the domain's side, and the modes -m to m."""

    terms: tuple[Term, ...]
    cut_off: tuple[bool, ...]  # for each term, whether it is cut off smoothly or continued periodically by its images
    dims: tuple[int, ...]
    period: tuple[float, ...]
    side: tuple[float, ...]
    fixed: tuple[bool, ...]  # for each coordinate, whether the period is the kernel's own
    m: tuple[int, ...] = ()
    left_out: float = 0.0  # the variance of the frequencies beyond the modes

    @property
    def shape(self) -> list[int]:
        return [2 * m + 1 for m in self.m]

    @property
    def num_modes(self) -> int:
        return math.prod(self.shape)

    @property
    def edges(self) -> list[float]:
        """The highest frequency along each coordinate: half a step beyond the last mode."""
        return [2 * math.pi * (m + 0.5) / p for m, p in zip(self.m, self.period, strict=True)]

    @property
    def variance(self) -> float:
        return sum(float(t.variance.detach()) for t in self.terms)

    def frequencies(self, input_dim: int) -> Tensor:
        """The frequencies of all modes, `[c, d]`."""
        axes = [
            torch.arange(-m, m + 1, dtype=torch.float64, device="cpu") * (2 * math.pi / p)
            for m, p in zip(self.m, self.period, strict=True)
        ]
        theta = torch.zeros(self.num_modes, input_dim, dtype=torch.float64, device="cpu")
        theta[:, list(self.dims)] = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        return theta

    def along(self, axes: Sequence[int]) -> Box:
        """The box in only some of its coordinates."""
        each = {name: getattr(self, name) for name in ("dims", "period", "side", "fixed", "m")}
        return replace(self, **{name: tuple(values[a] for a in axes if values) for name, values in each.items()})


def joined(boxes: list[Box], largest: int, times: float = 2.0, below: int = 4096) -> list[Box]:
    """Merge boxes if one box for their terms does not have many more modes than the separate boxes.

    A merged box has at most `times` as many modes as its two parts together, or at most `below`. It never has more than
    `largest`."""
    merged: list[Box] = []
    for box in sorted(boxes, key=lambda b: -b.num_modes):
        for i, other in enumerate(merged):
            both = _union(other, box)
            few = both is not None and both.num_modes <= max(below, times * (box.num_modes + other.num_modes))
            if both is not None and few and both.num_modes <= largest:
                merged[i] = both
                break
        else:
            merged.append(box)
    return merged


def _union(a: Box, b: Box) -> Box | None:
    """One box for the terms of both: the longer period and the higher frequency in each coordinate."""
    dims = sorted({*a.dims, *b.dims})
    # for each coordinate: period, side, whether the period is fixed, and m
    axes: list[tuple[float, float, bool, int]] = []
    for i in dims:
        both = [(x, x.dims.index(i)) for x in (a, b) if i in x.dims]
        longest = max(x.period[k] for x, k in both)
        own = {x.period[k] for x, k in both if x.fixed[k]}
        if len(own) > 1:
            return None
        if own:  # the period must be a whole number of the kernel's own periods
            (p,) = own
            longest = p * math.ceil(longest / p - 1e-9)
        m = max(math.ceil(x.m[k] * longest / x.period[k] - 1e-9) for x, k in both)
        axes.append((longest, max(x.side[k] for x, k in both), bool(own), m))
    if len(dims) > LARGEST_DIM:
        return None
    period, side, fixed, m = zip(*axes, strict=True)
    left_out = a.left_out + b.left_out
    return Box(a.terms + b.terms, a.cut_off + b.cut_off, tuple(dims), period, side, fixed, m, left_out)
