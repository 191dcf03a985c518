"""Evaluation where a basis function serves one sum only: each path at its own points, or one path alone.

Then w cos(theta . x) + w' sin(theta . x) is one cosine, a cos(theta . x + tau), with an amplitude and a phase of the
path's own: half the trigonometric functions. Its gradient is -a sin(theta . x + tau) theta, a plain product with the
frequencies, and so it is with the centres of radial kernels. What follows from the paths is derived once per record,
which is also what makes a call at a single point cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from ..checks import transformed
from ..features.basis import LARGEST_WIDTH, Cosines, Pairs
from ..features.canonical import Canonical
from ..kernels import Radial
from ..kernels.base import squared_distance
from ..kernels.terms import RadialPart
from ..means import ConstantMean, Mean
from ..scratch import computed, empty, frame
from ..weigh import Sums, add
from .chunked import in_blocks, in_blocks_with_gradients
from .record import Record
from .terms import Term, WeightedSum, Which, of_each


@dataclass(eq=False)
class _Waves:
    """sum_f a_f cos(theta_f . x + tau_f): frequencies `[g, d, f]`, each path's basis `[s]`, its a and tau `[s, f]`.

    Frequencies, like the centres below, lie with the long axis last: products are then up to 4 times faster.
    """

    theta: Tensor
    index: list[int]
    amplitudes: Tensor
    phases: Tensor

    @cached_property
    def width(self) -> int:
        return self.phases.shape[1]

    @cached_property
    def shared(self) -> Tensor | None:
        """The frequencies `[d, f]` where there is one basis for all paths."""
        return self.theta[0] if len(self.theta) == 1 else None

    @cached_property
    def separate(self) -> bool:
        """Whether each path has a basis of its own."""
        return self.shared is None and self.index == list(range(len(self.theta)))

    def pieces(self, width: int) -> list[_Waves]:
        """Views of at most `width` waves each."""
        if self.width <= width:
            return [self]
        cuts = [slice(i, i + width) for i in range(0, self.width, width)]
        return [_Waves(self.theta[:, :, c], self.index, self.amplitudes[:, c], self.phases[:, c]) for c in cuts]

    def turned(self, x: Tensor, paths: Which) -> Tensor:
        """theta . x + tau of some paths at their points: `[B, n, d] -> [B, n, f]`."""
        B, n, d = x.shape
        tau = _of(self.phases, paths)
        if self.shared is not None and (B == 1 or n == 1):
            P = computed(torch.addmm, (B * n, self.width), tau, x.reshape(-1, d), self.shared)
            return P.view(B, n, self.width)
        if self.separate:
            return computed(torch.baddbmm, (B, n, self.width), tau[:, None], x, _of(self.theta, paths))
        P = empty((B, n, self.width), x)
        for mine, theta in self._runs(paths):
            torch.mm(x[mine].reshape(-1, d), theta, out=P[mine].view(-1, self.width))
        return P.add_(tau[:, None])

    def pulled(self, S: Tensor, paths: Which) -> Tensor:
        """sum_f S_f theta_f: `[B, n, f] -> [B, n, d]`."""
        if self.separate:
            return S @ _of(self.theta, paths).mT
        out = torch.empty(*S.shape[:2], self.theta.shape[1], dtype=S.dtype, device=S.device)
        for mine, theta in self._runs(paths):
            torch.mm(S[mine].view(-1, self.width), theta.mT, out=out[mine].view(-1, out.shape[2]))
        return out

    def _runs(self, paths: Which) -> list[tuple[slice, Tensor]]:
        """Neighbours that share a basis, and its frequencies `[d, f]`."""
        if self.shared is not None:
            return [(slice(None), self.shared)]
        runs, start = [], 0
        for g, members in groupby(_picked(self.index, paths)):
            stop = start + len(list(members))
            runs.append((slice(start, stop), self.theta[g]))
            start = stop
        return runs

    def value(self, x: Tensor, paths: Which) -> Tensor:
        """`[B, n, d] -> [B, n]`."""
        return _dot(self.turned(x, paths).cos_(), _of(self.amplitudes, paths))

    def value_and_gradient(self, x: Tensor, paths: Which) -> tuple[Tensor, Tensor]:
        P, a = self.turned(x, paths), _of(self.amplitudes, paths)
        value = _dot(computed(torch.cos, P.shape, P), a)
        return value, self.pulled(P.sin_().mul_(a[:, None]), paths).neg_()


@dataclass(eq=False)
class _RadialSum:
    """sum_j w_j k(x, z_j), k radial: centres in lengthscales `[m, d]` about `origin`, weights `[s, m]`."""

    kernel: Radial
    dims: list[int] | None  # None: all of them, in order
    origin: Tensor
    scale: Tensor  # 1 / lengthscale, [d]
    centres: Tensor
    centres_and_one: Tensor  # [d + 1, m]
    weights: Tensor

    def pieces(self, width: int) -> list[_RadialSum]:
        """Views of at most `width` centres each."""
        m = self.weights.shape[1]
        if m <= width:
            return [self]
        return [
            replace(
                self,
                centres=self.centres[i : i + width],
                centres_and_one=self.centres_and_one[:, i : i + width],
                weights=self.weights[:, i : i + width],
            )
            for i in range(0, m, width)
        ]

    def scaled(self, x: Tensor) -> Tensor:
        x = x if self.dims is None else x[..., self.dims]
        return (x - self.origin) * self.scale

    def value(self, x: Tensor, paths: Which) -> Tensor:
        return _dot(self.kernel.radial(squared_distance(self.scaled(x), self.centres)), _of(self.weights, paths))

    def value_and_gradient(self, x: Tensor, paths: Which) -> tuple[Tensor, Tensor]:
        """sum_j w_j g'_j (x - z_j) is x sum_j w_j g'_j - sum_j w_j g'_j z_j: one product for both sums."""
        y, w = self.scaled(x), _of(self.weights, paths)
        K, slope = self.kernel.radial_with_slope(squared_distance(y, self.centres))  # [B, n, m]
        sums = slope.mul_(w[:, None]).view(-1, w.shape[1]) @ self.centres_and_one.mT  # [B n, d + 1]
        sums = sums.view(*y.shape[:2], len(self.centres_and_one))
        pull = (y * sums[..., -1:]).sub_(sums[..., :-1]).mul_(2 * self.scale)
        if self.dims is None:
            return _dot(K, w), pull
        gradient = torch.zeros_like(x)
        gradient[..., self.dims] = pull
        return _dot(K, w), gradient


