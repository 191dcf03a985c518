"""Quasi-Newton steps uphill from gradients alone, exact or estimated, with a curvature that is known about.

The curvature of a log likelihood at the top for some of the data says what it is about for all of them, so a handful
of steps are enough where one is dear. Half of g' B^-1 g, with g the gradient and B the curvature, is what a step is
expected to gain; one half per hyperparameter is what sampling error costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .hyperparameters import Hyperparameters
from .initialisation import woken

Limits = list[tuple[float, float]]
Curve = Callable[[Tensor], Tensor]  # curvatures [p, p] at vectors [p]
Report = Callable[[str, Tensor], None]  # words on how far a search is, and where

# Steps at the most.
_STEPS = 30
# No hyperparameter moves by more than this in a step, on its logarithmic scale.
_LONGEST = 0.7
# After a shorter one gradients differ by their error, not by too long a step.
_SHORTEST = 0.01
# The least curvature, in any direction: that of a prior of standard deviation 1 on the logarithmic scale.
_LEAST = 1.0


def curvature(gradient: Callable[[Tensor], Tensor], top: Tensor) -> Tensor:
    """Minus the second derivatives `[p, p]` by differences of gradients, with no eigenvalue below a small one.

    The differences are one-sided, which takes p + 1 gradients instead of 2 p.
    """
    step = 1e-3
    here = gradient(top)
    columns = []
    for i in range(len(top)):
        e = torch.zeros_like(top)
        e[i] = step
        columns.append((here - gradient(top + e)) / step)
    B = torch.stack(columns, dim=1)
    return positive(0.5 * (B + B.mT))


def positive(B: Tensor) -> Tensor:
    """A symmetric matrix with the absolute values of its eigenvalues, none of them below the least."""
    values, vectors = torch.linalg.eigh(torch.nan_to_num(B))
    return (vectors * values.abs().clamp_min(_LEAST)) @ vectors.mT


def for_all(less: Tensor, more: Tensor, ratio: float, rest: float) -> Tensor:
    """The curvature of `rest` times the data of `more`, which has `ratio` times those of `less`.

    That of a noise's variance grows with the data; that of a lengthscale hardly does where they are dense already.
    Each grows on as it did.
    """
    grown = (more.diagonal() / less.diagonal()).log() / math.log(ratio) if ratio > 1 else torch.ones_like(more[0])
    root = rest ** (0.5 * grown.clamp(0.0, 1.0))
    return root[:, None] * more * root


def climb(
    h: Hyperparameters,
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    curve: Curve,
    tolerance: float,
    report: Report,
    steps: int = _STEPS,
) -> tuple[Tensor, bool]:
    """`ascend` with the curvature of where it begins, again and again until it ends where it begins.

    Far from where it was taken a curvature may promise nothing where there is much to gain. What is asleep there is
    woken; each entry once.
    """
    x, g, left = start, gradient(start), steps
    asleep = torch.ones_like(start, dtype=torch.bool)
    while left > 0:
        B = curve(x)
        awake = woken(h, x, g, B.diagonal())
        moved = awake.ne(x) & asleep
        if bool(moved.any()):
            awake, asleep = torch.where(moved, awake, x), asleep & ~moved
            slope = gradient(awake)
            if bool(torch.isfinite(slope).all()):  # the promise was kept, or not broken by far
                x, g, B = awake, slope, curve(awake)
        before = x
        x, g, used, converged = ascend(gradient, x, g, B, h.limits(), left, tolerance, report)
        if converged and torch.equal(x, before):
            return x, True
        left -= used
    return x, False


def ascend(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    g: Tensor,
    B: Tensor,
    limits: Limits,
    steps: int,
    tolerance: float,
    report: Report,
) -> tuple[Tensor, Tensor, int, bool]:
    """BFGS uphill from `start`, the gradient g and a curvature B `[p, p]` there, within the limits.

    It ends where a step is expected to gain less than `tolerance` per hyperparameter. A step after which much more is
    expected than before it, by the same curvature, or one to where there is no gradient (NaN), went too far: the next
    is from where it began, and shorter. Returns where it ended, the gradient there, after how many steps, and whether
    it ended so.
    """
    lower, upper = start.new_tensor(limits).unbind(1)
    x = start
    longest, scaled = _LONGEST, False
    for k in range(1, steps + 1):
        direction, gain = _step(x, g, B, lower, upper)
        report(f"step {k}, log likelihood may rise by {gain:.3g}", x)
        if gain <= tolerance * len(x):
            return x, g, k, True
        direction = direction * min(1.0, longest / float(direction.abs().max()))
        new = (x + direction).clamp(lower, upper)
        new_g = gradient(new)
        s, y = new - x, g - new_g
        along = float(s @ y)
        if not scaled and along > 0:  # the curvature of fewer data, in the measure of all
            B, scaled = B * min(10.0, max(0.1, along / float(s @ B @ s))), True
        B = _updated(B, s, y)
        here, there = (_step(*at, B, lower, upper)[1] for at in ((x, g), (new, new_g)))
        worse = there > 4 * max(gain, here) and float(s.abs().max()) > _SHORTEST
        worse = worse or not bool(torch.isfinite(new_g).all())
        if worse:
            longest = 0.3 * float(s.abs().max())
        else:
            x, g, longest = new, new_g, min(_LONGEST, 2 * longest)
    return x, g, steps, False


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
