"""Features of one's own: one basis, with its weighted sums; paths are drawn, differentiated and conditioned on it."""

import torch
from torch import Tensor

import matheron
from examples import gen, rand, randn
from matheron import kernels as K
from matheron.core import REGISTRY
from matheron.evaluate import Basis
from matheron.features import Block, Features
from standard import assert_moments, exact_moments

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
