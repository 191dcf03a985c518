"""k(X, X) and its diagonal, for one task or several."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..kernels import Kernel, coupled_covariance
from ..scratch import arena, frame

# The side of a square block of the matrix: on a CPU what a cache holds beside the kernel's temporaries.
_SIDE = {"cpu": 512, "cuda": 4096}


def covariance(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> Tensor:
    """k(X, X), `[n, n]`, in memory of its own: by blocks where no graph is needed."""
    side, some = _SIDE.get(X.device.type, 512), None if tasks is None else tasks[:1]
    if len(X) <= side:  # a block is all of it; a constant's is one number, expanded
        return coupled_covariance(kernel, X, tasks, X, tasks).clone(memory_format=torch.contiguous_format)
    if torch.is_grad_enabled() and coupled_covariance(kernel, X[:1], some, X[:1], some).requires_grad:
        return coupled_covariance(kernel, X, tasks, X, tasks)
    K = torch.empty(len(X), len(X), dtype=X.dtype, device=X.device)
    for rows, columns, block in symmetric_blocks(kernel, X, tasks, side):
        K[rows, columns] = block
        if rows != columns:
            K[columns, rows] = block.mT
    return K


def symmetric_blocks(
    kernel: Kernel, X: Tensor, tasks: Tensor | None, side: int
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Square blocks of k(X, X) on and above the diagonal, with their rows and columns; each until the next one."""
    parts = [slice(i, i + side) for i in range(0, len(X), side)]
    with arena():
        for i, rows in enumerate(parts):
            for columns in parts[i:]:
                with frame():
                    yield rows, columns, block_of(kernel, X, tasks, rows, columns)


def block_of(kernel: Kernel, X: Tensor, tasks: Tensor | None, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
    """Some rows and columns of k(X, X)."""
    x, of_x = X[rows], None if tasks is None else tasks[rows]
    z, of_z = (x, of_x) if columns is rows else (X[columns], None if tasks is None else tasks[columns])
    return coupled_covariance(kernel, x, of_x, z, of_z)


def coupled_diagonal(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> Tensor:
    """k((x, i), (x, i)), `[n]`."""
    if tasks is None:
        return kernel.diag(X)
    total = X.new_zeros(len(X))
    for B, k in kernel.coupled():
        total = total + (k.diag(X) if B is None else k.diag(X) * B.diagonal()[tasks])
    return total
