"""Numbers in the prose of the pages on results are those of the stored results.

A claim is a fragment of a page's prose and what recomputes it from docs/results/files. The numbers in braces are
compared with the values, to the digits that are quoted; a fragment without braces is a statement that must be true.
Every number of a page that has decimals, a power of ten or a unit must be in braces in a claim, or in a fragment of
`SETTINGS` or `MEASURED_ONCE`. Tables and remarks between marks are checked by test_pages.py.
"""

# ruff: noqa: RUF001 (fragments have the pages' own minus signs and letters)

import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import matheron
from matheron_paper import thompson
from matheron_paper.fitzhugh_nagumo import Fit, line
from matheron_paper.sampling import NOISE, kernel
from matheron_paper.wasserstein import flat as draws_of

FOLDER = Path(__file__).parents[2] / "docs" / "results"
sys.path.append(str(FOLDER))
refresh = importlib.import_module("refresh")
ELL = (1024, 4096, 16384)
N = (4, 16, 64, 256, 1024)
GRADED, LOCAL, GREEDY = "Thompson, graded", "Thompson, graded, local", "Thompson, greedy"
OURS = ("Thompson", "Thompson, local", GREEDY, GRADED, LOCAL)
OTHERS = ("qLogEI", "TuRBO", "GPSampler")
PROBLEMS = ("Hartmann-6", "Ackley-10", "Levy-10", "Rastrigin-10", "rover-12")
SAMPLERS = ("random", "TPESampler", "GPSampler", "ThompsonSampler")
FUNCTIONS = ("Branin", "Hartmann-6", "Ackley-8", "mixed")
WS = "weight-space"
SOBOL = "decoupled, Sobol"


# What the files hold.


@cache
def records(stem: str) -> list[dict[str, Any]]:
    """The trials of a results file that count."""
    return refresh.records_of(FOLDER / "files" / f"{stem}.jsonl")[1]


@cache
def table(stem: str) -> list[dict[str, Any]]:
    """The rows of its table, with every digit."""
    found = refresh.report_of(FOLDER / "files" / f"{stem}.jsonl").table
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def cell(stem: str, column: str = "median", **where: Any) -> Any:
    (row,) = (row for row in table(stem) if all(row[name] == value for name, value in where.items()))
    return row[column]


def settings(experiment: str, scale: str, *names: str) -> list[Any]:
    """Settings of an experiment's scale; the largest where there are several."""
    found = (refresh.maker(experiment).settings(scale)[name] for name in names)
    return [max(value) if isinstance(value, list) else value for value in found]


def kind(experiment: str, method: str) -> str:
    """The kind of features that an experiment's method draws with."""
    return refresh.maker(experiment).features[method]


def default_features() -> matheron.Features:
    """Those that `draw` chooses for a model as Thompson sampling has it."""
    X = torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = inspect.unwrap(matheron.draw)(  # the experiments' own may not leave the choice to the library
        matheron.ExactGP(kernel(4), X, X[:, 0], NOISE), 2, num_features=64
    )
    assert isinstance(drawn, matheron.Paths)
    return drawn.prior.features


def w2(d: int, n: int, method: str, ell: int | None = None, stem: str = "wasserstein-paper") -> float:
    return cell(stem, d=d, n=n, method=method, ell=ell)


def ratios(above: str, below: str, d: Iterable[int], n: Iterable[int], ell: Iterable[int]) -> list[float]:
    return [w2(i, j, above, k) / w2(i, j, below, k) for i in d for j in n for k in ell]


def over_exact(method: str, ell: int, d: Iterable[int]) -> list[float]:
    return [w2(i, n, method, ell) / w2(i, n, "exact") for i in d for n in N]


def below_shared(d: Iterable[int]) -> list[float]:
    """How far a basis every 64 paths with 1024 features is below 16384 features that all draws share."""
    return [w2(i, n, "decoupled", 16384) / w2(i, n, "fresh bases", 1024) for i in d for n in N]


def drawing_seconds(method: str, ell: int) -> float:
    rows = [row for row in draws_of(records("wasserstein-paper")) if row["n"] == N[-1]]
    return median(row["seconds"] for row in rows if (row["method"], row["ell"]) == (method, ell))


def love(d: int, n: int, method: str, ell: int | None = None) -> float:
    return w2(d, n, method, ell, "wasserstein-love-paper")


def love_over_decoupled() -> list[tuple[tuple[int, int, int], float]]:
    """How many times decoupled sampling's distance LOVE's is, for each d, n and number of features."""
    rows = [row for row in table("wasserstein-love-paper") if row["method"] == "decoupled"]
    return [((row["d"], row["n"], row["ell"]), love(row["d"], row["n"], "LOVE") / row["median"]) for row in rows]


def love_costs(name: str, points: int, over: int | None = None) -> list[float]:
    """LOVE's median seconds of every case at so many points, or how many times those at fewer points they are."""
    found: dict[tuple[int, int, int], list[float]] = {}
    for record in records("wasserstein-love-paper"):
        for row in record["result"]["cost"]:
            found.setdefault((record["case"]["d"], record["case"]["n"], row["points"]), []).append(row[name])
    seconds = {case: median(values) for case, values in found.items()}
    return [t / (seconds[d, n, over] if over else 1) for (d, n, at), t in seconds.items() if at == points]


def love_seconds(method: str, ell: int | None) -> float:
    rows = [row for row in draws_of(records("wasserstein-love-paper")) if row["n"] == 1024]
    return median(row["seconds"] for row in rows if (row["method"], row["ell"]) == (method, ell))


def bound_ratios(above: str, below: str, d: int) -> list[float]:
    """The medians over trials for each number of features."""
    case = {"d": d, "posterior": "exact"}
    rows = [row for r in records("bounds-quick") if r["case"] == case for row in r["result"]["rows"]]
    sizes = sorted({row["ell"] for row in rows})
    return [median(row[above] / row[below] for row in rows if row["ell"] == ell) for ell in sizes]


def covariance_error(d: int, ell: int) -> float:
    """The median over trials for exact posteriors."""
    case = {"d": d, "posterior": "exact"}
    rows = [row for r in records("bounds-quick") if r["case"] == case for row in r["result"]["rows"]]
    return median(row["covariance error"] for row in rows if row["ell"] == ell)


def neuron(scale: str, what: str) -> np.ndarray:
    """Distances to the truth, or seconds, by number of steps."""
    return np.array([row["median"] for row in table(f"fitzhugh-nagumo-{scale}") if row["what"] == what])


def distances(scale: str) -> dict[str, np.ndarray]:
    names = ("floor", "decoupled", "iterative", "iterative, as written")
    return {name: neuron(scale, f"W2 to truth, {name}") for name in names}


def neuron_means(name: str) -> np.ndarray:
    """Distances to the truth at the paper's scale, means over times `[trials]`."""
    laws = [record for record in records("fitzhugh-nagumo-paper") if record["case"]["part"] == "law"]
    return np.array([np.mean(law["result"]["w2"][name]) for law in sorted(laws, key=lambda law: law["trial"])])


def mean_and_error(x: np.ndarray) -> list[float]:
    return [x.mean(), x.std(ddof=1) / math.sqrt(len(x))]


def trial(stem: str, number: int, name: str, **case: Any) -> Any:
    (found,) = (r["result"][name] for r in records(stem) if r["trial"] == number and case.items() <= r["case"].items())
    return found


def _on_cpu(stem: str) -> int:
    return sum(record["device"] == "cpu" for record in records(stem))


def starved(number: int) -> float:
    return trial("posteriors-paper", number, "empirical", n=1000, posterior="random features")


def decoupled(number: int) -> float:
    return trial("overview-paper", number, "decoupled, empirical")


def of_sparse(number: int) -> float:
    return trial("overview-paper", number, "sparse posterior, closed form")


