"""Do more features make Thompson sampling worse? Paired runs on the same tasks, and a permutation test.

    python benchmarks/thompson_features.py --workers 1 --seeds 24      # resumes where it stopped
    python benchmarks/thompson_features.py --test docs/results/files/thompson-paper.jsonl
    python benchmarks/thompson_features.py --minimiser

Tasks, rounds and strategies are those of `matheron reproduce thompson`, at a scale that two cores bear: all runs of a
trial have the same task, first points and noise, and differ in what functions are drawn from. The second command asks
the same of the runs at the paper's scale. The third asks whether functions with more features are harder to minimise:
how often a budget misses the minimum that one of four times as many points and starts finds.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from seeds import parser, run_and_exit

import matheron
from matheron_paper import Experiment
from matheron_paper import thompson as paper
from matheron_paper.report import QUARTILES, Report, Table, grouped, quartiles
from matheron_paper.thompson import differences, permutation_test

SCALES: dict[str, dict[str, Any]] = {
    "full": {
        "trials": 24,
        "dims": [2, 4],
        "rounds": 32,
        "num_features": [1024, 4096, 16384],
        "mesh_size": 1024,
        "num_starts": 8,
        "task": {"num_features": 16384, "mesh_size": 32768, "num_starts": 64},
    },
    "quick": {
        "trials": 3,
        "dims": [1],
        "rounds": 3,
        "num_features": [16, 32, 64],
        "mesh_size": 64,
        "num_starts": 2,
        "task": {"num_features": 64, "mesh_size": 256, "num_starts": 4},
    },
}
# A run that ended this close has found the lowest basin.
FOUND = 0.05


def cases(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Decoupled draws with every number of features, and weight-space draws with the most."""
    out: list[dict[str, Any]] = []
    for d in settings["dims"]:
        out += [{"d": d, "method": "decoupled", "features": "sobol", "ell": ell} for ell in settings["num_features"]]
        out.append({"d": d, "method": "weight-space", "features": "cosine", "ell": settings["num_features"][-1]})
    return out


def regrets(records: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[int, float]]:
    """Regret at the end by (d, method, features, ell), then by trial, of rounds of d points."""
    lowest: dict[tuple[int, int], float] = {}
    for record in records:
        key, result = (record["case"]["d"], record["trial"]), record["result"]
        lowest[key] = min(lowest.get(key, math.inf), result["minimum"], result["best"][-1])
    out: dict[tuple[Any, ...], dict[int, float]] = {}
    for record in records:
        case = record["case"]
        if "kappa" in case:
            continue
        key = (case["d"], case["method"], case.get("features", paper.FEATURES.get(case["method"])), case["ell"])
        end = record["result"]["best"][-1] - lowest[case["d"], record["trial"]]
        out.setdefault(key, {})[record["trial"]] = end
    return out


def comparisons(records: Sequence[Mapping[str, Any]]) -> Table:
    """The most features against fewer, and against weight space: by dimension, and all pairs together."""
    ends = regrets(records)
    sizes = sorted({key[3] for key in ends if key[1] == "decoupled"})
    dims = sorted({key[0] for key in ends if key[1] == "decoupled"})
    most = ("decoupled", "sobol", sizes[-1])
    others = [("decoupled", "sobol", ell) for ell in sizes[:-1]]
    others.append(("weight-space", "cosine", sizes[-1]))
    lines = []
    for other in others:
        by_dimension = [differences(ends.get((d, *most), {}), ends.get((d, *other), {})) for d in dims]
        if not any(map(len, by_dimension)):
            continue
        for name, x in [*zip(dims, by_dimension, strict=True), ("all", torch.cat(by_dimension))]:
            if len(x) > 1:
                error = float(x.std()) / math.sqrt(len(x))
                lines.append((name, " ".join(map(str, other)), len(x), float(x.mean()), error, permutation_test(x)))
    title = (
        f"Decoupled draws with {sizes[-1]} Sobol features against others: log10 of the regret's ratio, paired by task"
    )
    return Table(title, ["d", "against", "pairs", "mean", "standard error", "p"], lines)


def against_weight_space(records: Sequence[Mapping[str, Any]]) -> Table:
    """Decoupled draws against weight-space ones with as many basis functions: pairs, and runs that found the basin."""
    ends, lines = regrets(records), []
    for d, _, kind, ell in sorted((key for key in ends if key[1] == "decoupled"), key=lambda key: (key[2], *key)):
        ours, theirs = ends[d, "decoupled", kind, ell], ends.get((d, "weight-space", "cosine", ell), {})
        x = differences(ours, theirs)
        if len(x) > 1:
            found = [sum(of[i] < FOUND for i in set(ours) & set(theirs)) for of in (ours, theirs)]
            error = float(x.std()) / math.sqrt(len(x))
            lines.append((kind, d, ell, len(x), *found, float(x.mean()), error, permutation_test(x)))
    title = "Decoupled against weight-space draws with as many basis functions: log10 of the regret's ratio, by task"
    columns = ["features", "d", "ell", "pairs", "found, decoupled", "found, weight-space"]
    return Table(title, [*columns, "mean", "standard error", "p"], lines)


