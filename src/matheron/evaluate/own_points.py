"""Evaluation where a basis function serves one sum only: each path at its own points, or one path alone.

Then w cos(theta . x) + w' sin(theta . x) = a cos(theta . x + tau), with the path's own amplitude and phase. This halves
the number of trigonometric functions. Its gradient is -a sin(theta . x + tau) theta, a plain product with the
frequencies, and so it is with the centres of radial kernels. What follows from the paths is derived once per record,
which is also what makes a call at a single point cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from ..core.arena import Sums, computed, empty
from ..kernels import Radial
from ..kernels.base import RadialPart, squared_distance
from . import bases
from .bases import Canonical, Cosines, Pairs
from .record import PathTerm, Record, WeightedSum, Which


@torch.no_grad()
def one_sum_each(record: Record) -> Record:
    """Convert a record: Fourier terms and radial kernels become terms of one sum for each path. Other terms stay as
    they are.

    With several outputs all terms stay as they are, because each basis function is part of several sums.
    """
    if record.num_outputs > 1:
        return record
    waves: list[Waves] = []
    radials: list[RadialSum] = []
    others: list[PathTerm] = []
    for term in record.terms:
        if not isinstance(term, WeightedSum):
            others.append(term)
            continue
        basis, W = term.basis, term.weights[:, 0]  # [s, c]
        parts = basis.kernel.radial_parts(record.input_dim) if isinstance(basis, Canonical) else None
        if isinstance(basis, Canonical) and parts is not None:
            radials += [as_radial_sum(part, basis.centres, W, record.origin) for part in parts]
        elif isinstance(basis, Pairs | Cosines) and term.index is not None:
            new = as_waves(basis, W, term.index, record.origin)
            for j, old in enumerate(waves):
                if len(old.theta) == len(new.theta):
                    waves[j] = side_by_side(old, new)
                    break
            else:
                waves.append(new)
        else:
            others.append(term)
    pieces = [piece for part in [*waves, *radials] for piece in part.pieces(bases.LARGEST_WIDTH)]
    return replace(record, terms=[*pieces, *others])


def of_some(
    all_paths: Callable[[Tensor], tuple[Tensor, Tensor]], num_paths: int, x: Tensor, of: Tensor
) -> tuple[Tensor, Tensor]:
    """Values and gradients of path of[i] at x[i], `[p, 1, d], [p] -> [p, 1, t], [p, 1, t, d]`.

    All paths are evaluated, each at as many points as the most that any path has. This is cheaper than a plan for fewer
    paths."""
    counts = torch.zeros(num_paths, dtype=torch.long, device=x.device).index_add_(0, of, torch.ones_like(of))
    order = of.argsort(stable=True)
    column = torch.empty_like(of)
    column[order] = torch.arange(len(of), device=x.device) - (counts.cumsum(0) - counts)[of[order]]
    points = x[:1, 0].expand(num_paths, int(counts.max()), -1).clone()
    points[of, column] = x[:, 0]
    value, gradient = all_paths(points)
    return value[of, column][:, None], gradient[of, column][:, None]


@dataclass(eq=False)
class Waves(PathTerm):
    """sum_f a_f cos(theta_f . (x - origin) + tau_f): frequencies `[g, d, f]`, each path's basis `[s]`, a, tau `[s, f]`.

    Frequencies, like the centres below, lie with the long axis last: products are then up to 4 times faster.
    """

    theta: Tensor
    index: list[int]
    amplitudes: Tensor
    phases: Tensor
    origin: Tensor
    by_coordinate = False

    @cached_property
    def width(self) -> int:
        return self.phases.shape[1]

    @cached_property
    def common(self) -> Tensor | None:
        """The frequencies `[d, f]` where there is one basis for all paths."""
        return self.theta[0] if len(self.theta) == 1 else None

    @cached_property
    def separate(self) -> bool:
        """Whether each path has a basis of its own."""
        return self.common is None and self.index == list(range(len(self.theta)))

    def pieces(self, width: int) -> list[Waves]:
        """Parts of at most `width` waves each, as views."""
        parts = zip(*(each.split(width, dim=-1) for each in (self.theta, self.amplitudes, self.phases)), strict=True)
        return [replace(self, theta=theta, amplitudes=a, phases=tau) for theta, a, tau in parts]

    def phases_at(self, x: Tensor, paths: Which) -> Tensor:
        """theta . x + tau of some paths at their points: `[B, n, d] -> [B, n, f]`."""
        B, n, d = x.shape
        tau = _of(self.phases, paths)
        if self.common is not None and (B == 1 or n == 1):
            P = computed(torch.addmm, (B * n, self.width), tau, x.reshape(-1, d), self.common)
            return P.view(B, n, self.width)
        if self.separate:
            return computed(torch.baddbmm, (B, n, self.width), tau[:, None], x, _of(self.theta, paths))
        P = empty((B, n, self.width), x)
        for mine, theta in self._runs(paths):
            torch.mm(x[mine].reshape(-1, d), theta, out=P[mine].view(-1, self.width))
        return P.add_(tau[:, None])

    def _times_frequencies(self, S: Tensor, paths: Which) -> Tensor:
        """sum_f S_f theta_f: `[B, n, f] -> [B, n, d]`."""
        if self.separate:
            return S @ _of(self.theta, paths).mT
        out = torch.empty(*S.shape[:2], self.theta.shape[1], dtype=S.dtype, device=S.device)
        for mine, theta in self._runs(paths):
            torch.mm(S[mine].view(-1, self.width), theta.mT, out=out[mine].view(-1, out.shape[2]))
        return out

    def _runs(self, paths: Which) -> list[tuple[slice, Tensor]]:
        """Runs of neighbouring paths that share a basis, with its frequencies `[d, f]`."""
        if self.common is not None:
            return [(slice(None), self.common)]
        runs, start = [], 0
        for g, members in groupby(_picked(self.index, paths)):
            stop = start + len(list(members))
            runs.append((slice(start, stop), self.theta[g]))
            start = stop
        return runs

    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        P, a = self.phases_at(x - self.origin, paths), _of(self.amplitudes, paths)
        if not gradient:
            return _dot(P.cos_(), a)
        value = _dot(computed(torch.cos, P.shape, P), a)
        return value, self._times_frequencies(P.sin_().mul_(a[:, None]), paths).neg_().unsqueeze(1)


@dataclass(eq=False)
class RadialSum(PathTerm):
    """sum_j w_j k(x, z_j), k radial: centres in lengthscales `[d, m]` about `origin`, weights `[s, m]`."""

    kernel: Radial
    dims: list[int] | None  # None stands for all of them, in order
    origin: Tensor
    scale: Tensor  # 1 / lengthscale, [d]
    centres_and_one: Tensor  # [d + 1, m]
    weights: Tensor
    by_coordinate = False

    @property
    def width(self) -> int:
        return self.weights.shape[1]

    @cached_property
    def centres(self) -> Tensor:
        return self.centres_and_one[:-1]

    def pieces(self, width: int) -> list[RadialSum]:
        """Views of at most `width` centres each."""
        parts = zip(self.centres_and_one.split(width, dim=-1), self.weights.split(width, dim=-1), strict=True)
        return [replace(self, centres_and_one=one, weights=w) for one, w in parts]

    def scaled(self, x: Tensor) -> Tensor:
        return (x if self.dims is None else x[..., self.dims]) * self.scale

    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        """sum_j w_j g'_j (x - z_j) is x sum_j w_j g'_j - sum_j w_j g'_j z_j: one product for both sums."""
        y, w = self.scaled(x - self.origin), _of(self.weights, paths)
        q = squared_distance(y, self.centres.mT)
        if not gradient:
            return _dot(self.kernel.radial(q), w)
        K, slope = self.kernel.radial_with_slope(q)  # [B, n, m]
        sums = slope.mul_(w[:, None]).view(-1, w.shape[1]) @ self.centres_and_one.mT  # [B n, d + 1]
        sums = sums.view(*y.shape[:2], len(self.centres_and_one))
        pull = (y * sums[..., -1:]).sub_(sums[..., :-1]).mul_(2 * self.scale)
        if self.dims is not None:
            every = torch.zeros_like(x)
            every[..., self.dims] = pull
            pull = every
        return _dot(K, w), pull.unsqueeze(1)


