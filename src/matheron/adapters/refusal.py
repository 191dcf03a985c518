"""Errors of adapters for classes that they do not know: they name the class, the known classes, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from ..core.checks import missing_extra

BY_HAND = "or describe the model by hand with matheron.ExactGP or matheron.SparseGP"


class Dispatch(Protocol):
    """A functools.singledispatch function: the keys of its registry are the classes that an adapter knows."""

    @property
    def registry(self) -> Mapping[type, object]: ...


def full_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


@contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Turn an ImportError of an adapter's library into one that says what to install."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(f"matheron.adapters.{extra} needs {library}", extra, error) from error


def refusal(what: str, thing: object, known: Dispatch, hint: str = "") -> TypeError:
    """Return the error for a `thing` for which the singledispatch function `known` has no handler."""
    names = ", ".join(sorted({kind.__name__ for kind in known.registry if kind is not object}))
    hint = f"{hint}, " if hint else ""
    return TypeError(f"{what}: {full_name(thing)} is not understood; expected one of {names}; {hint}{BY_HAND}")


def overridden(thing: object, known: Dispatch, method: str = "forward") -> bool:
    """Whether `thing` overrides `method` of its nearest known class, and so may compute something else."""
    kind = next((kind for kind in type(thing).__mro__ if kind in known.registry and kind is not object), None)
    # getattr_static, because getattr on scikit-learn's conditional methods returns a new object each time.
    own, theirs = (inspect.getattr_static(of, method, None) for of in (type(thing), kind))
    return kind is not None and own is not theirs


def refuse_override(what: str, thing: object, known: Dispatch, method: str = "forward") -> None:
    if overridden(thing, known, method):
        raise refusal(what, thing, known, f"{type(thing).__name__} has a {method} of its own")
