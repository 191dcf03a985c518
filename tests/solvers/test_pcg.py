"""Conjugate gradients: Cholesky's answers, the covariance never formed, and the truth about convergence."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from examples import gen, model, rand, randn
from matheron import ExactGP, Sites, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.solvers import (
    PCG,
    Auto,
    BlockDescent,
    CholeskyState,
    ConvergenceWarning,
    KernelOperator,
    PCGState,
    Solver,
    State,
    as_solver,
    pcg,
)

TIGHT = PCG(tolerance=1e-7)


def noises(n: int, noise: Any) -> Tensor:
    return torch.as_tensor(noise, dtype=torch.float64).expand(n)


def state_of(kernel: K.Kernel, X: Tensor, tasks: Tensor | None, noise: Tensor, solver: str | Solver) -> State:
    return as_solver(solver).init(KernelOperator(kernel, Sites(X, tasks), noise))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("noise", [1e-4, 0.1, "one per point"])
@pytest.mark.parametrize(
    "kernel", [K.RBF(0.3), K.Matern(1.5, 0.3) + K.Linear(), 5.0 * K.Matern(0.5, 0.3)], ids=lambda k: type(k).__name__
)
@pytest.mark.parametrize("n", [1, 40, 400])
def test_it_agrees_with_cholesky_on_a_batch_of_right_hand_sides(kernel, noise, n):
    """The batch has a column of zeros, a large one and a small one: each converges on its own scale."""
    X, b = rand(n, 2), randn(n, 5, seed=1) * torch.tensor([1.0, 0.0, 1e3, 1e-1, 1.0], dtype=torch.float64)
    noise = noises(n, rand(n, seed=2) + 0.01 if noise == "one per point" else noise)
    exact = state_of(kernel, X, None, noise, "cholesky").solve(b)[0]
    answer = state_of(kernel, X, None, noise, PCG(tolerance=1e-4)).solve(b)[0]
    error = (answer - exact).norm(dim=0) / exact.norm(dim=0).clamp_min(1e-300)
    assert error.max() < 1e-3 and torch.equal(answer[:, 1], torch.zeros(n, dtype=torch.float64))


def test_single_precision_reaches_its_own_accuracy():
    X, b = rand(200, 2).float(), randn(200, 3).float()
    noise = torch.full((200,), 0.05)
    exact = state_of(K.RBF(0.3), X.double(), None, noise.double(), "cholesky").solve(b.double())[0]
    answer = state_of(K.RBF(0.3).to(torch.float32), X, None, noise, PCG(tolerance=1e-6)).solve(b)[0]
    assert (answer - exact).norm() / exact.norm() < 1e-5


class LargestTensor(TorchDispatchMode):
    """Records the most numbers of 8 bytes that any one operation's result holds."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(leaf.nbytes // 8 for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


@pytest.mark.parametrize("solver, formed", [("cg", False), ("cholesky", True)])
def test_the_covariance_is_never_formed(solver, formed):
    n = 2100  # more than two blocks of 1024 rows
    solver = PCG(rank=40) if solver == "cg" else solver
    state_of(K.RBF(), rand(9, 2), None, noises(9, 0.1), PCG()).solve(randn(9, 1))  # now the memory of blocks is there
    with LargestTensor() as mode:
        state_of(K.Matern(2.5, 0.3), rand(n, 2), None, noises(n, 0.1), solver).solve(randn(n, 4))[0]
    assert (mode.largest >= n * n) == formed
    assert formed or mode.largest <= 1024**2


def test_drawing_with_conjugate_gradients_never_forms_the_covariance():
    n = 2100
    state_of(K.RBF(), rand(9, 2), None, noises(9, 0.1), PCG()).solve(randn(9, 1))  # now the memory of blocks is there
    gp = ExactGP(K.Matern(2.5, 0.3), rand(n, 2), randn(n), 0.1)
    with LargestTensor() as mode:
        draw(gp, 4, num_features=64, features="sobol", solver=PCG(rank=40))
    assert mode.largest < n * n / 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["exact", "exact, coupled", "sparse"])
