"""Functions on the unit cube to be minimised, for comparisons of optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Problem(NamedTuple):
    """A function `[n, d] -> [n]` of points of the unit cube."""

    dim: int
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x.double())


# Of the problems whose minimum is known; Hartmann's is BoTorch's.
MINIMA = {"Hartmann-6": -3.32237, "Ackley-10": 0.0, "Levy-10": 0.0, "Rastrigin-10": 0.0}


def problem(name: str) -> Problem:
    """Ackley on [-5, 10]^d, where the minimiser is not at the centre; Levy and Rastrigin on boxes moved likewise."""
    from botorch.test_functions import Ackley, Hartmann, Levy, Rastrigin

    kind, d = name.rsplit("-", 1)
    if kind == "rover":
        return Problem(int(d), rover)
    boxes = {"Hartmann": (0.0, 1.0), "Ackley": (-5.0, 10.0), "Levy": (-8.0, 10.0), "Rastrigin": (-4.0, 5.0)}
    it, (low, high) = {"Hartmann": Hartmann, "Ackley": Ackley, "Levy": Levy, "Rastrigin": Rastrigin}[kind], boxes[kind]
    function = it(dim=int(d))
    return Problem(int(d), lambda x: function(low + (high - low) * x).double())


def rover(x: Tensor) -> Tensor:
    """A rover's way over a map with obstacles, by d / 2 points of the plane in turn: `[n, d] -> [n]`.

    The way is a smooth curve near the points (a quadratic B-spline) from one corner of the unit square to the opposite
    one. Its cost is its length, and ten times the length of what lies in the soft discs of fifteen obstacles.
    """
    n = len(x)
    points = x.reshape(n, -1, 2)
    start, goal = (torch.tensor(v, dtype=x.dtype).expand(n, 1, 2) for v in ((0.05, 0.05), (0.95, 0.95)))
    knots = torch.cat([start, start, points, goal, goal], dim=1)  # [n, k, 2]
    t = torch.linspace(0, 1, 12, dtype=x.dtype)[None, None, :, None]
    a, b, c = (knots[:, i : knots.shape[1] - 2 + i, None] for i in range(3))
    curve = 0.5 * ((1 - t) ** 2 * a + (1 + 2 * t - 2 * t**2) * b + t**2 * c)  # [n, k - 2, 12, 2]
    curve = curve.reshape(n, -1, 2)
    steps = curve.diff(dim=1).norm(dim=2)  # [n, p]
    middle = 0.5 * (curve[:, 1:] + curve[:, :-1])
    angle = 2.4 * torch.arange(15, dtype=x.dtype)  # discs on a spiral about the centre
    radius = 0.45 * ((torch.arange(15, dtype=x.dtype) + 0.5) / 15).sqrt()
    discs = 0.5 + radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)  # [15, 2]
    distance = (middle[:, :, None] - discs).norm(dim=3)  # [n, p, 15]
    inside = torch.sigmoid((0.07 - distance) / 0.01).sum(2)
    return (steps * (1 + 10 * inside)).sum(1) - math.sqrt(2) * 0.9
