"""How far a proposal departs from the spectrum: as errors near data gain by it, and errors far from them allow.

With frequencies from q in place of S, the squared error far from data grows in proportion to  int S^2 / q,  and that
among them to  int S^2 lev^2 / q.  A weighted sum of the two is least for  q ~ S sqrt(lev^2 + b),  so that one number b
moves along the best that can be had of both: large, q is the spectrum itself; zero, it is by leverage alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .proposal import Component

# int S^2 / q may be this many times that of plain features: little more than one where data explain little; else nearly
# 1.1 squared. In one dimension weighted frequencies are so even that they may weigh more; not so in products of
# factors that share coordinates.
_LARGEST_FAR, _OF_PINNED, _IN_ONE_DIM, _OF_OVERLAP = 1.12, 1.2, 1.5, 1.1
# With as many bases more is allowed: what they err by averages out, and far from data little of it is left beside what
# a finite number of paths errs by. Where it was said where paths will be called, no place is far.
_MANY_BASES, _OF_MANY, _WHERE_GIVEN = 16, 2.5, 4.0
# A gain among data that is worth weights at all.
_SMALLEST_GAIN = 1.05
# The values of b that are tried, with lev scaled to a mean of one.
_BLENDS = np.logspace(-2, 4, 37)


@dataclass
class Tilted:
    """A component, its mean variance `size`, how many of the draws leverage alone would give it, and
    the leverage of its cells by factor, each scaled to a mean of one."""

    component: Component
    size: float
    left: float
    cells: list[Tensor]  # [c] each


def tilt(parts: list[Tilted], given: bool, pinned: bool, num_bases: int) -> list[float]:
    """Set every component's proposal; their shares of the draws are returned."""
    total, left = sum(p.size for p in parts) or 1.0, sum(p.left for p in parts) or 1.0
    plain = np.array([[0.5 * p.size / total + 0.5 / len(parts)] for p in parts])  # [p, 1]
    level = np.array([[p.left / left] for p in parts]) / plain
    far, near = (np.ones((len(parts), len(_BLENDS))) for _ in range(2))
    near_plain = np.ones((len(parts), 1))
    tilts = []
    for i, p in enumerate(parts):
        for factor, lev in zip(p.component.factors, p.cells, strict=True):
            m, squared = factor.masses.numpy(), lev.numpy() ** 2
            tilts.append(np.sqrt(level[i] ** 2 * squared + _BLENDS[:, None]))  # [b, c]
            scale, inverse = tilts[-1] @ m, 1 / tilts[-1]
            far[i] *= scale * (inverse @ m)  # sum of m^2 / q
            near[i] *= scale * (inverse @ (m * squared))
            near_plain[i] *= m @ squared
    far, near, near_plain = (plain**2 * v for v in (far, level**2 * near, level**2 * near_plain))
    shares = np.sqrt(near + _BLENDS * far)  # [p, b]
    shares /= shares.sum(0)
    # Terms by their variance, which is all that counts far from data.
    variance = np.array([[p.size / total] for p in parts])
    true = variance**2 / (variance**2 / plain).sum() * far / plain**2
    far, near, true = ((v / shares).sum(0) for v in (far, near, true))  # [b]
    chosen = _chosen(
        np.maximum(far, true),
        np.sqrt((near_plain / plain).sum() / near),
        _largest_far(parts, total, given, pinned, num_bases),
    )
    of = iter(tilts)
    for p in parts:
        p.component.proposal = [
            (q := f.masses * torch.from_numpy(next(of)[chosen])) / q.sum() for f in p.component.factors
        ]
    return shares[:, chosen].tolist()


def _largest_far(parts: list[Tilted], total: float, given: bool, pinned: bool, num_bases: int) -> float:
    if given or num_bases >= _MANY_BASES:
        return _WHERE_GIVEN if given else _OF_MANY
    if not pinned:
        return _LARGEST_FAR
    return min((_of_pinned(p.component) for p in parts if p.size >= 0.01 * total), default=_OF_PINNED)


def _of_pinned(c: Component) -> float:
    if sum(int(f.directions.any(0).sum()) for f in c.factors) > c.num_dims:
        return _OF_OVERLAP
    return _IN_ONE_DIM if c.num_dims == 1 else _OF_PINNED


def _chosen(far: np.ndarray, gain: np.ndarray, largest: float) -> int:
    """Which of the blends, by what each of them costs `[b]` far from data, and gains `[b]` among them."""
    allowed = far <= largest
    first = int(allowed.argmax())
    return first if allowed[first] and gain[first] >= _SMALLEST_GAIN else len(far) - 1
