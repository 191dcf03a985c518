"""Matheron's rule for any jointly Gaussian pair, and the updates made of it."""

import pytest
import torch
from torch import Tensor

from examples import gen, rand, randn
from matheron import ExactGP, JitterWarning, Sites, SparseGP, draw, matheron, weight_space_update
from matheron import kernels as K
from matheron.paths.sparse import CorrectedOperator, Inducing
from matheron.solvers import KernelOperator
from standard import assert_moments

S = 20_000


def joint(p: int, q: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws of (a, b), their mean and their covariance: correlated, and of no particular scale."""
    root = randn(p + q, p + q, seed=1)
    mean = 3 * randn(p + q, seed=2)
    return mean + randn(S, p + q, seed=3) @ root.mT, mean, root @ root.mT


# eqn:matheron_finitedim.


@pytest.mark.parametrize("p, q", [(1, 1), (3, 2), (2, 4)])
def test_draws_given_b_have_the_conditional_law(p, q):
    draws, mean, C = joint(p, q)
    beta = randn(q, seed=4)
    given = matheron(draws[:, :p], draws[:, p:], beta, C[:p, p:], C[p:, p:])
    gain = torch.linalg.solve(C[p:, p:], C[p:, :p]).mT  # [p, q]
    assert_moments(given, mean[:p] + gain @ (beta - mean[p:]), C[:p, :p] - gain @ C[p:, :p])


def test_given_itself_a_variable_is_what_was_observed():
    draws, _, C = joint(1, 3)
    b = draws[:, 1:]
    beta = randn(3)
    given = matheron(b, b, beta, C[1:, 1:], C[1:, 1:])
    torch.testing.assert_close(given, beta.expand(S, 3), rtol=1e-8, atol=1e-8)


def test_given_what_was_drawn_nothing_changes_and_each_draw_may_have_its_own():
    draws, _, C = joint(2, 3)
    a, b = draws[:, :2], draws[:, 2:]
    torch.testing.assert_close(matheron(a, b, b, C[:2, 2:], C[2:, 2:]), a)


def test_independent_variables_learn_nothing_of_each_other():
    a, b = randn(5, 2), randn(5, 3, seed=1)
    assert torch.equal(matheron(a, b, randn(3), torch.zeros(2, 3).double(), torch.eye(3).double()), a)


def test_a_singular_covariance_is_warned_of():
    b = randn(5, 1).expand(5, 2)
    with pytest.warns(JitterWarning, match=r"Cov\(b, b\) is not positive definite"):
        matheron(b, b, torch.zeros(2).double(), torch.ones(2, 2).double(), torch.ones(2, 2).double())


def test_covariances_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"expected Cov\(a, b\) \[2, 3\] and Cov\(b, b\) \[3, 3\], got \[3, 2\] and"):
        matheron(randn(5, 2), randn(5, 3), randn(3), randn(3, 2), torch.eye(3).double())


# eqn:matheron_gp_exact.


def test_the_weights_of_an_exact_update_solve_for_the_residual():
    kernel, X, y = K.Matern(2.5, 0.5), rand(6, 2), randn(6)
    paths = draw(ExactGP(kernel, X, y, 0.1), 4, generator=gen())
    K_nn, f, eps = kernel(X) + 0.1 * torch.eye(6), paths.prior.sums(X[None])[:, 0], 0.1**0.5 * paths.update.xi
    torch.testing.assert_close(paths.update.v @ K_nn, y - f - eps)


def test_the_correction_turns_the_prior_s_covariance_into_the_sparse_posterior_s():
    """At Z the covariance given q(u) is Sigma, that of u, where there is no jitter; at others k_q, by any way to it."""
    Z, X, kernel, zero = rand(5, 2), rand(4, 2, seed=3), K.Matern(1.5, 0.5), torch.zeros((), dtype=torch.float64)
    root, noise = randn(5, 5, seed=1), torch.zeros(9, dtype=torch.float64)
    at = torch.cat([Z, X])
    inducing = Inducing(Sites(Z), randn(3, 5), randn(5), root, zero)
    operator = CorrectedOperator(KernelOperator(kernel, Sites(at), noise), inducing)
    K_z, Sigma = torch.linalg.solve(kernel(Z), kernel(Z, at)), root @ root.mT
    expected = kernel(at) + K_z.mT @ (Sigma - kernel(Z)) @ K_z
    torch.testing.assert_close(expected[:5, :5], Sigma, rtol=1e-7, atol=1e-7)
    rows = torch.tensor([0, 3, 7])
    torch.testing.assert_close(operator.dense(), expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(operator.rows(rows), expected[rows], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(operator.diagonal(), expected.diagonal(), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        operator.product(root.new_ones(9, 1)), expected.sum(1, keepdim=True), rtol=1e-7, atol=1e-7
    )
    v = randn(3, 9, seed=4)  # k_q(., X) v is k(., X) v and a sum of k(., Z)
    other = rand(6, 2, seed=5)
    given = kernel(other, at) @ v.mT + kernel(other, Z) @ operator.centre_weights(v).mT
    K_o = torch.linalg.solve(kernel(Z), kernel(Z, other))
    torch.testing.assert_close(given, (kernel(other, at) + K_o.mT @ (Sigma - kernel(Z)) @ K_z) @ v.mT)


# eqn:matheron_gp_rff.


def regression(n: int, ell: int, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, targets, and the posterior mean and covariance of the weights."""
    Phi, y = randn(n, ell, seed=1), randn(n, seed=2)
    precision = Phi.mT @ (Phi / noise[:, None]) + torch.eye(ell, dtype=torch.float64)
    cov = torch.linalg.inv(precision)
    return Phi, y, cov @ (Phi.mT @ (y / noise)), cov


@pytest.mark.parametrize("n, ell", [(3, 6), (8, 4), (4, 4)], ids=["fewer data", "more data", "as many"])
@pytest.mark.parametrize("one_a_point", [False, True])
def test_weights_given_data_have_the_law_of_bayesian_regression(n, ell, one_a_point):
    noise = rand(n, seed=5) + 0.2 if one_a_point else torch.full((n,), 0.3, dtype=torch.float64)
    Phi, y, mean, cov = regression(n, ell, noise)
    eps = noise.sqrt() * randn(S, n, seed=7)
    w = weight_space_update(Phi, randn(S, ell, seed=6), y, noise, eps)
    assert_moments(w, mean, cov)


def test_both_systems_give_the_same_weights():
    """n or ell equations: Woodbury's identity, checked by adding features that are nothing."""
    Phi, y, noise = randn(8, 4), randn(8, seed=1), torch.tensor(0.3, dtype=torch.float64)
    w, eps = randn(3, 4, seed=2), randn(3, 8, seed=3)
    small = weight_space_update(Phi, w, y, noise, eps)  # ell equations
    padded = torch.nn.functional.pad(Phi, (0, 10))
    large = weight_space_update(padded, torch.nn.functional.pad(w, (0, 10)), y, noise, eps)  # n equations
    torch.testing.assert_close(small, large[:, :4], rtol=1e-9, atol=1e-9)


def test_noise_free_weights_fit_the_data():
    Phi, y = randn(4, 9), randn(4, seed=1)
    noise = torch.zeros(4, dtype=torch.float64)
    w = weight_space_update(Phi, randn(5, 9, seed=2), y, noise, torch.zeros(5, 4).double())
    torch.testing.assert_close(w @ Phi.mT, y.expand(5, 4), rtol=1e-9, atol=1e-9)


def test_where_the_basis_is_exact_weight_space_and_decoupled_paths_are_one():
    """A polynomial kernel has finitely many features, so both updates are of the same function: the same path."""
    kernel, x = K.Polynomial(2, 1.0), rand(6, 2, seed=4)
    gp = ExactGP(kernel, rand(5, 2, seed=1), randn(5, seed=2), 0.2)
    paths = draw(gp, 4, generator=gen())
    Phi, Phi_x = (paths.prior.features(points)[0] for points in (gp.train_inputs, x))
    w = weight_space_update(Phi, paths.prior.weights, gp.train_targets, gp.noise, 0.2**0.5 * paths.update.xi)
    torch.testing.assert_close(paths(x), w @ Phi_x.mT, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("sampled", [False, True])
def test_single_precision_has_digits_for_inducing_points_whose_values_are_rougher_than_the_function(sampled):
    """Many inducing points and little jitter: f is far smoother than u, and its weights are large."""
    Z = torch.linspace(0, 3, 120, dtype=torch.float64)[:, None]
    kernel, root = 0.03 * K.Matern(2.5, 1.5), torch.full((120,), 0.05, dtype=torch.float64)

    def sample_u(s, generator):
        return 0.05 * torch.randn(s, 120, generator=generator, dtype=torch.float64)

    gp = SparseGP(kernel, Z, 0 * root, root, jitter=1e-6)
    if sampled:
        gp = SparseGP(kernel, Z, sample_u=sample_u, jitter=1e-6)
    x = torch.linspace(0.01, 2.99, 40, dtype=torch.float64)[:, None]
    wide, narrow = (draw(gp, 32, seed=0, dtype=dtype) for dtype in (torch.float64, torch.float32))
    f = wide(x)
    assert (narrow(x.float()).double() - f).square().mean().sqrt() < 0.01 * f.std()


def test_a_copy_in_single_precision_is_the_same_function_where_that_has_too_few_digits_for_the_weights():
    """A smooth system with next to no noise: rounded weights would miss the data by hundreds of deviations."""
    X = rand(60, 2)
    y = X.sin().sum(1)
    paths = draw(ExactGP(300.0 * K.Matern(2.5, 20.0), X, y, 1e-6), 8, seed=0)
    x = rand(20, 2, seed=1).float()
    parent = torch.nn.ModuleList([draw(ExactGP(300.0 * K.Matern(2.5, 20.0), X, y, 1e-6), 8, seed=0)]).float()
    f, deviation = paths(x), (paths(x) - paths.mean(x)).std()
    for single in (paths.float(), parent[0]):
        assert single.dtype == torch.float32
        assert float((single(x).double() - f).abs().max()) < 0.3 * deviation
