"""Elementwise transforms of inputs and outputs: Paths = output o (mean + prior + update) o input."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .checks import ArrayLike, as_tensor, positive
from .value import Parts, Value


class Transform(Value):
    """A map of each coordinate on its own, smooth and increasing or decreasing (but for `Round`)."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The map, `[..., d] -> [..., d]`."""

    @abstractmethod
    def inverse(self, y: Tensor) -> Tensor:
        """Its inverse."""

    @abstractmethod
    def derivative(self, x: Tensor) -> Tensor:
        """Its derivative, coordinate by coordinate."""

    @property
    def affine(self) -> bool:
        """Whether means and variances pass through it."""
        return False


class Affine(Transform):
    """x -> scale * x + offset, each a number or one per coordinate."""

    def __init__(self, scale: ArrayLike = 1.0, offset: ArrayLike = 0.0) -> None:
        super().__init__(
            scale=as_tensor(scale, "scale").double().clone(), offset=as_tensor(offset, "offset").double().clone()
        )
        if bool((self.scale == 0).any()):
            raise ValueError("scale: expected numbers other than zero")

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.offset

    def inverse(self, y: Tensor) -> Tensor:
        return (y - self.offset) / self.scale

    def derivative(self, x: Tensor) -> Tensor:
        return self.scale.expand_as(x)

    @property
    def affine(self) -> bool:
        return True


class Exp(Transform):
    """x -> exp(x): undoes a model of log targets."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def derivative(self, x: Tensor) -> Tensor:
        return x.exp()


class SignedExp(Transform):
    """x -> sign(x) (exp |x| - 1): undoes a model of targets sign(y) log(1 + |y|)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, -torch.expm1(-x), torch.expm1(x))

    def inverse(self, y: Tensor) -> Tensor:
        return y.sign() * y.abs().log1p()

    def derivative(self, x: Tensor) -> Tensor:
        return x.abs().exp()


class Power(Transform):
    """x -> x^exponent."""

    fields = ("exponent",)

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = float(exponent)
        if self.exponent == 0 or not math.isfinite(self.exponent):
            raise ValueError(f"exponent: expected a number other than zero, got {exponent!r}")

    def forward(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def derivative(self, x: Tensor) -> Tensor:
        return self.exponent * x ** (self.exponent - 1)


class Masked(Transform):
    """A transform of the coordinates where `mask` is true; the others are left alone."""

    def __init__(self, transform: Transform, mask: ArrayLike) -> None:
        super().__init__(mask=torch.as_tensor(mask).bool())
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, self.transform(self._inside(x)), x)

    def inverse(self, y: Tensor) -> Tensor:
        return torch.where(self.mask, self.transform.inverse(self._inside(y)), y)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, self.transform.derivative(self._inside(x)), 1.0)

    def _inside(self, x: Tensor) -> Tensor:
        """No logarithm, and no gradient of one, of what is left alone."""
        return torch.where(self.mask, x, 1.0)

    @property
    def affine(self) -> bool:
        return self.transform.affine


class Log(Transform):
    """x -> log(x) / log(base), in the coordinates of `mask`, all where not given: for inputs on a log scale."""

    fields = ("base",)

    def __init__(self, base: float = math.e, mask: ArrayLike | None = None) -> None:
        super().__init__(mask=torch.as_tensor(True if mask is None else mask).bool())
        self.base = float(base)

    def forward(self, x: Tensor) -> Tensor:
        positive = torch.where(self.mask, x, 1.0)  # no logarithm, and no gradient of one, of what is left alone
        return torch.where(self.mask, positive.log() / math.log(self.base), x)

    def inverse(self, y: Tensor) -> Tensor:
        return torch.where(self.mask, self.base**y, y)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, 1 / (x * math.log(self.base)), 1.0)


