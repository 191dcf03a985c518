"""For mkdocs: tutorials offer themselves as notebooks, and the reference is filled with every public name."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from public import expanded

import matheron


def on_config(config: Any) -> Any:
    """Each page says of which version it is."""
    config.copyright = f"matheron {matheron.__version__}"
    return config


def thumbnails(markdown: str) -> str:
    """The gallery with its lists of pages as pictures that lead to these pages."""

    def grid(found: re.Match[str]) -> str:
        links = re.findall(r"- \[([^\]]+)\]\(gallery/([\w-]+)\.md\)", found[0])
        cells = [
            f'<a href="gallery/{name}.html">'
            f'<img src="gallery/figures/gallery-{name}.png" alt="" loading="lazy">{title}</a>'
            for title, name in links
        ]
        return '<div class="gallery">' + "".join(cells) + "</div>\n"

    return re.sub(
        r"(?:^- \[[^\]]+\]\(gallery/.*\n)+", grid, markdown, flags=re.MULTILINE
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the reference, and put the link to its notebook below the title of a tutorial.

    Only `make docs` makes the notebooks, and sets MATHERON_NOTEBOOKS: without it there are no links.
    """
    source = page.file.src_uri
    if source == "gallery.md":
        return thumbnails(markdown)
    if source.startswith("reference/"):
        return expanded(markdown)
    if (
        not source.startswith("tutorials/")
        or "```python" not in markdown
        or not os.environ.get("MATHERON_NOTEBOOKS")
    ):
        return markdown
    title, rest = markdown.split("\n", 1)
    name = source.removeprefix("tutorials/").replace(".md", ".ipynb")
    link = f'<a class="notebook" href="{name}" download>Download this page as a notebook</a>'
    return f"{title}\n\n{link}\n{rest}"
