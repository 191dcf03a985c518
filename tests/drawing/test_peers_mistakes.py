"""Mistakes that other libraries made, one test (or more) each."""

import copy
import inspect
from typing import Any

import pytest
import torch

import matheron
from examples import gen, paths_of, rand, randn
from matheron import ExactGP, SparseGP, draw, draw_prior
from matheron import kernels as K
from matheron.models.transforms import Affine
from standard import assert_marginals_ks, assert_moments, assert_uncorrelated, exact_moments

AT = rand(6, 2, seed=40)
FRESH: dict[str, Any] = dict(num_features=96, paths_per_basis=1)


# Paths that hold a live reference to the model.


def train(gp: Any, *tensors: torch.Tensor) -> None:
    """Change, in place, all that a model has."""
    with torch.no_grad():
        for buffer in gp.kernel.buffers():
            buffer.mul_(3.0)
        for tensor in tensors:
            tensor.add_(1.0)


def test_training_an_exact_model_on_does_not_change_a_path_that_was_drawn():
    X, y, noise = rand(4, 2, seed=1), randn(4, seed=2), rand(4, seed=3)
    gp = ExactGP(2.0 * K.RBF(0.5) + K.Linear(), X, y, noise, mean=1.0)
    paths = draw(gp, 3, generator=gen())
    before, mean = paths(AT), paths.mean(AT)
    given = paths.condition_on(AT[:1], [0.5], noise=0.0)(AT)
    train(gp, X, y, noise, gp.train_inputs, gp.train_targets, *gp.mean.buffers())
    assert torch.equal(paths(AT), before) and torch.equal(paths.mean(AT), mean)
    assert torch.equal(paths.condition_on(AT[:1], [0.5], noise=0.0)(AT), given)


def test_training_a_sparse_model_on_does_not_change_a_path_that_was_drawn():
    Z, q_mean, root = rand(4, 2, seed=1), randn(4, seed=2), randn(4, 4, seed=3)
    gp = SparseGP(K.Matern(1.5, 0.5), Z, q_mean, root)
    paths = draw(gp, 3, generator=gen())
    before, given = paths(AT), paths.condition_on(AT[:1], [0.5], noise=0.0)(AT)
    train(gp, Z, q_mean, root)
    assert torch.equal(paths(AT), before)
    assert torch.equal(paths.condition_on(AT[:1], [0.5], noise=0.0)(AT), given)


def test_training_a_mean_module_on_does_not_change_a_path_that_was_drawn():
    module = torch.nn.Linear(2, 1).double()
    paths = draw(ExactGP(K.RBF(0.5), rand(4, 2), randn(4), 0.1, mean=module), 3, generator=gen())
    before, gradient = paths(AT), paths.value_and_grad(AT)[1]
    with torch.no_grad():
        module.weight.mul_(-2.0)
    assert torch.equal(paths(AT), before) and torch.equal(paths.value_and_grad(AT)[1], gradient)


def test_changing_a_prior_s_kernel_does_not_change_its_paths():
    kernel = K.Matern(1.5, 0.5)
    paths = draw_prior(kernel, 3, input_dim=2, generator=gen())
    before, given = paths(AT), paths.condition_on(AT[:1], [0.5], noise=0.0)(AT)
    kernel.lengthscale.fill_(5.0)
    assert torch.equal(paths(AT), before)
    assert torch.equal(paths.condition_on(AT[:1], [0.5], noise=0.0)(AT), given)


# Kernel points as plain attributes.


def test_the_centres_of_an_update_are_in_the_state_dict_and_move_with_the_path():
    paths = paths_of("exact")
    centres = [value for value in paths.state_dict().values() if value.shape == (5, 2)]
    assert any(torch.equal(value, paths.update.centres) for value in centres)
    assert paths.to(torch.float32).update.centres.dtype == torch.float32


@pytest.mark.parametrize("name", ["exact", "exact, coupled", "sparse", "prior"])
def test_float_and_deepcopy_leave_a_path_that_can_be_called(name):
    paths = paths_of(name)
    before = paths(AT)
    other = copy.deepcopy(paths).float()
    assert other(AT.float()).dtype == torch.float32 and other(AT).dtype == torch.float32
    torch.testing.assert_close(other(AT).double(), before, rtol=2e-4, atol=2e-4)
    assert torch.equal(copy.deepcopy(paths)(AT), before)


# Feature counts.


@pytest.mark.parametrize("features", ["cosine", "sincos", "sobol", "orthogonal", "equispaced"])
@pytest.mark.parametrize("count", [1, 7, 63])
def test_odd_feature_counts_are_fine(features, count):
    paths = draw_prior(K.RBF(0.5), 2, input_dim=2, num_features=count, features=features, domain=(0.0, 1.0))
    assert 0 < paths.prior.num_features <= max(count, 3) and paths(AT).isfinite().all()
    if features != "equispaced":  # which counts a cosine and its sine together
        assert paths.prior.num_features == count


