"""k(X, X) and its diagonal, for one task or several."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import Kernel, coupled_covariance

# Rows of the covariance made at a time: the kernel's temporaries stay small beside the matrix itself.
_ROWS = 1024


def covariance(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> Tensor:
    """k(X, X), `[n, n]`."""
    if tasks is not None:
        return coupled_covariance(kernel, X, tasks, X, tasks)
    return by_rows(lambda rows: kernel.forward(rows, X), X)


def coupled_diagonal(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> Tensor:
    """k((x, i), (x, i)), `[n]`."""
    if tasks is None:
        return kernel.diag(X)
    total = X.new_zeros(len(X))
    for B, k in kernel.coupled():
        total = total + (k.diag(X) if B is None else k.diag(X) * B.diagonal()[tasks])
    return total


def by_rows(rows: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A matrix `[n, n]` from a function of some of its rows, written in place where no graph is needed."""
    if torch.is_grad_enabled() and (probe := rows(x[:1])).requires_grad:
        del probe
        return rows(x)
    K = torch.empty(len(x), len(x), dtype=x.dtype, device=x.device)
    for i in range(0, len(x), _ROWS):
        K[i : i + _ROWS] = rows(x[i : i + _ROWS])
    return K
