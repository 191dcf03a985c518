"""Figure 4 and the appendix's two: parallel Thompson sampling by each way of drawing, and two baselines.

A task is a function drawn from a known prior (`apdx:additional_experiments_ts`). A strategy is told the prior and the
noise, sees noisy values, and is judged by its simple regret: the lowest of the task's own values at the points that it
chose, less the task's minimum.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import matheron
from matheron import Paths, thompson

from .experiment import Experiment, Settings, Trial
from .report import QUARTILES, Report, Row, Rows, Table, grouped, quartiles
from .sampling import NOISE, kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Equispaced features represent a task best, in few dimensions.
_EQUISPACED_UP_TO = 2
# The kind of features of each strategy's functions, and of the tasks.
FEATURES = {
    "decoupled": "sobol",
    "weight-space": "cosine",
    "task, small d": "equispaced",
    "task, large d": "cosine",
}
# Where a strategy has found the minimum to within this, logarithms say no more.
FLOOR = 1e-6

# Rounds are of d points. Function-space draws have a mesh of their own; 2048 of its points are kept for the joint draw.
SCALES: dict[str, Row] = {
    "paper": {
        "trials": 32,
        "dims": [2, 4, 8],
        "rounds": 128,
        "num_features": [1024, 4096, 16384],
        "mesh_size": 250_000,
        "function_mesh_size": 1_000_000,
        "num_starts": 32,
        "task": {"num_features": 16384, "mesh_size": 1_000_000, "num_starts": 1024},
    },
    "quick": {
        "trials": 6,
        "dims": [2, 4],
        "rounds": 32,
        "num_features": [64, 256, 1024],
        "mesh_size": 8192,
        "function_mesh_size": 1024,
        "num_starts": 16,
        "task": {"num_features": 4096, "mesh_size": 32768, "num_starts": 128},
    },
    "tiny": {
        "trials": 2,
        "dims": [1, 2],
        "rounds": 4,
        "num_features": [16, 32],
        "mesh_size": 256,
        "function_mesh_size": 128,
        "num_starts": 4,
        "task": {"num_features": 256, "mesh_size": 1024, "num_starts": 16},
    },
}
METHODS = ("random", "DIRECT", "function-space", "weight-space", "decoupled")


def cases(settings: Settings) -> list[Row]:
    """A case is a strategy in a number of dimensions; those of function draws also have a number of features."""
    out: list[Row] = []
    for d in settings["dims"]:
        out += [{"d": d, "method": method, "ell": None} for method in METHODS[:3]]
        out += [{"d": d, "method": method, "ell": ell} for ell in settings["num_features"] for method in METHODS[3:]]
    return out


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One task and one strategy: the lowest value met after each round, the task's minimum, the seconds of choosing."""
    function, minimum = task(trial, settings, device)
    d, budget = trial.case["d"], settings["rounds"] * trial.case["d"]
    noise = NOISE**0.5 * torch.randn(budget, generator=trial.generator("noise", shared=["d"]), dtype=torch.float64)
    values: list[float] = []

    def observe(x: Tensor) -> Tensor:
        """Noisy values at points `[q, d]`; the true ones are for the record."""
        f = function(x.to(device))[0].cpu()
        first = len(values)
        values.extend(f.tolist())
        return f + noise[first : first + len(f)]

    first = torch.rand(d, d, generator=trial.generator("first", shared=["d"]), dtype=torch.float64)
    search = direct if trial.case["method"] == "DIRECT" else rounds
    seconds = search(trial, settings, device, first, observe)
    best = torch.tensor(values[:budget], dtype=torch.float64).cummin(0).values[d - 1 :: d]  # after each round
    return {"best": best.tolist(), "minimum": minimum, "seconds": round(seconds, 4)}


def task(trial: Trial, settings: Settings, device: torch.device) -> tuple[Paths, float]:
    """The function of a trial, the same for all strategies, and its minimum."""
    key = (trial.experiment, trial.case["d"], trial.number, trial.seed)
    return _task(key, tuple(settings["task"].items()), device)


@functools.lru_cache(maxsize=4)  # a trial's strategies follow one another
def _task(
    key: tuple[str, int, int, int], settings: tuple[tuple[str, int], ...], device: torch.device
) -> tuple[Paths, float]:
    name, d, number, seed = key
    size = dict(settings)
    generator = Trial(name, {"d": d}, number, seed).generator("task")
    features = FEATURES["task, small d" if d <= _EQUISPACED_UP_TO else "task, large d"]
    function = matheron.draw_prior(
        kernel(d),
        1,
        input_dim=d,
        num_features=size["num_features"],
        features=features,
        domain=(0.0, 1.0),
        generator=generator,
        device=device,
    )
    found = matheron.minimize(
        function, unit_box(d), mesh_size=size["mesh_size"], num_starts=size["num_starts"], generator=generator
    )
    return function, float(found.value)


def unit_box(d: int) -> Tensor:
    return torch.stack([torch.zeros(d), torch.ones(d)]).double()


Observe = Callable[[Tensor], Tensor]


