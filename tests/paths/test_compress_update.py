"""Updates compressed into a lattice: the same functions, to a hundredth of a posterior standard deviation."""

from __future__ import annotations

import pickle
from typing import cast

import pytest
import torch
from torch import Tensor

import matheron
from matheron import Sites
from matheron import kernels as K
from matheron.evaluate import WeightedSum
from matheron.solvers import covariance

UNIT = (0.0, 1.0)


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=gen(seed), dtype=torch.float64)


def model(kernel: K.Kernel, d: int, noise: float = 1e-2, n: int = 150, **settings) -> matheron.ExactGP:
    X = rand(n, d)
    y = torch.sin(6 * X).sum(1) + noise**0.5 * torch.randn(n, generator=gen(1), dtype=torch.float64)
    return matheron.ExactGP(kernel, X, y, noise=noise, **settings)


def drawn(gp: matheron.ExactGP, **settings) -> matheron.Paths:
    return matheron.draw(gp, 5, domain=UNIT, solver="cholesky", generator=gen(2), **settings)


def with_centres(paths: matheron.Paths) -> matheron.Paths:
    """The same paths, with their centres."""
    return paths.replaced(update=paths.update.replaced(compressed=None))


TWO = {"tasks": torch.arange(150) % 2}
CASES = {
    "one dimension": (K.Matern(2.5, 0.2), 1, 1e-4, {}),
    "two dimensions": (K.Matern(2.5, 0.4), 2, 1e-2, {}),
    "three dimensions": (K.RBF([0.3, 0.4, 0.5]), 3, 1e-2, {}),
    "two lattices and explicit terms": (K.RBF(0.3) + K.Matern(2.5, 0.1) + K.Linear() + K.Constant(2.0), 1, 1e-2, {}),
    "two outputs": (K.Coregional(K.RBF(0.3), [[1.0, 0.5], [0.5, 2.0]]) + K.Matern(2.5, 0.3), 1, 1e-2, TWO),
}


@pytest.mark.parametrize("name", CASES)
def test_compressed_paths_are_those_with_centres_in_posterior_standard_deviations(name):
    kernel, d, noise, settings = CASES[name]
    gp = model(kernel, d, noise, **settings)
    paths = drawn(gp)
    assert paths.update.compressed is not None and paths.update.num_centres == 150
    x = torch.cat([rand(100, d, seed=3), gp.train_inputs[:50]])
    exact, sites = with_centres(paths), Sites(x, None if gp.tasks is None else torch.zeros(len(x), dtype=torch.long))
    A = covariance(kernel, gp.sites) + noise * torch.eye(150)
    k_x = K.coupled_covariance(kernel, sites, gp.sites)
    sd = (K.coupled_diagonal(kernel, sites) - (k_x * torch.linalg.solve(A, k_x.mT).mT).sum(1)).sqrt()
    error = paths(x) - exact(x)
    error = (error if error.ndim == 2 else error[..., 0]) / sd
    assert 0 < float(error.square().mean().sqrt()) < 0.01 and float(error.abs().max()) < 0.05
    assert torch.equal(paths.mean(x), exact.mean(x))


def test_no_centre_is_seen_by_evaluators_and_all_of_them_agree():
    paths = drawn(model(K.Matern(2.5, 0.3), 2))
    assert [type(cast(WeightedSum, term).basis).__name__ for term in paths.record.terms] == ["Lattice"]
    axes = [torch.linspace(0, 1, 6).double(), torch.linspace(0, 1, 7).double()]
    x = torch.cartesian_prod(*axes)
    f, df = paths.value_and_grad(x)
    torch.testing.assert_close(paths.on_grid(axes).flatten(1), f, atol=1e-9, rtol=0)
    own, slopes = paths.value_and_grad(x.expand(5, -1, -1).contiguous())
    torch.testing.assert_close(own, f, atol=1e-9, rtol=0)
    torch.testing.assert_close(slopes, df, atol=1e-8, rtol=0)
    torch.testing.assert_close(paths.float()(x.float()).double(), f, atol=1e-4, rtol=0)


def test_compressed_paths_are_saved_pickled_indexed_and_conditioned_on_more_data(tmp_path):
    gp = model(K.Matern(2.5, 0.3), 1)
    paths, x = drawn(gp), rand(40, 1, seed=3)
    paths.save(tmp_path / "paths")
    for copy in (matheron.load(tmp_path / "paths"), pickle.loads(pickle.dumps(paths))):
        assert torch.equal(copy(x), paths(x)) and copy.update.compressed is not None
    torch.testing.assert_close(paths[[3, 1]](x), paths(x)[[3, 1]])
    at = torch.tensor([[0.5]]).double()
    y = paths.mean(at) + 0.1
    more = paths.condition_on(at, y, noise=1e-4, generator=gen(4))
    assert more.update.compressed is not None and (more(at) - y).abs().max() < 0.05
    plain = with_centres(paths).condition_on(at, y, noise=1e-4, generator=gen(4))
    torch.testing.assert_close(more(x), plain(x), atol=1e-3, rtol=0)


def test_centres_stay_where_the_lattice_is_too_coarse_for_so_little_noise():
    gp = model(K.RBF(0.5), 1, noise=1e-8)
    assert drawn(gp).update.compressed is None
    exact = model(K.Matern(2.5, 0.3), 1, noise=0.0)
    paths = drawn(exact)
    assert paths.update.compressed is None
    torch.testing.assert_close(paths(exact.train_inputs), exact.train_targets.expand(5, -1), atol=1e-6, rtol=0)


def test_centres_stay_where_they_are_few_or_a_graph_is_kept():
    assert drawn(model(K.RBF(0.3), 1, n=20)).update.compressed is None
    assert matheron.draw(model(K.RBF(0.3), 1), 2).update.compressed is None  # no lattice
    lengthscale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    paths = drawn(model(K.RBF(lengthscale), 1), detach=False)
    (slope,) = torch.autograd.grad(paths(rand(10, 1)).sum(), lengthscale)
    assert paths.update.compressed is None and bool(slope != 0)
