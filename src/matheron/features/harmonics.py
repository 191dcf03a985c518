"""Harmonics: features of a kernel with a discrete spectrum, such as Periodic. They are exact everywhere.

If there are more frequencies than features, the heaviest are kept. A few of the others, drawn at random, carry the
variance of the rest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..evaluate.bases import Basis, Cosines, Pairs
from ..kernels.base import Term
from .features import rand


class Series(NamedTuple):
    """Frequencies `[f, d]`, one of each pair +-theta, and their masses `[f]`, heaviest first. Some are kept."""

    theta: Tensor
    mass: Tensor
    kept: int
    tail: int  # the number of random features for the frequencies that are not kept
    captured: float  # the fraction of the prior variance that the kept frequencies have


def harmonic_series(
    term: Term, input_dim: int, count: int, *, tail_threshold: float = 1e-4, tail_share: float = 1 / 8
) -> Series | None:
    """Choose frequencies of a term's stationary part for `count` features. None if its spectrum is not discrete.

    Args:
        tail_threshold: the mass left out above which some features go to random frequencies of the tail.
        tail_share: the share of the features that go there.
    """
    atoms = term.measure(input_dim).atoms()
    if atoms is None:
        return None
    theta, mass = _half(*(a.cpu() for a in atoms))
    kept, captured = _kept(theta, mass, count)
    tail = 0
    if 1 - captured > tail_threshold:
        tail = max(1, int(count * tail_share))
        kept, captured = _kept(theta, mass, count - tail)
    return Series(theta, mass, kept, tail, captured)


def harmonics(term: Term, series: Series, *, num_bases: int, generator: torch.Generator) -> list[Basis]:
    """Make the bases of a series: those of the frequencies that it keeps, and random ones of its tail."""
    theta, mass, kept, tail, _ = series
    bases = _exact(theta[:kept], term.variance.cpu() * mass[:kept])
    if tail:
        rest = mass[kept:]
        cdf = rest.detach().cumsum(0)
        drawn = torch.searchsorted(cdf, rand((num_bases, tail), generator).cpu() * cdf[-1]).clamp_max(len(cdf) - 1)
        tau = 2 * math.pi * rand((num_bases, tail), generator).cpu()
        weight = 2 * cdf[-1] / tail * (rest / rest.detach().clamp_min(1e-300))[drawn]  # [g, tail]
        bases.append(Cosines(theta[kept:][drawn], tau, (term.variance.cpu() * weight).sqrt()))
    return bases


def _exact(theta: Tensor, mass: Tensor) -> list[Basis]:
    """Make sqrt(mass) cos(theta . x) and sqrt(mass) sin(theta . x) for each frequency, and a constant for zero."""
    zero = (theta == 0).all(-1)
    bases: list[Basis] = []
    if bool((~zero).any()):
        bases.append(Pairs(theta[None, ~zero], mass[~zero].sqrt()[None]))
    if bool(zero.any()):
        bases.append(Cosines(theta[None, zero], theta[None, zero, 0], mass[zero].sqrt()[None]))
    return bases


def _half(theta: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Keep one of each pair +-theta with the mass of both, heaviest first. The masses then sum to one."""
    sign = leading_signs(theta)
    half = sign >= 0
    theta, mass = theta[half], mass[half].clamp_min(0) * torch.where(sign[half] == 0, 1.0, 2.0)
    order = mass.detach().argsort(descending=True)
    return theta[order], mass[order] / mass.sum()


def leading_signs(theta: Tensor) -> Tensor:
    """The sign of the first coordinate that is not zero, `[f, d] -> [f]`. It is zero for the frequency zero."""
    sign = torch.zeros(len(theta), dtype=theta.dtype, device="cpu")
    for column in theta.detach().unbind(1):
        sign = torch.where(sign == 0, column.sign(), sign)
    return sign


def _kept(theta: Tensor, mass: Tensor, count: int) -> tuple[int, float]:
    """The number of frequencies that fit in `count` features, and their share of the mass.

    A frequency takes two features, but zero takes one.
    """
    kept = (count + 1) // 2
    if count % 2 and not bool((theta[:kept] == 0).all(-1).any()):
        kept -= 1
    return kept, float(mass[:kept].detach().sum())
