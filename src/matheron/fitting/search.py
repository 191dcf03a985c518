"""The search for the hyperparameters of highest likelihood, from one start or several."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.checks import as_generator
from ..core.functionals import Functionals
from ..core.progress import progress_bar
from ..core.sites import Sites
from ..kernels import Kernel
from ..lattice import FourierLattice
from ..models.means import Mean
from ..solvers import PCG, Cholesky, Solver
from ..solvers.operator import memory_of
from .estimated_gradients import NotOnLattice, OnLattice, Pathwise
from .hyperparameters import (
    Hyperparameters,
    Leaf,
    NoiseBlocks,
    Prior,
    Units,
    checked_priors,
    hyperparameters_of,
    usual_gap,
    weak_priors,
)
from .likelihood import Dense

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class SearchSettings:
    """How a fit searches for the maximum. A row is one observation.

    Where there are several starts, many candidates are compared on some of the rows. The likeliest of them are searched
    from for a few iterations, and the best end is where the search with all rows begins. Where all rows are compared,
    as many searches as there are starts go on to their end. With a kernel that has a period, the best end of a few
    iterations often leads to another period than the likeliest. In benchmarks/fit_tables.py, "77 turns" lost 0.6 nats.
    """

    # Starts: candidates are compared on `rows_compared` rows. `tried_per_start` of them for each start get
    # `tried_iterations` iterations with these rows.
    rows_compared: int = 256
    tried_per_start: int = 3
    tried_iterations: int = 8

    # One start: after the search, `tried_iterations` from one other start with some rows show whether there is a higher
    # maximum. If they end less than `margin` below the first search's end, a second search follows.
    margin: float = 2.0

    # Exact gradients: with up to `rows_at_once` rows, L-BFGS-B uses all of them. With more, it takes `first_iterations`
    # with `rows_first` rows, and at most `gradient_steps` quasi-Newton steps follow with all rows. Their first
    # curvature is that of `rows_for_curvature` rows. If these steps do not converge, as on ridges, L-BFGS-B takes up to
    # `final_iterations` more with up to `most_rows_final` rows. Without these, 2500 rows of "elevators" lose 0.65 nats
    # and take half the time.
    rows_at_once: int = 2000
    rows_first: int = 1000
    first_iterations: int = 120
    rows_for_curvature: int = 1000
    gradient_steps: int = 12
    final_iterations: int = 100
    most_rows_final: int = 4000

    # L-BFGS-B works in units in which the curvature for `rows_for_units` rows is the same along every hyperparameter,
    # if there are at least twice as many rows.
    rows_for_units: int = 128

    # Lengthscales, in standard deviations of the inputs. Those fitted to some rows are reduced to `longest_lengthscale`
    # before all rows are used. A search that ends beyond it begins again with `restart_lengthscale`.
    longest_lengthscale: float = 30.0
    restart_lengthscale: float = 3.0

    # Fits to some of the rows: num_data="auto" uses up to `largest_auto` rows on a CPU if the lattice cannot be used.
    # Random rows are taken together with their nearest `neighbours` among `neighbour_pool` rows.
    largest_auto: int = 4000
    neighbours: int = 3
    neighbour_pool: int = 50_000

    # solver="auto", with limits for a CPU and for a GPU: covariances of up to `largest_dense` rows are factored, and
    # for more rows gradients are estimated. The lattice is used from `smallest_on_line` rows on in one dimension, and
    # from `smallest_on_lattice` rows on in two and three. On an H200 (benchmarks/fit_solvers.py), dense factors and the
    # lattice took 0.6 and 0.8 s for 8000 rows in one dimension, and 1.5 and 0.6 s for 16,000; in two dimensions 1.8 and
    # 3.6 s for 16,000, and 19 and 2 s for 32,000; in three dimensions 4.4 and 13 s, and 34 and 9 s.
    largest_dense: tuple[int, int] = (8000, 32_000)
    smallest_on_lattice: tuple[int, int] = (4000, 20_000)
    smallest_on_line: tuple[int, int] = (4000, 10_000)

    # Quasi-Newton steps end when the expected gain per hyperparameter is below these. The sampling error of an
    # estimated gradient costs 0.1. On a lattice steps are cheap.
    exact_tolerance: float = 2e-3
    estimated_tolerance: float = 0.02
    lattice_tolerance: float = 0.005

    # Estimated gradients: s random right-hand sides increase the sampling variance of hyperparameters by the fraction 1
    # / s. A GPU computes in tiles of 64 columns, and one column is for the data.
    probes: int = 15
    probes_on_gpu: int = 63
    solver: Solver = field(default_factory=lambda: PCG(tolerance=0.1, max_iterations=300))


SETTINGS = SearchSettings()


class FitWarning(UserWarning):
    """A fit differs from what was asked for: it used some of the data, a column has no effect, or the search did not
    end at a maximum."""


def maximised(
    kernel: Kernel,
    X: Tensor | Functionals,
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
    blocks: NoiseBlocks | None = None,
    solver: str | Solver = "auto",
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> tuple[Kernel, Tensor, Mean]:
    """The kernel, noise `[n]` and mean that maximise log likelihood + log prior, in float64.

    Data are in the model's units; nothing is standardised here. If `units` are given, the kernel's numbers are read in
    the user's units and in the model's, and both are starts. Other arguments are those of `fit`.
    """
    sites = X if isinstance(X, Functionals) else Sites(X, tasks)
    places = sites.places if isinstance(sites, Functionals) else sites.points
    h, as_given = hyperparameters_of(kernel, places, noise, mean, floors or {}, first_noise, units, blocks)
    if priors is None:
        priors = weak_priors(h.leaves) if len(y) < h.size else {}
    priors = checked_priors(priors, h.leaves)
    h = h.within(priors)
    as_given = h.clamped(as_given)
    objective = Dense(h, sites, y, priors)
    automatic = num_data == "auto" and solver == "auto" and y.device.type == "cpu"
    most = SETTINGS.largest_auto if automatic else None
    count = num_data if isinstance(num_data, int) else None
    search = LikelihoodSearch(
        objective, as_given, num_starts, count, most, solver, as_generator(seed), units is not None
    )
    best = search.maximum(progress)
    with torch.no_grad():
        kernel, noise, mean = h.model([v.detach().clone() for v in h.decode(best)], len(y), tasks)
    return kernel, noise.clone(), mean


@dataclass
class LikelihoodSearch:
    """The search for the maximum of an objective.

    Attributes:
        objective: log likelihood + log prior of all data.
        as_given: the vector `[p]` of the numbers that the user gave, where the first search starts.
        num_starts, solver, generator: as for `fit`.
        num_data: how many rows are used, all if None.
        most: how many rows are used, with a warning, if there are more and the fit is not on a lattice; all if None.
        both_units: whether the kernel's numbers, read in the model's units, are a start as well.
    """

    objective: Dense
    as_given: Tensor
    num_starts: int
    num_data: int | None
    most: int | None
    solver: str | Solver
    generator: torch.Generator
    both_units: bool

    def maximum(self, progress: bool) -> Tensor:
        """The vector of hyperparameters `[p]` at which the search ended, with warnings about how it ended."""
        n, value, converged = len(self.objective.y), 0.0, True
        with progress_bar(show=progress, transient=True) as bar:
            self.journal = _Journal(bar, self.as_given, n)
            self.objective.watch = self.journal.evaluated
            try:
                best, value, converged = self._searched()
            except KeyboardInterrupt as stop:
                if not progress:
                    stop.add_note("fit: with progress=True the best hyperparameters found so far would have been kept")
                    raise
                best = self.journal.best
                share = f"{self.journal.share:.0%}"
                _warn(f"the fit was interrupted at {share}; the best hyperparameters found so far are kept")
        if self.most is not None and (fitted := self.journal.fitted) < n:
            _warn(
                f"the hyperparameters were fitted to {fitted:,} of the {n:,} observations, random ones and "
                f"their neighbours; the model holds all of them. num_data={fitted} does the same without this "
                "warning, and num_data=None fits to all observations, which may take long"
            )
        if not converged:
            _warn(
                "the search did not reach a maximum within its limit of steps; its last hyperparameters are kept. The "
                "data may determine some of them poorly: give priors=, or a kernel with fewer hyperparameters"
            )
        if not math.isfinite(value):
            _warn(
                "the likelihood is not finite at the kernel's own hyperparameters, which are kept; give noise= or "
                "priors=, a kernel that is less smooth, or other hyperparameters to start from"
            )
        return best

    def _searched(self) -> tuple[Tensor, float, bool]:
        """Where the search ended, the value there (of some of the rows, if the gradient is estimated), and whether the
        search reached a maximum."""
        objective, solver, generator, s = self.objective, self.solver, self.generator, SETTINGS
        n = len(objective.y)
        if self.num_data is not None:
            objective = some_of(objective, self.num_data, generator)
        lattice = _is_on_lattice(solver, objective)
        if isinstance(objective.sites, Functionals) and (lattice or not _is_dense(solver, objective)):
            raise ValueError(
                f"X: expected up to {_largest_dense(objective.X.device)} functionals and solver='cholesky' or "
                f"'auto', got {n} and {solver!r}; num_data=2000 fits to so many of them"
            )
        if self.most is not None and not lattice:
            objective = some_of(objective, self.most, generator)
        self._plan(objective, self.num_starts, lattice)
        start = self.as_given if self.num_starts == 1 else self._best_start(objective)
        if lattice:
            try:
                estimate = OnLattice(objective, s.probes, _seed(generator))
                return self._by_quasi_newton(objective, estimate, s.lattice_tolerance, start)
            except NotOnLattice as reason:
                if solver != "auto":
                    raise _refusal(str(reason)) from None
            objective = objective if self.most is None else some_of(objective, self.most, generator)
            self._plan(objective, 1, False)
        if not _is_dense(solver, objective):
            probes = s.probes_on_gpu if objective.X.is_cuda else s.probes
            estimate = Pathwise(objective, s.solver if isinstance(solver, str) else solver, probes, _seed(generator))
            return self._by_quasi_newton(objective, estimate, s.estimated_tolerance, start)
        if len(objective.y) <= s.rows_at_once:
            self.journal.worked(0.0, "with all of them")
            return *self._by_lbfgs(objective, start), True

        def exact(vector: Tensor) -> Tensor:
            value, slope = objective(vector)
            return slope if math.isfinite(value) else slope * math.nan

        best, value, converged = self._by_quasi_newton(objective, exact, s.exact_tolerance, start, s.gradient_steps)
        if not converged and len(objective.y) == n <= s.most_rows_final:
            best, value = by_lbfgs(objective, best, s.final_iterations)
        return best, value, True

    def _best_start(self, objective: Dense) -> Tensor:
        """The best end of short searches from the likeliest of many candidates, all with some of the rows."""
        h, s, count = objective.hyperparameters, SETTINGS, self.num_starts
        some = some_of(objective, s.rows_compared, self.generator)
        self.journal.worked(0.0, "comparing starts")
        given = [self.as_given, *([h.encode()] if self.both_units else [])]
        starts = candidates(h, count, self.generator, given, some.X, some.y)
        ranked = sorted(starts, key=lambda start: -some(start)[0])
        tried, ends = ranked[: s.tried_per_start * count], []
        for i, start in enumerate(tried):
            self.journal.worked(0.0, f"start {i + 1} of {len(tried)}")
            ends.append(by_lbfgs(some, start, s.tried_iterations))
        ends.sort(key=lambda end: -end[1])
        if some is objective:  # few rows: searches to the end are cheap
            ends = [by_lbfgs(some, start) for start, _ in ends[:count]]
        return max(ends, key=lambda end: end[1])[0]

    def _idle_as_given(self, objective: Dense, start: Tensor) -> Tensor:
        """A start in which hyperparameters without any effect have the values that the user gave.

        Their derivative is exactly zero, as that of a lengthscale along a constant column.
        """
        idle = objective(start)[1] == 0
        return torch.where(idle & ~idle.all(), self.as_given, start)

    def _by_lbfgs(self, objective: Dense, start: Tensor, iterations: int = 500) -> tuple[Tensor, float]:
        """The end of the search from a start, and the value there; with one start, the better end of up to two."""
        end = _restarted_if_far(objective, by_lbfgs(objective, self._idle_as_given(objective, start), iterations))
        other = self._other_start(objective, *end) if self.num_starts == 1 else None
        if other is None:
            return end
        other = by_lbfgs(objective, self._idle_as_given(objective, other), iterations)
        return max(end, _restarted_if_far(objective, other), key=lambda each: each[1])

    def _other_start(self, objective: Dense, best: Tensor, value: float) -> Tensor | None:
        """The start of a second search, if a few iterations show that it may end higher than the first, at `best`.

        A search rarely passes from a function that follows the data closely to one that takes much of the data for
        noise, or back. So the start is the likeliest that has more or less noise than the end of the first search.
        """
        h, s, fixed = objective.hyperparameters, SETTINGS, torch.Generator().manual_seed(0)
        some = some_of(objective, s.rows_compared, fixed)
        value = value if some is objective else some(best)[0]
        starts = candidates(h, 0, fixed, [self.as_given], some.X, some.y)[1:]
        starts = [start for start in starts if is_noisy(h, start) != is_noisy(h, best)]
        if not starts:
            return None
        start, reached = by_lbfgs(some, max(starts, key=lambda start: some(start)[0]), s.tried_iterations)
        # A start that has lost its noise is on its way to a first end that has little.
        apart = is_noisy(h, start) or is_noisy(h, best)
        return start if reached > value or (apart and reached > value - s.margin) else None

    def _by_quasi_newton(
        self,
        objective: Dense,
        gradient: Callable[[Tensor], Tensor],
        tolerance: float,
        start: Tensor,
        steps: int = 30,
    ) -> tuple[Tensor, float, bool]:
        """Maximise by quasi-Newton steps with gradients of all rows, exact or estimated.

        The steps begin at the maximum for some of the rows, and with the curvature there. The result is where they end,
        the value for some of the rows where they began, and whether they ended within the limit of steps.
        """
        n, h, s, journal = len(objective.y), objective.hyperparameters, SETTINGS, self.journal
        # a seed of its own, so that a fit from one start does not advance the user's generator
        own = torch.Generator().manual_seed(0)
        order = torch.randperm(n, generator=own, device="cpu").to(objective.X.device)
        some = objective.some(order[: s.rows_first])
        journal.worked(0.0, f"{len(some.y):,} of them first")
        best, value = self._by_lbfgs(some, start, s.first_iterations)
        idle = some(best)[1] == 0
        # With a lengthscale far beyond the data, the derivative is zero for any rows, so that the search could not
        # leave it.
        best = torch.where(h.are_lengthscales(best) & ~idle, best.clamp_max(math.log(s.longest_lengthscale)), best)
        sizes = [min(n, s.rows_for_curvature) // 2, min(n, s.rows_for_curvature)]
        parts = [objective.some(order[:size]) for size in sizes]

        def curve(x: Tensor) -> Tensor:
            less, more = (curvature(lambda v, part=part: part(v)[1] * ~idle, x) for part in parts)
            return for_all(less, more, sizes[1] / sizes[0], n / sizes[1])

        def worked(vector: Tensor) -> Tensor:
            slope = gradient(vector)
            if isinstance(gradient, OnLattice | Pathwise):
                journal.worked(_estimate_seconds(objective, isinstance(gradient, OnLattice)))
            return slope

        journal.worked(0.0, "with all of them")
        best, converged = climb(worked, best, curve, h.limits(), tolerance, journal.stepped, steps)
        return best, value, converged

    def _plan(self, objective: Dense, num_starts: int, lattice: bool) -> None:
        """Set the expected seconds: those of an evaluation times the number of evaluations that UCI tables took."""
        n, s = len(objective.y), SETTINGS
        screened, first, curved = (_seconds(min(n, m)) for m in (s.rows_compared, s.rows_first, s.rows_for_curvature))
        seconds = (6 + 40 * num_starts) * screened if num_starts > 1 else 0.0
        if _is_dense(self.solver, objective) and not lattice:
            step = _seconds(n)
            more = n > s.rows_at_once
        else:
            step, more = _estimate_seconds(objective, lattice), True
        if more:
            curvatures = 4 * (objective.hyperparameters.size + 1) * curved
            self.journal.plan(n, seconds + 25 * first + 8 * step + curvatures)
        else:
            self.journal.plan(n, seconds + 40 * step)


def _warn(words: str) -> None:
    warnings.warn(words, FitWarning, stacklevel=6)  # the line that called fit, which is inside its decorator


class _Journal:
    """The best hyperparameters found so far, and a progress bar.

    The bar shows which share is done of the seconds that all evaluations are expected to take on one core. If there are
    more evaluations than expected, it approaches the end more and more slowly.
    """

    def __init__(self, bar: Progress, start: Tensor, num_data: int) -> None:
        self.best, self._rows, self._value = start, 0.0, -math.inf
        self.fitted = self._all = num_data
        self._bar, self._task = bar, bar.add_task("fitting", total=1.0)
        self._planned, self._spent, self._words, self.share = 1.0, 0.0, "", 0.0

    def plan(self, num_data: int, seconds: float) -> None:
        """Set how many rows are used, and the expected seconds."""
        self.fitted, self._planned = num_data, seconds

    def evaluated(self, n: int, vector: Tensor, value: float) -> None:
        """Note an evaluation with n rows. Only values with the largest number of rows so far are compared."""
        if math.isfinite(value) and (n > self._rows or (n == self._rows and value > self._value)):
            self.best, self._rows, self._value = vector, n, value
        self.worked(_seconds(n))

    def stepped(self, words: str, vector: Tensor) -> None:
        """Note a quasi-Newton step with all rows; the last one is kept, since estimated gradients have no values."""
        self.best, self._rows, self._words = vector, math.inf, words

    def worked(self, seconds: float, words: str | None = None) -> None:
        self._spent += seconds
        self._words = self._words if words is None else words
        u = self._spent / self._planned
        self.share = max(self.share, u if u < 0.8 else 1 - 0.2 * math.exp(-(u - 0.8) / 0.2))
        which = f"{self.fitted:,} of {self._all:,}" if self.fitted < self._all else f"{self._all:,}"
        self._bar.update(self._task, description=f"fitting {which} rows: {self._words}", completed=self.share)


def _seconds(n: int) -> float:
    """Approximate seconds on one core of a dense likelihood of n rows with its gradient."""
    return 1e-3 + 4e-8 * n**2 + 3e-11 * n**3


def _estimate_seconds(objective: Dense, lattice: bool) -> float:
    """Approximate seconds of an estimated gradient: on a lattice, or by some thirty products with the covariance."""
    n, d = objective.X.shape
    return 0.1 * 8.0 ** (d - 1) if lattice else 3e-7 * n**2


def by_lbfgs(objective: Dense, start: Tensor, iterations: int = 500) -> tuple[Tensor, float]:
    """Maximise by SciPy's L-BFGS-B from a start `[p]`: the end `[p]` and its value, -inf if no value was finite."""
    from scipy.optimize import minimize as scipy_minimize  # this import takes a tenth of a second

    n, unit = len(objective.y), _curvature_units(objective, start)

    def downhill(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(torch.as_tensor(numbers, dtype=torch.float64, device="cpu").to(start) * unit)
        if not math.isfinite(value):
            return 1e10, 0.0 * numbers
        return -value / n, (-gradient * unit / n).cpu().numpy()

    found = scipy_minimize(
        downhill,
        (start / unit).cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=[
            (low / u, up / u) for (low, up), u in zip(objective.hyperparameters.limits(), unit.tolist(), strict=True)
        ],
        options={"maxiter": iterations, "maxcor": 40, "ftol": 1e-9, "gtol": 1e-6},
    )
    best = torch.as_tensor(found.x, dtype=torch.float64, device="cpu").to(start) * unit
    return objective.hyperparameters.clamped(best), -n * float(found.fun) if found.fun < 1e10 else -math.inf


def _curvature_units(objective: Dense, start: Tensor) -> Tensor:
    """Units `[p]` in which the likelihood of some rows has the same curvature along every hyperparameter.

    Without these units, one start far from the maximum lost 970 nats on "pol" and 6 on "bike", and four starts none
    (benchmarks/fit_tables.py).
    """
    if len(objective.y) <= 2 * SETTINGS.rows_for_units:
        return torch.ones_like(start)
    some = some_of(objective, SETTINGS.rows_for_units, torch.Generator().manual_seed(0))
    return curvature(lambda v: some(v)[1], start).diagonal().rsqrt()


def _restarted_if_far(objective: Dense, end: tuple[Tensor, float]) -> tuple[Tensor, float]:
    """The end of a search, or of a second search with shorter lengthscales if that is better.

    An early step may take a lengthscale far beyond the range of the data, where the likelihood is flat along it. The
    search then ends without using that column. Without the second search one start lost 428 nats on "pol" and 1.6 on
    "wine" (benchmarks/fit_tables.py).
    """
    h, (best, value), longest = objective.hyperparameters, end, math.log(SETTINGS.longest_lengthscale)
    far = h.are_lengthscales(best) & (best > longest)
    if not bool(far.any()):
        return end
    again = by_lbfgs(objective, torch.where(far, math.log(SETTINGS.restart_lengthscale), best))
    return again if again[1] > value else end


def some_of(objective: Dense, count: int, generator: torch.Generator) -> Dense:
    """The objective for `count` of the rows: a quarter at random, their nearest neighbours, and repeated inputs.

    Neighbours show the noise and variation over short distances, and inputs that were observed twice show the noise
    best. Random rows alone are further apart than all rows are, and may be fitted without noise where all rows have
    some. With 1000 of 2500 rows of kin40k, the likelihood of all rows then ended 80 nats below its maximum instead of
    21. With several tasks, half of the random rows are equal numbers of each.
    """
    X, tasks = objective.X, objective.tasks
    if count >= len(X):
        return objective
    order = torch.randperm(len(X), generator=generator, device=generator.device).to(X.device)
    if tasks is not None:
        rank = torch.zeros_like(order)  # the place of each row among those of the same task
        for task in tasks.unique():
            own = (tasks[order] == task).nonzero()[:, 0]
            rank[own] = torch.arange(len(own), device=X.device)
        order = _without_repeats(torch.stack([order, order[rank.argsort(stable=True)]], dim=1).reshape(-1))
    pool = order[: SETTINGS.neighbour_pool]
    copies = pool[_copies(X[pool])[: count // 8]]
    size = -(-(count - len(copies)) // (1 + SETTINGS.neighbours))
    nearest = []
    for i in range(0, size, 64):
        distance = torch.cdist(X[pool[i : min(i + 64, size)]], X[pool])  # [64, m]
        distance.diagonal(i).fill_(math.inf)  # a row is not its own neighbour
        nearest.append(pool[distance.topk(min(SETTINGS.neighbours, len(pool) - 1), largest=False).indices.reshape(-1)])
    return objective.some(_without_repeats(torch.cat([copies, order[:size], *nearest, order]))[:count])


def _without_repeats(rows: Tensor) -> Tensor:
    """Each of n rows once, in the order of their first places in a list that repeats some."""
    places = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(rows[: int(rows.max()) + 1], len(rows)).scatter_reduce(0, rows, places, "amin")
    return first.argsort()


def _copies(X: Tensor) -> Tensor:
    """The numbers of rows of X that occur more than once, equal rows side by side."""
    _, of, counts = X.unique(dim=0, return_inverse=True, return_counts=True)
    places = torch.arange(len(X), device=X.device)
    first = torch.full_like(counts, len(X)).scatter_reduce(0, of, places, "amin")  # the first of several equal rows
    order = first[of].argsort(stable=True)
    return order[counts[of[order]] > 1]


def _is_dense(solver: str | Solver, objective: Dense) -> bool:
    asked = isinstance(solver, Cholesky) or solver == "cholesky"
    return asked or (solver == "auto" and len(objective.y) <= _largest_dense(objective.X.device))


def _largest_dense(device: torch.device) -> int:
    """Up to how many rows "auto" factors the covariance; no more than fit into a GPU's memory."""
    on_cpu, on_gpu = SETTINGS.largest_dense
    if device.type != "cuda":
        return on_cpu
    bytes_per_entry = 24  # for the covariance, its factor and its inverse, in float64
    return min(on_gpu, math.isqrt(memory_of(device, 0, 0.55) // bytes_per_entry))


def _smallest_on_lattice(device: torch.device, input_dim: int) -> int:
    """Beyond how many rows "auto" fits on a lattice."""
    least = SETTINGS.smallest_on_line if input_dim == 1 else SETTINGS.smallest_on_lattice
    return min(least[device.type == "cuda"], _largest_dense(device))


def _is_on_lattice(solver: str | Solver, objective: Dense) -> bool:
    asked = isinstance(solver, FourierLattice) or solver == "lattice"
    X = objective.X
    if isinstance(objective.sites, Functionals):
        return asked
    if not asked and (solver != "auto" or len(X) <= _smallest_on_lattice(X.device, X.shape[1])):
        return False
    can = OnLattice.can(objective.hyperparameters, X)
    if asked and not can:
        raise _refusal("the model has another form")
    return can


def _refusal(reason: str) -> ValueError:
    return ValueError(
        'solver="lattice": expected a model with noise, a constant or fixed mean, up to 3 columns, and a kernel of '
        "stationary terms, which may have linear and polynomial terms beside them; "
        f'{reason}: use solver="cholesky" or "cg"'
    )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


# Candidates for the starts of searches, in standardised units.


@dataclass(frozen=True)
class Starts:
    """Which candidates for starts there are, as benchmarks/fit_tables.py chose them.

    "Worth 31 nats on trend" means that four starts lose 31 nats of log likelihood on the table "trend" without these
    candidates (seed 0).

    Attributes:
        lengths, noises: there is a candidate for each of these lengthscales, the same along every column and times the
            root of the dimension, with each of these noise variances. A search rarely passes from a function that
            follows the data closely to one that takes much of the data for noise, or back. Therefore both are starts:
            worth 31 nats on "trend", which needs the last variance, and 0.6 on "77 turns", which needs both lengths.
        short, gaps: along each column there are candidates with a lengthscale of `short`, a third of that, and so on
            down to `gaps` times the usual gap between neighbours. They are worth 143 nats on "waves", and 1.3 on
            "mostly noise".
        noisy: a larger noise variance counts as much noise: a second search begins with more or less than the first
            ended with.
        random: random candidates for each start. They give the parts of a sum different numbers: worth 4 nats on "two
            scales", and up to 13 on other sums of two equal kernels. Half or twice as many change nothing.
        peaks: peaks of a periodogram that are tried as periods. With one, 0.6 nats are lost on "77 turns".
        frequencies: least number of frequencies of a periodogram.
        highest: highest frequency of a periodogram, in turns over the range of the data.
    """

    lengths: tuple[float, ...] = (1.0, 3.0)
    noises: tuple[float, ...] = (0.3, 1e-2, 1e-5)
    short: float = 0.1 / 3
    gaps: float = 2.0
    noisy: float = 0.1
    random: int = 8
    peaks: int = 3
    frequencies: int = 2000
    highest: float = 2000.0


STARTS = Starts()


def candidates(
    h: Hyperparameters, count: int, generator: torch.Generator, given: Sequence[Tensor], X: Tensor, y: Tensor
) -> list[Tensor]:
    """Candidates for the starts of `count` searches: the given vectors, and those that `Starts` describes.

    With a count of 0 there are no random ones, and none with short lengthscales.

    As a function of a period the likelihood has many narrow maxima, and random numbers rarely find the highest. Periods
    are therefore taken from the peaks of a periodogram, and the given vectors are repeated with these.
    """
    starts = [_even(h, given[-1], length, noise) for length in STARTS.lengths for noise in STARTS.noises]
    starts += [torch.cat([_random(leaf, generator) for leaf in h.leaves]) for _ in range(STARTS.random * count)]
    starts += [short for i in range(X.shape[1] if count else 0) for short in _short(h, given[-1], i, X[:, i])]
    turning = [leaf for leaf in h.leaves if leaf.short in ("period", "means") and leaf.dims]
    if turning and len(y) >= 8:
        found = {i: peaks(X[:, i], y) for leaf in turning for i in leaf.dims}  # the peaks of each column
        starts = [_with_periods(h, start, found, k) for k, start in enumerate(starts)]
        starts += [_with_periods(h, start, found, k) for start in given for k in range(STARTS.peaks)]
    return [h.clamped(start) for start in [*given, *starts]]


def is_noisy(h: Hyperparameters, vector: Tensor) -> bool:
    """Whether a vector has a fitted noise variance, and a large one."""
    return isinstance(h.noise, Leaf) and bool(h.split(vector)[h.count].mean() > math.log(STARTS.noisy))


def _even(h: Hyperparameters, start: Tensor, length: float, noise: float) -> Tensor:
    """A start with the same lengthscale along every column, and this variance of the noise."""
    parts = h.split(start)
    for k, leaf in enumerate(h.leaves):
        if leaf.short == "lengthscale":
            value = length * max(1, len(leaf.dims)) ** 0.5
            parts[k] = leaf.encode(torch.full_like(leaf.value, value).where(leaf.value != 0, 0.0))
        elif leaf is h.noise:
            parts[k] = leaf.encode(torch.full_like(leaf.value, noise))
    return torch.cat(parts)


def _short(h: Hyperparameters, start: Tensor, column: int, x: Tensor) -> list[Tensor]:
    """Starts with shorter and shorter lengthscales along one column, down to a few gaps between its numbers.

    From a long lengthscale, a function that turns often along the column looks like noise.
    """
    shorter, length, least = [], STARTS.short, STARTS.gaps * usual_gap(x)
    while 0 < least < length:
        parts = h.split(start)
        for k, leaf in enumerate(h.leaves):
            if leaf.short == "lengthscale" and column in leaf.dims:
                value = leaf.decode(parts[k]).clone()
                own = [leaf.dims.index(column)] if value.numel() == len(leaf.dims) else slice(None)
                value.view(-1)[own] = length
                parts[k] = leaf.encode(value)
        shorter.append(torch.cat(parts))
        length /= 3
    return shorter


def _random(leaf: Leaf, generator: torch.Generator) -> Tensor:
    def normal(size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)

    if leaf.kind == "coupling":
        return leaf.encode(leaf.value) + 0.3 * normal(leaf.size)
    if leaf.kind == "real":
        return leaf.encode(leaf.value) + (0.0 if leaf.name.startswith("mean") else normal(leaf.size))
    if leaf.own:
        return leaf.encode(leaf.value) + normal(leaf.size)
    # Log-uniform ranges, such as 0.1 to 10 standard deviations for lengthscales.
    ranges = {"lengthscale": (0.1, 10.0), "period": (0.05, 4.0), "noise": (1e-4, 0.5), "alpha": (0.1, 10.0)}
    lower, upper = (math.log(v) for v in ranges.get(leaf.short, (0.1, 3.0)))
    if leaf.short == "lengthscale":  # distances grow with the square root of the dimension
        root = 0.5 * math.log(max(1, len(leaf.dims)))
        lower, upper = lower + root, upper + root
    u = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)
    return lower + u * (upper - lower) + 0.5 * normal(leaf.size)  # a common size, times a factor for each dimension


def _with_periods(h: Hyperparameters, start: Tensor, found: dict[int, Tensor], k: int) -> Tensor:
    """A start whose periods are peaks of the periodogram, and whose means of a spectral mixture are peaks and zero.

    The first period of a column has the k-th peak, and further periods of the same column have the next ones.
    """
    parts = h.split(start)
    turns: dict[tuple[int, ...], int] = {}
    for i, leaf in enumerate(h.leaves):
        if not leaf.dims or leaf.short not in ("period", "means"):
            continue
        own = torch.stack([found[j] for j in leaf.dims], dim=1)  # [peaks, dims]
        if leaf.short == "period":
            turn = turns.get(leaf.dims, k)
            best = own[turn % len(own)]
            # if several columns share a period, it is that of one column
            one = best[turn % len(best)].expand(leaf.value.shape)
            parts[i] = leaf.encode(1 / (best.reshape(leaf.value.shape) if leaf.value.numel() == len(best) else one))
            turns[leaf.dims] = turn + 1
        else:  # [components, dims], in turns
            own = torch.cat([own, torch.zeros_like(own[:1])])
            order = (torch.arange(len(leaf.value), device=own.device) + k) % len(own)
            parts[i] = leaf.encode(own[order])
    return torch.cat(parts)


def peaks(x: Tensor, y: Tensor) -> Tensor:
    """The frequencies `[3]`, in turns per unit of x, of the waves that explain most of y beside a parabola.

    Each is the highest peak in the spectrum of the residuals of the parabola and the waves before it. The second peak
    of a single spectrum usually belongs to the same wave as the first.
    """
    width = float(x.max() - x.min())
    if width <= 0:
        return x.new_ones(STARTS.peaks)
    x, y = (x - x.mean()) / width, y - y.mean()
    highest = _highest(x)
    count = max(STARTS.frequencies, round(8 * highest))  # eight frequencies for the width of each peak
    frequency = torch.linspace(0.5, highest, count, dtype=x.dtype, device=x.device)
    angle = 2 * math.pi * frequency[:, None] * x  # [F, n]
    cosines, sines = angle.cos(), angle.sin()
    known, chosen = [torch.ones_like(x), x, x.square()], []
    for _ in range(STARTS.peaks):
        A = torch.stack(known, dim=1)
        A = A / A.square().mean(0).sqrt().clamp_min(1e-12)
        gram = A.mT @ A + 1e-9 * len(x) * torch.eye(A.shape[1], dtype=x.dtype, device=x.device)
        rest = y - A @ torch.linalg.solve(gram, A.mT @ y)
        power = (cosines @ rest).square() + (sines @ rest).square()
        power[chosen] = -1.0
        chosen.append(int(power.argmax()))
        known += [cosines[chosen[-1]], sines[chosen[-1]]]
    return frequency[chosen] / width


def _highest(x: Tensor) -> float:
    """The highest frequency of a periodogram, in turns over data x `[n]` of width 1.

    Neighbours distinguish frequencies of up to half a turn between them. That is n / 2 turns in all on a grid, and more
    for irregular data. With few data, n^2 / 12 is the limit, since among more frequencies some fit by chance.
    """
    gaps = x.unique().diff()
    gaps = gaps[gaps > 1e-6]
    n, near = len(x), float(gaps.quantile(0.1)) if len(gaps) else 1.0
    return max(2.0, min(0.5 / near, max(n / 2, n * n / 12), STARTS.highest))


# Quasi-Newton steps from gradients alone, exact or estimated, with an approximately known curvature. The curvature of a
# log likelihood at the maximum for some of the data predicts the curvature for all of them, so a few expensive steps
# are enough. A step is expected to gain half of g' B^-1 g, with gradient g and curvature B. Sampling error costs one
# half per hyperparameter.


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
