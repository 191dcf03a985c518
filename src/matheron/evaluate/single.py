"""Evaluation where a basis function serves one sum only: each path at its own points, or one path alone.

Then w cos(theta . x) + w' sin(theta . x) is one cosine, a cos(theta . x + tau), with an amplitude and a phase of the
path's own: half the trigonometric functions. Its gradient is -a sin(theta . x + tau) theta, a plain product with the
frequencies, and so it is with the centres of radial kernels. What follows from the paths is derived once per record,
which is also what makes a call at a single point cheap.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..checks import transformed
from ..features.basis import LARGEST_WIDTH, Cosines, Pairs
from ..features.canonical import Canonical
from . import chunked
from .lone_sums import RadialSum, Waves, as_radial_sum, as_waves, side_by_side
from .record import Record
from .terms import Term, WeightedSum


def can(record: Record, x: Tensor, of: Tensor | None) -> bool:
    """Whether a basis function serves one sum only at inner points x `[1 or s, n, d]`, or `[p, n, d]` of paths `of`."""
    if of is None and len(x) != record.num_paths:  # said first: nothing is derived for shared points
        return False
    return not transformed(x) and record.derived(single) is not None


def values(record: Record, x: Tensor) -> Tensor:
    return chunked.values(cast(Record, record.derived(single)), x)


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
    return chunked.values_and_gradients(cast(Record, record.derived(single)), x, of)


@torch.no_grad()
def single(record: Record) -> Record | None:
    """A record of one output with waves and radial functions for terms; None where it has others, or is in a graph."""
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
        new = as_waves(basis, W, term.index, record.origin)
        for j, old in enumerate(waves):
            if len(old.theta) == len(new.theta):
                waves[j] = side_by_side(old, new)
                break
        else:
            waves.append(new)
    pieces = [piece for part in [*waves, *radials] for piece in part.pieces(LARGEST_WIDTH)]
    return replace(record, terms=[*pieces, *rest])
