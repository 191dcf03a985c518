"""Estimates from paths themselves, with their standard errors, where the law has no closed form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from .functions import EvaluableFunctions


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: Tensor
    standard_error: Tensor

    def sqrt(self) -> Estimate:
        """The root of the value, whose standard error follows by the root's slope."""
        root = self.value.sqrt()
        return Estimate(root, self.standard_error / (2 * root))


def estimated_variance(f: EvaluableFunctions, x: Tensor) -> Estimate:
    """The variance at points `[1, n, d]`, from the functions' values there: `[n]`, or `[n, t]` for several outputs."""
    s = f.num_paths
    if s < 2:
        raise ValueError(f"samples: expected at least two paths, got {s}; draw more")
    values = f._values(x)
    try:
        squares = (values - f._mean(x)).square()
    except TypeError:  # the mean has no closed form, so the paths' own mean is used, which costs a degree of freedom
        squares = (values - values.mean(0)).square() * (s / (s - 1))
    return Estimate(squares.mean(0).squeeze(-1), (squares.std(0) / math.sqrt(s)).squeeze(-1))
