"""Random frequencies beyond the modes of a lattice: a rough kernel's variogram over short distances."""

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
}


def without(features: Features, role: str) -> Features:
    return features.with_blocks([block for block in features.blocks if block.role != role])


def variogram(features: Features, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """E (f(x) - f(z))^2, the mean over bases: `[n]`."""
    Phi = features(torch.cat([x, z]))  # [g, 2 n, ell]
    return (Phi[:, : len(x)] - Phi[:, len(x) :]).square().sum(-1).mean(0)


@pytest.mark.parametrize("name", ROUGH)
def test_the_variogram_at_a_thousandth_of_the_box_is_the_kernel_s_within_a_tenth(name):
    kernel, d = ROUGH[name]
    features = matheron.draw_prior(kernel, 8, input_dim=d, domain=(0, 1), paths_per_basis=1, seed=0).prior.features
    assert {block.role for block in features.blocks} == {"lattice", "beyond"}
    g = torch.Generator().manual_seed(1)
    x = 0.1 + 0.8 * torch.rand(4, d, generator=g, dtype=torch.float64)
    e = torch.nn.functional.normalize(torch.randn(4, d, generator=g, dtype=torch.float64))
    z = x + 1e-3 * e
    exact = 2 * (kernel.diag(x) - kernel(x, z).diagonal())
    assert float((variogram(features, x, z) / exact).mean()) == pytest.approx(1, abs=0.1)
    assert float((variogram(without(features, "beyond"), x, z) / exact).mean()) < 0.8


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
