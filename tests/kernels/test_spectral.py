"""Spectral measures: E cos(theta . (x - x')) is the kernel, however the measure was put together."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from matheron import kernels as K
from matheron.kernels import spectral
from matheron.kernels.algebra import LARGEST_TERM_COUNT
from standard import LEVEL, STATIONARY, covariance

NUM_FREQUENCIES = 1 << 15


def only_term(kernel, d: int):
    (term,) = kernel.terms(d)
    return term


def frequencies(measure, generator: torch.Generator, count: int = NUM_FREQUENCIES) -> Tensor:
    U = torch.rand(count, measure.num_uniforms, generator=generator, dtype=torch.float64)
    theta = measure.frequencies(U)
    assert theta.shape == (count, measure.input_dim)
    return theta


def assert_is_measure_of(kernel, d: int, theta: Tensor) -> None:
    """The mean of cos(theta . r) is k(r) within its error: its variance is (1 + k(2 r)) / 2 - k(r)^2."""
    r = torch.rand(8, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 / math.sqrt(d)
    scale = covariance(kernel, r[:1], r[:1])[0, 0]
    k, k_twice = (covariance(kernel, c * r, 0 * r[:1])[:, 0] / scale for c in (1, 2))
    variance = np.clip((1 + k_twice) / 2 - k**2, 1e-12, None)
    error = torch.cos(theta @ r.mT).mean(0).numpy() - k
    assert np.abs(error / np.sqrt(variance / len(theta))).max() < stats.norm.isf(LEVEL / 2 / len(r))


@pytest.mark.parametrize("name", STATIONARY)
def test_frequencies_are_of_the_kernel_s_measure(name, generator):
    kernel, d = STATIONARY[name]
    term = only_term(kernel, d)
    assert float(term.variance) == 1
    assert_is_measure_of(kernel, d, frequencies(term.measure(d), generator))


def test_a_lengthscale_wrong_by_five_percent_is_noticed(generator):
    theta = frequencies(K.RBF(0.6 * 1.05).measure(2), generator)
    with pytest.raises(AssertionError):
        assert_is_measure_of(K.RBF(0.6), 2, theta)


def test_matern_frequencies_are_multivariate_t_and_not_a_t_each_coordinate(generator):
    kernel, product = K.Matern(0.5, 0.8), K.Matern(0.5, 0.8).on(0) * K.Matern(0.5, 0.8).on(1)
    theta, independent = (frequencies(only_term(k, 2).measure(2), generator) for k in (kernel, product))
    assert_is_measure_of(kernel, 2, theta)
    assert_is_measure_of(product, 2, independent)
    with pytest.raises(AssertionError):
        assert_is_measure_of(kernel, 2, independent)
    # One Gamma draw serves both coordinates, so large ones come together.
    together, apart = (float(t.abs().log().T.corrcoef()[0, 1]) for t in (theta, independent))
    bound = stats.norm.isf(LEVEL / 2) / math.sqrt(NUM_FREQUENCIES)
    assert together > 10 * bound and abs(apart) < bound


def test_a_product_of_cosines_takes_sums_and_differences_alike(generator):
    theta = frequencies(only_term(K.Cosine(1.0) * K.Cosine(0.4), 1).measure(1), generator).abs()
    total = 2 * math.pi * torch.tensor([1 / 0.4 + 1, 1 / 0.4 - 1], dtype=torch.float64)
    assert torch.allclose(theta, total[(theta < total.mean()).long()])
    share = float((theta > total.mean()).double().mean())
    assert abs(share - 0.5) < stats.norm.isf(LEVEL / 2) / 2 / math.sqrt(NUM_FREQUENCIES)


def many(count: int, start: float) -> K.Kernel:
    """A sum of different stationary kernels."""
    first, *others = [(1.0 + i % 3) * K.RBF(start * 1.2**i) for i in range(count)]
    for k in others:
        first = first + k
    return first


def test_a_product_of_sums_too_many_to_multiply_out_is_one_mixture(generator):
    kernel = many(9, 0.3) * many(8, 0.5)
    term = only_term(kernel, 1)
    assert 9 * 8 > LARGEST_TERM_COUNT
    assert float(term.variance) == pytest.approx(covariance(kernel, np.zeros((1, 1)), np.zeros((1, 1)))[0, 0])
    assert_is_measure_of(kernel, 1, frequencies(term.measure(1), generator))


def test_mixtures_nest(generator):
    """A mixture inside a product on a coordinate inside a mixture."""
    inner = many(9, 0.3) * (many(5, 0.5) + K.Cosine(0.7) * K.Periodic(1.0, 0.5) + K.Linear() + K.Polynomial(2))
    kernel = (inner.on(1) + K.Matern(0.5, [0.1, 0.4])) * many(25, 0.2)
    terms = kernel.terms(2)
    plain = [t for t in terms if not t.forms]
    assert len(terms) <= 4 and len(plain) == 1
    stationary = many(9, 0.3) * (many(5, 0.5) + K.Cosine(0.7) * K.Periodic(1.0, 0.5))
    expected = (stationary.on(1) + K.Matern(0.5, [0.1, 0.4])) * many(25, 0.2)
    assert_is_measure_of(expected, 2, frequencies(plain[0].measure(2), generator))


DISCRETE = {
    "periodic": (K.Periodic(0.9, 0.8), 1),
    "periodic, short": (K.Periodic(0.05, 0.8), 1),
    "periodic in two dimensions": (K.Periodic([0.9, 1.4], [0.8, 1.3]), 2),
    "cosine": (K.Cosine(0.9), 1),
    "two equal cosines": (K.Cosine(0.9) * K.Cosine(0.9), 1),
    "periodic times cosine": (K.Periodic(0.7, 1.0) * K.Cosine(0.3), 1),
    "on a coordinate": (K.Periodic(0.7, 1.0).on(1) * K.Cosine(0.3).on(0), 2),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_atoms_are_the_kernel_s_cosine_series(name):
    kernel, d = DISCRETE[name]
    atoms = only_term(kernel, d).measure(d).atoms()
    assert atoms is not None
    theta, mass = atoms
    r = torch.rand(9, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert (mass >= 0).all() and float(mass.sum()) == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(torch.cos(r @ theta.mT) @ mass, covariance(kernel, r, 0 * r[:1])[:, 0], atol=1e-11)


def test_atoms_are_not_listed_where_there_are_none_or_too_many():
    assert K.RBF().measure(1).atoms() is None
    assert only_term(K.RBF() * K.Cosine(), 1).measure(1).atoms() is None
    assert K.Periodic(0.01, 1.0).measure(3).atoms() is None
    assert 1500**3 > spectral.LARGEST_ATOM_COUNT


def with_alpha(alpha: Tensor):
    return K.RationalQuadratic(alpha, 0.5)


def with_lengthscale(lengthscale: Tensor):
    return K.Periodic(lengthscale, 0.8)


def with_both(alpha: Tensor):
    return K.RationalQuadratic(alpha, 0.5) * K.Periodic(alpha, 0.8)


def with_weights(weight: Tensor):
    return (weight * K.RBF(0.2) + K.RBF(0.9)) * many(40, 0.2)


GRADIENTS = {
    "a Gamma's shape": (with_alpha, 0.8),
    "a lattice's masses": (with_lengthscale, 0.9),
    "a product": (with_both, 0.9),
    "a mixture's weights": (with_weights, 2.0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_importance_is_one_and_has_the_gradient_that_no_frequency_carries(name, generator):
    build, value = GRADIENTS[name]
    parameter = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    term = only_term(build(parameter), 1)
    measure = term.measure(1)
    U = torch.rand(64, 512, measure.num_uniforms, generator=generator, dtype=torch.float64)
    importance = measure.importance(U)
    assert importance is not None and torch.equal(importance.detach(), torch.ones(64, 512, dtype=torch.float64))
    k = term.variance * (importance * torch.cos(0.3 * measure.frequencies(U)[..., 0])).mean(-1)  # 64 estimates
    slopes = torch.stack([torch.autograd.grad(k_i, parameter, retain_graph=True)[0] for k_i in k])
    zero = np.zeros((1, 1))
    high, low = (
        covariance(build(torch.tensor(value + step, dtype=torch.float64)), zero + 0.3, zero)[0, 0]
        for step in (1e-4, -1e-4)
    )
    error = float(slopes.std()) / 8
    assert abs(float(slopes.mean()) - (high - low) / 2e-4) < stats.norm.isf(LEVEL / 2) * error
    assert error < 0.1 * abs(high - low) / 2e-4 + 0.01


def test_importance_is_absent_where_nothing_needs_it():
    U = torch.full((3, 4), 0.5, dtype=torch.float64)
    for kernel in (K.RBF(), K.RationalQuadratic(), K.Periodic(), K.RBF() * K.Periodic()):
        measure = only_term(kernel, 1).measure(1)
        assert measure.importance(U[:, : measure.num_uniforms]) is None


@pytest.mark.parametrize("kernel", [K.RBF([0.3, 2.0, 1.0]), K.Matern(1.2, 0.5), K.RationalQuadratic(0.8, 0.5)])
def test_radius_is_the_length_of_a_frequency(kernel, generator):
    measure = kernel.measure(3)
    assert isinstance(measure, spectral._Elliptical)
    length = (frequencies(measure, generator, 4000) / measure.scale).norm(dim=-1)
    U = torch.rand(4000, 1 + measure.num_mixing_uniforms, generator=generator, dtype=torch.float64)
    assert stats.ks_2samp(length, measure.radius(U)).pvalue > LEVEL  # type: ignore[attr-defined]


def test_a_kernel_without_a_measure_says_so():
    with pytest.raises(TypeError, match=r"Linear has no spectral measure of its own; expand it with .terms"):
        K.Linear().measure(1)
    with pytest.raises(TypeError, match="SpectralMixture has no spectral measure"):
        K.SpectralMixture([1.0, 1.0], [[0.0], [1.0]], [[1.0], [1.0]]).measure(1)
