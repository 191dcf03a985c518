"""Kernels of geostatistics, each beside its spectral measure: Spherical, and Rotated for oblique anisotropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.checks import per_dimension
from ..core.modes import as_numpy, kept
from .algebra import Around
from .base import Kernel, SpectralMeasure, Term, centred
from .composed_measures import Moved
from .radial import Elliptical, Radial

__all__ = ["Rotated", "Spherical"]


class Spherical(Radial):
    """k = 1 - 3/2 r + 1/2 r^3 for r < 1, and 0 beyond: the lengthscale is the range. In up to 3 dimensions.

    >>> from matheron import kernels
    >>> kernels.Spherical(2.0)([[0.0]], [[1.0], [2.0], [3.0]])
    tensor([[0.3125, 0.0000, 0.0000]], dtype=torch.float64)
    """

    def radial(self, r2: Tensor) -> Tensor:
        r = _root(r2).clamp_max(1.0)
        return 1 - 1.5 * r + 0.5 * r**3

    def radial_derivative(self, r2: Tensor) -> Tensor:
        r = _root(r2)
        inside = (r > 0) & (r < 1)
        return torch.where(inside, -0.75 * (1 - r2) / torch.where(inside, r, 1.0), 0.0)

    def smoothness(self, input_dim: int) -> list[float]:
        return [0.0] * input_dim

    def measure(self, input_dim: int) -> SpectralMeasure:
        if input_dim > 3:
            raise ValueError(
                f"Spherical: a covariance in up to 3 dimensions, got {input_dim}; use .on(dims), or Matern(0.5)"
            )
        return Ball(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))


def _root(r2: Tensor) -> Tensor:
    """sqrt(r2), with a derivative of zero where r2 is zero."""
    return torch.where(r2 > 0, torch.where(r2 > 0, r2, 1.0).sqrt(), 0.0)


class Ball(Elliptical):
    """The measure of Spherical, whose covariance is the overlap of two balls.

    In 3 dimensions it is the density of the ball's squared Fourier transform, and in fewer dimensions that of its first
    coordinates. |theta| / 2 has the density 6/pi j_1(t)^2.
    """

    num_mixing_uniforms = 1
    waves = 16  # the density oscillates, and in 3 dimensions it has zeros

    def __init__(self, scale: Tensor) -> None:
        super().__init__(scale)
        self.num_uniforms = 3

    def frequencies(self, U: Tensor) -> Tensor:
        height, turn = 2 * U[..., 1] - 1, 2 * math.pi * U[..., 2]
        level = (1 - height.square()).clamp_min(0).sqrt()
        direction = torch.stack([height, level * turn.cos(), level * turn.sin()], dim=-1)
        return self.scale * (_ball_quantile(U[..., 0])[..., None] * direction)[..., : self.input_dim]

    def radius(self, U: Tensor) -> Tensor:
        """Of a point on the sphere in 3 dimensions, as long as its first coordinates are."""
        height = 2 * U[..., 1] - 1
        share = {1: height.abs(), 2: (1 - height.square()).clamp_min(0).sqrt()}
        return _ball_quantile(U[..., 0]) * share.get(self.input_dim, 1.0)

    def log_radial(self, r2: Tensor) -> Tensor:
        d, far = self.input_dim, r2 > 1e4**2  # far from zero, the density is replaced by its tail
        u = _root(torch.where(far, 0.0, r2))
        value, slope = (torch.from_numpy(a).to(u) for a in _ball_density(as_numpy(u).astype(np.float64), d))
        near = (value + slope * (u - u.detach())).clamp_min(1e-30).log()  # differentiable once
        # The tail is the mean of the oscillations. It follows from k = 1 - 3/2 r near zero.
        tail = math.log(1.5) + math.lgamma((d + 1) / 2) - (d + 1) / 2 * (math.log(math.pi) + r2.clamp_min(1.0).log())
        return torch.where(far, tail, near)


@kept(1)
def _ball_table(step: float, cells: int) -> Tensor:
    """The cumulative distribution of t at multiples of a step: 6/pi times the integral of j_1^2 up to there."""
    t = step * np.arange(cells + 1)
    s = np.maximum(t, 1e-2)
    whole = -(np.sin(s) ** 2) / (3 * s**3) + np.sin(2 * s) / (3 * s**2)
    whole = whole + (2 * np.cos(2 * s) / 3 - np.cos(s) ** 2) / s + scipy.special.sici(2 * s)[0] / 3
    return torch.from_numpy(6 / np.pi * np.where(t < 1e-2, t**3 / 27, whole))


def _ball_quantile(u: Tensor, step: float = 0.02, cells: int = 100_000) -> Tensor:
    """Quantiles of |theta|, twice those of t: interpolated in a table, and beyond its cells by the tail 3 / (pi t)."""
    cdf, v = _ball_table(step, cells).to(u.device), u.detach().double().contiguous()
    cell = torch.searchsorted(cdf, v).clamp(1, cells)
    along = ((v - cdf[cell - 1]) / (cdf[cell] - cdf[cell - 1]).clamp_min(1e-300)).clamp(0, 1)
    inside = step * (cell - 1 + along)
    beyond = (3 / math.pi / (1 - v).clamp_min(1e-16)).clamp_min(step * cells)
    return 2 * torch.where(v < cdf[-1], inside, beyond).to(u)


def _ball_density(u: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """The density at |theta| = u of the measure with range 1 in d dimensions, and its derivative."""
    if d == 3:
        t = np.maximum(u / 2, 1e-6)
        ratio = scipy.special.spherical_jn(1, t) / t
        return 0.1875 * (ratio / np.pi) ** 2, -0.1875 / np.pi**2 * ratio * scipy.special.spherical_jn(2, t) / t
    m, near = np.arange(16), np.minimum(u, 2.0)
    s = np.maximum(u, 2.0)
    if d == 1:
        large = (1.5 / s**2 - 3 * np.sin(s) / s**3 - 3 * (np.cos(s) - 1) / s**4) / np.pi
        slope = (-3 / s**3 - 3 * np.cos(s) / s**3 + 12 * np.sin(s) / s**4 + 12 * (np.cos(s) - 1) / s**5) / np.pi
        terms = (-1.0) ** m / scipy.special.factorial(2 * m) / np.pi
        terms = terms * (1 / (2 * m + 1) - 1.5 / (2 * m + 2) + 0.5 / (2 * m + 4))
    else:
        j0, j1 = scipy.special.j0(s), scipy.special.j1(s)
        second = s**2 * j1 + s * j0 - scipy.special.itj0y0(s)[0]  # the integral of t^2 J_0(t)
        fourth = s**4 * j1 + 3 * s**3 * j0 - 9 * second
        large = (j1 / s - 1.5 * second / s**3 + 0.5 * fourth / s**5) / (2 * np.pi)
        slope = (-2 * j1 / s**2 + 4.5 * second / s**4 - 2.5 * fourth / s**6) / (2 * np.pi)
        terms = (-0.25) ** m / scipy.special.factorial(m) ** 2 / (2 * np.pi)
        terms = terms * (1 / (2 * m + 2) - 1.5 / (2 * m + 3) + 0.5 / (2 * m + 5))
    small = np.polynomial.polynomial.polyval(near**2, terms)
    small_slope = 2 * near * np.polynomial.polynomial.polyval(near**2, np.polynomial.polynomial.polyder(terms))
    return np.where(u < 2.0, small, large), np.where(u < 2.0, small_slope, slope)


class Rotated(Around):
    """k(R x, R x'), R turning the plane of the first two coordinates: anisotropy along other directions than the axes.

    The first coordinate of `kernel` is the direction `angle` degrees counter-clockwise from the first axis; its second
    is perpendicular. The angle is not fitted: `matheron.fit` keeps it, and fits the lengthscales along and across.

    >>> from matheron import kernels
    >>> k = kernels.Rotated(kernels.RBF([3.0, 1.0]), angle=90.0)
    >>> k([[0.0, 0.0]], [[0.0, 3.0], [1.0, 0.0]])
    tensor([[0.6065, 0.6065]], dtype=torch.float64)
    """

    fields = ("angle",)

    def __init__(self, kernel: Kernel, angle: float) -> None:
        super().__init__()
        if not math.isfinite(angle):
            raise ValueError(f"angle: expected degrees, got {angle!r}")
        self.kernel, self.angle = kernel, float(angle)

    def of_one_scale(self, dims: list[int]) -> list[int]:
        return dims[:2]  # a plane can only be turned if both of its axes have the same scale

    def _matrix(self, x: Tensor) -> Tensor:
        """R `[d, d]`, such that R x has the kernel's own coordinates."""
        return rotation(self.angle, x.shape[-1]).to(x)

    def _turned(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        R = self._matrix(x)
        x, z = centred(x, z)  # otherwise a rotation of points far from zero would lose digits of their differences
        turned = x @ R.mT
        return turned, turned if z is x else z @ R.mT

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.kernel.forward(*self._turned(x, z))

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, dK = self.kernel.with_gradient(*self._turned(x, z))
        return K, torch.tensordot(self._matrix(x).mT, dK, dims=1)

    def weighted_with_gradient(self, x: Tensor, z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.kernel.weighted_with_gradient(*self._turned(x, z), W)
        return value, gradient @ self._matrix(x)

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        R = self._matrix(x)
        u, v = ([w.to(x) @ R.mT for w in each] for each in (left, right))
        return self.kernel.derivative(*self._turned(x, z), u, v)

    def smoothness(self, input_dim: int) -> list[float]:
        inner = self.kernel.smoothness(input_dim)
        return [min(inner[:2])] * 2 + inner[2:]

    def diag(self, x: Tensor) -> Tensor:
        return self.kernel.diag(x @ self._matrix(x).mT)

    def terms(self, input_dim: int) -> list[Term]:
        rotation(self.angle, input_dim)  # raises an error if there is no plane to turn
        terms = self.kernel.terms(input_dim)
        if any(term.forms or term.own for term in terms):
            raise TypeError("Rotated: expected a stationary kernel; add Linear and Polynomial outside of it")
        return [replace(t, stationary=tuple(Rotated(k, self.angle) for k in t.stationary)) for t in terms]

    def measure(self, input_dim: int) -> SpectralMeasure:
        return Turned(self.kernel.measure(input_dim), rotation(self.angle, input_dim))

    def active_dims(self, input_dim: int) -> list[int]:
        inner = self.kernel.active_dims(input_dim)
        return sorted({*inner, *((0, 1) if {0, 1} & set(inner) else ())})


class Turned(Moved):
    """A measure of which R theta has another's law."""

    def __init__(self, measure: SpectralMeasure, R: Tensor) -> None:
        super().__init__(measure, measure.input_dim)
        self.R = R

    def moved(self, theta: Tensor) -> Tensor:
        return theta @ self.R.to(theta)

    @property
    def density_dims(self) -> list[int] | None:
        dims = self.measure.density_dims
        return dims if dims is None or len({0, 1} & set(dims)) != 1 else None

    def log_density(self, theta: Tensor) -> Tensor | None:
        return None if self.density_dims is None else self.measure.log_density(theta @ self.R.to(theta).mT)


def rotation(angle: float, input_dim: int) -> Tensor:
    """The matrix `[d, d]` that turns the plane of the first two coordinates by minus an angle in degrees."""
    if input_dim < 2:
        raise ValueError(f"Rotated: expected points in at least 2 dimensions, got {input_dim}")
    R = torch.eye(input_dim, dtype=torch.float64, device="cpu")
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    R[:2, :2] = torch.tensor([[c, s], [-s, c]], dtype=torch.float64, device="cpu")
    return R
