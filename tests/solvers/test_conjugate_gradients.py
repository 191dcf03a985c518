"""Conjugate gradients: Cholesky's answers, the covariance never formed, and the truth about convergence."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import matheron.solvers as solvers
from examples import B2, gen, model, rand, randn
from matheron import ExactGP, SparseGP, draw
from matheron import kernels as K
from matheron.solvers import Cholesky, ConjugateGradients, ConvergenceWarning, conjugate_gradients, factor


def noises(n: int, noise: Any) -> Tensor:
    return torch.as_tensor(noise, dtype=torch.float64).expand(n)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("noise", [1e-4, 0.1, "one a point"])
@pytest.mark.parametrize(
    "kernel", [K.RBF(0.3), K.Matern(1.5, 0.3) + K.Linear(), 5.0 * K.Matern(0.5, 0.3)], ids=lambda k: type(k).__name__
)
@pytest.mark.parametrize("n", [1, 40, 400])
def test_it_agrees_with_cholesky_on_a_batch_of_right_hand_sides(kernel, noise, n):
    """The batch has a column of zeros, a large one and a small one: each converges on its own scale."""
    X, b = rand(n, 2), randn(n, 5, seed=1) * torch.tensor([1.0, 0.0, 1e6, 1e-6, 1.0], dtype=torch.float64)
    noise = noises(n, rand(n, seed=2) + 0.01 if noise == "one a point" else noise)
    exact = factor(kernel, X, None, noise, "cholesky").solve(b)
    answer = factor(kernel, X, None, noise, "cg").solve(b)
    error = (answer - exact).norm(dim=0) / exact.norm(dim=0).clamp_min(1e-300)
    assert error.max() < 1e-8 and torch.equal(answer[:, 1], torch.zeros(n, dtype=torch.float64))


def test_single_precision_reaches_its_own_accuracy():
    X, b = rand(200, 2).float(), randn(200, 3).float()
    noise = torch.full((200,), 0.05)
    exact = factor(K.RBF(0.3), X.double(), None, noise.double(), "cholesky").solve(b.double())
    answer = factor(K.RBF(0.3).to(torch.float32), X, None, noise, "cg").solve(b)
    assert (answer - exact).norm() / exact.norm() < 1e-3


class LargestTensor(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))])
        return out


@pytest.mark.parametrize("solver, formed", [("cg", False), ("cholesky", True)])
def test_the_covariance_is_never_formed(solver, formed, monkeypatch):
    n = 500
    monkeypatch.setattr(conjugate_gradients, "_BLOCK", 50 * n)
    monkeypatch.setattr(conjugate_gradients, "PRECONDITIONER_RANK", 40)
    with LargestTensor() as mode:
        factor(K.Matern(2.5, 0.3), rand(n, 2), None, noises(n, 0.1), solver).solve(randn(n, 4))
    assert (mode.largest >= n * n) == formed
    assert formed or mode.largest <= 50 * n


def test_drawing_with_conjugate_gradients_never_forms_the_covariance(monkeypatch):
    n = 500
    monkeypatch.setattr(conjugate_gradients, "_BLOCK", 50 * n)
    monkeypatch.setattr(conjugate_gradients, "PRECONDITIONER_RANK", 40)
    monkeypatch.setattr("matheron.evaluate.chunked._CPU_BLOCK", 50 * n)
    monkeypatch.setattr("matheron.scratch.ARENA_SIZE", 50 * n)
    monkeypatch.setattr("matheron.scratch._local", type("Local", (), {})())
    gp = ExactGP(K.Matern(2.5, 0.3), rand(n, 2), randn(n), 0.1)
    with LargestTensor() as mode:
        draw(gp, 4, num_features=64, solver="cg")
    assert mode.largest < n * n


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["exact", "exact, coupled", "sparse"])
def test_paths_are_the_same_function_whichever_the_solver(name):
    gp, x = model(name), rand(6, 2)
    settings: dict[str, Any] = dict(num_features=16)
    one, other = (draw(gp, 3, solver=solver, generator=gen(), **settings) for solver in ("cg", "cholesky"))
    torch.testing.assert_close(one(x), other(x), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(one.mean(x), other.mean(x), rtol=1e-7, atol=1e-7)


def test_noise_free_duplicates_warn_and_stay_finite():
    X = rand(60, 2).repeat(2, 1)
    with pytest.warns(ConvergenceWarning, match=r"relative residual of .*the noise is small.*solver=\"cholesky\""):
        answer = factor(K.RBF(0.5), X, None, noises(120, 0.0), "cg").solve(randn(120, 2))
    assert answer.isfinite().all()


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4])
def test_little_noise_in_single_precision_warns_and_stays_finite(noise):
    X, b = rand(200, 2).float(), randn(200, 2).float()
    with pytest.warns(ConvergenceWarning, match=r"or dtype=torch\.float64"):
        answer = factor(K.RBF(0.5).to(torch.float32), X, None, noises(200, noise).float(), "cg").solve(b)
    assert answer.isfinite().all()


def test_what_is_said_of_the_residual_is_true(monkeypatch):
    """Out of iterations it says how far it came, by the residual itself and not by the recursion's."""
    monkeypatch.setattr(conjugate_gradients, "MAX_ITERATIONS", 3)
    monkeypatch.setattr(conjugate_gradients, "PRECONDITIONER_RANK", 2)
    X, b, noise = rand(100, 2), randn(100, 1), noises(100, 1e-3)
    with pytest.warns(ConvergenceWarning, match="after 3 iterations") as record:
        a = factor(K.Matern(1.5, 0.3), X, None, noise, "cg").solve(b)
    residual = b - (K.Matern(1.5, 0.3)(X) + torch.diag(noise)) @ a
    said = float(str(record[0].message).split("residual of ")[1].split(":")[0])
    assert said == pytest.approx(float(residual.norm() / b.norm()), rel=0.05)


