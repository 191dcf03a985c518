"""Fits by estimated gradients, of conjugate gradients and on a lattice: against exact ones and known truths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import matheron
from fitting.test_fit import drawn, simulated
from matheron import kernels as K
from matheron.fitting import maximised, search
from matheron.solvers import PCG, Cholesky

DOUBLE = torch.float64


COUPLED = torch.tensor([[1.2, 0.7], [0.7, 0.9]], dtype=DOUBLE)


def data(kernel, n, d, noise, seed=0):
    """Points, values, and where there are several outputs whose they are."""
    generator = torch.Generator().manual_seed(seed)
    X = 4 * torch.rand(n, d, generator=generator, dtype=DOUBLE)
    f = matheron.draw_prior(kernel, 1, input_dim=d, domain=(0, 4), seed=seed)(X)[0]
    tasks = None if f.ndim == 1 else torch.arange(n) % 3 % 2
    f = f if tasks is None else f.gather(1, tasks[:, None])[:, 0]
    return X, 1.0 + f + noise**0.5 * torch.randn(n, generator=generator, dtype=DOUBLE), tasks


@pytest.mark.parametrize(
    "kernel, d, given",
    [
        (1.3 * K.RBF(0.4), 1, True),
        (K.Matern(1.5, [0.4]) + 0.5 * K.Periodic(1.0, 0.7) * K.RBF(2.0), 1, False),
        (K.RBF([0.9, 1.4]), 2, False),
        (K.Coregional(K.RBF(0.6), COUPLED) + 0.3 * K.Matern(2.5, 0.8), 1, False),
        (K.Coregional(K.RBF(0.6), COUPLED[:1] * COUPLED[0, :, None]), 1, True),
        (0.5 * K.RBF(0.5) + 0.2 * K.Polynomial(2, 0.4) + K.Linear(0.3) + K.Constant(0.5), 1, False),
        (0.5 * K.RBF([1.1, 0.9]) + K.Linear([0.3, 0.6]), 2, True),
        (K.Coregional(K.RBF(0.6) + K.Constant(0.4), COUPLED) + 0.2 * K.Polynomial(2, 0.4), 1, False),
        (K.Coregional(K.RBF(0.6) + K.Linear(0.3), COUPLED) + 0.3 * K.RBF(0.8), 1, True),
    ],
    ids=[
        "noise that is given",
        "a sum with a product",
        "two dimensions",
        "outputs",
        "of rank one",
        "beside polynomials",
        "beside linear ones, noise given",
        "outputs beside polynomials",
        "outputs beside linear ones, noise given",
    ],
)
def test_where_estimates_on_a_lattice_end_exact_gradients_gain_little_more(kernel, d, given, monkeypatch):
    """From the top for few of the data by estimated gradients alone; their own noise is a quarter of sampling error."""
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_first=100, rows_for_curvature=100))
    X, y, tasks = data(kernel, 400, d, 0.05)
    noise = torch.linspace(0.02, 0.2, len(y), dtype=DOUBLE) if given else None
    fitted: Any = matheron.fit(kernel, X, y, noise=noise, tasks=tasks, num_starts=1, solver="lattice", seed=0)
    X, y, first = fitted.train_inputs, fitted.train_targets, float(fitted.noise.mean())
    noise = fitted.noise if given else None
    better, noise, mean = maximised(fitted.kernel, X, y, noise=noise, first_noise=first, tasks=tasks, priors={})
    gp = matheron.ExactGP(fitted.kernel, X, y, fitted.noise, mean=fitted.mean, tasks=tasks)
    top = matheron.ExactGP(better, X, y, noise, mean=mean, tasks=tasks)
    ours, exact = (float(matheron.log_marginal_likelihood(each)) for each in (gp, top))
    assert exact - 0.75 < ours < exact + 0.05


def test_a_fit_on_a_lattice_says_what_it_cannot_do():
    X = torch.rand(30, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    with pytest.raises(ValueError, match='solver="lattice": expected a model with noise'):
        matheron.fit(1.0 * K.RBF(1.0), X, X.sum(1), solver="lattice", num_starts=1)
    with pytest.raises(ValueError, match='solver="lattice": expected a model with noise'):
        matheron.fit(K.Linear(1.0), X[:, :1], X.sum(1), solver="lattice", num_starts=1)
    with pytest.raises(ValueError, match='solver="lattice": expected a model with noise'):
        matheron.fit(K.RBF(1.0) * K.Linear(1.0), X[:, :1], X.sum(1), solver="lattice", num_starts=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel, d",
    [(1.5 * K.Matern(1.5, 0.3), 1), (1.5 * K.RBF([0.5, 0.8]), 2), (K.Coregional(K.RBF(0.4), COUPLED), 1)],
    ids=["1", "2", "outputs"],
)
def test_a_fit_on_a_lattice_ends_where_the_exact_one_does(kernel, d, monkeypatch):
    """Within the estimates' own noise, which is a quarter of the sampling error."""
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_first=300, rows_for_curvature=300))
    X, y, tasks = data(kernel, 2000, d, 0.05)
    exact, estimated = (
        matheron.summary(matheron.fit(kernel, X, y, tasks=tasks, num_starts=1, solver=solver, seed=0))
        for solver in ("cholesky", "lattice")
    )
    assert exact.log_likelihood is not None and estimated.log_likelihood is not None
    assert exact.log_likelihood - 0.75 < estimated.log_likelihood < exact.log_likelihood + 0.05
    for label, value in exact.rows.items():
        if "noise" in label:
            assert estimated.rows[label] == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("gigabytes, largest", [(150, 32_000), (12, 16_583)])
