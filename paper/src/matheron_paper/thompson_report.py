"""Regret and run times of parallel Thompson sampling, as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .base import Settings
from .report import QUARTILES, Cell, Report, Row, Rows, Table, grouped, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's curves, and decoupled draws with other frequencies beside the paper's cosines.
EXTENSIONS = {"sobol": "decoupled, Sobol", "leverage": "decoupled, leverage"}
METHODS = ("random", "DIRECT", "function-space", "weight-space", "decoupled", *EXTENSIONS.values())
PAPER, OURS = METHODS[:5], METHODS[4:]
# Where a strategy has found the minimum to within this, logarithms say no more.
FLOOR = 1e-6


def flat(records: Rows) -> list[Row]:
    """One row per run, with its regret after each round.

    A task's minimum is the lowest value that anybody has found: descent's from many starts, or a strategy's.
    """
    lowest: dict[tuple[int, int], float] = {}
    for record in records:
        key, result = (record["case"]["d"], record["trial"]), record["result"]
        lowest[key] = min(lowest.get(key, math.inf), result["minimum"], result["best"][-1])
    rows = []
    for record in records:
        regret = [best - lowest[record["case"]["d"], record["trial"]] for best in record["result"]["best"]]
        row = {"kappa": record["case"]["d"], **record["case"], "method": name(record["case"]), "regret": regret}
        row |= {"last": regret[-1], "seconds": record["result"]["seconds"], "together": record.get("together", 1)}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["d"], METHODS.index(row["method"]), row["ell"] or 0, row["kappa"]))


def name(case: Mapping[str, Cell]) -> str:
    """What a case's strategy is called: the paper's decoupled draws have cosines."""
    method = str(case["method"])
    return EXTENSIONS.get(str(case.get("features", "sobol")), method) if method == "decoupled" else method


def report(records: Rows, settings: Settings) -> Report:
    rows, by = flat(records), ["d", "method", "ell", "kappa"]
    regrets, seconds = grouped(rows, by, "last"), grouped(rows, by, "seconds")
    lines = [
        (*key, settings["rounds"] * key[0], len(values), *quartiles(values), quartiles(seconds[key])[1])
        for key, values in regrets.items()
    ]
    columns = ["d", "method", "ell", "points a round", "evaluations", "runs", *QUARTILES, "seconds"]
    table = Table("Regret at the end: quartiles over runs; median seconds of choosing points, per run", columns, lines)
    usual = [row for row in rows if row["kappa"] == row["d"]]
    papers, ours = ([row for row in usual if row["method"] in shown] for shown in (PAPER, OURS))
    figures = {
        "": lambda: figure(papers, settings["num_features"][:1]),
        "full": lambda: figure(papers, settings["num_features"]),
        "ours": lambda: figure(ours, settings["num_features"]),
    }
    if all(row["together"] == 1 for row in usual):  # trials that are run together share their time
        figures["runtimes"] = lambda: figure(usual, settings["num_features"], runtimes=True)
    return Report(table, figures)


def figure(rows: Rows, sizes: Sequence[int], runtimes: bool = False) -> Figure:
    """A panel for each dimension and number of features: regret against evaluations, or how long runs took."""
    from .style import legend_below, panels

    dims = sorted({row["d"] for row in rows})
    height = 0.9 + (2.9 if len(sizes) == 1 else 2.3 * len(sizes))
    drawing, axes = panels(len(sizes), len(dims), width=3.4 * len(dims) + 0.6, height=height, sharey=runtimes)
    for i, ell in enumerate(sizes):
        for axis, d in zip(axes[i], dims, strict=True):
            mine = [row for row in rows if row["d"] == d and row["ell"] in (None, ell)]
            (run_times if runtimes else curves)(axis, mine)
            axis.set_title(rf"$d = {d}$, $\ell = {ell}$")
        axes[i, 0].set_ylabel("share of runs" if runtimes else "regret")
    for axis in axes[-1]:
        axis.set_xlabel("seconds per run" if runtimes else "evaluations")
    legend_below(drawing, 6 if len(dims) > 2 else 3)
    return drawing


def curves(axis: Axes, rows: Rows) -> None:
    """Medians of regret on a logarithmic scale, quartiles shaded."""
    from .style import quartile_band

    for method in METHODS:
        regret = [row["regret"] for row in rows if row["method"] == method]
        if regret:
            evaluations = [rows[0]["d"] * (i + 1) for i in range(len(regret[0]))]
            quartile_band(axis, regret, evaluations, floor=FLOOR, **_style(method))
    axis.set_yscale("log")


def run_times(axis: Axes, rows: Rows) -> None:
    """The share of runs that took at most a number of seconds."""
    for method in METHODS:
        seconds = [max(row["seconds"], 1e-4) for row in rows if row["method"] == method]
        if seconds:
            axis.ecdf(seconds, **_style(method))
    axis.set_xscale("log")


def _style(method: str) -> Row:
    from .style import DECOUPLED, DIMENSIONS, EXACT, EXACT_POSTERIOR, FRESH, UPDATE, WEIGHT_SPACE

    colors = (EXACT, FRESH, EXACT_POSTERIOR, WEIGHT_SPACE, DECOUPLED, UPDATE, DIMENSIONS[3])
    lines = (":", "--", "-.", "-", "-", "--", (0, (5, 1, 1, 1)))
    i = METHODS.index(method)
    return {"label": method, "color": colors[i], "linestyle": lines[i]}
