"""The Fourier coefficients of a stationary kernel on a box, and what is wrong with the series.

Only differences between points of the domain matter, so the kernel may be continued beyond them in any way that keeps
its coefficients positive: by its own periodic images, far enough away, or cut off smoothly. Where the spectral density
S is known, the images' coefficients are S(theta_j) prod(2 pi / period) exactly; else they are an FFT of the kernel.
What lies beyond the last mode is added to the outermost octave of modes: the variance is right, and correlations err
over distances below the shortest wavelength alone. Where other features hold it, it is left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels.terms import Term
from ..nufft import series_at
from .box import Box, own_period

# Images whose sum is that of all coefficients: what the modes lack is the difference, far below the nearest image.
_IMAGES = range(-8, 9)


def coefficients(term: Term, cut_off: bool, box: Box, input_dim: int, whole: bool = True) -> Tensor:
    """The Fourier coefficients of a term of variance one on the box's modes, `[*shape]`, none negative.

    They are of the whole variance, or without what lies beyond the modes.
    """
    active = term.active_dims(input_dim)
    mine = [axis for axis, i in enumerate(box.dims) if i in active]
    part = box.along(mine)
    c = None if cut_off else _by_density(term, part, input_dim, whole)
    if c is None and whole:
        c = by_transform(term, cut_off, part, input_dim).clamp_min(0)
    elif c is None:  # a transform adds what lies beyond its modes to them: of twice as many, most to the others
        c = by_transform(term, cut_off, replace(part, m=tuple(2 * m for m in part.m)), input_dim).clamp_min(0)
        c = c[tuple(slice(m, 3 * m + 1) for m in part.m)]
    if len(mine) == len(box.dims):
        return c
    shape = [2 * m + 1 if axis in mine else 1 for axis, m in enumerate(box.m)]
    widths = [0 if axis in mine else m for axis, m in enumerate(box.m)]  # constant along the others: their mode 0
    return pad(c.reshape(shape), [w for width in reversed(widths) for w in (width, width)])


def _by_density(term: Term, box: Box, input_dim: int, whole: bool) -> Tensor | None:
    """S(theta_j) prod(2 pi / period), with what is left over in the outermost octave if they are to be of the whole
    variance; None without a density."""
    measure = term.measure(input_dim)
    if getattr(measure, "density_dims", None) != list(box.dims):
        return None
    axes = [
        torch.arange(-m, m + 1, dtype=torch.float64, device="cpu") * (2 * math.pi / p)
        for m, p in zip(box.m, box.period, strict=True)
    ]
    theta = torch.zeros(box.num_modes, input_dim, dtype=torch.float64, device="cpu")
    theta[:, list(box.dims)] = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    density = measure.density(theta)
    if density is None or not bool(torch.isfinite(density.detach()).all()):
        return None
    c = (density * math.prod(2 * math.pi / p for p in box.period)).reshape(box.shape)
    if not whole:
        return c
    images = torch.tensor(list(product(_IMAGES, repeat=len(box.dims))), dtype=torch.float64, device="cpu")
    x = torch.zeros(len(images), input_dim, dtype=torch.float64, device="cpu")
    x[:, list(box.dims)] = images * torch.tensor(box.period, dtype=torch.float64, device="cpu")
    rest = (stationary(term, x).sum() - c.sum()).clamp_min(0)
    outer = torch.zeros(box.shape, dtype=torch.bool, device="cpu")
    for axis, m in enumerate(box.m):
        far = torch.arange(-m, m + 1, device="cpu").abs() * 2 > m
        outer = outer | far.reshape([-1 if a == axis else 1 for a in range(len(box.dims))])
    mass = (c * outer).sum()
    if float(rest.detach()) <= 1e-12 or float(mass.detach()) <= 0:
        return c
    return c * (1 + outer * (rest / mass))


def by_transform(term: Term, cut_off: bool, box: Box, input_dim: int) -> Tensor:
    """The coefficients on the box's modes by an FFT of the continued kernel, `[*shape]`; some may be negative."""
    even = _even_in_each(term, box, input_dim)  # one half of each axis is then the other's mirror image
    points = [m + 1 if even else n for m, n in zip(box.m, box.shape, strict=True)]
    steps = [p / n for p, n in zip(box.period, box.shape, strict=True)]
    axes = [torch.arange(n, dtype=torch.float64, device="cpu") * step for n, step in zip(points, steps, strict=True)]
    r = torch.cartesian_prod(*axes).reshape(-1, len(axes))  # differences from 0 to a period, in an FFT's order
    values = continued(term, cut_off, box, r, input_dim).reshape(points)
    for axis, m in enumerate(box.m if even else ()):
        values = torch.cat([values, values.narrow(axis, 1, m).flip(axis)], dim=axis)
    return torch.fft.fftshift(torch.fft.fftn(values).real) / values.numel()


