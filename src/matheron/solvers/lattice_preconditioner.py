"""Preconditioners of the solve on a lattice: exact on the heaviest weights, or in the space of few data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..features.joint import Joint
    from .lattice import System

# An operation of an FFT, or of spreading, in those of a matrix product (measured on a CPU).
FFT_COST = 8.0
# Ratios of the data's information to the prior's down to which weights may be in the head; and the iterations that each
# leaves, about (measured, uniform data): 28, 16, 10 and 6.
_RATIOS = (10.0, 3.0, 1.0, 0.3)


class Preconditioner(Protocol):
    def __call__(self, R: Tensor) -> Tensor:
        """About M^-1 R: `[r, t c + e] -> [r, t c + e]`."""
        ...


def largest_dense(cuda: bool) -> int:
    """Rows of a matrix that is factored for a preconditioner, at the most."""
    return 12_000 if cuda else 4000


def iterations_left(ratio: float) -> float:
    """About how many iterations there are where the head goes down to this ratio of information."""
    return 10 * ratio**0.45


def head_size(information: Tensor, rows: int, cells: int, limit: int) -> int:
    """How many of the heaviest weights are worth a dense factor, for so many right-hand sides and FFTs of `cells`."""
    fft = 5 * cells * math.log2(max(2, cells)) * FFT_COST
    best, least = 0, math.inf
    for ratio in _RATIOS:
        count = int((information > ratio).sum())
        k = min(count, limit)
        iterations = iterations_left(ratio) * math.sqrt(max(1.0, count / max(1, k)))
        cost = k**3 / 3 + iterations * rows * (2 * k**2 + fft)
        if cost < least:
            best, least = k, cost
    return best


class Head:
    """The exact Cholesky factor of the heaviest weights and of the explicit ones; the diagonal of the others."""

    def __init__(self, system: System, size: int) -> None:
        order = system.information.argsort(descending=True)[:size]
        self.index, e = order.sort().values, len(system.corner)
        self.diagonal = torch.cat([1 + system.information, system.information.new_ones(e)])
        block = dense_block(system, self.index)
        cross = system.cross[:, self.index]  # [e, k]
        corner = system.corner + torch.eye(e, dtype=block.dtype, device=block.device)
        block = torch.cat([torch.cat([block, cross.mT], dim=1), torch.cat([cross, corner], dim=1)])
        beside = torch.arange(e, device=order.device) + len(system.information)
        self.index = torch.cat([self.index, beside])
        self.factor = torch.linalg.cholesky(block) if len(block) else None

    def __call__(self, R: Tensor) -> Tensor:
        Z = R / self.diagonal
        if self.factor is not None:
            Z[:, self.index] = torch.cholesky_solve(R[:, self.index].mT, self.factor).mT
        return Z


class DataSpace:
    """M^-1 = I - S^T (S S^T + noise)^-1 S, with S the basis at few data: exact, but for rounding.

    S S^T, the prior's covariance at the data `[n, n]`, is factored densely: clusters and lines of data are no harder
    than others.
    """

    def __init__(self, basis: Joint, X: Tensor, precision: Tensor, tasks: Tensor | None = None) -> None:
        self.basis, self.X, self.tasks = basis, X, tasks
        self.factor = torch.linalg.cholesky(basis.covariance(X, tasks) + (1 / precision).diag())

    def __call__(self, R: Tensor) -> Tensor:
        return R - self._weights(self.basis.sums(self.X, R, self.tasks))

    def given(self, w: Tensor, residual: Tensor) -> Tensor:
        """Weights w `[r, t c + e]` given values `[r, n]` with noise at the data: Matheron's rule."""
        return w + self._weights(residual - self.basis.sums(self.X, w, self.tasks))

    def _weights(self, v: Tensor) -> Tensor:
        return self.basis.adjoint(self.X, torch.cholesky_solve(v.mT, self.factor).mT.contiguous(), tasks=self.tasks)


def dense_block(system: System, index: Tensor) -> Tensor:
    """Rows and columns of M on the lattice's weights `index`: from generators at sums and differences of modes."""
    lattice, h = system.lattice, system.lattice.num_pairs
    p = index % lattice.size
    sines = (p >= h) & (p < 2 * h)  # the others are cosines, and the constant
    place = torch.where(p < 2 * h, p % max(h, 1) + h + 1, torch.full_like(p, h))
    j = lattice.place_modes(place)  # [k, d]
    flat = torch.zeros_like(p)  # a place in the flattened box is linear in the mode
    for axis, n in enumerate(system.generator.shape[1:]):
        flat = flat * n + j[:, axis]
    sign = torch.where(sines, -1.0, 1.0).double()[:, None]
    block = torch.zeros(len(index), len(index), dtype=torch.float64, device=index.device)
    for T, row in zip(system.generator.flatten(1), system.basis.planes, strict=True):
        each = [torch.zeros_like(system.information[: lattice.size]) if plane is None else plane for plane in row]
        a = torch.cat(each)[index]  # [k], of this output
        minus, plus = T[len(T) // 2 + flat[:, None] - flat], T[len(T) // 2 + flat[:, None] + flat]  # [k, k]
        # sum cos cos, sin sin, cos sin over the data, of angles whose cosines sum to the generator's real part
        same = 0.5 * (minus.real + sign * plus.real)
        cross = 0.5 * (-plus.imag + sign * minus.imag)
        block += torch.where(sines[:, None] == sines, same, cross) * a[:, None] * a
    block.diagonal().add_(1)
    return block