def test_paths_are_the_same_function_whichever_the_solver(name):
    gp, x = model(name), rand(6, 2)
    settings: dict[str, Any] = dict(num_features=16)
    one, other = (draw(gp, 3, solver=solver, generator=gen(), **settings) for solver in (TIGHT, "cholesky"))
    torch.testing.assert_close(one(x), other(x), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(one.mean(x), other.mean(x), rtol=1e-7, atol=1e-7)


def test_noise_free_duplicates_that_contradict_each_other_warn_and_stay_finite():
    X = rand(60, 2).repeat(2, 1)
    with pytest.warns(ConvergenceWarning, match=r"relative residual of .*the noise is small.*solver=\"cholesky\""):
        answer = state_of(K.RBF(0.5), X, None, noises(120, 0.0), PCG(max_iterations=100)).solve(randn(120, 2))[0]
    assert answer.isfinite().all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("noise", [1e-5, 1e-4, 1e-2])
def test_little_noise_in_single_precision_is_solved_all_the_same(noise):
    """Products in float32, their residual in float64: the answer of a float64 factorisation of the same numbers."""
    X, kernel = rand(200, 2).float(), K.Matern(1.5, 0.5)
    prior = draw_prior(kernel, 2, input_dim=2, generator=gen())(X.double()).mT
    b = (prior + noise**0.5 * randn(200, 2)).float()
    exact = state_of(kernel, X.double(), None, noises(200, noise), "cholesky").solve(b.double())[0]
    answer, stats = state_of(kernel.to(torch.float32), X, None, noises(200, noise).float(), PCG(rank=50)).solve(b)
    assert stats.converged and answer.dtype == torch.float32
    error = kernel(X.double()) @ (answer - exact)  # of a path at the data, where its deviation is the noise's
    assert error.norm() / 400**0.5 < 0.01 * noise**0.5


def test_what_is_said_of_the_residual_is_true():
    """Out of iterations it says how far it came, by the residual itself and not by the recursion's."""
    X, b, noise = rand(100, 2), randn(100, 1), noises(100, 1e-3)
    with pytest.warns(ConvergenceWarning, match="after 3 iterations.*above the tolerance of 0.01") as record:
        a, stats = state_of(K.Matern(1.5, 0.3), X, None, noise, PCG(rank=2, max_iterations=3)).solve(b)
    residual = b - (K.Matern(1.5, 0.3)(X) + torch.diag(noise)) @ a
    said = float(str(record[0].message).split("residual of ")[1].split(",")[0])
    assert said == pytest.approx(float(residual.norm() / b.norm()), rel=0.05)
    assert stats.residual == pytest.approx(said, rel=0.05) and stats.iterations == 3 and not stats.converged


def test_the_preconditioner_saves_iterations():
    def iterations(rank: int) -> int:
        state = state_of(K.RBF(0.5), rand(300, 2), None, noises(300, 1e-3), PCG(rank=rank))
        return state.solve(randn(300, 2))[1].iterations

    assert iterations(100) < iterations(1) / 4


# What the tolerance means.


def posterior_sd(kernel: K.Kernel, X: Tensor, noise: Tensor, x: Tensor) -> Tensor:
    L = torch.linalg.cholesky(kernel(X) + torch.diag(noise))
    A = torch.linalg.solve_triangular(L, kernel(X, x), upper=False)
    return (kernel(x).diagonal() - A.square().sum(0)).sqrt()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("noise", "rank"), [(1e-4, 20), (1e-4, None), (1e-2, None), (1e-1, 20)])
@pytest.mark.parametrize("kernel", [K.RBF(0.7), K.Matern(1.5, 0.5)], ids=lambda k: type(k).__name__)
def test_by_default_a_path_errs_by_less_than_a_hundredth_of_its_standard_deviation(kernel, noise, rank):
    """Root mean square over points; at no point by more than a tenth."""
    X, x = randn(400, 2), torch.cat([randn(400, 2)[:100], randn(100, 2, seed=5)])
    gp = ExactGP(kernel, X, (3 * X[:, 0]).sin() + noise**0.5 * randn(400, seed=3), noise)
    exact, paths = (draw(gp, 8, solver=s, generator=gen(), num_features=256) for s in ("cholesky", PCG(rank=rank)))
    sd = posterior_sd(kernel, X, gp.noise, x)
    error = (paths(x) - exact(x)) / sd
    assert error.square().mean().sqrt() < 0.01 and error.abs().max() < 0.1
    assert ((paths.mean(x) - exact.mean(x)) / sd).square().mean().sqrt() < 0.01


