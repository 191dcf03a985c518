"""Random places to start a fit from, in standardised units."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .hyperparameters import Hyperparameters, Leaf, usual_gap

# Log-uniform ranges: a tenth of a standard deviation to ten of them, noise from next to nothing to half the variance.
_SHORTEST = 0.1
# By which power of a hyperparameter the likelihood depends on it where it has little effect, and where it has some.
_ASLEEP = {"lengthscale": (-2.0, 5.0), "outputscale": (1.0, 0.03), "weights": (1.0, 0.03)}
# The log likelihood that it must promise to gain, and the curvature (at least 1, see `newton`) of what has no effect.
_PROMISE, _FLAT = 1.0, 2.0
_RANGES = {"lengthscale": (_SHORTEST, 10.0), "period": (0.05, 4.0), "noise": (1e-4, 0.5), "alpha": (0.1, 10.0)}
_OTHER = (0.1, 3.0)
# Lengthscales, times the root of the dimension, and noises that are always among the starts.
_EVEN = [(1.0, 0.3), (3.0, 0.3), (1.0, 1e-2), (3.0, 1e-2)]
# Beyond this variance of the noise a start says that much of the data is noise.
_NOISY = 0.1
# Starts whose entries all differ by less than this, on the logarithmic scale, are one and the same.
_SAME = 0.05


# Frequencies that a periodogram looks at, at the least; the highest, in turns; and how many of its peaks are tried.
_FREQUENCIES, _HIGHEST, _PEAKS = 2000, 2000.0, 3


def candidates(
    h: Hyperparameters, count: int, generator: torch.Generator, given: Sequence[Tensor], X: Tensor, y: Tensor
) -> list[Tensor]:
    """Vectors to start from: those given, random ones, short lengthscales along one column, and periods.

    The likelihood has a narrow top at every period that fits a little, and random numbers rarely hit the highest: so
    starts are repeated at the peaks of a periodogram. And where a function turns often along one column, all of it
    looks like noise from a long lengthscale.
    """
    starts = [*given, *(torch.cat([_random(leaf, generator) for leaf in h.leaves]) for _ in range(count))]
    rest = _left_by_a_plane(X, y)
    shares = [1.0] if rest > _NOISY else [1.0, rest]
    starts += [_even(h, given[-1], length, share * noise) for share in shares for length, noise in _EVEN]
    gaps = 2 if X.shape[1] == 1 else 8  # with other columns' help, noise could be followed along one
    starts += [short for i in range(X.shape[1]) for short in _short(h, given[-1], i, X[:, i], gaps)]
    turning = [leaf for leaf in h.leaves if leaf.short in ("period", "means") and leaf.dims]
    if turning and len(y) >= 8:
        found = {i: peaks(X[:, i], y) for leaf in turning for i in leaf.dims}  # by column
        first = [_turned(h, start, found, k) for start in given for k in range(_PEAKS)]
        starts = [*first, *starts, *(_turned(h, start, found, k) for k, start in enumerate(starts[len(given) :]))]
    return [h.clamped(start) for start in starts]


def spread_and_near(X: Tensor, generator: torch.Generator) -> Tensor:
    """Rows in an order of which any beginning is half spread over all data, half the neighbours of one of them.

    Long lengthscales show in the first, short ones in the second: a function that turns more often than some spread
    data can follow is noise to them.
    """
    spread = torch.randperm(len(X), generator=generator, device=generator.device).to(X.device)
    return interleaved(spread, (X - X[spread[0]]).square().sum(1).argsort(stable=True))


def interleaved(a: Tensor, b: Tensor) -> Tensor:
    """Two orders `[n]` of the same rows in turns: any beginning is half that of the first, half that of the second."""
    both = torch.stack([a, b], dim=1).reshape(-1)
    first = torch.full_like(a, len(both)).scatter_reduce(0, both, torch.arange(len(both), device=a.device), "amin")
    return first.argsort()


def woken(h: Hyperparameters, vector: Tensor, gradient: Tensor, curvature: Tensor) -> Tensor:
    """A vector with what is asleep set to where it has an effect, if its slope promises to gain by it.

    The likelihood depends on a long lengthscale l by 1 / l^2, and on a small variance by itself: on a logarithmic scale
    slopes vanish with these, however much there is to gain further on. Curvatures `[p]` vanish with them, and tell what
    is asleep from what is long for a reason.
    """
    parts, flat = h.split(vector), h.split(curvature < _FLAT + 4 * gradient.abs())
    for i, (leaf, slope) in enumerate(zip(h.leaves, h.split(gradient), strict=True)):
        if leaf.short not in _ASLEEP or leaf.kind != "positive":
            continue
        power, value = _ASLEEP[leaf.short]
        t, there = (power * parts[i]).exp(), value**power
        promise = slope / (power * t) * (there - t)
        parts[i] = torch.where((t < there) & (promise > _PROMISE) & flat[i], math.log(value), parts[i])
    return h.clamped(torch.cat(parts))


def of_both_kinds(h: Hyperparameters, ends: Sequence[tuple[Tensor, float]], count: int) -> list[Tensor]:
    """The `count` likeliest of vectors with their values, none twice, and of each kind one, if there are two.

    Data are either followed closely or are noise in good part: a search rarely gets from one to the other.
    """
    ranked: list[Tensor] = []
    for end, _ in sorted(ends, key=lambda end: -end[1]):
        if all(float((end - other).abs().max()) > _SAME for other in ranked):
            ranked.append(end)
    chosen, rest = ranked[:count], ranked[count:]
    kinds = [_is_noisy(h, end) for end in chosen]
    other = [end for end in rest if _is_noisy(h, end) != kinds[0]]
    if count > 1 and len(set(kinds)) == 1 and other:
        chosen[-1] = other[0]
    return chosen


def _is_noisy(h: Hyperparameters, vector: Tensor) -> bool:
    return isinstance(h.noise, Leaf) and bool(h.split(vector)[h.count].mean() > math.log(_NOISY))


def _even(h: Hyperparameters, start: Tensor, length: float, noise: float) -> Tensor:
    """A start with the same lengthscale along every column, and this much noise."""
    parts = h.split(start)
    for k, leaf in enumerate(h.leaves):
        if leaf.short == "lengthscale":
            value = length * max(1, len(leaf.dims)) ** 0.5
            parts[k] = leaf.encode(torch.full_like(leaf.value, value).where(leaf.value != 0, 0.0))
        elif leaf is h.noise:
            parts[k] = leaf.encode(torch.full_like(leaf.value, noise))
    return torch.cat(parts)


def _left_by_a_plane(X: Tensor, y: Tensor) -> float:
    """The share of the targets' variance that a linear function of X leaves: beside a strong trend noise is less."""
    A = torch.cat([torch.ones_like(X[:, :1]), X], dim=1).cpu()
    fitted = A @ torch.linalg.lstsq(A, y.cpu()[:, None], driver="gelsd").solution
    return float((y.cpu() - fitted[:, 0]).var(correction=0) / y.var(correction=0).clamp_min(1e-300))


