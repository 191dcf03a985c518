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
# A problem has ended at a projected gradient, or a relative decrease, of this: those of SciPy's L-BFGS-B.
_GRADIENT_TOLERANCE, _DECREASE_TOLERANCE = 1e-5, 2.2e-9


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
    on_iteration: Callable[[int], None] | None = None,
) -> Optimum:
    """Minimise p problems over [0, 1]^d from the points x `[p, d]`; problems that have ended are called no more.

    The state holds the running problems alone, so that an iteration is a few dozen operations on whole tensors.
    """
    p, d = x.shape
    index = torch.arange(p, device=x.device)
    x = x.clamp(0, 1)
    f, g = objective(index, x)
    optimum = Optimum(x.clone(), f.clone(), torch.full_like(index, LIMIT), torch.zeros_like(index))
    ending = torch.where(_projected_gradient(x, g) <= _GRADIENT_TOLERANCE, GRADIENT, RUNNING)
    # The first step has length at most a tenth of the box: B = |g| / 0.1.
    scale = (g.norm(dim=1) * 10).clamp_min(1e-12)
    B = torch.eye(d, dtype=x.dtype, device=x.device) * scale[:, None, None]  # [p, d, d]
    alpha = torch.ones_like(f)
    for iteration in range(max_iterations):
        running = ending == RUNNING
        if not bool(running.all()):
            _settle(optimum, ~running, index, x, f, ending, iteration)
            index, x, f, g, B, alpha, ending = (t[running] for t in (index, x, f, g, B, alpha, ending))
        if on_iteration is not None:
            on_iteration(len(index))
        if len(index) == 0:
            return optimum
        trial = torch.addcmul(x, alpha[:, None], _direction(x, g, B)).clamp_(0, 1)  # [r, d]
        f_trial, g_trial = objective(index, trial)
        moved = trial - x
        slope = (g * moved).sum(1)
        enough = (f_trial <= f + _ARMIJO * slope) & torch.isfinite(f_trial + g_trial.sum(1))
        accepted = enough[:, None]

        B = torch.where(accepted[..., None], _bfgs(B, moved, g_trial - g), B)
        # Refused: the minimiser of a parabola through what is known, within limits.
        parabola = -slope / (2 * (f_trial - f - slope)).clamp_min(1e-300)
        parabola = torch.nan_to_num(parabola, nan=0.1, posinf=0.1, neginf=0.1).clamp_(0.1, 0.5)
        alpha = torch.where(enough, 1.0, alpha * parabola)
        floor = _DECREASE_TOLERANCE * torch.maximum(f.abs(), f_trial.abs()).clamp_min(1.0)
        stalled = enough & (f - f_trial <= floor)
        x, f, g = torch.where(accepted, trial, x), torch.where(enough, f_trial, f), torch.where(accepted, g_trial, g)
        ending = torch.where(alpha < _SMALLEST_STEP, STUCK, torch.where(stalled, DECREASE, ending))
        ending = torch.where(enough & (_projected_gradient(x, g) <= _GRADIENT_TOLERANCE), GRADIENT, ending)
    ending = torch.where(ending == RUNNING, LIMIT, ending)
    _settle(optimum, torch.ones_like(f, dtype=torch.bool), index, x, f, ending, max_iterations)
    return optimum


def _settle(optimum: Optimum, which: Tensor, index: Tensor, x: Tensor, f: Tensor, ending: Tensor, after: int) -> None:
    """Write down the problems that have ended."""
    i = index[which]
    optimum.x[i], optimum.value[i], optimum.ending[i] = x[which], f[which], ending[which]
    optimum.iterations[i] = after


def _projected_gradient(x: Tensor, g: Tensor) -> Tensor:
    """The largest move that the gradient asks for inside the box, `[p]`: zero at a solution."""
    return ((x - g).clamp(0, 1) - x).abs().amax(1)


def _direction(x: Tensor, g: Tensor, B: Tensor) -> Tensor:
    """-B^-1 g in the free variables, zero in those that the gradient holds at a bound."""
    free = (~(((x <= 0) & (g > 0)) | ((x >= 1) & (g < 0)))).to(x.dtype)  # [p, d]
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
    usable = (sBs > 1e-300) & (sy > 1e-300) & torch.isfinite(updated.sum((1, 2)))
    return torch.where(usable[:, None, None], updated, B)
