"""The Fourier series of a stationary kernel as lattices: how the kernel is continued, with which period, and on how
many modes.

Of the ways to continue a kernel beyond the domain (see `coefficients`), each term takes the one that needs the smaller
box. Terms share a box, and their coefficients add, where that costs few modes more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.modes import plain
from ..core.nufft import series_at
from ..features import LARGEST_DIM
from ..kernels.base import Term, same_coupling
from .basis import Lattice
from .box import Box, joined
from .coefficients import by_transform, continued, lattice_of, near, own_period, stationary

# A series with a larger error than this, relative to the variance, is not used.
LARGEST_ERROR = 0.2


class NoJointLattice(ValueError):
    """Raised if a kernel cannot be represented by one lattice of few enough modes and explicit functions."""


# The factor by which frequencies `[m, d]` count in the variance that is left out: 1 if only values are observed.
Seen: TypeAlias = Callable[[Tensor], Tensor]


class Modes(NamedTuple):
    """How many modes a lattice may have.

    There are at most `largest` modes, or at most `first` if `largest` are too few and further lattices represent the
    rest. The spectrum of a rough kernel has a long tail. Its lattice has at most `fine` modes if these reach the
    accuracy, or more until at most `looser` times as much variance lies above them. The outermost octave of modes then
    has that variance too, at wavelengths so short that correlations over longer distances are right.
    """

    largest: int
    fine: int = 0
    looser: float = 1.0
    first: int | None = None


class LatticeBlock(NamedTuple):
    """A lattice of the terms of a box, with their coupling.

    With a `tail`, the lattice represents the terms only up to its highest frequency, and `allowed` is the variance that
    may be missing.
    """

    basis: Lattice
    coupling: Tensor | None
    box: Box
    tail: bool = False
    allowed: float = 0.0


def lattices(
    terms: list[Term],
    input_dim: int,
    domain: Tensor,
    *,
    left_out: float,
    images: float,
    several: Modes,
    one: Modes,
    largest_error: float = LARGEST_ERROR,
    largest_within: float = 0.12,
    joint: bool = False,
    refused: int | None = None,
    tailed: bool = False,
    seen: Seen | None = None,
) -> tuple[list[LatticeBlock], list[Term]]:
    """Lattices of the stationary terms, with their couplings; and the terms that have none.

    Args:
        terms: of one kernel.
        domain: the box `[2, d]` where the functions will be called.
        left_out: variance that may lie beyond the modes.
        images: what may be wrong with a correlation because the series repeats itself.
        several, one: how many modes a lattice may have in several dimensions, and in one.
        largest_error: share of the variance beyond which a series counts as none.
        largest_within: the same share of the variance within the modes, where other features hold what lies beyond
            them.
        joint: whether all terms are to have the same modes, whatever their number; different couplings have lattices
            of their own in any case.
        refused: more modes than this are a `NoJointLattice`, before they are made.
        tailed: whether there are other features for what the modes leave out. In several dimensions these hold what
            lies beyond the modes, where that is more than `left_out`. In one dimension they hold the whole of a term of
            which too much lies beyond.
        seen: how many times the variance of each frequency counts in `left_out`.
    """
    fit = with_series(terms)
    rest = [t for t in terms if not any(t is other for other in fit)]
    without: list[Term] = []  # the terms that have no lattice after all
    while True:
        boxes: list[Box] = []
        failed: list[Term] = []
        for term in fit:
            share = left_out / len(fit) / scale_of(term)
            modes = one if len(term.active_dims(input_dim)) == 1 else several
            box = sized_box(term, input_dim, domain, left_out=share, images=images, modes=modes, seen=seen)
            if box is None:
                failed.append(term)
            else:
                boxes.append(box)
        made: list[LatticeBlock] = []
        most = max(several.largest, one.largest)
        groups = [joined(boxes, most, math.inf)] if joint else [joined(group, most) for group in _alike(boxes)]
        for box in [box for group in groups for box in group]:
            if refused is not None and box.num_modes > refused:
                raise NoJointLattice(f"{box.num_modes} modes")
            allowed = sum(left_out / len(fit) / scale_of(term) for term in box.terms)
            whole = not tailed or len(box.dims) == 1 or box.left_out <= 2 * allowed
            too_few = tailed and whole and box.left_out > 2 * one.looser * allowed
            for basis, part in bases_of(box, input_dim, whole):
                within = basis.error if whole else max(basis.left_out / 4, basis.error)
                if too_few or within > (largest_error if whole else largest_within):
                    failed += part.terms  # a narrow band of frequencies beyond the modes that are allowed
                made.append(LatticeBlock(basis, part.terms[0].coupling, part, not whole, allowed))
        if not failed:
            return made, rest + without
        without = [t for t in terms if any(t is other for other in failed)] + without
        fit = [t for t in fit if not any(t is other for other in failed)]


def with_series(terms: list[Term]) -> list[Term]:
    """The terms that can have a Fourier series: those that are stationary, without linear factors."""
    return [t for t in terms if t.stationary and not (t.forms or t.own)]


def grouped(terms: Sequence[Term]) -> list[list[int]]:
    """The indices of the terms, grouped by their coupling."""
    groups: list[list[int]] = []
    for i, term in enumerate(terms):
        for group in groups:
            if same_coupling(term.coupling, terms[group[0]].coupling):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _alike(boxes: list[Box]) -> list[list[Box]]:
    """Boxes of one term each, grouped by their coupling."""
    return [[boxes[i] for i in group] for group in grouped([box.terms[0] for box in boxes])]


def bases_of(box: Box, input_dim: int, whole: bool = True) -> list[tuple[Lattice, Box]]:
    """The lattices of a box, all with its modes, one for each coupling of its terms, and the part of the box that
    belongs to each. They contain the whole variance, or only that of the modes' own frequencies."""
    ones = [replace(box, terms=(t,), cut_off=(c,)) for t, c in zip(box.terms, box.cut_off, strict=True)]
    made: list[tuple[Lattice, Box]] = []
    for group in _alike(ones):
        part = replace(box, terms=tuple(b.terms[0] for b in group), cut_off=tuple(b.cut_off[0] for b in group))
        part = replace(part, left_out=box.left_out * part.variance / box.variance)
        made.append((lattice_of(part, input_dim, whole), part))
    return made