def _short(h: Hyperparameters, start: Tensor, column: int, x: Tensor, least: float) -> list[Tensor]:
    """A start with shorter and shorter lengthscales along a column, down to `least` gaps between its numbers."""
    gap, shorter, length = usual_gap(x), [], _SHORTEST
    while gap > 0 and (length := length / 3) > least * gap:
        parts = h.split(start)
        for k, leaf in enumerate(h.leaves):
            if leaf.short == "lengthscale" and column in leaf.dims:
                value = leaf.decode(parts[k]).clone()
                own = [leaf.dims.index(column)] if value.numel() == len(leaf.dims) else slice(None)
                value.view(-1)[own] = length
                parts[k] = leaf.encode(value)
        shorter.append(torch.cat(parts))
    return shorter


def _turned(h: Hyperparameters, start: Tensor, found: dict[int, Tensor], k: int) -> Tensor:
    """A start whose periods are peaks, of some columns the k-th for the first of them and the next for the next; a
    mixture's means are one peak after the other, and zero for what is slow."""
    parts = h.split(start)
    turns: dict[tuple[int, ...], int] = {}
    for i, leaf in enumerate(h.leaves):
        if not leaf.dims or leaf.short not in ("period", "means"):
            continue
        own = torch.stack([found[j] for j in leaf.dims], dim=1)  # [peaks, dims]
        if leaf.short == "period":
            turn = turns.get(leaf.dims, k)
            best = own[turn % _PEAKS]
            one = best[turn % len(best)].expand(leaf.value.shape)  # a period for several columns: one of theirs
            parts[i] = leaf.encode(1 / (best.reshape(leaf.value.shape) if leaf.value.numel() == len(best) else one))
            turns[leaf.dims] = turn + 1
        else:  # [components, dims], in turns
            own = torch.cat([own, torch.zeros_like(own[:1])])
            order = (torch.arange(len(leaf.value), device=own.device) + k) % len(own)
            parts[i] = leaf.encode(own[order])
    return torch.cat(parts)


def peaks(x: Tensor, y: Tensor) -> Tensor:
    """The frequencies `[3]`, in turns per unit of x, that explain most of y less a parabola, one after the other.

    Each is the highest peak of the spectrum of what the parabola and the waves before it leave: the second peak of
    one spectrum is as a rule beside the first, and of the same wave.
    """
    width = float(x.max() - x.min())
    if width <= 0:
        return x.new_ones(_PEAKS)
    x, y = (x - x.mean()) / width, y - y.mean()
    known = [torch.ones_like(x), x, x.square()]
    highest = _highest(x)
    count = max(_FREQUENCIES, round(8 * highest))  # eight frequencies in the width of a peak
    frequency = torch.linspace(0.5, highest, count, dtype=x.dtype, device=x.device)
    angle = 2 * math.pi * frequency[:, None] * x  # [F, n]
    cosines, sines = angle.cos(), angle.sin()
    chosen: list[int] = []
    for _ in range(_PEAKS):
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
    """The highest frequency to look for, in turns over data x `[n]` of width 1.

    Neighbours tell frequencies apart up to half a turn between them: on a grid up to n / 2 turns in all, and further
    where data are irregular. Few data fit too many of those by chance.
    """
    gaps = x.unique().diff()
    gaps = gaps[gaps > 1e-6]
    n, near = len(x), float(gaps.quantile(0.1)) if len(gaps) else 1.0
    return max(2.0, min(0.5 / near, max(n / 2, n * n / 12), _HIGHEST))


def _random(leaf: Leaf, generator: torch.Generator) -> Tensor:
    def normal(size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)

    if leaf.kind == "coupling":
        return leaf.encode(leaf.value) + 0.3 * normal(leaf.size)
    if leaf.kind == "real":
        return leaf.encode(leaf.value) + (0.0 if leaf.name.startswith("mean") else normal(leaf.size))
    lower, upper = (math.log(v) for v in _RANGES.get(leaf.short, _OTHER))
    if leaf.short == "lengthscale":  # distances grow with the root of the dimension
        root = 0.5 * math.log(max(1, len(leaf.dims)))
        lower, upper = lower + root, upper + root
    u = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64).to(leaf.value)
    return lower + u * (upper - lower) + 0.5 * normal(leaf.size)  # one size for all dimensions, and each its own
