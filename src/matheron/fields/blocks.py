"""One block of a field: some paths at some of the targets. Workers compute these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..core.checks import ArrayLike


class Functions(Protocol):
    """Functions that a field can be computed from: paths, and objects that are called in the same way."""

    @property
    def num_paths(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def input_dim(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def __call__(self, x: Tensor, /) -> Tensor: ...
    def __getitem__(self, index: slice, /) -> Functions: ...
    def on_grid(self, axes: Sequence[ArrayLike], /) -> Tensor: ...
    def named_modules(self, *, remove_duplicate: bool) -> Iterator[tuple[str, nn.Module]]: ...


def on_cells(
    functions: Functions, mask: np.ndarray | None, *axes: np.ndarray, order: tuple[int, ...], at_points: bool
) -> np.ndarray:
    """Values `[s, n1, n2, ...]`, or `[s, t, n1, n2, ...]`, on the grid of some axes, one for each of the field's dims.

    Args:
        mask: `[n1, n2, ...]`; values are NaN where it is False.
        order: for each of the functions' inputs, its axis.
        at_points: evaluate at the points of a mask one by one, and not on a grid.
    """
    if mask is None or mask.all():
        return _on_grid(functions, axes, order)
    out = _empty(functions, mask.shape)
    if mask.any():
        if at_points:
            index = np.nonzero(mask)
            cells = np.stack([axes[dim][index[dim]] for dim in order], axis=1)  # [n, d]
            out[..., mask] = _at(functions, cells)
        else:
            box = _box(mask)
            inner = _on_grid(functions, [axis[s] for axis, s in zip(axes, box, strict=True)], order)
            out[(..., *box)] = np.where(mask[box], inner, np.nan)
    return out


def on_list(functions: Functions, mask: np.ndarray | None, points: np.ndarray) -> np.ndarray:
    """Values `[s, n]`, or `[s, t, n]`, at points `[n, d]`; NaN where the mask is False."""
    if mask is None:
        return _at(functions, points)
    out = _empty(functions, mask.shape)
    out[..., mask] = _at(functions, points[mask])
    return out


def _on_grid(functions: Functions, axes: Sequence[np.ndarray], order: tuple[int, ...]) -> np.ndarray:
    """Values on a whole grid: the functions' axes are in the order of their inputs, the field's in its own."""
    inputs = [np.array(axes[dim]) for dim in order]  # copies, since arrays from other processes are read-only
    f = functions.on_grid(inputs)  # [s, n of each input, t]
    dims = [1 + order.index(dim) for dim in range(len(axes))]
    if functions.num_outputs > 1:
        dims = [f.ndim - 1, *dims]
    return f.permute(0, *dims).cpu().numpy()  # not contiguous: writing copies it anyway


@torch.no_grad()
def _at(functions: Functions, points: np.ndarray) -> np.ndarray:
    f = functions(torch.from_numpy(np.array(points)))  # [s, n] or [s, n, t]
    return np.ascontiguousarray((f.mT if functions.num_outputs > 1 else f).cpu().numpy())


def _box(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box of cells that holds every True."""
    sides = []
    for axis in range(mask.ndim):
        along = np.flatnonzero(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis)))
        sides.append(slice(int(along[0]), int(along[-1]) + 1))
    return tuple(sides)


def _empty(functions: Functions, shape: tuple[int, ...]) -> np.ndarray:
    """NaN for every path, output and cell."""
    outputs = [functions.num_outputs] if functions.num_outputs > 1 else []
    return np.full((functions.num_paths, *outputs, *shape), np.nan, dtype=numpy_dtype(functions))


def numpy_dtype(functions: Functions) -> np.dtype:
    return np.dtype(str(functions.dtype).removeprefix("torch."))