def scale_of(term: Term) -> float:
    """The largest variance of an output, of a term whose stationary part has variance one."""
    return 1.0 if term.coupling is None else max(1e-300, float(term.coupling.detach().diagonal().max()))


def sized_box(
    term: Term,
    input_dim: int,
    domain: Tensor | None,
    *,
    left_out: float,
    images: float,
    modes: Modes,
    seen: Seen | None = None,
) -> Box | None:
    """The box of one term, with its periods and modes.

    The error of periodic images (or what a cut-off cannot represent) is a share `images` of the term's variance. At
    most `left_out` of the variance, with the weight `seen` of each frequency, lies beyond the modes, unless these would
    be too many.

    None where the term has no series: too many coordinates, no domain, periods that no box holds.
    """
    dims = term.active_dims(input_dim)
    if len(dims) > LARGEST_DIM or not dims:
        return None
    periods = [own_period(term, input_dim, i) for i in dims]
    if any(math.isnan(p) for p in periods) or (domain is None and math.inf in periods):
        return None
    sides = [0.0] * len(dims) if domain is None else (domain[1] - domain[0])[dims].tolist()
    fixed = tuple(math.isfinite(p) for p in periods)
    empty = Box((term,), (False,), tuple(dims), tuple(periods), tuple(sides), fixed)
    share = left_out / max(float(term.variance.detach()), 1e-300) / len(dims)
    best = None
    # If there are too few modes for the accuracy, a smaller box leaves more of them for the high frequencies.
    for tolerance in [images] + [t for t in (1e-2, 3e-2, 1e-1) if t > images]:
        box = _with_period(empty, input_dim, tolerance, max(share, 1e-4 * (tolerance > images)), seen)
        if box is None:
            continue
        longest = min(8 * modes.largest, {1: 1 << 20, 2: 1 << 15, 3: 1 << 12}[len(dims)])
        tails = _seen_along(box, input_dim, share, longest, seen)
        box = _with_modes(box, tails, share, modes)
        # Both errors are relative to the posterior variance, of which `left_out` is the fraction `images`. The error of
        # the images was measured in one to three dimensions.
        error = images * box.left_out / left_out + (0.05 * tolerance) ** 2
        if best is None or error < best[1]:
            best = (box, error)
        if box.left_out <= 1.01 * share * len(dims) * box.variance * modes.looser:
            break
    return None if best is None else best[0]