def rounds(trial: Trial, settings: Settings, device: torch.device, first: Tensor, observe: Observe) -> float:
    """Rounds of d points, the first of them uniform and the same for all strategies; the seconds spent on choosing."""
    d, method, ell = trial.case["d"], trial.case["method"], trial.case["ell"]
    generator = trial.generator("search", device=device)
    X, y, seconds = first, observe(first), 0.0
    for _ in range(settings["rounds"] - 1):
        began = time.perf_counter()
        gp = matheron.ExactGP(kernel(d), X.to(device), y.to(device), NOISE)
        chosen: Row = {"strategy": method, "generator": generator}
        if method == "function-space":
            chosen["mesh_size"] = settings["function_mesh_size"]
        elif method != "random":
            total = ell + (len(X) if method == "weight-space" else 0)  # b = m + ell basis functions for both
            chosen |= {name: settings[name] for name in ("mesh_size", "num_starts")} | {"num_features": total}
            chosen["features"] = trial.case.get("features", FEATURES[method])
        x = thompson.suggest(gp, unit_box(d).to(device), d, **chosen).cpu()
        seconds += time.perf_counter() - began
        X, y = torch.cat([X, x]), torch.cat([y, observe(x)])
    return seconds


def direct(trial: Trial, settings: Settings, device: torch.device, first: Tensor, observe: Observe) -> float:
    """Dividing rectangles, one point at a time; its first point is the cube's centre."""
    from scipy.optimize import direct as scipy_direct

    d = trial.case["d"]
    budget, observing, count = settings["rounds"] * d, 0.0, 0

    def objective(x: np.ndarray) -> float:
        nonlocal observing, count
        if count == budget:  # it ends after an iteration, not in the middle of one
            return math.inf
        began = time.perf_counter()
        y = float(observe(torch.tensor(x, dtype=torch.float64)[None]))
        count, observing = count + 1, observing + time.perf_counter() - began
        return y

    began = time.perf_counter()
    limits: Row = {"maxfun": budget, "maxiter": 10 * budget, "vol_tol": 0, "len_tol": 0}
    scipy_direct(objective, [(0.0, 1.0)] * d, locally_biased=False, **limits)
    return time.perf_counter() - began - observing


def flat(records: Rows) -> list[Row]:
    """One row a run, with its regret after each round.

    A task's minimum is the lowest value that anybody has found: descent's from many starts, or a strategy's.
    """
    lowest: dict[tuple[int, int], float] = {}
    for record in records:
        key, result = (record["case"]["d"], record["trial"]), record["result"]
        lowest[key] = min(lowest.get(key, math.inf), result["minimum"], result["best"][-1])
    rows = []
    for record in records:
        regret = [best - lowest[record["case"]["d"], record["trial"]] for best in record["result"]["best"]]
        rows.append({**record["case"], "regret": regret, "last": regret[-1], "seconds": record["result"]["seconds"]})
    return sorted(rows, key=lambda row: (row["d"], METHODS.index(row["method"]), row["ell"] or 0))


def report(records: Rows, settings: Settings) -> Report:
    rows, by = flat(records), ["d", "method", "ell"]
    regrets, seconds = grouped(rows, by, "last"), grouped(rows, by, "seconds")
    lines = [
        (*key, settings["rounds"] * key[0], len(values), *quartiles(values), quartiles(seconds[key])[1])
        for key, values in regrets.items()
    ]
    columns = [*by, "evaluations", "runs", *QUARTILES, "seconds"]
    table = Table("Regret at the end: quartiles over runs; median seconds of choosing points, a run", columns, lines)
    figures = {
        "": lambda: figure(rows, settings["num_features"][:1]),
        "full": lambda: figure(rows, settings["num_features"]),
        "runtimes": lambda: figure(rows, settings["num_features"], runtimes=True),
    }
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
        axis.set_xlabel("seconds a run" if runtimes else "evaluations")
    legend_below(drawing, 5 if len(dims) > 2 else 3)
    return drawing


def curves(axis: Axes, rows: Rows) -> None:
    """Medians of regret on a logarithmic scale, quartiles shaded."""
    from .style import band

    for method in METHODS:
        regret = torch.tensor([row["regret"] for row in rows if row["method"] == method], dtype=torch.float64)
        if len(regret):
            probabilities = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
            low, middle, high = regret.clamp_min(FLOOR).quantile(probabilities, dim=0)
            x = rows[0]["d"] * torch.arange(1, regret.shape[1] + 1)
            band(axis, x, low, middle, high, **_style(method))
    axis.set_yscale("log")


def run_times(axis: Axes, rows: Rows) -> None:
    """The share of runs that took no longer than so many seconds."""
    for method in METHODS:
        seconds = [max(row["seconds"], 1e-4) for row in rows if row["method"] == method]
        if seconds:
            axis.ecdf(seconds, **_style(method))
    axis.set_xscale("log")


def _style(method: str) -> Row:
    from .style import DECOUPLED, EXACT, EXACT_POSTERIOR, FRESH, WEIGHT_SPACE

    colors = (EXACT, FRESH, EXACT_POSTERIOR, WEIGHT_SPACE, DECOUPLED)
    lines = (":", "--", "-.", "-", "-")
    i = METHODS.index(method)
    return {"label": method, "color": colors[i], "linestyle": lines[i]}


EXPERIMENT = Experiment(
    "thompson",
    "Figure 4 and appendix: parallel Thompson sampling, regret against evaluations and run times.",
    SCALES,
    cases,
    run,
    report,
    version=2,  # equispaced features are a lattice since
    features=FEATURES,
)
