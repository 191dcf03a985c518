"""Functions given outcomes: Laplace's approximation is scikit-learn's, draws have its law, its evidence is climbed."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.gaussian_process import GaussianProcessClassifier as Classifier
from sklearn.gaussian_process import kernels as sklearn_kernels

import matheron
from matheron import kernels
from matheron import likelihoods as L
from matheron.fitting import laplace
from matheron.solvers import ConvergenceWarning

classifier: Any = Classifier
theirs: Any = sklearn_kernels  # whose annotations refuse what its documentation shows
GENERATOR = torch.Generator().manual_seed(7)
X = 5 * torch.rand(60, 2, generator=GENERATOR, dtype=torch.float64)
TRUTH = 2 * (1.5 * X[:, 0]).sin() * X[:, 1].cos()
NEW = 5 * torch.rand(20, 2, generator=GENERATOR, dtype=torch.float64)
KERNEL = 2.0 * kernels.RBF([0.8, 1.2])
EACH = [L.Bernoulli(), L.Bernoulli("probit"), L.Binomial(5), L.Poisson(2.0), L.StudentT(4.0, 0.3)]


def outcomes(likelihood: L.Likelihood) -> torch.Tensor:
    return likelihood.sample(TRUTH, seed=3)


def approximated(likelihood: L.Likelihood, kernel: kernels.Kernel = KERNEL, **settings: Any) -> matheron.LatentGP:
    return matheron.approximate(kernel, X, outcomes(likelihood), likelihood=likelihood, **settings)


def test_mean_variance_evidence_and_its_gradient_are_scikit_learn_s():
    y = outcomes(L.Bernoulli())
    model: Any = (
        classifier(theirs.ConstantKernel(2.0) * theirs.RBF([0.8, 1.2]), optimizer=None).fit(X, y).base_estimator_
    )
    across = model.kernel_(model.X_train_, NEW.numpy())
    mean = across.T @ (model.y_train_ - model.pi_)
    explained = np.linalg.solve(model.L_, model.W_sr_[:, None] * across)
    variance = model.kernel_.diag(NEW.numpy()) - (explained**2).sum(0)

    paths = matheron.draw(approximated(L.Bernoulli()), 1, seed=0)
    np.testing.assert_allclose(paths.mean(NEW), mean, atol=1e-6)
    np.testing.assert_allclose(paths.variance(NEW), variance, atol=1e-6)
    theta = torch.tensor([2.0, 0.8, 1.2], dtype=torch.float64, requires_grad=True)
    gp = approximated(L.Bernoulli())
    gp = gp.replaced(gaussian=gp.gaussian.replaced(kernel=kernels.Scaled(kernels.RBF(theta[1:]), theta[0])))
    value = matheron.log_marginal_likelihood(gp)
    expected, slope = model.log_marginal_likelihood(model.kernel_.theta, eval_gradient=True)
    assert math.isclose(value.item(), expected, abs_tol=1e-6)
    np.testing.assert_allclose(torch.autograd.grad(value, theta)[0] * theta.detach(), slope, atol=1e-5)


@pytest.mark.parametrize("likelihood", EACH, ids=repr)
def test_the_mode_is_where_the_slopes_balance(likelihood):
    y, gp = outcomes(likelihood), approximated(likelihood, mean=0.3)
    f = matheron.draw(gp, 1, seed=0).mean(X)
    torch.testing.assert_close(f, 0.3 + KERNEL(X, X) @ likelihood.slope(f, y), atol=1e-5, rtol=0)
    torch.testing.assert_close(gp.gaussian.noise, 1 / likelihood.curvature(f, y), rtol=1e-5, atol=0)


@pytest.mark.parametrize("likelihood", [*EACH, L.StudentT(4.0, 0.1)], ids=repr)
def test_the_evidence_s_gradient_is_that_of_differences(likelihood):
    y = outcomes(likelihood)

    def evidence(theta: torch.Tensor) -> torch.Tensor:
        own = likelihood.replaced(scale=theta[3]) if isinstance(likelihood, L.StudentT) else likelihood
        gp = matheron.ExactGP(kernels.Scaled(kernels.RBF(theta[1]), theta[0]), X, y, 1.0)
        gp = gp.replaced(mean=matheron.means.ConstantMean(theta[2]))
        return matheron.log_marginal_likelihood(matheron.LatentGP(own, y, gp))

    theta = torch.tensor([2.0, 0.9, 0.2, 0.3], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(evidence(at := theta.clone().requires_grad_()), at)
    step = 1e-4 * torch.eye(4, dtype=torch.float64)
    differences = torch.stack([(evidence(theta + e) - evidence(theta - e)) / 2e-4 for e in step])
    torch.testing.assert_close(gradient, differences, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("likelihood", EACH[3:], ids=repr)
def test_draws_have_the_approximation_s_law(likelihood):
    gp, s = approximated(likelihood), 4000
    paths = matheron.draw(gp, s, num_features=2048, paths_per_basis=8, seed=0)
    y = outcomes(likelihood)
    f = paths.mean(X)
    K, across = KERNEL(X, X), KERNEL(X, NEW)
    B = torch.linalg.inv(K + (1 / likelihood.curvature(f, y)).diag())
    mean = across.mT @ likelihood.slope(f, y)
    covariance = KERNEL(NEW, NEW) - across.mT @ B @ across
    drawn = paths(NEW) - mean
    deviation = covariance.diagonal().sqrt()
    error = drawn.mean(0).abs() * math.sqrt(s) / deviation
    assert float(error.max()) < 4.5
    spread = torch.outer(deviation, deviation)
    assert float(((drawn.mT @ drawn / s - covariance) / spread).abs().max()) < 5 * math.sqrt(2 / s)
    assert min(kstest(column, "norm").pvalue for column in (drawn / deviation).mT.numpy()) > 1e-4


@pytest.mark.parametrize("solver", ["lattice", "cg"])
@pytest.mark.parametrize("likelihood", [L.Bernoulli(), L.Poisson(2.0), L.StudentT(4.0, 0.3)], ids=repr)
def test_lattice_and_conjugate_gradients_find_the_same_mode(likelihood, solver):
    g = torch.Generator().manual_seed(0)
    points, kernel = torch.rand(600, 2, generator=g, dtype=torch.float64), 1.5 * kernels.Matern(1.5, 0.3)
    y = likelihood.sample((9 * points[:, 0]).sin(), seed=0)
    drawn = []
    for each in ("cholesky", solver):
        gp = matheron.approximate(kernel, points, y, likelihood=likelihood, solver=each)
        drawn.append(matheron.draw(gp, 1, num_features=8, solver="cholesky", seed=0))
    exact, found = drawn
    deviation = exact.std(points[:50])
    assert float(((found.mean(points[:50]) - exact.mean(points[:50])) / deviation).abs().max()) < 0.01
    assert torch.allclose(found.std(points[:50]), deviation, rtol=0.01)


def elliptical_slices(gp: matheron.LatentGP, K: torch.Tensor, steps: int) -> torch.Tensor:
    """Samples `[steps, n]` of p(f | y) by elliptical slice sampling (Murray, Adams and MacKay, 2010), 64 chains.

    Ellipses are about a Gaussian of twice the approximation's covariance instead of the prior; the density that decides
    is divided by it, so that the law is p(f | y) whatever the Gaussian is (Nishihara, Murray and Adams, 2014).
    """
    g, chains, one = torch.Generator().manual_seed(1), 64, torch.eye(len(K), dtype=K.dtype)
    R = torch.linalg.inv(K + gp.gaussian.noise.diag())
    centre, about = K @ R @ gp.gaussian.train_targets, 2 * (K - K @ R @ K)
    prior, root = (torch.linalg.cholesky(C + 1e-9 * one) for C in (K, about))

    def log_p(f: torch.Tensor) -> torch.Tensor:
        own, other = (torch.linalg.solve_triangular(L, v.mT, upper=False) for L, v in ((prior, f), (root, f - centre)))
        return gp.likelihood.log_density(f, gp.y).sum(1) - 0.5 * own.square().sum(0) + 0.5 * other.square().sum(0)

    def uniform() -> torch.Tensor:
        return torch.rand(chains, generator=g, dtype=K.dtype)

    def normal() -> torch.Tensor:
        return torch.randn(chains, len(K), generator=g, dtype=K.dtype) @ root.mT

    f, kept = centre + normal(), []
    for step in range(steps):
        nu = normal()
        level = log_p(f) + uniform().log()
        angle = 2 * math.pi * uniform()
        low, high, open_ = angle - 2 * math.pi, angle.clone(), torch.ones(chains, dtype=torch.bool)
        new = f.clone()
        while bool(open_.any()):
            trial = centre + angle.cos()[:, None] * (f - centre) + angle.sin()[:, None] * nu
            accepted = open_ & (log_p(trial) > level)
            new[accepted], open_ = trial[accepted], open_ & ~accepted
            low, high = torch.where(angle < 0, angle, low), torch.where(angle < 0, high, angle)
            angle = low + (high - low) * uniform()
        f = new
        if step >= 50:
            kept.append(f)
    return torch.cat(kept)


# How far Laplace's mean may be from the posterior's, in its standard deviations, and by which factor its deviations may
# differ: docs/tutorials/outcomes.md has a table of these.
MEASURED = [
    (L.Bernoulli(), 0.15, 0.06),
    (L.Poisson(0.5), 0.3, 0.05),
    (L.Poisson(20.0), 0.15, 0.05),
    (L.StudentT(4.0, 0.3), 0.15, 0.2),
]


@pytest.mark.parametrize(("likelihood", "mean_error", "deviation_error"), MEASURED, ids=repr)
def test_laplace_s_errors_against_elliptical_slice_sampling_are_what_the_docs_say(
    likelihood, mean_error, deviation_error
):
    x = torch.linspace(0, 5, 24, dtype=torch.float64)[:, None]
    kernel, y = kernels.Matern(2.5, 1.0), likelihood.sample((2 * x[:, 0]).sin(), seed=5)
    if isinstance(likelihood, L.StudentT):
        y[7] += 3.0  # an outlier
    gp = matheron.approximate(kernel, x, y, likelihood=likelihood)
    samples, paths = elliptical_slices(gp, kernel(x, x), 500), matheron.draw(gp, 1, num_features=8, seed=0)
    mean, deviation = samples.mean(0), samples.std(0)
    errors = float(((paths.mean(x) - mean) / deviation).abs().max())
    ratios = float((paths.std(x) / deviation - 1).abs().max())
    assert errors < mean_error and ratios < deviation_error, (errors, ratios)


def test_an_outlier_moves_student_t_s_functions_little():
    x, kernel = torch.linspace(0, 5, 40, dtype=torch.float64)[:, None], kernels.RBF(1.0)
    clean = x[:, 0].sin()
    y = clean.clone()
    y[20] += 10
    robust = matheron.approximate(kernel, x, y, likelihood=L.StudentT(4.0, 0.1))
    normal = matheron.ExactGP(kernel, x, y, 0.01)
    errors = [float((matheron.draw(gp, 1, seed=0).mean(x) - clean).abs().max()) for gp in (robust, normal)]
    assert errors[0] < 0.05 < 1.0 < errors[1]


def test_a_fit_climbs_as_high_as_scikit_learn_s():
    y = outcomes(L.Bernoulli())
    model = classifier(theirs.ConstantKernel(1.0) * theirs.RBF([1.0, 1.0]), n_restarts_optimizer=2, random_state=0)
    best = model.fit(X, y).log_marginal_likelihood_value_
    kernel = kernels.Scaled(kernels.RBF([1.0, 1.0]), 1.0)
    gp = matheron.fit(kernel, X, y, likelihood=L.Bernoulli(), mean=0.0, num_starts=2, seed=0)
    assert isinstance(gp, matheron.LatentGP)
    assert float(matheron.log_marginal_likelihood(gp)) > best - 1e-3
    freed = matheron.fit(kernel, X, y, likelihood=L.Bernoulli(), num_starts=2, seed=0)
    assert matheron.log_marginal_likelihood(freed) >= matheron.log_marginal_likelihood(gp) - 1e-3


def test_a_fit_of_measurements_finds_their_scale_in_any_units():
    g = np.random.default_rng(0)
    x = np.sort(g.uniform(0, 10, (150, 1)), axis=0)
    y = np.sin(x[:, 0]) + 0.1 * g.standard_t(4, 150)
    found = []
    for unit in (1.0, 1e5):
        for kernel in (kernels.Scaled(kernels.RBF(1.0), unit**2), kernels.RBF(1.0)):
            gp = matheron.fit(kernel, x, unit * (y + 7), likelihood=L.StudentT(4.0), num_starts=1)
            scale = gp.likelihood.scale
            assert 0.07 < float(scale) / unit < 0.14
            found.append(float(matheron.log_marginal_likelihood(gp)) + 150 * math.log(unit))
            mean = matheron.draw(gp, 1, seed=0).mean(x) / unit
            assert float((mean - 7 - torch.from_numpy(np.sin(x[:, 0]))).abs().mean()) < 0.05
    assert max(found[::2]) - min(found[::2]) < 0.05 and max(found[1::2]) - min(found[1::2]) < 0.05


@pytest.mark.parametrize("mean", ["linear", 7.0, lambda x: 7 + 0 * x[..., 0]])
def test_a_fit_takes_means_in_the_units_of_the_outcomes(mean):
    x = torch.linspace(0, 10, 60, dtype=torch.float64)[:, None]
    y = 7 + x[:, 0].sin()
    with torch.inference_mode():
        gp = matheron.fit(kernels.RBF(1.0), x, y, likelihood=L.StudentT(4.0, 0.1), mean=mean, num_starts=1)
    assert torch.allclose(matheron.draw(gp, 1, seed=0).mean(x), y, atol=0.05)
    far = matheron.draw(gp, 1, seed=0).mean([[40.0]])
    assert mean == "linear" or math.isclose(float(far), 7.0, abs_tol=1e-3)


def test_a_fit_recovers_rates_from_some_of_many_counts():
    g = torch.Generator().manual_seed(0)
    points = 10 * torch.rand(900, 1, generator=g, dtype=torch.float64)
    exposure = 0.5 + torch.rand(900, generator=g, dtype=torch.float64)
    rate = (1 + points[:, 0].sin()).exp()
    y = torch.poisson(exposure * rate, generator=g)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = matheron.fit(None, points, y, likelihood=L.Poisson(exposure), num_data=300, num_starts=1, seed=0)
    assert gp.num_data == 900
    rates = gp.likelihood.mean_of(matheron.draw(gp, 32, domain=(0, 10), seed=0))(points)
    assert float((rates.mean(0) / rate - 1).abs().mean()) < 0.1
    assert "Matern.lengthscale" in str(summary := matheron.summary(gp)) and "noise" not in str(summary)


def test_a_fit_of_counts_finds_a_lengthscale_far_shorter_than_the_kernel_s():
    """Waves of length 1 over a range of 30: from lengthscales near the range's own all of it looks like noise."""
    g = torch.Generator().manual_seed(0)
    t = 30 * torch.rand(120, 1, generator=g, dtype=torch.float64)
    y = torch.poisson((1 + (2 * torch.pi * t[:, 0]).sin()).exp(), generator=g)
    gp = matheron.fit(kernels.Matern(2.5, 10.0), t, y, likelihood=L.Poisson(), num_starts=2, seed=0)
    assert 0.1 < matheron.summary(gp).rows["Matern.lengthscale"] < 1.0


