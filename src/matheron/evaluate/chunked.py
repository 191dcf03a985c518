"""Evaluation in blocks: peak extra memory is bounded whatever the number of points, paths and features.

A block is some of the points (and, where each path has its own, some of the paths). Its basis functions are made,
used in one product for all paths, and dropped; nothing of size [s, n, ell] or [n, ell] ever exists. Under autograd
the graph keeps the points alone, and the backward pass makes each block's basis functions again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..scratch import arena

# The most that an evaluation holds beyond its inputs and its answer, in bytes.
MEMORY_BUDGET = 256 * 2**20
# Arrays of a block's size alive at once in the worst kernel, counted from above.
_TEMPORARIES = 8
# On a CPU a block that stays in cache is faster than the largest that fits the budget: so many float64 numbers, or
# twice as many float32 (measured: from there to 4 times as many alike).
_CPU_BLOCK = 1 << 20
# Below this many numbers in all, allocating is cheaper than keeping accounts.
_SMALL = 1 << 16


# Blocks: which paths (None for all at shared points) and which points.
Plan = list[tuple[slice | None, slice]]


def evaluate(
    value: Callable[[Tensor, slice | None], Tensor],
    x: Tensor,
    num_paths: int,
    num_outputs: int,
    width: int,
    *,
    own: bool,
    tied: bool,
) -> Tensor:
    """`value(x, paths)` `[s, n, t]` in blocks.

    Shared points `[1, n, d]` are cut along n, and `paths` is None; own points `[s, n, d]` along s and n, and `paths`
    says which these are. `width` counts the numbers that one point needs. `tied` says that the paths themselves are
    in a graph.
    """
    graph = (tied or x.requires_grad) and torch.is_grad_enabled()
    if not graph and num_paths * x.shape[1] * width < _SMALL:
        return value(x, slice(0, num_paths) if own else None)
    plan = _plan(x, num_paths, width, own)
    shape = (num_paths, x.shape[1], num_outputs)
    if graph:
        return _evaluate_tied(value, x, plan) if tied or len(plan) == 1 else _InBlocks.apply(x, value, plan, shape)
    with torch.no_grad():
        return _in_turn(value, x, plan, shape)


def _in_turn(value, x: Tensor, plan: Plan, shape: tuple[int, int, int]) -> Tensor:
    """The blocks one after the other, written into one answer of the shape `[s, n, t]`."""
    out = torch.empty(shape, dtype=x.dtype, device=x.device)
    with arena():
        for paths, points in plan:
            out[_all(paths), points] = value(x[_all(paths), points], paths)
    return out


class _InBlocks(torch.autograd.Function):
    """The same for points in a graph. The graph keeps the points; going back, each block is made again.

    Checkpoints would keep as little, but between the blocks' temporaries, and so the heap grows (1.4 kB a point).
    """

    @staticmethod
    def forward(ctx, x: Tensor, value, plan: Plan, shape: tuple[int, int, int]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.value, ctx.plan = value, plan
        return _in_turn(value, x, plan, shape)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # asked for a graph of the gradient, for second derivatives
            return _pulled_back(_evaluate_tied(ctx.value, x, ctx.plan), x, grad, create_graph=True), None, None, None
        out = torch.empty_like(x)
        for paths, points in ctx.plan:
            block = x[_all(paths), points].detach().requires_grad_()
            with torch.enable_grad():
                f = ctx.value(block, paths)
            out[_all(paths), points] = _pulled_back(f, block, grad[_all(paths), points])
        return out, None, None, None


def _pulled_back(f: Tensor, x: Tensor, grad: Tensor, create_graph: bool = False) -> Tensor:
    """grad . df/dx, zero where f is the same everywhere."""
    return torch.autograd.grad(f, x, grad, create_graph=create_graph)[0] if f.requires_grad else torch.zeros_like(x)


def _evaluate_tied(value, x: Tensor, plan: Plan) -> Tensor:
    """The blocks in a graph that may reach beyond the points, to hyperparameters: each is a checkpoint."""
    if len(plan) == 1:
        return value(x, plan[0][0])
    rows: dict[int, list[Tensor]] = {}
    for paths, points in plan:
        result = checkpoint(value, x[_all(paths), points], paths, use_reentrant=False, preserve_rng_state=False)
        rows.setdefault(_all(paths).start or 0, []).append(result)  # type: ignore[arg-type]
    return torch.cat([torch.cat(row, dim=1) for row in rows.values()], dim=0)


@torch.no_grad()
def evaluate_with_gradient(
    value: Callable[[Tensor, slice | None], tuple[Tensor, Tensor]],
    x: Tensor,
    num_paths: int,
    num_outputs: int,
    width: int,
    *,
    own: bool,
) -> tuple[Tensor, Tensor]:
    """Values `[s, n, t]` and gradients `[s, n, t, d]`, in blocks."""
    if num_paths * x.shape[1] * width < _SMALL:
        return value(x, slice(0, num_paths) if own else None)
    plan = _plan(x, num_paths, width, own)
    out = torch.empty(num_paths, x.shape[1], num_outputs, dtype=x.dtype, device=x.device)
    gradient = torch.empty(num_paths, x.shape[1], num_outputs, x.shape[2], dtype=x.dtype, device=x.device)
    with arena():
        for paths, points in plan:
            out[_all(paths), points], gradient[_all(paths), points] = value(x[_all(paths), points], paths)
    return out, gradient


def _plan(x: Tensor, num_paths: int, width: int, own: bool) -> Plan:
    """Blocks (paths, points) that cover all and hold at most a block's numbers each, or one point of one path."""
    budget = MEMORY_BUDGET // (_TEMPORARIES * x.element_size())
    block = min(budget, _CPU_BLOCK * 8 // x.element_size()) if x.device.type == "cpu" else budget
    num_points = x.shape[1]
    points = max(1, min(num_points, block // width))
    cuts = [slice(j, j + points) for j in range(0, num_points, points)] or [slice(0, 0)]
    if not own:
        return [(None, cut) for cut in cuts]
    paths = max(1, min(num_paths, block // (width * points)))
    return [(slice(i, min(i + paths, num_paths)), cut) for i in range(0, num_paths, paths) for cut in cuts]


def _all(paths: slice | None) -> slice:
    return slice(None) if paths is None else paths