@dataclass(eq=False)
class Single:
    """Paths of one output as functions of some paths' own points; `rest` are terms that have no radial form."""

    num_paths: int
    origin: Tensor
    waves: list[_Waves]
    radials: list[_RadialSum]
    rest: list[Term]
    mean: Mean | None  # None: zero

    @cached_property
    def width(self) -> int:
        """Numbers that a point of a path needs."""
        widths = [w.width for w in self.waves] + [b.weights.shape[1] for b in self.radials]
        return max([1, *widths, *(term.width for term in self.rest)])

    def block(self, x: Tensor, paths: Which) -> Tensor:
        """mean + prior + update, `[B, n, d] -> [B, n, 1]`."""
        total = self._sums(x, paths, gradient=False)
        total = cast(Tensor, x.new_zeros(x.shape[:2]) if total is None else total)
        return (total if self.mean is None else total + self.mean(x)[..., 0]).unsqueeze(-1)

    def block_with_gradient(self, x: Tensor, paths: Which) -> tuple[Tensor, Tensor]:
        """The same, and its gradient `[B, n, 1, d]`."""
        value, gradient = self._sums(x, paths, gradient=True) or (x.new_zeros(x.shape[:2]), torch.zeros_like(x))
        if self.mean is not None:
            m, dm = self.mean.with_gradient(x)
            value, gradient = value + m[..., 0], gradient + dm[..., 0, :]
        return value.unsqueeze(-1), gradient.unsqueeze(-2)

    def _sums(self, x: Tensor, paths: Which, gradient: bool) -> Sums | None:
        """prior + update `[B, n]`, with `gradient` a pair with `[B, n, d]`; None where there is neither."""
        paths = None if isinstance(paths, slice) and x.shape[0] == self.num_paths else paths
        about = x - self.origin
        total = None
        for part, at in [(part, about) for part in self.waves] + [(part, x) for part in self.radials]:
            with frame():
                total = add(total, part.value_and_gradient(at, paths) if gradient else part.value(at, paths))
        for term in self.rest:
            out = term.sums(x, slice(None) if paths is None else paths, gradient)
            total = add(total, of_each(lambda o: o[:, 0], out))
        return total


def _of(rows: Tensor, paths: Which) -> Tensor:
    """The rows of some paths, or of all."""
    return rows if paths is None else rows[paths]


def _picked(index: list[int], paths: Which) -> list[int]:
    if isinstance(paths, Tensor):
        return [index[i] for i in paths.tolist()]
    return index if paths is None else index[paths]


