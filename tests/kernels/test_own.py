"""A kernel of one's own: k(x, x') with features, or a profile with its spectral measure, is enough for right draws."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.core import REGISTRY, per_dimension
from matheron.kernels.radial import Gaussian
from matheron.models.transforms import Affine
from standard import assert_moments


class Brownian(K.Kernel):
    """k = min(x, x') on the unit interval, with the Karhunen-Loeve series of Brownian motion for features."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.minimum(x, z.mT)

    def features(self, num_features: int, generator: torch.Generator) -> Any:
        theta = math.pi * (torch.arange(num_features, dtype=torch.float64) + 0.5)
        return lambda x: math.sqrt(2) * torch.sin(x * theta.to(x)) / theta.to(x)


class Cosines(K.Kernel):
    """An RBF kernel of lengthscale .5, by random cosines."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return K.RBF(0.5).to(x).forward(x, z)

    def features(self, num_features: int, generator: torch.Generator) -> Any:
        theta = 2.0 * torch.randn(2, num_features, generator=generator, dtype=torch.float64)
        tau = 2 * math.pi * torch.rand(num_features, generator=generator, dtype=torch.float64)
        return lambda x: math.sqrt(2 / num_features) * torch.cos(x @ theta.to(x) + tau.to(x))


def posterior(kernel: K.Kernel, X: Tensor, y: Tensor, noise: float, x: Tensor) -> tuple[Tensor, Tensor]:
    A = kernel(X) + noise * torch.eye(len(X))
    G = torch.linalg.solve(A, kernel(X, x))
    return G.mT @ y, kernel(x) - kernel(x, X) @ G


CASES = {
    "features that are known": (Brownian(), 1, {}),
    "scaled, in a sum": (2.0 * Brownian() + 0.5 * K.RBF(0.3), 1, {}),
    "random features": (Cosines(), 2, {"paths_per_basis": 8}),
    "on some coordinates": (Brownian().on(1) + K.Matern(1.5, 0.5).on(0), 2, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_posterior_s_law(name):
    kernel, d, settings = CASES[name]
    X, y, x = rand(8, d), randn(8), rand(6, d, seed=3)
    gp = matheron.ExactGP(kernel, X, y, 0.05)
    paths = matheron.draw(gp, 4000, num_features=512, generator=gen(), **settings)
    mean, covariance = posterior(kernel, X, y, 0.05, x)
    torch.testing.assert_close(paths.mean(x), mean)
    assert_moments(paths(x), mean, covariance, basis_error=0.02)


def test_gradients_own_points_and_more_data_work():
    kernel, X = Brownian() + K.RBF(0.3), rand(6, 1)
    paths = matheron.draw(matheron.ExactGP(kernel, X, X[:, 0], 0.01), 4, num_features=32, generator=gen())
    x = rand(5, 1, seed=2).requires_grad_()
    value, gradient = paths.value_and_grad(x.detach())
    (slope,) = torch.autograd.grad(paths(x).sum(), x)
    torch.testing.assert_close(gradient.sum(0), slope)
    torch.testing.assert_close(paths(x.detach().expand(4, 5, 1)), value)
    torch.testing.assert_close(paths.on_grid([x.detach()[:, 0]]), value)
    given = paths.condition_on([[0.5]], [2.0], noise=0.0)
    torch.testing.assert_close(given([[0.5]]), torch.full((4, 1), 2.0).double(), rtol=1e-6, atol=1e-6)


def test_what_a_kernel_lacks_is_said():
    class Nothing(K.Kernel):
        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return torch.ones(len(x), len(z))

    class Wrong(Nothing):
        def features(self, num_features: int, generator: torch.Generator) -> Any:
            return lambda x: x[:, 0]

    with pytest.raises(TypeError, match=r"Nothing: expected a kernel that says what its prior can be made of"):
        matheron.draw_prior(Nothing(), 2, input_dim=1)
    with pytest.raises(ValueError, match=r"Wrong.features: expected a map from points \[n, d\] to features \[n, c\]"):
        matheron.draw_prior(Wrong(), 2, input_dim=1)


class Bell(K.Radial):
    """exp(-r^2 / 2), written again."""

    def radial(self, r2):
        return torch.exp(-0.5 * r2)

    def radial_derivative(self, r2):
        return -0.5 * torch.exp(-0.5 * r2)

    def measure(self, input_dim):
        return Gaussian(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))


def test_a_kernel_of_ones_own_is_drawn_from_differentiated_and_summed_up_in_the_users_units():
    X, y = torch.rand(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(8.0)

    def drawn(kernel: K.Kernel) -> matheron.Paths:
        gp = matheron.ExactGP(2.0 * kernel, X, y, 0.1, input_transform=Affine(0.1), output_transform=Affine(3.0))
        rows = matheron.summary(gp).rows
        name = type(kernel).__name__
        assert abs(rows[f"{name}.lengthscale"] - 4.0) < 1e-12 and abs(rows[f"{name}.outputscale"] - 18.0) < 1e-12
        return matheron.draw(gp, 3, num_features=64, features="sobol", seed=0)

    own, ours, x = drawn(Bell(0.4)), drawn(K.RBF(0.4)), torch.rand(3, 5, 2, dtype=torch.float64)
    for mine, wanted in zip(own.value_and_grad(x), ours.value_and_grad(x), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(own(x[0]), ours(x[0]), rtol=1e-9, atol=1e-9)
    assert REGISTRY.pop("Bell") is Bell
