"""Dense Cholesky: factor once, solve for every path at once. Jitter is visible."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

# Rows of the covariance made at a time: the kernel's temporaries stay small beside the matrix itself.
_ROWS = 1024


class JitterWarning(UserWarning):
    """A covariance was not positive definite, and jitter was added to its diagonal."""


class Cholesky:
    """L L^T = K + jitter I. `jitter` is what had to be added, zero as a rule: it counts as noise in the path."""

    def __init__(self, K: Tensor, name: str = "the covariance", magnitude: Tensor | None = None) -> None:
        self.L, self.jitter = safe_cholesky(K, name, magnitude)

    def solve(self, b: Tensor) -> Tensor:
        """K^-1 b for right-hand sides `[n, r]`, all in one pass over the factor."""
        return torch.cholesky_solve(b, self.L)


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


def by_rows(rows, x: Tensor) -> Tensor:
    """A matrix `[n, n]` from a function of some of its rows, written in place where no graph is needed."""
    if torch.is_grad_enabled() and (probe := rows(x[:1])).requires_grad:
        del probe
        return rows(x)
    K = torch.empty(len(x), len(x), dtype=x.dtype, device=x.device)
    for i in range(0, len(x), _ROWS):
        K[i : i + _ROWS] = rows(x[i : i + _ROWS])
    return K
