"""A solver of one's own: `init` and `solve`, and all that takes a solver takes it, by its shorthand too."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.solvers import Operator, Solver, State, Stats


class EigenState(State):
    def __init__(self, solver: Solver, operator: Operator) -> None:
        self.solver, self.operator = solver, operator
        self.values, self.vectors = torch.linalg.eigh(operator.dense() + torch.diag(operator.noise))


@dataclass(frozen=True)
class Eigen(Solver):
    shorthand: ClassVar[str] = "eigen"
    progress: bool = False

    def init(self, operator: Operator) -> EigenState:
        return EigenState(self, operator)

    def solve(self, state: EigenState, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        return state.vectors @ (state.vectors.mT @ b / state.values[:, None]), Stats("Eigen()")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_solver_of_ones_own_draws_conditions_and_chooses_features(dtype):
    gp, x = matheron.ExactGP(K.Matern(1.5, 0.3), rand(30, 2).to(dtype), randn(30), 0.01), rand(5, 2, seed=1).to(dtype)
    within = 1e-6 if dtype == torch.float64 else 1e-3
    ours, wanted = (matheron.draw(gp, 3, solver=solver, seed=0, progress=True) for solver in ("eigen", "cholesky"))
    assert ours.solver_stats == Stats("Eigen()")
    torch.testing.assert_close(ours(x), wanted(x), rtol=within, atol=within)
    more = [paths.condition_on(x, x[:, 0], noise=0.1, solver=Eigen(), generator=gen()) for paths in (ours, wanted)]
    torch.testing.assert_close(more[0](x), more[1](x), rtol=within, atol=within)
