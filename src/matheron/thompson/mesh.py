"""Meshes that searches begin with: scrambled Sobol sequences, on a GPU made there."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.boxes import Sobol


def sobol_net(d: int, generator: torch.Generator) -> Sobol:
    """Points that fill the unit cube evenly, scrambled as the generator says."""
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    return Sobol(d, seed)


def next_points(mesh: Sobol, count: int, like: Tensor) -> Tensor:
    """The next points `[count, d]` of a mesh. On a GPU they are made there: the same numbers, without the host."""
    if like.device.type == "cpu":
        return mesh.next(count).to(like)
    points = scrambled(mesh, mesh.num_generated, count, like.device).to(like)
    mesh.num_generated += count
    return points


def scrambled(mesh: Sobol, first: int, count: int, device: torch.device) -> Tensor:
    """Points `first` and on of a scrambled sequence, `[count, d]`: the direction numbers of i's Gray code, combined."""
    directions, x = mesh.sobolstate.to(device), mesh.shift.to(device)  # [d, bits], [d]
    i = torch.arange(first, first + count, device=device)
    gray = i ^ (i >> 1)
    x = x.expand(count, -1).clone()
    for bit in range(max(1, (first + count).bit_length())):
        x ^= ((gray >> bit) & 1)[:, None] * directions[:, bit]
    return x.double() / 2**Sobol.MAXBIT
