"""Evaluation in fused GPU kernels: phases, waves and their weighted sum in one pass, and the same for kernels.

Nothing of size [n, ell] or [n, m] is ever in memory. These are Triton kernels for CUDA devices of compute capability
8.0 and on, for Fourier features of any kind, and updates with sums of RBF, Matern 1/2, 3/2, 5/2 and rational quadratic
kernels, in up to 64 dimensions; all else, and paths that require grad, is `chunked`'s, with the same values.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

from ...core.modes import transformed
from ...models.means import ConstantMean, LinearMean, Mean
from ..chunked import of_some
from ..record import Record
from .plan import Plan
from .read import make_plan

# Points at a time for a mean of unknown appetite.
_MEAN_BLOCK = 1 << 16


def plan_of(record: Record) -> Plan | None:
    """What the kernels need of a record; None where some of it has no kernel."""
    return record.derived(make_plan)


def can(record: Record, x: Tensor, of: Tensor | None = None) -> bool:
    """Whether the kernels serve this record at inner points x `[1 or s, n, d]`, or `[p, n, d]` of the paths `of`."""
    if x.device.type != "cuda" or not usable(x.device.index) or transformed():
        return False
    return plan_of(record) is not None


@torch.no_grad()
def values(record: Record, x: Tensor) -> Tensor:
    """mean + prior + update at x: `[s, n, t]`."""
    from . import launch

    return launch.sums(_plan(record), x.detach().contiguous(), _mean(record.mean, x))[0]


@torch.no_grad()
def values_and_gradients(record: Record, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same `[s, n, t]` and its gradient `[s, n, t, d]`, without a graph; of the paths `of` `[p, 1, t]`."""
    from . import launch

    if of is not None:
        return of_some(lambda points: values_and_gradients(record, points), record.num_paths, x, of)
    m, dm = (record.mean(x), None) if isinstance(record.mean, ConstantMean) else record.mean.with_gradient(x)
    return launch.sums_with_gradient(_plan(record), x.detach().contiguous(), m, dm)


@torch.no_grad()
def pulled(record: Record, x: Tensor, grad: Tensor) -> Tensor:
    """sum over paths of grad `[s, n, t]` times the gradients at shared points `[1, n, d]`."""
    from . import launch

    return launch.pulled(_plan(record), x.detach().contiguous(), grad) + record.mean_pulled(x, grad)


def _plan(record: Record) -> Plan:
    plan = plan_of(record)
    assert plan is not None
    return plan


def _mean(mean: Mean, x: Tensor) -> Tensor:
    if isinstance(mean, ConstantMean | LinearMean) or x.shape[1] <= _MEAN_BLOCK:
        return mean(x)
    return torch.cat([mean(piece) for piece in x.split(_MEAN_BLOCK, dim=1)], dim=1)


@cache
def usable(device: int | None) -> bool:
    """Whether there is Triton, and a CUDA device that it can use."""
    if importlib.util.find_spec("triton") is None or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
