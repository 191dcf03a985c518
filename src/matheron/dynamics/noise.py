"""Standard normal numbers for many steps at once: the very ones that a generator gives step by step."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor


def normals(generator: torch.Generator, count: int, size: int, device: torch.device) -> Tensor:
    """What `count` calls of `torch.randn(size)` give, `[count, size]` on the device, float64.

    One call for all would give other numbers: what a generator gives depends on how much is asked for at once. But a
    CPU generator's uniform numbers do not, and come several times faster; torch's normal ones are made of them here, on
    the device.
    """
    if generator.device.type == "cpu" and size >= 16 and _recipe_holds():
        return _from_uniform(generator, count, size, device)
    return _in_turn(generator, count, size).to(device)


def _in_turn(generator: torch.Generator, count: int, size: int) -> Tensor:
    eps = torch.empty(count, size, device=generator.device, dtype=torch.float64)
    for row in eps.unbind(0):
        row.normal_(generator=generator)
    return eps


def _from_uniform(generator: torch.Generator, count: int, size: int, device: torch.device) -> Tensor:
    """By Box and Muller's recipe, sixteen by sixteen; the last sixteen, where those before leave some, are new ones."""
    rest = size % 16
    u = torch.rand(count, size + (16 if rest else 0), generator=generator, dtype=torch.float64).to(device)
    eps = _box_muller(u[:, : size - rest])
    return torch.cat([eps[:, : size - 16], _box_muller(u[:, size:])], dim=1) if rest else eps


def _box_muller(u: Tensor) -> Tensor:
    """Of each sixteen uniform numbers eight are radii and eight are angles."""
    radius, angle = u.unflatten(1, (-1, 2, 8)).unbind(2)
    radius, angle = (-2 * torch.log1p(-radius)).sqrt(), 2 * math.pi * angle
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2).flatten(1)


@cache
def _recipe_holds() -> bool:
    """Whether this torch makes its normal numbers so, of which it makes no promise: a small draw of each kind."""
    for size in (32, 40):
        a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        drawn, made = _in_turn(a, 2, size), _from_uniform(b, 2, size, a.device)
        if not (torch.allclose(drawn, made, rtol=1e-12, atol=1e-12) and torch.equal(a.get_state(), b.get_state())):
            return False
    return True
