"""Where the posterior matters: reference points, and the posterior variance of a frequency there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.arena import arena, empty, frame
from ...core.modes import Sobol, is_wrapped, kept, outside, plain
from ...core.sites import Sites
from ...kernels import coupled_covariance
from ...solvers import CholeskyState, FactoredPosterior, covariance
from ...solvers.cholesky import solved

# Reference points. Where the factor of all data would cost too much, or is not at hand, this many data must do.
NUM_REFERENCE, LARGEST_WHOLE, LARGEST_DATA = 64, 4000, 1024
# The closest that reference points lie to a datum, in halves of the distance to its neighbour.
_CLOSEST = 1 / 3000
# Monomials whose products with the waves are multiplied with the data's weights at once.
_SEVERAL = 8


class ReferenceWaves(NamedTuple):
    """Frequencies `[k, d]`; the root of their coupling B; monomials of one degree, each as coordinates of (x, 1)."""

    theta: np.ndarray
    root: Tensor | None
    monomials: list[tuple[int, ...]]


class Reference:
    """Points where the posterior matters, and the weights G = (K + noise)^-1 k(X, x) of the data there."""

    @outside()  # where frequencies lie is not differentiated
    def __init__(
        self, posterior: FactoredPosterior, domain: Tensor | None, where: Tensor | None, lengths: Tensor
    ) -> None:
        kernel, tasks, lengths = posterior.kernel, plain(posterior.sites.outputs), plain(lengths)
        kernel = kernel.mapped(plain) if any(map(is_wrapped, kernel.buffers())) else kernel
        X, noise = plain(posterior.sites.points).double(), plain(posterior.noise).double()
        self.x = reference_points(X.cpu(), plain(domain), plain(where), lengths).to(X.device)
        outputs = None if tasks is None else kernel.num_outputs
        self.tasks = None if outputs is None else torch.arange(len(self.x), device=X.device) % outputs
        state = posterior.state if isinstance(posterior.state, CholeskyState) else None
        # A factor in float32 has digits enough, unless a graph is kept: then it is not asked.
        exact = state is not None and (state.L.dtype == torch.float64 or not state.L.requires_grad)
        if not exact or len(X) > LARGEST_WHOLE:
            kept = _nearest(X / lengths.to(X), self.x / lengths.to(X))  # and a factor of our own
            X, noise, tasks = X[kept], noise[kept], None if tasks is None else tasks[kept]
            state = None
        if posterior.sites.points.dtype != torch.float64:
            kernel = kernel.to(X.device, torch.float64)
        K_Xx = coupled_covariance(kernel, Sites(X, tasks), Sites(self.x, self.tasks))  # [n, r]
        if state is None:
            K = covariance(kernel, Sites(X, tasks))
            scale = K.diagonal().mean()
            K.diagonal().add_(noise + 1e-10 * scale)
            self.G = torch.cholesky_solve(K_Xx, torch.linalg.cholesky(K))
        else:
            L = plain(state.L)
            self.G = solved(L, K_Xx.to(L))
            noise = noise + state.jitter
        self.X, self.X_tasks = X, tasks
        self.noise_variance = noise @ self.G.double().square()  # [r]

    @outside()
    def residuals(self, of: Sequence[ReferenceWaves], origin: Tensor) -> list[np.ndarray]:
        """|r_theta(x)|^2 `[e, r, k]` of each of k waves times each of e monomials.

        For several outputs they are summed over the columns of the coupling's root.
        """
        points = torch.cat([self.x, self.X])
        theta = torch.from_numpy(np.concatenate([own.theta for own in of])).to(points)
        turns, found = (points - plain(origin).to(points), theta.mT / (2 * math.pi)), []
        with arena():  # fresh memory would take longer than what is done with it
            P = torch.mm(*turns, out=empty((len(points), len(theta)), points))
            P = P.frac_().mul_(2 * math.pi).to(self.G)  # large phases would take the digits of float32
            waves = empty((2, *P.shape), P)
            torch.cos(P, out=waves[0])
            torch.sin(P, out=waves[1])
            for own, some in zip(of, waves.split([len(own.theta) for own in of], -1), strict=True):
                found.append(self._squares(own, some, points).double().cpu().numpy())
        return found

    def _squares(self, own: ReferenceWaves, waves: Tensor, points: Tensor) -> Tensor:
        """Squared residuals `[e, r, k]` of waves `[2, r + n, k]` at points."""
        waves_x, waves_X = waves.split([len(self.x), len(self.X)], dim=1)
        squares = waves.new_zeros(len(own.monomials), *waves_x.shape[1:])
        if own.monomials == [()] and (self.tasks is None or own.root is None):
            for at_x, at_X in zip(waves_x, waves_X, strict=True):
                r = torch.addmm(at_x, self.G.mT, at_X, alpha=-1)
                squares.addcmul_(r, r)
            return squares
        points = torch.nn.functional.pad(points, (0, 1), value=1.0)  # (x, 1)
        columns = torch.tensor(own.monomials, dtype=torch.long, device="cpu")
        monomials = points.mT[columns].prod(1).to(self.G)  # [e, r + n]
        factors = monomials[:, None] * self._columns(own.root)  # [e, c, r + n]
        for some, into in zip(factors.split(_SEVERAL), squares.split(_SEVERAL), strict=True):
            at_x, at_X = some.split([len(self.x), len(self.X)], dim=-1)
            with frame():
                G = torch.mul(self.G.mT, at_X[..., None, :], out=empty((*some.shape[:2], *self.G.mT.shape), waves))
                r = empty((*some.shape[:2], *waves_x.shape[1:]), waves)
                for wave_x, wave_X in zip(waves_x, waves_X, strict=True):
                    torch.mul(wave_x, at_x[..., None], out=r)
                    r.flatten(0, -2).addmm_(G.flatten(0, -2), wave_X, alpha=-1)
                    into += r.square_().sum(1)
        return squares

    def _columns(self, root: Tensor | None) -> Tensor:
        """The columns of a coupling's root at the points' outputs, `[c, r + n]`; one for one output."""
        if self.tasks is None or self.X_tasks is None or root is None:
            return self.G.new_ones(1, 1)
        root = plain(root).to(self.G)
        return root[torch.cat([self.tasks, self.X_tasks])].mT[root.any(0)]


def _nearest(X: Tensor, x: Tensor) -> Tensor:
    """Which data `[m]` tell most at points x: those nearest to each."""
    if len(X) <= LARGEST_DATA:
        return torch.arange(len(X), device=X.device)
    return torch.cdist(x, X).topk(LARGEST_DATA // len(x), largest=False).indices.flatten().unique()


def reference_points(X: Tensor, domain: Tensor | None, where: Tensor | None, lengths: Tensor) -> Tensor:
    """Points `[r, d]` that represent where paths will be called: the same at every draw.

    Those that were named (`where`, or in `domain`); else half in the data's box widened by 40%, half between neighbours
    among the data, which finds clusters: most of these at all small distances from a datum, since rough paths have
    frequencies of their own at each.
    """
    n, d = X.shape
    if where is not None and len(where):
        count = min(len(where), NUM_REFERENCE)
        return where[torch.arange(count, device="cpu") * len(where) // count]  # spread evenly
    near = NUM_REFERENCE // (4 if domain is not None else 2)
    points = net(NUM_REFERENCE, d)
    if domain is None:
        low, high = X.aminmax(dim=0)
        half = torch.where(high > low, 0.7 * (high - low), lengths)
        low, size = (low + high) / 2 - half, 2 * half
    else:
        low, size = domain[0], domain[1] - domain[0]
    inside = low + size * points[near:]
    number = torch.arange(near, device="cpu")
    which = number % min(n, near) * n // min(n, near)  # spread evenly
    some = X[which]
    if n == 1:
        return torch.cat([inside, some + lengths * (2 * points[:near] - 1)])
    scaled = X / size
    distance = torch.cdist(scaled[which], scaled)  # [near, n]
    neighbours = distance.topk(min(n, 2 * d + 1), largest=False).indices
    other = X[neighbours[number, 1 + number % (neighbours.shape[1] - 1)]]
    return torch.cat([inside, some + _between(near, d) * (other - some)])


@kept(32)
def _between(near: int, d: int) -> Tensor:
    """How far from a datum to its neighbour points lie, `[near, 1]`: every fourth in the middle, the others evenly in
    the logarithm of the distance."""
    u, number = net(NUM_REFERENCE, d)[:near, :1], torch.arange(near, device="cpu")[:, None]
    return torch.where(number % 4 == 0, 0.2 + 0.6 * u, 0.5 * _CLOSEST ** (1 - u))


@kept(32)
def net(count: int, dims: int) -> Tensor:
    """A Sobol net `[count, dims]` that is always the same, off the corners."""
    points = Sobol(dims, seed=0).next(count)
    return points.clamp_(2**-30, 1 - 2**-30)
