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
from .cells import Atoms, Shells
from .directions import even
from .explicit import as_cosines, monomials
from .features import Asked
from .fourier import rand, sobol
from .products import Products
from .proposal import Component, Draws, Positions, draw, located, num_uniforms, positions
from .reference import Reference, monomial, net
from .tilt import Tilted, tilt

# Data explain most of the variance where the posterior's is no more than this share of it.
PINNED = 0.15
# Pilot frequencies: at least; for each component of a sum; while there are few of them.
NUM_PILOT, PER_COMPONENT, FEWEST_PER_COMPONENT, LARGEST_PILOT = 256, 192, 64, 1024
# From this many dimensions directions are even, and components have positions of their own, if there are so many each.
EVEN_FROM_DIM, FEWEST_EACH = 3, 4
# The pilot's frequencies follow the spectrum as it is and stretched by 1 + 3 / sqrt(d), and lie evenly along its tail.
_STRETCH = 3.0
# Pilots of a single spectrum in units of its scale, by its shape: the same for all lengthscales.
_PILOTS: dict[tuple, Draws] = {}
_MOST_PILOTS = 64


@dataclass
class Pool:
    """Components that share features: those of one coupling B (with a root of it), times one monomial or none."""

    coupling: Tensor | None
    root: Tensor | None
    envelope: Tensor | None  # [p, d + 1], projections of (x, 1) whose product it is
    parts: list[Component]

    def size(self, c: Component, x: Tensor) -> float:
        """A component's mean variance over points and outputs."""
        size = float(c.variance) * (1.0 if self.envelope is None else float(monomial(self.envelope, x).square().mean()))
        return size if self.root is None else size * float(self.root.detach().square().sum()) / len(self.root)


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
    for pool, number in zip(pools, _whole(count, sizes), strict=True):
        if beyond is not None:
            pool.parts = (proposed_without_data if asked.posterior is None else proposed)(pool.parts, beyond)
            number *= times(pool.parts, beyond)
        bases = _bases(pool.parts, number, asked.num_bases, asked.generator)
        if beyond is not None:
            bases = [kept for basis in bases if (kept := outside(basis, beyond)) is not None]
        if pool.envelope is not None and bases:
            cosines = as_cosines(bases)
            A = pool.envelope[None, :, None].expand(asked.num_bases, -1, cosines.size, -1)  # [g, p, c, d + 1]
            bases = [Products(A, A.new_ones(()), asked.origin, cosines)]
        blocks += [(basis, pool.coupling) for basis in bases]
    return blocks


def _pools(terms: Sequence[tuple[Term, list[Component]]], roots: Sequence[Tensor | None]) -> list[Pool]:
    """A term with linear forms is a sum over their monomials, each the envelope of a pool."""
    pools: list[Pool] = []
    for (term, parts), root in zip(terms, roots, strict=True):
        envelopes: list[tuple[Tensor | None, Tensor | float]] = [(None, 1.0)]
        if term.forms:
            A, coefficients = monomials([form.cpu() for form in term.forms])  # [p, e, d + 1], [e]
            envelopes = list(zip(A.unbind(1), coefficients, strict=True))
        for envelope, coefficient in envelopes:
            own = [replace(c, variance=c.variance * coefficient, proposal=list(c.proposal)) for c in parts]
            for pool in pools:
                if pool.coupling is term.coupling and _same(pool.envelope, envelope):
                    pool.parts += own
                    break
            else:
                pools.append(Pool(term.coupling, root, envelope, own))
    return pools


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else a.shape == b.shape and torch.equal(a, b)


