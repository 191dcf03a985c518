"""Features that are exact: monomials of linear forms, and harmonics of discrete spectra such as that of Periodic.

If there are too many monomials, unbiased random products take their place. If there are more frequencies than features,
the heaviest are kept, and a few of the others, drawn at random, carry the variance of the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from ..evaluate import Basis, Cosines, Pairs, Products
from ..kernels.base import Term
from .features import fourier, rand

# If there are more monomials than this, they are replaced by as many random products as there are Fourier features.
LARGEST_MONOMIAL_COUNT = 2048


def explicit(
    term: Term, input_dim: int, count: int, *, kind: str, num_bases: int, origin: Tensor, generator: torch.Generator
) -> list[Basis]:
    """Make the features of a term with linear forms, alone or times a stationary part.

    Alone, the features are the term's monomials, which are exact, or `count` random products. With a stationary part
    they are `count` products (a_i . (x, 1)) ... cos(theta_i . x + tau_i). The a_i then run through the monomials, or
    are random signs.
    """
    forms = [c.cpu() for c in term.forms]
    size = monomial_count(forms)
    if not term.stationary:
        if size <= LARGEST_MONOMIAL_COUNT:
            A, coefficients = monomials(forms)
            return [Products(A[None], (term.variance.cpu() * coefficients).sqrt()[None], origin)]
        A = _random_signs(forms, count, num_bases, generator)
        return [Products(A, (term.variance.cpu() / count).sqrt(), origin)]
    cosines = as_cosines(fourier(term, input_dim, count, kind=kind, num_bases=num_bases, generator=generator))
    if size <= max(1, count // 4):  # each monomial gets several frequencies
        A, coefficients = monomials(forms)
        # A cosine and its sine must have the same monomial. Each monomial gets a run of successive frequencies, because
        # every second point of a Sobol net lies in one half of the cube.
        run = torch.arange(count, device="cpu") // 2 * size // ((count + 1) // 2)
        share = torch.bincount(run, minlength=size)[run]  # [count]
        amplitude = (coefficients[run] * count / share).sqrt()
        return [Products(A[:, run].expand(num_bases, -1, -1, -1), amplitude, origin, cosines)]
    A = _random_signs(forms, count, num_bases, generator)
    return [Products(A, A.new_ones(()), origin, cosines)]


def as_cosines(bases: list[Basis]) -> Cosines:
    """Write pairs and single cosines as one list of cosines: sin(t) = cos(t - pi / 2). Pairs stay side by side."""
    parts = []
    for basis in bases:
        theta, amplitude = basis.frequencies, basis.amplitudes
        if isinstance(basis, Cosines):
            parts.append((theta, basis.phases, amplitude))
        else:
            quarter = torch.tensor([0.0, -math.pi / 2], dtype=theta.dtype, device=theta.device)
            tau = quarter.repeat(theta.shape[1]).expand(theta.shape[0], -1)
            parts.append((theta.repeat_interleave(2, 1), tau, amplitude.repeat_interleave(2, 1)))
    theta, tau, amplitude = (torch.cat(p, dim=1).cpu() for p in zip(*parts, strict=True))
    return Cosines(theta, tau, amplitude)


def _grouped(forms: list[Tensor]) -> list[tuple[Tensor, int]]:
    """Group equal forms and count them, since (x . x' + c)^p needs each monomial once, and not p! times."""
    groups: list[tuple[Tensor, int]] = []
    for form in forms:
        for i, (other, power) in enumerate(groups):
            if other is form or torch.equal(other, form):
                groups[i] = (other, power + 1)
                break
        else:
            groups.append((form, 1))
    return groups


def monomial_count(forms: list[Tensor]) -> int:
    """Count the monomials in a product of forms."""
    supports = [(int((form > 0).sum()), power) for form, power in _grouped(forms)]
    return math.prod(math.comb(s + power - 1, power) for s, power in supports)


def monomials(forms: list[Tensor]) -> tuple[Tensor, Tensor]:
    """List all monomials as one-hot projections `[p, e, d + 1]`, with their coefficients `[e]` in the product."""
    indices, coefficients = (
        torch.zeros(1, 0, dtype=torch.long, device="cpu"),
        torch.ones(1, dtype=torch.float64, device="cpu"),
    )
    for form, power in _grouped(forms):
        own, ways = _powers(form, power)  # [m, power], [m]
        coefficients = (coefficients[:, None] * (ways * form[own].prod(-1))).flatten()
        first, second = indices.repeat_interleave(len(own), 0), own.repeat(len(indices), 1)
        indices = torch.cat([first, second], dim=1)
    return torch.eye(len(forms[0]), dtype=torch.float64, device="cpu")[indices].transpose(0, 1), coefficients


def _powers(form: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Expand (sum_i c_i x_i x'_i)^power: the indices `[m, power]` of its m monomials and their multiplicities `[m]`."""
    chosen = list(combinations_with_replacement(form.nonzero()[:, 0].tolist(), power))
    ways = [math.factorial(power) // math.prod(map(math.factorial, Counter(i).values())) for i in chosen]
    return torch.tensor(chosen, dtype=torch.long, device="cpu"), torch.tensor(ways, dtype=torch.float64, device="cpu")


def _random_signs(forms: list[Tensor], count: int, num_bases: int, generator: torch.Generator) -> Tensor:
    """Draw a `[g, p, count, d + 1]`, random signs times roots of coefficients, so that E (a . x)(a . x') = <x, x'>."""
    signs = torch.where(rand((num_bases, len(forms), count, len(forms[0])), generator) < 0.5, -1.0, 1.0).cpu()
    # the derivative of the root is infinite at 0
    roots = torch.stack([torch.where(c > 0, c, 1.0).sqrt() * (c > 0) for c in forms])
    return signs * roots[:, None]


# Harmonics.


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
