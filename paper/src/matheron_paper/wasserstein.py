"""Figure 3: 2-Wasserstein distances between true posteriors and the empirical laws of draws, against n."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from .base import Experiment, Settings, Trial, scales
from .report import Report, Row, Rows, grouped, quartile_table, quartiles
from .sampling import FEATURES, Blocks, decoupled, exact, fresh, measured, problem, weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from matheron import ExactGP

# The paper's curves, and one with leverage features.
KINDS = {**FEATURES, "leverage": "leverage"}
# Equispaced features are used up to this dimension.
_EQUISPACED_UP_TO = 2

SCALES = scales(
    trials=(64, 4, 2),
    dims=([2, 4, 8], [2, 4, 8], [2, 4]),
    num_data=([4, 16, 64, 256, 1024], [4, 16, 64, 256], [4, 64]),
    num_features=([1024, 4096, 16384], [128, 512, 2048], [16, 64]),
    num_test=(1024, 256, 32),
    num_draws=(100_000, 8192, 512),
)


def cases(settings: Settings) -> list[dict[str, int]]:
    return [{"d": d, "n": n} for d in settings["dims"] for n in settings["num_data"]]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem, and every sampler on it."""
    d, n = trial.case["d"], trial.case["n"]
    generator = trial.generator("problem")
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    gp, x = problem(X, settings["num_test"], generator, device)
    return {"rows": measured(gp, x, samplers(gp, x, settings["num_features"]), trial, settings["num_draws"])}


def samplers(
    gp: ExactGP, x: torch.Tensor, sizes: Sequence[int], extensions: bool = True
) -> Iterator[tuple[str, int | None, Blocks]]:
    """Every sampler of the figure: its name, its number of features, and its draws; with or without our extensions."""
    yield "exact", None, exact(gp, x)
    for ell in sizes:
        yield "weight-space", ell, weights(gp, x, gp.num_data + ell)  # both have b = m + ell basis functions
        yield "decoupled", ell, decoupled(gp, x, ell)
        if extensions:
            yield "leverage", ell, decoupled(gp, x, ell, KINDS["leverage"])
        if extensions and gp.input_dim <= _EQUISPACED_UP_TO:
            yield "equispaced", ell, decoupled(gp, x, ell, FEATURES["equispaced"])
    yield "fresh bases", min(sizes), fresh(gp, x, min(sizes))


def flat(records: Rows) -> list[Row]:
    """One row per sampler and trial, in the order in which the table shows them."""
    return flat_by("n", records, METHODS)


def flat_by(across: str, records: Rows, methods: Sequence[str] | Mapping[str, str]) -> list[Row]:
    """The same of an experiment whose columns are `across`, with its methods in their order."""
    rows = [{**record["case"], **row} for record in records for row in record["result"]["rows"]]
    order = list(methods).index
    return sorted(rows, key=lambda row: (row["d"], row[across], order(row["method"]), row["ell"] or 0))


# The names of the samplers in figures, in the order of the table.
METHODS = {
    "exact": "exact",
    "weight-space": "weight-space",
    "LOVE": "LOVE",
    "decoupled": "decoupled",
    "leverage": "decoupled, by leverage",
    "equispaced": "decoupled, equispaced features",
    "fresh bases": "decoupled, a basis for every 64 paths",
    "orthogonal": "orthogonal",
}


# The curves of the paper's figures, and those of a second figure: decoupled draws and the alternatives to them.
PAPER = ("exact", "weight-space", "LOVE", "decoupled")
OURS = ("exact", "decoupled", "leverage", "equispaced", "fresh bases")


def report(records: Rows, settings: Settings) -> Report:
    rows = flat(records)
    title = f"W2 to the true posterior, {settings['num_draws']:,} draws at {settings['num_test']} test points"
    table = quartile_table(title, rows, ["d", "n", "method", "ell"], "w2", across="n")
    figures = {"": lambda: figure([row for row in rows if row["method"] in PAPER], settings)}
    if any(row["method"] in OURS and row["ell"] for row in rows):
        figures["ours"] = lambda: figure([row for row in rows if row["method"] in OURS], settings)
    return Report(table, figures, [seconds_of_drawing(rows)])


def seconds_of_drawing(rows: Rows, across: str = "n") -> str:
    """What the samplers cost at the largest problem."""
    n = max(row[across] for row in rows)
    groups = grouped([row for row in rows if row[across] == n], ["method", "ell"], "seconds")
    parts = [f"{m}{f' {ell}' if ell else ''} {quartiles(s)[1]:.2g} s" for (m, ell), s in groups.items()]
    return f"Median time of drawing at {across} = {n}: {', '.join(parts)}"


def figure(
    rows: Rows, settings: Settings, across: str = "n", label: str = "training points $n$", sharey: bool = True
) -> Figure:
    """One panel per dimension: medians over trials against `across`, quartiles shaded."""
    from .style import legend_by_columns, panels

    dims = sorted({row["d"] for row in rows})
    drawing, axes = panels(1, len(dims), width=3.2 * len(dims) + 0.6, height=3.9, sharey=sharey)
    for axis, d in zip(axes[0], dims, strict=True):
        curves(axis, [row for row in rows if row["d"] == d], settings["num_features"], across)
        axis.set(title=f"$d = {d}$", xlabel=label)
    axes[0, 0].set_ylabel("2-Wasserstein distance")
    legend_by_columns(drawing, lambda label: label.partition(r", $\ell")[0])
    return drawing


def curves(axis: Axes, rows: Rows, sizes: Sequence[int], across: str = "n") -> None:
    """W2 against `across` for every sampler: a colour per sampler, a tone and a marker per number of features."""
    from . import style

    toned = {"weight-space": style.WEIGHT_SPACE, "decoupled": style.DECOUPLED, "leverage": style.DIMENSIONS[3]}
    toned["orthogonal"] = style.UPDATE
    looks: dict[str, Row] = {
        "exact": {"color": style.EXACT, "linestyle": ":", "linewidth": 2, "zorder": 5},
        "LOVE": {"color": style.LOVE, "marker": "s"},
        "equispaced": {"color": style.EQUISPACED, "linestyle": "--", "markerfacecolor": "white"},
        "orthogonal": {"linestyle": "--", "zorder": 4},  # over the decoupled curves, which it is near
        "fresh bases": {"color": style.FRESH, "linestyle": "-.", "markerfacecolor": "white"},
    }
    for method, ell in dict.fromkeys((row["method"], row["ell"]) for row in rows):
        look = {"label": METHODS[method], **looks.get(method, {})}
        if ell is not None:
            i = list(sizes).index(ell)
            look |= {"marker": style.MARKERS[i], "label": rf"{METHODS[method]}, $\ell = {ell}$"}
            look |= {"color": style.tones(toned[method], len(sizes))[i]} if method in toned else {}
        mine = [row for row in rows if (row["method"], row["ell"]) == (method, ell)]
        style.group_band(axis, mine, across, "w2", **look)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    style.plain_ticks(axis, sorted({row[across] for row in rows}))


# version 2 has lattices as equispaced features; version 3 bounds the errors of leverage far from data
EXPERIMENT = Experiment("wasserstein", __doc__, SCALES, cases, run, report, version=3, features=KINDS)
