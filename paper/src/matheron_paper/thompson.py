"""Figure 4 and the appendix's two: parallel Thompson sampling by each way of drawing, and two baselines.

A task is a function drawn from a known prior (`apdx:additional_experiments_ts`). A strategy is given the prior and the
noise, sees noisy values, and is judged by its simple regret: the lowest of the task's own values at the points that it
chose, less the task's minimum.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import matheron
from matheron import Paths, thompson

from .base import Case, Experiment, Settings, Trial, scales
from .report import QUARTILES, Cell, Report, Row, Rows, Table, grouped, quartiles
from .sampling import NOISE, kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Equispaced features represent a task best, in few dimensions.
_EQUISPACED_UP_TO = 2
# The kind of features of each strategy's functions, unless its case names another, and of the tasks.
FEATURES = {"decoupled": "sobol", "weight-space": "cosine", "task, small d": "equispaced", "task, large d": "cosine"}
# Rounds are of d points. Function-space draws have a mesh of their own; 2048 of its points are kept for the joint draw.
SCALES = scales(
    trials=(32, 8, 2),
    dims=([2, 4, 8], [2, 4], [1, 2]),
    rounds=(128, 32, 4),
    num_features=([1024, 4096, 16384], [64, 256, 1024], [16, 32]),
    mesh_size=(250_000, 8192, 256),
    function_mesh_size=(1_000_000, 1024, 128),
    num_starts=(32, 16, 4),
    task=(
        {"num_features": 16384, "mesh_size": 1_000_000, "num_starts": 1024},
        {"num_features": 4096, "mesh_size": 32768, "num_starts": 128},
        {"num_features": 256, "mesh_size": 1024, "num_starts": 16},
    ),
)
# Numbers of points a round that are tried beside d, in one number of dimensions and with the fewest features.
_KAPPAS = (1, 16)
# Trials of a case that a GPU runs together, where their functions are minimised together.
TOGETHER = 32
# The paper's curves, and decoupled draws with other frequencies beside the paper's cosines.
EXTENSIONS = {"sobol": "decoupled, Sobol", "leverage": "decoupled, leverage"}
METHODS = ("random", "DIRECT", "function-space", "weight-space", "decoupled", *EXTENSIONS.values())
PAPER, OURS = METHODS[:5], METHODS[4:]
# Where a strategy has found the minimum to within this, logarithms say no more.
FLOOR = 1e-6
# Permutation tests go through all signs for up to this many pairs, and draw this many for more.
_EXACT_UP_TO, _DRAWS = 14, 20_000


def cases(settings: Settings) -> list[Row]:
    """A case is a strategy in a number of dimensions; those of function draws also have a number of features.

    Decoupled draws have the paper's cosines or frequencies by leverage, which their case names, or Sobol frequencies.
    """
    out: list[Row] = []
    for d in settings["dims"]:
        out += [{"d": d, "method": method, "ell": None} for method in ("random", "DIRECT", "function-space")]
        for ell in settings["num_features"]:
            out += [{"d": d, "method": method, "ell": ell} for method in ("weight-space", "decoupled")]
            out += [{"d": d, "method": "decoupled", "ell": ell, "features": kind} for kind in ("cosine", "leverage")]
    return out + [{**of_kappas(settings), "kappa": kappa} for kappa in _KAPPAS]


def of_kappas(settings: Settings) -> Row:
    """The case that is also run with other numbers of points a round than d."""
    return {"d": settings["dims"][1], "method": "decoupled", "ell": settings["num_features"][0], "features": "cosine"}


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One task and one strategy: the lowest value met after each d points, the task's minimum, seconds of choosing."""
    return run_together([trial], settings, device)[0]


def run_together(
    trials: Sequence[Trial], settings: Settings, device: torch.device, advance: Callable[[float], None] | None = None
) -> list[Row]:
    """Trials of one case, their drawn functions minimised together; each has the random numbers that it has alone.

    On a CPU each trial's result is that of a run alone, bit for bit. On a GPU sums are taken in another order, so that
    points differ by rounding, and in time a trial may take another way. Seconds are shared out evenly. `advance` is
    called with the share of the rounds that are done.
    """
    case = trials[0].case
    objectives = [Objective(trial, settings, device) for trial in trials]
    if case["method"] == "DIRECT":
        seconds = [direct(trial, settings, each) for trial, each in zip(trials, objectives, strict=True)]
    else:
        seconds = [rounds(trials, settings, device, objectives, advance) / len(trials)] * len(trials)
    return [
        {"best": each.best(), "minimum": each.minimum, "seconds": round(took, 4)}
        for each, took in zip(objectives, seconds, strict=True)
    ]


