"""Spectral measures: E cos(theta . (x - x')) is the kernel, however the measure was put together."""

import math

import numpy as np
import pytest
import torch
from scipy import special as scipy_special
from scipy import stats
from torch import Tensor

from matheron import kernels as K
from matheron.kernels import composed_measures, radial
from matheron.kernels.radial import gamma_quantile
from matheron.kernels.rational_quadratic import GammaScaled, log_bessel_k
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
    assert isinstance(measure, radial.Elliptical)
    length = (frequencies(measure, generator, 4000) / measure.scale).norm(dim=-1)
    U = torch.rand(4000, 1 + measure.num_mixing_uniforms, generator=generator, dtype=torch.float64)
    assert stats.ks_2samp(length, measure.radius(U)).pvalue > LEVEL  # type: ignore[attr-defined]


def test_a_kernel_without_a_measure_says_so():
    with pytest.raises(
        TypeError,
        match=r"Linear: expected a kernel with a spectral measure of its own, got one without; write `measure",
    ):
        K.Linear().measure(1)
    with pytest.raises(TypeError, match="SpectralMixture: expected a kernel with a spectral measure"):
        K.SpectralMixture([1.0, 1.0], [[0.0], [1.0]], [[1.0], [1.0]]).measure(1)


DENSITIES = {  # each with its number of dimensions, and the coordinates that its density is over
    "RBF": (K.RBF([0.6, 0.9]), 2, [0, 1]),
    "Matern 1/2": (K.Matern(0.5, 0.8), 1, [0]),
    "Matern 3/2": (K.Matern(1.5, [0.5, 0.9]), 2, [0, 1]),
    "Matern 3.7": (K.Matern(3.7, 0.7), 2, [0, 1]),
    "rational quadratic": (K.RationalQuadratic(4.0, [0.4, 0.9]), 2, [0, 1]),
    "spectral mixture of one": (K.SpectralMixture([1.0], [[0.4, -0.7]], [[0.3, 0.2]]), 2, [0, 1]),
    "on some coordinates": (K.Matern(1.5, [0.4, 0.8]).on([2, 0]), 3, [0, 2]),
    "a product across coordinates": (K.RBF(0.5).on(1) * K.Matern(2.5, 0.6).on(0), 2, [0, 1]),
    "a product across coordinates, one shifted": (
        K.RBF(0.5).on(1) * K.SpectralMixture([1.0], [[0.4]], [[0.3]]).on(0),
        2,
        [0, 1],
    ),
    "a product of RBFs": (K.RBF([0.5, 0.8]) * K.RBF([0.9, 0.7]), 2, [0, 1]),
}


def smoothed_by_density(measure, dims: list[int], r: Tensor, width: float) -> Tensor:
    """The integral of S(theta) exp(-|width theta|^2 / 2) cos(theta . r), by the trapezoidal rule; r is over dims."""
    step = 0.1
    axis = torch.arange(-8 / width, 8 / width, step, dtype=torch.float64)
    grid = torch.cartesian_prod(*[axis] * len(dims)).reshape(-1, len(dims))
    theta = torch.zeros(len(grid), measure.input_dim, dtype=torch.float64)
    theta[:, dims] = grid
    weight = measure.density(theta) * torch.exp(-(width**2) * grid.square().sum(-1) / 2) * step ** len(dims)
    return torch.stack([(weight * torch.cos(grid @ r_i)).sum() for r_i in r])


def smoothed_kernel(kernel, d: int, dims: list[int], r: Tensor, width: float) -> np.ndarray:
    """E k(r + width zeta), zeta normal, by Gauss and Hermite: the same by the convolution theorem."""
    nodes, weights = (torch.tensor(v, dtype=torch.float64) for v in np.polynomial.hermite_e.hermegauss(40))
    zeta = torch.cartesian_prod(*[nodes] * len(dims)).reshape(-1, len(dims))
    mass = torch.cartesian_prod(*[weights / weights.sum()] * len(dims)).reshape(-1, len(dims)).prod(-1).numpy()
    x = torch.zeros(len(r), len(zeta), d, dtype=torch.float64)
    x[..., dims] = r[:, None] + width * zeta
    return covariance(kernel, x.reshape(-1, d), torch.zeros(1, d)).reshape(len(r), -1) @ mass


