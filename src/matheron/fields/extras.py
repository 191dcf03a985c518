"""The packages that fields need and the core does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def need(name: str) -> ModuleType:
    """An optional package, or an ImportError that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"fields need {name.split('.')[0]}: pip install 'matheron[fields]'") from error
