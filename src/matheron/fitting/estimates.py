"""From the top for some of the data to that for all of them, by estimated gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..solvers import PCG, Solver
from .likelihood import Dense
from .newton import climb
from .on_lattice import NotOnLattice, OnLattice
from .pathwise import Pathwise
from .starts import woken

# Steps at the most, and gains per hyperparameter below which a search ends: a fifth of its sampling error, and a tenth
# on a lattice, where steps are cheap.
_STEPS, _TOLERANCE, _ON_LATTICE = 30, 0.02, 0.005
# Draws of the prior (and the data: a tile of 64 on a GPU). With s of them an estimate adds 1 / s to the sampling
# variance of hyperparameters.
_PROBES = {"cpu": 15, "cuda": 63}
_SOLVER = PCG(tolerance=0.1, max_iterations=300)

# Where a search ended, and whether it was at its top.
Found = tuple[Tensor, bool]
Curve = Callable[[Tensor], Tensor]  # curvatures [p, p] at vectors [p]
Report = Callable[[int, float], None]


def by_solves(
    objective: Dense, start: Tensor, curve: Curve, solver: str | Solver, generator: torch.Generator, report: Report
) -> Found:
    """With products of the covariance, by an iterative solver."""
    h, probes = objective.hyperparameters, _PROBES.get(objective.X.device.type, 15)
    estimate = Pathwise(objective, _SOLVER if isinstance(solver, str) else solver, probes, _seed(generator))
    return climb(estimate, start, curve, partial(woken, h), h.limits(), _STEPS, _TOLERANCE, report)


def on_lattice(
    objective: Dense, start: Tensor, curve: Curve, generator: torch.Generator, report: Report, *, required: bool
) -> Found | None:
    """On a Fourier lattice; None where the model has none, or ValueError where one is required."""
    h = objective.hyperparameters
    try:
        estimate = OnLattice(objective, _PROBES["cpu"], _seed(generator))
        return climb(estimate, start, curve, partial(woken, h), h.limits(), _STEPS, _ON_LATTICE, report)
    except NotOnLattice as reason:
        if not required:
            return None
        raise refusal(str(reason)) from None


def refusal(reason: str) -> ValueError:
    """What is said where a lattice is asked for and cannot be had."""
    return ValueError(
        'solver="lattice" fits a model with noise, a constant or fixed mean and a kernel of stationary terms, alone, '
        "times linear ones or beside linear and polynomial ones, on up to 3 columns; "
        f'{reason}: use solver="cholesky" or "cg"'
    )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
