"""Mapped: functions of functions, g(f(.)), one of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .functions import AbstractFunctions


class Mapped(AbstractFunctions):
    """g(f(.)) for an elementwise function g of torch."""

    saveable = False
    instead_of_saving = "Save the functions themselves, and map them again"

    def __init__(self, functions: AbstractFunctions, g: Callable[[Tensor], Tensor]) -> None:
        super().__init__(functions=functions)
        self.g, self.input_names = g, functions.input_names

    @property
    def num_paths(self) -> int:
        return self.functions.num_paths

    @property
    def num_outputs(self) -> int:
        return self.functions.num_outputs

    @property
    def _origin(self) -> Tensor:
        return self.functions._origin

    def _values(self, x: Tensor) -> Tensor:
        return self.g(self.functions._values(x))

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        f, df = self.functions._values_and_gradients(x, of)
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            g = self.g(f)
            (slope,) = torch.autograd.grad(g.sum(), f)
        return g.detach(), slope[..., None] * df

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        self.functions._on_grid(axes, out)
        out.copy_(self.g(out))

    def _chosen(self, index: Tensor) -> Any:
        return Mapped(self.functions._chosen(index), self.g)

    def _takes(self, x: Tensor) -> bool:
        return self.functions._takes(x)
