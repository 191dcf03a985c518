"""The documentation as it is built: every page in a real browser, at two widths; and the tutorials as notebooks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

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


# What is cut off in a page: elements that reach beyond the window and do not scroll, and lines wider than their box.
CLIPPED = """() => {
    const width = document.documentElement.clientWidth, found = [];
    const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
    for (const element of document.querySelectorAll(".md-content *")) {
        if (element.closest(".katex")) continue;  // formulas scroll as a whole, and hide a copy for screen readers
        const box = element.getBoundingClientRect();
        if (!box.width || !box.height) continue;
        let around = element.parentElement;
        while (!around.classList.contains("md-content") && !scrolls(around)) around = around.parentElement;
        const beyond = around.classList.contains("md-content") && box.right > width + 1;
        const cut = element.matches("pre > code") && element.scrollWidth > element.clientWidth + 1;
        if (beyond || cut) found.push(`${element.tagName} ${element.textContent.slice(0, 60)}`);
    }
    return found.slice(0, 5);
}"""


@pytest.mark.parametrize("width", [1400, 400])
def test_no_page_complains_asks_elsewhere_or_is_cut_off(width, site, tmp_path):
    with opened((site / "index.html").as_uri(), width=width, height=900) as (tab, wrong):
        for page in pages(site):
            tab.goto(page.as_uri())
            overflow = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            if overflow > 0:
                wrong.append(f"is {overflow} pixels wider than the window")
            wrong += [f"cuts off {clipped}" for clipped in tab.evaluate(CLIPPED)]
            unset = tab.locator(".katex-error").count()
            assert not wrong and not unset, f"{page.relative_to(site)}: {wrong}"
            picture = tmp_path / f"{page.stem}.png"  # to look at, where a test fails
            tab.screenshot(path=picture)
            assert len(np.unique(imread(picture).reshape(-1, 4), axis=0)) > 20, f"{page.relative_to(site)} is blank"


def test_what_is_cut_off_is_found(site, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        "<div class='md-content'><p style='width: 3000px'>Wide.</p><pre><code style='display: block; "
        "overflow: hidden; width: 50px; white-space: pre'>a long line of code</code></pre><p>Narrow.</p></div>"
    )
    with opened(page.as_uri(), width=400) as (tab, _):
        assert [found.split()[0] for found in tab.evaluate(CLIPPED)] == ["P", "CODE"]


def test_a_wide_screen_shows_88_columns_of_code_without_breaking_a_line(site):
    with opened((site / "tutorials/first-steps.html").as_uri(), width=1400) as (tab, _):
        assert tab.evaluate("""() => {
            const code = document.querySelector("pre > code");
            code.textContent = "x".repeat(88);
            const one = code.getBoundingClientRect().height;
            code.textContent = "x";
            return one === code.getBoundingClientRect().height;
        }""")


def test_the_search_finds_pages_from_disk(site):
    with opened((site / "tutorials/first-steps.html").as_uri(), width=1400) as (tab, wrong):
        tab.locator("input.md-search__input").fill("leverage")
        tab.locator(".md-search-result__item").first.wait_for()
        assert not wrong


def test_readers_switch_between_a_light_and_a_dark_theme(site):
    with opened((site / "index.html").as_uri(), width=1400) as (tab, wrong):
        scheme = "document.body.getAttribute('data-md-color-scheme')"
        before = tab.evaluate(scheme)
        tab.locator("form[data-md-component=palette] label:visible").click()
        assert {before, tab.evaluate(scheme)} == {"default", "slate"} and not wrong


def test_tables_of_contents_have_no_raw_formulas_and_groups_of_the_navigation_are_closed(site):
    for page in pages(site):
        titles = re.findall(r'<span class="md-ellipsis">(.*?)</span>', page.read_text(), re.DOTALL)
        assert not [title for title in titles if "\\(" in title or "$" in title], page.name
    with opened((site / "index.html").as_uri(), width=1400) as (tab, _):
        names = tab.locator(".md-nav--primary .md-nav__link:visible").all_inner_texts()
        assert "Tutorials" in names and "First steps" not in names


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
            if re.match(r"https?:|mailto:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            file = file / "index.html" if file.is_dir() else file
            assert file.exists(), f"{page.relative_to(site)} links to {target}"
            if anchor and file in known:
                assert anchor in known[file], f"{page.relative_to(site)} links to {target}"


def test_the_reference_shows_how_classes_are_called_and_every_argument_with_its_default(site):
    def text(page: str) -> str:
        return re.sub(r"\s+", " ", re.sub("<[^>]+>", "", (site / f"reference/{page}.html").read_text()))

    assert "Matern(nu: float = 2.5, lengthscale: ArrayLike = 1.0)" in text("kernels")
    assert "RBF(lengthscale: ArrayLike = 1.0)" in text("kernels")  # the `__init__` of a base class
    assert "seed (int | None, default: None )" in text("draw")  # described together with `generator`


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
