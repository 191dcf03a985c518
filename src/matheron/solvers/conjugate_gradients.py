"""Preconditioned conjugate gradients over a batch of right-hand sides; the covariance is never formed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

MAX_ITERATIONS = 2000
PRECONDITIONER_RANK = 256
# Entries of a block of the covariance: 64 MiB in float64.
_BLOCK = 1 << 23


class ConjugateGradients:
    """Solves (K + D) a = b by products with blocks of K.

    The preconditioner is P = F F^T + D, F from a pivoted Cholesky factorisation of K, applied by Woodbury's identity.
    """

    jitter = 0.0

    def __init__(self, covariance: Callable[[slice | Tensor, slice], Tensor], diagonal: Tensor, noise: Tensor) -> None:
        """`covariance(i, j)` gives rows i and columns j of K; `diagonal` and `noise` are those of K and D, `[n]`."""
        self.covariance, self.noise = covariance, noise
        n = len(noise)
        F = _pivoted_cholesky(lambda i: covariance(i, slice(0, n)), diagonal, min(PRECONDITIONER_RANK, n))  # [n, k]
        self.D = noise + (diagonal - F.square().sum(1)).clamp_min(0) * 1e-3 + 1e-8 * diagonal.mean()
        self.F = F
        inner = torch.eye(F.shape[1], dtype=F.dtype, device=F.device) + F.mT @ (F / self.D[:, None])
        self.inner = torch.linalg.cholesky(inner)

    def multiply(self, V: Tensor) -> Tensor:
        """(K + D) V, `[n, r]`, a block of K at a time."""
        n = len(V)
        out = self.noise[:, None] * V
        rows = max(1, _BLOCK // n)
        for i in range(0, n, rows):
            out[i : i + rows] += self.covariance(slice(i, i + rows), slice(0, n)) @ V
        return out

    def precondition(self, V: Tensor) -> Tensor:
        """P^-1 V by Woodbury."""
        V = V / self.D[:, None]
        return V - (self.F @ torch.cholesky_solve(self.F.mT @ V, self.inner)) / self.D[:, None]

    def solve(self, b: Tensor) -> Tensor:
        """(K + D)^-1 b for all right-hand sides `[n, r]` together, each to a relative residual near rounding."""
        tolerance = 1e-10 if b.dtype == torch.float64 else 1e-5
        target = tolerance * b.norm(dim=0).clamp_min(torch.finfo(b.dtype).tiny)  # [r]
        a = torch.zeros_like(b)
        residual = b.clone()
        z = self.precondition(residual)
        p, rz = z, (residual * z).sum(0)
        for _ in range(MAX_ITERATIONS):
            open_ = residual.norm(dim=0) > target
            if not bool(open_.any()):
                return a
            Ap = self.multiply(p)
            step = torch.where(open_, rz / (p * Ap).sum(0).clamp_min(torch.finfo(b.dtype).tiny), 0.0)
            a = a + step * p
            residual = residual - step * Ap
            z = self.precondition(residual)
            rz_next = (residual * z).sum(0)
            p = z + torch.where(open_, rz_next / rz.clamp_min(torch.finfo(b.dtype).tiny), 0.0) * p
            rz = rz_next
        worst = float((residual.norm(dim=0) / b.norm(dim=0).clamp_min(torch.finfo(b.dtype).tiny)).max())
        warnings.warn(
            f"conjugate gradients stopped after {MAX_ITERATIONS} iterations at a relative residual of {worst:.1e}; "
            'the noise is small for this kernel: use solver="cholesky" if memory allows',
            stacklevel=3,
        )
        return a


def _pivoted_cholesky(rows: Callable[[Tensor], Tensor], diagonal: Tensor, rank: int) -> Tensor:
    """F `[n, k]` with F F^T near K, one row of K at a time, always the one that is worst explained so far."""
    F = diagonal.new_zeros(len(diagonal), rank)
    left = diagonal.clone()
    for k in range(rank):
        i = left.argmax()
        if float(left[i]) <= 1e-10 * float(diagonal.max()):
            return F[:, :k]
        row = rows(i[None])[0] - F @ F[i]
        F[:, k] = row / left[i].sqrt()
        left = (left - F[:, k].square()).clamp_min(0)
        left[i] = 0
    return F
