"""How paths are computed: evaluators that read a record of them, the first that can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..core.modes import transformed
from . import chunked, fused
from . import own_points as single
from .record import Record, by_digits


class Evaluator(Protocol):
    """What computes records. A module with these three functions is one."""

    def can(self, record: Record, x: Tensor, of: Tensor | None) -> bool: ...
    def values(self, record: Record, x: Tensor) -> Tensor: ...
    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]: ...


# In order of speed; the last serves all. An engine with terms of its own adds an evaluator by `register`.
EVALUATORS: list[Evaluator] = [fused, single, chunked]
# Predicates of records whose functions cost as much together as each alone, also by `register`.
_ALONE: list[Callable[[Record], bool]] = []
# Numbers of a gradient up to which its own computation costs less than a pull-back's overhead (measured).
_FEW = 64


def register(evaluator: Evaluator, alone: Callable[[Record], bool]) -> None:
    """Ask an engine's evaluator before those for points of each path's own, and blocks.

    `alone` says of which records several functions at the same points cost as much as each of them alone.
    """
    EVALUATORS.insert(EVALUATORS.index(single), evaluator)
    _ALONE.append(alone)


def record_shares_work(record: Record) -> bool:
    """Whether several functions at the same points cost less than each alone: their basis is computed once."""
    return not any(alone(record) for alone in _ALONE)


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
