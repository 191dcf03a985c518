"""For mkdocstrings: examples in docstrings become code, and arguments that share a line become one line each."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object  # type: ignore[import-not-found]  # of the extra `docs`

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*\s*?)+", re.MULTILINE)
_SHARED = re.compile(
    r"^    ([*\w]+), ([*\w, ]+):((?: .*)?(?:\n {8}.*)*)$", re.MULTILINE
)


def fenced(text: str) -> str:
    """Put fences around runs of example lines: from a `>>>` to the next empty line."""
    return _EXAMPLE.sub(
        lambda found: f"\n```pycon\n{found.group().rstrip()}\n```\n", text
    )


def one_each(text: str) -> str:
    """Give each of several arguments that share a description, `generator, seed: ...`, an entry of its own.

    Their types and defaults are then shown, which are found by name.
    """
    return _SHARED.sub(
        lambda found: "\n".join(
            f"    {name.strip()}:{found[3]}"
            for name in [found[1], *found[2].split(",")]
        ),
        text,
    )


class Docstrings(Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = "\n".join(obj.docstring.lines)
            obj.docstring.value = fenced(one_each(text))
