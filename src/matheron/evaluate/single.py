"""Evaluation where a basis function serves one sum only: each path at its own points, or one path alone.

Then w cos(theta . x) + w' sin(theta . x) is one cosine, a cos(theta . x + tau), with an amplitude and a phase of the
path's own: half the trigonometric functions. Its gradient is -a sin(theta . x + tau) theta, a plain product with the
frequencies, and so it is with the centres of radial kernels. What follows from the paths is derived once per record,
which is also what makes a call at a single point cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from ..checks import transformed
from ..features.basis import LARGEST_WIDTH, Cosines, Pairs
from ..features.canonical import Canonical
from ..means import ConstantMean, Mean
from ..scratch import frame
from ..weigh import Sums, add
from .chunked import in_blocks, in_blocks_with_gradients
from .lone_sums import RadialSum, Waves, as_radial_sum, as_waves, side_by_side
from .record import Record
from .terms import Term, WeightedSum, Which


@dataclass(eq=False)
class Single:
    """Paths of one output as functions of some paths' own points; `rest` are terms that have no radial form."""

    num_paths: int
    origin: Tensor
    parts: list[Waves | RadialSum]
    rest: list[Term]
    mean: Mean | None  # None: zero

    @cached_property
    def width(self) -> int:
        """Numbers that a point of a path needs."""
        return max([1, *(part.width for part in [*self.parts, *self.rest])])

    def block(self, x: Tensor, paths: Which) -> Tensor:
        """mean + prior + update, `[B, n, d] -> [B, n, 1]`."""
        total = self._sums(x, paths, gradient=False)
        total = cast(Tensor, x.new_zeros(*x.shape[:2], 1) if total is None else total)
        return total if self.mean is None else total + self.mean(x)

    def block_with_gradient(self, x: Tensor, paths: Which) -> tuple[Tensor, Tensor]:
        """The same, and its gradient `[B, n, 1, d]`."""
        value, gradient = self._sums(x, paths, gradient=True) or (x.new_zeros(*x.shape[:2], 1), torch.zeros_like(x))
        gradient = gradient.unsqueeze(-2)
        if self.mean is None:
            return value, gradient
        m, dm = self.mean.with_gradient(x)
        return value + m, gradient + dm

    def _sums(self, x: Tensor, paths: Which, gradient: bool) -> Sums | None:
        """prior + update `[B, n, 1]`, with `gradient` a pair with `[B, n, d]`; None where there is neither."""
        paths = None if isinstance(paths, slice) and x.shape[0] == self.num_paths else paths
        about = x - self.origin
        total = None
        for part in self.parts:
            at = about if isinstance(part, Waves) or part.origin is None else x - part.origin
            with frame():
                total = add(total, part.value_and_gradient(at, paths) if gradient else part.value(at, paths))
        for term in self.rest:
            out = term.sums(x, slice(None) if paths is None else paths, gradient)
            total = add(total, (out[0].mT, out[1][:, 0]) if isinstance(out, tuple) else out.mT)
        return total


def can(record: Record, x: Tensor, of: Tensor | None) -> bool:
    """Whether a basis function serves one sum only at inner points x `[1 or s, n, d]`, or `[p, n, d]` of paths `of`."""
    if of is None and len(x) != record.num_paths:  # said first: nothing is derived for shared points
        return False
    return not transformed(x) and record.derived(single) is not None


def values(record: Record, x: Tensor) -> Tensor:
    mine = _of_record(record)
    return in_blocks(mine.block, x, record, mine.width, own=True)


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
    mine = _of_record(record)
    return in_blocks_with_gradients(mine.block_with_gradient, x, record, 2 * mine.width, own=True, of=of)


def _of_record(record: Record) -> Single:
    found = record.derived(single)
    assert found is not None
    return found


@torch.no_grad()
def single(record: Record) -> Single | None:
    """A record of one output as waves and radial functions; None where it has other terms, or is in a graph."""
    if record.num_outputs > 1 or record.requires_grad:
        return None
    waves: list[Waves] = []
    radials: list[RadialSum] = []
    rest: list[Term] = []
    for term in record.terms:
        if not isinstance(term, WeightedSum):
            return None
        basis, W = term.basis, term.weights[:, 0]  # [s, c]
        if isinstance(basis, Canonical):
            parts = basis.kernel.radial_parts(record.input_dim)
            if parts is None:
                rest.append(term)
            radials += [as_radial_sum(part, basis.centres, W, record.origin) for part in parts or []]
            continue
        if not isinstance(basis, Pairs | Cosines) or term.index is None:
            return None
        new = as_waves(basis, W, term.index)
        for j, old in enumerate(waves):
            if len(old.theta) == len(new.theta):
                waves[j] = side_by_side(old, new)
                break
        else:
            waves.append(new)
    mean = record.mean
    zero = isinstance(mean, ConstantMean) and not bool(mean.value.any())
    pieces = [piece for part in [*waves, *radials] for piece in part.pieces(LARGEST_WIDTH)]
    return Single(record.num_paths, record.origin, pieces, rest, None if zero else mean)
