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

from ...core.modes import as_numpy
from ...evaluate.bases import Basis, Cosines, Pairs, Products
from ...kernels.terms import Term
from ...solvers import FactoredPosterior
from ..explicit import as_cosines, monomials
from ..fourier import rand
from ..spec import FeatureSpec
from .beyond_modes import outside, proposed, times
from .cells import Atoms
from .pilot import Part, by_cells, number_of_each, pilot
from .positions import positions_for, whole_numbers
from .proposal import Component, with_shares
from .reference import Reference, ReferenceWaves
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
    spec: FeatureSpec,
    origin: Tensor,
    posterior: FactoredPosterior | None,
    generator: torch.Generator,
    beyond: Tensor | None = None,
) -> list[tuple[Basis, Tensor | None]]:
    """`count` features for all of the terms together, for each basis asked for, and the coupling of each.

    `roots` are roots of the terms' couplings. Pools share the features by leverage. With `beyond`, `[d]`, only those
    are kept that have a coordinate of their frequency beyond it: the others are on a lattice. There need then be no
    posterior: frequencies are drawn by the spectrum alone.
    """
    pools = _pools(terms, roots)
    sizes = [1 / len(pools)] * len(pools)
    if posterior is not None:
        with torch.no_grad():
            sizes = adapt(pools, spec, origin, posterior)
    numbers = _numbers(count, sizes)
    if beyond is not None:
        for i, pool in enumerate(pools):
            pool.parts = proposed(pool.parts, beyond, posterior is not None)
            numbers[i] *= times(pool.parts, beyond)
    blocks: list[tuple[Basis, Tensor | None]] = []
    for pool, bases in zip(pools, _bases(pools, numbers, spec.num_bases, generator), strict=True):
        if beyond is not None:
            bases = [kept for each in bases if (kept := outside(*each, beyond)) is not None]
        blocks += [(basis, pool.coupling) for basis in _enveloped(bases, pool.degree, origin)]
    return blocks