def _with_period(box: Box, input_dim: int, tolerance: float, negative: float, seen: Seen | None) -> Box | None:
    """The smallest of the boxes that a kernel's images and cut-offs ask for.

    Periodic images are smooth within the domain, and data determine smooth functions. The coefficients of a kernel that
    is cut off may be negative at any frequency. Their sum must be as small as the variance that may be left out.
    """
    (term,) = box.terms
    rooms = [
        0.0 if math.isfinite(p) else decay_length(term, input_dim, i, side, tolerance / (2 * len(box.dims)))
        for i, p, side in zip(box.dims, box.period, box.side, strict=True)
    ]
    plain = [p if math.isfinite(p) else side + room for p, side, room in zip(box.period, box.side, rooms, strict=True)]
    scale = [
        decay_length(term, input_dim, i, side, 0.3) if room else 0.0
        for i, side, room in zip(box.dims, box.side, rooms, strict=True)
    ]
    n = {1: 2048, 2: 160, 3: 40}[len(box.dims)]  # points along each axis of the FFT that tries a cut-off
    for q in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0):
        if math.inf in scale:
            return None
        period = [
            p if math.isfinite(p) else 2 * side + q * min(length, 4 * side + length / 4)
            for p, side, length in zip(box.period, box.side, scale, strict=True)
        ]
        if math.prod(period) >= math.prod(plain):
            break
        trial = replace(box, cut_off=(True,), period=tuple(period), m=(n // 2,) * len(period))
        if _negative(trial, input_dim, seen) <= negative:
            return replace(trial, m=())
    return None if math.inf in plain else replace(box, period=tuple(plain))


def _negative(box: Box, input_dim: int, seen: Seen | None) -> float:
    """The sum of the negative coefficients of a kernel that is cut off by a box, with the weights `seen` of their
    frequencies."""
    with torch.no_grad():
        c = -by_transform(box.terms[0], True, box, input_dim).clamp_max(0)
    return float(c.sum() if seen is None else (c.flatten() * seen(box.frequencies(input_dim))).sum())


def decay_length(term: Term, input_dim: int, i: int, side: float, tolerance: float) -> float:
    """The distance along a coordinate beyond which the kernel stays below the tolerance; infinite where it does not."""
    octaves = [
        torch.linspace(2.0**j, 2.0 ** (j + 1), 129, dtype=torch.float64, device="cpu")[1:] for j in range(-10, 20)
    ]
    r = torch.cat(octaves) * side
    size = torch.zeros(len(r), dtype=torch.float64, device="cpu")
    for slopes in _ridges(term, input_dim, i, r):
        size = torch.maximum(size, stationary(term, r[:, None] * slopes).detach().abs())
    above = (size > tolerance).nonzero()
    last = int(above[-1]) if len(above) else -1
    return float(r[last + 1]) if last + 1 < len(r) else math.inf


def _ridges(term: Term, input_dim: int, i: int, r: Tensor) -> Tensor:
    """Directions `[k, d]`, one of them along coordinate i, in which a kernel may decay the slowest. For a kernel that
    is rotated in a plane there are many others."""
    axis = torch.zeros(1, input_dim, dtype=torch.float64, device="cpu")
    axis[0, i] = 1
    found = [axis]
    for j in term.active_dims(input_dim):
        slope = torch.zeros_like(axis)
        slope[0, j] = 1
        both = [stationary(term, r[:, None] * (axis + sign * slope)).detach() for sign in (1, -1)]
        if j != i and not torch.allclose(*both, rtol=0, atol=1e-9):
            turns = torch.linspace(-1.5, 1.5, 64, dtype=torch.float64, device="cpu").tan()
            found.append(axis + turns[:, None] * slope)
    return torch.cat(found)


def tails_along(box: Box, input_dim: int, axes: Sequence[int], share: float, longest: int) -> list[Tensor]:
    """For each m the share of variance beyond it, `[m + 1]`, along some axes of the box of one term.

    They are computed until they are below `share`, by transforms of at most about `longest` points. Axes along which
    the term is the same share one result.
    """
    (term,) = box.terms
    r = near(64, 1, seed=5)[:, 0]
    x = torch.zeros(len(axes), len(r), input_dim, dtype=torch.float64, device="cpu")
    for row, axis in zip(x, axes, strict=True):
        row[:, box.dims[axis]] = r * box.period[axis]
    with torch.no_grad():
        along = [stationary(term, row) for row in x]
    found: list[tuple[tuple[float, float, bool], Tensor, Tensor]] = []
    tails = []
    for axis, values in zip(axes, along, strict=True):
        place = (box.period[axis], box.side[axis], box.fixed[axis])
        same = [tail for other, known, tail in found if other == place and torch.equal(known, values)]
        tails.append(same[0] if same else _tail(box, input_dim, axis, share, longest))
        found.append((place, values, tails[-1]))
    return tails


def _seen_along(box: Box, input_dim: int, share: float, longest: int, seen: Seen | None) -> list[Tensor]:
    """The shares of variance above each mode of a box of one term, along its axes, with the weights `seen` of their
    frequencies.

    Along the other coordinates a frequency has the same number of correlation lengths.
    """
    axes, (term,) = range(len(box.dims)), box.terms
    if seen is None:
        return tails_along(box, input_dim, axes, share, longest)
    sides = [side or p for side, p in zip(box.side, box.period, strict=True)]
    decays = [decay_length(term, input_dim, i, side, 0.3) for i, side in zip(box.dims, sides, strict=True)]
    lengths = [side if math.isinf(length) else length for length, side in zip(decays, sides, strict=True)]
    finest = share
    while True:  # until the weighted share is below the limit too
        found = []
        for axis, tail in zip(axes, tails_along(box, input_dim, axes, finest, longest), strict=True):
            theta = torch.zeros(len(tail), input_dim, dtype=torch.float64, device="cpu")
            step = 2 * math.pi / box.period[axis] * torch.arange(1, len(tail) + 1, dtype=torch.float64, device="cpu")
            for other, i in enumerate(box.dims):
                theta[:, i] = step * (lengths[axis] / lengths[other])
            mass = tail - torch.cat([tail[1:], tail[-1:] * 0])  # the mass of mode m + 1
            found.append((mass * seen(theta)).flip(0).cumsum(0).flip(0))
        if finest < 1e-15 or all(float(tail[len(tail) // 2]) <= share or len(tail) > longest // 2 for tail in found):
            return found
        finest /= 30


def _tail(box: Box, input_dim: int, axis: int, share: float, longest: int) -> Tensor:
    """For each m the share of variance beyond it along one axis, `[m + 1]`.

    The kernel along an axis has the spectrum's marginal there, which an FFT computes. Its grid is refined until its
    outer half is below the share, and the series is right between the grid's points too.
    """
    (term,) = box.terms
    line = box.along([axis])
    generator = torch.Generator().manual_seed(axis)
    between = torch.rand(64, 1, generator=generator, dtype=torch.float64, device="cpu")
    between = torch.cat([between, near(64, 1, seed=axis)]) * line.period[0]
    with torch.no_grad():
        exact = plain(continued(term, box.cut_off[0], line, between, input_dim))
        size = 3**5  # powers of three are odd, and fast to transform
        while True:
            c = plain(by_transform(term, box.cut_off[0], replace(line, m=(size // 2,)), input_dim))  # [size]
            series = series_at(c[None].to(torch.complex128), 2 * math.pi / line.period[0] * between)[0].real
            c = c[size // 2 :].clamp_min(0) * torch.where(torch.arange(size // 2 + 1, device="cpu") > 0, 2.0, 1.0)
            beyond = c.flip(0).cumsum(0).flip(0)[1:]  # beyond[m] is the mass of the modes above m
            outer = float(beyond[size // 4])
            resolved = float((series - exact).abs().max()) <= 8 * outer + 1e-6
            if (outer <= share and resolved) or size > longest:
                return torch.cat([beyond, beyond.new_full((1,), 0.0 if resolved else 1.0)])
            size = 3 * size


def _with_modes(box: Box, tails: list[Tensor], share: float, allowed: Modes) -> Box:
    """The smallest number of modes that leaves out at most this share along each axis, or the largest number that is
    allowed."""

    def modes(share: float) -> tuple[int, ...]:
        return tuple(min(int((tail > share).sum()), len(tail) - 1) for tail in tails)

    def count(share: float) -> int:
        return math.prod(2 * k + 1 for k in modes(share))

    full, loose = count(share), count(allowed.looser * share)
    largest = min(allowed.largest, max(allowed.fine, full if full <= 2 * loose else loose))
    if full > largest:
        largest = largest if allowed.first is None else min(largest, allowed.first)
        low, high = math.log(max(share, 1e-18)), 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if count(math.exp(middle)) > largest else (low, middle)
        share = math.exp(high)
    m = modes(share)
    left = sum(float(tail[k]) for tail, k in zip(tails, m, strict=True))
    return replace(box, m=m, left_out=min(left, 1.0) * box.variance)
