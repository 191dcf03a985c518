"""Features of terms with linear forms: all monomials, or unbiased random products if these are too many."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from ..evaluate import Basis, Cosines, Products
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