@pytest.mark.parametrize("features", ["cosine", "sobol", "orthogonal"])
def test_more_than_21201_features_are_fine(features):
    paths = draw_prior(K.RBF(0.5), 1, input_dim=2, num_features=21203, features=features, generator=gen())
    assert paths.prior.num_features == 21203
    K_hat = paths.prior.features(AT)[0] @ paths.prior.features(AT)[0].mT
    torch.testing.assert_close(K_hat, K.RBF(0.5)(AT), rtol=0, atol=0.05)


# active_dims ignored.


@pytest.mark.parametrize("make", ["prior", "exact", "sparse"])
def test_a_kernel_of_some_coordinates_gives_paths_of_these_alone(make):
    kernel = K.Matern(1.5, 0.5).on(1)
    if make == "prior":
        paths = draw_prior(kernel, 3, input_dim=2, generator=gen())
    else:
        gp = ExactGP(kernel, rand(4, 2), randn(4), 0.1) if make == "exact" else SparseGP(kernel, rand(4, 2), randn(4))
        paths = draw(gp, 3, generator=gen())
    moved = AT + torch.tensor([7.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(paths(moved), paths(AT), rtol=1e-9, atol=1e-9)
    assert (paths(AT.flip(1)) - paths(AT)).abs().max() > 0.1
    assert paths.value_and_grad(AT)[1][..., 0].abs().max() < 1e-12


# Mean added but never subtracted.


def test_a_mean_is_subtracted_from_exact_data():
    gp = ExactGP(K.RBF(0.5), rand(4, 2), randn(4), 0.0, mean=50.0)
    torch.testing.assert_close(draw(gp, 2)(gp.train_inputs), randn(4).expand(2, 4), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("whitened", [False, True])
def test_a_mean_is_subtracted_from_inducing_values(whitened):
    """Unwhitened, u is the function's own value; whitened, it is of the mean less one: f(Z) = mean + L u."""
    Z, u = rand(4, 2), randn(4)
    paths = draw(SparseGP(K.RBF(0.5), Z, u, mean=50.0, whitened=whitened), 2)
    expected = u if not whitened else 50.0 + torch.linalg.cholesky(K.RBF(0.5)(Z)) @ u
    torch.testing.assert_close(paths(Z), expected.expand(2, 4), rtol=1e-6, atol=1e-6)


# One random key for frequencies, weights and noise.


def test_one_seed_does_not_give_weights_and_noise_the_same_numbers():
    gp = ExactGP(K.RBF(0.5), rand(8, 1), randn(8), 0.1)
    paths = draw(gp, 2000, num_features=8, features="cosine", paths_per_basis=1, generator=gen(5))
    (basis,) = paths.prior.features.bases
    w, xi, theta = paths.prior.weights, paths.update.xi, basis.frequencies[..., 0]
    for a, b in ((w, xi), (w, theta), (xi, theta)):
        assert_uncorrelated(a, b)


# Prior weights shared across outputs.


@pytest.mark.parametrize("kind", ["coregional", "outputs"])
def test_outputs_that_are_independent_have_priors_of_their_own(kind):
    x = AT[:2]
    if kind == "coregional":
        gp: Any = ExactGP(K.Coregional(K.RBF(0.5), torch.eye(2)), rand(3, 2), randn(3, 2), 0.1)
    else:
        gp = matheron.Outputs([ExactGP(K.RBF(0.5), rand(3, 2), y, 0.1) for y in randn(2, 3)])
    paths = draw(gp, 3000, generator=gen(), **FRESH)
    f = paths(x) - paths.mean(x)
    assert_uncorrelated(f[..., 0], f[..., 1])


# Independent univariate t's for multivariate Matern frequencies.


@pytest.mark.parametrize("features", ["cosine", "sobol", "orthogonal"])
def test_frequencies_of_a_matern_kernel_are_multivariate_t(features):
    """Independent t's would give a product of one-dimensional Materns, which differs away from the axes."""
    x = torch.tensor([[0.0, 0.0], [0.7, 0.7]], dtype=torch.float64)
    kernel = K.Matern(0.5, 1.0)
    prior = draw_prior(kernel, 1, input_dim=2, num_features=20_000, features=features, generator=gen()).prior
    Phi = prior.features(x)[0]
    right = float(kernel(x)[0, 1])
    wrong = float((K.Matern(0.5, 1.0).on(0) * K.Matern(0.5, 1.0).on(1))(x)[0, 1])
    assert abs(right - wrong) > 0.1
    assert abs(float(Phi[0] @ Phi[1]) - right) < 0.03


# Multi-output with an outcome transform, and a fixed-noise likelihood.


def test_coupled_outputs_under_an_output_transform_have_the_transformed_law():
    B = torch.tensor([[1.0, -0.6], [-0.6, 0.8]], dtype=torch.float64)
    scale, offset = torch.tensor([2.0, -0.5]).double(), torch.tensor([1.0, 10.0]).double()
    X, Y = rand(3, 2, seed=1), randn(3, 2, seed=2)
    noise = rand(3, 2, seed=3) + 0.05  # one per observation: a fixed-noise likelihood
    plain = ExactGP(K.Coregional(K.RBF(0.5), B), X, Y, noise)
    gp = ExactGP(K.Coregional(K.RBF(0.5), B), X, Y, noise, output_transform=Affine(scale, offset))
    x = AT[:3]
    mean, cov = exact_moments(plain, x)
    slopes = scale.repeat(3)
    paths = draw(gp, 4000, generator=gen(), **FRESH)
    assert_moments(paths(x), mean * scale + offset, cov * slopes[:, None] * slopes)
    torch.testing.assert_close(paths.mean(x), mean * scale + offset, rtol=1e-8, atol=1e-8)


# An implied covariance that is not the posterior's.


def test_the_covariance_between_points_is_the_posterior_s_and_not_its_diagonal_alone():
    """Paths with the right mean and marginal variances but another covariance would pass a band plot, not this."""
    gp = ExactGP(K.Matern(1.5, 0.5), rand(5, 2, seed=1), randn(5, seed=2), 0.05)
    f = draw(gp, 4000, generator=gen(), **FRESH)(AT)
    mean, cov = exact_moments(gp, AT)
    assert_moments(f, mean, cov)
    shuffled = torch.stack([f[torch.randperm(4000, generator=gen(i)), i] for i in range(6)], dim=1)
    assert_marginals_ks(shuffled, mean, cov)  # the same marginals...
    with pytest.raises(AssertionError, match="covariance"):
        assert_moments(shuffled, mean, cov)  # ...and not the law


# An argument with the wrong name, swallowed.


@pytest.mark.parametrize(
    "function",
    [
        matheron.draw,
        matheron.draw_prior,
        matheron.load,
        matheron.ExactGP.__init__,
        matheron.SparseGP.__init__,
        matheron.Paths.__call__,
        matheron.Paths.value_and_grad,
        matheron.Paths.mean,
        matheron.Paths.condition_on,
        matheron.Paths.save,
    ],
    ids=lambda f: f.__qualname__,
)
def test_no_public_function_takes_arguments_it_does_not_know(function):
    kinds = {p.kind for p in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds


# Jitter added in a factorisation and forgotten in the update.


def test_jitter_of_a_factorisation_is_noise_in_the_update():
    """The same K + jitter I is factored, solved with and drawn from: the update's equation holds with its noise."""
    X = rand(3, 1, seed=1).repeat(2, 1)
    gp = ExactGP(K.RBF(0.4), X, randn(3, seed=2).repeat(2), 0.0)
    with pytest.warns(matheron.JitterWarning, match="added a jitter of 1.0e-10"):
        paths = draw(gp, 4, generator=gen())
    prior = paths.prior.sums(X[None])[:, 0]  # [s, n]
    eps = 1e-10**0.5 * paths.update.xi
    left = paths.update.weights @ (K.RBF(0.4)(X) + 1e-10 * torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(left, gp.train_targets - prior - eps, rtol=1e-5, atol=1e-6)


def test_jitter_of_a_sparse_model_is_noise_in_the_update():
    gp = SparseGP(K.RBF(0.5), rand(4, 2, seed=1), randn(4, seed=2), jitter=0.2)
    mean, cov = exact_moments(gp, AT)
    assert_moments(draw(gp, 4000, generator=gen(), **FRESH)(AT), mean, cov)


# Paths that are quasi-random across paths: a sample variance over few of them is too large.


def test_the_sample_variance_over_a_few_paths_is_the_posterior_s_on_average():
    gp, x = ExactGP(K.RBF(0.5), rand(3, 1), randn(3), 0.1), AT[:2, :1]
    _, cov = exact_moments(gp, x)
    settings: dict[str, Any] = dict(num_features=32, features="sobol")
    variances = torch.stack([draw(gp, 2, generator=gen(i), **settings)(x).var(0) for i in range(300)])
    error = variances.std(0) / 300**0.5
    assert ((variances.mean(0) - cov.diagonal()).abs() < 4 * error).all()
    assert (4 * error < 0.4 * cov.diagonal()).all()  # enough to see the half that quasi-random paths add
