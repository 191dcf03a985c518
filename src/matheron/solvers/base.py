"""Solvers and their states: factor once, then solve for many right-hand sides. Also the shorthands of solvers.

A *solver* is a frozen value with settings of its own; `init` makes its state from an operator (a factor, a
preconditioner), and `solve` uses that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..core.functionals import Observed
from ..kernels import Kernel
from .operator import Operator, memory_of


@dataclass(frozen=True)
class Stats:
    """The result of a solve: which solver ran, and how accurate it was.

    Attributes:
        solver: which solver ran, with its settings.
        iterations: how many iterations it took; 0 for a factorisation.
        residual: the largest |b - (K + noise) x| / |b| over the right-hand sides; None where it was not measured.
        converged: whether the tolerance was met.
        jitter: the number that was added to the diagonal, 0 if none.
    """

    solver: str
    iterations: int = 0
    residual: float | None = None
    converged: bool = True
    jitter: float = 0.0


def floored(variances: Tensor, operator: Operator, least: float = 1e-8) -> Tensor:
    """Raise variances (of noise, or of a posterior at data) to at least this share of the prior's. Errors are compared
    with the result."""
    mean = operator.processes.sum(operator.diagonal().double().sum()) / operator.size
    return torch.maximum(variances.double(), least * mean)


class State(ABC):
    """The state of a solver for an operator: a factor or a preconditioner.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> operator = solvers.KernelOperator(kernels.RBF(), Sites(torch.zeros(1, 1, dtype=torch.float64)), torch.ones(1))
    >>> state = solvers.Cholesky().init(operator)
    >>> isinstance(state, solvers.State), state.solve(torch.ones(1, 1, dtype=torch.float64))[0]
    (True, tensor([[0.5000]], dtype=torch.float64))
    """

    solver: Solver
    operator: Operator
    # The number that the factorisation added to the diagonal. It counts as noise in a path.
    jitter: float = 0.0
    # An upper bound on the largest eigenvalue of K + diag(noise), or None.
    largest: float = math.inf

    def solve(self, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """(K + diag(noise))^-1 b by the solver that made this state, in the dtype of b."""
        if self.solver.mixed or b.dtype == self.operator.dtype:
            return self.solver.solve(self, b, guess)
        dtype = self.operator.dtype
        x, stats = self.solver.solve(self, b.to(dtype), None if guess is None else guess.to(dtype))
        return x.to(b.dtype), stats

    def deviations(self, rows: Tensor) -> Tensor:
        """The posterior standard deviation of the function at some observations `[k]`, possibly approximate."""
        operator = self.operator
        return operator.processes.gather(floored(operator.noise, operator), operator.size)[rows].sqrt()


S = TypeVar("S", bound=State)


class Conditionable(Protocol):
    """An update of prior paths that can be conditioned on more data, such as `paths.update.Update`."""

    def given(self, prior: Any, mean: Any, new: Any, solver: Solver, generator: torch.Generator) -> tuple[Any, Any]: ...


class Solver(ABC, Generic[S]):
    """A way to solve (K + diag(noise)) x = b: a frozen dataclass of its settings, each with a default.

    One that iterates may have a field `progress`, which `draw(..., progress=True)` sets.

    >>> from matheron import solvers
    >>> isinstance(solvers.PCG(tolerance=1e-3), solvers.Solver)
    True
    """

    shorthand: ClassVar[str | None] = None  # the name for `draw(..., solver=shorthand)`, with default settings
    for_centres: ClassVar[bool] = True  # whether it solves for weights of k(., X), by `init` and `solve`
    mixed: ClassVar[bool] = False  # whether b and the solution may be float64 although the operator is float32

    @abstractmethod
    def init(self, operator: Operator) -> S:
        """Factor the operator, or make the preconditioner."""

    @abstractmethod
    def solve(self, state: S, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """Solve for right-hand sides b `[n, r]`. Returns x `[n, r]` and the `Stats`; iterations start from `guess [n,
        r]`."""

    def condition(
        self, prior: Any, update: Conditionable, mean: Any, new: Any, generator: torch.Generator
    ) -> tuple[Any, Any]:
        """The prior and the update of the same draw, given more data.

        A solver that does not solve for weights of k(., X) overrides this.
        """
        return update.given(prior, mean, new, self, generator)


@dataclass(frozen=True)
class FactoredPosterior:
    """The state of a draw before it has features: a kernel, centres, and the factored covariance there.

    For an exact model the centres are X and the noise the observations'; for a sparse one Z and the jitter.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> k, sites, noise = kernels.RBF(), Sites(torch.zeros(1, 1, dtype=torch.float64)), torch.ones(1)
    >>> state = solvers.Cholesky().init(solvers.KernelOperator(k, sites, noise))
    >>> solvers.FactoredPosterior(k, sites, noise, state).solve(torch.ones(1, 1, dtype=torch.float64))
    tensor([[0.5000]], dtype=torch.float64)
    """

    kernel: Kernel
    sites: Observed  # the centres, m of them
    noise: Tensor  # [m]
    state: State | None  # None if the covariance is not factored: then frequencies are chosen from some of the centres

    def solve(self, b: Tensor) -> Tensor:
        """(K + diag(noise))^-1 b for b `[m, r]`."""
        assert self.state is not None
        return self.state.solve(b)[0]


@dataclass(frozen=True)
class Auto(Solver[State]):
    """Chooses `Cholesky()` if its n^2 numbers fit in `memory` or a graph is kept, and otherwise `PCG()`.

    The rank of the preconditioner of `PCG()` is limited by memory: 2 GB on a CPU, half of a GPU's. Where the limit is
    below 5 sqrt(n), `BlockDescent()` takes the place of `PCG()`: on a CPU in float64, from 136,000 observations.

    Args:
        memory: bytes that a dense factor may take; None is 3.2 GB on a CPU (n = 20,000 in float64) and 55% of a GPU's
            memory (n = 100,000 in float64 on one with 139 GiB).
        tolerance: of `PCG` and `BlockDescent`.
        progress: of `PCG` and `BlockDescent`.
        least_rank: `BlockDescent()` is taken where memory ends at a lower rank than this times sqrt(n): there it takes
            fewer products than conjugate gradients do (measured).
    """

    shorthand: ClassVar[str] = "auto"
    memory: int | None = None
    tolerance: float = 0.01
    progress: bool = False
    least_rank: int = 5

    def choose(self, operator: Operator) -> Solver:
        """The solver for this operator. It depends on n, dtype, noise and device only, so that runs can be repeated."""
        # these modules define subclasses of Solver, so this one cannot import them first
        from .block_descent import BlockDescent
        from .cholesky import Cholesky, working_dtype
        from .pcg import PCG
        from .preconditioner import largest_rank

        memory = memory_of(operator.device, 3_200_000_000, 0.55) if self.memory is None else self.memory
        if 8 * operator.size**2 <= memory or operator.requires_graph():
            return Cholesky()
        if 4 * operator.size**2 <= memory and working_dtype(operator, operator.trace()) == torch.float32:
            return Cholesky()
        if largest_rank(operator) < self.least_rank * operator.size**0.5:
            return BlockDescent(self.tolerance, progress=self.progress)
        return PCG(self.tolerance, progress=self.progress)

    def init(self, operator: Operator) -> State:
        return self.choose(operator).init(operator)

    def solve(self, state: State, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        return state.solve(b, guess)


# The engines by name: packages that add solvers, features or evaluators when they are imported. `draw` imports
# all of them; a process into which paths come from a pickle has not.
ENGINES = ("matheron.lattice",)


def load_engines() -> None:
    """Import every engine, so that its solvers, features and evaluators are registered."""
    for name in ENGINES:
        import_module(name)


def as_solver(solver: str | Solver, progress: bool = False) -> Solver:
    """A solver from its shorthand, or the solver itself, with a progress bar if requested and available.

    >>> from matheron import solvers
    >>> type(solvers.as_solver("cg")).__name__
    'PCG'
    """
    if isinstance(solver, Solver):
        if progress and is_dataclass(solver) and any(field.name == "progress" for field in fields(solver)):
            return replace(solver, progress=True)
        return solver
    load_engines()  # some engines define solvers
    named = {kind.shorthand: kind for kind in Solver.__subclasses__() if kind.shorthand is not None}
    if solver not in named:
        raise ValueError(
            f"solver: expected one of {', '.join(sorted(named))}, got {solver!r}; or give a value such as "
            "matheron.solvers.PCG(tolerance=1e-3)"
        )
    return as_solver(named[solver](), progress)
