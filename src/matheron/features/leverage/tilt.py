"""How far a proposal departs from the spectrum: as errors near data gain by it, and errors far from them allow.

With frequencies from q in place of S, the squared error far from data grows in proportion to  int S^2 / q,  and that
among them to  int S^2 lev^2 / q.  A weighted sum of the two is least for  q ~ S sqrt(lev^2 + b),  so that one number b
moves along the best that can be had of both: large, q is the spectrum itself; zero, it is by leverage alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...core.modes import as_numpy
from .proposal import Component

# int S^2 / q may be this many times that of plain features: little more than one where data explain little; else nearly
# 1.1 squared. In one dimension weighted frequencies are so even that they may weigh more; not so in products of
# factors that share coordinates.
_LARGEST_FAR, _OF_PINNED, _IN_ONE_DIM, _OF_OVERLAP = 1.12, 1.2, 1.5, 1.1
# With as many bases more is allowed: what they err by averages out, and far from data little of it is left beside what
# a finite number of paths errs by. Where it was said where paths will be called, no place is far.
_MANY_BASES, _OF_MANY, _WHERE_GIVEN = 4, 2.5, 4.0
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
    cells: list[np.ndarray]  # [c] each


def tilt(parts: list[Tilted], given: bool, pinned: bool, num_bases: int) -> None:
    """Set every component's proposal, and its share of the draws."""
    size, left = (np.array([getattr(p, name) for p in parts]) for name in ("size", "left"))  # [p]
    total = size.sum() or 1.0
    plain = 0.5 * size / total + 0.5 / len(parts)
    level = left / (left.sum() or 1.0) / plain
    variance = size / total
    spread = variance**2 / (variance**2 / plain).sum()
    # The cells of all factors one after another, and where those of each factor, and the factors of each part, begin.
    factors = [f for p in parts for f in p.component.factors]
    m = np.concatenate([as_numpy(f.masses) for f in factors])
    squared = np.concatenate([lev for p in parts for lev in p.cells]) ** 2
    counts = np.array([len(f.masses) for f in factors])
    numbers = np.array([len(p.cells) for p in parts])
    cells, starts = np.cumsum(counts) - counts, np.cumsum(numbers) - numbers
    tilted = squared * np.repeat(np.repeat(level, numbers) ** 2, counts)

    def of_parts(values: np.ndarray) -> np.ndarray:
        return np.multiply.reduceat(values, starts)

    def at(b: float) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Weights of cells and shares of parts; and the squared errors far from data and among them."""
        t = np.sqrt(tilted + b)
        scale, inverse = np.add.reduceat(t * m, cells), m / t
        far = of_parts(scale * np.add.reduceat(inverse, cells))  # sum of m^2 / q
        near = (level * plain) ** 2 * of_parts(scale * np.add.reduceat(inverse * squared, cells))
        shares = np.sqrt(near + b * plain**2 * far)
        shares /= shares.sum()
        # Also with terms by their variance, which is all that counts far from data.
        farthest = max((plain**2 * far / shares).sum(), (spread * far / shares).sum())
        return t, shares, farthest, (near / shares).sum()

    largest = _largest_far(parts, total, given, pinned, num_bases)
    first, last = 0, len(_BLENDS) - 1
    while first < last:  # errors far from data fall as b grows
        middle = (first + last) // 2
        first, last = (first, middle) if at(_BLENDS[middle])[2] <= largest else (middle + 1, last)
    t, shares, far, near = at(_BLENDS[first])
    near_plain = ((level * plain) ** 2 * of_parts(np.add.reduceat(m * squared, cells)) / plain).sum()
    if far > largest or np.sqrt(near_plain / near) < _SMALLEST_GAIN:
        t, shares, *_ = at(_BLENDS[-1])
    q = m * t
    q = iter(np.split(q / np.repeat(np.add.reduceat(q, cells), counts), cells[1:]))
    for p, share in zip(parts, shares.tolist(), strict=True):
        p.component.proposal, p.component.share = [torch.from_numpy(next(q)) for _ in p.cells], share


def _largest_far(parts: list[Tilted], total: float, given: bool, pinned: bool, num_bases: int) -> float:
    if given or num_bases >= _MANY_BASES:
        return _WHERE_GIVEN if given else _OF_MANY
    if not pinned:
        return _LARGEST_FAR
    return min((_of_pinned(p.component) for p in parts if p.size >= 0.01 * total), default=_OF_PINNED)


def _of_pinned(c: Component) -> float:
    if sum(len(f.axes) for f in c.factors) > c.num_dims:
        return _OF_OVERLAP
    return _IN_ONE_DIM if c.num_dims == 1 else _OF_PINNED
