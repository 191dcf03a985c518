"""KernelOperator: k(X, X) + diag(noise), whose products are the evaluators' weighted sums."""

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import Kernel, coupled_covariance
from .scratch import arena, frame
from .solvers import Operator, coupled_diagonal, covariance

# Entries of a block of the covariance: what fits a cache beside its temporaries.
_BLOCK = 1 << 20


class KernelOperator(Operator):
    """k(X, X) + diag(noise) for points X `[n, d]`, their tasks `[n]` (None for one output) and noise `[n]`.

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

    def rows(self, index: Tensor | slice) -> Tensor:
        tasks = None if self.tasks is None else self.tasks[index]
        return coupled_covariance(self.kernel, self.X[index], tasks, self.X, self.tasks)

    def diagonal(self) -> Tensor:
        return coupled_diagonal(self.kernel, self.X, self.tasks)

    def dense(self) -> Tensor:
        return covariance(self.kernel, self.X, self.tasks)

    def product(self, V: Tensor) -> Tensor:
        with torch.no_grad(), arena():
            out = torch.empty_like(V)
            rows = max(1, _BLOCK // len(V))
            for i in range(0, len(V), rows):
                with frame():
                    torch.mm(self.rows(slice(i, i + rows)), V, out=out[i : i + rows])
        return out

    def requires_graph(self) -> bool:
        return torch.is_grad_enabled() and (
            self.X.requires_grad or self.noise.requires_grad or self.kernel.requires_graph()
        )
