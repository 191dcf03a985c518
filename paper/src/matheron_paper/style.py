"""How figures look: one style, colours that the colour-blind can tell apart, PNG and PDF side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import ArrayLike

from .report import Cell, Rows, grouped, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Matplotlib's settings. They belong to the paper's figures, which do not change when the library's plots do.
STYLE: Cell = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}
# Colours of Okabe and Ito's palette that are nearest to those of the paper.
EXACT, WEIGHT_SPACE, DECOUPLED, UPDATE, LOVE, FRESH, SPARSE, EXACT_POSTERIOR, EQUISPACED = (
    "#4d4d4d",  # grey
    "#d55e00",  # vermilion, for the paper's orange
    "#0072b2",  # blue
    "#aa4499",  # purple
    "#009e73",  # green
    "#000000",
    "#56b4e9",  # sky blue
    "#009e73",
    "#aa4499",
)
# One colour per dimension d, from purple to green with equal steps in lightness.
DIMENSIONS = ("#332288", "#0072b2", "#44aa99", "#999933", "#cc6677")
MARKERS = ("^", "D", "*", "s", "o", "v")


def panels(
    rows: int, columns: int, *, width: float = 9.0, height: float | None = None, **options: Cell
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes `[rows, columns]`."""
    figure = Figure(figsize=(width, height or 2.9 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def legend_below(figure: Figure, ncols: int) -> None:
    """One legend for all panels, each label once."""
    handles = _handles(figure)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=ncols)


def legend_by_columns(figure: Figure, column: Callable[[str], str]) -> None:
    """The same with a column for each value of `column(label)`; labels that are alone in theirs share the first."""
    columns: dict[str, list[str]] = {}
    handles = _handles(figure)
    for label in handles:
        columns.setdefault(column(label), []).append(label)
    alone = [labels[0] for labels in columns.values() if len(labels) == 1]
    shown = [alone] * bool(alone) + [labels for labels in columns.values() if len(labels) > 1]
    height = max(map(len, shown))
    empty = Line2D([], [], linestyle="")
    cells = [(handles.get(label, empty), label) for labels in shown for label in [*labels, *[""] * height][:height]]
    figure.legend(*zip(*cells, strict=True), loc="outside lower center", ncols=len(shown))


def _handles(figure: Figure) -> dict[str, Cell]:
    return {label: h for axis in figure.axes for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}


def tones(color: str, count: int) -> list[Cell]:
    """Light, medium, dark: one colour in `count` tones."""
    rgb = to_rgb(color)
    shades = [0.55 - 0.85 * i / max(1, count - 1) for i in range(count)] if count > 1 else [0.0]
    return [tuple(c + (1 - c) * s if s > 0 else c * (1 + s) for c in rgb) for s in shades]


def band(axis: Axes, x: ArrayLike, low: ArrayLike, middle: ArrayLike, high: ArrayLike, **options: Cell) -> None:
    """A median with its quartiles shaded."""
    if options.get("marker") == "*":
        options["markersize"] = 8
    (line,) = axis.plot(np.asarray(x), np.asarray(middle), **options)
    axis.fill_between(np.asarray(x), np.asarray(low), np.asarray(high), color=line.get_color(), alpha=0.2, linewidth=0)


def group_band(axis: Axes, rows: Rows, by: str, value: str, **options: Cell) -> None:
    """The median of a value against `by`, over rows that agree on it, with its quartiles shaded."""
    groups = grouped(rows, [by], value)
    band(axis, [x for (x,) in groups], *zip(*map(quartiles, groups.values()), strict=True), **options)


def quartile_band(axis: Axes, runs: ArrayLike, x: ArrayLike, *, floor: float | None = None, **options: Cell) -> None:
    """The median of runs `[r, n]` against x `[n]`, with their quartiles shaded; values below `floor` count as it."""
    values = np.asarray(runs, dtype=float)
    low, middle, high = np.quantile(values if floor is None else values.clip(floor), [0.25, 0.5, 0.75], axis=0)
    band(axis, x, low, middle, high, **options)


def plain_ticks(axis: Axes, x: Sequence[float]) -> None:
    """On logarithmic axes: ticks at the x that there are, and y written out, or as powers where it spans many."""
    axis.set_xticks(x, [f"{v:g}" for v in x])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    if high / low < 1e4:
        axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def save_figure(make: Callable[[], Figure], stem: Path) -> list[Path]:
    """Make a figure in our style; write `stem.png` and `stem.pdf`. Equal figures give equal files."""
    png, pdf = (stem.with_name(stem.name + suffix) for suffix in (".png", ".pdf"))
    with matplotlib.rc_context(STYLE):
        figure = make()
        figure.savefig(png, dpi=160, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]