def test_an_interrupted_fit_of_counts_keeps_the_best_found_so_far(monkeypatch):
    t = torch.linspace(0, 10, 40, dtype=torch.float64)[:, None]
    y = torch.poisson((1 + t[:, 0].sin()).exp(), generator=torch.Generator().manual_seed(0))
    evaluate, calls = laplace._evidence, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return evaluate(*args)

    monkeypatch.setattr(laplace, "_evidence", interrupted)
    with pytest.warns(matheron.FitWarning, match="the fit was interrupted"):
        gp = matheron.fit(kernels.RBF(5.0), t, y, likelihood=L.Poisson(), num_starts=1, seed=0, progress=True)
    monkeypatch.setattr(laplace, "_evidence", evaluate)
    given = matheron.approximate(kernels.RBF(5.0), t, y, likelihood=L.Poisson())
    assert matheron.log_marginal_likelihood(gp) > matheron.log_marginal_likelihood(given)


@pytest.mark.slow  # a minute
def test_a_fit_to_many_counts_says_to_how_many_it_was():
    points = torch.linspace(0, 10, 2500, dtype=torch.float64)[:, None]
    y = torch.poisson(points[:, 0].sin().exp(), generator=torch.Generator().manual_seed(0))
    with pytest.warns(matheron.FitWarning, match="fitted to 2,000 of the 2,500 observations"):
        matheron.fit(kernels.RBF(1.0), points, y, likelihood=L.Poisson(), num_starts=1, seed=0)


