"""minimize_function: Thompson sampling of a Python callable, through errors and restarts."""

from __future__ import annotations

import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack, cast

import numpy as np
import torch
from torch import Tensor

from ..boxes import as_box
from ..checks import ArrayLike, Random, as_count, as_generator, many
from ..gp import ExactGP
from ..kernels import Kernel
from ..kernels.base import as_kernel
from ..progress import progress_bar
from .fitting import fitted
from .greedy import graded
from .region import side_after
from .strategies import DRAWN, STRATEGIES, Drawing, spreads, suggest

FORMAT = "matheron-study-1"
# Rounds of one point, of which the last has the posterior mean's minimiser.
_ROUNDS = 4


class EvaluationWarning(UserWarning):
    """The user's function raised, or returned something that is not a finite number; the search went on without it."""


@dataclass(repr=False)
class Study:
    """What was tried: points, values (None where the function failed), and the best of them."""

    bounds: list[list[float]]
    points: list[list[float]] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def best(self) -> int:
        """The index of the best point; ValueError where every evaluation failed."""
        usable = [(value, i) for i, value in enumerate(self.values) if value is not None]
        if not usable:
            raise ValueError(
                f"every evaluation failed; the last said: {self.failures[-1] if self.failures else 'nothing'}"
            )
        return min(usable)[1]

    @property
    def best_x(self) -> Tensor:
        return torch.tensor(self.points[self.best], dtype=torch.float64)

    @property
    def best_value(self) -> float:
        value = self.values[self.best]
        assert value is not None
        return value

    def __repr__(self) -> str:
        failed = self.values.count(None)
        words = f"{many(len(self.values), 'evaluation')} in {many(len(self.bounds[0]), 'dimension')}"
        words += f", {failed} failed" * (failed > 0)
        if failed == len(self.values):
            return f"Study({words})"
        x = ", ".join(f"{c:.4g}" for c in self.points[self.best])
        return f"Study({words}; best {self.best_value:.4g} at [{x}])"

    def data(self) -> tuple[Tensor, Tensor]:
        """Points `[n, d]` and values `[n]` of the evaluations that worked."""
        kept = [(x, y) for x, y in zip(self.points, self.values, strict=True) if y is not None]
        d = len(self.bounds[0])
        X = torch.tensor([x for x, _ in kept], dtype=torch.float64).reshape(-1, d)
        return X, torch.tensor([y for _, y in kept], dtype=torch.float64)


def minimize_function(
    function: Callable[[Tensor], ArrayLike],
    bounds: ArrayLike,
    budget: int,
    q: int = 1,
    *,
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

    Draws ask what might be better, and the posterior mean knows what is good. So a round has one point at the mean's
    minimum, and the others at minima of functions from near the mean to as far from it as draws: their spreads, as
    `suggest` has them, are 2/q, 3/q, ..., 1. With q = 1 four rounds take turns, with 1, 3/4, 1/2 and the mean.

    Args:
        function: takes a point `[d]`, returns a number, or an array of one. If it raises, or returns NaN, that is
            reported and survived: the point is remembered as failed and the search continues, unless all of the
            first did.
        bounds: the box, `[2, d]`.
        budget: evaluations in all.
        q: evaluations per round.
        kernel: of a model with known hyperparameters; None fits one after each round (Matern-5/2 with a lengthscale per
            coordinate).
        noise: variance of the function's noise where it is known; None learns it, or is 1e-6 with a given kernel.
        strategy: as for `suggest`.
        num_initial: uniform points before the first model; 2 (d + 1) where not given.
        trust_region: minimise drawn functions near the best point so far, in a region that grows while values fall and
            shrinks when they do not. For many local minima in some ten dimensions or more, where a drawn function's
            minimum in the whole box is mostly in a corner that nobody has been to.
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
    """
    budget, q = as_count(budget, "budget"), as_count(q, "q")
    generator = as_generator(generator, seed)
    box = as_box(bounds, "bounds").double()
    _check(box.shape[1], q, kernel, noise, strategy, trust_region, settings)  # before anything expensive is evaluated
    study, spread = _resumed(state, box), settings.pop("spread", None)
    first = min(budget, 2 * (box.shape[1] + 1) if num_initial is None else as_count(num_initial, "num_initial"))
    with progress_bar(show=progress) as bar:
        task = bar.add_task("evaluations", total=budget, completed=len(study.points))
        while len(study.points) < budget:
            X, y = study.data()
            if len(study.points) < first or len(y) < 2:
                count = max(1, first - len(study.points))
                points = suggest(
                    None, box, min(count, budget - len(study.points)), strategy="random", generator=generator
                )
            else:
                if kernel is None:
                    model = fitted(X, y, box, noise)
                else:
                    model = ExactGP(kernel, X, y, 1e-6 if noise is None else noise, mean=0.0)
                count = min(q, budget - len(study.points))
                side = side_after(study.values, first, q, box.shape[1]) if trust_region else None
                # Of what is known, not of how often this process has gone round: a study may be resumed.
                turn = (len(study.points) - first) % _ROUNDS
                due = count > 1 or turn == _ROUNDS - 1
                each = graded(count) if count > 1 else graded(_ROUNDS)[-1 - turn]
                if spread is not None:
                    each = spread if torch.as_tensor(spread).ndim == 0 else cast(Sequence[float], spread)[:count]
                if strategy in DRAWN:
                    settings["spread"] = each
                points = suggest(
                    model,
                    box,
                    count,
                    strategy=strategy,
                    trust_region=side,
                    greedy=due and strategy in DRAWN,
                    generator=generator,
                    **settings,
                )
            for x in points:
                _evaluate(function, x.double(), study)
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
    """The errors that would otherwise come after the first evaluations."""
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
        as_kernel(kernel)(torch.zeros(1, dim, dtype=torch.float64))


def _evaluate(function: Callable[[Tensor], ArrayLike], x: Tensor, study: Study) -> None:
    try:
        returned = function(x.clone())
        value = math.nan if returned is None else _as_number(returned)
        trouble = "" if math.isfinite(value) else f"returned {None if returned is None else value}"
    except Exception as error:
        value, trouble = math.nan, f"raised {type(error).__name__}: {error}"
    study.points.append(x.tolist())
    study.values.append(None if trouble else value)
    if trouble:
        study.failures.append(f"{x.tolist()} {trouble}")
        warnings.warn(f"the function {trouble} at {x.tolist()}; going on without it", EvaluationWarning, stacklevel=3)


def _as_number(value: ArrayLike) -> float:
    """A number, or an array or tensor of one, as SciPy's objectives may return it."""
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if array.size != 1:
        raise ValueError(f"expected one number, got {array.size}")
    return float(array.reshape(()).item())


def _save(study: Study, path: Path) -> None:
    """The whole study, replaced in one move: a kill at any time leaves the old one or the new one."""
    content = {"format": FORMAT, **vars(study)}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _resumed(state: str | os.PathLike[str] | None, box: Tensor) -> Study:
    if state is None or not Path(state).exists():
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
