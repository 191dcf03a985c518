"""Frequencies chosen where the posterior lives: importance sampling by posterior leverage.

The residual of a frequency after the data is r_theta(x) = e^{i theta.x} - k(x, X) (K + noise)^-1 e^{i theta.X}, and the
posterior covariance is the integral of S(theta) r_theta(x) conj r_theta(x') plus what is due to the noise. Frequencies
from S are spent where |r_theta| is nearly zero, since data have pinned the smooth and heavy part of the spectrum.
Here they are drawn from

    q(theta)  ~  S(theta) ((1 - a) lev(theta) + a),        lev(theta) = mean over x of |r_theta(x)|^2 / Var f(x),

with amplitudes sqrt(S / q): the kernel stays unbiased, and errors fall where the posterior's variance is. Residuals
are computed for one pilot set of frequencies; lev is a smooth function of the radius (of each factor of each term)
fitted to them, so that fresh bases cost no more than plain ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..kernels import coupled_covariance
from ..kernels.terms import Term
from ..solvers import CholeskyState, Posterior
from .basis import Basis, Cosines, Pairs
from .fourier import rand, sobol
from .proposal import Atoms, Component, Draws, draw

# The share of the draws that follow the spectrum itself: it bounds S / q, so nothing is much worse than plain features.
PLAIN_SHARE = 0.25
# Pilot frequencies and reference points. Data beyond the largest count are thinned out for the pilot.
NUM_PILOT, NUM_REFERENCE, LARGEST_DATA = 256, 64, 1024
# Pilot frequencies for each component of a sum: as many, while there are few of them.
PER_COMPONENT, FEWEST_PER_COMPONENT, LARGEST_PILOT = 192, 64, 1024
# The pilot's frequencies follow the spectrum as it is, and stretched by these: 1 + 3 / sqrt(d), and its square.
_STRETCH = 3.0


class Reference:
    """Points where the posterior matters, and the weights G = (K + noise)^-1 k(X, x) of the data there."""

    def __init__(self, posterior: Posterior, domain: Tensor | None, where: Tensor | None, lengths: Tensor) -> None:
        kernel, X, tasks, noise = posterior.kernel, posterior.centres, posterior.tasks, posterior.noise
        X, noise = X.detach().double(), noise.detach().double()
        self.x = reference_points(X.cpu(), domain, where, lengths).to(X.device)
        t = kernel.num_outputs
        self.tasks = None if t == 1 else torch.arange(len(self.x), device=X.device) % t
        state, exact = posterior.state, posterior.centres.dtype == torch.float64
        if not (exact and isinstance(state, CholeskyState)):  # a factor of our own, of as many data as it may cost
            kept = _spread(len(X), LARGEST_DATA).to(X.device)
            X, noise, tasks = X[kept], noise[kept], None if tasks is None else tasks[kept]
            state = None
        kernel = kernel.to(X.device, torch.float64)
        K_Xx = coupled_covariance(kernel, X, tasks, self.x, self.tasks)  # [n, r]
        if state is None:
            K = coupled_covariance(kernel, X, tasks, X, tasks).clone()
            scale = K.diagonal().mean()
            K.diagonal().add_(noise + 1e-10 * scale)
            self.G = torch.cholesky_solve(K_Xx, torch.linalg.cholesky(K))
        else:
            self.G = posterior.solve(K_Xx)
            noise = noise + state.jitter
        self.X, self.X_tasks = X, tasks
        self.noise_variance = noise @ self.G.square()  # [r]

    def residuals(self, theta: Tensor, origin: Tensor, root: Tensor | None) -> Tensor:
        """|r_theta(x)|^2 `[r, k]` of frequencies `[k, d]`; for several outputs summed over the columns of B's root."""
        device = self.X.device
        theta, origin = theta.to(device), origin.to(self.X)
        P_x, P_X = (self.x - origin) @ theta.mT, (self.X - origin) @ theta.mT  # [r, k], [n, k]
        waves_x, waves_X = torch.cat([P_x.cos(), P_x.sin()], 1), torch.cat([P_X.cos(), P_X.sin()], 1)
        if self.tasks is None:
            squares = (waves_x - self.G.mT @ waves_X).square()
        else:
            root = torch.ones(int(self.tasks.max()) + 1, 1) if root is None else root.detach()
            squares = torch.zeros_like(waves_x)
            for column in root.to(waves_x).mT:
                at_x, at_X = column[self.tasks, None], column[self.X_tasks, None]
                squares += (at_x * waves_x - self.G.mT @ (at_X * waves_X)).square()
        cos, sin = squares.chunk(2, dim=1)
        return (cos + sin).cpu()


