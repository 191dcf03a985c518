"""Operators: covariances K + diag(noise), known by products with vectors and by some of their entries; k(X, X) of all
outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.arena import arena, frame
from ..core.functionals import Functionals, Observed
from ..evaluate.fused import product as fused
from ..kernels import Kernel, coupled_covariance, coupled_diagonal
from .processes import ALONE, Processes


class Operator(ABC):
    """A covariance K + diag(noise) of n observations, K symmetric and positive semi-definite.

    If several processes share the work, each holds some of the rows, its part. V, noise and diagonal are then the rows
    of that part.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> sites = Sites(torch.zeros(1, 1, dtype=torch.float64))
    >>> operator = solvers.KernelOperator(kernels.RBF(), sites, torch.ones(1))
    >>> isinstance(operator, solvers.Operator)
    True
    """

    noise: Tensor  # [n]
    processes: Processes = ALONE

    @property
    def size(self) -> int:
        """The number n of observations."""
        return len(self.noise)

    @property
    def dtype(self) -> torch.dtype:
        return self.noise.dtype

    @property
    def device(self) -> torch.device:
        return self.noise.device

    @abstractmethod
    def product(self, V: Tensor) -> Tensor:
        """K V for V `[n, r]`, without the noise: `[n, r]`."""

    @abstractmethod
    def rows(self, index: Tensor | slice) -> Tensor:
        """Some rows of K, `[k, n]`, without the noise; the index counts all rows, the columns are the part's."""

    def product_rows(self, index: Tensor, V: Tensor) -> Tensor:
        """Some rows of K V for V `[n, r]`: `[k, r]`."""
        return self.rows(index) @ V

    def block(self, index: Tensor) -> Tensor:
        """Some rows and the same columns of K, `[k, k]`, in float64."""
        return self.rows(index)[:, index].double()

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of K, `[n]`, without the noise."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """K, `[n, n]`, without the noise, in memory of its own; differentiable where a graph is kept."""

    def residual(self, b: Tensor, x: Tensor) -> Tensor:
        """b - (K + diag(noise)) x for b and x `[n, r]`, in float64."""
        x = x.double()
        return b.double() - self.product(x) - self.noise.double()[:, None] * x

    def magnitude(self, K: Tensor | None = None) -> Tensor:
        """The size `[n]` of the terms whose sum is the diagonal of K + diag(noise). Rounding errors are relative to it.

        `K` is the dense matrix, if it has been computed already.
        """
        return (self.diagonal() if K is None else K.diagonal()) + self.noise

    def trace(self) -> float:
        """The trace of K + diag(noise), a bound on its largest eigenvalue."""
        return float(self.magnitude().detach().sum())

    def requires_graph(self) -> bool:
        """Whether K or the noise is part of an autograd graph, and one is being recorded."""
        return torch.is_grad_enabled() and self.noise.requires_grad


def memory_of(device: torch.device, on_cpu: int, share_of_gpu: float) -> int:
    """Bytes that a solver may take: a number on a CPU, and on a GPU a share of all the memory that it has.

    It does not depend on what happens to be free: the choice of a solver, and so a draw, must be repeatable.
    """
    if device.type != "cuda":
        return on_cpu
    return int(share_of_gpu * torch.cuda.get_device_properties(device).total_memory)


# The side of a square block of the matrix. On a CPU, a block fits in a cache together with the kernel's temporaries:
# with 4,000 data in four dimensions (Matern-5/2, one thread), half of it takes 5% longer and twice 8%.
_SIDE = {"cpu": 512, "cuda": 4096}


def covariance(kernel: Kernel, sites: Observed) -> Tensor:
    """k(X, X), `[n, n]`, in memory of its own: by blocks where no graph is needed.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> sites = Sites(torch.zeros(1, 1, dtype=torch.float64))
    >>> solvers.covariance(kernels.RBF(), sites)
    tensor([[1.]], dtype=torch.float64)
    """
    X = sites.points
    side = _SIDE.get(X.device.type, 512)
    n = len(sites)
    if n <= side:  # one block is the whole matrix; the clone is for constant kernels, which return one number, expanded
        return coupled_covariance(kernel, sites, sites).clone(memory_format=torch.contiguous_format)
    if torch.is_grad_enabled() and coupled_covariance(kernel, one := sites[:1], one).requires_grad:
        return coupled_covariance(kernel, sites, sites)
    K = torch.empty(n, n, dtype=X.dtype, device=X.device)
    for rows, columns, block in symmetric_blocks(kernel, sites, side):
        K[rows, columns] = block
        if rows != columns:
            K[columns, rows] = block.mT
    return K


def symmetric_blocks(kernel: Kernel, sites: Observed, side: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Square blocks of k(X, X) on and above the diagonal, with their rows and columns; each until the next one.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> sites = Sites(torch.rand(4, 1, dtype=torch.float64))
    >>> len([rows for *_, rows in solvers.symmetric_blocks(kernels.RBF(), sites, 2)])
    3
    """
    parts = [slice(i, i + side) for i in range(0, len(sites), side)]
    some = [sites[part] for part in parts]
    with arena():
        for i, rows in enumerate(parts):
            for j, columns in enumerate(parts[i:], i):
                with frame():
                    yield rows, columns, coupled_covariance(kernel, some[i], some[j])


