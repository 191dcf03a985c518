"""Covariances of linear functionals, such as slopes and averages over boxes.

For functionals L = sum_a w_a D_a at points x_a and M = sum_b v_b E_b at z_b,

    Cov(L f, M f)  =  sum_a sum_b  w_a v_b  D_a E_b k(x_a, z_b),

where D_a differentiates k in its first argument and E_b in its second (`Kernel.derivative`).

Averages over boxes are in closed form (`Averaged`). For a product of kernels of one coordinate, k(x, x') =
prod_i k_i(x_i - x'_i), boxes with centres c and sides w have

    Cov(average of f over (c, w), average over (c', w'))  =  prod_i  S_{w_i} S_{w'_i} k_i (c_i - c'_i),

    (S_w g)(u)  =  1/w  int_{-w/2}^{w/2} g(u + t) dt  =  (G(u + w/2) - G(u - w/2)) / w,      G' = g,

so that two sides take the second antiderivative of k_i, which RBF and Matern kernels with nu = 1/2, 3/2, ... have. The
difference loses digits where w is small. There S_w g is computed as the mean of g(u + w / sqrt 12) and g(u - w / sqrt
12). Its error is of fourth order in w where k_i is smooth. The difference is taken for sides from 0.01 lengthscales on,
and for rougher kernels from `_LEAST` on: the two errors are then about the same. They are below 3e-10, but for nu = 1/2
(1e-6 at the worst, for sides of 3e-5 lengthscales).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.functionals import Functionals, Observed
from ..core.modes import transformed
from .base import Kernel
from .radial import LOG2E, RBF, Matern


def functional_covariance(kernel: Kernel, a: Observed, b: Observed) -> Tensor:
    """Compute the covariance `[n, m]` of functionals, or of functionals and values at sites."""
    return _of_functionals(kernel, Functionals.of(a), Functionals.of(b))


def _of_functionals(kernel: Kernel, a: Functionals, b: Functionals, most_numbers: int = 1 << 22) -> Tensor:
    """Compute the covariance of functionals, with at most `most_numbers` covariances of atoms in memory."""
    if len(a.weights) * len(b.weights) <= most_numbers or (a.alone and b.alone):
        return a.summed(b.summed(_of_atoms(kernel, a, b)).mT).mT
    if len(a) > 1 and (len(a.weights) >= len(b.weights) or len(b) == 1):
        halves = (a[: len(a) // 2], b), (a[len(a) // 2 :], b)
        return torch.cat([_of_functionals(kernel, *each, most_numbers) for each in halves])
    if len(b) == 1:
        return a.summed(b.summed(_of_atoms(kernel, a, b)).mT).mT
    halves = (a, b[: len(b) // 2]), (a, b[len(b) // 2 :])
    return torch.cat([_of_functionals(kernel, *each, most_numbers) for each in halves], dim=1)


class _Atoms(NamedTuple):
    """Weighted atoms that are all points, or all boxes, and derivatives of one order along `directions`."""

    at: slice | Tensor  # which atoms of the functionals they are
    x: Tensor
    outputs: Tensor | None
    directions: tuple[Tensor, ...]
    weights: Tensor | None  # None where all are one


def _atoms(f: Functionals) -> list[_Atoms]:
    """Sort the atoms by what they are."""
    outputs, found = f.sites.outputs, []
    for order, at in f.parts():
        box = f.sides is not None and bool((f.sides[at] != 0).any())
        weights = f.weights[at]
        found.append(
            _Atoms(
                at,
                (f.boxes if box else f.points)[at],
                None if outputs is None else outputs[at],
                f.directions[at, :order].unbind(1),
                weights if bool((weights != 1).any()) else None,
            )
        )
    return found


def _of_atoms(kernel: Kernel, a: Functionals, b: Functionals) -> Tensor:
    """Compute the covariance `[N, M]` of weighted atoms in newly allocated memory."""
    rows = _atoms(a)
    columns, d = rows if b is a else _atoms(b), a.input_dim
    if len(rows) == len(columns) == 1:
        return _between(kernel, d, rows[0], columns[0])
    out = a.points.new_empty(len(a.weights), len(b.weights))
    for i, left in enumerate(rows):
        for j, right in enumerate(columns):
            if columns is not rows or i <= j:
                block = _between(kernel, d, left, right)
                _write(out, left.at, right.at, block)
                if columns is rows and i < j:
                    _write(out, right.at, left.at, block.mT)
    return out


def _write(out: Tensor, rows: slice | Tensor, columns: slice | Tensor, block: Tensor) -> None:
    if isinstance(rows, Tensor) and isinstance(columns, Tensor):
        rows = rows[:, None]
    out[rows, columns] = block


def _between(kernel: Kernel, input_dim: int, a: _Atoms, b: _Atoms) -> Tensor:
    """Compute the covariance of atoms of one kind and atoms of another."""
    if max(a.x.shape[1], b.x.shape[1]) > input_dim:  # boxes
        kernel = Averaged(kernel, input_dim)
    if a.outputs is None or b.outputs is None:
        K = kernel.derivative(a.x, b.x, a.directions, b.directions)
    else:
        i, j = a.outputs[:, None], b.outputs
        pairs = [(B, k.derivative(a.x, b.x, a.directions, b.directions)) for B, k in kernel.coupled()]
        K = functools.reduce(torch.add, (D if B is None else D * B[i, j] for B, D in pairs))
    K = K if a.weights is None else K * a.weights[:, None]
    return K if b.weights is None else K * b.weights


def functional_diagonal(kernel: Kernel, f: Functionals, at_once: int = 256) -> Tensor:
    """Compute the variance of each functional by blocks; for a radial kernel, it does not depend on the location."""
    if f.alone and not len(f):
        return f.weights
    if not f.alone:
        rows = [f[first : first + 1] for first in range(len(f))]
        return torch.cat([_of_functionals(kernel, row, row)[0] for row in rows])
    if kernel.num_outputs == 1 and kernel.radial_parts(f.input_dim) is not None and not transformed():
        of_each = [f.weights[:, None], f.orders[:, None].to(f.weights), f.directions.flatten(1), f.sides_or_zero]
        what = torch.cat(of_each, dim=1).detach()
        each, place = what.unique(dim=0, return_inverse=True)
        if len(each) < len(f):
            first = torch.full((len(each),), len(f), device=place.device)
            first.scatter_reduce_(0, place, torch.arange(len(f), device=place.device), "amin")
            return functional_diagonal(kernel, f[first], at_once)[place]
    blocks = [f[first : first + at_once] for first in range(0, len(f), at_once)]
    return torch.cat([_of_functionals(kernel, rows, rows).diagonal() for rows in blocks])


def least_smoothness(kernel: Kernel, directions: Sequence[Tensor]) -> float:
    """Return how many mean-square derivatives a kernel's functions have along directions `[n, d]`: the minimum."""
    if not directions:
        return float("inf")
    touched = torch.stack([u.detach().ne(0).any(0) for u in directions]).any(0)  # [d]
    smoothness = kernel.smoothness(len(touched))
    return min((s for s, used in zip(smoothness, touched.tolist(), strict=True) if used), default=float("inf"))


