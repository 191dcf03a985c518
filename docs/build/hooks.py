"""For mkdocs: tutorials offer themselves as notebooks, and the reference is filled with every public name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from public import expanded


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the link to its notebook below the title of a tutorial; `make docs` makes it beside the page."""
    source = page.file.src_uri
    if source.startswith("reference/"):
        return expanded(markdown)
    if not source.startswith("tutorials/") or "```python" not in markdown:
        return markdown
    title, rest = markdown.split("\n", 1)
    name = source.removeprefix("tutorials/").replace(".md", ".ipynb")
    return f'{title}\n\n<a class="notebook" href="{name}" download>Download this page as a notebook</a>\n{rest}'