def adapt(pools: Sequence[Pool], asked: Asked) -> list[float]:
    """Set every component's proposal and share by a pilot run; the pools' own shares are returned."""
    posterior = asked.posterior
    assert posterior is not None
    # The posterior variance is hardly less than this share of the prior's: there the tail ends.
    total = sum(float(c.variance) for pool in pools for c in pool.parts)
    least = float(posterior.noise.detach().min()) / (len(posterior.centres) * max(total, 1e-300))
    pilots = [_pilot(pool.parts, len(pools), least) for pool in pools]
    theta = torch.cat([p.theta.abs() for p in pilots])
    turns = torch.where(theta > 0, theta, torch.nan).nanmedian(0).values  # [d]; a term may leave a dimension alone
    reference = Reference(posterior, asked.domain, asked.where, 1 / torch.nan_to_num(turns, nan=1.0))
    each = zip(pilots, pools, strict=True)
    squares = [reference.residuals(p.theta, asked.origin, pool.root, pool.envelope) for p, pool in each]
    variance = reference.noise_variance.cpu()  # [r]
    for p, e in zip(pilots, squares, strict=True):
        variance = variance + e @ p.weight / len(p.weight)
    parts, sizes, given = [], [], asked.domain is not None or asked.where is not None
    for pool, p, e in zip(pools, pilots, squares, strict=True):
        lev = (e / variance.clamp_min(1e-300)[:, None]).mean(0)  # [k]
        parts += [_by_cells(c, p, lev, t, pool.size(c, reference.x.cpu())) for t, c in enumerate(pool.parts)]
    pinned = float(variance.mean()) <= PINNED * sum(p.size for p in parts)
    shares = iter(tilt(parts, given, pinned, asked.num_bases))
    for pool in pools:
        own = torch.tensor([next(shares) for _ in pool.parts], dtype=torch.float64)
        sizes.append(float(own.sum()))
        own = own / own.sum()
        if pool.envelope is not None and not given:  # far from data a monomial may be most of the variance
            variance = torch.stack([c.variance.double().cpu() for c in pool.parts])
            own, sizes[-1] = (own + variance / variance.sum()) / 2, max(sizes[-1], 1 / len(pools))
        for c, share in zip(pool.parts, own.tolist(), strict=True):
            c.share = share
    return [size / sum(sizes) for size in sizes]