@pytest.mark.parametrize("name", DENSITIES)
def test_the_density_s_fourier_transform_is_the_kernel(name):
    kernel, d, dims = DENSITIES[name]
    measure = only_term(kernel, d).measure(d)
    assert measure.density_dims == dims
    r = torch.tensor([[1.3, 0.3], [1.0, -0.9]], dtype=torch.float64)[:, : len(dims)]
    found = smoothed_by_density(measure, dims, r, 0.15).numpy()
    assert np.abs(found - smoothed_kernel(kernel, d, dims, r, 0.15)).max() < 1e-6


COMPOUNDS = {
    "RBF and Matern": (1, K.RBF(0.8), K.Matern(0.5, 0.5)),
    "two Matern kernels of 1/2, whose variances are joined": (1, K.Matern(0.5, 0.5), K.Matern(0.5, 1.0)),
    "rational quadratic and Matern, ARD": (2, K.RationalQuadratic(0.7, [0.9, 1.8]), K.Matern(2.5, [0.6, 1.2])),
    "three": (2, K.Matern(1.5, 0.9), K.RBF(2.0), K.Matern(3.5, 1.1)),
    "RBFs of unlike lengthscales": (2, K.RBF([0.5, 1.0]), K.RBF([2.0, 0.9])),
}


@pytest.mark.parametrize("name", COMPOUNDS)
def test_a_product_of_radial_kernels_with_proportional_lengthscales_has_an_elliptical_measure(name, generator):
    d, *factors = COMPOUNDS[name]
    product = math.prod(factors[1:], start=factors[0])
    measure = factors[0].measure(d)
    for factor in factors[1:]:
        measure = composed_measures.compound([measure, factor.measure(d)])
        assert measure is not None
    r = torch.tensor([[1.3, 0.3], [1.0, -0.9]], dtype=torch.float64)[:, :d]
    found = smoothed_by_density(measure, list(range(d)), r, 0.15).numpy()
    assert np.abs(found - smoothed_kernel(product, d, list(range(d)), r, 0.15)).max() < 2e-5
    assert_is_measure_of(product, d, frequencies(measure, generator))


def test_other_products_have_none():
    def differentiable():
        kernel = K.Matern(1.5, 1.0)
        kernel.lengthscale.requires_grad_(True)
        return kernel.measure(2)

    matern, shifted = K.Matern(1.5, 1.0).measure(2), K.SpectralMixture([1.0], [[0.5, 0.2]], [[0.3, 0.3]]).measure(2)
    for other in (K.RBF([1.0, 2.0]).measure(2), differentiable(), shifted, K.Spherical(2.0).measure(2)):
        assert composed_measures.compound([matern, other]) is None
    assert composed_measures.compound([shifted, shifted]) is None


def test_a_mixture_s_density_is_the_mean_of_its_parts():
    parts = [K.Matern(1.5, 0.6).measure(2), K.RBF(0.9).measure(2)]
    theta = torch.randn(5, 2, dtype=torch.float64)
    mixed = composed_measures.Mixture(torch.tensor([1.0, 3.0], dtype=torch.float64), parts)
    found, first, second = (m.density(theta) for m in (mixed, *parts))
    assert found is not None and first is not None and second is not None
    assert torch.allclose(found, 0.25 * first + 0.75 * second)