def _even_in_each(term: Term, box: Box, input_dim: int) -> bool:
    """Whether the kernel is even in each coordinate by itself, as one that is turned is not."""
    r = near(64, len(box.dims), seed=2) * torch.tensor(box.period, dtype=torch.float64, device="cpu")
    signs = torch.randint(2, r.shape, generator=torch.Generator().manual_seed(3), device="cpu") * 2 - 1
    x = torch.zeros(2, len(r), input_dim, dtype=torch.float64, device="cpu")
    x[:, :, list(box.dims)] = torch.stack([r, r * signs])
    with torch.no_grad():
        return torch.allclose(*(stationary(term, each) for each in x), rtol=0, atol=1e-14)


def continued(term: Term, cut_off: bool, box: Box, r: Tensor, input_dim: int) -> Tensor:
    """The kernel beyond the domain as the box continues it, at differences `[N, k]` in [0, period] -> `[N]`."""
    active = set(term.active_dims(input_dim))
    decays = [i in active and not math.isfinite(own_period(term, input_dim, i)) for i in box.dims]
    x = torch.zeros(len(r), input_dim, dtype=torch.float64, device="cpu")
    period = torch.tensor(box.period, dtype=torch.float64, device="cpu")
    distance = torch.minimum(r, period - r)  # a kernel along one coordinate is even: so is its continuation
    if cut_off:
        # Of a difference across two coordinates only the relative sign matters, and the nearest image has it.
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
                if decay:  # to zero between one period and two: images that end abruptly are a kink, which hides a tail
                    value = value * _smooth_step(x[:, i].abs() / p - 1)
            total = total + value
    return total


def _matters(term: Term, box: Box, image: tuple[float, ...], input_dim: int) -> bool:
    """Whether an image is more than rounding anywhere in the box: in a tenth of it at the corner nearest to it."""
    inside = 0.1 * near(64, len(image), seed=0)
    x = torch.zeros(len(inside), input_dim, dtype=torch.float64, device="cpu")
    for axis, (i, shift) in enumerate(zip(box.dims, image, strict=True)):
        nearest = inside[:, axis] if shift >= 0 else 1 - inside[:, axis]
        x[:, i] = box.period[axis] * (nearest + shift)
    return float(stationary(term, x).detach().abs().max()) > 1e-13


def near(count: int, dim: int, seed: int) -> Tensor:
    """Points of the unit cube `[count, dim]` at all distances from the origin, down to a millionth: a domain may be
    that much longer than a kernel's lengthscale."""
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.rand(2, count, dim, generator=generator, dtype=torch.float64, device="cpu")
    return v * torch.exp(-14 * u[:, :1])


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
    """Directions `[k, d]`, one in coordinate i, along which a kernel may decay the slowest: its axis, and, of one that
    is turned in a plane, many others."""
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


@torch.no_grad()
def largest_error(box: Box, c: Tensor, input_dim: int) -> float:
    """The largest difference of the series from the kernel between random points of the domain, in variances."""
    generator = torch.Generator().manual_seed(0)
    k = len(box.dims)
    r = 2 * torch.rand(256, k, generator=generator, dtype=torch.float64, device="cpu") - 1
    corners = list(product((-1.0, 0.0, 1.0), repeat=k))  # where images are nearest
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
