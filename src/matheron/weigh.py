"""Weighted sums of basis functions, for several problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

Sums = Tensor | tuple[Tensor, Tensor]  # weighted sums, and with a gradient a pair


def weigh(Phi: Tensor, W: Tensor) -> Tensor:
    """W Phi^T: `[B, n, c], [B, r, c] -> [B, r, n]`.

    The order of the product is the faster of the two on a CPU, measured: weights first in float64, features first in
    float32 and where each problem has few sums.
    """
    if Phi.shape[0] == 1:
        return (W[0] @ Phi[0].mT if Phi.dtype == torch.float64 else (Phi[0] @ W[0].mT).mT)[None]
    return (Phi @ W.mT).mT


def weigh_coordinates(Phi: Tensor, W: Tensor, A: Tensor) -> Tensor:
    """sum_i W_i a_ij Phi_i for each coordinate j: `[B, n, c], [B, r, c], [1 or B, c, d] -> [B, r, n, d]`.

    One product per problem where there are many, so that Phi is read once; one per coordinate where there is one, whose
    weights need not then be held d times over.
    """
    if len(Phi) == 1:
        return torch.stack([weigh(Phi, W * a[:, None]) for a in A.unbind(-1)], dim=-1)
    weights = (W[:, :, None] * A.mT[:, None]).flatten(1, 2)  # [B, r d, c]
    return weigh(Phi, weights).unflatten(1, (W.shape[1], -1)).transpose(2, 3)


def add(total: Sums | None, part: Sums) -> Sums:
    """Sums of tensors, or of (value, gradient) pairs; in place where no graph is kept."""
    if total is None:
        return part
    if isinstance(total, tuple):
        return _plus(total[0], part[0]), _plus(total[1], part[1])
    assert not isinstance(part, tuple)
    return _plus(total, part)


def _plus(a: Tensor, b: Tensor) -> Tensor:
    return a + b if a.requires_grad or b.requires_grad else a.add_(b)
