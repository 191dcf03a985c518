"""Covariances of linear functionals, such as slopes and averages.

For functionals L = sum_a w_a D_a at points x_a and M = sum_b v_b E_b at z_b,

    Cov(L f, M f)  =  sum_a sum_b  w_a v_b  D_a E_b k(x_a, z_b),

where D_a differentiates k in its first argument and E_b in its second (`Kernel.derivative`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.functionals import Functionals, Observed
from ..core.modes import transformed
from .averaged import Averaged
from .base import Kernel


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


def _of_atoms(kernel: Kernel, a: Functionals, b: Functionals) -> Tensor:
    """Compute the covariance `[N, M]` of weighted atoms in newly allocated memory."""
    rows, columns = a.parts(), b.parts()
    if len(rows) == len(columns) == 1:
        return _of_orders(kernel, a, b, rows[0][0], columns[0][0])
    left, right = [_atoms(a, at) for _, at in rows], [_atoms(b, at) for _, at in columns]
    blocks: dict[tuple[int, int], Tensor] = {}
    for i, (order, _) in enumerate(rows):
        for j, (other, _) in enumerate(columns):
            known = blocks[j, i].mT if a is b and j < i else None
            blocks[i, j] = _of_orders(kernel, left[i], right[j], order, other) if known is None else known
    if not blocks:
        return a.points.new_zeros(len(a.weights), len(b.weights))
    out = blocks[0, 0].new_empty(len(a.weights), len(b.weights))
    for (i, j), block in blocks.items():
        at, to = rows[i][1], columns[j][1]
        if isinstance(at, slice) or isinstance(to, slice):
            out[at, to] = block
        else:
            out[at[:, None], to] = block
    return out


def _atoms(functionals: Functionals, index: slice | Tensor) -> Functionals:
    """Select some of the atoms; each becomes a row."""
    each = torch.arange(len(functionals.weights), device=functionals.weights.device)[index]
    return functionals.atoms(index, torch.arange(len(each), device=each.device))


def _of_orders(kernel: Kernel, a: Functionals, b: Functionals, order: int, other: int) -> Tensor:
    """Compute the covariance of atoms that are all derivatives of these orders."""
    (x, i), (z, j) = (a.boxes, a.sites.outputs), (b.boxes, b.sites.outputs)
    if a.sides is not None or b.sides is not None:
        kernel = Averaged(kernel, a.input_dim)
    left, right = a.directions[:, :order].unbind(1), b.directions[:, :other].unbind(1)
    if i is None or j is None:
        K = kernel.derivative(x, z, left, right)
    else:
        pairs = [(B, k.derivative(x, z, left, right)) for B, k in kernel.coupled()]
        K = functools.reduce(torch.add, (D if B is None else D * B[i[:, None], j] for B, D in pairs))
    for weights in (a.weights[:, None], b.weights):
        if bool((weights != 1).any()):
            K = K * weights
    return K


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
