"""The search for the best hyperparameters of data as they are: starts, exact gradients, or estimated ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..checks import as_generator
from ..kernels import Kernel
from ..means import Mean
from ..progress import progress_bar
from ..solvers import PCG, Cholesky, Solver
from .hyperparameters import BOUNDS, Hyperparameters, Leaf, Prior, checked_priors, kernel_leaf
from .likelihood import Dense
from .pathwise import Pathwise, ascend
from .priors import weak_priors
from .starts import candidates, spread_and_near
from .threads import threads_for
from .units import Units, buffers

# Starts are compared on this many observations, and followed on that many; the best goes on with all of them.
_SCREENED, _FOLLOWED = 256, 512
_ITERATIONS, _FIRST_ITERATIONS = 500, 60
# "auto" factors the covariance up to these many observations. Beyond, gradients are estimated, from the optimum of some
# of the observations on: so many steps, with so many probes (and the data: a tile of 64 on a GPU).
_LARGEST_DENSE = {"cpu": 4000, "cuda": 16_000}
_FIRST_OBSERVATIONS = 2000
_STEPS = 40
_PROBES = {"cpu": 15, "cuda": 63}
_SOLVER = PCG(tolerance=0.05, max_iterations=300)


Report = Callable[[str, float], None]


class FitWarning(UserWarning):
    """A fit did not go as asked: a column that says nothing, or a search that found no better hyperparameters."""


def maximised(
    kernel: Kernel,
    X: Tensor,
    y: Tensor,
    *,
    noise: Tensor | None = None,
    mean: Mean | str | None = None,
    tasks: Tensor | None = None,
    priors: Mapping[str, Prior] | None = None,
    floors: Mapping[str, float] | None = None,
    first_noise: float = 1e-2,
    num_starts: int = 1,
    units: Units | None = None,
    solver: str | Solver = "auto",
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> tuple[Kernel, Tensor, Mean]:
    """The kernel, noise `[n]` and mean that maximise log likelihood + log prior of data as they are, in float64.

    Where `units` are given, the kernel's numbers are tried in the user's units and in the model's.
    """
    h, as_given = _hyperparameters(kernel, X, noise, mean, floors or {}, first_noise, units)
    if priors is None:
        priors = weak_priors(h.leaves) if len(y) < h.size else {}
    objective = Dense(h, X, y, tasks, checked_priors(priors, h.leaves))
    dense = _is_dense(solver, X)
    with progress_bar(show=progress, transient=True) as bar:
        task = bar.add_task("fitting", total=None)

        def report(words: str, value: float) -> None:
            bar.update(task, description=f"fitting, {words}: log likelihood {value:.2f}", advance=1)

        def report_step(step: int, slope: float) -> None:
            words = f"fitting, all data: step {step} of {_STEPS}, slope {slope:.3g}"
            bar.update(task, description=words, completed=step, total=_STEPS)

        generator = as_generator(seed)
        best = as_given
        if num_starts > 1:
            best = _best_start(objective, as_given, num_starts, generator, units is not None, report)
        if dense:
            fixed = _without_effect(objective, best)
            best, value = _climb(objective, best, fixed, as_given, _ITERATIONS, lambda v: report("all data", v))
        else:
            best, value = _by_estimates(objective, best, as_given, solver, generator, report, report_step)
    if not math.isfinite(value):
        warnings.warn(
            "the covariance has no Cholesky factor at the kernel's own hyperparameters, which are kept; give noise=, "
            "or a kernel that is less smooth",
            FitWarning,
            stacklevel=3,
        )
    with torch.no_grad():
        kernel, noise, mean = h.model([v.detach().clone() for v in h.decode(best)], len(X), tasks)
    return kernel, noise.clone(), mean


def _is_dense(solver: str | Solver, X: Tensor) -> bool:
    if isinstance(solver, Cholesky) or solver == "cholesky":
        return True
    return solver == "auto" and len(X) <= _LARGEST_DENSE.get(X.device.type, 4000)


def _by_estimates(
    objective: Dense, start: Tensor, as_given: Tensor, solver: Any, generator: Any, report: Any, report_step: Any
) -> tuple[Tensor, float]:
    """The top for some of the data by exact gradients, and from there on for all of them by estimates."""
    X, device = objective.X, objective.X.device
    order = torch.randperm(len(X), generator=generator, device=generator.device).to(device)
    some = objective.some(order[:_FIRST_OBSERVATIONS])
    fixed = _without_effect(some, start)
    words = f"{min(len(X), _FIRST_OBSERVATIONS)} observations"
    best, value = _climb(some, start, fixed, as_given, _FIRST_ITERATIONS, lambda v: report(words, v))
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    chosen = _SOLVER if isinstance(solver, str) else solver
    inputs = X.float() if device.type == "cuda" else X
    settings = (objective.y, objective.tasks, objective.priors, chosen, _PROBES.get(device.type, 15), seed)
    estimate = Pathwise(objective.hyperparameters, inputs, *settings)
    limits = objective.hyperparameters.limits()
    best = ascend(lambda v: estimate(v) * ~fixed, best, limits, _STEPS, report_step)
    return best, value


def _hyperparameters(
    kernel: Kernel, X: Tensor, noise: Tensor | None, mean: Mean | str | None, floors, first_noise: float, units
) -> tuple[Hyperparameters, Tensor]:
    """The hyperparameters, with the kernel's numbers read in the model's units; and their vector in the user's."""
    t, d = kernel.num_outputs, X.shape[1]
    kernel = kernel.owned().to(X.device)
    ones = Units(*(torch.ones(size, dtype=torch.float64, device=X.device) for size in (d, d, t, t)))
    listed = buffers(kernel, units or ones)
    leaves = [kernel_leaf(buffer, floors) for buffer in listed]
    noise_leaf = noise
    if noise is None:
        lower, upper = BOUNDS["noise"]
        start = torch.full((t,), first_noise, dtype=torch.float64, device=X.device)
        noise_leaf = Leaf("noise", "positive", start, (floors.get("noise", lower), upper))
    zeros = torch.zeros(t, dtype=torch.float64, device=X.device)
    means: Any = [Leaf("mean", "real", zeros)] if mean is None else mean
    if isinstance(mean, str):
        means = [Leaf("mean.weights", "real", zeros[:, None].expand(t, d)), Leaf("mean.bias", "real", zeros)]
    assert noise_leaf is not None
    h = Hyperparameters(kernel, leaves, noise_leaf, means)
    return h, h.encode({b.name: b.value.double() / b.unit for b in listed})


