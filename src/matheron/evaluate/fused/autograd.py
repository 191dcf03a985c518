"""The sums as one node of an autograd graph: its backward pass is a kernel too; a second one is the chunked path's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...means import ConstantMean
from ..chunked import differentiable_pull
from ..record import Record
from .launch import pulled, sums, sums_with_gradient
from .plan import Plan


class Sums(torch.autograd.Function):
    """prior + update at x `[1, n, d]` or `[s, n, d]`, without the mean: `[s, n, t]`."""

    @staticmethod
    def forward(ctx, x: Tensor, record: Record, plan: Plan) -> Tensor:
        ctx.record, ctx.plan = record, plan
        zero = x.new_zeros(1, 1, 1)
        if len(x) == 1:
            ctx.save_for_backward(x)
            return sums(plan, x.detach().contiguous(), zero)
        # Own points: the gradient is no larger than x, so it is made on the way.
        f, df = sums_with_gradient(plan, x.detach().contiguous(), zero, None)
        ctx.save_for_backward(x, df)
        return f

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # the backward pass is itself to be differentiated
            without_mean = replace(ctx.record, mean=ConstantMean(0.0).to(x.device, x.dtype))
            return differentiable_pull(without_mean, x, grad), None, None
        if rest:
            return (grad[..., None] * rest[0]).sum(2), None, None
        return pulled(ctx.plan, x.contiguous(), grad), None, None
