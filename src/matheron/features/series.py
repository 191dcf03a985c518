"""A stationary kernel's Fourier series on a box, as lattices: which continuation, which period, how many modes.

Of the ways to continue a kernel beyond the domain (`coefficients.py`), each term takes the one that needs the smaller
box. Terms share a box, and their coefficients add, where that costs few modes more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.terms import Term
from ..modes import plain
from ..nufft import series_at
from .box import JOIN_TIMES, LARGEST_DIM, Box, joined, own_period
from .coefficients import by_transform, coefficients, continued, decay_length, largest_error, near
from .explicit import expanded, monomial_count
from .lattice import Lattice
from .modulated import Modulated, OnLattice, largest_square, lattice_in, powers_of

# A series that errs by more of the variance than this is none.
LARGEST_ERROR = 0.2
# Where other features are to hold what lies beyond its modes: what lies within them errs by no more than this.
_LARGEST_WITHIN = 0.12
# Monomials that a stationary part is multiplied with, each with a lattice, at the most.
LARGEST_MONOMIALS = 10
# Points of the longest FFT of a kernel along one axis, which says how many modes the axis needs, by the number of axes.
_LONGEST = {1: 1 << 20, 2: 1 << 15, 3: 1 << 12}
# Points in each axis of the FFT that tries a cut-off, by the number of axes.
_TRIAL = {1: 2048, 2: 160, 3: 40}


class NoJointLattice(ValueError):
    """A kernel is not on one lattice of few enough modes, with explicit functions beside it."""


class Modes(NamedTuple):
    """How many modes a lattice may have.

    There are `largest` at the most. A rough kernel, whose spectrum has a long tail, has no more than `fine` for the
    accuracy asked for, and more only until `looser` times as much lies beyond them: its outermost octave carries that,
    at wavelengths so short that correlations over longer distances are right.
    """

    largest: int
    fine: int = 0
    looser: float = 1.0


class Placed(NamedTuple):
    """A lattice of some terms, with their coupling, and those of them that it holds only as far as its modes go."""

    basis: OnLattice
    coupling: Tensor | None
    beyond: tuple[Term, ...] = ()


def lattices(
    terms: list[Term],
    input_dim: int,
    domain: Tensor,
    origin: Tensor,
    *,
    left_out: float,
    images: float,
    several: Modes,
    one: Modes,
    largest_error: float = LARGEST_ERROR,
    joint: bool = False,
    refused: int | None = None,
    completed: bool = False,
) -> tuple[list[Placed], list[Term]]:
    """Lattices of the terms that have a stationary part, times each monomial of their linear forms, with their
    couplings; and the terms that have none.

    Args:
        terms: of one kernel.
        domain: the box `[2, d]` where the functions will be called.
        origin: about which these are summed, `[d]`.
        left_out: variance that may lie beyond the modes.
        images: what may be wrong with a correlation because the series repeats itself.
        several, one: how many modes a lattice may have in several dimensions, and in one.
        largest_error: share of the variance beyond which a series counts as none.
        joint: whether all terms are to have the same modes, whatever their number; different couplings and monomials
            have lattices of their own in any case.
        refused: more modes than this are a `NoJointLattice`, before they are made.
        completed: whether there are other features: in several dimensions for what lies beyond the modes, where that is
            more than `left_out`; in one for all of a term of which too much does.
    """
    pieces = pieces_of(terms)
    rest = [t for t in terms if not any(t is other for other, _ in pieces)]
    without: list[Term] = []  # terms that were tried
    while True:
        boxes: list[Box] = []
        failed: list[Term] = []
        for term, piece in pieces:
            share = left_out / len(pieces) / scale_of(piece, domain)
            modes = one if len(piece.active_dims(input_dim)) == 1 else several
            box = sized_box(piece, input_dim, domain, left_out=share, images=images, modes=modes)
            if box is None:
                failed.append(term)
            else:
                boxes.append(box)
        made: list[Placed] = []
        groups = [boxes] if joint else _alike(boxes)
        most = max(several.largest, one.largest)
        for box in [box for group in groups for box in joined(group, most, math.inf if joint else JOIN_TIMES)]:
            if refused is not None and box.num_modes > refused:
                raise NoJointLattice(f"{box.num_modes} modes")
            allowed = sum(left_out / len(pieces) / scale_of(piece, domain) for piece in box.terms)
            whole = not completed or len(box.dims) == 1 or box.left_out <= 2 * allowed
            too_few = completed and whole and box.left_out > 2 * one.looser * allowed
            for basis, part in bases_of(box, input_dim, origin, whole):
                of = lattice_in(basis)
                enough = of.error <= largest_error if whole else max(of.left_out / 4, of.error) <= _LARGEST_WITHIN
                if too_few or not enough:  # a narrow band at frequencies beyond the modes allowed
                    failed += [t for t, piece in pieces if any(piece is other for other in part.terms)]
                made.append(Placed(basis, part.terms[0].coupling, () if whole else part.terms))
        if not failed:
            return made, rest + without
        without = [t for t in terms if any(t is other for other in failed)] + without
        pieces = [(t, piece) for t, piece in pieces if not any(t is other for other in failed)]


def pieces_of(terms: list[Term]) -> list[tuple[Term, Term]]:
    """The terms that may have a lattice, each with every one of its monomials times its stationary part."""
    fit = [t for t in terms if t.stationary and monomial_count(list(t.forms)) <= LARGEST_MONOMIALS]
    return [(t, piece) for t in fit for piece in expanded(t)]


def _alike(boxes: list[Box]) -> list[list[Box]]:
    """Boxes of one term each, those of the same coupling and the same monomial together."""
    groups: dict[tuple[int, tuple[int, ...]], list[Box]] = {}
    for box in boxes:
        groups.setdefault((id(box.terms[0].coupling), powers_of(box.terms[0])), []).append(box)
    return list(groups.values())


def bases_of(box: Box, input_dim: int, origin: Tensor, whole: bool = True) -> list[tuple[OnLattice, Box]]:
    """The lattices of a box, all with its modes, one for each coupling and monomial of its terms; and each one's part
    of the box. They have the whole variance, or not what lies beyond the modes."""
    ones = [replace(box, terms=(t,), cut_off=(c,)) for t, c in zip(box.terms, box.cut_off, strict=True)]
    made: list[tuple[OnLattice, Box]] = []
    for group in _alike(ones):
        part = replace(box, terms=tuple(b.terms[0] for b in group), cut_off=tuple(b.cut_off[0] for b in group))
        part = replace(part, left_out=box.left_out * part.variance / box.variance)
        lattice, powers = lattice_of(part, input_dim, whole), powers_of(part.terms[0])
        made.append((Modulated(lattice, powers, origin) if powers else lattice, part))
    return made


def scale_of(term: Term, domain: Tensor) -> float:
    """The largest variance of what a term's stationary part, of variance one, is multiplied with."""
    size = 1.0 if term.coupling is None else float(term.coupling.detach().diagonal().max())
    return max(1e-300, size * largest_square(powers_of(term), domain))


