"""Features of one's own: one basis, with its weighted sums; paths are drawn, differentiated and conditioned on it."""

import math
import statistics
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import decoupled_moments, moments
from matheron.core import REGISTRY
from matheron.evaluate import Basis
from matheron.features import Block, Features
from standard import assert_moments, assert_unbiased, exact_moments

SIDE = 0.1


class Hats(Basis):
    """Piecewise linear functions of one variable, at the multiples of SIDE from -1 to 2; amplitudes `[c]`."""

    def __init__(self, amplitudes: Tensor) -> None:
        super().__init__()
        self.register_buffer("amplitudes", amplitudes)

    @property
    def size(self) -> int:
        return len(self.amplitudes)

    def scales(self) -> Tensor:
        return self.amplitudes[None]

    def _offsets(self, x: Tensor) -> Tensor:
        return x / SIDE - torch.arange(self.size).to(x) + 1 / SIDE  # [B, n, c]

    def values(self, x: Tensor) -> Tensor:
        return (1 - self._offsets(x).abs()).clamp_min(0)

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        inside = self._offsets(x).abs() < 1
        slopes = -self._offsets(x).sign() * inside / SIDE
        return self.weighted(x, W), (W @ slopes.mT)[..., None]


def hats(amplitude: float) -> Features:
    amplitudes = torch.full((31,), amplitude, dtype=torch.float64)
    return Features([Block(Hats(amplitudes))], torch.zeros(1, dtype=torch.float64), None, "hats")


def test_a_basis_of_ones_own_is_drawn_on_differentiated_saved_and_conditioned(tmp_path):
    gp = matheron.ExactGP(K.Matern(1.5, 0.3), rand(6, 1), randn(6), 0.01)
    paths = matheron.draw(gp, 5, features=hats(0.8), seed=0)
    x = (rand(7, 1, seed=1) * 0.98 + 0.01).requires_grad_()
    (slope,) = torch.autograd.grad(paths(x).sum(), x)
    value, gradient = paths.value_and_grad(x.detach())
    torch.testing.assert_close(gradient.sum(0), slope)
    torch.testing.assert_close(paths.on_grid([x.detach()[:, 0]]), value)
    torch.testing.assert_close(paths(x.detach().expand(5, 7, 1)), value)
    torch.testing.assert_close(paths.mean(x), exact_moments(gp, x)[0])  # exact, whatever the basis
    given = paths.condition_on(x.detach(), x.detach()[:, 0], noise=0.0, generator=gen())
    torch.testing.assert_close(given(x.detach()), x.detach()[:, 0].expand(5, 7), rtol=1e-6, atol=1e-6)
    paths.save(tmp_path / "hats.safetensors")
    assert torch.equal(matheron.load(tmp_path / "hats.safetensors")(x), paths(x))
    assert REGISTRY.pop("Hats") is Hats


def test_paths_on_it_have_the_covariance_of_its_features():
    features, x = hats(0.8), rand(4, 1)
    paths = matheron.draw_prior(K.RBF(0.3), 20_000, input_dim=1, features=features, paths_per_basis=None, seed=0)
    Phi = features(x)[0]
    assert_moments(paths(x), torch.zeros(4), Phi @ Phi.mT)


class Waves(NamedTuple):
    """Random cosines, some of which can be taken alone."""

    theta: Tensor  # [d, c]
    tau: Tensor
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * torch.cos(x @ self.theta.to(x) + self.tau.to(x))

    def chosen(self, index: Tensor) -> "Waves":
        return Waves(self.theta[:, index], self.tau[index], self.scale)


class Bells(K.Kernel):
    """An RBF kernel, by features of its own."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return K.RBF(0.5).to(x).forward(x, z)

    def features(self, num_features: int, generator: torch.Generator) -> Waves:
        measure = K.RBF(0.5).measure(2)
        U = torch.rand(num_features, measure.num_uniforms + 1, generator=generator, dtype=torch.float64)
        return Waves(measure.frequencies(U[:, 1:]).mT, 2 * math.pi * U[:, 0], math.sqrt(2 / num_features))


class Closed(Bells):
    """The same without a way to take some of them."""

    def features(self, num_features: int, generator: torch.Generator):
        return lambda x: Bells.features(self, num_features, generator)(x)


def given(kernel: K.Kernel, noise: float) -> matheron.ExactGP:
    return matheron.ExactGP(kernel, rand(40, 2), torch.zeros(40), noise)


def test_maps_that_can_be_taken_in_part_are_chosen_by_leverage_and_the_kernel_stays_unbiased():
    paths = matheron.draw(given(2.0 * Bells(), 1e-3), 300, num_features=24, paths_per_basis=1, seed=0)
    assert paths.prior.features.description == "24 features of Bells by leverage"
    x = torch.cat([rand(3, 2, seed=4), 3 + rand(2, 2, seed=5)])
    Phi = paths.prior.features(x)  # [g, n, 24]
    assert_unbiased(Phi @ Phi.mT - 2.0 * K.RBF(0.5)(x, x))
    closed = matheron.draw(given(Closed(), 1e-3), 2, num_features=24, seed=0)
    assert closed.prior.features.description == "24 plain features of Closed"


@pytest.mark.parametrize("where", ["among the data", "far from them"])
def test_features_of_ones_own_err_less_among_the_data_and_hardly_more_far_from_them(where):
    x = rand(60, 2, seed=7) if where == "among the data" else 5 + 5 * rand(60, 2, seed=7)

    def error(gp: matheron.ExactGP, kind: str, seed: int) -> float:
        drawn = matheron.draw(gp, 2, num_features=512, features=kind, seed=seed)
        exact, implied = moments(gp, x), decoupled_moments(gp, drawn, x)
        return gaussian_wasserstein(*implied, *exact)

    own, plain = given(Bells(), 1e-4), given(K.RBF(0.5), 1e-4)
    errors = [[error(gp, kind, seed) for seed in range(5)] for gp, kind in ((plain, "cosine"), (own, "auto"))]
    ratio = statistics.median(errors[0]) / statistics.median(errors[1])
    assert ratio > (1.5 if where == "among the data" else 1 / 1.2)


def test_paths_on_features_chosen_by_leverage_have_the_posterior_s_law():
    gp, x = given(Bells(), 0.01), rand(6, 2, seed=3)
    paths = matheron.draw(gp, 4000, num_features=128, paths_per_basis=100, generator=gen())
    assert_moments(paths(x), *exact_moments(given(K.RBF(0.5), 0.01), x), basis_error=0.02)
