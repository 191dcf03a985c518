"""Log-log figures of a run: time and memory against N, with guides of known slopes, and time against n, ell and S."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from results import ORDER, Results

COLOURS = dict(zip(ORDER, ("#c1121f", "#0072b2", "#9b5de5", "#009e73", "#e69f00", "#777777"), strict=True))
MARKERS = dict(zip(ORDER, "osD^vP", strict=True))
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "svg.hashsalt": "matheron",
}


def has(results: Results, name: str) -> bool:
    """Whether there is something to draw a line through."""
    for variable in "N" if name == "figure-N" else ("n", "ell", "S"):
        if any(len({row[variable] for row in results.sweep(task, variable)}) > 1 for task in ("draw", "evaluate")):
            return True
    return False


def digest(results: Results) -> str:
    """Of all that the figures show: a figure carries it, so that a test sees whether it is of these results."""
    return hashlib.sha256(json.dumps(results.data, sort_keys=True).encode()).hexdigest()[:16]


def save(results: Results, folder: Path) -> list[Path]:
    """Write the figures as SVG."""
    written = []
    for name, draw in FIGURES.items():
        if not has(results, name):
            continue
        with plt.rc_context(STYLE):
            figure = draw(results)
            path = folder / f"performance-{results.name}-{name}.svg"
            note = {"Date": None, "Creator": "matheron", "Description": digest(results)}
            figure.savefig(path, metadata=note, bbox_inches="tight")
            plt.close(figure)
        written.append(path)
    return written


def against_points(results: Results) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(12, 4.4), layout="constrained")
    panels = (("evaluate", "seconds", (1, 3)), ("gradient", "seconds", (1, 3)), ("evaluate", "bytes", (1, 2)))
    for axis, (task, key, slopes) in zip(axes, panels, strict=True):
        axis.set_visible(bool(results.sweep(task, "N")))
        lines(axis, results.sweep(task, "N"), "N", key)
        guides(axis, slopes)
        axis.set_xlabel("N, points")
        axis.set_title({"seconds": f"{task}: seconds", "bytes": f"{task}: memory, bytes"}[key], loc="left", fontsize=10)
    legend(figure, results, {row["library"] for row in results.sweep("evaluate", "N")}, scaled=True)
    base = results.base
    figure.suptitle(f"n={base['n']}, ell={base['ell']}, S={base['S']}, float64", x=0.01, ha="left", fontsize=10)
    return figure


def against_sizes(results: Results) -> Any:
    figure, axes = plt.subplots(3, 3, figsize=(11, 8.5), layout="constrained", sharey="row")
    names = {"n": "n, observations", "ell": "ell, features", "S": "S, paths"}
    for down, task in enumerate(("draw", "evaluate", "gradient")):
        for across, variable in enumerate(names):
            axis = axes[down, across]
            axis.set_visible(bool(results.sweep(task, variable)))
            lines(axis, results.sweep(task, variable), variable, "seconds")
            values = getattr(results.sweeps, variable)
            axis.set_xticks(values, [f"{value:,}" for value in values])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.set_title(f"{task}, against {variable}", loc="left", fontsize=10)
            if down == 2:
                axis.set_xlabel(names[variable])
            if across == 0:
                axis.set_ylabel("seconds")
    legend(figure, results, {row["library"] for row in results.sweep("evaluate", "n")})
    base = results.base
    text = f"elsewhere N={base['N']:,}, n={base['n']}, ell={base['ell']}, S={base['S']}, float64"
    figure.suptitle(text, x=0.01, ha="left", fontsize=10)
    return figure


def lines(axis: Axes, rows: list[dict[str, Any]], variable: str, key: str) -> None:
    """A line for each library, the spread as bars; hollow where scaled up."""
    for name in ORDER:
        found = [row for row in rows if row["library"] == name and row.get(key, 0) > 0]
        found.sort(key=lambda row: row[variable])
        if not found:
            continue
        x, y = [row[variable] for row in found], [row[key] for row in found]
        width = 2.2 if name == "matheron" else 1.3
        axis.plot(x, y, color=COLOURS[name], linewidth=width, zorder=3 if name == "matheron" else 2)
        for row in found:
            fill = "white" if "scaled_by" in row else COLOURS[name]
            axis.plot(
                row[variable],
                row[key],
                MARKERS[name],
                color=COLOURS[name],
                markerfacecolor=fill,
                markersize=5.5,
                zorder=4,
            )
            if key == "seconds":
                axis.vlines(row[variable], row["least"], row["most"], color=COLOURS[name], linewidth=1)
    axis.set(xscale="log", yscale="log")


def guides(axis: Axes, slopes: tuple[int, ...]) -> None:
    """Lines of known slopes, from one point below the data."""
    (x0, x1), (y0, y1) = axis.get_xlim(), axis.get_ylim()
    y0 /= 6
    left, bottom = x0 * (x1 / x0) ** 0.4, 1.6 * y0
    for slope in slopes:
        right = min(x1 / 1.3, left * (y1 / bottom) ** (0.65 / slope))
        top = bottom * (right / left) ** slope
        style = "--" if slope == 1 else ":"
        axis.plot([left, right], [bottom, top], color="#888888", linewidth=1.2, linestyle=style, zorder=1)
        name = {1: "linear", 2: "quadratic", 3: "cubic"}[slope]
        place = {"xytext": (-4, 2) if slope == 1 else (4, -8), "ha": "right" if slope == 1 else "left"}
        axis.annotate(name, (right, top), color="#555555", fontsize=8, textcoords="offset points", **place)
    axis.set(xlim=(x0, x1), ylim=(y0, y1))


def legend(figure: Any, results: Results, libraries: set[str], scaled: bool = False) -> None:
    handles = [
        Line2D(
            [], [], color=COLOURS[name], marker=MARKERS[name], label=name, linewidth=2.2 if name == "matheron" else 1.3
        )
        for name in ORDER
        if name in libraries
    ]
    if scaled and any("scaled_by" in row for row in results.rows):
        handles.append(
            Line2D(
                [],
                [],
                color=COLOURS["BoTorch"],
                marker="s",
                markerfacecolor="white",
                linestyle="",
                label="scaled up from fewer points",
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)


FIGURES = {"figure-N": against_points, "figure-sizes": against_sizes}
