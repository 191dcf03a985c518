"""matheron.fit: tops of the likelihood, known answers, agreement with other libraries, and data that are difficult."""

import copy
import warnings
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
import torch.distributions as D
from sklearn.datasets import load_diabetes, make_friedman2
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import matheron
from examples import rand, randn
from matheron import Sites, observe
from matheron import kernels as K
from matheron.fitting import FitWarning, maximised, search
from matheron.fitting.hyperparameters import in_double
from standard import KERNELS

DOUBLE = torch.float64
fit: Any = matheron.fit  # parts of what it returns are read by name
COUPLED = K.Coregional(K.Matern(1.5, 0.7), [[1.0, 0.4], [0.4, 0.5]]) + 0.3 * K.RBF(0.4)
CASES: dict[str, Any] = KERNELS | {
    "coupled": (COUPLED, 2),
    "coupled and scaled": (2.0 * K.Coregional(K.RBF(0.5), torch.eye(3)), 1),
}


def data(n: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, dtype=DOUBLE, generator=g), torch.randn(n, dtype=DOUBLE, generator=g)


def simulated(kernel, n: int, d: int, noise: float, seed: int = 0):
    """Data from a model whose hyperparameters are known."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, dtype=DOUBLE, generator=g) * 4
    covariance = kernel(X) + noise * torch.eye(n, dtype=DOUBLE)
    return X, torch.linalg.cholesky(covariance) @ torch.randn(n, dtype=DOUBLE, generator=g)


def gains(kernel, X, y, tasks=None) -> list[float]:
    """What a fit would still gain in log likelihood from 3% more or less of each of its hyperparameters."""
    fitted, noise, mean = maximised(kernel, X, y, tasks=tasks, priors={})

    def value(kernel, noise) -> float:
        return float(matheron.log_marginal_likelihood(matheron.ExactGP(kernel, X, y, noise, mean=mean, tasks=tasks)))

    best, found = value(fitted, noise), []
    for step in (0.03, -0.03):
        found.append(value(fitted, noise * np.exp(step)) - best)
        for name, buffer in fitted.named_buffers():
            whole = name.endswith("B")  # a coupling stays positive semi-definite as a whole
            for i in range(1 if whole else buffer.numel()):
                other = copy.deepcopy(fitted)
                entries = dict(other.named_buffers())[name].view(-1)
                entries[slice(None) if whole else i] *= np.exp(step)
                found.append(value(other, noise) - best)
    return found


def drawn(kernel, d: int, n: int):
    """Data from a prior, of one output or several."""
    g = torch.Generator().manual_seed(0)
    X = 2 * torch.rand(n, d, dtype=DOUBLE, generator=g)
    tasks = torch.arange(n) % kernel.num_outputs
    covariance = K.coupled_covariance(kernel, Sites(X, tasks), Sites(X, tasks)) + 0.05 * torch.eye(n, dtype=DOUBLE)
    y = 0.3 + torch.linalg.cholesky(covariance) @ torch.randn(n, dtype=DOUBLE, generator=g)
    return X, y, (tasks if kernel.num_outputs > 1 else None)


@pytest.mark.parametrize("case", CASES)
def test_a_fit_ends_at_a_top_of_the_likelihood_in_every_hyperparameter(case):
    kernel, d = CASES[case]
    assert max(gains(kernel, *drawn(kernel, d, 40))) < 1e-4


@pytest.mark.parametrize("case, threads", [("a sum", 1), ("coupled", 2)])
def test_a_fit_whose_covariance_is_computed_in_blocks_ends_at_a_top_too(case, threads):
    kernel, d = CASES[case]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert max(gains(kernel, *drawn(kernel, d, 600))) < 1e-3
    finally:
        torch.set_num_threads(before)


def test_known_hyperparameters_are_found_within_sampling_error():
    """Two standard errors from the curvature of the likelihood at its top, in logarithms; four are allowed."""
    truth = {"lengthscale": torch.tensor([0.5, 1.5], dtype=DOUBLE), "outputscale": torch.tensor(4.0, dtype=DOUBLE)}
    X, y = simulated(truth["outputscale"] * K.Matern(2.5, truth["lengthscale"]), 300, 2, 0.04)
    gp = fit(1.0 * K.Matern(2.5, [1.0, 1.0]), X, y, seed=0)
    rows = matheron.summary(gp).rows
    found = [rows["Matern.lengthscale[x0]"], rows["Matern.lengthscale[x1]"], rows["noise standard dev"]]
    for value, true, error in zip(found, [0.5, 1.5, 0.2], [0.1, 0.12, 0.06], strict=True):
        assert abs(np.log(value / true)) < 4 * error
    assert abs(np.log(rows["Matern.outputscale"] / 4)) < 4 * 0.25


class Peer(gpytorch.models.ExactGP):
    mean_module: Any
    covar_module: Any

    def __init__(self, X, y, likelihood):
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=2))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_the_optimum_is_gpytorch_s():
    X, y = simulated(2.0 * K.Matern(2.5, [0.6, 1.2]), 80, 2, 0.05, seed=3)
    gp = fit(1.0 * K.Matern(2.5, [1.0, 1.0]), X, y, seed=0)
    mine = matheron.summary(gp)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model: Any = Peer(X, y, likelihood).double()
    model.covar_module.initialize(outputscale=mine.rows["Matern.outputscale"])
    lengthscales = [mine.rows["Matern.lengthscale[x0]"], mine.rows["Matern.lengthscale[x1]"]]
    model.covar_module.base_kernel.initialize(lengthscale=torch.tensor([lengthscales], dtype=DOUBLE))
    likelihood.initialize(noise=mine.rows["noise standard dev"] ** 2)
    model.mean_module.initialize(constant=mine.rows["mean"])
    value: Any = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model.train())(model(X), y)
    assert float(value.detach()) * len(y) == pytest.approx(mine.log_likelihood, abs=1e-4)
    slopes = torch.autograd.grad(value, [p for p in model.parameters()])
    assert max(float(s.abs().max()) for s in slopes) < 1e-4  # nothing is left to gain there


def test_the_optimum_is_scikit_learn_s():
    X, y = simulated(2.0 * K.RBF(0.7), 60, 1, 0.05, seed=4)
    gp = fit(1.0 * K.RBF(1.0), X, y, mean=0.0, seed=0)
    peer: Any = GaussianProcessRegressor(sk.ConstantKernel() * sk.RBF() + sk.WhiteKernel(0.1), n_restarts_optimizer=3)
    peer.set_params(random_state=0).fit(X.numpy(), y.numpy())
    rows = matheron.summary(gp)
    assert rows.log_likelihood == pytest.approx(peer.log_marginal_likelihood_value_, abs=1e-3)
    scale, lengthscale, noise = np.exp(peer.kernel_.theta)
    values = [rows.rows["RBF.outputscale"], rows.rows["RBF.lengthscale"], rows.rows["noise standard dev"] ** 2]
    np.testing.assert_allclose(values, [scale, lengthscale, noise], rtol=2e-2)


@pytest.mark.parametrize("kernel", [1.0 * K.Matern(2.5, [1.0, 1.0]), None], ids=["given", "default"])
def test_units_of_inputs_and_targets_do_not_matter(kernel):
    X, y = simulated(2.0 * K.RBF([0.7, 2.0]), 50, 2, 0.02, seed=5)
    a = fit(kernel, X, y, seed=0)
    b = fit(kernel, X * torch.tensor([1e6, 1e-4]) + 300, y * 5000 - 7, seed=0)
    torch.testing.assert_close(b.train_targets, a.train_targets)
    for first, second in zip(a.kernel.buffers(), b.kernel.buffers(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-3)
    ours, theirs = (matheron.summary(gp).rows["Matern.lengthscale[x0]"] for gp in (a, b))
    assert theirs == pytest.approx(1e6 * ours, rel=1e-2)
    assert matheron.summary(b).log_likelihood == pytest.approx(
        matheron.summary(a).log_likelihood - 50 * np.log(5000), abs=1e-2
    )


def test_what_varies_little_about_a_large_number_is_not_constant():
    """Of a billion and thousandths of it twelve digits are the billion's: four are left."""
    X, y = simulated(2.0 * K.RBF(0.7), 50, 1, 0.02, seed=5)
    expected = float(fit(1.0 * K.RBF(1.0), X, y, seed=0).kernel.kernel.lengthscale)
    for near in (fit(1.0 * K.RBF(1.0), X, 1e9 + 1e-3 * y, seed=0), fit(1.0 * K.RBF(1.0), 1e9 + 1e-3 * X, y, seed=0)):
        assert float(near.kernel.kernel.lengthscale) == pytest.approx(expected, rel=0.05)


