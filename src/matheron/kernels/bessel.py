"""The Bessel function behind Matern kernels of any order, in a graph: torch has none that it can differentiate."""

from __future__ import annotations

import math

import numpy as np
import scipy  # whose special functions it imports when they are first used
import torch
from torch import Tensor

from .radial import half_integer


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
        return BesselPower.apply(q, a, c), in_dims[0]  # number by number: a batch is more of them
