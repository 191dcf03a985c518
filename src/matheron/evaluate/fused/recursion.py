"""From paths to what `steps` needs: x' = x + f(x) with f's transforms, mean, bases and step size all folded in.

Let the transforms be x -> a x + b and f -> c f + e, and the mean affine. Then c f(a x + b) + e is again a sum of waves,
radial functions and an affine part, now of x itself. Frequencies and inverse lengthscales are multiplied by a, and sums
by c. The offset b shifts each phase, which rotates its pair of weights. All of this is done in float64, so it is no
less exact than the transform of each point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...models.means import ConstantMean, LinearMean, Mean, Mixed, Stacked
from ...models.transforms import Transform
from ..record import Record
from . import serves
from .plan import Fourier, RadialPlan, plan_of, power_of_two

# Code is unrolled for up to this many inputs, and this many kernels.
LARGEST_DIM = 16
LARGEST_SLOTS = 8


@dataclass(eq=False)
class Recursion:
    """The increments of T rows, which are outputs of members side by side, in tensors of the paths' dtype.

    `origin` is `[D]`. `theta` and `low` have each member's frequencies `[g, D, F]` in turns, one after the other, as
    `plan.Fourier.by_rows` does. `at [s, T]` says where the frequencies of a path's row begin, and their weights are
    `[s, T, 2, F]`. Radial functions are in slots, each of one kind (a digit of `kinds`, base 8) and with at most one of
    each row. They have centres `[slots, T, D, M]`, inverse lengthscales `[slots, T, D]`, `alpha [slots, T]` and weights
    `[s, slots, T, M]`. The mean is the slope `[T, D]` times x - origin. All is multiplied by the gain `[T]`, and the
    level `[T]` is added.
    """

    origin: Tensor
    bits: int
    theta: Tensor
    low: Tensor
    at: Tensor
    weights: Tensor
    centres: Tensor
    inverse: Tensor
    alpha: Tensor
    radial: Tensor
    slope: Tensor
    gain: Tensor
    level: Tensor
    kinds: list[int]
    linear: bool

    def advance(
        self, x: Tensor, drive: Tensor | None, kept: Tensor, first: int, count: int, every: int, adds: bool = True
    ) -> None:
        """`count` steps of x `[r, D]`, in place, x' = x + f(x) or, where it does not add, f(x); states of steps that
        `every` divides into kept `[r, n, T]`. The r trajectories are equally many of each path, one after the other.

        drive `[count, g, D]`, again and again for g trajectories, is added after each step, to states and to other
        inputs, which are else zero.
        """
        from . import steps

        s, T, _, F = self.weights.shape
        rows, D = x.shape
        block, warps = block_and_warps(rows)
        assert x.is_contiguous() and kept.is_contiguous() and (drive is None or drive.is_contiguous())
        with torch.cuda.device_of(x):  # Triton launches on the current device
            steps.advance[(rows,)](
                x, x if drive is None else drive, kept, self.origin, self.theta, self.low, self.at, self.weights,
                self.centres, self.inverse, self.alpha, self.radial, self.slope, self.gain, self.level,
                rows // s, 1 if drive is None else drive.shape[1], count, first, every, kept.stride(0), F,
                self.centres.shape[-1],
                T=T, TP=power_of_two(T), D=D, DP=power_of_two(D), BITS=self.bits,
                KINDS=sum(kind << (3 * i) for i, kind in enumerate(self.kinds)), SLOTS=len(self.kinds),
                LINEAR=self.linear, DRIVEN=drive is not None, ADDS=adds, SPLIT=x.dtype == torch.float32, BF=block,
                num_warps=warps,
            )  # fmt: skip


def block_and_warps(rows: int) -> tuple[int, int]:
    """Basis functions at a time, and warps per trajectory: few where many fill the device, more where they do not."""
    return (64, 2) if rows > 512 else (128, 4)


def readable(members: Sequence[Record], state: Tensor) -> bool:
    """Whether `read` can serve these paths, side by side, from this state on."""
    if members[0].input_dim > LARGEST_DIM or not all(map(serves, members)):
        return False
    for record in members:
        if (record.num_paths, record.dtype) != (len(state), state.dtype):
            return False
        transforms = (record.input_transform, record.output_transform)
        if any(transform is not None and not transform.affine for transform in transforms):
            return False
        if record.domain is not None or not _affine(record.mean):
            return False
    return len(_slots(members)) <= LARGEST_SLOTS


def recursion_of(members: Sequence[Record], dt: float, state: Tensor) -> Recursion | None:
    """x' = x + dt f(x), f the outputs of these records side by side, read once; None where it does not serve."""
    if not readable(members, state):
        return None
    made, _ = members[0].derived(lambda _: (read(members, dt), members), key=(dt, *map(id, members)))
    return made