def test_what_is_isotropic_stays_so_in_the_user_s_units():
    X, y = simulated(K.RBF(0.7), 40, 2, 0.02)
    X = X * torch.tensor([1.0, 0.1])
    gp = fit(1.0 * K.RBF(1.0), X, y, seed=0)
    scale = gp.input_transform.scale
    assert float(scale[0]) == float(scale[1])
    apart = fit(1.0 * K.RBF([1.0, 1.0]), X, y, seed=0)
    assert float(apart.input_transform.scale[1] / apart.input_transform.scale[0]) > 5


def test_a_rotated_kernel_keeps_its_angle_and_lengthscales_are_the_user_s():
    truth = K.Rotated(K.RBF([1.5, 0.4]), 30.0)
    X, y = simulated(truth, 150, 2, 0.01, seed=2)
    gp = fit(1.0 * K.Rotated(K.RBF([1.0, 1.0]), 30.0), X * torch.tensor([100.0, 100.0]), y, seed=0)
    assert float(gp.input_transform.scale[0]) == float(gp.input_transform.scale[1])
    rows = matheron.summary(gp).rows
    assert rows["RBF.lengthscale[along]"] == pytest.approx(150, rel=0.3)
    assert rows["RBF.lengthscale[across]"] == pytest.approx(40, rel=0.3)
    assert rows["RBF.angle (degrees)"] == 30.0


