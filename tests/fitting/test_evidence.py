"""The marginal likelihood and leave-one-out predictions: closed forms, other libraries, and a change of variables."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from torch import Tensor

from examples import B2, rand, randn
from matheron import Batch, ExactGP, Outputs, SparseGP, kernels, leave_one_out, log_marginal_likelihood
from matheron import kernels as K
from matheron.compare.samplers import moments
from matheron.models import transforms

N = 7
NOISES = (rand(N, seed=4) * 0.1 + 0.05).tolist()


def exact(**settings) -> ExactGP:
    defaults: dict[str, Any] = dict(kernel=K.Matern(1.5, 0.4), X=rand(N, 2), y=randn(N, seed=1), noise=0.1)
    return ExactGP(**(defaults | settings))


MODELS = {
    "plain": exact(),
    "noise of its own per point": exact(noise=NOISES),
    "a mean": exact(mean=lambda x: x.sum(-1, keepdim=True)),
    "a constant mean": exact(mean=0.7),
    "tasks": exact(kernel=K.Coregional(K.RBF(0.4), B2) + 0.3 * K.Matern(0.5, 1.0), tasks=[0, 1, 0, 1, 1, 0, 0]),
    "tasks with means": exact(kernel=K.Coregional(K.RBF(0.4), B2), tasks=[0, 1, 0, 1, 1, 0, 0], mean=[0.3, -1.0]),
}


def joint(gp: ExactGP) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the data, entry by entry."""
    n, X = len(gp.train_targets), gp.train_inputs
    tasks = torch.zeros(n, dtype=torch.long) if gp.tasks is None else gp.tasks
    C = torch.zeros(n, n, dtype=torch.float64)
    for B, k in gp.kernel.coupled():
        C += k(X) * (1.0 if B is None else B[tasks[:, None], tasks])
    mean = gp.mean(X[None])[0].expand(n, gp.num_outputs)[torch.arange(n), tasks]
    return mean, C + torch.diag(gp.noise)


@pytest.mark.parametrize("name", MODELS)
def test_the_marginal_likelihood_is_the_density_of_a_multivariate_normal(name):
    gp = MODELS[name]
    mean, C = joint(gp)
    law: Any = scipy.stats.multivariate_normal
    expected = law(mean.numpy(), C.numpy()).logpdf(gp.train_targets.numpy())
    assert log_marginal_likelihood(gp).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_leaving_one_out_is_conditioning_on_the_others(name):
    gp = MODELS[name]
    mean, C = joint(gp)
    y, left = gp.train_targets, leave_one_out(gp)
    for i in range(N):
        others = [j for j in range(N) if j != i]
        gain = torch.linalg.solve(C[others][:, others], C[others, i])
        expected_mean = mean[i] + gain @ (y - mean)[others]
        expected_variance = C[i, i] - gain @ C[others, i]
        density = scipy.stats.norm.logpdf(y[i], expected_mean, expected_variance.sqrt())
        torch.testing.assert_close(left.mean[i], expected_mean)
        torch.testing.assert_close(left.variance[i], expected_variance)
        assert left.log_density[i].item() == pytest.approx(density)
        torch.testing.assert_close(left.standardized[i], (y[i] - expected_mean) / expected_variance.sqrt())


def test_value_and_gradient_are_scikit_learn_s():
    X, y = rand(12, 2), randn(12, seed=1)
    lengthscales: Any = [0.4, 0.7]
    fixed: Any = None
    model: Any = GaussianProcessRegressor(RBF(lengthscales) + WhiteKernel(0.2), optimizer=fixed)
    model.fit(X.numpy(), y.numpy())
    value, gradient = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    log_scales = torch.tensor([0.4, 0.7, 0.2], dtype=torch.float64).log().requires_grad_()
    scales = log_scales.exp()
    ours = log_marginal_likelihood(ExactGP(K.RBF(scales[:2]), X, y, scales[2]))
    assert ours.item() == pytest.approx(value)
    np.testing.assert_allclose(torch.autograd.grad(ours, log_scales)[0].numpy(), gradient, rtol=1e-8)


def test_gradients_reach_every_hyperparameter():
    X, y, tasks = rand(5, 2), randn(5, seed=1), [0, 1, 1, 0, 1]

    def value(lengthscale: Tensor, outputscale: Tensor, root: Tensor, noise: Tensor, mean: Tensor) -> Tensor:
        kernel = K.Coregional(outputscale * K.Matern(2.5, lengthscale), root @ root.mT) + K.RBF(0.5)
        gp = ExactGP(kernel, X, y, noise, mean=mean, tasks=tasks)
        return log_marginal_likelihood(gp) + leave_one_out(gp).log_density.sum()

    starts = [rand(2), rand(1)[0] + 0.5, randn(2, 2), rand(5) + 0.1, randn(2)]
    assert torch.autograd.gradcheck(value, [start.requires_grad_() for start in starts])


