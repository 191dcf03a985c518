"""Preconditioners of the solve on a lattice: exact on the heaviest weights, or in the space of few data."""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .cholesky import solved
from .lattice_rows import complex_rows, packed, real_rows, unpacked

if TYPE_CHECKING:
    from ..features.joint import Joint
    from .toeplitz import System

# An operation of an FFT, or of spreading, in those of a matrix product (measured on a CPU).
FFT_COST = 8.0
# Ratios of the data's information to the prior's down to which weights may be in the head; and the iterations that each
# leaves, about (measured, uniform data): 28, 16, 10 and 6.
_RATIOS = (10.0, 3.0, 1.0, 0.3)


class Preconditioner(Protocol):
    def __call__(self, R: Tensor) -> Tensor:
        """About M^-1 R of packed rows (see `toeplitz`), `[p, t c + e]`."""
        ...


def largest_dense(cuda: bool) -> int:
    """Rows of a matrix that is factored for a preconditioner, at the most."""
    return 12_000 if cuda else 4000


def iterations_left(ratio: float) -> float:
    """About how many iterations there are where the head goes down to this ratio of information."""
    return 10 * ratio**0.45


def head_size(information: Tensor, rows: int, cells: int, limit: int) -> int:
    """How many of the heaviest weights are worth a dense factor, for this many right-hand sides and FFTs of `cells`."""
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
        lattice, information = system.lattice, system.information
        h, e, device = lattice.num_pairs, len(system.corner), information.device
        each = information.view(-1, lattice.size)  # [t, c]
        once = torch.cat([each[:, :h], each[:, 2 * h :]], dim=1).flatten()  # a pair's cosine and sine have the same
        order = once.argsort(descending=True)[: (size + 1) // 2].sort().values
        r, q = order // (h + 1), order % (h + 1)
        pairs = q < h
        r, one, q = r[pairs], r[~pairs], q[pairs]
        index = torch.cat([r * lattice.size + q, r * lattice.size + h + q, one * lattice.size + 2 * h])
        block = dense_block(system, index)
        cross = system.cross[:, index]  # [e, k]
        corner = system.corner + torch.eye(e, dtype=block.dtype, device=device)
        block = torch.cat([torch.cat([block, cross.mT], dim=1), torch.cat([cross, corner], dim=1)])
        self.factor = torch.linalg.cholesky(block)
        # where packed rows have these: the waves j and -j of pairs, and constants and explicit functions
        self.up, self.down = r * lattice.size + h + 1 + q, r * lattice.size + h - 1 - q
        self.ones = torch.cat([one * lattice.size + h, torch.arange(e, device=device) + len(information)])
        boxed = torch.cat([each[:, :h].flip(1), each[:, 2 * h :], each[:, :h]], dim=1).flatten()
        self.diagonal = torch.cat([1 / (1 + boxed), boxed.new_ones(e)]).repeat_interleave(2)  # of M^-1

    def to_single(self) -> Head:
        """The same in single precision."""
        other = copy(self)
        other.factor, other.diagonal = self.factor.float(), self.diagonal.float()
        return other

    def __call__(self, R: Tensor) -> Tensor:
        Z = complex_rows(real_rows(R) * self.diagonal)
        if not len(self.factor):
            return Z
        up, down = R[:, self.up], R[:, self.down]
        # weights of cosines and of sines, a + i b for rows a and b
        W = torch.cat([(up + down) * 0.5**0.5, (up - down) * (1j * 0.5**0.5), R[:, self.ones]], dim=1)  # [p, k]
        columns = torch.view_as_real(W).movedim(0, 1)  # [k, p, 2]
        X = solved(self.factor, columns.flatten(1)).view(columns.shape).movedim(1, 0).contiguous()
        C, S, ones = torch.view_as_complex(X).split([up.shape[1], up.shape[1], len(self.ones)], dim=1)
        Z[:, self.up], Z[:, self.down] = (C - 1j * S) * 0.5**0.5, (C + 1j * S) * 0.5**0.5
        Z[:, self.ones] = ones
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
        rows = unpacked(self.basis, R, 2 * len(R))
        return R - packed(self.basis, self._weights(self.basis.sums(self.X, rows, self.tasks)))

    def given(self, w: Tensor, residual: Tensor) -> Tensor:
        """Weights w `[r, t c + e]` given values `[r, n]` with noise at the data: Matheron's rule."""
        return w + self._weights(residual - self.basis.sums(self.X, w, self.tasks))

    def _weights(self, v: Tensor) -> Tensor:
        return self.basis.adjoint(self.X, solved(self.factor, v.mT).mT.contiguous(), tasks=self.tasks)


def dense_block(system: System, index: Tensor) -> Tensor:
    """Rows and columns of M on the lattice's weights `index`: from generators at sums and differences of modes."""
    lattice, h = system.lattice, system.lattice.num_pairs
    p = index % lattice.size
    sines = (p >= h) & (p < 2 * h)  # the others are cosines, and the constant
    place, inverse = torch.where(p < 2 * h, p % max(h, 1) + h + 1, torch.full_like(p, h)).unique(return_inverse=True)
    j = lattice.place_modes(place)  # [m, d]
    flat = torch.zeros_like(place)  # a place in the flattened box is linear in the mode
    for axis, n in enumerate(system.generator.shape[1:]):
        flat = flat * n + j[:, axis]
    here = inverse + sines * len(place)
    zero = torch.zeros_like(system.information[: lattice.size])
    block = torch.zeros(len(index), len(index), dtype=torch.float64, device=index.device)
    planes = [torch.cat([zero if p is None else p for p in row])[index] for row in system.basis.planes]  # [k] each
    for T, (a, b) in zip(system.generator.flatten(1), system.basis.pairs, strict=True):
        minus, plus = T[len(T) // 2 + flat[:, None] - flat], T[len(T) // 2 + flat[:, None] + flat]  # [m, m]
        # sums over the data of cos cos, cos sin, sin sin; the generator is that of exp(-i theta . x)
        cosines = torch.cat([minus.real + plus.real, minus.imag - plus.imag], dim=1)
        both = torch.cat([cosines, torch.cat([-minus.imag - plus.imag, minus.real - plus.real], dim=1)])  # [2 m, 2 m]
        part = both[here][:, here] * (0.5 * planes[a][:, None]) * planes[b]
        block += part if a == b else part + part.mT
    block.diagonal().add_(1)
    return block
