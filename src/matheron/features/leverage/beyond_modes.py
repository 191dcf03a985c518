"""Frequencies beyond the modes of a lattice, which holds the others: proposals for them, and those to keep."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...evaluate.bases import Cosines, Pairs
from .cells import Shells
from .positions import num_uniforms, positions
from .proposal import Component, with_shares
from .reference import net
from .sampling import draw

# Without data, half of the frequencies lie evenly along the spectrum's tail, as far as this share of it lies beyond.
_LEAST = 1e-8
# Times as many are drawn as are kept, at the most: those of products may be anywhere.
_MOST_TIMES = 32


def proposed(pool: list[Component], beyond: Tensor, given_data: bool) -> list[Component]:
    """The pool with proposals that spare the shells of which `outside` would keep nothing.

    Without data they are by the spectrum alone: its mass for long distances, all of its octaves for short ones.
    """
    parts = []
    for c in pool:
        share = c.share if given_data else float(c.variance.detach())
        q = [_spared(c, each, beyond) for each in (c.proposal if given_data else [f.masses for f in c.factors])]
        share *= float(math.prod(each.sum() for each in q))
        if share <= 0:
            continue
        if not given_data:
            tails = [_spared(c, f.tail(_LEAST), beyond) for f in c.factors]
            each = zip(q, tails, strict=True)
            q = [mass / mass.sum() + tail / tail.sum().clamp_min(1e-300) for mass, tail in each]
        parts.append(replace(c, proposal=[each / each.sum() for each in q], share=share))
    return with_shares(parts)


def _spared(c: Component, q: Tensor, beyond: Tensor) -> Tensor:
    """Probabilities of cells, zero where a component of one factor has nothing beyond."""
    first = c.factors[0]
    if len(c.factors) > 1 or not isinstance(first, Shells):
        return q
    return q.masked_fill(first.within(beyond), 0.0)


@torch.no_grad()
def times(pool: list[Component], beyond: Tensor) -> int:
    """How many times as many frequencies are to be drawn as are to be kept."""
    if not pool:
        return 1
    (theta,), _ = draw([pool], [positions(pool, net(256, num_uniforms(pool))[None])])
    kept = float((theta.abs() > beyond).any(-1).double().mean())
    return min(_MOST_TIMES, round(1 / max(kept, 1 / _MOST_TIMES)))


def outside(basis: Pairs | Cosines, columns: Tensor, beyond: Tensor) -> tuple[Pairs | Cosines, Tensor] | None:
    """The features whose frequencies have a coordinate beyond `[d]`, and what `columns` `[g, f, p]` say of them.

    Where bases have unequal numbers of them, the amplitudes of the others are zero. None where there are none.
    """
    far = (basis.frequencies.detach().abs() > beyond).any(-1)  # [g, f]
    order = torch.argsort(far.double(), dim=1, descending=True, stable=True)[:, : int(far.sum(1).max())]  # [g, k]
    if order.shape[1] == 0:
        return None

    def taken(t: Tensor) -> Tensor:
        return t.take_along_dim(order.reshape(*order.shape, *[1] * (t.ndim - 2)), 1)

    return basis.replaced(amplitudes=basis.amplitudes * far).mapped(taken), taken(columns)
