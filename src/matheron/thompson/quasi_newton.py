"""A batched bounded quasi-Newton method: many small problems in lockstep, one call of the objective for all of them.

Each problem approximates its curvature by a dense BFGS matrix or, in many dimensions, by its last steps. A step moves
the free variables, which the gradient does not hold at a bound. It is projected onto the box, and shortened until the
objective decreases enough. SciPy's L-BFGS-B, which takes one problem at a time, has the same stopping rules and
defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..solvers.cholesky import solved

# The objective of problems `index [p]` at their points `[p, d]`: values `[p]` and gradients `[p, d]`.
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

RUNNING, GRADIENT, DECREASE, STUCK, LIMIT = range(5)
ENDINGS = ("running", "gradient vanished", "decrease vanished", "no descent left", "iteration limit")


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
    gradient_tolerance: float = 1e-5,
    decrease_tolerance: float = 2.2e-9,
    armijo: float = 1e-4,
    smallest_step: float = 1e-10,
) -> Optimum:
    """Minimise p problems over [0, 1]^d from the points x `[p, d]`; problems that have ended are called no more.

    The state holds the running problems alone, so that an iteration is a few dozen operations on whole tensors.

    Args:
        objective, x: the problems, and where their searches start.
        max_iterations: after which a search ends, wherever it is.
        on_iteration: called at each, with how many problems still run.
        gradient_tolerance, decrease_tolerance: a problem has ended at a projected gradient, or a relative decrease, of
            this: those of SciPy's L-BFGS-B.
        armijo: the share of the slope by which a step must descend.
        smallest_step: the share of a step below which no descent is left.
    """
    p, d = x.shape
    index = torch.arange(p, device=x.device)
    x = x.clamp(0, 1)
    f, g = objective(index, x)
    optimum = Optimum(x.clone(), f.clone(), torch.full_like(index, LIMIT), torch.zeros_like(index))
    ending = torch.where(_projected_gradient(x, g) <= gradient_tolerance, GRADIENT, RUNNING)
    # The first step is at most a tenth of the box long.
    curvature = (_Dense if d <= _Dense.MOST_DIMENSIONS else _Limited)(10 * g.norm(dim=1).clamp_min(1e-13), d)
    alpha = torch.ones_like(f)
    for iteration in range(max_iterations):
        running = ending == RUNNING
        if not bool(running.all()):
            _settle(optimum, ~running, index, x, f, ending, iteration)
            index, x, f, g, alpha, ending = (t[running] for t in (index, x, f, g, alpha, ending))
            curvature.keep(running)
        if on_iteration is not None:
            on_iteration(len(index))
        if len(index) == 0:
            return optimum
        held = ((x <= 0) & (g > 0)) | ((x >= 1) & (g < 0))  # [r, d]
        trial = torch.addcmul(x, alpha[:, None], _downhill(g.masked_fill(held, 0.0), held, curvature)).clamp_(0, 1)
        f_trial, g_trial = objective(index, trial)
        moved = trial - x
        slope = (g * moved).sum(1)
        enough = (f_trial <= f + armijo * slope) & torch.isfinite(f_trial + g_trial.sum(1))
        accepted = enough[:, None]

        curvature.update(moved, g_trial - g, enough)
        # After a refused step, the next length is the minimiser of a parabola through the known values, within limits.
        parabola = -slope / (2 * (f_trial - f - slope)).clamp_min(1e-300)
        parabola = torch.nan_to_num(parabola, nan=0.1, posinf=0.1, neginf=0.1).clamp_(0.1, 0.5)
        alpha = torch.where(enough, 1.0, alpha * parabola)
        floor = decrease_tolerance * torch.maximum(f.abs(), f_trial.abs()).clamp_min(1.0)
        stalled = enough & (f - f_trial <= floor)
        x, f, g = torch.where(accepted, trial, x), torch.where(enough, f_trial, f), torch.where(accepted, g_trial, g)
        ending = torch.where(alpha < smallest_step, STUCK, torch.where(stalled, DECREASE, ending))
        ending = torch.where(enough & (_projected_gradient(x, g) <= gradient_tolerance), GRADIENT, ending)
    ending = torch.where(ending == RUNNING, LIMIT, ending)
    _settle(optimum, torch.ones_like(f, dtype=torch.bool), index, x, f, ending, max_iterations)
    return optimum


def lowest(values: Tensor, k: int) -> Tensor:
    """The lowest of each k searches in turn, `[s]`; values that are not finite are never the lowest."""
    values = torch.where(torch.isfinite(values), values, torch.inf).unflatten(0, (-1, k))
    return values.argmin(1) + k * torch.arange(len(values), device=values.device)


def _settle(optimum: Optimum, which: Tensor, index: Tensor, x: Tensor, f: Tensor, ending: Tensor, after: int) -> None:
    """Copy the results of problems that have ended into `optimum`."""
    i = index[which]
    optimum.x[i], optimum.value[i], optimum.ending[i] = x[which], f[which], ending[which]
    optimum.iterations[i] = after


def _projected_gradient(x: Tensor, g: Tensor) -> Tensor:
    """The largest component of the projected gradient step x - clamp(x - g), `[p]`; zero at a solution."""
    return ((x - g).clamp(0, 1) - x).abs().amax(1)


def _downhill(g: Tensor, held: Tensor, curvature: _Dense | _Limited) -> Tensor:
    """A quasi-Newton step in the free variables, or the negative gradient if that step does not descend."""
    step = curvature.step(g, held)
    usable = ((step * g).sum(1) < 0) & torch.isfinite(step).all(1)
    return torch.where(usable[:, None], step, -g)


class _Dense:
    """A BFGS matrix B for each of p problems, from a multiple `scale [p]` of the identity."""

    # In 60 dimensions, factoring 800 matrices took ten times as long as everything else, and twice as many iterations
    # were needed.
    MOST_DIMENSIONS = 20

    def __init__(self, scale: Tensor, d: int) -> None:
        self.B = torch.eye(d, dtype=scale.dtype, device=scale.device) * scale[:, None, None]  # [p, d, d]

    def keep(self, running: Tensor) -> None:
        self.B = self.B[running]

    def step(self, g: Tensor, held: Tensor) -> Tensor:
        """-B^-1 g in the free variables."""
        B, some = self.B, held.any(1)
        if bool(some.any()):
            eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
            B = B.clone()
            B[some] = torch.where(held[some, :, None] | held[some, None, :], eye, B[some])
        return -solved(torch.linalg.cholesky_ex(B)[0], g[..., None])[..., 0]

    def update(self, s: Tensor, y: Tensor, accepted: Tensor) -> None:
        """Powell's damped update where a step s was accepted, y the gradient's change: B stays positive definite
        whatever the curvature."""
        Bs = (self.B @ s[..., None])[..., 0]
        sBs, sy = (s * Bs).sum(1), (s * y).sum(1)
        theta = torch.where(sy >= 0.2 * sBs, 1.0, 0.8 * sBs / (sBs - sy).clamp_min(1e-300))[:, None]
        y = theta * y + (1 - theta) * Bs
        sy = (s * y).sum(1)
        vectors = torch.stack([Bs / sBs.sqrt()[:, None], y / sy.sqrt()[:, None]], 2)  # [p, d, 2]
        usable = accepted & (sBs > 1e-300) & (sy > 1e-300) & torch.isfinite(vectors.square().sum((1, 2)))
        vectors = vectors.masked_fill(~usable[:, None, None], 0.0)
        self.B.baddbmm_(vectors * vectors.new_tensor([-1.0, 1.0]), vectors.mT)


class _Limited:
    """The last steps S and changes of the gradient Y `[p, m, d]`, the newest last; entries not yet filled are zero."""

    KEPT = 20  # the number of steps that are kept

    def __init__(self, scale: Tensor, d: int) -> None:
        self.scale = 1 / scale  # [p]
        self.S = self.Y = scale.new_zeros(len(scale), self.KEPT, d)

    def keep(self, running: Tensor) -> None:
        self.scale, self.S, self.Y = self.scale[running], self.S[running], self.Y[running]

    def step(self, g: Tensor, held: Tensor) -> Tensor:
        """-H g in the free variables: H is the inverse of BFGS with the steps' free parts, in the compact form of Byrd,
        Nocedal and Schnabel (1994)."""
        S, Y = (t.masked_fill(held[:, None], 0.0) for t in (self.S, self.Y))
        curved = _curved(S, Y)  # [p, m]
        S, Y = (t.masked_fill(~curved[..., None], 0.0) for t in (S, Y))
        R = (S @ Y.mT).triu()
        D = torch.where(curved, R.diagonal(dim1=1, dim2=2), 1.0)
        R = R.diagonal_scatter(D, dim1=1, dim2=2)
        scale, g = self.scale[:, None, None], g[..., None]
        u = torch.linalg.solve_triangular(R, S @ g, upper=True)  # [p, m, 1]
        past = scale * (Y.mT @ u - g)
        v = torch.linalg.solve_triangular(R.mT, D[..., None] * u + Y @ past, upper=False)
        return (past - S.mT @ v)[..., 0]

    def update(self, s: Tensor, y: Tensor, accepted: Tensor) -> None:
        curved = accepted & _curved(s, y)
        self.S, self.Y = (
            torch.where(curved[:, None, None], torch.cat([past[:, 1:], new[:, None]], 1), past)
            for past, new in ((self.S, s), (self.Y, y))
        )
        self.scale = torch.where(curved, (s * y).sum(1) / y.square().sum(1), self.scale)


def _curved(s: Tensor, y: Tensor, least_cosine: float = 1e-10) -> Tensor:
    """Whether the curvature along steps `[..., d]` is positive, by their cosine with changes of the gradient."""
    return (s * y).sum(-1) > least_cosine * s.norm(dim=-1) * y.norm(dim=-1)