def sized_box(
    term: Term, input_dim: int, domain: Tensor | None, *, left_out: float, images: float, modes: Modes
) -> Box | None:
    """The box of one term: images (or what a cut-off cannot represent) err by a share `images` of its variance, and
    `left_out` of variance at the most lies beyond the modes, unless these would be too many.

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
    # Where modes are too few for the accuracy asked, a smaller box leaves more of them for the high frequencies.
    for tolerance in [images] + [t for t in (1e-2, 3e-2, 1e-1) if t > images]:
        box = _with_period(empty, input_dim, tolerance, negative=max(share, 1e-4 * (tolerance > images)))
        if box is None:
            continue
        tails = [_tail(box, input_dim, axis, share, 8 * modes.largest) for axis in range(len(dims))]
        box = _with_modes(box, tails, share, modes)
        # Both as shares of the posterior variance, of which `left_out` is a share `images`: an image's was
        # measured, in one to three dimensions.
        error = images * box.left_out / left_out + (0.05 * tolerance) ** 2
        if best is None or error < best[1]:
            best = (box, error)
        if box.left_out <= 1.01 * share * len(dims) * box.variance * modes.looser:
            break
    return None if best is None else best[0]


def lattice_of(box: Box, input_dim: int, whole: bool = True) -> Lattice:
    """The series of a box as a basis, checked against the kernel."""
    period = torch.tensor(box.period, dtype=torch.float64, device="cpu")
    c = torch.zeros(box.shape, dtype=torch.float64, device="cpu")
    for term, cut_off in zip(box.terms, box.cut_off, strict=True):
        c = c + term.variance.cpu() * coefficients(term, cut_off, box, input_dim, whole)
    half = c.flatten()[c.numel() // 2 + 1 :]
    amplitudes = torch.cat([2 * half, c.flatten()[c.numel() // 2, None]]).clamp_min(0)
    root = torch.where(amplitudes > 0, amplitudes, 1.0).sqrt() * (amplitudes > 0)  # a root of zero has no derivative
    error, left_out = largest_error(box, c.detach(), input_dim), box.left_out / max(box.variance, 1e-300)
    return Lattice(box.dims, box.shape, period, root, error if whole else abs(error - left_out), left_out)


def _with_period(box: Box, input_dim: int, tolerance: float, negative: float) -> Box | None:
    """The smallest of the boxes that a kernel's images and cut-offs ask for.

    Images are smooth between points of the domain, and data see through them. The coefficients of a kernel that is cut
    off may be negative, at any frequency: their sum must be as small as what is left out.
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
    for q in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0):
        if math.inf in scale:
            return None
        period = [
            p if math.isfinite(p) else 2 * side + q * min(length, 4 * side + length / 4)
            for p, side, length in zip(box.period, box.side, scale, strict=True)
        ]
        if math.prod(period) >= math.prod(plain):
            break
        trial = replace(box, cut_off=(True,), period=tuple(period), m=(_TRIAL[len(period)] // 2,) * len(period))
        if _negative(trial, input_dim) <= negative:
            return replace(trial, m=())
    return None if math.inf in plain else replace(box, period=tuple(plain))


def _negative(box: Box, input_dim: int) -> float:
    """The sum of the negative coefficients of a kernel cut off by a box."""
    with torch.no_grad():
        return float(-by_transform(box.terms[0], True, box, input_dim).clamp_max(0).sum())


def _tail(box: Box, input_dim: int, axis: int, share: float, longest: int) -> Tensor:
    """For each m the share of variance beyond it along one axis, `[m + 1]`.

    The kernel along an axis has the spectrum's marginal there: an FFT, on a grid refined until its outer half is below
    the share, and the series right between the grid's points too.
    """
    (term,) = box.terms
    line = box.along([axis])
    generator = torch.Generator().manual_seed(axis)
    between = torch.rand(64, 1, generator=generator, dtype=torch.float64, device="cpu")
    between = torch.cat([between, near(64, 1, seed=axis)]) * line.period[0]
    with torch.no_grad():
        exact = plain(continued(term, box.cut_off[0], line, between, input_dim))
        size = 3**5  # powers of three: odd, and quick to transform
        while True:
            c = plain(by_transform(term, box.cut_off[0], replace(line, m=(size // 2,)), input_dim))  # [size]
            series = series_at(c[None].to(torch.complex128), 2 * math.pi / line.period[0] * between)[0].real
            c = c[size // 2 :].clamp_min(0) * torch.where(torch.arange(size // 2 + 1, device="cpu") > 0, 2.0, 1.0)
            beyond = c.flip(0).cumsum(0).flip(0)[1:]  # beyond[m]: more than m
            outer = float(beyond[size // 4])
            resolved = float((series - exact).abs().max()) <= 8 * outer + 1e-6
            if (outer <= share and resolved) or size > min(longest, _LONGEST[len(box.dims)]):
                return torch.cat([beyond, beyond.new_full((1,), 0.0 if resolved else 1.0)])
            size = 3 * size


def _with_modes(box: Box, tails: list[Tensor], share: float, allowed: Modes) -> Box:
    """The fewest modes that leave out a share of each axis, or as many as are allowed."""

    def modes(share: float) -> tuple[int, ...]:
        return tuple(min(int((tail > share).sum()), len(tail) - 1) for tail in tails)

    def count(share: float) -> int:
        return math.prod(2 * k + 1 for k in modes(share))

    full, loose = count(share), count(allowed.looser * share)
    largest = min(allowed.largest, max(allowed.fine, full if full <= 2 * loose else loose))
    if full > largest:
        low, high = math.log(max(share, 1e-18)), 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if count(math.exp(middle)) > largest else (low, middle)
        share = math.exp(high)
    m = modes(share)
    left = sum(float(tail[k]) for tail, k in zip(tails, m, strict=True))
    return replace(box, m=m, left_out=min(left, 1.0) * box.variance)
