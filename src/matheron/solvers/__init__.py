"""factor, then solve: Cholesky and conjugate gradients."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..kernels import Kernel, coupled_covariance
from .cholesky import Cholesky as Cholesky
from .cholesky import JitterWarning as JitterWarning
from .cholesky import by_rows as by_rows
from .conjugate_gradients import ConjugateGradients as ConjugateGradients
from .conjugate_gradients import ConvergenceWarning as ConvergenceWarning

SOLVERS = ("auto", "cholesky", "cg")
# The dense factor is n^2 numbers; on a CPU "auto" stops there.
LARGEST_DENSE_ON_CPU = 20_000


class Solver(Protocol):
    """A factored covariance: it solves for right-hand sides `[n, r]`, and says what jitter was added."""

    @property
    def jitter(self) -> float: ...

    def solve(self, b: Tensor) -> Tensor: ...


def factor(
    kernel: Kernel, X: Tensor, tasks: Tensor | None, noise: Tensor, solver: str, correction: Tensor | None = None
) -> Solver:
    """Factor k(X, X) + diag(noise), or k(X, X) + correction + diag(noise) for a dense correction `[n, n]`."""
    if solver not in SOLVERS:
        raise ValueError(f"solver: expected one of {', '.join(SOLVERS)}, got {solver!r}")
    n = len(X)
    tied = torch.is_grad_enabled() and (X.requires_grad or noise.requires_grad or kernel.requires_graph())
    if solver == "auto":
        solver = "cholesky" if tied or correction is not None or n <= _largest_dense(X) else "cg"
    if solver == "cg":
        if tied or correction is not None:
            raise ValueError('solver="cg" keeps no graph and needs a plain kernel: use solver="cholesky" here')

        def rows(i: slice | Tensor, j: slice) -> Tensor:
            pick = None if tasks is None else tasks[i]
            return coupled_covariance(kernel, X[i], pick, X[j], None if tasks is None else tasks[j])

        return ConjugateGradients(rows, coupled_diagonal(kernel, X, tasks), noise)
    K = covariance(kernel, X, tasks)
    magnitude = None
    if correction is not None:
        magnitude, K = K.diagonal() + noise, K + correction
    K = K + noise.diag_embed() if tied or K.requires_grad else _add_diagonal(K, noise)
    return Cholesky(K, "k(X, X) + noise", magnitude)


def covariance(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> Tensor:
    """k(X, X), `[n, n]`."""
    if tasks is not None:
        return coupled_covariance(kernel, X, tasks, X, tasks)
    return by_rows(lambda rows: kernel.forward(rows, X), X)


def coupled_diagonal(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> Tensor:
    """k((x, i), (x, i)), `[n]`."""
    if tasks is None:
        return kernel.diag(X)
    return sum(k.diag(X) * (1.0 if B is None else B.diagonal()[tasks]) for B, k in kernel.coupled())  # type: ignore


def _add_diagonal(K: Tensor, noise: Tensor) -> Tensor:
    K.diagonal().add_(noise)
    return K


def _largest_dense(X: Tensor) -> int:
    if X.device.type != "cuda":
        return LARGEST_DENSE_ON_CPU
    free, _ = torch.cuda.mem_get_info(X.device)
    return int((free / X.element_size() / 3) ** 0.5)  # the matrix, its factor, and room to work
