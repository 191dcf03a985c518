"""Equispaced features: the kernel's Fourier series on a box, accurate to what it says."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from matheron import kernels as K
from matheron.features.choose import CAPTURED_SHARE, LARGEST_WRAP
from matheron.features.equispaced import fourier_series
from standard import assert_unbiased, covariance, features_of, kernel_error

UNIT = (0.0, 1.0)


def points(d: int, domain=UNIT, n: int = 12) -> Tensor:
    """Points of the domain, both of its far corners among them."""
    x = torch.rand(n, d, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    x = torch.cat([x, torch.zeros(1, d), torch.ones(1, d)]).double()
    return domain[0] + (domain[1] - domain[0]) * x


def series_of(kernel, d: int, count: int, domain=UNIT, largest_wrap: float = 1.0):
    (term,) = kernel.terms(d)
    sides = torch.tensor(domain, dtype=torch.float64)[:, None].expand(2, d)
    return fourier_series(term, d, count, sides, largest_wrap=largest_wrap)


ACCURATE = {
    "RBF": (K.RBF(0.3), 1, 64, 2e-6),
    "RBF, shorter than the domain by far": (K.RBF(0.01), 1, 1000, 2e-6),
    "RBF, as long as the domain": (K.RBF(1.0), 1, 64, 2e-6),
    "RBF, far longer than the domain": (K.RBF(50.0), 1, 64, 2e-6),
    "Matern 5/2": (K.Matern(2.5, 0.3), 1, 512, 2e-6),
    "Matern 3/2": (K.Matern(1.5, 0.3), 1, 512, 2e-3),
    "Matern 5/2, long": (K.Matern(2.5, 20.0), 1, 512, 2e-6),
    "rational quadratic": (K.RationalQuadratic(2.0, 0.3), 1, 512, 2e-3),
    "spectral mixture": (K.SpectralMixture([1.0], [[3.0]], [[0.5]]), 1, 64, 2e-6),
    "product with periodic": (K.RBF(0.5) * K.Periodic(1.0, 0.3), 1, 256, 2e-6),
    "RBF in two dimensions": (K.RBF([0.3, 2.0]), 2, 1024, 3e-6),
    "product across coordinates": (K.RBF(0.4).on(0) * K.Matern(2.5, 0.5).on(1), 2, 2048, 2e-3),
    "Matern 5/2 in two dimensions": (K.Matern(2.5, 0.3), 2, 4096, 5e-3),
    "RBF in three dimensions": (K.RBF(0.5), 3, 4096, 5e-6),
}


@pytest.mark.parametrize("name", ACCURATE)
def test_error_is_what_is_stated(name):
    kernel, d, ell, bound = ACCURATE[name]
    features = features_of(kernel, d, ell, "equispaced", domain=UNIT)
    assert ell - 1 <= features.num_features <= ell
    assert features.num_bases == 1  # nothing random in it
    assert kernel_error(features, kernel, points(d)).abs().max() < bound


@pytest.mark.parametrize("domain", [(-3.0, 5.0), (1e4, 1e4 + 0.5)])
def test_domain_may_be_anywhere(domain):
    kernel = K.RBF(0.4 * (domain[1] - domain[0]))
    features = features_of(kernel, 2, 1024, "equispaced", domain=domain)
    assert kernel_error(features, kernel, points(2, domain)).abs().max() < 3e-6
    assert torch.equal(features.domain, torch.tensor(domain, dtype=torch.float64)[:, None].expand(2, 2))


def root(A: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(A)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.mT


def wasserstein(A: Tensor, B: Tensor) -> float:
    """2-Wasserstein distance of N(0, A) and N(0, B), without cancellation: |R - Q U V^T| with Q R = U S V^T."""
    R, Q = root(A), root(B)
    U, _, Vt = torch.linalg.svd(Q @ R)
    return float((R - Q @ U @ Vt).norm())


@pytest.mark.parametrize(("d", "ell", "times"), [(1, 256, 100), (2, 1024, 5)])
def test_distance_to_the_prior_is_far_below_that_of_random_features_in_few_dimensions(d, ell, times):
    """In the paper's setting, Matern 5/2 with a lengthscale of sqrt(d / 100); a random basis errs by its rank."""
    kernel, x = K.Matern(2.5, math.sqrt(d / 100)), points(d, n=200)
    exact = torch.from_numpy(covariance(kernel, x, x))
    ours, sobol = (
        wasserstein(exact, exact + kernel_error(features_of(kernel, d, ell, kind, domain=UNIT), kernel, x)[0])
        for kind in ("equispaced", "sobol")
    )
    assert ours < sobol / times


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_captured_share_is_the_spectral_measure_s(nu):
    """In one dimension what is kept is an interval of frequencies, whose mass is a t distribution's."""
    for ell in (33, 257):
        series = series_of(K.Matern(nu, 0.2), 1, ell)
        assert series is not None
        half_step = float(series.theta[series.theta > 0].min()) / 2
        limit = float(series.theta[: series.kept].max()) + half_step
        lost = 2 * stats.t.sf(limit * 0.2, df=2 * nu)
        assert 1 - series.captured == pytest.approx(lost, rel=0.2, abs=1e-5)


