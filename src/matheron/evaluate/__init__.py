"""How paths are computed: evaluators that read a record of them, the first that can."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import transformed
from . import chunked, fused, lattice, single
from .chunked import MEMORY_BUDGET as MEMORY_BUDGET
from .fused.join import joined_plan as joined_plan
from .grid import on_grid as on_grid
from .record import Record as Record
from .record import Recorder as Recorder
from .record import by_digits as by_digits
from .record import inner_points as inner_points
from .record import padded as padded
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
    if x.requires_grad and torch.is_grad_enabled() and _gradients_are_cheap(record, x):
        return _WithGradients.apply(x, record)
    return next(each for each in EVALUATORS if each.can(record, x, None)).values(record, x)


def _gradients_are_cheap(record: Record, x: Tensor) -> bool:
    """Whether gradients are best computed with the values: one sum per basis function, or few functions and points."""
    if record.requires_grad or transformed(x) or fused.can(record, x):
        return False
    return len(x) == record.num_paths or record.num_paths * x.shape[1] * x.shape[2] <= _FEW


class _WithGradients(torch.autograd.Function):
    """Values at points in a graph, which keeps the points and the gradients there: of own points no more numbers."""

    @staticmethod
    def forward(ctx, x: Tensor, record: Record) -> Tensor:
        f, df = values_and_gradients(record, x)
        ctx.save_for_backward(x, df)
        ctx.record = record
        return f

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        x, df = ctx.saved_tensors
        if torch.is_grad_enabled():  # asked for a graph of the gradient, for second derivatives
            return chunked.differentiable_pull(ctx.record, x, grad), None
        return (grad[..., None] * df).sum(2).sum_to_size(x.shape), None


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same and their gradients `[s, n, t, d]`, without a graph; with `of`, of these paths at points `[p, n, d]`."""
    parts = record.derived(by_digits)
    if parts is not None:
        narrow, wide = parts
        (f, df), (g, dg) = values_and_gradients(narrow, x, of), values_and_gradients(wide, x.double(), of)
        return f + g.to(x.dtype), df + dg.to(x.dtype)
    return next(each for each in EVALUATORS if each.can(record, x, of)).values_and_gradients(record, x, of)
