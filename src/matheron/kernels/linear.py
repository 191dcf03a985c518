"""Kernels whose features are known in closed form: Linear, Polynomial, Constant."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_count, per_dimension, positive
from .base import Kernel, Term

__all__ = ["Constant", "Linear", "Polynomial"]


class Linear(Kernel):
    """The linear kernel k = sum_i variance_i x_i x'_i, whose functions are linear.

    >>> from matheron import kernels
    >>> kernels.Linear(variance=2.0)([[1.0, 3.0]], [[1.0, 1.0]])
    tensor([[8.]], dtype=torch.float64)
    """

    units: ClassVar = {"variance": "y^2/x^2"}

    def __init__(self, variance: ArrayLike = 1.0) -> None:
        super().__init__(variance=positive(variance, "variance", zero=True))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return (x * per_dimension(self.variance, x.shape[-1], "variance")) @ z.mT

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K = self.forward(x, z)
        weighted = z * per_dimension(self.variance, x.shape[-1], "variance")
        return K, torch.stack([weighted[..., None, :, i].expand_as(K) for i in range(x.shape[-1])])

    def diag(self, x: Tensor) -> Tensor:
        return (x.square() * self.variance).sum(-1)

    def terms(self, input_dim: int) -> list[Term]:
        variance = per_dimension(self.variance, input_dim, "variance")
        form = torch.cat([variance, variance.new_zeros(1)])
        return [Term(variance.new_ones(()), forms=(form,))]


class Polynomial(Kernel):
    """The polynomial kernel k = (x . x' + offset)^degree, whose functions are polynomials of this degree.

    >>> from matheron import kernels
    >>> kernels.Polynomial(degree=2, offset=1.0)([[1.0]], [[2.0]])
    tensor([[9.]], dtype=torch.float64)
    """

    fields = ("degree",)

    def __init__(self, degree: int = 2, offset: ArrayLike = 1.0) -> None:
        super().__init__(offset=positive(offset, "offset", zero=True, max_ndim=0))
        self.degree = as_count(degree, "degree")

    def of_one_scale(self, dims: list[int]) -> list[int]:
        return dims

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return (x @ z.mT + self.offset) ** self.degree

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        base = x @ z.mT + self.offset
        slope = self.degree * base ** (self.degree - 1)
        return base**self.degree, torch.stack([slope * z[..., None, :, i] for i in range(x.shape[-1])])

    def diag(self, x: Tensor) -> Tensor:
        return (x.square().sum(-1) + self.offset) ** self.degree

    def terms(self, input_dim: int) -> list[Term]:
        form = torch.cat([self.offset.new_ones(input_dim), self.offset[None]])
        return [Term(self.offset.new_ones(()), forms=(form,) * self.degree)]


class Constant(Kernel):
    """The constant kernel k = value, whose functions are constant.

    >>> from matheron import kernels
    >>> kernels.Constant(3.0)([[0.0]], [[5.0]])
    tensor([[3.]], dtype=torch.float64)
    """

    units: ClassVar = {"value": "y^2"}

    def __init__(self, value: ArrayLike = 1.0) -> None:
        super().__init__(value=positive(value, "value", zero=True, max_ndim=0))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        # torch's own function would import SymPy, which takes a second
        batch = np.broadcast_shapes(x.shape[:-2], z.shape[:-2])
        return self.value.expand(*batch, x.shape[-2], z.shape[-2])

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K = self.forward(x, z)
        return K, torch.zeros(x.shape[-1], *K.shape, dtype=K.dtype, device=K.device)

    def diag(self, x: Tensor) -> Tensor:
        return self.value.expand(x.shape[:-1])

    def terms(self, input_dim: int) -> list[Term]:
        return [Term(self.value)]
