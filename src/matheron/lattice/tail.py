"""What a prior in two or three dimensions has beyond the modes of its lattice: random frequencies of its spectrum.

Of a rough kernel the modes that memory allows leave out a share of the variance that functions need over short
distances: with 1023 x 1023 modes alone, Matern-1/2 has .6 to .8 of its variogram at a thousandth of the box, and with
101^3 modes a twentieth. The rest of the spectral measure S, outside the box B of the modes, is sampled:

    k(r) - k_lattice(r)  =  int_{theta not in B} S(theta) cos(theta . r)  ~  sum_i (w_i / N) cos(theta_i . r)

with theta_1 .. theta_N a Sobol net of draws from S, of which those outside B are kept, and weights w_i = 1. Few draws
of a smooth kernel fall there. Where S is elliptical, radii are therefore drawn beyond the largest ball inside B alone:
half of them by S, and half evenly along its octaves, since functions close to data depend on octaves that have little
of the mass. Weights are then importance weights, the mass of a radius over its probability.

No data are solved for on these frequencies. They are noise of data that are given on the lattice, which each path
knows of itself; data that are more precise than this are given exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.modes import Sobol
from ..evaluate.bases import Pairs
from ..features.choose import merged
from ..features.features import BEYOND, Coupled, sobol
from ..kernels.base import Term
from ..kernels.composed_measures import Moved
from ..kernels.radial import Elliptical
from ..models.observations import Observations
from ..paths.prior import PriorPaths
from ..paths.update import Update
from .basis import Lattice


def sampled_tail(
    terms: Sequence[Term],
    lattice: Lattice,
    input_dim: int,
    count: int,
    num_bases: int,
    generator: torch.Generator,
    most: int = 1 << 16,
) -> list[Coupled]:
    """About `count` features, `num_bases` times over, of what some terms have beyond the modes of their lattice: those
    of `most` draws from their spectra, at the most, that fall there.

    Terms share them by the variance that they have there. Where bases have unequal numbers of frequencies outside the
    box, the amplitudes of the others are zero.
    """
    tails = [_Tail(term, lattice, input_dim) for term in terms]
    total = sum(tail.variance for tail in tails)
    parts = []
    for tail in tails if total > 0 else ():
        pairs = max(1, round(count / 2 * tail.variance / total))
        N = min(most, math.ceil(pairs / tail.share))
        theta, weight = tail.draw(sobol(num_bases, N, tail.num_uniforms, generator).to(tail.term.variance.device))
        far = tail.is_outside(theta)  # [g, N]
        order = torch.argsort(far.double(), dim=1, descending=True, stable=True)[:, : int(far.sum(1).max())]
        a = (tail.term.variance * weight / N).sqrt() * far  # [g, N]
        theta = theta.take_along_dim(order[..., None], 1)
        parts.append(Coupled(Pairs(theta, a.take_along_dim(order, 1)), tail.term.coupling, BEYOND))
    return merged([part for part in parts if part.basis.size])


class _Tail:
    """A term's spectral measure outside the box of its lattice's modes.

    `share` of the draws fall there, which have `variance` in all.
    """

    _trial = 1024  # draws that say how many fall outside the box
    # Radii between which the law of a radius is interpolated, over this many e-foldings: of Matern-1/2, 1e-8 lies
    # beyond.
    _radii, _decay = 4096, 18.0
    # The octaves that radii lie evenly along end where this share of the spectrum is left
    # (tests/features/test_leverage.py, laws a thousandth of the box from data).
    _least = 1e-8

    def __init__(self, term: Term, lattice: Lattice, input_dim: int) -> None:
        self.term, self.measure = term, term.measure(input_dim)
        # half a step beyond the highest frequency of each coordinate
        self.edge = torch.full((input_dim,), math.inf, dtype=torch.float64, device="cpu")
        shape = torch.tensor(lattice.shape, dtype=torch.float64, device="cpu")
        self.edge[lattice.dims] = shape * math.pi / lattice.period.double().cpu()
        inner, maps = self.measure, []
        while isinstance(inner, Moved):
            maps.append(inner.moved)
            inner = inner.measure
        self.radial = inner if isinstance(inner, Elliptical) and getattr(inner, "shift", None) is None else None
        self.maps, self.num_uniforms = maps[::-1], self.measure.num_uniforms
        with torch.no_grad():
            if self.radial is not None:
                self._tabulate(self.radial)
            U = Sobol(max(1, self.num_uniforms), seed=0).next(self._trial)
            theta, weights = self.draw(U[:, : self.num_uniforms])
        outside = self.is_outside(theta).double()
        self.share = max(float(outside.mean()), 1 / self._trial)
        size = 1.0 if term.coupling is None else float(term.coupling.detach().diagonal().mean())
        self.variance = size * float(term.variance.detach()) * float((outside * weights).mean())

    def _tabulate(self, radial: Elliptical) -> None:
        """The law of the radius |z| beyond the largest ball inside the box, theta being a linear map of z."""
        p = self.num_uniforms = radial.input_dim
        self.num_uniforms += 1
        largest = self._moved(radial.scale.diag()).norm(dim=0)  # of each coordinate, over |z| = 1
        inside = float((self.edge / largest.clamp_min(1e-300)).min())
        log_r = math.log(inside) + torch.linspace(0, self._decay, self._radii, dtype=torch.float64, device="cpu")
        surface = 2 * math.pi ** (p / 2) / math.gamma(p / 2)
        density = surface * torch.exp(radial.log_radial((2 * log_r).exp()) + p * log_r)  # of log r
        cells = 0.5 * (density[1:] + density[:-1]) * (self._decay / (self._radii - 1))
        beyond = cells.flip(0).cumsum(0).flip(0)  # decreasing, the mass from a cell on
        even = (beyond > self._least).double()
        q = 0.5 * cells / beyond[0].clamp_min(1e-300) + 0.5 * even / even.sum().clamp_min(1.0)
        q /= q.sum().clamp_min(1e-300)
        self.log_r, self.below = log_r, torch.nn.functional.pad(q.cumsum(0), (1, 0))
        self.weights = cells / q.clamp_min(1e-300)

    def _moved(self, theta: Tensor) -> Tensor:
        for moved in self.maps:
            theta = moved(theta)
        return theta

    def draw(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Frequencies `[..., d]` from uniforms `[..., num_uniforms]`, and their weights `[...]`."""
        if self.radial is None:
            importance = self.measure.importance(U)
            return self.measure.frequencies(U), torch.ones_like(
                U[..., :1].sum(-1)
            ) if importance is None else importance
        z = torch.nn.functional.normalize(torch.special.ndtri(U[..., :-1]), dim=-1)
        u = U[..., -1].contiguous()
        cell = torch.searchsorted(self.below, u).clamp(1, self._radii - 1)
        low, high = self.below[cell - 1], self.below[cell]
        t = ((u - low) / (high - low).clamp_min(1e-300)).clamp(0, 1)
        r = torch.lerp(self.log_r[cell - 1], self.log_r[cell], t).exp()
        theta = self._moved(self.radial.scale.detach() * z * r[..., None]).detach()
        # The places are fixed: the weights carry the derivatives in the hyperparameters.
        log_density = self.measure.log_density(theta) if torch.is_grad_enabled() else None
        ratio = torch.ones_like(r) if log_density is None else (log_density - log_density.detach()).exp()
        return theta, self.weights[cell - 1] * ratio

    def is_outside(self, theta: Tensor) -> Tensor:
        """Whether a coordinate of frequencies `[..., d]` is beyond the modes, `[...]`."""
        return (theta.detach().abs() > self.edge).any(-1)


