"""Functions on tensor grids: how values are written if evaluators do not write them in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_tensor
from ..evaluate import Record, on_grid, values
from .arithmetic import AbstractFunctions
from .functions import EvaluableFunctions


def values_on_grid(f: EvaluableFunctions, axes: Sequence[ArrayLike], out: Tensor | np.ndarray | None) -> Tensor:
    """The implementation of `f.on_grid(axes, out=out)`: check a user's axes and compute the values."""
    if len(axes) != f.input_dim:
        raise ValueError(f"axes: expected {f.input_dim}, one per dimension, got {len(axes)}")
    like = torch.empty(0, dtype=f.dtype, device=f.device)
    grid = [as_tensor(axis, "axes", like=like) for axis in axes]
    if any(axis.ndim != 1 or len(axis) == 0 for axis in grid):
        raise ValueError(f"axes: expected lists of numbers, got shapes {[list(axis.shape) for axis in grid]}")
    outputs = [f.num_outputs] if f.num_outputs > 1 else []
    shape = [f.num_paths, *map(len, grid), *outputs]
    if isinstance(out, np.ndarray) and out.flags.writeable and out.flags.c_contiguous:
        out = torch.from_numpy(out)  # the tensor and the array share memory
    out = like.new_empty(shape) if out is None else out
    if not isinstance(out, Tensor):
        what = "a read-only or strided array" if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out: expected a tensor, or a contiguous NumPy array to write to, got {what}")
    if list(out.shape) != shape or (out.dtype, out.device) != (f.dtype, f.device) or not out.is_contiguous():
        got = f"{list(out.shape)}, {out.dtype} on {out.device}"
        raise ValueError(f"out: expected contiguous {shape}, {f.dtype} on {f.device}, got {got}")
    f._on_grid(grid, out if outputs else out.unsqueeze(-1))
    return out


def grid_values(f: AbstractFunctions, axes: list[Tensor]) -> Tensor:
    """The values on a grid, `[s, n1, n2, ..., t]`."""
    axes = [axis.to(f.dtype) for axis in axes]
    out = axes[0].new_empty(f.num_paths, *map(len, axes), f.num_outputs)
    f._on_grid(axes, out)
    return out


def slabs(axes: list[Tensor], numbers: int, most: int = 1 << 22) -> Iterator[tuple[slice, list[Tensor]]]:
    """Cut a grid along its first axis into slabs, so that `numbers` for each point are at most `most` in total."""
    step = max(1, most // max(1, numbers * math.prod(map(len, axes[1:]))))
    for start in range(0, len(axes[0]), step):
        cut = slice(start, start + step)
        yield cut, [axes[0][cut], *axes[1:]]


def write_by_record(record: Record, axes: list[Tensor], out: Tensor) -> None:
    """Write the values of a record into out `[s, n1, n2, ..., t]`, axis by axis if possible."""
    transform = record.input_transform
    if transform is not None and not transform.elementwise:
        return write_by_points(lambda x: record.outer(values(record, record.inner(x))), axes, out)
    inner = []
    for i, axis in enumerate(axes):  # an elementwise transform acts on each coordinate by itself
        x = torch.stack([other[0] for other in axes]).repeat(len(axis), 1)
        x[:, i] = axis
        inner.append(record.inner(x[None])[0, :, i])
    on_grid(record, inner, out)


def write_by_points(f: Callable[[Tensor], Tensor], axes: list[Tensor], out: Tensor) -> None:
    """The same point by point, for values `[1, n, d] -> [s, n, t]` that do not factor over the axes."""
    for cut, slab in slabs(axes, len(axes)):
        points = torch.stack(torch.meshgrid(*slab, indexing="ij"), dim=-1)  # [n1, n2, ..., d]
        out[:, cut] = f(points.flatten(0, -2)[None]).unflatten(1, points.shape[:-1])


def write_in_slabs(f: AbstractFunctions, axes: list[Tensor], out: Tensor, rows: Tensor | slice = slice(None)) -> None:
    """Write the values to paths `rows` of out, some of the first axis at a time: for results that are no views."""
    for cut, slab in slabs(axes, f.num_paths * f.num_outputs):
        out[rows, cut] = grid_values(f, slab)
