"""Boxes of lower and upper bounds, as users write them, and points that fill the unit box evenly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from .checks import ArrayLike, Names, as_array, as_tensor, check_names


@runtime_checkable
class Bounds(Protocol):
    """A box, as `scipy.optimize.Bounds` has it."""

    @property
    def lb(self) -> ArrayLike: ...
    @property
    def ub(self) -> ArrayLike: ...


BoxLike = ArrayLike | Bounds


def as_box(
    box: BoxLike, name: str, *, input_dim: int | None = None, like: Tensor | None = None, names: Names = None
) -> Tensor:
    """The box `[2, d]` of lower and upper bounds, from `(lower, upper)`, `[2, d]`, or a `scipy.optimize.Bounds`.

    With `input_dim` each side may be one number, the same in every dimension. Where the box, or a side of it, is a
    table or a column with names, these must be `names`.
    """
    several = f"(lower, upper), each a number or {input_dim} of them"
    expected = f"{name}: expected {'[2, d], lower bounds then upper' if input_dim is None else several}"
    if isinstance(box, Bounds):
        given = [box.lb, box.ub]
    else:
        check_names(box, name, names)
        # iterating over a table gives the names of its columns
        box = as_array(box) if hasattr(box, "to_numpy") else box
        _refuse_pairs(box, name)
        try:
            given = list(box) if isinstance(box, Iterable) and not isinstance(box, str | dict | set) else []
        except TypeError:  # a tensor that is one number
            given = []
        if len(given) != 2:
            raise ValueError(f"{expected}, got {f'shape {list(as_array(box).shape)}' if given else repr(box)}")
    for side in given:
        check_names(side, name, names)
    lower, upper = (as_tensor(side, name, like=like).reshape(-1) for side in given)
    d = max(len(lower), len(upper)) if input_dim is None else input_dim
    if len(lower) not in (1, d) or len(upper) not in (1, d):
        raise ValueError(f"{expected}, got {len(lower)} and {len(upper)} numbers")
    dtype = torch.promote_types(lower.dtype, upper.dtype)
    sides = torch.stack([lower.to(dtype).expand(d), upper.to(dtype).expand(d)])
    if not bool((sides[0] < sides[1]).all()):
        raise ValueError(
            f"{name}: expected lower < upper in every dimension, got {sides.tolist()}; SciPy's pairs are given as a "
            "scipy.optimize.Bounds"
        )
    return sides


def _refuse_pairs(box: ArrayLike, name: str) -> None:
    """Refuse a list of tuples that can be read in two ways: SciPy writes one pair per dimension like this."""
    pairs = [pair for pair in box if isinstance(pair, tuple) and len(pair) == 2] if isinstance(box, list) else []
    if len(pairs) != 2 or box != pairs:
        return
    (a, b), (c, d) = cast(list[tuple[float, float]], pairs)
    if a < b and c < d and a < c and b < d:
        ours = f"[[{a}, {b}], [{c}, {d}]] is lower bounds {a}, {b} and upper bounds {c}, {d}"
        theirs = f"[[{a}, {c}], [{b}, {d}]] is {a} to {b} in the first dimension and {c} to {d} in the second"
        raise ValueError(
            f"{name}: expected one reading, but a list of two pairs has two, {box}: lower and upper bounds, or SciPy's "
            f"pair per dimension. Say which: {ours}; {theirs}; or give a scipy.optimize.Bounds"
        )


class Sobol(SobolEngine):
    """A scrambled Sobol sequence in float64. Torch's SobolEngine keeps its first point in the current default dtype."""

    def __init__(self, dimension: int, seed: int) -> None:
        super().__init__(dimension, scramble=True, seed=seed)

    def next(self, count: int) -> Tensor:
        """The next points, `[count, d]`."""
        first = self.num_generated == 0
        points = self.draw(count, dtype=torch.float64)
        if first:
            points[:1] = self.shift.double() / 2**self.MAXBIT
        return points