def gap(what: Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
    """A quantity of the linear model's law and the true one of figure 1, n = 1000, between the bands of data."""
    shown = trial("posteriors-paper", 0, "figure", n=1000, posterior="random features")
    law, truth = ({name: np.array(of[name]) for name in of} for of in (shown["law"], shown["truth"]))
    return what(law, truth)[(law["x"] > 0.3) & (law["x"] < 0.65)]


@cache
def regret(scale: str, d: int, method: str, ell: int | None = None, kappa: int | None = None) -> np.ndarray:
    """Regret of Thompson sampling `[runs, rounds]`: with `kappa` points a round on every task, else where compared."""
    rows = thompson.flat(records(f"thompson-{scale}"))
    if kappa is None:
        rows = thompson.compared(rows, thompson.SCALES[scale])
    kept = (row for row in rows if (row["d"], row["method"], row["ell"]) == (d, method, ell))
    return np.array([row["regret"] for row in kept if row["kappa"] == (kappa or d)])


def points_a_round(scale: str, few: int, many: int) -> list[float]:
    """How many times lower the regret is with fewer points a round, by the geometric mean over tasks, and p."""
    rows = [
        row for row in thompson.flat(records(f"thompson-{scale}")) if row["method"] == "decoupled" and row["d"] == 4
    ]
    ell = thompson.of_kappas(thompson.SCALES[scale])["ell"]
    a, b = (
        {row["trial"]: row["last"] for row in rows if (row["ell"], row["kappa"]) == (ell, kappa)}
        for kappa in (few, many)
    )
    x = thompson.differences(a, b)
    return [10 ** -float(x.mean()), thompson.permutation_test(x)]


def against_weight_space(d: int, ell: int) -> dict[str, Any]:
    """Decoupled draws with cosines against weight-space ones, at the quick scale."""
    found = compared("against_weight_space", "thompson-quick")
    (row,) = (row for row in found if (row["features"], row["d"], row["ell"]) == ("cosine", d, ell))
    return row


def all_pairs(sizes: Iterable[int]) -> Any:
    """log10 of the regrets of decoupled draws over those of weight-space ones, at the quick scale, all panels."""
    of = {name: [regret("quick", d, name, ell)[:, -1] for d in (2, 4) for ell in sizes] for name in ("decoupled", WS)}
    a, b = (dict(enumerate(np.concatenate(of[name]).tolist())) for name in ("decoupled", WS))
    return thompson.differences(a, b)


def leads(d: int, ell: int) -> np.ndarray:
    """The rounds after which function-space draws have a lower median than decoupled ones."""
    ours, theirs = (np.median(r, axis=0) for r in (regret("paper", d, "decoupled", ell), function_space(d)))
    return np.flatnonzero(theirs < ours) + 1


def left_at_the_papers_scale(name: str) -> set[str]:
    """The trials that the file lacks of cases that name their features, or a number of points a round."""
    it = refresh.maker("thompson")
    trials = it.trials(it.settings("paper"), 0, it.settings("paper")["trials"])
    missing = {trial.key: trial for trial in trials}.keys() - {record["key"] for record in records("thompson-paper")}
    kappas = {trial.key for trial in trials if "kappa" in trial.case}
    return {key for key in missing if (key in kappas) == (name == "kappa")}


def on_cpu_at_the_papers_scale(method: str) -> int:
    return sum(r["device"] == "cpu" and r["case"]["method"] == method for r in records("thompson-paper"))


def function_space(d: int) -> np.ndarray:
    return regret("paper", d, "function-space")


def ends(scale: str, d: int, method: str, ell: int | None = None, kappa: int | None = None) -> float:
    return float(np.median(regret(scale, d, method, ell, kappa)[:, -1]))


def polished(scale: str, d: int) -> list[float]:
    sizes = ELL if scale == "paper" else (64, 256, 1024)
    return [ends(scale, d, method, ell) for method in ("weight-space", "decoupled") for ell in sizes]


def first_panels(method: str) -> int:
    """Panels of the quick scale in which decoupled draws end lower than all other strategies."""
    panels = [(d, ell) for d in (2, 4) for ell in (64, 256, 1024)]
    others = [[ends("quick", d, "weight-space", ell), ends("quick", d, "function-space")] for d, ell in panels]
    return sum(ends("quick", panel[0], method, panel[1]) < min(o) for panel, o in zip(panels, others, strict=True))


@cache
def compared(which: str, stem: str = "thompson-paper") -> list[dict[str, Any]]:
    """The tables that `benchmarks/thompson_features.py --test` prints."""
    refresh.maker("thompson-features")
    module = importlib.import_module("thompson_features")
    found = getattr(module, which)(records(stem))
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def factor(d: int | str, against: str) -> list[float]:
    (row,) = (row for row in compared("comparisons") if row["d"] == d and row["against"] == against)
    return [10 ** row["mean"], row["p"]]


def basins(d: int, ell: int, kind: str = "cosine") -> dict[str, Any]:
    key = (kind, d, ell)
    (row,) = (row for row in compared("against_weight_space") if (row["features"], row["d"], row["ell"]) == key)
    return row


@cache
def runs(scale: str) -> list[dict[str, Any]]:
    refresh.maker("against")
    module = importlib.import_module("against")
    return module.flat(records(f"against-{scale}"), module.SCALES[scale])


def run_ends(problem: str, batch: int, method: str, seeds: int = 100) -> dict[int, float]:
    key, scale = (problem, batch, method), "single" if batch == 1 else "modest"
    scale = "rover" if problem == "rover-60" else scale
    mine = (row for row in runs(scale) if (row["problem"], row["batch"], row["method"]) == key)
    return {row["seed"]: row["last"] for row in mine if row["seed"] < seeds}


def end(problem: str, batch: int, method: str, seeds: int = 100) -> float:
    return median(run_ends(problem, batch, method, seeds).values())


def lower(problem: str, batch: int, ours: str, theirs: str) -> int:
    a, b = run_ends(problem, batch, ours), run_ends(problem, batch, theirs)
    return sum(a[seed] < b[seed] for seed in a.keys() & b.keys())


def place(batch: int, method: str) -> float:
    """The mean place by the median at the end, over the problems."""
    scale = "single" if batch == 1 else "modest"
    methods = {row["method"] for row in runs(scale) if row["batch"] == batch}
    return float(np.mean([sum(end(p, batch, m) <= end(p, batch, method) for m in methods) for p in PROBLEMS]))


def second_basin(batch: int, method: str) -> int:
    """Runs on Hartmann-6 that end in the basin of 0.119, or above."""
    return sum(regret > 0.1 for regret in run_ends("Hartmann-6", batch, method).values())


def choosing(problem: str, method: str) -> float:
    return cell("against-modest", "seconds", problem=problem, batch=10, method=method)


@cache
def studies(function: str, sampler: str) -> np.ndarray:
    """Regret after each trial `[seeds, trials]`, of Optuna's samplers and ours."""
    case = {"function": function, "sampler": sampler}
    mine = [r for r in records("optuna-samplers-full") if r["case"] == case]
    return np.array([r["result"]["regret"] for r in sorted(mine, key=lambda r: r["trial"])])


def eight(function: str, sampler: str) -> list[float]:
    """Medians after 30 and 50 trials over the first eight seeds."""
    return [float(np.median(studies(function, sampler)[:8, trials - 1])) for trials in (30, 50)]


def ahead(function: str, trials: int) -> bool:
    """Whether our sampler has a lower median than GPSampler after a number of trials."""
    ours, theirs = (np.median(studies(function, s)[:, trials - 1]) for s in ("ThompsonSampler", "GPSampler"))
    return bool(ours < theirs)


def missing(problem: str, sampler: str) -> float:
    return cell("optuna-objectives-full", problem=problem, sampler=sampler)


def workers(function: str, count: int, sampler: str) -> list[float]:
    case = {"function": function, "workers": count, "sampler": sampler}
    (found,) = (r["result"]["regret"] for r in records("optuna-workers-full") if r["case"] == case)
    return found


def median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def span(values: Iterable[float]) -> list[float]:
    values = list(values)
    return [min(values), max(values)]


def curves_of(d: int) -> list[list[float]]:
    """Decoupled sampling's medians against n, for each number of features."""
    return [[w2(d, n, "decoupled", ell) for n in N] for ell in ELL]


def bound_cell(quantity: str, posterior: str = "exact") -> list[float]:
    return [cell("bounds-quick", d=d, posterior=posterior, quantity=quantity) for d in (1, 2, 4, 8)]


def decomposed(d: int, method: str, sizes: Iterable[int] = ELL, m: Iterable[int] = N) -> list[float]:
    """A method's distances over those of decoupled draws."""
    stem = "decompositions-paper"
    return [
        cell(stem, d=d, m=i, method=method, ell=ell) / cell(stem, d=d, m=i, method="decoupled", ell=ell)
        for i in m
        for ell in sizes
    ]


def seconds_of_neuron() -> list[float]:
    """The whole simulation's at the paper's scale: the iterative baseline's, and that of functions."""
    rows = {(row["what"], row["steps"]): row["median"] for row in table("fitzhugh-nagumo-paper")}
    return [rows[f"seconds, {name}", 1000] for name in ("iterative", "decoupled")]


def line_of_neuron() -> Fit:
    """Seconds along functions against their steps."""
    rows = [row for row in table("fitzhugh-nagumo-paper") if row["what"] == "seconds, decoupled"]
    return line([row["steps"] for row in rows], [row["median"] for row in rows])


def seconds(scale: str, d: int, method: str) -> float:
    return cell(f"thompson-{scale}", "seconds", d=d, method=method)


Claim = tuple[str, Callable[[], Any]]
# For each page: fragments, and what recomputes the numbers in braces.
CLAIMS: dict[str, list[Claim]] = {
    "wasserstein": [
        (
            "{100,000} draws at {1024} test points, ℓ up to {16384}, {64} trials of each case as in the paper:"
            " all {960}",
            lambda: [
                *settings("wasserstein", "paper", "num_draws", "num_test", "num_features", "trials"),
                len(records("wasserstein-paper")),
            ],
        ),
        (
            "{8192} draws at {256} test points, ℓ up to {2048}, {4} trials",
            lambda: settings("wasserstein", "quick", "num_draws", "num_test", "num_features", "trials"),
        ),
        ("*A basis every 64 paths* has Sobol frequencies", lambda: kind("wasserstein", "fresh bases") == "sobol"),
        ("at most {1.04} times it with n = 4", lambda: max(ratios("weight-space", "decoupled", (2, 4, 8), [4], ELL))),
        (
            "At n = 1024 it is {2.1} to {3.7} times",
            lambda: span(ratios("weight-space", "decoupled", (2, 4, 8), [1024], ELL)),
        ),
        ("is {3.7}, {3.2} and {2.4} times that", lambda: ratios("weight-space", "decoupled", [2], [1024], ELL)),
        ("is {2.2}, {2.9} and {2.3} times as large", lambda: ratios("weight-space", "decoupled", [4], [1024], ELL)),
        ("and {2.1}, {2.2} and {2.1} times at d = 8", lambda: ratios("weight-space", "decoupled", [8], [1024], ELL)),
        (
            "grows {1.7} to {2.8} times at d = 4 and {2.1} to {2.2} times at d = 8",
            lambda: [x for d in (4, 8) for x in span(w2(d, 1024, WS, ell) / w2(d, 4, WS, ell) for ell in ELL)],
        ),
        ("At d = 2 it falls again", lambda: all(w2(2, 1024, WS, ell) < w2(2, 4, WS, ell) for ell in ELL)),
        ("alone ({33.5}, against {21.6} at d = 4)", lambda: [w2(8, 1024, WS, 1024), w2(4, 1024, WS, 1024)]),
        ("d = 4 is worse ({18.4} against {16.7})", lambda: [w2(4, 1024, WS, 4096), w2(8, 1024, WS, 4096)]),
        ("the two are level ({8.3})", lambda: median(w2(d, 1024, WS, 16384) for d in (4, 8))),
        (
            "change by at most {3} percent at d = 8",
            lambda: 100 * (max(max(x) / min(x) for x in curves_of(8)) - 1),
        ),
        ("fall {3.2} to {7.3} times at d = 2", lambda: span(x[0] / x[-1] for x in curves_of(2))),
        ("they stay within {7} percent", lambda: 100 * (max(max(x) / min(x) for x in curves_of(4)[1:]) - 1)),
        (
            "where they fall by a fifth",
            lambda: rounds_to(1 - w2(4, 1024, "decoupled", 1024) / w2(4, 4, "decoupled", 1024), "0.2"),
        ),
        (
            "{16}, {8} and {4} for N = 1024",
            lambda: [median(w2(8, n, "decoupled", ell) for n in N) for ell in ELL],
        ),
        (
            "worst at n = 64 (at n = 256 with 16384 features)",
            lambda: [max(N, key=lambda n: w2(2, n, WS, ell)) for ell in ELL] == [64, 64, 256],
        ),
        (
            "It stays behind decoupled sampling throughout",
            lambda: min(ratios("weight-space", "decoupled", [2], N, ELL)) > 1,
        ),
        ("distance is {0.44}, {0.24} and {0.10} with", lambda: [w2(2, 1024, "leverage", ell) for ell in ELL]),
        ("features {0.84}, {0.74} and {0.70}", lambda: [w2(2, 1024, "decoupled", ell) for ell in ELL]),
        ("of exact draws {0.04}", lambda: w2(2, 1024, "exact")),
        (
            "a tenth below the paper's with four data and 1024 features",
            lambda: rounds_to(1 - w2(4, 4, "leverage", 1024) / w2(4, 4, "decoupled", 1024), "0.1"),
        ),
        (
            "two fifths with 1024 data and 16384",
            lambda: rounds_to(1 - w2(4, 1024, "leverage", 16384) / w2(4, 1024, "decoupled", 16384), "0.4"),
        ),
        (
            "lower by {5} to {10} percent throughout",
            lambda: [100 * (1 - x) for x in span(ratios("leverage", "decoupled", [8], N, ELL))][::-1],
        ),
        ("or within a sixth of it, with 4096 of them", lambda: max(over_exact("equispaced", 4096, [2])) < 1 + 1 / 6),
        (
            "{9.9} to {27} times below as many random ones",
            lambda: span(1 / x for x in ratios("equispaced", "decoupled", [2], N, [4096])),
        ),
        ("the difference of {0.38} to {0.33}", lambda: [w2(2, 4, "equispaced", 4096), w2(2, 4, "exact")]),
        ("comes to within a quarter of that noise", lambda: max(over_exact("fresh bases", 1024, (4, 8))) < 1.25),
        ("with 1024 features: {2.7} to {5.7} times", lambda: span(below_shared((4, 8)))),
        ("At d = 2 it is {3.2} to {6.2} times below", lambda: span(below_shared([2]))),
        (
            "took {1.5} s, and with one shared basis of the same size {0.54} s",
            lambda: [drawing_seconds("fresh bases", 1024), drawing_seconds("decoupled", 1024)],
        ),
    ],
    "love": [
        (
            "There are {100,000} draws at {1024} test points in each of {32} trials",
            lambda: settings("wasserstein-love", "paper", "num_draws", "num_test", "trials"),
        ),
        ("by a factor of {76} from 4 to 1024 points", lambda: love(2, 4, "LOVE") / love(2, 1024, "LOVE")),
        ("a step of {1.25} lengthscales", lambda: (1 / 4) / math.sqrt(4 / 100)),
        ("LOVE gains a factor of {2.3}", lambda: love(4, 16, "LOVE") / love(4, 625, "LOVE")),
        (
            "with 4096 features at d = 2 and n = 1024, LOVE is ahead by {5} percent",
            lambda: [100 * (1 - over) for _, over in love_over_decoupled() if over < 1],
        ),
        (
            "is d = 2 and n = 256 with 1024 features, where decoupled sampling is ahead by {4} percent",
            lambda: 100 * (1 - 1 / dict(love_over_decoupled())[2, 256, 1024]),
        ),
        (
            "The nearest of the others is d = 2 and n = 256 with 1024 features",
            lambda: min((over, case) for case, over in love_over_decoupled() if over > 1)[1] == (2, 256, 1024),
        ),
        ("add at most a third to it", lambda: max(love_costs("root", 4096, over=1024)) < 4 / 3),
        ("less than a millisecond in every case", lambda: max(love_costs("draws", 4096)) < 1e-3),
        (
            "take {18} s, one after the other. "
            "Decoupled sampling with 16,384 features makes its 100,000 draws in {1.1} s",
            lambda: [love_seconds("LOVE", None), love_seconds("decoupled", 16384)],
        ),
    ],
    "bounds": [
        (
            "given {8} data on the unit cube. The lower row has sparse posteriors, given {32} data, with inducing"
            " points at the first {8}",
            lambda: settings("bounds", "quick", "num_data", "num_data_sparse", "num_data"),
        ),
        (
            "{512} test points, ℓ up to {16384}, {64} bases",
            lambda: settings("bounds", "paper", "num_test", "num_features", "num_bases"),
        ),
        (
            "With {64} features of an exact posterior, √ℓ times the median error is {2.4}, {3.3}, {3.8} and {3.9} (d",
            lambda: [64, *(64**0.5 * covariance_error(d, 64) for d in (1, 2, 4, 8))],
        ),
        (
            "is {−0.491} to {−0.501} for d = 1, 2, 4 and 8",
            lambda: span(x for p in ("exact", "sparse") for x in bound_cell("slope of the covariance error", p))[::-1],
        ),
        ("{1.2 · 10⁵} to {1.2 · 10⁸} for the covariance", lambda: span(bound_cell("covariance bound / error"))),
        ("{129} to {2.2 · 10³} for the distance", lambda: span(bound_cell("W2 bound / distance"))),
        (
            "has {0.99} to {1.00} of the covariance error in the median, and {0.84} to {1.00} of the distance",
            lambda: [
                x
                for what in ("sparse covariance error / error", "sparse W2 / distance")
                for x in span(bound_cell(f"{what}, largest ell", "sparse"))
            ],
        ),
        ("the medians are {501} to {1.9 · 10³}", lambda: span(bound_cell("the same, with the Lebesgue constant"))),
        (
            "the ratios are flat in ℓ",
            lambda: all(
                max(x) < 1.5 * min(x)
                for x in (bound_ratios("covariance bound", "covariance error", d) for d in (1, 2, 4, 8))
            ),
        ),
    ],
    "fitzhugh-nagumo": [
        (
            "m = {32} shared inducing points) are trained on {10,000} increments over dt, by stochastic gradients on"
            " the ELBO (GPyTorch, {3000} steps; {500} at the quick scale)",
            lambda: [
                *settings("fitzhugh-nagumo", "paper", "num_inducing", "num_data", "training_steps"),
                *settings("fitzhugh-nagumo", "quick", "training_steps"),
            ],
        ),
        (
            "all {1000} trajectories at once. Times are medians over {16} trials, which ran one by one. Distances are"
            " of {16} trials",
            lambda: settings("fitzhugh-nagumo", "paper", "batch", "trials", "trials"),
        ),
        (
            "{240} steps, {200} trajectories, ℓ = {512}; the iterative baseline goes {100} trajectories",
            lambda: settings("fitzhugh-nagumo", "quick", "steps", "num_paths", "num_features", "batch"),
        ),
        (
            "is {0.22} for functions and {0.21} for the iterative baseline",
            lambda: [median(distances("paper")[name]) for name in ("decoupled", "iterative")],
        ),
        ("Between two sets of true simulations it is {0.14}", lambda: median(distances("paper")["floor"])),
        (
            "they are up to {2.5} and {2.3} times",
            lambda: [
                (distances("paper")[name] / distances("paper")["floor"]).max() for name in ("decoupled", "iterative")
            ],
        ),
        (
            "medians are {0.56} and {0.61}, against {0.23}",
            lambda: [median(distances("quick")[name]) for name in ("decoupled", "iterative", "floor")],
        ),
        (
            "the means over times differ by {0.006} with a standard error of {0.007}",
            lambda: mean_and_error(neuron_means("iterative, as written") - neuron_means("iterative")),
        ),
        (
            "of its distance to the truth is {0.23}",
            lambda: median(distances("paper")["iterative, as written"]),
        ),
        ("with R² above 0.999", lambda: line_of_neuron().r2 > 0.999),
        (
            "we measure {2.6} seconds against {0.13} on the H200. That is a factor of {19}",
            lambda: [*seconds_of_neuron(), seconds_of_neuron()[0] / seconds_of_neuron()[1]],
        ),
        ("{17} GB in the end", lambda: 8 * 2 * 1000 * (32 + 1000) ** 2 / 1e9),  # float64, outputs, paths, (m + t)^2
        ("{44} times as long", lambda: 113 / seconds_of_neuron()[0]),
        (
            "Of the {0.13} seconds of functions {0.08} go",
            lambda: [seconds_of_neuron()[1], line_of_neuron().overhead],
        ),
    ],
    "decompositions": [
        (
            "There are {8} trials of each case. Of the {120}, {41} were made on a CPU",
            lambda: [
                *settings("decompositions", "paper", "trials"),
                len(records("decompositions-paper")),
                _on_cpu("decompositions-paper"),
            ],
        ),
        ("Each trial has {1024} data", lambda: settings("decompositions", "paper", "num_data")),
        ("between closed forms at {1024} points", lambda: settings("decompositions", "paper", "num_test")),
        (
            "the distance is {1.02} to {1.08} times that of decoupled draws",
            lambda: span(x for d in (2, 4, 8) for x in decomposed(d, WS, m=[4])),
        ),
        ("it is {2.1} to {2.2} times it at d = 8", lambda: span(decomposed(8, WS, m=[1024]))),
        ("and {2.5} to {6.8} times at d = 4", lambda: span(decomposed(4, WS, m=[1024]))),
        ("{15} to {989} times it", lambda: span(decomposed(2, WS, m=[256]))),
        ("it is {5.1} to {11.5} times it", lambda: span(decomposed(2, WS, m=[1024]))),
        (
            "The more inducing points, the worse, at d = 4 and d = 8",
            lambda: all(
                sorted(ratios) == ratios
                for ratios in ([decomposed(d, WS, [ell], [m])[0] for m in N] for d in (4, 8) for ell in ELL)
            ),
        ),
        (
            "are {0.96} to {1.28} times those of decoupled draws",
            lambda: span(x for d in (4, 8) for x in decomposed(d, "orthogonal")),
        ),
        (
            "there {1.4} and {1.6} times as large with m = 256",
            lambda: decomposed(2, "orthogonal", ELL[1:], [256]),
        ),
        ("and {0.55} and {0.64} times with m = 1024", lambda: decomposed(2, "orthogonal", ELL[1:], [1024])),
    ],
    "overview": [
        (
            "with ℓ = {1000} Fourier features, and its residuals at the m = {8} inducing",
            lambda: settings("overview", "paper", "num_features", "num_inducing"),
        ),
        (
            "and {100,000} draws at {1024} points",
            lambda: settings("overview", "paper", "num_draws", "num_test"),
        ),
        (
            "There are {1000} features here and {2000} there",
            lambda: [settings(name, "paper", "num_features")[0] for name in ("overview", "posteriors")],
        ),
        (
            "In two of the {32} trials it is larger",
            lambda: 32 if sum(decoupled(i) > starved(i) for i in range(32)) == 2 else 0,
        ),
        ("to the exact posterior is {5.9}", lambda: cell("overview-paper", law="decoupled, empirical")),
        ("from which they are drawn, is {5.5}", lambda: cell("overview-paper", law="sparse posterior, closed form")),
        (
            "In one of the 32 trials the two differ by {38} percent, in the others by at most {27}",
            lambda: sorted(100 * abs(decoupled(i) / of_sparse(i) - 1) for i in range(32))[:-3:-1],
        ),
        ("where they differ by {6.7} percent", lambda: 100 * abs(decoupled(0) / of_sparse(0) - 1)),
        (
            "is less than half ({5.9} against {13.8})",
            lambda: [cell("overview-paper", law="decoupled, empirical"), median(map(starved, range(32)))],
        ),
        (
            "({8.8} against {8.1}, and {3.9} against {2.9})",
            lambda: [x for i in range(32) if decoupled(i) > starved(i) for x in (decoupled(i), starved(i))],
        ),
    ],
    "posteriors": [
        (
            "m = {8} inducing points (circles), and the linear model of ℓ = {2000}",
            lambda: settings("posteriors", "paper", "num_inducing", "num_features"),
        ),
        (
            "the moments of {100,000} draws at {1024} points",
            lambda: settings("posteriors", "paper", "num_draws", "num_test"),
        ),
        ("the 32 differ widely ({2.9} to {39.8})", lambda: span(map(starved, range(32)))),
        (
            "trial 0 is above the median: {18.6}, where the median is {13.8}",
            lambda: [starved(0), median(map(starved, range(32)))],
        ),
        (
            "Four of the {192} runs were made on a CPU",
            lambda: len(records("posteriors-paper")) if _on_cpu("posteriors-paper") == 4 else 0,
        ),
        (
            "With n = 4 the distance is {2.2}",
            lambda: cell("posteriors-paper", law="closed form", n=4, posterior="random features"),
        ),
        (
            "it is {6.4} times larger in the median",
            lambda: (
                median(map(starved, range(32)))
                / cell("posteriors-paper", law="empirical", n=4, posterior="random features")
            ),
        ),
        (
            "off by up to {3.6} standard deviations",
            lambda: gap(lambda law, truth: abs(law["mean"] - truth["mean"]) / truth["sd"]).max(),
        ),
        ("is as low as {0.56} of the exact one", lambda: gap(lambda law, truth: law["sd"] / truth["sd"]).min()),
    ],
    "thompson": [
        (
            "Ours are {128} rounds at the paper's scale, so {256}, {512} and {1024} evaluations",
            lambda: [rounds := settings("thompson", "paper", "rounds")[0], *(rounds * d for d in (2, 4, 8))],
        ),
        (
            "{32} rounds, d up to {4}, ℓ up to {1024}, meshes of {8192} points with {16} starts ({1024} points",
            lambda: settings(
                "thompson", "quick", "rounds", "dims", "num_features", "mesh_size", "num_starts", "function_mesh_size"
            ),
        ),
        (
            "in function space), {8} runs. The paper's scale has d = {8} too, ℓ up to {16384}, meshes of {250,000} and"
            " {10⁶} points, {32} runs",
            lambda: [
                *settings("thompson", "quick", "trials"),
                *settings("thompson", "paper", "dims", "num_features", "mesh_size", "function_mesh_size", "trials"),
            ],
        ),
        (
            "Not run yet are those with leverage ({288} runs), and those with one point a round ({32})",
            lambda: [len(left_at_the_papers_scale(name)) for name in ("features", "kappa")],
        ),
        (
            "in all four panels, {2.3} to {4.8} times. Paired by task, no panel tells the two apart (p = {0.06} to"
            " {0.86}), nor do all {32} pairs together (p = {0.08})",
            lambda: [
                *span(ends("quick", d, "decoupled", e) / ends("quick", d, WS, e) for d in (2, 4) for e in (256, 1024)),
                *span(against_weight_space(d, ell)["p"] for d in (2, 4) for ell in (256, 1024)),
                len(all_pairs((256, 1024))),
                thompson.permutation_test(all_pairs((256, 1024))),
            ],
        ),
        (
            "Where ℓ is several times the number of evaluations the two are level, at d = 2 and 4 throughout",
            lambda: all(
                row["p"] > 0.05 for row in compared("against_weight_space") if row["d"] < 8 or row["ell"] > 4096
            ),
        ),
        (
            "weight-space draws end below it nowhere by more than chance",
            lambda: all(row["p"] > 0.05 for row in compared("against_weight_space") if row["mean"] > 0),
        ),
        (
            "DIRECT and random search stay far behind at d = 2 and 4",
            lambda: all(
                ends("paper", d, name) > 10 * max(polished("paper", d)) for d in (2, 4) for name in ("DIRECT", "random")
            ),
        ),
        (
            "16384 differ from 4096 and from 1024 by less than a standard error, and in the other direction",
            lambda: all(
                -row["standard error"] < row["mean"] < 0
                for row in compared("comparisons", "thompson-features-full")
                if row["against"].startswith("decoupled")
            ),
        ),
        (
            "which is `draw`'s default for these models",
            lambda: [choice.kind for choice in default_features().choices] == ["leverage"],
        ),
        (
            "are run, {32} times each: {1152} runs. Another {32} have 16",
            lambda: [
                len(function_space(8)),
                sum(
                    r["case"].get("features") != "leverage" and "kappa" not in r["case"]
                    for r in records("thompson-paper")
                ),
                len(regret("paper", 4, "decoupled", 1024, kappa=16)),
            ],
        ),
        (
            "and {32} runs each, the median regret after 128 evaluations is {0.14}, {0.24} and {0.44} with 1, 4 and 16",
            lambda: [
                len(regret("quick", 4, "decoupled", 64, 1)),
                *(ends("quick", 4, "decoupled", 64, kappa) for kappa in (1, 4, 16)),
            ],
        ),
        (
            "4 points cannot be told from 1 (p = {0.20}) or from 16 (p = {0.15})",
            lambda: [points_a_round("quick", few, many)[1] for few, many in ((1, 4), (4, 16))],
        ),
        (
            "the regret is {4.9} times lower than with 16 in the geometric mean (p = {0.01}, the",
            lambda: points_a_round("quick", 1, 16),
        ),
        (
            "1.9 · 10⁻⁴ (p = {0.83})",
            lambda: points_a_round("paper", 4, 16)[1],
        ),
        (
            "{30} of {32} runs of 4 points a round end below 0.05, and {29} of {32} of 16",
            lambda: [
                x
                for r in (regret("paper", 4, "decoupled", 1024, kappa) for kappa in (4, 16))
                for x in ((r[:, -1] < 0.05).sum(), len(r))
            ],
        ),
        (
            "medians are {2.9 · 10⁻⁴} and {1.9 · 10⁻⁴}",
            lambda: [ends("paper", 4, "decoupled", 1024, kappa) for kappa in (4, 16)],
        ),
        (
            "Of the baselines at d = 8, {26} runs each",
            lambda: on_cpu_at_the_papers_scale("DIRECT"),
        ),
        (
            "Of the baselines at d = 8, {26} runs each",
            lambda: on_cpu_at_the_papers_scale("random"),
        ),
        (
            "but for weight-space draws with ℓ = 64 at d = 4",
            lambda: (
                [ends("quick", d, "function-space") < x for d in (2, 4) for x in polished("quick", d)]
                == [d == 4 and i == 0 for d in (2, 4) for i in range(6)]
            ),
        ),
        (
            "ahead of DIRECT and random search, and it is the slowest",
            lambda: all(
                ends("quick", d, "function-space") < min(ends("quick", d, "DIRECT"), ends("quick", d, "random"))
                and seconds("quick", d, "function-space")
                == max(row["seconds"] for row in table("thompson-quick") if row["d"] == d)
                for d in (2, 4)
            ),
        ),
        ("with a median regret of {1.5 · 10⁻⁵}", lambda: ends("paper", 2, "function-space")),
        (
            "in {22} to {30} of {128} rounds by the median, the last of them round {32}",
            lambda: [*span(len(leads(4, ell)) for ell in ELL), 128, max(leads(4, ell)[-1] for ell in ELL)],
        ),
        ("It ends at {0.02}, where", lambda: ends("paper", 4, "function-space")),
        ("come to {3 · 10⁻⁴} to {4 · 10⁻⁴}", lambda: span(polished("paper", 4))),
        (
            "in {83} to {107} of {128} rounds, and up to round {84} to {108}",
            lambda: [
                *span(len(leads(8, ell)) for ell in ELL),
                function_space(8).shape[1],
                *span(leads(8, ell)[-1] for ell in ELL),
            ],
        ),
        (
            "after 64 rounds, its median is {1.1}, and theirs are {1.6}",
            lambda: [np.median(function_space(8)[:, 63]), np.median(regret("paper", 8, "decoupled", 1024)[:, 63])],
        ),
        (
            "its median is 1.1, and theirs are 1.6",
            lambda: all(1.55 < np.median(regret("paper", 8, "decoupled", ell)[:, 63]) < 1.65 for ell in ELL),
        ),
        ("It ends at {0.77}, between decoupled", lambda: ends("paper", 8, "function-space")),
        (
            "between decoupled draws and DIRECT",
            lambda: (
                max(ends("paper", 8, "decoupled", ell) for ell in ELL)
                < ends("paper", 8, "function-space")
                < ends("paper", 8, "DIRECT")
            ),
        ),
        (
            "its median regret is {1.2}, near that of random search ({1.5}). Decoupled draws with as many cosines end"
            " at {0.17}",
            lambda: [ends("quick", 4, WS, 64), ends("quick", 4, "random"), ends("quick", 4, "decoupled", 64)],
        ),
        (
            "ends lowest in two panels of six, with Sobol frequencies in five, and by leverage in three",
            lambda: [first_panels(name) for name in ("decoupled", SOBOL, "decoupled, leverage")] == [2, 5, 3],
        ),
        (
            "Only with ℓ = 64 at d = 4 do the quartiles",
            lambda: (
                [
                    np.quantile(regret("quick", d, "decoupled", ell)[:, -1], 0.75)
                    < np.quantile(regret("quick", d, WS, ell)[:, -1], 0.25)
                    for d in (2, 4)
                    for ell in (64, 256, 1024)
                ]
                == [False, False, False, True, False, False]
            ),
        ),
        (
            "lead it at d = 8 for two thirds of a run or more",
            lambda: all(len(leads(8, ell)) > 82 for ell in ELL),
        ),
        *(
            (
                f"| {kind} | {d} | {ell} | {{32}} | {{{ours}}} | {{{theirs}}} | {{{mean}}} | {{{error}}} | {{{p}}} |",
                lambda kind=kind, d=d, ell=ell: list(basins(d, ell, kind).values())[3:],
            )
            for kind, d, ell, ours, theirs, mean, error, p in (
                ("cosine", 2, 1024, 31, 31, "-0.304", "0.213", "0.167"),
                ("cosine", 2, 4096, 32, 32, "-0.139", "0.146", "0.353"),
                ("cosine", 2, 16384, 32, 32, "0.00419", "0.149", "0.98"),
                ("cosine", 4, 1024, 30, 32, "-0.0515", "0.2", "0.81"),
                ("cosine", 4, 4096, 27, 30, "0.135", "0.305", "0.659"),
                ("cosine", 4, 16384, 30, 29, "-0.333", "0.261", "0.222"),
                ("cosine", 8, 1024, 10, 0, "-0.94", "0.188", "5e-05"),
                ("cosine", 8, 4096, 6, 14, "0.306", "0.222", "0.182"),
                ("cosine", 8, 16384, 9, 14, "0.246", "0.197", "0.226"),
                ("sobol", 2, 1024, 31, 31, "-0.335", "0.264", "0.215"),
                ("sobol", 2, 4096, 30, 32, "0.393", "0.231", "0.0994"),
                ("sobol", 2, 16384, 32, 32, "-0.00497", "0.168", "0.975"),
                ("sobol", 4, 1024, 31, 32, "-0.0847", "0.196", "0.683"),
                ("sobol", 4, 4096, 30, 30, "-0.0161", "0.246", "0.95"),
                ("sobol", 4, 16384, 30, 29, "-0.344", "0.204", "0.103"),
                ("sobol", 8, 1024, 9, 0, "-0.892", "0.201", "5e-05"),
                ("sobol", 8, 4096, 13, 14, "-0.0371", "0.21", "0.862"),
                ("sobol", 8, 16384, 8, 14, "0.318", "0.219", "0.156"),
            )
        ),
        (
            "in {14} runs against {6} with 4096 features and {9} with 16384. This may be chance"
            " (p = {0.18} and {0.23})",
            lambda: [
                basins(8, 4096)["found, weight-space"],
                *(basins(8, ell)["found, decoupled"] for ell in ELL[1:]),
                *(basins(8, ell)["p"] for ell in ELL[1:]),
            ],
        ),
        (
            "never find the lowest basin and end behind DIRECT",
            lambda: (
                ends("paper", 8, "weight-space", 1024) > ends("paper", 8, "DIRECT")
                and basins(8, 1024)["found, weight-space"] == 0
            ),
        ),
        (
            "in {10} runs of {32}, and their regret is {8.7} times lower in the geometric mean ({4.9} times by the"
            " median)",
            lambda: [
                basins(8, 1024)["found, decoupled"],
                basins(8, 1024)["pairs"],
                10 ** -basins(8, 1024)["mean"],
                ends("paper", 8, "weight-space", 1024) / ends("paper", 8, "decoupled", 1024),
            ],
        ),
        (
            "at d = 8 are {0.51}, {0.56} and {0.55} with 1024, 4096 and 16384 Sobol features. With as many cosines"
            " they are {0.28}, {0.54} and {0.53}",
            lambda: [ends("paper", 8, method, ell) for method in (SOBOL, "decoupled") for ell in ELL],
        ),
        ("of {2.0} in regret at d = 8 (p = {0.15})", lambda: factor(8, "decoupled sobol 4096")),
        ("of {0.84} at d = 4 (p = {0.77})", lambda: factor(4, "decoupled sobol 4096")),
        ("of {0.35} at d = 2 (p = {0.07})", lambda: factor(2, "decoupled sobol 4096")),
        ("It is {0.84} in all 96 pairs (p = {0.59})", lambda: factor("all", "decoupled sobol 4096")),
        ("Against 1024 it is {1.0} in all 96 (p = {0.96})", lambda: factor("all", "decoupled sobol 1024")),
        ("with 16384, {1.0} in all 96 (p = {0.93})", lambda: factor("all", "weight-space cosine 16384")),
        (
            "the latter found the basin in {14} runs, and those with Sobol features in {8} (p = {0.16})",
            lambda: [basins(8, 16384, "sobol")[name] for name in ("found, weight-space", "found, decoupled", "p")],
        ),
    ],
    "against": [
        ("{2.6} of 9 in batches of ten", lambda: place(10, GRADED)),
        (
            "(`qLogEI` {4.8}, `GPSampler` {5}, TuRBO {6.2}), and {2.4} of 7 in batches of a hundred (TuRBO {6})",
            lambda: [
                *(place(10, m) for m in ("qLogEI", "GPSampler", "TuRBO")),
                place(100, GRADED),
                place(100, "TuRBO"),
            ],
        ),
        (
            "{4 · 10⁻⁵} to {2 · 10⁻⁴}, where `qLogEI`, TuRBO and `GPSampler` end at {0.03} to {0.12}",
            lambda: [*span(end("Hartmann-6", 10, m) for m in OURS), *span(end("Hartmann-6", 10, m) for m in OTHERS)],
        ),
        (
            "lower than each of the others in {19} or {20} of {20}",
            lambda: [*span(lower("Ackley-10", 10, GRADED, m) for m in OTHERS), 20],
        ),
        (
            "a single greedy point is a little better ({2.3} against {2.5})",
            lambda: [end("Ackley-10", 10, GREEDY), end("Ackley-10", 10, GRADED)],
        ),
        (
            "graded spreads are better ({0.19} against {0.53})",
            lambda: [end("Ackley-10", 100, GRADED), end("Ackley-10", 100, GREEDY)],
        ),
        (
            "({13.6} against {6.2} to {9.7})",
            lambda: [end("Levy-10", 10, "Thompson"), *span(end("Levy-10", 10, m) for m in OTHERS)],
        ),
        ("Graded runs have a median of {4.0}", lambda: end("Levy-10", 10, GRADED)),
        (
            "in {14}, {17} and {15} of {20}. In batches of a hundred they have {1.4}, and TuRBO {3.8}",
            lambda: [
                *(lower("Levy-10", 10, GRADED, m) for m in OTHERS),
                20,
                end("Levy-10", 100, GRADED),
                end("Levy-10", 100, "TuRBO"),
            ],
        ),
        (
            "({85}, or {81} in a trust region, against {78}; lower in {11} of {20}). The others have {89} to {94}",
            lambda: [
                *(end("Rastrigin-10", 10, m) for m in (GRADED, LOCAL, "TuRBO")),
                lower("Rastrigin-10", 10, GRADED, "TuRBO"),
                20,
                *span(end("Rastrigin-10", 10, m) for m in ("qLogEI", "GPSampler", *OURS[:3])),
            ],
        ),
        (
            "({46} against {61}; lower in {17} of {20})",
            lambda: [
                *(end("Rastrigin-10", 100, m) for m in (GRADED, "TuRBO")),
                lower("Rastrigin-10", 100, GRADED, "TuRBO"),
                20,
            ],
        ),
        (
            "(graded {0.59}, others {0.8} to {1.0}, against {0.30} and {0.38})",
            lambda: [
                end("rover-12", 10, GRADED),
                *span(end("rover-12", 10, m) for m in OURS if m != GRADED),
                *(end("rover-12", 10, m) for m in ("GPSampler", "qLogEI")),
            ],
        ),
        (
            "draws alone are {9.3} times lower than TuRBO, and graded ones {4.5} times",
            lambda: [end("rover-12", 100, "TuRBO") / end("rover-12", 100, m) for m in ("Thompson", GRADED)],
        ),
        ("takes {3.0} to {5.5} seconds of one core", lambda: span(choosing(p, GRADED) for p in PROBLEMS)),
        (
            "takes {15} to {26} times as long, `GPSampler` {1.6} to {3.1} times, and TuRBO {0.8} to {1.4}",
            lambda: [
                x
                for m in ("qLogEI", "GPSampler", "TuRBO")
                for x in span(choosing(p, m) / choosing(p, GRADED) for p in PROBLEMS)
            ],
        ),
        (
            "in which {7} or {8} of its own {20} runs end too",
            lambda: [*span(second_basin(10, m) for m in OURS), len(run_ends("Hartmann-6", 10, GRADED))],
        ),
        (
            "{9} of {20} graded runs end in that basin, and {8} of {20} with draws alone",
            lambda: [second_basin(100, GRADED), 20, second_basin(100, "Thompson"), 20],
        ),
        (
            "They took {8.7} to {9.9} times TuRBO's time",
            lambda: span(
                cell("against-rover", "seconds", method=m) / cell("against-rover", "seconds", method="TuRBO")
                for m in (GRADED, LOCAL)
            ),
        ),
        (
            "mean place here too: {1.8} of 7, against {3.4} for one greedy point, {3.6} for `qLogEI`, "
            "and {3.8} for TuRBO and `GPSampler`",
            lambda: [place(1, m) for m in (GRADED, GREEDY, "qLogEI", "TuRBO")],
        ),
        (
            "({1.8} against {2.1} to {3.3}), and lower than `GPSampler` in all {20} pairs",
            lambda: [
                end("Ackley-10", 1, GRADED),
                *span(end("Ackley-10", 1, m) for m in OTHERS),
                lower("Ackley-10", 1, GRADED, "GPSampler"),
            ],
        ),
        (
            "({2.7} against {2.5} and {2.7}), but lower in {6} and {9} of {20} only",
            lambda: [
                *(end("Levy-10", 1, m) for m in (GRADED, "qLogEI", "GPSampler")),
                *(lower("Levy-10", 1, GRADED, m) for m in ("qLogEI", "GPSampler")),
                20,
            ],
        ),
        (
            "({75} against {66}; lower in {7} of {20})",
            lambda: [
                *(end("Rastrigin-10", 1, m) for m in (GRADED, "TuRBO")),
                lower("Rastrigin-10", 1, GRADED, "TuRBO"),
                20,
            ],
        ),
        (
            "({0.31} against {0.23}; lower in {5} of {20})",
            lambda: [
                *(end("rover-12", 1, m) for m in (GRADED, "GPSampler")),
                lower("rover-12", 1, GRADED, "GPSampler"),
                20,
            ],
        ),
        (
            "they are a little below `qLogEI`, and lower in {9} of {20}",
            lambda: [lower("rover-12", 1, GRADED, "qLogEI"), 20],
        ),
        ("({30}, where random search has {31})", lambda: [end("rover-60", 100, m) for m in ("Thompson", "random")]),
        (
            "({5.3}, and {4.3} in a trust region, against {20})",
            lambda: [end("rover-60", 100, m) for m in (GRADED, LOCAL, "TuRBO")],
        ),
        (
            "in {17} of {20} (batches of ten) and {14} of 20 (of a hundred). On Rastrigin-10 these are {15} and {11}",
            lambda: [
                lower("Levy-10", 10, "Thompson, local", "Thompson"),
                20,
                lower("Levy-10", 100, "Thompson, local", "Thompson"),
                *(lower("Rastrigin-10", b, "Thompson, local", "Thompson") for b in (10, 100)),
            ],
        ),
        (
            "in batches of a hundred ({6} of {20})",
            lambda: [lower("rover-12", 100, "Thompson, local", "Thompson"), 20],
        ),
        (
            "`GPSampler` ended at {0.58}, {0.19}, {0.26}, {0.33}, {0.21} and {0.02}",
            lambda: [run_ends("rover-12", 10, "GPSampler")[seed] for seed in range(6)],
        ),
        *(
            (
                row,
                lambda name=name: [
                    end(name, 10, m, 6) for m in (GREEDY, GRADED, LOCAL, "TuRBO", "GPSampler", "qLogEI")
                ],
            )
            for name, row in (
                (
                    "Hartmann-6",
                    "| {1.3e-5} | {2.1e-5} | {3.8e-5} | 2.4e-5 | 4.9e-5 | 4.2e-5 | {0.023} | {7.7e-5} | {0.012} |",
                ),
                ("Ackley-10", "| {2.0} | {2.3} | {2.7} | 3.9 | 2.3 | 2.4 | {4.5} | {3.8} | {4.0} |"),
                ("Levy-10", "| {6.5} | {4.1} | {4.7} | 7.0 | 4.1 | 4.4 | {8.8} | {7.7} | {7.4} |"),
                ("Rastrigin-10", "| {97} | {84} | {87} | 92 | 90 | 94 | {78} | {95} | {96} |"),
                ("rover-12", "| {0.87} | {1.5} | {0.85} | 1.5 | 0.56 | 1.5 | {2.5} | {0.24} | {0.34} |"),
            )
        ),
        (
            "| {1.65}, {1.61}, {1.87}, {0.35}, {0.45}, {1.39} |",
            lambda: [run_ends("rover-12", 10, GRADED)[seed] for seed in range(6)],
        ),
        (
            "| {3.1}, {6.0}, {1.3}, {4.2} |",
            lambda: [run_ends("Levy-10", 10, GRADED)[seed] for seed in range(4)],
        ),
        ("| {2.3}, {2.8}, {2.4} |", lambda: [run_ends("Ackley-10", 10, GRADED)[seed] for seed in range(3)]),
        (
            "{0.59} over all 20 seeds, where draws alone have {0.79}, and lower in {9} of {20}",
            lambda: [
                *(end("rover-12", 10, m) for m in (GRADED, "Thompson")),
                lower("rover-12", 10, GRADED, "Thompson"),
                20,
            ],
        ),
        (
            "({0.27} against {0.13}; lower in {2} of {20})",
            lambda: [
                *(end("rover-12", 100, m) for m in (GRADED, "Thompson")),
                lower("rover-12", 100, GRADED, "Thompson"),
                20,
            ],
        ),
    ],
    "optuna": [
        (
            "ends lowest on Hartmann-6, Ackley-8 and the mixed function. `GPSampler` ends lowest on Branin",
            lambda: (
                [min(SAMPLERS, key=lambda s: cell("optuna-samplers-full", function=f, sampler=s)) for f in FUNCTIONS]
                == ["GPSampler", "ThompsonSampler", "ThompsonSampler", "ThompsonSampler"]
            ),
        ),
        (
            "A suggestion takes {0.15} to {0.20} seconds, and one of `GPSampler` {0.09} to {0.31}",
            lambda: [
                x
                for s in ("ThompsonSampler", "GPSampler")
                for x in span(
                    cell("optuna-samplers-full", "seconds per trial", function=f, sampler=s) for f in FUNCTIONS
                )
            ],
        ),
        (
            "After 30 trials `GPSampler` has the lower median on all but Branin, and after 50 on all but Hartmann-6",
            lambda: [[f for f in FUNCTIONS if ahead(f, trials)] for trials in (30, 50)] == [["Branin"], ["Hartmann-6"]],
        ),
        (
            "it found the basin in round 6 and `ThompsonSampler` in round 8",
            lambda: (
                [next(i for i, r in enumerate(workers("Hartmann-6", 8, s), 1) if r < 0.119) for s in SAMPLERS[2:]]
                == [6, 8]
            ),
        ),
        (
            "`ThompsonSampler` is ahead on Ackley-8 from the second round on",
            lambda: all(
                ours < min(others)
                for ours, *others in list(zip(*(workers("Ackley-8", 32, s) for s in SAMPLERS[::-1]), strict=True))[1:]
            ),
        ),
        (
            "random search misses {0.58}, `GPSampler` {0.53} and own fronts {0.56}",
            lambda: [missing("DTLZ2-5-3", sampler) for sampler in ("random", "GPSampler", "own fronts")],
        ),
        (
            "three of eight with draws alone",
            lambda: (studies("Hartmann-6", "ThompsonSampler")[:8, 49] > 0.1189).sum() == 3,
        ),
        (
            "own fronts miss half as much hypervolume as scalarisation on Branin-Currin and ZDT1",
            lambda: all(
                0.4 < missing(p, "own fronts") / missing(p, "scalarised") < 0.55 for p in ("Branin-Currin", "ZDT1-5")
            ),
        ),
        (
            "and {13}% less on DTLZ2",
            lambda: 100 * (1 - missing("DTLZ2-5-3", "own fronts") / missing("DTLZ2-5-3", "scalarised")),
        ),
        *(
            (row, lambda name=name: [*eight(name, "ThompsonSampler"), *eight(name, "GPSampler")])
            for name, row in (
                ("Branin", "| {0.0015}, {0.00038} | 0.0013, 0.000034 | 6 of 8 | {0.011}, {0.000034} |"),
                ("Hartmann-6", "| {0.96}, {0.054} | 0.61, 0.12 | 3 of 8 | {0.47}, {0.15} |"),
                ("Ackley-8", "| {9.3}, {4.2} | 7.7, 3.6 | 5 of 8 | {7.2}, {3.8} |"),
                ("mixed", "| {0.2}, {5.1e-5} | 0.0097, 7.4e-6 | 6 of 8 | {0.027}, {5.2e-6} |"),
            )
        ),
    ],
}

# Settings of the runs, definitions, and the paper's own numbers.
SETTINGS: dict[str, list[str]] = {
    "against": [
        "0.119 is a second basin",
        "spread=0.5",
        "spread 0.5 | spread 0.25",
        "0.3 to 1",
        "0.3 to 0.7",
        "at least 0.3 lengthscales",
    ],
    "bounds": ["noise variance is 10⁻³"],
    "control": ["within about 0.45 rad", "within 0.42 m", "by 0.001 in positions and angles and 0.01 in velocities"],
    "fitzhugh-nagumo": [
        "dw/dt = (v + 0.7 − 0.8 w) / 12.5",
        "w ∈ [−1.5, 2.5]",
        "current is 0.5 − 0.5 cos(2π t / 100). There are 1000 steps of 0.25",
        "R² above 0.999",
        "diffusion 0.01 I",
        "entropy of 0.03 of the mean cost",
        "above 10⁻¹⁰ of the prior variance",
        "jitter of 10⁻⁸",
        "10 hours with the iterative approach against 20 seconds with functions",
    ],
    "leverage": ["noise 1e-4", "noise from 10⁻⁶ to 10⁻¹"],
    "optuna": [
        "cut at 10⁻⁶ in the figure",
        "25% | median | 75%",
        "in the second basin (0.119)",
        "spread=0.5",
        "at least 10⁻⁴ of the values",
    ],
    "posteriors": ["trial 0 of 32", "lengthscale 0.1", "noise variance 10⁻³", "[0.2, 0.3] and [0.65, 0.75]"],
    "thompson": [
        "noise variance 10⁻³",
        "10⁶ points",
        "falls to 10⁻² and far below",
        "0.1 to 1 above",
        "ended below 0.05",
        "end below 0.05",
    ],
    "wasserstein": ["noise variance 10⁻³"],
}
# Measured once, or with variants that are no more: no file has these.
MEASURED_ONCE: dict[str, list[str]] = {
    "love": ["128 test points took 35 s and 60 GiB on an H200"],
    "against": [
        "took 201 s takes 43 s",
        "of which the lowest is 3.5",
        "errors were 2.62 and 2.63, and 2.38 and 2.40, of values that vary by 2.7",
        "| 1.98, 0.84, 0.30 | 0.80, 0.20, 0.46 | 0.25, 0.21, 0.36, 0.37, 0.22, 0.44 | 1.26, 2.46, 0.93 |",
        "| 2.2, 6.6, 11, 3.9 | 2.3, 2.1, 4.7, 8.7 |",
        "| 0.12, 5e-5, 0.12, 3e-5 | 0.12, 4e-5, 0.12, 5e-5 |",
        "| 1.8, 2.5, 2.5, 1.5 | 2.1, 2.0, 5.1, 2.9 |",
        "ended at 0.36, 0.71, 2.13, 0.62, 2.35 and 0.61",
        "| 2.4e-5 | 4.9e-5 | 4.2e-5 |",
        "| 3.9 | 2.3 | 2.4 |",
        "| 7.0 | 4.1 | 4.4 |",
        "| 1.5 | 0.56 | 1.5 |",
        "near 0.3 or above 1",
        "| rover-12 | 0.70, 1.63, 1.59, 0.29, 0.16, 1.23 |",
        "| Levy-10 | 1.5, 2.1, 8.4, 17 |",
        "| Ackley-10 | 3.1, 3.9, 2.2 |",
    ],
    "fitzhugh-nagumo": ["39 of 1000 iterative simulations", "took 113 seconds"],
    "optuna": [
        "| 100 | 0.23 | 0.14 |",
        "| 250 | 0.19 | 0.41 |",
        "| 500 | 0.29 | 1.15 |",
        "| 1000 | 0.49 |",
        "| 2000 | 0.92 |",
        "| 1.8e-6 | 6.8e-6 | 0.075 | 0.038 | 0.056 | 0.075 |",
        "| 0.21 | 0.24 | 0.26 | 0.13 | 0.16 | 0.17 |",
        "| 0.087 | 0.11 | 0.14 | 0.061 | 0.066 | 0.094 |",
        "| 0.087 | 0.12 | 0.17 | 0.06 | 0.064 | 0.09 |",
        "0.075 is the second best branch's minimum. With sixteen, 0.038, 0.056 and 0.075 are those",
        "took 0.32 and 0.44 seconds",
        "0.06 and 0.1",
        "| 0.0013, 0.000034 | 6 of 8 |",
        "| 0.61, 0.12 | 3 of 8 |",
        "| 7.7, 3.6 | 5 of 8 |",
        "| 0.0097, 7.4e-6 | 6 of 8 |",
    ],
    "thompson": [
        "a median of 0.38, against 0.007 with 4096 and 0.004",
        "is 0.0069 for Sobol features and 0.0077 for cosines (4096: 0.0156 and 0.0156",
        "16 ms (decoupled; a run alone took 1.6 s",
        "0.13 to 0.18 s) and 46 ms",
        "21 and 19 ms against 150 and 129 ms",
        "differed by 1e-15",
        "take 0.25 s a round",
        "365 took 18 minutes",
        "some 30 minutes",
    ],
    "wasserstein": ["every 1.4 to 1.7 seconds: 25 minutes in all", "with 0.0002 of the prior's variance"],
}


# How they are found on a page.


POWER = r"10[⁻⁰¹²³⁴-⁹]+"
UNITS = r"(?:%|percent|per cent|s|ms|ns|seconds|minutes|hours|times|GB|of \d+)"
CHECKED = re.compile(
    rf"(?<![\w.^/])(?:\d+(?:,\d{{3}})*(?:\.\d+)? {UNITS}(?!\w)|\d+%|"
    rf"\d+\.\d+(?:e-?\d+)?|\d+(?:e-\d+| · {POWER})|{POWER})"
)
POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def prose(page: str) -> str:
    """A page without what stands between marks, without code and addresses, and with single spaces."""
    text = refresh.MARKS.sub("", (FOLDER / f"{page}.md").read_text())
    text = re.sub(r"^    .*$|\]\([^)]*\)", "]", text, flags=re.MULTILINE)
    return " ".join(text.split())


def parsed(quoted: str) -> Decimal:
    mantissa, _, power = quoted.replace("−", "-").replace(",", "").partition(" · 10")
    if re.fullmatch(POWER, mantissa):
        mantissa, power = "1", mantissa[2:]
    return Decimal(f"{mantissa}e{power.translate(POWERS)}") if power else Decimal(mantissa)


def rounds_to(value: float, quoted: str) -> bool:
    number = parsed(quoted)
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(value - float(number)) <= 0.5 * 10.0**exponent * (1 + 1e-9)


def standing(text: str, fragment: str) -> list[int]:
    """Where the fragment stands, at the beginning and end of numbers or words alone."""
    return [found.start() for found in re.finditer(rf"(?<![\w.]){re.escape(fragment)}(?!\w|\.\d)", text)]


BRACES = re.compile(r"\{([^}]*)\}")
ALL = [pytest.param(page, *claim, id=f"{page}: {claim[0]}"[:80]) for page in CLAIMS for claim in CLAIMS[page]]


@pytest.mark.parametrize(("page", "claim", "recomputed"), ALL)
def test_what_a_page_says_is_what_the_results_say(page, claim, recomputed):
    assert standing(prose(page), BRACES.sub(r"\1", claim)), f"docs/results/{page}.md does not say this"
    quoted, found = BRACES.findall(claim), recomputed()
    if not quoted:
        assert found
        return
    values = np.atleast_1d(found).tolist()
    assert len(values) == len(quoted)
    wrong = {number: value for number, value in zip(quoted, values, strict=True) if not rounds_to(value, number)}
    assert not wrong, f"quoted and recomputed: {wrong}"


def covered(page: str, text: str) -> set[int]:
    """The characters of a page's prose that claims recompute, or that the lists of other numbers have."""
    found: set[int] = set()
    for claim, _ in CLAIMS.get(page, []):
        for start in standing(text, BRACES.sub(r"\1", claim)):
            for i, number in enumerate(BRACES.finditer(claim)):
                begins = start + number.start() - 2 * i
                found.update(range(begins, begins + len(number[1])))
    for fragment in (*SETTINGS.get(page, []), *MEASURED_ONCE.get(page, [])):
        for start in standing(text, fragment):
            found.update(range(start, start + len(fragment)))
    return found


# Pages of what benchmarks print, whose commands they name: these results are not stored in files.
PRINTED = ("features", "lattice", "scaling", "solvers")


@pytest.mark.parametrize("page", PRINTED)
def test_each_section_of_a_page_of_benchmarks_names_what_prints_its_numbers(page):
    """A benchmark, a test, a script on the page; or the section says that the numbers were measured once."""
    _, *sections = (FOLDER / f"{page}.md").read_text().split("\n## ")
    source = re.compile(r"`(?:python )?(?:benchmarks|tests)/[\w/]+\.py|^```\w*\n|measured\s+once", re.MULTILINE)
    assert sections and not [text.split("\n")[0] for text in sections if not source.search(text)]
    named = re.findall(r"(?:benchmarks|tests)/[\w/]+\.py", " ".join(sections))
    assert named and not [name for name in named if not (FOLDER.parents[1] / name).exists()]


@pytest.mark.parametrize("page", sorted({page.stem for page in FOLDER.glob("*.md")} - set(PRINTED)))
def test_every_number_of_a_page_is_recomputed_or_known_not_to_be_stored(page):
    text = prose(page)
    known = covered(page, text)
    unknown = [text[max(0, m.start() - 40) : m.end() + 20] for m in CHECKED.finditer(text) if m.start() not in known]
    assert not unknown, f"docs/results/{page}.md: add to CLAIMS, SETTINGS or MEASURED_ONCE"
    listed = (*SETTINGS.get(page, []), *MEASURED_ONCE.get(page, []))
    assert not [fragment for fragment in listed if not standing(text, fragment)], "no longer on the page"


@pytest.mark.parametrize(
    ("value", "quoted"), [(0.0004, "4 · 10⁻⁴"), (-0.504, "−0.50"), (1e5, "10⁵"), (1234.4, "1,234")]
)
def test_a_number_is_compared_to_the_digits_that_are_quoted(value, quoted):
    assert rounds_to(value, quoted) and not rounds_to(1.6 * value, quoted)
