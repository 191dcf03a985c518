"""Random places to start a fit from, in standardised units."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .hyperparameters import Hyperparameters, Leaf

# Log-uniform ranges: a tenth of a standard deviation to ten of them, noise from next to nothing to half the variance.
_RANGES = {"lengthscale": (0.1, 10.0), "period": (0.05, 4.0), "noise": (1e-4, 0.5), "alpha": (0.1, 10.0)}
_OTHER = (0.1, 3.0)


def candidates(h: Hyperparameters, count: int, generator: torch.Generator) -> list[Tensor]:
    """Vectors of random hyperparameters."""
    return [torch.cat([_random(leaf, generator) for leaf in h.leaves]) for _ in range(count)]


def _random(leaf: Leaf, generator: torch.Generator) -> Tensor:
    def normal(size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)

    if leaf.kind == "coupling":
        return leaf.encode(leaf.value) + 0.3 * normal(leaf.size)
    if leaf.kind == "real":
        return leaf.encode(leaf.value) + (0.0 if leaf.name.startswith("mean") else normal(leaf.size))
    lower, upper = (math.log(v) for v in _RANGES.get(leaf.short, _OTHER))
    u = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)
    log = lower + u * (upper - lower) + 0.5 * normal(leaf.size)  # one size for all dimensions, and each its own
    return log.clamp(math.log(leaf.bounds[0]), math.log(leaf.bounds[1]))
