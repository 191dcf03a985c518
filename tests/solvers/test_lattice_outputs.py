"""The solve on a lattice for several outputs: a Toeplitz matrix for each, and a coupling per mode."""

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.features import Joint, Lattice
from matheron.features.basis import Cosines
from matheron.paths import LatticeUpdate
from matheron.samplers import moments
from matheron.solvers import FourierLattice
from matheron.solvers.lattice import information_of, right_hand_side
from matheron.solvers.lattice_preconditioner import DataSpace, dense_block
from matheron.solvers.toeplitz import Information, System

UNIT = (0.0, 1.0)


def coupling(t: int, rank: int, seed: int = 0) -> Tensor:
    W = randn(t, rank, seed=seed)
    return W @ W.mT


ROOT = torch.tensor([[1.0, 0.0], [0.5, 0.8]], dtype=torch.float64)
SINGULAR = torch.tensor([[0.7, 0.0], [-0.4, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("roots", [[ROOT], [SINGULAR], [SINGULAR, ROOT]], ids=["one", "singular", "a sum"])
def test_the_system_is_the_dense_one(roots):
    shape, c = (5, 9), 45
    period = torch.tensor([2.0, 3.0], dtype=torch.float64)
    lattices = [Lattice(range(2), shape, period, rand(23, seed=q)) for q in range(len(roots))]
    constant = Cosines(torch.zeros(1, 1, 2).double(), torch.zeros(1, 1).double(), rand(1, 1))
    joint = Joint(lattices, [constant], [*roots, ROOT])
    X, precision, tasks = rand(50, 2, seed=1), 100 * rand(50, seed=2), torch.arange(50) % 3 % 2
    # every lattice's own weights at the data, [n, q t c]; how these are shared the data cannot tell
    phi = torch.cat([b.values(X[None])[0] * b.scales() for b in lattices], dim=1).unflatten(1, (-1, c))
    R = torch.stack([root[tasks] for root in roots], dim=1)  # [n, q, t]
    every = torch.cat([(R[..., None] * phi[:, :, None]).flatten(1), joint.columns(X, tasks)], dim=1)
    S = joint.sums(X, torch.eye(2 * c + 2, dtype=torch.float64), tasks).mT  # [n, t c + e]
    torch.testing.assert_close(S @ S.mT, every @ every.mT)
    torch.testing.assert_close(joint.covariance(X, tasks), every @ every.mT)
    M = torch.eye(2 * c + 2, dtype=torch.float64) + S.mT @ (precision[:, None] * S)
    generator, cross, corner = information_of(joint, X, precision, tasks)
    system = System(joint, Information(generator, S[:0], cross, corner))
    W, v, inner = randn(5, 2 * c + 2), randn(5, 50), slice(0, 2 * c)
    torch.testing.assert_close(system.product(W), W @ M, rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(dense_block(system, torch.arange(2 * c)), M[inner, inner], rtol=1e-7, atol=1e-6)
    rhs = right_hand_side(joint, X, v, precision, tasks)
    torch.testing.assert_close(rhs, (v * precision) @ S, rtol=1e-6, atol=1e-5)
    exact = torch.linalg.solve(M, W.mT).mT
    for precondition, most in ((system.head(5, None), 100), (DataSpace(joint, X, precision, tasks), 3)):
        u, stats = system.solve(W, None, precondition, FourierLattice(tolerance=1e-7, max_iterations=most))
        assert stats.converged
        torch.testing.assert_close(u, exact, rtol=1e-4, atol=1e-5)
    # prior paths, whose weights are mixed by the roots
    own = randn(3, len(roots), 2, c, seed=4)
    w = torch.cat([*(root @ own[:, q] for q, root in enumerate(roots)), ROOT @ randn(3, 2, 1)], dim=2)
    f = (torch.cat([b.values(X[None])[0] * b.scales() for b in (*lattices, constant)], dim=1) @ w.mT).mT  # [s, t, n]
    f = f.gather(1, tasks.expand(3, 1, -1))[:, 0]
    torch.testing.assert_close(joint.sums(X, joint.of_paths(w), tasks), f)
    torch.testing.assert_close(joint.with_weights(w, joint.of_paths(w)), w)
    z = randn(3, 2 * c + 2, seed=5)
    torch.testing.assert_close(joint.sums(X, joint.of_paths(joint.with_weights(w, z)), tasks), joint.sums(X, z, tasks))
    coefficients = joint.coefficients(z)
    torch.testing.assert_close(joint.coefficients(joint.weights(coefficients)), coefficients, rtol=1e-4, atol=1e-5)


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
    A = K.coupled_covariance(kernel, X, tasks, X, tasks) + 0.01 * torch.eye(n)
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
        assert isinstance(drawn.update, LatticeUpdate) and drawn.update.num_data == len(X)
        assert drawn.update.num_centres == 0
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
    assert isinstance(matheron.draw(gp, 2, domain=UNIT, seed=0).update, LatticeUpdate)
