"""The adapter for GPyTorch: exact and variational models, also batches and models of several outputs, as snapshots."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import torch

from ...kernels import Kernel
from ...models import GP, Outputs
from ..refusal import needs, refusal

with needs("GPyTorch", "gpytorch"):
    from gpytorch import models as gm
    from gpytorch.kernels import Kernel as GPyTorchKernel

from . import kernels
from .kernels import Place, kernel_of, mean_of
from .models import likelihood_of as likelihood_of
from .models import moments_of, noise_of, strategy_of, translate_exact, translate_strategy


@singledispatch
def describe(model: object) -> GP:
    """Return a GPyTorch model as a snapshot, differentiable in the model's parameters. The model is not changed."""
    raise refusal("model", model, describe)


describe.register(gm.ExactGP, lambda model: translate_exact(model, tuple(model.train_inputs or ())))
describe.register(gm.ApproximateGP, lambda model: translate_strategy(model.variational_strategy))
describe.register(gm.IndependentModelList, lambda model: Outputs([describe(member) for member in model.models]))


def translate(kernel: GPyTorchKernel, input_dim: int) -> Kernel:
    """Translate a GPyTorch kernel of `input_dim` columns to one of `matheron.kernels`, for example for `draw_prior`.

    The column that an IndexKernel reads becomes the output: the translation couples outputs, and its points do not have
    that column.

    >>> import gpytorch
    >>> from matheron.adapters.gpytorch import translate
    >>> kernel = gpytorch.kernels.RBFKernel()
    >>> kernel.lengthscale = 0.5
    >>> translate(kernel, input_dim=1)
    RBF([0.5])
    """
    if kernel.batch_shape:
        raise ValueError(
            f"kernel: expected one kernel, got a batch of them, {list(kernel.batch_shape)}; index it first"
        )
    place = Place(torch.Size(), (), tuple(range(input_dim)), input_dim)
    task = next(iter(kernels.task_columns(kernel, place)), None)
    return kernels.translate(kernel, replace(place, task=task))


REGISTRIES = {
    "models": describe,
    "kernels": kernel_of,
    "means": mean_of,
    "likelihoods": noise_of,
    "likelihoods of outcomes": likelihood_of,
    "variational strategies": strategy_of,
    "variational distributions": moments_of,
}