@pytest.mark.parametrize(
    "kernel",
    [
        K.Periodic(0.9, 0.8),
        K.Cosine(0.9),
        K.RBF(0.6) * K.Matern(1.5, 0.9),
        K.RBF(0.6) * K.Periodic(0.9, 0.8),
        K.SpectralMixture([1.0], [[0.4]], [[0.0]]),
    ],
    ids=["periodic", "cosine", "a convolution", "smeared atoms", "a mixture's part of no width"],
)
def test_where_there_is_no_density_there_is_none(kernel):
    measure = only_term(kernel, 1).measure(1)
    assert measure.density_dims is None and measure.density(torch.ones(3, 1, dtype=torch.float64)) is None
    on_different = composed_measures.Mixture(torch.ones(2), [K.RBF().on(0).measure(2), K.RBF().on(1).measure(2)])
    assert on_different.density(torch.ones(3, 2, dtype=torch.float64)) is None


@pytest.mark.parametrize("order", [0.0, 0.3, -2.2, 9.2])
def test_bessel_functions_are_scipy_s(order):
    s = torch.logspace(-8, 4, 200, dtype=torch.float64)
    expected = np.log(scipy_special.kve(order, s.numpy())) - s.numpy()
    kept = np.isfinite(expected)
    for graph in (False, True):  # two codes
        found = log_bessel_k(torch.tensor(order, dtype=torch.float64, requires_grad=graph), s).detach().numpy()
        assert np.isfinite(found).all()
        assert np.abs(found - expected)[kept].max() < 1e-11 * np.abs(expected[kept]).max()


def test_densities_are_differentiable_in_hyperparameters():
    theta = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def log_density(lengthscale: Tensor, alpha: Tensor) -> Tensor:
        scale = 1 / lengthscale
        measures = [GammaScaled(scale, alpha), radial.Student(scale, 1.3), radial.Gaussian(scale, scale)]
        return torch.stack([m.log_density(theta) for m in measures])

    lengthscale = torch.tensor([0.6, 1.4], dtype=torch.float64, requires_grad=True)
    for alpha in (0.7, 3.0):
        alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(log_density, (lengthscale, alpha))


@pytest.mark.parametrize("shape", [0.1, 0.5, 2.5, 40.0])
def test_tabulated_gamma_quantiles_are_scipy_s_up_to_the_last_uniforms(shape):
    ends = 2.0 ** -torch.arange(1, 54, dtype=torch.float64)
    u = torch.cat([torch.linspace(0.001, 0.999, 500, dtype=torch.float64), ends, 1 - ends])
    exact = torch.from_numpy(scipy_special.gammaincinv(shape, u.numpy()) / shape).clamp_min(1e-30)
    torch.testing.assert_close(gamma_quantile(u, shape), exact, rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_density_of_spherical_has_its_derivative_in_the_range(d):
    theta = torch.cat([torch.linspace(0.1, 40, 60, dtype=torch.float64), torch.tensor([3e4], dtype=torch.float64)])
    theta = theta[:, None] * torch.ones(d, dtype=torch.float64) / math.sqrt(d)

    def total(scale: Tensor) -> Tensor:
        density = K.Spherical(scale).measure(d).density(theta)
        assert density is not None
        return density

    at = torch.tensor(0.8, dtype=torch.float64)
    torch.testing.assert_close(
        _derivative(total, at), (total(at + 1e-5) - total(at - 1e-5)) / 2e-5, rtol=1e-5, atol=1e-7
    )


def _derivative(function, at: Tensor) -> Tensor:
    at = at.clone().requires_grad_()
    return torch.stack([torch.autograd.grad(value, at, retain_graph=True)[0] for value in function(at)])


def test_a_density_at_one_frequency_is_a_number():
    measure = K.RationalQuadratic(1.3, 0.5).measure(2)
    theta = torch.tensor([0.3, 0.4], dtype=torch.float64)
    alone, among = measure.log_density(theta), measure.log_density(theta[None])
    assert alone is not None and among is not None
    torch.testing.assert_close(alone, among[0])
