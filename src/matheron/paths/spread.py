"""SpreadWarning: whether a basis has enough functions for the data that its paths are conditioned on.

A basis of ell functions that has to meet n precise data loses spread as n grows towards ell. `condition_on` keeps the
basis of a draw, and so compares the paths' spread with the posterior's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.checks import level_outside, many
from ..core.modes import transformed
from ..solvers import Operator
from ..solvers.operator import KernelOperator
from .prior import PriorPaths


class SpreadWarning(UserWarning):
    """Paths have, between their data, another spread than the posterior: their basis was not chosen for the data."""


@torch.no_grad()
def warn_of_spread(
    prior: PriorPaths,
    operator: Operator,
    jitter: float,
    deviation: Tensor,
    last_block: Callable[[int], Tensor],
    least_rows: int = 32,
    most_rows: int = 256,
) -> None:
    """Warn where the paths' spread about their mean differs from the posterior's, beyond chance.

    Where paths have the right law, v - v_mean has covariance (L L^T)^-1, so that z = L^T (v - v_mean) is standard
    normal. Entry i is the difference, at datum i, between a path and what the data before it predict, in standard
    deviations of that prediction. The last p data alone are looked at, for which the last p rows and columns of L
    suffice: p^2 s. Only data since the paths were drawn count: refreshed paths have other residuals at the data before.

    Args:
        operator: K + noise.
        jitter: what had to be added to its diagonal.
        deviation: v - v_mean `[s, n]`.
        last_block: gives the last p rows and columns of L, the factor of K + noise + jitter.
        least_rows, most_rows: between these p is a quarter of the data. They are predicted by fewer than all, so that
            the estimated ratio is too large: .84 where the truth is .72, .56 where it is .44. These are of Matern-5/2
            in two dimensions with 505 data and noise 1e-6 (tests/paths/test_refreshing.py).
    """
    n = operator.size
    p = min(n - prior.drawn_given, max(least_rows, min(n // 4, most_rows)))
    if p < 1:  # all data were given when the paths were drawn
        return
    L = last_block(p)
    z = deviation[:, -p:].to(L) @ L  # [s, p]
    _judge(prior, z, L.diagonal().square(), operator.noise[-p:] + jitter, operator.diagonal()[-p:])


@torch.no_grad()
def warn_of_spread_nearby(
    prior: PriorPaths, operator: KernelOperator, deviation: Tensor, num_rows: int = 32, num_neighbours: int = 64
) -> None:
    """The same where there is no factor: `num_rows` of the last data are predicted by those near them.

    `deviation [s, n]` is that of the paths, with their noise, from their mean before the data.
    """
    n, device = operator.size, operator.device
    first = max(prior.drawn_given, 3 * n // 4)
    # with `kept` values, residuals at the earlier data are not those of a prior path
    if n - first < 2 or prior.kept is not None:
        return
    X = operator.sites.places
    X = X / X.std(0).clamp_min(1e-300)
    some = torch.linspace(first, n - 1, min(num_rows, n - first), dtype=torch.float64, device=device).long()  # [p]
    near = torch.cdist(X[some], X).topk(min(n, num_neighbours), largest=False).indices  # [p, k], itself the first
    z, predicted = [], []
    for index in near.flip(1):
        K = operator.block(index)
        K.diagonal().add_(operator.noise[index] + 1e-10 * K.diagonal())
        L = torch.linalg.cholesky(K)
        z.append(torch.linalg.solve_triangular(L, deviation[:, index].mT.to(L), upper=False)[-1])
        predicted.append(L[-1, -1].square())
    last = near[:, 0]
    _judge(prior, torch.stack(z, 1), torch.stack(predicted), operator.noise[last], operator.diagonal()[last])


def _judge(
    prior: PriorPaths,
    z: Tensor,
    predicted: Tensor,
    noise: Tensor,
    variance: Tensor,
    *,
    smallest_ratio: float = 0.87,
    fewest: int = 64,
    least_variance: float = 1e-8,
) -> None:
    """Warn unless z `[s, p]`, errors of predictions of variances `[p]` with noise `[p]`, is standard normal.

    Args:
        smallest_ratio: of standard deviations, beyond chance, from which on nothing is said.
        fewest: numbers of all paths together below which there is too much chance.
        least_variance: the share of the prior's variance below which a prediction is rounding, and is not counted.
    """
    if transformed():  # inside a transform of torch.func, the values are not known yet
        return
    counted = predicted > least_variance * variance
    of_noise = (noise / predicted).clamp_max(1)
    size, squares, noise_share = (
        torch.stack([counted, counted * z.square().mean(0), counted * of_noise]).sum(1).tolist()
    )
    count = len(z) * size
    if count < fewest:
        return
    squares, share = squares / size, noise_share / size
    chance = 4 * math.sqrt(2 / count)
    nearest = min(1.0, squares * (1 + chance)) if squares < 1 else max(1.0, squares * (1 - chance))
    smallest = smallest_ratio**2
    if smallest * (1 - share) <= nearest - share <= (1 - share) / smallest:
        return
    ratio = math.sqrt(max(0.0, squares - share) / max(1 - share, 1e-12))
    warnings.warn(
        f"condition_on: between these data the paths have about {ratio:.2g} of the posterior's standard deviation "
        f"(their mean is right): their basis, chosen given {many(prior.drawn_given, 'observation')}, has too few "
        "functions for so many precise data. Draw again given all the data; or choose a basis for the new points first "
        "with paths.refreshed(keep=points, where=x), which keeps the functions at `points`; more features "
        "(num_features=), and where=x of draw_prior, help too",
        SpreadWarning,
        stacklevel=level_outside(),
    )
