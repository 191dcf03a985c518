"""The search for the best hyperparameters of data as they are: starts, exact gradients, or estimated ones."""

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
from ..core.progress import estimated, progress_bar
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
    """How a fit searches. Counts are of observations where nothing else is said.

    Attributes:
        screened, followed: starts are compared on this many, and followed on that many for `follow_steps`.
        tried, try_steps: so many times the starts that are followed are tried first, for so many steps. Without, four
            starts lose 3 nats on "mostly noise" and take three quarters of the time (`benchmarks/fit_tables.py`).
        measured: this many say how sharp the likelihood is along each hyperparameter, where there are twice as many.
        at_once: up to so many L-BFGS goes on with all of them. Beyond, and where gradients are estimated, a search
            begins at the top for `first`, and takes quasi-Newton steps from there, with the curvature that `curved` of
            them have.
        steps, polish, polished: quasi-Newton steps with exact gradients; and, for up to `polished` where these did not
            end, on ridges, iterations of L-BFGS after them.
        most: that num_data="auto" fits to on a CPU, where there is no lattice.
        nearest, looked_at: with each of some rows go this many of its nearest neighbours, looked for among so many.
        longest: lengthscale, in standard deviations, that some of the data hand on to all.
        shorter: lengthscale, in standard deviations, that a search from one start begins again with where it ended with
            one above `longest`.
        largest_dense, smallest_on_lattice, smallest_on_line: "auto" factors the covariance up to the first, by device;
            beyond, gradients are estimated; in up to three dimensions on a lattice, beyond the second, and in one the
            third. On an H200 (`benchmarks/fit_solvers.py`) dense factors and the lattice took 0.6 and 0.8 s for
            n = 8000 in one dimension, 1.5 and 0.6 s for 16,000; in two 1.8 and 3.6 s for 16,000, 19 and 2 s for 32,000;
            in three 4.4 and 13 s, 34 and 9 s.
        exact, estimated, on_lattice: gains per hyperparameter below which quasi-Newton steps end: with estimated
            gradients a fifth of its sampling error, and a tenth on a lattice, where steps are cheap.
        probes, probes_on_gpu: random right-hand sides, beside the data (a tile of 64 on a GPU). With s of them an
            estimate adds 1 / s to the sampling variance of hyperparameters.
        solver: of estimated gradients, where none is given.
    """

    screened: int = 256
    followed: int = 512
    tried: int = 3
    try_steps: int = 8
    follow_steps: int = 60
    measured: int = 128
    at_once: int = 2000
    first: int = 1000
    curved: int = 1000
    steps: int = 12
    polish: int = 100
    polished: int = 4000
    most: int = 4000
    nearest: int = 3
    looked_at: int = 50_000
    longest: float = 30.0
    shorter: float = 3.0
    largest_dense: tuple[int, int] = (8000, 32_000)  # on a CPU and on a GPU, as the next two
    smallest_on_lattice: tuple[int, int] = (4000, 20_000)
    smallest_on_line: tuple[int, int] = (4000, 10_000)
    exact: float = 2e-3
    estimated: float = 0.02
    on_lattice: float = 0.005
    probes: int = 15
    probes_on_gpu: int = 63
    solver: Solver = field(default_factory=lambda: PCG(tolerance=0.1, max_iterations=300))


SETTINGS = SearchSettings()