# Averages over boxes.

# The smallest side, in lengthscales, for which the antiderivative is used, by nu. It is 0.01 for smoother kernels. At
# this side the two methods of the docstring have about the same error.
_LEAST = {0.5: 3e-5, 1.5: 3e-3}


class AxisFactor(NamedTuple):
    """A kernel of one coordinate, k(u) = h(rate u), with the derivatives h^(m) of the even function h.

    m = -2 is the second antiderivative. `least` is the smallest side, in units of u, for which that is used.
    """

    rate: Tensor
    derivative: Callable[[Tensor, int], Tensor]
    least: Tensor


class ProductOfFactors(NamedTuple):
    """variance * prod_i k_i(u_i), where None is a factor of one."""

    variance: Tensor
    factors: list[AxisFactor | None]


def averages_in_closed_form(kernel: Kernel, input_dim: int) -> bool:
    """Whether `Averaged` knows the covariances of averages over boxes."""
    return kernel.num_outputs == 1 and products_of_factors(kernel, input_dim) is not None


def products_of_factors(kernel: Kernel, input_dim: int) -> list[ProductOfFactors] | None:
    """The kernel as a sum of products of kernels of one coordinate that have antiderivatives; None where it is not."""
    found = []
    for term in kernel.terms(input_dim):
        if term.forms or term.own or term.coupling is not None:
            return None
        factors: list[AxisFactor | None] = [None] * input_dim
        for part in term.stationary:
            axes = part.axis_factors(input_dim)
            if axes is None:
                return None
            for i, own in enumerate(axes):
                factor = _factor(own[0]) if len(own) == 1 else None
                if own and (factor is None or factors[i] is not None):
                    return None
                factors[i] = factor if own else factors[i]
        found.append(ProductOfFactors(term.variance, factors))
    return found


