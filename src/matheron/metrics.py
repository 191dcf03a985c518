"""Distances between Gaussians."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .checks import ArrayLike, as_tensor

# An eigenvalue more negative than this share of the largest is no rounding error: the matrix is no covariance.
_NEGATIVE = 1e-8


def gaussian_wasserstein(mean1: ArrayLike, cov1: ArrayLike, mean2: ArrayLike, cov2: ArrayLike) -> float:
    """The 2-Wasserstein distance between N(mean1, cov1) and N(mean2, cov2).

        W2^2  =  |m1 - m2|^2 + min_O ||R - Q O||_F^2,      R R = cov1,  Q Q = cov2,  O orthogonal

    The minimiser is O = U V^T with U S V^T = Q R. The textbook's tr(A + B - 2 (A^1/2 B A^1/2)^1/2) is the same
    number, but its terms cancel: it cannot see a distance below 1e-2. This is a sum of squares. Singular covariances
    are welcome.

    Args:
        mean1, mean2: `[p]`, or `[n, t]`.
        cov1, cov2: `[p, p]`, or `[n, t, n, t]`.

    >>> from matheron.metrics import gaussian_wasserstein
    >>> gaussian_wasserstein([0.0], [[1.0]], [3.0], [[25.0]])
    5.0
    """
    means = [as_tensor(m, name).double().reshape(-1) for m, name in ((mean1, "mean1"), (mean2, "mean2"))]
    p = means[0].numel()
    if means[1].numel() != p:
        raise ValueError(f"expected means of the same size, got {p} and {means[1].numel()} numbers")
    R, Q = (_symmetric_root(cov, p, name) for cov, name in ((cov1, "cov1"), (cov2, "cov2")))
    R, Q = R.to(means[0].device), Q.to(means[0].device)
    U, _, Vh = torch.linalg.svd(Q @ R)
    difference = (means[0] - means[1].to(means[0].device)).square().sum() + (R - Q @ (U @ Vh)).square().sum()
    return math.sqrt(float(difference))


def _symmetric_root(cov: ArrayLike, p: int, name: str) -> Tensor:
    """The symmetric square root of a covariance, checked."""
    C = as_tensor(cov, name).double()
    if C.numel() != p * p:
        raise ValueError(f"{name}: expected a covariance of {p} numbers, [{p}, {p}], got shape {list(C.shape)}")
    C = C.reshape(p, p)
    values, vectors = torch.linalg.eigh((C + C.mT) / 2)
    scale = float(C.diagonal().abs().max()) if p else 0.0
    if not torch.allclose(C, C.mT, rtol=1e-6, atol=1e-9 * scale):
        raise ValueError(f"{name}: expected a symmetric matrix")
    if p and float(values[0]) < -_NEGATIVE * float(values[-1].abs()):
        raise ValueError(f"{name}: expected a covariance, got a smallest eigenvalue of {float(values[0]):.3g}")
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