@pytest.mark.parametrize("likelihood", EACH, ids=repr)
def test_leaving_out_is_nearly_what_a_model_without_the_outcome_says(likelihood):
    y, left = outcomes(likelihood), matheron.leave_one_out(approximated(likelihood))
    t = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    for i in (3, 20, 41):
        rest = torch.arange(len(X)) != i
        gp = matheron.approximate(KERNEL, X[rest], y[rest], likelihood=likelihood)
        paths = matheron.draw(gp, 1, num_features=8, seed=0)
        f = paths.mean(X[i : i + 1]) + paths.std(X[i : i + 1]) * t
        weights = (-0.5 * t.square()).exp()
        weights /= weights.sum()
        expected = (weights * likelihood.log_density(f, y[i].expand(len(f))).exp()).sum().log()
        assert abs(float(left.log_density[i] - expected)) < 0.12
        expected = (weights * likelihood.expectation(f)).sum()
        assert abs(float(left.mean[i] - expected)) < 0.12 * max(1.0, float(expected))
    assert "log density" in repr(left)
    with pytest.raises(TypeError, match="no normal intervals"):
        _ = left.coverage


def test_outcomes_are_left_out_as_precisely_with_little_noise():
    """The mean of a Student-t outcome is that of f, and the cavities of f are those of its pseudo-observations."""
    X = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (5 * X[:, 0]).sin() + X[:, 1]
    gp = matheron.approximate(70.0 * kernels.Matern(2.5, 3.0), X, y, likelihood=L.StudentT(4.0, 1e-3))
    left, normal = matheron.leave_one_out(gp), matheron.leave_one_out(gp.gaussian)
    torch.testing.assert_close(left.rmse, normal.rmse, rtol=0.01, atol=0)


