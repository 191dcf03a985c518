"""The paper's sample tests: a random problem, the samplers, and the error of their draws' empirical law.

All is in float64, and on one device: draws come in blocks, of which the moments are kept and nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

import matheron
from matheron import kernels
from matheron.compare.metrics import EmpiricalMoments, gaussian_wasserstein
from matheron.compare.samplers import LinearModelPaths, location_scale, moments, weight_space

from .base import Trial
from .report import Row

NOISE = 1e-3
# The kind of features of each method.
FEATURES = {"weight-space": "cosine", "decoupled": "cosine", "equispaced": "equispaced", "fresh bases": "sobol"}
# For "fresh bases", the number of paths that share a basis.
PATHS_PER_BASIS = 64
# The number of weights in memory at a time, and of draws. On a CPU larger blocks are slower, because the system has to
# provide their memory anew.
_WEIGHTS = {"cpu": 1 << 21, "cuda": 1 << 27}
_DRAWS = {"cpu": 2048, "cuda": 16384}

# A function (num_draws, generator) that yields blocks of values [b, *] at the test points.
Blocks = Callable[[int, torch.Generator], Iterator[Tensor]]
Draw = Callable[..., matheron.AbstractPaths | LinearModelPaths]


def kernel(d: int) -> kernels.Kernel:
    """The paper's prior: Matern-5/2 of unit amplitude with lengthscales sqrt(d / 100)."""
    return kernels.Matern(2.5, lengthscale=math.sqrt(d / 100))


def problem(
    X: Tensor, num_test: int, generator: torch.Generator, device: torch.device
) -> tuple[matheron.ExactGP, Tensor]:
    """Targets drawn from the prior at X `[n, d]`, and test points uniform on the unit cube.

    They are made on the CPU, so that a seed gives the same problem on every device.
    """
    n, d = X.shape
    k = kernel(d)
    K = k(X, X) + NOISE * torch.eye(n, dtype=X.dtype)
    y = torch.linalg.cholesky(K) @ torch.randn(n, generator=generator, dtype=X.dtype)  # N(0, K_nn + sigma^2 I)
    x = torch.rand(num_test, d, generator=generator, dtype=X.dtype)
    return matheron.ExactGP(k, X.to(device), y.to(device), noise=NOISE), x.to(device)


def optimal(gp: matheron.ExactGP, Z: Tensor) -> matheron.SparseGP:
    """The sparse posterior of inducing points Z `[m, d]` with Titsias's optimal q(u)."""
    with torch.no_grad():
        A, LB = factors(gp.kernel, gp.train_inputs, Z)
        # With u = chol(K_mm) omega, omega given y is N(B^-1 A y / sigma, B^-1) for B = I + A A^T.
        q_mean = torch.cholesky_solve((A @ gp.train_targets)[:, None] / math.sqrt(NOISE), LB)[:, 0]  # [m]
        q_root = torch.linalg.solve_triangular(LB.mT, torch.eye(len(Z)).to(LB), upper=True)  # [m, m]
    return matheron.SparseGP(gp.kernel, Z, q_mean, q_root, whitened=True)


def factors(k: kernels.Kernel, X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """A = L^-1 K_mn / sigma `[m, n]`, and the factor of I + A A^T `[m, m]`."""
    identity = torch.eye(len(Z)).to(Z)
    L = torch.linalg.cholesky(k(Z, Z) + 1e-10 * identity)
    A = torch.linalg.solve_triangular(L, k(Z, X), upper=False) / math.sqrt(NOISE)
    return A, torch.linalg.cholesky(identity + A @ A.mT)


def exact(gp: matheron.ExactGP, x: Tensor) -> Blocks:
    """Location-scale sampling: its error is that of the number of draws, the floor for all."""
    return lambda num_draws, generator: location_scale(gp, num_draws, generator=generator).blocks(
        x, _DRAWS[x.device.type]
    )


def decoupled(
    gp: matheron.ExactGP, x: Tensor, ell: int, features: str = FEATURES["decoupled"], together: int | None = None
) -> Blocks:
    """Decoupled sampling with one basis of ell features for all draws, or a new one for every so many `together`."""
    domain = (0.0, 1.0) if features == "equispaced" else None
    draw = partial(matheron.draw, gp, paths_per_basis=together, domain=domain)
    return in_blocks(draw, x, ell, features, one_basis=together is None)


def fresh(gp: matheron.ExactGP, x: Tensor, ell: int) -> Blocks:
    """Decoupled sampling with a new basis every 64 draws."""
    return decoupled(gp, x, ell, FEATURES["fresh bases"], PATHS_PER_BASIS)


def weights(gp: matheron.ExactGP, x: Tensor, b: int) -> Blocks:
    """Weight-space sampling with one basis of b features."""
    return in_blocks(partial(weight_space, gp, method="pathwise"), x, b, FEATURES["weight-space"])


def measured(
    gp: matheron.ExactGP | matheron.SparseGP,
    x: Tensor,
    samplers: Iterable[tuple[str, int | None, Blocks]],
    trial: Trial,
    num_draws: int,
) -> list[Row]:
    """W2 between the posterior at x and the empirical moments of each sampler's draws, and the seconds drawing took."""
    truth = moments(gp, x)
    rows = []
    for method, ell, blocks in samplers:
        generator = trial.generator(method, str(ell), device=x.device)
        began = time.perf_counter()
        found = EmpiricalMoments()
        for block in blocks(num_draws, generator):
            found.add(block)
        if x.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = round(time.perf_counter() - began, 4)
        w2 = gaussian_wasserstein(*truth, *found.moments)
        rows.append({"method": method, "ell": ell, "w2": w2, "seconds": seconds})
    return rows


def in_blocks(draw: Draw, x: Tensor, ell: int, kind: str, one_basis: bool = True) -> Blocks:
    """Paths of ell features of a kind, in blocks that fit in memory by the number of draws and of weights for each."""
    device = x.device.type
    groups = min(_DRAWS[device], _WEIGHTS[device] // ell) // PATHS_PER_BASIS  # groups of paths that share a basis
    block = max(1, groups) * PATHS_PER_BASIS

    def blocks(num_draws: int, generator: torch.Generator) -> Iterator[Tensor]:
        features: str | matheron.Features = kind
        for start in range(0, num_draws, block):
            count = min(block, num_draws - start)
            paths = draw(count, num_features=ell, features=features, generator=generator)
            features = paths.prior.features if one_basis else kind
            yield paths(x)

    return blocks
