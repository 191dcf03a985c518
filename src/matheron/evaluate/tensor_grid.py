"""Evaluation on a tensor grid x1 x x2 x ...: phases and separable kernels come apart into factors of one axis each.

cos(a + b) = cos a cos b - sin a sin b, so a Fourier basis on an n1 x n2 grid needs (n1 + n2) ell trigonometric
functions instead of n1 n2 ell, and the sum over features is a matrix product. The same holds for a kernel that is a
product over dimensions (RBF, Periodic, products of kernels on different dimensions). The rest is evaluated as a list.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from ..features.basis import Basis, Cosines, Pairs
from ..features.canonical import Canonical
from ..kernels import Constant, Kernel, Linear

# Numbers in a block's factors: on a CPU those that its caches hold, on a GPU enough to keep it busy.
_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 25}


# A separable summand: one factor `[n_i, c]` per axis, and the weights `[r, c]` (perhaps complex) that go with them.
Summand = tuple[list[Tensor], Callable[[Tensor], Tensor]]


def add_grid_sums(summands: list[Summand], W: Tensor, into: list[Tensor]) -> None:
    """Add sum_i W_i phi_i on a grid, `[r, c]`, to r views `[n1, n2 n3 ...]`: some columns of the grid at a time."""
    for (first, *others), select in summands:
        weights = select(W)  # [r, c], perhaps complex
        n1, rest = len(first), [len(other) for other in others]
        numbers = weights.shape[1] * (2 if weights.is_complex() else 1)
        block = _BLOCK.get(W.device.type, _BLOCK["cpu"])
        step = max(1, min(block // max(1, numbers), block // n1))
        for start in range(0, prod(rest), step):
            columns = torch.arange(start, min(start + step, prod(rest)), device=W.device)
            right = torch.ones_like(first[:1])  # [b, c]
            for other, place in zip(others, unravelled(columns, rest), strict=True):
                right = right * other[place]
            if weights.is_complex():  # the real part of a product of complex numbers is a real product twice as wide
                right = torch.cat([right.real, -right.imag], dim=1)
            for w, out in zip(weights, into, strict=True):
                left = first * w  # [n1, c]
                left = torch.cat([left.real, left.imag], dim=1) if left.is_complex() else left
                out[:, start : start + step] += left @ right.mT


def unravelled(index: Tensor, shape: list[int]) -> list[Tensor]:
    """The place on each axis of entries of a grid, counted with the last axis first."""
    places = []
    for n in reversed(shape):
        places.append(index % n)
        index = index // n
    return places[::-1]


def summands_of(basis: Basis, axes: list[Tensor], kernels: Separated | None) -> list[Summand] | None:
    """The separable summands of a basis of one version, a canonical one's by kernels of one dimension; None where it
    does not separate."""
    if isinstance(basis, Pairs | Cosines):
        turns = [torch.outer(axis, theta) for axis, theta in zip(axes, basis.frequencies[0].unbind(-1), strict=True)]
        factors = [torch.polar(torch.ones_like(phase), phase) for phase in turns]  # exp(i theta_j x_j)
        if isinstance(basis, Pairs):  # a cos + b sin is the real part of (a - i b) exp(i .)
            return [(factors, lambda W: torch.complex(*_cos_and_minus_sin(W)))]
        turn = torch.polar(torch.ones_like(basis.phases[0]), basis.phases[0])
        return [(factors, lambda W: W * turn)]
    if isinstance(basis, Canonical) and kernels is not None:
        summands: list[Summand] = []
        for scale, by_axis in kernels:
            factors = []
            for axis, centre, parts in zip(axes, basis.centres.unbind(-1), by_axis, strict=True):
                K = torch.ones(len(axis), len(centre), dtype=axis.dtype, device=axis.device)
                for kernel in parts:
                    K = K * kernel.forward(axis[:, None], centre[:, None])  # [n_i, c]
                factors.append(K)
            summands.append((factors, lambda W, scale=scale: W * scale))
        return summands
    return None


def _cos_and_minus_sin(W: Tensor) -> tuple[Tensor, Tensor]:
    W_cos, W_sin = W.chunk(2, dim=-1)
    return W_cos.contiguous(), -W_sin


# A kernel as sum_q scale_q prod_i prod_j k_qij(x_i, x'_i): each q's scale and, per axis, kernels of one dimension.
Separated = list[tuple[Tensor, list[list[Kernel]]]]


def separate(kernel: Kernel, d: int) -> Separated | None:
    """The kernel as a sum of products over dimensions, or None."""
    separated: Separated = []
    for term in kernel.terms(d):
        axes: list[list[Kernel]] = [[] for _ in range(d)]
        for factors in [*(k.axis_factors(d) for k in term.stationary), *map(_of_one_axis, term.forms)]:
            if factors is None:
                return None
            axes = [known + more for known, more in zip(axes, factors, strict=True)]
        separated.append((term.variance, axes))
    return separated


def _of_one_axis(form: Tensor) -> list[list[Kernel]] | None:
    """A linear form of one coordinate and a constant, `[d + 1]`, as a kernel of that coordinate; None of several."""
    *coefficients, offset = form
    active = [i for i, c in enumerate(coefficients) if bool(c != 0)]
    if len(active) > 1:
        return None
    parts = [Linear(coefficients[i]) + Constant(offset) for i in active] or [Constant(offset)]
    return [parts if i == (active or [0])[0] else [] for i in range(len(coefficients))]