def test_models_and_paths_are_saved_and_take_no_more_outcomes(tmp_path):
    for likelihood in (L.Binomial(5), L.Bernoulli("probit"), L.StudentT(4.0, 0.3)):
        gp = approximated(likelihood)
        gp.save(tmp_path / "gp")
        again = matheron.load(tmp_path / "gp")
        assert isinstance(again, matheron.LatentGP) and repr(again) == repr(gp)
        paths = matheron.draw(again, 2, seed=0)
        assert torch.equal(paths(NEW), matheron.draw(gp, 2, seed=0)(NEW))
        paths.save(tmp_path / "paths")
        loaded = matheron.load(tmp_path / "paths")
        assert isinstance(loaded, matheron.Paths)
        for each in (paths, loaded, paths[1], paths.float(), paths.refreshed(NEW[:1], seed=0)):
            with pytest.raises(TypeError, match=r"outcomes under .*; call matheron.approximate"):
                each.condition_on(NEW[:1], [1.0], noise=0.1)
        plain = matheron.draw(gp.gaussian, 2, seed=0).condition_on(NEW[:1], [1.0], noise=0.0)
        assert torch.allclose(plain(NEW[:1]), torch.ones(2, 1, dtype=torch.float64))


def test_suggest_takes_models_of_outcomes():
    gp = approximated(L.Bernoulli())
    box = [[0.0, 0.0], [5.0, 5.0]]
    several: list[dict[str, Any]] = [{}, {"pending": [[1.0, 1.0]]}, {"spread": 0.5}]
    for settings in [*several, {"constraints": approximated(L.Poisson(2.0))}]:
        x = matheron.thompson.suggest(gp, box, 2, mesh_size=128, num_starts=2, seed=0, **settings)
        assert x.shape == (2, 2)


