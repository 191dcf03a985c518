"""KernelOperator: k(X, X) + diag(noise), whose products are the evaluators' weighted sums."""

from __future__ import annotations

import torch
from torch import Tensor

from .evaluate.fused import product as fused
from .kernels import Kernel, coupled_covariance
from .scratch import arena, frame
from .solvers import Operator, coupled_diagonal, covariance

# The side of a square block of the covariance: on a CPU what fits a cache beside its temporaries.
_SIDE = {"cpu": 1024, "cuda": 8192}


class KernelOperator(Operator):
    """k(X, X) + diag(noise) for points X `[n, d]`, their tasks `[n]` (None for one output) and noise `[n]`.

    Products form nothing of size n x n. On a GPU with Triton, radial kernels are multiplied in one fused kernel; all
    else goes block by block, each block of k(X, X) made once for both of its places in the symmetric matrix.

    >>> import torch
    >>> from matheron import kernels
    >>> from matheron.operators import KernelOperator
    >>> X = torch.rand(100, 2, dtype=torch.float64)
    >>> operator = KernelOperator(kernels.RBF(0.3), X, None, torch.full((100,), 0.1, dtype=torch.float64))
    >>> operator.product(torch.ones(100, 3, dtype=torch.float64)).shape
    torch.Size([100, 3])
    """

    def __init__(self, kernel: Kernel, X: Tensor, tasks: Tensor | None, noise: Tensor) -> None:
        self.kernel, self.X, self.tasks, self.noise = kernel, X, tasks, noise
        self._plans: dict[torch.dtype, fused.Products | None] = {}

    def rows(self, index: Tensor | slice) -> Tensor:
        tasks = None if self.tasks is None else self.tasks[index]
        return coupled_covariance(self.kernel, self.X[index], tasks, self.X, self.tasks)

    def diagonal(self) -> Tensor:
        return coupled_diagonal(self.kernel, self.X, self.tasks)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        dtype = dtype or self.dtype
        return covariance(self.kernel.to(self.device, dtype), self.X.to(dtype), self.tasks)

    @torch.no_grad()
    def product(self, V: Tensor) -> Tensor:
        kernel, X = self.kernel, self.X
        if V.dtype != X.dtype:  # more digits than the data's
            kernel, X = kernel.to(X.device, V.dtype), X.to(V.dtype)
        if V.dtype not in self._plans:
            self._plans[V.dtype] = fused.plan_products(kernel, X, self.tasks)
        plan = self._plans[V.dtype]
        return _in_blocks(kernel, X, self.tasks, V) if plan is None else plan(V)

    def requires_graph(self) -> bool:
        return torch.is_grad_enabled() and (
            self.X.requires_grad or self.noise.requires_grad or self.kernel.requires_graph()
        )


def _in_blocks(kernel: Kernel, X: Tensor, tasks: Tensor | None, V: Tensor) -> Tensor:
    """k(X, X) V, a square block at a time; a block off the diagonal serves twice."""
    n, side = len(X), _SIDE.get(X.device.type, 1024)
    out = torch.zeros_like(V)
    with arena():
        for i in range(0, n, side):
            rows = slice(i, i + side)
            for j in range(i, n, side):
                columns = slice(j, j + side)
                of = (None, None) if tasks is None else (tasks[rows], tasks[columns])
                with frame():
                    block = coupled_covariance(kernel, X[rows], of[0], X[columns], of[1])
                    out[rows].addmm_(block, V[columns])
                    if j > i:
                        out[columns].addmm_(block.mT, V[rows])
    return out
