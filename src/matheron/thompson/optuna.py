"""ThompsonSampler: Thompson sampling for Optuna's studies, which bring storage, resumption, many workers, a dashboard.

Each trial gets a function of its own, drawn from a Gaussian process fitted to the trials so far, and tries that
function's minimiser. The functions are independent draws, so workers that share nothing but the storage suggest
different points.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..checks import as_count
from ..draw import draw
from .fitting import fitted
from .quasi_newton import minimize_in_unit_box

try:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState

    from .unit_cube import UnitCube
except ImportError as error:
    raise ImportError(f"matheron.thompson.optuna needs Optuna: pip install 'matheron[optuna]' ({error})") from error


class ThompsonSampler(BaseSampler):
    """Suggests parameters by Thompson sampling: the minimiser (or maximiser) of a function drawn from the posterior.

    - Parameters: floats, logs, ints and steps are coordinates of a unit cube, choices are one-hot (`UnitCube`). A drawn
      function is minimised over the values that there are: floats are polished by gradients; ints and steps are
      relaxed, then snapped; choices stay as the mesh found them.
    - Conditional parameters: the model is over the parameters that all trials share with equal ranges. Others, and all
      of them in the first `n_startup_trials`, come from `independent_sampler`.
    - Pruned trials count with their last reported value, held between the median and the worst of the complete trials:
      a value at an early step is no final one, but the pruner ended it for being none too good. Pruned trials that
      reported nothing, failed trials and running ones are left out.
    - Infinite values count as the worst, or best, finite one.
    - Workers: random numbers depend on the seed and on the trial's number, and numbers are unique within a study. So
      workers differ even when given one seed, and a study resumed with its old seed does not repeat itself.
    - Several objectives are refused, and constraints are not looked at.

    Args:
        n_startup_trials: trials with a value before the first model.
        num_features: of the drawn function's prior.
        mesh_size: points at which it is screened, beside those of the trials.
        num_starts: how many of the best are polished.
        independent_sampler: of parameters that the model does not cover; uniform where not given.
        seed: None takes one from the operating system.

    >>> import optuna
    >>> from matheron.thompson.optuna import ThompsonSampler
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> study = optuna.create_study(sampler=ThompsonSampler(n_startup_trials=4, seed=0))
    >>> study.optimize(lambda trial: (trial.suggest_float("x", -2, 2) - 1) ** 2, n_trials=8)
    >>> abs(study.best_params["x"] - 1) < 0.2
    True
    """

    def __init__(
        self,
        *,
        n_startup_trials: int = 10,
        num_features: int = 1024,
        mesh_size: int = 16_384,
        num_starts: int = 32,
        independent_sampler: BaseSampler | None = None,
        seed: int | None = None,
    ) -> None:
        self._n_startup_trials = max(2, as_count(n_startup_trials, "n_startup_trials"))
        self._num_features = as_count(num_features, "num_features")
        self._mesh_size = as_count(mesh_size, "mesh_size")
        self._num_starts = as_count(num_starts, "num_starts")
        self._independent_sampler = independent_sampler
        self._entropy = _fresh_entropy() if seed is None else int(seed)

    def reseed_rng(self) -> None:
        self._entropy = _fresh_entropy()
        if self._independent_sampler is not None:
            self._independent_sampler.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if len(study.directions) != 1:
            raise ValueError(f"ThompsonSampler: expected a study of one objective, got {len(study.directions)}")
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        space = optuna.search_space.intersection_search_space(trials, include_pruned=True)
        return {name: distribution for name, distribution in space.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        params, values = _observations(study, search_space)
        if len(values) < self._n_startup_trials:
            return {}
        cube = UnitCube(search_space)
        generator = torch.Generator().manual_seed(self._seed(trial))
        return cube.decode(self._minimiser(cube, cube.encode(params), values, generator))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        sampler = self._independent_sampler or RandomSampler(self._seed(trial, zlib.crc32(param_name.encode())) % 2**32)
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if self._independent_sampler is not None:
            self._independent_sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if self._independent_sampler is not None:
            self._independent_sampler.after_trial(study, trial, state, values)

    def _seed(self, trial: FrozenTrial, *purpose: int) -> int:
        """63 bits for a trial."""
        sequence = np.random.SeedSequence([self._entropy, trial.number, *purpose])
        return int(sequence.generate_state(1, np.uint64)[0] >> 1)

    def _minimiser(self, cube: UnitCube, X: Tensor, values: Sequence[float], generator: torch.Generator) -> Tensor:
        """The minimiser `[d]` of a function drawn given trials at X `[n, d]`."""
        y = torch.tensor(values, dtype=torch.float64)
        # Named, so that studies with a seed and the published comparison do not change with the library's defaults.
        kind = "orthogonal" if cube.dim >= 16 else "sobol"
        path = draw(fitted(X, y), 1, num_features=self._num_features, features=kind, generator=generator)
        seed = int(torch.randint(2**31, (1,), generator=generator))
        mesh = SobolEngine(cube.dim, scramble=True, seed=seed).draw(self._mesh_size, dtype=torch.float64)

        def best(points: Tensor) -> Tensor:
            with torch.no_grad():
                found = path(points)[0]  # [n]
            return points[found.topk(min(self._num_starts, len(points)), largest=False).indices]

        def polished(points: Tensor, free: Tensor) -> Tensor:
            """Descend in the free coordinates: where a gradient is zero, nothing moves."""

            def objective(_: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
                value, gradient = path.value_and_grad(u)
                return value[0], gradient[0] * free

            return minimize_in_unit_box(objective, points, max_iterations=100).x

        starts = best(torch.cat([cube.snap(mesh), X]))  # [k, d]
        if not bool((cube.ordered == cube.moves).all()):
            relaxed = cube.snap(polished(starts, cube.ordered))
            starts = best(torch.cat([starts, relaxed]))
        if bool(cube.moves.any()):
            starts = polished(starts, cube.moves)
        return best(starts)[0]


def _observations(
    study: Study, search_space: Mapping[str, BaseDistribution]
) -> tuple[list[dict[str, Any]], list[float]]:
    """Parameters and values, to be minimised, of the trials that count."""
    sign = -1.0 if study.direction == StudyDirection.MAXIMIZE else 1.0
    complete, pruned = [], []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        if any(trial.distributions.get(name) != distribution for name, distribution in search_space.items()):
            continue
        if trial.state == TrialState.COMPLETE:
            complete.append((trial.params, sign * trial.values[0]))
        elif trial.intermediate_values:
            last = trial.intermediate_values[max(trial.intermediate_values)]
            pruned.append((trial.params, sign * last))
    finite = [value for _, value in complete if np.isfinite(value)]
    if not finite:
        return [], []
    middle, lowest, worst = statistics.median(finite), min(finite), max(finite)
    observed = [(params, min(max(value, lowest), worst)) for params, value in complete]
    observed += [(params, min(max(value, middle), worst)) for params, value in pruned if not np.isnan(value)]
    return [params for params, _ in observed], [value for _, value in observed]


def _fresh_entropy() -> int:
    entropy = np.random.SeedSequence().entropy
    assert isinstance(entropy, int)
    return entropy
