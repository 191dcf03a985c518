"""The log marginal likelihood and its exact gradient, dense.

    log p(y)      =  -1/2 r' a - 1/2 log det K - n/2 log 2 pi,      r = y - m(X),  a = K^-1 r
    d log p / dK  =  1/2 (a a' - K^-1)

Here m is the mean, K is the covariance of the data with their noise, and a prime marks a transpose.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ..core.functionals import Functionals, Observed
from ..kernels import Kernel, coupled_covariance
from ..models.means import Mean
from ..solvers.cholesky import solved
from .hyperparameters import Hyperparameters, Prior, log_prior

Watch = Callable[[int, Tensor, float], None]  # called with the number of observations, the vector, and the value there


class Dense:
    """log p(y | hyperparameters) + log prior of data in the model's units, with its gradient, by dense factors.

    Args:
        hyperparameters: what is fitted, as one vector.
        sites: where the n rows were observed.
        y: targets `[n]`.
        priors: log densities by the name of a hyperparameter.
        watch: called at every evaluation, also of the objective for some of the rows.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        sites: Observed,
        y: Tensor,
        priors: Mapping[str, Prior],
        watch: Watch | None = None,
    ) -> None:
        self.hyperparameters, self.sites, self.y, self.priors = hyperparameters, sites, y, priors
        self.X = sites.places if isinstance(sites, Functionals) else sites.points  # [n, d]
        self.tasks, self.watch = sites.outputs, watch

    def some(self, rows: Tensor) -> Dense:
        """The objective for some of the rows."""
        return Dense(self.hyperparameters.at(rows), self.sites[rows], self.y[rows], self.priors, self.watch)

    def log_likelihood(self, values: list[Tensor]) -> float:
        """log p(y), -inf or NaN where the covariance has no factor; gradients are accumulated in the values."""
        kernel, noise, mean = self.hyperparameters.model(values, len(self.X), self.tasks)
        return likelihood_with_gradient(kernel, self.sites, self.y, noise, mean)

    def __call__(self, vector: Tensor) -> tuple[float, Tensor]:
        """The value and the gradient `[size]`; -inf and zero where the likelihood is not finite."""
        h, value = self.hyperparameters, -math.inf

        def slopes(values: list[Tensor]) -> list[Tensor | None]:
            nonlocal value
            value = self.log_likelihood(values)
            if not math.isfinite(value):
                return [None] * len(values)
            if self.priors:
                density = log_prior(h.leaves, values, self.priors)
                value += float(density.detach())
                if density.requires_grad:  # the density of a uniform prior has no gradient
                    density.backward()
            return [leaf.grad for leaf in values]

        with few_threads(len(self.y)):
            gradient = h.pulled_back(vector, slopes)
        value = value if math.isfinite(value) else -math.inf
        if self.watch is not None:
            self.watch(len(self.y), vector.detach(), value)
        return value, gradient


_lock = threading.Lock()
_users, _before = 0, 1


@contextmanager
def few_threads(n: int, few: int = 1000) -> Iterator[None]:
    """Use one thread inside the context if n is at most `few`, and restore the number of threads afterwards.

    A dense likelihood of few rows is faster on one thread, because torch's threads wait for work by spinning. On two
    cores beside other work, a fit of 100 rows took 85 s on two threads and 10 s on one. If several threads of a program
    are inside, the last one to leave restores the number.
    """
    global _users, _before
    if n > few:
        yield
        return
    with _lock:
        if _users == 0:
            _before = torch.get_num_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            torch.set_num_threads(_before)  # the count of this thread is reset too


