"""How long a suggestion takes as an Optuna study grows, ThompsonSampler beside GPSampler.

    python benchmarks/optuna_times.py                      # to 2000 trials
    python benchmarks/optuna_times.py --sizes 20 40        # a quick look

Studies of Hartmann-6 are filled with uniform trials, and then some suggestions are made and told. Seconds of processor
time on one thread, the mean of a few suggestions after the first: what a sampler keeps from one to the next helps it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import optuna
import torch
from optuna_samplers import function, sampler

SIZES = (100, 250, 500, 1000, 2000)
SAMPLERS = ("ThompsonSampler", "GPSampler")


def filled(size: int, name: str) -> tuple[Any, Any]:
    """A study of that many uniform trials, and its function."""
    it = function("Hartmann-6")
    study = optuna.create_study(sampler=sampler(name, 0, 10))
    uniform = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(size):
        params = uniform.ask(it.space).params
        study.add_trial(optuna.create_trial(params=params, distributions=it.space, value=it.value(params)))
    return study, it


def seconds(size: int, name: str, suggestions: int = 3) -> float:
    """Of a suggestion, once one was made."""
    study, it = filled(size, name)
    taken = []
    for _ in range(1 + suggestions):
        start = time.process_time()
        asked = study.ask(it.space)
        taken.append(time.process_time() - start)
        study.tell(asked, it.value(asked.params))
    return sum(taken[1:]) / suggestions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="trials in a study before suggestions")
    args = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    print("| trials |", " | ".join(f"{name}, seconds" for name in SAMPLERS), "|\n|---|" + "---|" * len(SAMPLERS))
    for size in args.sizes:
        print(f"| {size} |", " | ".join(f"{seconds(size, name):.2f}" for name in SAMPLERS), "|", flush=True)


if __name__ == "__main__":
    main()
