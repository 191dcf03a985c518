"""Random Fourier features: Phi Phi^T is the kernel up to an error that is known, for every kind and any number."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from matheron import kernels as K
from matheron.features import quasi_random
from standard import (
    STATIONARY,
    assert_unbiased,
    assert_uncorrelated,
    basis_error,
    covariance,
    features_of,
    kernel_error,
)

RANDOM = ("cosine", "sincos", "sobol", "orthogonal")
ELLIPTICAL = [name for name in STATIONARY if name.startswith(("RBF", "Matern", "rational"))]


def points(n: int, d: int) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def rms(kernel, d: int, num_features: int, kind: str, num_bases: int = 16, n: int = 16) -> float:
    """The kernel's error, root mean square over pairs of points and over bases."""
    x = points(n, d)
    return float(
        kernel_error(features_of(kernel, d, num_features, kind, num_bases=num_bases), kernel, x).square().mean().sqrt()
    )


def theory(kernel, d: int, num_features: int, kind: str, n: int = 16) -> float:
    """The same for independent frequencies.

    Pairs have variance 2 V / ell, where V = (1 + k(2 r)) / 2 - k(r)^2 is the variance of cos(theta . r); the paper's
    cosines (V + 1 / 2) / ell, as their phases are random too.
    """
    x = points(n, d)
    V = (1 + covariance(kernel, 2 * x, 2 * x)) / 2 - covariance(kernel, x, x) ** 2
    return math.sqrt(((V + 0.5 if kind == "cosine" else 2 * V) / num_features).mean())


@pytest.mark.parametrize("kind", ["cosine", "sincos", "sobol"])
@pytest.mark.parametrize("name", STATIONARY)
def test_features_of_every_stationary_kernel_are_unbiased(name, kind):
    kernel, d = STATIONARY[name]
    features = features_of(kernel, d, 15, kind, num_bases=300)
    assert_unbiased(kernel_error(features, kernel, points(4, d)))


@pytest.mark.parametrize("name", ELLIPTICAL)
def test_orthogonal_features_are_unbiased(name):
    kernel, d = STATIONARY[name]
    assert_unbiased(kernel_error(features_of(kernel, d, 15, "orthogonal", num_bases=300), kernel, points(4, d)))


@pytest.mark.parametrize("kind", ["cosine", "sincos"])
@pytest.mark.parametrize("name", ["RBF", "Matern 1/2", "Matern 5/2", "periodic", "a product"])
def test_error_of_independent_features_is_the_root_of_their_variance(name, kind):
    kernel, d = STATIONARY[name]
    for ell in (64, 1024):
        # 100 bases: the error's own relative error is 1 / sqrt(2 * 100) for each of a few independent directions
        assert rms(kernel, d, ell, kind, num_bases=100) == pytest.approx(theory(kernel, d, ell, kind), rel=0.15)


@pytest.mark.parametrize("kind", ["sobol", "orthogonal"])
@pytest.mark.parametrize("name", ELLIPTICAL)
def test_error_falls_as_the_root_of_the_number_of_features_or_faster(name, kind):
    kernel, d = STATIONARY[name]
    few, many = (rms(kernel, d, ell, kind) for ell in (128, 2048))
    assert few < 1.1 * theory(kernel, d, 128, "sincos")
    assert many < 1.25 * few / 4


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_sobol_beats_independent_frequencies_in_few_dimensions(d, nu):
    kernel = K.Matern(nu, 0.25 * math.sqrt(d))
    expected = {1: 0.45, 2: 0.45, 4: 0.7}[d] if nu > 1 else 0.85  # rough kernels gain less
    assert rms(kernel, d, 512, "sobol") < expected * theory(kernel, d, 512, "sincos")


@pytest.mark.parametrize("d", [1, 2])
def test_sobol_makes_the_mixing_variable_low_discrepancy_too(d, monkeypatch, generator):
    kernel, sobol = K.Matern(2.5, 0.25 * math.sqrt(d)), quasi_random.sobol
    ours = rms(kernel, d, 512, "sobol")

    def with_independent_mixing(num_bases, count, dims, g):
        U = sobol(num_bases, count, dims, g)
        U[..., -1] = torch.rand(num_bases, count, generator=generator, dtype=torch.float64)
        return U

    monkeypatch.setattr(quasi_random, "sobol", with_independent_mixing)
    assert ours < rms(kernel, d, 512, "sobol") / 1.4


@pytest.mark.parametrize("kernel", [K.RBF(1.2), K.Matern(2.5, 1.2)], ids=["RBF", "Matern"])
def test_orthogonal_beats_all_others_in_many_dimensions(kernel):
    for d in (16, 32):
        error = {kind: rms(kernel, d, 512, kind, num_bases=24) for kind in RANDOM}
        assert error["orthogonal"] < 0.9 * min(error["cosine"], error["sincos"])
        assert error["orthogonal"] < (1.1 if d == 16 else 1.02) * error["sobol"]


