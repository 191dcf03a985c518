"""Draws that are given more data than their basis was chosen for: what is said of them, and how they are refreshed."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, model, rand, randn
from matheron import ExactGP, draw, draw_prior
from matheron import kernels as K
from matheron.compare.samplers import moments
from matheron.models.transforms import Affine, Exp
from matheron.solvers import PCG, Cholesky
from standard import assert_marginals_ks, assert_moments, assert_paths

KERNEL = K.Matern(2.5, 0.3)
X = rand(505, 2)
Y = torch.sin(7 * X).sum(-1)
UNIT = ([0.0, 0.0], [1.0, 1.0])
FRESH: dict[str, Any] = dict(num_features=128, paths_per_basis=1)  # a basis per path: its covariance averages out


def given_all(noise: float) -> ExactGP:
    return ExactGP(KERNEL, X, Y, noise=noise)


def first_five(noise: float, s: int = 64, **settings):
    return draw(ExactGP(KERNEL, X[:5], Y[:5], noise=noise), s, seed=1, **settings)


def spread(paths, gp: ExactGP, x: Tensor | None = None) -> float:
    """The paths' standard deviation about the posterior mean over the posterior's own: the median over points."""
    exact = moments(gp, rand(200, 2, seed=5) if x is None else x)
    f = paths(rand(200, 2, seed=5) if x is None else x)
    return float(((f - exact.mean).square().mean(0) / exact.covariance.diagonal()).sqrt().median())


def said(act) -> list[str]:
    """The SpreadWarnings of a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    assert all(w.filename == __file__ for w in caught if w.category is matheron.SpreadWarning)
    return [str(w.message) for w in caught if w.category is matheron.SpreadWarning]


# What condition_on says.


@pytest.mark.parametrize("s", [1, 64])
@pytest.mark.parametrize("solver", ["auto", Cholesky(keep=True), PCG()])
def test_paths_whose_basis_was_drawn_given_fewer_data_are_said_to_vary_too_little(s, solver):
    if s == 1 and isinstance(solver, PCG):
        pytest.skip("some predictions of one path are too few to judge by")
    paths = first_five(1e-6, s, solver=solver)
    (message,) = said(lambda: paths.condition_on(X[5:], Y[5:], noise=1e-6, seed=2, solver=solver))
    assert "chosen given 5 observations" in message
    assert all(way in message for way in ("Draw again", "refreshed(keep=", "num_features=", "where=x"))


def test_so_are_a_prior_s_paths_and_paths_on_a_lattice_for_fewer_data():
    for paths in (draw_prior(KERNEL, 64, input_dim=2, seed=1), first_five(1e-6, domain=UNIT)):
        assert said(lambda paths=paths: paths.condition_on(X, Y, noise=1e-6, seed=2))


def test_so_are_paths_that_are_given_one_point_at_a_time_and_what_is_said_is_about_the_spread_they_have():
    paths, given = [first_five(0.0, solver=Cholesky(keep=True))], range(5, 305)

    def give_all() -> None:
        for i in given:
            paths.append(paths.pop().condition_on(X[i, None], Y[i, None], noise=0.0, seed=i))

    messages = said(give_all)
    assert 3 <= len(messages) <= 20  # not every time
    told = float(messages[-1].split("about ")[1].split()[0])
    assert abs(told - spread(paths[0], ExactGP(KERNEL, X[:305], Y[:305], noise=0.0))) < 0.25


def test_so_is_a_sparse_posterior_given_more_data():
    Z = rand(10, 2, seed=3)
    gp = matheron.SparseGP(KERNEL, Z, randn(10), 0.1 * torch.eye(10, dtype=torch.float64))
    assert said(lambda: draw(gp, 64, num_features=512, seed=1).condition_on(X, Y, noise=1e-6, seed=2))


@pytest.mark.parametrize("s", [1, 8, 64])
def test_nothing_is_said_where_the_spread_is_right(s):
    assert not said(lambda: first_five(1e-2, s).condition_on(X[5:], Y[5:], noise=1e-2, seed=2))
    most = draw(ExactGP(KERNEL, X[:450], Y[:450], noise=1e-6), s, seed=1)
    assert not said(lambda: most.condition_on(X[450:], Y[450:], noise=1e-6, seed=2))
    assert not said(lambda: first_five(1e-6, s).condition_on(X[5:15], Y[5:15], noise=1e-6, seed=2))
    smooth = draw_prior(K.RBF(0.5), s, input_dim=1, seed=0)  # soon known to rounding, where there is nothing to say
    assert not said(lambda: smooth.condition_on(torch.linspace(0, 1, 40)[:, None], torch.zeros(40), noise=0.0))
    assert not said(lambda: draw_prior(KERNEL, s, input_dim=2, seed=0).condition_on(X[:1], Y[:1], noise=0.0))


