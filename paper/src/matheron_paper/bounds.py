"""The paper's two propositions, measured: the covariance error falls as ell^-1/2 in every dimension, and is bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch.quasirandom import SobolEngine

import matheron
from matheron.compare.bounds import (
    constants,
    covariance_bound,
    covariance_rate,
    fourier_constant,
    lebesgue_constant,
    wasserstein_bound,
)

from .base import Experiment, Settings, Trial, scales, stable_hash
from .one_dimension import optimal_q
from .report import Report, Row, Rows, grouped, quartile_table, quartiles
from .sampling import problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOMAIN = (0.0, 1.0)
FEATURES = {"decoupled": "cosine"}  # what the propositions are about

SCALES = scales(
    trials=(32, 8, 2),
    dims=([1, 2, 4, 8], [1, 2, 4, 8], [1, 4]),
    num_features=([64, 256, 1024, 4096, 16384], [64, 256, 1024, 4096], [16, 64, 256]),
    num_data=(8, 8, 4),
    num_sparse_data=(64, 64, 16),
    num_test=(512, 128, 24),
    num_bases=(64, 16, 8),
)


# A posterior of few data, and a sparse one of more data, whose own error is a term of both bounds.
MODELS = ("exact", "sparse")


def cases(settings: Settings) -> list[Row]:
    return [{"d": d, "model": model} for model in MODELS for d in settings["dims"]]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem: both sides of both propositions for every ell."""
    d, m, is_sparse = trial.case["d"], settings["num_data"], trial.case["model"] == "sparse"
    generator = trial.generator("problem")
    n = settings["num_sparse_data"] if is_sparse else m
    exact, _ = problem(torch.rand(n, d, generator=generator, dtype=torch.float64), 1, generator, device)
    gp = optimal_q(exact, exact.train_inputs.cpu()[:m]).to(device) if is_sparse else exact
    net = SobolEngine(d, scramble=True, seed=stable_hash(trial.key, trial.seed) % 2**31)
    x = net.draw(settings["num_test"], dtype=torch.float64).to(device)  # even over the cube
    kind, num_bases = FEATURES["decoupled"], settings["num_bases"]
    rate = covariance_rate(
        gp, x, settings["num_features"], kind=kind, num_bases=num_bases, generator=trial.generator("bases")
    )
    C2, L = fourier_constant(gp.kernel, _DOMAIN, input_dim=d), lebesgue_constant(gp, x)
    of = constants(gp, _DOMAIN)
    rows = []
    for ell, error in zip(rate.num_features, rate.errors, strict=True):
        paths = matheron.draw(gp, 1, num_features=ell, features=kind, generator=trial.generator("basis", str(ell)))
        assert isinstance(paths, matheron.Paths)
        coupling = trial.generator("coupling", str(ell))
        w2 = wasserstein_bound(gp, paths, x, _DOMAIN, exact=exact if is_sparse else None, generator=coupling)
        sparse_error = 0.0
        if is_sparse:
            against = trial.generator("bases", str(ell))
            of_both = covariance_bound(
                gp, ell, x, _DOMAIN, exact=exact, kind=kind, num_bases=num_bases, generator=against
            )
            error, sparse_error = of_both.measured, of_both.sparse_error
        rows.append(
            {
                "ell": ell,
                "covariance error": error,
                "covariance bound": sparse_error + C2 * of.C3 / math.sqrt(ell),
                "with the Lebesgue constant": sparse_error + C2 * (1 + L) ** 2 / math.sqrt(ell),
                "of it sparse": sparse_error,
                "W2": w2.measured,
                "W2 bound": w2.bound,
                "W2 of it sparse": w2.sparse_error,
            }
        )
    return {"slope": rate.slope, "standard error": rate.standard_error, "rows": rows}


def flat(records: Rows) -> list[Row]:
    """One row per ell and trial, with how many times each bound is what it bounds."""
    rows = [{**r["case"], **row} for r in records for row in r["result"]["rows"]]
    for row in rows:
        row["covariance ratio"] = row["covariance bound"] / row["covariance error"]
        row["Lebesgue ratio"] = row["with the Lebesgue constant"] / row["covariance error"]
        row["W2 ratio"] = row["W2 bound"] / row["W2"]
        row["covariance share"] = row["of it sparse"] / row["covariance error"]
        row["W2 share"] = row["W2 of it sparse"] / row["W2"]
    return sorted(rows, key=lambda row: (MODELS.index(row["model"]), row["d"], row["ell"]))


