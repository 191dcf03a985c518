"""Mean functions: a constant, a linear function, or any callable."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from .checks import ArrayLike, as_tensor
from .value import Value


class Mean(Value):
    """m(x): `[..., n, d] -> [..., n, t]`, where t is 1 for a single output."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """m(x), `[..., n, t]`."""

    @abstractmethod
    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m(x) `[..., n, t]` and its gradient `[..., n, t, d]`."""


class ConstantMean(Mean):
    """The same number everywhere, one an output."""

    def __init__(self, value: ArrayLike = 0.0) -> None:
        super().__init__()
        value = as_tensor(value, "mean").double()
        if value.ndim > 1:
            raise ValueError(f"mean: expected a number or one an output, got shape {list(value.shape)}")
        self.register_buffer("value", value.reshape(-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(*x.shape[:-1], -1)

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = self(x)
        return value, value.new_zeros(*value.shape, x.shape[-1])


class LinearMean(Mean):
    """weights . x + bias, with weights `[d]` or `[t, d]` and bias a number or `[t]`.

    >>> from matheron.means import LinearMean
    >>> LinearMean([1.0, 2.0], 3.0)(torch.ones(1, 2, dtype=torch.float64))
    tensor([[6.]], dtype=torch.float64)
    """

    def __init__(self, weights: ArrayLike, bias: ArrayLike = 0.0) -> None:
        super().__init__()
        weights = as_tensor(weights, "weights").double()
        self.register_buffer("weights", weights.reshape(-1, weights.shape[-1]))
        self.register_buffer("bias", as_tensor(bias, "bias").double().reshape(-1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weights.mT + self.bias

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = self(x)
        return value, self.weights.expand(*value.shape, x.shape[-1])


class CallableMean(Mean):
    """Any function of points `[..., n, d]` that answers `[..., n]`, or `[..., n, t]` for several outputs.

    A torch module counts, and then moves and is copied with the path. It cannot be saved: a file holds no code.
    """

    saveable = False

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        value = self.function(x)
        if not isinstance(value, Tensor) or value.shape[: x.ndim - 1] != x.shape[:-1]:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"mean: expected a tensor {list(x.shape[:-1])} for points {list(x.shape)}, got {got}")
        return value if value.ndim == x.ndim else value[..., None]

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value = self(x)
            gradient = [
                torch.autograd.grad(v.sum(), x, retain_graph=True, allow_unused=True)[0] if v.requires_grad else None
                for v in value.unbind(-1)
            ]
        return value.detach(), torch.stack([torch.zeros_like(x) if g is None else g for g in gradient], dim=-2)


def as_mean(mean: Mean | ArrayLike | Callable[[Tensor], Tensor]) -> Mean:
    """A Mean from what a user may give."""
    if isinstance(mean, Mean):
        return mean
    if isinstance(mean, Real | Tensor | np.ndarray | list | tuple):
        return ConstantMean(mean)
    if callable(mean):
        return CallableMean(mean)
    raise TypeError(f"mean: expected a number, one an output, or a callable, got {type(mean).__name__}")
