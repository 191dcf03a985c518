"""Translation of GPyTorch's means; other modules are copied and called."""

from __future__ import annotations

from functools import singledispatch

import torch
from gpytorch import means as gm
from torch import Tensor, nn

from ...models.means import CallableMean, ConstantMean, LinearMean, Mean, Stacked
from ..refusal import overridden
from .place import Place


def translate_mean(mean: nn.Module, place: Place, with_task: bool = False) -> Mean:
    """Translate a mean module for one member of a batch; `with_task` says that it takes the task column too."""
    if with_task or overridden(mean, mean_of):
        return CallableMean(_At(mean, place, with_task))
    return mean_of(mean, place)


@singledispatch
def mean_of(mean: nn.Module, place: Place) -> Mean:
    """Copy a module of any other class; the copy is called with points."""
    return CallableMean(_At(mean, place))


mean_of.register(gm.ZeroMean, lambda mean, place: ConstantMean(0.0))
mean_of.register(gm.ConstantMean, lambda mean, place: ConstantMean(place.pick(mean.constant, 0)))
mean_of.register(
    gm.ConstantMeanGrad | gm.ConstantMeanGradGrad,
    lambda mean, place: ConstantMean(place.pick(mean.constant, 1)[0]),
)
mean_of.register(gm.MultitaskMean, lambda mean, place: Stacked([translate_mean(m, place) for m in mean.base_means]))


@mean_of.register
def _(mean: gm.LinearMean | gm.LinearMeanGrad | gm.LinearMeanGradGrad, place: Place) -> Mean:
    bias = 0.0 if mean.bias is None else place.pick(mean.bias, 1)[0]
    return LinearMean(place.pick(mean.weights, 2)[:, 0], bias)


class _At(nn.Module):
    """A mean module for one member of a batch: it maps points `[..., n, d]` to `[..., n]`, or to `[..., n, t]`.

    The latter holds for a mean with a task column.
    """

    def __init__(self, mean: nn.Module, place: Place, with_task: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.batch_shape, self.index = place.batch_shape, place.index
        self.task = place.task if with_task else None
        self.num_tasks = place.num_tasks

    def forward(self, x: Tensor) -> Tensor:
        if self.task is None:
            return self._at(x)
        number = x[..., :1]
        parts = (x[..., : self.task], x[..., self.task :])
        each = [torch.cat([parts[0], torch.full_like(number, i), parts[1]], -1) for i in range(self.num_tasks)]
        return torch.stack([self._at(points) for points in each], dim=-1)

    def _at(self, x: Tensor) -> Tensor:
        b = len(self.batch_shape)
        value = self.mean(x.reshape(*x.shape[:-2], *[1] * b, *x.shape[-2:]))  # [..., *batch, n] or [..., n]
        if b == 0:
            return value
        value = value.expand(*x.shape[:-2], *self.batch_shape, value.shape[-1])
        return value[(..., *self.index, slice(None))]