def test_paths_of_a_fit_go_through_the_data_in_the_user_s_units(generator):
    X = torch.linspace(1000, 2000, 25, dtype=DOUBLE)[:, None]
    y = 1e4 + 300 * torch.sin(X[:, 0] / 100)
    gp = fit(1.0 * K.RBF(50.0), X, y, noise=1e-3, seed=0)
    paths = matheron.draw(gp, 16, generator=generator)
    assert float((paths(X) - y).abs().max()) < 1.0
    assert float((paths.mean(torch.tensor([[1500.5]], dtype=DOUBLE)) - 1e4 - 300 * np.sin(15.005)).abs()) < 5


def test_a_coupling_is_fitted_and_stays_positive_semi_definite():
    truth = K.Coregional(K.RBF(0.6), [[1.0, -0.9], [-0.9, 1.0]])
    g = torch.Generator().manual_seed(1)
    X = torch.rand(120, 1, dtype=DOUBLE, generator=g) * 6
    tasks = torch.arange(120) % 2
    covariance = K.coupled_covariance(truth, Sites(X, tasks), Sites(X, tasks)) + 0.01 * torch.eye(120, dtype=DOUBLE)
    y = torch.linalg.cholesky(covariance) @ torch.randn(120, dtype=DOUBLE, generator=g)
    gp = fit(K.Coregional(K.RBF(1.0), torch.eye(2)), X, y * (1 + 99 * tasks), tasks=tasks, seed=0)
    B = gp.kernel.B
    assert float(torch.linalg.eigvalsh(B).min()) > -1e-9
    assert float(B[0, 1] / (B[0, 0] * B[1, 1]).sqrt()) < -0.7
    rows = matheron.summary(gp).rows
    assert rows["noise standard dev[1]"] == pytest.approx(10.0, rel=0.5)  # of a task in units a hundred times smaller
    both = fit(K.Coregional(K.RBF(1.0), torch.eye(2)), X[:10], torch.stack([y[:10], y[10:20]], 1), seed=0)
    assert both.num_outputs == 2 and both.num_data == 20


def test_variances_of_coupled_kernels_are_in_the_targets_units():
    X, y = simulated(K.RBF(0.7), 8, 1, 0.02)
    tasks = torch.arange(8) % 2
    gp = matheron.ExactGP(COUPLED, X, y, 0.1, tasks=tasks, output_transform=matheron.transforms.Affine(10.0, 3.0))
    rows = matheron.summary(gp).rows
    assert rows["Matern.B[1, 1]"] == pytest.approx(100 * 0.5) and rows["RBF.outputscale"] == pytest.approx(100 * 0.3)
    assert rows["noise standard dev[0]"] == pytest.approx(10 * 0.1**0.5) and rows["mean[1]"] == pytest.approx(3.0)


def test_a_period_given_in_the_user_s_units_is_where_a_start_begins():
    month = torch.arange(96, dtype=DOUBLE)[:, None]
    g = torch.Generator().manual_seed(0)
    y = torch.sin(month[:, 0] * (2 * np.pi / 12)) ** 3 + 0.1 * torch.randn(96, dtype=DOUBLE, generator=g)
    gp = fit(1.0 * K.Periodic(1.0, period=11.5) * K.RBF(100.0), month, y, num_starts=1)
    assert matheron.summary(gp).rows["Periodic.period"] == pytest.approx(12, rel=0.02)


def test_a_period_is_found_beside_a_trend_whatever_the_kernel_s_own_numbers():
    """Every period that fits a little is a top of the likelihood: the starts must include the right one."""
    X = 120 * rand(60, 1)
    y = torch.sin(2 * torch.pi * X[:, 0] / 13) + 0.05 * X[:, 0] + 0.1 * randn(60, seed=10)
    gp = fit(1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.RBF(1.0), X, y, seed=0, num_starts=2)
    found = matheron.summary(gp).rows["Periodic.period"]
    assert abs(found / 13 - 1) < 0.02, found


