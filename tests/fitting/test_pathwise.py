"""The fit for large n: estimated gradients against exact ones, warm starts, and where the ascent ends."""

import math
from typing import Any

import pytest
import torch

import matheron
from fitting.test_fit import DOUBLE, simulated
from matheron import kernels as K
from matheron.fitting.hyperparameters import Hyperparameters, Leaf, checked_priors, kernel_leaf
from matheron.fitting.likelihood import Dense
from matheron.fitting.newton import ascend, climb, curvature
from matheron.fitting.pathwise import Pathwise
from matheron.fitting.starts import woken
from matheron.fitting.units import buffers, standardising
from matheron.solvers import PCG, Cholesky

PRIORS = {"noise": torch.distributions.Gamma(1.1, 30.0)}


def problem(kernel: Any, n: int, d: int) -> Any:
    """Hyperparameters, and data from others."""
    tasks = None if kernel.num_outputs == 1 else torch.arange(n) % kernel.num_outputs
    X, y = simulated(2.0 * K.Matern(2.5, [0.5, 1.5][:d]), n, d, 0.05)
    leaves = [kernel_leaf(b, {}) for b in buffers(kernel, standardising(kernel, X, y, tasks))]
    t = kernel.num_outputs
    noise = Leaf("noise", "positive", torch.full((t,), 0.1, dtype=DOUBLE), (1e-6, 1e2))
    mean = [Leaf("mean", "real", torch.full((t,), 0.3, dtype=DOUBLE))]
    h = Hyperparameters(kernel, leaves, noise, mean)
    return h, X, y, tasks, checked_priors(PRIORS, h.leaves)


@pytest.mark.parametrize(
    "kernel",
    [
        1.5 * K.Matern(2.5, [0.6, 1.2]),
        K.RBF(0.8) + 0.5 * K.Linear([1.0, 1.0]) + 0.3 * K.RationalQuadratic(1.0, 0.5),
        K.Coregional(K.Matern(1.5, 0.7), [[1.0, 0.4], [0.4, 0.8]]),
    ],
    ids=["Matern", "a sum", "coupled"],
)
def test_estimated_gradients_have_the_exact_mean(kernel):
    """Twelve estimates of fifteen probes each, independent: their mean within four standard errors of the truth."""
    h, X, y, tasks, priors = problem(kernel, 150, 2)
    v = h.encode()
    objective = Dense(h, X, y, tasks, priors)
    _, exact = objective(v)
    estimates = torch.stack([Pathwise(objective, PCG(tolerance=1e-4), 15, seed)(v) for seed in range(12)])
    error = (estimates.mean(0) - exact).abs()
    assert bool((error <= 4 * estimates.std(0) / 12**0.5 + 1e-3 * exact.abs().max()).all()), (error, exact)
    assert bool((estimates.std(0) < 0.3 * exact.abs().max()).all())  # and say something


@pytest.mark.slow
def test_estimated_gradients_have_the_exact_mean_at_two_thousand_points():
    h, X, y, tasks, priors = problem(1.5 * K.Matern(2.5, [0.6, 1.2]), 2000, 2)
    v = h.encode()
    objective = Dense(h, X, y, tasks, priors)
    _, exact = objective(v)
    estimates = torch.stack([Pathwise(objective, PCG(), 31, seed)(v) for seed in range(6)])
    error = (estimates.mean(0) - exact).abs()
    assert bool((error <= 4 * estimates.std(0) / 6**0.5 + 1e-3 * exact.abs().max()).all()), (error, exact)


def test_what_the_preconditioner_knows_is_not_left_to_chance():
    """Estimates of two seeds are nearer to the exact gradient than any with probes from the prior could be."""
    h, X, y, tasks, priors = problem(1.5 * K.Matern(2.5, [0.6, 1.2]), 300, 2)
    v = h.encode()
    objective = Dense(h, X, y, tasks, priors)
    _, exact = objective(v)
    B = curvature(lambda x: objective(x)[1], v)
    for seed in (0, 1):
        error = Pathwise(objective, PCG(tolerance=0.1), 15, seed)(v) - exact
        # twice the gain that a step along the error promises: len(v) / 15 on average for probes from the prior
        assert float(error @ torch.linalg.solve(B, error)) < 0.1 * len(v) / 15


def test_a_long_lengthscale_is_woken_where_its_column_matters_and_nothing_else_is():
    X, y = simulated(2.0 * K.Matern(2.5, [0.5, 1.5]), 80, 2, 0.05)
    kernel = 1.5 * K.Matern(2.5, [0.5, 40.0])
    leaves = [kernel_leaf(b, {}) for b in buffers(kernel, standardising(kernel, X, y, None))]
    noise = Leaf("noise", "positive", torch.full((1,), 0.1, dtype=DOUBLE), (1e-6, 1e2))
    h = Hyperparameters(kernel, leaves, noise, [Leaf("mean", "real", torch.zeros(1, dtype=DOUBLE))])
    v = h.encode()
    objective = Dense(h, X, y, None, {})
    value, gradient = objective(v)
    new = woken(h, v, gradient, torch.ones_like(v))
    assert new.ne(v).nonzero().tolist() == [[2]] and objective(new)[0] > value + 1
    assert torch.equal(woken(h, v, gradient, torch.full_like(v, 1000.0)), v)  # long, and with an effect


