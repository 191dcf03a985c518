"""An experiment that costs nothing, for tests of the runner. Its settings say what goes wrong, and where.

Run as a script it is the command of one: `python toy.py OUT SETTINGS-AS-JSON [WORKERS]`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from matheron_paper import Experiment, run
from matheron_paper.report import Report, quartile_table

CASES = [{"d": 2, "method": "a"}, {"d": 2, "method": "b"}, {"d": 3, "method": "a"}]


def cases(settings):
    return CASES


def run_trial(trial, settings, device):
    time.sleep(settings.get("seconds", 0.0) if trial.number >= settings.get("slow_from", 0) else 0.0)
    time.sleep(float(os.environ.get("TOY_SECONDS", 0.0)))  # what a run is slowed by without being another run
    if settings.get("fails_at") == trial.number:
        raise FloatingPointError("no such number")
    if settings.get("dies_at") == trial.number and trial.case["d"] == 3:
        marker = Path(settings["marker"])
        if settings["deaths"] > len(list(marker.glob("*"))):
            (marker / str(time.time_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    value = torch.rand((), generator=trial.generator("value")).item()
    problem = torch.rand((), generator=trial.generator("problem", shared=["d"])).item()
    return {"value": value, "problem": problem, "threads": torch.get_num_threads()}


def run_together(trials, settings, device, advance):
    if settings.get("together_fails"):
        raise MemoryError("too many")
    if advance is not None:
        advance(0.5)
    return [run_trial(trial, settings, device) for trial in trials]


def three(case):
    return 3


def report(records, settings):
    rows = [{**record["case"], **record["result"]} for record in records]
    return Report(quartile_table("A toy", rows, ["d", "method"], "value"), {"": figure}, ["a remark"])


def figure():
    from matheron_paper.style import panels

    drawing, axes = panels(1, 1)
    axes[0, 0].plot([0, 1], [0, 1])
    return drawing


def toy(**settings):
    scales = {"quick": {"trials": 2, **settings}}
    blocks = {"run_together": run_together, "together": three}
    return Experiment("toy", "A toy.", scales, cases, run_trial, report, **blocks)


if __name__ == "__main__":
    folder, settings, *workers = sys.argv[1:]
    summary = run(
        toy(**json.loads(settings)), out=folder, workers=int(workers[0]) if workers else 1, console=Console(width=200)
    )
    sys.exit(1 if summary.failed else 0)
