"""Standardised units: the scales of columns and outputs, and the units of hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Kernel, Sum
from ..models.means import CallableMean, ConstantMean, LinearMean, Mean, MeanLike, as_mean
from ..models.transforms import Affine


class Units(NamedTuple):
    """x = input_scale * x_model + input_centre, and the same for y, one number per task."""

    input_centre: Tensor  # [d]
    input_scale: Tensor  # [d]
    output_centre: Tensor  # [t]
    output_scale: Tensor  # [t]

    def transforms(self) -> tuple[Affine, Affine]:
        """The input transform, into the model's units, and the output transform, out of them."""
        one = self.output_scale.numel() == 1
        scale, centre = (v[0] if one else v for v in (self.output_scale, self.output_centre))
        return Affine(1 / self.input_scale, -self.input_centre / self.input_scale), Affine(scale, centre)


class Buffer(NamedTuple):
    """A tensor of a kernel expression: where it is, and its unit: value in the user's units = unit * value."""

    name: str
    owner: Kernel
    value: Tensor
    unit: Tensor
    dims: list[int]


def standardised_mean(mean: MeanLike | str | None, units: Units) -> Mean | str | None:
    """A fixed mean in the model's units; None and "linear" are fitted."""
    if mean is None or (isinstance(mean, str) and mean == "linear"):
        return mean
    if isinstance(mean, str):
        raise ValueError(f'mean: expected None, "linear", a number, a Mean or a callable, got {mean!r}')
    fixed = as_mean(mean).owned()
    centre, scale = units.output_centre, units.output_scale
    if isinstance(fixed, ConstantMean):
        return ConstantMean((fixed.value.to(centre) - centre) / scale)
    if isinstance(fixed, LinearMean):
        weights, bias = fixed.weights.to(centre), fixed.bias.to(centre)
        level = bias + weights @ units.input_centre  # [t]
        return LinearMean(
            (weights * units.input_scale).expand(len(scale), -1) / scale[:, None], (level - centre) / scale
        )
    x_scale, x_centre = units.input_scale, units.input_centre

    def rescaled(x: Tensor) -> Tensor:
        value = fixed.to(x.device, x.dtype)(x * x_scale.to(x) + x_centre.to(x))
        return (value - centre.to(x)) / scale.to(x)

    return CallableMean(rescaled)


def standardising(kernel: Kernel, X: Tensor, y: Tensor, tasks: Tensor | None, rounding: float = 1e-13) -> Units:
    """Centre and scale of every column of X `[n, d]` and of the targets `[n]` of every task.

    Columns that share a hyperparameter (one lengthscale for several) share a scale, the root mean square of their
    standard deviations: what is isotropic in the user's units stays so. Columns of kernels with features of their own
    stay as they are: they may be numbers of nodes, or points of a sphere. Tasks share one where a part of the kernel is
    common to all of them. Scales of what does not vary are 1: numbers whose deviation is a smaller share of their size
    than `rounding` differ by it alone.
    """
    deviation = _deviation(X)
    deviation = torch.where(deviation > rounding * X.abs().amax(0), deviation, 0.0)
    scale = deviation.clone()
    columns = list(range(X.shape[1]))
    for group in _sharing_a_scale(kernel, columns):
        varying = deviation[group][deviation[group] > 0]
        scale[group] = varying.square().mean().sqrt() if len(varying) else 1.0
    scale = torch.where(scale > 0, scale, 1.0)
    as_given = [i for part, dims in _parts(kernel, columns) if part.by_own_features for i in dims]
    scale[as_given + [i for part, dims in _parts(kernel, columns) if part.whole for i in dims]] = 1.0
    level = X.mean(0)
    level[as_given] = 0.0
    t = kernel.num_outputs
    of = torch.zeros(len(y), dtype=torch.long, device=y.device) if tasks is None else tasks
    shared = t > 1 and any(B is None for B, _ in kernel.coupled())
    centre, spread = y.new_zeros(t), y.new_ones(t)
    for i in range(t):
        own = y[of == i]
        if len(own):
            centre[i] = own.mean()
            spread[i] = _deviation(own)
    spread = torch.where(spread > rounding * centre.abs(), spread, 0.0)
    if shared:
        spread = spread.square().mean().sqrt().expand(t)
    return Units(level, scale, centre, torch.where(spread > 0, spread, 1.0))


def _deviation(x: Tensor) -> Tensor:
    """The standard deviation of each column; squares of very large and very small numbers do not fit a float."""
    size = x.abs().amax(0).clamp_min(1e-300)
    return (x / size).std(0, correction=0) * size


def buffers(kernel: Kernel, units: Units) -> list[Buffer]:
    """Every tensor of a kernel expression that is a hyperparameter: all but whole numbers, and those of functions."""
    s = units.output_scale
    variance = s[0].square() if len(s) == 1 else s[:, None] * s
    return list(_walk(kernel, list(range(len(units.input_scale))), units.input_scale, variance, ""))


def with_tensors(kernel: Kernel, values: Sequence[Tensor]) -> Kernel:
    """The kernel expression with other values of the tensors that `buffers` lists."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    listed = [value for part in parts for value in part._buffers.values() if value is not None]
    listed = [value for value in listed if value.is_floating_point()]
    new = {id(old): value for old, value in zip(listed, values, strict=True)}
    return kernel.mapped(lambda old: new.get(id(old), old))


def _walk(kernel: Kernel, dims: list[int], scale: Tensor, variance: Tensor, prefix: str) -> Iterator[Buffer]:
    own, inner = _units(kernel, scale[dims], variance)
    for name, value in kernel._buffers.items():
        if value is not None and value.is_floating_point():
            yield Buffer(prefix + name, kernel, value, own.get(name, scale.new_ones(())), dims)
    for i, (where, part) in enumerate(kernel.operands()):  # the first factor of a product has its variance
        passed = inner if i == 0 or isinstance(kernel, Sum) else scale.new_ones(())
        yield from _walk(part, kernel.inner_dims(dims), scale, passed, prefix + where)


def _units(kernel: Kernel, scale: Tensor, variance: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The units of a kernel's own tensors, and the unit of variance that is left for its parts."""
    if variance.ndim and kernel.num_outputs == 1:  # a part that is shared by all tasks, whose scales are equal
        variance = variance[0, 0]
    own, inner = {}, variance
    for name, unit in kernel.units.items():
        value = getattr(kernel, name)
        if unit == "y^2" and value.ndim < variance.ndim:
            continue  # a number that multiplies a coupling, which has the variances
        number = {"x": scale, "1/x": 1 / scale, "y^2": variance}.get(unit)
        number = variance / scale.square() if number is None else number
        own[name] = number[0] if number.ndim and value.numel() == 1 else number
        inner = scale.new_ones(()) if unit == "y^2" else inner
    return own, inner


def _sharing_a_scale(kernel: Kernel, dims: list[int]) -> list[list[int]]:
    """Groups of columns that share a hyperparameter of length."""
    groups = [[i] for i in dims]
    for part, own in _parts(kernel, dims):
        shared = set(part.of_one_scale(own))
        hit = [g for g in groups if set(g) & shared]
        groups = [g for g in groups if g not in hit] + [sorted({i for g in hit for i in g})]
    return [g for g in groups if len(g) > 1]


def _parts(kernel: Kernel, dims: list[int]) -> Iterator[tuple[Kernel, list[int]]]:
    """The kernel and all parts of the expression, with the columns that each is about."""
    yield kernel, dims
    for _, part in kernel.operands():
        yield from _parts(part, kernel.inner_dims(dims))
