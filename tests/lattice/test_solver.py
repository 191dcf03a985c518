"""The solve on a lattice, against dense algebra; and paths that are conditioned on one."""

import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import moments
from matheron.lattice import FourierLattice, MisfitWarning
from matheron.lattice.planning import PLANNER
from matheron.solvers import ConvergenceWarning, JitterWarning

UNIT = (0.0, 1.0)


EXACT = {
    "one dimension": (K.Matern(2.5, 0.3), 1),
    "two dimensions": (K.RBF([0.3, 0.5]), 2),
    "three dimensions": (K.RBF(0.5), 3),
    "many modes": (K.Matern(2.5, 0.1), 2),
    "explicit terms beside it": (K.RBF(0.3) + 2 * K.Constant() + 3 * K.Linear(), 1),
    "two outputs": (K.Coregional(K.RBF(0.3), [[1.0, 0.5], [0.5, 0.9]]), 2),
    "two outputs of rank one": (K.Coregional(K.RBF(0.3), [[0.49, -0.28], [-0.28, 0.16]]), 1),
}


@pytest.mark.parametrize("head", [None, 5, 0])
@pytest.mark.parametrize("name", EXACT)
def test_a_solve_to_a_small_tolerance_is_that_of_the_features_by_dense_algebra(name, head):
    """Given Phi w + eps = y with w standard normal, the mean is Phi_x Phi^T (Phi Phi^T + Lambda)^-1 y."""
    kernel, d = EXACT[name]
    prior = matheron.draw_prior(kernel, 2, input_dim=d, domain=UNIT, features="lattice", seed=0)
    n, t, x, X = 120, kernel.num_outputs, rand(30, d, seed=6), rand(120, d, seed=3)
    y, noise, tasks = torch.sin(6 * X).sum(1), 1e-2 * (1 + rand(n, seed=2)), torch.arange(n) % 3 % t
    B = kernel.B if isinstance(kernel, K.Coregional) else torch.ones(1, 1, dtype=torch.float64)
    Phi, Phi_x = prior.prior.features(X)[0], prior.prior.features(x)[0]
    C = Phi @ Phi.mT * B[tasks[:, None], tasks] + noise.diag()
    cross = (Phi_x @ Phi.mT)[:, None] * B[:, tasks]  # [30, t, n]
    mean, f = (cross @ torch.linalg.solve(C, y)).squeeze(-1), prior
    for some in (slice(0, 70), slice(70, n)):  # the second solve goes on from the first one's system
        of: dict[str, Any] = {} if t == 1 else {"tasks": tasks[some]}
        solver = FourierLattice(tolerance=1e-10, head=head)
        f = f.condition_on(X[some], y[some], noise=noise[some], solver=solver, seed=1, **of)
        assert f.solver_stats is not None and f.solver_stats.converged and f.update.num_centres == 0
    torch.testing.assert_close(f.mean(x), mean, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind, most", [("uniform", 50), ("clustered", 140)])
def test_iterations_are_few_where_data_determine_many_more_modes_than_the_head_has(kind, most):
    """With a diagonal preconditioner beyond the head there would be 245 for uniform data, and more than 1000."""
    X = data(kind, 20_000, 2)
    gp = matheron.ExactGP(K.Matern(2.5, 0.1), X, torch.sin(9 * X).sum(1), noise=1e-4)
    paths = matheron.draw(gp, 2, domain=UNIT, solver=FourierLattice(head=1000), seed=0)
    assert paths.solver_stats is not None and paths.solver_stats.converged and paths.solver_stats.iterations <= most


def data(kind: str, n: int, d: int) -> Tensor:
    X = rand(n, d, seed=3)
    if kind == "clustered":
        X[: n // 2] = (0.5 + 0.01 * randn(n // 2, d, seed=4)).clamp(0, 1)
    elif kind == "on a line":
        X[:, -1] = 0.3
    elif kind == "duplicated":
        X[n // 2 :] = X[: n - n // 2]
    elif kind == "at the edge":
        X[:, 0] = X[:, 0].round()
    return X


CASES = {
    "one dimension": (K.Matern(2.5, 0.2), 1, 300, 1e-2, "uniform"),
    "small noise": (K.Matern(2.5, 0.3), 1, 300, 1e-4, "uniform"),
    "periodic": (K.Periodic(0.5, 0.9), 1, 300, 1e-2, "uniform"),
    "two periods": (K.Periodic(0.5, 0.3) + K.Periodic(0.4, 0.7), 1, 300, 1e-2, "uniform"),
    "two dimensions": (K.RBF(0.2), 2, 400, 1e-2, "uniform"),
    "clustered": (K.RBF(0.2), 2, 400, 1e-2, "clustered"),
    "on a line": (K.RBF(0.2), 2, 300, 1e-2, "on a line"),
    "duplicated": (K.RBF(0.2), 2, 300, 1e-2, "duplicated"),
    "at the edge": (K.RBF(0.2), 2, 300, 1e-2, "at the edge"),
    "one datum": (K.RBF(0.2), 1, 1, 1e-2, "uniform"),
    "a sum": (K.RBF(0.4) + 0.1 * K.Matern(1.5, 0.1), 1, 300, 1e-2, "uniform"),
    "explicit terms beside it": (K.RBF(0.3) + 2 * K.Constant() + 3 * K.Linear(), 1, 300, 1e-2, "uniform"),
    "terms that repeat beside it": (K.RBF(0.3) + K.Periodic(0.4, 1.0) + K.Periodic(0.23, 1.0), 1, 300, 1e-2, "uniform"),
    "a quadratic in two dimensions": (K.RBF(0.3) + K.Polynomial(2, 1.0), 2, 300, 1e-2, "clustered"),
}
SLOW = {
    "Matern in two dimensions": (K.Matern(2.5, 0.3), 2, 400, 1e-2, "uniform"),
    "Matern, clustered": (K.Matern(2.5, 0.3), 2, 400, 1e-2, "clustered"),
    "10,000 data": (K.Matern(2.5, 0.2), 2, 10_000, 1e-2, "uniform"),
    "3000 data, small noise": (K.Matern(2.5, 0.2), 2, 3000, 1e-4, "uniform"),
    "3000 clustered data": (K.Matern(2.5, 0.2), 2, 3000, 1e-3, "clustered"),
    "three dimensions": (K.Matern(2.5, 0.4), 3, 2000, 1e-2, "uniform"),
    "a rougher kernel": (K.Matern(1.5, 0.2), 2, 3000, 1e-1, "uniform"),
}


LONG = ("10,000 data", "three dimensions")


@pytest.mark.parametrize(
    "name",
    [*CASES, *(pytest.param(n, marks=pytest.mark.long if n in LONG else pytest.mark.slow) for n in SLOW)],
)
def test_mean_and_paths_are_those_of_the_dense_solve_in_posterior_standard_deviations(name):
    kernel, d, n, noise, kind = (CASES | SLOW)[name]
    X = data(kind, n, d)
    y = torch.sin(7 * X).sum(1) + noise**0.5 * randn(n, seed=5)
    gp, x = matheron.ExactGP(kernel, X, y, noise=noise), rand(100, d, seed=6)
    paths = matheron.draw(gp, 100, domain=UNIT, solver="lattice", generator=gen(7))
    exact = moments(gp, x)
    sd = exact.covariance.diagonal().sqrt()
    assert paths.update.num_centres == 0
    assert ((paths.mean(x) - exact.mean) / sd).abs().max() < 0.03
    z = (paths(x) - exact.mean) / sd  # [100, 100], standard normal
    assert float(z.square().mean()) == pytest.approx(1, abs=0.35)
    assert float(z.mean(0).square().mean()) < 4 / 100
    tight = FourierLattice(tolerance=1e-4)
    same = matheron.draw(gp, 100, domain=UNIT, solver=tight, generator=gen(7))
    assert float(((same(x) - paths(x)) / sd).square().mean().sqrt()) < 0.02


def test_means_are_right_near_data_that_lie_on_a_line():
    X = rand(400, 1, seed=3).expand(-1, 2).clone()  # along a diagonal: the rest of the square is left open
    y = torch.sin(40 * X[:, 0]) + 1e-3**0.5 * randn(400, seed=5)
    gp = matheron.ExactGP(K.Matern(2.5, [0.05, 5.0]), X, y, noise=1e-3)
    x = (X[:100] + 0.01 * randn(100, 2, seed=6)).clamp(0, 1)
    paths = matheron.draw(gp, 2, domain=UNIT, solver="lattice", generator=gen(7))
    exact = moments(gp, x)
    z = (paths.mean(x) - exact.mean) / exact.covariance.diagonal().sqrt()
    assert z.abs().max() < 0.3  # modes that suit the average over the square give 5


def small(noise: Any = 0.01, n: int = 200, d: int = 1, **settings):
    X = rand(n, d)
    gp = matheron.ExactGP(K.RBF(0.3), X, torch.sin(6 * X).sum(1), noise=noise)
    return gp, matheron.draw(gp, 4, domain=UNIT, solver="lattice", generator=gen(1), **settings)


def test_noise_may_differ_from_point_to_point():
    noise = 10 ** (-3 + 2 * rand(200, seed=8))
    gp, paths = small(noise)
    x = rand(50, 1, seed=9)
    exact = moments(gp, x)
    assert ((paths.mean(x) - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max() < 0.03


def test_more_data_give_the_mean_of_all_data_and_the_old_are_not_kept():
    X, x = rand(300, 1), rand(50, 1, seed=9)
    y = torch.sin(6 * X[:, 0])
    gp = matheron.ExactGP(K.Matern(2.5, 0.3), X, y, noise=0.01)
    exact = moments(gp, x)
    some = matheron.ExactGP(K.Matern(2.5, 0.3), X[:200], y[:200], noise=0.01)
    paths = matheron.draw(some, 4, domain=UNIT, solver="lattice", generator=gen(1))
    more = paths.condition_on(X[200:], y[200:], noise=0.01, generator=gen(2))
    assert ((more.mean(x) - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max() < 0.03
    assert "given 300 observations" in repr(more) and more.update.num_centres == 0
    own = paths.condition_on(X[200:], y[200:].expand(4, -1), noise=0.01, generator=gen(2))
    assert own.mean(x).shape == (4, 50)
    torch.testing.assert_close(own.mean(x), more.mean(x).expand(4, -1), atol=1e-3, rtol=1e-3)
    prior = matheron.draw_prior(K.Matern(2.5, 0.3), 4, input_dim=1, domain=UNIT, features="lattice")
    given = prior.condition_on(X, y, noise=0.01, solver="lattice")
    assert ((given.mean(x) - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max() < 0.1


def test_more_data_without_noise_are_hit():
    _, paths = small()
    x, y = torch.tensor([[0.31], [0.77]]).double(), torch.tensor([2.0, -1.0]).double()
    with pytest.warns(JitterWarning, match="a lattice cannot represent noise below") as said:
        given = paths.condition_on(x, y, noise=0.0, generator=gen(3))
    assert {each.filename for each in said} == {__file__}
    assert (given(x) - y).abs().max() < 1e-3 and (given.mean(x) - y).abs().max() < 1e-3


def test_the_variance_is_the_posterior_s_and_never_the_prior_s():
    gp, paths = small()
    x = rand(20, 1, seed=9)
    exact = moments(gp, x).covariance.diagonal()
    assert exact.max() < 0.1  # the prior's is 1
    torch.testing.assert_close(paths.variance(x), exact, rtol=0.01, atol=0)


def test_paths_are_saved_pickled_indexed_moved_and_differentiated_as_any(tmp_path):
    _, paths = small(d=2)
    x = rand(40, 2, seed=9)
    paths.save(tmp_path / "a.safetensors")
    for copy in (matheron.load(tmp_path / "a.safetensors"), pickle.loads(pickle.dumps(paths))):
        assert torch.equal(copy(x), paths(x)) and torch.equal(copy.mean(x), paths.mean(x))
        copy.condition_on(x[:3], paths.mean(x[:3]), noise=0.1)
    torch.testing.assert_close(paths[1:3](x), paths(x)[1:3])
    torch.testing.assert_close(paths[1:3].mean(x), paths.mean(x))
    torch.testing.assert_close(paths.to(torch.float32)(x).double(), paths(x), atol=1e-4, rtol=1e-4)
    _, gradient = paths.value_and_grad(x)
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(paths(at)[2].sum(), at)
    torch.testing.assert_close(gradient[2], slope)
    axes = [torch.linspace(0, 1, 5).double(), torch.linspace(0, 1, 4).double()]
    grid = torch.cartesian_prod(*axes)
    torch.testing.assert_close(paths.on_grid(axes).flatten(1), paths(grid))
    own = paths(x.expand(4, -1, -1))
    torch.testing.assert_close(own, paths(x))


def test_auto_takes_the_lattice_for_many_data_and_the_dense_solve_for_few():
    # in one dimension from hundreds of data on, in two where a dense factor takes longer than transforms of all modes
    for d, n, noise, lattice in ((1, 200, 0.01, False), (1, 600, 0.01, True), (1, 600, 1e-13, False)):
        X = rand(n, d)
        gp = matheron.ExactGP(K.RBF(0.2), X, torch.sin(6 * X).sum(1), noise=noise)
        paths = matheron.draw(gp, 2, domain=UNIT)
        assert (paths.update.num_centres == 0) is lattice
    X = rand(1200, 2)
    for kernel, lattice in ((K.RBF(0.3), True), (K.Matern(1.5, 0.1), False)):
        gp = matheron.ExactGP(kernel, X, torch.sin(6 * X).sum(1), noise=0.01)
        assert (matheron.draw(gp, 2, domain=UNIT).update.num_centres == 0) is lattice


def test_auto_is_dense_without_noise():
    X = rand(600, 1)
    gp = matheron.ExactGP(K.Matern(1.5, 0.2), X, torch.sin(6 * X[:, 0]), noise=0.0)
    assert matheron.draw(gp, 1, domain=UNIT).update.num_centres == 600


def unlikely(n: int, d: int = 2) -> matheron.ExactGP:
    X = rand(n, d)
    return matheron.ExactGP(K.Matern(2.5, 0.3), X, 30 * randn(n, seed=3), noise=1e-3)


def test_data_that_the_prior_finds_unlikely_are_said_to_be_beyond_the_lattice():
    gp = unlikely(200)
    X, y = gp.train_inputs, gp.train_targets
    A = gp.kernel(X, X) + 1e-3 * torch.eye(200)
    with pytest.warns(MisfitWarning, match="the prior finds these data unlikely") as said:
        paths = matheron.draw(gp, 2, domain=UNIT, solver="lattice", generator=gen(1))
    update: Any = paths.update
    assert update.misfit == pytest.approx(float(y @ torch.linalg.solve(A, y)) / 200, rel=0.02)
    x, likely = rand(50, 2, seed=9), small(d=2)[1]
    assert 0 < likely.update.misfit < 2
    with pytest.warns(MisfitWarning, match="unlikely") as more:
        likely.condition_on(x[:5], 1000 * randn(5), noise=1e-2)
    assert {each.filename for each in (*said, *more)} == {__file__}


def test_auto_solves_densely_for_data_that_the_prior_finds_unlikely():
    gp = unlikely(600, 1)
    paths = matheron.draw(gp, 2, domain=UNIT, generator=gen(1))
    assert paths.update.num_centres == 600
    x = rand(50, 1, seed=9)
    dense = matheron.draw(gp, 2, domain=UNIT, solver="cholesky", generator=gen(1))
    torch.testing.assert_close(paths(x), dense(x))  # as if nothing had been tried
    likely = gp.replaced(train_targets=torch.sin(6 * gp.train_inputs[:, 0]))
    assert matheron.draw(likely, 2, domain=UNIT).update.num_centres == 0


def worst_error_of_mean(gp, paths) -> float:
    """In posterior standard deviations, all over the domain and close to data."""
    X = gp.train_inputs
    x = torch.cat([rand(600, gp.input_dim, seed=9), (X + 0.003 * randn(*X.shape, seed=10)).clamp(0, 1)])
    exact = moments(gp, x)
    return float(((paths.mean(x) - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max())


@pytest.mark.parametrize("noise", [1e-2, 1e-6])
def test_the_mean_in_gaps_between_clusters_is_right_on_a_lattice(noise):
    X = (rand(6, 1, seed=4)[torch.arange(600) % 6] + 0.01 * randn(600, 1, seed=5)).clamp(0, 1)
    X = torch.cat([X, torch.tensor([[0.0], [1.0]])])
    gp = matheron.ExactGP(K.Matern(1.5, 0.2), X, torch.sin(9 * X[:, 0]) + 0.1 * torch.sin(200 * X[:, 0]), noise=noise)
    paths = matheron.draw(gp, 2, domain=UNIT, solver="lattice", seed=0)
    assert worst_error_of_mean(gp, paths) < 0.1


@pytest.mark.parametrize("kernel, d", [(K.Matern(0.5, 0.3), 2), (K.Matern(1.5, 0.2), 3)], ids=["two", "three"])
def test_a_mean_that_a_lattice_has_too_few_modes_for_is_told_of(kernel, d, monkeypatch):
    X = rand(500, d)
    y = torch.sin(7 * X).sum(1) + 0.3 * torch.sin(31 * X[:, 0])
    gp = matheron.ExactGP(kernel, X, y, noise=1e-4)
    monkeypatch.setitem(vars(PLANNER), "largest", 1 << 12)
    with pytest.warns(MisfitWarning, match="the lattice has too few modes for a kernel as rough as this one"):
        paths = matheron.draw(gp, 2, domain=UNIT, solver="lattice", seed=0)
    assert worst_error_of_mean(gp, paths) > 0.1
    prior = matheron.draw_prior(kernel, 2, input_dim=d, domain=UNIT, features="lattice", seed=0)
    with pytest.warns(MisfitWarning, match="too few modes"):
        prior.condition_on(X, y, noise=1e-4, solver="lattice", seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smooth = matheron.ExactGP(K.RBF(0.5), X, y, noise=1e-2)
        assert worst_error_of_mean(smooth, matheron.draw(smooth, 2, domain=UNIT, solver="lattice", seed=0)) < 0.1


def test_a_prior_of_modes_alone_takes_data_on_its_lattice():
    rough, X = K.Matern(0.5, 0.3), rand(20, 2)
    alone = matheron.draw_prior(rough, 2, input_dim=2, domain=UNIT, features="lattice", seed=0)
    assert alone.condition_on(X, X[:, 0], noise=1e-2, solver="lattice").update.num_centres == 0


ROUGH = {  # kernel, dimensions, noise, and whether data are given on the lattice: else exactly
    "one dimension": (K.Matern(0.5, 0.3), 1, 1e-2, True),
    "two": (K.Matern(0.5, 0.3), 2, 0.5, True),
    "functions beside it": (K.Linear() + K.Matern(0.5, 0.3) + K.Periodic(0.4, 1.0), 1, 0.1, True),
    "several outputs": (K.Coregional(K.Matern(0.5, 0.3), [[1.0, 0.5], [0.5, 2.0]]), 1, 1e-1, True),
    "precise data": (K.Matern(0.5, 0.3), 2, 1e-2, False),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ("one dimension", "two"))) for n in ROUGH]
)
def test_a_rough_prior_takes_data_and_then_more(name):
    """Between data and at them: variances and means in closed form, and W2 beside that of exact draws.

    In several dimensions the prior has lattices of higher frequencies beyond its modes.
    """
    kernel, d, noise, on_lattice = ROUGH[name]
    s, X, more = 500, rand(40, d, seed=1), rand(20, d, seed=11)
    x = torch.cat([rand(20, d, seed=7), X[:10]])
    tasks = None if kernel.num_outputs == 1 else torch.arange(60) % 2
    y = torch.sin(5 * torch.cat([X, more]).sum(-1))
    paths = matheron.draw_prior(kernel, s, input_dim=d, domain=UNIT, seed=0)
    assert ("beyond the modes" in paths.prior.features.description) == (d > 1)
    for n, points in ((40, X), (60, more)):
        own = slice(n - len(points), n)
        of: dict[str, Any] = {} if tasks is None else {"tasks": tasks[own]}
        paths = paths.condition_on(points, y[own], noise=noise, solver="lattice", seed=n, **of)
        assert (paths.update.num_centres == 0) == on_lattice
        every: dict[str, Any] = {} if tasks is None else {"tasks": tasks[:n]}
        exact = moments(matheron.ExactGP(kernel, torch.cat([X, more])[:n], y[:n], noise=noise, **every), x)
        f, m = paths(x).flatten(1), exact.mean.flatten()
        C = exact.covariance.reshape(len(m), len(m))
        sd = C.diagonal().sqrt()
        assert (f.var(0) / sd**2 - 1).abs().max() < 5 * math.sqrt(2 / s) + 0.02
        assert ((paths.mean(x).flatten() - m) / sd).abs().max() < 0.05
        root = torch.linalg.cholesky(C + 1e-10 * torch.eye(len(m)))
        z = torch.randn(s, len(m), generator=gen(3), dtype=torch.float64)
        ours, floor = (gaussian_wasserstein(g.mean(0), torch.cov(g.mT), m, C) for g in (f, m + z @ root.mT))
        assert ours < 1.25 * floor


@pytest.mark.slow
def test_many_data_more_precise_than_a_rough_prior_s_modes_are_told_of():
    X = rand(4500, 2)
    prior = matheron.draw_prior(K.Matern(0.5, 0.3), 2, input_dim=2, domain=UNIT, seed=0)
    with pytest.warns(JitterWarning, match="which counts as noise of the data and is more than their own"):
        assert prior.condition_on(X, X[:, 0], noise=1e-4, solver="lattice", seed=1).update.num_centres == 0


def test_refusals():
    X = rand(20, 1)
    gp = matheron.ExactGP(K.RBF(0.2), X, X[:, 0], noise=0.01)
    with pytest.raises(ValueError, match=r'solver="lattice" needs an exact model with noise, domain='):
        matheron.draw(gp, 1, solver="lattice")
    with pytest.raises(ValueError, match='solver="lattice" needs an exact model with noise'):
        matheron.draw(matheron.ExactGP(K.RBF(0.2), X, X[:, 0], noise=0.0), 1, solver="lattice", domain=UNIT)
    with pytest.raises(ValueError, match="the noise is too small"):
        matheron.draw(matheron.ExactGP(K.RBF(0.2), X, X[:, 0], noise=1e-13), 1, solver="lattice", domain=UNIT)
    growing = K.RBF(0.2) * K.Linear()
    product = "products of stationary and linear kernels have no series; got .* use an ExactGP with solver="
    with pytest.raises(ValueError, match=product):
        matheron.draw(matheron.ExactGP(growing, X, X[:, 0], noise=0.01), 1, solver="lattice", domain=UNIT)
    with pytest.raises(ValueError, match=product):
        matheron.draw(matheron.StreamedGP(growing, (X.numpy(), X[:, 0].numpy()), noise=0.01), 1, domain=UNIT)
    with pytest.raises(ValueError, match=r'features="lattice": .* multiplied with a linear one; use features="auto"'):
        matheron.draw_prior(growing, 1, input_dim=1, features="lattice", domain=UNIT)
    assert "lattice" not in matheron.draw_prior(growing, 1, input_dim=1, domain=UNIT).prior.features.description
    rough = matheron.ExactGP(K.Matern(0.5, 0.2) + K.RBF(0.5), X, X[:, 0], noise=0.01)
    with pytest.raises(ValueError, match=r"\(2 lattices.* too many modes for this many paths"):
        matheron.draw(rough, 5000, solver="lattice", domain=UNIT)
    with pytest.raises(ValueError, match="needs paths whose prior is on one lattice"):
        matheron.draw(gp, 1).condition_on(X, X[:, 0], noise=0.1, solver="lattice")
    mixed = matheron.draw_prior(K.RBF(0.5).on(0) + K.RBF(1.0), 2, input_dim=4, domain=UNIT, seed=0)  # 4: random
    with pytest.raises(ValueError, match="needs paths whose prior is on one lattice"):
        mixed.condition_on(rand(5, 4), torch.zeros(5), noise=0.1, solver="lattice")
    with pytest.warns(ConvergenceWarning, match="the solve on the lattice stopped after 1 iterations") as said:
        settings = FourierLattice(tolerance=1e-8, head=2, max_iterations=1)
        matheron.draw(gp, 1, solver=settings, domain=UNIT)
    assert {each.filename for each in said} == {__file__}


@pytest.mark.long
def test_a_million_data_give_the_same_mean_at_half_the_tolerance():
    n, x = 1_000_000, rand(300, 2, seed=6)
    X = rand(n, 2, seed=3)
    gp = matheron.ExactGP(K.Matern(2.5, 0.1), X, torch.sin(9 * X).sum(1) + 0.1 * randn(n, seed=5), noise=0.01)
    drawn = [
        matheron.draw(gp, 16, domain=UNIT, tolerance=1e-3 / cut, solver=FourierLattice(0.01 / cut), seed=0)
        for cut in (1, 2)
    ]
    spread = drawn[1](x).std(0)
    assert float(((drawn[0].mean(x) - drawn[1].mean(x)) / spread).square().mean().sqrt()) < 0.02


def test_a_term_that_repeats_itself_beyond_the_modes_is_given_the_data_too():
    kernel, X, x = K.RBF(0.5) + 0.5 * K.Cosine(0.013), rand(200, 1, seed=3), rand(50, 1, seed=6)
    y = torch.sin(5 * X[:, 0]) + torch.cos(2 * math.pi / 0.013 * X[:, 0])
    gp = matheron.ExactGP(kernel, X, y, noise=1e-2)
    paths = matheron.draw(gp, 4, domain=UNIT, solver="lattice", seed=0)
    exact = moments(gp, x)
    spread = exact.covariance.diagonal().sqrt()
    assert float(((paths.mean(x) - exact.mean) / spread).abs().max()) < 0.05


@pytest.mark.slow
def test_more_data_of_a_rough_prior_that_were_given_exactly_are_so_too_however_many():
    n = 4100  # more than are factored at once
    prior = matheron.draw_prior(K.Matern(0.5, 0.4), 2, input_dim=2, domain=(0, 1), num_features=64, seed=1)
    precise = prior.condition_on(rand(20, 2), randn(20), noise=1e-4, seed=0, solver="lattice")
    assert precise.update.num_centres == 20
    X, y = rand(n, 2, seed=2), randn(n, seed=3)
    both = precise.condition_on(X, y, noise=0.5, seed=0, solver="lattice")
    exact = matheron.ExactGP(
        K.Matern(0.5, 0.4),
        torch.cat([rand(20, 2), X]),
        torch.cat([randn(20), y]),
        noise=torch.cat([torch.full((20,), 1e-4), torch.full((n,), 0.5)]).double(),
    )
    x = rand(9, 2, seed=4)
    torch.testing.assert_close(both.mean(x), moments(exact, x).mean, rtol=1e-6, atol=1e-6)
