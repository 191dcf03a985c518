"""GSTools' conditioned fields: the right mean and variance in each cell, and not the posterior's covariance."""

import numpy as np
import pytest
import torch

import matheron
from matheron import kernels

gstools = pytest.importorskip("gstools")
pytestmark = pytest.mark.slow

DRAWS = 400
X = np.array([[0.1, 0.2], [0.5, 0.45], [0.8, 0.3], [0.3, 0.8], [0.9, 0.9]])
Y = np.array([0.3, -1.2, 0.8, 1.5, 0.0])
# Pairs on either side of a datum: close to each other, and made nearly independent by what is known between them.
PLACES = np.array([[0.4, 0.45], [0.6, 0.45], [0.1, 0.05], [0.1, 0.35], [0.7, 0.7]])


def posterior():
    k = kernels.Matern(1.5, 0.4)
    K = k(X) + 1e-6 * torch.eye(5, dtype=torch.float64)
    cross = k(PLACES, X)
    weights = cross @ torch.linalg.inv(K)
    return (weights @ torch.from_numpy(Y)).numpy(), (k(PLACES) - weights @ cross.mT).numpy()


def worst(draws, mean, covariance):
    """The largest error of mean, variances and covariances, in standard errors of DRAWS draws."""
    got = np.cov(draws.T)
    variance = np.diag(covariance)
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / DRAWS)
    z = np.abs(got - covariance) / error
    off = ~np.eye(len(variance), dtype=bool)
    return np.abs((draws.mean(0) - mean) / np.sqrt(variance / DRAWS)).max(), np.diag(z).max(), z[off].max()


def test_theirs_have_the_posterior_s_mean_and_variance_alone():
    # Their Matern has sqrt(nu) r / length where ours has sqrt(2 nu) r / lengthscale.
    shape = gstools.Matern(dim=2, nu=1.5, len_scale=0.4 / 2**0.5)
    krige = gstools.Krige(shape, X.T, Y, unbiased=False, exact=False, cond_err=1e-6)
    field = gstools.CondSRF(krige, mode_no=200)
    field.set_pos(PLACES.T)
    draws = np.stack([field(seed=i, store=False) for i in range(DRAWS)])
    mean, variance, covariance = worst(draws, *posterior())
    assert mean < 5 and variance < 6
    assert covariance > 8


def test_ours_have_all_of_it():
    gp = matheron.ExactGP(kernels.Matern(1.5, 0.4), X, Y, noise=1e-6)
    generator = torch.Generator().manual_seed(0)
    draws = matheron.draw(gp, DRAWS, domain=(0.0, 1.0), generator=generator)(PLACES).numpy()
    assert max(worst(draws, *posterior())) < 5
