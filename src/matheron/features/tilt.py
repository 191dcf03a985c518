"""How far a proposal leaves the spectrum: as much as errors near data gain by, as little as errors far from them allow.

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

# int S^2 / q may be so many times that of plain features, by whether data have pinned most of the variance: near 1.1
# squared. In up to three dimensions even frequencies err less than plain ones anyway. Where the gain among data is
# below the one asked for it may be a little more; and where it was said where paths will be called, no place is far.
_LARGEST_FAR, _OF_PINNED, _OF_PINNED_IN = 1.12, 1.2, {1: 2.5, 2: 1.7, 3: 1.4}
_OF_SMALL_GAIN, _GAIN_ASKED, _WHERE_TOLD = 1.35, 3.2, 4.0
# The values of b that are tried, with lev scaled to a mean of one.
_BLENDS = np.logspace(-2, 4, 25)


@dataclass
class Tilted:
    """A component, its mean variance `size`, how many of the draws leverage alone would give it, and
    the leverage of its cells by factor, each scaled to a mean of one."""

    component: Component
    size: float
    left: float
    cells: list[Tensor]  # [c] each

    @property
    def num_dims(self) -> int:
        """Of the coordinates that the component depends on."""
        return int(torch.cat([f.directions for f in self.component.factors]).any(0).sum())


def tilt(parts: list[Tilted], told: bool, pinned: bool) -> list[float]:
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
    far, near = ((v / shares).sum(0) for v in (far, near))  # [b]
    gain = np.sqrt((near_plain / plain).sum() / near)
    chosen = _chosen(far, gain, max((p.num_dims for p in parts if p.size >= 0.01 * total), default=1), told, pinned)
    of = iter(tilts)
    for p in parts:
        p.component.proposal = [
            (q := f.masses * torch.from_numpy(next(of)[chosen])) / q.sum() for f in p.component.factors
        ]
    return shares[:, chosen].tolist()


def _chosen(far: np.ndarray, gain: np.ndarray, num_dims: int, told: bool, pinned: bool) -> int:
    """Which of the blends, by what each of them costs `[b]` far from data, and gains `[b]` among them."""
    largest = _WHERE_TOLD if told else _OF_PINNED_IN.get(num_dims, _OF_PINNED) if pinned else _LARGEST_FAR
    allowed = far <= largest
    if pinned and not told:
        allowed |= (far <= max(largest, _OF_SMALL_GAIN)) & (gain <= _GAIN_ASKED)
    return int(allowed.argmax()) if allowed.any() else len(far) - 1
