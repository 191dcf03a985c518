"""Make the figures that pages show: `python docs/build/figures.py [page.md ...]`, all pages by default.

A page's code writes each of its figures as NAME.png, and the page shows figures/NAME.png. The tests hold pages to this.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent


def commands(lines: str) -> str:
    """Python that runs a block's commands."""
    words = [
        line.removeprefix("$ matheron ").split()
        for line in lines.replace("\\\n", " ").splitlines()
    ]
    return "\n".join(
        f"from matheron.cli import app; app({one!r}, standalone_mode=False)"
        for one in words
    )


def make(page: Path) -> None:
    text = page.read_text()
    names = re.findall(r"\]\(figures/([\w-]+\.png)\)", text)
    if not names:
        return
    blocks = re.findall(
        r"^```(python|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    code = "\n".join(
        body if kind == "python" else commands(body) for kind, body in blocks
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(code, str(page), "exec"), {"__name__": "docs"})
        (page.parent / "figures").mkdir(exist_ok=True)
        for name in filter(os.path.exists, names):  # screenshots are made otherwise
            shutil.copy(name, page.parent / "figures" / name)
        os.chdir(DOCS)


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    for page in [Path(name).resolve() for name in sys.argv[1:]] or sorted(
        DOCS.rglob("*.md")
    ):
        make(page)