def test_two_periods_are_found_where_both_kernels_start_at_the_same_one():
    t = torch.linspace(0, 20, 120, dtype=torch.float64)
    y = torch.sin(2 * torch.pi * t / 1.3) + 0.7 * torch.sin(2 * torch.pi * t / 4.1)
    y = y + 0.1 * torch.randn(120, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gp = matheron.fit(1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.Periodic(1.0, 1.0), t[:, None], y, num_starts=2, seed=0)
    rows = matheron.summary(gp).rows
    found = sorted(value for label, value in rows.items() if ".period" in label)
    assert found == pytest.approx([1.3, 4.1], rel=0.02)


@pytest.mark.parametrize("kernel", [K.Periodic(1.0, 1.0) + K.Periodic(1.0, 1.0), K.Matern(1.5, torch.ones(4))])
def test_a_search_from_one_start_does_not_take_all_of_a_function_for_noise(kernel):
    """From the kernels' own numbers the search ends where the noise has all of the variance."""
    if isinstance(kernel, K.Matern):
        X, y = make_friedman2(200, noise=100.0, random_state=0)
    else:
        X = np.linspace(0, 20, 150)[:, None]
        y = np.sin(2 * np.pi * X[:, 0] / 1.3) + 0.7 * np.sin(2 * np.pi * X[:, 0] / 4.1)
        y += 0.1 * np.random.default_rng(0).standard_normal(150)
    gp = fit(1.0 * kernel, X, y, num_starts=1, priors={})
    assert float(gp.noise[0]) < 0.2


def test_periods_along_two_columns_are_each_the_highest_peak_of_their_own():
    X = 10 * rand(150, 2)
    y = torch.sin(2 * torch.pi * X[:, 0] / 1.3) + torch.cos(2 * torch.pi * X[:, 1] / 2.9) + 0.1 * randn(150, seed=5)
    gp = fit(1.0 * K.Periodic(1.0, 1.0).on(0) + 1.0 * K.Periodic(1.0, 1.0).on(1), X, y, num_starts=2, seed=0)
    found = [value for label, value in matheron.summary(gp).rows.items() if ".period" in label]
    assert found == pytest.approx([1.3, 2.9], rel=0.02)


def test_an_input_far_from_all_others_hides_no_lengthscale():
    """Its distance makes the column's deviation: in such units a lengthscale of the others is very short."""
    X = 10 * rand(60, 1)
    y = torch.sin(X[:, 0]) + 0.1 * randn(60, seed=4)
    gp = fit(1.0 * K.RBF(1.0), torch.cat([X, X[:1] + 1e5]), torch.cat([y, y[:1]]), num_starts=1)
    alone = fit(1.0 * K.RBF(1.0), X, y, num_starts=1)
    found, expected = (matheron.summary(one).rows["RBF.lengthscale"] for one in (gp, alone))
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("x, turns", [(rand(100, 1)[:, 0], 77.0), (torch.linspace(0, 1, 101, dtype=DOUBLE), 33.0)])
def test_frequencies_are_looked_for_as_far_as_neighbours_tell_them_apart(x, turns):
    """Irregular data show more turns than half their number; on a grid what is above is the mirror image of a lower."""
    y = torch.sin(2 * torch.pi * turns * x) + x + 0.1 * randn(len(x), seed=2)
    gp = fit(1.0 * K.Periodic(1.0, 1.0) + 1.0 * K.RBF(1.0), x[:, None], y, seed=0, num_starts=2)
    assert matheron.summary(gp).rows["Periodic.period"] * turns == pytest.approx(1, rel=0.01)


@pytest.mark.slow
def test_a_spectral_mixture_starts_at_the_peaks_of_the_spectrum():
    X = 30 * rand(90, 1)
    y = torch.sin(2 * torch.pi * 0.4 * X[:, 0]) + 0.5 * torch.sin(2 * torch.pi * 1.1 * X[:, 0]) + 0.1 * randn(90)
    kernel = K.SpectralMixture([1.0, 1.0], [[0.05], [0.1]], [[0.01], [0.01]])
    rows = matheron.summary(fit(kernel, X, y, seed=0, num_starts=2)).rows
    means = sorted(abs(v) for name, v in rows.items() if "means" in name)
    assert means == pytest.approx([0.4, 1.1], rel=0.05)


def test_noise_that_is_given_is_kept():
    X, y = simulated(K.RBF(0.7), 30, 1, 0.02)
    variances = torch.linspace(0.01, 0.1, 30, dtype=DOUBLE)
    gp = fit(1.0 * K.RBF(1.0), X, y, noise=variances, seed=0)
    torch.testing.assert_close(gp.noise * gp.output_transform.scale**2, variances)
    rows = matheron.summary(gp).rows
    assert rows["noise standard dev, smallest"] == pytest.approx(0.1) and "noise standard dev" not in rows


def test_a_mean_is_fitted_or_kept_in_the_user_s_units(generator):
    X, y = simulated(K.RBF(0.7), 40, 1, 0.02)
    y = y + 500 * X[:, 0]
    far = torch.tensor([[1e3]], dtype=DOUBLE)
    linear = fit(1.0 * K.RBF(1.0), X, y, mean="linear", seed=0)
    assert matheron.summary(linear).rows["mean slope[x0]"] == pytest.approx(500, rel=0.01)
    for mean in (7.0, lambda x: 7.0 + 0 * x[..., 0], matheron.means.LinearMean([2.0], -1993.0)):
        gp = fit(1.0 * K.RBF(1.0), X, y, mean=mean, num_starts=1)
        assert float(matheron.draw(gp, 2, generator=generator).mean(far)) == pytest.approx(7.0, abs=1e-6)


def test_priors_pull_and_are_found_by_name():
    X, y = simulated(K.RBF(0.7) + K.Matern(0.5, 0.3), 30, 1, 0.02)
    kernel = K.RBF(1.0) + K.Matern(0.5, 1.0)
    strong = torch.distributions.LogNormal(torch.tensor(2.0).double(), torch.tensor(1e-3).double())
    gp = fit(kernel, X, y, priors={"parts.1.lengthscale": strong}, seed=0)
    assert float(gp.kernel.parts[1].lengthscale) == pytest.approx(np.exp(2.0), rel=0.02)
    assert float(gp.kernel.parts[0].lengthscale) < 3
    with pytest.raises(ValueError, match=r"no hyperparameter is called 'ell'; there are parts.0.lengthscale, parts.1"):
        fit(kernel, X, y, priors={"ell": strong})
    with pytest.raises(TypeError, match=r"expected a torch distribution, or a function .* got float"):
        fit(kernel, X, y, priors={"noise": 1.0})


@pytest.mark.parametrize(
    "prior",
    [
        D.Independent(D.LogNormal(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5])), 1),
        D.MixtureSameFamily(D.Categorical(torch.ones(1)), D.LogNormal(torch.zeros(1), torch.full((1,), 0.5))),
        D.TransformedDistribution(D.Normal(0.0, 0.5), [D.ExpTransform()]),
        gpytorch.priors.UniformPrior(0.3, 3.0),
        gpytorch.priors.MultivariateNormalPrior(torch.ones(2), 0.1 * torch.eye(2)),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_a_prior_is_any_distribution_and_its_parts_become_double(prior):
    X, y = data(12, 2)
    fit(K.RBF([1.0, 1.0]), X, y, priors={"lengthscale": prior}, num_starts=1)
    lengthscale = torch.tensor([0.7, 1.3], dtype=DOUBLE)
    density = in_double(prior, lengthscale.device).log_prob(lengthscale)
    assert density.dtype == DOUBLE
    torch.testing.assert_close(density.float(), prior.log_prob(lengthscale.float()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("prior", "error", "words"),
    [
        (lambda v: -float(v.detach().sum()), TypeError, "log density of 'lengthscale', of values .2., .* got float"),
        (
            D.LogNormal(torch.zeros(3), torch.ones(3)),
            ValueError,
            "log density of 'lengthscale', of values .2., .* error",
        ),
        (lambda v: v[:, None] - v, ValueError, r"at most as many numbers, got \[2, 2\]"),
    ],
    ids=["a number", "another shape", "too many numbers"],
)
def test_a_density_of_another_form_is_refused_before_the_search(prior, error, words):
    X, y = data(12, 2)
    with pytest.raises(error, match=words):
        fit(K.RBF([1.0, 1.0]), X, y, priors={"lengthscale": prior})


def test_a_prior_with_bounds_keeps_what_it_is_about_within_them():
    X = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    priors = {"lengthscale": torch.distributions.Uniform(0.05, 0.06), "mean": torch.distributions.Uniform(1.0, 2.0)}
    gp = matheron.fit(1.0 * K.RBF(1.0), X, torch.sin(6 * X[:, 0]), priors=priors, seed=0)
    assert 0.05 <= float(gp.kernel.kernel.lengthscale) <= 0.06
    assert float(gp.mean.value) == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(ValueError, match="a density between"):
        matheron.fit(K.RBF(1.0), X, X[:, 0], priors={"lengthscale": torch.distributions.Uniform(-2.0, -1.0)})


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kernel", [None, 1.0 * K.RBF(1.0) + K.Linear([1.0, 1.0])], ids=["default", "given"])
def test_a_handful_of_points_gives_a_usable_model(n, kernel, generator):
    X, y = data(n, 2)
    gp = fit(kernel, 100 + X, 7 + 0.1 * y, seed=0)
    values = matheron.draw(gp, 64, generator=generator)(100 + X)
    assert bool(torch.isfinite(values).all()) and float((values.mean(1) - 7).abs().max()) < 3


@pytest.mark.parametrize("noise", [None, pytest.param(0.0, marks=pytest.mark.slow)])
def test_duplicates_and_constant_targets_are_survived(noise):
    X, y = simulated(K.RBF(0.7), 20, 1, 0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", matheron.JitterWarning)
        gp = fit(None, torch.cat([X, X]), torch.cat([y, y]), noise=noise, seed=0)
        assert bool(torch.isfinite(torch.cat([b.reshape(-1) for b in gp.kernel.buffers()])).all())
        with pytest.warns(FitWarning, match="y is constant"):
            flat = fit(None, X, torch.full_like(y, 3.0), noise=noise, seed=0)
    assert float(matheron.draw(flat, 2).mean(X).sub(3).abs().max()) < 1e-6


def test_a_constant_column_is_said_and_its_lengthscale_stays():
    X, y = simulated(K.RBF(0.7), 30, 1, 0.02)
    X = torch.cat([X, torch.full_like(X, 5.0)], 1)
    with pytest.warns(FitWarning, match="column 1 of X is constant"):
        gp = fit(1.0 * K.RBF([1.0, 2.5]), X, y, seed=0)
    assert matheron.summary(gp).rows["RBF.lengthscale[x1]"] == pytest.approx(2.5)


def test_slopes_and_averages_tell_of_a_column_whose_points_are_the_same():
    """Without a datum elsewhere, only these do: values along the other column still leave a lengthscale as given."""
    x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]], dtype=DOUBLE)
    y = torch.tensor([0.0, 1.0, 0.5], dtype=DOUBLE)
    slopes = [observe.value(x), observe.derivative(x, 0)]
    boxes = observe.mean(x - 0.5, x + 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        gp = fit(None, slopes, [y, torch.tensor([3.0, -3.0, 2.0])], seed=0)
        fit(1.0 * K.RBF([1.0, 1.0]), boxes, y, seed=0)
    assert float(gp.kernel.kernel.lengthscale[0]) != pytest.approx(2**0.5, rel=1e-3)
    with pytest.warns(FitWarning, match="column 0 of X is constant"):
        fit(None, observe.value(x), y, seed=0)


def test_a_fit_of_nothing_is_refused():
    class Line(K.Kernel):
        def forward(self, x, z):
            return x @ z.mT

        def features(self, num_features, generator):
            return lambda x: x

    with pytest.raises(ValueError, match=r"got a kernel without hyperparameters.* such as matheron.ExactGP"):
        fit(Line(), [[0.1], [1.0]], [3.0, 4.0], noise=0.1, mean=0.0)


def test_a_zero_stays_zero():
    X, y = simulated(K.RBF(0.7), 30, 2, 0.02)
    gp = fit(1.0 * K.RBF(1.0) + K.Linear([1.0, 0.0]), X, y, seed=0)
    assert float(gp.kernel.parts[1].variance[1]) == 0.0


def test_one_start_draws_no_random_numbers_and_a_seed_fixes_the_rest():
    X, y = simulated(K.RBF(0.7), 20, 1, 0.02)
    state = torch.random.get_rng_state()
    fit(1.0 * K.RBF(1.0), X, y, num_starts=1)
    fit(1.0 * K.RBF(1.0), X, y, seed=3)
    assert bool((torch.random.get_rng_state() == state).all())
    a, b = (fit(1.0 * K.RBF(1.0), X, y, seed=3).kernel for _ in range(2))
    assert float(a.outputscale) == float(b.outputscale)


def test_single_precision_data_are_fitted_in_double_and_kept_single():
    X, y = simulated(K.RBF(0.7), 30, 1, 0.02)
    gp, single = (
        fit(1.0 * K.RBF(1.0), X, y, seed=0),
        fit(1.0 * K.RBF(1.0), X.float(), y.float(), seed=0),
    )
    assert single.train_inputs.dtype == torch.float32
    assert float(single.kernel.kernel.lengthscale) == pytest.approx(float(gp.kernel.kernel.lengthscale), rel=1e-3)


def test_a_caller_s_graph_and_inference_mode_change_nothing():
    X, y = simulated(K.RBF(0.7), 15, 1, 0.02)
    expected = float(fit(K.RBF(1.0), X, y, noise=0.1, mean=0.5, num_starts=1).kernel.lengthscale)
    tied = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.1, 0.5)]
    gp = fit(K.RBF(1.0), X.requires_grad_(), y, noise=tied[0], mean=tied[1], num_starts=1)
    with torch.inference_mode():
        other = fit(K.RBF(1.0), X.detach().clone(), y.clone(), noise=0.1, mean=0.5, num_starts=1)
    assert [float(g.kernel.lengthscale) for g in (gp, other)] == [expected] * 2 and expected != 1.0