def report(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Report:
    rows = [
        {"d": d, "method": method, "features": features, "ell": ell, "last": end}
        for (d, method, features, ell), ends in sorted(regrets(records).items())
        for end in ends.values()
    ]
    by = ["d", "method", "features", "ell"]
    lines = [
        (*key, settings["rounds"] * key[0], len(ends), *quartiles(ends), sum(end < FOUND for end in ends))
        for key, ends in grouped(rows, by, "last").items()
    ]
    columns = [*by, "evaluations", "runs", *QUARTILES, "basin found"]
    table = Table(f"Regret at the end: quartiles over runs; runs that ended below {FOUND}", columns, lines)
    compared = comparisons(records)
    return Report(table, {"": lambda: figure(records)}, [f"{compared.title}:\n\n{compared.markdown()}"])


def figure(records: Sequence[Mapping[str, Any]]) -> Any:
    """A panel per dimension: the regret of each run, a column for each way of drawing, medians as bars."""
    from matheron_paper import style

    ends = regrets(records)
    dims = sorted({key[0] for key in ends})
    drawing, axes = style.panels(1, len(dims), width=4.2 * len(dims) + 0.6, height=3.4)
    for axis, d in zip(axes[0], dims, strict=True):
        mine = [(key, value) for key, value in sorted(ends.items()) if key[0] == d]
        for i, (_, value) in enumerate(mine):
            y = torch.tensor([value[t] for t in sorted(value)], dtype=torch.float64).clamp_min(paper.FLOOR)
            x = i + 0.3 * (torch.arange(len(y)) / max(1, len(y) - 1) - 0.5)
            axis.plot(x, y, "o", markersize=3, color=style.DECOUPLED, alpha=0.6)
            axis.hlines(float(y.quantile(0.5)), i - 0.3, i + 0.3, color="black")
        axis.set_xticks(range(len(mine)), [f"{k[1]}\n{k[2]} {k[3]}" for k, _ in mine], fontsize=6)
        axis.set_yscale("log")
        axis.set_title(rf"$d = {d}$")
    axes[0, 0].set_ylabel("regret at the end")
    return drawing


def missed(ell: int, d: int, num_functions: int = 16, mesh_size: int = 2048, num_starts: int = 8) -> tuple[int, float]:
    """How many drawn functions have a lower minimum than a budget finds, and the largest difference."""
    generator = torch.Generator().manual_seed(d)
    X = torch.rand(32 * d, d, generator=generator, dtype=torch.float64)
    y = matheron.draw_prior(paper.kernel(d), 1, input_dim=d, num_features=1024, generator=generator)(X)[0]
    gp = matheron.ExactGP(paper.kernel(d), X, y, paper.NOISE)
    paths = matheron.draw(gp, num_functions, num_features=ell, features="sobol", generator=generator)
    small, large = (
        matheron.minimize(paths, paper.unit_box(d), mesh_size=k * mesh_size, num_starts=k * num_starts, seed=k).value
        for k in (1, 4)
    )
    more = small - torch.minimum(small, large)
    return int((more > 1e-4).sum()), float(more.max())


EXPERIMENT = Experiment(
    "thompson-features",
    "Thompson sampling with more and more features, on the same tasks.",
    SCALES,
    cases,
    paper.run,
    report,
)


def main() -> None:
    options = parser(__doc__, "tasks in each dimension; 24 where not given", "few and short runs")
    options.add_argument("--test", type=Path, help="print the comparisons of a finished file, and run nothing")
    options.add_argument("--minimiser", action="store_true", help="ask whether more features are harder to minimise")
    args = options.parse_args()
    if args.minimiser:
        for d in SCALES["full"]["dims"]:
            for ell in SCALES["full"]["num_features"]:
                count, most = missed(ell, d)
                print(
                    f"d = {d}, {ell} features: the minimum of {count} of 16 functions was missed, by at most {most:.2g}"
                )
        return
    if args.test:
        records = [json.loads(line) for line in args.test.read_text().splitlines()[1:]]
        done = [record for record in records if "result" in record]
        for table in (comparisons(done), against_weight_space(done)):
            print(f"{table.title}\n\n{table.markdown()}")
        return
    run_and_exit(EXPERIMENT, args)


if __name__ == "__main__":
    # Under its own name, so that worker processes find it by that name.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import thompson_features

    thompson_features.main()