@pytest.mark.parametrize("rank", [15, None])
@pytest.mark.parametrize("kernel", [K.RBF(0.4), K.Matern(1.5, 0.3)], ids=lambda k: type(k).__name__)
def test_among_clustered_data_too_where_a_residual_is_no_independent_noise(kernel, rank):
    X = rand(8, 3).repeat_interleave(50, 0) + 0.003 * randn(400, 3)
    gp = ExactGP(kernel, X, (5 * X).sin().sum(1) + 0.1 * randn(400, seed=3), 1e-2)
    exact, paths = (draw(gp, 8, solver=s, generator=gen(), num_features=64) for s in ("cholesky", PCG(rank=rank)))
    x = X[::4] + 0.003 * randn(100, 3, seed=6)
    error = (paths(x) - exact(x)) / posterior_sd(kernel, X, gp.noise, x)
    assert error.square().mean().sqrt() < 0.01 and error.square().mean(1).sqrt().max() < 0.02


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("solver", ["cholesky", "cg", BlockDescent(block=100)], ids=["cholesky", "cg", "blocks"])
@pytest.mark.parametrize("noise", [1e-6, 1e-4])
def test_little_noise_among_clusters_leaves_single_precision_its_digits(noise, solver):
    """Weights are large there and cancel: in float32 alone paths err by 0.1 to 6 posterior standard deviations."""
    kernel = K.RBF(0.5)  # a number that float32 has
    X = (rand(8, 3).repeat_interleave(40, 0) + 0.01 * randn(320, 3)).float()
    x = (X[::4] + 0.003 * randn(80, 3, seed=6)).float()
    gp = ExactGP(kernel, X, (5 * X).sin().sum(1) + noise**0.5 * randn(320, seed=3).float(), noise)
    exact = draw(gp, 4, solver="cholesky", dtype=torch.float64, seed=0, features="sobol", num_features=64)
    paths = draw(gp, 4, solver=solver, seed=0, features="sobol", num_features=64)
    assert paths.dtype == paths(x).dtype == paths.value_and_grad(x)[1].dtype == torch.float32
    assert torch.equal(paths.to(torch.float32)(x), paths(x))
    sd = posterior_sd(kernel, X.double(), gp.noise.double(), x.double())
    for values in (paths(x), paths(x.expand(4, -1, -1))):
        assert ((values - exact(x.double())) / sd).square().mean().sqrt() < 0.02
    assert ((paths.mean(x) - exact.mean(x.double())) / sd).square().mean().sqrt() < 0.02
    gradients = [p.value_and_grad(x.to(p.dtype))[1] for p in (paths, exact)]
    assert (gradients[0] - gradients[1]).norm() < 1e-3 * gradients[1].norm()


@pytest.mark.filterwarnings("error")
def test_a_datum_where_the_prior_has_no_variance_is_no_obstacle():
    X = torch.linspace(-0.1, 0.1, 51)[:, None]
    X[25] = 0
    gp = ExactGP(K.Linear(), X, 3 * X[:, 0] + 0.2, 1.0)
    by_cg, by_cholesky = (draw(gp, 2, num_features=16, generator=gen(0), solver=s) for s in (PCG(), "cholesky"))
    torch.testing.assert_close(by_cg(X), by_cholesky(X), rtol=1e-3, atol=1e-4)


def test_every_right_hand_side_stops_on_its_own():
    """One that the preconditioner has solved already leaves the batch; products have fewer columns then."""

    columns: list[int] = []

    class Counting(KernelOperator):
        def product(self, V: Tensor) -> Tensor:
            columns.append(V.shape[1])
            return super().product(V)

    operator = Counting(K.Matern(0.5, 0.3), Sites(rand(300, 2)), noises(300, 1e-2))
    b = randn(300, 6) * torch.tensor([1.0, 0.02, 0.02, 0.02, 0.02, 0.02], dtype=torch.float64)
    PCG(rank=10).init(operator).solve(b)
    assert columns[0] == 6 and columns.count(1) > 5


def test_a_good_guess_saves_iterations_and_a_bad_one_does_no_harm():
    state = state_of(K.Matern(1.5, 0.3), rand(300, 2), None, noises(300, 1e-3), PCG(rank=20))
    b = randn(300, 3)
    x, cold = state.solve(b)
    exact = state_of(K.Matern(1.5, 0.3), rand(300, 2), None, noises(300, 1e-3), "cholesky").solve(b)[0]
    assert state.solve(b, x)[1].iterations == 0
    assert state.solve(b, exact * 1.001)[1].iterations < 0.8 * cold.iterations
    bad, stats = state.solve(b, 1e3 * randn(300, 3, seed=9))
    torch.testing.assert_close(bad, x)
    assert stats.iterations == cold.iterations


def test_single_precision_that_gets_nowhere_gives_way_to_double(monkeypatch):
    """As where a preconditioner's sums over a million rows lose the digits that it needs."""
    inner = pcg.LowRank._inner

    def lossy(self, V):
        exact = inner(self, V)
        return exact if V.dtype == torch.float64 else exact + exact.abs().mean() * randn(*exact.shape).to(exact)

    monkeypatch.setattr(pcg.LowRank, "_inner", lossy)
    monkeypatch.setattr(pcg._Solve, "_first_dtype", lambda self: torch.float32)  # as on a GPU
    X, b, noise = rand(300, 2).float(), randn(300, 3, seed=1).float(), noises(300, 1e-2).float()
    state = state_of(
        K.Matern(1.5, 0.3).to("cpu", torch.float32), X, None, noise, PCG(tolerance=1e-2, rank=60, patience=20)
    )
    found, stats = state.solve(b)
    assert stats.converged and stats.iterations < 200
    exact = state_of(K.Matern(1.5, 0.3), X.double(), None, noise.double(), "cholesky").solve(b.double())[0]
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02 * float(exact.abs().mean()))