def test_names_and_yes_and_no_are_taken_as_they_come():
    import pandas

    table, y = pandas.DataFrame(X.numpy(), columns=["a", "b"]), outcomes(L.Bernoulli())
    gp = matheron.approximate(KERNEL, table, y.bool(), likelihood=L.Bernoulli())
    assert gp.input_names == ("a", "b") == matheron.draw(gp, 1).input_names
    assert torch.equal(gp.gaussian.noise, approximated(L.Bernoulli()).gaussian.noise)
    lists = matheron.approximate(KERNEL, X, [bool(v) for v in y], likelihood=L.Bernoulli())
    assert torch.equal(lists.gaussian.noise, gp.gaussian.noise)
    fitted = matheron.fit(KERNEL, table, y, likelihood=L.Bernoulli(), num_starts=1)
    assert fitted.input_names == ("a", "b") and "RBF.lengthscale[b]" in matheron.summary(fitted).rows


def test_one_class_works_with_a_warning():
    for make in (
        lambda: matheron.approximate(KERNEL, X, torch.ones(60), likelihood=L.Bernoulli()),
        lambda: matheron.fit(None, X, torch.zeros(60), likelihood=L.Poisson(), num_starts=1),
        lambda: matheron.fit(None, X, torch.ones(60), likelihood=L.Bernoulli(), num_starts=1),
    ):
        with pytest.warns(matheron.FitWarning, match="they determine only the level of the function") as said:
            gp = make()
        assert said[0].filename == __file__
        assert bool(matheron.draw(gp, 2, seed=0)(NEW).isfinite().all())
        assert abs(float(matheron.draw(gp, 1, seed=0).mean(NEW).mean())) < 6


