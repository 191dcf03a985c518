"""For mkdocstrings: the examples in docstrings are bare `>>>` lines, as doctest has them; show them as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*\s*?)+", re.MULTILINE)


def fenced(text: str) -> str:
    """Put fences around runs of example lines: from a `>>>` to the next empty line."""
    return _EXAMPLE.sub(
        lambda found: f"\n```pycon\n{found.group().rstrip()}\n```\n", text
    )


class Examples(Extension):
    """Fences the examples of every docstring that is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            lines = obj.docstring.lines
            obj.docstring.value = fenced("\n".join(lines))
