"""Roll-outs on a GPU in a few launches: a fused kernel takes each trajectory through many steps.

The same states as step by step, to rounding, and the same noise from the same generator. For paths that the fused
kernels serve (see `evaluate.fused`) in up to 16 inputs, with affine transforms and means and without a domain, and
controls that do not depend on the state; all else goes step by step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..paths import AbstractPaths
from .driving import Control, Noise
from .stepper import Drift

# Numbers in a launch's table of noise and controls, and steps in a launch.
_TABLE = 1 << 20
_STEPS = 1 << 12


def fused_rollout(
    drift: Drift, dt: float, state: Tensor, steps: int, control: Control, noise: Noise, keep_every: int
) -> Tensor | None:
    """The kept states `[s, steps // keep_every + 1, d_s]` from `state` on; None where this is not for the kernel."""
    if control.policy or not isinstance(drift, AbstractPaths):
        return None
    s, d_s = state.shape
    D = drift.input_dim
    d_c = D - d_s
    increments = drift.recursion(dt, state) if _fits(control, d_c) else None
    if increments is None:
        return None
    x = torch.zeros(s, D, dtype=state.dtype, device=state.device)
    x[:, :d_s] = state
    kept = torch.empty(s, steps // keep_every + 1, d_s, dtype=state.dtype, device=state.device)
    kept[:, 0] = state
    count = max(1, min(_STEPS, _TABLE // (s * D)))
    for first in range(0, steps, count):
        count = min(count, steps - first)
        drive = _drive(x, first, count, d_c, control, noise)
        increments.advance(x, drive, kept, first, count, keep_every)
    return kept


def _fits(control: Control, d_c: int) -> bool:
    """Whether there are as many controls as the drift has further inputs; the step refuses what does not fit."""
    if control.function is not None:
        return d_c > 0
    return d_c == (0 if control.given is None else control.given.shape[-1])


def _drive(x: Tensor, first: int, count: int, d_c: int, control: Control, noise: Noise) -> Tensor | None:
    """What each step adds, `[count, s, D]`: its noise, and the next step's controls. The first step's go into x.

    Functions of time and the generator are asked in the order of the steps.
    """
    s, d_s = len(x), x.shape[1] - d_c
    applied, eps = [], []
    if control.function is None:
        eps.append(_normals(noise, count))
    for t in range(first, first + count) if control.function is not None else ():
        applied.append(_checked(control.value(t), d_c))
        eps.append(_normals(noise, 1))
    if noise.root is None and d_c == 0:
        return None
    drive = torch.zeros(count, s, d_s + d_c, dtype=x.dtype, device=x.device)
    coloured = noise.coloured(torch.cat(eps))
    if coloured is not None:
        drive[..., :d_s] = coloured
    if d_c:
        if control.given is None:
            table = torch.stack(applied).to(x)
        else:
            table = control.given[:, first : first + count].transpose(0, 1)
        x[:, d_s:] = table[0]
        drive[:-1, :, d_s:] = table[1:]
    return drive


def _normals(noise: Noise, count: int) -> Tensor:
    return torch.empty(0) if noise.root is None else noise.take(count)


def _checked(controls: Tensor, d_c: int) -> Tensor:
    if controls.shape[1] != d_c:
        raise ValueError(
            f"controls: expected {d_c} at each step, for the inputs of the drift beyond its states, "
            f"got {controls.shape[1]}"
        )
    return controls
