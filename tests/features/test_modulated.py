"""Lattices times monomials: products of stationary and linear kernels, without anything random."""

import pytest
import torch

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.features import Lattice, Modulated
from matheron.features.modulated import monomial
from matheron.samplers import decoupled_moments, moments
from standard import kernel_error

BOX = (-0.3, 0.9)


def modulated() -> Modulated:
    lattice = Lattice([0, 2], (5, 9), torch.tensor([2.0, 3.0]).double(), rand(23))
    return Modulated(lattice, (2, 1, 0), torch.tensor([0.1, -0.2, 0.4]).double())


def test_functions_are_those_of_the_lattice_times_the_monomial():
    basis, x = modulated(), randn(1, 40, 3)
    whole = x + basis.origin
    expected = basis.lattice.values(x) * (whole[..., 0] ** 2 * whole[..., 1])[..., None]
    torch.testing.assert_close(basis.values(x), expected)
    W, v = randn(1, 5, basis.size, seed=1), randn(5, 40, seed=2)
    torch.testing.assert_close(basis.weighted(x, W), W @ expected.mT)
    torch.testing.assert_close(basis.adjoint(x[0], v), v @ expected[0], rtol=1e-7, atol=1e-7)
    at = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(basis.weighted(at, W)[0, 3].sum(), at)
    torch.testing.assert_close(basis.weighted_with_gradient(x, W)[1][0, 3], slope[0])
    assert torch.autograd.gradcheck(lambda x: basis.weighted(x, W[:, :2]), at, fast_mode=True)
    parts = [part.values(x)[0] * part.scales() for part in basis.parts(8, 3)]
    scaled = (expected * basis.scales())[0]
    torch.testing.assert_close(sum(part @ part.mT for part in parts), scaled @ scaled.mT)


def test_a_tensor_grid_has_the_values_of_its_points():
    basis = modulated()
    W, axes = randn(3, basis.size), [rand(n, seed=n) for n in (4, 6, 5)]
    listed = W @ basis.values(torch.cartesian_prod(*axes)[None])[0].mT
    out = torch.ones(3, 4, 6, 5, dtype=torch.float64)
    assert basis.add_on_axes(W, axes, list(out))
    torch.testing.assert_close(out.flatten(1), 1 + listed)


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


def test_hyperparameters_of_products_keep_the_graph():
    variance = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    kernel = K.RBF(0.4) * K.Linear(variance)
    x = rand(5, 1)
    paths = matheron.draw_prior(kernel, 2, input_dim=1, domain=(0, 1), features="lattice", detach=False, seed=0)
    f = paths(x).sum()
    (slope,) = torch.autograd.grad(f, variance)
    assert float(slope) == pytest.approx(float(f.detach()) / 4)  # paths are proportional to its root


def test_monomials_of_no_powers_are_one():
    x = rand(3, 2)
    assert torch.equal(monomial(x, ()), torch.ones(3).double())
    torch.testing.assert_close(monomial(x, (0, 3)), x[:, 1] ** 3)


@pytest.mark.parametrize("solver", ["lattice", "cholesky"])
def test_a_datum_where_the_kernel_has_no_variance_leaves_the_prior(solver):
    gp = matheron.ExactGP(K.RBF(0.3) * K.Linear(), [[0.0]], [0.1], 1e-2)
    x = torch.tensor([[-0.2], [0.8]]).double()
    paths = matheron.draw(gp, 2000, domain=BOX, solver=solver, seed=0)
    torch.testing.assert_close(paths(x).std(0), gp.kernel.diag(x).sqrt(), rtol=0.06, atol=0)