# Data given on the lattice of a prior that has a tail.


def split_tail(prior: PriorPaths) -> tuple[PriorPaths, PriorPaths | None]:
    """A prior without its random frequencies beyond the modes of lattices, and these alone; None if there are none."""
    blocks = list(prior.features.blocks)
    if all(block.role != BEYOND for block in blocks):
        return prior, None

    def some(beyond: bool) -> PriorPaths:
        chosen = [i for i, block in enumerate(blocks) if (block.role == BEYOND) == beyond]
        parts = prior.w.split([block.basis.size for block in blocks], dim=2)
        own = prior.features.with_blocks([blocks[i] for i in chosen])
        w = torch.cat([parts[i] for i in chosen], dim=2)
        return PriorPaths(own, w, prior.basis_index.clamp_max(own.num_bases - 1))

    return some(False), some(True)


def with_tail(prior: PriorPaths, on_lattice: Tensor) -> Tensor:
    """The weights of a prior with these of its lattices, and of what is exact beside them."""
    blocks = list(prior.features.blocks)
    own = iter(on_lattice.split([block.basis.size for block in blocks if block.role != BEYOND], dim=2))
    parts = prior.w.split([block.basis.size for block in blocks], dim=2)
    return torch.cat([w if b.role == BEYOND else next(own) for w, b in zip(parts, blocks, strict=True)], dim=2)


def can_condition_on_lattice(
    prior: PriorPaths, update: Update, new: Observations, largest_share: float = 0.1, largest_factor: int = 4096
) -> bool:
    """Whether the lattice can represent these observations: what it leaves out is small beside their noise.

    Always, of a prior that has nothing there, or where data are so many that their covariance is not to be factored.
    Never, where other data are not on the lattice.
    """
    _, tail = split_tail(prior)
    if tail is None:
        return True
    if update.num_data:
        return False
    X, outputs = new.sites.points, new.sites.outputs
    if len(X) > largest_factor:
        return True
    more = variances_at(tail, X.double() - tail.origin.double(), outputs)
    return bool((more <= largest_share * new.noise.double()).all())


def values_at(tail: PriorPaths, X: Tensor, tasks: Tensor | None) -> Tensor:
    """Functions of a tail at data about its origin, `[s, n]`."""
    f = tail.sums((X + tail.origin).to(tail.w)[None]).double()  # [s, t, n]
    return f[:, 0] if tasks is None else f[:, tasks, torch.arange(len(X), device=X.device)]


def variances_at(tail: PriorPaths, X: Tensor, tasks: Tensor | None, block: int = 1 << 23) -> Tensor:
    """Of a tail at data about its origin, `[n]`: the mean over its bases; so many numbers in memory at a time."""
    features, total = tail.features.to(torch.float64), torch.zeros_like(X[:, 0])
    for basis, root in zip(features.bases, features.roots, strict=True):
        blocks = X.split(max(1, block // (basis.size * basis.num_bases)))
        powers = [(basis.values(x[None]) * basis.scales()[:, None]).square().sum(-1).mean(0) for x in blocks]
        total += torch.cat(powers) * (1.0 if tasks is None or root is None else root.square().sum(1)[tasks])
    return total
