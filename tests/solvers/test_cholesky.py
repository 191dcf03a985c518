"""Cholesky: exact where it can be, and jitter that is visible, warned of and as small as will do."""

import warnings

import pytest
import torch
from torch import Tensor

from examples import rand, randn
from matheron import ExactGP, JitterWarning, Sites, draw
from matheron import kernels as K
from matheron.kernels import coupled_covariance
from matheron.solvers import (
    PCG,
    Cholesky,
    CholeskyState,
    ConvergenceWarning,
    KernelOperator,
    Stats,
    as_solver,
    covariance,
    safe_cholesky,
)
from matheron.solvers import operator as dense


def with_eigenvalues(values: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    """A symmetric matrix with these eigenvalues."""
    Q, _ = torch.linalg.qr(randn(len(values), len(values)))
    return ((Q * torch.tensor(values, dtype=torch.float64)) @ Q.mT).to(dtype)


class Factor:
    """The factor of a matrix, and solves with it."""

    def __init__(self, A: Tensor, name: str = "the covariance", magnitude: Tensor | None = None) -> None:
        self.L, self.jitter = safe_cholesky(A, name, magnitude)

    def solve(self, b: Tensor) -> Tensor:
        return torch.cholesky_solve(b, self.L)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_it_solves_for_all_right_hand_sides_at_once(dtype, tolerance):
    A = randn(20, 20).to(dtype)
    A, b = A @ A.mT + torch.eye(20, dtype=dtype), randn(20, 7, seed=1).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver = Factor(A)
    assert solver.jitter == 0.0
    torch.testing.assert_close(A @ solver.solve(b), b, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("smallest", [0.0, -3e-9, -2e-5])
def test_jitter_is_the_smallest_power_that_will_do(smallest, scale):
    """It is relative to the mean diagonal, and it is what the factor holds."""
    A = with_eigenvalues([1.0, 0.8, 1.2, smallest]) * scale
    mean = float(A.diagonal().mean())
    with pytest.warns(JitterWarning, match=r"A matrix is not positive definite in float64: added a jitter of"):
        solver = Factor(A, "A matrix")
    assert solver.jitter > -smallest * scale
    assert solver.jitter == pytest.approx(
        mean * max(1e-10, 10 ** torch.tensor(-smallest * scale / mean).log10().ceil())
    )
    jittered = A + solver.jitter * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(solver.L @ solver.L.mT, jittered, rtol=1e-13, atol=1e-13 * scale)


def test_what_is_far_from_positive_definite_is_refused():
    with pytest.raises(
        ValueError, match=r"A matrix is not positive definite even with a jitter of 7\.5e-02: check the"
    ):
        Factor(with_eigenvalues([1.0, 1.5, 1.5, -1.0]), "A matrix")


def test_a_covariance_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not positive definite"):
        Factor(torch.full((2, 2), float("nan"), dtype=torch.float64))


def test_a_factor_of_rounding_noise_counts_as_a_failure():
    """LAPACK may well factor duplicate points; the pivot is then noise, and so would the weights be."""
    X = rand(5, 2).repeat(2, 1)
    K_nn = K.RBF(1.0)(X)
    with pytest.warns(JitterWarning, match="duplicate points"):
        solver = Factor(K_nn)
    assert solver.jitter == pytest.approx(1e-10)
    assert float(solver.L.diagonal().min()) ** 2 > 1e-12


def test_single_precision_adds_more_jitter_than_double():
    X = rand(5, 2).repeat(2, 1)
    with pytest.warns(JitterWarning, match="float32"):
        single = Factor(K.RBF(1.0)(X.float())).jitter
    assert single > 1e-8


def test_the_magnitude_of_what_was_subtracted_sets_the_scale():
    tiny = 1e-17 * with_eigenvalues([1.0, 1.0, -1.0])
    with pytest.warns(JitterWarning):
        assert Factor(tiny, magnitude=torch.full((3,), 2.0)).jitter == pytest.approx(2e-10)


def test_gradients_pass_through_the_factor_with_and_without_jitter():
    a = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    Factor(torch.eye(2, dtype=torch.float64) * a).solve(torch.ones(2, 1, dtype=torch.float64)).sum().backward()
    torch.testing.assert_close(a.grad, -2 / a.detach() ** 2)
    with pytest.warns(JitterWarning):
        L = Factor(torch.ones(2, 2, dtype=torch.float64) * a).L
    assert L.requires_grad and L.isfinite().all()


@pytest.mark.parametrize("input_dim", [2, 20])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_matrix_in_blocks_is_the_whole_matrix(outputs, input_dim, monkeypatch):
    X, tasks = rand(10, input_dim), None if outputs == 1 else torch.arange(10) % outputs
    kernel = K.Matern(1.5, 0.5) if outputs == 1 else K.Coregional(K.RBF(0.5), torch.eye(3) + 0.5)
    monkeypatch.setitem(dense._SIDE, "cpu", 3)
    sites = Sites(X, tasks)
    made = covariance(kernel, sites)
    assert torch.equal(made, made.mT)
    torch.testing.assert_close(made, coupled_covariance(kernel, sites, sites), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_a_covariance_is_factored_with_its_noise(noise):
    X, b, kernel = rand(6, 2), randn(6, 3), K.Matern(0.5, 0.5)
    state = Cholesky().init(KernelOperator(kernel, Sites(X), torch.full((6,), noise, dtype=torch.float64)))
    assert isinstance(state, CholeskyState)
    x, stats = state.solve(b)
    assert stats == Stats("Cholesky()")
    torch.testing.assert_close(x, torch.linalg.solve(kernel(X) + noise * torch.eye(6), b))


def test_an_unknown_solver_is_named_with_the_list_of_known_ones():
    with pytest.raises(ValueError, match=r"solver: expected one of auto, cg, .*lattice, got 'lu'; .*PCG"):
        as_solver("lu")


# In place.


def operator_of(kernel: K.Kernel, X: Tensor, noise: float) -> KernelOperator:
    return KernelOperator(kernel.to(X.dtype), Sites(X), torch.full((len(X),), noise, dtype=X.dtype))


@pytest.mark.parametrize("n", [11, 21, 40])
def test_the_factor_in_place_is_the_factor(n):
    operator = operator_of(K.Matern(1.5, 0.4), rand(n, 2), 0.1)
    b, A = randn(n, 3), operator.dense() + 0.1 * torch.eye(n, dtype=torch.float64)
    state = Cholesky().init(operator)
    torch.testing.assert_close(state.L, torch.linalg.cholesky(A))
    torch.testing.assert_close(state.solve(b)[0], torch.linalg.solve(A, b))


def test_in_place_means_no_second_matrix():
    made: list[Tensor] = []

    class Recording(KernelOperator):
        def dense(self, dtype: torch.dtype | None = None) -> Tensor:
            made.append(super().dense(dtype))
            return made[-1]

    state = Cholesky().init(Recording(K.Matern(0.5, 0.4), Sites(rand(30, 2)), torch.full((30,), 0.1).double()))
    assert [A.data_ptr() for A in made] == [state.L.data_ptr()]


def test_jitter_in_place_is_that_of_a_copy():
    """After an attempt that failed the matrix is made anew."""
    operator = operator_of(K.RBF(1.0), rand(15, 2).repeat(2, 1), 0.0)
    with pytest.warns(JitterWarning, match="duplicate points"):
        state = Cholesky().init(operator)
    with pytest.warns(JitterWarning):
        expected, same = safe_cholesky(operator.dense(), "A")
    assert state.jitter == same
    torch.testing.assert_close(state.L @ state.L.mT, expected @ expected.mT, rtol=0, atol=1e-14)


@pytest.mark.parametrize("noise, digits", [(1e-6, torch.float64), (1.0, torch.float32)])
def test_single_precision_data_are_factored_in_double_where_digits_are_needed(noise, digits):
    X, b = rand(50, 2).float(), randn(50, 2).float()
    state = Cholesky().init(operator_of(K.RBF(0.5), X, noise))
    assert state.L.dtype == digits
    x = state.solve(b)[0]
    assert x.dtype == torch.float32
    exact = torch.linalg.solve(K.RBF(0.5)(X.double()) + noise * torch.eye(50), b.double())
    torch.testing.assert_close(x.double(), exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))


@pytest.mark.parametrize("noise, digits", [(1e-2, torch.float32), (1e-4, torch.float64)])
def test_sums_of_rows_say_how_many_digits_are_needed_where_the_trace_does_not(noise, digits):
    """A thousand data far apart: each row sums to little, though the trace is a thousand."""
    X, b = 20 * rand(1000, 2).float(), randn(1000, 2)
    operator = operator_of(K.Matern(1.5, 0.5), X, noise)
    state = Cholesky().init(operator)
    A = operator.dense(torch.float64) + noise * torch.eye(1000)
    assert state.L.dtype == digits and float(torch.linalg.eigvalsh(A)[-1]) <= state.largest
    exact = torch.linalg.solve(A, b)
    assert float((state.solve(b)[0] - exact).norm() / exact.norm()) < 1e-3


@pytest.mark.parametrize(
    "kernel, sharp", [(K.RBF(0.3), True), (K.Matern(0.5, 0.1), True), (K.Linear(), False), (K.Cosine(0.1), False)]
)
def test_no_eigenvalue_is_above_its_bound(kernel, sharp):
    """Whatever the signs; where all covariances are positive it is near, in single precision with so much noise that
    their sum along the diagonal does not say that its digits are enough."""
    X = torch.cat([rand(200, 1) - 0.5, torch.zeros(1, 1)])
    trace = float(kernel.diag(X).sum())
    noise = 0.9 * trace * torch.finfo(torch.float32).eps / 0.01
    state = Cholesky().init(operator_of(kernel, X.float(), noise))
    largest = float(torch.linalg.eigvalsh(kernel(X.float().double()))[-1]) + noise
    assert largest * (1 - 1e-6) <= state.largest <= (trace + 201 * noise) * (1 + 1e-6)
    assert not sharp or (state.L.dtype == torch.float32 and state.largest < 1.1 * largest)


@pytest.mark.parametrize("solver", ["cholesky", PCG(rank=1, max_iterations=1)], ids=["jitter", "convergence"])
def test_a_warning_points_to_the_line_that_drew(solver):
    twice = ExactGP(K.RBF(1.0), rand(15, 2).repeat(2, 1), randn(15).repeat(2), noise=0.0)
    with pytest.warns((JitterWarning, ConvergenceWarning)) as caught:
        draw(twice, 2, features="sobol", num_features=8, solver=solver, seed=0)
    assert [w.filename for w in caught] == [__file__]
