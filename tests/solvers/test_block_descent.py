"""Block descent: the dense answer in the memory of a block, and the truth about convergence."""

from typing import Any

import pytest
import torch

from examples import B2, gen, rand, randn
from matheron import ExactGP, Sites, draw
from matheron import kernels as K
from matheron.solvers import BlockDescent, Cholesky, ConvergenceWarning, KernelOperator


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("noise", [1e-2, 1e-1])
def test_a_path_errs_by_less_than_a_hundredth_of_its_standard_deviation(noise, dtype):
    X = randn(200, 2)
    gp = ExactGP(K.Matern(1.5, 0.5), X, (3 * X[:, 0]).sin(), noise)
    settings: dict[str, Any] = dict(num_features=64, features="sobol", dtype=dtype)
    paths = draw(gp, 4, solver=BlockDescent(block=70), generator=gen(), **settings)
    exact = draw(gp, 4, solver="cholesky", generator=gen(), **settings)
    assert paths.solver_stats is not None and paths.solver_stats.solver == "BlockDescent(tolerance=0.01, block=70)"
    error = (paths(X) - exact(X)) / noise**0.5  # the posterior's deviation at the data is below the noise's
    assert error.square().mean().sqrt() < 0.01


def test_tasks_and_a_guess_are_taken():
    kernel, n = K.Coregional(K.RBF(0.4), B2), 60
    tasks, noise = torch.arange(n) % 2, torch.full((n,), 0.1, dtype=torch.float64)
    operator, b = KernelOperator(kernel, Sites(rand(n, 2), tasks), noise), randn(n, 3)
    solver = BlockDescent(tolerance=1e-5, block=25)
    exact = Cholesky().init(operator).solve(b)[0]
    x, stats = solver.init(operator).solve(b)
    torch.testing.assert_close(x, exact, rtol=1e-3, atol=1e-3)
    assert stats.converged and solver.init(operator).solve(b, x)[1].iterations == 0


def test_a_jitter_of_blocks_is_no_noise_and_is_not_said_to_be():
    X = rand(40, 1).repeat(2, 1)
    gp = ExactGP(K.RBF(0.5), X, X[:, 0], 0.0)
    with pytest.warns() as said:
        draw(gp, 2, solver=BlockDescent(block=60, max_epochs=5), features="sobol", generator=gen())
    assert {warning.category for warning in said} == {ConvergenceWarning}


def test_what_is_said_of_the_residual_is_true():
    noise, b = torch.full((50,), 1e-4, dtype=torch.float64), randn(50, 1)
    operator = KernelOperator(K.RBF(0.5), Sites(rand(50, 2)), noise)
    with pytest.warns(ConvergenceWarning, match=r"after 5 epochs at a relative residual of.*solver=\"cg\""):
        x, stats = BlockDescent(block=10, max_epochs=5).init(operator).solve(b)
    residual = b - (operator.dense() + torch.diag(noise)) @ x
    assert stats.residual == pytest.approx(float(residual.norm() / b.norm())) and not stats.converged
