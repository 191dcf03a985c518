"""A kernel as a sum of radial ones, where it is one: what evaluators with a way of their own for these ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from .algebra import OnDims, Scaled, Sum
from .base import Kernel
from .stationary import _Radial


@dataclass(frozen=True)
class RadialPart:
    """scale * k(x[dims], x'[dims])."""

    kernel: _Radial
    dims: list[int]
    scale: Tensor | None = None


def radial_parts(kernel: Kernel, input_dim: int) -> list[RadialPart] | None:
    """The kernel as a sum of scaled radial ones on some coordinates; None where it is not one."""
    if isinstance(kernel, Sum):
        several = [radial_parts(k, input_dim) for k in kernel.parts]
        return None if any(parts is None for parts in several) else [p for parts in several for p in parts or []]
    if isinstance(kernel, Scaled):
        parts, scale = radial_parts(kernel.kernel, input_dim), kernel.outputscale
        return parts and [replace(p, scale=scale if p.scale is None else scale * p.scale) for p in parts]
    if isinstance(kernel, OnDims):
        parts = radial_parts(kernel.kernel, len(kernel.dims))
        return parts and [replace(p, dims=[kernel.dims[i] for i in p.dims]) for p in parts]
    return [RadialPart(kernel, list(range(input_dim)))] if isinstance(kernel, _Radial) else None
