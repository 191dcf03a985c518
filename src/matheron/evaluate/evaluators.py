"""How paths are computed: evaluators that each take some of the terms of a record, and blocks that take the rest.

The evaluators of a record are chosen once for each kind of points. Each in turn states which terms it computes there
and leaves the others to the next. So one unusual term does not prevent a fast evaluation of the rest. The results are
added.

Blocks take what is left at the end. A block is some of the points (and, where each path has its own, some of the
paths). Its basis functions are made, used in one product for all paths, and dropped. Nothing of size [s, n, ell] or
[n, ell] ever exists. Peak extra memory is therefore bounded, whatever the number of points, paths and features. Where
hyperparameters are in a graph, the backward pass makes each block's basis functions again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ..core.arena import arena, frame
from ..core.modes import transformed
from .own_points import of_some, one_sum_each
from .record import Record

# The kinds of points. "shared": points `[1, n, d]` for all paths. "own": points `[s, n, d]`, different for each path.
# "traced": either of these inside a transform of torch.func, or with hyperparameters in a graph, where only plain
# operations can be used.
Points = Literal["shared", "own", "traced"]
# The largest memory, in bytes, that an evaluation holds beyond its inputs and its result.
MEMORY_BUDGET = 256 * 2**20


class Evaluator(ABC):
    """A way to compute some of the terms of paths."""

    # Whether several functions at the same points cost less together than one by one, because their basis is computed
    # once.
    shares_work: bool = True
    # The types of terms, or of their bases, that this evaluator can take, and the type of device. None stands for all.
    kinds: tuple[type, ...] | None = None
    device_type: str | None = None

    @abstractmethod
    def take(self, record: Record, points: Points) -> tuple[Record | None, Record | None]:
        """Split a record into the terms that this evaluator computes at points of this kind, and the rest. A part
        without terms is None.

        Both parts are records (see `Record.parted`), and the mean belongs to one of them. The methods below get the
        first part.
        """

    @abstractmethod
    def values(self, record: Record, x: Tensor) -> Tensor:
        """Values `[s, n, t]` of the terms that were taken, at inner points `[1 or s, n, d]`."""

    @abstractmethod
    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        """Values and gradients `[s, n, t, d]`, without a graph; of the paths `of` at their points `[p, n, d]`."""

    def vjp(self, record: Record, x: Tensor, G: Tensor) -> Tensor:
        """sum over paths and outputs of G `[s, n, t]` times the gradients at shared points `[1, n, d]`."""
        return BLOCKS.vjp(record, x, G)


def register(evaluator: Evaluator) -> None:
    """Add an evaluator to the list. It is asked after those that were registered before, and before blocks."""
    EVALUATORS.insert(len(EVALUATORS) - 1, evaluator)


def _kind(record: Record, x: Tensor, of: Tensor | None = None) -> Points:
    if record.requires_grad or transformed():
        return "traced"
    return "shared" if x.shape[0] == 1 and of is None else "own"


def _chosen(points: Points, record: Record) -> list[tuple[Evaluator, Record]]:
    """The evaluators of a record at points of this kind, and what each of them computes."""
    chosen: list[tuple[Evaluator, Record]] = []
    rest: Record | None = record
    for evaluator in EVALUATORS:
        if rest is None or evaluator.device_type not in (None, rest.origin.device.type):
            continue
        known = [part for term in rest.terms for part in (term, getattr(term, "basis", None))]
        if evaluator.kinds is None or any(isinstance(part, evaluator.kinds) for part in known):
            mine, rest = evaluator.take(rest, points)
            chosen += [] if mine is None else [(evaluator, mine)]
    return chosen


# What a record stores for each kind of points: the evaluators that were chosen.
_PARTS: dict[Points, Callable[[Record], list[tuple[Evaluator, Record]]]] = {
    points: partial(_chosen, points) for points in ("shared", "own", "traced")
}


def record_shares_work(record: Record) -> bool:
    """Whether several functions at the same points cost less together than one by one, because their basis is computed
    once."""
    return any(evaluator.shares_work for evaluator, mine in record.derived(_PARTS["shared"]) if mine.terms)


def values(record: Record, x: Tensor) -> Tensor:
    """The functions at inner points `[1 or s, n, d]`: `[s, n, t]`, differentiable in x."""
    points = _kind(record, x)
    if x.requires_grad and points != "traced" and torch.is_grad_enabled():
        from .in_graph import InGraph

        return InGraph.apply(x, record)
    (evaluator, mine), *more = record.derived(_PARTS[points])
    f = evaluator.values(mine, x)
    for evaluator, mine in more:
        f = f + evaluator.values(mine, x)
    return f


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Values and gradients `[s, n, t, d]`, without a graph; with `of`, of these paths at points `[p, n, d]`."""
    s = record.num_paths
    # each path has several points
    if of is not None and len(of) >= 4 * s and s * int(of.bincount().max()) <= 2 * len(of):
        return of_some(lambda points: values_and_gradients(record, points), s, x, of)
    (evaluator, mine), *more = record.derived(_PARTS[_kind(record, x, of)])
    f, df = evaluator.values_and_gradients(mine, x, of)
    for evaluator, mine in more:
        g, dg = evaluator.values_and_gradients(mine, x, of)
        f, df = f + g, df + dg
    return f, df


