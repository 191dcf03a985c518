"""The gradient of the log marginal likelihood for large n, estimated from draws of the prior (Lin et al., 2024).

    d log p / dtheta  =  1/2 a' K_theta a - 1/2 E[z' K_theta z],      a = K^-1 (y - m),  z = K^-1 (f + eps)

f is a draw of the prior and eps of the noise, so that z has covariance K^-1: the solves are those of a draw. Each probe
has a basis of its own, since probes that share one have its covariance and not the prior's. The same random numbers
serve every step, so that solutions change little between steps and the last ones are where the next begin.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from ..drawing import draw_prior
from ..kernels import Kernel
from ..operators import KernelOperator
from ..solvers import PCG, ConvergenceWarning, Solver, State
from ..solvers.pcg import PCGState
from .hyperparameters import Hyperparameters, Prior, log_prior
from .likelihood import accumulate, mean_at

# Of each probe's basis: estimates are unbiased with any number. With this many their standard deviation is up to twice
# that with exact draws, with 256 up to four times.
_FEATURES = 1024
_FRESH = 0.2  # a preconditioner serves until a hyperparameter has moved by so much, on its logarithmic scale


class Pathwise:
    """An estimate of the gradient of log p(y | hyperparameters) + log prior in the vector."""

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        X: Tensor,
        y: Tensor,
        tasks: Tensor | None,
        priors: Mapping[str, Prior],
        solver: Solver,
        num_probes: int,
        seed: int,
    ) -> None:
        self.hyperparameters, self.X, self.y, self.tasks, self.priors = hyperparameters, X, y, tasks, priors
        self.solver, self.num_probes = solver, num_probes
        # two seeds that are not near each other: equal streams for the prior and the noise would correlate them
        self.seed, other = torch.randint(2**31, (2,), generator=torch.Generator().manual_seed(seed)).tolist()
        generator = torch.Generator().manual_seed(other)
        xi = torch.randn(len(X), num_probes, generator=generator, dtype=torch.float64)
        self.xi = xi.to(X)  # [n, s]; eps = sqrt(noise) xi
        self.guess: Tensor | None = None  # [n, 1 + s]
        self.iterations = 0
        self.last: tuple[Tensor, PCGState] | None = None  # where a preconditioner was made

    def __call__(self, vector: Tensor) -> Tensor:
        h = self.hyperparameters

        def slopes(leaves: list[Tensor]) -> list[Tensor | None]:
            kernel, noise, mean = h.model(leaves, len(self.X), self.tasks)
            m = mean_at(mean, self.X.double(), self.tasks)  # [n]
            V = self._solved(vector.detach(), kernel, noise.detach(), m.detach())  # [n, 1 + s]
            signs = torch.full((V.shape[1],), -0.5 / self.num_probes).to(V)
            signs[0] = 0.5
            # dlog p/dK = 1/2 (a a' - mean of z z'): some rows of it at a time
            weighted = V * signs  # [n, 1 + s]
            accumulate(kernel.to(V.dtype), self.X, self.tasks, lambda rows, columns: weighted[rows] @ V[columns].mT)
            rest = (m * V[:, 0].double()).sum() + (noise * (weighted * V).sum(1).double()).sum()
            if self.priors:
                rest = rest + log_prior(h.leaves, leaves, self.priors).to(rest)
            if rest.requires_grad:
                rest.backward()
            return [leaf.grad for leaf in leaves]

        return h.pulled_back(vector, slopes)

    @torch.no_grad()
    def _solved(self, vector: Tensor, kernel: Kernel, noise: Tensor, m: Tensor) -> Tensor:
        """a and every z, `[n, 1 + s]`, from where the last step's ended."""
        kernel, X = kernel.owned(), self.X
        f = self._prior(kernel)  # [n, s]
        b = torch.cat([(self.y - m).to(X)[:, None], f + noise.to(X).sqrt()[:, None] * self.xi], dim=1)
        state = self._state(vector, KernelOperator(kernel.to(X.dtype), X, self.tasks, noise.to(X)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a step that is a little off is corrected by the next
            V, stats = state.solve(b, self.guess)
        self.guess, self.iterations = V, self.iterations + stats.iterations
        return V

    def _state(self, vector: Tensor, operator: KernelOperator) -> State:
        """The operator with what its solver needs: a preconditioner of this step, or of one of the last."""
        if self.last is not None and float((vector - self.last[0]).abs().max()) < _FRESH:
            return PCGState(self.last[1].solver, operator, self.last[1].preconditioner)
        state = self.solver.init(operator)
        shared = isinstance(self.solver, PCG) and self.solver.distributed
        self.last = (vector, state) if isinstance(state, PCGState) and not shared else None
        return state

    def _prior(self, kernel: Kernel) -> Tensor:
        """Draws of the prior at the data, each from a basis of its own; the same numbers at every step: `[n, s]`."""
        paths = draw_prior(
            kernel,
            self.num_probes,
            input_dim=self.X.shape[1],
            num_features=_FEATURES,
            features="sincos",
            paths_per_basis=1,
            seed=self.seed,
            dtype=self.X.dtype,
            device=self.X.device,
        )
        f = paths(self.X)  # [s, n] or [s, n, t]
        if self.tasks is not None:
            f = f.gather(2, self.tasks[None, :, None].expand(len(f), -1, 1))[..., 0]
        return f.mT
