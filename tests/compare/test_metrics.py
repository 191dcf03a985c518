import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import matheron
from matheron import kernels
from matheron.compare.metrics import (
    EmpiricalMoments,
    empirical_moments,
    gaussian_coupling,
    gaussian_wasserstein,
    kernel_error,
    sinkhorn,
)
from matheron.compare.samplers import location_scale


def precise_wasserstein(m1, A, m2, B) -> float:
    """The textbook formula in fifty digits."""
    with mpmath.workdps(50):
        A, B = mpmath.matrix(A.tolist()), mpmath.matrix(B.tolist())
        values, Q = mpmath.eigsy(A)
        root = Q * mpmath.diag([mpmath.sqrt(max(v, 0)) for v in values]) * Q.T
        inner = mpmath.eigsy(root * B * root, eigvals_only=True)
        trace = sum(A[i, i] + B[i, i] for i in range(A.rows)) - 2 * sum(mpmath.sqrt(max(v, 0)) for v in inner)
        shift = sum((mpmath.mpf(a) - mpmath.mpf(b)) ** 2 for a, b in zip(m1.tolist(), m2.tolist(), strict=True))
        return float(mpmath.sqrt(trace + shift))


def nearby(A, size, generator):
    """Another covariance at a small distance, with the same null space."""
    T = torch.eye(len(A), dtype=torch.float64)
    T = T + size * torch.randn(len(A), len(A), generator=generator, dtype=torch.float64) / len(A)
    B = T @ A @ T.mT
    return (B + B.mT) / 2


@pytest.mark.parametrize("kernel", [kernels.Matern(2.5, 0.3), kernels.RBF(0.3)], ids=["regular", "near-singular"])
def test_wasserstein_is_accurate_at_small_distances(kernel, generator):
    A = kernel(torch.rand(16, 1, generator=generator, dtype=torch.float64))
    zero = torch.zeros(16, dtype=torch.float64)
    B = nearby(A, 2.2e-3, generator)
    expected = precise_wasserstein(zero, A, zero, B)
    assert 1e-3 < expected < 3e-3
    assert abs(gaussian_wasserstein(zero, A, zero, B) / expected - 1) < 1e-6
    root = torch.linalg.eigh(A)
    R = (root.eigenvectors * root.eigenvalues.clamp_min(0).sqrt()) @ root.eigenvectors.mT
    textbook = A.trace() + B.trace() - 2 * torch.linalg.eigvalsh(R @ B @ R).clamp_min(0).sqrt().sum()
    if isinstance(kernel, kernels.RBF):  # what the other formula makes of it
        assert abs(float(textbook.clamp_min(0).sqrt()) / expected - 1) > 1e-4


def test_wasserstein_counts_the_means(generator):
    A = kernels.Matern(1.5, 0.5)(torch.rand(8, 2, generator=generator, dtype=torch.float64))
    B = nearby(A, 0.3, generator)
    m1, m2 = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    assert gaussian_wasserstein(m1, A, m2, B) == pytest.approx(precise_wasserstein(m1, A, m2, B), rel=1e-12)
    assert gaussian_wasserstein(m1, A, m1, A) < 1e-7


def test_wasserstein_at_the_size_of_the_papers_experiments(generator):
    """Covariances that share eigenvectors, with eigenvalues down to nothing: sum (sqrt a - sqrt b)^2."""
    p = 400
    V, _ = torch.linalg.qr(torch.randn(p, p, generator=generator, dtype=torch.float64))
    a = 300 * torch.logspace(0, -20, p, dtype=torch.float64)
    b = a * (1 + 5e-5 * torch.randn(p, generator=generator, dtype=torch.float64)) ** 2
    expected = float((a.sqrt() - b.sqrt()).norm())
    zero = torch.zeros(p)
    assert 1e-3 < expected < 4e-3
    assert gaussian_wasserstein(zero, (V * a) @ V.mT, zero, (V * b) @ V.mT) == pytest.approx(expected, rel=1e-6)