def vjp(record: Record, x: Tensor, G: Tensor) -> Tensor:
    """sum over paths and outputs of G `[s, n, t]` times the gradients at shared points `[1, n, d]`, without a graph."""
    (evaluator, mine), *more = record.derived(_PARTS["shared"])
    total = evaluator.vjp(mine, x, G)
    for evaluator, mine in more:
        total = total + evaluator.vjp(mine, x, G)
    return total


# The blocks of an evaluation: which paths (None for all of them, at shared points) and which points.
Cuts = list[tuple[slice | None, slice]]


@dataclass
class Blocks(Evaluator):
    """All terms, in blocks of points and paths.

    Args:
        cpu_block: numbers in a block on a CPU, if float64; twice as many in float32. A block that stays in cache is
            faster than the largest that fits the budget. The benchmark is 64 paths with 4,096 features and 1,024 data
            (the headline of benchmarks/cases.py). With half of this number it takes up to half as long again; with
            twice, at own points, a tenth longer.
        memory_budget: the most that an evaluation holds beyond its inputs and its result, in bytes.
        temporaries: arrays of a block's size that are alive at once in the worst kernel, counted from above.
        small: numbers in all below which there is one block, and allocating is cheaper than keeping accounts of memory.
            From a quarter of this to four times, calls take the same within 3% (benchmarks/peers.py, few points).
    """

    cpu_block: int = 1 << 20
    memory_budget: int = MEMORY_BUDGET
    temporaries: int = 8
    small: int = 1 << 16

    def take(self, record: Record, points: Points) -> tuple[Record | None, Record | None]:
        alone = points == "own" or (points == "shared" and record.num_paths == 1)
        return record.derived(one_sum_each) if alone else record, None

    def values(self, record: Record, x: Tensor) -> Tensor:
        """All terms and the mean, `[s, n, t]`, in an autograd graph if x or the record is in one.

        Shared points are cut along n, own points along s and n.
        """
        s, (rows, n, _), width = record.num_paths, x.shape, record.width(x)
        own = rows > 1
        graph = (record.requires_grad or x.requires_grad) and torch.is_grad_enabled()
        if not graph and rows * n * width < self.small:
            return record.values(x, slice(0, s) if own else None)
        cuts = self.cuts(x, s, width, own)
        if graph or transformed():  # nothing may be written in place inside a graph
            from .in_graph import values_in_blocks

            return values_in_blocks(record, x, cuts)
        out = torch.empty(s, n, record.num_outputs, dtype=x.dtype, device=x.device)
        with torch.no_grad(), arena():
            for paths, points in cuts:
                out[cut_of(paths), points] = record.values(x[cut_of(paths), points], paths)
        return out

    @torch.no_grad()
    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        s, n, width = record.num_paths if of is None else len(of), x.shape[1], record.width(x, gradient=True)
        own = of is not None or len(x) > 1
        if len(x) * n * width < self.small:
            return record.values_and_gradients(x, of if of is not None else slice(0, s) if own else None)
        f = torch.empty(s, n, record.num_outputs, dtype=x.dtype, device=x.device)
        df = torch.empty(*f.shape, x.shape[2], dtype=x.dtype, device=x.device)
        with arena():
            for paths, points in self.cuts(x, s, width, own):
                block, whose = x[cut_of(paths), points], paths if of is None else of[cut_of(paths)]
                f[cut_of(paths), points], df[cut_of(paths), points] = record.values_and_gradients(block, whose)
        return f, df

    @torch.no_grad()
    def vjp(self, record: Record, x: Tensor, G: Tensor) -> Tensor:
        out = torch.empty_like(x)
        with arena():
            for _, points in self.cuts(x, record.num_paths, 2 * record.width(x), own=False):
                with frame():
                    out[:, points] = record.vjp(x[:, points], G[:, points])
        return out

    def numbers(self, x: Tensor) -> int:
        """How many numbers of x's dtype a block holds, on its device."""
        budget = self.memory_budget // (self.temporaries * x.element_size())
        return min(budget, self.cpu_block * 8 // x.element_size()) if x.device.type == "cpu" else budget

    def cuts(self, x: Tensor, num_paths: int, width: int, own: bool) -> Cuts:
        """Blocks (paths, points) that cover all and hold at most a block's numbers each, or one point of one path."""
        block, num_points = self.numbers(x), x.shape[1]
        points = max(1, min(num_points, block // width))
        cuts = [slice(j, j + points) for j in range(0, num_points, points)] or [slice(0, 0)]
        if not own:
            return [(None, cut) for cut in cuts]
        paths = max(1, min(num_paths, block // (width * points)))
        return [(slice(i, min(i + paths, num_paths)), cut) for i in range(0, num_paths, paths) for cut in cuts]


def cut_of(paths: slice | None) -> slice:
    """Which rows of points are those of some paths: all where the points are shared."""
    return slice(None) if paths is None else paths


BLOCKS = Blocks()
# Evaluators in the order in which they are asked. Blocks are the last, and take all terms that are left.
EVALUATORS: list[Evaluator] = [BLOCKS]
