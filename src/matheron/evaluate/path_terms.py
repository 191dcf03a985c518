"""What paths are sums of: terms, each a function `[s, t]` of points in the model's own space.

Points are `[1, n, d]`, shared by all paths, or `[B, n, d]`, each path's own; sums are `[s, t, n]`, and with gradients a
pair with `[s, t, n, d]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from ..core.arena import frame
from ..core.weighted_sums import Sums, add
from . import bases
from .bases import Basis

# Which paths have these points: a run of them, one for each problem `[B]`; None: all, at shared points.
Which = slice | Tensor | None


class PathTerm(ABC):
    """A summand of every path."""

    shared: bool = True  # whether all paths use one version of its basis
    by_coordinate: bool = True  # whether gradients take as many numbers for each coordinate as the sums do

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that one point (of one path) needs while its sums are taken."""

    @abstractmethod
    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        """`[s, t, n]`, and with `gradient` a pair with `[s, t, n, d]`."""

    def pulled(self, x: Tensor, G: Tensor) -> Tensor:
        """sum over paths and outputs of G `[s, t, n]` times the gradient of the sums at shared points: `[1, n, d]`."""
        raise NotImplementedError


@dataclass(eq=False)
class WeightedSum(PathTerm):
    """sum_i W_i phi_i(x - origin): weights `[s, t, c]`, and which version of the basis each path uses, `[s]`.

    Without an origin points are taken as they are; without an index all paths use the one version there is.
    """

    basis: Basis
    weights: Tensor
    index: Tensor | None = None
    origin: Tensor | None = None

    @property
    def width(self) -> int:
        return self.basis.width

    @cached_property
    def shared(self) -> bool:
        """Whether all paths use one version."""
        return self.index is None or self.basis.num_bases == 1

    @cached_property
    def indices(self) -> list[int]:
        """Each path's version."""
        return [0] * len(self.weights) if self.index is None else self.index.tolist()

    @cached_property
    def groups(self) -> list[tuple[int, list[int]]]:
        """The versions in use, and the paths that use each."""
        members: dict[int, list[int]] = {}
        for path, g in enumerate([0] * len(self.weights) if self.shared else self.indices):
            members.setdefault(g, []).append(path)
        return sorted(members.items())

    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        x, W = self._about(x), self.weights
        s, t, c = W.shape
        if paths is not None:
            return self._sums_at_own(x, paths, gradient)
        if self.shared:  # shared points, one basis: one problem for all
            return _split_rows(self.basis.sums(x, W.reshape(1, s * t, c), gradient), s, t)
        if len(self.groups) == s:  # shared points, a basis per path: as many paths at once as stay small
            assert self.index is not None
            step = max(1, bases.LARGEST_BATCH // max(1, c * x.shape[1]))
            cuts = [slice(i, i + step) for i in range(0, s, step)]
            return _concatenated([self.basis.select(self.index[cut]).sums(x, W[cut], gradient) for cut in cuts])
        parts, order = [], []
        for basis, rows, members in self.versions():  # shared points, a basis for several paths
            parts.append(_split_rows(basis.sums(x, rows.reshape(1, -1, c), gradient), len(members), t))
            order += members
        out, place = _concatenated(parts), torch.tensor(order, device=x.device).argsort()
        return out if order == sorted(order) else of_each(lambda o: o[place], out)

    def _sums_at_own(self, x: Tensor, paths: slice | Tensor, gradient: bool) -> Sums:
        """Own points: a problem per path. The frequencies that neighbours share are not copied for each."""
        W = self.weights[paths]
        if self.shared:
            return self.basis.sums(x, W, gradient)
        assert self.index is not None
        indices = self.indices[paths] if isinstance(paths, slice) else self.index[paths].tolist()
        runs = [(g, len(list(run))) for g, run in groupby(indices)]
        if len(runs) > len(W) // 4:
            return self.basis.select(self.index[paths]).sums(x, W, gradient)
        parts, start = [], 0
        for g, length in runs:
            mine = slice(start, start + length)
            parts.append(self.basis.select(slice(g, g + 1)).sums(x[mine], W[mine], gradient))
            start += length
        return _concatenated(parts)

    def pulled(self, x: Tensor, G: Tensor) -> Tensor:
        x, c, n = self._about(x), self.weights.shape[-1], x.shape[1]
        total = torch.zeros_like(x)
        for basis, W, members in self.versions():
            rows = G if self.shared else G[members]
            with frame():
                total += basis.pulled(x, *_fewest(W.reshape(1, -1, c), rows.reshape(1, -1, n)))
        return total

    def versions(self) -> Iterator[tuple[Basis, Tensor, list[int]]]:
        """The versions of the basis that are in use, the weights that go with each, and the paths that use it."""
        for g, members in self.groups:
            first, last = members[0], members[-1]
            rows = slice(first, last + 1) if last - first < len(members) else members
            yield self.basis if self.shared else self.basis.select(slice(g, g + 1)), self.weights[rows], members

    def _about(self, x: Tensor) -> Tensor:
        return x if self.origin is None else x - self.origin


@dataclass(eq=False)
class Wide(PathTerm):
    """A term that is summed in float64, whatever the dtype of points and paths: its weights cancel."""

    term: PathTerm

    @property
    def width(self) -> int:
        return 2 * self.term.width

    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        return of_each(lambda o: o.to(x.dtype), self.term.sums(x.double(), paths, gradient))

    def pulled(self, x: Tensor, G: Tensor) -> Tensor:
        return self.term.pulled(x.double(), G.double()).to(x.dtype)


def _fewest(W: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[1, r, c]` and gradients `[1, r, n]` with the same pull-back, and one row where that is enough.

    Where the gradients are the same at all points, as those of a sum or a mean over paths and points are, what is
    pulled back is the gradient of one function: that with the weights' own sum.
    """
    if G.device.type != "cpu" or G.shape[1] == 1 or not bool((G == G[..., :1]).all()):
        return W, G
    return G[..., :1].mT @ W, torch.ones_like(G[:, :1])


def summed(terms: Sequence[PathTerm], x: Tensor, paths: Which, gradient: bool) -> Sums | None:
    """The sum of some terms; None where there are none."""
    total = None
    for term in terms:
        with frame():
            total = add(total, term.sums(x, paths, gradient))
    return total


def sum_of(terms: Sequence[PathTerm], x: Tensor, paths: Which = None) -> Tensor | None:
    """The same without gradients, `[s, t, n]`."""
    return cast(Tensor | None, summed(terms, x, paths, False))


def _split_rows(out: Sums, s: int, t: int) -> Sums:
    """`[1, s t, n, ...] -> [s, t, n, ...]`, of a tensor or of a pair."""
    return of_each(lambda o: o.reshape(s, t, *o.shape[2:]), out)


def _concatenated(parts: list[Sums]) -> Sums:
    if isinstance(parts[0], tuple):
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    return torch.cat(cast(list[Tensor], parts))


def of_each(function: Callable[[Tensor], Tensor], out: Sums) -> Sums:
    """A function of the sums, and of their gradients where there are any."""
    return (function(out[0]), function(out[1])) if isinstance(out, tuple) else function(out)
