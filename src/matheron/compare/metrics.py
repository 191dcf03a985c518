"""Distances between laws, and the empirical moments of draws."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_points, as_tensor
from ..core.sites import Sites
from ..features import Features
from ..kernels import Kernel
from ..paths import AbstractPaths, PriorPlusUpdate
from ..solvers import covariance
from .samplers import Moments, ValueDraws, feature_covariance


def gaussian_wasserstein(mean1: ArrayLike, cov1: ArrayLike, mean2: ArrayLike, cov2: ArrayLike) -> float:
    """Compute the 2-Wasserstein distance between N(mean1, cov1) and N(mean2, cov2), equation (46).

        W2^2  =  |m1 - m2|^2 + min_O ||R - Q O||_F^2,      R R^T = cov1,  Q Q^T = cov2,  O orthogonal

    The minimiser is the orthogonal factor of Q^T R: O = U V^T with U S V^T = Q^T R. The textbook formula tr(A + B - 2
    (A^1/2 B A^1/2)^1/2) has the same value, but its terms cancel, so that distances below 1e-2 are lost to rounding.
    Here the terms are squares and cannot cancel. Covariances may be singular.

    Args:
        mean1, mean2: means `[p]`, or `[n, t]`.
        cov1, cov2: covariances `[p, p]`, or `[n, t, n, t]`.

    >>> from matheron.compare.metrics import gaussian_wasserstein
    >>> gaussian_wasserstein([0.0], [[1.0]], [3.0], [[25.0]])
    5.0
    """
    m1, m2 = (as_tensor(m, name).double().reshape(-1) for m, name in ((mean1, "mean1"), (mean2, "mean2")))
    if len(m1) != len(m2):
        raise ValueError(f"expected means of the same size, got {len(m1)} and {len(m2)} numbers")
    R, Q = _coupled_roots(cov1, cov2, len(m1))
    total = (m1 - m2.to(m1.device)).square().sum() + (R - Q).square().sum().to(m1.device)
    return math.sqrt(float(total))


def gaussian_coupling(cov1: ArrayLike, cov2: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return roots R and Q of two covariances such that R zeta and Q zeta are an optimal coupling in l2.

    With the same standard normal zeta, E |R zeta - Q zeta|^2 is the squared 2-Wasserstein distance of N(0, cov1) and
    N(0, cov2).

    >>> from matheron.compare.metrics import gaussian_coupling
    >>> R, Q = gaussian_coupling([[1.0]], [[25.0]])
    >>> float((R - Q).square())
    16.0
    """
    return _coupled_roots(cov1, cov2, math.isqrt(as_tensor(cov1, "cov1").numel()))


def _coupled_roots(cov1: ArrayLike, cov2: ArrayLike, p: int) -> tuple[Tensor, Tensor]:
    R, Q = _root(cov1, p, "cov1"), _root(cov2, p, "cov2")
    Q = Q.to(R.device)
    U, _, Vh = torch.linalg.svd(Q.mT @ R)
    return R, Q @ (U @ Vh)


def _root(cov: ArrayLike, p: int, name: str) -> Tensor:
    """Check a covariance and return R with R R^T = cov: the Cholesky factor, or the symmetric root if singular."""
    C = as_tensor(cov, name).double()
    if C.numel() != p * p:
        raise ValueError(f"{name}: expected a covariance of {p} numbers, [{p}, {p}], got shape {list(C.shape)}")
    C = C.reshape(p, p)
    if not torch.allclose(C, C.mT, rtol=1e-6, atol=1e-9 * float(C.diagonal().abs().max())):
        raise ValueError(f"{name}: expected a symmetric matrix")
    C = (C + C.mT) / 2
    L, failed = torch.linalg.cholesky_ex(C)
    if not failed:
        return L
    values, vectors = torch.linalg.eigh(C)
    if float(values[0]) < -max(1e-12, 1e-8 * float(values[-1])):  # more negative than rounding errors
        raise ValueError(f"{name}: expected a covariance, got a smallest eigenvalue of {float(values[0]):.3g}")
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.mT