def _numbers(count: int, sizes: list[float]) -> list[int]:
    """Features of pools: even numbers, if there are enough of them, since frequencies come in pairs."""
    if count < 4 * len(sizes):
        return whole_numbers(count, sizes)
    numbers = [2 * number for number in whole_numbers(count // 2, sizes)]
    return [numbers[0] + count % 2, *numbers[1:]]


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
    one_hot = torch.eye(len(origin) + 1, dtype=torch.float64, device="cpu")
    A = one_hot[torch.cat(columns, dim=1).transpose(1, 2)]  # [g, p, f, d + 1]
    return [Products(A, A.new_ones(()), origin, cosines)]


@dataclass
class _Spectrum:
    """Components of a pool that differ by their monomials alone: they have one pilot."""

    pool: Pool
    parts: list[Component]
    theta: np.ndarray  # [k, d], the pilot
    of_factors: list[Part]
    squares: np.ndarray  # [e, r, k], squared residuals of the pilot times each monomial

    @property
    def variance(self) -> np.ndarray:
        """What is left of the variance of the components, `[r]`, by the pilot."""
        weight = math.prod(part.ratio for part in self.of_factors) / len(self.theta)  # [k], S / q of variance one
        return np.array([float(c.variance) for c in self.parts]) @ (self.squares @ weight)


def adapt(pools: Sequence[Pool], spec: FeatureSpec, origin: Tensor, posterior: FactoredPosterior) -> list[float]:
    """Set every component's proposal and share by a pilot run; the pools' own shares are returned."""
    spectra = _spectra(pools, posterior)
    theta = torch.from_numpy(np.concatenate([np.abs(own.theta) for own in spectra]))
    turns = torch.where(theta > 0, theta, torch.nan).nanmedian(0).values  # [d]; a term may leave a dimension alone
    reference = Reference(posterior, spec.domain, spec.where, 1 / torch.nan_to_num(turns, nan=1.0))
    _set_residuals(spectra, reference, origin)
    variance = as_numpy(reference.noise_variance)  # [r]
    for own in spectra:
        variance = variance + own.variance
    relative = 1 / (np.maximum(variance, 1e-300) * len(variance))
    alike: dict[tuple, list[_Spectrum]] = {}  # of one shape, and with the same pilot in units of the scale
    for own in spectra:
        alike.setdefault(tuple(map(id, own.of_factors)), []).append(own)
    parts, mean_squares = [], _mean_squares(pools, as_numpy(reference.x))
    for group in alike.values():
        lev = np.concatenate([relative @ own.squares for own in group])  # [m, k]
        cells, means = by_cells(group[0].parts[0].factors, group[0].of_factors, lev)
        components = [(own.pool, c) for own in group for c in own.parts]
        for (pool, c), mean, *of in zip(components, means.tolist(), *cells, strict=True):
            size = float(c.variance) * pool.size * mean_squares[c.envelope]
            parts.append(Tilted(c, size, mean * float(c.variance), of))
    given = spec.domain is not None or spec.where is not None
    tilt(parts, given, float(variance.mean()) <= PINNED * sum(p.size for p in parts), spec.num_bases)
    sizes = _shared(pools, given)
    return [size / sum(sizes) for size in sizes]


def _spectra(pools: Sequence[Pool], posterior: FactoredPosterior) -> list[_Spectrum]:
    # The posterior variance is hardly less than this share of the prior's: there the tail ends.
    total = sum(float(c.variance) for pool in pools for c in pool.parts)
    least = float(posterior.noise.detach().min()) / (len(posterior.sites.points) * max(total, 1e-300))
    found: dict[int, tuple[Pool, list[Component]]] = {}
    for pool in pools:
        for c in pool.parts:
            found.setdefault(id(c.factors), (pool, []))[1].append(c)
    spectra = []
    for pool, own in found.values():
        # All of a kernel alone with a coupling have as many as without.
        columns = 1 if pool.root is None or len(found) == len(own) == 1 else len(pool.root)
        count = number_of_each(len(found), len(own) * columns)
        spectra.append(_Spectrum(pool, own, *pilot(own[0], count, least), np.empty(0)))
    return spectra


def _set_residuals(spectra: list[_Spectrum], reference: Reference, origin: Tensor) -> None:
    alike: dict[tuple, list[_Spectrum]] = {}  # of one pool, with the same monomials
    for own in spectra:
        alike.setdefault((id(own.pool), *(c.envelope for c in own.parts)), []).append(own)
    waves = [
        ReferenceWaves(np.concatenate([s.theta for s in own]), own[0].pool.root, [c.envelope for c in own[0].parts])
        for own in alike.values()
    ]
    for group, squares in zip(alike.values(), reference.residuals(waves, origin), strict=True):
        last = 0
        for own in group:
            first, last = last, last + len(own.theta)
            own.squares = squares[:, :, first:last]


def _mean_squares(pools: Sequence[Pool], x: np.ndarray) -> dict[tuple[int, ...], float]:
    """Of every monomial over points `[r, d]`."""
    x, found = np.concatenate([x, np.ones((len(x), 1))], axis=1), {}  # (x, 1)
    for pool in pools:
        columns = list({c.envelope for c in pool.parts})
        values = x[:, np.array(columns, dtype=int)].prod(-1)  # [r, e]
        found |= dict(zip(columns, np.square(values).mean(0).tolist(), strict=True))
    return found


def _shared(pools: Sequence[Pool], given: bool) -> list[float]:
    """Make shares of all draws ones of a pool's draws; the pools' own shares are returned."""
    monomials: dict[tuple, list[Component]] = {}
    for i, pool in enumerate(pools):
        for c in pool.parts:
            monomials.setdefault((i, c.envelope), []).append(c)
    for (_, envelope), own in monomials.items():
        if envelope and not given:  # far from data a monomial may be most of the variance
            share, variance = sum(c.share for c in own), sum(float(c.variance) for c in own)
            for c in own:
                c.share = max(share, 1 / len(monomials)) * (c.share / share + float(c.variance) / variance) / 2
    sizes = [sum(c.share for c in pool.parts) for pool in pools]
    for pool in pools:
        pool.parts = with_shares(pool.parts)
    return sizes


def _bases(pools: Sequence[Pool], counts: list[int], num_bases: int, generator: torch.Generator) -> list[list[Owned]]:
    """Some features of each pool, as pairs, with one single cosine where their count is odd."""
    found, rest = [], []
    for pool, count in zip(pools, counts, strict=True):
        bases, parts, left = _certain(pool.parts, count, num_bases)
        found.append(bases)
        if parts:
            rest.append((bases, left, *positions_for(parts, -(-left // 2), num_bases, generator)))
    if not rest:
        return found
    theta, weight = draw([parts for _, _, parts, _ in rest], [at for *_, at in rest])
    for (bases, count, parts, at), own, power in zip(rest, theta, weight, strict=True):
        columns = at.component.new_empty(*own.shape[:2], 0)
        if parts[0].envelope:
            columns = torch.tensor([c.envelope for c in parts], device="cpu")[at.component]
        amplitude = (2 / count * power).sqrt()
        pairs = count // 2
        if count % 2:  # any of the draws is the single one: they are not alike
            start = (rand((num_bases, 1), generator).cpu() * (pairs + 1)).long()
            order = (start + torch.arange(pairs + 1, device="cpu")) % (pairs + 1)  # [g, pairs + 1]
            own, columns = (t.take_along_dim(order[..., None], 1) for t in (own, columns))
            amplitude = amplitude.take_along_dim(order, 1)
        if pairs:
            bases.append((Pairs(own[:, :pairs], amplitude[:, :pairs]), columns[:, :pairs]))
        if count % 2:
            tau = 2 * math.pi * rand((num_bases, 1), generator).cpu()
            bases.append((Cosines(own[:, pairs:], tau, amplitude[:, pairs:]), columns[:, pairs:]))
    return found


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
        taken[probability.masked_fill(~taken, math.inf).argmin()] = False
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
    basis = Pairs(torch.cat(theta).expand(num_bases, -1, -1), torch.cat(power).sqrt()[None])
    taken_columns = torch.tensor(columns, dtype=torch.long, device="cpu").expand(num_bases, -1, -1)
    return [(basis, taken_columns)], with_shares(remaining), max(1, count - 2 * len(columns))