def test_a_period_is_found_as_well_as_from_the_known_one():
    """After a few iterations another period is the likeliest, so that more than one search goes on to its end."""
    r = np.random.default_rng(0)
    t = r.uniform(0, 1, (120, 1))
    y = np.sin(2 * np.pi * 77 * t[:, 0]) + t[:, 0] + 0.1 * r.standard_normal(120)

    def end(period, **settings) -> float:
        kernel = 1.0 * K.Periodic(1.0, period) + 1.0 * K.RBF(1.0)
        return float(matheron.log_marginal_likelihood(fit(kernel, t, y, priors={}, **settings)))

    known = end(1 / 77, num_starts=1)
    for seed in range(2):
        assert end(1.0, seed=seed) > known - 0.05


@pytest.mark.filterwarnings("ignore:The optimal value found")
def test_noise_in_many_columns_is_not_taken_for_a_function():
    """Short lengthscales in ten dimensions are white noise, which is likelier than most starts and leads nowhere."""
    X, y = (np.asarray(column)[:90] for column in load_diabetes(return_X_y=True))
    ones: Any = np.ones(10)  # one for each column, though it is declared as one number
    peer = GaussianProcessRegressor(
        sk.ConstantKernel(1.0, (1e-6, 1e6)) * sk.RBF(ones, (1e-3, 1e3)) + sk.WhiteKernel(0.1, (1e-6, 1e2)),
        alpha=0.0,
    ).fit((X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std())
    theirs = peer.log_marginal_likelihood_value_ - len(y) * np.log(y.std())
    for seed in (0, 1):
        gp = fit(1.0 * K.RBF(np.ones(10)), X, y, mean=y.mean(), seed=seed, num_starts=2)
        assert float(matheron.log_marginal_likelihood(gp)) > theirs - 0.3


def test_a_wave_on_a_strong_trend_is_not_taken_for_noise():
    """Both are thousandths of the variance: noise must start below what a linear function leaves."""
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 10, (150, 3))
    y = X @ [3.0, 6.0, 9.0] + 0.2 * np.sin(2 * X[:, 0]) + 0.1 * generator.standard_normal(150)
    gp = fit(1.0 * K.Matern(2.5, torch.ones(3)), X, y, seed=0, num_starts=2)
    assert matheron.summary(gp).rows["noise standard dev"] < 0.12


