"""Evaluation in fused GPU kernels: phases, waves and their weighted sum in one pass, and the same for kernels.

Nothing of size [n, ell] or [n, m] is ever in memory. These are Triton kernels for CUDA devices of compute capability
8.0 and on, for Fourier features of any kind, and updates with sums of RBF, Matern 1/2, 3/2, 5/2 and rational quadratic
kernels, in up to 64 dimensions; all else, and paths that are tied to a graph, is `chunked`'s, with the same values.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...means import ConstantMean, LinearMean
from .plan import Plan
from .read import make_plan

# Plans by paths. A plan that no longer stands for its paths (a parent module moved them in place) is made again.
_plans: WeakKeyDictionary[Any, tuple[Plan | None, list]] = WeakKeyDictionary()
# Points at a time for a mean of unknown appetite.
_MEAN_BLOCK = 1 << 16


def supported(paths: Any, x: Tensor) -> bool:
    """Whether `evaluate` can serve these paths at inner points x `[1 or s, n, d]`."""
    if x.device.type != "cuda" or not _usable(x.device.index) or _transformed(x):
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


def plan_of(paths: Any) -> Plan | None:
    """The plan of these paths, made at the first call; None where there can be none."""
    known = _plans.get(paths)
    if known is not None and (known[0].stands() if known[0] is not None else known[1] == _identities(paths)):
        return known[0]
    with torch.no_grad():
        plan = make_plan(paths)
    _plans[paths] = (plan, [] if plan is not None else _identities(paths))
    return plan


def _identities(paths: Any) -> list[int]:
    return [id(b) for b in paths.buffers()]


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


def _transformed(x: Tensor) -> bool:
    """Whether x is under a transform of torch.func, forward differentiation or compilation, which see no kernels."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.is_functorch_wrapped_tensor(x)  # type: ignore[attr-defined]
        or getattr(torch.autograd.forward_ad, "_current_level", -1) >= 0
    )
