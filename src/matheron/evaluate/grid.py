"""A record on a tensor grid x1 x x2 x ...: each term by its factors if it separates, and otherwise by blocks of points.

Because cos(a + b) = cos a cos b - sin a sin b, a Fourier basis separates over the axes. On an n1 x n2 grid it needs
(n1 + n2) ell trigonometric functions instead of n1 n2 ell, and the sum over features is a matrix product. The same
holds for a kernel that is a product over dimensions (RBF, Periodic, products of kernels on different dimensions). The
rest is evaluated as a list.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from ..kernels import Constant, Kernel, Linear
from ..models.means import ConstantMean
from .bases import Basis, Canonical, Cosines, Pairs
from .evaluators import BLOCKS
from .record import PathTerm, Record, WeightedSum

# The largest number of values in the factors of a block. On a CPU they fit its caches: with half as many, the grids of
# benchmarks/cases.py take 50% longer, and with four times as many the same time. On a GPU they keep it busy.
_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 25}
# The number of grid points that are in memory at once. With half or twice as many, a grid that does not separate takes
# 10% to 20% longer (benchmarks/cases.py).
_POINTS = 1 << 15


def on_grid(record: Record, axes: list[Tensor], out: Tensor) -> None:
    """Write the functions, output transform included, on the grid of inner axes into out `[s, n1, n2, ..., t]`.

    The list of all points of the grid is never made: terms that do not separate are evaluated for a block of points at
    a time.
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
    """For each term, the kernels of one dimension that its kernel is a product of. Making them reads their numbers."""
    bases = [term.basis if isinstance(term, WeightedSum) else None for term in record.terms]
    return [_separate(b.kernel, b.centres.shape[1]) if isinstance(b, Canonical) else None for b in bases]


def _separated(term: PathTerm, kernels: Separated | None, axes: list[Tensor], rows: Tensor) -> bool:
    """Add a term to rows `[s, t, n1, n2, ...]` if it separates."""
    if not isinstance(term, WeightedSum):
        return False
    t, n1 = rows.shape[1], len(axes[0])
    axes = axes if term.origin is None else [axis - o for axis, o in zip(axes, term.origin, strict=True)]
    for basis, W, members in term.versions():
        W = W.flatten(0, 1)  # [r, c]
        views = [rows[path, output] for path in members for output in range(t)]
        if basis.add_on_axes(W, axes, views):
            continue
        # a grid with one axis is a list of points
        summands = _summands(basis, W, axes, kernels) if len(axes) > 1 else None
        if summands is None:
            return False
        _add_grid_sums(summands, [view.view(n1, -1) for view in views])
    return True