def test_patience_with_products_in_single_precision_that_lower_no_error_has_an_end(monkeypatch):
    class Lossy(KernelOperator):
        def product(self, V):
            exact = super().product(V)
            error = 0.05 * randn(*exact.shape, seed=int(1e6 * V.abs().sum()) % 1000)
            return exact if V.dtype == torch.float64 else exact * (1 + error).to(exact)

    monkeypatch.setattr(pcg._Solve, "_first_dtype", lambda self: torch.float32)  # as on a GPU
    kernel, X, noise = K.Matern(1.5, 0.3).to("cpu", torch.float32), rand(300, 2).float(), noises(300, 1e-2).float()
    solver = PCG(rank=5, patience=20, max_iterations=600)
    _, stats = solver.init(Lossy(kernel, Sites(X), noise)).solve(randn(300, 3, seed=1).float())
    assert stats.converged and stats.iterations < 600


def test_progress_is_shown_where_asked(capsys):
    state_of(K.RBF(0.5), rand(50, 2), None, noises(50, 1e-3), PCG(rank=5, progress=True)).solve(randn(50, 2))
    assert "iterations" in capsys.readouterr().err


def test_the_preconditioner_s_rank_is_stated_and_can_be_set():
    X, noise = rand(400, 2), noises(400, 1e-3)
    assert state_of(K.Matern(0.5, 0.1), X, None, noise, PCG(rank=7)).solve(randn(400, 1))[1].solver.endswith("rank=7)")
    default = state_of(K.Matern(0.5, 0.1), X, None, noise, PCG()).solve(randn(400, 1))[1].solver
    assert default == "PCG(tolerance=0.01, rank=400)"  # 20 sqrt(400)


# The choice.


def test_auto_takes_cholesky_while_the_matrix_fits_and_conjugate_gradients_beyond():
    kernel, auto = K.RBF(0.5), Auto(memory=8 * 10**2)
    assert isinstance(state_of(kernel, rand(10, 2), None, noises(10, 0.1), auto), CholeskyState)
    assert isinstance(state_of(kernel, rand(11, 2), None, noises(11, 0.1), auto), PCGState)


@pytest.mark.parametrize(("noise", "kind"), [(0.1, CholeskyState), (1e-6, PCGState)])
def test_in_single_precision_half_the_memory_will_do_where_a_factor_has_the_digits(noise, kind):
    X, auto = rand(10, 2).float(), Auto(memory=4 * 10**2)
    assert isinstance(state_of(K.RBF(0.5).to("cpu", torch.float32), X, None, noises(10, noise).float(), auto), kind)


def test_auto_keeps_a_graph_with_cholesky():
    X, noise = rand(5, 2), noises(5, 0.1)
    tied = K.RBF(torch.tensor(0.5, dtype=torch.float64, requires_grad=True))
    assert isinstance(state_of(tied, X, None, noise, Auto(memory=1)), CholeskyState)
    with torch.no_grad():
        assert isinstance(state_of(tied, X, None, noise, Auto(memory=1)), PCGState)


def test_a_draw_beyond_the_dense_limit_is_the_same_function_and_says_what_was_chosen():
    gp, x = model("exact"), rand(4, 2)
    dense = draw(gp, 2, generator=gen())
    iterative = draw(gp, 2, solver=Auto(memory=1, tolerance=1e-7), generator=gen())
    torch.testing.assert_close(iterative(x), dense(x), rtol=1e-7, atol=1e-7)
    assert dense.solver_stats.solver == "Cholesky()" and iterative.solver_stats.solver.startswith("PCG(")


def test_a_whitened_q_is_refused():
    gp = SparseGP(K.RBF(0.5), rand(4, 2), randn(4), whitened=True, jitter=0.1)
    with pytest.raises(ValueError, match=r"solver: a whitened q\(u\) is in terms of K_mm's Cholesky factor"):
        draw(gp, 1, solver="cg")


def test_what_rounding_to_single_precision_hides_is_said():
    """A tolerance that no float32 numbers meet: the advice is float64, not more iterations."""
    X, b = rand(200, 2).float(), randn(200, 3).float()
    state = state_of(K.RBF(0.5).to(torch.float32), X, None, torch.full((200,), 1e-5), PCG(tolerance=1e-7))
    with pytest.warns(
        ConvergenceWarning, match=r"rounding to float32 is the limit: draw\(\.\.\., dtype=torch\.float64"
    ):
        _, stats = state.solve(b)
    assert not stats.converged
