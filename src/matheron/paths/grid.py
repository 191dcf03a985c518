"""Paths on a tensor grid: each basis by its factors where it separates, as a list of points where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..evaluate import evaluate
from ..evaluate.tensor_grid import grid_sums
from ..weigh import add

if TYPE_CHECKING:
    from .paths import PriorPlusUpdate


def on_grid(paths: PriorPlusUpdate, axes: list[Tensor]) -> Tensor:
    """The paths on the grid of these axes, `[s, n1, n2, ..., t]`."""
    grid = _inner_axes(paths, axes)
    s, t = paths.prior.w.shape[:2]
    shape = [len(axis) for axis in grid]
    centred = [axis - o for axis, o in zip(grid, paths.prior.features.origin, strict=True)]
    total = torch.zeros(s, t, *shape, dtype=paths.dtype, device=paths.device)
    left = _Left(paths)  # what does not separate
    for i, basis in enumerate(paths.prior.features.bases):
        W = getattr(paths.prior, f"coefficients_{i}")  # [s, t, c]
        for g, members in paths.prior.groups if basis.num_bases > 1 else [(0, range(s))]:
            members = list(members)
            part = grid_sums(basis.select(slice(g, g + 1)), W[members].flatten(0, 1), centred)
            if part is None:
                left.bases.append(i)
                break
            total[members] += part.unflatten(0, (len(members), t))
    if paths.update.width:
        for B, basis in paths.update.coupled:
            part = grid_sums(basis, paths.update.coupled_weights(B, paths.update.v).flatten(0, 1), grid)
            if part is None:
                left.coupled.append((B, basis))
            else:
                total += part.unflatten(0, (s, t))
    total = total.flatten(2).mT  # [s, N, t]
    points = torch.cartesian_prod(*grid).reshape(-1, paths.input_dim)[None]
    if left.bases or left.coupled:
        total = total + evaluate(left, points, s, t, paths._width(points), own=False, tied=False)
    total = total + paths.mean_function(points)
    return paths._outer(total).unflatten(1, shape)


class _Left:
    """The sum of the bases that do not separate, at a list of points."""

    def __init__(self, paths: PriorPlusUpdate) -> None:
        self.paths = paths
        self.bases: list[int] = []
        self.coupled: list[tuple[Tensor | None, Any]] = []

    def __call__(self, x: Tensor, _: slice | None) -> Tensor:
        total = self.paths.prior.sums(x, None, only=self.bases) if self.bases else None
        update = self.paths.update.sums(x, None, only=self.coupled) if self.coupled else None
        return add(total, update).mT  # [s, n, t]


def _inner_axes(paths: PriorPlusUpdate, axes: list[Tensor]) -> list[Tensor]:
    """The axes in the model's own space; a transform acts on each coordinate by itself."""
    inner = []
    for i, axis in enumerate(axes):
        x = torch.stack([other[0] for other in axes]).repeat(len(axis), 1)
        x[:, i] = axis
        inner.append(paths._inner(x[None])[0, :, i])
    return inner
