"""What every solver must pass: all that `matheron.solvers` exports, with their defaults."""

import inspect
from dataclasses import fields

import pytest
import torch

from examples import B2, gen, rand, randn
from matheron import ExactGP, Sites, SparseGP, draw, solvers
from matheron import kernels as K
from matheron.lattice import FourierLattice
from matheron.solvers import Cholesky, KernelOperator, Solver

EXPORTED = [kind for kind in vars(solvers).values() if inspect.isclass(kind) and issubclass(kind, Solver)]
# FourierLattice solves for a lattice's weights, and for no operator.
SOLVERS = [kind() for kind in EXPORTED if not inspect.isabstract(kind) and kind is not FourierLattice]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)


def operator_of(n: int = 60) -> KernelOperator:
    """Two outputs, with noise of their own."""
    tasks, noise = torch.arange(n) % 2, 0.05 + 0.1 * rand(n, seed=2)
    return KernelOperator(K.Coregional(K.Matern(1.5, 0.4), B2) + K.Linear(), Sites(rand(n, 2), tasks), noise)


@every_solver
@pytest.mark.filterwarnings("error")
def test_solutions_are_the_dense_ones_and_what_is_said_of_them_is_true(solver):
    operator = operator_of()
    b = randn(60, 4, seed=1) * torch.tensor([1.0, 0.0, 1e3, 1e-2], dtype=torch.float64)
    matrix = operator.dense() + torch.diag(operator.noise)
    x, stats = solver.init(operator).solve(b)
    torch.testing.assert_close(x, torch.linalg.solve(matrix, b), rtol=0.02, atol=0.02 * float(b.abs().max()))
    assert torch.equal(x[:, 1], torch.zeros_like(x[:, 1])) and stats.converged and stats.jitter == 0
    if stats.residual is not None:
        relative = (b - matrix @ x).norm(dim=0) / b.norm(dim=0).clamp_min(1e-300)
        assert stats.residual == pytest.approx(float(relative.max()), rel=1e-3, abs=1e-9)


@every_solver
def test_a_solution_as_a_guess_stays_as_it_is(solver):
    state, b = solver.init(operator_of()), randn(60, 3)
    x, _ = state.solve(b)
    again, stats = state.solve(b, x)
    torch.testing.assert_close(again, x, rtol=1e-9, atol=1e-9)
    assert stats.iterations == 0


@every_solver
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_paths_err_by_less_than_a_hundredth_of_their_standard_deviation(solver, dtype):
    X, noise = randn(150, 2), 0.01
    exact = ExactGP(K.Matern(1.5, 0.5), X, (3 * X[:, 0]).sin(), noise)
    sparse = SparseGP(K.Matern(1.5, 0.5), X[:40], randn(40), jitter=noise)
    for gp in (exact, sparse):
        ours, dense = (
            draw(gp, 4, solver=s, num_features=64, features="sobol", dtype=dtype, generator=gen())
            for s in (solver, Cholesky())
        )
        error = (ours(X) - dense(X)) / noise**0.5  # the posterior's deviation at the data is below the noise's
        assert error.square().mean().sqrt() < 0.01
    more, wanted = (
        p.condition_on(X[:3] + 0.1, X[:3, 0], noise=noise, solver=s, seed=0)
        for p, s in ((ours, solver), (dense, Cholesky()))
    )
    assert ((more(X) - wanted(X)) / noise**0.5).square().mean().sqrt() < 0.02


@every_solver
def test_a_graph_is_kept_or_refused(solver):
    lengthscale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    gp = ExactGP(K.RBF(lengthscale), rand(6, 2), randn(6), 0.1)
    try:
        paths = draw(gp, 2, solver=solver, features="sobol", detach=False, seed=0)
    except ValueError as refusal:
        assert 'keeps no graph: use solver="cholesky" here' in str(refusal)
    else:
        assert torch.autograd.grad(paths(rand(3, 2)).sum(), lengthscale)[0] != 0


@every_solver
def test_progress_is_shown_by_solvers_that_have_it_and_only_where_asked(solver, capsys):
    gp = ExactGP(K.RBF(0.3), rand(200, 2), randn(200), 0.01)
    for progress in (False, True):
        draw(gp, 1, solver=solver, features="sobol", progress=progress)
        shown = capsys.readouterr().err
        iterates = any(f.name == "progress" for f in fields(solver)) and not isinstance(solver, solvers.Auto)
        assert bool(shown) == (progress and iterates)  # "auto" takes Cholesky here


@every_solver
def test_a_shorthand_is_the_solver_with_its_defaults(solver):
    assert solver.shorthand is None or solvers.as_solver(solver.shorthand) == solver
