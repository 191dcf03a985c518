"""Optuna's samplers with many workers: k trials are asked for before any of them is told; regret against rounds.

    python benchmarks/optuna_workers.py --seeds 12                 8 and 32 workers: hours on one core
    python benchmarks/optuna_workers.py --quick                    seconds: does it run?

Workers are simulated, so that what is compared does not depend on the machine: in a round each of k workers asks for a
trial, knowing all rounds before and which trials of this one are running; then all are told. Functions, samplers, first
trials and files are those of `optuna_samplers.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from optuna_samplers import FIRST_SEED, FLOOR, SAMPLERS, function, in_rounds, sampler
from seeds import lines_of_ends, parser, run_and_exit

from matheron_paper import Experiment, Trial
from matheron_paper.report import QUARTILES, Report, Table

# Rounds by the number of workers; the first round is of uniform trials.
SCALES: dict[str, dict[str, Any]] = {
    "full": {"trials": 12, "rounds": {"8": 9, "32": 5}, "functions": ["Hartmann-6", "Ackley-8"]},
    "quick": {"trials": 1, "rounds": {"4": 3}, "functions": ["mixed"]},
}


def cases(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"function": name, "workers": int(workers), "sampler": by}
        for name in settings["functions"]
        for workers in settings["rounds"]
        for by in SAMPLERS
    ]


def study(trial: Trial, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """One study: the lowest value so far after each round, and the seconds of all of its suggestions."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    it, k, seed = function(trial.case["function"]), trial.case["workers"], FIRST_SEED + trial.number
    first = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=20_000 + seed))
    search = optuna.create_study(sampler=sampler(trial.case["sampler"], seed, k))
    for _ in range(k):
        search.enqueue_trial(first.ask(it.space).params)
    return in_rounds(search, it, settings["rounds"][str(k)], k)


def flat(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        case, regret = record["case"], record["result"]["regret"]
        each = sum(record["result"]["seconds"][1:]) / (len(regret) - 1) / case["workers"]
        rows.append({**case, "regret": regret, "half": regret[len(regret) // 2], "last": regret[-1], "seconds": each})
    order = settings["functions"]
    return sorted(rows, key=lambda r: (order.index(r["function"]), r["workers"], SAMPLERS.index(r["sampler"])))


def report(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Report:
    rows, by = flat(records, settings), ["function", "workers", "sampler"]
    lines = lines_of_ends(rows, by, lambda key: (settings["rounds"][str(key[1])],))
    columns = [*by, "rounds", "studies", "median halfway", *QUARTILES, "seconds per trial"]
    title = "Regret after the last round: quartiles over studies; median seconds of a suggestion"
    return Report(Table(title, columns, lines), {"": lambda: figure(rows, settings)})


def figure(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Any:
    """A column per function, a row per number of workers: medians of regret against rounds, quartiles shaded."""
    from matheron_paper import style

    colors = (style.EXACT, style.LOVE, style.WEIGHT_SPACE, style.DECOUPLED)
    names = [name for name in settings["functions"] if any(row["function"] == name for row in rows)]
    counts = sorted({row["workers"] for row in rows})
    size = dict(width=2.8 * len(names) + 0.6, height=2.6 * len(counts) + 0.8)
    drawing, axes = style.panels(len(counts), len(names), **size)
    for i, workers in enumerate(counts):
        for axis, name in zip(axes[i], names, strict=True):
            for label, color, line in zip(SAMPLERS, colors, (":", "--", "-.", "-"), strict=True):
                key = (name, workers, label)
                mine = [r["regret"] for r in rows if (r["function"], r["workers"], r["sampler"]) == key]
                if mine:
                    rounds = range(1, len(mine[0]) + 1)
                    style.quartile_band(axis, mine, rounds, floor=FLOOR, label=label, color=color, linestyle=line)
            axis.set_yscale("log")
            axis.set_title(f"{name}, {workers} workers")
        axes[i, 0].set_ylabel("regret")
    for axis in axes[-1]:
        axis.set_xlabel("rounds")
    style.legend_below(drawing, len(SAMPLERS))
    return drawing


EXPERIMENT = Experiment(
    "optuna-workers", "ThompsonSampler beside Optuna's own samplers, many workers.", SCALES, cases, study, report
)


def main() -> None:
    options = parser(
        __doc__, "studies of each function, number of workers and sampler; 12 where not given", "one study"
    )
    run_and_exit(EXPERIMENT, options.parse_args())


if __name__ == "__main__":
    # Under its own name, so that worker processes find it by that name.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import optuna_workers

    optuna_workers.main()
