"""Kernels of geostatistics, each beside its spectral measure: Spherical, and Rotated for oblique anisotropy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from scipy import special
from torch import Tensor

from ..checks import ArrayLike, per_dimension
from .base import Kernel, centred
from .measure import SpectralMeasure
from .radial import _Radial
from .special import from_scipy
from .terms import Term


class Spherical(_Radial):
    """k = 1 - 3/2 r + 1/2 r^3 for r < 1, and 0 beyond: the lengthscale is the range. In up to 3 dimensions.

    >>> from matheron import kernels
    >>> kernels.Spherical(2.0)([[0.0]], [[1.0], [2.0], [3.0]])
    tensor([[0.3125, 0.0000, 0.0000]], dtype=torch.float64)
    """

    def __init__(self, lengthscale: ArrayLike = 1.0) -> None:
        super().__init__(lengthscale)

    def radial(self, r2: Tensor) -> Tensor:
        r = _root(r2).clamp_max(1.0)
        return 1 - 1.5 * r + 0.5 * r**3

    def radial_derivative(self, r2: Tensor) -> Tensor:
        r = _root(r2)
        inside = (r > 0) & (r < 1)
        return torch.where(inside, -0.75 * (1 - r2) / torch.where(inside, r, 1.0), 0.0)

    def measure(self, input_dim: int) -> SpectralMeasure:
        if input_dim > 3:
            raise ValueError(
                f"Spherical: a covariance in up to 3 dimensions, got {input_dim}; use .on(dims), or Matern(0.5)"
            )
        return Ball(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))


def _root(r2: Tensor) -> Tensor:
    """sqrt(r2), with a derivative of zero where r2 is zero."""
    return torch.where(r2 > 0, torch.where(r2 > 0, r2, 1.0).sqrt(), 0.0)


class Ball(SpectralMeasure):
    """The measure of Spherical, whose covariance is the overlap of two balls: in 3 dimensions the density of the
    ball's squared Fourier transform, in fewer its first coordinates. |theta| / 2 has the density 6/pi j_1(t)^2.
    """

    num_uniforms = 3

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale  # [d]
        self.input_dim = scale.shape[0]

    def frequencies(self, U: Tensor) -> Tensor:
        radius = from_scipy(_ball_quantile, U[..., 0])
        height, turn = 2 * U[..., 1] - 1, 2 * math.pi * U[..., 2]
        level = (1 - height.square()).clamp_min(0).sqrt()
        direction = torch.stack([height, level * turn.cos(), level * turn.sin()], dim=-1)
        return self.scale * (radius[..., None] * direction)[..., : self.input_dim]

    @property
    def density_dims(self) -> list[int] | None:
        return list(range(self.input_dim))

    def log_density(self, theta: Tensor) -> Tensor | None:
        u = (theta / self.scale).square().sum(-1).sqrt()
        density = from_scipy(lambda v: _ball_density(v, self.input_dim), u)
        return density.clamp_min(1e-300).log() - self.scale.log().sum()


def _ball_cdf(t: np.ndarray) -> np.ndarray:
    """6/pi times the integral of j_1^2 from 0 to t."""
    s = np.maximum(t, 1e-2)
    sine = special.sici(2 * s)[0]
    whole = -(np.sin(s) ** 2) / (3 * s**3) + np.sin(2 * s) / (3 * s**2)
    whole = whole + (2 * np.cos(2 * s) / 3 - np.cos(s) ** 2) / s + sine / 3
    return 6 / np.pi * np.where(t < 1e-2, t**3 / 27, whole)


def _ball_quantile(u: np.ndarray) -> np.ndarray:
    """Quantiles of |theta|, twice those of t, by bisection between bounds of the tail 3 / (pi t)."""
    low, high = np.zeros_like(u), 4.0 + 2.0 / np.maximum(1 - u, 1e-12)
    for _ in range(90):
        middle = (low + high) / 2
        below = _ball_cdf(middle) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low + high


def _ball_density(u: np.ndarray, d: int) -> np.ndarray:
    """The density at |theta| = u of the measure with range 1, in d dimensions."""
    if d == 3:
        safe = np.maximum(u, 1e-6)
        return 0.75 * (special.spherical_jn(1, safe / 2) / safe) ** 2 / np.pi**2
    s = np.maximum(u, 2.0)
    m = np.arange(16)
    if d == 1:
        large = (1.5 / s**2 - 3 * np.sin(s) / s**3 - 3 * (np.cos(s) - 1) / s**4) / np.pi
        moments = 1 / (2 * m + 1) - 1.5 / (2 * m + 2) + 0.5 / (2 * m + 4)
        terms = (-1.0) ** m * moments / special.factorial(2 * m) / np.pi
        small = np.polynomial.polynomial.polyval(np.minimum(u, 2.0) ** 2, terms)
    else:
        j0, j1 = special.j0(s), special.j1(s)
        second = s**2 * j1 + s * j0 - special.itj0y0(s)[0]  # the integral of t^2 J_0(t)
        fourth = s**4 * j1 + 3 * s**3 * j0 - 9 * second
        large = (j1 / s - 1.5 * second / s**3 + 0.5 * fourth / s**5) / (2 * np.pi)
        moments = 1 / (2 * m + 2) - 1.5 / (2 * m + 3) + 0.5 / (2 * m + 5)
        terms = (-0.25) ** m * moments / special.factorial(m) ** 2 / (2 * np.pi)
        small = np.polynomial.polynomial.polyval(np.minimum(u, 2.0) ** 2, terms)
    return np.where(u < 2.0, small, large)


class Rotated(Kernel):
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

    def _matrix(self, x: Tensor) -> Tensor:
        """R `[d, d]`, such that R x has the kernel's own coordinates."""
        return rotation(self.angle, x.shape[-1]).to(x)

    def _turned(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        R = self._matrix(x)
        x, z = centred(x, z)  # rounding of a far offset would be turned into one of the differences
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

    def diag(self, x: Tensor) -> Tensor:
        return self.kernel.diag(x @ self._matrix(x).mT)

    def terms(self, input_dim: int) -> list[Term]:
        rotation(self.angle, input_dim)  # says at once if there is no plane to turn
        terms = self.kernel.terms(input_dim)
        if any(term.forms for term in terms):
            raise TypeError("Rotated: expected a stationary kernel; add Linear and Polynomial outside of it")
        return [replace(t, stationary=tuple(Rotated(k, self.angle) for k in t.stationary)) for t in terms]

    def measure(self, input_dim: int) -> SpectralMeasure:
        return Turned(self.kernel.measure(input_dim), rotation(self.angle, input_dim))

    def active_dims(self, input_dim: int) -> list[int]:
        inner = self.kernel.active_dims(input_dim)
        return sorted({*inner, *((0, 1) if {0, 1} & set(inner) else ())})

    @property
    def num_outputs(self) -> int:
        return self.kernel.num_outputs

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        return [(B, Rotated(k, self.angle)) for B, k in self.kernel.coupled()]


class Turned(SpectralMeasure):
    """A measure of which R theta has another's law."""

    def __init__(self, measure: SpectralMeasure, R: Tensor) -> None:
        self.measure, self.R = measure, R
        self.input_dim, self.num_uniforms = measure.input_dim, measure.num_uniforms

    def frequencies(self, U: Tensor) -> Tensor:
        return self.measure.frequencies(U) @ self.R.to(U)

    def importance(self, U: Tensor) -> Tensor | None:
        return self.measure.importance(U)

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        atoms = self.measure.atoms()
        return None if atoms is None else (atoms[0] @ self.R.to(atoms[0]), atoms[1])

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
    R = torch.eye(input_dim, dtype=torch.float64)
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    R[:2, :2] = torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    return R
