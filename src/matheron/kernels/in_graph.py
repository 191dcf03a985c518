"""Squared distances and Bessel functions in a graph, by closed forms of their derivatives.

Torch has no Bessel functions that it can differentiate. Of squared distances the graph keeps the points alone, and no
matrix for each coordinate.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from .base import squared_distance
from .radial import half_integer


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
        # sum_j g_ij 2 (x_i - z_j), by matrix products
        dx = 2 * (x * grad.sum(-1, keepdim=True) - grad @ z)
        dz = 2 * (z * grad.sum(-2).unsqueeze(-1) - grad.mT @ x)
        return dx.sum_to_size(x.shape), dz.sum_to_size(z.shape)


def _batch_first(x: Tensor, at: int, ndim: int) -> Tensor:
    """A tensor whose axis `at` is a batch, with that axis before `ndim` others."""
    x = x.movedim(at, 0)
    return x.reshape(x.shape[0], *[1] * (ndim + 1 - x.ndim), *x.shape[1:])


class BesselPower(torch.autograd.Function):
    """F_a(q) = c s^a K_a(s) with s = sqrt(q), for any real a. It is closed under differentiation: F_a' = -F_{a-1} / 2.

    The constant c is inside because s^a K_a(s) alone overflows: float32 from a = 30.

    At q = 0, where F_a is infinite for a <= 0, the value is 0: there it only ever multiplies x - x' = 0.
    """

    @staticmethod
    def forward(q: Tensor, a: float, c: float) -> Tensor:
        if a in (-0.5, 0.5, 1.5, 2.5):
            return half_integer(q.sqrt(), a).mul_((3 if a == 2.5 else 1) * c * math.sqrt(math.pi / 2))
        s64 = q.sqrt().double().cpu().numpy()
        at_zero = 2 ** (a - 1) * scipy.special.gamma(a) if a > 0 else 0.0
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            value = scipy.special.kve(a, s64) * s64**a * np.exp(-s64)
        return torch.from_numpy(c * np.where(np.isfinite(value), value, at_zero)).to(q)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, ctx.a, ctx.c = inputs
        ctx.save_for_backward(q)
        ctx.save_for_forward(q)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (q,) = ctx.saved_tensors
        return -0.5 * grad * BesselPower.apply(q, ctx.a - 1, ctx.c), None, None

    @staticmethod
    def jvp(ctx, dq: Tensor, _a, _c):
        (q,) = ctx.saved_tensors
        return -0.5 * dq * BesselPower.apply(q, ctx.a - 1, ctx.c)

    @staticmethod
    def vmap(info, in_dims, q: Tensor, a: float, c: float):
        # the function acts on each number by itself, so a batch is just a larger tensor
        return BesselPower.apply(q, a, c), in_dims[0]
