"""The benchmark runs, its measurements are of what they say, and the page shows what was kept."""

import importlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("botorch")
pytest.importorskip("sklearn")
FOLDER = Path(__file__).parent.parent / "benchmarks"
ASSETS = FOLDER.parent / "docs" / "assets"
LINUX = sys.platform == "linux"  # elsewhere the high-water mark of memory cannot be put back


@pytest.fixture
def module(monkeypatch):
    """A module of the benchmarks, by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.slow
def test_the_benchmark_runs_and_goes_on_where_it_stopped(tmp_path, module, monkeypatch, capsys):
    out, part, peers = tmp_path / "result.json", tmp_path / "result.part.json", module("peers")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["peers.py", "--quick", "--threads", "1", "--out", str(out), *arguments])
        peers.main()
        return capsys.readouterr().out

    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")  # the benchmark sets them, and they are put back
    run("--only", "draw")
    kept = json.loads(part.read_text())["rows"]
    assert {row["task"] for row in kept} == {"draw"} and not out.exists()
    assert f"going on with {len(kept)} rows" in run()
    result = json.loads(out.read_text())
    assert result["rows"][: len(kept)] == kept and not part.exists()
    assert {row["task"] for row in result["rows"]} == {"draw", "evaluate", "gradient", "own", "each", "grid"}
    assert {"matheron", "BoTorch", "GPyTorch, dense", "scikit-learn"} <= {row["library"] for row in result["rows"]}
    for row in result["rows"]:
        check_numbers(row)
    check_that_the_results_can_be_shown(result, tmp_path, module)


def check_numbers(row: dict) -> None:
    single = row["dtype"] == "float32"
    assert 0 < row["least"] <= row["seconds"] <= row["most"]
    assert 0 <= row["bytes"] < 1e9
    assert (row.get("error") or 0) < (1e-4 if single else 1e-12)
    if "floor" in row:
        assert row["library"] == "matheron"
        assert row["floor"]["seconds"] == pytest.approx(sum(row["floor"]["parts"].values()))


def check_that_the_results_can_be_shown(result: dict, folder: Path, module) -> None:
    report, results = module("report"), module("results").Results("quick", result)
    for name, section in report.SECTIONS.items():
        assert section(results).strip() or name in ("against-n", "against-S")  # in which quick sizes do not differ
    assert all(path.exists() for path in module("figures").save(results, folder))


@pytest.mark.skipif(not LINUX, reason="the high-water mark cannot be put back")
def test_memory_that_a_call_held_and_gave_back_is_seen(module):
    measure, numbers = module("measure"), 8_000_000
    meter = measure.Meter(measure.Prepared(lambda: torch.ones(numbers, dtype=torch.float64).sum()))
    assert 0.95 * 8 * numbers < meter.memory() < 1.2 * 8 * numbers


@pytest.mark.slow
def test_a_worker_that_is_killed_or_fails_says_so(module):
    measure = module("measure")
    killed = measure.Worker(os.abort, threads=1)
    with pytest.raises((EOFError, ConnectionResetError)):
        killed.ready()
    failed = measure.Worker(measure.Prepared, threads=1)  # without the call that it needs
    with pytest.raises(TypeError, match="call"):
        failed.ready()
    killed.close()
    failed.close()


def test_every_library_has_the_same_posterior_mean(module):
    libraries, others = module("libraries"), module("others")
    problem = libraries.Problem(n=40, ell=16, s=2, dtype=torch.float64)
    x = problem.points(30)
    ours = libraries.Matheron.draw(libraries.Matheron.model(problem), problem).mean(x)
    for name in ("GPyTorch, dense", "scikit-learn", "GPJax", "GSTools, one path"):
        if name in others.LIBRARIES:
            # GPJax adds a jitter of 1e-6 to the noise of 1e-2; GPyTorch rounds hyperparameters to float32.
            assert others.LIBRARIES[name].mean(problem, x) == pytest.approx(ours, abs=1e-4), name


def test_a_dense_library_is_not_run_where_it_would_take_too_long(module):
    limits, (case, *_), dense = module("limits"), module("cases").cases("cpu", quick=False), "GPyTorch, dense"
    far = replace(case, num_points=1_000_000)
    row = {"library": dense, **case.sizes(), "N": 100_000, "seconds": 1e-3, "bytes": 1.0}
    assert limits.smaller(far, dense, []) == (far, {})
    assert limits.smaller(far, dense, [row]) == (far, {})
    _, slow = limits.smaller(far, dense, [row | {"seconds": 1.0}])
    assert slow["not_run"]["seconds"] == pytest.approx(10**3, rel=0.02)  # n is small beside N: cubic
    _, large = limits.smaller(far, dense, [row | {"bytes": 1e9}])
    assert large["not_run"]["bytes"] == pytest.approx(1e9 * 10**2, rel=0.02)


def test_botorch_s_many_points_are_scaled_up_from_fewer(module):
    limits, (case, *_) = module("limits"), module("cases").cases("cpu", quick=False)
    far = replace(case, num_points=100_000)
    fewer, note = limits.smaller(far, "BoTorch", [])
    assert fewer.num_points * note["scaled_by"] == far.num_points and note["scaled_by"] == 10
    assert limits.smaller(far, "matheron", []) == (far, {})


def test_a_library_that_makes_one_path_is_measured_once_for_every_S(module, monkeypatch):
    limits, others = module("limits"), module("others")
    (case, *_), name = module("cases").cases("cpu", quick=False), others.GSTools.name
    monkeypatch.setitem(limits.LIBRARIES, name, others.GSTools)  # which need not be installed
    run, note = limits.smaller(case, name, [])
    assert run.problem.s == 1 and note == {"paths": 1}
    numbers = {"seconds": 2.0, "least": 1.0, "most": 3.0, "repeats": 3, "bytes": 5}
    row = {"library": name, **case.sizes(), "S": 8, **note, **numbers}
    assert limits.smaller(case, name, [row])[1] == note | numbers
    assert "seconds" not in limits.smaller(replace(case, num_points=7), name, [row])[1]


def test_before_a_case_come_those_with_fewer_points(module):
    for device in ("cpu", "cuda"):
        chosen = module("cases").cases(device, quick=False)
        keys = [tuple(case.sizes().items()) for case in chosen]
        assert len(set(keys)) == len(keys)
        evaluated = [
            case.num_points for case in chosen if case.task == "evaluate" and case.problem == chosen[0].problem
        ]
        assert evaluated == sorted(evaluated) and len(evaluated) > 4


def test_the_page_and_its_figures_are_of_the_results_that_are_kept(module):
    report, figures, results = module("report"), module("figures"), module("results")
    text = report.PAGE.read_text()
    assert report.refreshed(text) == text, "run python benchmarks/report.py"
    for file in report.RESULTS.glob("*.json"):
        data = json.loads(file.read_text())
        if "sources" in data and not file.name.endswith(".part.json"):
            assert not data["quick"]
            for figure in ASSETS.glob(f"performance-{file.stem}-*.svg"):
                of = figures.digest(results.Results(file.stem, data))
                assert of in figure.read_text(), f"{figure.name}: run python benchmarks/report.py"
    scaling = json.loads((report.RESULTS / "lattice.json").read_text())
    assert module("lattice_scaling").digest(scaling) in (ASSETS / "performance-lattice-figure.svg").read_text()


def test_a_number_that_does_not_match_is_noticed(module):
    report = module("report")
    page = report.PAGE.read_text()
    mark = report.MARKS.search(page)
    assert mark is not None
    assert report.refreshed(page.replace(mark[0], mark[1] + "another number\n" + mark[4])) == page


def test_the_page_speaks_of_every_goal_that_is_missed(module):
    text = module("report").PAGE.read_text()
    floors = dict(re.findall(r"<!-- (\w+): floors -->\n(.*?)<!-- end -->", text, re.DOTALL))
    cells = {name: [line.split(" | ") for line in table.splitlines()] for name, table in floors.items()}
    missed = {name: [row for row in rows if row[-1].endswith("missed |")] for name, rows in cells.items()}
    assert len(missed["cpu"]) == 4 and not missed["h200"] and "Four goals are missed, all on the CPU" in text
    for _, took, *_, goal in missed["cpu"]:
        assert f"{took} for {goal.partition(':')[0]}" in text
    assert "the call takes {} and {} times".format(*(row[3] for row in missed["cpu"][:2])) in " ".join(text.split())


@pytest.mark.slow
def test_thompson_trials_that_go_in_step_find_what_they_find_alone(module):
    thompson = module("leverage_thompson")
    case, trials = thompson.Case(0.5, 2, 2, 32), [("leverage", 0), ("sobol", 0), ("leverage", 1)]
    together = thompson.regrets(2, case, trials, torch.device("cpu"), 64)
    assert together[2] == thompson.regrets(2, case, trials[2:], torch.device("cpu"), 64)[0]
    assert together[0] != together[1]


def test_the_page_quotes_what_optimisation_with_gradients_found(module, capsys):
    gradients = module("gradient_optimisation")
    kept = json.loads(gradients.RESULTS.read_text())
    gradients.report(kept["regrets"], kept["seconds"])
    page = (FOLDER.parent / "docs" / "tutorials" / "observe.md").read_text()
    assert all(line in page for line in capsys.readouterr().out.splitlines())


def test_hartmanns_gradient_is_that_of_its_values(module):
    gradients = module("gradient_optimisation")
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    value, slope = gradients.hartmann(x)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), x)[0], slope.detach())
    lowest = torch.tensor([[0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]], dtype=torch.float64)
    value, slope = gradients.hartmann(lowest)
    assert abs(float(value) - gradients.LOWEST) < 1e-5
    assert float(slope.abs().max()) < 1e-3
