"""The benchmarks of Thompson sampling run, and compare what they say they compare."""

import importlib
import json
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
    return {tuple(row[key] for key in ("case", "function", "sampler") if key in row): row for row in load(out)}


def load(out):
    return json.loads(out.read_text())["rows"]


def test_minimisers_are_compared_on_the_same_functions(tmp_path):
    rows = run("thompson.py", tmp_path / "out.json", "--threads", "1")
    gradient, optimum = rows[("gradient",)], rows[("optimum",)]
    assert gradient["largest_difference"] < 1e-6  # of gradients near 10, by two ways of computing them
    assert optimum["num_functions"] == 24 and 0 <= optimum["share_better"] <= optimum["share_at_least_as_good"] <= 1
    # A local optimum that only one of them found is luck; a miss of half the functions would be a fault.
    assert optimum["share_at_least_as_good"] > 0.5
    assert sum(rows[("the paper's budget",)]["endings"].values()) == 8


def test_twins_are_the_same_functions(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    benchmark = importlib.import_module("thompson")
    problem = importlib.import_module("libraries").Problem(20, 30, 3, torch.float64, d=2)
    assert benchmark.difference(problem) < 1e-10
    ours, theirs = benchmark.twins(problem, 0)
    theirs["update_paths"].weight.mul_(1.01)
    x = problem.points(5)
    assert float((ours(x) - theirs(x)).abs().max()) > 1e-4


def test_optuna_s_samplers_are_compared_after_the_same_trials(tmp_path):
    pytest.importorskip("optuna")
    rows = run("optuna_samplers.py", tmp_path / "out.json")
    assert {key[1] for key in rows} == {"Thompson", "GPSampler", "TPESampler", "random"}
    for row in rows.values():
        for curve in row["regrets"]:
            assert len(curve) == 8 and curve == sorted(curve, reverse=True) and curve[-1] >= 0
