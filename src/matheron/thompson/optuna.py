"""ThompsonSampler: Thompson sampling for Optuna's studies, which bring storage, resumption, many workers, a dashboard.

Each trial gets a function of its own, drawn from a Gaussian process fitted to the trials so far, and tries that
function's minimiser. The functions are independent draws, so workers that share nothing but the storage suggest
different points.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.checks import as_count, as_seed, missing_extra
from ..drawing import draw
from ..paths import Paths
from .branches import Branches
from .fitting import Refits, representable
from .fronts import improvements, nondominated
from .greedy import is_at_datum
from .mesh import sobol_net
from .problem import MARGIN, At, Output, Problem, descend, simplex

try:
    import optuna  # noqa: F401
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.samplers._base import _process_constraints_after_trial
    from optuna.study import Study
    from optuna.trial import FrozenTrial, TrialState

    from .trials import TrialTable, common_space, observations
    from .unit_cube import Parameter, Space, UnitCube
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