@torch.no_grad()
def read(members: Sequence[Record], dt: float) -> Recursion:
    """x' = x + dt f(x), f the outputs of these records side by side."""
    origin = _origin(members[0])
    parts = [_Part(record, origin.double(), dt) for record in members]
    block, _ = block_and_warps(members[0].num_paths)
    slope, gain, level = (
        torch.cat(pieces).to(origin) for pieces in zip(*((p.slope, p.gain, p.level) for p in parts), strict=True)
    )
    return Recursion(
        origin,
        *_fourier(parts, block),
        *_radial(members, parts, block),
        slope=slope,
        gain=gain,
        level=level,
        kinds=[kind for kind, _ in _slots(members)],
        linear=not all(isinstance(record.mean, ConstantMean) for record in members),
    )


def _fourier(parts: list[_Part], block: int) -> tuple[int, Tensor, Tensor, Tensor, Tensor]:
    """bits, theta, low, at and weights of a Recursion."""
    F = -(-max(part.theta.shape[1] for part in parts) // block) * block
    theta, low, at, begin, bits = [], [], [], 0, 0
    for part in parts:
        widened = pad(part.theta, (0, 0, 0, F - part.theta.shape[1]))
        frequencies = Fourier(widened, None, part.weights, [], part.index)
        for pile, piece in zip((theta, low), frequencies.by_rows, strict=True):
            pile.append(piece.flatten())
        each, bits = widened[0].numel(), frequencies.bits
        at.append((begin + part.index.long() * each)[:, None].expand(-1, part.weights.shape[1]))
        begin += widened.numel()
    weights = torch.cat([pad(part.weights, (0, F - part.weights.shape[-1])) for part in parts], dim=1)
    return bits, torch.cat(theta), torch.cat(low), torch.cat(at, dim=1), weights


def _radial(members: Sequence[Record], parts: list[_Part], block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """centres, inverse, alpha and radial of a Recursion."""
    slots, like = _slots(members), parts[0].weights
    s, T, D = len(like), sum(part.weights.shape[1] for part in parts), len(parts[0].origin)
    M = max((leaf.centres.shape[1] for _, taken in slots for leaf in taken.values()), default=1)
    M = -(-M // block) * block
    centres, inverse = like.new_zeros(len(slots), T, D, M), like.new_zeros(len(slots), T, D)
    alpha, weights = like.new_ones(len(slots), T), like.new_zeros(s, len(slots), T, M)
    for i, (_, taken) in enumerate(slots):
        row = 0
        for p, part in enumerate(parts):
            rows = slice(row, row + part.weights.shape[1])
            row = rows.stop
            if p in taken:
                leaf, m = taken[p], taken[p].centres.shape[1]
                z, a = part.centred(leaf)
                centres[i, rows, :, :m], inverse[i, rows], alpha[i, rows] = z.to(like), a.to(like), leaf.units[-1]
                weights[:, i, rows, :m] = leaf.weights.unflatten(0, (s, -1))[:, :, 0]
    return centres, inverse, alpha, weights


class _Part:
    """dt times one member's functions, as functions of its inputs from a common origin."""

    def __init__(self, record: Record, origin: Tensor, dt: float) -> None:
        plan = plan_of(record)
        assert plan is not None
        s, t = plan.num_paths, plan.num_outputs
        self.origin, self.transformed = origin, record.input_transform is not None
        self.inner, self.scale = _line(record.input_transform, origin)  # [D], [D]
        m, dm = record.mean.to(torch.float64).with_gradient(self.inner[None])  # [1, t], [1, t, D]
        level, gain = _line(record.output_transform, m[0].expand(t))
        self.level, self.gain = dt * level, dt * gain  # [t], [t]
        self.slope = (dm[0] * self.scale).expand(t, -1)  # [t, D]
        num_bases = max((len(part.theta) for part in plan.fourier), default=1)
        self.index = next((part.index for part in plan.fourier if len(part.theta) > 1), plan.origin.new_zeros(s).int())
        thetas, weights = [origin.new_zeros(num_bases, 0, len(origin))], [plan.origin.new_zeros(s, t, 2, 0)]
        for part in plan.fourier:
            shift = part.theta @ (self.inner - plan.origin)  # [g, F], in turns
            angle = 2 * math.pi * (shift if part.tau is None else shift + part.tau)
            W = part.weights.unflatten(0, (s, t))  # [s, t, 2 or 1, F]
            cosine, sine = (v.to(W) if len(v) == 1 else v.to(W)[part.index] for v in (angle.cos(), angle.sin()))
            cosine, sine, a = cosine[:, None], sine[:, None], W[:, :, 0]
            # a cos(p + angle) + b sin(p + angle), written in terms of cos p and sin p
            if part.tau is None:
                b = W[:, :, 1]
                turned = [a * cosine + b * sine, b * cosine - a * sine]
            else:
                turned = [a * cosine, -a * sine]
            weights.append(torch.stack(turned, dim=2))
            thetas.append((part.theta * self.scale).expand(num_bases, -1, -1))
        self.theta, self.weights = torch.cat(thetas, dim=1), torch.cat(weights, dim=-1)  # [g, F, D], [s, t, 2, F]

    def centred(self, leaf: RadialPlan) -> tuple[Tensor, Tensor]:
        """A radial part's centres `[D, M]` and inverse lengthscales `[D]` in the space of the inputs, in float64."""
        d = len(self.origin)
        unit = leaf.units[:d].double()  # [D]
        z, a = leaf.centres / unit[:, None], unit * leaf.units[d : 2 * d]
        if self.transformed:
            z = self.origin[:, None] + (z - self.inner[:, None]) / self.scale[:, None]
        return z, a * self.scale


def _origin(record: Record) -> Tensor:
    """The origin of the features in the space of the inputs."""
    return record.origin if record.input_transform is None else record.input_transform.inverse(record.origin)


def _line(transform: Transform | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """An affine transform of x, and its slope."""
    if transform is None:
        return x, torch.ones_like(x)
    wide = transform.to(torch.float64)
    return wide(x), wide.derivative(x)


def _affine(mean: Mean) -> bool:
    if isinstance(mean, Stacked):
        return all(map(_affine, mean.means))
    return _affine(mean.mean) if isinstance(mean, Mixed) else isinstance(mean, ConstantMean | LinearMean)


def _slots(members: Sequence[Record]) -> list[tuple[int, dict[int, RadialPlan]]]:
    """Kinds of kernels, and for each which member has which radial part there."""
    slots: list[tuple[int, dict[int, RadialPlan]]] = []
    for p, record in enumerate(members):
        plan = plan_of(record)
        assert plan is not None
        for leaf in plan.radial:
            for kind, taken in slots:
                if kind == leaf.kind and p not in taken:
                    taken[p] = leaf
                    break
            else:
                slots.append((leaf.kind, {p: leaf}))
    return slots
