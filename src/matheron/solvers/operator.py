"""k(X, X) and its diagonal, for one task or several."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.arena import arena, frame
from ..evaluate.fused import product as fused
from ..kernels import Kernel, coupled_covariance
from .base import Operator
from .processes import Processes

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


def every_output(x: Tensor, t: int) -> tuple[Tensor, Tensor | None]:
    """Points `[n, d]` as `[n t, d]`, one for every output, and which it is of; None for one output."""
    if t == 1:
        return x, None
    return x.repeat_interleave(t, dim=0), torch.arange(t, device=x.device).repeat(len(x))


# KernelOperator: k(X, X) + diag(noise), whose products are the evaluators' weighted sums.


# The side of a square block of the covariance: on a CPU what fits a cache beside its temporaries.
_PRODUCT_SIDE = {"cpu": 1024, "cuda": 8192}


class KernelOperator(Operator):
    """k(X, X) + diag(noise) for points X `[n, d]`, their tasks `[n]` (None for one output) and noise `[n]`.

    Products form nothing of size n x n. On a GPU with Triton, radial kernels are multiplied in one fused kernel; all
    else goes block by block, each block of k(X, X) made once for both of its places in the symmetric matrix.

    >>> import torch
    >>> from matheron import kernels
    >>> from matheron.solvers.operator import KernelOperator
    >>> X = torch.rand(100, 2, dtype=torch.float64)
    >>> operator = KernelOperator(kernels.RBF(0.3), X, None, torch.full((100,), 0.1, dtype=torch.float64))
    >>> operator.product(torch.ones(100, 3, dtype=torch.float64)).shape
    torch.Size([100, 3])
    """

    def __init__(self, kernel: Kernel, X: Tensor, tasks: Tensor | None, noise: Tensor) -> None:
        self.kernel, self.X, self.tasks, self.noise = kernel, X, tasks, noise
        self._plans: dict[torch.dtype, fused.FusedProducts | None] = {}

    def rows(self, index: Tensor | slice) -> Tensor:
        return block_of(self.kernel, self.X, self.tasks, index, slice(None))

    def diagonal(self) -> Tensor:
        return coupled_diagonal(self.kernel, self.X, self.tasks)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        if dtype in (None, self.dtype):
            return covariance(self.kernel, self.X, self.tasks)
        return covariance(self.kernel.to(self.device, dtype), self.X.to(dtype), self.tasks)

    @torch.no_grad()
    def product(self, V: Tensor) -> Tensor:
        kernel, X, plan = self._in(V.dtype)
        return _in_blocks(kernel, X, self.tasks, V) if plan is None else plan(V)

    @torch.no_grad()
    def product_rows(self, index: Tensor | slice, V: Tensor) -> Tensor:
        """Some rows of K V for V `[n, r]`: `[k, r]`."""
        kernel, X, plan = self._in(V.dtype)
        if plan is not None and self.tasks is None:
            return plan.rows(index, V)
        index, side = torch.arange(len(X), device=X.device)[index], _PRODUCT_SIDE.get(X.device.type, 1024)
        out = V.new_zeros(len(index), V.shape[1])
        with arena():
            for part, rows in zip(out.split(side), index.split(side), strict=True):
                for columns in (slice(j, j + side) for j in range(0, len(X), side)):
                    with frame():
                        part.addmm_(block_of(kernel, X, self.tasks, rows, columns), V[columns])
        return out

    def block(self, index: Tensor) -> Tensor:
        kernel, tasks = self.kernel.to(self.device, torch.float64), None if self.tasks is None else self.tasks[index]
        return covariance(kernel, self.X[index].double(), tasks)

    def _in(self, dtype: torch.dtype) -> tuple[Kernel, Tensor, fused.FusedProducts | None]:
        """The kernel and X in a dtype, perhaps of more digits than the data's, and their fused kernel, or None."""
        kernel, X = self.kernel, self.X
        if dtype != X.dtype:
            kernel, X = kernel.to(X.device, dtype), X.to(dtype)
        if dtype not in self._plans:
            self._plans[dtype] = fused.plan_products(kernel, X, self.tasks)
        return kernel, X, self._plans[dtype]

    def shared(self, processes: Processes) -> Operator:
        return SharedOperator(self, processes)

    def requires_graph(self) -> bool:
        return torch.is_grad_enabled() and (
            self.X.requires_grad or self.noise.requires_grad or self.kernel.requires_graph()
        )


class SharedOperator(Operator):
    """A process's rows of a KernelOperator. Every process has all of X; V is gathered for each product."""

    def __init__(self, whole: KernelOperator, processes: Processes) -> None:
        self.whole, self.processes, self.part = whole, processes, processes.part(whole.size)
        self.noise = whole.noise[self.part]

    @property
    def size(self) -> int:
        return self.whole.size

    def product(self, V: Tensor) -> Tensor:
        return self.whole.product_rows(self.part, self.processes.gather(V, self.size))

    def rows(self, index: Tensor | slice) -> Tensor:
        return block_of(self.whole.kernel, self.whole.X, self.whole.tasks, index, self.part)

    def diagonal(self) -> Tensor:
        return self.whole.diagonal()[self.part]

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        raise TypeError("an operator that processes share is never made dense")


def _in_blocks(kernel: Kernel, X: Tensor, tasks: Tensor | None, V: Tensor) -> Tensor:
    """k(X, X) V, a square block at a time; a block off the diagonal serves twice."""
    out = torch.zeros_like(V)
    for rows, columns, block in symmetric_blocks(kernel, X, tasks, _PRODUCT_SIDE.get(X.device.type, 1024)):
        out[rows].addmm_(block, V[columns])
        if rows != columns:
            out[columns].addmm_(block.mT, V[rows])
    return out