def test_on_a_gpu_factors_are_made_as_long_as_they_win_and_fit(gigabytes, largest, monkeypatch):
    memory = SimpleNamespace(total_memory=gigabytes * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert search._largest_dense(gpu) == largest and largest**2 * 3 * 8 < 0.6 * memory.total_memory
    assert [search._smallest_on_lattice(gpu, d) for d in (1, 2)] == [10_000, min(20_000, largest)]
    assert search._largest_dense(cpu) == 8000 and search._smallest_on_lattice(cpu, 1) == 4000


@pytest.mark.long
@pytest.mark.parametrize("d", [1, 2])
def test_a_hundred_thousand_data_give_back_the_hyperparameters_that_made_them(d):
    lengthscales = [0.05] if d == 1 else [0.2, 0.3]
    X, y, _ = data(1.5 * K.Matern(2.5, lengthscales), 100_000, d, 0.05)
    gp = matheron.fit(1.0 * K.Matern(2.5, [0.2] * d), X, y, seed=0)
    rows = matheron.summary(gp).rows
    found = [value for label, value in rows.items() if "lengthscale" in label]
    assert found == pytest.approx(lengthscales, rel=0.1)
    assert rows["noise standard dev"] ** 2 == pytest.approx(0.05, rel=0.02)
    assert rows["Matern.outputscale"] == pytest.approx(1.5, rel=0.35)


COPIES = {"noise of one variance": None, "of each row's own": "own", "two outputs": "outputs"}


@pytest.mark.parametrize("name", COPIES)
def test_a_fit_to_copies_of_few_inputs_ends_at_the_exact_top(name):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(20, 2, generator=g, dtype=DOUBLE)[torch.randint(20, (300,), generator=g)]
    y = torch.sin(5 * X).sum(1) + 0.3 * torch.randn(300, generator=g, dtype=DOUBLE)
    own = 0.1 + torch.rand(300, generator=g, dtype=DOUBLE) if COPIES[name] == "own" else None
    tasks = torch.randint(2, (300,), generator=g) if COPIES[name] == "outputs" else None
    kernel = K.Matern(2.5, 0.4) if tasks is None else K.Coregional(K.Matern(2.5, 0.4), [[1.0, 0.3], [0.3, 0.8]])
    exact, merged = (
        matheron.log_marginal_likelihood(
            matheron.fit(kernel, X, y, noise=own, tasks=tasks, num_starts=1, solver=solver, seed=0)
        )
        for solver in ("cholesky", "lattice")
    )
    assert float(merged) == pytest.approx(float(exact), abs=0.1)  # two searches, each to its own tolerance


@pytest.mark.slow
def test_a_fit_to_copies_of_one_row_ends():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(20_000, 2, generator=g, dtype=torch.float64)
    y = torch.sin(6 * X).sum(1) + 0.1 * torch.randn(20_000, generator=g, dtype=torch.float64)
    X[100:], y[100:] = X[0], y[0]
    gp = matheron.fit(K.Matern(2.5, 0.3), X, y, num_starts=1, seed=0)
    assert float(gp.noise.max()) < 1e-4  # nearly all of the observations agree


# By conjugate gradients.

MATERN = ("Matern.lengthscale[x0]", "Matern.lengthscale[x1]", "noise standard dev")
BY_CG = {
    "Matern": (1.0 * K.Matern(2.5, [1.0, 1.0]), (*MATERN, "Matern.outputscale")),
    "a lengthscale that starts where it has no effect": (1.5 * K.Matern(2.5, [0.5, 40.0]), MATERN),
    "a sum": (K.RBF(0.8) + 0.5 * K.Linear([1.0, 1.0]) + 0.3 * K.RationalQuadratic(1.0, 0.5), ("noise standard dev",)),
    "coupled": (K.Coregional(K.Matern(1.5, 0.7), [[1.0, 0.4], [0.4, 0.8]]), ("noise standard dev[0]",)),
}


@pytest.mark.parametrize("kernel, named", BY_CG.values(), ids=BY_CG)
def test_a_fit_by_estimates_ends_where_the_exact_one_does(kernel, named, monkeypatch):
    """Within the estimates' own noise: a third of the hyperparameters' standard error."""
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_first=60))
    if kernel.num_outputs == 1:
        (X, y), tasks = simulated(2.0 * K.Matern(2.5, [0.5, 1.5]), 200, 2, 0.05), None
    else:
        X, y, tasks = drawn(kernel, 2, 200)
    exact, estimated = (
        matheron.summary(matheron.fit(kernel, X, y, tasks=tasks, num_starts=1, solver=solver, seed=0))
        for solver in (Cholesky(), PCG(tolerance=0.05))
    )
    assert exact.log_likelihood is not None and estimated.log_likelihood is not None
    assert exact.log_likelihood - 0.5 < estimated.log_likelihood < exact.log_likelihood + 1e-3
    for label in named:
        assert estimated.rows[label] == pytest.approx(exact.rows[label], rel=0.15), label


def test_a_fit_by_estimates_stays_within_the_bounds_of_a_prior(monkeypatch):
    monkeypatch.setattr(search, "SETTINGS", search.SearchSettings(rows_first=60))
    X, y = simulated(2.0 * K.Matern(2.5, [0.5, 1.5]), 200, 2, 0.05)
    priors = {"lengthscale": torch.distributions.Uniform(0.05, 0.3)}
    exact, estimated = (
        matheron.fit(1.0 * K.Matern(2.5, [1.0, 1.0]), X, y, priors=priors, num_starts=1, solver=solver, seed=0)
        for solver in (Cholesky(), PCG(tolerance=0.05))
    )
    lengthscale = estimated.kernel.kernel.lengthscale
    assert bool(((lengthscale >= 0.05) & (lengthscale <= 0.3 + 1e-6)).all())
    ours, top = (float(matheron.log_marginal_likelihood(gp)) for gp in (estimated, exact))
    assert top - 0.5 < ours < top + 0.5
