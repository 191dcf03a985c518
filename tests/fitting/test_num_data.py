"""matheron.fit to some of the data: which ones, how good it is, how far it is, and what an interrupt leaves."""

import warnings
from typing import Any

import pytest
import torch

import matheron
from matheron import FitWarning
from matheron import kernels as K
from matheron.fitting import search

DOUBLE = torch.float64
fit: Any = matheron.fit


def simulated(n: int, d: int = 4, noise: float = 0.1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A function with a short lengthscale along the first column, and noise of this standard deviation."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, dtype=DOUBLE, generator=g)
    f = matheron.draw_prior(
        K.Matern(2.5, [0.5] + [1.5] * (d - 1)), 1, input_dim=d, num_features=512, generator=g, dtype=DOUBLE
    )
    return X, f(X)[0] + noise * torch.randn(n, dtype=DOUBLE, generator=g)


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """The number of observations of every covariance that is computed."""
    seen, forward = [], K.Matern.forward
    monkeypatch.setattr(K.Matern, "forward", lambda k, x, z: (seen.append(len(x)), forward(k, x, z))[1])
    return seen


def test_many_rows_are_fitted_to_some_of_them_which_is_said_and_the_model_holds_all(sizes, monkeypatch):
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(largest_auto=120))
    X, y = simulated(300)
    with pytest.warns(FitWarning, match=r"fitted to 120 of the 300 observations.*num_data=None"):
        gp = fit(None, X, y, seed=0, num_starts=2)
    assert max(sizes) == 120
    assert gp.num_data == 300 and gp.noise.shape == (300,)
    mean = matheron.draw(gp, 1, seed=0, num_features=64).mean(X)
    assert float((mean - y).square().mean().sqrt()) < 0.2


@pytest.mark.parametrize("num_data, most", [(None, 300), (90, 90), (1000, 300)])
def test_num_data_says_how_many_rows_are_fitted_to_without_a_warning(num_data, most, sizes, monkeypatch):
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(largest_auto=120))
    X, y = simulated(300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = fit(None, X, y, seed=0, num_starts=1, num_data=num_data)
    assert max(sizes) == most and gp.num_data == 300


def test_a_solver_that_is_asked_for_fits_to_all_rows(sizes, monkeypatch):
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(largest_auto=120))
    X, y = simulated(200)
    fit(None, X, y, seed=0, num_starts=1, solver="cholesky")
    assert max(sizes) == 200


def test_hyperparameters_from_some_rows_are_nearly_as_likely_as_those_from_all():
    """A top for m of n rows is about p/2 n/m below that for all (sampling error), and the noise is the same."""
    X, y = simulated(450)
    few, every = (fit(None, X, y, seed=0, num_starts=1, num_data=m) for m in (150, None))
    few_value, value = (float(matheron.log_marginal_likelihood(gp)) for gp in (few, every))
    p = 7  # lengthscales, variance, noise, mean
    assert value - 3 * (p / 2) * 3 < few_value < value + 1.0
    few_noise, noise = (matheron.summary(gp).rows["noise standard dev"] for gp in (few, every))
    assert few_noise == pytest.approx(noise, rel=0.2)


def test_inputs_that_were_observed_twice_are_among_the_rows_that_are_fitted_to():
    """Of 1200 rows ten inputs have two different targets: a fit that sees none of these has no noise at all."""
    X, y = simulated(1200, noise=0.0)
    X[-10:] = X[:10]
    y = y.clone()
    y[-10:] += 0.3
    gp = fit(None, X, y, seed=0, num_starts=2, num_data=120)
    assert float(gp.noise[0]) > 1e-4  # of a variance of 1
    assert float(matheron.leave_one_out(gp).standardized[-10:].abs().max()) < 30


def test_every_output_is_among_the_rows_that_are_fitted_to():
    X, y = simulated(400, d=1)
    tasks = torch.zeros(400, dtype=torch.long)
    tasks[::40] = 1  # ten of them
    y = torch.where(tasks == 1, 5 + 0.1 * y, y)
    kernel = K.Coregional(K.Matern(2.5, 0.5), torch.eye(2, dtype=DOUBLE))
    rows = matheron.summary(fit(kernel, X, y, tasks=tasks, seed=0, num_starts=1, num_data=80)).rows
    assert rows["mean[1]"] == pytest.approx(5.0, abs=0.5)
    assert rows["noise standard dev[1]"] < 0.3 < 4 * rows["noise standard dev[0]"]


def test_noise_that_is_known_for_each_row_goes_with_the_rows_that_are_fitted_to():
    X, y = simulated(300)
    noise = torch.linspace(0.005, 0.02, 300, dtype=DOUBLE)
    gp = fit(None, X, y, noise=noise, seed=0, num_starts=1, num_data=100)
    torch.testing.assert_close(gp.output_transform.scale.square() * gp.noise, noise)


def test_a_seed_fixes_which_rows_are_fitted_to():
    X, y = simulated(300)
    first, again, other = (fit(None, X, y, seed=s, num_starts=1, num_data=60) for s in (0, 0, 1))
    assert torch.equal(first.kernel.kernel.lengthscale, again.kernel.kernel.lengthscale)
    assert not torch.equal(first.kernel.kernel.lengthscale, other.kernel.kernel.lengthscale)


@pytest.mark.parametrize("wrong, words", [(0, "num_data: expected"), ("all", 'num_data: expected .*"auto" or None')])
def test_a_number_of_rows_that_is_none_is_refused(wrong, words):
    X, y = simulated(20)
    with pytest.raises(ValueError, match=words):
        fit(None, X, y, num_data=wrong)


def test_few_evaluations_are_of_all_rows_where_these_are_many(sizes, monkeypatch):
    """The search begins with the top for some of them, and a handful of steps are left. It ends at the top for all."""
    monkeypatch.setattr(
        search, "SETTINGS", search.SearchSettings(rows_at_once=150, rows_first=150, rows_for_curvature=150)
    )
    X, y = simulated(400)
    gp = fit(None, X, y, seed=0, num_starts=1)
    assert sizes.count(400) < 12
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_at_once=400))
    top = fit(None, X, y, seed=0, num_starts=1)
    values = [float(matheron.log_marginal_likelihood(each)) for each in (gp, top)]
    assert values[0] > values[1] - 0.5


class Interrupting:
    """A flat prior that interrupts the search, as Ctrl-C does, when that has asked it so often."""

    def __init__(self, after: int) -> None:
        self.left = 1 + after  # its form is checked once before the search

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return 0.0 * value


def test_an_interrupt_keeps_the_best_that_was_found_so_far():
    X, y = simulated(60)
    kernel = K.Matern(2.5, torch.full((4,), 0.1, dtype=DOUBLE))

    def stopped(after: int) -> Any:
        with pytest.warns(FitWarning, match=r"interrupted at \d+%.*found so far are kept"):
            return fit(kernel, X, y, seed=0, priors={"noise": Interrupting(after)}, progress=True)

    models = [stopped(1), stopped(150), fit(kernel, X, y, seed=0, priors={})]
    first, found, best = (float(matheron.log_marginal_likelihood(gp)) for gp in models)
    assert first + 10 < found <= best + 0.1
    assert models[1].num_data == 60


def test_without_a_bar_an_interrupt_is_raised_and_says_how_to_keep_what_was_found():
    X, y = simulated(30)
    with pytest.raises(KeyboardInterrupt) as raised:
        fit(None, X, y, seed=0, priors={"noise": Interrupting(20)})
    assert any("progress=True" in note for note in raised.value.__notes__)