def test_wasserstein_takes_points_and_flat_or_split_outputs(generator):
    C = torch.eye(6, dtype=torch.float64)
    assert gaussian_wasserstein([0.0, 3.0], torch.zeros(2, 2), [4.0, 3.0], torch.zeros(2, 2)) == 4.0
    split = gaussian_wasserstein(torch.zeros(3, 2), 4 * C.reshape(3, 2, 3, 2), torch.zeros(6), C)
    assert split == pytest.approx(math.sqrt(6))


def test_wasserstein_refuses_what_is_no_covariance():
    zero, eye = torch.zeros(2), torch.eye(2)
    with pytest.raises(ValueError, match="smallest eigenvalue of -1"):
        gaussian_wasserstein(zero, torch.diag(torch.tensor([1.0, -1.0])), zero, eye)
    with pytest.raises(ValueError, match="cov2: expected a symmetric matrix"):
        gaussian_wasserstein(zero, eye, zero, torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"cov1: expected a covariance of 2 numbers, \[2, 2\], got shape \[3, 3\]"):
        gaussian_wasserstein(zero, torch.eye(3), zero, eye)
    with pytest.raises(ValueError, match="means of the same size, got 2 and 3"):
        gaussian_wasserstein(zero, eye, torch.zeros(3), torch.eye(3))
    with pytest.raises(ValueError, match="mean1: expected finite numbers"):
        gaussian_wasserstein([math.nan, 0.0], eye, zero, eye)


def test_the_coupling_has_the_right_marginals_and_reaches_the_distance(generator):
    A = kernels.Matern(1.5, 0.5)(torch.rand(8, 2, generator=generator, dtype=torch.float64))
    B = nearby(A, 1.0, generator)
    R, Q = gaussian_coupling(A, B)
    torch.testing.assert_close(R @ R.mT, A)
    torch.testing.assert_close(Q @ Q.mT, B)
    assert float((R - Q).norm()) == pytest.approx(gaussian_wasserstein(torch.zeros(8), A, torch.zeros(8), B))


def test_streamed_moments_are_those_of_all_draws_at_once(generator):
    draws = torch.randn(1000, 3, 2, generator=generator, dtype=torch.float64).cumsum(1)
    stream = EmpiricalMoments()
    for size in (1, 500, 0, 400, 99):
        stream.add(draws[stream.count : stream.count + size])
    flat = draws.reshape(1000, 6).numpy()
    assert stream.count == 1000
    np.testing.assert_allclose(stream.moments.mean.reshape(6), flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stream.moments.covariance.reshape(6, 6), np.cov(flat.T), rtol=1e-12)
    assert stream.moments.mean.shape == (3, 2) and stream.moments.covariance.shape == (3, 2, 3, 2)


def test_a_large_mean_costs_no_digits(generator):
    draws = torch.randn(5000, 4, generator=generator, dtype=torch.float64)
    near, far = EmpiricalMoments(), EmpiricalMoments()
    for block in draws.split(100):
        near.add(block)
        far.add(block + 1e6)
    torch.testing.assert_close(far.moments.covariance, near.moments.covariance, rtol=1e-8, atol=1e-9)


def test_single_precision_draws_are_summed_in_double(generator):
    draws = torch.randn(20_000, 2, generator=generator, dtype=torch.float32)
    stream = EmpiricalMoments()
    for block in draws.split(64):
        stream.add(block)
    np.testing.assert_allclose(stream.moments.covariance, np.cov(draws.double().numpy().T), rtol=1e-12)


def test_paths_and_samplers_are_streamed_alike(generator):
    gp = matheron.ExactGP(kernels.RBF(0.3), [[0.0], [1.0]], [0.0, 1.0], 0.01)
    x = [[0.2], [0.4]]
    paths = matheron.draw(gp, 300, num_features=64, generator=generator)
    whole = paths(x)
    found = empirical_moments(paths, x, block_size=77)
    torch.testing.assert_close(found.mean, whole.mean(0))
    torch.testing.assert_close(found.covariance, whole.mT.cov())
    assert empirical_moments(location_scale(gp, 300, generator=generator), x, block_size=77).covariance.shape == (2, 2)


