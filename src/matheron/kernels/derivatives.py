"""Derivatives in closed form: of squared distances and Bessel functions for autograd, and of radial kernels.

Torch has no differentiable Bessel functions. The graph of squared distances stores only the points, and no matrix for
each coordinate. Derivatives of radial kernels along directions are covariances of slopes and curvatures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.modes import transformed
from .base import squared_distance
from .radial import Radial, half_integer


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


def radial_derivative(kernel: Radial, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """The derivative of k(x, z), `[n, d], [m, d] -> [n, m]`, along `left`, each `[n, d]`, in x, and `right` in z.

    Let r^2 = |x - z|^2 in lengthscales. Every derivative is a sum over the ways to pair some of the directions w_1, ..,
    w_p, where those in z have a minus sign:

        sum over pairings  g^(number of pairs and singles)(r^2)  prod 2 <w_i, w_j> of pairs  prod 2 <w_i, x - z>

    >>> import torch
    >>> from matheron import kernels
    >>> x, z = torch.rand(3, 2).double(), torch.rand(4, 2).double()
    >>> slope = kernels.RBF(0.5).derivative(x, z, [torch.ones_like(x)], [])
    >>> slope.shape
    torch.Size([3, 4])
    """
    order = len(left) + len(right)
    x, z, lengthscale = kernel._scaled(x, z)
    rows, columns = [2 * u / lengthscale for u in left], [-2 * v / lengthscale for v in right]  # 2 w
    along = [torch.addmm((w * x).sum(-1, keepdim=True), w, z.mT, alpha=-1) for w in rows]  # 2 <w, x - z>, [n, m]
    along += [torch.addmm(-(w * z).sum(-1), x, w.mT) for w in columns]
    profiles = _profiles_between(kernel, x, z, range((order + 1) // 2, order + 1))
    total = None
    for singles, pairs in _pairings(order):
        part = profiles[len(singles) + len(pairs)]
        factors = [along[i] for i in singles] + [0.5 * _dot(rows, columns, i, j) for i, j in pairs]
        for factor in factors[:-1]:
            part = part * factor
        total = part * factors[-1] if total is None else torch.addcmul(total, part, factors[-1])
    assert total is not None
    return total


def _profiles_between(kernel: Radial, x: Tensor, z: Tensor, orders: Sequence[int]) -> dict[int, Tensor]:
    """`Radial.profiles` of |x - z|^2 for points in lengthscales; points that repeat the one before, as gradients do,
    have copies of its profiles."""
    (some, rows), (others, columns) = _distinct(x), _distinct(z)
    if 2 * len(some) * len(others) > len(x) * len(z):
        return kernel.profiles(squared_distance(x, z), orders)
    found = kernel.profiles(squared_distance(some, others), orders)
    return {order: profile[rows][:, columns] for order, profile in found.items()}


def _distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """Points `[n, d]` without those that repeat the one before, `[p, d]`, and which of these each is, `[n]`."""
    new = torch.ones(len(x), dtype=torch.bool, device=x.device)
    if transformed():
        return x, new.cumsum(0) - 1
    new[1:] = (x.detach()[1:] != x.detach()[:-1]).any(-1)
    return x[new], new.cumsum(0) - 1


def _dot(rows: list[Tensor], columns: list[Tensor], i: int, j: int) -> Tensor:
    """<w_i, w_j> of vectors of rows, `[n, d]` each, and then of columns, `[m, d]`: `[n or 1, m or 1]`."""
    p = len(rows)
    if i < p <= j:
        return rows[i] @ columns[j - p].mT
    return (rows[i] * rows[j]).sum(-1, keepdim=True) if j < p else (columns[i - p] * columns[j - p]).sum(-1)


def _pairings(count: int) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The ways to form pairs from some of `count` objects: the objects that stay single, and the pairs."""

    def of(left: list[int]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        if not left:
            yield [], []
            return
        first, *rest = left
        for singles, pairs in of(rest):
            yield [first, *singles], pairs
        for k, other in enumerate(rest):
            for singles, pairs in of(rest[:k] + rest[k + 1 :]):
                yield singles, [(first, other), *pairs]

    return of(list(range(count)))
