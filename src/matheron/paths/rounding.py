"""How many digits an update's weights need.

Little noise among near data makes weights large, and sums of them cancel: what rounding leaves of such a sum in float32
can be more than the posterior's standard deviation. It is measured at some of the data, against float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..kernels import Kernel, coupled_covariance

# Observations at which it is measured, and what float32 may leave in a path, in posterior standard deviations.
_PLACES, _LIMIT = 64, 0.03


@torch.no_grad()
def in_enough_digits(
    kernel: Kernel, X: Tensor, tasks: Tensor | None, v: Tensor, deviations: Callable[[Tensor], Tensor]
) -> Tensor:
    """Weights v `[s, n]` in the dtype of X, or in float64 where they came so and X's has too few digits.

    `deviations` are the posterior's at some rows of X.
    """
    narrow = v.to(X.dtype)
    if narrow.dtype == v.dtype or not v.numel():
        return v
    rows = torch.linspace(0, len(X) - 1, min(_PLACES, len(X)), dtype=torch.float64, device=X.device).long()
    some = None if tasks is None else tasks[rows]
    wide = X.to(v.dtype)
    exact = coupled_covariance(kernel.to(v.dtype), wide[rows], some, wide, tasks) @ v.mT  # [p, s]
    rounded = coupled_covariance(kernel, X[rows], some, X, tasks) @ narrow.mT
    error = (rounded - exact) / deviations(rows).to(exact)[:, None]
    return narrow if bool(error.square().mean().sqrt() <= _LIMIT) else v
