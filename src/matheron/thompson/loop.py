"""minimize_function: Thompson sampling of a Python callable, through errors and restarts."""

from __future__ import annotations

import json
import math
import operator
import os
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from ..core.boxes import as_box
from ..core.checks import ArrayLike, Random, as_array, as_count, as_generator, many
from ..core.progress import progress_bar
from ..kernels import Kernel
from ..kernels.own import as_kernel
from ..models import ExactGP, Outputs
from ..models.libraries import is_model
from ..paths import AbstractFunctions
from ..tables.files import check_folder
from .fitting import fitted
from .problem import Constraints, Known, listed, nondominated
from .strategies import DRAWN, STRATEGIES, Drawing, spreads, suggest

FORMAT = "matheron-study-1"


class EvaluationWarning(UserWarning):
    """The user's function raised an error or returned no finite number; the search continued without that point."""


@dataclass(repr=False)
class Study:
    """The evaluations of a search, and the best of them: a point, or a Pareto front for several objectives.

    Values are None where the function failed, and lists where there are several objectives. Constraints are met where
    they are zero or below.

    >>> from matheron import thompson
    >>> study = thompson.minimize_function(lambda x: (x**2).sum(), [[-1.0], [1.0]], budget=4, seed=0)
    >>> len(study.values)
    4
    """

    bounds: list[list[float]]
    points: list[list[float]] = field(default_factory=list)
    values: list[float | list[float] | None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    constraints: list[list[float] | None] = field(default_factory=list)

    @property
    def feasible(self) -> list[bool]:
        """Whether each point's evaluation worked and met all constraints."""
        limits = self.constraints or [[] for _ in self.values]
        return [y is not None and max(c or [0.0]) <= 0 for y, c in zip(self.values, limits, strict=True)]

    @property
    def best(self) -> int:
        """The index of the best feasible point, or of the one of least violation where none is feasible: the sum over
        constraints, each in its standard deviations. ValueError where every evaluation failed, or where there are
        several objectives, which have a `front`."""
        usable = self._usable()
        feasible = self.feasible
        if any(isinstance(self.values[i], list) for i in usable):
            raise ValueError("several objectives have no best point; their Pareto front is study.front")
        if any(feasible):
            return min((cast(float, self.values[i]), i) for i in usable if feasible[i])[1]
        C = np.array([self.constraints[i] for i in usable], dtype=float)  # [n, c]
        deviation = C.std(axis=0)
        violation = (np.maximum(C, 0) / np.where(deviation > 0, deviation, 1.0)).sum(axis=1)
        return usable[int(violation.argmin())]

    @property
    def front(self) -> list[int]:
        """The indices of feasible points that no other feasible point dominates, ordered by the first objective; of one
        objective the best feasible point alone, and none where none is feasible."""
        self._usable()
        chosen = [i for i, met in enumerate(self.feasible) if met]
        F = torch.tensor([self._objectives(i) for i in chosen], dtype=torch.float64, device="cpu")
        kept = [i for i, keep in zip(chosen, nondominated(F).tolist(), strict=True) if keep]
        return sorted(kept, key=self._objectives)

    @property
    def front_x(self) -> Tensor:
        """The points of the front, `[k, d]`."""
        return torch.tensor([self.points[i] for i in self.front], dtype=torch.float64, device="cpu").reshape(
            -1, len(self.bounds[0])
        )

    @property
    def front_values(self) -> Tensor:
        """The objectives of the points of the front, `[k, m]`."""
        values, m = [self._objectives(i) for i in self.front], len(self._objectives(self._usable()[0]))
        return torch.tensor(values, dtype=torch.float64, device="cpu").reshape(-1, m)

    @property
    def best_x(self) -> Tensor:
        return torch.tensor(self.points[self.best], dtype=torch.float64, device="cpu")

    @property
    def best_value(self) -> float:
        return cast(float, self.values[self.best])

    def _objectives(self, i: int) -> list[float]:
        value = self.values[i]
        return value if isinstance(value, list) else [cast(float, value)]

    def _usable(self) -> list[int]:
        usable = [i for i, value in enumerate(self.values) if value is not None]
        if not usable:
            raise ValueError(
                f"every evaluation failed; the last said: {self.failures[-1] if self.failures else 'nothing'}"
            )
        return usable

    def __repr__(self) -> str:
        failed = self.values.count(None)
        words = f"{many(len(self.values), 'evaluation')} in {many(len(self.bounds[0]), 'dimension')}"
        words += f", {failed} failed" * (failed > 0)
        if failed == len(self.values):
            return f"Study({words})"
        feasible = self.feasible.count(True)
        words += f", {feasible} feasible" * bool(self.constraints)
        if any(isinstance(value, list) for value in self.values):
            return f"Study({words}; a front of {many(len(self.front), 'point')})"
        x = ", ".join(f"{c:.4g}" for c in self.points[self.best])
        kind = "best" if feasible else "least violation: value"
        return f"Study({words}; {kind} {self.best_value:.4g} at [{x}])"

    def data(self) -> tuple[Tensor, Tensor]:
        """Points `[n, d]` and values `[n]`, or `[n, m]`, of the evaluations that worked."""
        kept = [(x, y) for x, y in zip(self.points, self.values, strict=True) if y is not None]
        d = len(self.bounds[0])
        X = torch.tensor([x for x, _ in kept], dtype=torch.float64, device="cpu").reshape(-1, d)
        return X, torch.tensor([y for _, y in kept], dtype=torch.float64, device="cpu")


def minimize_function(
    function: Callable[[Tensor], ArrayLike],
    bounds: ArrayLike,
    budget: int,
    q: int = 1,
    *,
    constraints: Constraints = None,
    num_objectives: int = 1,
    kernel: Kernel | None = None,
    noise: float | None = None,
    strategy: str = "decoupled",
    num_initial: int | None = None,
    trust_region: bool = False,
    state: str | os.PathLike[str] | None = None,
    generator: Random = None,
    seed: int | None = None,
    progress: bool = False,
    **settings: Unpack[Drawing],
) -> Study:
    """Minimise a Python function by Thompson sampling: rounds of q points, with a model fitted between rounds.

    Draws explore, and the posterior mean exploits. So a round has one point at the minimum of the mean. The others are
    minima of functions whose deviations from the mean are scaled by 2/q, 3/q, ..., 1 (the `spread` of `suggest`). With
    q = 1, rounds alternate between spreads of 1, 3/4, 1/2 and the mean.

    Constraints are modelled as the objective is: a function is drawn for each, and the objective's is minimised where
    they are met. Several objectives are scalarised with random weights, other ones for every point, so that points
    spread over the Pareto front: `Study.front`.

    Args:
        function: takes a point `[d]` and returns a number, or several numbers for several objectives or constraints.
            If it raises an error or returns NaN, a warning reports it and the point counts as failed. The search
            continues, unless all initial points failed.
        bounds: the box, `[2, d]`.
        budget: evaluations in all.
        q: evaluations per round.
        constraints: one or several, each met where it is zero or below, as in Optuna (and not, as in BoTorch, where it
            is not negative). A whole number says which of the numbers that the function returns is the constraint;
            {number: limit} sets a limit other than zero. A constraint that is known beforehand is a function of points
            `[n, d] -> [n]`.
        num_objectives: how many of the returned numbers are objectives; the others are constraints.
        kernel: kernel of a model with known hyperparameters; None fits a Matern-5/2 with a lengthscale per coordinate
            after each round.
        noise: variance of the function's noise where it is known; None learns it, or is 1e-6 with a given kernel.
        strategy: as for `suggest`.
        num_initial: uniform points before the first model; 2 (d + 1) where not given.
        trust_region: minimise drawn functions near the best point so far, in a region that grows while values fall and
            shrinks otherwise. Use it for many local minima in about ten dimensions or more, where most drawn functions
            have their minimum in an unexplored corner of the box.
        state: a file that holds the study after every evaluation. If it is there, the search resumes from it.
        generator, seed: where random numbers come from, a generator or a seed.
        progress: show a progress bar.
        settings: passed to `suggest` (num_features, features, mesh_size, num_starts, spread; spread=1 for draws).

    >>> import matheron
    >>> from matheron import kernels
    >>> study = matheron.thompson.minimize_function(
    ...     lambda x: float((x - 0.3).square().sum()), [[0.0], [1.0]], budget=8, kernel=kernels.RBF(0.3),
    ...     mesh_size=256, num_starts=4, seed=0)
    >>> bool((study.best_x - 0.3).abs() < 0.05)
    True

    The largest x whose square, the second of two numbers, is at most a half:

    >>> study = matheron.thompson.minimize_function(
    ...     lambda x: (-float(x[0]), float(x[0]) ** 2), [[0.0], [1.0]], budget=10, constraints={1: 0.5},
    ...     mesh_size=256, num_starts=4, seed=0)
    >>> bool((study.best_x - 0.5**0.5).abs() < 0.05)
    True
    """
    budget, q = as_count(budget, "budget"), as_count(q, "q")
    generator = as_generator(generator, seed)
    box = as_box(bounds, "bounds").double()
    _check(box.shape[1], q, kernel, noise, strategy, trust_region, settings)  # before anything expensive is evaluated
    returned = Returned.read(constraints, as_count(num_objectives, "num_objectives"), box)
    m, plain = returned.num_objectives, not returned.outputs and not returned.known
    if trust_region and m > 1:
        raise ValueError(f"trust_region: expected one objective, whose best point it is about, got {m}")
    if strategy == "function-space" and not (plain and m == 1):
        raise ValueError('strategy: function-space draws are of values of one output; use strategy="decoupled"')
    study, spread = _resumed(state, box), settings.pop("spread", None)
    # A seed's first random numbers gave the points that a resumed study has; the search goes on with those after them.
    torch.rand(len(study.points), box.shape[1], generator=generator, device=generator.device, dtype=torch.float64)
    rounds = 4  # rounds of one point each; the last takes the minimiser of the posterior mean
    returned.check(study, state)
    first = min(budget, 2 * (box.shape[1] + 1) if num_initial is None else as_count(num_initial, "num_initial"))
    with progress_bar(show=progress) as bar:
        task = bar.add_task("evaluations", total=budget, completed=len(study.points))
        while len(study.points) < budget:
            X, y = returned.data(study)  # [n, d], [n, m + c]
            if len(study.points) < first or len(y) < 2 or strategy == "random":
                started = len(study.points) >= first and len(y) >= 2
                count = q if started else max(1, first - len(study.points))
                points = returned.uniform(box, min(count, budget - len(study.points)), generator)
            else:
                models = [
                    fitted(X, column, box, noise)
                    if kernel is None
                    else ExactGP(kernel, X, column, 1e-6 if noise is None else noise, mean=0.0)
                    for column in y.mT
                ]
                model = models[0] if len(models) == 1 else Outputs(models)
                count = min(q, budget - len(study.points))
                met = [value if ok else None for value, ok in zip(study.values, study.feasible, strict=True)]
                side = side_after(cast(list[float | None], met), first, q, box.shape[1]) if trust_region else None
                # Which of the four rounds it is follows from the number of values, and not from the rounds of this
                # process, because a study can be resumed.
                turn = (len(study.points) - first) % rounds
                due = m == 1 and (count > 1 or turn == rounds - 1)
                each = graded(count) if count > 1 else graded(rounds)[-1 - turn]
                if spread is not None:
                    each = spread if as_array(spread).ndim == 0 else cast(Sequence[float], spread)[:count]
                if strategy in DRAWN:
                    settings["spread"] = each
                points = suggest(
                    model,
                    box,
                    count,
                    constraints=None
                    if plain
                    else [*range(m, y.shape[1]), *(known.function for known in returned.known)],
                    strategy=strategy,
                    trust_region=side,
                    greedy=due and strategy in DRAWN,
                    generator=generator,
                    **settings,
                )
            for x in points:
                _evaluate(function, x.double(), study, returned)
                if state is not None:
                    _save(study, Path(state))
                bar.advance(task)
            if first <= len(study.points) < budget and study.values.count(None) == len(study.values):
                raise ValueError(
                    f"function: expected a number, but all of the first {len(study.points)} evaluations failed, the "
                    f"last at {study.failures[-1]}"
                )
    return study


def _check(
    dim: int, q: int, kernel: Kernel | None, noise: float | None, strategy: str, trust_region: bool, settings: Drawing
) -> None:
    """Raise errors before the first evaluation that would otherwise appear after it."""
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if noise is not None and not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise: expected a variance >= 0, got {noise!r}")
    if unknown := sorted(set(settings) - set(Drawing.__annotations__)):
        known = ", ".join(Drawing.__annotations__)
        raise TypeError(f"minimize_function has no setting {unknown[0]!r}; expected one of {known}")
    drawn = {"trust_region": trust_region, "spread": "spread" in settings}
    if strategy not in DRAWN and (given := [name for name, is_given in drawn.items() if is_given]):
        raise ValueError(f'{given[0]}: expected a strategy that draws functions, got {strategy!r}; use "decoupled"')
    spreads(settings.get("spread", 1.0), q)
    for name in ("num_features", "mesh_size", "num_starts"):
        if (count := settings.get(name)) is not None:
            as_count(cast(int, count), name)
    if kernel is not None:
        as_kernel(kernel)(torch.zeros(1, dim, dtype=torch.float64, device="cpu"))


class Returned(NamedTuple):
    """The meaning of the numbers that the user's function returns: objectives, and constraints with their limits. Also
    the constraints that are known functions of the point."""

    num_objectives: int
    outputs: dict[int, float]
    known: list[Known]

    @staticmethod
    def read(constraints: Constraints, num_objectives: int, box: Tensor) -> Returned:
        outputs, known = {}, []
        for item in listed(constraints):
            if isinstance(item, Mapping):
                outputs |= {operator.index(number): float(limit) for number, limit in item.items()}
            elif callable(item) and not isinstance(item, AbstractFunctions) and not is_model(item):
                known.append(Known(item, box))
            elif hasattr(item, "__index__") and not isinstance(item, bool):
                outputs[operator.index(cast(int, item))] = 0.0
            else:
                raise TypeError(
                    "constraints: expected functions of points, or which of the function's numbers are constraints, "
                    f"zero or below where they are met, got {type(item).__name__}"
                )
        count = num_objectives + len(outputs)
        if any(not 0 <= number < count for number in outputs):
            raise ValueError(
                f"constraints: expected numbers from 0 to {count - 1}, of {many(num_objectives, 'objective')} and "
                f"{many(len(outputs), 'constraint')}, got {sorted(outputs)}"
            )
        return Returned(num_objectives, outputs, known)

    def check(self, study: Study, state: object) -> None:
        """ValueError where a study that was resumed has other objectives or constraints."""
        values = next((value for value in study.values if value is not None), None)
        limits = next((limit for limit in study.constraints if limit is not None), [])
        count = len(self.outputs) + sum(function.num_outputs for function in self.known)
        if values is not None:
            m = len(values) if isinstance(values, list) else 1
            if (m, len(limits)) != (self.num_objectives, count):
                raise ValueError(
                    f"{state} holds a study of {many(m, 'objective')} and {many(len(limits), 'constraint')}, expected "
                    f"{self.num_objectives} and {count}; name another file"
                )

    def apart(self, numbers: list[float], x: Tensor) -> tuple[float | list[float], list[float]]:
        """Objectives, and constraints less their limits: those that were returned, then those that are known at x."""
        objectives = [number for i, number in enumerate(numbers) if i not in self.outputs]
        limited = [numbers[i] - limit for i, limit in self.outputs.items()]
        limited += [c for function in self.known for c in function(x[None]).flatten().tolist()]
        return objectives[0] if self.num_objectives == 1 else objectives, limited

    def data(self, study: Study) -> tuple[Tensor, Tensor]:
        """Points `[n, d]`, and what was returned there `[n, m + c]`, objectives first."""
        X, F = study.data()
        kept = [
            c[: len(self.outputs)] for c, y in zip(study.constraints, study.values, strict=False) if y is not None and c
        ]
        C = torch.tensor(kept, dtype=torch.float64, device="cpu").reshape(len(X), len(self.outputs))
        return X, torch.cat([F.reshape(len(X), self.num_objectives), C], dim=1)

    def uniform(self, box: Tensor, count: int, generator: torch.Generator, tries: int = 64) -> Tensor:
        """Uniform points `[count, d]` that meet the known constraints, or violate them least where that is rare: 1024
        more are drawn up to `tries` times."""
        points = suggest(None, box, count, strategy="random", generator=generator)
        for _ in range(tries if self.known else 0):
            violation = torch.cat([function(points)[0] for function in self.known], dim=1).clamp_min(0).sum(1)
            points = points[violation.argsort(stable=True)[:count]]
            if not bool((violation.sort().values[:count] > 0).any()):
                break
            more = suggest(None, box, 1024, strategy="random", generator=generator)
            points = torch.cat([points, more])
        return points[:count]


def _evaluate(function: Callable[[Tensor], ArrayLike], x: Tensor, study: Study, returned: Returned) -> None:
    value, limits, trouble = math.nan, None, ""
    try:
        answer = function(x.clone())
        if answer is None:
            trouble = "returned None"
        else:
            numbers = _as_numbers(answer, returned)
            wrong = [number for number in numbers if not math.isfinite(number)]
            trouble = f"returned {wrong[0]}" if wrong else ""
            value, limits = returned.apart(numbers, x)
    except Exception as error:
        trouble = f"raised {type(error).__name__}: {error}"
    study.points.append(x.tolist())
    study.values.append(None if trouble else value)
    if returned.outputs or returned.known:
        study.constraints.append(None if trouble else limits)
    if trouble:
        study.failures.append(f"{x.tolist()} {trouble}")
        warnings.warn(
            f"the function {trouble} at {x.tolist()}; the search continues without this point",
            EvaluationWarning,
            stacklevel=3,
        )


def _as_numbers(value: ArrayLike, returned: Returned) -> list[float]:
    """A number, or an array or tensor of one, as SciPy's objectives may return it; or objectives and constraints, one
    after the other, in arrays too."""
    parts = value if isinstance(value, tuple | list) else [value]
    arrays = [np.asarray(part.detach().cpu() if isinstance(part, Tensor) else part) for part in parts]
    numbers = [float(number) for array in arrays for number in array.reshape(-1).tolist()]
    count = returned.num_objectives + len(returned.outputs)
    if len(numbers) != count:
        expected = "one number" if count == 1 else f"{count} numbers"
        hint = "; for more than one give num_objectives, or say which are constraints" * (
            count == 1 and len(numbers) > 1
        )
        raise ValueError(f"expected {expected}, got {len(numbers)}{hint}")
    return numbers


def _save(study: Study, path: Path) -> None:
    """Save the whole study by replacing the file at once: after a kill, either the old or the new file is there."""
    content = {"format": FORMAT, **vars(study)}
    if not study.constraints:
        del content["constraints"]  # absent if there are no constraints
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _resumed(state: str | os.PathLike[str] | None, box: Tensor) -> Study:
    if state is None:
        return Study(box.tolist())
    check_folder(Path(state))
    if not Path(state).exists():
        return Study(box.tolist())
    try:
        content = json.loads(Path(state).read_text())
        kind = content.pop("format")
        study = Study(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{state} is not a study that this library saved: {error!r}") from error
    if kind != FORMAT or study.bounds != box.tolist():
        raise ValueError(
            f"{state} holds a study of other bounds, {study.bounds}; name another file, or give these bounds"
        )
    return study


def graded(count: int) -> list[float]:
    """Evenly spaced spreads up to that of draws, so that some functions explore and others exploit."""
    return [(i + 1) / count for i in range(count)]


def side_after(
    values: Sequence[float | None],
    first: int,
    q: int,
    dim: int,
    *,
    initial: float = 0.8,
    largest: float = 1.6,
    smallest: float = 0.5**7,
    successes: int = 3,
    enough: float = 1e-3,
) -> float:
    """The side of the region after rounds of q values (None: failed) that came after the `first` ones.

    The side depends on the values alone, so a search that resumes after a restart has the same region.

    Args:
        values, first, q, dim: all values, how many were there before the rounds, values per round, and dimensions.
        initial, largest, smallest: the side, as a share of the box, at first, at the most, and below which the region
            begins anew.
        successes: rounds in a row that must improve before the region doubles.
        enough: by how much of the best value a round must fall to count.

    >>> side_after([3.0, 2.0, 1.5, 1.2, 1.0], first=2, q=1, dim=4)  # three rounds that improve
    1.6
    >>> side_after([3.0, 2.0] + [2.5] * 4, first=2, q=1, dim=4)  # four that do not
    0.4
    """
    numbers = [math.inf if value is None else value for value in values]
    side, better, worse = initial, 0, 0
    best, failures = min(numbers[:first], default=math.inf), math.ceil(max(4, dim) / q)
    for i in range(first, len(numbers), q):
        lowest = min(numbers[i : i + q])
        improved = lowest < (best - enough * abs(best) if math.isfinite(best) else best)
        better, worse = (better + 1, 0) if improved else (0, worse + 1)
        if better == successes:
            side, better = min(2 * side, largest), 0
        elif worse == failures:
            side, worse = side / 2, 0
        side, best = initial if side < smallest else side, min(best, lowest)
    return side
