"""SphereMatern: values, features and fields against the closed form in great-circle distances."""

import math

import numpy as np
import pytest
import torch
from scipy.special import eval_legendre

import matheron
from matheron import fields, kernels

# Both poles (each by two longitudes), both sides of the date line, and antipodes.
SPECIAL = np.array(
    [[0, 90], [77, 90], [0, -90], [180, 10], [-180, 10], [179.5, -40], [-179.5, -40], [20, 0], [-160, 0]]
)


def angles(a, b):
    """Great-circle angles of longitudes and latitudes `[n, 2]` and `[m, 2]`, by Vincenty's formula."""
    (lon, lat), (lon2, lat2) = np.radians(a).T[:, :, None], np.radians(b).T[:, None]
    d = lon2 - lon
    across = np.hypot(np.cos(lat2) * np.sin(d), np.cos(lat) * np.sin(lat2) - np.sin(lat) * np.cos(lat2) * np.cos(d))
    return np.arctan2(across, np.sin(lat) * np.sin(lat2) + np.cos(lat) * np.cos(lat2) * np.cos(d))


def closed_form(a, b, nu, lengthscale, degree=512) -> np.ndarray:
    """The Legendre series of the Matern kernel on a sphere of radius 6371, term by term."""
    n = np.arange(degree + 1)
    eigenvalue = n * (n + 1) / 6371**2
    spectrum = np.exp(-eigenvalue * lengthscale**2 / 2)
    if math.isfinite(nu):
        spectrum = (2 * nu / lengthscale**2 + eigenvalue) ** (-nu - 1) / (2 * nu / lengthscale**2) ** (-nu - 1)
    weights = (2 * n + 1) * spectrum
    t = np.cos(angles(a, b))
    return np.sum([w * eval_legendre(i, t) for i, w in enumerate(weights / weights.sum())], axis=0)


def places(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.uniform(-180, 180, n), np.degrees(np.arcsin(rng.uniform(-1, 1, n)))], axis=1)


@pytest.mark.parametrize(("nu", "error"), [(0.5, 1e-6), (1.5, 1e-9), (2.5, 1e-10), (math.inf, 1e-10)])
def test_the_kernel_is_its_legendre_series_everywhere(nu, error):
    near = np.array([[20.01, 0.0], [20.0, 1e-4]])  # within a kilometre of one of the others
    a = np.concatenate([SPECIAL, places(20), near])
    kernel, x = fields.SphereMatern(nu, 1000.0), fields.on_sphere(a)
    K = closed_form(a, a, nu, 1000.0)
    np.testing.assert_allclose(kernel(x), K, atol=error)
    np.testing.assert_allclose(kernel.forward(x.clone().requires_grad_(), x).detach(), K, atol=1e-12)
    np.testing.assert_allclose(kernel(x / 6371), K, atol=error)  # directions alone count
    np.testing.assert_array_equal(kernel.diag(x), 1.0)


def test_close_by_it_is_the_kernel_of_the_plane():
    x = fields.on_sphere([[0.0, 0.0], [0.5, 0.3], [-1.0, 1.0], [2.0, -1.0]])
    np.testing.assert_allclose(fields.SphereMatern(2.5, 200.0)(x), kernels.Matern(2.5, 200.0)(x), atol=1e-3)


def test_gradients_in_the_lengthscale_and_the_points_are_the_kernel_s():
    kernel, x = fields.SphereMatern(2.5, 3000.0), fields.on_sphere(np.concatenate([SPECIAL[2:6], places(4)]))
    at = x.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(kernel.forward(at, x).sum(), at)
    for i, step in enumerate(torch.eye(3, dtype=torch.float64)):
        numeric = (kernel(x + step, x) - kernel(x - step, x)).sum(1) / 2  # one kilometre to either side
        np.testing.assert_allclose(numeric, slopes[:, i], atol=1e-9)
    lengthscale = torch.tensor(3000.0, dtype=torch.float64, requires_grad=True)
    total = kernel.replaced(lengthscale=lengthscale).forward(x, x)[0, 1:4].sum()
    (slope,) = torch.autograd.grad(total, lengthscale)
    longer, shorter = (fields.SphereMatern(2.5, 3000.0 + h)(x)[0, 1:4].sum() for h in (1.0, -1.0))
    assert float(slope) == pytest.approx(float(longer - shorter) / 2, rel=1e-6)


def test_it_has_the_derivatives_that_the_plane_s_kernel_has():
    for nu in (0.5, 1.5, math.inf):
        plane = kernels.RBF(1.0) if math.isinf(nu) else kernels.Matern(nu, 1.0)
        assert fields.SphereMatern(nu, 1000.0).smoothness(3) == plane.smoothness(3)


@pytest.mark.parametrize("nu", [0.5, 1.5])
def test_random_features_have_the_kernel_as_their_mean(nu):
    kernel, x = fields.SphereMatern(nu, 1500.0), fields.on_sphere(np.concatenate([SPECIAL, places(10)]))
    Phi = kernel.features(20_000, torch.Generator().manual_seed(0))(x)
    each = 20_000 * Phi[:, None] * Phi  # [n, n, c], whose mean over the features is k
    assert float(((each.mean(-1) - kernel(x)) / each.std(-1)).abs().max()) < 5 / math.sqrt(20_000)


