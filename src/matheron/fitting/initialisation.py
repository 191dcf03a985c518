"""Starting points for the searches of a fit, in standardised units.

There are starts with much and with little noise, with short lengthscales, at random, and with periods from a
periodogram.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .hyperparameters import Hyperparameters, Leaf, usual_gap


@dataclass(frozen=True)
class Starts:
    """Which candidates for starts there are, as benchmarks/fit_tables.py chose them.

    "Worth 31 nats on trend" means that four starts lose 31 nats of log likelihood on the table "trend" without these
    candidates (seed 0).

    Attributes:
        lengths, noises: there is a candidate for each of these lengthscales, the same along every column and times the
            root of the dimension, with each of these noise variances. A search rarely passes from a function that
            follows the data closely to one that takes much of the data for noise, or back. Therefore both are starts:
            worth 31 nats on "trend", which needs the last variance, and 0.6 on "77 turns", which needs both lengths.
        short, gaps: along each column there are candidates with a lengthscale of `short`, a third of that, and so on
            down to `gaps` times the usual gap between neighbours. They are worth 143 nats on "waves", and 1.3 on
            "mostly noise".
        noisy: a candidate with a larger noise variance counts as one with much noise; one such is always searched from.
            Worth 0.6 nats on "77 turns".
        random: random candidates for each start. They give the parts of a sum different numbers: worth 4 nats on "two
            scales", and up to 13 on other sums of two equal kernels. Half or twice as many change nothing.
        peaks: peaks of a periodogram that are tried as periods. With one, 0.6 nats are lost on "77 turns".
        frequencies: least number of frequencies of a periodogram.
        highest: highest frequency of a periodogram, in turns over the range of the data.
    """

    lengths: tuple[float, ...] = (1.0, 3.0)
    noises: tuple[float, ...] = (0.3, 1e-2, 1e-5)
    short: float = 0.1 / 3
    gaps: float = 2.0
    noisy: float = 0.1
    random: int = 8
    peaks: int = 3
    frequencies: int = 2000
    highest: float = 2000.0


STARTS = Starts()


def candidates(
    h: Hyperparameters, count: int, generator: torch.Generator, given: Sequence[Tensor], X: Tensor, y: Tensor
) -> list[Tensor]:
    """Candidates for the starts of `count` searches: the given vectors, and those that `Starts` describes.

    As a function of a period the likelihood has many narrow maxima, and random numbers rarely find the highest. Periods
    are therefore taken from the peaks of a periodogram, and the given vectors are repeated with these.
    """
    starts = [_even(h, given[-1], length, noise) for length in STARTS.lengths for noise in STARTS.noises]
    starts += [torch.cat([_random(leaf, generator) for leaf in h.leaves]) for _ in range(STARTS.random * count)]
    starts += [short for i in range(X.shape[1]) for short in _short(h, given[-1], i, X[:, i])]
    turning = [leaf for leaf in h.leaves if leaf.short in ("period", "means") and leaf.dims]
    if turning and len(y) >= 8:
        found = {i: peaks(X[:, i], y) for leaf in turning for i in leaf.dims}  # the peaks of each column
        starts = [_with_periods(h, start, found, k) for k, start in enumerate(starts)]
        starts += [_with_periods(h, start, found, k) for start in given for k in range(STARTS.peaks)]
    return [h.clamped(start) for start in [*given, *starts]]


def most_likely(h: Hyperparameters, ends: Sequence[tuple[Tensor, float]], count: int) -> list[Tensor]:
    """The `count` likeliest of vectors with their values, at least one of them with much noise and one with little."""
    ranked = [vector for vector, _ in sorted(ends, key=lambda end: -end[1])]
    chosen = ranked[:count]
    if isinstance(h.noise, Leaf) and count > 1:
        noisy = [bool(h.split(vector)[h.count].mean() > math.log(STARTS.noisy)) for vector in ranked]
        other = [vector for vector, kind in zip(ranked, noisy, strict=True) if kind != noisy[0]]
        if other and all(kind == noisy[0] for kind in noisy[:count]):
            chosen[-1] = other[0]
    return chosen


def _even(h: Hyperparameters, start: Tensor, length: float, noise: float) -> Tensor:
    """A start with the same lengthscale along every column, and this variance of the noise."""
    parts = h.split(start)
    for k, leaf in enumerate(h.leaves):
        if leaf.short == "lengthscale":
            value = length * max(1, len(leaf.dims)) ** 0.5
            parts[k] = leaf.encode(torch.full_like(leaf.value, value).where(leaf.value != 0, 0.0))
        elif leaf is h.noise:
            parts[k] = leaf.encode(torch.full_like(leaf.value, noise))
    return torch.cat(parts)


def _short(h: Hyperparameters, start: Tensor, column: int, x: Tensor) -> list[Tensor]:
    """Starts with shorter and shorter lengthscales along one column, down to a few gaps between its numbers.

    From a long lengthscale, a function that turns often along the column looks like noise.
    """
    shorter, length, least = [], STARTS.short, STARTS.gaps * usual_gap(x)
    while 0 < least < length:
        parts = h.split(start)
        for k, leaf in enumerate(h.leaves):
            if leaf.short == "lengthscale" and column in leaf.dims:
                value = leaf.decode(parts[k]).clone()
                own = [leaf.dims.index(column)] if value.numel() == len(leaf.dims) else slice(None)
                value.view(-1)[own] = length
                parts[k] = leaf.encode(value)
        shorter.append(torch.cat(parts))
        length /= 3
    return shorter


def _random(leaf: Leaf, generator: torch.Generator) -> Tensor:
    def normal(size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)

    if leaf.kind == "coupling":
        return leaf.encode(leaf.value) + 0.3 * normal(leaf.size)
    if leaf.kind == "real":
        return leaf.encode(leaf.value) + (0.0 if leaf.name.startswith("mean") else normal(leaf.size))
    if leaf.own:
        return leaf.encode(leaf.value) + normal(leaf.size)
    # Log-uniform ranges, such as 0.1 to 10 standard deviations for lengthscales.
    ranges = {"lengthscale": (0.1, 10.0), "period": (0.05, 4.0), "noise": (1e-4, 0.5), "alpha": (0.1, 10.0)}
    lower, upper = (math.log(v) for v in ranges.get(leaf.short, (0.1, 3.0)))
    if leaf.short == "lengthscale":  # distances grow with the square root of the dimension
        root = 0.5 * math.log(max(1, len(leaf.dims)))
        lower, upper = lower + root, upper + root
    u = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)
    return lower + u * (upper - lower) + 0.5 * normal(leaf.size)  # a common size, times a factor for each dimension


def _with_periods(h: Hyperparameters, start: Tensor, found: dict[int, Tensor], k: int) -> Tensor:
    """A start whose periods are peaks of the periodogram, and whose means of a spectral mixture are peaks and zero.

    The first period of a column has the k-th peak, and further periods of the same column have the next ones.
    """
    parts = h.split(start)
    turns: dict[tuple[int, ...], int] = {}
    for i, leaf in enumerate(h.leaves):
        if not leaf.dims or leaf.short not in ("period", "means"):
            continue
        own = torch.stack([found[j] for j in leaf.dims], dim=1)  # [peaks, dims]
        if leaf.short == "period":
            turn = turns.get(leaf.dims, k)
            best = own[turn % len(own)]
            # if several columns share a period, it is that of one column
            one = best[turn % len(best)].expand(leaf.value.shape)
            parts[i] = leaf.encode(1 / (best.reshape(leaf.value.shape) if leaf.value.numel() == len(best) else one))
            turns[leaf.dims] = turn + 1
        else:  # [components, dims], in turns
            own = torch.cat([own, torch.zeros_like(own[:1])])
            order = (torch.arange(len(leaf.value), device=own.device) + k) % len(own)
            parts[i] = leaf.encode(own[order])
    return torch.cat(parts)


def peaks(x: Tensor, y: Tensor) -> Tensor:
    """The frequencies `[3]`, in turns per unit of x, of the waves that explain most of y beside a parabola.

    Each is the highest peak in the spectrum of the residuals of the parabola and the waves before it. The second peak
    of a single spectrum usually belongs to the same wave as the first.
    """
    width = float(x.max() - x.min())
    if width <= 0:
        return x.new_ones(STARTS.peaks)
    x, y = (x - x.mean()) / width, y - y.mean()
    highest = _highest(x)
    count = max(STARTS.frequencies, round(8 * highest))  # eight frequencies for the width of each peak
    frequency = torch.linspace(0.5, highest, count, dtype=x.dtype, device=x.device)
    angle = 2 * math.pi * frequency[:, None] * x  # [F, n]
    cosines, sines = angle.cos(), angle.sin()
    known, chosen = [torch.ones_like(x), x, x.square()], []
    for _ in range(STARTS.peaks):
        A = torch.stack(known, dim=1)
        A = A / A.square().mean(0).sqrt().clamp_min(1e-12)
        gram = A.mT @ A + 1e-9 * len(x) * torch.eye(A.shape[1], dtype=x.dtype, device=x.device)
        rest = y - A @ torch.linalg.solve(gram, A.mT @ y)
        power = (cosines @ rest).square() + (sines @ rest).square()
        power[chosen] = -1.0
        chosen.append(int(power.argmax()))
        known += [cosines[chosen[-1]], sines[chosen[-1]]]
    return frequency[chosen] / width


def _highest(x: Tensor) -> float:
    """The highest frequency of a periodogram, in turns over data x `[n]` of width 1.

    Neighbours distinguish frequencies of up to half a turn between them. That is n / 2 turns in all on a grid, and more
    for irregular data. With few data, n^2 / 12 is the limit, since among more frequencies some fit by chance.
    """
    gaps = x.unique().diff()
    gaps = gaps[gaps > 1e-6]
    n, near = len(x), float(gaps.quantile(0.1)) if len(gaps) else 1.0
    return max(2.0, min(0.5 / near, max(n / 2, n * n / 12), STARTS.highest))
