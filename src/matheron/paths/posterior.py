"""PosteriorCovariance: the covariance of f given all data and inducing values of an update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.functionals import Observed
from ..solvers import PCG, Cholesky, CholeskyState, KernelOperator, Solver, State
from .kept_factor import Factor

if TYPE_CHECKING:
    from .sparse import CorrectedOperator


class PosteriorCovariance:
    """C(x, x')  =  k(x, x') - k(x, X) (k(X, X) + noise)^-1 k(X, x'), in float64.

    k is the operator's prior covariance: the kernel, or that of a sparse posterior (`sparse.CorrectedOperator`).

    Args:
        operator: k(X, X) + noise; it may have no data.
        factor: its factor, where there is one already.
        solver: makes its state otherwise.
        requires_grad: whether the operator is in a graph.
    """

    def __init__(
        self,
        operator: KernelOperator | CorrectedOperator,
        factor: Factor | None,
        solver: Solver | None = None,
        requires_grad: bool = False,
    ) -> None:
        self.operator, self.requires_grad = operator, requires_grad
        self.factor: Factor | State | None = factor
        if factor is None and operator.size:
            self.factor = (solver or variance_solver(operator.size)).init(operator)

    def variance(self, x: Observed) -> Tensor:
        """C(x, x) `[p]` at sites."""
        prior = self.operator.prior_variance(x)
        if self.factor is None:
            return prior
        B = self.operator.cross(x)  # [n, p]
        if isinstance(self.factor, Factor | CholeskyState):
            return prior - self.factor.lower(B).to(B).square().sum(0)
        U, _ = self.factor.solve(B)
        return prior - (U * (B + self.operator.residual(B, U))).sum(0)  # the square of an error of U enters

    def covariance(self, x: Observed) -> Tensor:
        """C(x, x) `[p, p]` between sites."""
        C = self.operator.prior_covariance(x)
        if self.factor is None:
            return C
        B = self.operator.cross(x)
        if isinstance(self.factor, Factor | CholeskyState):
            E = self.factor.lower(B).to(B)
            return C - E.mT @ E
        U, _ = self.factor.solve(B)
        explained = U.mT @ (B + self.operator.residual(B, U))
        return C - (explained + explained.mT) / 2


def variance_solver(n: int, largest_factor: int = 8192) -> Solver:
    """The solver for the covariance of n data when variances are computed.

    For more than `largest_factor` data it is conjugate gradients: a factor of that many data, which would be kept,
    takes 512 MiB.
    """
    return Cholesky() if n <= largest_factor else PCG(tolerance=1e-3)


def variance_in_blocks(
    posterior: PosteriorCovariance, sites: Observed, num_centres: int, budget: int = 1 << 22
) -> Tensor:
    """The posterior variance `[n]` at sites (or of functionals), in blocks with at most `budget` covariances with the
    centres in memory."""
    step, like = max(1, budget // max(1, num_centres)), sites.points
    blocks = [sites[first : first + step].to(torch.float64) for first in range(0, len(sites), step)]
    variance = torch.cat([posterior.variance(block) for block in blocks]) if blocks else like.new_zeros(0)
    return torch.clamp_min(variance, 0).to(like)
