"""The runner: trials have their own seeds, survive kills, and are neither lost nor run twice."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from matheron_paper import Trial, experiment, names, run
from matheron_paper.base import RefusedError, stable_hash
from matheron_paper.report import quartile_table
from matheron_paper.results import Results
from matheron_paper.workers import Task, perform

HERE = Path(__file__).parent


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import toy

    return toy.toy


def quiet():
    return Console(file=io.StringIO(), width=200)


def text(console):
    return console.file.getvalue()


def lines(folder, name="toy-quick"):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()[1:]]


def values(folder, name="toy-quick"):
    return {line["key"]: line["result"]["value"] for line in lines(folder, name)}


def script(folder, settings, *workers, seconds=0.0):
    command = [sys.executable, str(HERE / "toy.py"), str(folder), json.dumps(settings), *map(str, workers)]
    environment = {**os.environ, "TOY_SECONDS": str(seconds), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a run in the background ignores
    )


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def processes_of(parent):
    """The live children of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(") ", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


# Seeds


def test_a_seed_does_not_depend_on_the_order_of_a_case():
    assert stable_hash("toy", {"d": 2, "n": 3}) == stable_hash("toy", {"n": 3, "d": 2}) < 2**63


def test_trials_differ_in_every_part_of_their_key():
    base = Trial("toy", {"d": 2, "method": "a"}, 0, 0)
    others = [
        Trial("yot", {"d": 2, "method": "a"}, 0, 0),
        Trial("toy", {"d": 3, "method": "a"}, 0, 0),
        Trial("toy", {"d": 2, "method": "a"}, 1, 0),
        Trial("toy", {"d": 2, "method": "a"}, 0, 1),
    ]
    draws = [torch.rand(3, generator=t.generator("x")) for t in (base, *others)]
    draws.append(torch.rand(3, generator=base.generator("y")))
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)


def test_cases_can_share_a_problem(toy, tmp_path):
    run(toy(), out=tmp_path, workers=1, console=quiet())
    problems = {(line["case"]["d"], line["case"]["method"], line["trial"]): line["result"] for line in lines(tmp_path)}
    assert problems[2, "a", 0]["problem"] == problems[2, "b", 0]["problem"]
    assert problems[2, "a", 0]["problem"] != problems[3, "a", 0]["problem"]
    assert problems[2, "a", 0]["problem"] != problems[2, "a", 1]["problem"]
    assert problems[2, "a", 0]["value"] != problems[2, "b", 0]["value"]


# A run and its files


def test_a_run_leaves_results_table_and_figures_side_by_side(toy, tmp_path):
    console = quiet()
    summary = run(toy(), out=tmp_path, workers=1, console=console)
    expected = {f"toy-quick{suffix}" for suffix in (".jsonl", ".csv", ".md", ".png", ".pdf")}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert {path.name for path in summary.files} == expected
    assert (summary.finished, summary.failed, summary.left) == (6, 0, 0)
    assert "a remark" in text(console) and "median" in text(console)
    assert "6 of 6 trials" in text(console)


def test_the_table_holds_medians_and_quartiles(toy, tmp_path):
    run(toy(), out=tmp_path, trials=5, workers=1, console=quiet())
    found = [line["result"]["value"] for line in lines(tmp_path) if line["case"] == {"d": 3, "method": "a"}]
    rows = list(csv.DictReader((tmp_path / "toy-quick.csv").open()))
    row = next(row for row in rows if row["d"] == "3")
    quantiles = torch.tensor(found, dtype=torch.float64).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    assert [float(row[name]) for name in ("25%", "median", "75%")] == pytest.approx(quantiles.tolist())
    assert row["trials"] == "5"
    markdown = (tmp_path / "toy-quick.md").read_text()
    assert f"| 3 | a | 5 | {float(row['25%']):.3g} |" in markdown


