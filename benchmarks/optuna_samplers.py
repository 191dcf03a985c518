"""ThompsonSampler against Optuna's GPSampler and TPESampler on standard functions: regret, quartiles over seeds.

    python benchmarks/optuna_samplers.py                           some hours on one core
    python benchmarks/optuna_samplers.py --trials 50 --seeds 5     less
    python benchmarks/optuna_samplers.py --quick                   seconds: does it run?
    python benchmarks/optuna_samplers.py --out results.json        every study's regret after each trial

Branin and Hartmann-6 on their usual boxes; Ackley-8 on [-5, 10]^8, where the optimum is not at the centre. All samplers
have the same number of random trials before their models.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from botorch.test_functions import Ackley, Branin, Hartmann
from rich.console import Console
from rich.table import Table

from matheron.thompson.optuna import ThompsonSampler

STARTUP = 10


def _sampler(kind: Callable[..., Any]) -> Callable[[int, int], Any]:
    def make(seed: int, startup: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(seed=seed, n_startup_trials=startup)

    return make


SAMPLERS: dict[str, Callable[[int, int], Any]] = {
    "Thompson": _sampler(ThompsonSampler),
    "GPSampler": _sampler(optuna.samplers.GPSampler),
    "TPESampler": _sampler(optuna.samplers.TPESampler),
    "random": lambda seed, startup: optuna.samplers.RandomSampler(seed=seed),
}


class Function(NamedTuple):
    name: str
    function: Any
    bounds: list[tuple[float, float]]


FUNCTIONS = [
    Function("Branin", Branin(), [(-5.0, 10.0), (0.0, 15.0)]),
    Function("Hartmann-6", Hartmann(dim=6), [(0.0, 1.0)] * 6),
    Function("Ackley-8", Ackley(dim=8), [(-5.0, 10.0)] * 8),
]


def regrets(function: Function, make: Callable[[int, int], Any], seed: int, trials: int, startup: int) -> list[float]:
    """The regret after each trial of one study."""
    study = optuna.create_study(sampler=make(seed, startup))
    values = []

    def objective(trial: optuna.Trial) -> float:
        x = [trial.suggest_float(f"x{i}", *bounds) for i, bounds in enumerate(function.bounds)]
        values.append(float(function.function(torch.tensor(x, dtype=torch.float64))))
        return values[-1]

    study.optimize(objective, n_trials=trials)
    return (np.minimum.accumulate(values) - float(function.function.optimal_value)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help="of a study")
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="Branin, few trials, two seeds: a smoke test")
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    args = parser.parse_args()
    trials, seeds, startup = (8, 2, 5) if args.quick else (args.trials, args.seeds, STARTUP)
    functions = FUNCTIONS[:1] if args.quick else FUNCTIONS
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    console = Console()
    title = "a smoke test, not a result" if args.quick else f"regret over {seeds} seeds: median [25%, 75%]"
    table = Table("function", "sampler", f"after {trials // 2}", f"after {trials}", "seconds a trial", title=title)
    rows = []
    for function in functions:
        for name, make in SAMPLERS.items():
            began = time.perf_counter()
            with Console(stderr=True).status(f"{function.name}, {name}"):
                curves = [regrets(function, make, seed, trials, startup) for seed in range(seeds)]
            seconds = (time.perf_counter() - began) / (seeds * trials)
            rows.append({"function": function.name, "sampler": name, "seconds": seconds, "regrets": curves})
            cells = []
            for count in (trials // 2, trials):
                low, middle, high = np.quantile([curve[count - 1] for curve in curves], [0.25, 0.5, 0.75])
                cells.append(f"{middle:.3g} \\[{low:.2g}, {high:.2g}]")
            table.add_row(function.name, name, *cells, f"{seconds:.2g}")
        table.add_section()
    console.print(table)
    if args.out:
        libraries = {name: version(name) for name in ("matheron", "optuna", "botorch", "torch")}
        result = {"quick": args.quick, "trials": trials, "startup": startup, "versions": libraries, "rows": rows}
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"written to {args.out}")


if __name__ == "__main__":
    main()
