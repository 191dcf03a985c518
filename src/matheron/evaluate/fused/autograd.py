"""The sums as one node of an autograd graph: its backward pass is a kernel too; a second one is the chunked path's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..chunked import evaluate as in_blocks
from .launch import pulled, sums, sums_with_gradient
from .plan import Plan


class Sums(torch.autograd.Function):
    """prior + update at x `[1, n, d]` or `[s, n, d]`, without the mean: `[s, n, t]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, paths: Any, plan: Plan) -> Tensor:
        ctx.paths, ctx.plan = paths, plan
        zero = x.new_zeros(1, 1, 1)
        if len(x) == 1:
            ctx.save_for_backward(x)
            return sums(plan, x.detach().contiguous(), zero)
        # Own points: the gradient is no larger than x, so it is made on the way.
        f, df = sums_with_gradient(plan, x.detach().contiguous(), zero, None)
        ctx.save_for_backward(x, df)
        return f

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # the backward pass is itself to be differentiated
            return _differentiable(ctx.paths, x, grad), None, None
        if rest:
            return (grad[..., None] * rest[0]).sum(2), None, None
        return pulled(ctx.plan, x.contiguous(), grad), None, None


def _differentiable(paths: Any, x: Tensor, grad: Tensor) -> Tensor:
    def block(x: Tensor, rows: slice | None) -> Tensor:
        parts = [part for part in (paths.prior.sums(x, rows), paths.update.sums(x, rows)) if part is not None]
        return torch.stack(parts).sum(0).mT

    s, t = paths.num_paths, paths.num_outputs
    f = in_blocks(block, x, s, t, paths._width(x), own=len(x) > 1, tied=False)
    (slope,) = torch.autograd.grad(f, x, grad, create_graph=True)
    return slope
