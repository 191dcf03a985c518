"""ThompsonSampler against Optuna's GPSampler, TPESampler and random search: regret, quartiles over seeds.

    python benchmarks/optuna_samplers.py                           16 seeds: about an hour on one core
    python benchmarks/optuna_samplers.py --seeds 4                 less; more can be added later
    python benchmarks/optuna_samplers.py --quick                   seconds: does it run?
    python benchmarks/optuna_samplers.py --workers 8 --time-limit 600 --out results

Each study is stored as it ends, seed by seed over all functions and samplers; the same command goes on where a run was
stopped, or killed. `docs/results/optuna.md` shows the results in `docs/results/files`.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from seeds import lines_of_ends, parser, run_and_exit

from matheron_paper import Experiment, Trial
from matheron_paper.report import QUARTILES, Report, Table

# Where a sampler has found the minimum to within this, logarithms say no more.
FLOOR = 1e-6
SCALES: dict[str, dict[str, Any]] = {
    "full": {"trials": 16, "length": 100, "startup": 10, "functions": ["Branin", "Hartmann-6", "Ackley-8", "mixed"]},
    "quick": {"trials": 2, "length": 8, "startup": 5, "functions": ["Branin", "mixed"]},
}
# ThompsonSampler's model was chosen on other seeds than those that are reported.
FIRST_SEED = 100
SAMPLERS = ("random", "TPESampler", "GPSampler", "ThompsonSampler")


class Function(NamedTuple):
    """A function of parameters by name, whose minimum is zero, and their distributions."""

    value: Callable[[Mapping[str, Any]], float]
    space: dict[str, Any]


def function(name: str) -> Function:
    """Branin and Hartmann-6 on their usual boxes; Ackley-8 on [-5, 10]^8, where the minimiser is not at the centre."""
    from botorch.test_functions import Ackley, Branin, Hartmann
    from optuna.distributions import FloatDistribution

    if name == "mixed":
        return _mixed()
    it, boxes = {
        "Branin": (Branin(), [(-5.0, 10.0), (0.0, 15.0)]),
        "Hartmann-6": (Hartmann(dim=6), [(0.0, 1.0)] * 6),
        "Ackley-8": (Ackley(dim=8), [(-5.0, 10.0)] * 8),
    }[name]
    space = {f"x{i}": FloatDistribution(*box) for i, box in enumerate(boxes)}

    def value(params: Mapping[str, Any]) -> float:
        x = torch.tensor([params[name] for name in space], dtype=torch.float64)
        return float(it(x)) - float(it.optimal_value)

    return Function(value, space)


def _mixed() -> Function:
    """As when a network is tuned: a bowl in each choice, at a place of its own, and one choice is best."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kinds = {"a": (0, 1.0), "b": (1, 0.5), "c": (2, 0.0), "d": (3, 0.7)}  # a shift of the bowl, and its height

    def value(params: Mapping[str, Any]) -> float:
        shift, height = kinds[params["kind"]]
        rate, depth = math.log10(params["rate"]) + 1.5 + 0.5 * shift, params["depth"] - 2 - shift
        width, dropout = math.log2(params["width"]) - 6, params["dropout"] - 0.2
        return height + rate**2 + 0.3 * depth**2 + 0.5 * width**2 + 4 * dropout**2

    space = {
        "kind": CategoricalDistribution(list(kinds)),
        "rate": FloatDistribution(1e-5, 1.0, log=True),
        "depth": IntDistribution(1, 8),
        "width": IntDistribution(8, 512, log=True),
        "dropout": FloatDistribution(0.0, 0.5, step=0.1),
    }
    return Function(value, space)


def sampler(name: str, seed: int, startup: int) -> Any:
    import optuna

    from matheron.thompson.optuna import ThompsonSampler

    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    kind = ThompsonSampler if name == "ThompsonSampler" else getattr(optuna.samplers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return kind(seed=seed, n_startup_trials=startup)


def cases(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"function": function, "sampler": sampler} for function in settings["functions"] for sampler in SAMPLERS]


