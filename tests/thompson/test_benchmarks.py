"""The benchmarks of Thompson sampling run, and compare what they say they compare."""

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("botorch")
FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


def run(script, out, *options):
    command = [sys.executable, str(FOLDER / script), "--quick", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "a smoke test, not a result" in done.stdout


@pytest.mark.slow
def test_minimisers_are_compared_on_the_same_functions(tmp_path):
    out = tmp_path / "out.json"
    run("thompson.py", out, "--threads", "1")
    rows = {row["case"]: row for row in json.loads(out.read_text())["rows"]}
    gradient, optimum = rows["gradient"], rows["optimum"]
    assert gradient["largest_difference"] < 1e-6  # of gradients near 10, by two ways of computing them
    assert optimum["num_functions"] == 24 and 0 <= optimum["share_better"] <= optimum["share_at_least_as_good"] <= 1
    # A local optimum that only one of them found is luck; a miss of half the functions would be a fault.
    assert optimum["share_at_least_as_good"] > 0.5
    assert sum(rows["the paper's budget"]["endings"].values()) == 8


def test_twins_are_the_same_functions(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("thompson")
    problem = importlib.import_module("libraries").Problem(20, 30, 3, torch.float64, d=2)
    assert benchmark.difference(problem) < 1e-10
    ours, theirs = benchmark.twins(problem, 0)
    theirs["update_paths"].weight.mul_(1.01)
    x = problem.points(5)
    assert float((ours(x) - theirs(x)).abs().max()) > 1e-4


@pytest.mark.slow
def test_optuna_s_samplers_are_compared_after_the_same_trials(tmp_path):
    pytest.importorskip("optuna")
    run("optuna_samplers.py", tmp_path, "--seeds", "1")
    lines = (tmp_path / "optuna-samplers-quick.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    assert {row["case"]["sampler"] for row in rows} == {"ThompsonSampler", "GPSampler", "TPESampler", "random"}
    for function in ("Branin", "mixed"):
        curves = [row["result"]["regret"] for row in rows if row["case"]["function"] == function]
        assert len(curves) == 4 and len({tuple(curve[:5]) for curve in curves}) == 1  # the same first trials
        for curve in curves:
            assert len(curve) == 8 and curve == sorted(curve, reverse=True) and curve[-1] >= 0


def test_the_functions_that_samplers_are_compared_on_have_minimum_zero(monkeypatch):
    optuna = pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("optuna_samplers")
    hartmann = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    minimisers = {
        "Branin": {"x0": math.pi, "x1": 2.275},
        "Hartmann-6": {f"x{i}": x for i, x in enumerate(hartmann)},
        "Ackley-8": {f"x{i}": 0.0 for i in range(8)},
        "mixed": {"kind": "c", "rate": 10**-2.5, "depth": 4, "width": 64, "dropout": 0.2},
    }
    assert list(minimisers) == benchmark.SCALES["full"]["functions"]
    for name, params in minimisers.items():
        it = benchmark.function(name)
        assert set(it.space) == set(params)
        assert it.value(params) == pytest.approx(0.0, abs=1e-4)
        for seed in range(20):
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
            assert it.value(study.ask(it.space).params) > 0


def test_a_report_of_studies_has_a_line_per_function_and_sampler(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("optuna_samplers")
    settings = benchmark.SCALES["quick"]
    records = [
        {"case": case, "result": {"regret": [8.0, 4.0, 2.0, scale], "seconds": [9.0] * 5 + [0.5, 1.5, 1.0]}}
        for case in benchmark.cases(settings)
        for scale in (0.0, 0.25, 1.0)
    ]
    table = benchmark.report(records, settings).table
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["function"], row["sampler"]) for row in rows] == [
        (function, sampler) for function in settings["functions"] for sampler in benchmark.SAMPLERS
    ]
    for row in rows:
        assert row["studies"] == 3 and row["median at 4"] == 4.0 and row["seconds per trial"] == 1.0
        assert (row["25%"], row["median"], row["75%"]) == (0.125, 0.25, 0.625)
    assert len(benchmark.report(records, settings).figures[""]().axes) == 2


def test_differences_are_of_the_same_tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("thompson_features")
    assert benchmark.differences({0: 0.1, 2: 1.0, 3: 1.0}, {3: 0.01, 0: 1.0}).tolist() == pytest.approx([-1.0, 2.0])
    record = {"trial": 0, "result": {"best": [0.5], "minimum": 0.0}}
    lower = {"trial": 0, "result": {"best": [-0.5], "minimum": 0.0}}
    case = {"d": 2, "method": "decoupled", "features": "sobol"}
    ends = benchmark.regrets([{**record, "case": case | {"ell": 1}}, {**lower, "case": case | {"ell": 2}}])
    assert ends == {(2, "decoupled", "sobol", 1): {0: 1.0}, (2, "decoupled", "sobol", 2): {0: 0.0}}


def test_the_bars_of_its_figure_are_medians(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("thompson_features")
    case = {"d": 2, "method": "decoupled", "features": "sobol", "ell": 1}
    ends = [{"case": case, "trial": i, "result": {"best": [x], "minimum": 0.0}} for i, x in enumerate((0.1, 0.3))]
    (axis,) = benchmark.figure(ends).axes
    (bar,) = axis.collections
    assert bar.get_segments()[0][:, 1].tolist() == pytest.approx([0.2, 0.2])


@pytest.mark.slow
def test_runs_with_more_and_more_features_are_on_the_same_tasks(tmp_path):
    run("thompson_features.py", tmp_path, "--seeds", "2")
    lines = (tmp_path / "thompson-features-quick.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    assert len(rows) == 8 and len({row["result"]["best"][-1] for row in rows}) > 2  # and not the same points after it
    for trial in range(2):
        mine = [row["result"] for row in rows if row["trial"] == trial]
        assert len({(result["minimum"], result["best"][0]) for result in mine}) == 1  # the same task and first points


@pytest.mark.slow
def test_a_study_is_filled_before_its_suggestions_are_timed(monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("optuna_times")
    study, _ = benchmark.filled(12, "ThompsonSampler")
    assert len(study.trials) == 12 and all(trial.value >= 0 for trial in study.trials)
    assert benchmark.seconds(12, "ThompsonSampler", suggestions=1) > 0


@pytest.mark.parametrize(("name", "at"), [("Ackley-10", 5 / 15), ("Levy-10", 9 / 18), ("Rastrigin-10", 4 / 9)])
def test_problems_have_the_minima_that_regret_is_measured_from(name, at, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    problems = importlib.import_module("problems")
    it = problems.problem(name)
    x = torch.full((1, it.dim), at, dtype=torch.float64)
    assert float(it(x)) == pytest.approx(problems.MINIMA[name], abs=1e-6)
    assert float(it(torch.cat([x, torch.ones_like(x), torch.zeros_like(x)])).min()) == pytest.approx(float(it(x)))


def test_a_rovers_way_costs_its_length_and_more_where_obstacles_are(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    rover = importlib.import_module("problems").rover
    along = torch.linspace(0.2, 0.8, 6, dtype=torch.float64)
    straight = torch.stack([along, along], dim=1).reshape(1, -1)
    around = torch.tensor([[0.0, 0.2, 0.0, 0.5, 0.0, 1.0, 0.2, 1.0, 0.6, 1.0, 0.9, 1.0]], dtype=torch.float64)
    assert float(rover(straight)) > 1.0  # through the discs about the centre
    assert 0 < float(rover(around)) < float(rover(straight))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "name", "of", "curve"),
    [
        ("against.py", "against", "method", "best"),
        ("optuna_workers.py", "optuna-workers", "sampler", "regret"),
        ("optuna_objectives.py", "optuna-objectives", "sampler", "volumes"),
    ],
)
def test_comparisons_begin_with_the_same_points_for_all(tmp_path, script, name, of, curve):
    pytest.importorskip("optuna")
    run(script, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / f"{name}-quick.jsonl").read_text().splitlines()[1:]]
    firsts: dict[str, set[float]] = {}
    for row in rows:
        rest = str({k: v for k, v in row["case"].items() if k != of})
        firsts.setdefault(rest, set()).add(row["result"][curve][0])
    assert len({row["case"][of] for row in rows}) >= 4 and all(len(values) == 1 for values in firsts.values())
