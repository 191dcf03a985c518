"""Roll-outs on a GPU in a few launches: a fused kernel computes many steps of each trajectory.

The states are the same as step by step, to rounding, with the same noise from the same generator. The paths must be
such that the fused kernels serve them (see `evaluate.fused`), in up to 16 inputs, with affine transforms and means and
without a domain. The dynamics must be a map in discrete time or use Euler's method, with controls that do not depend on
the state. All else goes step by step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..paths import AbstractFunctions, fused_recursion
from .driving import Control, Noise
from .stepper import DISCRETE, Drift


def fused_rollout(
    drift: Drift,
    dt: float,
    state: Tensor,
    steps: int,
    control: Control,
    noise: Noise,
    keep_every: int,
    method: str = "euler",
    *,
    table_size: int = 1 << 20,
    most_steps: int = 1 << 12,
) -> Tensor | None:
    """The kept states `[s, (a,) steps // keep_every + 1, d_s]` from `state` `[s, (a,) d_s]`; None if the kernel cannot
    compute this roll-out.

    Args:
        table_size: numbers in a launch's table of noise and controls.
        most_steps: of a launch.
    """
    if control.policy or not isinstance(drift, AbstractFunctions) or method not in ("euler", *DISCRETE):
        return None
    start = state.flatten(0, -2)  # [r, d_s], the trajectories of a path one after the other
    rows, d_s = start.shape
    D = drift.input_dim
    d_c = D - d_s
    one = start[:: rows // len(state)]  # one state of each path
    f = fused_recursion(drift, dt if method == "euler" else 1.0, one)
    if f is None:
        return None
    x = torch.zeros(rows, D, dtype=state.dtype, device=state.device)
    x[:, :d_s] = start
    kept = torch.empty(rows, steps // keep_every + 1, d_s, dtype=state.dtype, device=state.device)
    kept[:, 0] = start
    driven = len(control.given) if noise.root is None and control.given is not None else rows
    count = max(1, min(most_steps, table_size // (driven * D)))
    for first in range(0, steps, count):
        count = min(count, steps - first)
        drive = _drive(x, first, count, d_c, control, noise)
        f.advance(x, drive, kept, first, count, keep_every, adds=method != "next")
    return kept.view(*state.shape[:-1], -1, d_s)


def _drive(x: Tensor, first: int, count: int, d_c: int, control: Control, noise: Noise) -> Tensor | None:
    """The terms that each step adds, `[count, g, D]`: its noise and the controls of the next step. Controls of the
    first step are in x.

    g is the number of trajectories, or of the actions that all paths share. Functions of time and the generator are
    asked in the order of the steps.
    """
    (rows, D), d_s = x.shape, x.shape[1] - d_c
    applied, eps = [], []
    if control.function is None:
        eps.append(noise.take(count))
    else:
        for t in range(first, first + count):
            applied.append(control.value(t))
            eps.append(noise.take(1))
    if noise.root is None and d_c == 0:
        return None
    if not d_c:
        table = x.new_zeros(count, rows, 0)
    elif control.given is None:
        table = torch.stack(applied).to(x)
    else:
        table = control.given[:, first : first + count].transpose(0, 1)  # [count, g, d_c]
    coloured = noise.coloured(torch.cat(eps))
    g = table.shape[1]
    drive = torch.zeros(count, g if coloured is None else rows, D, dtype=x.dtype, device=x.device)
    if coloured is not None:
        drive[..., :d_s] = coloured.flatten(1, -2)
    if d_c:
        x.view(-1, g, D)[..., d_s:] = table[0]
        drive.view(count, -1, g, D)[:-1, ..., d_s:] = table[1:, None]
    return drive