def test_wrap_is_the_largest_error_of_the_box():
    for kernel, d, ell in ((K.Matern(0.5, 0.3), 1, 512), (K.Matern(1.5, 0.3), 2, 4096), (K.RBF(0.3), 2, 1024)):
        series = series_of(kernel, d, ell)
        assert series is not None and series.wrap is not None
        features = features_of(kernel, d, ell, "equispaced", domain=UNIT)
        error = float(kernel_error(features, kernel, points(d)).abs().max())
        assert error < 1.1 * series.wrap + 2 * (1 - series.captured)
        assert error > 0.5 * series.wrap  # the domain's far corners are where it is largest
        within = f", correlations within {series.wrap:.1g}" if series.wrap > LARGEST_WRAP else ""
        assert features.description.endswith(f"holding {series.captured:.2%} of the variance{within}")


@pytest.mark.parametrize("num_features", [1, 2, 3, 4, 8, 9, 33])
@pytest.mark.parametrize(
    "kernel", [K.Matern(0.5, 0.05), K.RBF(0.02), K.Periodic(0.1, 0.5)], ids=["Matern", "RBF", "Periodic"]
)
def test_a_random_tail_carries_what_too_few_features_leave_out(kernel, num_features):
    features = features_of(kernel, 1, num_features, "equispaced", num_bases=400, domain=UNIT)
    assert num_features - 1 <= features.num_features <= num_features
    x = points(1, n=3)
    slack = 0.1 if features.domain is not None else 1e-9  # the box's error
    assert_unbiased(kernel_error(features, kernel, x).diagonal(dim1=1, dim2=2))
    assert_unbiased(kernel_error(features, kernel, x), slack)


EXACT = {
    "periodic": (K.Periodic(0.9, 0.8), 1),
    "periodic in two dimensions": (K.Periodic([0.9, 1.4], [0.8, 1.3]), 2),
    "periodic in four dimensions": (K.Periodic(3.0, 0.7), 4),
    "cosine": (K.Cosine(0.9), 1),
    "two equal cosines": (K.Cosine(0.9) * K.Cosine(0.9), 1),
    "cosine times periodic, on coordinates": (K.Cosine(0.3).on(1) * K.Periodic(1.2, 0.7).on(0), 2),
}


@pytest.mark.parametrize("kind", ["auto", "equispaced"])
@pytest.mark.parametrize("name", EXACT)
def test_discrete_spectra_are_exact_everywhere(name, kind):
    kernel, d = EXACT[name]
    features = features_of(kernel, d, 4096, kind, domain=UNIT)
    assert features.domain is None and features.num_bases == 1 and "harmonics holding 100.00%" in features.description
    assert kernel_error(features, kernel, 50 * points(d)).abs().max() < 1e-9


def test_a_cosine_kernel_takes_two_features_and_never_more_than_asked_for():
    assert features_of(K.Cosine(), 1, 1024, "auto").num_features == 2
    one = features_of(K.Cosine(), 1, 1, "auto", num_bases=400)
    assert one.num_features == 1
    assert_unbiased(kernel_error(one, K.Cosine(), points(1, n=3)))


def test_only_the_active_coordinates_count():
    kernel = K.RBF([0.3, 0.5]).on([3, 1])
    features = features_of(kernel, 5, 1024, "equispaced", domain=UNIT)
    assert kernel_error(features, kernel, points(5)).abs().max() < 3e-6


def test_auto_is_right_to_its_promise_wherever_it_takes_equispaced_features():
    for kernel in (K.RBF(0.3), K.RBF(5.0), K.Matern(0.5, 0.3), K.Matern(1.5, 0.1), K.RationalQuadratic(0.3, 0.2)):
        for d, ell in ((1, 256), (2, 1024)):
            features = features_of(kernel, d, ell, "auto", domain=UNIT)
            error = kernel_error(features, kernel, points(d))
            if features.domain is not None:
                assert error.abs().max() < LARGEST_WRAP + 2 * (1 - CAPTURED_SHARE)
                assert error.square().mean().sqrt() < 0.01


def test_gradients_reach_the_lengthscale():
    x = points(1, n=3)
    lengthscale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    Phi = features_of(K.Matern(2.5, lengthscale), 1, 512, "equispaced", domain=UNIT)(x)[0]
    (slope,) = torch.autograd.grad((Phi @ Phi.mT).sum(), lengthscale)
    high, low = (covariance(K.Matern(2.5, 0.3 + step), x, x).sum() for step in (1e-6, -1e-6))
    np.testing.assert_allclose(float(slope), (high - low) / 2e-6, rtol=1e-3)


def test_refuses_what_has_no_series():
    with pytest.raises(ValueError, match='features="equispaced" needs domain='):
        features_of(K.RBF(), 1, 8, "equispaced")
    with pytest.raises(ValueError, match=r"needs a kernel of at most 3 dimensions .*, got one of 4; use"):
        features_of(K.RBF(), 4, 8, "equispaced", domain=UNIT)
    with pytest.raises(ValueError, match="that decays with distance in each, got one of 2"):
        features_of(K.RBF().on(0) * K.Periodic().on(1), 2, 8, "equispaced", domain=UNIT)


def test_auto_takes_random_features_where_there_is_no_series():
    kernel = K.RBF(0.5).on(0) * K.Periodic(0.9, 0.5).on(1)
    features = features_of(kernel, 2, 64, "auto", num_bases=300, domain=UNIT)
    assert features.description == "64 sobol" and features.domain is None
    assert_unbiased(kernel_error(features, kernel, points(2, n=3)))