def _dot(Phi: Tensor, w: Tensor) -> Tensor:
    """sum_i w_i Phi_i for each problem: `[B, n, c], [B, c] -> [B, n]`; it may use Phi's memory."""
    if Phi.shape[0] == 1:
        return torch.nn.functional.linear(Phi, w).squeeze(-1)
    return Phi.mul_(w[:, None]).sum(-1)


def can(record: Record, x: Tensor, of: Tensor | None) -> bool:
    """Whether a basis function serves one sum only at inner points x `[1 or s, n, d]`, or `[p, n, d]` of paths `of`."""
    if of is None and len(x) != record.num_paths:  # said first: nothing is derived for shared points
        return False
    if (x.requires_grad and torch.is_grad_enabled()) or transformed(x):
        return False
    return record.derived(single) is not None


def values(record: Record, x: Tensor) -> Tensor:
    mine = _of_record(record)
    return in_blocks(mine.block, x, record, mine.width, own=True)


def values_and_gradients(record: Record, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
    mine = _of_record(record)
    return in_blocks_with_gradients(mine.block_with_gradient, x, record, 2 * mine.width, own=True, of=of)


def _of_record(record: Record) -> Single:
    found = record.derived(single)
    assert found is not None
    return found


@torch.no_grad()
def single(record: Record) -> Single | None:
    """A record of one output as waves and radial functions; None where it has other terms, or is in a graph."""
    if record.num_outputs > 1 or record.requires_grad:
        return None
    waves: list[_Waves] = []
    radials: list[_RadialSum] = []
    rest: list[Term] = []
    for term in record.terms:
        if not isinstance(term, WeightedSum):
            return None
        basis, W = term.basis, term.weights[:, 0]  # [s, c]
        if isinstance(basis, Canonical):
            parts = basis.kernel.radial_parts(record.input_dim)
            if parts is None:
                rest.append(term)
            radials += [_as_radial_sum(part, basis.centres, W) for part in parts or []]
            continue
        if not isinstance(basis, Pairs | Cosines) or term.index is None:
            return None
        new = _as_waves(basis, W, term.index)
        for j, old in enumerate(waves):
            if len(old.theta) == len(new.theta):
                waves[j] = _side_by_side(old, new)
                break
        else:
            waves.append(new)
    mean = record.mean
    zero = isinstance(mean, ConstantMean) and not bool(mean.value.any())
    pieces = [piece for part in waves for piece in part.pieces(LARGEST_WIDTH)]
    radials = [piece for part in radials for piece in part.pieces(LARGEST_WIDTH)]
    return Single(record.num_paths, record.origin, pieces, radials, rest, None if zero else mean)


def _as_waves(basis: Pairs | Cosines, W: Tensor, index: Tensor) -> _Waves:
    """Weights `[s, c]` as amplitudes and phases; a cosine stays what it is."""
    theta, mine = basis.frequencies.mT.contiguous(), index.tolist()
    if len(theta) > 1 and 4 * len(list(groupby(mine))) > len(mine):  # few neighbours share one: each has its own copy
        theta, mine = theta[index], list(range(len(mine)))
    if isinstance(basis, Cosines):
        phases = basis.phases[index] if basis.num_bases > 1 else basis.phases.expand(len(mine), -1)
        return _Waves(theta, mine, W, phases.contiguous())
    cos, sin = W.chunk(2, dim=-1)
    return _Waves(theta, mine, torch.hypot(cos, sin), torch.atan2(-sin, cos))


def _side_by_side(a: _Waves, b: _Waves) -> _Waves:
    theta = torch.cat([a.theta, b.theta], dim=2)
    amplitudes, phases = torch.cat([a.amplitudes, b.amplitudes], dim=1), torch.cat([a.phases, b.phases], dim=1)
    return _Waves(theta, a.index, amplitudes, phases)


def _as_radial_sum(part: RadialPart, z: Tensor, weights: Tensor) -> _RadialSum:
    dims = None if part.dims == list(range(z.shape[1])) else part.dims
    z = z if dims is None else z[:, dims]
    scale = (1 / part.kernel.lengthscale).expand(z.shape[1]).to(z)
    origin = z[0]  # a far offset must not cost the digits of a difference
    centres = (z - origin) * scale
    one = torch.cat([centres.mT, torch.ones_like(centres[:, :1].mT)])
    weights = weights if part.scale is None else weights * part.scale
    return _RadialSum(part.kernel, dims, origin, scale, one[:-1].mT, one, weights)
