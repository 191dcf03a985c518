"""Lattices of higher frequencies beyond the modes of a lattice: a rough kernel's variogram, law and periodogram."""

import math

import numpy as np
import pytest
import torch

import matheron
from matheron import kernels as K
from matheron.features import Features

ROUGH = {
    "Matern 1/2": (K.Matern(0.5, 0.3), 2),
    "spherical": (K.Spherical(0.5), 2),
    "turned": (K.Rotated(K.Matern(0.5, [0.8, 0.2]), 30.0), 2),
    "on two of three inputs": (K.Matern(0.5, 0.3).on([0, 2]), 3),
    "Matern 1/2 in three": (K.Matern(0.5, 0.3), 3),
    "spherical in three": (K.Spherical(0.5), 3),
}


def without(features: Features, role: str) -> Features:
    return features.with_blocks([block for block in features.blocks if block.role != role])


def variogram(features: Features, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """E (f(x) - f(z))^2, the mean over bases: `[n]`."""
    Phi = features(torch.cat([x, z]))  # [g, 2 n, ell]
    return (Phi[:, : len(x)] - Phi[:, len(x) :]).square().sum(-1).mean(0)


@pytest.mark.parametrize("name", ROUGH)
def test_the_variogram_close_by_is_the_kernel_s_within_a_tenth(name):
    kernel, d = ROUGH[name]
    features = matheron.draw_prior(kernel, 8, input_dim=d, domain=(0, 1), paths_per_basis=1, seed=0).prior.features
    assert {block.role for block in features.blocks} == {"lattice", "beyond"}
    g = torch.Generator().manual_seed(1)
    x = 0.1 + 0.8 * torch.rand(4, d, generator=g, dtype=torch.float64)
    e = torch.nn.functional.normalize(torch.randn(4, d, generator=g, dtype=torch.float64))
    for h in (1e-3, 1e-4):
        z = x + h * e
        exact = 2 * (kernel.diag(x) - kernel(x, z).diagonal())
        assert float((variogram(features, x, z) / exact).mean()) == pytest.approx(1, abs=0.1)
        assert float((variogram(without(features, "beyond"), x, z) / exact).mean()) < 0.8


def test_a_smaller_tolerance_draws_finer_maps_of_a_rough_prior():
    shapes = []
    for tolerance in (1e-2, 1e-3, 1e-4):
        kernel = K.Matern(0.5, 0.15)
        features = matheron.draw_prior(kernel, 1, input_dim=2, domain=(0, 1), tolerance=tolerance).prior.features
        shapes.append([math.prod(basis.shape) for basis in features.bases[:2]])
    assert shapes[0] == shapes[1]
    assert torch.tensor(shapes[2]) / torch.tensor(shapes[1]) == pytest.approx(torch.tensor([4.0, 4.0]), rel=0.05)


def test_a_tail_has_the_mass_of_the_spectrum_outside_the_modes():
    nu, lengthscale, g = 1.5, 0.5, np.random.default_rng(0)  # of which few plain draws lie beyond
    kernel = K.Matern(nu, lengthscale)
    features = matheron.draw_prior(kernel, 8, input_dim=3, domain=(0, 1), paths_per_basis=1, seed=0).prior.features
    tail, lattice = without(features, "lattice")(torch.zeros(1, 3).double()).square().sum(-1).mean(), features.bases[0]
    edge = math.pi * np.array(lattice.shape) / lattice.period.numpy()
    normal, gamma = g.standard_normal((2_000_000, 3)), g.gamma(nu, 1 / nu, (2_000_000, 1))
    mass = (np.abs(normal / gamma**0.5 / lengthscale) > edge).any(1).mean()  # Student's t with 2 nu degrees of freedom
    assert 3e-5 < mass < 1e-3
    assert float(tail) == pytest.approx(mass, rel=0.25)


def peaks(f: np.ndarray, octaves: int) -> np.ndarray:
    """The largest power over the mean power in the last octaves of a map's periodogram, by Hann's window."""
    n, d = len(f), f.ndim
    along = [[n if a == axis else 1 for a in range(d)] for axis in range(d)]
    power = np.abs(np.fft.fftn((f - f.mean()) * math.prod(np.hanning(n).reshape(shape) for shape in along))) ** 2
    radius = np.sqrt(sum(np.fft.fftfreq(n, 1 / n).reshape(shape) ** 2 for shape in along))
    rings = [power[(radius >= n / 2 ** (i + 2)) & (radius < n / 2 ** (i + 1))] for i in range(octaves)]
    return np.array([ring.max() / ring.mean() for ring in rings])


def exact_map(kernel: K.Kernel, n: int, d: int, step: float, seed: int) -> np.ndarray:
    """A map of n points along each axis, by circulant embedding in one twice as long."""
    lag = torch.arange(2 * n, dtype=torch.float64)
    lag = torch.minimum(lag, 2 * n - lag) * step
    row = kernel(torch.cartesian_prod(*[lag] * d), torch.zeros(1, d).double()).reshape([2 * n] * d).numpy()
    z = np.random.default_rng(seed).standard_normal(row.shape)
    return np.fft.ifftn(np.sqrt(np.fft.fftn(row).real.clip(0)) * np.fft.fftn(z)).real[(slice(n),) * d]


MAPS = {
    "Matern 1/2": (K.Matern(0.5, 0.15), 2, 500),
    "spherical": (K.Spherical(0.5), 2, 500),
    "Matern 1/2 in three": (K.Matern(0.5, 0.15), 3, 64),
}


@pytest.mark.parametrize("name", MAPS)
def test_no_octave_of_a_fine_map_is_in_few_waves(name):
    """A thousand random frequencies beyond the modes had 35 times the power of exact draws in the last octave here."""
    kernel, d, n = MAPS[name]
    paths = matheron.draw_prior(kernel, 1, input_dim=d, domain=(0, 1), seed=0, dtype=torch.float64)
    axes = [torch.linspace(0, 1, n, dtype=torch.float64)] * d
    exact = exact_map(kernel, n, d, 1 / (n - 1), 0)
    assert (peaks(paths.on_grid(axes)[0].numpy(), 3) < 2 * peaks(exact, 3)).all()


def test_a_map_whose_step_is_a_fraction_of_a_period_is_not_in_few_waves(steps=20):
    """With the same period along both coordinates, a lattice's waves would all be seen as those of `steps`^2 modes."""
    kernel = K.Matern(0.5, 0.15)
    paths = matheron.draw_prior(kernel, 3, input_dim=2, domain=(0, 1), seed=0, dtype=torch.float64)
    periods = [float(basis.period[0]) for basis in paths.prior.features.bases]
    step = min(period for period in periods if steps / period <= 1000) / steps  # finer maps need a smaller tolerance
    n = int(1 / step)
    axes = [step * torch.arange(n, dtype=torch.float64)] * 2
    ours = np.median([peaks(f.numpy(), 2) for f in paths.on_grid(axes)], axis=0)
    exact = np.median([peaks(exact_map(kernel, n, 2, step, seed), 2) for seed in range(3)], axis=0)
    assert (ours < 2 * exact).all()


def test_beyond_the_modes_a_product_keeps_the_correlations_of_its_smooth_factor():
    """Along the coordinate of the smooth factor, what lies beyond the modes of the rough one is correlated for long."""
    kernel = K.RBF(0.3).on(0) * K.Matern(0.5, 0.02).on(1)
    features = matheron.draw_prior(kernel, 8, input_dim=2, domain=(0, 1), seed=0, dtype=torch.float64).prior.features
    tail = without(features, "lattice")
    assert tail.num_features > 0
    x = torch.stack([torch.linspace(0, 1, 41, dtype=torch.float64), torch.full((41,), 0.4, dtype=torch.float64)], dim=1)
    Phi = tail(x)[0]
    correlations = Phi @ Phi[0] / Phi[0].square().sum()
    exact = torch.exp(-0.5 * (x[:, 0] / 0.3) ** 2)
    assert float((correlations - exact).abs().max()) < 0.1


def test_values_on_an_axis_over_many_periods_are_those_at_its_points():
    """An axis of the domain is many periods of a lattice of high frequencies, whose windows are sorted by phase."""
    paths = matheron.draw_prior(ROUGH["Matern 1/2"][0], 2, input_dim=2, domain=(0, 1), seed=0, dtype=torch.float64)
    axes = [torch.linspace(0.9, 0.0, 700, dtype=torch.float64), torch.tensor([0.2, 0.7], dtype=torch.float64)]
    assert min(float(basis.period.min()) for basis in paths.prior.features.bases) < 0.1
    listed = paths(torch.cartesian_prod(*axes))
    torch.testing.assert_close(paths.on_grid(axes).flatten(1), listed, atol=1e-9, rtol=0)
