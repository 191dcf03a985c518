"""A kernel of one's own: one class, with its spectral measure, and all else follows."""

import torch

import matheron
from matheron import kernels as K
from matheron.core import REGISTRY, per_dimension
from matheron.kernels.spectral import Gaussian
from matheron.models.transforms import Affine


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