class Kumaraswamy(Transform):
    """x -> 1 - (1 - x^a)^b on (0, 1), concentrations a and b per coordinate: BoTorch's input warping.

    `eps` keeps x inside the open interval, as BoTorch does; coordinates not warped have a = b = 1 and `mask` False.
    """

    fields = ("eps",)

    def __init__(self, a: ArrayLike, b: ArrayLike, mask: ArrayLike | None = None, eps: float = 1e-7) -> None:
        super().__init__(a=positive(a, "a"), b=positive(b, "b"))
        self.register_buffer("mask", torch.ones_like(self.a).bool() if mask is None else torch.as_tensor(mask).bool())
        self.eps = float(eps)

    def _inside(self, x: Tensor) -> Tensor:
        return (x * (1 - 2 * self.eps) + self.eps).clamp(self.eps, 1 - self.eps)

    def forward(self, x: Tensor) -> Tensor:
        u = self._inside(x)
        return torch.where(self.mask, 1 - (1 - u**self.a) ** self.b, x)

    def inverse(self, y: Tensor) -> Tensor:
        u = (1 - (1 - y) ** (1 / self.b)) ** (1 / self.a)
        return torch.where(self.mask, (u - self.eps) / (1 - 2 * self.eps), y)

    def derivative(self, x: Tensor) -> Tensor:
        u = self._inside(x)
        slope = self.a * self.b * u ** (self.a - 1) * (1 - u**self.a) ** (self.b - 1) * (1 - 2 * self.eps)
        slope = slope * ((x >= 0) & (x <= 1))  # outside, where x is clamped, the map is flat
        return torch.where(self.mask, slope, 1.0)


class Round(Transform):
    """x -> the nearest whole number, in the coordinates of `mask`, and of each of `groups` the largest coordinate 1 and
    the others 0: BoTorch's transform of inputs that are integers, or choices.

    With `tau` steps are hyperbolic tangents of that width. Without it gradients pass straight through, as in BoTorch:
    functions of rounded inputs are flat between their steps.
    """

    fields = ("groups", "tau")

    def __init__(self, mask: ArrayLike, groups: Sequence[Sequence[int]] = (), tau: float | None = None) -> None:
        super().__init__(mask=torch.as_tensor(mask).bool())
        self.groups = [list(group) for group in groups]
        self.tau = None if tau is None else float(tau)

    def forward(self, x: Tensor) -> Tensor:
        if self.tau is not None:
            floor = x.floor()
            return torch.where(self.mask, floor + 0.5 * (1 + torch.tanh((x - floor - 0.5) / self.tau)), x)
        with torch.no_grad():
            rounded = torch.where(self.mask, x.round(), x)
            for group in self.groups:
                largest = x[..., group].argmax(-1)
                rounded[..., group] = torch.nn.functional.one_hot(largest, len(group)).to(x)
        return rounded + (x - x.detach())

    def inverse(self, y: Tensor) -> Tensor:
        return y

    def derivative(self, x: Tensor) -> Tensor:
        if self.tau is None:
            return torch.ones_like(x)
        inner = torch.tanh((x - x.floor() - 0.5) / self.tau)
        return torch.where(self.mask, (1 - inner.square()) / (2 * self.tau), 1.0)


class Chain(Transform):
    """Several transforms, the first applied first."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        super().__init__()
        self.transforms = Parts(transforms)

    def forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        for transform in reversed(list(self.transforms)):
            y = transform.inverse(y)
        return y

    def derivative(self, x: Tensor) -> Tensor:
        slope = torch.ones_like(x)
        for transform in self.transforms:
            slope, x = slope * transform.derivative(x), transform(x)
        return slope

    @property
    def affine(self) -> bool:
        return all(t.affine for t in self.transforms)


def chained(transforms: Sequence[Transform | None]) -> Transform | None:
    """Those that are not None, one after the other; None where there are none."""
    parts = [t for t in transforms if t is not None]
    return Chain(parts) if len(parts) > 1 else parts[0] if parts else None
