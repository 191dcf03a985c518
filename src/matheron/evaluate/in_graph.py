"""Values in a graph: of points, by derivatives in closed form, and of hyperparameters, by checkpoints of blocks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.modes import transformed
from .evaluators import BLOCKS, Cuts, cut_of, values, values_and_gradients, vjp
from .record import Record

# Gradients of up to this many numbers are computed together with the values, which costs less than the overhead of a
# vector-Jacobian product (benchmarks/pull_back.py).
_FEW = 64


class InGraph(torch.autograd.Function):
    """Values in an autograd graph that stores only the points, or their gradients as well.

    Gradients are stored if they have no more entries than the points (each function has its own), or few. Otherwise the
    backward pass is a vector-Jacobian product in closed form. With H = G^T W the gradient of each basis function, no
    gradient of a single path is computed.
    """

    @staticmethod
    def forward(ctx, x: Tensor, record: Record) -> Tensor:
        ctx.record = record
        if len(x) == record.num_paths or record.num_paths * x.shape[1] * x.shape[2] <= _FEW:
            f, df = values_and_gradients(record, x)
            ctx.save_for_backward(x, df)
        else:
            f = values(record, x)
            ctx.save_for_backward(x)
        return f.clone() if f._is_view() else f  # torch forbids writing into a view that an autograd function returns

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        x, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted, for second derivatives
            cuts = BLOCKS.cuts(x, ctx.record.num_paths, ctx.record.width(x), len(x) > 1)
            f = values_in_blocks(ctx.record, x, cuts)
            again = torch.autograd.grad(f, x, grad, create_graph=True)[0] if f.requires_grad else torch.zeros_like(x)
            return again, None
        if kept:
            return (grad[..., None] * kept[0]).sum(2).sum_to_size(x.shape), None
        return vjp(ctx.record, x, grad), None


def values_in_blocks(record: Record, x: Tensor, cuts: Cuts) -> Tensor:
    """The values at inner points in a graph of x and of the record: each block is a checkpoint.

    Under transforms of torch.func there are no checkpoints.
    """
    if len(cuts) == 1:
        return record.values(x, cuts[0][0])
    value = record.values
    if not transformed():
        value = partial(checkpoint, record.values, use_reentrant=False, preserve_rng_state=False)
    rows: dict[int, list[Tensor]] = {}
    for paths, points in cuts:
        rows.setdefault(cut_of(paths).start or 0, []).append(value(x[cut_of(paths), points], paths))
    return torch.cat([torch.cat(row, dim=1) for row in rows.values()], dim=0)