# KernelOperator: k(X, X) + diag(noise). Its products are weighted sums, which the evaluators compute.


# The side of a block in products: with 16 columns, half of it takes as long and twice 8% longer.
_PRODUCT_SIDE = {"cpu": 512, "cuda": 8192}


@dataclass(eq=False)
class KernelOperator(Operator):
    """k(X, X) + diag(noise) for n sites X and noise `[n]`.

    Products store nothing of size n x n. On a GPU with Triton, products with radial kernels are computed in one fused
    kernel. All others are computed block by block, and each block of k(X, X) is used for both of its places in the
    symmetric matrix.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.solvers import KernelOperator
    >>> X = matheron.Sites(torch.rand(100, 2, dtype=torch.float64))
    >>> operator = KernelOperator(kernels.RBF(0.3), X, torch.full((100,), 0.1, dtype=torch.float64))
    >>> operator.product(torch.ones(100, 3, dtype=torch.float64)).shape
    torch.Size([100, 3])
    """

    kernel: Kernel
    sites: Observed
    noise: Tensor
    _plans: dict[torch.dtype, fused.FusedProducts | None] = field(default_factory=dict, init=False, repr=False)

    def rows(self, index: Tensor | slice) -> Tensor:
        return coupled_covariance(self.kernel, self.sites[index], self.sites)

    def diagonal(self) -> Tensor:
        return coupled_diagonal(self.kernel, self.sites)

    def cross(self, x: Observed) -> Tensor:
        """The prior covariance k(X, x) of the observations and the values or functionals at sites x: `[n, p]`."""
        return coupled_covariance(self.kernel, self.sites, x)

    def prior_variance(self, x: Observed) -> Tensor:
        """k(x, x) point by point: `[p]`."""
        return coupled_diagonal(self.kernel, x)

    def prior_covariance(self, x: Observed) -> Tensor:
        """k(x, x) `[p, p]`."""
        return covariance(self.kernel, x)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        if dtype in (None, self.dtype):
            return covariance(self.kernel, self.sites)
        return covariance(self.kernel.to(self.device, dtype), self.sites.to(dtype))

    @torch.no_grad()
    def product(self, V: Tensor) -> Tensor:
        kernel, sites, plan = self._in(V.dtype)
        return _in_blocks(kernel, sites, V) if plan is None else plan(V)

    @torch.no_grad()
    def product_rows(self, index: Tensor | slice, V: Tensor) -> Tensor:
        """Some rows of K V for V `[n, r]`: `[k, r]`."""
        kernel, sites, plan = self._in(V.dtype)
        if plan is not None and sites.outputs is None:
            return plan.rows(index, V)
        index, side = torch.arange(len(sites), device=self.device)[index], _PRODUCT_SIDE.get(self.device.type, 512)
        out = V.new_zeros(len(index), V.shape[1])
        columns = [slice(j, j + side) for j in range(0, len(sites), side)]
        with arena():
            for part, rows in zip(out.split(side), index.split(side), strict=True):
                some = sites[rows]
                for there in columns:
                    with frame():
                        part.addmm_(coupled_covariance(kernel, some, sites[there]), V[there])
        return out

    def block(self, index: Tensor) -> Tensor:
        return covariance(self.kernel.to(self.device, torch.float64), self.sites[index].double())

    def _in(self, dtype: torch.dtype) -> tuple[Kernel, Observed, fused.FusedProducts | None]:
        """The kernel and the sites in a dtype, which may be more precise than that of the data, and their fused kernel,
        or None."""
        kernel, sites = self.kernel, self.sites
        if dtype != sites.points.dtype:
            kernel, sites = kernel.to(self.device, dtype), sites.to(dtype)
        if dtype not in self._plans:
            values = not isinstance(sites, Functionals)
            self._plans[dtype] = fused.plan_products(kernel, sites.points, sites.outputs) if values else None
        return kernel, sites, self._plans[dtype]

    def requires_graph(self) -> bool:
        return torch.is_grad_enabled() and (
            self.sites.points.requires_grad or self.noise.requires_grad or self.kernel.requires_graph()
        )


def _in_blocks(kernel: Kernel, sites: Observed, V: Tensor) -> Tensor:
    """k(X, X) V, one square block after another. A block off the diagonal is used for both of its places in the
    symmetric matrix."""
    out = torch.zeros_like(V)
    for rows, columns, block in symmetric_blocks(kernel, sites, _PRODUCT_SIDE.get(V.device.type, 512)):
        out[rows].addmm_(block, V[columns])
        if rows != columns:
            out[columns].addmm_(block.mT, V[rows])
    return out