def test_a_field_has_the_posterior_s_law_in_great_circle_distances(nu=1.5):
    """Mean and covariance of many functions, at the poles, the date line and elsewhere, against the dense posterior."""
    data, at = np.concatenate([places(12), SPECIAL[[0, 3]]]), np.concatenate([places(8, seed=1), SPECIAL])
    y = np.random.default_rng(0).standard_normal(len(data))
    model = matheron.ExactGP(2.0 * fields.SphereMatern(nu, 4000.0), fields.on_sphere(data), y, noise=0.1)
    K, k, kk = (2 * closed_form(a, b, nu, 4000.0) for a, b in ((data, data), (at, data), (at, at)))
    K = K + 0.1 * np.eye(len(data))
    mean, covariance = k @ np.linalg.solve(K, y), kk - k @ np.linalg.solve(K, k.T)
    paths = fields.draw_field(fields.OnSphere(model), 6000, at, seed=0)
    assert "spherical harmonics" in repr(paths)
    f, variance = paths(at).numpy(), np.diag(covariance)
    assert np.abs((f.mean(0) - mean) / np.sqrt(variance / 6000)).max() < 4.5
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / 6000)
    assert (np.abs(np.cov(f.T) - covariance) / error).max() < 5
    np.testing.assert_allclose(f[:, 8], f[:, 9], atol=1e-9)  # a pole, by two longitudes
    np.testing.assert_allclose(f[:, 11], f[:, 12], atol=1e-9)  # the date line, from both sides
    maps = fields.krige(fields.OnSphere(model), at).compute()
    np.testing.assert_allclose(maps["mean"], mean, atol=1e-8)
    np.testing.assert_allclose(maps["std"] ** 2, variance, atol=1e-8)


def test_a_fit_with_it_stays_on_the_sphere_and_finds_its_lengthscale(tmp_path):
    lonlat = np.array([170.0, 30.0]) + np.random.default_rng(0).uniform(0, 30, (150, 2))
    truth = matheron.draw_prior(4.0 * fields.SphereMatern(1.5, 800.0), 1, input_dim=3, num_features=8192, seed=0)
    y = truth(fields.on_sphere(lonlat))[0]
    start = 1.0 * fields.SphereMatern(1.5, 3000.0)
    model = fields.fit_sphere(lonlat, y, start, noise=1e-3, num_starts=1)
    assert model.centre is None  # although it is a region, which would be projected without it
    assert 500 < matheron.summary(model.inner).rows["SphereMatern.lengthscale"] < 1300
    paths = fields.draw_field(model, 2, lonlat, seed=0)
    np.testing.assert_allclose(paths(lonlat), y.expand(2, -1), atol=0.3)
    matheron.draw(model.inner, 2, seed=0).save(tmp_path / "p.safetensors")
    again = matheron.load(tmp_path / "p.safetensors")
    assert torch.equal(again(fields.on_sphere(lonlat)), matheron.draw(model.inner, 2, seed=0)(fields.on_sphere(lonlat)))


def test_another_kernel_of_the_sphere_is_taken_as_it_is():
    """1 + 2 <x, x'> on the unit sphere, by its features: harmonics of degrees 0 and 1."""
    lonlat = np.random.default_rng(0).uniform(0, 20, (30, 2))
    kernel = kernels.from_features(lambda x: torch.cat([torch.ones_like(x[:, :1]), 2**0.5 * x], dim=1))
    model = fields.fit_sphere(lonlat, lonlat[:, 1], 1.0 * kernel, radius=1.0, noise=0.1, num_starts=1)
    paths = fields.draw_field(model, 2, lonlat, seed=0)
    assert model.centre is None and "spherical harmonics to degree 1, 100% of the variance" in repr(paths)


def test_a_lengthscale_too_short_for_the_series_is_warned_of():
    assert fields.SphereMatern(1.5, 2000.0).truncated < 1e-5
    short = fields.SphereMatern(1.5, 50.0)
    n = np.arange(1_000_000)
    weights = (2 * n + 1) * (3 / 50**2 + n * (n + 1) / 6371**2) ** -2.5
    assert short.truncated == pytest.approx(weights[513:].sum() / weights.sum(), rel=1e-3)
    lonlat = np.random.default_rng(0).uniform(0, 9, (40, 2))
    y = kernels.Matern(0.5, 20.0)(fields.on_sphere(lonlat))[0].numpy() + np.random.default_rng(1).standard_normal(40)
    with pytest.warns(RuntimeWarning, match="above 512, which the kernel leaves out, at a lengthscale of"):
        fields.fit_sphere(lonlat, y, 1.0 * fields.SphereMatern(0.5, 50.0), noise=1e-3, mean=0.0, num_starts=1)


def test_a_variogram_is_that_of_great_circles():
    lonlat = places(60)
    model = matheron.ExactGP(2.0 * fields.SphereMatern(1.5, 2000.0), fields.on_sphere(lonlat), lonlat[:, 1], noise=0.5)
    arc = np.array([0.3, 2.0, np.pi])  # radians
    gamma = fields.model_variogram(fields.OnSphere(model), 2 * 6371 * np.sin(arc / 2))
    K = closed_form(np.zeros((1, 2)), np.stack([np.degrees(arc), 0 * arc], axis=1), 1.5, 2000.0)[0]
    np.testing.assert_allclose(gamma, 2 - 2 * K + 0.5, atol=1e-8)


def test_what_is_no_kernel_of_a_sphere_is_refused():
    with pytest.raises(ValueError, match="expected points of a sphere"):
        fields.SphereMatern(1.5, 1000.0)([[0.0, 1.0]])
    with pytest.raises(ValueError, match="one number for all directions"):
        fields.SphereMatern(1.5, [1000.0, 2000.0])
    with pytest.raises(ValueError, match="expected positive nu"):
        fields.SphereMatern(0.0, 1000.0)
