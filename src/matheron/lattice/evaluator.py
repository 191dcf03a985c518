"""Evaluation of terms on a lattice: transforms of many points at once, and tables for points of each path's own.

A transform costs an FFT whatever the number of its points, so shared points are taken in blocks as large as memory
allows. Where each path has its own points (minimisers, roll-outs), the series of every path is tabulated once on a grid
twice as fine as its shortest wavelength, and interpolated by the transforms' own window, to rounding. All other terms
are left to the other evaluators.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..core.modes import transformed
from ..core.nufft import Interpolated, fine_grid, grid_shape
from ..core.weighted_sums import Sums, add
from ..evaluate import chunked
from ..evaluate.path_terms import WeightedSum
from ..evaluate.record import Record
from .basis import Lattice

# Points of a transform at the most, and how many sums are taken together.
_POINTS, _ROWS = 1 << 20, 16
# What the tables of all paths may take, in bytes.
_TABLES = 1 << 29


def can(record: Record, x: Tensor, of: Tensor | None) -> bool:
    """Whether there is a term on a lattice, and tables for own points are not too large."""
    if record.requires_grad or not record.derived(_on_lattices)[0] or transformed():
        return False
    return (len(x) == 1 and of is None) or record.derived(_tables) is not None


def is_all(record: Record) -> bool:
    """Whether every term is on a lattice."""
    return not record.derived(_on_lattices)[1].terms


@torch.no_grad()
def values(record: Record, x: Tensor) -> Tensor:
    """The functions at inner points `[1 or s, n, d]`: `[s, n, t]`."""
    sums = cast(Tensor, _sums(record, x, None, False))
    return (chunked.values(record.derived(_on_lattices)[1], x) + sums).contiguous()


@torch.no_grad()
def values_and_gradients(record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same and gradients `[s, n, t, d]`; of the paths `of` at their points `[p, n, d]`."""
    f, df = chunked.values_and_gradients(record.derived(_on_lattices)[1], x, of)
    g, dg = _sums(record, x, of, True)
    return f + g, df + dg


def _on_lattices(record: Record) -> tuple[list[WeightedSum], Record]:
    """The terms on lattices, and the record of all others."""
    mine = [t for t in record.terms if isinstance(t, WeightedSum) and isinstance(t.basis, Lattice)]
    return mine, replace(record, terms=[t for t in record.terms if t not in mine])


def _sums(record: Record, x: Tensor, of: Tensor | None, gradient: bool) -> Sums:
    """The sum of the terms on lattices: `[s, n, t]`, and with `gradient` a pair with `[s, n, t, d]`."""
    total = None
    tables = None if len(x) == 1 and of is None else record.derived(_tables)
    for i, term in enumerate(record.derived(_on_lattices)[0]):
        about = x if term.origin is None else x - term.origin
        part = _shared(term, about, gradient) if tables is None else _own(term, tables[i], about, of, gradient)
        total = add(total, part)
    assert total is not None
    return total


def _shared(term: WeightedSum, x: Tensor, gradient: bool) -> Sums:
    s, t, c = term.weights.shape
    n, d = x.shape[1:]
    W = term.weights.reshape(s * t, c)
    f = x.new_empty(s * t, n)
    df = x.new_empty(s * t, n, d) if gradient else None
    step = s * t if df is None and term.basis.suits_matrix(x[:, :_POINTS], s * t) else _ROWS
    for i in range(0, n, _POINTS):
        for j in range(0, s * t, step):
            rows, points = slice(j, j + step), slice(i, i + _POINTS)
            out = term.basis.sums(x[:, points], W[None, rows], gradient)
            if df is None:
                f[rows, points] = out[0]
            else:
                f[rows, points], df[rows, points] = out[0][0], out[1][0]
    f = f.view(s, t, n).mT
    return f if df is None else (f, df.view(s, t, n, d).transpose(1, 2))


def _tables(record: Record) -> list[Interpolated] | None:
    """The series of every path and output on a fine grid; None where that is too much."""
    tables, size = [], 0
    for term in record.derived(_on_lattices)[0]:
        cells = math.prod(grid_shape(term.basis.shape, record.dtype))
        size += term.weights.shape[0] * term.weights.shape[1] * cells * term.weights.element_size()
    if size > _TABLES:
        return None
    for term in record.derived(_on_lattices)[0]:
        W, lattice = term.weights.flatten(0, 1), term.basis
        grid = W.new_empty(len(W), *grid_shape(lattice.shape, record.dtype))
        for rows, some in zip(grid.split(_ROWS), W.split(_ROWS), strict=True):
            rows.copy_(fine_grid(lattice.coefficients(some)).real)
        tables.append(Interpolated(grid))
    return tables


def _own(term: WeightedSum, table: Interpolated, x: Tensor, of: Tensor | None, gradient: bool) -> Sums:
    s, t, _ = term.weights.shape
    paths = torch.arange(s, device=x.device) if of is None else of
    lattice = term.basis
    angles = lattice.angles(x)
    f = x.new_empty(len(paths), t, x.shape[1])
    df = x.new_zeros(len(paths), t, *x.shape[1:]) if gradient else None
    for j in range(t):
        f[:, j], slope = table.own(angles, paths * t + j, gradient)
        if df is not None and slope is not None:
            df[:, j][..., lattice.dims] = slope * (2 * torch.pi / lattice.period)
    return f.mT if df is None else (f.mT, df.transpose(1, 2))
