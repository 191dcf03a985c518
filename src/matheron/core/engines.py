"""Engines: packages that add evaluators, solvers or features to earlier rooms. This module knows them by name.

An engine registers what it adds when it is imported. `draw` imports all of them; this is for paths that come into a new
process by other ways, such as a pickle.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

_ENGINES = ("matheron.lattice",)


@cache
def load_engines() -> None:
    """Import every engine, so that what it registers is there."""
    for name in _ENGINES:
        import_module(name)
