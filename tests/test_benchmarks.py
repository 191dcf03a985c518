"""The benchmark runs, and its measurements are of what they say."""

import importlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("botorch")
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "evaluate.py"
LINUX = sys.platform == "linux"  # elsewhere the high-water mark of memory cannot be put back


def test_the_benchmark_runs_and_both_libraries_compute_the_formula(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--threads", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "a smoke test, not a result" in done.stdout and "scaled up 4x" in done.stdout
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        check_numbers(row)


def check_numbers(row: dict) -> None:
    p, single = row["problem"], row["problem"]["dtype"] == "float32"
    assert row["floor_seconds"] == pytest.approx(sum(row["floor_parts"].values()))
    # A draw holds the covariance, and an evaluation its answer, at the least.
    least = (4 if single else 8) * (p["n"] ** 2 if row["case"] == "draw" else p["s"] * row["num_points"])
    for name in ("matheron", "BoTorch"):
        numbers = row[name]
        assert numbers["seconds"] > 0
        assert ("extra_bytes" in numbers) == (row["case"] in ("evaluate", "draw"))
        assert ("error" in numbers) == (row["case"] in ("evaluate", "one path at one point"))
        assert not LINUX or least <= numbers.get("extra_bytes", least) < 1e9
        assert numbers.get("error", 0.0) < (1e-4 if single else 1e-12)


@pytest.mark.skipif(not LINUX, reason="the high-water mark cannot be put back")
def test_memory_that_a_call_held_and_gave_back_is_seen(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    measure = importlib.import_module("measure")
    size = 64_000_000
    seen = measure.extra_bytes(partial, torch.ones, size // 4, threads=1)
    assert 0.95 * size < seen < 1.2 * size
