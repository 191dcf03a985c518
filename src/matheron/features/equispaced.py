"""Equispaced Fourier features: the kernel's Fourier series on a box, deterministic, and far the best in few dimensions.

On a box of sides P the kernel, summed over its periodic images, is sum_j c_j cos(2 pi j . r / P) with c_j >= 0: features
sqrt(c_j) times a cosine and a sine for each pair +-j. The images err by k at a distance of P minus the domain's side; the
terms left out lose variance. The box is sized to balance the two, and the variance of what is left out is carried by a
few frequencies drawn at random from it, so that the prior's variance is right whatever the truncation.
"""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from ..kernels.terms import Term
from .basis import Basis, Cosines, Pairs
from .fourier import rand

LARGEST_DIM = 3
# Mass left out above which some of the features go to random frequencies of the tail, and how many of them do.
TAIL_THRESHOLD, TAIL_SHARE = 1e-4, 1 / 8


def equispaced(
    term: Term, input_dim: int, count: int, *, domain: Tensor, num_bases: int, generator: torch.Generator
) -> tuple[list[Basis], float]:
    """The bases and the share of the prior's variance that is captured without the random tail."""
    dims = term.active_dims(input_dim)
    if len(dims) > LARGEST_DIM:
        raise ValueError(
            f'features="equispaced" needs a kernel of at most {LARGEST_DIM} dimensions, got one of {len(dims)}; '
            'use "sobol" or "auto"'
        )
    sides = (domain[1] - domain[0])[dims].double().cpu()
    theta, mass = _series(term, input_dim, dims, sides, count)  # half the lattice, heaviest first
    kept, captured = _kept(theta, mass, count)
    tail = 0
    if 1 - captured > TAIL_THRESHOLD and count > 8:
        tail = max(2, int(count * TAIL_SHARE))
        kept, captured = _kept(theta, mass, count - tail)
    bases = _exact(theta[:kept], term.variance.cpu() * mass[:kept])
    if tail:
        rest = mass[kept:]
        cdf = rest.detach().cumsum(0)
        drawn = torch.searchsorted(cdf, rand((num_bases, tail), generator).cpu() * cdf[-1]).clamp_max(len(cdf) - 1)
        tau = 2 * math.pi * rand((num_bases, tail), generator).cpu()
        weight = 2 * cdf[-1] / tail * (rest / rest.detach().clamp_min(1e-300))[drawn]  # [g, tail]
        bases.append(Cosines(theta[kept:][drawn], tau, (term.variance.cpu() * weight).sqrt()))
    return bases, captured


def discrete(term: Term, input_dim: int, count: int) -> list[Basis] | None:
    """All features of a discrete spectrum (Periodic, Cosine) where at most `count` hold all but rounding; else None."""
    atoms = term.measure(input_dim).atoms()
    if atoms is None:
        return None
    theta, mass = _half(*(a.cpu() for a in atoms))
    kept, captured = _kept(theta, mass, count)
    return None if captured < 1 - 1e-12 else _exact(theta[:kept], term.variance.cpu() * mass[:kept])


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
    if count > 1 and count % 2 and not bool((theta[:kept] == 0).all(-1).any()):
        kept -= 1
    return kept, float(mass[:kept].sum())


def _series(term: Term, input_dim: int, dims: list[int], sides: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Frequencies `[f, d]` on half a lattice and their masses, heaviest first, on the best of several boxes."""
    best = None
    for tolerance in (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6):
        room = torch.stack([_decay_length(term, input_dim, i, tolerance, sides[a]) for a, i in enumerate(dims)])
        theta, mass = _coefficients(term, input_dim, dims, sides + room, count)
        # Squared Wasserstein distance is of first order in the variance left out and of second in a correlation that
        # wraps around, which only points at opposite ends of the domain see: a fifth of it, measured in 1 to 3 dimensions.
        error = max(0.0, 1 - _kept(theta, mass, count)[1]) + (0.2 * tolerance) ** 2
        if best is None or error < best[0]:
            best = (error, theta, mass)
    assert best is not None
    return best[1], best[2]


def _stationary(term: Term, x: Tensor) -> Tensor:
    """The stationary part at differences x `[n, d]` from the origin -> `[n]`."""
    value = torch.ones(len(x), dtype=x.dtype)
    for kernel in term.stationary:
        value = value * kernel.to("cpu").forward(x, torch.zeros_like(x[:1]))[:, 0]
    return value


def _decay_length(term: Term, input_dim: int, i: int, tolerance: float, side: Tensor) -> Tensor:
    """The distance along coordinate i beyond which the kernel stays below the tolerance, 8 sides at the most."""
    r = torch.linspace(0, 8, 4001, dtype=torch.float64) * side
    x = torch.zeros(len(r), input_dim, dtype=torch.float64)
    x[:, i] = r
    above = (_stationary(term, x).detach().abs() > tolerance).nonzero()
    return r[min(int(above[-1]) + 1, len(r) - 1)]


def _coefficients(term: Term, input_dim: int, dims: list[int], box: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The Fourier coefficients of the kernel's periodic summation, by FFT: they sum to k(0) on any grid, none negative."""
    d = len(dims)
    # Four times the kept bandwidth, so that what is folded back by the grid lies beyond the features that are kept.
    per_side = 2 ** math.ceil(math.log2(max(16, 4 * count ** (1 / d))))
    axes = [torch.arange(per_side, dtype=torch.float64) / per_side * side for side in box]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, d)  # [M^d, d]
    k = torch.zeros(len(grid), dtype=torch.float64)
    for image in product((-1, 0), repeat=d):
        x = torch.zeros(len(grid), input_dim, dtype=torch.float64)
        x[:, dims] = grid + torch.tensor(image) * box
        k = k + _stationary(term, x)
    c = torch.fft.fftn(k.reshape([per_side] * d)).real.flatten() / len(grid)
    j = torch.stack(torch.meshgrid(*[torch.fft.fftfreq(per_side, 1 / per_side)] * d, indexing="ij"), dim=-1)
    theta = torch.zeros(len(grid), input_dim, dtype=torch.float64)
    theta[:, dims] = 2 * math.pi * j.reshape(-1, d).double() / box
    return _half(theta, c)