def test_a_lengthscale_is_not_woken_to_where_there_is_no_likelihood():
    """A slope may promise a gain at a shorter lengthscale where the covariance has no factor: the gradient is NaN."""
    h = problem(1.0 * K.RBF([1.0]), 10, 1)[0]
    (name,) = [leaf.name for leaf in h.leaves if leaf.short == "lengthscale"]
    top = h.encode({name: torch.tensor([9.5], dtype=DOUBLE)})
    start = torch.where(top == math.log(9.5), math.log(15.0), top)

    def gradient(x):
        return 2 * (top - x) if bool((x - top).abs().max() < 0.5) else x * math.nan

    end, converged = climb(h, gradient, start, lambda x: 2 * torch.eye(len(x)).to(x), 1e-6, lambda *_: None)
    assert converged
    torch.testing.assert_close(end, top, atol=1e-2, rtol=0)


def test_a_step_that_is_small_takes_few_iterations():
    h, X, y, tasks, priors = problem(1.5 * K.Matern(2.5, [0.6, 1.2]), 400, 2)
    estimate = Pathwise(Dense(h, X, y, tasks, priors), PCG(tolerance=1e-2, rank=20), 7, 0)
    v = h.encode()
    estimate(v)
    first = estimate.iterations
    estimate(v + 0.003)
    assert estimate.iterations - first < 0.7 * first


@pytest.mark.parametrize("wrong", [1.0, 30.0, 0.03], ids=["right", "too sharp", "too flat"])
def test_the_ascent_stays_within_limits_and_finds_the_top_of_a_hill(wrong):
    top = torch.tensor([0.5, 3.0, -2.0, 0.2], dtype=DOUBLE)
    limits = [(-1.0, 1.0), (-math.inf, 2.0), (-math.inf, math.inf), (-math.inf, math.inf)]
    scale = torch.tensor([10.0, 1000.0, 1.0, 200.0], dtype=DOUBLE)
    calls = 0

    def gradient(v):  # of a hill that is steeper than a parabola, and turned
        nonlocal calls
        calls += 1
        away = top - v
        g = scale * away * (1 + away.square())
        g[0] += 5 * (away[3] + away[0])
        g[3] += 5 * (away[3] + away[0])
        return g

    start = torch.zeros(4, dtype=DOUBLE)
    B = curvature(gradient, start) * wrong
    calls = 0
    g = gradient(start)
    end, _, _, converged = ascend(gradient, start, g, B, limits, 60, 1e-4, lambda *_: None)
    assert converged and calls < 25
    torch.testing.assert_close(end, torch.tensor([0.5, 2.0, -2.0, 0.2], dtype=DOUBLE), atol=0.05, rtol=0)


def test_a_gradient_that_was_estimated_badly_does_not_hold_a_search_back():
    """Where a search begins too little is expected, and wherever it goes more: no step is too long for that."""
    start, calls = torch.zeros(1, dtype=DOUBLE), []

    def gradient(x):
        calls.append(x)
        return 5.0 - x

    g, B = torch.full_like(start, 0.1), torch.eye(1, dtype=DOUBLE)
    end, _, _, converged = ascend(gradient, start, g, B, [(-math.inf, math.inf)], 30, 1e-3, lambda *_: None)
    assert converged and len(calls) < 20
    torch.testing.assert_close(end, torch.full_like(start, 5.0), atol=0.1, rtol=0)


def test_a_fit_by_estimates_ends_where_the_exact_one_does(monkeypatch):
    """Within the estimates' own noise: a third of the hyperparameters' standard error."""
    monkeypatch.setattr("matheron.fitting.search._FIRST_OBSERVATIONS", 60)
    X, y = simulated(2.0 * K.Matern(2.5, [0.5, 1.5]), 200, 2, 0.05)
    kernel = 1.0 * K.Matern(2.5, [1.0, 1.0])
    exact, estimated = (
        matheron.summary(matheron.fit(kernel, X, y, num_starts=1, solver=solver, seed=0))
        for solver in (Cholesky(), PCG(tolerance=0.05))
    )
    assert exact.log_likelihood is not None and estimated.log_likelihood is not None
    assert exact.log_likelihood - 0.5 < estimated.log_likelihood < exact.log_likelihood + 1e-3
    for label, value in exact.rows.items():
        if label != "mean":
            assert estimated.rows[label] == pytest.approx(value, rel=0.15), label
