"""What an adapter says of a class that it does not know: its name, what is known, and the way out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from ..core.extras import missing_extra

BY_HAND = "or describe the model by hand with matheron.ExactGP or matheron.SparseGP"


class Dispatch(Protocol):
    """A singledispatch function, of which the classes that it knows are read."""

    @property
    def registry(self) -> Mapping[type, object]: ...


def full_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


@contextmanager
def needs(library: str, extra: str) -> Iterator[None]:
    """Says what to install where a library that an adapter reads cannot be imported."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(f"matheron.adapters.{extra} needs {library}", extra, error) from error


def refusal(what: str, thing: object, known: Dispatch, hint: str = "") -> TypeError:
    """The error for a `thing` that no handler of the singledispatch function `known` is for."""
    names = ", ".join(sorted({kind.__name__ for kind in known.registry if kind is not object}))
    hint = f"{hint}, " if hint else ""
    return TypeError(f"{what}: {full_name(thing)} is not understood; expected one of {names}; {hint}{BY_HAND}")


def overridden(thing: object, known: Dispatch, method: str = "forward") -> bool:
    """Whether a subclass of a known class computes something else: then it is not that class."""
    kind = next((kind for kind in type(thing).__mro__ if kind in known.registry and kind is not object), None)
    # Statically: scikit-learn's conditional methods are made anew whenever they are asked for.
    own, theirs = (inspect.getattr_static(of, method, None) for of in (type(thing), kind))
    return kind is not None and own is not theirs


def refuse_override(what: str, thing: object, known: Dispatch, method: str = "forward") -> None:
    if overridden(thing, known, method):
        raise refusal(what, thing, known, f"{type(thing).__name__} has a {method} of its own")
