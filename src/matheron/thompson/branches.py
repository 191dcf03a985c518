"""Conditional parameters: a decision tree, learned from the trials, that predicts which parameters a point has.

A trial lacks the parameters that its objective did not ask for, and what it asks for depends on those that it asked
for before: `if kind == "tree": trial.suggest_int("depth", ...)`. So a decision tree over the trials splits on nothing
but coordinates that all of its node's trials have, until they agree in what they have.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class _Node(NamedTuple):
    """A leaf, where `column` is None: trials here have the coordinates `active` `[d]`."""

    active: Tensor
    column: int | None = None
    threshold: float = 0.0
    below: _Node | None = None
    above: _Node | None = None


class Branches:
    """A decision tree learned from points X `[n, d]` of trials in order and the coordinates that each has, `[n, d]`.

    >>> X = torch.tensor([[0.0, 0.3], [0.1, 0.8], [0.9, 0.5], [1.0, 0.5]])
    >>> has = torch.tensor([[True, True], [True, True], [True, False], [True, False]])
    >>> Branches(X, has).active(torch.tensor([[0.2, 0.6], [0.7, 0.6]])).tolist()
    [[True, True], [True, False]]
    """

    def __init__(self, X: Tensor, has: Tensor) -> None:
        kinds, kind = has.unique(dim=0, return_inverse=True)
        self.several = len(kinds) > 1
        self._root = _grown(X, has, torch.nn.functional.one_hot(kind, len(kinds)).to(X))

    def active(self, u: Tensor) -> Tensor:
        """Which coordinates points u `[m, d]` have, `[m, d]`."""
        active = torch.empty(u.shape, dtype=torch.bool, device=u.device)
        _tell(self._root, u, torch.arange(len(u), device=u.device), active)
        return active


def _grown(X: Tensor, has: Tensor, kind: Tensor) -> _Node:
    """The tree of trials with coordinates `has` `[n, d]`, of kinds `[n, k]`, one-hot. If no split separates the trials
    of a leaf, the latest of them decides."""
    leaf = _Node(has[-1])
    usable = has.all(0).nonzero()[:, 0]
    if bool((has == has[0]).all()) or len(usable) == 0:
        return leaf
    values, order = X[:, usable].sort(dim=0, stable=True)  # [n, u]
    below = kind[order].cumsum(0)[:-1]  # [n - 1, u, k], trials of each kind below a cut
    above = kind.sum(0) - below
    # Gini impurity, by which purer sides are lower: n_b (1 - sum p_b^2) + n_a (1 - sum p_a^2).
    purity = below.square().sum(-1) / below.sum(-1) + above.square().sum(-1) / above.sum(-1)
    purity = torch.where(values[1:] > values[:-1], purity, -torch.inf)
    best = int(purity.argmax())
    row, place = divmod(best, len(usable))
    if not bool(purity[row, place] > kind.sum(0).square().sum() / len(X) + 1e-9):
        return leaf
    column, threshold = int(usable[place]), float(values[row : row + 2, place].mean())
    side = X[:, column] < threshold
    parts = (_grown(X[rows], has[rows], kind[rows]) for rows in (side, ~side))
    return _Node(leaf.active, column, threshold, *parts)


def _tell(node: _Node, u: Tensor, rows: Tensor, active: Tensor) -> None:
    if node.column is None or node.below is None or node.above is None:
        active[rows] = node.active
        return
    side = u[rows, node.column] < node.threshold
    _tell(node.below, u, rows[side], active)
    _tell(node.above, u, rows[~side], active)
