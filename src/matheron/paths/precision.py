"""How many digits an update's weights need.

Little noise among near data makes weights large, and sums of them cancel: the rounding error of such a sum in float32
can be more than the posterior's standard deviation. It is measured at some of the data, against float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from ..evaluate import sum_of
from ..models.means import at_tasks
from ..solvers import Operator, State, coupled_diagonal, covariance
from ..solvers.base import floored
from ..solvers.cholesky import cholesky_solve
from .prior import PriorPaths
from .update import UpdatePaths

# Observations and paths at which it is measured, the error that float32 may make, in posterior standard deviations.
_POINTS, _PATHS, _LIMIT = 64, 16, 0.03
# A posterior variance is taken to be at least this share of the prior's; a sparse posterior's deviation, which may be
# zero, at least this share of its paths' size.
_SMALLEST, _OF_SIZE = 1e-8, 0.01
# Rounding errors of a covariance, of its weight and of their product, in units of the last digit.
_ERRORS = 4


@torch.no_grad()
def in_enough_digits(
    operator: Operator,
    v: Tensor,
    deviations: Callable[[Tensor], Tensor],
    *,
    first: int = 0,
    largest: float = math.inf,
) -> Tensor:
    """Weights v `[s, n]` in the operator's dtype, or in float64 where they came so and that dtype has too few digits.

    `deviations` are the posterior's at some observations, which are the rows from `first` on. With `largest`, a bound
    on the eigenvalues of K + noise, they may not be needed.
    """
    narrow = v.to(operator.dtype)
    if narrow.dtype == v.dtype or not v.numel():
        return v
    error, least = expected(operator, narrow, largest)
    if error <= _LIMIT * least:
        return narrow
    rows, paths = _some_rows(operator.size - first, v.device), _some_paths(narrow)
    exact, rounded = (operator.product_rows(first + rows, w[paths].mT.contiguous()) for w in (v, narrow))  # [p, s]
    errors = rounded - exact
    if bool(errors.square().mean().sqrt() <= _LIMIT * least):
        return narrow
    errors = errors / deviations(rows).to(exact)[:, None]
    return narrow if bool(errors.square().mean().sqrt() <= _LIMIT) else v


def expected(operator: Operator, v: Tensor, largest: float) -> tuple[float, float]:
    """What sums with weights v `[s, n]` err by in their dtype, and the least posterior deviation at the observations.

    Rounding errors are as good as independent: those of n products add up to as much as one has, of `size`, those of n
    additions, in a dozen partial sums or more, to sqrt(n) / 16 times that. Over the data, the mean of
    sum_j k_ij^2 v_j^2 is at most |v|^2 max(k) largest / n, where no eigenvalue of K + noise is larger; and the
    posterior covariance noise K (K + noise)^-1 is at least (noise / largest) K.
    """
    k, n = operator.diagonal(), v.shape[1]
    largest = operator.trace() if math.isinf(largest) else largest
    size = float(torch.linalg.vector_norm(v, dim=1).max()) * math.sqrt(float(k.max()) * largest / n)
    error = (_ERRORS + math.sqrt(n) / 16) * torch.finfo(v.dtype).eps * size
    return error, math.sqrt(max(float(operator.noise.min() * k.min()), 0.0) / largest)


@torch.no_grad()
def narrows_badly(wide: tuple[PriorPaths, UpdatePaths], narrow: tuple[PriorPaths, UpdatePaths]) -> bool:
    """Whether the sum of a prior and an update errs by too much in a copy of fewer digits, at some of its centres.

    Paths about their mean tell the posterior's deviation.
    """
    update = wide[1]
    plain = update.folded is None and not update.requires_graph()
    if narrow[1].centres.dtype == update.centres.dtype or update.num_centres == 0 or not plain:
        return False
    rows = _some_rows(update.num_centres, update.v.device)
    x, tasks = update.centres[rows], None if update.tasks is None else update.tasks[rows]
    prior, copy = wide[0], narrow[1]
    weights = update.v if update.v_mean is None else torch.cat([update.v, update.v_mean])
    both = cast(Tensor, sum_of(update.terms(weights), x[None]))
    added, mean = both[: len(update.v)], both[len(update.v) :]  # [s, t, p], [1 or s, t, p]
    exact = prior.sums(x[None]) + added
    mean = exact.mean(0, keepdim=True) if update.v_mean is None else mean
    rounded = cast(Tensor, sum_of([*narrow[0].terms(), *copy.terms()], x[None].to(copy.centres)))
    least = _SMALLEST * coupled_diagonal(update.kernel, x, tasks).mean()
    if update.num_data < update.num_centres:  # inducing points, whose values may be known for certain
        least = torch.maximum(least, _OF_SIZE**2 * exact.square().mean())
    # The typical variance: some data may have far less noise than others.
    variance = torch.maximum((exact - mean).square(), least).log().mean().exp()
    return bool((rounded.to(exact) - exact).square().mean() > _LIMIT**2 * variance)


def with_old_values(old: tuple[PriorPaths, UpdatePaths], new: tuple[PriorPaths, UpdatePaths]) -> UpdatePaths:
    """The update of new paths, the old ones in fewer digits, by which they have the old values at inducing points; its
    weights are in float64 where these, too, have too many digits.

        v'  =  (K' + jitter)^-1 ((K + jitter) v + f - f')
    """
    update = new[1]
    device = update.centres.device  # paths may change dtype and device in one move
    old = (old[0].to(device), old[1].to(device))
    before = old[1]
    s, tasks, of_u = len(before.v), update.tasks, update.inducing
    jitter = before.v.new_tensor(_SMALLEST) if of_u is None else of_u.jitter  # a small one where none is known
    f, f_new = (at_tasks(p.sums(u.centres[None]).mT, tasks).double() for p, u in (old, new))  # [s, m]
    K, K_new = (covariance(u.kernel.double(), u.centres.double(), tasks) for u in (before, update))
    K_new.diagonal().add_(jitter.to(K_new))
    V = (before.v if before.v_mean is None else torch.cat([before.v, before.v_mean])).double()  # [s + 1, m]
    change = torch.nn.functional.pad(f - f_new, (0, 0, 0, len(V) - s))  # the mean has no prior
    V = cholesky_solve(K_new, (V @ K + jitter.to(V) * V + change).mT, "k(Z, Z) + jitter").mT.contiguous()

    def with_weights(V: Tensor) -> UpdatePaths:
        v, v_mean = V[:s], None if before.v_mean is None else V[s:]
        own = None if of_u is None else of_u.replaced(v=v, v_mean=None if v_mean is None else v_mean[0])
        return update.replaced(v=v, v_mean=v_mean, inducing=own)

    narrow = with_weights(V.to(update.centres))
    return with_weights(V) if narrows_badly(old, (new[0], narrow)) else narrow


def _some_paths(v: Tensor) -> Tensor:
    """Those of the largest weights v `[s, n]`, which err the most."""
    return torch.linalg.vector_norm(v, dim=1).topk(min(_PATHS, len(v))).indices


def _some_rows(n: int, device: torch.device) -> Tensor:
    return torch.linspace(0, n - 1, min(_POINTS, n), dtype=torch.float64, device=device).long()


def sparse_deviations(state: State, root: Tensor, jitter: Tensor, rows: Tensor) -> Tensor:
    """The standard deviations of f at some inducing points, u having a covariance of this root `[m, r]`.

    f is smoother than u: with J the jitter and A = K_mm + J, f(Z) = (I - J A^-1) u plus a normal vector of covariance
    J - J A^-1 J.
    """
    some = torch.arange(len(rows), device=rows.device)
    one = torch.zeros(len(root), len(rows), dtype=torch.float64, device=rows.device)
    one[rows, some] = 1.0
    solved = state.solve(one)[0].double()  # [m, k]
    J = (jitter[rows] + state.jitter).double()
    explained = (one - J * solved).mT @ root.double()  # [k, r]
    return floored(explained.square().sum(1) + J * (1 - J * solved[rows, some]), state.operator).sqrt()
