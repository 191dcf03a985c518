"""For mkdocs: a tutorial offers itself as a notebook, which `make docs` makes beside its page."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the link below the title of each tutorial."""
    source = page.file.src_uri
    if not source.startswith("tutorials/") or "```python" not in markdown:
        return markdown
    title, rest = markdown.split("\n", 1)
    name = source.removeprefix("tutorials/").replace(".md", ".ipynb")
    return f'{title}\n\n<a class="notebook" href="{name}" download>Download this page as a notebook</a>\n{rest}'
