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
from matheron import Batch, ExactGP, Outputs, SparseGP, kernels, leave_one_out, log_marginal_likelihood, transforms
from matheron import kernels as K

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


@pytest.mark.parametrize("ask", [log_marginal_likelihood, leave_one_out])
def test_a_model_without_data_is_refused(ask):
    with pytest.raises(TypeError, match=f"{ask.__name__}: expected an ExactGP.*got SparseGP"):
        ask(SparseGP(kernels.RBF(), rand(3, 1), randn(3)))