@pytest.mark.parametrize("noise", [1e-6, 1e-2])
def test_a_prior_for_data_to_come_has_the_posterior_s_spread_when_they_have_come(noise):
    for domain in (None, UNIT):
        paths = draw_prior(KERNEL, 64, input_dim=2, where=X, domain=domain, seed=1)
        given = []
        assert not said(lambda paths=paths, given=given: given.append(paths.condition_on(X, Y, noise=noise, seed=2)))
        assert abs(spread(given[0], given_all(noise)) - 1) < 0.07
    with pytest.raises(ValueError, match="where"):
        draw_prior(KERNEL, 2, input_dim=2, where=[[0.5]])


def test_a_prior_for_data_to_come_is_the_prior():
    kernel = 2.0 * K.Matern(1.5, 0.5)
    f = draw_prior(kernel, 4000, input_dim=2, where=X[:20], generator=gen(), **FRESH)(X[18:23])
    assert_moments(f, torch.zeros(5), kernel(X[18:23]))
    coupled = draw_prior(model("exact, coupled").kernel, 3, input_dim=2, where=X[:4], num_features=16)
    assert coupled(X[:7]).shape == (3, 7, 2)


# Refreshed paths.


def test_refreshed_before_many_data_come_paths_have_the_posterior_s_spread():
    keep, gp, paths = rand(40, 2, seed=9), given_all(1e-6), first_five(1e-6, 128)
    with pytest.warns(matheron.SpreadWarning):
        starved = paths.condition_on(X[5:], Y[5:], noise=1e-6, seed=2)
    assert spread(starved, gp) < 0.6 and spread(starved, gp, keep) < 0.6
    fresh = paths.refreshed(keep, where=X[5:], seed=3)
    torch.testing.assert_close(fresh(keep), paths(keep), rtol=0, atol=1e-9)
    given = []
    assert not said(lambda: given.append(fresh.condition_on(X[5:], Y[5:], noise=1e-6, seed=2)))
    assert abs(spread(given[0], gp) - 1) < 0.07 and abs(spread(given[0], gp, keep) - 1) < 0.1
    exact = moments(gp, keep)
    assert ((given[0].mean(keep) - exact.mean) / exact.covariance.diagonal().sqrt()).abs().max() < 1e-3


def test_refreshed_now_and_then_paths_that_are_kept_in_a_loop_have_it_too():
    keep, paths = rand(40, 2, seed=9), first_five(1e-6, 64)
    for i in range(5, 505, 100):
        paths = paths.condition_on(X[i : i + 100], Y[i : i + 100], noise=1e-6, seed=i)
        fresh = paths.refreshed(keep, seed=1000 + i)
        torch.testing.assert_close(fresh(keep), paths(keep), rtol=0, atol=1e-8)
        paths = fresh
    assert abs(spread(paths, given_all(1e-6)) - 1) < 0.1 and abs(spread(paths, given_all(1e-6), keep) - 1) < 0.15


NAMES = ["exact", "exact, composite", "exact, transforms", "exact, coupled", "sparse", "sparse, coupled"]