def _factor(kernel: Kernel) -> AxisFactor | None:
    if type(kernel) is RBF:
        rate = 1 / kernel.lengthscale.double().reshape(())
        return AxisFactor(rate, _gaussian, 1e-2 / rate.detach())
    if type(kernel) is Matern and kernel.nu % 1 == 0.5 and kernel.nu <= 10.5:
        length = kernel.lengthscale.double().reshape(())
        least = _LEAST.get(kernel.nu, 1e-2) * length.detach()
        return AxisFactor(math.sqrt(2 * kernel.nu) / length, functools.partial(_matern, int(kernel.nu)), least)
    return None


def _gaussian(s: Tensor, order: int) -> Tensor:
    """The derivative of exp(-s^2 / 2): an error function below order 0, a Hermite polynomial times it above."""
    root = math.sqrt(math.pi / 2)
    if order == -1:
        return (s * math.sqrt(0.5)).erf_().mul_(root)
    bell = (s * s).mul_(-0.5 * LOG2E).exp2_()
    if order < 0:
        return torch.addcmul(bell, s, (s * math.sqrt(0.5)).erf_(), value=root)
    before, hermite = torch.zeros_like(s), torch.ones_like(s)
    for n in range(order):
        before, hermite = hermite, s * hermite - n * before
    return (-1) ** order * hermite * bell


def _matern(p: int, s: Tensor, order: int) -> Tensor:
    """The derivative of P(|s|) exp(-|s|), nu = p + 1/2: another polynomial; below order 0 also a linear function."""
    polynomial, level = _matern_polynomial(p, order)
    r = s.abs()
    value = (
        functools.reduce(lambda total, c: total * r + c, reversed(polynomial), torch.zeros_like(s))
        * (-LOG2E * r).exp2_()
    )
    if order < 0:
        value = value + (level if order == -1 else level * r)
    return value * s.sign() if order % 2 else value


@functools.cache
def _matern_polynomial(p: int, order: int) -> tuple[list[float], float]:
    """The coefficients of Q, the constant first, and A.

    For u > 0 the derivative of some order is Q(u) exp(-u). Order -1 has A added, and order -2 has A u. Each is the
    integral of the one before that fits an even function.
    """
    f = math.factorial
    Q = [f(p) / f(2 * p) * f(2 * p - j) / (f(p - j) * f(j)) * 2.0**j for j in range(p + 1)]
    for _ in range(order):
        Q = [(j + 1) * above - c for j, (c, above) in enumerate(zip(Q, [*Q[1:], 0.0], strict=True))]
    level = 0.0
    for step in range(-order):  # the solution R of R' - R = Q is -(Q + Q' + Q'' + ...)
        R, left = [0.0] * len(Q), Q
        while left:
            R = [total - c for total, c in zip(R, [*left, *[0.0] * (len(R) - len(left))], strict=True)]
            left = [(j + 1) * c for j, c in enumerate(left[1:])]
        Q, level = R, -R[0] if step == 0 else level
    return Q, level


class Averaged(Kernel):
    """The covariance of averages over boxes of a function with another kernel, in float64.

    A box of R^d is a point of 2 d coordinates: its centre, then its sides. Points of d coordinates are values.
    Derivatives are in the centres, along directions of R^d.
    """

    fields = ("input_dim",)
    saveable: ClassVar[bool] = False

    def __init__(self, kernel: Kernel, input_dim: int) -> None:
        super().__init__(kernel=kernel)
        self.input_dim = input_dim

    def terms(self, input_dim: int) -> list:
        raise TypeError("Averaged: a covariance of averages, which has no features of its own")

    def axis_factors(self, input_dim: int) -> None:
        return None

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self._sum(x, z, [()])[0]

    def diag(self, x: Tensor) -> Tensor:
        return torch.cat([self.forward(at[None], at[None])[0] for at in x.reshape(-1, x.shape[-1])]).reshape(
            x.shape[:-1]
        )

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, *dK = self._sum(x, z, [(), *((i,) for i in range(self.input_dim))])
        return K, torch.stack(dK)

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """The sum over the coordinates that the directions may have of the derivatives in these."""
        d = self.input_dim
        touched = [[i for i in range(d) if bool((u[:, i] != 0).any())] for u in (*left, *right)]
        which = list(itertools.product(*touched))
        total = x.new_zeros(len(x), len(z))
        for dims, part in zip(which, self._sum(x, z, which), strict=True):
            for i, u in zip(dims, left, strict=False):
                part = part * u[:, i, None]
            for i, v in zip(dims[len(left) :], right, strict=True):
                part = part * -v[:, i]
            total = total + part
        return total

    def _sum(self, x: Tensor, z: Tensor, which: Iterable[tuple[int, ...]]) -> list[Tensor]:
        """Partial derivatives in the centres of x, each of some coordinates: `[..., n, m]` for each of `which`."""
        d, dtype = self.input_dim, x.dtype
        x, z, which = x.double(), z.double(), list(which)
        found: list[Tensor | None] = [None] * len(which)
        products = products_of_factors(self.kernel.double(), d)
        assert products is not None  # checked before this kernel was made
        for variance, factors in products:
            tables: dict[tuple[int, int], Tensor] = {}
            for j, dims in enumerate(which):
                part = variance.to(x).expand(*x.shape[:-1], z.shape[-2])
                for i, factor in enumerate(factors):
                    order = dims.count(i)
                    if factor is None:
                        part = part if order == 0 else torch.zeros_like(part)
                        continue
                    if (i, order) not in tables:
                        tables[i, order] = _table(factor, order, _side(x, i, d), _side(z, i, d))
                    part = part * tables[i, order]
                before = found[j]
                found[j] = part if before is None else before + part
        return [part.to(dtype) for part in found if part is not None]


