"""Evaluation in fused GPU kernels: phases, waves and their weighted sum in one pass, and the same for kernels.

Nothing of size [n, ell] or [n, m] is ever in memory. These are Triton kernels for CUDA devices of compute capability
8.0 and on, for Fourier features of any kind, and updates with sums of RBF, Matern 1/2, 3/2, 5/2 and rational quadratic
kernels, in up to 64 dimensions; all else, and paths that are tied to a graph, is `chunked`'s, with the same values.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...means import ConstantMean, LinearMean
from ..sources import Derived, transformed
from .plan import Plan
from .read import make_plan

# The plan of some paths; None where there can be none.
plan_of: Derived[Plan] = Derived(make_plan)
# Points at a time for a mean of unknown appetite.
_MEAN_BLOCK = 1 << 16


def supported(paths: Any, x: Tensor) -> bool:
    """Whether `evaluate` can serve these paths at inner points x `[1 or s, n, d]`."""
    if x.device.type != "cuda" or not _usable(x.device.index) or transformed(x):
        return False
    return plan_of(paths) is not None


def evaluate(paths: Any, x: Tensor) -> Tensor:
    """mean + prior + update at x: `[s, n, t]`, differentiable in x."""
    from . import autograd, launch

    plan = plan_of(paths)
    assert plan is not None
    if torch.is_grad_enabled() and x.requires_grad:
        return autograd.Sums.apply(x, paths, plan) + paths.mean_function(x)
    with torch.no_grad():
        return launch.sums(plan, x.contiguous(), _mean(paths.mean_function, x))


@torch.no_grad()
def evaluate_with_gradient(paths: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same `[s, n, t]` and its gradient `[s, n, t, d]`, without a graph."""
    from . import launch

    plan = plan_of(paths)
    assert plan is not None
    if isinstance(paths.mean_function, ConstantMean):
        return launch.sums_with_gradient(plan, x.contiguous(), paths.mean_function(x), None)
    m, dm = paths.mean_function.with_gradient(x)
    return launch.sums_with_gradient(plan, x.contiguous(), m, dm)


def _mean(mean: Any, x: Tensor) -> Tensor:
    if isinstance(mean, ConstantMean | LinearMean) or x.shape[1] <= _MEAN_BLOCK:
        return mean(x)
    return torch.cat([mean(piece) for piece in x.split(_MEAN_BLOCK, dim=1)], dim=1)


@cache
def _usable(device: int | None) -> bool:
    """Whether there is Triton, and a CUDA device that it can use."""
    if importlib.util.find_spec("triton") is None or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