def _in_blocks(record: Record, terms: list[PathTerm], axes: list[Tensor], out: Tensor, with_mean: bool) -> None:
    """Add some terms and, if it is not there, the mean; then apply the output transform."""
    s, t, shape = record.num_paths, record.num_outputs, [len(axis) for axis in axes]
    count = math.prod(shape)
    flat = out.view(s, count, t)
    step = min(_POINTS, max(1, BLOCKS.numbers(out) // (max((term.width for term in terms), default=1) + s * t)))
    for start in range(0, count, step):
        f = flat[:, start : start + step]  # [s, b, t]
        if terms or not with_mean:
            places = _unravelled(torch.arange(start, min(start + step, count), device=out.device), shape)
            x = torch.stack([axis[place] for axis, place in zip(axes, places, strict=True)], dim=-1)[None]  # [1, b, d]
            for term in terms:
                f = f + cast(Tensor, term.sums(x, None)).mT
            f = f if with_mean else f + record.mean(x)
        flat[:, start : start + step] = f if record.output_transform is None else record.output_transform(f)


# A separable summand: one factor `[n_i, c]` per axis, and the weights `[r, c]` of their products. All can be complex.
GridSummand = tuple[list[Tensor], Tensor]


def _add_grid_sums(summands: list[GridSummand], into: list[Tensor]) -> None:
    """Add sum_i W_i phi_i on a grid, of r rows, to r views `[n1, n2 n3 ...]`: some columns of the grid at a time."""
    for (first, *others), weights in summands:
        n1, rest = len(first), [len(other) for other in others]
        numbers = weights.shape[1] * (2 if weights.is_complex() else 1)
        block = _BLOCK.get(weights.device.type, _BLOCK["cpu"])
        step = max(1, min(block // max(1, numbers), block // n1))
        for start in range(0, math.prod(rest), step):
            columns = torch.arange(start, min(start + step, math.prod(rest)), device=weights.device)
            right = torch.ones_like(first[:1])  # [b, c]
            for other, place in zip(others, _unravelled(columns, rest), strict=True):
                right = right * other[place]
            if weights.is_complex():  # the real part of a complex product, as a real product that is twice as wide
                right = torch.cat([right.real, -right.imag], dim=1)
            for w, out in zip(weights, into, strict=True):
                left = first * w  # [n1, c]
                left = torch.cat([left.real, left.imag], dim=1) if left.is_complex() else left
                out[:, start : start + step] += left @ right.mT


def _unravelled(index: Tensor, shape: list[int]) -> list[Tensor]:
    """The index along each axis of entries of a grid, with the last axis counted first: `torch.unravel_index`, without
    its checks."""
    places = []
    for n in reversed(shape):
        places.append(index % n)
        index = index // n
    return places[::-1]


def _summands(basis: Basis, W: Tensor, axes: list[Tensor], kernels: Separated | None) -> list[GridSummand] | None:
    """The separable summands of a basis of one version with weights `[r, c]`, a canonical one's by kernels of one
    dimension; None where it does not separate."""
    if isinstance(basis, Pairs | Cosines):
        turns = [torch.outer(axis, theta) for axis, theta in zip(axes, basis.frequencies[0].unbind(-1), strict=True)]
        factors = [_wave(turn) for turn in turns]  # exp(i theta_j x_j)
        if isinstance(basis, Cosines):
            return [(factors, W * _wave(basis.phases[0]))]
        W_cos, W_sin = W.chunk(2, dim=-1)
        # a cos + b sin is the real part of (a - i b) exp(i .)
        return [(factors, torch.complex(W_cos.contiguous(), -W_sin))]
    if not isinstance(basis, Canonical) or kernels is None:
        return None
    summands: list[GridSummand] = []
    for scale, by_axis in kernels:
        factors = []
        for axis, centre, parts in zip(axes, basis.centres.unbind(-1), by_axis, strict=True):
            K = torch.ones(len(axis), len(centre), dtype=axis.dtype, device=axis.device)
            for kernel in parts:
                K = K * kernel.forward(axis[:, None], centre[:, None])  # [n_i, c]
            factors.append(K)
        summands.append((factors, W * scale))
    return summands


def _wave(phase: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(phase), phase)


# A kernel as sum_q scale_q prod_i prod_j k_qij(x_i, x'_i): for each q the scale, and for each axis the kernels in one
# dimension.
Separated = list[tuple[Tensor, list[list[Kernel]]]]


def _separate(kernel: Kernel, d: int) -> Separated | None:
    """The kernel as a sum of products over dimensions, or None."""
    separated: Separated = []
    for term in kernel.terms(d):
        if term.own:
            return None
        axes: list[list[Kernel]] = [[] for _ in range(d)]
        for factors in [*(k.axis_factors(d) for k in term.stationary), *map(_of_one_axis, term.forms)]:
            if factors is None:
                return None
            axes = [known + more for known, more in zip(axes, factors, strict=True)]
        separated.append((term.variance, axes))
    return separated


def _of_one_axis(form: Tensor) -> list[list[Kernel]] | None:
    """A linear form of one coordinate and a constant, `[d + 1]`, as a kernel of that coordinate; None of several."""
    *coefficients, offset = form
    active = [i for i, c in enumerate(coefficients) if bool(c != 0)]
    if len(active) > 1:
        return None
    parts = [Linear(coefficients[i]) + Constant(offset) for i in active] or [Constant(offset)]
    return [parts if i == (active or [0])[0] else [] for i in range(len(coefficients))]
