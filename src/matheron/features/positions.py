"""Where draws from a pool lie: which component each is of, which cells, and where in these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from .cells import Shells
from .directions import even
from .fourier import sobol
from .proposal import Component

# From this many dimensions directions are even, and components have positions of their own, if there are so many each.
EVEN_FROM_DIM, FEWEST_EACH = 3, 4
# Uniform numbers stay off the ends by this much, where those of several components share a table.
_OFF = 2**-40


@dataclass
class Positions:
    """Which component each draw is of `[k]`; and for the first factors of the components, the second ones, ... uniforms
    `[k]` that choose the cell, and what says where in it `[k, r]` (see `Factor.located`)."""

    component: Tensor
    uniforms: list[Tensor]
    within: list[Tensor]


def num_uniforms(pool: Sequence[Component]) -> int:
    """Of a draw from the pool."""
    return max(c.num_uniforms for c in pool)


def positions(pool: Sequence[Component], U: Tensor) -> Positions:
    """One position for each row of uniforms `[k, p]`.

    The first uniform chooses the component by its share, and how far into its share it lies is a uniform again.
    """
    component = torch.zeros(len(U), dtype=torch.long)
    if len(pool) > 1:
        shares = torch.tensor([c.share for c in pool], dtype=torch.float64)
        component, within = located([shares], component, U[:, 0])
        U = torch.cat([within.clamp(_OFF, 1 - _OFF)[:, None], U[:, 1:]], dim=1)
    at = Positions(component, [], [])
    for level in range(max(len(c.factors) for c in pool)):
        alike: dict[tuple, list[int]] = {}  # factors that use the same uniforms in the same way
        for t, c in enumerate(pool):
            if level < len(c.factors):
                first = sum(f.num_uniforms for f in c.factors[:level])
                alike.setdefault((first, c.factors[level].form), []).append(t)
        parts = []
        for (first, _), members in alike.items():
            rows, _ = rows_of(component, members, len(pool))
            factor = pool[members[0]].factors[level]
            own = U[:, first : first + factor.num_uniforms]
            parts.append((rows, *factor.located(own if rows is None else own[rows])))
        rows, u, within = parts[0]
        if rows is not None:
            u, within = U.new_zeros(len(U)), U.new_zeros(len(U), max(more.shape[1] for *_, more in parts))
            for rows, own, more in parts:
                u[rows], within[rows, : more.shape[1]] = own, more
        at.uniforms.append(u)
        at.within.append(within)
    return at


def rows_of(component: Tensor, members: list[int], count: int) -> tuple[Tensor | None, Tensor]:
    """The rows of some of `count` components (None: all rows), and which of the members each is of."""
    if len(members) == count:
        return None, component
    place = torch.full((count,), -1)
    place[members] = torch.arange(len(members))
    index = place[component]
    rows = (index >= 0).nonzero()[:, 0]
    return rows, index[rows]


def joined(each: Sequence[Positions], counts: Sequence[int]) -> Positions:
    """Positions in several pools, of as many components each, one after another."""
    if len(each) == 1:
        return each[0]
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    component = torch.cat([at.component + first for at, first in zip(each, firsts, strict=True)])
    parts = [list(zip((u[None] for u in at.uniforms), (w[None] for w in at.within), strict=True)) for at in each]
    levels = _levels(parts)
    return Positions(component, [u.flatten() for u, _ in levels], [at.flatten(0, 1) for _, at in levels])


def positions_for(
    pool: list[Component], count: int, num_bases: int, generator: torch.Generator
) -> tuple[list[Component], Positions]:
    """Where `count` draws lie, `num_bases` times over; and the pool with the shares that they have of them.

    In few dimensions one net for all components is the most even. In more, each component has positions of its own, as
    many as its share says, with even directions where it has one factor.
    """
    if max(c.num_dims for c in pool) < EVEN_FROM_DIM or count < FEWEST_EACH * len(pool):
        U = sobol(num_bases, count, num_uniforms(pool), generator).cpu()
        return pool, positions(pool, U.flatten(0, 1))
    numbers = whole_numbers(count, [c.share for c in pool]) if len(pool) > 1 else [count]
    pool = [replace(c, share=number / count) for c, number in zip(pool, numbers, strict=True)]
    parts: list[list[tuple[Tensor, Tensor]]] = []  # of a run of components, by level: uniforms [g, n], places [g, n, r]
    for dim, run in groupby(range(len(pool)), key=lambda t: _even_dim(pool[t])):
        members = list(run)
        if dim:
            parts.append([even(num_bases, [numbers[t] for t in members], dim, generator)])
            continue
        for t in members:
            own = positions(
                [pool[t]], sobol(num_bases, numbers[t], pool[t].num_uniforms, generator).cpu().flatten(0, 1)
            )
            each = zip(own.uniforms, own.within, strict=True)
            parts.append([(u.unflatten(0, (num_bases, -1)), at.unflatten(0, (num_bases, -1))) for u, at in each])
    component = torch.from_numpy(np.tile(np.repeat(np.arange(len(pool)), numbers), num_bases))
    levels = _levels(parts)
    return pool, Positions(component, [u.flatten() for u, _ in levels], [at.flatten(0, 1) for _, at in levels])


def _even_dim(c: Component) -> int:
    """Of the directions of a component that has even ones; else zero."""
    first = c.factors[0]
    if len(c.factors) > 1 or not isinstance(first, Shells):
        return 0
    return first.own_dim if first.own_dim >= EVEN_FROM_DIM else 0


def _levels(parts: list[list[tuple[Tensor, Tensor]]]) -> list[tuple[Tensor, Tensor]]:
    """For each level uniforms `[g, n]` and places `[g, n, r]`, of several runs of draws side by side.

    Of runs that have fewer levels nothing is asked there, nor of places beyond their own.
    """
    if len(parts) == 1:
        return parts[0]
    levels = []
    for level in range(max(map(len, parts))):
        own = [p[level] if level < len(p) else (p[0][0], p[0][1][..., :0]) for p in parts]
        most = max(at.shape[-1] for _, at in own)
        places = [
            at if at.shape[-1] == most else torch.nn.functional.pad(at, (0, most - at.shape[-1])) for _, at in own
        ]
        levels.append((torch.cat([u for u, _ in own], 1), torch.cat(places, 1)))
    return levels


def located(q: list[Tensor], index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The cells `[k]` that uniforms `[k]` fall in, counted through all of the tables, and how far into them.

    Each uniform is for one of the tables of probabilities, by the index `[k]`.
    """
    flat = q[0] if len(q) == 1 else torch.cat(q)
    cdf = flat.cumsum(0)
    if len(q) == 1:
        u = u.contiguous() * cdf[-1]
    else:
        ends = cdf[torch.tensor([len(each) for each in q]).cumsum(0) - 1]
        starts = torch.nn.functional.pad(ends[:-1], (1, 0))
        u = starts[index] + (ends - starts)[index] * u.clamp(_OFF, 1 - _OFF)
    cell = torch.searchsorted(cdf, u).clamp_max(len(cdf) - 1)
    return cell, (1 - (cdf[cell] - u) / flat[cell]).clamp(0, 1)


def whole_numbers(total: int, sizes: list[float]) -> list[int]:
    """`total` in whole numbers by sizes that sum to one, at least one each."""
    numbers = [max(1, int(total * size)) for size in sizes]
    largest = numbers.index(max(numbers))
    numbers[largest] = max(1, numbers[largest] + total - sum(numbers))
    while sum(numbers) > max(total, len(numbers)):  # the largest alone could not make up for all that have one
        numbers[numbers.index(max(numbers))] -= 1
    return numbers