class FitWarning(UserWarning):
    """A fit did not go as asked: to some of many data, with a column that says nothing, or with no better end."""


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
    """The kernel, noise `[n]` and mean that maximise log likelihood + log prior of data as they are, in float64.

    Where `units` are given, the kernel's numbers are tried in the user's units and in the model's. `num_data` is that
    of `fit`.
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
    most = SETTINGS.most if automatic else None
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
    """The vector of hyperparameters where a search for the maximum of an objective ended.

    Args:
        objective: log likelihood + log prior of all data.
        as_given: the vector of the numbers that the kernel has in the user's units.
        num_data: fit to so many of the data; None is all.
        most: fit to so many of the data, and warn, where there are more and no lattice serves; None is all.
        both_units: whether the numbers that the kernel has in the model's units are a start too.
        num_starts, solver, seed, progress: as for `fit`.
    """
    n, value, converged = len(objective.y), 0.0, True
    with progress_bar(*estimated(), show=progress, transient=True) as bar:
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
            "the search had not ended when it was stopped; its last hyperparameters are kept. The data may say little "
            "of some of them: give priors=, or a kernel with fewer"
        )
    if not math.isfinite(value):
        _warn(
            "the likelihood is not finite at the kernel's own hyperparameters, which are kept; give noise=, priors=, "
            "or a kernel that is less smooth or has other hyperparameters to start from"
        )
    return best


def _warn(words: str) -> None:
    warnings.warn(words, FitWarning, stacklevel=6)  # where fit, in its decorator, was called


class _Journal:
    """What a search has found so far, and which share of its work is done: of the seconds that evaluations are
    expected to take on one core, and slower before the end where there are more of them than expected."""

    def __init__(self, bar: Progress, start: Tensor, num_data: int) -> None:
        self.best, self._rows, self._value = start, 0.0, -math.inf
        self.fitted = self._all = num_data
        self._bar, self._task = bar, bar.add_task("fitting", total=1.0)
        self._planned, self._spent, self._words, self.share = 1.0, 0.0, "", 0.0

    def plan(self, num_data: int, seconds: float) -> None:
        """How many of the data are fitted to, and the seconds that it may take."""
        self.fitted, self._planned = num_data, seconds

    def evaluated(self, n: int, vector: Tensor, value: float) -> None:
        """Of evaluations of a dense likelihood the best is kept among those of the largest number of data."""
        if math.isfinite(value) and (n > self._rows or (n == self._rows and value > self._value)):
            self.best, self._rows, self._value = vector, n, value
        self.worked(_seconds(n))

    def stepped(self, words: str, vector: Tensor) -> None:
        """Of steps by estimated gradients, of all data, the last is kept."""
        self.best, self._rows, self._words = vector, math.inf, words

    def worked(self, seconds: float, words: str | None = None) -> None:
        self._spent += seconds
        self._words = self._words if words is None else words
        u = self._spent / self._planned
        self.share = max(self.share, u if u < 0.8 else 1 - 0.2 * math.exp(-(u - 0.8) / 0.2))
        which = f"{self.fitted:,} of {self._all:,}" if self.fitted < self._all else f"{self._all:,}"
        self._bar.update(self._task, description=f"fitting {which} rows: {self._words}", completed=self.share)


def _seconds(n: int) -> float:
    """What an evaluation of a dense likelihood takes on one core, about."""
    return 1e-3 + 4e-8 * n**2 + 3e-11 * n**3


def _estimate_seconds(objective: Dense, lattice: bool) -> float:
    """What an estimate of its gradient takes, about: on a lattice, or by some thirty products with the covariance."""
    n, d = objective.X.shape
    return 0.1 * 8.0 ** (d - 1) if lattice else 3e-7 * n**2


def _plan(journal: _Journal, objective: Dense, num_starts: int, lattice: bool, solver: str | Solver) -> None:
    """The seconds of an evaluation times how many there may be: about as many as searches on UCI's tables took."""
    n, s = len(objective.y), SETTINGS
    screened, followed, first, curved = (_seconds(min(n, m)) for m in (s.screened, s.followed, s.first, s.curved))
    seconds = (10 + 6 * num_starts) * screened + 30 * num_starts * followed if num_starts > 1 else 0.0
    if _is_dense(solver, objective) and not lattice:
        step = _seconds(n)
        more = n > s.at_once
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
    """Where a search for the top ended, the value there (of some of the data, at the least), and whether it is one."""
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
            return _from_some(objective, estimate, s.on_lattice, start, as_given, journal)
        except NotOnLattice as reason:
            if solver != "auto":
                raise _refusal(str(reason)) from None
        objective = objective if most is None else some_of(objective, most, generator)
        _plan(journal, objective, 1, False, solver)
    if not _is_dense(solver, objective):
        probes = s.probes_on_gpu if objective.X.is_cuda else s.probes
        estimate = Pathwise(objective, s.solver if isinstance(solver, str) else solver, probes, _seed(generator))
        return _from_some(objective, estimate, s.estimated, start, as_given, journal)
    if len(objective.y) <= s.at_once:
        journal.worked(0.0, "with all of them")
        best, value = by_lbfgs(objective, _moved_back(objective, start, as_given))
        return *_with_shorter_lengths(objective, best, value), True

    def exact(vector: Tensor) -> Tensor:
        value, slope = objective(vector)
        return slope if math.isfinite(value) else slope * math.nan

    best, value, converged = _from_some(objective, exact, s.exact, start, as_given, journal, s.steps)
    if not converged and len(objective.y) == n <= s.polished:
        best, value = by_lbfgs(objective, best, s.polish)
    return best, value, True


