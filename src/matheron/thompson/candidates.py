"""Thompson sampling over a list of candidates: it finds the best candidate for each drawn function, and needs no
gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.checks import as_array, as_count
from ..paths import AbstractFunctions


class Chosen(NamedTuple):
    """Candidates by their numbers `[s]`, one for each function, and the functions' values there `[s]`."""

    index: Tensor
    value: Tensor


@torch.no_grad()
def best_of(
    functions: AbstractFunctions,
    candidates: Any,
    *,
    maximize: bool = False,
    distinct: bool = True,
    exclude: Sequence[int] | Tensor | np.ndarray = (),
    block_size: int = 8192,
) -> Chosen:
    """The candidate at which each drawn function is least: a round of Thompson sampling over a list.

    Candidates are read in blocks of rows, and converted to the functions' dtype block by block, so that a list of
    fingerprints may be an array of bytes.

    Args:
        functions: s of them with one output, such as paths of `matheron.draw`.
        candidates: points `[n, d]`: an array or a tensor of any numeric dtype, or a sparse matrix of SciPy.
        maximize: take the candidate at which each function is largest.
        distinct: no candidate twice: where several functions have the same best one, those that come later take their
            best one of the rest.
        exclude: the numbers of candidates that are not to be taken, such as those that were evaluated before; or for
            each candidate whether it is one of these.
        block_size: rows that are read at once.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> molecules = torch.randint(2, (500, 64), dtype=torch.uint8)  # fingerprints
    >>> gp = matheron.ExactGP(kernels.Tanimoto(), molecules[:20].double(), torch.randn(20), noise=0.1)
    >>> found = matheron.thompson.best_of(matheron.draw(gp, 8), molecules, exclude=range(20))
    >>> len(found.index.unique()), bool((found.index >= 20).all())
    (8, True)
    """
    n, d = _shape(candidates)
    if d != functions.input_dim:
        raise ValueError(f"candidates: expected {functions.input_dim} columns, got {d}")
    if functions.num_outputs > 1:
        raise ValueError(
            f"functions: expected one output, got {functions.num_outputs}; give one of them, functions[..., 0]"
        )
    s = functions.num_paths
    taken = _numbers(exclude, n)
    left = n - len(taken.unique())
    most = s if distinct else 1  # so that each function has a candidate, even if all others have taken theirs
    if left < most:
        raise ValueError(
            f"candidates: expected at least {most} that are not excluded, got {left}; draw fewer functions, or use "
            "distinct=False"
        )
    sign = -1.0 if maximize else 1.0
    like = functions(_rows(candidates, 0, 1, torch.float64, None))
    value = like.new_full((s, 0), torch.inf)
    index = torch.zeros(s, 0, dtype=torch.long, device=like.device)
    barred = torch.zeros(n, dtype=torch.bool, device=like.device)
    barred[taken.to(like.device)] = True
    block_size = as_count(block_size, "block_size")
    for start in range(0, n, block_size):
        stop = min(n, start + block_size)
        f = sign * functions(_rows(candidates, start, stop, like.dtype, like.device))  # [s, rows]
        # NaN comes after infinity, so that undefined values come last but for what is excluded.
        f = torch.where(f.isnan(), torch.inf, f).masked_fill(barred[start:stop], torch.nan)
        numbers = torch.arange(start, stop, device=like.device).expand(s, -1)
        value, index = torch.cat([value, f], dim=1), torch.cat([index, numbers], dim=1)
        value, kept = value.topk(min(most, value.shape[1]), dim=1, largest=False)
        index = index.gather(1, kept)
    choice = torch.zeros(s, dtype=torch.long, device=like.device)
    for i in range(s if distinct else 0):
        free = ~torch.isin(index[i], index[torch.arange(i, device=like.device), choice[:i]])
        choice[i] = free.long().argmax()
    own = torch.arange(s, device=like.device)
    return Chosen(index[own, choice], sign * value[own, choice])


def _numbers(exclude: Sequence[int] | Tensor | np.ndarray, n: int) -> Tensor:
    """The excluded numbers, of numbers or of a mask `[n]`."""
    given = exclude.detach().cpu().numpy() if isinstance(exclude, Tensor) else np.asarray(exclude)
    if given.dtype == bool and given.shape == (n,):
        given = np.flatnonzero(given)
    whole = given.ndim == 1 and (given.dtype.kind in "iu" or not given.size)
    if not whole or (given.size and not (0 <= given.min() and given.max() < n)):
        raise ValueError(f"exclude: expected numbers of candidates from 0 to {n - 1}, got {given.tolist()}")
    return torch.from_numpy(given.astype(np.int64))


def _shape(candidates: Any) -> tuple[int, int]:
    shape = tuple(getattr(candidates, "shape", ())) or np.shape(candidates)
    if len(shape) != 2 or not shape[0]:
        raise ValueError(f"candidates: expected points [n, d], got shape {list(shape)}")
    return int(shape[0]), int(shape[1])


def _rows(candidates: Any, start: int, stop: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Some of the candidates as points."""
    rows = candidates.iloc[start:stop].to_numpy() if hasattr(candidates, "iloc") else candidates[start:stop]
    rows = rows.toarray() if hasattr(rows, "toarray") else rows
    return as_array(rows if isinstance(rows, Tensor) else np.asarray(rows)).to(device=device, dtype=dtype)
