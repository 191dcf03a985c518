"""The normal form of a kernel: a sum of terms, each a product of stationary kernels and linear forms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.modes import transformed
from .composed_measures import Convolution
from .spectral import SpectralMeasure

if TYPE_CHECKING:
    from .base import Kernel
    from .radial import Radial


@dataclass(frozen=True)
class RadialPart:
    """scale * k(x[dims], x'[dims])."""

    kernel: Radial
    dims: list[int]
    scale: Tensor | None = None


@dataclass(frozen=True)
class Term:
    """variance * B (x) prod_i k_i(x, x') * prod_j <x, x'>_j * prod_l h_l(x, x').

    The k_i are stationary with k_i(x, x) = 1. A form <x, x'> = sum_i c_i x_i x'_i + c_d is held as its coefficients
    `[d + 1]`, zero or positive, over (x, 1). The h_l are kernels with features of their own. B `[t, t]` couples
    outputs; None is all ones.
    """

    variance: Tensor
    stationary: tuple[Kernel, ...] = ()
    forms: tuple[Tensor, ...] = ()
    coupling: Tensor | None = None
    own: tuple[Kernel, ...] = ()

    def __mul__(self, other: Term) -> Term:
        couplings = [B for B in (self.coupling, other.coupling) if B is not None]
        return Term(
            self.variance * other.variance,
            self.stationary + other.stationary,
            self.forms + other.forms,
            reduce(torch.mul, couplings) if couplings else None,
            self.own + other.own,
        )

    def measure(self, input_dim: int) -> SpectralMeasure:
        """The spectral measure of the stationary part, which must not be empty."""
        measures = [k.measure(input_dim) for k in self.stationary]
        return measures[0] if len(measures) == 1 else Convolution(measures)

    def active_dims(self, input_dim: int) -> list[int]:
        """The coordinates on which the stationary part depends."""
        return sorted({i for k in self.stationary for i in k.active_dims(input_dim)})

    def embedded(self, dims: list[int], input_dim: int) -> Term:
        """The term of the same kernel applied to some coordinates alone."""
        index = torch.tensor([*dims, input_dim], device="cpu")
        forms = tuple(c.new_zeros(input_dim + 1).index_copy(0, index.to(c.device), c) for c in self.forms)
        on = {name: tuple(k.on(dims) for k in getattr(self, name)) for name in ("stationary", "own")}
        return replace(self, forms=forms, **on)


def same_coupling(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two couplings B are one, so that their functions may share a root of it."""
    if a is b:
        return True
    if a is None or b is None or a.requires_grad or b.requires_grad or transformed():
        return False
    return torch.equal(a, b)
