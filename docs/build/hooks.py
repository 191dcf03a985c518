"""For mkdocs: tutorials offer themselves as notebooks, and the reference is filled with every public name."""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from public import expanded

import matheron

DOCS = Path(__file__).parent.parent


def on_config(config: Any) -> Any:
    """Each page says of which version it is."""
    config.copyright = f"matheron {matheron.__version__}"
    return config


def thumbnails(markdown: str) -> str:
    """A page with its lists of links to the gallery as pictures that lead to these pages."""

    def grid(found: re.Match[str]) -> str:
        links = re.findall(r"- \[([^\]]+)\]\(gallery/([\w-]+)\.md\)", found[0])
        return (
            '<div class="gallery">'
            + "".join(thumbnail(*link) for link in links)
            + "</div>\n"
        )

    return re.sub(
        r"(?:^- \[[^\]]+\]\(gallery/.*\n)+", grid, markdown, flags=re.MULTILINE
    )


def thumbnail(title: str, name: str) -> str:
    """A picture with its title; of one with several panels side by side, the first are shown."""
    picture = f"gallery/figures/gallery-{name}.png"
    header = (DOCS / picture).read_bytes()[:24]
    width, height = struct.unpack(">II", header[16:])  # where a PNG has them
    wide = ' class="wide"' if width > 2 * height else ""
    return (
        f'<a href="gallery/{name}.html">'
        f'<img{wide} src="{picture}" alt="" loading="lazy">{title}</a>'
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill the reference, and put the link to its notebook below the title of a tutorial.

    Only `make docs` makes the notebooks, and sets MATHERON_NOTEBOOKS: without it there are no links.
    """
    source = page.file.src_uri
    if source in ("gallery.md", "index.md"):
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
