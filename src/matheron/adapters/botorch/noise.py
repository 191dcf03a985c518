"""BoTorch's own likelihood, beside those of GPyTorch."""

from __future__ import annotations

from typing import cast

import torch
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood, SparseOutlierNoise
from torch import Tensor

from ..gpytorch.noise import noise_of
from ..gpytorch.prior import Prior


@noise_of.register
def _(
    likelihood: SparseOutlierGaussianLikelihood, shape: torch.Size, inputs: tuple[Tensor, ...], prior: Prior
) -> Tensor:
    # Outliers have variances of their own, in units of the covariance's diagonal where that makes the fit convex.
    sparse = cast(SparseOutlierNoise, likelihood.noise_covar)
    base = sparse.base_noise(list(inputs), shape=shape).diagonal(dim1=-1, dim2=-2)  # [*batch, n]
    return base + sparse.rho * (base + prior.variances() if sparse.convex_parameterization else 1.0)
