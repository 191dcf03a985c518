"""One thread for small work.

Torch's threads and those of SciPy's BLAS wait for work by spinning, and on few cores each keeps the other from running:
on two cores a fit of 100 observations took five times as long on two threads as on one, and ten beside other work."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from .gradient_only_bfgs import curvature
from .initialisation import spread_and_near
from .likelihood import Dense

# Up to this many observations a dense likelihood is faster on one thread.
SMALL = 1000

_lock = threading.Lock()
_users, _before = 0, 1


@contextmanager
def threads_for(n: int) -> Iterator[None]:
    """One thread within, where n observations are few; as many as there were after the last user is done."""
    global _users, _before
    if n > SMALL:
        yield
        return
    with _lock:
        if _users == 0:
            _before = torch.get_num_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            torch.set_num_threads(_before)  # of this thread, too


# L-BFGS uphill by exact gradients, in units in which the likelihood is about as sharp in every direction.


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
