"""The paper's two propositions, measured: the covariance error falls as ell^-1/2 in every dimension, and is bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.quasirandom import SobolEngine

import matheron
from matheron.compare.bounds import constants, covariance_rate, fourier_constant, lebesgue_constant, wasserstein_bound

from .base import Experiment, Settings, Trial, scales, stable_hash
from .report import Report, Row, Rows, grouped, quartile_table, quartiles
from .sampling import problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOMAIN = (0.0, 1.0)
FEATURES = {"decoupled": "cosine"}  # what the propositions are about

SCALES = scales(
    trials=(32, 8, 2),
    dims=([1, 2, 4, 8], [1, 2, 4, 8], [1, 4]),
    num_features=([64, 256, 1024, 4096, 16384], [64, 256, 1024, 4096], [16, 64, 256]),
    num_data=(8, 8, 4),
    num_test=(512, 128, 24),
    num_bases=(64, 16, 8),
)


def cases(settings: Settings) -> list[dict[str, int]]:
    return [{"d": d} for d in settings["dims"]]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem: both sides of both propositions for every ell."""
    d, n = trial.case["d"], settings["num_data"]
    generator = trial.generator("problem")
    gp, _ = problem(torch.rand(n, d, generator=generator, dtype=torch.float64), 1, generator, device)
    net = SobolEngine(d, scramble=True, seed=stable_hash(trial.key, trial.seed) % 2**31)
    x = net.draw(settings["num_test"], dtype=torch.float64).to(device)  # even over the cube
    rate = covariance_rate(
        gp,
        x,
        settings["num_features"],
        kind=FEATURES["decoupled"],
        num_bases=settings["num_bases"],
        generator=trial.generator("bases"),
    )
    C2, of = fourier_constant(gp.kernel, _DOMAIN, input_dim=d), constants(gp, _DOMAIN)
    L = lebesgue_constant(gp, x)
    rows = []
    for ell, error in zip(rate.num_features, rate.errors, strict=True):
        paths = matheron.draw(
            gp, 1, num_features=ell, features=FEATURES["decoupled"], generator=trial.generator("basis", str(ell))
        )
        assert isinstance(paths, matheron.Paths)
        w2 = wasserstein_bound(gp, paths, x, _DOMAIN, generator=trial.generator("coupling", str(ell)))
        rows.append(
            {
                "ell": ell,
                "covariance error": error,
                "covariance bound": C2 * of.C3 / math.sqrt(ell),
                "with the Lebesgue constant": C2 * (1 + L) ** 2 / math.sqrt(ell),
                "W2": w2.measured,
                "W2 bound": w2.bound,
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
    return sorted(rows, key=lambda row: (row["d"], row["ell"]))


RATIOS = {
    "covariance ratio": "covariance bound / error",
    "Lebesgue ratio": "the same, with the Lebesgue constant",
    "W2 ratio": "W2 bound / distance",
}


def report(records: Rows, settings: Settings) -> Report:
    lines = []
    for record in sorted(records, key=lambda record: record["case"]["d"]):
        d, rows = record["case"]["d"], flat([record])
        lines.append({"d": d, "quantity": "slope of the covariance error", "value": record["result"]["slope"]})
        lines += [{"d": d, "quantity": RATIOS[name], "value": min(row[name] for row in rows)} for name in RATIOS]
    table = quartile_table("Both propositions; ratios are the smallest over ell", lines, ["d", "quantity"], "value")
    rows = flat(records)
    broken = sum(row[name] < 1 for row in rows for name in RATIOS)
    remark = f"The bounds were broken in {broken} of {len(RATIOS) * len(rows)} comparisons."
    slopes = grouped([line for line in lines if line["quantity"].startswith("slope")], ["d"], "value")
    return Report(table, {"": lambda: figure(rows, {d: quartiles(v)[1] for (d,), v in slopes.items()})}, [remark])


def figure(rows: Rows, slopes: Mapping[int, float]) -> Figure:
    from .style import DIMENSIONS, MARKERS, group_band, legend_below, panels, plain_ticks

    drawing, axes = panels(1, 3, width=9.6, height=3.8)
    left, middle, right = axes[0]
    sizes = sorted({row["ell"] for row in rows})
    for i, (d, slope) in enumerate(sorted(slopes.items())):
        mine = [row for row in rows if row["d"] == d]
        look: Row = {"color": DIMENSIONS[i], "marker": MARKERS[i]}
        group_band(left, mine, "ell", "covariance error", label=f"$d = {d}$, fitted slope {slope:.2f}", **look)
        group_band(middle, mine, "ell", "covariance ratio", **look)
        group_band(middle, mine, "ell", "Lebesgue ratio", linestyle="--", markerfacecolor="white", **look)
        group_band(right, mine, "ell", "W2 ratio", **look)
    start = 2.5 * max(row["covariance error"] for row in rows if row["ell"] == sizes[0])
    reference = [start * (ell / sizes[0]) ** -0.5 for ell in sizes]
    left.plot(sizes, reference, color="black", linestyle=":", label="slope -1/2")
    middle.plot([], [], color="grey", linestyle="--", label="with the Lebesgue constant")
    titles = (r"$\sup\,|k^{(d)} - k^{(f\mid y)}|$", "covariance: bound / error", "$W_2$: bound / distance")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set(title=title, xscale="log", yscale="log", xlabel=r"features $\ell$")
        if axis is not left:
            axis.axhline(1, color="black", linewidth=1)
            axis.set_ylim(0.5, None)
        plain_ticks(axis, sizes)
    legend_below(drawing, 3)
    return drawing


EXPERIMENT = Experiment("bounds", __doc__, SCALES, cases, run, report, features=FEATURES)