def leverage(
    terms: Sequence[tuple[Term, list[Component]]],
    count: int,
    *,
    posterior: Posterior,
    roots: Sequence[Tensor | None],
    num_bases: int,
    origin: Tensor,
    domain: Tensor | None,
    where: Tensor | None,
    generator: torch.Generator,
) -> list[tuple[Basis, Tensor | None]]:
    """`count` features for all of the terms together, `num_bases` times over, and the coupling of each basis.

    `roots` are roots of the terms' couplings. Terms of one coupling share a pool; pools share the features by leverage.
    """
    pools: list[tuple[Tensor | None, Tensor | None, list[Component]]] = []
    for (term, parts), root in zip(terms, roots, strict=True):
        for B, _, pool in pools:
            if B is term.coupling:
                pool += parts
                break
        else:
            pools.append((term.coupling, root, list(parts)))
    with torch.no_grad():
        sizes = adapt([pool for _, _, pool in pools], [root for _, root, _ in pools], posterior, origin, domain, where)
    numbers = _whole(count, sizes)
    blocks: list[tuple[Basis, Tensor | None]] = []
    for (B, _, pool), number in zip(pools, numbers, strict=True):
        blocks += [(basis, B) for basis in _bases(pool, number, num_bases, generator)]
    return blocks


def adapt(
    pools: Sequence[list[Component]],
    roots: Sequence[Tensor | None],
    posterior: Posterior,
    origin: Tensor,
    domain: Tensor | None,
    where: Tensor | None,
) -> list[float]:
    """Set every component's proposal and share by a pilot run; the pools' own shares are returned."""
    pilots = [_pilot(pool) for pool in pools]
    theta = torch.cat([p.theta.abs() for p in pilots])
    turns = torch.where(theta > 0, theta, torch.nan).nanmedian(0).values  # [d]; a term may leave a dimension alone
    reference = Reference(posterior, domain, where, 1 / torch.nan_to_num(turns, nan=1.0))
    squares = [reference.residuals(p.theta, origin, root) for p, root in zip(pilots, roots, strict=True)]
    variance = reference.noise_variance.cpu()  # [r]
    for p, e in zip(pilots, squares, strict=True):
        variance = variance + e @ p.weight / len(p.weight)
    plain = [[float(c.variance) * _trace(root) for c in pool] for pool, root in zip(pools, roots, strict=True)]
    total, sizes = sum(map(sum, plain)), []
    masses = []
    for pool, p, e in zip(pools, pilots, squares, strict=True):
        lev = (e / variance.clamp_min(1e-300)[:, None]).mean(0)  # [k]
        masses.append([_adapt_component(c, p, lev, t) for t, c in enumerate(pool)])
    all_masses = sum(map(sum, masses))
    for pool, own, prior in zip(pools, masses, plain, strict=True):
        shares = [(1 - PLAIN_SHARE) * m / all_masses + PLAIN_SHARE * v / total for m, v in zip(own, prior, strict=True)]
        sizes.append(sum(shares))
        for c, share in zip(pool, shares, strict=True):
            c.share = share / sizes[-1]
    return sizes


def _pilot(pool: list[Component]) -> Draws:
    """Frequencies from every component alike, as far out as leverage may be looking: the same at every draw."""
    for c in pool:
        d = len(set(c.density_dims or range(c.factors[0].input_dim)))
        stretch = 1 + _STRETCH / math.sqrt(d)
        wide = [(f.masses + f.stretched(stretch) + f.stretched(stretch**2)) for f in c.factors]
        c.proposal, c.share = [q / q.sum() for q in wide], 1 / len(pool)
    number = min(PER_COMPONENT * len(pool), max(LARGEST_PILOT, FEWEST_PER_COMPONENT * len(pool)))
    number = max(NUM_PILOT, number)
    return draw(pool, _net(number, max(c.num_uniforms for c in pool)))


def _adapt_component(c: Component, pilot: Draws, lev: Tensor, t: int) -> float:
    """Set a component's proposal from the leverage `[k]` of the pilot's frequencies; its mass, E S lev, is returned."""
    own = (pilot.component == t).nonzero()[:, 0]
    lev, mass = lev[own], 1.0
    for f, factor in enumerate(c.factors):
        others = pilot.log_others[own, f].exp()
        fitted = smooth(factor.index[pilot.cells[own, f]], lev, others, factor.index)
        if isinstance(factor, Atoms) and len(c.factors) == 1:  # known, for those that were drawn
            fitted = fitted.index_put((pilot.cells[own, f],), lev)
        weighted = factor.masses * fitted
        mass = float(weighted.sum())
        c.proposal[f] = PLAIN_SHARE * factor.masses + (1 - PLAIN_SHARE) * weighted / mass
    return mass * float(c.variance)


