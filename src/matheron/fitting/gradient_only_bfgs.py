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
Report = Callable[[str, Tensor], None]  # words on how far a search is, and where


def curvature(gradient: Callable[[Tensor], Tensor], top: Tensor, least: float = 1.0) -> Tensor:
    """Minus the second derivatives `[p, p]` by differences of gradients, its eigenvalues' sizes, none below the least.

    The differences are one-sided, which takes p + 1 gradients instead of 2 p. The least is what a prior of standard
    deviation 1 on the logarithmic scale has.
    """
    step = 1e-3
    here = gradient(top)
    E = step * torch.eye(len(top), dtype=top.dtype, device=top.device)
    B = torch.stack([(here - gradient(top + e)) / step for e in E], dim=1)
    values, vectors = torch.linalg.eigh(torch.nan_to_num(0.5 * (B + B.mT)))
    return (vectors * values.abs().clamp_min(least)) @ vectors.mT


def for_all(less: Tensor, more: Tensor, ratio: float, rest: float) -> Tensor:
    """The curvature of `rest` times the data of `more`, which has `ratio` times those of `less`.

    That of a noise's variance grows with the data; that of a lengthscale hardly does where they are dense already.
    Each grows on as it did.
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
    """BFGS uphill from `start` within the limits, with the curvature of where it begins; and whether it ended.

    It ends where a step by a curvature that was taken there is expected to gain less than `tolerance` per
    hyperparameter: far from where it was taken, a curvature may promise nothing where there is much to gain. No
    hyperparameter moves by more than `longest` in a step, on its logarithmic scale. A step after which much more is
    expected than before it, by the same curvature, or one to where there is no gradient (NaN), went too far: the next
    is from where it began, and shorter; but after one below `shortest` gradients differ by their error.
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
        if not scaled and along > 0:  # the curvature of fewer data, in the measure of all
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
    """B^-1 g of what is not held back by a limit, and the gain that it promises."""
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