def test_what_does_not_converge_says_so_with_numbers():
    with pytest.warns(ConvergenceWarning, match=r"after 1 step of which the last was \d.* standard deviations"):
        approximated(L.Poisson(2.0), max_iterations=1)


def test_extreme_counts_and_exposures_are_approximated():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for y in (torch.full((60,), 1e6), torch.arange(60.0) ** 4):
            gp = matheron.approximate(KERNEL, X, y, likelihood=L.Poisson(1e-3), mean=10.0)
            assert bool(matheron.draw(gp, 2, seed=0)(NEW).isfinite().all())
        gp = matheron.approximate(1e4 * kernels.RBF(1.0), X, outcomes(L.Bernoulli()), likelihood=L.Bernoulli("probit"))
        assert bool(matheron.draw(gp, 2, seed=0)(NEW).isfinite().all())


def test_refusals():
    y = outcomes(L.Bernoulli())
    nan = y.clone()
    nan[3] = math.nan
    refusals: list[tuple[dict[str, Any], L.Likelihood, str]] = [
        ({"y": y + 1}, L.Bernoulli(), "expected two classes, 0 and 1, got 2 different numbers, such as 2"),
        ({"y": nan}, L.Bernoulli(), "y: expected finite numbers, got 1 NaN"),
        ({"y": -y}, L.Poisson(), "y: expected counts, whole numbers from 0, got -1"),
        ({"y": y / 2}, L.Poisson(), "got 0.5; if these are rates, give the counts"),
        ({"y": 3 * y}, L.Binomial(2), "at most as many successes as trials, got 3 of 2"),
        ({"y": y}, L.Poisson([1.0, 2.0]), r"exposure: expected a number, or one per outcome \[60\], got \[2\]"),
        ({"y": y}, L.StudentT(), "scale: StudentT has none yet"),
        ({"kernel": kernels.Coregional(KERNEL, np.eye(2)), "y": y}, L.Poisson(), "kernel: expected one output, got 2"),
    ]
    for given, likelihood, words in refusals:
        with pytest.raises(ValueError, match=words):
            matheron.approximate(**({"kernel": KERNEL, "X": X} | given), likelihood=likelihood)  # type: ignore[arg-type]
    several: list[dict[str, Any]] = [{"noise": 0.1}, {"tasks": torch.zeros(60)}]
    for settings in several:
        with pytest.raises(ValueError, match="expected none with a likelihood"):
            matheron.fit(KERNEL, X, y, likelihood=L.Bernoulli(), **settings)
    with pytest.raises(TypeError, match="such as likelihoods"):
        matheron.approximate(KERNEL, X, y, likelihood="poisson")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='solver="lattice" needs a kernel'):
        matheron.approximate(kernels.Linear(), X, y, likelihood=L.Poisson(), solver="lattice")
