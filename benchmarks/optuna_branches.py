"""A conditional space: what each of Optuna's samplers finds where a choice decides which other parameters there are.

    python benchmarks/optuna_branches.py --branches 4 --trials 80 --seeds 5

Prints a line per sampler: the quartiles over seeds of the lowest value (the minimum is 0), and seconds per trial.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import optuna
import torch
from optuna.samplers import GPSampler, TPESampler

from matheron.thompson.optuna import ThompsonSampler
from matheron_paper.report import quartiles

SAMPLERS: dict[str, Callable[[int], Any]] = {
    "ThompsonSampler": lambda seed: ThompsonSampler(seed=seed),
    "GPSampler": lambda seed: GPSampler(seed=seed),
    "TPESampler": lambda seed: TPESampler(seed=seed),
    "TPESampler, group": lambda seed: TPESampler(seed=seed, multivariate=True, group=True),
}


def objective(branches: int) -> Callable[[optuna.Trial], float]:
    """A rate that all branches share; in each a float and an int of its own, and in every other one a choice, which
    may bring another float."""

    def value(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-5, 1.0, log=True)
        i = trial.suggest_categorical("kind", list(range(branches)))
        a, b = trial.suggest_float(f"a{i}", 0, 1), trial.suggest_int(f"b{i}", 1, 20)
        sum_ = (math.log10(rate) + 2.5) ** 2 / 4 + 4 * (a - 0.37 * i % 1) ** 2
        sum_ += 4 * ((b - 1) / 19 - round(0.61 * i % 1 * 19) / 19) ** 2 + 0.3 * (7 * i % branches) / branches
        if i % 2 == 0:
            fancy = trial.suggest_categorical(f"fancy{i}", [True, False])
            sum_ += (trial.suggest_float(f"c{i}", 0, 1) - 0.7) ** 2 if fancy else 0.3
        return sum_

    return value


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("branches", 4), ("trials", 80), ("seeds", 5)):
        options.add_argument(f"--{name}", type=int, default=default)
    args = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for name, sampler in SAMPLERS.items():
        began, ends = time.perf_counter(), []
        for seed in range(args.seeds):
            study = optuna.create_study(sampler=sampler(seed))
            study.optimize(objective(args.branches), n_trials=args.trials)
            ends.append(study.best_value)
        seconds = (time.perf_counter() - began) / (args.seeds * args.trials)
        print(f"| {name} | {' | '.join(f'{q:.2g}' for q in quartiles(ends))} | {seconds:.2g} |", flush=True)


if __name__ == "__main__":
    main()
