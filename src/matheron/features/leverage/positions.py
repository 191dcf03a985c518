"""Where draws from a pool lie: which component each is of, which cells, and where in these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ..fourier import sobol
from .cells import Shells
from .directions import even
from .proposal import Component

# From this many dimensions directions are even, and components have positions of their own, if there are so many each.
EVEN_FROM_DIM, FEWEST_EACH = 3, 4
# Uniform numbers stay off the ends by this much, where those of several components share a table.
_OFF = 2**-40


# Uniforms `[g, n]` that choose a cell, and what says where in it `[g, n, r]` (see `Factor.located`).
Level = tuple[Tensor, Tensor]


class Positions(NamedTuple):
    """Which component each of n draws for each of g bases is of `[g, n]`; and where it lies by the first factor of its
    component, the second one, ..."""

    component: Tensor
    levels: list[Level]


def num_uniforms(pool: Sequence[Component]) -> int:
    """Of a draw from the pool."""
    return max(c.num_uniforms for c in pool)


def positions(pool: Sequence[Component], U: Tensor) -> Positions:
    """One position for each row of uniforms `[g, n, p]`.

    The first uniform chooses the component by its share, and how far into its share it lies is a uniform again.
    """
    shape, U = U.shape[:2], U.flatten(0, 1)
    component = torch.zeros(len(U), dtype=torch.long, device="cpu")
    if len(pool) > 1:
        shares = torch.tensor([c.share for c in pool], dtype=torch.float64, device="cpu")
        component, within = located([shares], component, U[:, 0])
        U = torch.cat([within.clamp(_OFF, 1 - _OFF)[:, None], U[:, 1:]], dim=1)
    levels = []
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
        levels.append((u.unflatten(0, shape), within.unflatten(0, shape)))
    return Positions(component.unflatten(0, shape), levels)


def rows_of(component: Tensor, members: list[int], count: int) -> tuple[Tensor | None, Tensor]:
    """The rows of some of `count` components (None: all rows), and which of the members each is of."""
    if len(members) == count:
        return None, component
    place = torch.full((count,), -1, device="cpu")
    place[members] = torch.arange(len(members), device="cpu")
    index = place[component]
    rows = (index >= 0).nonzero()[:, 0]
    return rows, index[rows]


def joined(each: Sequence[Positions], counts: Sequence[int]) -> Positions:
    """Positions in several pools, of as many components each, side by side."""
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    component = torch.cat([at.component + first for at, first in zip(each, firsts, strict=True)], 1)
    return Positions(component, _side_by_side([at.levels for at in each]))


def positions_for(
    pool: list[Component], count: int, num_bases: int, generator: torch.Generator
) -> tuple[list[Component], Positions]:
    """Where `count` draws lie, `num_bases` times over; and the pool with the shares that they have of them.

    In few dimensions one net for all components is the most even. In more, each component has positions of its own, as
    many as its share says, with even directions where it has one factor.
    """
    if max(c.num_dims for c in pool) < EVEN_FROM_DIM or count < FEWEST_EACH * len(pool):
        return pool, positions(pool, sobol(num_bases, count, num_uniforms(pool), generator).cpu())
    numbers = whole_numbers(count, [c.share for c in pool]) if len(pool) > 1 else [count]
    pool = [replace(c, share=number / count) for c, number in zip(pool, numbers, strict=True)]
    runs: list[list[Level]] = []  # of components, one after another
    for dim, members in groupby(zip(pool, numbers, strict=True), key=lambda member: _even_dim(member[0])):
        if dim:
            runs.append([even(num_bases, [number for _, number in members], dim, generator)])
            continue
        for c, number in members:
            runs.append(positions([c], sobol(num_bases, number, c.num_uniforms, generator).cpu()).levels)
    component = (
        torch.arange(len(pool), device="cpu")
        .repeat_interleave(torch.tensor(numbers, device="cpu"))
        .expand(num_bases, -1)
    )
    return pool, Positions(component, _side_by_side(runs))


def _even_dim(c: Component) -> int:
    """Of the directions of a component that has even ones; else zero."""
    first = c.factors[0]
    if len(c.factors) > 1 or not isinstance(first, Shells):
        return 0
    return first.own_dim if first.own_dim >= EVEN_FROM_DIM else 0


def _side_by_side(runs: list[list[Level]]) -> list[Level]:
    """The levels of several runs of draws as one: runs with fewer levels, or fewer places, are not asked for more."""
    if len(runs) == 1:
        return runs[0]
    levels = []
    for level in range(max(map(len, runs))):
        own = [run[min(level, len(run) - 1)] for run in runs]
        most = max(within.shape[-1] for _, within in own)
        padded = [torch.nn.functional.pad(within, (0, most - within.shape[-1])) for _, within in own]
        levels.append((torch.cat([u for u, _ in own], 1), torch.cat(padded, 1)))
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
        ends = cdf[torch.tensor([len(each) for each in q], device="cpu").cumsum(0) - 1]
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
