"""Properties of functions that applications need: how they are best evaluated, and where they are defined."""

from __future__ import annotations

from torch import Tensor

from ..evaluate import Record, Recursion, record_shares_work, recursion_of
from .arithmetic import AbstractFunctions, require_functions
from .paths import AbstractPaths


def require_paths(paths: object, name: str = "paths") -> AbstractPaths:
    """Paths of one model, or a TypeError that says what to do; for what needs a mean, or an update."""
    functions = require_functions(paths, name)
    if isinstance(functions, AbstractPaths):
        return functions
    raise TypeError(
        f"{name}: expected paths, as matheron.draw gives them, got {type(paths).__name__}, which is made of such: "
        "it has no posterior of its own to be given data, or compared with; use the paths that it is made of"
    )


def shares_work(functions: object) -> bool:
    """Whether several functions at the same points cost less together than one by one. On a lattice they do not.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.paths import shares_work
    >>> shares_work(matheron.draw_prior(kernels.RBF(0.5), 2, input_dim=1))
    True
    >>> shares_work(matheron.draw_prior(kernels.RBF(0.5), 2, input_dim=1, domain=(0, 1)))
    False
    """
    records = _records(functions)
    return records is None or any(map(record_shares_work, records))


def has_domain(functions: AbstractFunctions) -> bool:
    """Whether these functions are defined on a box, as on a lattice. Points outside of it are refused.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.paths import has_domain
    >>> has_domain(matheron.draw_prior(kernels.RBF(0.5), 2, input_dim=1, domain=(0, 1)))
    True
    """
    return any(getattr(part, "domain", None) is not None for part in functions.modules())


def has_choices(functions: AbstractFunctions) -> bool:
    """Whether some inputs are discrete choices, without values between them.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.paths import has_choices
    >>> has_choices(matheron.draw_prior(kernels.Categorical(1.0, 3), 2, input_dim=1))
    True
    """
    return any(getattr(part, "whole", False) for part in functions.modules())


def fused_recursion(functions: AbstractFunctions, dt: float, state: Tensor) -> Recursion | None:
    """The recursion x' = x + dt f(x) from states `[s, d_s]` as a GPU kernel; None if no kernel can compute these
    functions.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.paths import fused_recursion
    >>> paths = matheron.draw_prior(kernels.RBF(0.5), 2, input_dim=1)
    >>> fused_recursion(paths, 0.1, torch.zeros(2, 1)) is None  # on a CPU
    True
    """
    records = _records(functions)
    return None if records is None else recursion_of(records, dt, state)


def _records(functions: object) -> list[Record] | None:
    """The records whose outputs, side by side, are those of these functions. None if there are no such records."""
    records = getattr(functions, "_records", None)
    return None if records is None else records()
