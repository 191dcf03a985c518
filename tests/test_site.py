"""The documentation as it is built: every page in a real browser, at two widths; and the tutorials as notebooks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import opened

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from the pages as they are, with mkdocs' warnings as errors."""
    pytest.importorskip("mkdocstrings", reason="the tools of the documentation are not installed; make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]


def test_no_page_complains_asks_elsewhere_or_is_wider_than_a_phone(site):
    with opened((site / "index.html").as_uri(), width=390, height=800) as (tab, wrong):
        for page in pages(site):
            tab.goto(page.as_uri())
            overflow = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            if overflow > 0:
                wrong.append(f"is {overflow} pixels wider than a phone")
            unset = tab.locator(".katex-error").count()
            assert not wrong and not unset, f"{page.relative_to(site)}: {wrong}"


def test_formulas_are_typeset(site):
    with opened((site / "theory.html").as_uri()) as (tab, wrong):
        assert tab.locator(".katex-display").count() >= 3
        assert tab.locator(".arithmatex").count() == tab.locator(".arithmatex .katex").count()
        assert tab.evaluate("document.fonts.ready.then(() => document.fonts.check('16px KaTeX_Main'))")
        assert not wrong


def test_every_link_of_the_built_pages_leads_somewhere(site):
    known = {page: set(re.findall(r'\sid="([^"]+)"', page.read_text())) for page in site.rglob("*.html")}
    for page in pages(site):
        for target in re.findall(r'<a [^>]*href="([^"]+)"', page.read_text()):
            if re.match(r"https?:|mailto:", target) or target.endswith(".ipynb"):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{page.relative_to(site)} links to {target}"
            if anchor and file in known:
                assert anchor in known[file], f"{page.relative_to(site)} links to {target}"


def test_the_reference_shows_examples_as_code(site):
    shown = (site / "reference/draw.html").read_text()
    assert '<span class="gp">&gt;&gt;&gt; </span>' in shown
    assert not any("<blockquote" in page.read_text() for page in (site / "reference").glob("*.html"))


def test_tutorials_are_executed_notebooks(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="the tools of the documentation are not installed; make docs")
    made = nbformat.read(_notebooks().make(ROOT / "docs/tutorials/first-steps.md", tmp_path), as_version=4)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert code and all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no figure is shown"
    nbformat.validate(made)


def test_a_notebook_that_draws_nothing_holds_the_figures_of_its_page():
    nbformat = pytest.importorskip("nbformat", reason="the tools of the documentation are not installed; make docs")
    notebooks = _notebooks()
    page = ROOT / "docs/tutorials/control.md"
    made = notebooks.notebook(page.read_text())
    for cell in (cell for cell in made.cells if cell.cell_type == "markdown"):
        notebooks.figures(cell, page, drawn=False)
    held = [name for cell in made.cells for name in cell.get("attachments", {})]
    assert held == ["control.png"] and any("(attachment:control.png)" in cell.source for cell in made.cells)
    nbformat.validate(made)


def _notebooks():
    sys.path.insert(0, str(ROOT / "docs/build"))
    import notebooks  # type: ignore[import-not-found]

    return notebooks
