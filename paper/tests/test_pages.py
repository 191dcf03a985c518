"""The pages on results show what the results files say."""

import importlib.util
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from matheron_paper import experiment, names, run
from matheron_paper.report import Report, Table
from matheron_paper.results import Results

FOLDER = Path(__file__).parents[2] / "docs" / "results"
PAGES = sorted(FOLDER.glob("*.md"))
spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
assert spec is not None and spec.loader is not None
refresh = importlib.util.module_from_spec(spec)
spec.loader.exec_module(refresh)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_and_remarks_are_those_of_the_results(page):
    text = page.read_text()
    assert refresh.refreshed(text) == text, "run python docs/results/refresh.py"


def test_every_results_file_is_shown_with_all_that_belongs_to_it():
    shown = {found[2] for page in PAGES for found in refresh.MARKS.finditer(page.read_text())}
    for file in (FOLDER / "files").glob("*.jsonl"):
        assert file.stem in shown
        assert all(file.with_suffix(suffix).exists() for suffix in (".png", ".pdf", ".csv"))
    assert {"wasserstein-quick", "wasserstein-love-paper", "bounds-quick", "decompositions-paper"} <= shown


def test_a_table_that_does_not_match_is_noticed():
    page = next(page for page in PAGES if page.stem == "wasserstein").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| 2 | exact"))
    assert refresh.refreshed(page.replace(row, row.replace("exact", "exakt"))) == page


def test_results_files_are_of_experiments_that_exist():
    stems = [file.stem for file in (FOLDER / "files").glob("*.jsonl")]
    known = [*names(), *refresh.BENCHMARKS]
    assert stems and all(any(stem.startswith(name) for name in known) for stem in stems)


def published():
    """The results files of the experiments' present versions, and their headers."""
    found = []
    for file in sorted((FOLDER / "files").glob("*.jsonl")):
        with file.open() as lines:
            header = json.loads(next(lines))
        if header["experiment"] in names():
            found.append(pytest.param(file, header, id=file.stem))
    return found


def left_to_run(stem, trial):
    """Trials that published runs do not have yet, as their pages say; the same commands go on with them."""
    case = trial.case
    return stem == "thompson-paper" and (case.get("features") == "leverage" or case.get("kappa") == 1)


# Trials beyond the scale's: how many, and the entries of their cases. Their page has the command.
MORE = {"thompson-quick": (32, {"d": 4, "ell": 64, "features": "cosine"})}


@pytest.mark.parametrize(("file", "header"), published())
def test_published_results_are_those_of_a_finished_run(tmp_path, file, header):
    it = experiment(header["experiment"])
    settings = it.settings(header["scale"])
    wanted = it.trials(settings, header["seed"], settings["trials"])
    count, entries = MORE.get(file.stem, (0, {}))
    wanted += [trial for trial in it.trials(settings, header["seed"], count) if entries.items() <= trial.case.items()]
    with Results(
        Path(shutil.copy(file, tmp_path)), it.header(header["scale"], header["seed"]), None, it.unchanged
    ) as results:
        results.check_fields()
        assert results.done == {trial.key for trial in wanted if not left_to_run(file.stem, trial)}


def test_a_published_run_that_lacks_a_trial_resumes_with_that_one(tmp_path):
    *whole, _ = (FOLDER / "files/leverage-quick.jsonl").read_text().splitlines(keepends=True)
    file = tmp_path / "leverage-quick.jsonl"
    file.write_text("".join(whole))
    console = Console(file=io.StringIO(), width=200)
    it = replace(experiment("leverage"), report=lambda *_: Report(Table("", [], [])))  # figures take long
    summary = run(it, "quick", out=tmp_path, workers=1, time_limit=0, console=console)
    assert (summary.finished, summary.failed, summary.left) == (len(whole) - 1, 0, 1)
    assert file.read_text() == "".join(whole)
