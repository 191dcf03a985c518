"""The n centres of an update as coefficients of the lattice that the prior is on.

    sum_i v_i k(., x_i)   =   sum_j (a_j^2 sum_i v_i phi_j(x_i)) phi_j(.)

where k is the lattice's kernel, sum_j a_j^2 phi_j(.) phi_j(.)^T: a point then costs the same for any number of data.
The v that solve for the data with the exact kernel magnify the small difference between the two kernels. Those that
solve with the lattice's kernel do not, since the data correct it. A few steps of iterative refinement lead from the
first to the second:   v  <-  v + (K + noise)^-1 (b - (K_lattice + noise) v).

The remaining error is measured against the exact update. Where it is too large, or compressing the update costs too
much, the centres remain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.sites import Sites, joined_sites
from ..evaluate import PathTerm, WeightedSum, sum_of
from ..features import Features
from ..features.features import BEYOND
from ..kernels import Kernel, coupled_covariance, coupled_diagonal
from ..solvers import CholeskyState
from .prior import PriorPaths


@torch.no_grad()
def compressed(
    prior: PriorPaths,
    kernel: Kernel,
    sites: Sites,
    noise: Tensor,
    b: Tensor,
    v: Tensor,
    state: CholeskyState,
    *,
    largest_error: float = 0.03,
    largest_rms: float = 0.005,
    num_steps: int = 2,
    num_paths: int = 4,
    num_points: int = 64,
) -> Tensor | None:
    """Weights v' `[s, n]` for the lattice's kernel in place of v for the exact one.

    None where their error is too large.

    Args:
        noise: with the jitter, `[n]`.
        b: the right-hand sides `[s, n]` that v solve for.
        state: the factor of K + noise.
        largest_error, largest_rms: of a compressed path, in posterior standard deviations, and its root mean square.
        num_steps: of refinement, at the most.
        num_paths, num_points: at which the error is measured: so many points in the domain, and so many of the data.
    """
    features, kernel = prior.features.to(torch.float64), kernel.to(sites.points.device, torch.float64)
    sites, noise, b, v = sites.double(), noise.double(), b.double(), v.double()

    def refined(v: Tensor, b: Tensor) -> Tensor:
        return v + state.solve((b - noise * v - _at(_update(features, sites, v), sites)).mT)[0].mT

    places = _places(features, sites, kernel.num_outputs, num_points)
    K = coupled_covariance(kernel, places, sites)  # [p, n]
    sd = (coupled_diagonal(kernel, places) - state.lower(K.mT).square().sum(0)).clamp_min(1e-300).sqrt()
    few, exact = v[:num_paths], v[:num_paths] @ K.mT
    for step in range(1, num_steps + 1):
        few = refined(few, b[:num_paths])
        error = (_at(_update(features, sites, few), places) - exact) / sd
        if bool(error.abs().max() <= largest_error) and bool(error.square().mean().sqrt() <= largest_rms):
            for _ in range(step):
                v = refined(v, b)
            return v
    return None


def with_compressed(prior: PriorPaths, sites: Sites, v: Tensor) -> list[PathTerm]:
    """The prior's terms with an update `[s, n]` in their weights."""
    return prior.terms([term.weights for term in _update(prior.features.double(), sites.double(), v.double())])


def pays(features: Features, s: int, n: int, fewest: int = 64, num_points: int = 60_000, covariance: int = 150) -> bool:
    """Whether compressing n centres of s paths is worth its cost.

    Args:
        fewest: centres that cost more than next to nothing.
        num_points: evaluations at so many must repay the cost.
        covariance: operations that a covariance costs, in those of a matrix product (measured on a CPU).
    """
    # the lattices of high frequencies repeat themselves inside the domain
    if any(block.role == BEYOND for block in features.blocks):
        return False
    costs = [cost for basis in features.bases if (cost := basis.adjoint_cost(n)) is not None]
    if n < fewest or not costs or features.num_bases > 1:
        return False
    t = max(1 if root is None else len(root) for root in features.roots)
    return 2 * s * t * sum(costs) <= num_points * n * (covariance + 2 * s * t)


def _update(features: Features, sites: Sites, v: Tensor) -> list[WeightedSum]:
    """v on the lattice's kernel: weights B[i, output_j] a_j^2 sum_j v_j phi(x_j) of every basis, for each output i."""
    about, outputs, s = sites.points - features.origin, sites.outputs, len(v)
    terms = []
    for basis, root in zip(features.bases, features.roots, strict=True):
        rows = v[:, None] if outputs is None or root is None else v[:, None] * (root @ root.mT)[:, outputs]  # [s, t, n]
        rows = rows.flatten(0, 1)  # [s t, n]
        W = basis.adjoint(about, rows) * basis.scales().square()  # [s t, c]
        terms.append(WeightedSum(basis, W.unflatten(0, (s, -1)), None, features.origin))
    return terms


def _at(terms: list[WeightedSum], sites: Sites) -> Tensor:
    """Sums at sites: `[s, n]`."""
    f = sum_of(terms, sites.points[None])  # [s, t, n]
    assert f is not None
    return sites.own(f.mT)


def _places(features: Features, sites: Sites, t: int, count: int) -> Sites:
    """Sites in the domain and some of the data."""
    X = sites.points
    generator = torch.Generator().manual_seed(0xF01D)  # a fixed seed that the user's data are unlikely to have
    assert features.domain is not None
    u = torch.rand(count, X.shape[1], generator=generator, dtype=torch.float64, device="cpu").to(X)
    some = torch.randperm(len(X), generator=generator, device="cpu")[:count].to(X.device)
    outputs = None if sites.outputs is None else torch.arange(count, device=X.device) % t
    return joined_sites([Sites(torch.lerp(features.domain[0], features.domain[1], u), outputs), sites[some]])
