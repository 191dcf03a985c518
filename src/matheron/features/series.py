"""A stationary kernel's Fourier series on a box: its periods, how many modes, and their coefficients.

Only differences between points of the domain matter, so the kernel may be continued beyond them in any way that keeps
its coefficients positive: by its own periodic images, far enough away, or cut off smoothly, whichever needs the
smaller box. Where the spectral density S is known, the images' coefficients are S(theta_j) prod(2 pi / period)
exactly; else they are an FFT of the kernel. What lies beyond the last mode is added to the outermost octave of modes:
the variance is right, and correlations err over distances below the shortest wavelength alone. Coefficients of
several terms add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.terms import Term
from ..nufft import series_at
from .lattice import Lattice

LARGEST_DIM = 3
# A series that errs by more of the variance than this is none.
LARGEST_ERROR = 0.2
# Points of the longest FFT of a kernel along one axis, which says how many modes the axis needs, by the number of axes.
_LONGEST = {1: 1 << 20, 2: 1 << 15, 3: 1 << 12}
# Points in each axis of the FFT that tries a cut-off, by the number of axes.
_TRIAL = {1: 2048, 2: 160, 3: 40}
# Lattices are joined where one for all of their terms has at most so many times their modes, or so many in all.
JOIN_TIMES, _JOIN_BELOW = 2.0, 4096


@dataclass(frozen=True)
class Box:
    """The box of some terms: in each coordinate its period, the domain's side, and the modes -m to m."""

    terms: tuple[Term, ...]
    cut_off: tuple[bool, ...]  # a term's: cut off, or continued by its images
    dims: tuple[int, ...]
    period: tuple[float, ...]
    side: tuple[float, ...]
    fixed: tuple[bool, ...]  # whether the period is the kernel's own, along a coordinate where it repeats
    m: tuple[int, ...] = ()
    left_out: float = 0.0  # variance beyond the modes

    @property
    def num_modes(self) -> int:
        return math.prod(2 * m + 1 for m in self.m)

    @property
    def variance(self) -> float:
        return sum(float(t.variance.detach()) for t in self.terms)


def lattices(
    terms: list[Term],
    input_dim: int,
    domain: Tensor | None,
    *,
    left_out: float,
    images: float,
    largest: int,
    largest_error: float = LARGEST_ERROR,
    join_times: float = JOIN_TIMES,
) -> tuple[list[tuple[Lattice, Tensor | None]], list[Term]]:
    """Lattices of the stationary terms with their couplings, and the terms that have none.

    Args:
        terms: of one kernel; those that are not purely stationary have no lattice.
        domain: the box `[2, d]` where the functions will be called; None for kernels that repeat themselves alone.
        left_out: variance that may lie beyond the modes.
        images: what may be wrong with a correlation because the series repeats itself.
        largest: modes of a lattice at the most.
        largest_error: share of the variance beyond which a series counts as none.
        join_times: terms share a lattice where it has at most so many times the modes of lattices of their own.
    """
    plain = [t for t in terms if t.stationary and not t.forms]
    boxes: list[tuple[Box, Tensor | None]] = []
    rest = [t for t in terms if not t.stationary or t.forms]
    for term in plain:
        share = left_out / len(plain) / _scale(term)
        box = sized_box(term, input_dim, domain, left_out=share, images=images, largest=largest)
        if box is None:
            rest.append(term)
        else:
            boxes.append((box, term.coupling))
    made: list[tuple[Lattice, Tensor | None]] = []
    while boxes:
        coupling = boxes[0][1]
        same = [box for box, B in boxes if B is coupling]
        boxes = [(box, B) for box, B in boxes if B is not coupling]
        for box in joined(same, largest, join_times):
            lattice = lattice_of(box, input_dim)
            if lattice.error > largest_error:  # a narrow band at frequencies beyond the modes that are allowed
                rest += box.terms
            else:
                made.append((lattice, coupling))
    return made, rest


def _scale(term: Term) -> float:
    return 1.0 if term.coupling is None else max(1e-300, float(term.coupling.detach().diagonal().max()))


