"""The gradient of the log marginal likelihood for large n, estimated from solves with random probes.

    d log p / dtheta  =  1/2 a' K_theta a - 1/2 tr(K^-1 K_theta),      a = K^-1 (y - m)
    tr(K^-1 K_theta)  =  tr(P^-1 K_theta) + E[(K^-1 u - P^-1 u)' K_theta P^-1 u],      u ~ N(0, P)

P is the preconditioner, a low-rank matrix plus a diagonal. The trace with P^-1 is exact and costs one pass over
K_theta, and only the difference between K and P is estimated with probes (Wenger et al., 2022). Probes from the prior,
as in a draw, would make all of the trace random. All steps use the same random numbers. Solutions then change little
between steps, and the last ones are good initial guesses.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..core.sites import Sites
from ..kernels import Kernel
from ..solvers import PCG, ConvergenceWarning, Solver, State
from ..solvers.operator import KernelOperator
from ..solvers.pcg import PCGState
from ..solvers.preconditioner import LowRank, default_rank
from .hyperparameters import log_prior
from .likelihood import Dense, accumulate


class Pathwise:
    """An estimate of the gradient of log p(y | hyperparameters) + log prior in the vector."""

    # the preconditioner is made again when a hyperparameter has moved by this much on its logarithmic scale
    fresh = 0.2

    def __init__(self, of: Dense, solver: Solver, num_probes: int, seed: int) -> None:
        self.hyperparameters, self.y, self.tasks, self.priors = of.hyperparameters, of.y, of.tasks, of.priors
        self.X = of.X.float() if of.X.is_cuda else of.X
        self.solver, self.num_probes, self.seed = solver, num_probes, seed
        self.guess: Tensor | None = None  # [n, 1 + s]
        self.iterations = 0
        # the vector it was made at, the preconditioner, and its probes u and v [n, s]
        self.made: tuple[Tensor, LowRank, Tensor, Tensor] | None = None

    def __call__(self, vector: Tensor) -> Tensor:
        h = self.hyperparameters

        def slopes(leaves: list[Tensor]) -> list[Tensor | None]:
            kernel, noise, mean = h.model(leaves, len(self.X), self.tasks)
            m = mean.at(Sites(self.X.double(), self.tasks))  # [n]
            with torch.no_grad():
                weights = self._weights(vector.detach(), kernel.owned(), noise.detach(), m.detach())
            accumulate(kernel.to(self.X.dtype), Sites(self.X, self.tasks), weights)
            rest = (m * weights.a.double()).sum() + (noise * weights.diagonal().double()).sum()
            if self.priors:
                rest = rest + log_prior(h.leaves, leaves, self.priors).to(rest)
            if rest.requires_grad:
                rest.backward()
            return [leaf.grad for leaf in leaves]

        return h.pulled_back(vector, slopes)

    def _weights(self, vector: Tensor, kernel: Kernel, noise: Tensor, m: Tensor) -> _Weights:
        """d log p / dK, from solves whose initial guesses are the last step's solutions."""
        X = self.X
        operator = KernelOperator(kernel.to(X.dtype), Sites(X, self.tasks), noise.to(X))
        P, u, v, state = self._preconditioned(vector, operator)
        b = torch.cat([(self.y - m).to(X)[:, None], u], dim=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # if a solve does not converge, later steps correct it
            V, stats = state.solve(b, self.guess)
        self.guess, self.iterations = V, self.iterations + stats.iterations
        return _Weights(V[:, 0], P, V[:, 1:] - v, v)

    def _preconditioned(self, vector: Tensor, operator: KernelOperator) -> tuple[LowRank, Tensor, Tensor, State]:
        """A preconditioner, which may be that of an earlier step, its probes, and a state to solve with."""
        own = isinstance(self.solver, PCG) and not self.solver.distributed
        if self.made is None or float((vector - self.made[0]).abs().max()) >= self.fresh:
            rank = self.solver.rank if isinstance(self.solver, PCG) else None
            P = LowRank(operator, min(default_rank(operator) if rank is None else rank, operator.size), share=1.0)
            u, v = P.probes(self.num_probes, torch.Generator().manual_seed(self.seed))
            self.made = vector, P, u, v
            if self.guess is not None:
                self.guess = torch.cat([self.guess[:, :1], v], dim=1)
        _, P, u, v = self.made
        return P, u, v, PCGState(self.solver, operator, P) if own else self.solver.init(operator)


class _Weights:
    """d log p / dK = 1/2 (a a' - P^-1 - mean of e v'), made symmetric and computed block by block."""

    def __init__(self, a: Tensor, P: LowRank, e: Tensor, v: Tensor) -> None:
        self.a, self.P = a, P
        share = -0.5 / e.shape[1]
        self.left = torch.cat([a[:, None], share * e, share * v], dim=1)  # [n, 1 + 2 s]
        self.right = torch.cat([a[:, None], v, e], dim=1)

    def diagonal(self) -> Tensor:
        return 0.5 * ((self.left * self.right).sum(1) - self.P.inverse_diagonal())

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        W = self.left[rows] @ self.right[columns].mT - self.P.inverse(rows, columns)
        return W.mul_(0.5)