def smooth(at: Tensor, values: Tensor, weights: Tensor, index: Tensor) -> Tensor:
    """Weighted means of positive values over runs of neighbours, interpolated in logarithms; flat beyond the ends."""
    order = at.argsort(stable=True)
    count = max(1, min(24, len(at) // 12))
    run = torch.arange(len(at)) * count // max(1, len(at))  # of the i-th in order

    def sums(v: Tensor) -> Tensor:
        return torch.zeros(count, dtype=v.dtype).index_add(0, run, v[order])

    x = sums(at) / sums(torch.ones_like(at)).clamp_min(1.0)
    y = sums(weights * values) / sums(weights).clamp_min(1e-300)
    y = y.clamp_min(1e-12 * float(y.max().clamp_min(1e-300))).log()
    if len(x) == 1:
        return y.exp().expand(len(index))
    i = torch.searchsorted(x, index).clamp(1, len(x) - 1)
    along = ((index - x[i - 1]) / (x[i] - x[i - 1]).clamp_min(1e-300)).clamp(0, 1)
    return torch.lerp(y[i - 1], y[i], along).exp()


def _bases(pool: list[Component], count: int, num_bases: int, generator: torch.Generator) -> list[Basis]:
    """`count` features of a pool, as pairs, with one single cosine where the count is odd."""
    bases, pool, count = _certain(pool, count, num_bases)
    if not pool:
        return bases
    singles = count % 2
    pairs = (count - singles) // 2
    U = sobol(num_bases, pairs + singles, max(c.num_uniforms for c in pool), generator).cpu()
    draws = draw(pool, U.flatten(0, 1))
    theta = draws.theta.unflatten(0, U.shape[:2])
    amplitude = (2 / count * draws.weight).sqrt().unflatten(0, U.shape[:2])
    if pairs:
        bases.append(Pairs(theta[:, :pairs], amplitude[:, :pairs]))
    if singles:
        tau = 2 * math.pi * rand((num_bases, singles), generator).cpu()
        bases.append(Cosines(theta[:, pairs:], tau, amplitude[:, pairs:]))
    return bases


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


def reference_points(X: Tensor, domain: Tensor | None, where: Tensor | None, lengths: Tensor) -> Tensor:
    """Points `[r, d]` that stand for where paths will be called: the same at every draw.

    Those that were named (`where`, or in `domain`); else half in the data's box widened by 40%, half between neighbours
    among the data, which finds clusters.
    """
    n, d = X.shape
    if where is not None and len(where):
        return where[_spread(len(where), NUM_REFERENCE)]
    near = NUM_REFERENCE // (4 if domain is not None else 2)
    net = _net(NUM_REFERENCE, d)
    if domain is None:
        low, high = X.amin(0), X.amax(0)
        middle, half = (low + high) / 2, torch.where(high > low, 0.7 * (high - low), lengths)
        domain = torch.stack([middle - half, middle + half])
    inside = domain[0] + (domain[1] - domain[0]) * net[near:]
    some = X[_spread(n, near)]
    some = some[torch.arange(near) % len(some)]
    if n == 1:
        return torch.cat([inside, some + lengths * (2 * net[:near] - 1)])
    low, high = domain
    distance = torch.cdist(some / (high - low), X / (high - low))  # [near, n]
    neighbours = distance.topk(min(n, 2 * d + 1), largest=False).indices
    which = 1 + torch.arange(near) % (neighbours.shape[1] - 1)
    other = X[neighbours[torch.arange(near), which]]
    return torch.cat([inside, some + (0.2 + 0.6 * net[:near, :1]) * (other - some)])


def _spread(n: int, count: int) -> Tensor:
    """Indices of at most `count` out of n, spread evenly."""
    return torch.arange(min(n, count)) * n // min(n, count)


@lru_cache(maxsize=32)
def _net(count: int, dims: int) -> Tensor:
    """A Sobol net `[count, dims]` that is always the same, off the corners."""
    net = SobolEngine(dims, scramble=True, seed=0).draw(count, dtype=torch.float64)
    return net.clamp_(2**-30, 1 - 2**-30)


def _trace(root: Tensor | None) -> float:
    return 1.0 if root is None else float(root.detach().square().sum()) / len(root)


def _whole(total: int, sizes: list[float]) -> list[int]:
    """`total` in whole numbers by sizes that sum to one, at least one each."""
    numbers = [max(1, int(total * size)) for size in sizes]
    largest = numbers.index(max(numbers))
    numbers[largest] = max(1, numbers[largest] + total - sum(numbers))
    return numbers