def by_lbfgs(objective: Dense, start: Tensor, iterations: int = 500) -> tuple[Tensor, float]:
    """SciPy's L-BFGS-B uphill from a start, by exact gradients: the end and its value."""
    from scipy.optimize import minimize as scipy_minimize  # a tenth of a second to import

    n, unit = len(objective.y), _units_of_search(objective, start)

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


def _units_of_search(objective: Dense, start: Tensor) -> Tensor:
    """Units `[p]` in which the likelihood is about as sharp along every hyperparameter, as some of the data have it.

    Without them one start far from the top lost 970 nats on "pol" and 6 on "bike", and four starts none
    (`benchmarks/fit_tables.py`).
    """
    if len(objective.y) <= 2 * SETTINGS.measured:
        return torch.ones_like(start)
    some = some_of(objective, SETTINGS.measured, torch.Generator().manual_seed(0))
    return curvature(lambda v: some(v)[1], start).diagonal().rsqrt()


def _with_shorter_lengths(objective: Dense, best: Tensor, value: float) -> tuple[Tensor, float]:
    """An end, or a better one that is found where lengthscales far beyond the data are shorter.

    A first step may take a lengthscale to where the likelihood is flat along it, and the search then ends without its
    column: one start on "pol" lost 32 nats (`benchmarks/fit_tables.py`).
    """
    h, longest = objective.hyperparameters, math.log(SETTINGS.longest)
    lengths = torch.tensor([leaf.short == "lengthscale" for leaf in h.leaves for _ in range(leaf.size)], device="cpu")
    far = lengths.to(best.device) & (best > longest)
    if not bool(far.any()):
        return best, value
    again = by_lbfgs(objective, torch.where(far, math.log(SETTINGS.shorter), best))
    return again if again[1] > value else (best, value)


def _moved_back(objective: Dense, start: Tensor, as_given: Tensor) -> Tensor:
    """A start with what has no effect, to an exact slope of 0, as it was given: data and priors say nothing of it."""
    idle = objective(start)[1] == 0
    return torch.where(idle & ~idle.all(), as_given, start)


def _best_start(
    objective: Dense, as_given: Tensor, num_starts: int, generator: torch.Generator, both: bool, journal: _Journal
) -> Tensor:
    """The best end of searches from the most likely of many starts, on some of the data."""
    h = objective.hyperparameters
    few, some = (some_of(objective, count, generator) for count in (SETTINGS.screened, SETTINGS.followed))
    journal.worked(0.0, "comparing starts")
    given = [as_given, *([h.encode()] if both else [])]
    starts = candidates(h, num_starts, generator, given, few.X, few.y)
    ranked = sorted(starts, key=lambda start: -few(start)[0])
    tried = [by_lbfgs(few, start, SETTINGS.try_steps) for start in ranked[: SETTINGS.tried * num_starts]]
    chosen = most_likely(h, tried, num_starts)
    ends = []
    for i, start in enumerate(chosen):
        journal.worked(0.0, f"start {i + 1} of {len(chosen)}")
        ends.append(by_lbfgs(some, start, SETTINGS.follow_steps))
    return max(ends, key=lambda end: end[1])[0]


