"""Evaluation in fused GPU kernels: phases, waves and their weighted sum in one pass, and the same for kernels.

Nothing of size [n, ell] or [n, m] is ever in memory. These are Triton kernels for CUDA devices of compute capability
8.0 and above, in up to 64 dimensions. They serve Fourier features of any kind, and updates with sums of RBF, Matern
1/2, 3/2, 5/2 and rational quadratic kernels. All else, and paths that require grad, is left to blocks, with the same
values.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ...core.modes import transformed
from ...models.means import ConstantMean, LinearMean, Mean
from ..evaluators import Evaluator, Points
from ..own_points import of_some
from ..record import Record
from .plan import LARGEST_DIM, Plan, has_kernel, join, plan_of


@dataclass(eq=False)
class FusedKernels(Evaluator):
    """The terms that have kernels, and the mean with them, on a CUDA device.

    Args:
        mean_block: points at a time for a mean of unknown appetite.
    """

    mean_block: int = 1 << 16

    device_type = "cuda"

    def take(self, record: Record, points: Points) -> tuple[Record | None, Record | None]:
        if points == "traced" or record.input_dim > LARGEST_DIM or not usable(record.origin.device):
            return None, record
        terms = [term for term in record.terms if has_kernel(term, record.input_dim)]
        return record.parted(terms, with_mean=True) if terms else (None, record)

    @torch.no_grad()
    def values(self, record: Record, x: Tensor) -> Tensor:
        from . import launch

        return launch.sums(_plan(record), x.detach().contiguous(), self._mean(record.mean, x))[0]

    @torch.no_grad()
    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        from . import launch

        if of is not None:
            return of_some(lambda points: self.values_and_gradients(record, points), record.num_paths, x, of)
        m, dm = (record.mean(x), None) if isinstance(record.mean, ConstantMean) else record.mean.with_gradient(x)
        return launch.sums_with_gradient(_plan(record), x.detach().contiguous(), m, dm)

    @torch.no_grad()
    def vjp(self, record: Record, x: Tensor, G: Tensor) -> Tensor:
        from . import launch

        return launch.vjp(_plan(record), x.detach().contiguous(), G) + record.mean_vjp(x, G)

    def _mean(self, mean: Mean, x: Tensor) -> Tensor:
        if isinstance(mean, ConstantMean | LinearMean) or x.shape[1] <= self.mean_block:
            return mean(x)
        return torch.cat([mean(piece) for piece in x.split(self.mean_block, dim=1)], dim=1)


def serves(record: Record) -> bool:
    """Whether there are kernels for all of a record, and they can be used now."""
    return usable(record.origin.device) and not transformed() and plan_of(record) is not None


def joined_gradients(records: Sequence[Record], x: Tensor, of: Tensor) -> tuple[Tensor, Tensor] | None:
    """Values and gradients of path of[i] of several models, counted in the models' order, at x[i], in the launches of
    one: `[p, 1, d], [p] -> [p, 1, 1], [p, 1, 1, d]`; None where kernels do not serve these models, or they differ."""
    if len(records) < 2 or not all(map(serves, records)):
        return None
    made, _ = records[0].derived(lambda _: (join(records), records), key=tuple(map(id, records)))
    return None if made is None else gradients_of(*made, x, of)


def gradients_of(plan: Plan, mean: Tensor, x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    """Values and gradients from a joined plan and each path's mean `[s, 1, 1]`."""
    from . import launch

    return of_some(lambda points: launch.sums_with_gradient(plan, points, mean, None), plan.num_paths, x, of)


def _plan(record: Record) -> Plan:
    plan = plan_of(record)
    assert plan is not None
    return plan


@cache
def usable(device: torch.device) -> bool:
    """Whether this is a CUDA device that Triton can use, and Triton is there."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
