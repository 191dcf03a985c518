"""Frequencies beyond the modes of a lattice, which holds the others: proposals for them, and those to keep."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .basis import Basis, Cosines, Pairs
from .cells import Shells
from .proposal import Component


def proposed(pool: list[Component], beyond: Tensor) -> list[Component]:
    """The pool with proposals that spare the shells of which `outside` would keep nothing."""
    parts = []
    for c in pool:
        first, q = c.factors[0], c.proposal
        if len(c.factors) == 1 and isinstance(first, Shells):
            q = [q[0].masked_fill(first.within(beyond), 0.0)]
        left = float(math.prod(each.sum() for each in q))
        if left > 0:
            parts.append(replace(c, proposal=[each / each.sum() for each in q], share=c.share * left))
    whole = sum(c.share for c in parts)
    return [replace(c, share=c.share / whole) for c in parts]


def outside(basis: Basis, beyond: Tensor) -> Basis | None:
    """The features whose frequencies have a coordinate beyond `[d]`; None where there are none.

    Where bases have unequal numbers of them, the amplitudes of the others are zero.
    """
    assert isinstance(basis, Pairs | Cosines)
    far = (basis.frequencies.detach().abs() > beyond).any(-1)  # [g, f]
    order = torch.argsort(far.double(), dim=1, descending=True, stable=True)[:, : int(far.sum(1).max())]  # [g, k]
    if order.shape[1] == 0:
        return None
    some = basis.replaced(amplitudes=basis.amplitudes * far)
    return some.mapped(lambda t: t.take_along_dim(order.reshape(*order.shape, *[1] * (t.ndim - 2)), 1))
