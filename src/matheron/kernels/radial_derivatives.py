"""Derivatives of radial kernels k = g(r^2) along directions: covariances of slopes and curvatures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..core.jacobian import derivative_along
from ..core.modes import transformed
from .base import squared_distance
from .radial import Radial


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
    """The ways to put some of `count` things in pairs: those that stay single, and the pairs."""

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


def profile_slope(radial: Callable[[Tensor], Tensor], r2: Tensor, least: float = 1e-12, steep: float = 1e3) -> Tensor:
    """g'(r^2) by forward differentiation, and at zero from the right; where that is steep, it is taken as infinite."""
    at = r2.clamp_min(least)
    slope = torch.func.jvp(radial, (at,), (torch.ones_like(at),))[1]
    return torch.where((r2 > least) | (slope.abs() < steep), slope, 0.0)


def profile_derivative(radial: Callable[[Tensor], Tensor], r2: Tensor, order: int) -> Tensor:
    """The derivative of some order of a profile of one's own, g(r^2), by automatic differentiation."""

    def at(numbers: Tensor) -> Tensor:
        return radial(numbers.reshape(r2.shape).clone()).reshape(-1, 1)

    column = r2.reshape(-1, 1).clamp_min(torch.finfo(r2.dtype).eps ** (1 / max(order, 1)))
    return derivative_along(at, column, [torch.ones_like(column)] * order).reshape(r2.shape)


def smoothness_of_profile(kernel: Radial) -> float:
    """How many mean-square derivatives functions of a profile of one's own have: 0, 1, or as many as are asked for."""
    for order, near in ((1, 1e-10), (2, 1e-6)):
        at = torch.tensor([near, 100 * near], dtype=torch.float64, device=kernel.lengthscale.device)
        close, far = kernel.double().profile(at, order).abs().tolist()
        if not close < 2 * far:
            return order - 1.0
    return math.inf