def sized_box(
    term: Term, input_dim: int, domain: Tensor | None, *, left_out: float, images: float, largest: int
) -> Box | None:
    """The box of one term: images (or what a cut-off cannot represent) err by a share `images` of its variance, and
    `left_out` of variance at the most lies beyond the modes, unless these would be more than `largest`.

    None where the term has no series: too many coordinates, no domain, periods that no box holds.
    """
    dims = term.active_dims(input_dim)
    if len(dims) > LARGEST_DIM or not dims:
        return None
    periods = [_own_period(term, input_dim, i) for i in dims]
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
        tails = [_tail(box, input_dim, axis, share, 8 * largest) for axis in range(len(dims))]
        box = _with_modes(box, tails, share, largest)
        # Both as shares of the posterior variance, of which `left_out` is a share `images`: what data leave of an image
        # was measured, in one to three dimensions.
        error = images * box.left_out / left_out + (0.05 * tolerance) ** 2
        if best is None or error < best[1]:
            best = (box, error)
        if box.left_out <= 1.01 * share * len(dims) * box.variance:
            break
    return None if best is None else best[0]


def joined(boxes: list[Box], largest: int, times: float = JOIN_TIMES) -> list[Box]:
    """Fewer boxes for the same terms, where one for several of them has not many more modes than they have."""
    merged: list[Box] = []
    for box in sorted(boxes, key=lambda b: -b.num_modes):
        for i, other in enumerate(merged):
            both = _union(other, box)
            few = both is not None and both.num_modes <= max(_JOIN_BELOW, times * (box.num_modes + other.num_modes))
            if both is not None and few and both.num_modes <= largest:
                merged[i] = both
                break
        else:
            merged.append(box)
    return merged


