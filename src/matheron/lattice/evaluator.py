"""Evaluation of terms on a lattice: transforms of many points at once, and tables for points of each path's own.

A transform costs an FFT whatever the number of its points, so shared points are taken in blocks as large as memory
allows. Where each path has its own points (minimisers, roll-outs), the series of every path is tabulated once, on a
grid twice as fine as its shortest wavelength. The table is interpolated by the transforms' own window, to rounding. All
other terms, and the mean, are left to the other evaluators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.arena import Sums, add
from ..core.nufft import Interpolated, fine_grid, grid_shape
from ..evaluate import Evaluator, Points, Record, WeightedSum
from .basis import Lattice


@dataclass
class LatticeTransforms(Evaluator):
    """The terms on lattices.

    Args:
        points: of one transform at the most.
        rows: sums that are taken together.
        tables: what the tables of all paths may take, in bytes.
    """

    points: int = 1 << 20
    rows: int = 16
    tables: int = 1 << 29

    shares_work = False  # each function takes its own transform
    kinds = (Lattice,)

    def take(self, record: Record, points: Points) -> tuple[Record | None, Record | None]:
        terms = _weighted_sums(record)
        if points == "traced" or not terms or (points == "own" and _size_of_tables(terms) > self.tables):
            return None, record
        return record.parted(terms, with_mean=False)

    @torch.no_grad()
    def values(self, record: Record, x: Tensor) -> Tensor:
        sums = self._sums(record, x, None, False)
        assert isinstance(sums, Tensor)
        return sums.contiguous()

    @torch.no_grad()
    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        sums = self._sums(record, x, of, True)
        assert isinstance(sums, tuple)
        return sums

    def _sums(self, record: Record, x: Tensor, of: Tensor | None, gradient: bool) -> Sums:
        """The sum of the terms on lattices: `[s, n, t]`, and with `gradient` a pair with `[s, n, t, d]`."""
        total = None
        terms, shared = _weighted_sums(record), len(x) == 1 and of is None
        tables = [None] * len(terms) if shared else record.derived(self._make_tables)
        for term, table in zip(terms, tables, strict=True):
            about = x if term.origin is None else x - term.origin
            part = self._shared(term, about, gradient) if table is None else _own(term, table, about, of, gradient)
            total = part if total is None else add(total, part)
        assert total is not None
        return total

    def _shared(self, term: WeightedSum, x: Tensor, gradient: bool) -> Sums:
        s, t, c = term.weights.shape
        n, d = x.shape[1:]
        W = term.weights.reshape(s * t, c)
        f = x.new_empty(s * t, n)
        df = x.new_empty(s * t, n, d) if gradient else None
        all_rows = df is None and term.basis.suits_matrix(x[:, : self.points], s * t)
        step = s * t if all_rows else self.rows
        for i in range(0, n, self.points):
            for j in range(0, s * t, step):
                rows, points = slice(j, j + step), slice(i, i + self.points)
                out = term.basis.sums(x[:, points], W[None, rows], gradient)
                if df is None:
                    f[rows, points] = out[0]
                else:
                    f[rows, points], df[rows, points] = out[0][0], out[1][0]
        f = f.view(s, t, n).mT
        return f if df is None else (f, df.view(s, t, n, d).transpose(1, 2))

    def _make_tables(self, record: Record) -> list[Interpolated]:
        """The series of every path and output on a fine grid."""
        tables = []
        for term in _weighted_sums(record):
            W, lattice = term.weights.flatten(0, 1), term.basis
            grid = W.new_empty(len(W), *grid_shape(lattice.shape, record.dtype))
            for rows, some in zip(grid.split(self.rows), W.split(self.rows), strict=True):
                rows.copy_(fine_grid(lattice.coefficients(some)).real)
            tables.append(Interpolated(grid))
        return tables


def _weighted_sums(record: Record) -> list[WeightedSum]:
    """The terms on lattices."""
    return [t for t in record.terms if isinstance(t, WeightedSum) and isinstance(t.basis, Lattice)]


def _size_of_tables(terms: Sequence[WeightedSum]) -> int:
    """What the tables of all paths and outputs take, in bytes."""
    size = 0
    for term in terms:
        cells = math.prod(grid_shape(term.basis.shape, term.weights.dtype))
        size += term.weights.shape[0] * term.weights.shape[1] * cells * term.weights.element_size()
    return size


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
