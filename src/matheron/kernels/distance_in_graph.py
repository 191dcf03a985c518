"""Squared distances in a graph, by closed forms of their derivatives: the graph keeps points, and no matrix for each
coordinate."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import squared_distance


class SquaredDistance(torch.autograd.Function):
    """|x - z|^2 whose graph keeps the points alone: a difference per coordinate would keep d matrices."""

    @staticmethod
    def forward(x: Tensor, z: Tensor) -> Tensor:
        return squared_distance(x, z)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, dx: Tensor, dz: Tensor):
        x, z = ctx.saved_tensors
        return 2 * (((x * dx).sum(-1, keepdim=True) - dx @ z.mT) + ((z * dz).sum(-1).unsqueeze(-2) - x @ dz.mT))

    @staticmethod
    def vmap(info, in_dims, x: Tensor, z: Tensor):
        ndim = max(one.ndim - (at is not None) for one, at in zip((x, z), in_dims, strict=True))
        x, z = (one if at is None else _batch_first(one, at, ndim) for one, at in zip((x, z), in_dims, strict=True))
        return SquaredDistance.apply(x, z), 0

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, z = ctx.saved_tensors
        # sum_j g_ij 2 (x_i - z_j), as products
        dx = 2 * (x * grad.sum(-1, keepdim=True) - grad @ z)
        dz = 2 * (z * grad.sum(-2).unsqueeze(-1) - grad.mT @ x)
        return dx.sum_to_size(x.shape), dz.sum_to_size(z.shape)


def _batch_first(x: Tensor, at: int, ndim: int) -> Tensor:
    """A tensor whose axis `at` is a batch, with that axis before `ndim` others."""
    x = x.movedim(at, 0)
    return x.reshape(x.shape[0], *[1] * (ndim + 1 - x.ndim), *x.shape[1:])
