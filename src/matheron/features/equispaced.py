"""Equispaced Fourier features: the kernel's Fourier series on a box, deterministic, and far the best in few dimensions.

On a box of sides P the kernel, summed over its periodic images, is sum_j c_j cos(2 pi j . r / P) with c_j >= 0:
features sqrt(c_j) times a cosine and a sine for each pair +-j. The images err by k at a distance of P minus the
domain's side; the terms left out lose variance. The box is sized to balance the two, and the variance of what is left
out is carried by a few frequencies drawn at random from it, so that the prior's variance is right whatever is left out.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.terms import Term
from .basis import Basis, Cosines, Pairs
from .fourier import rand

LARGEST_DIM = 3
# Mass left out above which some of the features go to random frequencies of the tail, and how many of them do.
TAIL_THRESHOLD, TAIL_SHARE = 1e-4, 1 / 8


class Series(NamedTuple):
    """Frequencies `[f, d]` of half a lattice, heaviest first, and their masses `[f]`, of which the first are kept."""

    theta: Tensor
    mass: Tensor
    kept: int
    tail: int  # random features for the rest
    captured: float  # the share of the prior's variance in what is kept
    wrap: float | None  # the box's largest error between points of the domain; None where there is no box

    @staticmethod
    def of(theta: Tensor, mass: Tensor, count: int, wrap: float | None) -> Series:
        kept, captured = _kept(theta, mass, count)
        tail = 0
        if 1 - captured > TAIL_THRESHOLD:
            tail = max(1, int(count * TAIL_SHARE))
            kept, captured = _kept(theta, mass, count - tail)
        return Series(theta, mass, kept, tail, captured, wrap)


def equispaced(term: Term, series: Series, *, num_bases: int, generator: torch.Generator) -> list[Basis]:
    """The bases of a series: the frequencies it keeps, and random ones of its tail."""
    theta, mass, kept, tail, *_ = series
    bases = _exact(theta[:kept], term.variance.cpu() * mass[:kept])
    if tail:
        rest = mass[kept:]
        cdf = rest.detach().cumsum(0)
        drawn = torch.searchsorted(cdf, rand((num_bases, tail), generator).cpu() * cdf[-1]).clamp_max(len(cdf) - 1)
        tau = 2 * math.pi * rand((num_bases, tail), generator).cpu()
        weight = 2 * cdf[-1] / tail * (rest / rest.detach().clamp_min(1e-300))[drawn]  # [g, tail]
        bases.append(Cosines(theta[kept:][drawn], tau, (term.variance.cpu() * weight).sqrt()))
    return bases


def fourier_series(
    term: Term, input_dim: int, count: int, domain: Tensor | None, *, largest_wrap: float
) -> Series | None:
    """The stationary part's series for `count` features: a discrete spectrum's own, or that on the best of some boxes.

    None without a domain, in more than LARGEST_DIM dimensions, where the kernel does not decay with distance, and where
    no box errs by less than `largest_wrap` between points of the domain.
    """
    atoms = term.measure(input_dim).atoms()
    if atoms is not None:
        return Series.of(*_half(*(a.cpu() for a in atoms)), count, wrap=None)
    dims = term.active_dims(input_dim)
    if domain is None or len(dims) > LARGEST_DIM:
        return None
    sides = (domain[1] - domain[0])[dims].double().cpu()
    profiles = [_profile(term, input_dim, i, side) for i, side in zip(dims, sides, strict=True)]
    best, smallest = None, math.inf
    for tolerance in (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6):
        room = [_decay_length(r, k, tolerance) for r, k in profiles]
        if math.inf in room:
            break
        theta, mass, wrap = _coefficients(term, input_dim, dims, sides, torch.tensor(room, dtype=torch.float64), count)
        # Squared Wasserstein distance is of first order in the variance left out and of second in a correlation that
        # wraps around, which only points at opposite ends of the domain see: a fifth, measured in 1 to 3 dimensions.
        lost = max(0.0, 1 - _kept(theta, mass, count)[1])
        error = lost + (0.2 * tolerance) ** 2
        if error < smallest and wrap <= largest_wrap:
            best, smallest = Series.of(theta, mass, count, wrap), error
        if lost > smallest:  # a larger box loses more still
            break
    return best


def _exact(theta: Tensor, mass: Tensor) -> list[Basis]:
    """sqrt(mass) cos(theta . x) and sqrt(mass) sin(theta . x) for each frequency; for theta = 0 the constant alone."""
    zero = (theta == 0).all(-1)
    bases: list[Basis] = []
    if bool((~zero).any()):
        bases.append(Pairs(theta[None, ~zero], mass[~zero].sqrt()[None]))
    if bool(zero.any()):
        bases.append(Cosines(theta[None, zero], theta[None, zero, 0], mass[zero].sqrt()[None]))
    return bases


def _half(theta: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """One of each pair +-theta with the mass of both, heaviest first; the masses then sum to one."""
    sign = torch.zeros(len(theta))
    for axis in range(theta.shape[1]):  # the sign of the first coordinate that is not zero
        sign = torch.where(sign == 0, theta[:, axis].sign(), sign)
    half = sign >= 0
    theta, mass = theta[half], mass[half].clamp_min(0) * torch.where(sign[half] == 0, 1.0, 2.0)
    order = mass.detach().argsort(descending=True)
    return theta[order], mass[order] / mass.sum()


def _kept(theta: Tensor, mass: Tensor, count: int) -> tuple[int, float]:
    """How many frequencies `count` features hold (two each, but one for zero), and their share of the mass."""
    kept = (count + 1) // 2
    if count % 2 and not bool((theta[:kept] == 0).all(-1).any()):
        kept -= 1
    return kept, float(mass[:kept].detach().sum())


def _stationary(term: Term, x: Tensor) -> Tensor:
    """The stationary part at differences x `[n, d]` from the origin -> `[n]`."""
    value = torch.ones(len(x), dtype=x.dtype)
    for kernel in term.stationary:
        value = value * kernel.to("cpu").forward(x, torch.zeros_like(x[:1]))[:, 0]
    return value


def _profile(term: Term, input_dim: int, i: int, side: Tensor) -> tuple[Tensor, Tensor]:
    """Distances along coordinate i, to a million sides, and the kernel's size there."""
    octaves = [torch.linspace(2.0**j, 2.0 ** (j + 1), 257, dtype=torch.float64)[1:] for j in range(3, 20)]
    r = torch.cat([torch.linspace(0, 8, 4001, dtype=torch.float64), *octaves]) * side
    x = torch.zeros(len(r), input_dim, dtype=torch.float64)
    x[:, i] = r
    return r, _stationary(term, x).detach().abs()


