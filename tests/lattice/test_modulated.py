"""Lattices times monomials: products of stationary and linear kernels, without anything random."""

import pytest
import torch

import matheron
from examples import gen, rand
from matheron import kernels as K
from matheron.compare.samplers import decoupled_moments, moments
from standard import kernel_error

BOX = (-0.3, 0.9)


PRODUCTS = {
    "linear": (K.Matern(2.5, 0.3) * K.Linear(2.0), 1),
    "polynomial beside others": (K.RBF(0.4) * K.Polynomial(2, 0.5) + K.Matern(2.5, 0.5) + K.Linear(), 2),
    "across coordinates": (K.RBF(0.4).on(0) * K.Linear().on(1) * K.Linear().on(0), 2),
    "one that repeats itself": (K.Periodic(0.4, 0.8) * K.Linear() + K.RBF(0.5), 1),
    "in more dimensions than a lattice has": (K.RBF(0.5).on([0, 4]) * K.Linear().on(2) + K.RBF(0.6).on([1, 3]), 5),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_covariance_is_the_kernel_s_and_the_law_that_of_the_posterior(name):
    kernel, d = PRODUCTS[name]
    X, x = BOX[0] + 1.2 * rand(40, d, seed=1), BOX[0] + 1.2 * rand(30, d, seed=2)
    gp = matheron.ExactGP(kernel, X, torch.sin(4 * X).sum(1), noise=1e-3)
    paths = matheron.draw(gp, 3, domain=BOX, solver="cholesky", generator=gen(0))
    features = paths.prior.features
    assert features.num_bases == 1 and "times a lattice" in features.description
    assert kernel_error(features, kernel, x).abs().max() < 1e-3 * kernel.diag(x).max()
    C, ours = moments(gp, x).covariance, decoupled_moments(gp, paths, x).covariance
    sd = C.diagonal().sqrt()
    assert ((ours - C) / sd / sd[:, None]).abs().max() < 0.02
    own, shared = paths.value_and_grad(x.expand(3, -1, -1)), paths.value_and_grad(x)
    for a, b in zip(own, shared, strict=True):
        assert (a - b).abs().max() < 1e-9 * shared[1].abs().max()


@pytest.mark.parametrize("name", PRODUCTS)
def test_values_gradients_and_grids_are_sums_of_the_features(name):
    kernel, d = PRODUCTS[name]
    paths = matheron.draw_prior(kernel, 3, input_dim=d, domain=BOX, seed=0)
    assert "times a lattice" in paths.prior.features.description

    def plain_sums(x):
        return paths.prior.weights @ paths.prior.features(x)[0].mT

    at = (BOX[0] + 1.2 * rand(40, d, seed=2)).requires_grad_()
    expected = plain_sums(at)
    (slope,) = torch.autograd.grad(expected[1].sum(), at)
    value, gradient = paths.value_and_grad(at.detach())
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient[1], slope)
    assert torch.autograd.gradcheck(lambda x: paths(x)[:2], at, fast_mode=True)
    axes = [BOX[0] + 1.2 * rand(n, seed=n) for n in (4, 6, 5, 2, 3)[:d]]
    listed = plain_sums(torch.cartesian_prod(*axes).reshape(-1, d))
    torch.testing.assert_close(paths.on_grid(axes).flatten(1), listed)


def test_hyperparameters_of_products_keep_the_graph():
    variance = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    kernel = K.RBF(0.4) * K.Linear(variance)
    x = rand(5, 1)
    paths = matheron.draw_prior(kernel, 2, input_dim=1, domain=(0, 1), features="lattice", detach=False, seed=0)
    f = paths(x).sum()
    (slope,) = torch.autograd.grad(f, variance)
    assert float(slope) == pytest.approx(float(f.detach()) / 4)  # paths are proportional to its root


@pytest.mark.parametrize("solver", ["lattice", "cholesky"])
def test_a_datum_where_the_kernel_has_no_variance_leaves_the_prior(solver):
    gp = matheron.ExactGP(K.RBF(0.3) * K.Linear(), [[0.0]], [0.1], 1e-2)
    x = torch.tensor([[-0.2], [0.8]]).double()
    paths = matheron.draw(gp, 2000, domain=BOX, solver=solver, seed=0)
    torch.testing.assert_close(paths(x).std(0), gp.kernel.diag(x).sqrt(), rtol=0.06, atol=0)