def test_a_second_run_adds_nothing_and_more_trials_add_only_those(toy, tmp_path):
    run(toy(), out=tmp_path, workers=1, console=quiet())
    before = (tmp_path / "toy-quick.jsonl").read_bytes()
    console = quiet()
    run(toy(), out=tmp_path, workers=1, console=console)
    assert (tmp_path / "toy-quick.jsonl").read_bytes() == before
    assert "6 of them done before" in text(console)
    run(toy(), out=tmp_path, trials=3, workers=1, console=quiet())
    assert (tmp_path / "toy-quick.jsonl").read_bytes().startswith(before)
    assert len(lines(tmp_path)) == 9


def test_seeds_are_kept_apart_and_changed_settings_are_refused(toy, tmp_path):
    run(toy(), out=tmp_path, workers=1, console=quiet())
    run(toy(), out=tmp_path, seed=1, workers=1, console=quiet())
    first, second = values(tmp_path), values(tmp_path, "toy-quick-seed1")
    assert first.keys() == second.keys() and not set(first.values()) & set(second.values())
    with pytest.raises(RefusedError, match=r"settings\.draws is None there and 7 here"):
        run(toy(draws=7), out=tmp_path, workers=1, console=quiet())
    assert values(tmp_path) == first


def test_figures_can_wait_for_a_machine_with_matplotlib(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matheron_paper.style", None)
    console = quiet()
    run(toy(), out=tmp_path, workers=1, console=console)
    assert "no figures" in text(console)
    assert (tmp_path / "toy-quick.csv").exists() and not (tmp_path / "toy-quick.png").exists()
    monkeypatch.undo()
    monkeypatch.syspath_prepend(HERE)
    run(toy(), out=tmp_path, workers=1, console=quiet())
    assert (tmp_path / "toy-quick.png").exists()


def test_a_table_can_be_read_across_the_page():
    rows = [{"d": d, "n": n, "w2": float(i + n + d)} for n in (4, 16) for d in (2, 8) for i in range(2)]
    table = quartile_table("Distances", [*rows, {"d": 9, "n": 4, "w2": 0.5}], ["d", "n"], "w2", across="n")
    assert table.markdown().splitlines() == [
        "| d | n = 4 | n = 16 | trials |",
        "|---|---|---|---|",
        "| 2 | 6.5 (6.25 to 6.75) | 18.5 (18.2 to 18.8) | 2 |",
        "| 8 | 12.5 (12.2 to 12.8) | 24.5 (24.2 to 24.8) | 2 |",
        "| 9 | 0.5 |  | 1 |",
    ]
    assert len(table.rows) == 5 and table.columns[-3:] == ["25%", "median", "75%"]


# What goes wrong


def test_a_failed_trial_is_recorded_and_the_others_go_on(toy, tmp_path):
    console = quiet()
    summary = run(toy(fails_at=0), out=tmp_path, workers=1, console=console)
    assert (summary.finished, summary.failed) == (3, 3)
    assert "FloatingPointError: no such number" in text(console)
    failed = [line for line in lines(tmp_path) if "error" in line]
    assert len(failed) == 3 and "run_trial" in failed[0]["traceback"]


@pytest.mark.slow
def test_a_kill_loses_only_the_trials_in_flight_and_a_restart_goes_on(toy, tmp_path):
    # The two processes have different seeds of Python's own hash: equal values show that ours does not depend on it.
    settings = {"trials": 8}
    process = script(tmp_path / "killed", settings, seconds=0.5)
    file = tmp_path / "killed" / "toy-quick.jsonl"
    wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") >= 5)
    process.kill()
    process.communicate()
    stored = file.read_bytes()
    count = stored.count(b"\n") - 1
    assert 4 <= count < 24
    with file.open("ab") as torn:  # as if the kill had come in the middle of a write
        torn.write(b'{"key": "[{\\"d\\":')
    run(toy(**settings), out=tmp_path / "killed", workers=1, console=quiet())
    assert file.read_bytes().startswith(stored)
    keys = [line["key"] for line in lines(tmp_path / "killed")]
    assert len(keys) == len(set(keys)) == 24
    run(toy(trials=8), out=tmp_path / "whole", workers=1, console=quiet())
    assert values(tmp_path / "killed") == values(tmp_path / "whole")


@pytest.mark.slow
def test_workers_give_the_same_results_and_share_the_cores(toy, tmp_path):
    run(toy(), out=tmp_path / "alone", workers=1, console=quiet())
    run(toy(), out=tmp_path / "together", workers=2, console=quiet())
    assert values(tmp_path / "together") == values(tmp_path / "alone")
    cores = len(os.sched_getaffinity(0))
    assert all(line["result"]["threads"] <= max(1, cores // 2) for line in lines(tmp_path / "together"))


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, 100])
def test_a_worker_that_dies_is_reported_and_its_trial_run_again_or_marked(toy, tmp_path, deaths):
    marker = tmp_path / "marker"
    marker.mkdir()
    console = quiet()
    settings = {"dies_at": 1, "deaths": deaths, "marker": str(marker)}
    summary = run(toy(**settings), out=tmp_path, workers=2, console=console)
    assert "its worker process was killed by SIGKILL; it is run once more" in text(console)
    if deaths == 1:
        assert (summary.finished, summary.failed) == (6, 0)
    else:
        assert (summary.finished, summary.failed) == (5, 1)
        assert "failed: d=3 method=a trial 1: its worker process was killed by SIGKILL, 2 times" in text(console)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_a_stopped_run_leaves_no_process_behind_and_a_whole_file(toy, tmp_path, how):
    process = script(tmp_path, {"seconds": 600, "slow_from": 1}, 2)
    file = tmp_path / "toy-quick.jsonl"
    wait_for(lambda: file.exists() and file.read_bytes().count(b"\n") == 4)  # the rest is in flight, for long
    children = processes_of(process.pid)
    assert len(children) >= 2
    process.send_signal(signal.Signals[how])
    process.communicate(timeout=30)
    wait_for(lambda: not any(map(alive, children)))
    assert file.read_bytes().endswith(b"\n")
    assert len(lines(tmp_path)) == 3


def test_a_time_limit_stops_before_a_trial_that_would_end_late(toy, tmp_path):
    console = quiet()
    began = time.monotonic()
    summary = run(toy(seconds=0.2), out=tmp_path, trials=20, workers=1, time_limit=1.0, console=console)
    assert time.monotonic() - began < 10  # of 12 in all; the report is made after the limit
    assert 1 <= summary.finished <= 5 and summary.left == 60 - summary.finished
    assert "stopped before the time limit" in text(console)
    assert f"{summary.left} trials left; the same command resumes with them" in text(console)
    assert (tmp_path / "toy-quick.png").exists()


def test_a_stopped_run_covers_all_cases_first(toy):
    trials = toy().trials(toy().settings("quick"), 0, 2)
    assert [trial.number for trial in trials] == [0, 0, 0, 1, 1, 1]


# Trials that are run together


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    from matheron_paper import runner

    monkeypatch.setattr(runner, "_together", lambda task: task.experiment.together)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_blocks_of_a_cases_trials_give_the_same_results(toy, tmp_path, as_on_a_gpu, workers):
    it = toy()
    first, *_ = it.trials(it.settings("quick"), 0, 1)
    with Results(tmp_path / "toy-quick.jsonl", it.header("quick", 0)) as results:
        results.append(first.key, perform(Task(it, it.settings("quick"), "cpu"), first))
    run(it, out=tmp_path, trials=4, workers=workers, console=quiet())
    if workers == 1:  # three of each case, in the order of the first; then what is left
        assert [line["trial"] for line in lines(tmp_path)[1:]] == [0, 1, 2, 0, 1, 2, 1, 2, 3, 3, 3]
    assert sorted(line.get("together", 1) for line in lines(tmp_path)) == [1] * 3 + [3] * 9
    alone = {t.key: it.run(t, {}, torch.device("cpu"))["value"] for t in it.trials(it.settings("quick"), 0, 4)}
    assert values(tmp_path) == alone


def test_trials_that_fail_together_are_run_alone(toy, tmp_path, as_on_a_gpu):
    summary = run(toy(together_fails=True, fails_at=1), out=tmp_path, trials=3, workers=1, console=quiet())
    assert (summary.finished, summary.failed) == (6, 3)
    assert {line["not together"] for line in lines(tmp_path)} == {"MemoryError: too many"}


@pytest.mark.slow
def test_a_worker_that_dies_with_a_block_takes_one_trial_with_it(toy, tmp_path, as_on_a_gpu):
    marker = tmp_path / "marker"
    marker.mkdir()
    settings = {"dies_at": 1, "deaths": 100, "marker": str(marker)}
    summary = run(toy(**settings), out=tmp_path, trials=3, workers=2, console=quiet())
    assert (summary.finished, summary.failed) == (8, 1)


# A Dask cluster


@pytest.fixture(scope="module")
def cluster():
    from distributed import LocalCluster

    sys.path.insert(0, str(HERE))  # the workers find the toy where this process does
    try:
        made: Any = LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0")
        with made as cluster:
            yield cluster.scheduler_address
    finally:
        sys.path.remove(str(HERE))


@pytest.mark.slow
def test_a_cluster_gives_the_same_results(toy, tmp_path, cluster):
    run(toy(), out=tmp_path / "alone", workers=1, console=quiet())
    console = quiet()
    summary = run(toy(), out=tmp_path / "cluster", dask=cluster, console=console)
    assert (summary.finished, summary.failed, summary.left) == (6, 0, 0)
    assert values(tmp_path / "cluster") == values(tmp_path / "alone") and "2 processes" in text(console)


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, 100])
def test_a_worker_of_a_cluster_that_dies_costs_a_trial_at_most(toy, tmp_path, cluster, deaths):
    marker = tmp_path / "marker"
    marker.mkdir()
    settings = {"dies_at": 1, "deaths": deaths, "marker": str(marker)}
    summary = run(toy(**settings), out=tmp_path, dask=cluster, console=quiet())
    assert (summary.finished, summary.failed) == ((6, 0) if deaths == 1 else (5, 1))


