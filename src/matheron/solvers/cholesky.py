"""Dense Cholesky: factor once, solve for every path at once. Jitter is visible."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Operator, Solver, State, Stats


class JitterWarning(UserWarning):
    """A covariance was not positive definite, and jitter was added to its diagonal."""


class CholeskyState(State):
    """L L^T = K + diag(noise) + jitter I. `jitter` is what had to be added, zero as a rule."""

    def __init__(self, solver: Solver, operator: Operator, L: Tensor, jitter: float) -> None:
        self.solver, self.operator, self.L, self.jitter = solver, operator, L, jitter


@dataclass(frozen=True)
class Cholesky(Solver):
    """A dense factorisation, exact to rounding: n^2 numbers of memory, n^3 / 3 multiplications.

    >>> import torch, matheron
    >>> from matheron import kernels, solvers
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> matheron.draw(gp, 8, solver=solvers.Cholesky())
    Paths(8 paths in 1 dimension, given 3 observations; prior: 1024 sobol)
    """

    def init(self, operator: Operator) -> CholeskyState:
        K, noise, magnitude = operator.dense(), operator.noise, operator.magnitude()
        if K.requires_grad or noise.requires_grad:
            K = K + noise.diag_embed()
        else:
            K.diagonal().add_(noise)
        L, jitter = safe_cholesky(K, "k(X, X) + noise", magnitude)
        return CholeskyState(self, operator, L, jitter)

    def solve(self, state: CholeskyState, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """All right-hand sides in one pass over the factor; a guess is of no use to it."""
        return torch.cholesky_solve(b, state.L), Stats(repr(self), jitter=state.jitter)


def cholesky_solve(K: Tensor, b: Tensor, name: str) -> Tensor:
    """K^-1 b `[n, r]` for a matrix K `[n, n]` that is there already."""
    return torch.cholesky_solve(b, safe_cholesky(K, name)[0])


def safe_cholesky(K: Tensor, name: str, magnitude: Tensor | None = None) -> tuple[Tensor, float]:
    """The factor of K `[n, n]`: without jitter, then with 1e-10 of the mean diagonal, ten times more each try.

    A factor can come out finite and yet be rounding noise (duplicate points); such a pivot counts as a failure. Where K
    is a difference of larger matrices, `magnitude [n]` is the diagonal of these, whose rounding it has.
    """
    diagonal = (K.diagonal() if magnitude is None else magnitude).detach()
    scale = float(diagonal.mean())
    smallest_pivot = torch.finfo(K.dtype).eps * float(diagonal.max().clamp_min(0)) * 4
    jitter = 0.0
    for power in range(-11, 0):
        matrix = K if jitter == 0.0 else K + jitter * torch.eye(len(K), dtype=K.dtype, device=K.device)
        L, info = torch.linalg.cholesky_ex(matrix)
        if not bool(info) and float(L.detach().diagonal().square().min()) > smallest_pivot:
            if jitter:
                warnings.warn(
                    f"{name} is not positive definite in {str(K.dtype).split('.')[-1]}: added a jitter of {jitter:.1e} "
                    f"to its diagonal (mean {scale:.3g}), which counts as noise in the path; duplicate points without "
                    "noise are the usual cause",
                    JitterWarning,
                    stacklevel=4,
                )
            return L, jitter
        jitter = scale * 10.0 ** (power + 1)
    raise ValueError(
        f"{name} is not positive definite even with a jitter of {jitter / 10:.1e}: check the kernel and data"
    )
