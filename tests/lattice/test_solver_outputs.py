"""The solve on a lattice for several outputs: a Toeplitz matrix for each, and a coupling per mode."""

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import Sites
from matheron import kernels as K
from matheron.compare.samplers import moments

UNIT = (0.0, 1.0)


def coupling(t: int, rank: int, seed: int = 0) -> Tensor:
    W = randn(t, rank, seed=seed)
    return W @ W.mT


CASES = {
    "one term": (K.Coregional(K.Matern(2.5, 0.3), coupling(3, 3)), 1),
    "of rank one, in two dimensions": (K.Coregional(K.RBF(0.3), coupling(2, 1)), 2),
    "terms, one of them shared, and a trend": (
        K.Coregional(K.RBF(0.3), coupling(2, 1)) + K.Matern(2.5, 0.2) + K.Coregional(K.Linear(), coupling(2, 2)),
        1,
    ),
}


def model(name: str, n: int = 300) -> matheron.ExactGP:
    """One whose data are a draw from it."""
    kernel, d = CASES[name]
    X, tasks = rand(n, d, seed=3), torch.arange(n) % 5 % kernel.num_outputs
    A = K.coupled_covariance(kernel, Sites(X, tasks), Sites(X, tasks)) + 0.01 * torch.eye(n)
    y = 0.5 + torch.linalg.cholesky(A) @ randn(n, seed=5)
    return matheron.ExactGP(kernel, X, y, noise=0.01, mean=0.5, tasks=tasks)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if "trend" in n else pytest.mark.slow) for n in CASES])
def test_mean_and_paths_are_those_of_the_posterior_and_so_given_more_data(name):
    gp, n = model(name), 200
    x = rand(40, gp.input_dim, seed=6)
    paths = matheron.draw(gp, 200, domain=UNIT, solver="lattice", generator=gen(7))
    X, y, tasks = gp.train_inputs, gp.train_targets, gp.tasks
    assert tasks is not None
    some = matheron.ExactGP(gp.kernel, X[:n], y[:n], noise=0.01, mean=0.5, tasks=tasks[:n])
    later = matheron.draw(some, 200, domain=UNIT, solver="lattice", generator=gen(8))
    for cut in (slice(n, n + 60), slice(n + 60, None)):
        later = later.condition_on(X[cut], y[cut], noise=0.01, tasks=tasks[cut], generator=gen(9))
    exact = moments(gp, x)
    covariance = exact.covariance.reshape(exact.mean.numel(), -1)  # [n t, n t]
    sd = covariance.diagonal().sqrt()
    for drawn in (paths, later):
        assert drawn.update.num_centres == 0 and drawn.update.num_data == len(X)
        assert ((drawn.mean(x).flatten() - exact.mean.flatten()) / sd).abs().max() < 0.03
        z = (drawn(x).flatten(1) - exact.mean.flatten()) / sd
        correlation = covariance / sd / sd[:, None]
        assert float((z.mT @ z / 200 - correlation).abs().max()) < 5.5 / 200**0.5


def test_paths_are_saved_indexed_differentiated_and_on_grids_as_any(tmp_path):
    gp = model("terms, one of them shared, and a trend", n=100)
    paths = matheron.draw(gp, 4, domain=UNIT, solver="lattice", generator=gen(1))
    x = rand(30, 1, seed=9)
    paths.save(tmp_path / "a.safetensors")
    copy = matheron.load(tmp_path / "a.safetensors")
    assert torch.equal(copy(x), paths(x)) and torch.equal(copy.mean(x), paths.mean(x))
    copy.condition_on(x[:3], paths.mean(x[:3])[:, 0], noise=0.1, tasks=[0, 0, 0])
    torch.testing.assert_close(paths[1:3](x), paths(x)[1:3])
    torch.testing.assert_close(paths.on_grid([x[:, 0].sort().values]), paths(x.sort(0).values))
    torch.testing.assert_close(paths(x.expand(4, -1, -1)), paths(x))
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(paths(at)[2, :, 1].sum(), at)
    torch.testing.assert_close(paths.value_and_grad(x)[1][2, :, 1], slope)


def test_auto_takes_the_lattice_for_many_data_of_several_outputs():
    gp = model("one term", n=700)
    assert matheron.draw(gp, 2, domain=UNIT, seed=0).update.num_centres == 0
