"""What users may import: the names that `matheron` and its public modules export."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import matheron

REFERENCE = Path(__file__).parent.parent / "reference"
_SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_REST = re.compile(r"^::: ([\w.]+)\.\*$", re.MULTILINE)


def public_names() -> dict[str, object]:
    """Every public class and function, by the name under which it is imported."""
    found: dict[str, object] = {}
    for name in exports(matheron):
        thing = getattr(matheron, name)
        if not inspect.ismodule(thing):
            found[f"matheron.{name}"] = thing
        elif hasattr(thing, "__path__"):
            found |= {
                f"{thing.__name__}.{member}": getattr(thing, member)
                for member in exports(thing)
            }
        else:
            own = {
                member
                for member, value in vars(thing).items()
                if getattr(value, "__module__", "") == thing.__name__
            }
            found |= {
                f"{thing.__name__}.{member}": getattr(thing, member)
                for member in own
                if member[0] != "_"
            }
    return {name: found[name] for name in sorted(found) if callable(found[name])}


def exports(package: ModuleType) -> set[str]:
    """The names that a package exports: `from .a import b as b`, and with `from .a import *` the `__all__` of a."""
    nodes = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(package)))
        if isinstance(node, ast.ImportFrom)
    ]
    whole = [
        import_module(f".{node.module}", package.__name__)
        for node in nodes
        if node.names[0].name == "*"
    ]
    named = {
        alias.asname
        for node in nodes
        for alias in node.names
        if alias.asname and alias.asname[0] != "_"
    }
    return named.union(*(module.__all__ for module in whole))


def located(name: str) -> object:
    """The object of a full name."""
    module, _, member = name.rpartition(".")
    return getattr(import_module(module), member)


def expanded(markdown: str) -> str:
    """A page of the reference with `::: matheron.kernels.*` as the kernels that no page names."""
    pages = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    named = [located(name) for name in _SHOWN.findall(pages)]

    def rest(found: re.Match[str]) -> str:
        lines = []
        for name, thing in public_names().items():
            if name.rpartition(".")[0] == found[1] and not any(
                thing is other for other in named
            ):
                named.append(thing)
                lines.append(f"::: {thing.__module__}.{thing.__qualname__}\n")  # type: ignore[attr-defined]
        return "\n".join(lines)

    return _REST.sub(rest, markdown)


def shown() -> list[object]:
    """All that the pages of the reference show."""
    return [
        located(name)
        for page in REFERENCE.glob("*.md")
        for name in _SHOWN.findall(expanded(page.read_text()))
    ]