def _best_start(
    objective: Dense,
    as_given: Tensor,
    num_starts: int,
    generator: Any,
    both: bool,
    report: Callable[[str, float], None],
) -> Tensor:
    """The best end of searches from the most likely of many starts, on some of the data."""
    h = objective.hyperparameters
    order = spread_and_near(objective.X, generator)
    few = objective.some(order[:_SCREENED])
    given = [as_given, *([h.encode()] if both else [])]
    starts = candidates(h, 8 * num_starts, generator, given, few.X, few.y)
    with threads_for(len(few.y)):
        values = [few(start)[0] for start in starts]
    ranked = sorted(range(len(starts)), key=lambda i: -values[i])
    chosen = [starts[i] for i in ranked[:num_starts]]
    some = objective.some(order[:_FOLLOWED])
    ends = []
    for i, start in enumerate(chosen):
        words = f"start {i + 1} of {num_starts}"
        fixed = _without_effect(some, start)
        ends.append(_climb(some, start, fixed, as_given, _FIRST_ITERATIONS, lambda v, words=words: report(words, v)))
    return max(ends, key=lambda end: end[1])[0]


def _without_effect(objective: Dense, vector: Tensor) -> Tensor:
    """Entries of the vector whose gradient is exactly zero at two places: data and priors say nothing of them."""
    step = torch.linspace(0.01, 0.02, len(vector), dtype=torch.float64, device=vector.device)
    gradients = [objective(vector + k * step)[1] for k in (1, -1)]
    none = (gradients[0] == 0) & (gradients[1] == 0)
    return none & ~none.all()  # all of them: no likelihood, rather than no effect


def _climb(
    objective: Dense,
    start: Tensor,
    fixed: Tensor,
    as_given: Tensor,
    iterations: int,
    report: Callable[[float], None],
) -> tuple[Tensor, float]:
    """L-BFGS-B from a start, uphill; what has no effect stays as given. The end and its value."""
    from scipy.optimize import minimize as scipy_minimize  # a tenth of a second to import

    n = len(objective.y)
    start = torch.where(fixed, as_given, start)
    best, best_value = start, -math.inf

    def downhill(numbers: Any) -> tuple[float, Any]:
        nonlocal best, best_value
        vector = torch.as_tensor(numbers, dtype=torch.float64).to(start)
        value, gradient = objective(vector)
        if value > best_value:
            best, best_value = vector.clone(), value
        report(best_value)
        if not math.isfinite(value):
            return 1e10, 0.0 * numbers
        return -value / n, (-(gradient * ~fixed) / n).cpu().numpy()

    with threads_for(n):
        scipy_minimize(
            downhill,
            start.cpu().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=objective.hyperparameters.limits(),
            options={"maxiter": iterations, "ftol": 1e-10, "gtol": 1e-6},
        )
    return best, best_value