def study(trial: Trial, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """One study: the lowest value so far and the seconds of choosing, after each trial.

    The first trials are uniform and, for one seed, the same for all samplers.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    it, startup, seed = function(trial.case["function"]), settings["startup"], FIRST_SEED + trial.number
    first = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=10_000 + seed))
    search = optuna.create_study(sampler=sampler(trial.case["sampler"], seed, startup))
    for _ in range(startup):
        search.enqueue_trial(first.ask(it.space).params)
    return in_rounds(search, it, settings["length"], 1)


def in_rounds(search: Any, it: Any, rounds: int, k: int) -> dict[str, Any]:
    """Ask for k trials, then tell all of them, again and again: the lowest value after each round, and its seconds of
    asking."""
    lowest, regret, seconds = math.inf, [], []
    for _ in range(rounds):
        began = time.perf_counter()
        asked = [search.ask(it.space) for _ in range(k)]
        seconds.append(round(time.perf_counter() - began, 5))
        for each in asked:
            value = it.value(each.params)
            search.tell(each, value)
            lowest = min(lowest, value)
        regret.append(lowest)
    return {"regret": regret, "seconds": seconds}


def flat(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per study: regrets, and the mean of the seconds of a suggestion once there is a model."""
    rows = []
    for record in records:
        regret, seconds = record["result"]["regret"], record["result"]["seconds"][settings["startup"] :]
        ends = {"half": regret[len(regret) // 2 - 1], "last": regret[-1]}
        rows.append({**record["case"], "regret": regret, **ends, "seconds": sum(seconds) / len(seconds)})
    order = settings["functions"]
    return sorted(rows, key=lambda row: (order.index(row["function"]), SAMPLERS.index(row["sampler"])))


def report(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Report:
    rows, by = flat(records, settings), ["function", "sampler"]
    lines = lines_of_ends(rows, by)
    length = settings["length"]
    columns = [*by, "studies", f"median at {length // 2}", *QUARTILES, "seconds per trial"]
    title = f"Regret after {length} trials: quartiles over studies; median seconds of a suggestion"
    return Report(Table(title, columns, lines), {"": lambda: figure(rows, settings)})


def figure(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Any:
    """A panel per function: medians of regret against trials, quartiles shaded."""
    from matheron_paper import style

    colors = (style.EXACT, style.LOVE, style.WEIGHT_SPACE, style.DECOUPLED)
    names = [name for name in settings["functions"] if any(row["function"] == name for row in rows)]
    drawing, axes = style.panels(1, len(names), width=2.8 * len(names) + 0.6, height=3.4)
    for axis, name in zip(axes[0], names, strict=True):
        for label, color, line in zip(SAMPLERS, colors, (":", "--", "-.", "-"), strict=True):
            mine = [row["regret"] for row in rows if row["function"] == name and row["sampler"] == label]
            if mine:
                trials = range(1, len(mine[0]) + 1)
                style.quartile_band(axis, mine, trials, floor=FLOOR, label=label, color=color, linestyle=line)
        axis.axvline(settings["startup"], color="#bbbbbb", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title(name)
        axis.set_xlabel("trials")
    axes[0, 0].set_ylabel("regret")
    style.legend_below(drawing, len(SAMPLERS))
    return drawing


EXPERIMENT = Experiment(
    "optuna-samplers", "ThompsonSampler beside Optuna's own samplers.", SCALES, cases, study, report, version=2
)


def main() -> None:
    options = parser(__doc__, "studies of each function and sampler; 16 where not given", "few and short studies")
    args = options.parse_args()
    run_and_exit(EXPERIMENT, args)


if __name__ == "__main__":
    # Under its own name, so that worker processes find it by that name.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import optuna_samplers

    optuna_samplers.main()
