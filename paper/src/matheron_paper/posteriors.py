"""Figure 1: exact, sparse and random-feature posteriors of few and of many data; variance starvation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import location_scale, moments, weight_space, weight_space_moments

from .base import Experiment, Settings, Trial, scales
from .one_dimension import BANDS, curve, data, empirical, grid, law, sparse
from .report import Cell, Report, Row, Rows, quartile_table, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSTERIORS = {"exact": "exact GP", "sparse": "sparse GP", "random features": "random Fourier features"}
LAWS = ("empirical", "closed form")
_PATHS_SHOWN = 5
FEATURES = {"random features": "cosine"}

SCALES = scales(
    trials=(32, 4, 1),
    num_test=(1024, 1024, 64),
    num_draws=(100_000, 10_000, 1100),
    num_inducing=(8, 8, 8),
    num_features=(2000, 2000, 200),
)


def cases(settings: Settings) -> list[Row]:
    return [{"n": n, "posterior": posterior} for n in (4, 1000) for posterior in POSTERIORS]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One panel: a posterior in closed form, draws from it, and how far both are from the truth."""
    gp, x = data(trial, device)[trial.case["n"]], grid(settings["num_test"], device)
    truth = moments(gp, x)
    generator = trial.generator("draws", device=device)
    posterior, s = trial.case["posterior"], settings["num_draws"]
    inducing = None
    if posterior == "exact":
        closed, draws = truth, location_scale(gp, s, generator=generator)
    elif posterior == "sparse":
        model = sparse(gp, settings["num_inducing"])
        inducing = model.inducing_points[:, 0].tolist()
        closed, draws = moments(model, x), location_scale(model, s, generator=generator)
    else:
        draws = weight_space(
            gp, s, num_features=settings["num_features"], features=FEATURES["random features"], generator=generator
        )
        closed = weight_space_moments(gp, draws.prior.features, x)
    found, paths = empirical(draws, x, _PATHS_SHOWN)
    result: Row = {name: gaussian_wasserstein(*truth, *it) for name, it in zip(LAWS, (found, closed), strict=True)}
    if trial.number == 0:  # the figure shows the first trial
        points = [gp.train_inputs[:, 0].tolist(), gp.train_targets.tolist()] if trial.case["n"] == 4 else None
        result["figure"] = {
            "law": law(closed, x),
            "truth": law(truth, x),
            "paths": curve(paths),
            "inducing": inducing,
            "data": points,
        }
    return result


def report(records: Rows, settings: Settings) -> Report:
    rows = [
        {**record["case"], "law": law, "w2": record["result"][law], "trial": record["trial"]}
        for record in sorted(records, key=lambda r: (r["case"]["n"], list(POSTERIORS).index(r["case"]["posterior"])))
        for law in LAWS
    ]
    rows = [row for law in LAWS for row in rows if row["law"] == law]
    title = f"W2 to the exact posterior at {settings['num_test']} points, {settings['num_draws']:,} draws"
    table = quartile_table(title, rows, ["law", "n", "posterior"], "w2")
    shown = {(r["case"]["n"], r["case"]["posterior"]): r["result"] for r in records if "figure" in r["result"]}
    complete = len(shown) == len(cases(settings))
    return Report(table, {"": lambda: figure(shown, settings)} if complete else {}, where_the_figure_stands(rows))


def where_the_figure_stands(rows: Rows) -> list[str]:
    """In words: the distances that the figure shows beside the medians of all trials, where these differ most."""
    case = {"law": "empirical", "n": 1000, "posterior": "random features"}
    found = {row["trial"]: row["w2"] for row in rows if case.items() <= row.items()}
    if 0 not in found or len(found) == 1:
        return []
    middle = quartiles(list(found.values()))[1]
    return [
        f"The figure shows trial 0. Its distance for random features with n = 1000 is {found[0]:.3g}; the median over "
        f"{len(found)} trials is {middle:.3g}."
    ]


def figure(shown: Mapping[Cell, Mapping[str, Cell]], settings: Settings) -> Figure:
    from .style import EXACT_POSTERIOR, SPARSE, WEIGHT_SPACE, panels

    colors = dict(zip(POSTERIORS, (EXACT_POSTERIOR, SPARSE, WEIGHT_SPACE), strict=True))
    titles = dict(POSTERIORS)
    titles["sparse"] += f", $m = {settings['num_inducing']}$"
    titles["random features"] += rf", $\ell = {settings['num_features']}$"
    drawing, axes = panels(2, 3, width=9.6, height=4.9, sharex=True, sharey=True)
    for row, n in zip(axes, (4, 1000), strict=True):
        for axis, posterior in zip(row, POSTERIORS, strict=True):
            panel(axis, shown[n, posterior], colors[posterior])
            if n == 4:
                axis.set_title(titles[posterior])
            else:
                axis.set_xlabel("$x$")
        row[0].set_ylabel(f"$n = {n}$")
    return drawing


def panel(axis: Axes, result: Mapping[str, Cell], color: str) -> None:
    """A posterior, some of its paths, and the true posterior dashed."""
    curves = result["figure"]
    where_data_are(axis, curves["data"])
    mean_and_deviations(axis, curves["law"], color)
    for path in curves["paths"]:
        axis.plot(curves["law"]["x"], path, color=color, linewidth=0.7, alpha=0.7)
    dashed(axis, curves["truth"])
    if curves["inducing"]:
        axis.plot(curves["inducing"], [-4.0] * len(curves["inducing"]), "o", color="black", markerfacecolor="white")
    corner(axis, f"$W_2 = {result['empirical']:.2f}$ ({result['closed form']:.2f})")
    axis.set(xlim=(0, 1), ylim=(-5.2, 3.8))
    axis.grid(False)


def where_data_are(axis: Axes, points: Sequence[Sequence[float]] | None) -> None:
    """Bands where there are many data; lines and dots where there are few."""
    if points is None:
        for low, high in BANDS:
            axis.axvspan(low, high, color="#dddddd", linewidth=0, zorder=-2)
    else:
        for location in points[0]:
            axis.axvspan(location - 0.004, location + 0.004, color="#dddddd", linewidth=0, zorder=-2)
        axis.plot(*points, ".", color="black", markersize=4, zorder=5)


def mean_and_deviations(axis: Axes, of: Mapping[str, Sequence[float]], color: str) -> None:
    low, high = ([m + sign * 2 * s for m, s in zip(of["mean"], of["sd"], strict=True)] for sign in (-1, 1))
    axis.fill_between(of["x"], low, high, color=color, alpha=0.18, linewidth=0)
    axis.plot(of["x"], of["mean"], color=color, linewidth=1.6)


def dashed(axis: Axes, of: Mapping[str, Sequence[float]], label: str = "_") -> None:
    for sign in (-2, 0, 2):
        values = [m + sign * s for m, s in zip(of["mean"], of["sd"], strict=True)]
        axis.plot(of["x"], values, color="black", linestyle="--", linewidth=0.9, label=label if sign == 0 else "_")


def corner(axis: Axes, text: str) -> None:
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
    axis.text(0.98, 0.03, text, transform=axis.transAxes, ha="right", va="bottom", fontsize=8, bbox=box, zorder=6)


EXPERIMENT = Experiment("posteriors", __doc__, SCALES, cases, run, report, features=FEATURES)
