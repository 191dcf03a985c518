"""The packages that fields need and the core does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..core.checks import missing_extra


def need(name: str) -> ModuleType:
    """An optional package, or an ImportError that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise missing_extra(f"fields need {name.split('.')[0]}", "fields", error) from error
