"""Features of linear-type kernels: exact where they can be listed, unbiased where they cannot."""

import math

import pytest
import torch
from torch import Tensor

from matheron import kernels as K
from standard import assert_unbiased, features_of, kernel_error

KINDS = ("auto", "cosine", "sincos", "sobol", "orthogonal", "equispaced")


def points(n: int, d: int) -> Tensor:
    return 2 * torch.rand(n, d, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.5


EXACT = {  # the kernel, its dimensions, and how many monomials it has
    "linear": (K.Linear([0.5, 2.0]), 2, 2),
    "linear of one coordinate": (K.Linear([0.0, 2.0]), 2, 1),
    "polynomial": (K.Polynomial(3, 0.5), 2, math.comb(3 + 3 - 1, 3)),
    "polynomial without offset": (K.Polynomial(2, 0.0), 3, math.comb(3 + 2 - 1, 2)),
    "constant": (K.Constant(1.7), 2, 1),
    "scaled": (3.0 * K.Linear(), 2, 2),
    "sum": (K.Linear() + K.Constant(0.3) + K.Polynomial(2, 1.0), 2, 2 + 1 + 6),
    "linear times linear": (K.Linear([0.7, 0.2]) * K.Linear(), 2, 4),
    "linear squared": (K.Linear() * K.Linear(), 2, 3),
    "linear times polynomial, on coordinates": (K.Linear().on(1) * K.Polynomial(2, 1.0).on(0), 2, 3),
    "constant times a sum": (K.Constant(2.0) * (K.Linear() + K.Constant(1.0)), 2, 3),
    "in 64 dimensions": (K.Linear(), 64, 64),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXACT)
def test_linear_type_kernels_have_exact_features_whatever_the_kind_and_number(name, kind):
    kernel, d, size = EXACT[name]
    x = points(4, d) + 5
    features = features_of(kernel, d, 1, kind, num_bases=3, domain=(0.0, 1.0))
    assert features.num_features == size and features.num_bases == 1
    torch.testing.assert_close(kernel_error(features, kernel, x) / kernel.diag(x).max(), torch.zeros(1, 4, 4).double())


UNBIASED = {
    "a polynomial of too many monomials": (K.Polynomial(3, 1.0), 30),
    "linear times stationary": (K.Linear([1.0, 0.4]) * K.RBF(0.5), 2),
    "linear in one dimension times stationary": (K.Linear() * K.Matern(1.5, 0.5), 1),
    "polynomial times stationary": (K.Polynomial(2, 0.5) * K.Matern(2.5, 0.7), 2),
    "more monomials than features can serve": (K.Polynomial(4, 0.5) * K.RBF(1.0), 3),
    "two linear, two stationary": (K.Linear().on(0) * K.Linear() * K.RBF(0.8) * K.Cosine(1.3).on(1), 2),
}


@pytest.mark.parametrize("kind", ["cosine", "sincos", "sobol", "auto"])
@pytest.mark.parametrize("num_features", [1, 9, 64])
@pytest.mark.parametrize("name", UNBIASED)
def test_random_products_are_unbiased(name, num_features, kind):
    kernel, d = UNBIASED[name]
    features = features_of(kernel, d, num_features, kind, num_bases=500)
    assert features.num_features == num_features and features.num_bases == 500
    assert_unbiased(kernel_error(features, kernel, points(3, d)))


@pytest.mark.parametrize("kind", ["cosine", "sincos", "sobol"])
@pytest.mark.parametrize("d", [1, 2, 4, 8])
def test_products_converge_in_any_dimension(d, kind):
    """Also where the monomials are a power of two in number: every second Sobol point lies in one half of the cube."""
    kernel, x = K.Linear() * K.Matern(1.5, 0.25 * math.sqrt(d)), points(8, d)
    few, many = (
        kernel_error(features_of(kernel, d, ell, kind, num_bases=24), kernel, x).square().mean().sqrt()
        for ell in (256, 4096)
    )
    assert many < 1.4 * few / 4  # their own error, of 24 bases, is a tenth


def test_random_products_converge_beyond_the_cap():
    kernel, d = K.Polynomial(2, 1.0), 64
    assert features_of(kernel, d, 2048, "auto").num_features < math.comb(d + 2, 2)
    x = points(4, d) / 8
    few, many = (
        kernel_error(features_of(kernel, d, ell, "auto", num_bases=24), kernel, x).square().mean().sqrt()
        for ell in (128, 2048)
    )
    assert many < 1.4 * few / 4


def test_a_form_without_coordinates_has_no_features():
    kernel = K.Linear(0.0) + K.Linear([0.0, 1.0]) * K.RBF() + 0.0 * K.RBF()
    features = features_of(kernel, 2, 8, "auto")
    assert features.num_features == 8
    nothing = features_of(K.Linear(0.0) * K.RBF() + 0.0 * K.Constant(), 2, 8, "auto")
    assert nothing.num_features == 0 and nothing(points(3, 2)).shape == (1, 3, 0)