def likelihood_with_gradient(kernel: Kernel, sites: Observed, y: Tensor, noise: Tensor, mean: Mean) -> float:
    """log p(y), or -inf; gradients are accumulated in the tensors that require them."""
    n = len(sites)
    with torch.set_grad_enabled(n * n <= _block(sites)):  # for more data, each block gets its own graph below
        K = _covariance(kernel, sites)  # [n, n]
    m = mean.at(sites)  # [n]
    with torch.no_grad():
        L = _factor(K.detach().clone() if K.requires_grad else K, noise.detach())
        K = K if K.requires_grad else None  # frees its memory
        if L is None:
            return -math.inf
        r = y - m
        a = solved(L, r[:, None])[:, 0]  # [n]
        value = -0.5 * float(r @ a) - float(L.diagonal().log().sum()) - 0.5 * n * math.log(2 * math.pi)
        V = inverse_from(L)  # [n, n]
    if not math.isfinite(value):
        return -math.inf
    del L

    def weights(rows: slice, columns: slice) -> Tensor:
        return torch.outer(a[rows], a[columns]).sub_(V[rows, columns]).mul_(0.5)

    _backward(noise, 0.5 * (a.square() - V.diagonal()))
    _backward(m, a)
    if K is not None:
        _backward(K, weights(slice(None), slice(None)))
    else:
        accumulate(kernel, sites, weights)
    return value


def inverse_from(L: Tensor, panel: int = 512) -> Tensor:
    """(L L^T)^-1 of a lower triangular factor `[n, n]`.

    On several threads of a CPU it is computed in panels of `panel` columns, without the zeros of the triangular
    matrices: 2/3 n^3 operations at nearly the speed of a matrix product. LAPACK's routine takes half to two thirds of
    the time on one thread. On two threads that shared their cores with other work it took thirteen times as long
    (n = 3000).
    """
    n = len(L)
    if L.is_cuda or torch.get_num_threads() == 1 or n <= panel:
        return torch.cholesky_inverse(L)
    panels = [slice(i, min(i + panel, n)) for i in range(0, n, panel)]
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


def accumulate(kernel: Kernel, sites: Observed, weights: Callable[[slice, slice], Tensor]) -> None:
    """Accumulate the gradient of sum_ij W_ij k(x_i, x_j) in the kernel's tensors, in blocks of rows, W symmetric.

    Blocks start at the diagonal, and entries to the right of their diagonal part count twice.
    """
    for rows, columns in _blocks(sites):
        W = 2 * weights(rows, columns)
        W[:, : rows.stop - rows.start] *= 0.5
        _backward(_between(kernel, sites, rows, columns), W)


def _covariance(kernel: Kernel, sites: Observed) -> Tensor:
    """k(X, X) `[n, n]`; with several blocks only the lower triangle is filled."""
    n = len(sites)
    if n**2 <= _block(sites):
        return _between(kernel, sites, slice(None), slice(None))
    K = sites.points.new_empty(n, n)
    for rows, columns in _blocks(sites):
        K[rows, columns] = _between(kernel, sites, rows, columns)
    return K.mT


def _between(kernel: Kernel, sites: Observed, rows: slice, columns: slice) -> Tensor:
    a = sites[rows]
    return coupled_covariance(kernel, a, a if columns == rows else sites[columns])


def _blocks(sites: Observed, least: int = 64) -> Iterator[tuple[slice, slice]]:
    """Blocks of at least `least` rows, with their columns from the diagonal on."""
    n, i = len(sites), 0
    while i < n:
        rows = slice(i, min(n, i + max(least, _block(sites) // (n - i))))
        yield rows, slice(i, n)
        i = rows.stop


def _block(sites: Observed, on_cpu: int = 1 << 17, on_gpu: int = 1 << 25) -> int:
    """How many entries of the covariance are computed or differentiated at once.

    With a graph each takes about a dozen numbers, and a CPU's cache should hold them.
    """
    return on_gpu if sites.points.is_cuda else on_cpu


def _factor(K: Tensor, noise: Tensor) -> Tensor | None:
    """The Cholesky factor of K + noise, in K's memory, with up to 1e-6 of its mean diagonal added; or None."""
    K.diagonal().add_(noise)
    L, info = torch.linalg.cholesky_ex(K)
    for power in range(-10, -5):
        if not int(info):
            return L
        jitter = float(K.diagonal().mean()) * 10.0**power
        L, info = torch.linalg.cholesky_ex(K + jitter * torch.eye(len(K), dtype=K.dtype, device=K.device))
    return None if int(info) else L


def _backward(output: Tensor, slope: Tensor) -> None:
    if output.requires_grad:
        (output * slope).sum().backward()  # backward(slope) would make torch import SymPy, which takes a second
