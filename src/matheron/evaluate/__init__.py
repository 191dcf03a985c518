"""How paths are computed: evaluators that read a record of them, the first that can."""

from __future__ import annotations

import torch
from torch import Tensor

from ..modes import transformed
from . import chunked, fused, lattice, single
from .chunked import MEMORY_BUDGET as MEMORY_BUDGET
from .fused.join import joined_gradients as joined_gradients
from .grid import on_grid as on_grid
from .record import Record as Record
from .record import Recorder as Recorder
from .record import by_digits as by_digits
from .record import inner_points as inner_points
from .terms import Term as Term
from .terms import WeightedSum as WeightedSum
from .terms import Wide as Wide
from .terms import sum_of as sum_of

# In order of speed; the last serves all. Each has `can`, `values` and `values_and_gradients`.
EVALUATORS = (fused, lattice, single, chunked)
# Numbers of a gradient up to which its own computation costs less than a pull-back's overhead (measured).
_FEW = 64


def shares_work(record: Record) -> bool:
    """Whether several functions at the same points cost less than each alone: their basis is computed once."""
    return not lattice.is_all(record)


def values(record: Record, x: Tensor) -> Tensor:
    """The functions at inner points `[1 or s, n, d]`: `[s, n, t]`, differentiable in x."""
    parts = record.derived(by_digits)
    if parts is not None:
        narrow, wide = parts
        return values(narrow, x) + values(wide, x.double()).to(x.dtype)
    evaluator = _first(record, x, None)
    if x.requires_grad and torch.is_grad_enabled() and not (record.requires_grad or transformed()):
        return InGraph.apply(x, record, evaluator)
    return evaluator.values(record, x)


class InGraph(torch.autograd.Function):
    """An evaluator's values at points in a graph, which keeps the points alone, or their gradients too.

    These where they are no more numbers than the points (each function has its own), or few. Else they are pulled back
    in closed form: with H = G^T W the gradient of each basis function, no path's own gradient is made.
    """

    @staticmethod
    def forward(ctx, x: Tensor, record: Record, evaluator) -> Tensor:
        ctx.record, ctx.evaluator = record, evaluator
        if len(x) == record.num_paths or record.num_paths * x.shape[1] * x.shape[2] <= _FEW:
            f, df = evaluator.values_and_gradients(record, x, None)
            ctx.save_for_backward(x, df)
        else:
            f = evaluator.values(record, x)
            ctx.save_for_backward(x)
        return f.clone() if f._is_view() else f  # torch lets nobody write into a view that comes from here

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        x, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # asked for a graph of the gradient, for second derivatives
            return chunked.differentiable_pull(ctx.record, x, grad), None, None
        if kept:
            return (grad[..., None] * kept[0]).sum(2).sum_to_size(x.shape), None, None
        pulled = fused.pulled if ctx.evaluator is fused else chunked.pulled
        return pulled(ctx.record, x, grad), None, None


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same and their gradients `[s, n, t, d]`, without a graph; with `of`, of these paths at points `[p, n, d]`."""
    parts = record.derived(by_digits)
    if parts is not None:
        narrow, wide = parts
        (f, df), (g, dg) = values_and_gradients(narrow, x, of), values_and_gradients(wide, x.double(), of)
        return f + g.to(x.dtype), df + dg.to(x.dtype)
    s = record.num_paths
    if of is not None and len(of) >= 4 * s and s * int(of.bincount().max()) <= 2 * len(of):  # several points of each
        return chunked.of_some(lambda points: values_and_gradients(record, points), s, x, of)
    return _first(record, x, of).values_and_gradients(record, x, of)


def _first(record: Record, x: Tensor, of: Tensor | None):
    """The first evaluator that can."""
    for each in EVALUATORS:  # a plain loop: this is in every call's way
        if each.can(record, x, of):
            return each
    raise AssertionError("the last evaluator serves all")
