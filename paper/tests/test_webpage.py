"""The page of results: every experiment is on it, it needs nothing but itself, and it works in a browser."""

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from browser import opened
from matheron.cli import app
from matheron_paper import names
from matheron_paper.results import read
from matheron_paper.webpage import interactive, reported, write_page

FILES = Path(__file__).parents[2] / "docs/results/files"
pytest.importorskip("plotly", reason="plotly is not installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name in ("overview-paper", "wasserstein-quick"):
        shutil.copy(FILES / f"{name}.jsonl", folder)
    (folder / "broken.jsonl").write_text('{"matheron results": 1, "experiment": "<b>none</b>"}\n')
    out = folder / "report.html"
    assert write_page(folder, out) == 2
    return out


def test_the_page_has_every_experiment_and_fetches_nothing(page):
    text = page.read_text()
    body = text[text.index("<body>") :]
    assert "Figure 3" in body and "Figure 2" in body and "num_features" in body
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"?http", text)


def test_a_file_that_is_not_understood_is_named_and_spoils_nothing(page):
    text = page.read_text()
    assert "broken.jsonl" in text and "&lt;b&gt;none" in text and "<b>none" not in text


@pytest.mark.parametrize("file", sorted(FILES.glob("*-quick.jsonl")), ids=lambda file: file.stem)
def test_curves_are_the_medians_of_the_table(file):
    _, report, _ = reported(file)
    medians = sorted(dict(zip(report.table.columns, row, strict=True))["median"] for row in report.table.rows)
    curves = interactive(report.table).to_dict()["data"]
    shown = sorted(float(value) for curve in curves for value in curve["y"])
    assert shown == pytest.approx(medians)


def test_a_later_record_of_a_trial_counts(tmp_path):
    lines = (FILES / "overview-paper.jsonl").read_text().splitlines()
    failed = {"key": json.loads(lines[1])["key"], "error": "it failed at first"}
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join([lines[0], json.dumps(failed), *lines[1:]]))
    assert reported(file)[2] == 0


def test_a_run_that_was_killed_while_it_wrote_has_the_trials_before(tmp_path):
    whole = (FILES / "overview-paper.jsonl").read_text()
    file = tmp_path / "a.jsonl"
    file.write_text(whole + whole.splitlines()[1][:100])
    assert len(read(file)[1]) == len(read(FILES / "overview-paper.jsonl")[1])


def test_the_command_says_what_is_missing(tmp_path):
    def said(folder):
        result = CliRunner().invoke(app, ["report", str(folder)])
        return result.exit_code, " ".join(result.output.split())

    code, output = said(tmp_path)
    assert code == 1 and "holds no results (*.jsonl); make some: matheron reproduce" in output
    code, output = said(tmp_path / "nowhere")
    assert code == 1 and "expected a folder of results" in output


def test_all_experiments_can_be_asked_for(tmp_path, monkeypatch):
    asked = []

    class Done:
        failed = 0

    monkeypatch.setattr("matheron_paper.runner.run", lambda one, *_, **__: asked.append(one.name) or Done())
    result = CliRunner().invoke(app, ["reproduce", "all", "--out", str(tmp_path)])
    assert result.exit_code == 0 and asked == names()


@pytest.mark.slow
def test_in_a_browser_curves_switch_off_and_on(page):
    with opened(page.as_uri()) as (tab, wrong):
        tab.wait_for_selector("#figure-2 .legend .traces")
        assert tab.locator(".js-plotly-plot").count() == 2

        def lines() -> int:
            return tab.evaluate("[...document.querySelectorAll('#figure-2 .scatterlayer .trace')].length")

        before = lines()
        tab.locator("#figure-2 .legend .traces .legendtoggle").first.click()
        tab.wait_for_function(
            "n => document.querySelectorAll('#figure-2 .scatterlayer .trace').length < n", arg=before, timeout=10_000
        )
        tab.wait_for_timeout(600)  # a second click at once would be a double click
        tab.locator("#figure-2 .legend .traces .legendtoggle").first.click()
        tab.wait_for_function(
            "n => document.querySelectorAll('#figure-2 .scatterlayer .trace').length == n", arg=before, timeout=10_000
        )
        assert not wrong
