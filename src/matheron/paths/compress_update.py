"""Folding: the n centres of an update as coefficients of the lattice that the prior is on.

    sum_i v_i k(., x_i)   =   sum_j (a_j^2 sum_i v_i phi_j(x_i)) phi_j(.)

where k is the lattice's kernel, sum_j a_j^2 phi_j(.) phi_j(.)^T: a point then costs the same for any number of data.
The v that solve for the data with the exact kernel magnify the small difference between the two kernels. Those that
solve with the lattice's kernel do not, since the data correct it; a few steps of iterative refinement take the one to
the other:   v  <-  v + (K + noise)^-1 (b - (K_lattice + noise) v).

What is left is measured against the exact update. Where it is too much, or folding costs too much, centres remain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..evaluate import PathTerm, WeightedSum, sum_of
from ..features import Features
from ..kernels import Kernel, coupled_covariance
from ..models.means import at_tasks
from ..solvers import coupled_diagonal
from .prior import PriorPaths

# Fewer centres cost next to nothing.
FEWEST = 64
# The largest error of a folded path, in posterior standard deviations, and its root mean square.
LARGEST_ERROR, LARGEST_RMS = 0.03, 0.005
# Steps of refinement at the most; paths, and points in the domain and among the data, that the error is measured at.
_STEPS, _PATHS, _POINTS = 2, 4, 64
# Evaluations at fewer points than this must repay folding.
_PAYS_FROM = 60_000
# Operations that a covariance costs, in those of a matrix product (measured on a CPU).
_COVARIANCE = 150


@torch.no_grad()
def folded(
    prior: PriorPaths,
    kernel: Kernel,
    X: Tensor,
    tasks: Tensor | None,
    noise: Tensor,
    b: Tensor,
    v: Tensor,
    solve: Callable[[Tensor], Tensor],
    lower: Callable[[Tensor], Tensor],
) -> Tensor | None:
    """Weights v' `[s, n]` for the lattice's kernel in place of v for the exact one; None where these do not do.

    Args:
        noise: with the jitter, `[n]`.
        b: the right-hand sides `[s, n]` that v solve for.
        solve: (K + noise)^-1 `[n, r]`.
        lower: its factor L's L^-1 `[n, r]`.
    """
    features, kernel = prior.features.to(torch.float64), kernel.to(X.device, torch.float64)
    X, noise, b, v = X.double(), noise.double(), b.double(), v.double()

    def refined(v: Tensor, b: Tensor) -> Tensor:
        return v + solve((b - noise * v - _at(_update(features, X, tasks, v), X, tasks)).mT).mT

    x, x_tasks = _places(features, X, tasks, kernel.num_outputs)
    K = coupled_covariance(kernel, x, x_tasks, X, tasks)  # [p, n]
    sd = (coupled_diagonal(kernel, x, x_tasks) - lower(K.mT).square().sum(0)).clamp_min(1e-300).sqrt()
    few, exact = v[:_PATHS], v[:_PATHS] @ K.mT
    for step in range(1, _STEPS + 1):
        few = refined(few, b[:_PATHS])
        error = (_at(_update(features, X, tasks, few), x, x_tasks) - exact) / sd
        if bool(error.abs().max() <= LARGEST_ERROR) and bool(error.square().mean().sqrt() <= LARGEST_RMS):
            for _ in range(step):
                v = refined(v, b)
            return v
    return None


def with_folded(prior: PriorPaths, X: Tensor, tasks: Tensor | None, v: Tensor) -> list[PathTerm]:
    """The prior's terms with an update `[s, n]` in their weights."""
    features = prior.features.to(torch.float64)
    update = _update(features, X.double(), tasks, v.double())
    both = [
        replace(term, weights=(term.weights.double() + more.weights).to(term.weights.dtype))
        for term, more in zip(prior.feature_terms(), update, strict=True)
    ]
    return [*both, *prior.kept_terms()]


def pays(features: Features, s: int, n: int) -> bool:
    """Whether folding n centres of s paths is worth its cost."""
    costs = [cost for basis in features.bases if (cost := basis.adjoint_cost(n)) is not None]
    if n < FEWEST or not costs or features.num_bases > 1:
        return False
    t = max(1 if root is None else len(root) for root in features.roots)
    return 2 * s * t * sum(costs) <= _PAYS_FROM * n * (_COVARIANCE + 2 * s * t)


def _update(features: Features, X: Tensor, tasks: Tensor | None, v: Tensor) -> list[WeightedSum]:
    """v on the lattice's kernel: weights B[i, task_j] a_j^2 sum_j v_j phi(x_j) of every basis, for each output i."""
    about, s = X - features.origin, len(v)
    terms = []
    for basis, root in zip(features.bases, features.roots, strict=True):
        rows = v[:, None] if tasks is None or root is None else v[:, None] * (root @ root.mT)[:, tasks]  # [s, t, n]
        rows = rows.flatten(0, 1)  # [s t, n]
        W = basis.adjoint(about, rows) * basis.scales().square()  # [s t, c]
        terms.append(WeightedSum(basis, W.unflatten(0, (s, -1)), None, features.origin))
    return terms


def _at(terms: list[WeightedSum], x: Tensor, tasks: Tensor | None) -> Tensor:
    """Sums at points `[n, d]`, each of its own task: `[s, n]`."""
    f = sum_of(terms, x[None])  # [s, t, n]
    assert f is not None
    return at_tasks(f.mT, tasks)


def _places(features: Features, X: Tensor, tasks: Tensor | None, t: int) -> tuple[Tensor, Tensor | None]:
    """Points of the domain and of the data, and tasks of them."""
    generator = torch.Generator().manual_seed(0xF01D)  # not one that data may have been made with
    assert features.domain is not None
    u = torch.rand(_POINTS, X.shape[1], generator=generator, dtype=torch.float64, device="cpu").to(X)
    some = torch.randperm(len(X), generator=generator, device="cpu")[:_POINTS].to(X.device)
    x = torch.cat([torch.lerp(features.domain[0], features.domain[1], u), X[some]])
    if tasks is None:
        return x, None
    return x, torch.cat([torch.arange(_POINTS, device=X.device) % t, tasks[some]])
