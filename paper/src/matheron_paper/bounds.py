"""The paper's two propositions, measured: the covariance error falls as ell^-1/2 in every dimension, and is bounded."""

from __future__ import annotations

import math
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
from .report import Cell, Report, Row, Rows, quartile_table
from .sampling import optimal, problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOMAIN = (0.0, 1.0)
FEATURES = {"decoupled": "cosine"}  # the features of the propositions
# The posteriors that paths are drawn from: that of a few data, and a sparse one of more data, whose own error enters
# the propositions.
POSTERIORS = ("exact", "sparse")

SCALES = scales(
    trials=(32, 32, 2),
    dims=([1, 2, 4, 8], [1, 2, 4, 8], [1, 4]),
    num_features=([64, 256, 1024, 4096, 16384], [64, 256, 1024, 4096], [16, 64, 256]),
    num_data=(8, 8, 4),
    num_data_sparse=(32, 32, 12),  # for the sparse posterior; its inducing points are the first num_data of these
    num_test=(512, 128, 24),
    num_bases=(64, 16, 8),
)


def cases(settings: Settings) -> list[dict[str, Cell]]:
    return [{"d": d, "posterior": posterior} for d in settings["dims"] for posterior in POSTERIORS]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem: both sides of both propositions for every ell."""
    d, m, kind = trial.case["d"], settings["num_data"], FEATURES["decoupled"]
    sparse = trial.case["posterior"] == "sparse"
    n = settings["num_data_sparse"] if sparse else m
    generator = trial.generator("problem")
    exact, _ = problem(torch.rand(n, d, generator=generator, dtype=torch.float64), 1, generator, device)
    gp = optimal(exact, exact.train_inputs[:m]) if sparse else exact
    net = SobolEngine(d, scramble=True, seed=stable_hash(trial.key, trial.seed) % 2**31)
    x = net.draw(settings["num_test"], dtype=torch.float64).to(device)  # evenly spread over the cube
    of_bases: Row = {"kind": kind, "num_bases": settings["num_bases"]}
    rate = covariance_rate(gp, x, settings["num_features"], generator=trial.generator("bases"), **of_bases)
    C2, of = fourier_constant(gp.kernel, _DOMAIN, input_dim=d), constants(gp, _DOMAIN)
    L = lebesgue_constant(gp, x)
    known: Row = {"exact": exact} if sparse else {}
    rows = []
    for ell, error in zip(rate.num_features, rate.errors, strict=True):
        paths = matheron.draw(gp, 1, num_features=ell, features=kind, generator=trial.generator("basis", str(ell)))
        assert isinstance(paths, matheron.Paths)
        w2 = wasserstein_bound(gp, paths, x, _DOMAIN, generator=trial.generator("coupling", str(ell)), **known)
        sparse_error = 0.0
        if sparse:
            again = trial.generator("bases of the sparse", str(ell))
            both = covariance_bound(gp, ell, x, _DOMAIN, exact=exact, generator=again, **of_bases)
            error, sparse_error = both.measured, both.sparse_error
        rows.append(
            {
                "ell": ell,
                "covariance error": error,
                "covariance bound": sparse_error + C2 * of.C3 / math.sqrt(ell),
                "with the Lebesgue constant": sparse_error + C2 * (1 + L) ** 2 / math.sqrt(ell),
                "sparse covariance error": sparse_error,
                "W2": w2.measured,
                "W2 bound": w2.bound,
                "sparse W2": w2.sparse_error,
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
        row["share of the sparse covariance error"] = row["sparse covariance error"] / row["covariance error"]
        row["share of the sparse W2"] = row["sparse W2"] / row["W2"]
    return sorted(rows, key=lambda row: (POSTERIORS.index(row["posterior"]), row["d"], row["ell"]))


RATIOS = {
    "covariance ratio": "covariance bound / error",
    "Lebesgue ratio": "the same, with the Lebesgue constant",
    "W2 ratio": "W2 bound / distance",
}


# The part of the error at the largest ell that is the sparse posterior's own.
SHARES = {
    "share of the sparse covariance error": "sparse covariance error / error, largest ell",
    "share of the sparse W2": "sparse W2 / distance, largest ell",
}


def report(records: Rows, settings: Settings) -> Report:
    lines = []
    for record in sorted(records, key=lambda r: (POSTERIORS.index(r["case"]["posterior"]), r["case"]["d"])):
        case, rows = record["case"], flat([record])
        lines.append({**case, "quantity": "slope of the covariance error", "value": record["result"]["slope"]})
        lines += [{**case, "quantity": RATIOS[name], "value": min(row[name] for row in rows)} for name in RATIOS]
        if case["posterior"] == "sparse":
            lines += [{**case, "quantity": SHARES[name], "value": rows[-1][name]} for name in SHARES]
    title = "Both propositions; ratios are the smallest over ell"
    table = quartile_table(title, lines, ["posterior", "d", "quantity"], "value")
    rows = flat(records)
    broken = sum(row[name] < 1 for row in rows for name in RATIOS)
    remark = f"The bounds were broken in {broken} of {len(RATIOS) * len(rows)} comparisons."
    return Report(table, {"": lambda: figure(rows)}, [remark])


def figure(rows: Rows) -> Figure:
    """A row of panels for the exact and for the sparse posterior: errors, and how many times they the bounds are."""
    from .style import DIMENSIONS, MARKERS, group_band, legend_below, panels, plain_ticks

    shown = [posterior for posterior in POSTERIORS if any(row["posterior"] == posterior for row in rows)]
    drawing, axes = panels(len(shown), 3, width=9.6, height=0.6 + 2.9 * len(shown))
    sizes = sorted({row["ell"] for row in rows})
    for (left, middle, right), posterior in zip(axes, shown, strict=True):
        for i, d in enumerate(sorted({row["d"] for row in rows})):
            mine = [row for row in rows if (row["d"], row["posterior"]) == (d, posterior)]
            if not mine:
                continue
            look: Row = {"color": DIMENSIONS[i], "marker": MARKERS[i]}
            group_band(left, mine, "ell", "covariance error", label=f"$d = {d}$", **look)
            group_band(middle, mine, "ell", "covariance ratio", **look)
            group_band(middle, mine, "ell", "Lebesgue ratio", linestyle="--", markerfacecolor="white", **look)
            group_band(right, mine, "ell", "W2 ratio", **look)
        if posterior == "exact":
            start = 2.5 * max(row["covariance error"] for row in rows if row["ell"] == sizes[0])
            reference = [start * (ell / sizes[0]) ** -0.5 for ell in sizes]
            left.plot(sizes, reference, color="black", linestyle=":", label="slope -1/2")
        left.set_ylabel(f"{posterior} posterior")
        titles = (r"$\sup\,|k^{(d)} - k^{(f\mid y)}|$", "covariance: bound / error", "$W_2$: bound / distance")
        for axis, title in zip((left, middle, right), titles, strict=True):
            axis.set(title=title, xscale="log", yscale="log", xlabel=r"features $\ell$")
            if axis is not left:
                axis.axhline(1, color="black", linewidth=1)
                axis.set_ylim(0.5, None)
            plain_ticks(axis, sizes)
    middle.plot([], [], color="grey", linestyle="--", label="with the Lebesgue constant")
    legend_below(drawing, 3)
    return drawing


# version 2 added sparse posteriors
EXPERIMENT = Experiment("bounds", __doc__, SCALES, cases, run, report, version=2, features=FEATURES)
