"""L-BFGS uphill by exact gradients, in units in which the likelihood is about as sharp in every direction."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from .likelihood import Dense
from .newton import curvature
from .starts import spread_and_near
from .threads import threads_for

# L-BFGS remembers this many steps; it ends where the last ten of them gained next to nothing, in log likelihood.
_PAIRS, _PATIENCE, _NEGLIGIBLE = 40, 10, 1e-4
# Observations that say how sharp a likelihood is along each hyperparameter.
_MEASURED = 128


def without_effect(objective: Dense, vector: Tensor) -> Tensor:
    """Entries of the vector whose gradient is exactly zero at two places: data and priors say nothing of them."""
    step = torch.linspace(0.01, 0.02, len(vector), dtype=torch.float64, device=vector.device)
    gradients = [objective(vector + k * step)[1] for k in (1, -1)]
    none = (gradients[0] == 0) & (gradients[1] == 0)
    return none & ~none.all()  # all of them: no likelihood, rather than no effect


def by_lbfgs(
    objective: Dense, start: Tensor, fixed: Tensor, as_given: Tensor, iterations: int, patience: int = _PATIENCE
) -> tuple[Tensor, float]:
    """L-BFGS-B from a start, uphill, until `patience` steps gained next to nothing; what has no effect stays as given.

    Returns the end and its value.
    """
    from scipy.optimize import minimize as scipy_minimize  # a tenth of a second to import

    n = len(objective.y)
    start = torch.where(fixed, as_given, start)
    best, best_value = start, -math.inf
    unit = 1 / _sharpness(objective, start)
    tops: list[float] = []

    def downhill(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, best_value
        vector = torch.as_tensor(numbers, dtype=torch.float64, device="cpu").to(start) * unit
        value, gradient = objective(vector)
        if value > best_value:
            best, best_value = vector, value
        if not math.isfinite(value):
            return 1e10, 0.0 * numbers
        return -value / n, (-(gradient * ~fixed) * unit / n).cpu().numpy()

    def stop_where_flat(_: np.ndarray) -> None:
        tops.append(best_value)
        if len(tops) > patience and best_value - tops[-1 - patience] < _NEGLIGIBLE:
            raise StopIteration

    limits = objective.hyperparameters.limits()
    with threads_for(n):
        scipy_minimize(
            downhill,
            (start / unit).cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(low / u, high / u) for (low, high), u in zip(limits, unit.tolist(), strict=True)],
            callback=stop_where_flat,
            options={"maxiter": iterations, "maxcor": _PAIRS, "ftol": 1e-10, "gtol": 1e-6},
        )
    return best, best_value


def _sharpness(objective: Dense, start: Tensor) -> Tensor:
    """The root of the curvature along each hyperparameter `[p]`, as some of the data have it; 1 where data are few.

    In units of its inverse a likelihood is about as sharp in every direction, which halves a search's steps.
    """
    if len(objective.y) <= 2 * _MEASURED:
        return torch.ones_like(start)
    some = objective.some(spread_and_near(objective.X, torch.Generator().manual_seed(0))[:_MEASURED])
    with threads_for(_MEASURED):
        return curvature(lambda v: some(v)[1], start).diagonal().sqrt()