# Intervals of one coordinate: their centres, and their sides, which are None if all of them are points.
Side = tuple[Tensor, Tensor | None]


def _side(x: Tensor, i: int, d: int) -> Side:
    """The intervals in coordinate i."""
    return x[..., i], x[..., d + i] if x.shape[-1] == 2 * d else None


def _table(factor: AxisFactor, order: int, x: Side, z: Side) -> Tensor:
    """S_w S_v k^(order)(x - z), `[..., n], [..., m] -> [..., n, m]`: intervals that repeat themselves, as those of the
    cells of a raster do, are computed once."""
    (x, i), (z, j) = _distinct(x), _distinct(z)
    table = _averaged(factor, order, *x, *z)
    table = table if i is None else table[i]
    return table if j is None else table[..., j]


def _distinct(side: Side) -> tuple[Side, Tensor | None]:
    """Intervals without repetitions, and which of these each is; None where few repeat themselves."""
    x, w = side
    if x.ndim > 1 or w is None or transformed() or x.requires_grad or w.requires_grad:
        return side, None
    centres, place = x.unique(return_inverse=True)
    if 2 * len(centres) > len(x):
        return side, None
    sides = torch.empty_like(centres).index_copy_(0, place, w)
    return ((centres, sides), place) if bool((sides[place] == w).all()) else (side, None)


def _averaged(factor: AxisFactor, order: int, x: Tensor, w: Tensor | None, z: Tensor, v: Tensor | None) -> Tensor:
    """The same of all intervals, by differences in units of 1 / rate."""
    between = (x[..., :, None] - z[..., None, :]) * factor.rate
    left, right = _shifts(factor, w), _shifts(factor, v)
    orders = {order - a - b for a in left.counts for b in right.counts}
    total = None
    for shift, weight in left.parts:
        from_x = between if shift is None else between + shift[..., :, None]
        for other_shift, other in right.parts:
            s = from_x if other_shift is None else from_x + other_shift[..., None, :]
            if len(orders) == 1:
                value = factor.derivative(s, *orders)
            else:
                each = order - left.wide[..., :, None].long() - right.wide[..., None, :].long()
                value = sum((torch.where(each == m, factor.derivative(s, m), 0.0) for m in orders), torch.zeros_like(s))
            value = value if weight is None else value.mul_(weight[..., :, None])
            value = value if other is None else value.mul_(other[..., None, :])
            total = value if total is None else total.add_(value)
    assert total is not None
    return total * factor.rate**order if order else total


class _Shifts(NamedTuple):
    """S_w as a weighted sum of shifts, in units of 1 / rate: pairs of a shift and its weight; None is 0, and 1.

    `wide` says of which intervals the antiderivative is taken, and `counts` whether it is of all, some or none.
    """

    parts: list[tuple[Tensor | None, Tensor | None]]
    wide: Tensor
    counts: set[int]


def _shifts(factor: AxisFactor, w: Tensor | None) -> _Shifts:
    if w is None:
        return _Shifts([(None, None)], torch.zeros(1, dtype=torch.bool, device=factor.rate.device), {0})
    wide, w = w >= factor.least, w * factor.rate
    shift, weight = torch.where(wide, w / 2, w / math.sqrt(12)), 1 / torch.where(wide, w, 2.0)
    parts: list[tuple[Tensor | None, Tensor | None]] = [(shift, weight), (-shift, torch.where(wide, -weight, weight))]
    return _Shifts(parts, wide, {int(wide.any()), int(wide.all())})
