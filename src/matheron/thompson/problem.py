"""One drawn problem: functions for the objectives and for the constraints, and a single number to be minimised.

Several objectives are scalarised with random weights: the minimiser is a point of the drawn functions' own Pareto
front, and weights drawn uniformly spread the points over all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..paths import AbstractPaths
from .greedy import MeanOf

# The augmented Chebyshev scalarisation max_j w_j z_j + SHARE sum_j w_j z_j, its maximum smoothed over SMOOTH.
SHARE, SMOOTH = 0.05, 0.02
# Of a violation squared, in constraints' own standard deviations and objectives', while descending.
PENALTY = 100.0


class At(NamedTuple):
    """Drawn functions at n points: objectives F `[m, n]`, and by how much constraints are violated `[n]`."""

    F: Tensor
    violation: Tensor


@dataclass(frozen=True)
class Problem:
    """`objectives` and `constraints` are single paths; `lowest` and `span` `[m]` put objectives on one scale."""

    objectives: Sequence[AbstractPaths | MeanOf]
    constraints: Sequence[AbstractPaths]
    weights: Tensor  # [m]
    scales: Tensor  # [c], of the constraints
    lowest: Tensor  # [m]
    span: Tensor  # [m]

    def scaled(self, at: At) -> Problem:
        """The problem with its objectives on the scale of their own front, as far as some points show it.

        That is from an objective's lowest value to its highest at the other objectives' best points.
        """
        F = at.F if not bool((at.violation <= 0).any()) else at.F[:, at.violation <= 0]
        lowest = F.min(1).values
        span = F[:, F.argmin(1)].max(1).values - lowest
        return replace(self, lowest=lowest, span=torch.where(span > 0, span, 1.0))

    def of_means(self) -> Problem:
        """The problem with its objectives' posterior means in place of drawn functions."""
        return replace(self, objectives=[f if isinstance(f, MeanOf) else MeanOf(f) for f in self.objectives])

    def units(self, F: Tensor) -> Tensor:
        """Values `[n, m]` on the objectives' scale."""
        return (F - self.lowest) / self.span

    def at(self, x: Tensor) -> At:
        """The drawn functions at points `[n, d]`."""
        with torch.no_grad():
            F = torch.stack([path(x)[0] for path in self.objectives])
            if not self.constraints:
                return At(F, torch.zeros_like(F[0]))
            C = torch.stack([path(x)[0] for path in self.constraints])  # [c, n]
            return At(F, (C / self.scales[:, None]).clamp_min(0).sum(0))

    def rank(self, at: At, weights: Tensor) -> Tensor:
        """What points are ordered by `[n]`: feasible ones by the objective, the others after them by violation."""
        value = self._objective(at.F, weights[:, None])  # [n]
        last = value.max() - value.min() + 1
        return torch.where(at.violation > 0, value.max() + last + at.violation, value)

    def value_and_grad(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The objective with a penalty for violations, `[n]`, and its gradient `[n, d]`; weights are `[m, n]`."""
        parts = [path.value_and_grad(x) for path in (*self.objectives, *self.constraints)]
        F = torch.stack([value[0] for value, _ in parts]).requires_grad_()  # [m + c, n]
        with torch.enable_grad():
            m = len(self.objectives)
            value = self._objective(F[:m], weights)
            if self.constraints:
                value = value + PENALTY * (F[m:] / self.scales[:, None]).clamp_min(0).square().sum(0)
            (slope,) = torch.autograd.grad(value.sum(), F)  # [m + c, n]
        gradient = torch.stack([gradient[0] for _, gradient in parts])  # [m + c, n, d]
        return value.detach(), (slope[..., None] * gradient).sum(0)

    def _objective(self, F: Tensor, weights: Tensor) -> Tensor:
        z = (F - self.lowest[:, None]) / self.span[:, None]  # [m, n]
        if len(z) == 1:
            return z[0]
        weighted = weights * z
        return SMOOTH * torch.logsumexp(weighted / SMOOTH, 0) + SHARE * weighted.sum(0)


def simplex(m: int, generator: torch.Generator) -> Tensor:
    """Weights `[m]`, uniform among those that are positive and sum to one."""
    exponential = -torch.rand(m, generator=generator, dtype=torch.float64).clamp_min(1e-300).log()
    return exponential / exponential.sum()
