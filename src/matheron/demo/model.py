"""The demo's data: eight noisy values of a function on the unit interval."""

from __future__ import annotations

import torch

from ..gp import ExactGP
from ..kernels import Matern

DOMAIN = (0.0, 1.0)


def problem() -> ExactGP:
    """A Gaussian process with a Matern-5/2 kernel and eight observations, more on the left than on the right.

    >>> from matheron.demo import problem
    >>> problem()
    ExactGP(Matern(nu=2.5, lengthscale=0.12), 8 observations in 1 dimension)
    """
    X = torch.tensor([0.05, 0.11, 0.20, 0.24, 0.35, 0.48, 0.72, 0.93], dtype=torch.float64)
    noise = 1e-3
    eps = noise**0.5 * torch.randn(len(X), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y = torch.sin(9 * X) + 0.6 * torch.cos(17 * X) + eps
    return ExactGP(Matern(2.5, 0.12), X[:, None], y, noise)
