"""Terms whose weights cancel are summed in float64, whatever the dtype of points and paths."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..core.arena import Sums
from .evaluators import Evaluator, Points, values, values_and_gradients, vjp
from .record import PathTerm, Record, Which, of_each


@dataclass(eq=False)
class Float64Term(PathTerm):
    """A term that is summed in float64, whatever the dtype of points and paths: its weights cancel."""

    term: PathTerm

    @property
    def width(self) -> int:
        return 2 * self.term.width

    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        return of_each(lambda o: o.to(x.dtype), self.term.sums(x.double(), paths, gradient))

    def vjp(self, x: Tensor, G: Tensor) -> Tensor:
        return self.term.vjp(x.double(), G.double()).to(x.dtype)


class InFloat64(Evaluator):
    """Takes terms that are summed in float64, for points of any dtype: they are a record of their own, with its own
    evaluators.

    So the fused kernels on a GPU are used for both dtypes.
    """

    kinds = (Float64Term,)

    def take(self, record: Record, points: Points) -> tuple[Record | None, Record | None]:
        terms = [term for term in record.terms if isinstance(term, Float64Term)]
        mine, rest = record.parted(terms, with_mean=False)
        wide = [term.term for term in terms]
        return replace(mine, terms=wide, mean=mine.mean.double(), origin=record.origin.double()), rest

    def values(self, record: Record, x: Tensor) -> Tensor:
        return values(record, x.double()).to(x.dtype)

    def values_and_gradients(self, record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        f, df = values_and_gradients(record, x.double(), of)
        return f.to(x.dtype), df.to(x.dtype)

    def vjp(self, record: Record, x: Tensor, G: Tensor) -> Tensor:
        return vjp(record, x.double(), G.double()).to(x.dtype)
