"""Where the posterior matters: reference points, and the posterior variance of a frequency there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..kernels import coupled_covariance
from ..solvers import CholeskyState, Posterior, covariance

# Reference points. Where the factor of all data would cost too much, or is not at hand, this many data must do.
NUM_REFERENCE, LARGEST_WHOLE, LARGEST_DATA = 64, 4000, 1024
# Noise of less than this share of the variance needs residuals in float64.
_PRECISE = 1e-11
# Weights of the data, times monomials and couplings, that are multiplied with the waves at once.
_BLOCK = 1 << 20


class Reference:
    """Points where the posterior matters, and the weights G = (K + noise)^-1 k(X, x) of the data there."""

    def __init__(self, posterior: Posterior, domain: Tensor | None, where: Tensor | None, lengths: Tensor) -> None:
        kernel, X, tasks, noise = posterior.kernel, posterior.centres, posterior.tasks, posterior.noise
        X, noise = X.detach().double(), noise.detach().double()
        self.x = reference_points(X.cpu(), domain, where, lengths).to(X.device)
        outputs = None if tasks is None else kernel.num_outputs
        self.tasks = None if outputs is None else torch.arange(len(self.x), device=X.device) % outputs
        state = posterior.state if isinstance(posterior.state, CholeskyState) else None
        # A factor in float32 has digits enough, unless a graph is kept: then it is not asked.
        exact = state is not None and (state.L.dtype == torch.float64 or not state.L.requires_grad)
        if not exact or len(X) > LARGEST_WHOLE:
            kept = _nearest(X / lengths.to(X), self.x / lengths.to(X))  # and a factor of our own
            X, noise, tasks = X[kept], noise[kept], None if tasks is None else tasks[kept]
            state = None
        if posterior.centres.dtype != torch.float64:
            kernel = kernel.to(X.device, torch.float64)
        K_Xx = coupled_covariance(kernel, X, tasks, self.x, self.tasks)  # [n, r]
        if state is None:
            K = covariance(kernel, X, tasks)
            scale = K.diagonal().mean()
            K.diagonal().add_(noise + 1e-10 * scale)
            self.G = torch.cholesky_solve(K_Xx, torch.linalg.cholesky(K))
        else:
            self.G = posterior.solve(K_Xx.to(state.L))
            noise = noise + state.jitter
        self.X, self.X_tasks = X, tasks
        self.noise_variance = noise @ self.G.double().square()  # [r]
        # Rounding to float32 is noise of 1e-14 of the variance.
        if float(noise.min()) > _PRECISE * float(K_Xx.max()):
            self.G = self.G.float()

    def residuals(
        self, theta: np.ndarray, origin: Tensor, multipliers: Sequence[tuple[Tensor | None, tuple[int, ...]]]
    ) -> np.ndarray:
        """|r_theta(x)|^2 `[e, r, k]` of frequencies `[k, d]`, for each of e pairs of the root of a coupling B (or None)
        and the coordinates of a monomial that the wave is multiplied with.

        For several outputs they are summed over the columns of the root.
        """
        points = torch.cat([self.x, self.X])
        turns = (points - origin.to(points)) @ (torch.from_numpy(theta).to(points).mT / (2 * math.pi))  # [r + n, k]
        waves = _waves(turns.sub_(turns.round()).mul_(2 * math.pi).to(self.G))
        waves_x, waves_X = waves.split([len(self.x), len(self.X)])  # [., 2 k]
        monomials = monomials_at(points, [columns for _, columns in multipliers]).to(self.G)  # [e, r + n]
        each = [self._columns(root) * row for (root, _), row in zip(multipliers, monomials, strict=True)]  # [c, r + n]
        factors, numbers = torch.cat(each), [len(columns) for columns in each]
        at_x, at_X = factors[:, : len(self.x), None], factors[:, None, len(self.x) :]
        r, step = [], max(1, _BLOCK // self.G.numel())
        for some_x, some_X in zip(at_x.split(step), at_X.split(step), strict=True):
            r.append(torch.matmul(self.G.mT * some_X, waves_X).sub_(some_x * waves_x).square_())
        squares = torch.cat(r).unflatten(-1, (2, -1)).sum(-2)  # [sum of c, r, k]
        if max(numbers) > 1:
            squares = torch.stack([columns.sum(0) for columns in squares.split(numbers)])
        return squares.double().cpu().numpy()

    def _columns(self, root: Tensor | None) -> Tensor:
        """The columns of a coupling's root `[c, r + n]`, at the points' outputs."""
        if self.tasks is None or self.X_tasks is None or root is None:
            return self.G.new_ones(1, 1)
        root = root.detach().to(self.G)
        return root[torch.cat([self.tasks, self.X_tasks])].mT[root.any(0)]


def _waves(P: Tensor) -> Tensor:
    """Cosines and sines of phases, side by side."""
    waves = P.new_empty(len(P), 2 * P.shape[1])
    cos, sin = waves.chunk(2, dim=1)
    if P.is_cuda:
        torch.cos(P, out=cos)
        torch.sin(P, out=sin)
    else:  # numpy's are the faster on one core, by far in float32
        np.cos(P.numpy(), out=cos.numpy())
        np.sin(P.numpy(), out=sin.numpy())
    return waves


def monomials_at(x: Tensor, columns: Sequence[Sequence[int]]) -> Tensor:
    """Products of coordinates of (x, 1), `[e, n]`: those of some columns for each, as many."""
    return torch.nn.functional.pad(x, (0, 1), value=1.0).mT[torch.tensor(columns, dtype=torch.long)].prod(1)


def _nearest(X: Tensor, x: Tensor) -> Tensor:
    """Which data `[m]` tell most at points x: those nearest to each."""
    if len(X) <= LARGEST_DATA:
        return torch.arange(len(X), device=X.device)
    return torch.cdist(x, X).topk(LARGEST_DATA // len(x), largest=False).indices.flatten().unique()


def reference_points(X: Tensor, domain: Tensor | None, where: Tensor | None, lengths: Tensor) -> Tensor:
    """Points `[r, d]` that represent where paths will be called: the same at every draw.

    Those that were named (`where`, or in `domain`); else half in the data's box widened by 40%, half between neighbours
    among the data, which finds clusters: every fourth of these close to a datum, where rough paths have frequencies of
    their own.
    """
    n, d = X.shape
    if where is not None and len(where):
        return where[spread(len(where), NUM_REFERENCE)]
    near = NUM_REFERENCE // (4 if domain is not None else 2)
    points = net(NUM_REFERENCE, d)
    if domain is None:
        low, high = X.aminmax(dim=0)
        middle, half = (low + high) / 2, torch.where(high > low, 0.7 * (high - low), lengths)
        low, size = middle - half, 2 * half
    else:
        low, size = domain[0], domain[1] - domain[0]
    inside = low + size * points[near:]
    which = spread(n, near)[torch.arange(near) % min(n, near)]
    some = X[which]
    if n == 1:
        return torch.cat([inside, some + lengths * (2 * points[:near] - 1)])
    scaled = X / size
    distance = torch.cdist(scaled[which], scaled)  # [near, n]
    neighbours = distance.topk(min(n, 2 * d + 1), largest=False).indices
    which = 1 + torch.arange(near) % (neighbours.shape[1] - 1)
    other = X[neighbours[torch.arange(near), which]]
    u, close = points[:near, :1], torch.arange(near)[:, None] % 4 == 0
    return torch.cat([inside, some + torch.where(close, 0.5 * 300 ** (u - 1), 0.2 + 0.6 * u) * (other - some)])


def spread(n: int, count: int) -> Tensor:
    """Indices of at most `count` out of n, spread evenly."""
    return torch.arange(min(n, count)) * n // min(n, count)


@lru_cache(maxsize=32)
def net(count: int, dims: int) -> Tensor:
    """A Sobol net `[count, dims]` that is always the same, off the corners."""
    points = SobolEngine(dims, scramble=True, seed=0).draw(count, dtype=torch.float64)
    return points.clamp_(2**-30, 1 - 2**-30)