class Objective:
    """A trial's task as a strategy meets it: noisy values at points; the true ones are for the record."""

    def __init__(self, trial: Trial, settings: Settings, device: torch.device) -> None:
        self.d, self.device = trial.case["d"], device
        self.budget = settings["rounds"] * self.d
        self.function, self.minimum = task(trial, settings, device)
        generator = trial.generator("noise", shared=["d"])
        self.noise = NOISE**0.5 * torch.randn(self.budget, generator=generator, dtype=torch.float64)
        self.first = torch.rand(
            self.d, self.d, generator=trial.generator("first", shared=["d"]), dtype=torch.float64
        )  # the first round's points
        self.values: list[float] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Noisy values at points `[q, d]`."""
        f = self.function(x.to(self.device))[0].cpu()
        first = len(self.values)
        self.values.extend(f.tolist())
        return f + self.noise[first : first + len(f)]

    def best(self) -> list[float]:
        """The lowest value after each d points."""
        values = torch.tensor(self.values[: self.budget], dtype=torch.float64)
        return values.cummin(0).values[self.d - 1 :: self.d].tolist()


def task(trial: Trial, settings: Settings, device: torch.device) -> tuple[Paths, float]:
    """The function of a trial, the same for all strategies, and its minimum."""
    key = (trial.experiment, trial.case["d"], trial.number, trial.seed)
    return _task(key, tuple(settings["task"].items()), device)


@functools.lru_cache(maxsize=TOGETHER + 1)  # the strategies of some trials follow one another
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


def rounds(
    trials: Sequence[Trial],
    settings: Settings,
    device: torch.device,
    objectives: Sequence[Objective],
    advance: Callable[[float], None] | None = None,
) -> float:
    """Rounds of d points, or of the case's kappa; the seconds spent on choosing.

    The first d points are uniform, and the same for all strategies. The last round ends with the budget.
    """
    case = trials[0].case
    d, method, ell = case["d"], case["method"], case["ell"]
    budget, kappa = settings["rounds"] * d, case.get("kappa", d)
    generators = [trial.generator("search", device=device) for trial in trials]
    data = [(each.first, each(each.first)) for each in objectives]
    seconds = 0.0
    for spent in range(d, budget, kappa):
        began = time.perf_counter()
        gps = [matheron.ExactGP(kernel(d), X.to(device), y.to(device), NOISE) for X, y in data]
        chosen: Row = {"strategy": method, "generators": generators}
        if method == "function-space":
            chosen["mesh_size"] = settings["function_mesh_size"]
        elif method != "random":
            total = ell + (spent if method == "weight-space" else 0)  # b = m + ell basis functions for both
            chosen |= {name: settings[name] for name in ("mesh_size", "num_starts")} | {"num_features": total}
            chosen["features"] = case.get("features", FEATURES[method])
        q = min(kappa, budget - spent)
        points = [x.cpu() for x in thompson.suggest_together(gps, unit_box(d).to(device), q, **chosen)]
        seconds += time.perf_counter() - began
        data = [
            (torch.cat([X, x]), torch.cat([y, each(x)]))
            for (X, y), x, each in zip(data, points, objectives, strict=True)
        ]
        if advance is not None:
            advance((spent + q - d) / (budget - d))
    return seconds


def direct(trial: Trial, settings: Settings, observe: Callable[[Tensor], Tensor]) -> float:
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


def together(case: Case) -> int:
    return TOGETHER if case["ell"] is not None else 1


def unchanged(version: int, case: Case) -> bool:
    """Version 1 had other equispaced features, and so other tasks in few dimensions; in more it had these."""
    return version == 1 and case["d"] > _EQUISPACED_UP_TO


def flat(records: Rows) -> list[Row]:
    """One row per run, with its regret after each round.

    A task's minimum is the lowest value that anybody has found: descent's from many starts, or a strategy's.
    """
    lowest: dict[tuple[int, int], float] = {}
    for record in records:
        key, result = (record["case"]["d"], record["trial"]), record["result"]
        lowest[key] = min(lowest.get(key, math.inf), result["minimum"], result["best"][-1])
    rows = []
    for record in records:
        regret = [best - lowest[record["case"]["d"], record["trial"]] for best in record["result"]["best"]]
        row = {
            "kappa": record["case"]["d"],
            **record["case"],
            "trial": record["trial"],
            "method": strategy_name(record["case"]),
            "regret": regret,
        }
        row |= {"last": regret[-1], "seconds": record["result"]["seconds"], "together": record.get("together", 1)}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["d"], METHODS.index(row["method"]), row["ell"] or 0, row["kappa"]))


def strategy_name(case: Mapping[str, Cell]) -> str:
    """What a case's strategy is called: the paper's decoupled draws have cosines."""
    method = str(case["method"])
    return EXTENSIONS.get(str(case.get("features", "sobol")), method) if method == "decoupled" else method


def compared(rows: Sequence[Row], settings: Settings) -> list[Row]:
    """The runs whose task other strategies have met too: the numbers of points a round are tried on more tasks."""
    others = {(row["d"], row["trial"]) for row in rows if not _of_kappas(row, settings)}
    return [row for row in rows if (row["d"], row["trial"]) in others] or list(rows)


def _of_kappas(row: Mapping[str, Cell], settings: Settings) -> bool:
    study = of_kappas(settings)
    return all(row[name] == study[name] for name in ("d", "method", "ell"))  # the method's name says its features


def differences(a: Mapping[int, float], b: Mapping[int, float]) -> Tensor:
    """log10 of the regrets of a over those of b, by trial, on the tasks that both have seen."""
    both = sorted(set(a) & set(b))
    ends = torch.tensor([[a[i], b[i]] for i in both], dtype=torch.float64).reshape(-1, 2)
    logs = ends.clamp_min(FLOOR).log10()  # [pairs, 2]
    return logs[:, 0] - logs[:, 1]


def permutation_test(x: Tensor) -> float:
    """The chance of a mean as far from zero as that of x `[n]`, were signs a matter of luck."""
    n = len(x)
    if n <= _EXACT_UP_TO:
        signs = torch.tensor(list(itertools.product([1.0, -1.0], repeat=n)), dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(0)
        signs = 2.0 * torch.randint(2, (_DRAWS, n), generator=generator, dtype=torch.float64) - 1
        signs[0] = 1.0  # the signs seen count as one of the draws
    return float(((signs @ x).abs() >= x.sum().abs() - 1e-12).double().mean())


def points_a_round(rows: Rows, settings: Settings) -> list[str]:
    """In words: what each number of points a round leads to, and paired tests of whether it matters."""
    study = of_kappas(settings)
    ends: dict[int, dict[int, float]] = {}
    for row in rows:
        if _of_kappas(row, settings):
            ends.setdefault(row["kappa"], {})[row["trial"]] = row["last"]
    said = []
    for few, many in itertools.combinations(sorted(ends), 2):
        x = differences(ends[few], ends[many])
        if len(x) > 1:
            here, there = (quartiles([ends[k][i] for i in set(ends[few]) & set(ends[many])])[1] for k in (few, many))
            said.append(
                f"With {few} instead of {many} points a round (decoupled, d = {study['d']}, ell = {study['ell']}), the "
                f"median regret is {here:.3g} instead of {there:.3g}. Paired by task, in {len(x)} pairs, its log10 "
                f"differs by {float(x.mean()):.3g} with a standard error of {float(x.std()) / math.sqrt(len(x)):.2g} "
                f"(p = {permutation_test(x):.2g}, by a permutation test of signs)."
            )
    return said


def report(records: Rows, settings: Settings) -> Report:
    every = flat(records)
    rows, by = compared(every, settings), ["d", "method", "ell", "kappa"]
    regrets, seconds = grouped(rows, by, "last"), grouped(rows, by, "seconds")
    lines = [
        (*key, settings["rounds"] * key[0], len(values), *quartiles(values), quartiles(seconds[key])[1])
        for key, values in regrets.items()
    ]
    columns = ["d", "method", "ell", "points a round", "evaluations", "runs", *QUARTILES, "seconds"]
    table = Table("Regret at the end: quartiles over runs; median seconds of choosing points, per run", columns, lines)
    usual = [row for row in rows if row["kappa"] == row["d"]]
    papers, ours = ([row for row in usual if row["method"] in shown] for shown in (PAPER, OURS))
    figures = {}
    if papers:
        figures[""] = lambda: figure(papers, settings["num_features"][:1])
        figures["full"] = lambda: figure(papers, settings["num_features"])
    if ours:
        figures["ours"] = lambda: figure(ours, settings["num_features"])
    if papers and all(row["together"] == 1 for row in usual):  # trials that are run together share their time
        figures["runtimes"] = lambda: figure(papers, settings["num_features"], runtimes=True)
    return Report(table, figures, points_a_round(every, settings))


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
        axis.set_xlabel("seconds per run" if runtimes else "evaluations")
    legend_below(drawing, 6 if len(dims) > 2 else 3)
    return drawing


def curves(axis: Axes, rows: Rows) -> None:
    """Medians of regret on a logarithmic scale, quartiles shaded."""
    from .style import quartile_band

    for method in METHODS:
        regret = [row["regret"] for row in rows if row["method"] == method]
        if regret:
            evaluations = [rows[0]["d"] * (i + 1) for i in range(len(regret[0]))]
            quartile_band(axis, regret, evaluations, floor=FLOOR, **_style(method))
    axis.set_yscale("log")


def run_times(axis: Axes, rows: Rows) -> None:
    """The share of runs that took at most a number of seconds."""
    for method in METHODS:
        seconds = [max(row["seconds"], 1e-4) for row in rows if row["method"] == method]
        if seconds:
            axis.ecdf(seconds, **_style(method))
    axis.set_xscale("log")


def _style(method: str) -> Row:
    from .style import DECOUPLED, DIMENSIONS, EXACT, EXACT_POSTERIOR, FRESH, UPDATE, WEIGHT_SPACE

    colors = (EXACT, FRESH, EXACT_POSTERIOR, WEIGHT_SPACE, DECOUPLED, UPDATE, DIMENSIONS[3])
    lines = (":", "--", "-.", "-", "-", "--", (0, (5, 1, 1, 1)))
    i = METHODS.index(method)
    return {"label": method, "color": colors[i], "linestyle": lines[i]}


# equispaced features are a lattice since
EXPERIMENT = Experiment(
    "thompson",
    __doc__,
    SCALES,
    cases,
    run,
    report,
    version=2,
    features=FEATURES,
    run_together=run_together,
    together=together,
    unchanged=unchanged,
)
