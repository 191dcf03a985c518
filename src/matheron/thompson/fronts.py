"""Pareto fronts of points to be minimised in every column, and the hypervolume that a point would add to one."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.boxes import Sobol


def nondominated(F: Tensor) -> Tensor:
    """Which rows of F `[n, m]` are not dominated by another row, `[n]`; of equal rows, one is kept.

    >>> import torch
    >>> nondominated(torch.tensor([[0.0, 2.0], [1.0, 1.0], [1.0, 3.0], [0.0, 2.0]]))
    tensor([ True,  True, False, False])
    """
    keep = torch.zeros(len(F), dtype=torch.bool, device=F.device)
    left = torch.arange(len(F), device=F.device)
    while len(left):
        lowest = left[F[left].sum(1).argmin()]  # no remaining row dominates the one with the lowest sum
        keep[lowest] = True
        left = left[(F[left] < F[lowest]).any(1)]
    return keep


def improvements(F: Tensor, front: Tensor, reference: Tensor, num_points: int = 1 << 13) -> Tensor:
    """The hypervolume below `reference` `[m]` that each row of F `[p, m]` would add to that of `front` `[r, m]`: `[p]`.

    The result is exact for two columns. For more it is estimated on `num_points` points of a Sobol sequence, to about
    a thousandth of the box.

    >>> import torch
    >>> front, reference = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([2.0, 2.0])
    >>> improvements(torch.tensor([[0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]), front, reference)
    tensor([0.2500, 0.0000, 1.0000])
    """
    front = front[(front < reference).all(1)]
    front = front[nondominated(front)]
    if F.shape[1] == 2:
        return _in_the_plane(F, front, reference)
    lowest = torch.cat([F, front]).amin(0)
    side = (reference - lowest).clamp_min(0)
    points = lowest + side * Sobol(F.shape[1], seed=0).next(num_points).to(F)
    free = points[~(front[:, None] <= points).all(-1).any(0)]  # the points that the front does not dominate yet
    return (F[:, None] <= free).all(-1).sum(1).to(F) / num_points * side.prod()


def _in_the_plane(F: Tensor, front: Tensor, reference: Tensor) -> Tensor:
    """A sum over the steps of the front: strips between its points, each with the height that is still free."""
    front = front[front[:, 0].argsort()]  # the second column then decreases
    left = torch.cat([torch.full_like(reference[:1], -torch.inf), front[:, 0]])  # the left ends of the strips, [r + 1]
    right = torch.cat([front[:, 0], reference[:1]])
    top = torch.cat([reference[1:], front[:, 1]])
    width = (right - torch.maximum(left, F[:, :1])).clamp_min(0)  # [p, r + 1]
    height = (top - F[:, 1:]).clamp_min(0)
    return torch.where(width > 0, width * height, 0.0).sum(1)