def test_moments_refuse_too_few_draws_and_draws_of_another_shape():
    stream = EmpiricalMoments()
    stream.add(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="expected at least two draws, got 1"):
        _ = stream.moments
    with pytest.raises(ValueError, match=r"block: expected draws of shape \[3\], got \[2\]"):
        stream.add(torch.zeros(4, 2))


def test_kernel_error_is_that_of_the_features_products(generator):
    kernel = 2.0 * kernels.Matern(2.5, 0.4)
    x = torch.rand(7, 2, generator=generator, dtype=torch.float64)
    paths = matheron.draw_prior(kernel, 3, input_dim=2, num_features=32, paths_per_basis=1, generator=generator)
    Phi = paths.prior.features(x)  # [3, 7, 32]
    error = (Phi @ Phi.mT).mean(0) - kernel(x)
    found = kernel_error(paths, kernel, x)
    assert found.rms == pytest.approx(float(error.square().mean().sqrt()))
    assert found.largest == pytest.approx(float(error.abs().max()))


def test_kernel_error_sees_all_outputs(generator):
    B = torch.tensor([[1.0, 0.5], [0.5, 3.0]], dtype=torch.float64)
    kernel = kernels.Coregional(kernels.RBF(0.4), B)
    x = torch.rand(5, 1, generator=generator, dtype=torch.float64)
    paths = matheron.draw_prior(kernel, 1, input_dim=1, num_features=64, generator=generator)
    Phi = paths.prior.features(x)[0]
    error = torch.kron(Phi @ Phi.mT - kernels.RBF(0.4)(x), B)
    assert kernel_error(paths, kernel, x).rms == pytest.approx(float(error.square().mean().sqrt()))


def test_sinkhorn_approaches_the_distance_between_sorted_samples(generator):
    a = torch.randn(60, generator=generator, dtype=torch.float64)
    b = 0.5 * torch.randn(60, generator=generator, dtype=torch.float64) + 1
    exact = float((a.sort().values - b.sort().values).square().mean().sqrt())
    errors = [abs(sinkhorn(a, b, regularization=r) - exact) for r in (0.3, 0.03, 0.003)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01 * exact


def test_sinkhorn_without_bias_is_zero_for_equal_samples(generator):
    a = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    assert sinkhorn(a, a, regularization=0.1) > 0.1
    assert sinkhorn(a, a, regularization=0.1, debias=True, tolerance=1e-9) < 1e-4
    assert sinkhorn(a, a + 1, regularization=0.1, debias=True) == pytest.approx(math.sqrt(2), rel=0.01)


def test_sinkhorn_refuses_samples_of_different_spaces():
    with pytest.raises(ValueError, match=r"expected samples \[s, p\] and \[r, p\], got \[3, 2\] and \[3, 1\]"):
        sinkhorn(torch.zeros(3, 2), torch.zeros(3))


def test_sinkhorn_is_near_the_best_assignment_in_two_dimensions(generator):
    a, b = (torch.randn(150, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    b = b @ torch.tensor([[1.0, 0.4], [0.0, 0.7]], dtype=torch.float64) + 0.5
    M = torch.cdist(a, b).square()
    rows, columns = linear_sum_assignment(M.numpy())
    exact = float(M[rows, columns].mean().sqrt())
    assert sinkhorn(a, b, regularization=1e-3) == pytest.approx(exact, rel=2e-3)
    assert sinkhorn(a, b[:100]) > 0.8 * exact  # sets of different sizes


def test_sinkhorn_warns_where_its_iterations_end_too_soon(generator):
    a = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    with pytest.warns(UserWarning, match="3 iterations ended before the tolerance of 0.001"):
        sinkhorn(a, a + 1, num_iterations=3)