class EmpiricalMoments:
    """The mean and covariance of draws that arrive in blocks, which are not kept.

    Blocks are centred on their own mean and merged in float64 (Chan, Golub and LeVeque, 1983), so that neither many
    draws nor a large mean lose digits. Memory holds one block and one `[p, p]` matrix.

    >>> import torch
    >>> from matheron.compare.metrics import EmpiricalMoments
    >>> draws = EmpiricalMoments()
    >>> for value in (1.0, 2.0, 3.0):
    ...     draws.add(torch.full((1, 1), value))
    >>> draws.moments
    Moments(mean=tensor([2.], dtype=torch.float64), covariance=tensor([[1.]], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0
        self._shape: tuple[int, ...] = ()

    def add(self, block: ArrayLike) -> None:
        """Add a block of draws, `[b, n]` or `[b, n, t]`."""
        block = as_tensor(block, "block").detach()
        shape = tuple(block.shape[1:])
        if self.count == 0:
            self._shape = shape
            self._mean = block.new_zeros(math.prod(shape), dtype=torch.float64)
            self._scatter = torch.zeros(len(self._mean), len(self._mean), dtype=torch.float64, device=block.device)
        if shape != self._shape:
            raise ValueError(f"block: expected draws of shape {list(self._shape)}, got {list(shape)}")
        b = len(block)
        if b == 0:
            return
        rows = block.reshape(b, -1).double()  # [b, p]
        mean = rows.mean(0)
        rows = rows - mean
        shift = mean - self._mean  # [p]
        total = self.count + b
        self._scatter.addmm_(rows.mT, rows)
        self._scatter.addr_(shift, shift, alpha=self.count * b / total)
        self._mean += shift * (b / total)
        self.count = total

    @property
    def moments(self) -> Moments:
        """The sample mean and the unbiased sample covariance."""
        if self.count < 2:
            raise ValueError(f"moments: expected at least two draws, got {self.count}; add more")
        covariance = self._scatter / (self.count - 1)
        return Moments(self._mean.reshape(self._shape).clone(), covariance.reshape(*self._shape, *self._shape))


def empirical_moments(draws: AbstractPaths | ValueDraws, x: ArrayLike, *, block_size: int = 1024) -> Moments:
    """Compute the sample mean and covariance of drawn paths at points x `[n, d]`, block by block.

    Args:
        draws: paths, or the result of a sampler of `matheron.samplers`. For draws that do not fit in memory, use an
            `EmpiricalMoments`.
        x: points `[n, d]`.
        block_size: the number of draws in memory at a time.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.metrics import empirical_moments
    >>> paths = matheron.draw_prior(kernels.RBF(), 100, input_dim=1)
    >>> empirical_moments(paths, [[0.0], [1.0]]).covariance.shape
    torch.Size([2, 2])
    """
    total = EmpiricalMoments()
    for block in blocks(draws, x, block_size):
        total.add(block)
    return total.moments


def blocks(draws: AbstractPaths | ValueDraws, x: ArrayLike, block_size: int = 1024) -> Iterator[Tensor]:
    """Yield the values of drawn paths at x in blocks `[b, n]`.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.metrics import blocks
    >>> paths = matheron.draw_prior(kernels.RBF(), 100, input_dim=1)
    >>> [block.shape for block in blocks(paths, [[0.0], [1.0]], block_size=60)]
    [torch.Size([60, 2]), torch.Size([40, 2])]
    """
    if isinstance(draws, ValueDraws):
        return draws.blocks(x, block_size)
    return (draws[i : i + block_size](x) for i in range(0, draws.num_paths, block_size))


class KernelError(NamedTuple):
    """The difference of k^(w) and k over all pairs of some points: its root mean square, and the largest."""

    rms: float
    largest: float


def kernel_error(basis: Features | PriorPlusUpdate, kernel: Kernel, x: ArrayLike) -> KernelError:
    """Measure the error of the prior covariance that features give, over all pairs of points x `[n, d]`.

    For several bases, it is the error of their mean covariance, which is the covariance of all paths together.

    >>> import matheron, torch
    >>> from matheron import kernels
    >>> from matheron.compare.metrics import kernel_error
    >>> x = torch.linspace(0, 1, 9)[:, None]
    >>> k = kernels.RBF(0.5)
    >>> few, many = (matheron.draw_prior(k, 1, input_dim=1, num_features=ell) for ell in (16, 4096))
    >>> kernel_error(many, k, x).rms < kernel_error(few, k, x).rms
    True
    """
    x = as_points(x, "x").detach().double()
    sites = Sites.every_output(x, kernel.num_outputs)
    with torch.no_grad():
        K = covariance(kernel.owned().to(x.device, x.dtype), sites)
        error = feature_covariance(basis, sites) - K  # [n t, n t]
    return KernelError(float(error.square().mean().sqrt()), float(error.abs().max()))


def sinkhorn(
    a: ArrayLike,
    b: ArrayLike,
    *,
    regularization: float = 0.01,
    debias: bool = False,
    num_iterations: int = 2000,
    tolerance: float = 1e-3,
) -> float:
    """Estimate the 2-Wasserstein distance between two sets of samples by Sinkhorn's algorithm.

        W2^2  ~  sum_ij P_ij |a_i - b_j|^2,     where P is the optimal plan with an entropy penalty

    Args:
        a, b: samples `[s, p]` and `[r, p]`, or `[s]` and `[r]`. The computation runs on their device.
        regularization: weight of the entropy relative to the mean cost. A smaller weight is closer to W2, and slower.
        debias: whether to subtract the distance of each set to itself, so that equal sets have distance zero (the
            Sinkhorn divergence).
        num_iterations, tolerance: the iterations end when the plan's row sums differ from equal weights by less than
            `tolerance` in all, or with a warning after `num_iterations`.

    >>> from matheron.compare.metrics import sinkhorn
    >>> round(sinkhorn([0.0, 1.0], [2.0, 3.0]), 3)
    2.0
    """
    sets = [as_tensor(s, name).detach().double() for s, name in ((a, "a"), (b, "b"))]
    A, B = (s[:, None] if s.ndim == 1 else s for s in sets)
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[1]:
        raise ValueError(f"expected samples [s, p] and [r, p], got {list(A.shape)} and {list(B.shape)}")
    scale = float(_costs(A, B).mean()) or 1.0

    def cost(p: Tensor, q: Tensor) -> float:
        return _transport_cost(_costs(p, q), scale, regularization * scale, num_iterations, tolerance, p is q)

    total = cost(A, B)
    if debias:
        total -= (cost(A, A) + cost(B, B)) / 2
    return math.sqrt(max(0.0, total))


def _transport_cost(
    M: Tensor, first: float, last: float, num_iterations: int, tolerance: float, symmetric: bool
) -> float:
    """sum_ij P_ij M_ij, for the plan P with equal weights whose entropy has the weight `last`.

    Its potentials f and g are found in logarithms. The entropy's weight begins at `first` and is halved until it is
    `last`, since potentials of a larger weight are near, and found in few iterations.
    Of a set and itself (`symmetric`) they are equal, and the mean of a step and the last converges at once.
    """
    n, m = M.shape
    f, g, weight = M.new_zeros(n), M.new_zeros(m), max(first, last)

    def rows(g: Tensor) -> Tensor:
        return -weight * (torch.logsumexp((g - M) / weight, dim=1) - math.log(m))

    for i in range(num_iterations):
        f = (f + rows(g)) / 2 if symmetric else rows(g)
        g = f if symmetric else -weight * (torch.logsumexp((f[:, None] - M) / weight, dim=0) - math.log(n))
        if weight > last:
            weight = max(weight / 2, last)
        elif i % 10 == 9 and float(torch.expm1((f - rows(g)) / weight).abs().mean()) < tolerance:
            break
    else:
        warnings.warn(
            f"sinkhorn: {num_iterations} iterations ended before the tolerance of {tolerance:g} was reached; "
            "raise num_iterations, tolerance or regularization",
            stacklevel=3,
        )
    return float((((f[:, None] + g - M) / weight).exp() * M).sum()) / (n * m)


def _costs(p: Tensor, q: Tensor) -> Tensor:
    return torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist").square()
