"""The search for the hyperparameters of highest likelihood, from one start or several."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
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
from .gradient_only_bfgs import climb, curvature, for_all
from .hyperparameters import NoiseBlocks, Prior, checked_priors, hyperparameters_of, weak_priors
from .initialisation import candidates, most_likely
from .lattice_likelihood import NotOnLattice, OnLattice
from .likelihood import Dense
from .pathwise import Pathwise
from .units import Units

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class SearchSettings:
    """How a fit searches for the maximum. A row is one observation.

    Where there are several starts, many candidates are compared on a few rows. The likeliest of them are searched from
    for a few iterations, and the likeliest ends for longer and on more rows. The best end is where the search with all
    rows begins.
    """

    # Starts: candidates are compared on `rows_compared` rows, and searches from the chosen ones use `rows_followed`
    # rows. `tried_per_start` candidates for each start first get `tried_iterations` iterations. Without these, four
    # starts lose 3 nats on "mostly noise" and take three quarters of the time (benchmarks/fit_tables.py).
    rows_compared: int = 256
    rows_followed: int = 512
    tried_per_start: int = 3
    tried_iterations: int = 8
    followed_iterations: int = 60

    # Exact gradients: with up to `rows_at_once` rows, L-BFGS-B uses all of them. With more, it finds the maximum for
    # `rows_first` rows, and at most `gradient_steps` quasi-Newton steps follow with all rows. Their first curvature is
    # that of `rows_for_curvature` rows. If these steps do not converge, as on ridges, L-BFGS-B takes up to
    # `final_iterations` more with up to `most_rows_final` rows. Without these, 2500 rows of "elevators" lose 0.65 nats
    # and take half the time.
    rows_at_once: int = 2000
    rows_first: int = 1000
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
    best = maximiser(objective, as_given, num_starts, count, most, solver, seed, units is not None, progress)
    with torch.no_grad():
        kernel, noise, mean = h.model([v.detach().clone() for v in h.decode(best)], len(y), tasks)
    return kernel, noise.clone(), mean


def maximiser(
    objective: Dense,
    as_given: Tensor,
    num_starts: int,
    num_data: int | None,
    most: int | None,
    solver: str | Solver,
    seed: int | torch.Generator | None,
    both_units: bool,
    progress: bool,
) -> Tensor:
    """The vector of hyperparameters `[p]` at which the search for the maximum of an objective ended.

    Args:
        objective: log likelihood + log prior of all data.
        as_given: the vector `[p]` of the numbers that the user gave, where the first search starts.
        num_data: how many rows are used, all if None.
        most: how many rows are used, with a warning, if there are more and the fit is not on a lattice; all if None.
        both_units: whether the kernel's numbers, read in the model's units, are a start as well.
        num_starts, solver, seed, progress: as for `fit`.
    """
    n, value, converged = len(objective.y), 0.0, True
    with progress_bar(show=progress, transient=True) as bar:
        journal = _Journal(bar, as_given, n)
        objective.watch = journal.evaluated
        try:
            best, value, converged = _searched(
                objective, as_given, num_starts, num_data, most, solver, as_generator(seed), both_units, journal
            )
        except KeyboardInterrupt as stop:
            if not progress:
                stop.add_note("fit: with progress=True the best hyperparameters found so far would have been kept")
                raise
            best = journal.best
            _warn(f"the fit was interrupted at {journal.share:.0%}; the best hyperparameters found so far are kept")
    if most is not None and journal.fitted < n:
        _warn(
            f"the hyperparameters were fitted to {journal.fitted:,} of the {n:,} observations, random ones and "
            f"their neighbours; the model holds all of them. num_data={journal.fitted} does the same without this "
            "warning, and num_data=None fits to all observations, which may take long"
        )
    if not converged:
        _warn(
            "the search did not reach a maximum within its limit of steps; its last hyperparameters are kept. The data "
            "may determine some of them poorly: give priors=, or a kernel with fewer hyperparameters"
        )
    if not math.isfinite(value):
        _warn(
            "the likelihood is not finite at the kernel's own hyperparameters, which are kept; give noise= or priors=, "
            "a kernel that is less smooth, or other hyperparameters to start from"
        )
    return best


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


def _plan(journal: _Journal, objective: Dense, num_starts: int, lattice: bool, solver: str | Solver) -> None:
    """Set the expected seconds: those of an evaluation times the number of evaluations that UCI tables took."""
    n, s = len(objective.y), SETTINGS
    screened, followed, first, curved = (
        _seconds(min(n, m)) for m in (s.rows_compared, s.rows_followed, s.rows_first, s.rows_for_curvature)
    )
    seconds = (10 + 6 * num_starts) * screened + 30 * num_starts * followed if num_starts > 1 else 0.0
    if _is_dense(solver, objective) and not lattice:
        step = _seconds(n)
        more = n > s.rows_at_once
    else:
        step, more = _estimate_seconds(objective, lattice), True
    if more:
        curvatures = 4 * (objective.hyperparameters.size + 1) * curved
        journal.plan(n, seconds + 25 * first + 8 * step + curvatures)
    else:
        journal.plan(n, seconds + 40 * step)


def _searched(
    objective: Dense,
    as_given: Tensor,
    num_starts: int,
    num_data: int | None,
    most: int | None,
    solver: str | Solver,
    generator: torch.Generator,
    both_units: bool,
    journal: _Journal,
) -> tuple[Tensor, float, bool]:
    """Where the search ended, the value there (of some of the rows, if the gradient is estimated), and whether the
    search reached a maximum."""
    n, s = len(objective.y), SETTINGS
    if num_data is not None:
        objective = some_of(objective, num_data, generator)
    lattice = _is_on_lattice(solver, objective)
    if isinstance(objective.sites, Functionals) and (lattice or not _is_dense(solver, objective)):
        raise ValueError(
            f"X: expected up to {_largest_dense(objective.X.device)} functionals and solver='cholesky' or "
            f"'auto', got {n} and {solver!r}; num_data=2000 fits to so many of them"
        )
    if most is not None and not lattice:
        objective = some_of(objective, most, generator)
    _plan(journal, objective, num_starts, lattice, solver)
    start = as_given
    if num_starts > 1:
        start = _best_start(objective, as_given, num_starts, generator, both_units, journal)
    if lattice:
        try:
            estimate = OnLattice(objective, s.probes, _seed(generator))
            return _by_quasi_newton(objective, estimate, s.lattice_tolerance, start, as_given, journal)
        except NotOnLattice as reason:
            if solver != "auto":
                raise _refusal(str(reason)) from None
        objective = objective if most is None else some_of(objective, most, generator)
        _plan(journal, objective, 1, False, solver)
    if not _is_dense(solver, objective):
        probes = s.probes_on_gpu if objective.X.is_cuda else s.probes
        estimate = Pathwise(objective, s.solver if isinstance(solver, str) else solver, probes, _seed(generator))
        return _by_quasi_newton(objective, estimate, s.estimated_tolerance, start, as_given, journal)
    if len(objective.y) <= s.rows_at_once:
        journal.worked(0.0, "with all of them")
        best, value = by_lbfgs(objective, _idle_as_given(objective, start, as_given))
        return *_restarted_if_far(objective, best, value), True

    def exact(vector: Tensor) -> Tensor:
        value, slope = objective(vector)
        return slope if math.isfinite(value) else slope * math.nan

    best, value, converged = _by_quasi_newton(
        objective, exact, s.exact_tolerance, start, as_given, journal, s.gradient_steps
    )
    if not converged and len(objective.y) == n <= s.most_rows_final:
        best, value = by_lbfgs(objective, best, s.final_iterations)
    return best, value, True


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


def _restarted_if_far(objective: Dense, best: Tensor, value: float) -> tuple[Tensor, float]:
    """The end of a search, or of a second search with shorter lengthscales if that is better.

    An early step may take a lengthscale far beyond the range of the data, where the likelihood is flat along it. The
    search then ends without using that column. Without the second search one start lost 428 nats on "pol" and 1.6 on
    "wine" (benchmarks/fit_tables.py).
    """
    h, longest = objective.hyperparameters, math.log(SETTINGS.longest_lengthscale)
    far = h.are_lengthscales(best) & (best > longest)
    if not bool(far.any()):
        return best, value
    again = by_lbfgs(objective, torch.where(far, math.log(SETTINGS.restart_lengthscale), best))
    return again if again[1] > value else (best, value)


def _idle_as_given(objective: Dense, start: Tensor, as_given: Tensor) -> Tensor:
    """A start in which hyperparameters without any effect have the values that the user gave.

    Their derivative is exactly zero, as that of a lengthscale along a constant column.
    """
    idle = objective(start)[1] == 0
    return torch.where(idle & ~idle.all(), as_given, start)


def _best_start(
    objective: Dense, as_given: Tensor, num_starts: int, generator: torch.Generator, both: bool, journal: _Journal
) -> Tensor:
    """The best end of searches from the likeliest of many candidates, all with some of the rows."""
    h = objective.hyperparameters
    few, some = (some_of(objective, count, generator) for count in (SETTINGS.rows_compared, SETTINGS.rows_followed))
    journal.worked(0.0, "comparing starts")
    given = [as_given, *([h.encode()] if both else [])]
    starts = candidates(h, num_starts, generator, given, few.X, few.y)
    ranked = sorted(starts, key=lambda start: -few(start)[0])
    tried = [
        by_lbfgs(few, start, SETTINGS.tried_iterations) for start in ranked[: SETTINGS.tried_per_start * num_starts]
    ]
    chosen = most_likely(h, tried, num_starts)
    ends = []
    for i, start in enumerate(chosen):
        journal.worked(0.0, f"start {i + 1} of {len(chosen)}")
        ends.append(by_lbfgs(some, start, SETTINGS.followed_iterations))
    return max(ends, key=lambda end: end[1])[0]


def _by_quasi_newton(
    objective: Dense,
    gradient: Callable[[Tensor], Tensor],
    tolerance: float,
    start: Tensor,
    as_given: Tensor,
    journal: _Journal,
    steps: int = 30,
) -> tuple[Tensor, float, bool]:
    """Maximise by quasi-Newton steps with gradients of all rows, exact or estimated.

    The steps begin at the maximum for some of the rows, and with the curvature there. The result is where they end, the
    value for some of the rows where they began, and whether they ended within the limit of steps.
    """
    n, h, s = len(objective.y), objective.hyperparameters, SETTINGS
    # a seed of its own, so that a fit from one start does not advance the user's generator
    own = torch.Generator().manual_seed(0)
    order = torch.randperm(n, generator=own, device="cpu").to(objective.X.device)
    some = objective.some(order[: s.rows_first])
    journal.worked(0.0, f"{len(some.y):,} of them first")
    best, value = by_lbfgs(some, _idle_as_given(some, start, as_given), 2 * s.followed_iterations)
    idle = some(best)[1] == 0
    # With a lengthscale far beyond the data, the derivative is zero for any rows, so that the search could not leave
    # it.
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
