"""Operators, solvers and their states: factor once, then solve for many right-hand sides.

An *operator* is a covariance K + diag(noise) that can be multiplied with and looked into. A *solver* is a frozen value
with settings of its own; `init` makes its state from an operator (a factor, a preconditioner), and `solve` uses that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.sites import Sites
from ..kernels import Kernel
from .processes import ALONE, Processes

# Noise counts as at least this share of the mean variance where errors are compared with it.
_SMALLEST = 1e-8


class Operator(ABC):
    """A covariance K + diag(noise) of n observations, K symmetric and positive semi-definite.

    Where several processes share the work each holds some of the rows: its part. V, noise and diagonal are then the
    part's rows alone.
    """

    noise: Tensor  # [n]
    processes: Processes = ALONE

    @property
    def size(self) -> int:
        """n."""
        return len(self.noise)

    @property
    def dtype(self) -> torch.dtype:
        return self.noise.dtype

    @property
    def device(self) -> torch.device:
        return self.noise.device

    @abstractmethod
    def product(self, V: Tensor) -> Tensor:
        """K V for V `[n, r]`, without the noise: `[n, r]`."""

    @abstractmethod
    def rows(self, index: Tensor | slice) -> Tensor:
        """Some rows of K, `[k, n]`, without the noise; the index counts all rows, the columns are the part's."""

    def product_rows(self, index: Tensor, V: Tensor) -> Tensor:
        """Some rows of K V for V `[n, r]`: `[k, r]`."""
        return self.rows(index) @ V

    def block(self, index: Tensor) -> Tensor:
        """Some rows and the same columns of K, `[k, k]`, in float64."""
        return self.rows(index)[:, index].double()

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of K, `[n]`, without the noise."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """K, `[n, n]`, without the noise, in memory of its own; differentiable where a graph is kept."""

    def cross(self, x: Sites) -> Tensor:
        """The prior covariance k(X, x) of the observations' values and the function at sites x: `[n, p]`."""
        raise TypeError(f"{type(self).__name__} knows no covariance with other points")

    def prior_variance(self, x: Sites) -> Tensor:
        """k(x, x) point by point: `[p]`."""
        raise TypeError(f"{type(self).__name__} knows no covariance at other points")

    def prior_covariance(self, x: Sites) -> Tensor:
        """k(x, x) `[p, p]`."""
        raise TypeError(f"{type(self).__name__} knows no covariance at other points")

    def residual(self, b: Tensor, x: Tensor) -> Tensor:
        """b - (K + diag(noise)) x for b and x `[n, r]`, in float64."""
        x = x.double()
        return b.double() - self.product(x) - self.noise.double()[:, None] * x

    def shared(self, processes: Processes) -> Operator:
        """This process's part of the operator."""
        raise TypeError(f"{type(self).__name__} cannot be shared among processes")

    def magnitude(self) -> Tensor:
        """The size `[n]` of the terms that make up the diagonal of K + diag(noise): rounding is relative to it."""
        return self.diagonal() + self.noise

    def trace(self) -> float:
        """That of K + diag(noise), a bound on its largest eigenvalue."""
        return float(self.magnitude().detach().sum())

    def requires_graph(self) -> bool:
        """Whether K or the noise is part of an autograd graph, and one is being recorded."""
        return torch.is_grad_enabled() and self.noise.requires_grad


@dataclass(frozen=True)
class Stats:
    """How a solve went.

    Attributes:
        solver: which solver ran, with its settings.
        iterations: how many iterations it took; 0 for a factorisation.
        residual: the largest |b - (K + noise) x| / |b| over the right-hand sides; None where it was not measured.
        converged: whether the tolerance was met.
        jitter: what had to be added to the diagonal.
    """

    solver: str
    iterations: int = 0
    residual: float | None = None
    converged: bool = True
    jitter: float = 0.0


def floored(variances: Tensor, operator: Operator) -> Tensor:
    """Variances of noise, or of a posterior at data, as at least 1e-8 of the prior's: what errors are compared with."""
    mean = operator.processes.sum(operator.diagonal().double().sum()) / operator.size
    return torch.maximum(variances.double(), _SMALLEST * mean)


class State(ABC):
    """What a solver made of an operator: a factor, or a preconditioner."""

    solver: Solver
    operator: Operator
    # What had to be added to the diagonal to factor it. It counts as noise in a path.
    jitter: float = 0.0
    # A bound on the largest eigenvalue of K + diag(noise), where one is known.
    largest: float = math.inf

    def solve(self, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """(K + diag(noise))^-1 b by the solver that made this state, in the dtype of b."""
        if self.solver.mixed or b.dtype == self.operator.dtype:
            return self.solver.solve(self, b, guess)
        dtype = self.operator.dtype
        x, stats = self.solver.solve(self, b.to(dtype), None if guess is None else guess.to(dtype))
        return x.to(b.dtype), stats

    def deviations(self, rows: Tensor) -> Tensor:
        """The posterior standard deviation of the function at some observations `[k]`, or about as much."""
        operator = self.operator
        return operator.processes.gather(floored(operator.noise, operator), operator.size)[rows].sqrt()


S = TypeVar("S", bound=State)


class Conditionable(Protocol):
    """An update of prior paths that can be given more data: see `paths.update.Update`, which is one."""

    def given(self, prior: Any, mean: Any, new: Any, solver: Solver, generator: torch.Generator) -> tuple[Any, Any]: ...


class Solver(ABC, Generic[S]):
    """A way to solve (K + diag(noise)) x = b: a frozen dataclass of its settings, each with a default.

    One that iterates may have a field `progress`, which `draw(..., progress=True)` sets.
    """

    shorthand: ClassVar[str | None] = None  # `draw(..., solver=shorthand)` takes it with its defaults
    for_centres: ClassVar[bool] = True  # whether it solves for weights on k(., X), with `init` and `solve`
    mixed: ClassVar[bool] = False  # whether b may be in float64 where the operator is in float32, and x is then, too

    @abstractmethod
    def init(self, operator: Operator) -> S:
        """Factor the operator, or make what iterations need."""

    @abstractmethod
    def solve(self, state: S, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """x `[n, r]` for right-hand sides b `[n, r]`, and how it went; `guess [n, r]` is where iterations start."""

    def condition(
        self, prior: Any, update: Conditionable, mean: Any, new: Any, generator: torch.Generator
    ) -> tuple[Any, Any]:
        """The prior and the update of the same draw, given more data.

        A solver that does not solve for weights of k(., X) overrides this.
        """
        return update.given(prior, mean, new, self, generator)


@dataclass(frozen=True)
class FactoredPosterior:
    """What a draw knows before it has features: a kernel, centres, and the factored covariance there.

    For an exact model the centres are X and the noise the observations'; for a sparse one Z and the jitter.
    """

    kernel: Kernel
    sites: Sites  # the centres, m of them
    noise: Tensor  # [m]
    state: State | None  # None where it is not factored: a choice of frequencies then uses some of the centres

    def solve(self, b: Tensor) -> Tensor:
        """(K + diag(noise))^-1 b for b `[m, r]`."""
        assert self.state is not None
        return self.state.solve(b)[0]
