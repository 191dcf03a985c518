"""The search for the best hyperparameters of data as they are: starts, exact gradients, or estimated ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from ..checks import as_generator
from ..kernels import Kernel
from ..means import Mean
from ..progress import progress_bar
from ..solvers import PCG, Cholesky, FourierLattice, Solver
from ..solvers.choose import SHARE_OF_GPU
from .hyperparameters import Prior, checked_priors, hyperparameters_of, weak_priors
from .lbfgs import by_lbfgs, without_effect
from .likelihood import Dense
from .newton import Curve, Report, climb, curvature, for_all
from .on_lattice import NotOnLattice, OnLattice
from .pathwise import Pathwise
from .starts import candidates, of_both_kinds, spread_and_near
from .threads import threads_for
from .units import Units

# Starts are compared on this many observations, and followed on that many; the best goes on with all of them.
_SCREENED, _FOLLOWED = 256, 512
_ITERATIONS, _FIRST_ITERATIONS = 500, 60
# So many times the starts that are followed are tried, for so many steps.
_TRIED, _TRIED_ITERATIONS = 3, 8
# Beyond this many observations the search begins with the top for some of them; this many say how sharp it is.
_FIRST_OBSERVATIONS, _CURVED = 2000, 1000
# The logarithm of the longest lengthscale, in standard deviations, that some of the data hand on to all.
_LONG = math.log(30.0)
# "auto" factors the covariance up to these many observations. Beyond, gradients are estimated; in up to three
# dimensions on a lattice, from fewer observations on. On an H200 (benchmarks/fit_solvers.py) dense factors and the
# lattice took 0.6 and 0.8 s for n = 8000 in one dimension, 1.5 and 0.6 s for 16,000; in two 1.8 and 3.6 s for 16,000,
# 19 and 2 s for 32,000; in three 4.4 and 13 s, 34 and 9 s.
_LARGEST_DENSE, _SMALLEST_ON_LATTICE = {"cpu": 8000, "cuda": 32_000}, {"cpu": 4000, "cuda": 20_000}
_SMALLEST_ON_LINE = {"cpu": 4000, "cuda": 10_000}
# Bytes per entry of the covariance: it, its factor and its inverse, in float64.
_BYTES = 24
# Steps of L-BFGS after the quasi-Newton ones, where data are not too many.
_LARGEST_POLISHED, _POLISH = 4000, 100
# Gains per hyperparameter below which a search by quasi-Newton steps ends: with estimated gradients a fifth of its
# sampling error, and a tenth on a lattice, where steps are cheap.
_EXACT, _ESTIMATED, _ON_LATTICE = 2e-3, 0.02, 0.005
# Draws of the prior (and the data: a tile of 64 on a GPU). With s of them an estimate adds 1 / s to the sampling
# variance of hyperparameters.
_PROBES = {"cpu": 15, "cuda": 63}
_SOLVER = PCG(tolerance=0.1, max_iterations=300)


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
    h, as_given = hyperparameters_of(kernel, X, noise, mean, floors or {}, first_noise, units)
    if priors is None:
        priors = weak_priors(h.leaves) if len(y) < h.size else {}
    priors = checked_priors(priors, h.leaves)
    h = h.within(priors)
    as_given = h.clamped(as_given)
    objective = Dense(h, X, y, tasks, priors)
    dense = isinstance(solver, Cholesky) or solver == "cholesky"
    dense = dense or (solver == "auto" and len(X) <= _largest_dense(X.device))
    lattice = _is_on_lattice(solver, objective)
    with progress_bar(show=progress, transient=True) as bar:
        task = bar.add_task("fitting", total=None)

        def report(words: str) -> None:
            bar.update(task, description=f"fitting, {words}", advance=1)

        generator = as_generator(seed)
        best = as_given
        if num_starts > 1:
            best = _best_start(objective, as_given, num_starts, generator, units is not None, report)
        if dense and len(X) <= _FIRST_OBSERVATIONS and not lattice:
            fixed = without_effect(objective, best)
            best, value = by_lbfgs(objective, best, fixed, as_given, _ITERATIONS, "all data", report)
        else:
            best, curve, value = _first(objective, best, as_given, report)
            found = None
            if lattice:
                found = _on_lattice(objective, best, curve, generator, report, required=solver != "auto")
            if found is None and dense:
                best, value = _by_exact_gradients(objective, best, curve, as_given, report)
            elif found is None:
                found = _by_solves(objective, best, curve, solver, generator, report)
            if found is not None:
                best, converged = found
                if not converged:
                    warnings.warn(
                        "the search had not ended when it was stopped; its last hyperparameters are kept. The data may "
                        "say little of some of them: give priors=, or a kernel with fewer",
                        FitWarning,
                        stacklevel=3,
                    )
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


def _largest_dense(device: torch.device) -> int:
    """How many observations "auto" factors the covariance of: no more than fit a GPU."""
    count = _LARGEST_DENSE.get(device.type, 4000)
    if device.type != "cuda":
        return count
    memory = SHARE_OF_GPU * torch.cuda.get_device_properties(device).total_memory
    return min(count, math.isqrt(int(memory / _BYTES)))


def _smallest_on_lattice(device: torch.device, input_dim: int) -> int:
    """Beyond how many observations "auto" fits on a lattice."""
    least = _SMALLEST_ON_LINE if input_dim == 1 else _SMALLEST_ON_LATTICE
    return min(least.get(device.type, 4000), _largest_dense(device))


def _is_on_lattice(solver: str | Solver, objective: Dense) -> bool:
    asked = isinstance(solver, FourierLattice) or solver == "lattice"
    X = objective.X
    if not asked and (solver != "auto" or len(X) <= _smallest_on_lattice(X.device, X.shape[1])):
        return False
    can = OnLattice.can(objective.hyperparameters, X)
    if asked and not can:
        raise _refusal("the model has another form")
    return can


def _first(objective: Dense, start: Tensor, as_given: Tensor, report: Report) -> tuple[Tensor, Curve, float]:
    """The top for some of the data; the curvature for all of them `[p, p]` that some of them tell of; the value."""
    n = len(objective.X)
    generator = torch.Generator().manual_seed(0)  # of its own: a fit from one start draws no other numbers
    order = torch.randperm(n, generator=generator).to(objective.X.device)
    some = objective.some(order[:_FIRST_OBSERVATIONS])
    fixed, words = without_effect(some, start), f"{min(n, _FIRST_OBSERVATIONS)} observations"
    best, value = by_lbfgs(some, start, fixed, as_given, 2 * _FIRST_ITERATIONS, words, report)
    # what turns more often than data spread so thinly can show was found among neighbours, and would be lost here
    near = objective.some(spread_and_near(objective.X, generator)[:_FOLLOWED])
    if near(start)[0] > near(best)[0] + 0.01 * _FOLLOWED:
        best = start
    # where a column seems to have no effect the likelihood is flat, and more data could not say otherwise
    leaves = objective.hyperparameters.leaves
    lengths = torch.tensor([leaf.short == "lengthscale" for leaf in leaves for _ in range(leaf.size)]).to(fixed)
    best = torch.where(lengths & ~fixed, best.clamp_max(_LONG), best)
    sizes = [min(n, _CURVED) // 2, min(n, _CURVED)]
    parts = [objective.some(order[:size]) for size in sizes]

    def curve(x: Tensor) -> Tensor:
        less, more = (curvature(lambda v, part=part: part(v)[1] * ~fixed, x) for part in parts)
        return for_all(less, more, sizes[1] / sizes[0], n / sizes[1])

    return best, curve, value


def _by_exact_gradients(
    objective: Dense, start: Tensor, curve: Curve, as_given: Tensor, report: Report
) -> tuple[Tensor, float]:
    """A few steps with all data, then L-BFGS where it costs little: a likelihood has ridges, and tops beyond them."""
    best, best_value = start, -math.inf

    def gradient(vector: Tensor) -> Tensor:
        nonlocal best, best_value
        value, slope = objective(vector)
        if value > best_value:
            best, best_value = vector, value
        report(f"all data: log likelihood {best_value:.2f}")
        far = not value > best_value - 10 * abs(len(vector))  # or no factor at all
        return slope * math.nan if far else slope

    climb(objective.hyperparameters, gradient, start, curve, _EXACT, lambda *_: None)
    if len(objective.y) > _LARGEST_POLISHED:
        return best, best_value
    fixed = without_effect(objective, best)
    return by_lbfgs(objective, best, fixed, as_given, _POLISH, "all data", report)


def _by_solves(
    objective: Dense, start: Tensor, curve: Curve, solver: str | Solver, generator: torch.Generator, report: Report
) -> tuple[Tensor, bool]:
    """With gradients from products with the covariance: where the search ended, and whether at its top."""
    probes = _PROBES.get(objective.X.device.type, 15)
    estimate = Pathwise(objective, _SOLVER if isinstance(solver, str) else solver, probes, _seed(generator))
    return climb(objective.hyperparameters, estimate, start, curve, _ESTIMATED, report)


def _on_lattice(
    objective: Dense, start: Tensor, curve: Curve, generator: torch.Generator, report: Report, *, required: bool
) -> tuple[Tensor, bool] | None:
    """The same on a Fourier lattice; None where the model has none, or ValueError where one is required."""
    try:
        estimate = OnLattice(objective, _PROBES["cpu"], _seed(generator))
        return climb(objective.hyperparameters, estimate, start, curve, _ON_LATTICE, report)
    except NotOnLattice as reason:
        if not required:
            return None
        raise _refusal(str(reason)) from None


def _refusal(reason: str) -> ValueError:
    return ValueError(
        'solver="lattice" fits a model with noise, a constant or fixed mean and a kernel of stationary terms, alone, '
        "times linear ones or beside linear and polynomial ones, on up to 3 columns; "
        f'{reason}: use solver="cholesky" or "cg"'
    )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def _best_start(
    objective: Dense, as_given: Tensor, num_starts: int, generator: torch.Generator, both: bool, report: Report
) -> Tensor:
    """The best end of searches from the most likely of many starts, on some of the data."""
    h = objective.hyperparameters
    order = spread_and_near(objective.X, generator)
    few, none = objective.some(order[:_SCREENED]), torch.zeros_like(as_given, dtype=torch.bool)
    given = [as_given, *([h.encode()] if both else [])]
    starts = candidates(h, 8 * num_starts, generator, given, few.X, few.y)
    with threads_for(len(few.y)):
        values = [few(start)[0] for start in starts]
    ranked = [starts[i] for i in sorted(range(len(starts)), key=lambda i: -values[i])]
    ends = [
        by_lbfgs(few, start, none, as_given, _TRIED_ITERATIONS, "trying starts", report)
        for start in ranked[: _TRIED * num_starts]
    ]
    chosen = of_both_kinds(h, ends, num_starts)
    some = objective.some(order[:_FOLLOWED])
    ends = []
    for i, start in enumerate(chosen):
        words = f"start {i + 1} of {num_starts}"
        ends.append(by_lbfgs(some, start, without_effect(some, start), as_given, _FIRST_ITERATIONS, words, report))
    return max(ends, key=lambda end: end[1])[0]
