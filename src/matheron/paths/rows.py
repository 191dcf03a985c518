"""Which paths: some of them, or one for each point."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..checks import ArrayLike, as_array, as_real, check_points

if TYPE_CHECKING:
    from .functions import AbstractFunctions


def as_index(index: int | slice | Sequence[int] | Tensor, num_paths: int, device: torch.device) -> Tensor:
    """Which paths are asked for, as whole numbers; an integer is a list of one."""
    if isinstance(index, slice):
        index = list(range(num_paths)[index])  # torch knows no steps backwards
    elif not isinstance(index, Sequence) and getattr(index, "ndim", 0) == 0:
        index = operator.index(index)
        if not -num_paths <= index < num_paths:
            raise IndexError(f"path {index} of {num_paths}")
        index = [index]
    chosen = torch.arange(num_paths, device=device)[index]
    if len(chosen) == 0:
        raise IndexError(f"expected at least one path of {num_paths}, got none")
    return chosen


def as_rows(paths: AbstractFunctions, x: ArrayLike, of: ArrayLike) -> tuple[Tensor, Tensor]:
    """A point x `[p, d]` for each of the paths `of` `[p]`."""
    of = as_array(of)
    if of.numel() == 0 or of.is_floating_point():
        raise ValueError(f"of: expected whole numbers, the paths of the points, at least one, got {of.tolist()}")
    owner = as_index(of, paths.num_paths, paths.device)
    x = as_real(x, "x").to(dtype=paths.dtype, device=paths.device)
    if x.shape != (len(owner), paths.input_dim):
        wanted = [len(owner), paths.input_dim]
        raise ValueError(f"x: expected {wanted}, a point for each of `of`, got {list(x.shape)}")
    check_points(x)
    return x, owner
