"""How paths are computed: evaluators that read a record of them, the first that can."""

from __future__ import annotations

from torch import Tensor

from . import chunked, fused, lattice, single
from .chunked import MEMORY_BUDGET as MEMORY_BUDGET
from .fused.join import joined_plan as joined_plan
from .grid import on_grid as on_grid
from .padding import padded as padded
from .record import Record as Record
from .record import Recorder as Recorder
from .record import by_digits as by_digits
from .record import inner_points as inner_points
from .terms import Term as Term
from .terms import WeightedSum as WeightedSum
from .terms import Wide as Wide
from .terms import sum_of as sum_of

# In order of speed; the last serves all. Each has `can`, `values` and `values_and_gradients`.
EVALUATORS = (fused, lattice, single, chunked)


def shares_work(record: Record) -> bool:
    """Whether several functions at the same points cost less than each alone: their basis is computed once."""
    return not lattice.is_all(record)


def values(record: Record, x: Tensor) -> Tensor:
    """The functions at inner points `[1 or s, n, d]`: `[s, n, t]`, differentiable in x."""
    parts = record.derived(by_digits)
    if parts is not None:
        narrow, wide = parts
        return values(narrow, x) + values(wide, x.double()).to(x.dtype)
    return next(each for each in EVALUATORS if each.can(record, x, None)).values(record, x)


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same and their gradients `[s, n, t, d]`, without a graph; with `of`, of these paths at points `[p, n, d]`."""
    parts = record.derived(by_digits)
    if parts is not None:
        narrow, wide = parts
        (f, df), (g, dg) = values_and_gradients(narrow, x, of), values_and_gradients(wide, x.double(), of)
        return f + g.to(x.dtype), df + dg.to(x.dtype)
    return next(each for each in EVALUATORS if each.can(record, x, of)).values_and_gradients(record, x, of)
