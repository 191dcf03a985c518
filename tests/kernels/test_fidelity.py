"""Kernels of fidelities: their formulas, features that have these as products, and files that need no other library."""

from typing import Any

import pytest
import torch

import matheron
from examples import rand, randn
from matheron import kernels as K
from standard import assert_moments, close


def truncated(s: Any, r: Any) -> Any:
    """Of two fidelities with power 2, by numbers."""
    a, b = (1 - s[0]) * (1 - r[0]), (1 - s[1]) * (1 - r[1])
    return a * (1 + s[0] * r[0]) ** 2 + b * (1 + s[1] * r[1]) ** 2 + a * b * (1 + s[0] * r[0] + s[1] * r[1]) ** 2


CASES = {
    "linear truncated": (K.LinearTruncated(2.0), 1, lambda s, r: (1 - s[0]) * (1 - r[0]) * (1 + s[0] * r[0]) ** 2),
    "of two": (K.LinearTruncated(2.0, pair=True), 2, truncated),
    "downsampling": (K.Downsampling(0.7, 0.3), 1, lambda s, r: 0.3 + ((1 - s[0]) * (1 - r[0])) ** 1.7),
    "decay": (K.ExponentialDecay(0.6, 1.5, 0.3), 1, lambda s, r: 0.3 + (1 + (s[0] + r[0]) / 0.6) ** -1.5),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_their_formulas_and_products_of_their_features(name):
    kernel, d, formula = CASES[name]
    x, z = rand(5, d), rand(4, d, seed=1)
    expected = torch.tensor([[float(formula(s, r)) for r in z] for s in x], dtype=torch.float64)
    close(kernel(x, z), expected)
    phi = kernel.features(1, torch.Generator())
    torch.testing.assert_close(phi(x) @ phi(z).mT, expected, rtol=1e-9, atol=1e-9)


def two_fidelities() -> matheron.ExactGP:
    kernel = K.Matern(2.5, 0.4).on(0) + K.LinearTruncated(1.0).on(1) * K.Matern(2.5, 0.3).on(0)
    return matheron.ExactGP(kernel, rand(8, 2), randn(8), 0.05)


def test_draws_of_several_fidelities_have_the_posterior_s_law():
    gp, x = two_fidelities(), rand(5, 2, seed=3)
    paths = matheron.draw(gp, 4000, num_features=256, paths_per_basis=8, seed=0)
    k = gp.kernel(gp.sites.points, x)
    G = torch.linalg.solve(gp.kernel(gp.sites.points) + 0.05 * torch.eye(8), k)
    assert_moments(paths(x), G.mT @ randn(8), gp.kernel(x) - k.mT @ G, basis_error=0.02)


@pytest.mark.parametrize("per_basis", [2, 4])
def test_paths_of_several_fidelities_are_saved(per_basis, tmp_path):
    paths = matheron.draw(two_fidelities(), 4, num_features=128, paths_per_basis=per_basis, seed=0)
    paths.save(tmp_path / "f")
    loaded, x = matheron.load(tmp_path / "f"), rand(7, 2, seed=2)
    assert torch.equal(loaded(x), paths(x))
    for mine, wanted in zip(loaded.value_and_grad(x), paths.value_and_grad(x), strict=True):
        close(mine, wanted)
    more = [each.condition_on([[0.2, 1.0]], [3.0], noise=0.01, seed=1)(x) for each in (loaded, paths)]
    close(*more)
    torch.testing.assert_close(paths.float()(x.float()).double(), paths(x), rtol=1e-3, atol=1e-3)
