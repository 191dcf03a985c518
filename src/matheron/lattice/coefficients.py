"""The Fourier coefficients of a stationary kernel on a box.

The series must equal the kernel only at differences between points of the domain. At larger differences the kernel may
be continued in any way that keeps its coefficients positive: by its own periodic images, far enough away, or by a
smooth cut-off. If the spectral density S is known, the coefficients of the images are S(theta_j) prod(2 pi / period)
exactly; otherwise they are an FFT of the kernel.

The variance of frequencies above the last mode is added to the outermost octave of modes. The variance is then right,
and correlations are wrong only over distances below the shortest wavelength. If other features represent these
frequencies, their variance is not added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core.nufft import series_at
from ..kernels.base import Term
from .basis import Lattice
from .box import Box


def lattice_of(box: Box, input_dim: int, whole: bool = True) -> Lattice:
    """The series of a box as a basis, checked against the kernel."""
    period = torch.tensor(box.period, dtype=torch.float64, device="cpu")
    c = torch.zeros(box.shape, dtype=torch.float64, device="cpu")
    for term, cut_off in zip(box.terms, box.cut_off, strict=True):
        c = c + term.variance.cpu() * coefficients(term, cut_off, box, input_dim, whole)
    error, left_out = largest_error(box, c.detach(), input_dim), box.left_out / max(box.variance, 1e-300)
    return Lattice(box.dims, box.shape, period, amplitudes_of(c), error if whole else abs(error - left_out), left_out)


def coefficients(term: Term, cut_off: bool, box: Box, input_dim: int, whole: bool = True) -> Tensor:
    """The Fourier coefficients of a term of variance one on the box's modes, `[*shape]`, none negative.

    They contain the whole variance, or only that of the modes' own frequencies.
    """
    active = term.active_dims(input_dim)
    mine = [axis for axis, i in enumerate(box.dims) if i in active]
    part = box.along(mine)
    c = None if cut_off else by_density(term, part, input_dim, whole)
    if c is None and whole:
        c = by_transform(term, cut_off, part, input_dim).clamp_min(0)
    elif c is None:
        c = by_longer_transform(term, cut_off, part, input_dim, times=2)
    return on_box(c, mine, box)


def on_box(c: Tensor, axes: Sequence[int], box: Box) -> Tensor:
    """Extend coefficients of a term that depends on some axes of a box to all modes of the box, `[*shape]`."""
    shape = [2 * m + 1 if axis in axes else 1 for axis, m in enumerate(box.m)]
    # the term is constant along the other axes, so only their mode 0 counts
    widths = [0 if axis in axes else m for axis, m in enumerate(box.m)]
    return pad(c.reshape(shape), [w for width in reversed(widths) for w in (width, width)])


def by_density(term: Term, box: Box, input_dim: int, whole: bool, images: int = 8) -> Tensor | None:
    """S(theta_j) prod(2 pi / period); None without a density.

    If they are to contain the whole variance, the outermost octave gets the remainder. The coefficients of all
    frequencies would sum to the periodic images of the kernel at zero, of which only the nearest matter. The remainder
    is this sum minus that of the modes.
    """
    measure = term.measure(input_dim)
    if getattr(measure, "density_dims", None) != list(box.dims):
        return None
    density = measure.density(box.frequencies(input_dim))
    if density is None or not bool(torch.isfinite(density.detach()).all()):
        return None
    c = (density * math.prod(2 * math.pi / p for p in box.period)).reshape(box.shape)
    if not whole:
        return c
    places = list(product(range(-images, images + 1), repeat=len(box.dims)))
    x = torch.zeros(len(places), input_dim, dtype=torch.float64, device="cpu")
    x[:, list(box.dims)] = torch.tensor(places, dtype=torch.float64, device="cpu") * torch.tensor(
        box.period, dtype=torch.float64, device="cpu"
    )
    rest = (stationary(term, x).sum() - c.sum()).clamp_min(0)
    outer = outermost(box)
    mass = (c * outer).sum()
    if float(rest.detach()) <= 1e-12 or float(mass.detach()) <= 0:
        return c
    return c * (1 + outer * (rest / mass))


def outermost(box: Box) -> Tensor:
    """Whether a mode is in the outermost octave of one of its coordinates, `[*shape]`."""
    outer = torch.zeros(box.shape, dtype=torch.bool, device="cpu")
    for axis, m in enumerate(box.m):
        far = torch.arange(-m, m + 1, device="cpu").abs() * 2 > m
        outer = outer | far.reshape([-1 if a == axis else 1 for a in range(len(box.dims))])
    return outer


def by_transform(term: Term, cut_off: bool, box: Box, input_dim: int) -> Tensor:
    """The coefficients on the box's modes by an FFT of the continued kernel, `[*shape]`; some may be negative."""
    even = _even_in_each(term, box, input_dim)  # then one half of each axis is the mirror image of the other
    points = [m + 1 if even else n for m, n in zip(box.m, box.shape, strict=True)]
    steps = [p / n for p, n in zip(box.period, box.shape, strict=True)]
    axes = [torch.arange(n, dtype=torch.float64, device="cpu") * step for n, step in zip(points, steps, strict=True)]
    r = torch.cartesian_prod(*axes).reshape(-1, len(axes))  # differences from 0 to a period, in the order of an FFT
    values = continued(term, cut_off, box, r, input_dim).reshape(points)
    for axis, m in enumerate(box.m if even else ()):
        values = torch.cat([values, values.narrow(axis, 1, m).flip(axis)], dim=axis)
    return torch.fft.fftshift(torch.fft.fftn(values).real) / values.numel()


