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


class Laplace(K.Stationary):
    """exp(-rate |x - x'|_1), whose spectral measure is Cauchy in each coordinate; `size` is 1 where it is right."""

    fields = ("size",)

    def __init__(self, rate: float, size: float = 1.0) -> None:
        super().__init__(rate=rate)
        self.size = size

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.size * torch.exp(-self.rate * (x[..., :, None, :] - z[..., None, :, :]).abs().sum(-1))

    def measure(self, input_dim: int) -> K.SpectralMeasure:
        return Cauchy(self.rate, input_dim)


class Cauchy(K.SpectralMeasure):
    def __init__(self, rate: Tensor, input_dim: int) -> None:
        self.rate, self.input_dim, self.num_uniforms = rate, input_dim, input_dim

    def frequencies(self, U: Tensor) -> Tensor:
        return self.rate * torch.tan(math.pi * (U - 0.5))


class PowerProfile(K.Radial):
    """exp(-r^power), with a tensor that is assigned."""

    def __init__(self, lengthscale: float, power: float) -> None:
        super().__init__(lengthscale)
        self.power = torch.as_tensor(power, dtype=torch.float64)

    def radial(self, r2: Tensor) -> Tensor:
        return torch.exp(-(r2 ** (self.power / 2)))


MEASURED = [Laplace(1.5), PowerProfile(0.6, 1.5)]


@pytest.mark.parametrize("kernel", [*MEASURED, 2.0 * MEASURED[0].on(1) + MEASURED[1]])
def test_kernels_with_a_measure_or_a_profile_are_checked_drawn_from_and_saved(kernel, tmp_path):
    X, y, x = rand(8, 2), randn(8), rand(6, 2, seed=3)
    if kernel in MEASURED:
        assert not K.check_features(kernel, X).found
        assert K.check_features(kernel, X, num_features=1).bias < 0.9  # one frequency, and not none
    gp = matheron.ExactGP(kernel, X, y, 0.05)
    paths = matheron.draw(gp, 4000, num_features=512, paths_per_basis=8, seed=0)
    assert_moments(paths(x), *posterior(kernel, X, y, 0.05, x), basis_error=0.02)
    few = matheron.draw(gp, 2, num_features=64, seed=0)
    few.save(tmp_path / "own.safetensors")
    assert torch.equal(matheron.load(tmp_path / "own.safetensors")(x), few(x))
    single = matheron.draw(matheron.ExactGP(kernel, X.float(), y.float(), 0.05), 2, num_features=64, seed=0)
    assert single(x.float()).dtype == torch.float32


def test_a_measure_that_is_not_the_kernel_s_is_warned_of():
    with pytest.warns(K.FeatureWarning, match=r"Laplace: the mean of 2048 features differs from k") as said:
        matheron.draw(matheron.ExactGP(Laplace(1.5, size=3.0), rand(8, 2), randn(8), 0.05), 2, num_features=64, seed=0)
    assert [each.filename for each in said] == [__file__]


def test_features_need_not_move_their_tensors_to_other_dtypes_unless_torch_must():
    class Fixed(Brownian):
        def features(self, num_features: int, generator: torch.Generator) -> Any:
            theta = math.pi * (torch.arange(num_features, dtype=torch.float64) + 0.5)
            return lambda x: math.sqrt(2) * torch.sin(x * theta) / theta

    class Multiplied(Brownian):
        def features(self, num_features: int, generator: torch.Generator) -> Any:
            return lambda x: x @ torch.ones(1, num_features, dtype=torch.float64) / num_features**0.5

    gp = matheron.ExactGP(Fixed(), rand(8, 1).float(), randn(8).float(), 0.05)
    assert matheron.draw(gp, 2, seed=0)(rand(3, 1).float()).dtype == torch.float32
    with pytest.raises(TypeError, match=r"Multiplied.features: expected a map of points in torch.float32 .* theta.to"):
        matheron.draw_prior(Multiplied(), 2, input_dim=1, dtype=torch.float32)([[0.5]])
    module = K.from_features(torch.nn.Linear(1, 5))
    gp = matheron.ExactGP(module, rand(8, 1).float(), randn(8).float(), 0.05)
    assert matheron.draw(gp, 2, seed=0)(rand(3, 1).float()).dtype == torch.float32


def test_what_a_kernel_lacks_is_said(tmp_path):
    class Nothing(K.Kernel):
        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return torch.ones(len(x), len(z))

    class Wrong(Nothing):
        def __init__(self, made: Any) -> None:
            super().__init__()
            self.made = made

        def features(self, num_features: int, generator: torch.Generator) -> Any:
            return self.made

    class Profile(K.Radial):
        made: list[Any] = []  # noqa: RUF012

        def radial(self, r2: Tensor) -> Tensor:
            return self.made[-1](r2)

    class WithoutSuper(Nothing):
        def __init__(self) -> None:
            self.scale = 2.0

    class Renamed(Brownian):
        def __init__(self, rate: float) -> None:
            super().__init__(scale=1 / rate)

    class Measured(Laplace):
        def measure(self, input_dim: int) -> Any:
            return torch.distributions.Cauchy(0.0, 1.0)

    with pytest.raises(TypeError, match=r"Nothing: expected a kernel that says what its prior can be made of"):
        matheron.draw_prior(Nothing(), 2, input_dim=1)
    for made, got in ((lambda x: x[:, 0], r"a map to \[1\]"), (torch.ones(3, 2), "Tensor"), (lambda x: 1.0, "float")):
        with pytest.raises(ValueError, match=rf"Wrong.features: expected a map from points .* \[n, c\], .*got {got}"):
            matheron.draw_prior(Wrong(made), 2, input_dim=1)
    with pytest.raises(ValueError, match=r"Wrong.features: expected finite numbers"):
        K.check_features(Wrong(lambda x: x / 0.0), rand(3, 1))
    for made, got in ((torch.sum, r"\[\]"), (lambda r2: None, "NoneType"), (lambda r2: r2.numpy(), "ndarray")):
        Profile.made.append(made)
        with pytest.raises(ValueError, match=rf"Profile.radial: expected g\(r2\) of each of the numbers.*got {got}"):
            matheron.draw(matheron.ExactGP(Profile(1.0), rand(3, 1), randn(3), 0.05), 2)
    with pytest.raises(TypeError, match=r"WithoutSuper: expected an __init__ that calls super\(\).__init__\(\)"):
        WithoutSuper()
    with pytest.raises(TypeError, match=r"Measured.measure: expected a kernels.SpectralMeasure, got Cauchy"):
        matheron.draw_prior(Measured(1.0), 2, input_dim=1)
    with pytest.raises(TypeError, match=r"kernel: expected a kernel of matheron.kernels"):
        K.check_features(laplace_of_rate, rand(3, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"k: expected a tensor \[3, 3\] for 3 and 3 points, got \[3, 1\]"):
        K.from_callables(lambda x, z: x[:, :1], laplace_of_rate)(rand(3, 1))
    # What a file would lose is said when it is written, not when it is read.
    with pytest.raises(TypeError, match=r"Wrong has made, which a file would lose; .* `fields = \('made',\)`"):
        matheron.draw_prior(Wrong(lambda x: x), 2, input_dim=1).save(tmp_path / "lost")
    with pytest.raises(TypeError, match=r"Renamed: expected rate, got none; a class keeps what its constructor takes"):
        matheron.draw_prior(Renamed(2.0), 2, input_dim=1).save(tmp_path / "lost")


def laplace_of_rate(*_: Any) -> Any:
    raise AssertionError("never called")


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