RATIOS = {
    "covariance ratio": "covariance bound / error",
    "Lebesgue ratio": "the same, with the Lebesgue constant",
    "W2 ratio": "W2 bound / distance",
}
# Of a sparse model, at the largest ell: its own error over the error of decoupled draws.
SHARES = {"covariance share": "sparse error / covariance error", "W2 share": "sparse error / W2 distance"}


def report(records: Rows, settings: Settings) -> Report:
    lines = []
    for record in sorted(records, key=lambda record: (MODELS.index(record["case"]["model"]), record["case"]["d"])):
        rows, case = flat([record]), record["case"]
        lines.append({**case, "quantity": "slope of the covariance error", "value": record["result"]["slope"]})
        lines += [{**case, "quantity": RATIOS[name], "value": min(row[name] for row in rows)} for name in RATIOS]
        if case["model"] == "sparse":
            lines += [{**case, "quantity": SHARES[name], "value": rows[-1][name]} for name in SHARES]
    title = "Both propositions; ratios are the smallest over ell"
    table = quartile_table(title, lines, ["model", "d", "quantity"], "value")
    rows = flat(records)
    broken = sum(row[name] < 1 for row in rows for name in RATIOS)
    remark = f"The bounds were broken in {broken} of {len(RATIOS) * len(rows)} comparisons."
    slopes = grouped([line for line in lines if line["quantity"].startswith("slope")], ["model", "d"], "value")
    medians = {key: quartiles(values)[1] for key, values in slopes.items()}
    return Report(table, {"": lambda: figure(rows, medians)}, [remark])


def figure(rows: Rows, slopes: Mapping[tuple[str, int], float]) -> Figure:
    """A row of panels for each model: the error, and how many times both bounds are what they bound."""
    from .style import legend_below, panels

    models = [model for model in MODELS if any(row["model"] == model for row in rows)]
    drawing, axes = panels(len(models), 3, width=9.6, height=0.8 + 3.0 * len(models))
    for line, model in zip(axes, models, strict=True):
        own = {d: slope for (of, d), slope in slopes.items() if of == model}
        _panels(line, [row for row in rows if row["model"] == model], own, model)
    legend_below(drawing, 3)
    return drawing


def _panels(axes: Sequence[Axes], rows: Rows, slopes: Mapping[int, float], model: str) -> None:
    from .style import DIMENSIONS, MARKERS, group_band, plain_ticks

    left, middle, right = axes
    sizes = sorted({row["ell"] for row in rows})
    for i, (d, slope) in enumerate(sorted(slopes.items())):
        mine = [row for row in rows if row["d"] == d]
        look: Row = {"color": DIMENSIONS[i], "marker": MARKERS[i]}
        group_band(left, mine, "ell", "covariance error", label=f"{model}, $d = {d}$: slope {slope:.2f}", **look)
        group_band(middle, mine, "ell", "covariance ratio", **look)
        group_band(middle, mine, "ell", "Lebesgue ratio", linestyle="--", markerfacecolor="white", **look)
        group_band(right, mine, "ell", "W2 ratio", **look)
    start = 2.5 * max(row["covariance error"] for row in rows if row["ell"] == sizes[0])
    reference = [start * (ell / sizes[0]) ** -0.5 for ell in sizes]
    left.plot(sizes, reference, color="black", linestyle=":", label="slope -1/2")
    middle.plot([], [], color="grey", linestyle="--", label="with the Lebesgue constant")
    titles = (r"$\sup\,|k^{(d)} - k^{(f\mid y)}|$", "covariance: bound / error", "$W_2$: bound / distance")
    for axis, title in zip(axes, (f"{model}: {title}" for title in titles), strict=True):
        axis.set(title=title, xscale="log", yscale="log", xlabel=r"features $\ell$")
        if axis is not left:
            axis.axhline(1, color="black", linewidth=1)
            axis.set_ylim(0.5, None)
        plain_ticks(axis, sizes)


# 2: sparse models, whose own error is a term of the bounds
EXPERIMENT = Experiment("bounds", __doc__, SCALES, cases, run, report, version=2, features=FEATURES)
