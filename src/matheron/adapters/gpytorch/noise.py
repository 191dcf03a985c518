"""The noise of a Gaussian likelihood at the training inputs."""

from __future__ import annotations

from functools import singledispatch

import torch
from gpytorch import likelihoods as gl
from linear_operator import to_dense
from torch import Tensor

from ..refusal import refusal
from .prior import Prior


@singledispatch
def noise_of(likelihood: object, shape: torch.Size, inputs: tuple[Tensor, ...], prior: Prior) -> Tensor:
    """Variances at targets of a shape `[*batch, n]`: as many; for tasks `[*batch, n, t]` as many, or covariances
    `[*batch, t, t]` of the tasks' noise at each point."""
    raise refusal("likelihood", likelihood, noise_of)


@noise_of.register
def _(
    likelihood: gl.GaussianLikelihood | gl.FixedNoiseGaussianLikelihood | gl.HadamardGaussianLikelihood,
    shape: torch.Size,
    inputs: tuple[Tensor, ...],
    prior: Prior,
) -> Tensor:
    # What GPyTorch adds to the training covariance when it predicts: learned, fixed, additional and by task alike.
    return likelihood._shaped_noise_covar(shape, list(inputs)).diagonal(dim1=-1, dim2=-2)


@noise_of.register
def _(
    likelihood: gl.MultitaskGaussianLikelihood, shape: torch.Size, inputs: tuple[Tensor, ...], prior: Prior
) -> Tensor:
    n, t = shape[-2:]
    if not (likelihood.has_task_noise and likelihood.rank > 0):
        return likelihood._shaped_noise_covar(shape).diagonal(dim1=-1, dim2=-2).reshape(*shape[:-2], n, t)
    one_point = torch.Size([*shape[:-2], 1, t])
    return to_dense(likelihood._shaped_noise_covar(one_point))  # [*batch, t, t]
