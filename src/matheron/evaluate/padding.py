"""A point for each of some paths, as points of every path: as many as the most that any has."""

from __future__ import annotations

import torch
from torch import Tensor


def padded(x: Tensor, of: Tensor, num_paths: int) -> tuple[Tensor, Tensor]:
    """Points `[s, n, d]` that hold x[i] `[p, d]` among those of path of[i] `[p]`, and the column of each, `[p]`."""
    counts = torch.zeros(num_paths, dtype=torch.long, device=x.device).index_add_(0, of, torch.ones_like(of))
    order = of.argsort(stable=True)
    column = torch.empty_like(of)
    column[order] = torch.arange(len(of), device=x.device) - (counts.cumsum(0) - counts)[of[order]]
    points = x[:1].expand(num_paths, int(counts.max()), -1).clone()
    points[of, column] = x
    return points, column
