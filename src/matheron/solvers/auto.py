"""Which solver: by its shorthand, and "auto"."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core.engines import load_engines
from .base import Operator, Solver, State, Stats
from .block_descent import LEAST_RANK, BlockDescent
from .cholesky import Cholesky, working_dtype
from .pcg import PCG
from .preconditioner import largest_rank

# What "auto" lets a dense factor take, in bytes: on a CPU this many (n = 20,000 in float64), on a GPU this share of all
# the memory it has (n = 100,000 in float64 on one with 139 GiB). Not of what happens to be free: a draw must not
# depend on that.
MEMORY_ON_CPU = 3_200_000_000
SHARE_OF_GPU = 0.55


@dataclass(frozen=True)
class Auto(Solver[State]):
    """`Cholesky()` while its n^2 numbers fit in `memory`, `PCG()` beyond; `Cholesky()` wherever a graph is kept.

    `BlockDescent()` takes the place of `PCG()` where memory for its preconditioner (2 GB on a CPU, half of a GPU's)
    ends at a rank below 5 sqrt(n): in float64 from 136,000 observations on a CPU.

    Args:
        memory: bytes that a dense factor may take; None is 3.2 GB on a CPU and 55% of a GPU's memory.
        tolerance: of `PCG` and `BlockDescent`.
        progress: of `PCG` and `BlockDescent`.
    """

    shorthand: ClassVar[str] = "auto"
    memory: int | None = None
    tolerance: float = 0.01
    progress: bool = False

    def choose(self, operator: Operator) -> Solver:
        """The solver for this operator, by n, dtype, noise and device, and by nothing that varies between runs."""
        memory = self.memory
        if memory is None:
            device = operator.device
            total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
            memory = int(SHARE_OF_GPU * total) or MEMORY_ON_CPU
        if 8 * operator.size**2 <= memory or operator.requires_graph():
            return Cholesky()
        if 4 * operator.size**2 <= memory and working_dtype(operator, operator.trace()) == torch.float32:
            return Cholesky()
        if largest_rank(operator) < LEAST_RANK * operator.size**0.5:
            return BlockDescent(self.tolerance, progress=self.progress)
        return PCG(self.tolerance, progress=self.progress)

    def init(self, operator: Operator) -> State:
        return self.choose(operator).init(operator)

    def solve(self, state: State, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        return state.solve(b, guess)


def as_solver(solver: str | Solver, progress: bool = False) -> Solver:
    """A solver from its shorthand or from itself; with its progress bar, where it has one and it is asked for."""
    if isinstance(solver, Solver):
        if progress and is_dataclass(solver) and any(field.name == "progress" for field in fields(solver)):
            return replace(solver, progress=True)
        return solver
    load_engines()  # some have solvers
    named = {kind.shorthand: kind for kind in Solver.__subclasses__() if kind.shorthand is not None}
    if solver not in named:
        raise ValueError(
            f"solver: expected one of {', '.join(sorted(named))}, got {solver!r}; or give a value such as "
            "matheron.solvers.PCG(tolerance=1e-3)"
        )
    return as_solver(named[solver](), progress)
