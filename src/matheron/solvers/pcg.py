"""Preconditioned conjugate gradients over a batch of right-hand sides; the covariance is never formed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Operator, Solver, State, Stats


class ConvergenceWarning(UserWarning):
    """Conjugate gradients did not reach the accuracy that was asked."""


@dataclass(frozen=True)
class PCG(Solver):
    """Conjugate gradients with a preconditioner of low rank: products with K, which is never formed.

    Args:
        tolerance: relative residual of every right-hand side; None is near rounding (1e-10 in float64, 1e-5 in
            float32).
        rank: of the preconditioner.
        max_iterations: after so many it stops, with a `ConvergenceWarning`.
    """

    tolerance: float | None = None
    rank: int = 256
    max_iterations: int = 2000

    def init(self, operator: Operator) -> PCGState:
        if operator.requires_graph():
            raise ValueError('solver="cg" keeps no graph: use solver="cholesky" here')
        return PCGState(self, operator)

    def solve(self, state: PCGState, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        return state.run(b, guess)


class PCGState(State):
    """Solves (K + D) a = b by products with blocks of K.

    The preconditioner is P = F F^T + D, F from a pivoted Cholesky factorisation of K, applied by Woodbury's identity.
    """

    def __init__(self, solver: PCG, operator: Operator) -> None:
        self.solver, self.operator, self.pcg = solver, operator, solver
        noise, diagonal, n = operator.noise, operator.diagonal(), operator.size
        F = _pivoted_cholesky(operator.rows, diagonal, min(solver.rank, n))  # [n, k]
        floor = max(1e-8, 10 * torch.finfo(F.dtype).eps) * diagonal.mean()
        self.D = noise + (diagonal - F.square().sum(1)).clamp_min(0) * 1e-3 + floor
        self.F = F
        weighted = (F / self.D[:, None].sqrt()).double()  # its Gram matrix needs the digits
        inner = torch.eye(F.shape[1], dtype=torch.float64, device=F.device) + weighted.mT @ weighted
        self.inner = torch.linalg.cholesky(inner).to(F.dtype)

    def multiply(self, V: Tensor) -> Tensor:
        """(K + D) V, `[n, r]`."""
        return self.operator.product(V) + self.operator.noise[:, None] * V

    def precondition(self, V: Tensor) -> Tensor:
        """P^-1 V by Woodbury."""
        V = V / self.D[:, None]
        return V - (self.F @ torch.cholesky_solve(self.F.mT @ V, self.inner)) / self.D[:, None]

    def run(self, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """(K + D)^-1 b for all right-hand sides `[n, r]` together.

        The recursion's own residual drifts from the true one, so it starts again from the true one while that helps.
        """
        double = b.dtype == torch.float64
        scale = b.norm(dim=0).clamp_min(torch.finfo(b.dtype).tiny)  # [r]
        tolerance = self.pcg.tolerance or (1e-10 if double else 1e-5)
        accepted = self.pcg.tolerance or (1e-6 if double else 1e-3)
        target = tolerance * scale
        a = torch.zeros_like(b) if guess is None else guess
        residual, left = b if guess is None else b - self.multiply(a), self.pcg.max_iterations
        while left > 0 and bool((residual.norm(dim=0) > target).any()):
            step, left = self._descend(residual, target, left)
            trial = b - self.multiply(a + step)
            better = trial.norm(dim=0) < 0.5 * residual.norm(dim=0)  # [r]; what is not a number is not better
            if not bool(better.any()):
                break
            a, residual = torch.where(better, a + step, a), torch.where(better, trial, residual)
        worst = float((residual.norm(dim=0) / scale).max())
        stats = Stats(repr(self.pcg), self.pcg.max_iterations - left, worst, worst <= accepted)
        if not stats.converged:
            warnings.warn(
                f"conjugate gradients stopped after {stats.iterations} iterations at a relative residual of "
                f'{worst:.1e}: the noise is small for this kernel; use solver="cholesky" if memory allows'
                f"{'' if double else ', or dtype=torch.float64'}",
                ConvergenceWarning,
                stacklevel=3,
            )
        return a, stats

    def _descend(self, b: Tensor, target: Tensor, left: int) -> tuple[Tensor, int]:
        """Conjugate gradients from zero until the recursion's residual meets the target or `left` iterations are over.

        A right-hand side whose direction has lost its curvature to rounding stops where it is.
        """
        a, residual = torch.zeros_like(b), b
        p = z = self.precondition(b)
        rz = (residual * z).sum(0)  # [r]
        is_open = residual.norm(dim=0) > target
        while left > 0 and bool(is_open.any()):
            Ap = self.multiply(p)
            curvature = (p * Ap).sum(0)
            is_open = is_open & (curvature > 0) & (rz > 0)
            step = torch.where(is_open, rz / torch.where(is_open, curvature, 1.0), 0.0)
            a, residual = a + step * p, residual - step * Ap
            z = self.precondition(residual)
            rz_next = (residual * z).sum(0)
            p = z + torch.where(is_open, rz_next / torch.where(is_open, rz, 1.0), 0.0) * p
            rz, left = rz_next, left - 1
            is_open = is_open & (residual.norm(dim=0) > target)
        return a, left


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
