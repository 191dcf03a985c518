"""Weighted sums of basis functions, for several problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

from .modes import transformed

# Measured: how many times fewer points than sums are few; coordinates from which one product for all is faster than one
# each, and weights beyond which it is not.
_FEWER, _SEVERAL, _MANY = 4, 4, 1 << 17

Sums = Tensor | tuple[Tensor, Tensor]  # weighted sums, and with a gradient a pair


def weigh(Phi: Tensor, W: Tensor) -> Tensor:
    """W Phi^T: `[B, n, c], [B, r, c] -> [B, r, n]`.

    The order of the product is the faster of the two on a CPU, measured: weights first in float64, features first in
    float32 and where each problem has few sums.
    """
    if Phi.shape[0] == 1 and Phi.dtype == torch.float64:
        return torch.bmm(W, Phi.mT)
    return torch.bmm(Phi, W.mT).mT if Phi.shape[0] == 1 else (Phi @ W.mT).mT


def weigh_coordinates(Phi: Tensor, W: Tensor, A: Tensor) -> Tensor:
    """sum_i W_i a_ij Phi_i for each coordinate j: `[B, n, c], [B, r, c], [1 or B, c, d] -> [B, r, n, d]`.

    One product per problem where there are many, so that Phi is read once. Where there is one, functions are multiplied
    by coordinates if there are few points; else weights are, in a product per coordinate if these are few, or weights
    would be many: they need not then be held d times over.
    """
    (n, d), r = (Phi.shape[1], A.shape[-1]), W.shape[1]
    if len(Phi) == 1 and _FEWER * n <= r:
        return weigh((Phi[:, :, None] * A.mT[:, None]).flatten(1, 2), W).unflatten(2, (n, d))
    if len(Phi) == 1 and (d < _SEVERAL or W.numel() * d > _MANY):
        return torch.stack([weigh(Phi, W * a[:, None]) for a in A.unbind(-1)], dim=-1)
    weights = (W[:, :, None] * A.mT[:, None]).flatten(1, 2)  # [B, r d, c]
    return weigh(Phi, weights).unflatten(1, (r, d)).transpose(2, 3)


def add(total: Sums | None, part: Sums) -> Sums:
    """Sums of tensors, or of (value, gradient) pairs; in place where no graph is kept."""
    if total is None:
        return part
    if isinstance(total, tuple):
        return _plus(total[0], part[0]), _plus(total[1], part[1])
    assert not isinstance(part, tuple)
    return _plus(total, part)


def _plus(a: Tensor, b: Tensor) -> Tensor:
    return a + b if a.requires_grad or b.requires_grad or transformed() else a.add_(b)
