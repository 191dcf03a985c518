"""The search for the best hyperparameters of data as they are: starts, exact gradients, or estimated ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.checks import as_generator
from ..core.progress import estimated, progress_bar
from ..kernels import Kernel
from ..lattice import FourierLattice
from ..models.means import Mean
from ..solvers import PCG, Cholesky, Solver
from ..solvers.base import SHARE_OF_GPU
from .gradient_only_bfgs import Curve, climb, curvature, for_all
from .hyperparameters import Prior, checked_priors, hyperparameters_of, weak_priors
from .initialisation import candidates, interleaved, of_both_kinds, spread_and_near
from .lattice_likelihood import NotOnLattice, OnLattice
from .lbfgs import by_lbfgs, threads_for, without_effect
from .likelihood import Dense
from .pathwise import Pathwise
from .units import Units

if TYPE_CHECKING:
    from rich.progress import Progress

# Starts are compared on this many observations, and followed on that many; the best goes on with all of them.
_SCREENED, _FOLLOWED = 256, 512
_ITERATIONS, _FIRST_ITERATIONS = 500, 60
# So many times the starts that are followed are tried, for so many steps.
_TRIED, _TRIED_ITERATIONS = 3, 8
# Up to this many observations L-BFGS goes on with all of them. Beyond, and where gradients are estimated, the search
# begins with the top for some of them, and takes quasi-Newton steps from there; some say how sharp the top is.
_LARGEST_AT_ONCE, _FIRST_OBSERVATIONS, _CURVED = 2000, 1000, 1000
# Steps without a gain after which the search for that top ends.
_FIRST_PATIENCE = 3
# The most observations that num_data="auto" fits to on a CPU, where there is no lattice.
_MOST = 4000
# With each of them so many of its nearest neighbours; these, and copies, are looked for among so many.
_NEAREST, _LOOKED_AT = 3, 50_000
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
# Quasi-Newton steps with exact gradients, and of L-BFGS after them where they did not end, on ridges, and where the fit
# is to all data: the top for some of them need not be known so well.
_STEPS, _LARGEST_POLISHED, _POLISH = 12, 4000, 100
# Gains per hyperparameter below which a search by quasi-Newton steps ends: with estimated gradients a fifth of its
# sampling error, and a tenth on a lattice, where steps are cheap.
_EXACT, _ESTIMATED, _ON_LATTICE = 2e-3, 0.02, 0.005
# Draws of the prior (and the data: a tile of 64 on a GPU). With s of them an estimate adds 1 / s to the sampling
# variance of hyperparameters.
_PROBES = {"cpu": 15, "cuda": 63}
_SOLVER = PCG(tolerance=0.1, max_iterations=300)


class FitWarning(UserWarning):
    """A fit did not go as asked: to some of many data, with a column that says nothing, or with no better end."""


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
    num_data: int | str | None = None,
    units: Units | None = None,
    solver: str | Solver = "auto",
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> tuple[Kernel, Tensor, Mean]:
    """The kernel, noise `[n]` and mean that maximise log likelihood + log prior of data as they are, in float64.

    Where `units` are given, the kernel's numbers are tried in the user's units and in the model's. `num_data` is that
    of `fit`.
    """
    h, as_given = hyperparameters_of(kernel, X, noise, mean, floors or {}, first_noise, units)
    if priors is None:
        priors = weak_priors(h.leaves) if len(y) < h.size else {}
    priors = checked_priors(priors, h.leaves)
    h = h.within(priors)
    as_given = h.clamped(as_given)
    with progress_bar(*estimated(), show=progress, transient=True) as bar:
        journal = _Journal(bar, as_given, len(y))
        objective = Dense(h, X, y, tasks, priors, journal.evaluated)
        try:
            best, value, converged = _searched(
                objective, as_given, num_starts, num_data, solver, as_generator(seed), units is not None, journal
            )
        except KeyboardInterrupt as stop:
            if not progress:
                stop.add_note("fit: with progress=True the best hyperparameters found so far would have been kept")
                raise
            best, value, converged = journal.best, 0.0, True
            _warn(f"the fit was interrupted at {journal.share:.0%}; the best hyperparameters found so far are kept")
    if journal.fitted < len(y) and num_data == "auto":
        _warn(
            f"the hyperparameters were fitted to {journal.fitted:,} of the {len(y):,} observations, random ones and "
            f"their neighbours; the model holds all of them. num_data={journal.fitted} does the same without this "
            "warning, and num_data=None fits to all observations, which may take long"
        )
    if not converged:
        _warn(
            "the search had not ended when it was stopped; its last hyperparameters are kept. The data may say little "
            "of some of them: give priors=, or a kernel with fewer"
        )
    if not math.isfinite(value):
        _warn(
            "the covariance has no Cholesky factor at the kernel's own hyperparameters, which are kept; give noise=, "
            "or a kernel that is less smooth"
        )
    with torch.no_grad():
        kernel, noise, mean = h.model([v.detach().clone() for v in h.decode(best)], len(X), tasks)
    return kernel, noise.clone(), mean


def _warn(words: str) -> None:
    warnings.warn(words, FitWarning, stacklevel=5)  # where fit, in its decorator, was called


class _Journal:
    """What a search has found so far, and which share of its work is done.

    The work is counted in seconds that evaluations are expected to take on one core, in stages. A stage that takes
    longer than expected slows down before its end; the next one begins where it was expected to end.
    """

    def __init__(self, bar: Progress, start: Tensor, num_data: int) -> None:
        self.best, self._rows, self._value = start, 0.0, -math.inf
        self.fitted = self._all = num_data
        self._bar, self._task = bar, bar.add_task("fitting", total=1.0)
        self._plan, self._stage, self._spent, self._words, self.share = {"": 1.0}, "", 0.0, "", 0.0

    def plan(self, num_data: int, **seconds: float) -> None:
        """How many of the data are fitted to, and the stages in their order, with the seconds that each may take."""
        self.fitted, self._plan = num_data, seconds

    def enter(self, stage: str, words: str) -> None:
        self._stage, self._spent, self._words = stage, self._spent if stage == self._stage else 0.0, words
        self.worked(0.0)

    def evaluated(self, n: int, vector: Tensor, value: float) -> None:
        """Of evaluations of a dense likelihood the best is kept among those of the largest number of data."""
        if math.isfinite(value) and (n > self._rows or (n == self._rows and value > self._value)):
            self.best, self._rows, self._value = vector, n, value
        self.worked(_seconds(n))

    def stepped(self, words: str, vector: Tensor) -> None:
        """Of steps by estimated gradients, of all data, the last is kept."""
        self.best, self._rows, self._words = vector, math.inf, words

    def worked(self, seconds: float) -> None:
        self._spent += seconds
        stages = list(self._plan)
        if self._stage in stages:
            before = sum(self._plan[name] for name in stages[: stages.index(self._stage)])
            own = self._plan[self._stage]
            u = self._spent / own
            u = u if u < 0.8 else 1 - 0.2 * math.exp(-(u - 0.8) / 0.2)
            self.share = max(self.share, (before + u * own) / sum(self._plan.values()))
        which = f"{self.fitted:,} of {self._all:,}" if self.fitted < self._all else f"{self._all:,}"
        words = f"fitting {which} rows: {self._words}"
        self._bar.update(self._task, description=words, completed=self.share)


def _seconds(n: int) -> float:
    """What an evaluation of a dense likelihood takes on one core, about."""
    return 1e-3 + 4e-8 * n**2 + 3e-11 * n**3


def _estimate_seconds(objective: Dense, lattice: bool) -> float:
    """What an estimate of its gradient takes, about: on a lattice, or by some thirty products with the covariance."""
    n, d = objective.X.shape
    return 0.1 * 8.0 ** (d - 1) if lattice else 3e-7 * n**2


def _searched(
    objective: Dense,
    as_given: Tensor,
    num_starts: int,
    num_data: int | str | None,
    solver: str | Solver,
    generator: torch.Generator,
    both_units: bool,
    journal: _Journal,
) -> tuple[Tensor, float, bool]:
    """Where a search for the top ended, the value there (of some of the data, at the least), and whether it is one."""
    n = len(objective.y)
    auto = num_data == "auto" and solver == "auto" and objective.X.device.type == "cpu"
    if isinstance(num_data, int):
        objective = _some(objective, num_data, generator)
    lattice = _is_on_lattice(solver, objective)
    if auto and not lattice:
        objective = _some(objective, _MOST, generator)
    _plan(journal, objective, num_starts, lattice, solver)
    best = as_given
    if num_starts > 1:
        best = _best_start(objective, as_given, num_starts, generator, both_units, journal)
    if lattice:
        try:
            estimate = OnLattice(objective, _PROBES["cpu"], _seed(generator))
            return _by_estimates(objective, estimate, best, as_given, _ON_LATTICE, journal)
        except NotOnLattice as reason:
            if solver != "auto":
                raise _refusal(str(reason)) from None
        objective = _some(objective, _MOST, generator) if auto else objective
        _plan(journal, objective, 1, False, solver)
    if not _is_dense(solver, objective):
        probes = _PROBES.get(objective.X.device.type, 15)
        estimate = Pathwise(objective, _SOLVER if isinstance(solver, str) else solver, probes, _seed(generator))
        return _by_estimates(objective, estimate, best, as_given, _ESTIMATED, journal)
    if len(objective.y) > _LARGEST_AT_ONCE:
        polish = len(objective.y) == n <= _LARGEST_POLISHED
        return _by_exact_gradients(objective, best, as_given, polish, journal)
    journal.enter("all", "with all of them")
    return *by_lbfgs(objective, best, without_effect(objective, best), as_given, _ITERATIONS), True


def _some(objective: Dense, count: int, generator: torch.Generator) -> Dense:
    """The likelihood of `count` of the data: some at random, the nearest neighbours of these, and copies of inputs.

    Noise, and what varies over short distances, show in neighbours, and most of all where an input was observed twice.
    Random rows alone are further apart than all of them are: they may be fitted without noise where all have some, and
    with 1000 of 2500 rows of kin40k the likelihood of all of them was further from its top, by 80 instead of 21.
    Of several tasks half are equal numbers of each.
    """
    X, tasks = objective.X, objective.tasks
    if count >= len(X):
        return objective
    order = torch.randperm(len(X), generator=generator, device=generator.device).to(X.device)
    if tasks is not None:
        rank = torch.zeros_like(order)  # among those of the same task
        for task in tasks.unique():
            own = (tasks[order] == task).nonzero()[:, 0]
            rank[own] = torch.arange(len(own), device=X.device)
        order = interleaved(order, order[rank.argsort(stable=True)])
    pool = order[:_LOOKED_AT]
    copies = pool[_copies(X[pool])[: count // 8]]
    size = -(-(count - len(copies)) // (1 + _NEAREST))
    nearest = []
    for i in range(0, size, 64):
        distance = torch.cdist(X[pool[i : min(i + 64, size)]], X[pool])  # [64, m]
        distance.diagonal(i).fill_(math.inf)  # of each to itself
        nearest.append(pool[distance.topk(min(_NEAREST, len(pool) - 1), largest=False).indices.reshape(-1)])
    chosen = torch.cat([copies, order[:size], *nearest, order])
    place = torch.arange(len(chosen), device=X.device)
    earliest = torch.full_like(order, len(chosen)).scatter_reduce(0, chosen, place, "amin")
    return objective.some(earliest.argsort()[:count])


def _copies(X: Tensor) -> Tensor:
    """The rows of X that are there more than once, equal ones side by side."""
    _, of, counts = X.unique(dim=0, return_inverse=True, return_counts=True)
    place = torch.arange(len(X), device=X.device)
    first = torch.full_like(counts, len(X)).scatter_reduce(0, of, place, "amin")  # of equal rows
    order = first[of].argsort(stable=True)
    return order[counts[of[order]] > 1]


def _plan(journal: _Journal, objective: Dense, num_starts: int, lattice: bool, solver: str | Solver) -> None:
    """The seconds of an evaluation times how many there may be: about as many as searches on UCI's tables took."""
    n, p = len(objective.y), objective.hyperparameters.size
    curvature_of = (p + 1) * (_seconds(min(n, _CURVED)) + _seconds(min(n, _CURVED) // 2))
    stages = {}
    if num_starts > 1:
        screened, followed = _seconds(min(n, _SCREENED)), _seconds(min(n, _FOLLOWED))
        stages["starts"] = (20 + 8 * num_starts + 10 * _TRIED * num_starts) * screened + 20 * num_starts * followed
    dense = _is_dense(solver, objective) and not lattice
    if dense and n <= _LARGEST_AT_ONCE:
        stages["all"] = 40 * _seconds(n)
    else:
        step = _seconds(n) if dense else _estimate_seconds(objective, lattice)
        stages |= {"first": 25 * _seconds(min(n, _FIRST_OBSERVATIONS)), "all": 8 * step + 2 * curvature_of}
    journal.plan(n, **stages)


def _is_dense(solver: str | Solver, objective: Dense) -> bool:
    asked = isinstance(solver, Cholesky) or solver == "cholesky"
    return asked or (solver == "auto" and len(objective.y) <= _largest_dense(objective.X.device))


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


def _first(
    objective: Dense, start: Tensor, as_given: Tensor, exact: bool, journal: _Journal
) -> tuple[Tensor, Curve, float]:
    """The top for some of the data; the curvature for all of them `[p, p]` that some of them tell of; the value."""
    n = len(objective.X)
    generator = torch.Generator().manual_seed(0)  # of its own: a fit from one start draws no other numbers
    order = torch.randperm(n, generator=generator, device="cpu").to(objective.X.device)
    some = objective.some(order[:_FIRST_OBSERVATIONS])
    journal.enter("first", f"{len(some.y):,} of them first")
    fixed = without_effect(some, start)
    best, value = by_lbfgs(some, start, fixed, as_given, 2 * _FIRST_ITERATIONS, _FIRST_PATIENCE)
    # what turns more often than data spread so thinly can show was found among neighbours, and would be lost here
    near = objective.some(spread_and_near(objective.X, generator)[:_FOLLOWED])
    if near(start)[0] > near(best)[0] + 0.01 * _FOLLOWED and not (exact and objective(best)[0] > objective(start)[0]):
        best = start
    # where a column seems to have no effect the likelihood is flat, and more data could not say otherwise
    leaves = objective.hyperparameters.leaves
    which = [leaf.short == "lengthscale" for leaf in leaves for _ in range(leaf.size)]
    lengths = torch.tensor(which, device="cpu").to(fixed)
    best = torch.where(lengths & ~fixed, best.clamp_max(_LONG), best)
    sizes = [min(n, _CURVED) // 2, min(n, _CURVED)]
    parts = [objective.some(order[:size]) for size in sizes]

    def curve(x: Tensor) -> Tensor:
        less, more = (curvature(lambda v, part=part: part(v)[1] * ~fixed, x) for part in parts)
        return for_all(less, more, sizes[1] / sizes[0], n / sizes[1])

    return best, curve, value


def _by_exact_gradients(
    objective: Dense, start: Tensor, as_given: Tensor, polish: bool, journal: _Journal
) -> tuple[Tensor, float, bool]:
    """A few quasi-Newton steps with all data; L-BFGS where these do not end and the top is to be `polish`ed."""
    start, curve, _ = _first(objective, start, as_given, True, journal)
    best, best_value = start, -math.inf

    def gradient(vector: Tensor) -> Tensor:
        nonlocal best, best_value
        value, slope = objective(vector)
        if value > best_value:
            best, best_value = vector, value
        journal.enter("all", f"log likelihood {best_value:.2f}")
        far = not value > best_value - 10 * abs(len(vector))  # or no factor at all
        return slope * math.nan if far else slope

    _, converged = climb(objective.hyperparameters, gradient, start, curve, _EXACT, lambda *_: None, _STEPS)
    if not converged and polish:
        best, best_value = by_lbfgs(objective, best, without_effect(objective, best), as_given, _POLISH)
    return best, best_value, True


def _by_estimates(
    objective: Dense,
    estimate: Pathwise | OnLattice,
    start: Tensor,
    as_given: Tensor,
    tolerance: float,
    journal: _Journal,
) -> tuple[Tensor, float, bool]:
    """Quasi-Newton steps with estimated gradients of all data."""
    start, curve, value = _first(objective, start, as_given, False, journal)

    def gradient(vector: Tensor) -> Tensor:
        slope = estimate(vector)
        journal.worked(_estimate_seconds(objective, isinstance(estimate, OnLattice)))
        return slope

    journal.enter("all", "with all of them")
    best, converged = climb(objective.hyperparameters, gradient, start, curve, tolerance, journal.stepped)
    return best, value, converged


def _refusal(reason: str) -> ValueError:
    return ValueError(
        'solver="lattice" fits a model with noise, a constant or fixed mean and a kernel of stationary terms, alone, '
        "or beside linear and polynomial ones, on up to 3 columns; "
        f'{reason}: use solver="cholesky" or "cg"'
    )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def _best_start(
    objective: Dense, as_given: Tensor, num_starts: int, generator: torch.Generator, both: bool, journal: _Journal
) -> Tensor:
    """The best end of searches from the most likely of many starts, on some of the data."""
    h = objective.hyperparameters
    order = spread_and_near(objective.X, generator)
    few, none = objective.some(order[:_SCREENED]), torch.zeros_like(as_given, dtype=torch.bool)
    given = [as_given, *([h.encode()] if both else [])]
    journal.enter("starts", "comparing starts")
    starts = candidates(h, 8 * num_starts, generator, given, few.X, few.y)
    with threads_for(len(few.y)):
        values = [few(start)[0] for start in starts]
    ranked = [starts[i] for i in sorted(range(len(starts)), key=lambda i: -values[i])]
    ends = [by_lbfgs(few, start, none, as_given, _TRIED_ITERATIONS) for start in ranked[: _TRIED * num_starts]]
    chosen = of_both_kinds(h, ends, num_starts)
    some = objective.some(order[:_FOLLOWED])
    ends = []
    for i, start in enumerate(chosen):
        journal.enter("starts", f"start {i + 1} of {len(chosen)}")
        ends.append(by_lbfgs(some, start, without_effect(some, start), as_given, _FIRST_ITERATIONS))
    return max(ends, key=lambda end: end[1])[0]
