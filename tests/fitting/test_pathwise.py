"""The fit for large n by estimated gradients: it ends where the fit by exact ones does."""

import pytest
import torch

import matheron
from fitting.test_fit import drawn, simulated
from matheron import kernels as K
from matheron.fitting import search
from matheron.solvers import PCG, Cholesky

MATERN = ("Matern.lengthscale[x0]", "Matern.lengthscale[x1]", "noise standard dev")
CASES = {
    "Matern": (1.0 * K.Matern(2.5, [1.0, 1.0]), (*MATERN, "Matern.outputscale")),
    "a lengthscale that starts where it has no effect": (1.5 * K.Matern(2.5, [0.5, 40.0]), MATERN),
    "a sum": (K.RBF(0.8) + 0.5 * K.Linear([1.0, 1.0]) + 0.3 * K.RationalQuadratic(1.0, 0.5), ("noise standard dev",)),
    "coupled": (K.Coregional(K.Matern(1.5, 0.7), [[1.0, 0.4], [0.4, 0.8]]), ("noise standard dev[0]",)),
}


@pytest.mark.parametrize("kernel, named", CASES.values(), ids=CASES)
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
