"""The relevant trials of an Optuna study as numbers to be minimised, and their constraints, met at zero or below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from optuna.distributions import BaseDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from .unit_cube import Parameter

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
