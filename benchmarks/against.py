"""Thompson sampling beside BoTorch's qLogEI and qLogNEI, TuRBO and Optuna's GPSampler: regret, quartiles over seeds.

    python benchmarks/against.py                          20 seeds of modest budgets: hours on 16 cores
    python benchmarks/against.py --single                 batches of one: 100 evaluations
    python benchmarks/against.py --rover --workers 16     60 dimensions: batches of a hundred, 600 evaluations
    python benchmarks/against.py --full --workers 16      20 seeds, up to 1000 evaluations, batches of 1, 10 and 100
    python benchmarks/against.py --quick                  seconds: does it run?
    python benchmarks/against.py --full --problems rover-60 --batches 10 --methods qLogNEI "Thompson, half"

Each run is stored as it ends, seed by seed over all problems and methods; the same command goes on where a run was
stopped, or killed. `docs/results/against.md` shows the results in `docs/results/files`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from problems import MINIMA, problem
from rivals import METHODS, Cube, method
from seeds import lines_of_ends, parser, run_and_exit

from matheron_paper import Experiment, Trial
from matheron_paper.report import QUARTILES, Report, Table, grouped, quartiles

PROBLEMS = ["Hartmann-6", "Ackley-10", "Levy-10", "Rastrigin-10", "rover-12"]
# Evaluations by the size of a batch; starts and raw samples of expected improvement's own search.
SCALES: dict[str, dict[str, Any]] = {
    "full": {
        "trials": 20,
        "problems": [*PROBLEMS, "rover-60"],
        "budgets": {"1": 200, "10": 500, "100": 1000},
        "starts": [10, 512],
    },
    "modest": {"trials": 20, "problems": PROBLEMS, "budgets": {"10": 100, "100": 500}, "starts": [4, 128]},
    "single": {"trials": 20, "problems": PROBLEMS, "budgets": {"1": 100}, "starts": [4, 128]},
    "rover": {"trials": 20, "problems": ["rover-60"], "budgets": {"100": 600}, "starts": [10, 512]},
    "quick": {"trials": 1, "problems": ["rover-12"], "budgets": {"1": 27, "10": 40}, "starts": [1, 8]},
}
# What is left to large machines, but where it is asked for by name.
SLOW = {"qLogNEI"}
OURS = tuple(name for name in METHODS if name.startswith("Thompson"))
FLOOR = 1e-6


def cases(
    settings: Mapping[str, Any],
    problems: Sequence[str] = (),
    batches: Sequence[int] = (),
    methods: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """All that a scale has, or those of them that are named."""
    return [
        {"problem": name, "batch": int(batch), "method": by}
        for name in settings["problems"]
        for batch in settings["budgets"]
        for by in METHODS
        if (int(batch) < 100 or METHODS[by].hundred)
        and (settings["starts"][0] >= 10 or by not in SLOW or by in methods)
        if name in (problems or [name]) and int(batch) in (batches or [int(batch)]) and by in (methods or [by])
    ]


def search(trial: Trial, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """One run: the lowest value after each batch, and the seconds of choosing it.

    The first points are uniform, 2 (d + 1) of them rounded up to whole batches, and the same for all methods.
    """
    case = trial.case
    it, q = problem(case["problem"]), case["batch"]
    budget = settings["budgets"][str(q)]
    generator = trial.generator("first", shared=["problem", "batch"])
    count = min(budget, math.ceil(2 * (it.dim + 1) / q) * q)
    X = torch.rand(count, it.dim, generator=generator, dtype=torch.float64)
    y = it(X)
    lowest, seconds = [float(y.min())], []
    choose = method(case["method"], Cube(it.dim, q, *settings["starts"]), trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that ended early: a benchmark of 20 seeds has many
        while len(y) < budget:
            began = time.perf_counter()
            x = choose(X, y, min(q, budget - len(y)))
            seconds.append(round(time.perf_counter() - began, 4))
            X, y = torch.cat([X, x]), torch.cat([y, it(x)])
            lowest.append(float(y.min()))
    return {"first": count, "best": lowest, "seconds": seconds}


def flat(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per run: regret after the first points and after each batch; of a problem whose minimum nobody knows,
    less the lowest value that any run has found."""
    found: dict[str, float] = dict(MINIMA)
    for record in records:
        name = record["case"]["problem"]
        if name not in MINIMA:
            found[name] = min(found.get(name, math.inf), record["result"]["best"][-1])
    rows = []
    for record in records:
        case, result = record["case"], record["result"]
        regret = [value - found[case["problem"]] for value in result["best"]]
        middle, seconds = regret[len(regret) // 2], sum(result["seconds"])
        at = [result["first"] + case["batch"] * i for i in range(len(regret))]
        rows.append({**case, "at": at, "regret": regret, "half": middle, "last": regret[-1]})
        rows[-1] |= {"seed": record["trial"], "seconds": seconds}
    names, methods = settings["problems"], list(METHODS)
    return sorted(rows, key=lambda r: (names.index(r["problem"]), r["batch"], methods.index(r["method"])))


def report(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Report:
    rows, by = flat(records, settings), ["problem", "batch", "method"]
    lines = lines_of_ends(rows, by, lambda key: (settings["budgets"][str(key[1])],))
    columns = [*by, "evaluations", "runs", "median halfway", *QUARTILES, "seconds"]
    table = Table("Regret at the end: quartiles over runs; median seconds of choosing points, per run", columns, lines)
    return Report(table, {"": lambda: figure(rows, settings)}, [places(rows), pairs(rows)])


def places(rows: Sequence[Mapping[str, Any]]) -> str:
    """In words: each method's mean place by the median of regret at the end, for each size of batches."""
    lines = []
    for batch in sorted({row["batch"] for row in rows}):
        mine = [row for row in rows if row["batch"] == batch]
        names = list(dict.fromkeys(row["problem"] for row in mine))
        found: dict[str, list[int]] = {row["method"]: [] for row in mine}
        for name in names:
            ends = grouped([row for row in mine if row["problem"] == name], ["method"], "last")
            medians = {by: quartiles(values)[1] for (by,), values in ends.items()}
            for place, by in enumerate(sorted(medians, key=lambda by: medians[by]), start=1):
                found[by].append(place)
        words = ", ".join(f"{by} {sum(p) / len(p):.2g}" for by, p in found.items() if p)
        lines.append(f"Batches of {batch}: mean place by the median at the end, over {len(names)} problems: {words}.")
    return "\n\n".join(lines)


def pairs(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table: in how many of the seeds that both have run ours ends lower than another method."""
    ends = {(row["problem"], row["batch"], row["method"], row["seed"]): row["last"] for row in rows}
    others = [by for by in METHODS if any(row["method"] == by for row in rows)]
    lines = []
    for name, batch in dict.fromkeys((row["problem"], row["batch"]) for row in rows):
        for mine in (by for by in OURS if by in others):
            cells = []
            for other in others:
                seeds = {key[3] for key in ends if key[:3] == (name, batch, mine)}
                seeds &= {key[3] for key in ends if key[:3] == (name, batch, other)}
                lower = sum(ends[name, batch, mine, seed] < ends[name, batch, other, seed] for seed in seeds)
                cells.append(f"{lower} of {len(seeds)}" if seeds and other != mine else "")
            lines.append((name, batch, mine, *cells))
    table = Table("Runs that end lower, paired by seed", ["problem", "batch", "ours", *others], lines)
    return f"{table.title}:\n\n{table.markdown()}"


def figure(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Any:
    """A column per problem, a row per batch size: medians of regret against evaluations, quartiles shaded.

    Searches in a trust region have no shades, which would cover those of the same strategy without one.
    """
    from matheron_paper import style

    colors = {name: METHODS[name].color for name in METHODS if any(row["method"] == name for row in rows)}
    problems = [name for name in settings["problems"] if any(row["problem"] == name for row in rows)]
    batches = sorted({row["batch"] for row in rows})
    size = dict(width=2.7 * len(problems) + 0.6, height=2.5 * len(batches) + 0.9)
    drawing, axes = style.panels(len(batches), len(problems), **size)
    for i, batch in enumerate(batches):
        for axis, name in zip(axes[i], problems, strict=True):
            for by, color in colors.items():
                mine = [r for r in rows if (r["problem"], r["batch"], r["method"]) == (name, batch, by)]
                if mine:
                    probabilities = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
                    regret = torch.tensor([r["regret"] for r in mine], dtype=torch.float64).clamp_min(FLOOR)
                    low, middle, high = regret.quantile(probabilities, dim=0)
                    if by.endswith("local"):
                        low = high = middle
                    style.band(axis, torch.tensor(mine[0]["at"]), low, middle, high, label=by, color=color,
                               linestyle=METHODS[by].line)  # fmt: skip
            axis.set_yscale("log")
            axis.set_title(f"{name}, batches of {batch}" if batch > 1 else name, fontsize=8)
        axes[i, 0].set_ylabel("regret")
    for axis in axes[-1]:
        axis.set_xlabel("evaluations")
    style.legend_below(drawing, min(len(colors), 2 * len(problems)))
    return drawing


EXPERIMENT = Experiment("against", "Thompson sampling beside the best.", SCALES, cases, search, report)


def main() -> None:
    options = parser(__doc__, "runs of each problem, batch size and method", "few and short runs")
    options.add_argument("--full", action="store_true", help="20 seeds, large budgets, batches of 100 too")
    options.add_argument("--single", action="store_true", help="batches of one point")
    options.add_argument("--rover", action="store_true", help="a rover's way in 60 dimensions, batches of 100")
    options.add_argument("--problems", nargs="+", choices=[*PROBLEMS, "rover-60"], default=[], help="these alone")
    options.add_argument("--batches", nargs="+", type=int, default=[], help="batches of these sizes alone")
    options.add_argument("--methods", nargs="+", choices=list(METHODS), default=[], help="these alone")
    args = options.parse_args()
    chosen = functools.partial(cases, problems=args.problems, batches=args.batches, methods=args.methods)
    scale = next((name for name in ("quick", "full", "single", "rover") if getattr(args, name)), "modest")
    if not chosen(SCALES[scale]):
        options.error(f"the {scale} scale has no such runs: rover-60 and batches of all sizes are of --full")
    run_and_exit(dataclasses.replace(EXPERIMENT, cases=chosen), args, scale)


if __name__ == "__main__":
    # Under its own name, so that worker processes find it by that name.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import against

    against.main()
