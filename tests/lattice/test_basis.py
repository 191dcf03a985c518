"""The lattice: a kernel's Fourier series on a box, accurate to what it says, and its transforms against plain sums."""

import math
from typing import Any

import pytest
import torch
from scipy.stats import t as student
from torch import Tensor

import matheron
from matheron import kernels as K
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import decoupled_moments, moments
from matheron.core import nufft
from matheron.evaluate import BLOCKS
from matheron.features import FeatureSpec, make_features, posterior_scale
from standard import covariance, features_of, kernel_error

UNIT = (0.0, 1.0)


def points(d: int, domain=UNIT, n: int = 12) -> Tensor:
    """Points of the domain, both of its far corners among them."""
    x = torch.rand(n, d, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    x = torch.cat([x, torch.zeros(1, d), torch.ones(1, d)]).double()
    return domain[0] + (domain[1] - domain[0]) * x


def lattice_of(kernel, d: int, domain=UNIT, **settings):
    """Features on a lattice, to an accuracy of one's own."""
    origin = torch.linspace(-0.3, 0.5, d, dtype=torch.float64)
    box = torch.tensor(domain, dtype=torch.float64)[:, None].expand(2, d)
    spec = FeatureSpec("lattice", domain=box, paths_per_basis=None, **settings)
    return make_features(kernel, spec, torch.Generator().manual_seed(0), origin=origin, like=origin[None])


ACCURATE = {
    "RBF": (K.RBF(0.3), 1),
    "RBF, shorter than the domain by far": (K.RBF(0.01), 1),
    "RBF, as long as the domain": (K.RBF(1.0), 1),
    "RBF, far longer than the domain": (K.RBF(50.0), 1),
    "Matern 1/2": (K.Matern(0.5, 0.3), 1),
    "Matern 3/2": (K.Matern(1.5, 0.3), 1),
    "Matern 5/2": (K.Matern(2.5, 0.3), 1),
    "Matern 5/2, long": (K.Matern(2.5, 20.0), 1),
    "Matern of another order": (K.Matern(0.9, 0.3), 1),
    "rational quadratic": (K.RationalQuadratic(2.0, 0.3), 1),
    "rational quadratic of heavy tails": (K.RationalQuadratic(0.3, 0.2), 1),
    "spectral mixture": (K.SpectralMixture([1.0, 0.5], [[3.0], [0.0]], [[0.5], [2.0]]), 1),
    "product with periodic": (K.RBF(0.5) * K.Periodic(1.0, 0.3), 1),
    "sum of unequal terms": (K.RBF(1.0) + 1e-3 * K.Matern(1.5, 0.05), 1),
    "ARD in two dimensions": (K.RBF([0.3, 2.0]), 2),
    "product across coordinates": (K.RBF(0.4).on(0) * K.Matern(2.5, 0.5).on(1), 2),
    "product with a coordinate that repeats": (K.RBF(0.5).on(0) * K.Periodic(0.9, 0.5).on(1), 2),
    "sum across coordinates": (K.RBF(0.4).on(0) + 2 * K.Matern(2.5, 0.5).on(1) + K.RBF(0.3), 2),
    "product of two kernels": (K.RBF(0.4) * K.Matern(2.5, 0.5), 2),
    "Matern 5/2 in two dimensions": (K.Matern(2.5, 0.3), 2),
    "rational quadratic in two dimensions": (K.RationalQuadratic(1.2, 0.5), 2),
    "shifted mixture in two dimensions": (K.SpectralMixture([1.0], [[2.0, -1.0]], [[0.5, 0.8]]), 2),
    "turned": (K.Rotated(K.RBF([0.8, 0.1]), 30.0), 2),
    "turned in three dimensions": (K.Rotated(K.RBF([0.2, 0.6]), -50.0).on([0, 2]) * K.RBF(0.7).on(1), 3),
    "RBF in three dimensions": (K.RBF(0.5), 3),
    "Matern 5/2 in three dimensions": (K.Matern(2.5, 0.8), 3),
    "terms of one to three dimensions": (K.RBF(0.6) + K.RBF(0.3).on(1) + K.Matern(2.5, 0.4).on([0, 2]), 3),
}


@pytest.mark.parametrize("name", ACCURATE)
def test_the_covariance_is_the_kernel_s_to_the_error_that_is_stated(name):
    kernel, d = ACCURATE[name]
    features = lattice_of(kernel, d)
    assert features.num_bases == 1  # nothing random in it
    assert {choice.kind for choice in features.choices} == {"lattice"}
    stated = sum(choice.error or 0.0 for choice in features.choices)
    scale = covariance(kernel, points(d)[:1], points(d)[:1]).item()
    error = kernel_error(features, kernel, points(d)).abs().max() / scale
    assert error < 1.5 * stated + 1e-9
    assert error < 2e-3


def test_a_smaller_tolerance_gives_a_smaller_error():
    errors = []
    for tolerance in (1e-2, 1e-4, 1e-6):
        features = lattice_of(K.Matern(2.5, 0.3), 1, tolerance=10 * tolerance)
        errors.append(float(kernel_error(features, K.Matern(2.5, 0.3), points(1)).abs().max()))
    assert errors[1] < 0.05 * errors[0] and errors[2] < 0.05 * errors[1]


def test_variance_is_kept_where_modes_are_too_few():
    """What lies beyond the last mode goes to the outermost octave: the variance is right, and it is said."""
    kernel = K.Matern(0.5, 0.2)
    for count in (33, 129, 1025):
        features = features_of(kernel, 1, count, "equispaced", domain=UNIT)
        assert features.num_features <= count
        assert kernel_error(features, kernel, points(1)).diagonal(dim1=1, dim2=2).abs().max() < 0.02
        (choice,) = features.choices
        assert choice.left_out is not None and 0.01 < choice.left_out * count / 33 < 1
        assert "of the variance left out" in features.description


@pytest.mark.parametrize("domain", [(-3.0, 5.0), (1e4, 1e4 + 0.5)])
def test_domain_may_be_anywhere(domain):
    kernel = K.RBF(0.4 * (domain[1] - domain[0]))
    features = lattice_of(kernel, 2, domain)
    assert kernel_error(features, kernel, points(2, domain)).abs().max() < 1e-3
    assert torch.equal(features.domain, torch.tensor(domain, dtype=torch.float64)[:, None].expand(2, 2))


def test_a_domain_may_be_thousands_of_lengthscales_long():
    for side, most in ((1e3, 6000), (1e4, 60_000)):
        features = lattice_of(K.RBF(0.3), 1, (0.0, side))
        near = torch.cat([points(1), side - points(1), side * points(1)])
        assert features.num_features < most
        assert kernel_error(features, K.RBF(0.3), near).abs().max() < 1e-3
    with pytest.raises(ValueError, match=r"whose frequencies on the domain fit in memory, got one of 2; use a smaller"):
        lattice_of(K.RBF(0.3), 2, (0.0, 1e4))


# The three failures of the features that lattices replace.


def distance_ratio(gp, x: Tensor, paths, s: int = 1000) -> float:
    """W2 of s draws with the basis's covariance over that of s exact draws, both expected."""
    exact, ours = moments(gp, x), decoupled_moments(gp, paths, x)
    C = exact.covariance
    values, vectors = torch.linalg.eigh(C)
    R = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    draws = R @ torch.randn(len(x), s, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    floor = gaussian_wasserstein(exact.mean, draws @ draws.mT / s, exact.mean, C)
    return math.hypot(gaussian_wasserstein(ours.mean, ours.covariance, exact.mean, C), floor) / floor


def problem(kernel, d: int, n: int, noise: float, side: float = 1.0, seed: int = 0, n_test: int = 100):
    g = torch.Generator().manual_seed(seed)
    X = side * torch.rand(n, d, generator=g, dtype=torch.float64)
    y = torch.randn(n, generator=g, dtype=torch.float64)
    x = side * torch.rand(n_test, d, generator=g, dtype=torch.float64)
    return matheron.ExactGP(kernel, X, y, noise=noise), x


def test_no_variance_is_lost_where_the_box_wraps():
    gp, x = problem(K.Matern(1.5, 1.19), 2, 30, 1e-5)
    exact = moments(gp, x).covariance.diagonal()
    paths = matheron.draw(gp, 2, domain=UNIT, generator=torch.Generator().manual_seed(0))
    ours = decoupled_moments(gp, paths, x).covariance.diagonal()
    assert float((ours.sum() / exact.sum() - 1).abs()) < 0.01


@pytest.mark.parametrize("nu, lengthscale, d", [(1.5, 10.0, 2), (1.5, 3.0, 1), (2.5, 10.0, 2)])
def test_what_lies_beyond_the_modes_is_what_the_spectrum_has_there(nu, lengthscale, d):
    """Along an axis, frequencies times the lengthscale have Student's distribution with 2 nu degrees of freedom."""
    features = lattice_of(K.Matern(nu, lengthscale), d, tolerance=1e-5, num_paths=64)
    lattice: Any = features.bases[0]
    ends = [2 * math.pi * (size // 2 + 0.5) / float(p) for size, p in zip(lattice.shape, lattice.period, strict=True)]
    beyond = sum(2 * student.sf(end * lengthscale, 2 * nu) for end in ends)
    assert lattice.left_out == pytest.approx(beyond, rel=0.1)


def test_no_variance_is_lost_where_a_lengthscale_is_ten_times_the_domain_and_noise_is_small():
    gp, x = problem(K.Matern(1.5, 10.0), 2, 100, 1e-8)
    paths = matheron.draw(gp, 512, domain=UNIT, generator=torch.Generator().manual_seed(0))
    exact = moments(gp, x)
    z = (paths(x) - exact.mean) / exact.covariance.diagonal().sqrt()
    assert float(z.square().mean()) == pytest.approx(1.0, abs=0.1)


def test_narrow_bands_are_not_aliased():
    wide = K.SpectralMixture([1.0], [[30.0]], [[0.01]])
    features = lattice_of(wide, 1, (0.0, 100.0))
    assert kernel_error(features, wide, points(1, (0.0, 100.0), n=60)).abs().max() < 2e-3
    gp, x = problem(K.RBF(200.0) * K.Periodic(1.3, 1.0), 1, 80, 1e-2, side=730.0)
    paths = matheron.draw(gp, 2, domain=(0.0, 730.0), generator=torch.Generator().manual_seed(0))
    assert distance_ratio(gp, x, paths) < 1.1


def test_a_daily_cycle_over_years_has_all_of_its_modes():
    """Random frequencies beyond the first 16,000 modes had three times the distance of exact draws."""
    gp, x = problem(K.RBF(200.0) * K.Periodic(1.3, 1.0), 1, 60, 1e-2, side=3000.0)
    paths = matheron.draw(gp, 2, domain=(0.0, 3000.0), seed=0)
    assert [choice.kind for choice in paths.prior.features.choices] == ["lattice"]
    assert distance_ratio(gp, x, paths, s=6000) < 1.05


def test_small_terms_of_a_sum_are_not_starved():
    for kernel, side in (
        (K.RBF(1.0) + 1e-3 * K.Matern(1.5, 0.05), 1.0),
        (
            3600 * K.RBF(60.0) + 5.76 * K.RBF(90.0) * K.Periodic(1.3, 1.0) + 0.36 * K.RationalQuadratic(0.8, 1.2),
            30.0,
        ),
    ):
        gp, x = problem(kernel, 1, 60, 1e-5 if side == 1 else 1e-2, side=side)
        paths = matheron.draw(gp, 2, domain=(0.0, side), generator=torch.Generator().manual_seed(0))
        assert distance_ratio(gp, x, paths) < 1.1


LAW = {
    f"{name}, noise {noise:g}, {d} dimensions": (kernel, d, noise)
    for d in (1, 2, 3)
    for name, kernel in {
        "RBF": K.RBF(0.3),
        "Matern 5/2": K.Matern(2.5, 0.3),
        "Matern 3/2": K.Matern(1.5, 0.4),
        "rational quadratic": K.RationalQuadratic(1.2, 0.3),
        "Matern 1/2": K.Matern(0.5, 0.3),
        "a long Matern 5/2": K.Matern(2.5, 1.2),
    }.items()
    for noise in (1e-6, 1e-3, 1e-1)
}
FAST = [name for name in LAW if "Matern 5/2, noise 0.001" in name and "3 dim" not in name]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in LAW])
def test_the_law_is_that_of_exact_draws(name):
    kernel, d, noise = LAW[name]
    gp, x = problem(kernel, d, 60 * d, noise)
    paths = matheron.draw(gp, 2, domain=UNIT, generator=torch.Generator().manual_seed(0))
    assert distance_ratio(gp, x, paths) < 1.1


@pytest.mark.parametrize("kernel", [K.Matern(2.5, 0.17), K.RBF(2.3)], ids=["clusters", "a long lengthscale"])
def test_one_dimension_has_modes_for_clusters_of_data_and_for_small_noise(kernel):
    gp, x = problem(kernel, 1, 80, 1e-6, seed=3)
    X = gp.train_inputs[:5].repeat(16, 1) + 0.004 * gp.train_inputs
    gp = matheron.ExactGP(kernel, X, gp.train_targets, noise=1e-6)
    paths = matheron.draw(gp, 2, domain=(0.0, 1.01), solver="cholesky", generator=torch.Generator().manual_seed(0))
    assert distance_ratio(gp, x, paths) < 1.07


@pytest.mark.slow
def test_the_law_is_that_of_exact_draws_given_3000_data():
    gp, x = problem(K.Matern(2.5, 0.2), 2, 3000, 1e-3)
    paths = matheron.draw(gp, 2, domain=UNIT, solver="cholesky", generator=torch.Generator().manual_seed(0))
    assert distance_ratio(gp, x, paths) < 1.1


def test_a_rough_map_has_no_stripes():
    """Peak over mean power of single modes, over that which their spectrum predicts, is that of exact draws."""
    kernel, n = K.Matern(0.5, 0.15), 64
    paths = matheron.draw_prior(kernel, 8, input_dim=2, domain=UNIT, generator=torch.Generator().manual_seed(0))
    axis = torch.arange(n, dtype=torch.float64) / n
    maps = paths.on_grid([axis, axis])  # [8, n, n]
    window = torch.hann_window(n, dtype=torch.float64)
    power = torch.fft.fft2(maps * window[:, None] * window).abs().square()
    expected = power.mean(0).roll((n // 2, n // 2), (0, 1))
    j = torch.arange(-(n // 2), n // 2, dtype=torch.float64)
    radius = torch.hypot(j[:, None], j).round().long()
    rings = torch.zeros(int(radius.max()) + 1).double().index_add(0, radius.flatten(), expected.flatten())
    count = torch.zeros(int(radius.max()) + 1).double().index_add(0, radius.flatten(), torch.ones(n * n).double())
    ratio = power.roll((n // 2, n // 2), (1, 2)) / (rings / count)[radius]
    assert float(ratio[:, radius > 4].max()) < 4 * math.log(8 * n * n)  # an exponential variable's largest of 8 n^2


# Sums over modes: products of matrices for few points, transforms for many; and along the axes of grids.

SUMS = {
    "one dimension": (K.RBF(0.1), 1),
    "one column of two": (K.Matern(2.5, 0.3).on(1), 2),
    "two columns of three": (K.RBF([0.2, 0.3]).on([0, 2]), 3),
    "three dimensions": (K.RBF(0.6), 3),
}


def prior(kernel: K.Kernel, d: int, s: int = 5) -> matheron.Paths:
    return matheron.draw_prior(kernel, s, input_dim=d, domain=UNIT, features="lattice", seed=0)


def plain_sums(paths: matheron.Paths, x: Tensor) -> Tensor:
    """w^T phi(x): the weights times the features, without any transform."""
    return paths.prior.weights @ paths.prior.features(x)[0].mT


@pytest.mark.parametrize("library", ["finufft", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [4, 40, 3000])
@pytest.mark.parametrize("name", SUMS)
def test_values_and_gradients_are_sums_of_the_features(name, n, dtype, library, monkeypatch):
    if library == "none":
        monkeypatch.setattr(nufft, "finufft", lambda: None)
    kernel, d = SUMS[name]
    paths, x = prior(kernel, d), points(d, n=n)
    within = (1e-10 if dtype == torch.float64 else 1e-5) * math.sqrt(paths.prior.num_features)
    at = x.clone().requires_grad_()
    expected = plain_sums(paths, at)
    (slope,) = torch.autograd.grad(expected[2].sum(), at)
    typed = paths.to(dtype)
    value, gradient = typed.value_and_grad(x.to(dtype))
    assert (value - expected).abs().max() < within and (typed(x.to(dtype)) - expected).abs().max() < within
    assert (gradient[2] - slope).abs().max() < 30 * within
    own = x.roll(1, 0).expand(5, -1, -1)[:, :30]
    assert (typed(own.to(dtype)) - plain_sums(paths, own[0])).abs().max() < within


@pytest.mark.parametrize("name", SUMS)
def test_sums_can_be_differentiated_twice(name):
    kernel, d = SUMS[name]
    paths, x = prior(kernel, d, 2), points(d, n=30)[:30].requires_grad_()
    assert torch.autograd.gradcheck(paths, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(paths, x, fast_mode=True)


@pytest.mark.parametrize("name", SUMS)
def test_a_tensor_grid_has_the_values_of_its_points(name):
    kernel, d = SUMS[name]
    g = torch.Generator().manual_seed(0)
    axes = [torch.rand(n, generator=g, dtype=torch.float64) for n in (4, 6, 5)[:d]]
    paths = prior(kernel, d)
    listed = plain_sums(paths, torch.cartesian_prod(*axes).reshape(-1, d))
    torch.testing.assert_close(paths.on_grid(axes).flatten(1), listed, atol=1e-9, rtol=1e-9)


AXIS = {
    "fine": torch.linspace(0.1, 0.8, 900, dtype=torch.float64),
    "downwards": torch.linspace(1.0, 0.0, 900, dtype=torch.float64),
    "uneven": torch.linspace(0.0, 1.0, 900, dtype=torch.float64) ** 3,
    "a point": torch.full((900,), 0.3, dtype=torch.float64),
    "in no order": torch.rand(900, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
}


@pytest.mark.parametrize("case", AXIS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_sums_along_a_long_axis_of_a_grid_are_those_of_its_points(case, dtype, error):
    paths, y = prior(K.Matern(2.5, 0.1), 2, 3), torch.tensor([0.2, 0.9], dtype=torch.float64)
    expected = plain_sums(paths, torch.cartesian_prod(AXIS[case], y))
    found = paths.to(dtype).on_grid([AXIS[case].to(dtype), y.to(dtype)]).flatten(1)
    assert float((found - expected).abs().max()) < error * float(expected.abs().max())


def test_gradients_reach_the_lengthscale():
    x = points(1, n=3)
    lengthscale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    Phi = features_of(K.Matern(2.5, lengthscale), 1, 512, "equispaced", domain=UNIT)(x)[0]
    (slope,) = torch.autograd.grad((Phi @ Phi.mT).sum(), lengthscale)
    high, low = (covariance(K.Matern(2.5, 0.3 + step), x, x).sum() for step in (1e-6, -1e-6))
    assert float(slope) == pytest.approx((high - low) / 2e-6, rel=1e-2)


def test_the_graph_reaches_what_lies_beyond_the_modes():
    """With a graph modes are few: at short distances the gradient is that of the frequencies beyond them."""
    lengthscale = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    features = matheron.draw_prior(
        K.Matern(0.5, lengthscale), 64, input_dim=2, domain=UNIT, detach=False, paths_per_basis=1, seed=0
    ).prior.features
    assert [choice.kind for choice in features.choices] == ["lattice", "spectrum"]
    x = torch.tensor([[0.5, 0.5], [0.501, 0.5], [0.5, 0.502]], dtype=torch.float64)
    Phi = features(x)  # [g, n, ell]
    variogram = (Phi[:, :1] - Phi[:, 1:]).square().sum(-1).mean(0)  # [2]
    slopes = torch.stack([torch.autograd.grad(v, lengthscale, retain_graph=True)[0] for v in variogram])
    r = torch.tensor([0.001, 0.002], dtype=torch.float64)
    torch.testing.assert_close(variogram.detach(), 2 - 2 * torch.exp(-r / 0.1), rtol=0.05, atol=0)
    torch.testing.assert_close(slopes, -2 * torch.exp(-r / 0.1) * r / 0.1**2, rtol=0.05, atol=0)


def test_posterior_scale_is_near_the_average_posterior_variance():
    for n, noise in ((40, 1e-4), (300, 1e-2)):
        gp, x = problem(K.Matern(2.5, 0.4), 2, n, noise)
        exact = float(moments(gp, 0.1 + 0.8 * x).covariance.diagonal().mean())  # between the data
        assert 0.3 < posterior_scale(gp.kernel, gp.train_inputs, gp.noise) / exact < 3


@pytest.mark.parametrize("n", [1, 12])
def test_isolated_data_with_little_noise_need_no_more_modes_than_with_much(n):
    """What is open is so between data, not at them: a rough kernel took a million modes for one datum."""
    X = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    noisy, precise = (
        matheron.draw(matheron.ExactGP(K.Matern(0.5, 0.5), X, X[:, 0], noise), 2, domain=UNIT, seed=0).prior.features
        for noise in (1e-2, 1e-8)
    )
    assert precise.num_features < 2 * noisy.num_features < 1 << 18


def test_refuses_what_has_no_series():
    with pytest.raises(ValueError, match='features="lattice" needs domain='):
        matheron.draw_prior(K.RBF(), 1, input_dim=1, features="lattice")
    with pytest.raises(ValueError, match=r"needs a kernel of at most 3 dimensions .*, got one of 4; use"):
        features_of(K.RBF(), 4, 8, "lattice", domain=UNIT)
    with pytest.raises(ValueError, match="tolerance: expected a number between 0 and 1"):
        matheron.draw_prior(K.RBF(), 1, input_dim=1, domain=UNIT, tolerance=2.0)


def test_auto_takes_random_features_where_there_is_no_series():
    kernel = K.RBF(0.5).on(0) * K.Periodic(0.9, 0.5).on(1) * K.Cosine(0.3).on(1)
    features = features_of(kernel, 2, 64, "auto", domain=UNIT)
    assert features.description == "64 sobol" and features.domain is None


def test_own_points_shared_points_grids_and_plain_sums_agree():
    """Cosines over the same modes, summed in blocks, give the same function."""
    kernel = K.RBF(0.4) + K.Linear() + 0.5 * K.Matern(2.5, 0.3).on(1)
    gp, x = problem(kernel, 2, 20, 1e-3, n_test=200)
    free = matheron.draw_prior(kernel, 3, input_dim=2, domain=UNIT, seed=0)
    posterior = matheron.draw(gp, 3, domain=UNIT, generator=torch.Generator().manual_seed(0))
    # Given data, a path in float32 has the rounding of its update's large weights, too.
    for paths, within in ((posterior, 1e-9), (free.float(), 1e-5), (posterior.float(), 1e-4)):
        dtype = paths.dtype
        at, scale = x.to(dtype), float(paths(x).abs().max())
        plain = BLOCKS.values(paths.record, at[None, :20])[..., 0]  # the one that serves all records
        assert (paths(at)[:, :20] - plain).abs().max() < within * scale
        own = at.expand(3, -1, -1)
        assert (paths(own) - paths(at)).abs().max() < within * scale
        value, gradient = paths.value_and_grad(at)
        own_value, own_gradient = paths.value_and_grad(own)
        assert (own_value - value).abs().max() < within * scale
        assert (own_gradient - gradient).abs().max() < 20 * within * scale
        some, slope = paths.value_and_grad(at[:4], of=[2, 0, 0, 1])
        assert (some - value[[2, 0, 0, 1], [0, 1, 2, 3]]).abs().max() < within * scale
        assert (slope - gradient[[2, 0, 0, 1], [0, 1, 2, 3]]).abs().max() < 20 * within * scale


def test_blocks_of_a_grid_agree_whether_they_are_large_or_small():
    """The first by transforms of rows, the others by products with waves: no seams."""
    paths = matheron.draw_prior(K.Matern(1.5, 0.05), 3, input_dim=2, domain=(0.0, 1.0), seed=0)
    x, y = torch.linspace(0, 1, 420, dtype=torch.float64), torch.linspace(0, 1, 390, dtype=torch.float64)
    whole = paths.on_grid([x, y])
    small = paths.on_grid([x[100:150], y[200:230]])
    assert float((whole[:, 100:150, 200:230] - small).abs().max()) < 1e-12
    assert float((paths.on_grid([x.flip(0), y]).flip(1) - whole).abs().max()) < 1e-12
