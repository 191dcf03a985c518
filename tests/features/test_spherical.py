"""Spherical harmonics: orthonormal, the kernel's own on the sphere, differentiable, saved."""

import math

import numpy as np
import pytest
import torch

import matheron
from matheron import kernels
from matheron.features import SphericalHarmonics, spherical_features


def directions(n, seed=0):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(x, dim=-1)


@pytest.mark.parametrize("degree", [0, 1, 2, 7, 60])
def test_products_of_harmonics_add_up_to_legendre_polynomials(degree):
    """The addition theorem: sum_m Y_lm(x) Y_lm(x') = (2 l + 1) / 4 pi P_l(x . x'). Poles are places like others."""
    x = torch.cat([directions(20), torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], dtype=torch.float64)])
    Y = SphericalHarmonics(torch.ones(degree + 1, dtype=torch.float64)).values(x[None])[0]
    weights = (2 * np.arange(degree + 1) + 1) / (4 * math.pi)
    expected = np.polynomial.legendre.legval((x @ x.mT).clamp(-1, 1).numpy(), weights)
    np.testing.assert_allclose(Y @ Y.mT, expected, atol=1e-11 * weights.sum())


def test_sums_are_those_of_the_values_on_parallels_and_off_them():
    basis = SphericalHarmonics(torch.rand(10, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    lat, lon = torch.linspace(-1.5, 1.5, 5).double(), torch.linspace(-3, 3, 7).double()
    lat, lon = torch.cartesian_prod(lat, lon)[torch.randperm(35)].unbind(-1)
    grid = torch.stack([lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()], dim=-1)
    W = torch.randn(1, 3, basis.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for x in (grid, directions(20), grid[:0]):
        torch.testing.assert_close(basis.weighted(x[None], W)[0], W[0] @ basis.values(x[None])[0].mT)
    own = directions(8).reshape(4, 2, 3)
    apart = torch.randn(4, 1, basis.size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    together = torch.stack([basis.weighted(own[i : i + 1], apart[i : i + 1])[0] for i in range(4)])
    torch.testing.assert_close(basis.weighted(own, apart), together)


@pytest.mark.parametrize(
    "kernel", [kernels.RBF(0.4), 2.0 * kernels.Matern(1.5, 0.3), kernels.Matern(0.5, 1.0) + kernels.RBF(0.7)], ids=str
)
def test_features_are_the_kernel_s_but_for_the_variance_left_out(kernel):
    centre, x = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64), directions(30)
    features = spherical_features(kernel, centre, 2.0, tolerance=5e-3)
    assert features is not None
    Phi, K = features(centre + 2 * x)[0], kernel(centre + 2 * x)
    error, variance = K - Phi @ Phi.mT, float(K[0, 0])
    assert 0 <= float(error.diagonal().min()) <= float(error.diagonal().max()) < 5e-3 * variance
    assert float(error.abs().max()) <= float(error.diagonal().max()) * (1 + 1e-9)  # what is left out is a kernel, too


def test_kernels_of_more_than_the_angle_have_none():
    centre = torch.zeros(3, dtype=torch.float64)
    assert spherical_features(kernels.RBF([1.0, 1.0, 0.5]), centre, 1.0) is None
    assert spherical_features(kernels.Matern(0.5, 1e-4), centre, 1.0) is None
    assert spherical_features(kernels.Coregional(kernels.RBF(), [[1.0, 0.5], [0.5, 1.0]]), centre, 1.0) is None


def test_paths_on_harmonics_have_gradients_and_are_saved(tmp_path):
    gp = matheron.ExactGP(kernels.RBF(0.6), directions(5), torch.rand(5), noise=0.1)
    features = spherical_features(gp.kernel, torch.zeros(3), 1.0)
    assert features is not None
    paths = matheron.draw(gp, 2, features=features, seed=0)
    x, step = directions(4, seed=5), 1e-6
    value, gradient = paths.value_and_grad(x)
    torch.testing.assert_close(value, paths(x))
    for i, e in enumerate(torch.eye(3, dtype=torch.float64)):
        slope = (paths(x + step * e) - paths(x - step * e)) / (2 * step)
        torch.testing.assert_close(gradient[..., i], slope, rtol=1e-5, atol=1e-7)
    assert [part.shape for part in paths.value_and_grad(x[:0])] == [(2, 0), (2, 0, 3)]
    at = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(paths(at).sum(), at)[0], gradient.sum(0))
    paths.save(tmp_path / "p.safetensors")
    torch.testing.assert_close(matheron.load(tmp_path / "p.safetensors")(x), paths(x), rtol=0, atol=1e-12)
