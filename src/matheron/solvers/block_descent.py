"""Accelerated block descent: memory for a block and a few vectors, where even a preconditioner does not fit.

The method is sketch-and-project with random blocks of rows and Nesterov's acceleration. Each step solves the equations
of one block exactly, by the Cholesky factor of its [block, block] covariance, and carries a momentum along.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.checks import level_outside
from .base import Solver, State, Stats, floored
from .cholesky import JitterWarning, safe_cholesky, solved
from .operator import Operator
from .pcg import ConvergenceWarning, Errors, progress_bar
from .preconditioner import LowRank, largest_rank


@dataclass(frozen=True)
class BlockDescent(Solver["BlockState"]):
    """Solves the equations of one random block of observations after the other, with acceleration.

    It holds a block's covariance and four vectors per right-hand side, whatever n is, where `PCG` holds n numbers for
    every rank of its preconditioner. Where those fit, `PCG` takes fewer products: this is for what does not.

    Args:
        tolerance: as for `PCG`.
        block: observations in a block; None is n / 20, at least 1000 and at most 10,000.
        max_epochs: passes over all rows of K, after which it stops with a `ConvergenceWarning`.
        progress: show a progress bar, of epochs.
        convexity: what the acceleration assumes, times the number of blocks. 0.5 is near the best of what was tried on
            protein, bike and keggdirected with 10 blocks, and on protein with 40, noise from 1e-4 to 2e-2 of the
            variance.
        look_every: epochs between looks at the true residual, each of which costs as much as an epoch.
        patience: looks without any gain after which products are in float64.

    >>> import matheron
    >>> from matheron import kernels, solvers
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-2)
    >>> matheron.draw(gp, 8, solver=solvers.BlockDescent(block=2)).solver_stats.converged
    True
    """

    mixed: ClassVar[bool] = True
    tolerance: float = 0.01
    block: int | None = None
    max_epochs: int = 500
    progress: bool = False
    convexity: float = 0.5
    look_every: int = 5
    patience: int = 2

    def init(self, operator: Operator) -> BlockState:
        if operator.requires_graph():
            raise ValueError('BlockDescent keeps no graph: use solver="cholesky" here')
        return BlockState(self, operator)

    @torch.no_grad()
    def solve(self, state: BlockState, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        operator, n, dtype = state.operator, state.operator.size, b.dtype
        wide, b = b.double(), b.to(operator.dtype)
        size = min(n, self.block or min(10_000, max(1000, n // 20)))
        errors = Errors(operator)
        generator = torch.Generator().manual_seed(0)
        steps = math.ceil(n / size)
        convexity = self.convexity / steps
        beta = 1 - (convexity / steps) ** 0.5
        gamma = 1 / (convexity * steps) ** 0.5
        alpha = 1 / (1 + gamma * steps)
        start = torch.zeros_like(b) if guess is None else guess.to(b)
        x, v, z = start, start.clone(), start.clone()
        best, error = start, errors(operator.residual(wide, start))
        epoch, in_vain = 0, 0
        with progress_bar(self.progress, "block descent", self.tolerance) as report, warnings.catch_warnings():
            # jitter shortens the step of a block, but is no noise of the path
            warnings.simplefilter("ignore", JitterWarning)
            while epoch < self.max_epochs and bool((error > self.tolerance).any()):
                for _ in range(self.look_every):
                    order = torch.randperm(n, generator=generator, device="cpu").to(b.device)
                    for rows in order.split(size):
                        x, v, z = _step(operator, b, rows, v, z, alpha, beta, gamma)
                    epoch += 1
                new = errors(operator.residual(wide, x))
                better = new < error  # [r]; what is not a number is not better
                in_vain = 0 if bool((better & (error > self.tolerance)).any()) else in_vain + 1
                best, error = torch.where(better, x, best), torch.where(better, new, error)
                report(epoch, float(error.max()))
                # the limit is the rounding error of float32 products
                if in_vain == self.patience and b.dtype != torch.float64:
                    b, best = wide, best.double()
                    x, v, z = best, best.clone(), best.clone()
        return best.to(dtype), self._stats(operator, wide, best, error, size, epoch)

    def _stats(self, operator: Operator, b: Tensor, x: Tensor, error: Tensor, size: int, epochs: int) -> Stats:
        relative = operator.residual(b, x).norm(dim=0) / b.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
        worst, converged = float(relative.max()), bool((error <= self.tolerance).all())
        if not converged:
            warnings.warn(
                f"block descent stopped after {epochs} epochs at a relative residual of {worst:.1e}, an error of "
                f"{float(error.max()):.1e} posterior standard deviations, above the tolerance of {self.tolerance:g}: "
                'raise block or max_epochs, or use solver="cg" if memory allows',
                ConvergenceWarning,
                stacklevel=level_outside(),
            )
        return Stats(f"BlockDescent(tolerance={self.tolerance:g}, block={size})", epochs, worst, converged)


class BlockState(State):
    """An operator: blocks are factored as they come.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> sites = Sites(torch.zeros(1, 1, dtype=torch.float64))
    >>> state = solvers.BlockDescent().init(solvers.KernelOperator(kernels.RBF(), sites, torch.ones(1)))
    >>> type(state).__name__
    'BlockState'
    """

    def __init__(self, solver: BlockDescent, operator: Operator) -> None:
        self.solver, self.operator = solver, operator

    @torch.no_grad()
    def deviations(self, rows: Tensor) -> Tensor:
        """The deviations by a factor of rank 5 sqrt(n), or less where memory ends. It costs about an epoch."""
        operator = self.operator
        rank = min(operator.size, largest_rank(operator), math.ceil(5 * operator.size**0.5))
        share = LowRank(operator, max(1, rank)).posterior_share[:, 0]
        return floored(operator.noise * share, operator)[rows].sqrt()


def _step(
    operator: Operator, b: Tensor, rows: Tensor, v: Tensor, z: Tensor, alpha: float, beta: float, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One block: d solves its equations at z; x = z - d, and v and z carry the momentum."""
    noise = operator.noise[rows]
    gradient = operator.product_rows(rows, z) + noise[:, None] * z[rows] - b[rows]  # [size, r]
    K = operator.block(rows)
    K.diagonal().add_(noise)
    L, _ = safe_cholesky(K, "a block's covariance")
    d = solved(L, gradient.double()).to(b.dtype)
    v = torch.lerp(z, v, beta).index_add_(0, rows, d, alpha=-gamma)
    x = z.index_add(0, rows, d, alpha=-1)
    return x, v, torch.lerp(x, v, alpha)