def conditioned(mean: Tensor, C: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """The moments of all but the last of normal variables, given these with noise."""
    m = len(y)
    A = torch.linalg.solve(C[-m:, -m:] + noise * torch.eye(m, dtype=C.dtype), C[-m:, :-m]).mT
    return mean[:-m] + A @ (y - mean[-m:]), C[:-m, :-m] - A @ C[-m:, :-m]


@pytest.mark.parametrize("name", NAMES)
def test_the_law_is_the_posterior_s_and_stays_so_given_more_data(name):
    """Kept values are part of the draw: the law given more data is that of these and the old data alone."""
    gp, keep, new = model(name), rand(3, 2, seed=21), rand(2, 2, seed=22)
    x = torch.cat([keep, rand(2, 2, seed=23)])
    paths = draw(gp, 4000, generator=gen(), **FRESH)
    fresh = paths.refreshed(keep, generator=gen(1), **FRESH)
    torch.testing.assert_close(fresh(keep), paths(keep), rtol=1e-6, atol=1e-6)
    mean, C = moments(gp, torch.cat([x, new]))
    t, n = gp.num_outputs, len(x)
    mean, C = mean.reshape(-1), C.reshape(mean.numel(), -1)
    f, few = fresh(x), slice(0, n * t)
    assert_moments(f, mean[few], C[few, few], atol=1e-7)
    assert_marginals_ks(f, mean[few], C[few, few], atol=1e-7)
    y = mean[n * t :] + torch.linspace(-1, 1, 2 * t, dtype=torch.float64)
    more = fresh.condition_on(new, y if t == 1 else y.reshape(2, t), noise=0.05, generator=gen(2))
    expected = conditioned(mean, C, y, 0.05)
    assert_moments(more(x), *expected, atol=1e-7)
    assert_marginals_ks(more(x), *expected, atol=1e-7)


def test_the_law_is_another_where_kept_values_count_as_data():
    """What the test above would find."""
    gp, keep, new, y = model("exact"), rand(3, 2, seed=21), rand(2, 2, seed=22), torch.tensor([1.0, -1.0]).double()
    paths, other = (draw(gp, 4000, generator=gen(seed), **FRESH) for seed in (0, 1))
    pinned = other.condition_on(keep, paths(keep), noise=0.0)
    expected = conditioned(*moments(gp, torch.cat([keep, new])), y, 0.05)
    with pytest.raises(AssertionError, match=r"expected within|expected below"):
        assert_moments(pinned.condition_on(new, y, noise=0.05)(keep), *expected)


def test_a_prior_s_paths_are_refreshed_too_and_keep_nothing_where_nothing_is_named():
    prior = draw_prior(KERNEL, 4000, input_dim=2, generator=gen(), **FRESH)
    keep, x = rand(2, 2, seed=1), rand(4, 2, seed=1)  # the first two are the same
    fresh = prior.refreshed(keep, generator=gen(1), **FRESH)
    assert_moments(fresh(x), torch.zeros(4), KERNEL(x))
    torch.testing.assert_close(fresh(keep), prior(keep), rtol=0, atol=1e-9)
    other = prior.refreshed(torch.empty(0, 2), generator=gen(1), **FRESH)
    correlation = (other(x) * prior(x)).mean(0)
    assert_moments(other(x), torch.zeros(4), KERNEL(x))
    assert correlation.abs().max() < 0.1


def test_points_that_the_data_or_each_other_determine_are_kept():
    at = torch.cat([X[:5], X[:5], rand(3, 2, seed=4), rand(3, 2, seed=4) + 1e-9])
    for kernel in (KERNEL, K.RBF(0.7)):
        paths = draw(ExactGP(kernel, X[:5], Y[:5], noise=0.0), 8, seed=0)
        torch.testing.assert_close(paths.refreshed(at, seed=1)(at), paths(at), rtol=0, atol=1e-5)
    line = torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    paths = draw(ExactGP(K.RBF(0.3), line[:3], torch.zeros(3), noise=0.0), 4, seed=0)
    torch.testing.assert_close(paths.refreshed(line, seed=1)(line), paths(line), rtol=0, atol=1e-4)


def test_each_path_s_own_targets_are_its_own_after_it():
    paths = first_five(1e-2, 6).condition_on(X[5:9], randn(6, 4), noise=1e-2, seed=0)
    fresh = paths.refreshed(X[20:22], seed=1)
    torch.testing.assert_close(fresh.mean(X[:30]), paths.mean(X[:30]))
    torch.testing.assert_close(fresh(X[20:22]), paths(X[20:22]))


@pytest.mark.parametrize("name", ["prior", "exact, coupled", "sparse"])
def test_refreshed_paths_are_paths_like_any_other(name, tmp_path):
    paths = draw_prior(KERNEL, 4, input_dim=2) if name == "prior" else draw(model(name), 4, seed=0)
    assert_paths(paths.refreshed(rand(3, 2, seed=2), num_features=32, paths_per_basis=2, seed=1), tmp_path)


def test_in_single_precision_values_are_kept_within_its_digits():
    """Where kept points are close, weights are large: they stay in double precision."""
    keep = torch.cat([rand(10, 2, seed=9), rand(10, 2, seed=9) + 0.01])
    for n in (50, 505):
        gp = ExactGP(KERNEL, X[:n], Y[:n], noise=1e-4)
        single, double = draw(gp, 16, seed=0, dtype=torch.float32), draw(gp, 16, seed=0).refreshed(keep, seed=1)
        fresh, deviation = single.refreshed(keep, seed=1), moments(gp, keep).covariance.diagonal().sqrt()
        assert fresh.dtype == double.float().dtype == torch.float32
        for one, other in ((fresh, single), (double.float(), double)):
            assert ((one(keep) - other(keep)) / deviation).square().mean().sqrt() < 0.03


@pytest.mark.parametrize("solver", ["cholesky", "cg", Cholesky(keep=True)])
def test_any_solver_keeps_values_and_a_kept_factor_stays(solver):
    paths = draw(ExactGP(KERNEL, X[:60], Y[:60], noise=1e-3), 8, seed=0, solver=solver)
    fresh = paths.refreshed(X[100:105], seed=1, solver="auto" if isinstance(solver, Cholesky) else solver)
    torch.testing.assert_close(fresh(X[100:105]), paths(X[100:105]), rtol=0, atol=1e-3 if solver == "cg" else 1e-9)
    assert (fresh.update.factor is None) == (paths.update.factor is None)
    torch.testing.assert_close(fresh.variance(X[:9]), moments(given_first(60), X[:9]).covariance.diagonal())


def given_first(n: int) -> ExactGP:
    return ExactGP(KERNEL, X[:n], Y[:n], noise=1e-3)


def test_members_are_refreshed_one_by_one():
    one, two = given_first(5), given_first(9)
    keep = rand(3, 2, seed=2)
    for gp in (matheron.Outputs([one, two]), matheron.Ensemble([one, two]), matheron.Batch([one, two])):
        paths = draw(gp, 6, seed=0)
        fresh = paths.refreshed(keep, seed=1, num_features=64)
        assert type(fresh) is type(paths)
        torch.testing.assert_close(fresh(keep), paths(keep))
        assert (fresh(X[300:]) - paths(X[300:])).abs().max() > 0.1
    selected = draw(matheron.SelectedOutputs(model("exact, coupled"), [1]), 6, seed=0)
    torch.testing.assert_close(selected.refreshed(keep, seed=1)(keep), selected(keep))


def test_the_same_seed_refreshes_alike_and_the_paths_themselves_stay():
    paths = first_five(1e-2, 4)
    before = paths(X[:50])
    torch.testing.assert_close(*(paths.refreshed(X[7:9], seed=5)(X[:50]) for _ in range(2)), rtol=0, atol=0)
    torch.testing.assert_close(paths(X[:50]), before, rtol=0, atol=0)
    assert "kept at 2 points" in repr(paths.refreshed(X[7:9], seed=5))


def test_paths_with_a_transform_that_is_not_affine_are_refreshed():
    gp = ExactGP(KERNEL, X[:5], Y[:5], 0.1, input_transform=Affine([2.0, 2.0], [0.0, 1.0]), output_transform=Exp())
    paths = draw(gp, 5, seed=0)
    fresh = paths.refreshed(X[7:9], where=X[20:40], seed=1)
    torch.testing.assert_close(fresh(X[7:9]), paths(X[7:9]))


def test_what_cannot_be_refreshed_says_what_to_do():
    gp = given_first(20)
    with pytest.raises(TypeError, match="do not keep these; draw again given all the data"):
        draw(gp, 2, domain=UNIT, solver="lattice").refreshed(X[:2])
    with pytest.raises(TypeError, match="call weight_space with a model of all data"):
        matheron.samplers.weight_space(gp, 2).refreshed(X[:2])
    with pytest.raises(ValueError, match="keep: expected points"):
        draw(gp, 3).refreshed(rand(3, 2, 2))
    with pytest.raises(ValueError, match='expected a solver for centres, got solver="lattice"'):
        draw(gp, 2).refreshed(X[:2], solver="lattice")
    with pytest.raises(ValueError, match='refreshed paths, which are kept at points, take solver="cholesky"'):
        prior = draw_prior(KERNEL, 2, input_dim=2, domain=UNIT, features="lattice")
        prior.refreshed(X[:2], domain=UNIT, features="lattice").condition_on(X, Y, noise=0.1, solver="lattice")
    draws = matheron.SparseGP(KERNEL, X[:3], sample_u=lambda s, generator: torch.zeros(s, 3))
    with pytest.raises(TypeError, match="known by its draws alone"):
        draw(draws, 2).refreshed(X[:2])
    graph = ExactGP(K.RBF(torch.tensor(0.5, requires_grad=True)), X[:5], Y[:5], 0.1)
    with pytest.raises(ValueError, match="keeps no graph; draw with detach=True"):
        draw(graph, 2, detach=False).refreshed(X[:2])
