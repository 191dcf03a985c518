"""Several objectives: random scalarisation against the drawn functions' own Pareto fronts, by hypervolume.

    python benchmarks/optuna_objectives.py --seeds 8               half an hour on one core
    python benchmarks/optuna_objectives.py --quick                 seconds: does it run?

Optuna's GPSampler, NSGA-II and random search stand beside `ThompsonSampler`'s two ways. For a seed all samplers have
the same first ten uniform trials.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from seeds import lines_of_ends, parser, run_and_exit

from matheron_paper import Experiment, Trial
from matheron_paper.report import QUARTILES, Report, Table

SCALES: dict[str, dict[str, Any]] = {
    "full": {"trials": 8, "length": 40, "startup": 10, "problems": ["Branin-Currin", "ZDT1-5", "DTLZ2-5-3"]},
    "quick": {"trials": 1, "length": 7, "startup": 5, "problems": ["Branin-Currin"]},
}
SAMPLERS = ("random", "NSGA-II", "GPSampler", "scalarised", "own fronts")
OURS = {"scalarised": False, "own fronts": True}


def problem(name: str) -> Any:
    """One of BoTorch's test problems, all to be minimised: a number of inputs, and of objectives, in its name."""
    from botorch.test_functions import multi_objective as known

    if name == "Branin-Currin":
        return known.BraninCurrin()
    kind, d, *m = name.split("-")
    return getattr(known, kind)(dim=int(d), num_objectives=int(m[0]) if m else 2)


def cases(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"problem": name, "sampler": by} for name in settings["problems"] for by in SAMPLERS]


def sampler(name: str, seed: int, startup: int) -> Any:
    import optuna

    from matheron.thompson.optuna import ThompsonSampler

    if name in OURS:
        return ThompsonSampler(seed=seed, n_startup_trials=startup, hypervolume=OURS[name])
    if name == "GPSampler":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)
    if name == "NSGA-II":
        return optuna.samplers.NSGAIISampler(seed=seed, population_size=startup)
    return optuna.samplers.RandomSampler(seed=seed)


def study(trial: Trial, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """One study: the hypervolume after each trial, as a share of the most that there is; the seconds of choosing."""
    import optuna
    from optuna._hypervolume import compute_hypervolume
    from optuna.distributions import FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    it, startup, seed = problem(trial.case["problem"]), settings["startup"], 300 + trial.number
    space: Any = {f"x{i}": FloatDistribution(float(low), float(high)) for i, (low, high) in enumerate(it.bounds.mT)}
    directions = ["minimize"] * it.num_objectives
    first = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=30_000 + seed))
    search = optuna.create_study(directions=directions, sampler=sampler(trial.case["sampler"], seed, startup))
    for _ in range(startup):
        search.enqueue_trial(first.ask(space).params)
    reference = it.ref_point.double().numpy()
    values: list[list[float]] = []
    volumes, seconds = [], []
    for _ in range(settings["length"]):
        began = time.perf_counter()
        asked = search.ask(space)
        seconds.append(round(time.perf_counter() - began, 4))
        x = torch.tensor([asked.params[name] for name in space], dtype=torch.float64)
        value = it(x[None])[0].tolist()
        search.tell(asked, value)
        values.append(value)
        inside = np.array([v for v in values if all(np.array(v) < reference)])
        volumes.append(float(compute_hypervolume(inside, reference)) / it.max_hv if len(inside) else 0.0)
    return {"volumes": volumes, "seconds": seconds}


def report(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Report:
    rows = []
    for record in records:
        left = [1 - v for v in record["result"]["volumes"]]
        seconds = record["result"]["seconds"][settings["startup"] :]
        ends = {"half": left[len(left) // 2 - 1], "last": left[-1], "seconds": sum(seconds) / len(seconds)}
        rows.append({**record["case"], "left": left, **ends})
    order = settings["problems"]
    rows.sort(key=lambda row: (order.index(row["problem"]), SAMPLERS.index(row["sampler"])))
    by = ["problem", "sampler"]
    lines = lines_of_ends(rows, by)
    length = settings["length"]
    columns = [*by, "studies", f"median at {length // 2}", *QUARTILES, "seconds per trial"]
    title = f"Share of the hypervolume that is missing after {length} trials: quartiles over studies"
    return Report(Table(title, columns, lines), {"": lambda: figure(rows, settings)})


def figure(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Any:
    """A panel per problem: medians of the missing share against trials, quartiles shaded."""
    from matheron_paper import style

    colors = (style.EXACT, style.LOVE, style.WEIGHT_SPACE, style.FRESH, style.DECOUPLED)
    names = [name for name in settings["problems"] if any(row["problem"] == name for row in rows)]
    drawing, axes = style.panels(1, len(names), width=2.8 * len(names) + 0.6, height=3.4)
    for axis, name in zip(axes[0], names, strict=True):
        for label, color, line in zip(SAMPLERS, colors, (":", "--", "-.", "--", "-"), strict=True):
            mine = [row["left"] for row in rows if row["problem"] == name and row["sampler"] == label]
            if mine:
                trials = range(1, len(mine[0]) + 1)
                style.quartile_band(axis, mine, trials, label=label, color=color, linestyle=line)
        axis.axvline(settings["startup"], color="#bbbbbb", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_title(name)
        axis.set_xlabel("trials")
    axes[0, 0].set_ylabel("hypervolume missing")
    style.legend_below(drawing, len(SAMPLERS))
    return drawing


EXPERIMENT = Experiment("optuna-objectives", "Several objectives in Optuna.", SCALES, cases, study, report)


def main() -> None:
    options = parser(__doc__, "studies of each problem and sampler; 8 where not given", "one short study of each")
    run_and_exit(EXPERIMENT, options.parse_args())


if __name__ == "__main__":
    # Under its own name, so that worker processes find it by that name.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import optuna_objectives

    optuna_objectives.main()
