"""Optuna's parameters as coordinates of a unit cube, and back.

    float                 one coordinate, its logarithm's where log
    int, or with a step   one coordinate cut into equal cells, one per value, at its centre; for log ints the cell
                          of v is (v - 1/2, v + 1/2), on the scale of logarithms
    categorical           one coordinate per choice: the choice's is 1, the others' 0

A point of the cube that corresponds to no parameters is *snapped* to its nearest cell or choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from torch import Tensor
from torch.nn.functional import one_hot

from .branches import Branches

# The value of a parameter, of any kind of Optuna distribution.
Parameter = bool | int | float | str | None


class UnitCube:
    """The parameters of a search space, in the order of their names.

    `moves` `[d]` marks coordinates of floats without a step, which take any value in [0, 1]. `ordered` `[d]` marks
    coordinates of all numbers.

    >>> from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    >>> space = {"depth": IntDistribution(1, 4), "kind": CategoricalDistribution(["a", "b"]),
    ...          "rate": FloatDistribution(1e-4, 1.0, log=True)}
    >>> cube = UnitCube(space)
    >>> cube.encode([{"depth": 2, "kind": "b", "rate": 0.01}])
    tensor([[0.3750, 0.0000, 1.0000, 0.5000]], dtype=torch.float64)
    >>> cube.decode(cube.encode([{"depth": 2, "kind": "b", "rate": 0.01}])[0])
    {'depth': 2, 'kind': 'b', 'rate': 0.01}
    """

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self.axes = {name: _axis(name, search_space[name]) for name in sorted(search_space)}
        self._widths = [axis.width for axis in self.axes.values()]
        self.dim = sum(self._widths)
        axes = [axis for axis in self.axes.values() for _ in range(axis.width)]  # the axis of each coordinate
        self.moves = torch.tensor([type(axis) is _Continuous for axis in axes], device="cpu")
        self.ordered = torch.tensor([not isinstance(axis, _ChoiceColumns) for axis in axes], device="cpu")
        # The coordinates that a missing parameter gets.
        neutral = [1 / axis.width if isinstance(axis, _ChoiceColumns) else 0.5 for axis in axes]
        self.neutral = torch.tensor(neutral, dtype=torch.float64, device="cpu")

    def encode(self, params: Sequence[Mapping[str, Parameter]]) -> Tensor:
        """Points `[n, d]` of parameters, `neutral` in those that are missing."""
        X = self.neutral.repeat(len(params), 1)
        for (name, axis), columns in zip(self.axes.items(), X.split(self._widths, dim=1), strict=True):
            rows = [i for i, p in enumerate(params) if name in p]
            encoded = [axis.encode(params[i][name]) for i in rows]
            columns[rows] = torch.tensor(encoded, dtype=X.dtype, device="cpu")[:, None]
            if isinstance(axis, _ChoiceColumns):
                columns[rows] = one_hot(columns[rows, 0].long(), axis.width).to(X)
        return X

    def has(self, params: Sequence[Mapping[str, Parameter]]) -> Tensor:
        """Which coordinates are of parameters that are there, `[n, d]`."""
        there = torch.tensor([[name in p for name in self.axes] for p in params], dtype=torch.bool, device="cpu")
        return there.reshape(-1, len(self.axes)).repeat_interleave(torch.tensor(self._widths, device="cpu"), dim=1)

    def snap(self, u: Tensor) -> Tensor:
        """The points `[n, d]` of the parameters at points `[n, d]` of the cube."""
        parts = u.split(self._widths, dim=1)
        return torch.cat([axis.snap(part) for axis, part in zip(self.axes.values(), parts, strict=True)], dim=1)

    def decode(self, u: Tensor, active: Tensor | None = None) -> dict[str, Parameter]:
        """The parameters at a point `[d]`; those alone whose coordinates are `active` `[d]`, where that is given."""
        active = torch.ones(self.dim, dtype=torch.bool, device="cpu") if active is None else active
        each = zip(self.axes.items(), u.split(self._widths), active.split(self._widths), strict=True)
        return {name: axis.decode(part) for (name, axis), part, there in each if bool(there.all())}


class Space(NamedTuple):
    """The cube of all parameters, and which of them a point of it has; it is neutral in the others."""

    cube: UnitCube
    branches: Branches

    def active(self, u: Tensor) -> Tensor:
        return self.branches.active(u) if self.branches.several else torch.ones_like(u, dtype=torch.bool)

    def present(self, u: Tensor) -> Tensor:
        """Points u `[m, d]`, neutral in the coordinates that they do not have."""
        return torch.where(self.branches.active(u), u, self.cube.neutral) if self.branches.several else u

    def snap(self, u: Tensor) -> Tensor:
        return self.present(self.cube.snap(u))

    def decode(self, x: Tensor) -> dict[str, Parameter]:
        return self.cube.decode(x, self.active(x[None])[0])


class _Continuous:
    width = 1

    def __init__(self, distribution: FloatDistribution | IntDistribution, margin: float = 0.0) -> None:
        self.low, self.high, self.log = distribution.low, distribution.high, distribution.log
        ends = (self.low - margin, self.high + margin)
        self.start, self.stop = (math.log(v) for v in ends) if self.log else ends

    def encode(self, value: Parameter) -> float:
        assert isinstance(value, int | float)
        inner = math.log(value) if self.log else value
        return (inner - self.start) / (self.stop - self.start)

    def snap(self, u: Tensor) -> Tensor:
        return u.clamp(0, 1)

    def decode(self, u: Tensor) -> float:
        inner = self.start + float(u) * (self.stop - self.start)
        return min(max(math.exp(inner) if self.log else inner, self.low), self.high)


class _Cells:
    """Equally spaced values: low, low + step, ..."""

    width = 1

    def __init__(self, distribution: FloatDistribution | IntDistribution) -> None:
        assert distribution.step is not None
        self.low, self.high, self.step = distribution.low, distribution.high, distribution.step
        self.count = round((self.high - self.low) / self.step) + 1

    def encode(self, value: Parameter) -> float:
        assert isinstance(value, int | float)
        return ((value - self.low) / self.step + 0.5) / self.count

    def snap(self, u: Tensor) -> Tensor:
        return ((u * self.count).floor().clamp(0, self.count - 1) + 0.5) / self.count

    def decode(self, u: Tensor) -> Parameter:
        index = min(max(math.floor(float(u) * self.count), 0), self.count - 1)
        return min(self.low + index * self.step, self.high)


class _LogCells(_Continuous):
    """Whole numbers, on a logarithmic scale."""

    def __init__(self, distribution: IntDistribution) -> None:
        super().__init__(distribution, margin=0.5)

    def snap(self, u: Tensor) -> Tensor:
        value = (self.start + u * (self.stop - self.start)).exp().round().clamp(self.low, self.high)
        return (value.log() - self.start) / (self.stop - self.start)

    def decode(self, u: Tensor) -> int:
        return round(super().decode(u))


class _ChoiceColumns:
    def __init__(self, distribution: CategoricalDistribution) -> None:
        self.distribution = distribution
        self.width = len(distribution.choices)

    def encode(self, value: Parameter) -> float:
        """The choice's number; its coordinates are one-hot."""
        return self.distribution.to_internal_repr(value)

    def snap(self, u: Tensor) -> Tensor:
        return one_hot(u.argmax(1), self.width).to(u)

    def decode(self, u: Tensor) -> Parameter:
        return self.distribution.to_external_repr(int(u.argmax()))


def _axis(name: str, distribution: BaseDistribution) -> _Continuous | _Cells | _LogCells | _ChoiceColumns:
    if isinstance(distribution, CategoricalDistribution):
        return _ChoiceColumns(distribution)
    if isinstance(distribution, IntDistribution):
        return _LogCells(distribution) if distribution.log else _Cells(distribution)
    if isinstance(distribution, FloatDistribution):
        return _Continuous(distribution) if distribution.step is None else _Cells(distribution)
    kinds = "FloatDistribution, IntDistribution or CategoricalDistribution"
    raise TypeError(f"{name}: expected a {kinds}, got {type(distribution).__name__}")
