"""Maximise by quasi-Newton steps from gradients alone, exact or estimated, with an approximately known curvature.

The curvature of a log likelihood at the maximum for some of the data predicts the curvature for all of them, so a few
expensive steps are enough. A step is expected to gain half of g' B^-1 g, with gradient g and curvature B. Sampling
error costs one half per hyperparameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Limits = list[tuple[float, float]]
Curve = Callable[[Tensor], Tensor]  # curvatures [p, p] at vectors [p]
Report = Callable[[str, Tensor], None]  # called with the state of the search in words, and the current vector


def curvature(gradient: Callable[[Tensor], Tensor], top: Tensor, least: float = 1.0) -> Tensor:
    """Minus the second derivatives `[p, p]` by differences of gradients, made positive definite.

    Eigenvalues are replaced by their absolute values, at least `least`, which is the curvature of a prior of standard
    deviation 1 on the logarithmic scale. One-sided differences take p + 1 gradients instead of 2 p.
    """
    step = 1e-3
    here = gradient(top)
    E = step * torch.eye(len(top), dtype=top.dtype, device=top.device)
    B = torch.stack([(here - gradient(top + e)) / step for e in E], dim=1)
    values, vectors = torch.linalg.eigh(torch.nan_to_num(0.5 * (B + B.mT)))
    return (vectors * values.abs().clamp_min(least)) @ vectors.mT


def for_all(less: Tensor, more: Tensor, ratio: float, rest: float) -> Tensor:
    """Extrapolate the curvature `more` of some data to `rest` times as many.

    `less` is the curvature of fewer data, by the factor `ratio`. The curvature along the noise variance grows with the
    number of data, and that along a lengthscale hardly does where data are already dense. The growth of each diagonal
    entry from `less` to `more` is assumed to continue at the same rate.
    """
    grown = (more.diagonal() / less.diagonal()).log() / math.log(ratio) if ratio > 1 else torch.ones_like(more[0])
    root = rest ** (0.5 * grown.clamp(0.0, 1.0))
    return root[:, None] * more * root


def climb(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    curve: Curve,
    limits: Limits,
    tolerance: float,
    report: Report,
    steps: int = 30,
    longest: float = 0.7,
    shortest: float = 0.01,
) -> tuple[Tensor, bool]:
    """Maximise by BFGS steps from `start` within the limits: the end, and whether the search converged.

    The search converges where a step is expected to gain less than `tolerance` per hyperparameter. The expectation is
    by the curvature at that point, since a curvature from far away may predict no gain where there is much. A step went
    too far if the expected gain after the step is much larger than before it, or if the gradient there is NaN. Then a
    shorter step from the same point is tried.

    Args:
        gradient: of the objective at a vector `[p]`, exact or estimated.
        curve: the curvature `[p, p]` at a vector, which may be that of fewer data.
        report: called at every step.
        longest: largest move of a hyperparameter in one step, on its logarithmic scale.
        shortest: no step below this counts as too far, since gradients then differ by their sampling error.
    """
    lower, upper = start.new_tensor(limits).unbind(1)
    x, g = start, gradient(start)
    B, measured, scaled, length = curve(x), x, False, longest
    for k in range(1, steps + 1):
        direction, gain = _step(x, g, B, lower, upper)
        report(f"step {k}, log likelihood may rise by {gain:.3g}", x)
        if gain <= tolerance * len(x):
            if measured is x:
                return x, True
            B, measured, scaled, length = curve(x), x, False, longest
            continue
        direction = direction * min(1.0, length / float(direction.abs().max()))
        new = (x + direction).clamp(lower, upper)
        new_g = gradient(new)
        s, y = new - x, g - new_g
        along = float(s @ y)
        if not scaled and along > 0:  # scale the curvature of fewer data to that of all
            B, scaled = B * min(10.0, max(0.1, along / float(s @ B @ s))), True
        B = _updated(B, s, y)
        here, there = (_step(*at, B, lower, upper)[1] for at in ((x, g), (new, new_g)))
        too_far = there > 4 * max(gain, here) and float(s.abs().max()) > shortest
        if too_far or not bool(torch.isfinite(new_g).all()):
            length = 0.3 * float(s.abs().max())
        else:
            x, g, length = new, new_g, min(longest, 2 * length)
    return x, False


def _step(x: Tensor, g: Tensor, B: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:
    """The step B^-1 g in the variables that are not at a limit, and the gain 1/2 g' B^-1 g that is expected of it."""
    held = ((x <= lower) & (g < 0)) | ((x >= upper) & (g > 0)) | (g == 0)
    free = (~held).nonzero()[:, 0]
    direction = torch.zeros_like(x)
    if len(free):
        direction[free] = torch.linalg.solve(B[free][:, free], g[free])
    return direction, 0.5 * float(direction @ g)


def _updated(B: Tensor, s: Tensor, y: Tensor) -> Tensor:
    """BFGS's update, damped (Powell 1978) so that B stays positive definite."""
    Bs = B @ s
    sBs, sy = float(s @ Bs), float(s @ y)
    if not math.isfinite(sy) or sBs <= 0:
        return B
    if sy < 0.2 * sBs:
        share = 0.8 * sBs / (sBs - sy)
        y, sy = share * y + (1 - share) * Bs, 0.2 * sBs
    return B - torch.outer(Bs, Bs) / sBs + torch.outer(y, y) / sy