@pytest.mark.parametrize("transform", [transforms.Affine(3.0, 2.0), transforms.Exp()], ids=["affine", "exp"])
def test_under_a_transform_it_is_the_density_of_the_user_s_data(transform):
    """The density of T(y): that of y, less log |T'|, which is here the volume of a small box around the data."""
    gp, plain = exact(output_transform=transform), exact()
    y, h = plain.train_targets, 1e-6
    volume = (transform(y[:, None] + h) - transform(y[:, None] - h)).abs()[:, 0] / (2 * h)
    expected = log_marginal_likelihood(plain) - volume.log().sum()
    torch.testing.assert_close(log_marginal_likelihood(gp), expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        leave_one_out(gp).log_density, leave_one_out(plain).log_density - volume.log(), rtol=1e-7, atol=1e-7
    )


def test_leave_one_out_answers_in_the_user_s_units_where_the_transform_is_affine():
    left, plain = leave_one_out(exact(output_transform=transforms.Affine(3.0, 2.0))), leave_one_out(exact())
    torch.testing.assert_close(left.mean, 3 * plain.mean + 2)
    torch.testing.assert_close(left.variance, 9 * plain.variance)
    curved = leave_one_out(exact(output_transform=transforms.Exp()))
    with pytest.raises(TypeError, match="mean: under an output transform that is not affine"):
        curved.mean  # noqa: B018
    with pytest.raises(TypeError, match="variance: under an output transform that is not affine"):
        curved.variance  # noqa: B018


def test_single_precision_data_are_judged_in_double():
    gp = exact(X=rand(N, 2).float(), y=randn(N, seed=1).float())
    value = log_marginal_likelihood(gp)
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, log_marginal_likelihood(exact()), rtol=1e-5, atol=1e-5)


def test_independent_outputs_add_up_and_batches_have_one_value_each():
    one, other = exact(), exact(noise=0.5)
    values = torch.stack([log_marginal_likelihood(one), log_marginal_likelihood(other)])
    torch.testing.assert_close(log_marginal_likelihood(Outputs([one, other])), values.sum())
    torch.testing.assert_close(log_marginal_likelihood(Batch([one, other])), values)


def test_leave_one_out_scores_are_those_of_models_without_the_observation():
    """RMSE, R^2 and coverage in the user's units, from n models that were each given all data but one."""
    gp = exact(output_transform=transforms.Affine(3.0, 2.0))
    y = 3.0 * gp.train_targets + 2.0
    means, deviations = torch.empty_like(y), torch.empty_like(y)
    for i in range(len(y)):
        keep = torch.arange(len(y)) != i
        X, targets, noise = gp.train_inputs[keep], gp.train_targets[keep], gp.noise[keep]
        others = ExactGP(gp.kernel, X, targets, noise, gp.mean, output_transform=gp.output_transform)
        mean, covariance = moments(others, gp.train_inputs[i : i + 1])
        means[i], deviations[i] = mean.squeeze(), (covariance.squeeze() + 9.0 * gp.noise[i]).sqrt()
    left, errors = leave_one_out(gp), y - means
    torch.testing.assert_close(left.targets, y)
    torch.testing.assert_close(left.rmse, errors.square().mean().sqrt(), rtol=1e-6, atol=0)
    torch.testing.assert_close(left.r_squared, 1 - errors.square().sum() / (y - y.mean()).square().sum())
    assert left.coverage == (errors.abs() < 1.959964 * deviations).double().mean()


def test_leave_one_out_prints_its_scores_and_no_tensors():
    left = leave_one_out(exact())
    assert "tensor" not in repr(left) and f"RMSE {float(left.rmse):.3g}, R^2 {float(left.r_squared):.3g}" in repr(left)
    assert f"95% intervals cover {float(left.coverage):.1%}" in repr(left)
    curved = leave_one_out(exact(output_transform=transforms.Exp()))  # of medians
    assert curved.coverage == left.coverage and curved.rmse > 0


def test_scores_of_several_outputs_are_each_output_s_own():
    X = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None]
    f, g = torch.sin(6 * X[:, 0]), 100 + X[:, 0]
    pair = [ExactGP(kernels.RBF(0.3), X, y, noise=1e-2) for y in (f, g)]
    both = ExactGP(kernels.Coregional(kernels.RBF(0.3), torch.eye(2)), X, torch.stack([f, g], 1), noise=1e-2)
    alone, joint = [leave_one_out(gp) for gp in pair], leave_one_out(both)
    for name in ("rmse", "r_squared", "coverage"):
        torch.testing.assert_close(getattr(joint, name), torch.stack([getattr(left, name) for left in alone]))
    assert "output 1: RMSE" in repr(joint)


def test_targets_that_do_not_vary_have_no_r_squared():
    left = leave_one_out(ExactGP(kernels.RBF(0.3), [[0.0], [1.0]], [2.0, 2.0], noise=0.1))
    assert left.r_squared.isnan() and left.rmse > 0


@pytest.mark.parametrize("ask", [log_marginal_likelihood, leave_one_out])
def test_a_model_without_data_is_refused(ask):
    with pytest.raises(TypeError, match=f"{ask.__name__}: expected an ExactGP.*got SparseGP"):
        ask(SparseGP(kernels.RBF(), rand(3, 1), randn(3)))
