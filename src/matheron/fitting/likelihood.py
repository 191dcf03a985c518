"""The log marginal likelihood and its exact gradient, dense.

log p(y)      =  -1/2 r' a - 1/2 log det K - n/2 log 2 pi,      r = y - m(X),  a = K^-1 r
d log p / dK  =  1/2 (a a' - K^-1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..kernels import Kernel, coupled_covariance
from ..means import Mean
from .hyperparameters import Hyperparameters, Prior, log_prior

# Entries of the covariance that are differentiated at once: with a graph they take about a dozen numbers each.
_BLOCK = 1 << 21
_BLOCK_ON_GPU = 1 << 25
# Columns of a panel of an inverse.
_PANEL = 512


class Dense:
    """log p(y | hyperparameters) + log prior of data in the model's units, and its gradient in the vector."""

    def __init__(
        self, hyperparameters: Hyperparameters, X: Tensor, y: Tensor, tasks: Tensor | None, priors: Mapping[str, Prior]
    ) -> None:
        self.hyperparameters, self.X, self.y, self.tasks, self.priors = hyperparameters, X, y, tasks, priors

    def some(self, rows: Tensor) -> Dense:
        """The same of some of the data."""
        tasks = None if self.tasks is None else self.tasks[rows]
        return Dense(self.hyperparameters.at(rows), self.X[rows], self.y[rows], tasks, self.priors)

    def __call__(self, vector: Tensor) -> tuple[float, Tensor]:
        """The value and the gradient `[size]`; -inf where the covariance has no factor."""
        h, value = self.hyperparameters, -math.inf

        def slopes(leaves: list[Tensor]) -> list[Tensor | None]:
            nonlocal value
            kernel, noise, mean = h.model(leaves, len(self.X), self.tasks)
            value = likelihood_with_gradient(kernel, self.X, self.y, self.tasks, noise, mean)
            if not math.isfinite(value):
                return [None] * len(leaves)
            if self.priors:
                density = log_prior(h.leaves, leaves, self.priors)
                value += float(density.detach())
                if density.requires_grad:  # a uniform prior has no slope
                    density.backward()
            return [leaf.grad for leaf in leaves]

        gradient = h.pulled_back(vector, slopes)
        return value if math.isfinite(value) else -math.inf, gradient


def likelihood_with_gradient(
    kernel: Kernel, X: Tensor, y: Tensor, tasks: Tensor | None, noise: Tensor, mean: Mean
) -> float:
    """The value; gradients are added to those of the tensors that require them."""
    n = len(X)
    whole = n * n <= _block(X)
    with torch.set_grad_enabled(whole):
        K = coupled_covariance(kernel, X, tasks, X, tasks)  # [n, n]
    m = mean.at(X, tasks)  # [n]
    with torch.no_grad():
        L = _factor(K.detach(), noise.detach())
        K = K if whole else None  # large, and not needed again
        if L is None:
            return -math.inf
        r = y - m
        a = torch.cholesky_solve(r[:, None], L)[:, 0]  # [n]
        value = -0.5 * float(r @ a) - float(L.diagonal().log().sum()) - 0.5 * n * math.log(2 * math.pi)
        W = inverse_from(L).neg_().addr_(a, a).mul_(0.5)  # [n, n]
    if not math.isfinite(value):
        return -math.inf
    _backward([(noise, W.diagonal()), (m, a)])
    if K is not None:
        _backward([(K, W)])
        return value
    del L
    accumulate(kernel, X, tasks, lambda rows, columns: W[rows, columns])
    return value


def inverse_from(L: Tensor) -> Tensor:
    """(L L^T)^-1 of a lower triangular factor `[n, n]`.

    On a CPU panel by panel, of both triangular matrices only what is not zero: 2/3 n^3 operations at about the rate of
    a product of matrices. LAPACK's own routine is as fast on one thread; on several that share their cores with other
    work it took up to four times as long.
    """
    n = len(L)
    if L.is_cuda or n <= _PANEL:
        return torch.cholesky_inverse(L)
    panels = [slice(i, min(i + _PANEL, n)) for i in range(0, n, _PANEL)]
    M = torch.zeros_like(L)  # L^-1
    for p in panels:
        one = L.new_zeros(n - p.start, p.stop - p.start)
        one.diagonal().fill_(1.0)
        M[p.start :, p] = torch.linalg.solve_triangular(L[p.start :, p.start :], one, upper=False)
    W = torch.empty_like(L)
    for p in panels:
        W[p, : p.stop] = M[p.start :, p].mT @ M[p.start :, : p.stop]
        W[: p.stop, p] = W[p, : p.stop].mT
    return W


def accumulate(kernel: Kernel, X: Tensor, tasks: Tensor | None, weights: Callable[[slice, slice], Tensor]) -> None:
    """Add the gradient of sum_ij W_ij k(x_i, x_j) to the kernel's tensors, W symmetric, some rows of it at a time.

    Each block has its rows from the diagonal on: what is right of the diagonal counts twice.
    """
    n, i = len(X), 0
    while i < n:
        step = max(1, _block(X) // (n - i))
        rows, columns = slice(i, min(n, i + step)), slice(i, n)
        pick = (None, None) if tasks is None else (tasks[rows], tasks[columns])
        K = coupled_covariance(kernel, X[rows], pick[0], X[columns], pick[1])  # [b, n - i]
        W = 2 * weights(rows, columns)
        W[:, : rows.stop - i] *= 0.5
        _backward([(K, W)])
        i = rows.stop


def _block(X: Tensor) -> int:
    return _BLOCK_ON_GPU if X.device.type == "cuda" else _BLOCK


def _factor(K: Tensor, noise: Tensor) -> Tensor | None:
    """The Cholesky factor of K + noise, with up to 1e-6 of the mean diagonal added where needed; None where none is."""
    K = K.clone()
    K.diagonal().add_(noise)
    L, info = torch.linalg.cholesky_ex(K)
    for power in range(-10, -5):
        if not int(info):
            return L
        jitter = float(K.diagonal().mean()) * 10.0**power
        L, info = torch.linalg.cholesky_ex(K + jitter * torch.eye(len(K), dtype=K.dtype, device=K.device))
    return None if int(info) else L


def _backward(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for output, slope in pairs:
        if output.requires_grad:
            (output * slope).sum().backward()  # with a slope as its argument torch imports SymPy, a second's work
