"""A batched bounded quasi-Newton method: many small problems in lockstep, one call of the objective for all of them.

Each problem keeps a dense BFGS matrix, solves for a step in the variables that are free (not held at a bound by the
gradient), and backtracks along the step projected onto the box until it descends enough. SciPy's L-BFGS-B has the same
stopping rules and defaults; it takes one problem at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The objective of problems `index [p]` at their points `[p, d]`: values `[p]` and gradients `[p, d]`.
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

RUNNING, GRADIENT, DECREASE, STUCK, LIMIT = range(5)
ENDINGS = ("running", "gradient vanished", "decrease vanished", "no descent left", "iteration limit")
_ARMIJO = 1e-4
_SMALLEST_STEP = 1e-10


class Optimum(NamedTuple):
    x: Tensor  # [p, d]
    value: Tensor  # [p]
    ending: Tensor  # [p], index into ENDINGS
    iterations: Tensor  # [p]


def minimize_in_unit_box(
    objective: Objective,
    x: Tensor,
    *,
    max_iterations: int = 200,
    gradient_tolerance: float = 1e-5,
    decrease_tolerance: float = 2.2e-9,
    on_iteration: Callable[[int], None] | None = None,
) -> Optimum:
    """Minimise p problems over [0, 1]^d from the points x `[p, d]`; problems that have ended are called no more."""
    p, d = x.shape
    x = x.clamp(0, 1)
    everyone = torch.arange(p, device=x.device)
    f, g = objective(everyone, x)
    ending = torch.where(_projected_gradient(x, g) <= gradient_tolerance, GRADIENT, RUNNING)
    iterations = torch.zeros_like(everyone)
    # The first step has length at most a tenth of the box: B = |g| / 0.1.
    scale = (g.norm(dim=1) * 10).clamp_min(1e-12)
    B = torch.eye(d, dtype=x.dtype, device=x.device) * scale[:, None, None]  # [p, d, d]
    step, alpha = _direction(x, g, B), torch.ones_like(f)
    for _ in range(max_iterations):
        i = (ending == RUNNING).nonzero()[:, 0]
        if on_iteration is not None:
            on_iteration(len(i))
        if len(i) == 0:
            break
        trial = (x[i] + alpha[i, None] * step[i]).clamp(0, 1)  # [r, d]
        f_trial, g_trial = objective(i, trial)
        iterations[i] += 1
        moved = trial - x[i]
        enough = f_trial <= f[i] + _ARMIJO * (g[i] * moved).sum(1)
        enough &= torch.isfinite(f_trial) & torch.isfinite(g_trial).all(1)

        j = i[enough]  # accepted: curvature, new gradient, new direction
        decrease = f[j] - f_trial[enough]
        B[j] = _bfgs(B[j], moved[enough], g_trial[enough] - g[j])
        x[j], f[j], g[j] = trial[enough], f_trial[enough], g_trial[enough]
        alpha[j] = 1.0
        step[j] = _direction(x[j], g[j], B[j])
        floor = decrease_tolerance * torch.stack([f[j].abs(), (f[j] + decrease).abs(), torch.ones_like(f[j])]).amax(0)
        vanished = _projected_gradient(x[j], g[j]) <= gradient_tolerance
        ending[j] = torch.where(vanished, GRADIENT, torch.where(decrease <= floor, DECREASE, RUNNING))

        j = i[~enough]  # refused: the minimiser of a parabola through what is known, within limits
        slope = (g[j] * moved[~enough]).sum(1)
        parabola = -slope / (2 * (f_trial[~enough] - f[j] - slope)).clamp_min(1e-300)
        alpha[j] *= torch.nan_to_num(parabola, nan=0.1, posinf=0.1, neginf=0.1).clamp(0.1, 0.5)
        ending[j] = torch.where(alpha[j] < _SMALLEST_STEP, STUCK, RUNNING)
    ending = torch.where(ending == RUNNING, LIMIT, ending)
    return Optimum(x, f, ending, iterations)


def _free(x: Tensor, g: Tensor) -> Tensor:
    """Variables not held at a bound: `[p, d]`."""
    return ~(((x <= 0) & (g > 0)) | ((x >= 1) & (g < 0)))


def _projected_gradient(x: Tensor, g: Tensor) -> Tensor:
    """The largest move that the gradient asks for inside the box, `[p]`: zero at a solution."""
    return ((x - g).clamp(0, 1) - x).abs().amax(1)


def _direction(x: Tensor, g: Tensor, B: Tensor) -> Tensor:
    """-B^-1 g in the free variables, zero in the others."""
    free = _free(x, g).to(x.dtype)  # [p, d]
    masked = B * free[:, :, None] * free[:, None, :] + torch.diag_embed(1 - free)
    step = -torch.linalg.solve(masked, (g * free)[..., None])[..., 0] * free
    downhill = (step * g).sum(1, keepdim=True) < 0
    return torch.where(downhill & torch.isfinite(step).all(1, keepdim=True), step, -g * free)


def _bfgs(B: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """Powell's damped update, which keeps B positive definite whatever the curvature: `[p, d, d], [p, d], [p, d]`."""
    Bs = (B @ s[..., None])[..., 0]
    sBs, sy = (s * Bs).sum(1), (s * y).sum(1)
    theta = torch.where(sy >= 0.2 * sBs, 1.0, 0.8 * sBs / (sBs - sy).clamp_min(1e-300))[:, None]
    y = theta * y + (1 - theta) * Bs
    sy = (s * y).sum(1)
    updated = B - Bs[:, :, None] * (Bs / sBs[:, None])[:, None, :] + y[:, :, None] * (y / sy[:, None])[:, None, :]
    usable = (sBs > 1e-300) & (sy > 1e-300) & torch.isfinite(updated).flatten(1).all(1)
    return torch.where(usable[:, None, None], updated, B)