def test_the_preconditioner_saves_iterations(monkeypatch):
    counts = {}
    for rank in (1, 100):
        monkeypatch.setattr(conjugate_gradients, "PRECONDITIONER_RANK", rank)
        solver = factor(K.RBF(0.5), rand(300, 2), None, noises(300, 1e-3), "cg")
        assert isinstance(solver, ConjugateGradients)
        products = []
        multiply = solver.multiply
        solver.multiply = lambda V, multiply=multiply, products=products: products.append(1) or multiply(V)
        solver.solve(randn(300, 2))
        counts[rank] = len(products)
    assert counts[100] < counts[1] / 4


# The choice.


def test_auto_takes_cholesky_while_the_matrix_fits_and_conjugate_gradients_beyond(monkeypatch):
    monkeypatch.setattr(solvers, "LARGEST_DENSE_ON_CPU", 10)
    kernel = K.RBF(0.5)
    assert isinstance(factor(kernel, rand(10, 2), None, noises(10, 0.1), "auto"), Cholesky)
    assert isinstance(factor(kernel, rand(11, 2), None, noises(11, 0.1), "auto"), ConjugateGradients)


def test_auto_keeps_a_graph_and_a_correction_with_cholesky(monkeypatch):
    monkeypatch.setattr(solvers, "LARGEST_DENSE_ON_CPU", 3)
    X, noise = rand(5, 2), noises(5, 0.1)
    tied = K.RBF(torch.tensor(0.5, dtype=torch.float64, requires_grad=True))
    assert isinstance(factor(tied, X, None, noise, "auto"), Cholesky)
    assert isinstance(factor(K.RBF(0.5), X, None, noise, "auto", torch.zeros(5, 5).double()), Cholesky)
    with torch.no_grad():
        assert isinstance(factor(tied, X, None, noise, "auto"), ConjugateGradients)


def test_a_draw_beyond_the_dense_limit_is_the_same_function(monkeypatch):
    gp, x = model("exact"), rand(4, 2)
    dense = draw(gp, 2, generator=gen())(x)
    monkeypatch.setattr(solvers, "LARGEST_DENSE_ON_CPU", 3)
    torch.testing.assert_close(draw(gp, 2, generator=gen())(x), dense, rtol=1e-7, atol=1e-7)


def test_a_graph_is_refused():
    gp = ExactGP(K.RBF(torch.tensor(0.5, requires_grad=True)), rand(4, 2), randn(4), 0.1)
    with pytest.raises(ValueError, match=r"solver=\"cg\" keeps no graph.*use solver=\"cholesky\""):
        draw(gp, 1, solver="cg", detach=False)


def test_a_whitened_q_is_refused():
    gp = SparseGP(K.RBF(0.5), rand(4, 2), randn(4), whitened=True, jitter=0.1)
    with pytest.raises(ValueError, match=r"solver: a whitened q\(u\) is in terms of K_mm's Cholesky factor"):
        draw(gp, 1, solver="cg")


def test_several_outputs_are_multiplied_by_blocks_too():
    kernel, n = K.Coregional(K.RBF(0.4), B2) + 0.5 * K.Matern(1.5, 0.5), 60
    X, tasks, b = rand(n, 2), torch.arange(n) % 2, randn(n, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = [factor(kernel, X, tasks, noises(n, 0.1), solver).solve(b) for solver in ("cg", "cholesky")]
    torch.testing.assert_close(*answers, rtol=1e-7, atol=1e-7)
