"""The prose of the documentation: short sentences, code that fits a page, and terms that the glossary defines."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs/build"))
prose = import_module("prose")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_sentences_have_at_most_thirty_words(page):
    found = prose.measured(page)
    assert not found.long, f"shorten in {name(page)}: {found.long}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_fits_a_page_and_terms_are_in_the_glossary(page):
    found = prose.measured(page)
    assert not found.wide_code, f"wider than {prose.WIDEST_CODE} columns in {name(page)}: {found.wide_code}"
    assert not found.undefined, f"add to docs/glossary.md: {found.undefined}"


TAUGHT = [*sorted((ROOT / "docs/tutorials").glob("*.md")), *(ROOT / f"docs/{page}.md" for page in (
    "features", "how-it-works", "lattice", "models", "own", "solvers", "theory", "travel", "which-tool"
))]  # fmt: skip


@pytest.mark.parametrize("page", TAUGHT, ids=name)
def test_a_page_that_teaches_begins_with_three_things_that_a_reader_will_be_able_to_do(page):
    start = page.read_text().split("\n\n")[1:3]
    assert start[0] == "After this page you can", name(page)
    assert len(re.findall(r"^- ", start[1], re.MULTILINE)) == 3, name(page)


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


# Docstrings and comments of the library: equations by their number in the paper, and examples on what is public.

sys.path.insert(0, str(ROOT / "docs/build"))
public = import_module("public")
SOURCE = ROOT / "src/matheron"


def test_equations_are_named_by_their_number_and_not_by_a_latex_label():
    labels = {}
    for file in SOURCE.rglob("*.py"):
        if found := re.findall(r"\b(?:eqn|eq|prop|thm|cor|sec|fig|apdx):[a-z_]\w+", file.read_text()):
            labels[name(file)] = found
    assert not labels, f"name these equations by the number that docs/notation.md has for the label: {labels}"


MODULES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_sentences_of_docstrings_have_at_most_thirty_words(module):
    if module == SOURCE / "__init__.py":
        return  # its figure of how data flow reads as one sentence
    assert not prose.measured(module).long, f"shorten in {name(module)}: {prose.measured(module).long}"


def test_the_sentences_of_docstrings_are_read_without_examples_and_formulas():
    text = (
        '"""First sentence.\n\n    a = b\n\nArgs:\n    x: points,\n        one each.\n    y: values.\n\n>>> x\n1\n"""\n'
    )
    assert prose.sentences(prose.docstrings(text)) == ["First sentence.", "x: points, one each.", "y: values."]


def has_example(thing: object) -> bool:
    """Whether the docstring of a function, or of a class or one of its methods, has an example."""
    methods = [method for name, method in vars(thing).items() if name[0] != "_"] if inspect.isclass(thing) else []
    return any(">>>" in (inspect.getdoc(one) or "") for one in (thing, *methods))


def test_what_the_reference_shows_has_an_example():
    """Warnings, errors and named tuples, which functions return, need none. Examples are run as doctests."""
    missing = set()
    for thing in filter(callable, public.shown()):
        record = inspect.isclass(thing) and issubclass(thing, (BaseException, tuple))
        if not record and not has_example(thing):
            missing.add(f"{thing.__module__}.{thing.__qualname__}")
    assert not missing, f"add an example to the docstrings of {sorted(missing)}"