def test_more_data_than_are_screened_end_at_the_top(monkeypatch):
    """Starts are compared on some of the data: the end must still have no slope on all of them."""
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_compared=64))
    X, y = simulated(2.0 * K.Matern(1.5, 0.5), 200, 1, 0.1)
    gp = fit(1.0 * K.Matern(1.5, 1.0), X, y, seed=0, num_starts=2)
    better, *_ = maximised(gp.kernel, gp.train_inputs, gp.train_targets, noise=gp.noise, mean=gp.mean)
    assert float(better.kernel.lengthscale) == pytest.approx(float(gp.kernel.kernel.lengthscale), rel=1e-2)


def test_a_search_takes_few_evaluations(monkeypatch):
    """Of eight lengthscales six tell of nothing: along them a likelihood is much flatter than along the others.

    A second search begins where the first took them far beyond the data.
    """
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_compared=170))
    X, y = simulated(2.0 * K.Matern(1.5, [0.5, 1.5]), 200, 2, 0.01, seed=1)
    X = torch.cat([X, randn(200, 6, seed=3)], dim=1)
    sizes, forward = [], K.Matern.forward
    monkeypatch.setattr(K.Matern, "forward", lambda k, x, z: (sizes.append(len(x)), forward(k, x, z))[1])
    fit(1.0 * K.Matern(1.5, torch.ones(8)), X, y, seed=0, num_starts=2)
    assert sizes.count(170) + sizes.count(200) < 250


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"X": torch.full((5, 1), torch.nan)}, ValueError, "X: expected finite numbers, got 5 NaN"),
        ({"y": [0.0, 1.0, torch.inf, 2.0, 3.0]}, ValueError, "y: expected finite numbers, got 1 NaN or infinite"),
        ({"y": [0.0, 1.0]}, ValueError, r"y: expected \[5\]"),
        ({"X": torch.zeros(0, 1), "y": torch.zeros(0)}, ValueError, "at least one observation"),
        ({"kernel": None, "X": torch.zeros(5, 0)}, ValueError, "in at least one dimension"),
        ({"kernel": "rbf"}, TypeError, "kernel: expected a kernel of matheron.kernels"),
        ({"num_starts": 0}, ValueError, "num_starts: expected a whole number of at least 1"),
        ({"mean": "quadratic"}, ValueError, 'mean: expected None, "linear", a number'),
        ({"mean": lambda x: x.expand(*x.shape[:-1], 2)}, ValueError, "mean: expected one number per point.* got 2"),
        ({"priors": [3.0]}, TypeError, "priors: expected them by name, as in .*, got list"),
        ({"solver": "magic"}, ValueError, "solver: expected"),
        ({"kernel": K.RBF([1.0, 2.0])}, ValueError, "lengthscale: expected a number or one per dimension"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change, error, words):
    settings = {"kernel": K.RBF(1.0), "X": torch.arange(5.0)[:, None], "y": torch.arange(5.0)} | change
    with pytest.raises(error, match=words):
        fit(**settings)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_targets_whose_variance_is_no_float_are_refused(size):
    with pytest.raises(ValueError, match=r"y: expected targets with a standard deviation .* use other units"):
        fit(K.RBF(1.0), torch.arange(5, dtype=DOUBLE)[:, None], size * torch.arange(5, dtype=DOUBLE))


