"""A record on a tensor grid: each term by its factors where it separates, by blocks of points where it does not."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from ..features.canonical import Canonical
from ..means import ConstantMean
from .chunked import block_numbers
from .record import Record
from .tensor_grid import Separated, add_grid_sums, separate, summands_of, unravelled
from .terms import Term, WeightedSum

# Points of a grid that are in memory at once.
_POINTS = 1 << 15


def on_grid(record: Record, axes: list[Tensor], out: Tensor) -> None:
    """Write the functions, output transform included, on the grid of inner axes into out `[s, n1, n2, ..., t]`.

    The list of the grid's points is never made: what does not separate is evaluated a block of them at a time.
    """
    out.zero_()
    rows = out.movedim(-1, 1)  # [s, t, n1, n2, ...]
    kernels = record.derived(_kernels_by_axis)
    left = [term for term, of in zip(record.terms, kernels, strict=True) if not _separated(term, of, axes, rows)]
    constant = isinstance(record.mean, ConstantMean)
    if constant and bool(record.mean.value.any()):
        out += record.mean.value
    if left or not constant or record.output_transform is not None:
        _in_blocks(record, left, axes, out, constant)


def _kernels_by_axis(record: Record) -> list[Separated | None]:
    """Of each term the kernels of one dimension that its own is made of: to make them looks at their numbers."""
    bases = [term.basis if isinstance(term, WeightedSum) else None for term in record.terms]
    return [separate(b.kernel, b.centres.shape[1]) if isinstance(b, Canonical) else None for b in bases]


def _separated(term: Term, kernels: Separated | None, axes: list[Tensor], rows: Tensor) -> bool:
    """Add a term to rows `[s, t, n1, n2, ...]`, where it separates."""
    if not isinstance(term, WeightedSum):
        return False
    t, n1 = rows.shape[1], len(axes[0])
    axes = axes if term.origin is None else [axis - o for axis, o in zip(axes, term.origin, strict=True)]
    for g, members in term.groups:
        basis = term.basis if term.shared else term.basis.select(slice(g, g + 1))
        views = [rows[path, output] for path in members for output in range(t)]
        if basis.add_on_axes(term.weights[members].flatten(0, 1), axes, views):
            continue
        summands = summands_of(basis, axes, kernels) if len(axes) > 1 else None  # a line is a list
        if summands is None:
            return False
        add_grid_sums(summands, term.weights[members].flatten(0, 1), [view.view(n1, -1) for view in views])
    return True


def _in_blocks(record: Record, terms: list[Term], axes: list[Tensor], out: Tensor, with_mean: bool) -> None:
    """Add some terms and, if it is not there, the mean; then apply the output transform."""
    s, t, shape = record.num_paths, record.num_outputs, [len(axis) for axis in axes]
    count = math.prod(shape)
    flat = out.view(s, count, t)
    step = min(_POINTS, max(1, block_numbers(out) // (max((term.width for term in terms), default=1) + s * t)))
    for start in range(0, count, step):
        f = flat[:, start : start + step]  # [s, b, t]
        if terms or not with_mean:
            places = unravelled(torch.arange(start, min(start + step, count), device=out.device), shape)
            x = torch.stack([axis[place] for axis, place in zip(axes, places, strict=True)], dim=-1)[None]  # [1, b, d]
            for term in terms:
                f = f + cast(Tensor, term.sums(x, None)).mT
            f = f if with_mean else f + record.mean(x)
        flat[:, start : start + step] = f if record.output_transform is None else record.output_transform(f)