# What is refused


def test_refusals(toy, tmp_path):
    with pytest.raises(RefusedError, match="scale: expected one of quick for toy, got 'huge'"):
        run(toy(), "huge", out=tmp_path)
    with pytest.raises(RefusedError, match=r"expected one of posteriors, .*got 'nothing'"):
        experiment("nothing")
    with pytest.raises(RefusedError, match=r"dask: expected a scheduler's address such as .* got 'somewhere'"):
        run(toy(), out=tmp_path, dask="somewhere")
    with pytest.raises(RefusedError, match=r"dask: unknown address scheme 'pigeon'"):
        run(toy(), out=tmp_path, dask="pigeon://loft:1")
    with pytest.raises(RefusedError, match="either --dask or --workers"):
        run(toy(), out=tmp_path, dask="tcp://127.0.0.1:1", workers=2)
    with pytest.raises(RefusedError, match="at least one trial and one worker, got 0"):
        run(toy(), out=tmp_path, trials=0)
    if not torch.cuda.is_available():
        with pytest.raises(RefusedError, match="torch sees no CUDA device; use --device cpu"):
            run(toy(), out=tmp_path, device="cuda")
    assert not list(tmp_path.iterdir())


def test_every_experiment_is_found_by_its_name_and_has_the_scales():
    for name in names():
        it = experiment(name)
        assert it.name == name
        assert {"tiny", "quick", "paper"} <= set(it.scales)
        for scale in it.scales:
            assert it.settings(scale)["trials"] >= 1
            assert it.cases(it.settings(scale))
