"""More data for the same draw: one Matheron update, whatever the paths were before it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..evaluate import evaluate
from ..kernels import Kernel
from ..means import Mean
from ..operators import KernelOperator
from ..solvers import Operator, Solver, State
from ..updates import CorrectedOperator, Data, exact_update, sparse_correction
from ..weigh import add
from .prior import PriorPaths
from .update import Inducing, UpdatePaths


def update_given(
    prior: PriorPaths,
    mean: Mean,
    kernel: Kernel,
    data: Data,
    solver: Solver,
    *,
    state: State | None = None,
    Z: Tensor | None = None,
    Z_tasks: Tensor | None = None,
    inducing: Inducing | None = None,
) -> UpdatePaths:
    """The update of prior paths, or of a sparse posterior's paths, given data.

    The mean comes along as one more path, the one with w = 0 and eps = 0; where each path has its own y, as s more.
    `state` is that of the data's covariance, where there is one already.
    """
    X, tasks, y, noise, xi = data
    s = len(xi)
    own = y.ndim == 2
    before = None
    operator: Operator = KernelOperator(kernel, X, tasks, noise)
    if inducing is not None:
        assert Z is not None and inducing.root is not None and inducing.v_mean is not None
        operator = CorrectedOperator(operator, sparse_correction(kernel, Z, Z_tasks, inducing.jitter, inducing.root))
        before = UpdatePaths(kernel, Z, Z_tasks, torch.cat([inducing.v, inducing.v_mean[None]]), None)
    state = solver.init(operator) if state is None else state
    f = at_tasks(values_at(prior, mean, before, X), tasks)  # [s + 1, n]
    f = torch.cat([f, f[s:].expand(s - 1, -1)]) if own else f  # [2 s, n] or [s + 1, n]
    eps = (noise + state.jitter).sqrt() * torch.cat([xi, torch.zeros_like(f[s:])])  # jitter is noise
    v, stats = exact_update(state, torch.cat([y, y]) if own else y, f, eps)
    centres, centre_tasks = X, tasks
    if isinstance(operator, CorrectedOperator):
        assert Z is not None and inducing is not None and inducing.v_mean is not None
        v_Z = operator.centre_weights(v) + torch.cat([inducing.v, inducing.v_mean.expand(len(f) - s, -1)])
        v = torch.cat([v_Z, v], dim=1)
        centres = torch.cat([Z, X])
        centre_tasks = None if tasks is None or Z_tasks is None else torch.cat([Z_tasks, tasks])
    return UpdatePaths(
        kernel, centres, centre_tasks, v[:s], v[s:], inducing=inducing, y=y, noise=noise, xi=xi, solver_stats=stats
    )


def values_at(prior: PriorPaths, mean: Mean, update: UpdatePaths | None, X: Tensor) -> Tensor:
    """mean + prior (+ update) of every path at X and, in the last row, of the path with w = 0: `[s + 1, n, t]`."""
    s, t = prior.w.shape[:2]

    def block(x: Tensor, _: slice | None) -> Tensor:
        f = prior.sums(x, None)  # [s, t, n]
        f = x.new_zeros(s, t, x.shape[1]) if f is None else f
        f = torch.cat([f, torch.zeros_like(f[:1])])
        return (f if update is None else add(f, update.sums(x, None))).mT + mean(x)

    tied = prior.requires_graph() or mean.requires_graph() or (update is not None and update.requires_graph())
    width = max(prior.width, 0 if update is None else update.width) + (s + 1) * t
    return evaluate(block, X[None], s + 1, t, width, own=False, tied=tied)


def at_tasks(f: Tensor, tasks: Tensor | None) -> Tensor:
    """f `[s, n, t]` at each point's own task, `[s, n]`."""
    return f[..., 0] if tasks is None else f.gather(-1, tasks[None, :, None].expand(len(f), -1, 1))[..., 0]


def joined(old: UpdatePaths, new: Data) -> Data:
    """The data of an update and new data, in order."""
    m, s = old.num_inducing, len(new.xi)
    old_y, new_y = old.y, new.y
    if old_y.ndim == 2 or new_y.ndim == 2:
        old_y, new_y = old_y.expand(s, -1), new_y.expand(s, -1)
    return Data(
        torch.cat([old.centres[m:], new.X]),
        None if old.tasks is None or new.tasks is None else torch.cat([old.tasks[m:], new.tasks]),
        torch.cat([old_y, new_y], dim=-1),
        torch.cat([old.noise, new.noise]),
        torch.cat([old.xi, new.xi], dim=-1),
    )


def without_repeats(data: Data, num_old: int) -> Data:
    """The data less the new noise-free observations that repeat one: they say nothing new, and make K singular."""
    keys = data.X if data.tasks is None else torch.cat([data.X, data.tasks[:, None].to(data.X)], dim=1)
    # A path asked at its own data answers to the solver's rounding: that is no contradiction.
    tolerance = torch.finfo(data.y.dtype).eps ** 0.4 * float(data.y.detach().abs().max()) if data.y.numel() else 0.0
    first: dict[tuple[float, ...], int] = {}
    keep = []
    for i, (key, exact) in enumerate(zip(map(tuple, keys.tolist()), (data.noise == 0).tolist(), strict=True)):
        seen = first.setdefault(key, i) if exact else i
        if seen == i or i < num_old:
            keep.append(i)
        elif float((data.y[..., seen] - data.y[..., i]).detach().abs().max()) > tolerance:
            raise ValueError(
                f"condition_on: noise-free observations at the same point {list(key)} contradict each other; "
                "give them noise"
            )
    if len(keep) == len(data.noise):
        return data
    tasks = None if data.tasks is None else data.tasks[keep]
    return Data(data.X[keep], tasks, data.y[..., keep], data.noise[keep], data.xi[:, keep])
