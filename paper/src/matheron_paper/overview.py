"""Figure 2: decoupled sampling step by step, a prior draw, its residuals, the update, and the law of the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

import matheron
from matheron.compare.metrics import gaussian_wasserstein
from matheron.compare.samplers import decoupled_moments, moments

from .base import Experiment, Settings, Trial, scales
from .one_dimension import curve, data, empirical, grid, law, sparse
from .posteriors import corner, dashed, mean_and_deviations, where_data_are
from .report import Cell, Report, Row, Rows, quartile_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PATHS_SHOWN = 5
FEATURES = {"decoupled": "cosine"}
LAWS = ("sparse posterior, closed form", "decoupled, empirical", "decoupled, closed form")

SCALES = scales(
    trials=(32, 6, 1),
    num_test=(1024, 1024, 64),
    num_draws=(100_000, 10_000, 1100),
    num_inducing=(8, 8, 8),
    num_features=(1000, 1000, 200),
)


def cases(settings: Settings) -> list[Row]:
    return [{"n": 1000}]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """Draw from a sparse posterior by Matheron's rule; keep the parts of the first path."""
    gp, x = data(trial, device)[trial.case["n"]], grid(settings["num_test"], device)
    truth, model = moments(gp, x), sparse(gp, settings["num_inducing"])
    paths = matheron.draw(
        model,
        settings["num_draws"],
        num_features=settings["num_features"],
        features=FEATURES["decoupled"],
        paths_per_basis=None,
        generator=trial.generator("draws", device=device),
    )
    assert isinstance(paths, matheron.Paths)
    found, some = empirical(paths, x, _PATHS_SHOWN)
    closed, of_sparse = decoupled_moments(model, paths.prior.features, x), moments(model, x)
    result: Row = dict(zip(LAWS, (gaussian_wasserstein(*truth, *it) for it in (of_sparse, found, closed)), strict=True))
    if trial.number == 0:  # the figure shows the first trial
        first, Z = paths[0], model.inducing_points
        prior = first.prior.sums(x[None])[0, 0]  # [*]
        result["figure"] = {
            "prior": curve(prior),
            "update": curve(first(x)[0] - prior),
            "path": curve(first(x)[0]),
            "Z": Z[:, 0].tolist(),
            "f(Z)": first.prior.sums(Z[None])[0, 0].tolist(),
            "u": first(Z)[0].tolist(),  # a path passes through its own u
            "paths": curve(some),
            "law": law(found, x),
            "sparse": law(of_sparse, x),
        }
    return result


def report(records: Rows, settings: Settings) -> Report:
    rows = [{"law": name, "w2": record["result"][name]} for name in LAWS for record in records]
    title = f"W2 to the exact posterior at {settings['num_test']} points, {settings['num_draws']:,} draws"
    shown = [record["result"] for record in records if "figure" in record["result"]]
    return Report(quartile_table(title, rows, ["law"], "w2"), {"": lambda: figure(shown[0])} if shown else {})


def figure(result: Mapping[str, Cell]) -> Figure:
    from .style import DECOUPLED, UPDATE, WEIGHT_SPACE, legend_below, panels

    shown = result["figure"]
    x = shown["law"]["x"]
    drawing, axes = panels(1, 3, width=9.6, height=3.4, sharex=True, sharey=True)
    left, middle, right = axes[0]
    for axis in axes[0]:
        where_data_are(axis, None)
        axis.grid(False)
        axis.set(xlim=(0, 1), xlabel="$x$")
    left.plot(x, shown["prior"], color=WEIGHT_SPACE, label="prior draw $f$")
    left.vlines(shown["Z"], shown["f(Z)"], shown["u"], color="black", linestyle="--", linewidth=1, label="residuals")
    for axis in (left, middle):
        circles = {"color": "black", "markerfacecolor": "white", "zorder": 5}
        axis.plot(shown["Z"], shown["u"], "o", label="$u$ at $Z$", **circles)
    left.set_title("prior draw and residuals")
    middle.plot(x, shown["prior"], color=WEIGHT_SPACE, linewidth=1, alpha=0.6)
    middle.plot(x, shown["update"], color=UPDATE, label="update")
    middle.plot(x, shown["path"], color=DECOUPLED, label=r"$f \mid u$")
    middle.set_title("update and posterior draw")
    mean_and_deviations(right, shown["law"], DECOUPLED)
    for path in shown["paths"]:
        right.plot(x, path, color=DECOUPLED, linewidth=0.7, alpha=0.7)
    dashed(right, shown["sparse"], "sparse posterior")
    right.set_title("law of the draws")
    corner(right, f"$W_2 = {result[LAWS[1]]:.2f}$ ({result[LAWS[2]]:.2f}); sparse ({result[LAWS[0]]:.2f})")
    lowest = min(min(shown[name]) for name in ("prior", "update", "path", "u"))
    left.set_ylim(min(-3.2, lowest) - 1.0, None)
    legend_below(drawing, 6)
    return drawing


EXPERIMENT = Experiment("overview", __doc__, SCALES, cases, run, report, features=FEATURES)
