"""The kernel Categorical of categories, numbered 0, 1, ..., with its spectral measure."""

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
    """The kernel of categories, k = prod_i (a_i + (1 - a_i) D(x_i - x'_i)) with a_i = exp(-1 / lengthscale_i).

    Categories are whole numbers, for which k = exp(-sum_i [x_i != x'_i] / lengthscale_i): any two categories are
    equally far apart. D is Dirichlet's kernel, D(r) = sin(pi r) / (m sin(pi r / m)), which is 1 at 0 and 0 at all
    other whole numbers below m. It makes k smooth, with m frequencies per coordinate, which features represent exactly.

    Args:
        lengthscale: how similar different categories are, one number for all coordinates or one for each.
        categories: the number of categories of a coordinate; the numbers of any two must differ by less. m is the
            smallest odd number that is not below it.

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
            # Only whole numbers are checked: the lattice evaluates k between them, on a wider box.
            if far > self._odd - 0.5 and bool((r.detach() == r.detach().round()).all()):
                raise ValueError(
                    f"Categorical(categories={self.categories}): expected categories that differ by less than that, "
                    f"got a difference of {far:g}; number them 0, 1, ..., or give a larger number of categories"
                )
        return r

    def _dirichlet(self, r: Tensor) -> Tensor:
        m = self._odd
        below = torch.sin(r * (math.pi / m))
        flat = below.abs() < 1e-6  # near 0, both sines vanish and the Taylor series is used
        series = 1 + r.square() * (math.pi**2 * (1 / m**2 - 1) / 6)
        return torch.where(flat, series, torch.sin(math.pi * r) / (m * torch.where(flat, 1.0, below)))

    def _slope(self, r: Tensor) -> Tensor:
        """The derivative dD/dr = (pi cos(pi r) - D pi cos(pi r / m)) / (m sin(pi r / m))."""
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
    """The spectral measure: in each dimension, mass (1 - a) / m on each of m multiples of 2 pi / m, and a on zero."""

    def __init__(self, similarity: Tensor, m: int) -> None:
        super().__init__(torch.full_like(similarity, 2 * math.pi / m).detach(), similarity)
        self.m = m

    def _masses(self, i: int) -> Tensor:
        a, zero = self.lengthscale[i], torch.arange(self.m, device=self.lengthscale.device) == self.m // 2
        return (1 - a) / self.m + torch.where(zero, a, torch.zeros_like(a))
