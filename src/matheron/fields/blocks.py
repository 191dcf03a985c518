"""One block of a field: some paths at some of the targets. Workers compute these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from .carried import Carried, Functions
from .targets import Targets


def chosen_evaluator(targets: Targets) -> str:
    """ "grid" or "points": the evaluator for all blocks of a field. One choice for all avoids seams."""
    # A list of points is cheaper if a mask keeps less than a quarter of the cells; otherwise whole blocks are.
    sparse = isinstance(targets.mask, np.ndarray) and targets.mask.mean() < 0.25
    return "points" if targets.axes is None or sparse else "grid"


@dataclass(frozen=True)
class BlockGrid:
    """Paths start to stop on the grid of some axes, one for each of the field's dims."""

    paths: tuple[int, int]
    axes: tuple[np.ndarray, ...]
    order: tuple[int, ...]
    evaluator: str

    def __call__(self, carried: Carried, mask: np.ndarray | None) -> np.ndarray:
        """Values `[s, n1, n2, ...]`, or `[s, t, n1, n2, ...]`; NaN where the mask is False."""
        functions = carried.part(*self.paths)
        if mask is None:
            return self._on(functions, self.axes)
        out = _empty(functions, mask.shape)
        if mask.any():
            if self.evaluator == "points":
                index = np.nonzero(mask)
                cells = np.stack([self.axes[dim][index[dim]] for dim in self.order], axis=1)  # [n, d]
                out[..., mask] = _at(functions, cells)
            else:
                box = _box(mask)
                inner = self._on(functions, tuple(axis[s] for axis, s in zip(self.axes, box, strict=True)))
                out[(..., *box)] = np.where(mask[box], inner, np.nan)
        return out

    def _on(self, functions: Functions, axes: tuple[np.ndarray, ...]) -> np.ndarray:
        """On a whole grid: the paths' axes are in the order of their inputs, the field's in its own."""
        inputs = [np.array(axes[dim]) for dim in self.order]  # copies, since arrays from other processes are read-only
        f = functions.on_grid(inputs)  # [s, n of each input, t]
        dims = [1 + self.order.index(dim) for dim in range(len(axes))]
        if functions.num_outputs > 1:
            dims = [f.ndim - 1, *dims]
        return f.permute(0, *dims).cpu().numpy()  # not contiguous: writing copies it anyway


@dataclass(frozen=True)
class BlockList:
    """Paths start to stop at points `[n, d]`."""

    paths: tuple[int, int]
    points: np.ndarray

    def __call__(self, carried: Carried, mask: np.ndarray | None) -> np.ndarray:
        functions = carried.part(*self.paths)
        if mask is None:
            return _at(functions, self.points)
        out = _empty(functions, mask.shape)
        out[..., mask] = _at(functions, self.points[mask])
        return out


@torch.no_grad()
def _at(functions: Functions, points: np.ndarray) -> np.ndarray:
    f = functions(torch.from_numpy(np.array(points)))  # [s, n] or [s, n, t]
    return np.ascontiguousarray((f.mT if functions.num_outputs > 1 else f).cpu().numpy())


def _box(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box of cells that holds every True."""
    sides = []
    for axis in range(mask.ndim):
        along = np.flatnonzero(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis)))
        sides.append(slice(int(along[0]), int(along[-1]) + 1))
    return tuple(sides)


def _empty(functions: Functions, shape: tuple[int, ...]) -> np.ndarray:
    """NaN for every path, output and cell."""
    outputs = [functions.num_outputs] if functions.num_outputs > 1 else []
    return np.full((functions.num_paths, *outputs, *shape), np.nan, dtype=numpy_dtype(functions))


def numpy_dtype(functions: Functions) -> np.dtype:
    return np.dtype(str(functions.dtype).removeprefix("torch."))


def regions(cuts: Sequence[Sequence[int]]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """The number of each block along every dim, and where it is, from the blocks' sizes along the dims."""
    ends = [np.cumsum(sizes).tolist() for sizes in cuts]
    for index in product(*(range(len(sizes)) for sizes in cuts)):
        yield index, tuple(slice(e[i] - s[i], e[i]) for e, s, i in zip(ends, cuts, index, strict=True))
