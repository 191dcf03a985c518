"""The prose of the documentation: short sentences, code that fits a page, and terms that the glossary defines."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs/build"))
prose = import_module("prose")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages that are still to be rewritten: sentences there may be longer. The list only becomes shorter.
WAITING = {
    "docs/results/against.md",
    "docs/results/bounds.md",
    "docs/results/control.md",
    "docs/results/fitzhugh-nagumo.md",
    "docs/results/leverage.md",
    "docs/results/love.md",
    "docs/results/optuna.md",
    "docs/results/overview.md",
    "docs/results/posteriors.md",
    "docs/results/thompson.md",
    "docs/results/wasserstein.md",
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in WAITING], ids=name)
def test_sentences_have_at_most_thirty_words(page):
    found = prose.measured(page)
    assert not found.long, f"shorten in {name(page)}: {found.long}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_fits_a_page_and_terms_are_in_the_glossary(page):
    found = prose.measured(page)
    assert not found.wide_code, f"wider than {prose.WIDEST_CODE} columns in {name(page)}: {found.wide_code}"
    assert not found.undefined, f"add to docs/glossary.md: {found.undefined}"


def test_entries_of_the_glossary_are_in_alphabetical_order_and_two_lines_long():
    text = (ROOT / "docs/glossary.md").read_text()
    entries = [part.strip() for part in text.split("\n\n") if part.startswith("**")]
    terms = [entry.split("**")[1].lower() for entry in entries]
    assert terms == sorted(terms) and {term.lower() for term in prose.TERMS} <= prose.defined()
    assert not [entry for entry in entries if len(entry.splitlines()) != 2]


def test_the_measures_find_what_they_are_for(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        f"# Title\n\nA short one. Long {'word ' * 30}end.\n\n```python\n{'x' * 89}\n```\n\nThe lattice is here.\n"
    )
    (tmp_path / "glossary.md").write_text("**law**: A word.\n")
    monkeypatch.setattr(prose, "DOCS", tmp_path)
    found = prose.measured(page)
    assert len(found.sentences) == 3 and len(found.long) == 1
    assert found.wide_code == ("x" * 89,) and found.undefined == ("lattice",)
