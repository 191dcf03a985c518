"""Reading a kernel from the covariance that a model's forward returns: lazy kernels, and sums and multiples of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch

import torch
from gpytorch import kernels as gk
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator import operators as lo
from torch import Tensor, nn

from ... import kernels
from ...kernels import Kernel
from ..refusal import BY_HAND
from .kernels import product, task_columns, translate
from .place import Place

# Our kernel, given a place.
Reading = Callable[[Place], Kernel]


class Columns:
    """The inputs of a model side by side, and which of their columns holds task numbers (found while reading)."""

    def __init__(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs
        ends = torch.tensor([x.shape[-1] for x in inputs]).cumsum(0).tolist()
        self.of = [tuple(range(end - x.shape[-1], end)) for x, end in zip(inputs, ends, strict=True)]
        self.tasks: set[int] = set()

    @property
    def number(self) -> int:
        return self.of[-1][-1] + 1

    def given(self, kernel: gk.Kernel, x: Tensor) -> tuple[int, ...]:
        """The columns of the input that a kernel was called with, if it saw `x` of them."""
        for own, columns in zip(self.inputs, self.of, strict=True):
            place = Place(torch.Size(), (), columns, self.number)
            seen = place.within(kernel).columns
            tasks = task_columns(kernel, place)
            same = [i for i, c in enumerate(seen) if len(self.inputs) > 1 or c not in tasks]
            part = own[..., [c - columns[0] for c in seen]]
            if part.shape[-2:] == x.shape[-2:] and bool((part[..., same] == x[..., same]).all()):
                self.tasks |= tasks
                return columns
        raise TypeError(
            f"model: its forward gives {type(kernel).__name__} something else than the model's inputs (the output of a "
            f"network, say); draw from a model of those features instead, {BY_HAND}"
        )


@singledispatch
def read(operator: object, columns: Columns) -> Reading | None:
    """A kernel, given a place; None for an operator that does not say which kernels made it."""
    return None


@read.register
def _(operator: LazyEvaluatedKernelTensor, columns: Columns) -> Reading:
    kernel, given = operator.kernel, columns.given(operator.kernel, operator.x1)
    return lambda place: translate(kernel, replace(place, columns=given))


@read.register
def _(operator: lo.SumLinearOperator | lo.CatLinearOperator, columns: Columns) -> Reading | None:
    parts = [read(part, columns) for part in operator.linear_ops]
    readings = [part for part in parts if part is not None]
    if len(readings) < len(parts):
        return None
    if isinstance(operator, lo.CatLinearOperator):  # independent outputs, the last of the batch's axes
        return lambda place: readings[place.index[-1]](place)
    return lambda place: kernels.Sum(*(part(place) for part in readings))


@read.register
def _(operator: lo.ConstantMulLinearOperator, columns: Columns) -> Reading | None:
    base, constant = read(operator.base_linear_op, columns), operator._constant
    if base is None:
        return None
    return lambda place: kernels.Scaled(base(place), place.pick(constant, 0))


def combinations(model: nn.Module, columns: Columns) -> list[Reading]:
    """Where a product of covariances was computed at once: the product, and the sum, of all the model's own kernels.

    An IndexKernel takes the last input, the others the first.
    """
    own = [k for k in model.children() if isinstance(k, gk.Kernel)]
    given = [columns.of[-1 if isinstance(k, gk.IndexKernel) else 0] for k in own]
    for k, c in zip(own, given, strict=True):
        columns.tasks |= task_columns(k, Place(torch.Size(), (), c, columns.number))

    def each(place: Place) -> list[Kernel]:
        return [translate(k, replace(place, columns=c)) for k, c in zip(own, given, strict=True)]

    if len(own) < 2:
        return [lambda place: each(place)[0]] if own else []
    return [lambda place: product(each(place)), lambda place: kernels.Sum(*each(place))]