def test_orthogonal_directions_are_orthogonal_in_blocks():
    features = features_of(K.RBF(0.5), 5, 20, "orthogonal", num_bases=2)
    (basis,) = features.bases
    for block in basis.frequencies.split(5, dim=1):  # [2, 5, 5]
        directions = block / block.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(directions @ directions.mT, torch.eye(5, dtype=torch.float64).expand(2, 5, 5))


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("num_features", [1, 2, 3, 17, 64, 21203])
def test_any_number_of_features_is_given(num_features, kind):
    kernel = K.Matern(1.5, 0.5)
    features = features_of(kernel, 2, num_features, kind)
    x = points(3, 2)
    assert features.num_features == num_features and features(x).shape == (1, 3, num_features)
    assert kernel_error(features, kernel, x).abs().max() < 6 * basis_error(num_features, kurtosis=1.0)


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("num_features", [1, 7])
def test_bases_are_independent_of_one_another(num_features, kind):
    kernel = K.Matern(2.5, 0.5)
    features = features_of(kernel, 2, num_features, kind, num_bases=1200)
    assert features.num_bases == 1200
    error = kernel_error(features, kernel, points(3, 2)).flatten(1)
    for lag in (1, 2):
        assert_uncorrelated(error[:-lag], error[lag:])
    distinct = torch.unique(torch.cat([b.frequencies.flatten() for b in features.bases]))
    assert len(distinct) > 0.99 * 1200 * sum(b.frequencies[0].numel() for b in features.bases)


def test_sobol_takes_a_dimension_a_coordinate_and_never_one_a_feature(monkeypatch):
    dimensions = []

    class Engine(torch.quasirandom.SobolEngine):
        def __init__(self, dimension: int) -> None:
            dimensions.append(dimension)
            super().__init__(dimension)

    monkeypatch.setattr(quasi_random, "SobolEngine", Engine)
    kernel = K.Matern(1.5, 0.5) * K.RBF(1.0).on(0) * K.Cosine(1.0).on(1)
    assert features_of(kernel, 2, 30000, "sobol").num_features == 30000
    assert dimensions == [(2 + 1) + 1 + 0 + 2]  # Matern with its mixing variable, RBF, Cosine, and two signs


@pytest.mark.parametrize("kind", RANDOM)
def test_a_seed_gives_the_same_features_and_torch_s_own_generator_is_left_alone(kind):
    x, before = points(3, 2), torch.get_rng_state()
    one, same, other = (features_of(K.RBF(), 2, 9, kind, num_bases=2, seed=seed)(x) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.isclose(one, other).any()
    assert torch.equal(torch.get_rng_state(), before)


GRADIENTS = {
    "lengthscale of RBF": lambda p: K.RBF(p),
    "lengthscale of Matern": lambda p: K.Matern(1.5, p),
    "alpha of rational quadratic": lambda p: K.RationalQuadratic(p, 0.5),
    "lengthscale of periodic": lambda p: K.Periodic(p, 0.7),
    "outputscale": lambda p: p * K.RBF(0.5),
    "variance of linear": lambda p: K.Linear(p) * K.RBF(0.5),
    "outputscales of a product of sums": lambda p: (p * K.RBF(0.5) + K.RBF(1.0)) * (K.Matern(0.5) + K.Linear(p)),
}


@pytest.mark.parametrize("kind", ["cosine", "sobol"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_in_a_hyperparameter_is_the_kernel_s_in_the_mean(name, kind):
    build, x = GRADIENTS[name], points(2, 1)
    p = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    Phi = features_of(build(p), 1, 32, kind, num_bases=200)(x)
    values = (Phi[:, 0] * Phi[:, 1]).sum(-1)  # [g]
    weights = torch.ones_like(values).requires_grad_()
    (slope,) = torch.autograd.grad(values, p, weights, create_graph=True)  # linear in the weights
    (slopes,) = torch.autograd.grad(slope, weights)
    high, low = (covariance(build(torch.tensor(0.6 + step, dtype=torch.float64)), x, x)[0, 1] for step in (1e-5, -1e-5))
    assert_unbiased(slopes[:, None] - (high - low) / 2e-5, slack=1e-6)


@pytest.mark.parametrize("kernel", [K.Periodic(), K.SpectralMixture([1.0], [[1.0]], [[1.0]]), K.RBF() * K.RBF()])
def test_orthogonal_refuses_a_kernel_that_is_not_elliptical(kernel):
    with pytest.raises(ValueError, match='features="orthogonal" needs a kernel of one distance in all dimensions'):
        features_of(kernel, 1, 8, "orthogonal")


def test_phases_far_from_zero_are_kept_by_the_origin():
    kernel, x = K.Matern(2.5, 0.5), (points(4, 2) + 1e4).float()
    features = features_of(kernel, 2, 64, "sobol")
    features = features.replaced(origin=torch.full((2,), 1e4, dtype=torch.float64))
    exact, single = features(x.double()), features.to(torch.float32)(x)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, exact, atol=2e-5)
