"""A kept factor: conditioning on more data extends it, and the result is that of factoring all anew."""

import warnings
from functools import partialmethod
from typing import Any

import pytest
import torch

from examples import B2, gen, rand, randn
from matheron import ExactGP, Paths, draw, draw_prior, load
from matheron import kernels as K
from matheron.compare.samplers import moments
from matheron.paths import Factor
from matheron.solvers import PCG, Cholesky

KEEP = Cholesky(keep=True)
X, Y = rand(20, 2), randn(20, seed=1)
NEW_X, NEW_Y, AT = rand(3, 2, seed=2), randn(3, seed=3), rand(6, 2, seed=4)
CLOSE: dict[str, Any] = dict(rtol=1e-9, atol=1e-9)


MATERN = K.Matern(1.5, 0.4)


def kept(kernel: K.Kernel = MATERN, noise: float = 0.01, **settings) -> Paths:
    gp = ExactGP(kernel, X, Y, noise, mean=0.3, **settings)
    return draw(gp, 5, solver=KEEP, num_features=64, generator=gen())


def assert_same(one: Paths, other: Paths) -> None:
    torch.testing.assert_close(one(AT), other(AT), **CLOSE)
    torch.testing.assert_close(one.mean(AT), other.mean(AT), **CLOSE)


@pytest.mark.parametrize("y", [NEW_Y, randn(5, 3, seed=5)], ids=["shared", "of each path's own"])
def test_extending_the_factor_is_factoring_anew(y):
    paths = kept()
    extended = paths.condition_on(NEW_X, y, noise=0.1, generator=gen(1))
    assert extended.solver_stats is not None and "extended" in extended.solver_stats.solver
    anew = paths.condition_on(NEW_X, y, noise=0.1, solver="cholesky", generator=gen(1))
    assert anew.solver_stats is not None and "extended" not in anew.solver_stats.solver
    assert_same(extended, anew)
    again, twice = (p.condition_on(AT[:2], y[..., :2], noise=0.1, generator=gen(2)) for p in (extended, anew))
    assert_same(again, twice)


@pytest.mark.parametrize("noise", [1e-1, 1e-4])
def test_a_loop_stays_exact(noise, monkeypatch):
    """A point at a time, forty times, across the size at which the added rows join the large block."""
    monkeypatch.setattr(Factor, "extended", partialmethod(Factor.extended, largest_tail=15))
    paths = kept(noise=noise)
    x, y = rand(40, 2, seed=6), randn(40, seed=7)
    xi = []
    for i in range(40):
        paths = paths.condition_on(x[i : i + 1], y[i : i + 1], noise=noise, generator=gen(10 + i))
        xi.append(torch.randn(5, 1, generator=gen(10 + i), dtype=torch.float64))
    torch.testing.assert_close(paths.update.xi[:, 20:], torch.cat(xi, dim=1))
    anew = paths.condition_on(AT[:1], Y[:1], noise=noise, solver="cholesky", generator=gen(1))
    assert_same(paths.condition_on(AT[:1], Y[:1], noise=noise, generator=gen(1)), anew)


def test_tasks_extend_too():
    tasks = torch.arange(20) % 2
    paths = kept(K.Coregional(K.RBF(0.4), B2), tasks=tasks)
    extended, anew = (
        paths.condition_on(NEW_X, NEW_Y, noise=0.1, tasks=[1, 0, 1], solver=solver, generator=gen(1))
        for solver in ("auto", "cholesky")
    )
    assert_same(extended, anew)


def test_repeated_points_are_factored_anew_where_the_old_factor_cannot_be_extended():
    """Without noise the new row adds nothing but rounding."""
    paths = kept(noise=0.0)
    near = X[:1] + 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = paths.condition_on(near, Y[:1], noise=0.0)
    assert given(AT).isfinite().all() and "extended" not in str(given.solver_stats)


def test_prior_paths_keep_a_factor_where_asked():
    paths = draw_prior(K.RBF(0.4), 3, input_dim=2, generator=gen()).condition_on(X, Y, noise=0.1, solver=KEEP)
    assert isinstance(paths.update.factor, Factor)
    assert "extended" in str(paths.condition_on(NEW_X, NEW_Y, noise=0.1).solver_stats)


def test_the_factor_goes_where_the_paths_go(tmp_path):
    paths = kept()
    paths.save(tmp_path / "paths.safetensors")
    for copy in (load(tmp_path / "paths.safetensors"), paths[[0, 1, 2, 3, 4]], paths.to(torch.float64)):
        assert_same(*(p.condition_on(NEW_X, NEW_Y, noise=0.1, generator=gen(1)) for p in (copy, paths)))
    single = paths.to(torch.float32).condition_on(NEW_X, NEW_Y, noise=0.1, generator=gen(1))
    double = paths.condition_on(NEW_X, NEW_Y, noise=0.1, generator=gen(1))
    torch.testing.assert_close(single(AT).double(), double(AT), rtol=1e-3, atol=1e-3)


def test_the_kept_factor_gives_the_posterior_s_variance():
    gp = ExactGP(K.Matern(1.5, 0.4), X, Y, 0.01)
    paths = kept()
    torch.testing.assert_close(paths.variance(AT), moments(gp, AT).covariance.diagonal())


def test_a_graph_is_refused():
    gp = ExactGP(K.RBF(torch.tensor(0.5, requires_grad=True)), X, Y, 0.1)
    with pytest.raises(ValueError, match="keep=True keeps no graph"):
        draw(gp, 1, solver=KEEP, detach=False)


@pytest.mark.parametrize("y", [NEW_Y, randn(5, 3, seed=5)], ids=["shared", "of each path's own"])
def test_iterations_start_from_the_old_weights(y):
    """Few new data far from most of the old: the old solution is nearly the new one."""
    x = rand(300, 2)
    gp = ExactGP(K.Matern(1.5, 0.1), x, (5 * x).sin().sum(1), 1e-3)
    paths = draw(gp, 5, solver=PCG(rank=10), generator=gen())
    warm = paths.condition_on(NEW_X, y, noise=0.1, solver=PCG(rank=10), generator=gen(1))
    exact = paths.condition_on(NEW_X, y, noise=0.1, solver="cholesky", generator=gen(1))
    assert warm.solver_stats is not None and paths.solver_stats is not None
    assert warm.solver_stats.iterations < 0.9 * paths.solver_stats.iterations
    torch.testing.assert_close(warm(AT), exact(AT), rtol=0.01, atol=0.01)