def test_a_summary_refuses_what_it_cannot_say():
    gp = matheron.ExactGP(K.RBF(0.5), [[0.0]], [1.0], 0.1, output_transform=matheron.transforms.Exp())
    with pytest.raises(TypeError, match="expected affine transforms, got Exp"):
        matheron.summary(gp)
    with pytest.raises(ValueError, match="names: expected 1, one per column of X, got 2"):
        matheron.summary(matheron.ExactGP(K.RBF(0.5), [[0.0]], [1.0], 0.1), names=["a", "b"])
    with pytest.raises(TypeError, match="expected an ExactGP, or Outputs of these, got str"):
        matheron.summary("gp")  # type: ignore[arg-type]


def test_the_summary_of_a_model_without_transforms_is_its_own():
    gp = matheron.ExactGP(2.0 * K.RBF([0.5, 3.0]), [[0.0, 1.0], [1.0, 0.0]], [1.0, 2.0], 0.25, mean=4.0)
    rows = matheron.summary(gp, names=["a", "b"])
    assert rows.rows == {
        "RBF.outputscale": 2.0,
        "RBF.lengthscale[a]": 0.5,
        "RBF.lengthscale[b]": 3.0,
        "noise standard dev": 0.5,
        "mean": 4.0,
    }
    assert rows.log_likelihood == pytest.approx(float(matheron.log_marginal_likelihood(gp)))
    assert "RBF.lengthscale[b]  3" in str(rows)


