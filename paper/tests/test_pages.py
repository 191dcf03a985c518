"""The pages on results show what the results files say."""

import importlib.util
from pathlib import Path

import pytest

from matheron.experiments import names

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
    assert {"wasserstein-quick", "wasserstein-love-quick", "bounds-quick"} <= shown


def test_a_table_that_does_not_match_is_noticed():
    page = next(page for page in PAGES if page.stem == "wasserstein").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| 2 | exact"))
    assert refresh.refreshed(page.replace(row, row.replace("exact", "exakt"))) == page


def test_results_files_are_of_experiments_that_exist():
    stems = [file.stem for file in (FOLDER / "files").glob("*.jsonl")]
    known = [*names(), *refresh.BENCHMARKS]
    assert stems and all(any(stem.startswith(name) for name in known) for stem in stems)
