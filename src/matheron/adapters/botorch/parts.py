"""BoTorch's own kernels and likelihood, each as ours, beside those of GPyTorch."""

from __future__ import annotations

from typing import cast

import torch
from botorch.models.kernels import CategoricalKernel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood, SparseOutlierNoise
from torch import Tensor

from ... import kernels
from ...kernels import Kernel
from ..gpytorch.kernels import kernel_of
from ..gpytorch.noise import noise_of
from ..gpytorch.place import Place
from ..gpytorch.prior import Prior
from ..refusal import BY_HAND

# Choices that are told apart at the least, and for each of those between the first and the last of the data: test
# points may have others.
_FEWEST, _ROOM = 8, 2


@kernel_of.register
def _(kernel: CategoricalKernel, place: Place) -> Kernel:
    # exp(-mean_i [x_i != x'_i] / l_i)
    lengthscale = place.pick(kernel.lengthscale, 2)[0] * len(place.columns)  # [d] or [1]
    return place.on_columns(kernels.Categorical(lengthscale, _number(place)))


def _number(place: Place) -> int:
    """How many choices there are room for."""
    if place.inputs is None:
        return _FEWEST
    choices: Tensor = place.inputs[..., list(place.columns)].detach()
    if not bool((choices == choices.round()).all()):
        raise TypeError(
            "kernel: CategoricalKernel is understood of choices that are whole numbers; number them 0, 1, ..., and "
            f"keep input transforms off these columns (Normalize(d, indices=the others)), {BY_HAND}"
        )
    span = torch.as_tensor(choices.amax() - choices.amin()).item() + 1
    return max(_FEWEST, int(_ROOM * span))


@noise_of.register
def _(
    likelihood: SparseOutlierGaussianLikelihood, shape: torch.Size, inputs: tuple[Tensor, ...], prior: Prior
) -> Tensor:
    # Outliers have variances of their own, in units of the covariance's diagonal where that makes the fit convex.
    sparse = cast(SparseOutlierNoise, likelihood.noise_covar)
    base = sparse.base_noise(list(inputs), shape=shape).diagonal(dim1=-1, dim2=-2)  # [*batch, n]
    return base + sparse.rho * (base + prior.variances() if sparse.convex_parameterization else 1.0)