def by_longer_transform(term: Term, cut_off: bool, box: Box, input_dim: int, times: int) -> Tensor:
    """The coefficients by an FFT with `times` as many modes, of which the box's own are kept.

    An FFT aliases higher frequencies to its modes. With a longer FFT, most of this error falls on modes that are not
    kept.
    """
    c = by_transform(term, cut_off, replace(box, m=tuple(times * m for m in box.m)), input_dim).clamp_min(0)
    return c[tuple(slice((times - 1) * m, (times + 1) * m + 1) for m in box.m)]


def _even_in_each(term: Term, box: Box, input_dim: int) -> bool:
    """Whether the kernel is even in each coordinate separately, which a rotated kernel is not."""
    r = near(64, len(box.dims), seed=2) * torch.tensor(box.period, dtype=torch.float64, device="cpu")
    signs = torch.randint(2, r.shape, generator=torch.Generator().manual_seed(3), device="cpu") * 2 - 1
    x = torch.zeros(2, len(r), input_dim, dtype=torch.float64, device="cpu")
    x[:, :, list(box.dims)] = torch.stack([r, r * signs])
    with torch.no_grad():
        return torch.allclose(*(stationary(term, each) for each in x), rtol=0, atol=1e-14)


def continued(term: Term, cut_off: bool, box: Box, r: Tensor, input_dim: int) -> Tensor:
    """The kernel, continued beyond the domain as the box states, at differences `[N, k]` in [0, period] -> `[N]`."""
    active = set(term.active_dims(input_dim))
    decays = [i in active and not math.isfinite(own_period(term, input_dim, i)) for i in box.dims]
    x = torch.zeros(len(r), input_dim, dtype=torch.float64, device="cpu")
    period = torch.tensor(box.period, dtype=torch.float64, device="cpu")
    distance = torch.minimum(r, period - r)  # along one coordinate, the kernel and its continuation are even
    if cut_off:
        # For a difference in two coordinates only the relative sign matters, and the nearest image has the right one.
        wrapped = torch.where(r <= period / 2, r, r - period)
        x[:, box.dims] = wrapped
        value = stationary(term, x)
        for axis, decay in enumerate(decays):
            if decay:
                width = box.period[axis] / 2 - box.side[axis]
                value = value * _smooth_step((distance[:, axis] - box.side[axis]) / width)
        return value
    total = torch.zeros(len(r), dtype=torch.float64, device="cpu")
    for image in product(*[(0.0, -1.0, 1.0, -2.0) if decay else (0.0,) for decay in decays]):
        if not any(image) or _matters(term, box, image, input_dim):
            x[:, box.dims] = r + torch.tensor(image, dtype=torch.float64, device="cpu") * period
            value = stationary(term, x)
            for i, p, decay in zip(box.dims, box.period, decays, strict=True):
                # Images decrease smoothly to zero between one period and two. If they ended abruptly, the kink would
                # hide the tail of the spectrum.
                if decay:
                    value = value * _smooth_step(x[:, i].abs() / p - 1)
            total = total + value
    return total


