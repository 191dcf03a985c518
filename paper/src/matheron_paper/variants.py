"""Appendix A: sparse posteriors drawn in weight space and by orthogonal parts, beside decoupled draws, against m."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import matheron
from matheron.compare.samplers import location_scale, orthogonal, weight_space_sparse

from .base import Experiment, Settings, Trial, scales
from .one_dimension import optimal_q
from .report import Report, Row, Rows, quartile_table
from .sampling import Blocks, Draw, in_blocks, measured, problem
from .wasserstein import flat_by, seconds_of_drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEATURES = {"decoupled": "cosine", "weight-space": "cosine", "orthogonal": "cosine"}
# How each sampler is called in the figure; the order is that of the table.
METHODS = {"exact": "exact", "weight-space": "weight-space", "orthogonal": "orthogonal parts", "decoupled": "decoupled"}

SCALES = scales(
    trials=(32, 4, 1),
    dims=([2, 4], [2, 4], [2]),
    num_data=(1024, 256, 32),
    num_inducing=([4, 16, 64, 256], [4, 16, 64], [4, 8]),
    num_features=([1024, 4096, 16384], [128, 512, 2048], [16, 64]),
    num_test=(1024, 256, 32),
    num_draws=(100_000, 8192, 512),
)


def cases(settings: Settings) -> list[dict[str, int]]:
    return [{"d": d, "m": m} for d in settings["dims"] for m in settings["num_inducing"]]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem, its sparse posterior at the first m of the data, and every sampler of that posterior."""
    d, m = trial.case["d"], trial.case["m"]
    generator = trial.generator("problem", shared=["d"])
    X = torch.rand(settings["num_data"], d, generator=generator, dtype=torch.float64)
    gp, x = problem(X, settings["num_test"], generator, torch.device("cpu"))
    model, x = optimal_q(gp, gp.train_inputs[:m]).to(device), x.to(device)
    return {"rows": measured(model, x, _samplers(model, x, settings["num_features"]), trial, settings["num_draws"])}


def _samplers(model: matheron.SparseGP, x: Tensor, sizes: list[int]) -> Iterator[tuple[str, int | None, Blocks]]:
    yield "exact", None, lambda count, generator: location_scale(model, count, generator=generator).blocks(x)
    draws: dict[str, Draw] = {
        "weight-space": partial(weight_space_sparse, model),
        "orthogonal": partial(orthogonal, model),
        "decoupled": partial(matheron.draw, model, paths_per_basis=None),
    }
    for ell in sizes:
        for name, draw in draws.items():
            size = ell + model.num_inducing if name == "weight-space" else ell  # as many functions as decoupled has
            yield name, ell, in_blocks(draw, x, size, FEATURES[name])


def report(records: Rows, settings: Settings) -> Report:
    rows = flat_by("m", records, METHODS)
    title = f"W2 to the sparse posterior, {settings['num_draws']:,} draws at {settings['num_test']} test points"
    table = quartile_table(title, rows, ["d", "m", "method", "ell"], "w2", across="m")
    return Report(table, {"": lambda: figure(rows, settings)}, [seconds_of_drawing(rows, "m")])


def figure(rows: Rows, settings: Settings) -> Figure:
    """One panel per dimension: medians over trials against the number of inducing points, quartiles shaded."""
    from . import style

    dims, sizes = sorted({row["d"] for row in rows}), settings["num_features"]
    colors = {"weight-space": style.WEIGHT_SPACE, "decoupled": style.DECOUPLED, "orthogonal": style.LOVE}
    drawing, axes = style.panels(1, len(dims), width=3.6 * len(dims) + 0.6, height=3.9, sharey=True)
    for axis, d in zip(axes[0], dims, strict=True):
        for method, ell in dict.fromkeys((row["method"], row["ell"]) for row in rows):
            look: Row = {"color": style.EXACT, "linestyle": ":", "linewidth": 2, "label": METHODS[method]}
            if ell is not None:
                i = sizes.index(ell)
                look = {"color": style.tones(colors[method], len(sizes))[i], "marker": style.MARKERS[i]}
                look["label"] = rf"{METHODS[method]}, $\ell = {ell}$"
            mine = [row for row in rows if (row["d"], row["method"], row["ell"]) == (d, method, ell)]
            style.group_band(axis, mine, "m", "w2", **look)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set(title=f"$d = {d}$", xlabel="inducing points $m$")
        style.plain_ticks(axis, sorted({row["m"] for row in rows}))
    axes[0, 0].set_ylabel("2-Wasserstein distance")
    style.legend_below(drawing, 2)
    return drawing


EXPERIMENT = Experiment("variants", __doc__, SCALES, cases, run, report, features=FEATURES)