@pytest.mark.parametrize("n, waves", [(250, 50), pytest.param(2500, 365, marks=pytest.mark.slow)])
def test_waves_are_not_taken_for_noise(n, waves):
    generator = np.random.default_rng(0)
    t = generator.uniform(0, waves, n)
    gp = fit(None, t[:, None], np.sin(2 * np.pi * t) + 0.1 * generator.standard_normal(n), seed=0)
    assert float(gp.noise[0]) < 0.1  # of a variance of one
    assert 0.1 < float(gp.kernel.kernel.lengthscale) * float(np.std(t)) < 1.0


def test_a_summary_says_how_well_each_observation_is_predicted_from_the_others():
    X = torch.linspace(0, 10, 30, dtype=torch.float64)[:, None]
    gp = matheron.fit(2.0 * K.RBF(1.0), X, 50 + 3 * torch.sin(X[:, 0]), noise=1e-2, num_starts=1)
    said, left = matheron.summary(gp), matheron.leave_one_out(gp)
    assert said.leave_one_out is not None
    assert torch.equal(said.leave_one_out.rmse, left.rmse) and float(left.r_squared) > 0.95
    words = f"leave-one-out: RMSE {float(left.rmse):.3g}, R^2 {float(left.r_squared):.3g}, 95% intervals cover"
    assert words in str(said)


def test_the_summary_of_a_rotated_kernel_has_its_angle_and_lengthscales_along_and_across_it():
    X = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = 2.0 * K.Rotated(K.RBF([3.0, 0.5]), angle=30.0) + K.Matern(1.5, [1.0, 4.0])
    rows = matheron.summary(matheron.ExactGP(kernel, X, X[:, 0], noise=0.01), names=["east", "north"]).rows
    assert (rows["RBF.lengthscale[along]"], rows["RBF.lengthscale[across]"]) == (3.0, 0.5)
    assert rows["RBF.angle (degrees)"] == 30.0 and rows["Matern.lengthscale[north]"] == 4.0


def test_the_summary_of_several_outputs_is_that_of_each_of_them():
    X = torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    models = [matheron.ExactGP(K.RBF(float(i + 1)), X, X[:, i], noise=0.01) for i in range(2)]
    found, each = matheron.summary(matheron.Outputs(models)), [matheron.summary(model) for model in models]
    for i, one in enumerate(each):
        assert {label: found.rows[f"output {i}: {label}"] for label in one.rows} == one.rows
        assert f"output {i}: {one.title}" in str(found)
    assert found.log_likelihood == sum(one.log_likelihood for one in each if one.log_likelihood is not None)
    with pytest.raises(TypeError, match="expected an ExactGP, or Outputs of these"):
        matheron.summary(matheron.Ensemble(models))  # type: ignore[arg-type]


def test_one_start_with_a_lengthscale_far_beyond_the_data_ends_where_a_short_one_does():
    """There the likelihood is flat along it, so that the search alone ends without its column."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(120, 6, generator=g, dtype=torch.float64)
    y = torch.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * torch.randn(120, generator=g, dtype=torch.float64)
    ends = []
    for length in (1.0, 300.0):
        start = torch.tensor([length, 1, 1, 1, 1, 1], dtype=torch.float64)
        gp = matheron.fit(1.0 * K.Matern(1.5, start), X, y, num_starts=1, priors={})
        ends.append(float(matheron.log_marginal_likelihood(gp)))
    assert ends[1] == pytest.approx(ends[0], abs=0.5)