def as_waves(basis: Pairs | Cosines, W: Tensor, index: Tensor, origin: Tensor) -> Waves:
    """Convert weights `[s, c]` of cosines and sines to amplitudes and phases. Weights of cosines stay as they are."""
    theta, mine = basis.frequencies.mT.contiguous(), index.tolist()
    # neighbouring paths rarely share a basis, so each path gets its own copy
    if len(theta) > 1 and 4 * len(list(groupby(mine))) > len(mine):
        theta, mine = theta[index], list(range(len(mine)))
    if isinstance(basis, Cosines):
        phases = basis.phases[index] if basis.num_bases > 1 else basis.phases.expand(len(mine), -1)
        return Waves(theta, mine, W, phases.contiguous(), origin)
    cos, sin = W.chunk(2, dim=-1)
    return Waves(theta, mine, torch.hypot(cos, sin), torch.atan2(-sin, cos), origin)


def side_by_side(a: Waves, b: Waves) -> Waves:
    theta = torch.cat([a.theta, b.theta], dim=2)
    amplitudes, phases = torch.cat([a.amplitudes, b.amplitudes], dim=1), torch.cat([a.phases, b.phases], dim=1)
    return replace(a, theta=theta, amplitudes=amplitudes, phases=phases)


def as_radial_sum(part: RadialPart, z: Tensor, weights: Tensor, origin: Tensor) -> RadialSum:
    """Make a radial sum relative to `origin`, or to a centre if `origin` is not within the box of the centres.
    Differences from a far origin would lose digits."""
    lower, upper = z.aminmax(dim=0)
    origin = origin if bool(((lower <= origin) & (origin <= upper)).all()) else z[0]
    z = z - origin
    dims = None if part.dims == list(range(z.shape[1])) else part.dims
    z = z if dims is None else z[:, dims]
    scale = (1 / part.kernel.lengthscale).expand(z.shape[1]).to(z)
    centres = z * scale
    one = torch.cat([centres.mT, torch.ones_like(centres[:, :1].mT)])
    weights = weights if part.scale is None else weights * part.scale
    return RadialSum(part.kernel, dims, origin, scale, one, weights)


def _of(rows: Tensor, paths: Which) -> Tensor:
    """The rows of some paths, or of all."""
    if paths is None or (isinstance(paths, slice) and paths.stop - paths.start == rows.shape[0]):
        return rows
    return rows[paths]


def _picked(index: list[int], paths: Which) -> list[int]:
    if isinstance(paths, Tensor):
        return [index[i] for i in paths.tolist()]
    return index if paths is None else index[paths]


def _dot(Phi: Tensor, w: Tensor) -> Tensor:
    """sum_i w_i Phi_i for each problem: `[B, n, c], [B, c] -> [B, 1, n]`; it may use Phi's memory."""
    if Phi.shape[0] == 1:
        return torch.nn.functional.linear(Phi, w).mT
    return Phi.mul_(w[:, None]).sum(-1).unsqueeze(1)
