"""Likelihoods: densities that sum to one, derivatives in closed form, samples with the moments they say, refusals."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import matheron
from matheron import kernels
from matheron import likelihoods as L

F = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
ALL = [
    (L.Bernoulli(), [0.0, 1.0]),
    (L.Bernoulli("probit"), [0.0, 1.0]),
    (L.Binomial(trials=4), [0.0, 1.0, 4.0]),
    (L.Poisson(exposure=2.5), [0.0, 1.0, 30.0]),
    (L.StudentT(df=3.0, scale=0.5), [-4.0, 0.1, 9.0]),
]


@pytest.mark.parametrize(("likelihood", "outcomes"), ALL, ids=repr)
def test_derivatives_in_closed_form_are_those_of_autograd(likelihood, outcomes):
    for outcome in outcomes:
        f = F.clone().requires_grad_()
        y = torch.full_like(F, outcome)
        (slope,) = torch.autograd.grad(likelihood.log_density(f, y).sum(), f, create_graph=True)
        torch.testing.assert_close(likelihood.slope(F, y), slope.detach())
        if not isinstance(likelihood, L.StudentT):
            (bend,) = torch.autograd.grad(slope.sum(), f)
            torch.testing.assert_close(likelihood.curvature(F, y), -bend, rtol=1e-7, atol=1e-9)


def test_densities_are_those_of_scipy():
    y, p = torch.arange(5.0, dtype=torch.float64)[:, None], torch.sigmoid(F).numpy()
    found = L.Binomial(trials=4).log_density(F, y)
    np.testing.assert_allclose(found, stats.binom.logpmf(y.numpy(), 4, p), rtol=1e-10)
    found = L.Poisson(exposure=2.5).log_density(F, y)
    np.testing.assert_allclose(found, stats.poisson.logpmf(y.numpy(), 2.5 * F.exp().numpy()), rtol=1e-10)
    found = L.StudentT(df=3.0, scale=0.5).log_density(F, y)
    np.testing.assert_allclose(found, stats.t.logpdf(y.numpy(), 3.0, F.numpy(), 0.5), rtol=1e-10)
    found = L.Bernoulli("probit").log_density(10 * F, torch.ones_like(F))
    np.testing.assert_allclose(found, stats.norm.logcdf(10 * F.numpy()), rtol=1e-8)


def test_student_t_s_curvature_is_fisher_s_information():
    likelihood, r = L.StudentT(df=3.0, scale=0.5), torch.linspace(-500, 500, 2_000_001, dtype=torch.float64)
    density, slope = likelihood.log_density(torch.zeros_like(r), r).exp(), likelihood.slope(torch.zeros_like(r), r)
    information = torch.trapezoid(density * slope.square(), r)
    assert math.isclose(float(information), float(likelihood.curvature(r[:1], r[:1])), rel_tol=1e-6)


@pytest.mark.parametrize(("likelihood", "outcomes"), ALL, ids=repr)
def test_samples_have_the_moments_that_the_likelihood_says(likelihood, outcomes):
    n, values = 40_000, torch.tensor([-1.0, 0.3, 1.2], dtype=torch.float64)
    y = likelihood.sample(values.expand(n, 3), seed=0)
    error = (likelihood.variance(values) / n).sqrt()
    assert bool(((y.mean(0) - likelihood.expectation(values)).abs() < 4 * error).all())
    assert torch.equal(y, likelihood.sample(values.expand(n, 3), generator=torch.Generator().manual_seed(0)))
    if not isinstance(likelihood, L.StudentT):  # whose fourth moment is infinite
        assert torch.allclose(y.var(0), likelihood.variance(values), rtol=0.05)
        likelihood.check_outcomes(y.flatten())


def test_sampling_at_points_takes_their_own_exposure_and_trials():
    f = torch.zeros(5000, 2, dtype=torch.float64)
    counted = L.Poisson([1.0, 2.0, 3.0]).sample(f, exposure=[10.0, 100.0], seed=0)
    assert torch.allclose(counted.mean(0), counted.new_tensor([10.0, 100.0]), rtol=0.02)
    assert float(L.Binomial(3).sample(f, trials=[7.0, 1.0], seed=0).amax(0).tolist() == [7.0, 1.0])
    with pytest.raises(ValueError, match="exposure: expected a number, or one per point"):
        L.Poisson([1.0, 2.0, 3.0]).sample(f)


def test_rates_and_probabilities_are_functions():
    paths = matheron.draw_prior(kernels.RBF(0.5), 3, input_dim=2, seed=0)
    x = torch.rand(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for likelihood, link in ((L.Poisson(), torch.exp), (L.Bernoulli(), torch.sigmoid), (L.Binomial(3), torch.sigmoid)):
        rates = likelihood.mean_of(paths)
        assert torch.equal(rates(x), link(paths(x)))
        value, gradient = rates.value_and_grad(x)
        y = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(rates(y)[1].sum(), y)
        torch.testing.assert_close(gradient[1], slope)
        assert torch.equal(value, rates(x)) and rates[1:](x).shape == (2, 7)
        axes = [x[:, 0].sort().values, x[:3, 1].sort().values]
        torch.testing.assert_close(rates.on_grid(axes), link(paths.on_grid(axes)))
    assert L.StudentT(4.0, 1.0).mean_of(paths) is paths


def test_refusals():
    refusals = [
        (lambda: L.Bernoulli("cloglog"), 'link: expected "logit" or "probit"'),
        (lambda: L.Binomial(trials=1.5), "trials: expected whole numbers"),
        (lambda: L.Poisson(exposure=0.0), "exposure: expected positive numbers"),
        (lambda: L.StudentT(df=-1.0), "df: expected positive numbers"),
        (lambda: L.StudentT().log_density(F, F), "scale: StudentT has none yet"),
    ]
    for make, words in refusals:
        with pytest.raises(ValueError, match=words):
            make()
