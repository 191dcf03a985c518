"""Frequencies chosen where the posterior lives: importance sampling by posterior leverage.

The residual of a frequency after the data is r_theta(x) = e^{i theta.x} - k(x, X) (K + noise)^-1 e^{i theta.X}, and the
posterior covariance is the integral of S(theta) r_theta(x) conj r_theta(x') plus what is due to the noise. Frequencies
from S are spent where |r_theta| is nearly zero, since data have pinned the smooth and heavy part of the spectrum.
Here they are drawn from

    q(theta)  ~  S(theta) sqrt(lev(theta)^2 + b),        lev(theta) = mean over x of |r_theta(x)|^2 / Var f(x),

with amplitudes sqrt(S / q): the kernel stays unbiased, and errors fall where the posterior's variance is. Residuals
are computed for one pilot set of frequencies; lev is a smooth function of the radius (of each factor of each term)
fitted to them, so that fresh bases cost no more than plain ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..kernels.terms import Term
from .basis import Basis, Cosines, Pairs
from .beyond import outside, proposed, proposed_without_data, times
from .cells import Atoms
from .explicit import as_cosines, monomials
from .features import Asked
from .fourier import rand
from .pilot import Pilot, by_cells, number_of_each, pilot
from .positions import positions_for, whole_numbers
from .products import Products
from .proposal import Component
from .reference import Reference
from .sampling import draw
from .tilt import Tilted, tilt

# Data explain most of the variance where the posterior's is no more than this share of it.
PINNED = 0.15


# A basis, and the coordinates [g, f, p] of (x, 1) whose product each of its frequencies comes with.
Owned = tuple[Pairs | Cosines, Tensor]


@dataclass
class Pool:
    """Components that share features: those of one coupling B (with a root of it), times monomials of one degree."""

    coupling: Tensor | None
    root: Tensor | None
    degree: int
    parts: list[Component]

    @property
    def size(self) -> float:
        """The mean of B over outputs."""
        return 1.0 if self.root is None else float(self.root.detach().square().sum()) / len(self.root)


def leverage(
    terms: Sequence[tuple[Term, list[Component]]],
    count: int,
    roots: Sequence[Tensor | None],
    asked: Asked,
    beyond: Tensor | None = None,
) -> list[tuple[Basis, Tensor | None]]:
    """`count` features for all of the terms together, for each basis asked for, and the coupling of each.

    `roots` are roots of the terms' couplings. Pools share the features by leverage. With `beyond`, `[d]`, only those
    are kept that have a coordinate of their frequency beyond it: the others are on a lattice. There need then be no
    posterior: frequencies are drawn by the spectrum alone.
    """
    pools = _pools(terms, roots)
    sizes = [1 / len(pools)] * len(pools)
    if asked.posterior is not None:
        with torch.no_grad():
            sizes = adapt(pools, asked)
    blocks: list[tuple[Basis, Tensor | None]] = []
    for pool, number in zip(pools, whole_numbers(count, sizes), strict=True):
        if beyond is not None:
            pool.parts = (proposed_without_data if asked.posterior is None else proposed)(pool.parts, beyond)
            number *= times(pool.parts, beyond)
        bases = _bases(pool.parts, number, asked.num_bases, asked.generator)
        if beyond is not None:
            bases = [kept for each in bases if (kept := outside(*each, beyond)) is not None]
        blocks += [(basis, pool.coupling) for basis in _enveloped(bases, pool.degree, asked.origin)]
    return blocks


def _pools(terms: Sequence[tuple[Term, list[Component]]], roots: Sequence[Tensor | None]) -> list[Pool]:
    """A term with linear forms is a sum over their monomials, each the envelope of components."""
    pools: dict[tuple[int, int], Pool] = {}
    for (term, parts), root in zip(terms, roots, strict=True):
        own = [replace(c) for c in parts]
        if term.forms:
            A, coefficients = monomials([form.cpu() for form in term.forms])  # [p, e, d + 1], [e]
            envelopes = A.argmax(-1).sort(0).values.mT.tolist()
            each = list(zip(envelopes, coefficients, strict=True))
            own = [replace(c, variance=c.variance * v, envelope=tuple(e)) for e, v in each for c in parts]
        pool = Pool(term.coupling, root, len(term.forms), [])
        pools.setdefault((id(term.coupling), pool.degree), pool).parts += own
    return list(pools.values())


def _enveloped(bases: list[Owned], degree: int, origin: Tensor) -> list[Basis]:
    """Bases times the monomials that they come with."""
    if degree == 0 or not bases:
        return [basis for basis, _ in bases]
    cosines = as_cosines([basis for basis, _ in bases])
    columns = [c.repeat_interleave(2, 1) if isinstance(basis, Pairs) else c for basis, c in bases]  # [g, f, p]
    one_hot = torch.eye(len(origin) + 1, dtype=torch.float64)
    A = one_hot[torch.cat(columns, dim=1)].transpose(1, 2)  # [g, p, f, d + 1]
    return [Products(A, A.new_ones(()), origin, cosines)]


def adapt(pools: Sequence[Pool], asked: Asked) -> list[float]:
    """Set every component's proposal and share by a pilot run; the pools' own shares are returned."""
    posterior = asked.posterior
    assert posterior is not None
    # The posterior variance is hardly less than this share of the prior's: there the tail ends.
    total = sum(float(c.variance) for pool in pools for c in pool.parts)
    least = float(posterior.noise.detach().min()) / (len(posterior.centres) * max(total, 1e-300))
    spectra: dict[int, list[tuple[Pool, Component]]] = {}  # components that differ by their monomials alone
    for pool in pools:
        for c in pool.parts:
            spectra.setdefault(id(c.factors), []).append((pool, c))
    pilots = {key: pilot(of[0][1], number_of_each(len(spectra), len(of)), least) for key, of in spectra.items()}
    theta = torch.from_numpy(np.concatenate([np.abs(p.theta) for p in pilots.values()]))
    turns = torch.where(theta > 0, theta, torch.nan).nanmedian(0).values  # [d]; a term may leave a dimension alone
    reference = Reference(posterior, asked.domain, asked.where, 1 / torch.nan_to_num(turns, nan=1.0))
    alike: dict[tuple, list[int]] = {}  # spectra that have the same monomials, and are coupled alike
    for key, of in spectra.items():
        alike.setdefault(tuple((id(pool), c.envelope) for pool, c in of), []).append(key)
    variance = reference.noise_variance.cpu().numpy()  # [r]
    found: list[tuple[Pool, Component, Pilot, np.ndarray]] = []
    for keys in alike.values():
        own = [pilots[key] for key in keys]
        multipliers = [(pool.root, c.envelope) for pool, c in spectra[keys[0]]]
        squares = reference.residuals(np.concatenate([p.theta for p in own]), asked.origin, multipliers)  # [e, r, k]
        each = np.split(squares, np.cumsum([len(p.theta) for p in own])[:-1], axis=-1)
        for key, p, of_each in zip(keys, own, each, strict=True):
            for (pool, c), e in zip(spectra[key], of_each, strict=True):
                variance = variance + float(c.variance) * (e @ p.weight)
                found.append((pool, c, p, e))
    relative = 1 / (np.maximum(variance, 1e-300) * len(variance))
    x = reference.x.cpu().numpy()
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)  # (x, 1)
    parts, given = [], asked.domain is not None or asked.where is not None
    for pool, c, p, e in found:
        cells, mean = by_cells(c, p, relative @ e)
        size = float(c.variance) * pool.size
        if c.envelope:
            size *= float(np.square(x[:, c.envelope].prod(1)).mean())
        parts.append(Tilted(c, size, mean * float(c.variance), cells))
    tilt(parts, given, float(variance.mean()) <= PINNED * sum(p.size for p in parts), asked.num_bases)
    sizes = _shared(pools, given)
    return [size / sum(sizes) for size in sizes]


def _shared(pools: Sequence[Pool], given: bool) -> list[float]:
    """Make shares of all draws ones of a pool's draws; the pools' own shares are returned."""
    count = sum(len({c.envelope for c in pool.parts}) for pool in pools)
    sizes = []
    for pool in pools:
        if pool.degree > 0 and not given:  # far from data a monomial may be most of the variance
            for envelope in {c.envelope for c in pool.parts}:
                own = [c for c in pool.parts if c.envelope == envelope]
                share, variance = sum(c.share for c in own), sum(float(c.variance) for c in own)
                for c in own:
                    c.share = max(share, 1 / count) * (c.share / share + float(c.variance) / variance) / 2
        sizes.append(sum(c.share for c in pool.parts))
        for c in pool.parts:
            c.share /= sizes[-1]
    return sizes


def _bases(pool: list[Component], count: int, num_bases: int, generator: torch.Generator) -> list[Owned]:
    """`count` features of a pool, as pairs, with one single cosine where the count is odd."""
    bases, pool, count = _certain(pool, count, num_bases)
    if not pool:
        return bases
    singles = count % 2
    pairs = (count - singles) // 2
    pool, at = positions_for(pool, pairs + singles, num_bases, generator)
    theta, weight = draw(pool, at)
    theta, amplitude = (t.unflatten(0, (num_bases, -1)) for t in (theta, (2 / count * weight).sqrt()))
    columns = torch.tensor([c.envelope for c in pool], dtype=torch.long)[at.component].unflatten(0, (num_bases, -1))
    if singles:  # any of the draws is the single one: they are not alike
        start = (rand((num_bases, 1), generator).cpu() * (pairs + 1)).long()
        order = (start + torch.arange(pairs + 1)) % (pairs + 1)  # [g, pairs + 1]
        theta, columns = (t.take_along_dim(order[..., None], 1) for t in (theta, columns))
        amplitude = amplitude.take_along_dim(order, 1)
    if pairs:
        bases.append((Pairs(theta[:, :pairs], amplitude[:, :pairs]), columns[:, :pairs]))
    if singles:
        tau = 2 * math.pi * rand((num_bases, singles), generator).cpu()
        bases.append((Cosines(theta[:, pairs:], tau, amplitude[:, pairs:]), columns[:, pairs:]))
    return bases


def _certain(pool: list[Component], count: int, num_bases: int) -> tuple[list[Owned], list[Component], int]:
    """Atoms that would be drawn once or more are taken exactly; the rest of the pool; and the features left for it."""
    discrete = [c for c in pool if len(c.factors) == 1 and isinstance(c.factors[0], Atoms)]
    if not discrete:
        return [], pool, count
    probability = torch.cat([c.share * c.proposal[0] for c in discrete])
    taken, left, rest = torch.zeros_like(probability, dtype=torch.bool), 1.0, count / 2
    while rest > 0 and bool((more := ~taken & (probability * rest >= left * (1 - 1e-9))).any()):
        taken = taken | more
        rest, left = count / 2 - int(taken.sum()), float(1 - probability[taken].sum())
    if rest <= 0 and not bool(taken.all()):  # something must be left for what is left
        taken[probability.argmin()] = False
        rest = 1.0
    if not bool(taken.any()):
        return [], pool, count
    sizes, remaining = [len(c.proposal[0]) for c in discrete], [c for c in pool if c not in discrete]
    theta, power, columns = [], [], []
    for c, own in zip(discrete, taken.split(sizes), strict=True):
        (factor,) = c.factors
        assert isinstance(factor, Atoms)
        theta.append(factor.theta[own])
        power.append(c.variance * factor.mass[own])
        columns += [c.envelope] * int(own.sum())
        if not bool(own.all()):
            q = c.proposal[0].masked_fill(own, 0.0)
            remaining.append(replace(c, proposal=[q / q.sum()], share=c.share * float(q.sum())))
    frequencies = torch.cat(theta).expand(num_bases, -1, -1)
    whole = sum(c.share for c in remaining)
    remaining = [replace(c, share=c.share / whole) for c in remaining]
    basis = Pairs(frequencies, torch.cat(power).sqrt()[None])
    taken_columns = torch.tensor(columns, dtype=torch.long).expand(num_bases, -1, -1)
    return [(basis, taken_columns)], remaining, max(1, count - 2 * len(columns))
