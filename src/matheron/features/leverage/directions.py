"""Directions of frequencies that are even: near-designs on the sphere, computed once and rotated at random.

A set of directions integrates polynomials of degree 2t as the sphere does where its frame potential, the sum of
(u_i . u_j)^2t over all pairs, is least. Descent on it finds sets of a few hundred directions whose errors in degrees
2, 4 and 6 are far below those of a Sobol net in four dimensions and more. A random rotation for each basis makes
every direction uniform, so that features stay unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.modes import kept
from ..fourier import orthogonal, rand, randn

# Sizes of sets: more directions are several sets, each rotated on its own. Few sizes, since sets are kept.
_SIZES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
# Degrees 2t of the potential; steps of the descent, and how far the first of them goes, in radians.
_HALF_DEGREES, _STEPS, _FIRST_STEP = (1, 2, 3), 30, 0.15
# Directions next to each other along the radius repel each other more: by how much, and over which share of them.
_NEIGHBOURS, _NEIGHBOURHOOD = 2.0, 0.15
# The weight of each earlier direction beside the next, when a direction gets its sign.
_REMEMBERED = 0.9


def even(num_bases: int, counts: Sequence[int], dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each of some counts, one after another: stratified uniforms `[g, count]` for radii, and directions
    `[g, count, dim]` that are even at all of these."""
    sizes = [size for count in counts for size in _sizes(count)]
    u, normals = [], []
    for run in [sizes] if len(counts) > 1 else [[size] for size in sizes]:  # in which order numbers are drawn
        u.append(rand((num_bases, sum(run)), generator))
        normals.append(randn((len(run), num_bases, dim, dim), generator))
    of = np.repeat(sizes, sizes)
    at = np.arange(len(of)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # from zero in every set
    strata = (torch.from_numpy(at) + torch.cat(u, 1).cpu()) / torch.from_numpy(of)
    Q = orthogonal(torch.cat(normals).cpu())  # [sizes, g, d, d]
    directions = [near_design(size, dim) @ rotation for size, rotation in zip(sizes, Q, strict=True)]
    return strata.clamp_(2**-54, 1 - 2**-53), torch.cat(directions, 1)


def _sizes(count: int) -> list[int]:
    """Sizes that sum to the count: as large as can be."""
    sizes = []
    for size in _SIZES:
        sizes += [size] * (count // size)
        count %= size
    return sizes


@kept(128)
def near_design(size: int, dim: int) -> Tensor:
    """Directions `[size, d]` that are even altogether and in every run of neighbours: always the same.

    Their potential does not know signs, as a pair of features does not; signs then balance neighbours. In float64:
    rounding has no say in where the descent leads.
    """
    start = torch.randn(size, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    u = torch.nn.functional.normalize(start, dim=1)
    if size == 1:
        return u
    at = torch.arange(size, dtype=torch.float64, device="cpu") / size
    near = 1 + _NEIGHBOURS * (-(at[:, None] - at).abs() / _NEIGHBOURHOOD).exp()  # [size, size]
    near.fill_diagonal_(0.0)
    expected, factors = 1.0, []
    for t in _HALF_DEGREES:
        expected *= (2 * t - 1) / (dim + 2 * t - 2)  # the mean of (u . v)^2t over the sphere
        factors.append(t / expected)
    for step in range(_STEPS):
        C = u @ u.mT
        C2 = C.square()
        slope = (C2 * factors[2]).add_(factors[1]).mul_(C2).add_(factors[0]).mul_(C).mul_(near)  # of the potential
        pull = slope @ u
        pull -= (pull * u).sum(1, keepdim=True) * u
        pull *= _FIRST_STEP * (1 - step / _STEPS) / pull.norm(dim=1).mean().clamp_min(1e-300)
        u = torch.nn.functional.normalize(u - pull, dim=1)
    balance = torch.zeros(dim, dtype=torch.float64, device="cpu")
    for direction in u:
        if direction @ balance > 0:
            direction.neg_()
        balance = _REMEMBERED * balance + direction
    return u