def _decay_length(r: Tensor, k: Tensor, tolerance: float) -> float:
    """The distance beyond which the kernel stays below the tolerance; infinite where it does not."""
    last = int((k > tolerance).nonzero()[-1])
    return float(r[last + 1]) if last + 1 < len(r) else math.inf


def _coefficients(
    term: Term, input_dim: int, dims: list[int], sides: Tensor, room: Tensor, count: int
) -> tuple[Tensor, Tensor, float]:
    """The Fourier coefficients of the kernel's periodic summation, and its largest error between points of the domain.

    By FFT: they sum to k(0) on any grid, and none is negative.
    """
    d, box = len(dims), sides + room
    # Four times the kept bandwidth, so that what is folded back by the grid lies beyond the features that are kept.
    per_side = 2 ** math.ceil(math.log2(max(16, 4 * count ** (1 / d))))
    axes = [torch.arange(per_side, dtype=torch.float64) / per_side * side for side in box]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, d)  # [M^d, d]
    x = torch.zeros(len(grid), input_dim, dtype=torch.float64)
    x[:, dims] = grid
    direct = total = _stationary(term, x)  # [M^d]
    for image in list(product((0, -1), repeat=d))[1:]:
        x[:, dims] = grid + torch.tensor(image) * box
        total = total + _stationary(term, x)
    inside = (grid <= sides).all(-1)
    wrap = float((total / total[0] - direct).detach()[inside].abs().max())
    c = torch.fft.fftn(total.reshape([per_side] * d)).real.flatten() / len(grid)
    j = torch.stack(torch.meshgrid(*[torch.fft.fftfreq(per_side, 1 / per_side)] * d, indexing="ij"), dim=-1)
    theta = torch.zeros(len(grid), input_dim, dtype=torch.float64)
    theta[:, dims] = 2 * math.pi * j.reshape(-1, d).double() / box
    return *_half(theta, c), wrap
