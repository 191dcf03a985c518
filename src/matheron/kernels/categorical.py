"""Categorical: a kernel of choices, numbered 0, 1, ..., beside its spectral measure."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_count, per_dimension, positive
from ..core.modes import transformed
from .base import Kernel, SpectralMeasure, Stationary
from .composed_measures import HarmonicMeasure

__all__ = ["Categorical"]


class Categorical(Stationary):
    """k = prod_i (a_i + (1 - a_i) D(x_i - x'_i)), a_i = exp(-1 / lengthscale_i).

    A choice is a whole number, and there k = exp(-sum_i [x_i != x'_i] / lengthscale_i): any two choices are equally far
    apart. Between whole numbers D is Dirichlet's kernel, D(r) = sin(pi r) / (m sin(pi r / m)), which is 1 at 0 and 0 at
    all other whole numbers below m: so k is smooth, and has m frequencies per coordinate, which features hold exactly.

    Args:
        lengthscale: one for all coordinates or one for each: how alike different choices are.
        categories: how many choices are told apart: those of a coordinate differ by less than this number. m is the
            first odd number that is no less.

    >>> from matheron import kernels
    >>> kernels.Categorical(lengthscale=1.0, categories=3)([[0.0], [1.0], [2.0]], [[1.0]])
    tensor([[0.3679],
            [1.0000],
            [0.3679]], dtype=torch.float64)
    """

    fields = ("categories",)
    whole: ClassVar = True

    def __init__(self, lengthscale: ArrayLike = 1.0, categories: int = 8) -> None:
        super().__init__(lengthscale=positive(lengthscale, "lengthscale"))
        self.categories = as_count(categories, "categories")

    @property
    def _odd(self) -> int:
        return self.categories + 1 - self.categories % 2

    def _similarities(self, input_dim: int) -> Tensor:
        return torch.exp(-1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))  # [d]

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        K = x.new_ones(())
        for i, a in enumerate(self._similarities(x.shape[-1])):
            K = K * (a + (1 - a) * self._dirichlet(self._difference(x, z, i)))
        return K

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, dK = x.new_ones(()), []
        for i, a in enumerate(self._similarities(x.shape[-1])):
            r = self._difference(x, z, i)
            factor, slope = a + (1 - a) * self._dirichlet(r), (1 - a) * self._slope(r)
            K, dK = K * factor, [*(d * factor for d in dK), K * slope]
        return K, torch.stack(dK)

    def _difference(self, x: Tensor, z: Tensor, i: int) -> Tensor:
        r = x[..., :, None, i] - z[..., None, :, i]
        if r.device.type == "cpu" and r.numel() and not transformed():
            far = float(r.detach().abs().max())
            # Choices alone: between them k goes on, and is asked for where a series of it is made on a wider box.
            if far > self._odd - 0.5 and bool((r.detach() == r.detach().round()).all()):
                raise ValueError(
                    f"Categorical(categories={self.categories}): expected choices that differ by less than that, got "
                    f"ones that differ by {far:g}; number them 0, 1, ..., or give more categories"
                )
        return r

    def _dirichlet(self, r: Tensor) -> Tensor:
        m = self._odd
        below = torch.sin(r * (math.pi / m))
        flat = below.abs() < 1e-6  # at 0, where both sines vanish: its series
        series = 1 + r.square() * (math.pi**2 * (1 / m**2 - 1) / 6)
        return torch.where(flat, series, torch.sin(math.pi * r) / (m * torch.where(flat, 1.0, below)))

    def _slope(self, r: Tensor) -> Tensor:
        """dD/dr = (pi cos(pi r) - D pi cos(pi r / m)) / (m sin(pi r / m))."""
        m = self._odd
        below = torch.sin(r * (math.pi / m))
        flat = below.abs() < 1e-4
        above = torch.cos(math.pi * r) - self._dirichlet(r) * torch.cos(r * (math.pi / m))
        series = r * (math.pi**2 * (1 / m**2 - 1) / 3)
        return torch.where(flat, series, math.pi * above / (m * torch.where(flat, 1.0, below)))

    def axis_factors(self, input_dim: int) -> list[list[Kernel]]:
        lengthscale = per_dimension(self.lengthscale, input_dim, "lengthscale")
        return [[Categorical(l_i, self.categories)] for l_i in lengthscale]

    def measure(self, input_dim: int) -> SpectralMeasure:
        return _Choices(self._similarities(input_dim), self._odd)


class _Choices(HarmonicMeasure):
    """In each dimension m harmonics of 2 pi / m with a share (1 - a) / m of the variance each, and a on zero."""

    def __init__(self, similarity: Tensor, m: int) -> None:
        super().__init__(torch.full_like(similarity, 2 * math.pi / m).detach(), similarity)
        self.m = m

    def _masses(self, i: int) -> Tensor:
        a, zero = self.lengthscale[i], torch.arange(self.m, device=self.lengthscale.device) == self.m // 2
        return (1 - a) / self.m + torch.where(zero, a, torch.zeros_like(a))
