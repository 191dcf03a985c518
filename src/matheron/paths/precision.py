"""The precision that the weights of an update need.

If noise is small and data are close together, weights are large and their sums cancel. The rounding error of such a sum
in float32 can be larger than the posterior's standard deviation. It is measured at some of the data, relative to
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..evaluate import sum_of
from ..kernels import coupled_diagonal
from ..solvers import Operator
from .prior import PriorPaths
from .update import kernel_terms

if TYPE_CHECKING:
    from .exact import CentredUpdate


@torch.no_grad()
def choose_weight_dtype(
    operator: Operator,
    v: Tensor,
    deviations: Callable[[Tensor], Tensor],
    *,
    first: int = 0,
    largest: float = math.inf,
    limit: float = 0.03,
    num_points: int = 64,
    num_paths: int = 16,
) -> Tensor:
    """Return weights v `[s, n]` in the operator's dtype. They stay in float64 if they were computed in float64 and the
    operator's dtype has too few digits.

    Args:
        deviations: gives the posterior standard deviations at some observations, which are the rows from `first` on.
        largest: a bound on the eigenvalues of K + noise, with which the deviations may not be needed.
        limit: the error that the dtype may make, in posterior standard deviations.
        num_points, num_paths: observations, and paths of the largest weights, at which the error is measured.
    """
    narrow = v.to(operator.dtype)
    if narrow.dtype == v.dtype or not v.numel():
        return v
    error, least = expected_error(operator, narrow, largest)
    if error <= limit * least:
        return narrow
    rows, paths = _some_rows(operator.size - first, num_points, v.device), _some_paths(narrow, num_paths)
    exact, rounded = (operator.product_rows(first + rows, w[paths].mT.contiguous()) for w in (v, narrow))  # [p, s]
    errors = rounded - exact
    if bool(errors.square().mean().sqrt() <= limit * least):
        return narrow
    errors = errors / deviations(rows).to(exact)[:, None]
    return narrow if bool(errors.square().mean().sqrt() <= limit) else v


def expected_error(operator: Operator, v: Tensor, largest: float) -> tuple[float, float]:
    """The rounding error of sums with weights v `[s, n]` in their dtype, and the least posterior deviation at the
    observations.

    A covariance, its weight and their product together have rounding errors of about four units of the last digit.
    Rounding errors are nearly independent. So those of n products add up to that of one product of the size sqrt(sum_j
    k_ij^2 v_j^2). Those of n additions, in a dozen partial sums or more, add up to sqrt(n) / 16 times that. Let no
    eigenvalue of K + noise be larger than `largest`. Then the mean over the data of sum_j k_ij^2 v_j^2 is at most |v|^2
    max(k) largest / n. The posterior covariance noise K (K + noise)^-1 is at least (noise / largest) K.
    """
    k, n = operator.diagonal(), v.shape[1]
    largest = operator.trace() if math.isinf(largest) else largest
    size = float(torch.linalg.vector_norm(v, dim=1).max()) * math.sqrt(float(k.max()) * largest / n)
    error = (4 + math.sqrt(n) / 16) * torch.finfo(v.dtype).eps * size
    return error, math.sqrt(max(float(operator.noise.min() * k.min()), 0.0) / largest)


@torch.no_grad()
def narrows_badly(
    wide: tuple[PriorPaths, CentredUpdate],
    narrow: tuple[PriorPaths, CentredUpdate],
    *,
    limit: float = 0.03,
    num_points: int = 64,
    least_variance: float = 1e-8,
    least_of_size: float = 0.01,
) -> bool:
    """Whether a copy of fewer digits has too large rounding errors in the sum of prior and update, at some of its
    centres.

    The spread of the paths around their mean estimates the posterior standard deviation.

    Args:
        limit: the error that the copy may make, in posterior standard deviations.
        num_points: centres at which the error is measured.
        least_variance: the share of the prior's variance that the posterior's is taken to have, at the least.
        least_of_size: a sparse posterior's deviation, which may be zero, is taken to be this share of its paths' size.
    """
    (prior, update), copy = wide, narrow[1]
    if update.num_centres == 0 or getattr(update, "compressed", None) is not None or update.requires_graph():
        return False
    s, some = len(update.v), update.sites[_some_rows(update.num_centres, num_points, update.v.device)]
    x = some.points
    weights = update.v if update.v_mean is None else torch.cat([update.v, update.v_mean])
    both = cast(Tensor, sum_of(kernel_terms(update.kernel, update.sites, weights), x[None]))
    added, mean = both[:s], both[s:]  # [s, t, p], [1 or s, t, p]
    exact = prior.sums(x[None]) + added
    mean = exact.mean(0, keepdim=True) if update.v_mean is None else mean
    rounded = cast(Tensor, sum_of([*narrow[0].terms(), *copy.terms()], x[None].to(copy.centres)))
    least = least_variance * coupled_diagonal(update.kernel, some).mean()
    if update.num_inducing:  # the inducing values can have variance zero
        least = torch.maximum(least, least_of_size**2 * exact.square().mean())
    # The geometric mean of the variance, because some data can have much less noise than others.
    variance = torch.maximum((exact - mean).square(), least).log().mean().exp()
    return bool((rounded.to(exact) - exact).square().mean() > limit**2 * variance)


def _some_paths(v: Tensor, count: int) -> Tensor:
    """The paths with the largest weights v `[s, n]`, which have the largest rounding errors."""
    return torch.linalg.vector_norm(v, dim=1).topk(min(count, len(v))).indices


def _some_rows(n: int, count: int, device: torch.device) -> Tensor:
    return torch.linspace(0, n - 1, min(count, n), dtype=torch.float64, device=device).long()
