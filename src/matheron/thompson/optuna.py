"""ThompsonSampler: Thompson sampling for Optuna's studies, which bring storage, resumption, many workers, a dashboard.

Each trial gets a function of its own, drawn from a Gaussian process fitted to the trials so far, and tries that
function's minimiser. The functions are independent draws, so workers that share nothing but the storage suggest
different points.
"""

from __future__ import annotations

import math
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core.checks import as_count, as_seed, missing_extra
from ..drawing import draw
from ..paths import Paths
from .fitting import Refits, representable
from .minima import sobol_net
from .problem import MARGIN, At, Output, Problem, descend, improvements, nondominated, simplex
from .strategies import is_at_datum

try:
    import optuna  # noqa: F401
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.samplers._base import _process_constraints_after_trial
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise missing_extra("matheron.thompson.optuna needs Optuna", "optuna", error) from error


class ThompsonSampler(BaseSampler):
    """Suggests parameters by Thompson sampling: the minimiser (or maximiser) of a function drawn from the posterior.

    - Parameters: floats, logs, ints and steps are coordinates of a unit cube, choices are one-hot (`UnitCube`). A drawn
      function is minimised over the values that there are: floats are polished by gradients; ints and steps are
      relaxed, then snapped; choices stay as the mesh found them.
    - Conditional parameters: the model is over all parameters, and the trials tell which of them a point has
      (`Branches`). A parameter that no trial had, and all of them in the first `n_startup_trials`, come from
      `independent_sampler`. Of ranges that change the latest counts, and the trials within it.
    - Pruned trials count with their last reported value, held between the median and the worst of the complete trials.
      A value at an early step is not final, but the pruner judged it to be poor. Pruned trials that reported nothing,
      failed trials and running ones are left out.
    - Infinite values count as the worst, or best, finite one. So does a penalty: a number that several trials have, and
      that is 30 times as far from the others as these are from each other.
    - Workers: random numbers depend on the seed and on the trial's number, and numbers are unique within a study. So
      workers differ even when given one seed, and a study resumed with its old seed does not repeat itself.
    - Draws ask what might be better, and the posterior mean uses what is known to be good. So one trial of four is at
      the minimum of the mean instead, if no other such trial is running. If that minimum is at an earlier trial, a
      draw's is taken.
    - Several objectives: a function is drawn for each. Of their own Pareto front, the point is tried that adds most
      hypervolume to that of the trials. Without `hypervolume`, it is the minimiser of one random scalarisation.
    - Constraints (`constraints_func`, or Optuna 5's `trial.set_constraint`): a function is drawn for each. The
      objective's is minimised where they are all zero or below; if that is nowhere, their violation is minimised.
    - Long studies: hyperparameters are fitted anew for every trial at first, and from 100 trials on whenever there are
      5% more. They are fitted to at most 500 trials; the model itself always has all of them.

    Args:
        n_startup_trials: trials with a value before the first model.
        num_features: of the drawn function's prior.
        mesh_size: points at which it is screened, beside those of the trials; fewer in more than 64 coordinates.
        num_starts: how many of the best are polished.
        independent_sampler: of parameters that the model does not cover; uniform where not given.
        constraints_func: of a finished trial, to its constraints: numbers that are zero or below where they are met, as
            for Optuna's other samplers. From Optuna 5 on `trial.set_constraint` does the same without it.
        hypervolume: how a point of a drawn Pareto front is chosen, where there are several objectives.
        seed: None takes one from the operating system.

    >>> import optuna
    >>> from matheron.thompson.optuna import ThompsonSampler
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> study = optuna.create_study(sampler=ThompsonSampler(n_startup_trials=4, seed=0))
    >>> study.optimize(lambda trial: (trial.suggest_float("x", -2, 2) - 1) ** 2, n_trials=8)
    >>> abs(study.best_params["x"] - 1) < 0.2
    True
    """

    # The largest size of a mesh in memory. If there are more than 64 coordinates, as with a parameter of hundreds of
    # choices, the mesh has fewer points.
    _MESH_NUMBERS = 1 << 20
    # The number of scalarisations that search for a drawn Pareto front between the points of the mesh.
    _SCALARISATIONS = 8

    def __init__(
        self,
        *,
        n_startup_trials: int = 10,
        num_features: int = 1024,
        mesh_size: int = 16_384,
        num_starts: int = 32,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        hypervolume: bool = True,
        seed: int | None = None,
    ) -> None:
        self._n_startup_trials = as_count(n_startup_trials, "n_startup_trials")
        self._num_features = as_count(num_features, "num_features")
        self._mesh_size = as_count(mesh_size, "mesh_size")
        self._num_starts = as_count(num_starts, "num_starts")
        self._independent_sampler = independent_sampler
        self._constraints_func = constraints_func
        self._hypervolume = hypervolume
        self._refits: dict[tuple[str, int], Refits] = {}
        self._entropy = secrets.randbits(128) if seed is None else as_seed(seed, "seed")

    def reseed_rng(self) -> None:
        self._entropy = secrets.randbits(128)
        if self._independent_sampler is not None:
            self._independent_sampler.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        return common_space(trials)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Parameter]:
        if not search_space:
            return {}
        seen = observations(study, search_space)
        if len(seen.values) < self._n_startup_trials:
            return {}
        cube = UnitCube(search_space)
        X = cube.encode(seen.params)
        space = Space(cube, Branches(X, cube.has(seen.params)))
        generator = torch.Generator().manual_seed(self._seed(trial))
        problem = self._problem(study, X, seen, generator)
        if _is_greedy(study, trial):
            x = self._suggestion(space, X, seen, problem.of_means(), generator)
            if not is_at_datum(X - x):
                return space.decode(x)
        return space.decode(self._suggestion(space, X, seen, problem, generator))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Parameter:
        sampler = self._independent_sampler or RandomSampler(self._seed(trial, zlib.crc32(param_name.encode())) % 2**32)
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if self._independent_sampler is not None:
            self._independent_sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if self._constraints_func is not None:
            _process_constraints_after_trial(self._constraints_func, study, trial, state)
        if self._independent_sampler is not None:
            self._independent_sampler.after_trial(study, trial, state, values)

    def _seed(self, trial: FrozenTrial, *purpose: int) -> int:
        """63 bits for a trial."""
        sequence = np.random.SeedSequence([self._entropy, trial.number, *purpose])
        return int(sequence.generate_state(1, np.uint64)[0] >> 1)

    def _problem(self, study: Study, X: Tensor, seen: TrialTable, generator: torch.Generator) -> Problem:
        """Functions drawn given trials at X `[n, d]`, for every objective and every constraint."""

        def drawn(kind: str, i: int, known: Tensor, values: Tensor) -> Paths:
            refits = self._refits.setdefault((f"{study.study_name} {kind}", i), Refits())
            model = refits.model(X[known], values[known])
            # The features are named, so that seeded studies and the published comparison do not change with the
            # defaults.
            features = "orthogonal" if X.shape[1] >= 16 else "sobol"
            return draw(model, 1, num_features=self._num_features, features=features, generator=generator)

        seen = seen._replace(values=representable(seen.values), constraints=representable(seen.constraints))
        everywhere = torch.ones(len(X), dtype=torch.bool, device="cpu")
        objectives = [drawn("objective", i, everywhere, y) for i, y in enumerate(seen.values.mT)]
        known = ~seen.constraints.isnan()  # [n, c]
        limits = [i for i in range(known.shape[1]) if bool(known[:, i].any())]
        constraints = [drawn("constraint", i, known[:, i], seen.constraints[:, i]) for i in limits]
        lowest, highest = seen.values.aminmax(dim=0)
        scales = [seen.constraints[known[:, i], i].std(correction=0) for i in limits]
        weights = (
            simplex(len(objectives), generator)
            if len(objectives) > 1
            else torch.ones(1, dtype=torch.float64, device="cpu")
        )
        units = _or_one(torch.tensor(scales, dtype=torch.float64, device="cpu"))
        goals, met = ([Output(path) for path in paths] for paths in (objectives, constraints))
        numbers = (each[None] for each in (weights, units, lowest, _or_one(highest - lowest)))
        return Problem(goals, met, torch.zeros(1, dtype=torch.long, device="cpu"), *numbers)

    def _suggestion(
        self, space: Space, X: Tensor, seen: TrialTable, problem: Problem, generator: torch.Generator
    ) -> Tensor:
        """The point `[d]` to try, of a drawn problem, given trials at X `[n, d]`."""
        size = max(1, min(self._mesh_size, self._MESH_NUMBERS // space.cube.dim))
        mesh = sobol_net(space.cube.dim, generator).next(size)
        candidates = torch.cat([space.snap(mesh), X])
        at = problem.at(candidates)
        problem = problem.scaled(at) if len(problem.objectives) > 1 else problem
        if len(problem.objectives) == 1 or not self._hypervolume:
            return self._minimisers(space, candidates, at, problem, problem.weights, self._num_starts)[0]
        weights = [
            problem.weights[0],
            *(simplex(len(problem.objectives), generator) for _ in range(self._SCALARISATIONS - 1)),
        ]
        starts = max(1, self._num_starts // self._SCALARISATIONS)
        found = self._minimisers(space, candidates, at, problem, torch.stack(weights), starts)
        both = [torch.cat(pair, dim=1) for pair in zip(problem.at(found), at, strict=True)]
        return _most_improving(torch.cat([found, candidates]), At(*both), seen, problem)

    def _minimisers(
        self, space: Space, candidates: Tensor, at: At, problem: Problem, weights: Tensor, num_starts: int
    ) -> Tensor:
        """The minimiser `[w, d]` for each of the weights `[w, m]`, searched for from candidates `[n, d]`, together."""

        problem = problem.with_weights(weights)

        def best(points: Tensor) -> Tensor:
            """Of each weights' own points `[w, p, d]` the best, `[w, k, d]`."""
            chosen = _lowest(problem.rank(problem.at(points)), num_starts)  # [w, k]
            return points.gather(1, chosen[..., None].expand(-1, -1, points.shape[-1]))

        def polished(points: Tensor, free: Tensor) -> Tensor:
            """Descend in the free coordinates that points have: where a gradient is zero, nothing moves."""
            x, columns = points.flatten(0, 1), free.nonzero()[:, 0]
            own, k = space.active(x)[:, columns], points.shape[1]  # [w p, f]

            def functions(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
                at = x[index].index_copy(1, columns, u)
                value, gradient, C, dC = problem.value_and_grad(at, index // k)
                return value, gradient[:, columns] * own[index], C, dC[..., columns] * own[index, None]

            c = len(problem.constraints)
            moved = descend(functions, x[:, columns], c, MARGIN[x.dtype], max_iterations=100).x
            moved = space.present(x.index_copy(1, columns, moved)).view_as(points)
            return torch.cat([moved, points], dim=1) if problem.constraints else moved

        starts = candidates[_lowest(problem.rank(at), num_starts)]  # [w, k, d]
        cube = space.cube
        if not bool((cube.ordered == cube.moves).all()):
            relaxed = polished(starts, cube.ordered)
            relaxed = space.snap(relaxed.flatten(0, 1)).view_as(relaxed)
            starts = best(torch.cat([starts, relaxed], dim=1))
        if bool(cube.moves.any()):
            starts = polished(starts, cube.moves)
        return best(starts)[:, 0]


def _is_greedy(study: Study, trial: FrozenTrial, every: int = 4) -> bool:
    """Whether this trial is the last of each `every`, of a single objective, and no such one is running.

    The mean has one minimiser: two workers would try it twice.
    """
    if len(study.directions) > 1 or trial.number % every != every - 1:
        return False
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return all(other.number == trial.number or other.number % every != every - 1 for other in running)


def _lowest(rank: Tensor, count: int) -> Tensor:
    """`[w, n] -> [w, k]`."""
    return rank.topk(min(count, rank.shape[1]), largest=False).indices


def _most_improving(points: Tensor, at: At, seen: TrialTable, problem: Problem) -> Tensor:
    """The point `[d]` of the drawn functions' front that adds most hypervolume to that of the trials' values.

    The front is of `points` `[n, d]`, the first of which is taken where none meets the constraints.
    """
    feasible = at.violation[0] <= 0
    if not bool(feasible.any()):
        return points[0]
    points, F = points[feasible], problem.units(at.F[0, feasible])
    front = nondominated(F)
    points, F = points[front], F[front]
    met = (
        ~(seen.constraints > 0).any(1)
        if problem.constraints
        else torch.ones(len(seen.values), dtype=torch.bool, device="cpu")
    )
    known = problem.units(seen.values[met])  # trials that violate a constraint do not count
    known = known[nondominated(known)]
    reference = 0.1 + torch.cat([torch.ones_like(F[:1]), known]).amax(0)  # [m]
    return points[improvements(F, known, reference).argmax()]


def _or_one(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)


# The trials of a study as numbers to be minimised, and their constraints, met at zero or below.

# The attribute in which Optuna keeps constraints. Other samplers and the dashboard read it.
CONSTRAINTS = "constraints"


def common_space(trials: Sequence[FrozenTrial]) -> dict[str, BaseDistribution]:
    """The parameters that any of the trials had, each with the latest distribution that it had."""
    space: dict[str, BaseDistribution] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        space.update(trial.distributions)
    return {name: space[name] for name in sorted(space) if not space[name].single()}


class TrialTable(NamedTuple):
    """Parameters, values `[n, m]` to be minimised, and constraints `[n, c]`, NaN where a trial has none."""

    params: list[dict[str, Parameter]]
    values: Tensor
    constraints: Tensor


def observations(study: Study, search_space: Mapping[str, BaseDistribution]) -> TrialTable:
    """Complete trials with parameters of the search space, and pruned ones that reported a value.

    A trial counts where its parameters are within the search space's ranges, which may have changed since. A pruned
    trial's last value is held between the median and the worst of the complete ones; infinite values and penalties are
    held to the others.
    """
    signs = [-1.0 if direction == StudyDirection.MAXIMIZE else 1.0 for direction in study.directions]
    complete, pruned = [], []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        if not _is_within(trial, search_space):
            continue
        if trial.state == TrialState.COMPLETE:
            complete.append((trial, [sign * value for sign, value in zip(signs, trial.values, strict=True)]))
        elif trial.intermediate_values and len(signs) == 1:
            last = trial.intermediate_values[max(trial.intermediate_values)]
            if not np.isnan(last):
                pruned.append((trial, [signs[0] * last]))
    none = TrialTable(
        [],
        torch.zeros(0, len(signs), dtype=torch.float64, device="cpu"),
        torch.zeros(0, 0, dtype=torch.float64, device="cpu"),
    )
    if not complete:
        return none
    values = np.array([row for _, row in complete])  # [n, m]
    if not np.isfinite(values).any(0).all():
        return none
    lowest, worst, middle = (
        np.array([of(column[np.isfinite(column)]) for column in values.T]) for of in (np.min, _worst, np.median)
    )
    late = np.array([row for _, row in pruned]).reshape(-1, len(signs))
    held = np.concatenate([np.clip(values, lowest, worst), np.clip(late, middle, worst)])
    trials = [trial for trial, _ in complete + pruned]
    return TrialTable([trial.params for trial in trials], torch.from_numpy(held), _constraints(trials))


def _worst(values: np.ndarray, far: float = 30.0) -> float:
    """The worst of finite values `[n]` that is no penalty: a number that several trials have, `far` from all others in
    units of their spread.

    Beside 1e6 the values of the others would be one.
    """
    levels, counts = np.unique(values, return_counts=True)
    top = len(levels) - 1
    while top > 1 and counts[top] > 1 and levels[top] - levels[top - 1] > far * (levels[top - 1] - levels[0]):
        top -= 1
    return float(levels[top])


def _is_within(trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> bool:
    shared = [name for name in search_space if name in trial.params]
    return bool(shared) and all(
        search_space[name]._contains(search_space[name].to_internal_repr(trial.params[name])) for name in shared
    )


def _constraints(trials: Sequence[FrozenTrial]) -> Tensor:
    rows = [_named_constraints(trial) for trial in trials]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = np.array([[row.get(name, np.nan) for name in names] for row in rows], dtype=float)
    table = table.reshape(len(rows), len(names))
    # infinite values are clamped to the finite ones; a column without finite values has only signs
    for column in table.T:
        finite = column[np.isfinite(column)]
        limit = float(np.abs(finite).max()) if len(finite) else 1.0
        np.clip(column, -limit, limit, out=column)  # NaN stays
    return torch.from_numpy(table)


def _named_constraints(trial: FrozenTrial) -> dict[str, float]:
    """Those of `constraints_func`, by their number, and those of Optuna 5's `trial.set_constraint`, by their name."""
    listed = trial.system_attrs.get(CONSTRAINTS) or ()
    prefix = f"{CONSTRAINTS}:"
    named = {key[len(prefix) :]: value for key, value in trial.system_attrs.items() if key.startswith(prefix)}
    return {str(i): value for i, value in enumerate(listed)} | named


# The value of a parameter, of any kind of Optuna distribution.
Parameter = bool | int | float | str | None


class UnitCube:
    """The parameters of a search space as coordinates of a unit cube, in the order of their names.

    - A float is one coordinate, that of its logarithm if it is on a logarithmic scale.
    - An int, or a float with a step, is one coordinate cut into equal cells, one for each value, which is at its cell's
      centre. The cell of a logarithmic int v is from v - 1/2 to v + 1/2, on the scale of logarithms.
    - A categorical parameter has one coordinate for each choice: the choice's is 1, and the others' are 0.

    A point of the cube that corresponds to no parameters is *snapped* to its nearest cell or choice.

    `moves` `[d]` marks coordinates of floats without a step, which take any value in [0, 1]. `ordered` `[d]` marks
    coordinates of all numbers.

    >>> from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    >>> space = {"depth": IntDistribution(1, 4), "kind": CategoricalDistribution(["a", "b"]),
    ...          "rate": FloatDistribution(1e-4, 1.0, log=True)}
    >>> cube = UnitCube(space)
    >>> cube.encode([{"depth": 2, "kind": "b", "rate": 0.01}])
    tensor([[0.3750, 0.0000, 1.0000, 0.5000]], dtype=torch.float64)
    >>> cube.decode(cube.encode([{"depth": 2, "kind": "b", "rate": 0.01}])[0])
    {'depth': 2, 'kind': 'b', 'rate': 0.01}
    """

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self.axes = {name: _axis(name, search_space[name]) for name in sorted(search_space)}
        self._widths = [axis.width for axis in self.axes.values()]
        self.dim = sum(self._widths)
        axes = [axis for axis in self.axes.values() for _ in range(axis.width)]  # the axis of each coordinate
        self.moves = torch.tensor([type(axis) is _Continuous for axis in axes], device="cpu")
        self.ordered = torch.tensor([not isinstance(axis, _ChoiceColumns) for axis in axes], device="cpu")
        # The coordinates that a missing parameter gets.
        neutral = [1 / axis.width if isinstance(axis, _ChoiceColumns) else 0.5 for axis in axes]
        self.neutral = torch.tensor(neutral, dtype=torch.float64, device="cpu")

    def encode(self, params: Sequence[Mapping[str, Parameter]]) -> Tensor:
        """Points `[n, d]` of parameters, `neutral` in those that are missing."""
        X = self.neutral.repeat(len(params), 1)
        for (name, axis), columns in zip(self.axes.items(), X.split(self._widths, dim=1), strict=True):
            rows = [i for i, p in enumerate(params) if name in p]
            encoded = [axis.encode(params[i][name]) for i in rows]
            columns[rows] = torch.tensor(encoded, dtype=X.dtype, device="cpu")[:, None]
            if isinstance(axis, _ChoiceColumns):
                columns[rows] = one_hot(columns[rows, 0].long(), axis.width).to(X)
        return X

    def has(self, params: Sequence[Mapping[str, Parameter]]) -> Tensor:
        """Which coordinates are of parameters that are there, `[n, d]`."""
        there = torch.tensor([[name in p for name in self.axes] for p in params], dtype=torch.bool, device="cpu")
        return there.reshape(-1, len(self.axes)).repeat_interleave(torch.tensor(self._widths, device="cpu"), dim=1)

    def snap(self, u: Tensor) -> Tensor:
        """The points `[n, d]` of the parameters at points `[n, d]` of the cube."""
        parts = u.split(self._widths, dim=1)
        return torch.cat([axis.snap(part) for axis, part in zip(self.axes.values(), parts, strict=True)], dim=1)

    def decode(self, u: Tensor, active: Tensor | None = None) -> dict[str, Parameter]:
        """The parameters at a point `[d]`; those alone whose coordinates are `active` `[d]`, where that is given."""
        active = torch.ones(self.dim, dtype=torch.bool, device="cpu") if active is None else active
        each = zip(self.axes.items(), u.split(self._widths), active.split(self._widths), strict=True)
        return {name: axis.decode(part) for (name, axis), part, there in each if bool(there.all())}


class Space(NamedTuple):
    """The cube of all parameters, and which of them a point of it has; it is neutral in the others."""

    cube: UnitCube
    branches: Branches

    def active(self, u: Tensor) -> Tensor:
        return self.branches.active(u) if self.branches.several else torch.ones_like(u, dtype=torch.bool)

    def present(self, u: Tensor) -> Tensor:
        """Points u `[m, d]`, neutral in the coordinates that they do not have."""
        return torch.where(self.branches.active(u), u, self.cube.neutral) if self.branches.several else u

    def snap(self, u: Tensor) -> Tensor:
        return self.present(self.cube.snap(u))

    def decode(self, x: Tensor) -> dict[str, Parameter]:
        return self.cube.decode(x, self.active(x[None])[0])


class _Continuous:
    width = 1

    def __init__(self, distribution: FloatDistribution | IntDistribution, margin: float = 0.0) -> None:
        self.low, self.high, self.log = distribution.low, distribution.high, distribution.log
        ends = (self.low - margin, self.high + margin)
        self.start, self.stop = (math.log(v) for v in ends) if self.log else ends

    def encode(self, value: Parameter) -> float:
        assert isinstance(value, int | float)
        inner = math.log(value) if self.log else value
        return (inner - self.start) / (self.stop - self.start)

    def snap(self, u: Tensor) -> Tensor:
        return u.clamp(0, 1)

    def decode(self, u: Tensor) -> float:
        inner = self.start + float(u) * (self.stop - self.start)
        return min(max(math.exp(inner) if self.log else inner, self.low), self.high)


class _Cells:
    """Equally spaced values: low, low + step, ..."""

    width = 1

    def __init__(self, distribution: FloatDistribution | IntDistribution) -> None:
        assert distribution.step is not None
        self.low, self.high, self.step = distribution.low, distribution.high, distribution.step
        self.count = round((self.high - self.low) / self.step) + 1

    def encode(self, value: Parameter) -> float:
        assert isinstance(value, int | float)
        return ((value - self.low) / self.step + 0.5) / self.count

    def snap(self, u: Tensor) -> Tensor:
        return ((u * self.count).floor().clamp(0, self.count - 1) + 0.5) / self.count

    def decode(self, u: Tensor) -> Parameter:
        index = min(max(math.floor(float(u) * self.count), 0), self.count - 1)
        return min(self.low + index * self.step, self.high)


class _LogCells(_Continuous):
    """Whole numbers, on a logarithmic scale."""

    def __init__(self, distribution: IntDistribution) -> None:
        super().__init__(distribution, margin=0.5)

    def snap(self, u: Tensor) -> Tensor:
        value = (self.start + u * (self.stop - self.start)).exp().round().clamp(self.low, self.high)
        return (value.log() - self.start) / (self.stop - self.start)

    def decode(self, u: Tensor) -> int:
        return round(super().decode(u))


class _ChoiceColumns:
    def __init__(self, distribution: CategoricalDistribution) -> None:
        self.distribution = distribution
        self.width = len(distribution.choices)

    def encode(self, value: Parameter) -> float:
        """The choice's number; its coordinates are one-hot."""
        return self.distribution.to_internal_repr(value)

    def snap(self, u: Tensor) -> Tensor:
        return one_hot(u.argmax(1), self.width).to(u)

    def decode(self, u: Tensor) -> Parameter:
        return self.distribution.to_external_repr(int(u.argmax()))


def _axis(name: str, distribution: BaseDistribution) -> _Continuous | _Cells | _LogCells | _ChoiceColumns:
    if isinstance(distribution, CategoricalDistribution):
        return _ChoiceColumns(distribution)
    if isinstance(distribution, IntDistribution):
        return _LogCells(distribution) if distribution.log else _Cells(distribution)
    if isinstance(distribution, FloatDistribution):
        return _Continuous(distribution) if distribution.step is None else _Cells(distribution)
    kinds = "FloatDistribution, IntDistribution or CategoricalDistribution"
    raise TypeError(f"{name}: expected a {kinds}, got {type(distribution).__name__}")


# Conditional parameters: a decision tree, learned from the trials, that predicts which parameters a point has. A trial
# lacks the parameters that its objective did not ask for, and what it asks for depends on those that it asked for
# before: `if kind == "tree": trial.suggest_int("depth", ...)`. So a decision tree over the trials splits on nothing but
# coordinates that all of its node's trials have, until they agree in what they have.


class _Node(NamedTuple):
    """A leaf, where `column` is None: trials here have the coordinates `active` `[d]`."""

    active: Tensor
    column: int | None = None
    threshold: float = 0.0
    below: _Node | None = None
    above: _Node | None = None


class Branches:
    """A decision tree learned from points X `[n, d]` of trials in order and the coordinates that each has, `[n, d]`.

    >>> X = torch.tensor([[0.0, 0.3], [0.1, 0.8], [0.9, 0.5], [1.0, 0.5]])
    >>> has = torch.tensor([[True, True], [True, True], [True, False], [True, False]])
    >>> Branches(X, has).active(torch.tensor([[0.2, 0.6], [0.7, 0.6]])).tolist()
    [[True, True], [True, False]]
    """

    def __init__(self, X: Tensor, has: Tensor) -> None:
        kinds, kind = has.unique(dim=0, return_inverse=True)
        self.several = len(kinds) > 1
        self._root = _grown(X, has, torch.nn.functional.one_hot(kind, len(kinds)).to(X))

    def active(self, u: Tensor) -> Tensor:
        """Which coordinates points u `[m, d]` have, `[m, d]`."""
        active = torch.empty(u.shape, dtype=torch.bool, device=u.device)
        _tell(self._root, u, torch.arange(len(u), device=u.device), active)
        return active


def _grown(X: Tensor, has: Tensor, kind: Tensor) -> _Node:
    """The tree of trials with coordinates `has` `[n, d]`, of kinds `[n, k]`, one-hot. If no split separates the trials
    of a leaf, the latest of them decides."""
    leaf = _Node(has[-1])
    usable = has.all(0).nonzero()[:, 0]
    if bool((has == has[0]).all()) or len(usable) == 0:
        return leaf
    values, order = X[:, usable].sort(dim=0, stable=True)  # [n, u]
    below = kind[order].cumsum(0)[:-1]  # [n - 1, u, k], trials of each kind below a cut
    above = kind.sum(0) - below
    # Gini impurity, by which purer sides are lower: n_b (1 - sum p_b^2) + n_a (1 - sum p_a^2).
    purity = below.square().sum(-1) / below.sum(-1) + above.square().sum(-1) / above.sum(-1)
    purity = torch.where(values[1:] > values[:-1], purity, -torch.inf)
    best = int(purity.argmax())
    row, place = divmod(best, len(usable))
    if not bool(purity[row, place] > kind.sum(0).square().sum() / len(X) + 1e-9):
        return leaf
    column, threshold = int(usable[place]), float(values[row : row + 2, place].mean())
    side = X[:, column] < threshold
    parts = (_grown(X[rows], has[rows], kind[rows]) for rows in (side, ~side))
    return _Node(leaf.active, column, threshold, *parts)


def _tell(node: _Node, u: Tensor, rows: Tensor, active: Tensor) -> None:
    if node.column is None or node.below is None or node.above is None:
        active[rows] = node.active
        return
    side = u[rows, node.column] < node.threshold
    _tell(node.below, u, rows[side], active)
    _tell(node.above, u, rows[~side], active)
