"""Make a notebook of every tutorial, executed: `python docs/build/notebooks.py FOLDER`, where the built pages are."""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^!\[[^\]]*\]\((figures/([^)]*))\)\n?", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)\.md(#[\w-]*)?\)")
NEEDS = {
    "gpflow.md": "gpflow",
    "geometric.md": "geometric_kernels",
}  # a page that needs a library of an environment of its own stays unexecuted there


def notebook(text: str) -> nbformat.NotebookNode:
    """Code blocks become code cells, what they print is left to them, and the rest is text."""
    cells, end = [], 0
    for found in BLOCK.finditer(text):
        if found[1] not in ("python", "console", "text"):
            continue  # it stays in the text
        cells.append(nbformat.v4.new_markdown_cell(prose(text[end : found.start()])))
        if found[1] == "python":
            cells.append(nbformat.v4.new_code_cell(found[2].rstrip()))
        elif found[1] == "console":
            command = (
                found[2]
                .rstrip()
                .replace("$ matheron", "!{sys.executable} -m matheron.cli.main")
            )
            cells.append(nbformat.v4.new_code_cell(f"import sys\n\n{command}"))
        end = found.end()
    cells.append(nbformat.v4.new_markdown_cell(prose(text[end:])))
    cells = [cell for cell in cells if cell.source]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the same file every time
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def prose(text: str) -> str:
    """Pages link to pages."""
    return LINK.sub(r"](\1.html\2)", text).strip()


def figures(cell: nbformat.NotebookNode, page: Path, drawn: bool) -> None:
    """Leave out a page's figures where the notebook's own cells draw them; else the cell holds them itself."""
    if drawn:
        cell.source = FIGURE.sub("", cell.source).strip()
        return
    for path, name in FIGURE.findall(cell.source):
        image = base64.b64encode((page.parent / path).read_bytes()).decode()
        cell.setdefault("attachments", {})[name] = {"image/png": image}
        cell.source = cell.source.replace(f"({path})", f"(attachment:{name})")


def make(page: Path, folder: Path) -> Path:
    """Write the notebook of a page into a folder; executed, unless a library is missing."""
    made = notebook(page.read_text())
    if page.name not in NEEDS or find_spec(NEEDS[page.name]):
        with tempfile.TemporaryDirectory() as scratch:
            NotebookClient(
                made, timeout=300, resources={"metadata": {"path": scratch}}
            ).execute()
    outputs = [output for cell in made.cells for output in cell.get("outputs", [])]
    drawn = any("image/png" in output.get("data", {}) for output in outputs)
    for cell in made.cells:
        if cell.cell_type == "markdown":
            figures(cell, page, drawn)
        cell.metadata.pop("execution", None)  # when it ran is of no interest
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / page.with_suffix(".ipynb").name
    nbformat.write(made, out)
    return out


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        if "```python" in page.read_text():
            make(page, Path(sys.argv[1]) / "tutorials")
