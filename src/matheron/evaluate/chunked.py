"""Evaluation in blocks: peak extra memory is bounded whatever the number of points, paths and features.

A block is some of the points (and, where each path has its own, some of the paths). Its basis functions are made,
used in one product for all paths, and dropped; nothing of size [s, n, ell] or [n, ell] ever exists. Where
hyperparameters are in a graph, the backward pass makes each block's basis functions again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core.arena import arena, frame
from ..core.modes import transformed
from .path_terms import Which
from .record import Record

# The most that an evaluation holds beyond its inputs and its result, in bytes.
MEMORY_BUDGET = 256 * 2**20
# Arrays of a block's size alive at once in the worst kernel, counted from above.
_TEMPORARIES = 8
# On a CPU a block that stays in cache is faster than the largest that fits the budget: this many float64 numbers, or
# twice as many float32 (measured: from there to 4 times as many alike).
_CPU_BLOCK = 1 << 20
# Below this many numbers in all, allocating is cheaper than keeping accounts.
_SMALL = 1 << 16


# Blocks: which paths (None for all at shared points) and which points.
Plan = list[tuple[slice | None, slice]]
# The functions of some paths at a block of points.
Value = Callable[[Tensor, Which], Tensor]


def can(record: Record, x: Tensor, of: Tensor | None) -> bool:
    """Whatever it is."""
    return True


def values(record: Record, x: Tensor) -> Tensor:
    """The functions at inner points `[1 or s, n, d]`, differentiable in x and in the record: `[s, n, t]`.

    Shared points are cut along n, own points along s and n.
    """
    s, n, own, width = record.num_paths, x.shape[1], len(x) > 1, record.width(x)
    graph = (record.requires_grad or x.requires_grad) and torch.is_grad_enabled()
    if not graph and len(x) * n * width < _SMALL:
        return record.values(x, slice(0, s) if own else None)
    plan = _plan(x, s, width, own)
    if transformed():  # in whose graph nothing is written in place, and nothing made twice
        return _joined(record.values, x, plan)
    if graph:
        return _with_checkpoints(record.values, x, plan)
    out = torch.empty(s, n, record.num_outputs, dtype=x.dtype, device=x.device)
    with torch.no_grad(), arena():
        for paths, points in plan:
            out[_all(paths), points] = record.values(x[_all(paths), points], paths)
    return out


@torch.no_grad()
def values_and_gradients(record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same and gradients `[s, n, t, d]`, without a graph; of the paths `of` at their points `[p, n, d]`."""
    s, n, width = record.num_paths if of is None else len(of), x.shape[1], record.width(x, gradient=True)
    own = of is not None or len(x) > 1
    if len(x) * n * width < _SMALL:
        return record.values_and_gradients(x, of if of is not None else slice(0, s) if own else None)
    f = torch.empty(s, n, record.num_outputs, dtype=x.dtype, device=x.device)
    df = torch.empty(*f.shape, x.shape[2], dtype=x.dtype, device=x.device)
    with arena():
        for paths, points in _plan(x, s, width, own):
            block, whose = x[_all(paths), points], paths if of is None else of[_all(paths)]
            f[_all(paths), points], df[_all(paths), points] = record.values_and_gradients(block, whose)
    return f, df


def of_some(
    all_paths: Callable[[Tensor], tuple[Tensor, Tensor]], num_paths: int, x: Tensor, of: Tensor
) -> tuple[Tensor, Tensor]:
    """Values and gradients of path of[i] at x[i], `[p, 1, d], [p] -> [p, 1, t], [p, 1, t, d]`, by those of all paths at
    as many points each as the most that any has: less than a plan for fewer."""
    counts = torch.zeros(num_paths, dtype=torch.long, device=x.device).index_add_(0, of, torch.ones_like(of))
    order = of.argsort(stable=True)
    column = torch.empty_like(of)
    column[order] = torch.arange(len(of), device=x.device) - (counts.cumsum(0) - counts)[of[order]]
    points = x[:1, 0].expand(num_paths, int(counts.max()), -1).clone()
    points[of, column] = x[:, 0]
    value, gradient = all_paths(points)
    return value[of, column][:, None], gradient[of, column][:, None]


@torch.no_grad()
def pulled(record: Record, x: Tensor, grad: Tensor) -> Tensor:
    """sum over paths of grad `[s, n, t]` times the gradients at shared points `[1, n, d]`, in blocks."""
    out = torch.empty_like(x)
    with arena():
        for _, points in _plan(x, record.num_paths, 2 * record.width(x), own=False):
            with frame():
                out[:, points] = record.pulled(x[:, points], grad[:, points])
    return out


def differentiable_pull(record: Record, x: Tensor, grad: Tensor) -> Tensor:
    """The same in a graph, by autograd."""
    f = _with_checkpoints(record.values, x, _plan(x, record.num_paths, record.width(x), len(x) > 1))
    return torch.autograd.grad(f, x, grad, create_graph=True)[0] if f.requires_grad else torch.zeros_like(x)


def _with_checkpoints(value: Value, x: Tensor, plan: Plan) -> Tensor:
    """The blocks in a graph that includes hyperparameters: each is a checkpoint."""
    if len(plan) == 1:
        return value(x, plan[0][0])
    return _joined(partial(checkpoint, value, use_reentrant=False, preserve_rng_state=False), x, plan)


def _joined(value: Callable[..., Tensor], x: Tensor, plan: Plan) -> Tensor:
    rows: dict[int, list[Tensor]] = {}
    for paths, points in plan:
        rows.setdefault(_all(paths).start or 0, []).append(value(x[_all(paths), points], paths))
    return torch.cat([torch.cat(row, dim=1) for row in rows.values()], dim=0)


def block_numbers(x: Tensor) -> int:
    """How many numbers of x's dtype a block holds, on its device."""
    budget = MEMORY_BUDGET // (_TEMPORARIES * x.element_size())
    return min(budget, _CPU_BLOCK * 8 // x.element_size()) if x.device.type == "cpu" else budget


def _plan(x: Tensor, num_paths: int, width: int, own: bool) -> Plan:
    """Blocks (paths, points) that cover all and hold at most a block's numbers each, or one point of one path."""
    block = block_numbers(x)
    num_points = x.shape[1]
    points = max(1, min(num_points, block // width))
    cuts = [slice(j, j + points) for j in range(0, num_points, points)] or [slice(0, 0)]
    if not own:
        return [(None, cut) for cut in cuts]
    paths = max(1, min(num_paths, block // (width * points)))
    return [(slice(i, min(i + paths, num_paths)), cut) for i in range(0, num_paths, paths) for cut in cuts]


def _all(paths: slice | None) -> slice:
    return slice(None) if paths is None else paths
