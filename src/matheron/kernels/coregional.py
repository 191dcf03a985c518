"""The kernel Coregional, which makes several outputs one Gaussian process over (x, task)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_tensor
from .base import Kernel, Term

__all__ = ["Coregional"]


class Coregional(Kernel):
    """The kernel k((x, i), (x', j)) = B[i, j] k(x, x') of t outputs, with B `[t, t]` positive semi-definite.

    A sum of several is a linear model of coregionalisation. A kernel of one output in such a sum is shared by all
    outputs (its B is all ones). `coupled_covariance` computes the covariance between given outputs, and paths have
    values `[..., t]`.

    >>> from matheron import kernels
    >>> kernels.Coregional(kernels.RBF(), [[1.0, 0.9], [0.9, 1.0]]).num_outputs
    2
    """

    units: ClassVar = {"B": "y^2"}

    def __init__(self, kernel: Kernel, B: ArrayLike) -> None:
        super().__init__()
        B = as_tensor(B, "B").double().clone()
        if B.ndim != 2 or B.shape[0] != B.shape[1]:
            raise ValueError(f"B: expected a square matrix [t, t], got shape {list(B.shape)}")
        if len(B) < 2:
            raise ValueError(
                f"B: expected at least two outputs, got {B.tolist()}; for one output, scale the kernel: 2.0 * k"
            )
        if not torch.allclose(B, B.mT, rtol=1e-6, atol=1e-9):
            raise ValueError("B: expected a symmetric matrix; B = W W^T + diag(kappa) is one")
        smallest = torch.linalg.eigvalsh(B.detach()).min().item()
        if smallest < -1e-8 * B.detach().diagonal().max().clamp_min(1.0).item():
            raise ValueError(
                f"B: expected a positive semi-definite matrix, got a smallest eigenvalue of {smallest:.4g}"
            )
        if kernel.num_outputs > 1:
            raise ValueError("kernel: expected a kernel of one output, got several; multiply two Coregional kernels")
        self.kernel = kernel
        self.register_buffer("B", B)

    def forward(self, x: Tensor, z: Tensor | None = None) -> NoReturn:
        raise TypeError(
            "a Coregional kernel needs the outputs of its points: call coupled_covariance(kernel, Sites(x, i), "
            "Sites(z, j))"
        )

    with_gradient = diag = forward

    def terms(self, input_dim: int) -> list[Term]:
        return [replace(term, coupling=self.B) for term in self.kernel.terms(input_dim)]

    @property
    def num_outputs(self) -> int:
        return self.B.shape[0]

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        return [(self.B, self.kernel)]