def _matters(term: Term, box: Box, image: tuple[float, ...], input_dim: int) -> bool:
    """Whether an image is larger than rounding anywhere in the box, or in the tenth of the box that is nearest to
    it."""
    inside = 0.1 * near(64, len(image), seed=0)
    x = torch.zeros(len(inside), input_dim, dtype=torch.float64, device="cpu")
    for axis, (i, shift) in enumerate(zip(box.dims, image, strict=True)):
        nearest = inside[:, axis] if shift >= 0 else 1 - inside[:, axis]
        x[:, i] = box.period[axis] * (nearest + shift)
    return float(stationary(term, x).detach().abs().max()) > 1e-13


def _smooth_step(t: Tensor) -> Tensor:
    """One up to 0, zero from 1, infinitely smooth between."""
    t = t.clamp(1e-9, 1 - 1e-9)
    return torch.sigmoid(1 / t - 1 / (1 - t))


def stationary(term: Term, x: Tensor) -> Tensor:
    """The stationary part at differences x `[n, d]` from the origin -> `[n]`."""
    value = torch.ones(len(x), dtype=x.dtype, device="cpu")
    for kernel in term.stationary:
        value = value * kernel.to("cpu").forward(x, torch.zeros_like(x[:1]))[:, 0]
    return value


def own_period(term: Term, input_dim: int, i: int) -> float:
    """The period of the kernel along a coordinate: infinite if a factor is not periodic, NaN if no period is common to
    all factors."""
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
        return 1.0  # the term is constant along this coordinate
    fundamental = float(theta.min())
    multiples = theta / fundamental
    return 2 * math.pi / fundamental if bool(((multiples - multiples.round()).abs() < 1e-6).all()) else math.nan


def near(count: int, dim: int, seed: int) -> Tensor:
    """Points of the unit cube `[count, dim]` at all distances from the origin, down to a millionth: a domain may be
    that much longer than a kernel's lengthscale."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.rand(2, count, dim, generator=generator, dtype=torch.float64, device="cpu")
    return v * torch.exp(-14 * u[:, :1])


def amplitudes_of(c: Tensor) -> Tensor:
    """The amplitudes of a lattice with these coefficients, `[*shape] -> [(c + 1) / 2]`."""
    c = c.flatten()
    squares = torch.cat([2 * c[len(c) // 2 + 1 :], c[len(c) // 2, None]]).clamp_min(0)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)  # the square root has no derivative at zero


@torch.no_grad()
def largest_error(box: Box, c: Tensor, input_dim: int) -> float:
    """The largest difference between the series and the kernel at random differences within the domain, relative to the
    variance."""
    generator = torch.Generator().manual_seed(0)
    k = len(box.dims)
    r = 2 * torch.rand(256, k, generator=generator, dtype=torch.float64, device="cpu") - 1
    corners = list(product((-1.0, 0.0, 1.0), repeat=k))  # the differences at which the periodic images are nearest
    ends = torch.tensor(corners, dtype=torch.float64, device="cpu")
    r = torch.cat([ends, r, r[:64].sign() * near(64, k, seed=1)])
    side = torch.tensor([s or p for s, p in zip(box.side, box.period, strict=True)], dtype=torch.float64, device="cpu")
    period = torch.tensor(box.period, dtype=torch.float64, device="cpu")
    series = series_at(c[None].to(torch.complex128), r * side * (2 * math.pi / period))[0].real
    x = torch.zeros(len(r), input_dim, dtype=torch.float64, device="cpu")
    x[:, list(box.dims)] = r * side
    exact = torch.zeros(len(r), dtype=torch.float64, device="cpu")
    for term in box.terms:
        exact += term.variance.cpu() * stationary(term, x)
    return float((series - exact).abs().max()) / max(box.variance, 1e-300)