def _pilot(pool: list[Component], num_pools: int, least: float) -> Draws:
    """Frequencies from every component alike, as far out as leverage may be looking: the same at every draw."""
    least = 10 ** (round(2 * math.log10(max(least, 1e-300))) / 2)  # to half a decade: pilots are kept
    number = min(PER_COMPONENT * len(pool), max(LARGEST_PILOT, FEWEST_PER_COMPONENT * len(pool)))
    number = max(NUM_PILOT, number) if num_pools <= 4 else max(FEWEST_PER_COMPONENT, 4 * number // num_pools)
    first = pool[0].factors[0]
    alone = len(pool) == len(pool[0].factors) == 1
    if not (alone and isinstance(first, Shells) and first.whole and first.key is not None and first.shift is None):
        return _drawn_pilot(pool, number, least)
    key = (first.key, number, least)
    kept = _PILOTS.get(key)  # asked once: another thread may clear them
    if kept is None:
        drawn = _drawn_pilot(pool, number, least)
        kept = replace(drawn, theta=drawn.theta / first.scale, weight=drawn.weight / pool[0].variance)
        if len(_PILOTS) >= _MOST_PILOTS:
            _PILOTS.clear()
        _PILOTS[key] = kept
    return replace(kept, theta=first.scale * kept.theta, weight=pool[0].variance * kept.weight)


def _drawn_pilot(pool: list[Component], number: int, least: float) -> Draws:
    for c in pool:
        d = len(set(c.density_dims or range(c.factors[0].input_dim)))
        stretch = 1 + _STRETCH / math.sqrt(d)
        wide = [(f.masses + f.stretched(stretch) + f.tail(least)) for f in c.factors]
        c.proposal, c.share = [q / q.sum() for q in wide], 1 / len(pool)
    return draw(pool, positions(pool, net(number, num_uniforms(pool))))


def _by_cells(c: Component, pilot: Draws, lev: Tensor, t: int, size: float) -> Tilted:
    """The leverage of a component's cells, from that `[k]` of the pilot's frequencies."""
    own = (pilot.component == t).nonzero()[:, 0]
    lev, mean, cells = lev[own], 1.0, []
    # Over directions a root of the mean square is best; in a product it would count what other factors account for.
    power = 2.0 if len(c.factors) == 1 else 1.0
    for f, factor in enumerate(c.factors):
        others = pilot.log_others[own, f].exp()
        fitted = smooth(factor.index[pilot.cells[own, f]], lev**power, others, factor.index) ** (1 / power)
        if isinstance(factor, Atoms) and len(c.factors) == 1:  # known, for those that were drawn
            fitted = fitted.index_put((pilot.cells[own, f],), lev)
        mean = max(float(factor.masses @ fitted), 1e-300)
        cells.append(fitted / mean)
    return Tilted(c, size, mean * float(c.variance), cells)


def smooth(at: Tensor, values: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """Weighted means of positive values over runs of neighbours, interpolated in logarithms; flat beyond the ends."""
    order = np.argsort(at.numpy(), kind="stable")
    count = max(1, min(24, len(order) // 12))
    first = -(-np.arange(count) * len(order) // count)  # of every run
    x, v, w = (tensor.numpy()[order] for tensor in (at, values, weights))
    middle = np.add.reduceat(x, first) / np.diff(first, append=len(order))
    y = np.add.reduceat(w * v, first) / np.maximum(np.add.reduceat(w, first), 1e-300)
    y = np.log(np.maximum(y, 1e-12 * max(y.max(), 1e-300)))
    return torch.from_numpy(np.exp(np.interp(index.numpy(), middle, y)))


def _bases(pool: list[Component], count: int, num_bases: int, generator: torch.Generator) -> list[Basis]:
    """`count` features of a pool, as pairs, with one single cosine where the count is odd."""
    bases, pool, count = _certain(pool, count, num_bases)
    if not pool:
        return bases
    singles = count % 2
    pairs = (count - singles) // 2
    pool, at = _positions(pool, pairs + singles, num_bases, generator)
    draws = draw(pool, at)
    theta = draws.theta.unflatten(0, (num_bases, -1))
    amplitude = (2 / count * draws.weight).sqrt().unflatten(0, (num_bases, -1))
    if singles:  # any of the draws is the single one: they are not alike
        start = (rand((num_bases, 1), generator).cpu() * (pairs + 1)).long()
        order = (start + torch.arange(pairs + 1)) % (pairs + 1)  # [g, pairs + 1]
        theta, amplitude = theta.take_along_dim(order[..., None], 1), amplitude.take_along_dim(order, 1)
    if pairs:
        bases.append(Pairs(theta[:, :pairs], amplitude[:, :pairs]))
    if singles:
        tau = 2 * math.pi * rand((num_bases, singles), generator).cpu()
        bases.append(Cosines(theta[:, pairs:], tau, amplitude[:, pairs:]))
    return bases


def _positions(
    pool: list[Component], count: int, num_bases: int, generator: torch.Generator
) -> tuple[list[Component], Positions]:
    """Where `count` draws lie, `num_bases` times over; and the pool with the shares that they have of them.

    In few dimensions one net for all components is the most even. In more, each component has positions of its own, as
    many as its share says, with even directions where it has one factor.
    """
    if max(c.num_dims for c in pool) < EVEN_FROM_DIM or count < FEWEST_EACH * len(pool):
        U = sobol(num_bases, count, num_uniforms(pool), generator).cpu()
        return pool, positions(pool, U.flatten(0, 1))
    numbers = _whole(count, [c.share for c in pool]) if len(pool) > 1 else [count]
    pool = [replace(c, share=number / count) for c, number in zip(pool, numbers, strict=True)]
    parts = []
    for c, number in zip(pool, numbers, strict=True):
        first = c.factors[0]
        if len(c.factors) == 1 and isinstance(first, Shells) and first.own_dim >= EVEN_FROM_DIM:
            u, directions = even(num_bases, number, first.own_dim, generator)
            parts.append([(u.flatten(), directions.flatten(0, 1))])
        else:
            parts.append(located(c, sobol(num_bases, number, c.num_uniforms, generator).cpu().flatten(0, 1)))
    component = torch.arange(len(pool)).repeat_interleave(torch.tensor(numbers)).repeat(num_bases)
    return pool, Positions(component, parts)


def _certain(pool: list[Component], count: int, num_bases: int) -> tuple[list[Basis], list[Component], int]:
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
    theta, power = [], []
    for c, own in zip(discrete, taken.split(sizes), strict=True):
        (factor,) = c.factors
        assert isinstance(factor, Atoms)
        theta.append(factor.theta[own])
        power.append(c.variance * factor.mass[own])
        if not bool(own.all()):
            q = c.proposal[0].masked_fill(own, 0.0)
            remaining.append(replace(c, proposal=[q / q.sum()], share=c.share * float(q.sum())))
    frequencies = torch.cat(theta).expand(num_bases, -1, -1)
    whole = sum(c.share for c in remaining)
    remaining = [replace(c, share=c.share / whole) for c in remaining]
    return [Pairs(frequencies, torch.cat(power).sqrt()[None])], remaining, max(1, count - 2 * int(taken.sum()))


def _whole(total: int, sizes: list[float]) -> list[int]:
    """`total` in whole numbers by sizes that sum to one, at least one each."""
    numbers = [max(1, int(total * size)) for size in sizes]
    largest = numbers.index(max(numbers))
    numbers[largest] = max(1, numbers[largest] + total - sum(numbers))
    return numbers