def lattice_of(box: Box, input_dim: int) -> Lattice:
    """The series of a box as a basis, checked against the kernel."""
    shape = [2 * m + 1 for m in box.m]
    period = torch.tensor(box.period, dtype=torch.float64)
    c = torch.zeros(shape, dtype=torch.float64)
    for term, cut_off in zip(box.terms, box.cut_off, strict=True):
        c = c + term.variance.cpu() * _coefficients(term, cut_off, box, input_dim)
    half = c.flatten()[c.numel() // 2 + 1 :]
    amplitudes = torch.cat([2 * half, c.flatten()[c.numel() // 2, None]]).clamp_min(0)
    root = torch.where(amplitudes > 0, amplitudes, 1.0).sqrt() * (amplitudes > 0)  # a root of zero has no derivative
    error = _largest_error(box, c.detach(), input_dim)
    return Lattice(box.dims, shape, period, root, error, box.left_out / max(box.variance, 1e-300))


# One axis at a time.


def _own_period(term: Term, input_dim: int, i: int) -> float:
    """The period of a coordinate along which all factors repeat; infinite where one decays, NaN where none holds."""
    frequencies = []
    for kernel in term.stationary:
        if i not in kernel.active_dims(input_dim):
            continue
        atoms = kernel.measure(input_dim).atoms()
        if atoms is None:
            return math.inf
        theta, mass = atoms
        frequencies.append(theta[mass > 1e-14, i].detach().abs().cpu().double())
    theta = torch.cat(frequencies)
    theta = theta[theta > 0]
    if len(theta) == 0:
        return 1.0  # constant along this coordinate
    fundamental = float(theta.min())
    multiples = theta / fundamental
    return 2 * math.pi / fundamental if bool(((multiples - multiples.round()).abs() < 1e-6).all()) else math.nan


def _with_period(box: Box, input_dim: int, tolerance: float, negative: float) -> Box | None:
    """The smallest of the boxes that a kernel's images and cut-offs ask for.

    Images are smooth between points of the domain, and data see through them. The coefficients of a kernel that is cut
    off may be negative, at any frequency: their sum must be as small as what is left out.
    """
    (term,) = box.terms
    rooms = [
        0.0 if math.isfinite(p) else _decay_length(term, input_dim, i, side, tolerance / (2 * len(box.dims)))
        for i, p, side in zip(box.dims, box.period, box.side, strict=True)
    ]
    plain = [p if math.isfinite(p) else side + room for p, side, room in zip(box.period, box.side, rooms, strict=True)]
    scale = [
        _decay_length(term, input_dim, i, side, 0.3) if room else 0.0
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
        grid = _grid(box, [2 * m + 1 for m in box.m])
        values = _continued(box.terms[0], True, box, grid, input_dim).reshape([2 * m + 1 for m in box.m])
        return float(-torch.fft.fftn(values).real.clamp_max(0).sum() / values.numel())


def _decay_length(term: Term, input_dim: int, i: int, side: float, tolerance: float) -> float:
    """The distance along a coordinate beyond which the kernel stays below the tolerance; infinite where it does not."""
    octaves = [torch.linspace(2.0**j, 2.0 ** (j + 1), 129, dtype=torch.float64)[1:] for j in range(-10, 20)]
    r = torch.cat(octaves) * side
    x = torch.zeros(len(r), input_dim, dtype=torch.float64)
    x[:, i] = r
    above = (stationary(term, x).detach().abs() > tolerance).nonzero()
    last = int(above[-1]) if len(above) else -1
    return float(r[last + 1]) if last + 1 < len(r) else math.inf


def _tail(box: Box, input_dim: int, axis: int, share: float, longest: int) -> Tensor:
    """For each m the share of variance beyond it along one axis, `[m + 1]`.

    The kernel along an axis has the spectrum's marginal there: an FFT, on a grid refined until its outer half is below
    the share, and the series right between the grid's points too.
    """
    (term,) = box.terms
    line = replace(
        box, dims=(box.dims[axis],), period=(box.period[axis],), side=(box.side[axis],), fixed=(box.fixed[axis],), m=()
    )
    generator = torch.Generator().manual_seed(axis)
    between = torch.rand(64, 1, generator=generator, dtype=torch.float64)
    between = torch.cat([between, _near(64, 1, seed=axis)]) * line.period[0]
    with torch.no_grad():
        exact = _continued(term, box.cut_off[0], line, between, input_dim)
        size = 257
        while True:
            values = _continued(term, box.cut_off[0], line, _grid(line, [size]), input_dim)
            c = torch.fft.fftshift(torch.fft.fft(values).real) / size  # [size]
            series = series_at(c[None].to(torch.complex128), 2 * math.pi / line.period[0] * between)[0].real
            c = c[size // 2 :].clamp_min(0) * torch.where(torch.arange(size // 2 + 1) > 0, 2.0, 1.0)
            beyond = c.flip(0).cumsum(0).flip(0)[1:]  # beyond[m]: more than m
            outer = float(beyond[size // 4])
            resolved = float((series - exact).abs().max()) <= 8 * outer + 1e-6
            if (outer <= share and resolved) or size > min(longest, _LONGEST[len(box.dims)]):
                return torch.cat([beyond, beyond.new_full((1,), 0.0 if resolved else 1.0)])
            size = 4 * (size - 1) + 1


def _with_modes(box: Box, tails: list[Tensor], share: float, largest: int) -> Box:
    """The fewest modes that leave out a share of each axis, or as many as are allowed."""

    def modes(share: float) -> tuple[int, ...]:
        return tuple(min(int((tail > share).sum()), len(tail) - 1) for tail in tails)

    def count(m: tuple[int, ...]) -> int:
        return math.prod(2 * k + 1 for k in m)

    if count(modes(share)) > largest:
        low, high = math.log(max(share, 1e-18)), 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if count(modes(math.exp(middle))) > largest else (low, middle)
        share = math.exp(high)
    m = modes(share)
    left = sum(float(tail[k]) for tail, k in zip(tails, m, strict=True))
    return replace(box, m=m, left_out=min(left, 1.0) * box.variance)


def _union(a: Box, b: Box) -> Box | None:
    """One box for the terms of both: the longer period and the higher frequency in each coordinate."""
    dims = sorted({*a.dims, *b.dims})
    period, side, fixed, m = [], [], [], []
    for i in dims:
        both = [(x, x.dims.index(i)) for x in (a, b) if i in x.dims]
        longest = max(x.period[k] for x, k in both)
        own = {x.period[k] for x, k in both if x.fixed[k]}
        if len(own) > 1:
            return None
        if own:  # a whole number of the kernel's own periods
            (p,) = own
            longest = p * math.ceil(longest / p - 1e-9)
        period.append(longest)
        side.append(max(x.side[k] for x, k in both))
        fixed.append(bool(own))
        m.append(max(math.ceil(x.m[k] * longest / x.period[k] - 1e-9) for x, k in both))
    if len(dims) > LARGEST_DIM:
        return None
    return Box(
        terms=a.terms + b.terms,
        cut_off=a.cut_off + b.cut_off,
        dims=tuple(dims),
        period=tuple(period),
        side=tuple(side),
        fixed=tuple(fixed),
        m=tuple(m),
        left_out=a.left_out + b.left_out,
    )


# The kernel and its coefficients.


def stationary(term: Term, x: Tensor) -> Tensor:
    """The stationary part at differences x `[n, d]` from the origin -> `[n]`."""
    value = torch.ones(len(x), dtype=x.dtype)
    for kernel in term.stationary:
        value = value * kernel.to("cpu").forward(x, torch.zeros_like(x[:1]))[:, 0]
    return value


def _grid(box: Box, shape: list[int]) -> Tensor:
    """Differences from 0 to a period in each coordinate, `[N, k]`, in an FFT's order."""
    axes = [torch.arange(n, dtype=torch.float64) * (p / n) for n, p in zip(shape, box.period, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(axes))


def _continued(term: Term, cut_off: bool, box: Box, r: Tensor, input_dim: int) -> Tensor:
    """The kernel beyond the domain as the box continues it, at differences `[N, k]` in [0, period] -> `[N]`."""
    active = set(term.active_dims(input_dim))
    decays = [i in active and not math.isfinite(_own_period(term, input_dim, i)) for i in box.dims]
    x = torch.zeros(len(r), input_dim, dtype=torch.float64)
    period = torch.tensor(box.period, dtype=torch.float64)
    near = torch.minimum(r, period - r)  # a kernel along one coordinate is even: so is its continuation
    if cut_off:
        # Of a difference across two coordinates only the relative sign matters, and the nearest image has it.
        wrapped = torch.where(r <= period / 2, r, r - period)
        x[:, box.dims] = wrapped
        value = stationary(term, x)
        for axis, decay in enumerate(decays):
            if decay:
                width = box.period[axis] / 2 - box.side[axis]
                value = value * _smooth_step((near[:, axis] - box.side[axis]) / width)
        return value
    total = torch.zeros(len(r), dtype=torch.float64)
    for image in product(*[(0.0, -1.0, 1.0, -2.0) if decay else (0.0,) for decay in decays]):
        if not any(image) or _matters(term, box, image, input_dim):
            x[:, box.dims] = r + torch.tensor(image, dtype=torch.float64) * period
            total = total + stationary(term, x)
    return total


def _matters(term: Term, box: Box, image: tuple[float, ...], input_dim: int) -> bool:
    """Whether an image is more than rounding anywhere in the box: in a tenth of it at the corner nearest to it."""
    inside = 0.1 * _near(64, len(image), seed=0)
    x = torch.zeros(len(inside), input_dim, dtype=torch.float64)
    for axis, (i, shift) in enumerate(zip(box.dims, image, strict=True)):
        nearest = inside[:, axis] if shift >= 0 else 1 - inside[:, axis]
        x[:, i] = box.period[axis] * (nearest + shift)
    return float(stationary(term, x).detach().abs().max()) > 1e-13


def _near(count: int, dim: int, seed: int) -> Tensor:
    """Points of the unit cube `[count, dim]` at all distances from the origin, down to a millionth: a domain may be
    that much longer than a kernel's lengthscale."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.rand(2, count, dim, generator=generator, dtype=torch.float64)
    return v * torch.exp(-14 * u[:, :1])


def _smooth_step(t: Tensor) -> Tensor:
    """One up to 0, zero from 1, infinitely smooth between."""
    t = t.clamp(1e-9, 1 - 1e-9)
    return torch.sigmoid(1 / t - 1 / (1 - t))


def _coefficients(term: Term, cut_off: bool, box: Box, input_dim: int) -> Tensor:
    """The Fourier coefficients of a term of variance one on the box's modes, `[*shape]`, none negative."""
    active = term.active_dims(input_dim)
    mine = [axis for axis, i in enumerate(box.dims) if i in active]
    part = replace(
        box,
        dims=tuple(box.dims[a] for a in mine),
        period=tuple(box.period[a] for a in mine),
        side=tuple(box.side[a] for a in mine),
        fixed=tuple(box.fixed[a] for a in mine),
        m=tuple(box.m[a] for a in mine),
    )
    c = None if cut_off else _by_density(term, part, input_dim)
    if c is None:
        shape = [2 * m + 1 for m in part.m]
        values = _continued(term, cut_off, part, _grid(part, shape), input_dim).reshape(shape)
        c = (torch.fft.fftshift(torch.fft.fftn(values).real) / values.numel()).clamp_min(0)
    if len(mine) == len(box.dims):
        return c
    shape = [2 * m + 1 if axis in mine else 1 for axis, m in enumerate(box.m)]
    widths = [0 if axis in mine else m for axis, m in enumerate(box.m)]  # constant along the others: their mode 0
    return pad(c.reshape(shape), [w for width in reversed(widths) for w in (width, width)])


def _by_density(term: Term, box: Box, input_dim: int) -> Tensor | None:
    """S(theta_j) prod(2 pi / period), with what is left over in the outermost octave; None without a density."""
    measure = term.measure(input_dim)
    if getattr(measure, "density_dims", None) != list(box.dims):
        return None
    axes = [
        torch.arange(-m, m + 1, dtype=torch.float64) * (2 * math.pi / p) for m, p in zip(box.m, box.period, strict=True)
    ]
    theta = torch.zeros(box.num_modes, input_dim, dtype=torch.float64)
    theta[:, list(box.dims)] = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    density = measure.density(theta)
    if density is None or not bool(torch.isfinite(density.detach()).all()):
        return None
    shape = [2 * m + 1 for m in box.m]
    c = (density * math.prod(2 * math.pi / p for p in box.period)).reshape(shape)
    zero = torch.zeros(1, len(box.dims), dtype=torch.float64)
    total = _sum_of_images(term, box, zero, input_dim)[0]
    rest = (total - c.sum()).clamp_min(0)
    outer = torch.zeros(shape, dtype=torch.bool)
    for axis, m in enumerate(box.m):
        far = torch.arange(-m, m + 1).abs() * 2 > m
        outer = outer | far.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    mass = (c * outer).sum()
    if float(rest.detach()) <= 1e-12 or float(mass.detach()) <= 0:
        return c
    return c * (1 + outer * (rest / mass))


def _sum_of_images(term: Term, box: Box, r: Tensor, input_dim: int) -> Tensor:
    total = torch.zeros(len(r), dtype=torch.float64)
    x = torch.zeros(len(r), input_dim, dtype=torch.float64)
    for image in product((-1.0, 0.0, 1.0), repeat=len(box.dims)):
        x[:, list(box.dims)] = r + torch.tensor(image, dtype=torch.float64) * torch.tensor(
            box.period, dtype=torch.float64
        )
        total = total + stationary(term, x)
    return total


@torch.no_grad()
def _largest_error(box: Box, c: Tensor, input_dim: int) -> float:
    """The largest difference of the series from the kernel between random points of the domain, in variances."""
    generator = torch.Generator().manual_seed(0)
    k = len(box.dims)
    r = 2 * torch.rand(256, k, generator=generator, dtype=torch.float64) - 1
    ends = torch.tensor(list(product((-1.0, 0.0, 1.0), repeat=k)), dtype=torch.float64)  # where images are nearest
    r = torch.cat([ends, r, r[:64].sign() * _near(64, k, seed=1)])
    side = torch.tensor([s or p for s, p in zip(box.side, box.period, strict=True)], dtype=torch.float64)
    period = torch.tensor(box.period, dtype=torch.float64)
    series = series_at(c[None].to(torch.complex128), r * side * (2 * math.pi / period))[0].real
    x = torch.zeros(len(r), input_dim, dtype=torch.float64)
    x[:, list(box.dims)] = r * side
    exact = torch.zeros(len(r), dtype=torch.float64)
    for term in box.terms:
        exact += term.variance.cpu() * stationary(term, x)
    return float((series - exact).abs().max()) / max(box.variance, 1e-300)