def _from_some(
    objective: Dense,
    gradient: Callable[[Tensor], Tensor],
    tolerance: float,
    start: Tensor,
    as_given: Tensor,
    journal: _Journal,
    steps: int = 30,
) -> tuple[Tensor, float, bool]:
    """Quasi-Newton steps with gradients of all data, exact or estimated, from the top for some of them and with their
    curvature: where they end, the value of some, and whether they ended."""
    n, h, s = len(objective.y), objective.hyperparameters, SETTINGS
    generator = torch.Generator().manual_seed(0)  # of its own: a fit from one start draws no other numbers
    order = torch.randperm(n, generator=generator, device="cpu").to(objective.X.device)
    some = objective.some(order[: s.first])
    journal.worked(0.0, f"{len(some.y):,} of them first")
    best, value = by_lbfgs(some, _moved_back(some, start, as_given), 2 * s.follow_steps)
    idle = some(best)[1] == 0
    # where a column seems to have no effect the likelihood is flat, and more data could not say otherwise
    lengths = torch.tensor([leaf.short == "lengthscale" for leaf in h.leaves for _ in range(leaf.size)], device="cpu")
    best = torch.where(lengths.to(idle) & ~idle, best.clamp_max(math.log(s.longest)), best)
    sizes = [min(n, s.curved) // 2, min(n, s.curved)]
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
    """The likelihood of `count` of the data: a quarter at random, their nearest neighbours, and copies of inputs.

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
        order = _first_met(torch.stack([order, order[rank.argsort(stable=True)]], dim=1).reshape(-1))
    pool = order[: SETTINGS.looked_at]
    copies = pool[_copies(X[pool])[: count // 8]]
    size = -(-(count - len(copies)) // (1 + SETTINGS.nearest))
    nearest = []
    for i in range(0, size, 64):
        distance = torch.cdist(X[pool[i : min(i + 64, size)]], X[pool])  # [64, m]
        distance.diagonal(i).fill_(math.inf)  # of each to itself
        nearest.append(pool[distance.topk(min(SETTINGS.nearest, len(pool) - 1), largest=False).indices.reshape(-1)])
    return objective.some(_first_met(torch.cat([copies, order[:size], *nearest, order]))[:count])


def _first_met(rows: Tensor) -> Tensor:
    """All n rows, each once, in the order in which they are first met among some with copies."""
    places = torch.arange(len(rows), device=rows.device)
    first = torch.full_like(rows[: int(rows.max()) + 1], len(rows)).scatter_reduce(0, rows, places, "amin")
    return first.argsort()


def _copies(X: Tensor) -> Tensor:
    """The rows of X that are there more than once, equal ones side by side."""
    _, of, counts = X.unique(dim=0, return_inverse=True, return_counts=True)
    places = torch.arange(len(X), device=X.device)
    first = torch.full_like(counts, len(X)).scatter_reduce(0, of, places, "amin")  # of equal rows
    order = first[of].argsort(stable=True)
    return order[counts[of[order]] > 1]


def _is_dense(solver: str | Solver, objective: Dense) -> bool:
    asked = isinstance(solver, Cholesky) or solver == "cholesky"
    return asked or (solver == "auto" and len(objective.y) <= _largest_dense(objective.X.device))


def _largest_dense(device: torch.device) -> int:
    """How many observations "auto" factors the covariance of: no more than fit a GPU."""
    on_cpu, on_gpu = SETTINGS.largest_dense
    if device.type != "cuda":
        return on_cpu
    bytes_per_entry = 24  # of the covariance, its factor and its inverse, in float64
    return min(on_gpu, math.isqrt(memory_of(device, 0, 0.55) // bytes_per_entry))


def _smallest_on_lattice(device: torch.device, input_dim: int) -> int:
    """Beyond how many observations "auto" fits on a lattice."""
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
        'solver="lattice" fits a model with noise, a constant or fixed mean and a kernel of stationary terms, alone, '
        "or beside linear and polynomial ones, on up to 3 columns; "
        f'{reason}: use solver="cholesky" or "cg"'
    )


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
