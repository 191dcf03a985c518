"""Functions made of paths, one of each: upside down, rounded, nearer to the posterior mean, and the mean itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..paths import AbstractPaths, require_paths


class Altered(ABC):
    """Functions made of paths, one of each: as much of Paths as `minimize` needs."""

    def __init__(self, paths: AbstractPaths | Altered) -> None:
        self.paths = paths if isinstance(paths, Altered) else require_paths(paths)
        self.dtype, self.device = paths.dtype, paths.device
        self.num_paths, self.num_outputs, self.input_dim = paths.num_paths, paths.num_outputs, paths.input_dim
        self.input_names = paths.input_names

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


class Negated(Altered):
    """Paths upside down."""

    def __call__(self, x: Tensor) -> Tensor:
        return -self.paths(x)

    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value, gradient = self.paths.value_and_grad(x, of=of)
        return -value, -gradient


class Rounded(Altered):
    """Paths at points whose coordinates `whole` `[d]` are rounded to whole numbers, and whose coordinates of `choices`,
    each a run of them, are 1 where they are largest and else 0: one of several categories.

    Gradients are those at the rounded point, in these coordinates too: a search follows them from cell to cell, and
    steps that lead to no lower value are not taken.
    """

    def __init__(self, paths: AbstractPaths, whole: Tensor, choices: Sequence[slice] = ()) -> None:
        super().__init__(paths)
        self.whole, self.choices = whole, choices

    def rounded(self, x: Tensor) -> Tensor:
        x = torch.where(self.whole, x.round(), x)
        for choice in self.choices:
            part = x[..., choice]
            x[..., choice] = torch.nn.functional.one_hot(part.argmax(-1), part.shape[-1]).to(x)
        return x

    def __call__(self, x: Tensor) -> Tensor:
        return self.paths(self.rounded(x))

    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.paths.value_and_grad(self.rounded(x), of=of)


class TowardMean(Altered):
    """mean + spread (f - mean): drawn functions with their deviations from the posterior mean on another scale, the
    same for all of them or one for each."""

    def __init__(self, paths: AbstractPaths, spread: float | Sequence[float]) -> None:
        super().__init__(paths)
        self.drawn = paths
        self.spread = torch.as_tensor(spread, dtype=paths.dtype, device=paths.device).expand(paths.num_paths)  # [s]

    def __call__(self, x: Tensor) -> Tensor:
        values = self.paths(x)  # [s, n] or [s, n, t]
        mean = self.drawn.mean(x.flatten(0, -2))  # [n], or [s n] at own points; [..., t]
        mean = mean.view(*x.shape[:-1], *mean.shape[1:]).expand_as(values)
        return torch.lerp(mean, values, self.spread.view(-1, *[1] * (values.ndim - 1)))

    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, slope = _mean_and_gradient(self.drawn, x)  # [n], [n, d]; [n, t], [n, t, d]
        value, gradient = self.paths.value_and_grad(x, of=of)  # [n], [n, d], or [s, n], [s, n, d]; [..., t]
        spread = self.spread if of is None else self.spread[of]
        spread = spread.view(-1, *[1] * (value.ndim - 1))
        return mean + spread * (value - mean), slope + spread[..., None] * (gradient - slope)


class MeanOf(Altered):
    """The posterior mean of paths, as one function: values `[1, n]`, or `[1, n, t]`."""

    def __init__(self, paths: AbstractPaths) -> None:
        super().__init__(paths)
        self.drawn, self.num_paths = paths, 1

    def __call__(self, x: Tensor) -> Tensor:
        return self.drawn.mean(x)[None]

    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, slope = _mean_and_gradient(self.drawn, x)
        return (mean[None], slope[None]) if of is None else (mean, slope)


def _mean_and_gradient(paths: AbstractPaths, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        mean = paths.mean(x)  # [n] or [n, t]
        columns = [mean] if mean.ndim == 1 else list(mean.mT)
        slopes = [torch.autograd.grad(column.sum(), x, retain_graph=mean.ndim > 1)[0] for column in columns]
    return mean.detach(), slopes[0] if mean.ndim == 1 else torch.stack(slopes, dim=1)
