"""Weighted sums of basis functions: tensors `[s, t, n]`, or pairs of these and their gradients `[s, t, n, d]`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def split_rows(out: Any, s: int, t: int) -> Any:
    """`[1, s t, n, ...] -> [s, t, n, ...]`, of a tensor or of a pair."""
    if isinstance(out, tuple):
        return tuple(split_rows(o, s, t) for o in out)
    return out.reshape(s, t, *out.shape[2:])


def concatenated(parts: list[Any]) -> Any:
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(p) for p in zip(*parts, strict=True))
    return torch.cat(parts)


def picked(out: Any, index: Tensor) -> Any:
    return tuple(o[index] for o in out) if isinstance(out, tuple) else out[index]
