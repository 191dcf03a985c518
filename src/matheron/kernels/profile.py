"""ProfileMeasure: the spectral measure of a radial kernel of which the profile g alone is known.

In d dimensions g is a covariance if and only if it is a mixture of the kernels of spheres of frequencies,

    g(r) = int Omega_d(u r) dF(u),    Omega_d(t) = Gamma(d / 2) (2 / t)^(d/2 - 1) J_(d/2 - 1)(t)

with a distribution F of the frequencies' lengths u (Schoenberg 1938): the Hankel transform, inverted. F is found as the
non-negative density whose transform is nearest to g, by least squares. It is therefore always a covariance, and what it
misses of g is its error: small where g is a covariance in d dimensions, and large where it is none.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.modes import as_numpy, in_graph, kept, outside
from .radial import Elliptical


class RadialSpectrum(NamedTuple):
    """A density of log u, linear between nodes, and the largest difference between its transform and the profile."""

    low: float  # log u of the first node
    step: float
    density: Tensor  # [n], of log u
    cumulative: Tensor  # [n]
    error: float
    where: float  # the distance, in lengthscales, at which the difference is largest


class ProfileMeasure(Elliptical):
    """The measure of a kernel g(|x - x'| / lengthscale), from g alone; `error` is the largest difference from g.

    It is computed when it is first asked for a number. There is a warning of a difference of more than `worth_saying`.
    One of more than `largest` is an error: then g is no covariance in these dimensions, or its spectrum is too sharp.
    """

    def __init__(
        self,
        scale: Tensor,
        profile: Callable[[Tensor], Tensor],
        name: str,
        worth_saying: float = 1e-3,
        largest: float = 1e-2,
    ) -> None:
        super().__init__(scale)
        self.profile, self.name, self.worth_saying, self.largest = profile, name, worth_saying, largest

    @cached_property
    def spectrum(self) -> RadialSpectrum:
        found = spectrum_of(self.profile, self.input_dim, self.name)
        said = (
            f"{self.name} in {self.input_dim} dimensions: the nearest kernel with a spectrum differs from its profile "
            f"by {found.error:.2g}, at a distance of {found.where:.3g} lengthscales"
        )
        if found.error > self.largest:
            raise ValueError(
                f"{said}; expected at most {self.largest:g}. It is no covariance in so many dimensions (use it "
                ".on(dims) of fewer), or its spectrum is sharper than this can find: then write `measure(input_dim)`"
            )
        if found.error > self.worth_saying:
            warnings.warn(f"{said}; draws have that error in their prior", RuntimeWarning, stacklevel=2)
        return found

    @property
    def error(self) -> float:
        """The largest difference between the profile and the kernel that the features have."""
        return self.spectrum.error

    def radius(self, U: Tensor) -> Tensor:
        return self._quantile(U[..., 0])

    def frequencies(self, U: Tensor) -> Tensor:
        if self.input_dim == 1:  # both signs are equally likely
            return self.scale * (2 * U - 1).sign() * self._quantile((2 * U - 1).abs())
        normal = torch.special.ndtri(U)  # [..., d]
        squared = normal.square().sum(-1)
        u = torch.special.gammainc(torch.full_like(squared, self.input_dim / 2), squared / 2)  # uniform
        return self.scale * (self._quantile(u) / squared.sqrt())[..., None] * normal

    def _quantile(self, u: Tensor) -> Tensor:
        """Lengths at which the distribution is u: the density is linear in each cell, its integral quadratic."""
        s = self.spectrum
        f, F, v = s.density.to(u.device), s.cumulative.to(u.device), u.detach().double().contiguous()
        cell = torch.searchsorted(F, v).clamp(1, len(F) - 1)
        left, right = f[cell - 1], f[cell]
        rest = ((v - F[cell - 1]) / s.step).clamp_min(0)
        # solves left t + (right - left) t^2 / 2 = rest in a form without cancellation
        root = (left.square() + 2 * (right - left) * rest).clamp_min(0).sqrt()
        t = (2 * rest / (left + root).clamp_min(1e-300)).clamp(0, 1)
        return (s.low + s.step * (cell - 1 + t)).exp().to(u)

    def log_radial(self, r2: Tensor) -> Tensor:
        s, d = self.spectrum, self.input_dim
        log_u = 0.5 * r2.clamp_min(1e-200).log()
        at = ((log_u - s.low) / s.step).clamp(0, len(s.density) - 1)
        cell = at.detach().floor().clamp(0, len(s.density) - 2)
        density, t = s.density.to(r2), at - cell
        f = density[cell.long()] * (1 - t) + density[cell.long() + 1] * t
        # the logarithm of the area of the unit sphere
        area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        return f.clamp_min(1e-30).log() - d * log_u - area


@outside()
@torch.no_grad()
def spectrum_of(profile: Callable[[Tensor], Tensor], input_dim: int, name: str) -> RadialSpectrum:
    """The density of log u whose transform is nearest to a profile of squared distances, in lengthscales."""
    with torch.enable_grad():
        probe = profile(torch.zeros(1, dtype=torch.float64, device="cpu"))
    if in_graph(probe):
        raise TypeError(
            f"{name}: expected detach=True, since the gradient of a spectrum that is found numerically is not known; "
            "write `measure(input_dim)` for it"
        )
    if probe.shape != (1,) or not abs(float(probe) - 1) < 1e-6:
        got = f"{float(probe):.6g}" if probe.shape == (1,) else f"shape {list(probe.shape)}"
        raise ValueError(
            f"{name}.radial: expected 1 at a distance of zero, got {got}; scale the kernel instead: 2.0 * k"
        )

    def g(r: np.ndarray) -> np.ndarray:
        return as_numpy(profile(torch.from_numpy(r).square())).astype(np.float64)

    unit = _half(g, name)
    nodes, r, A = _transforms(input_dim)
    values = g(unit * r)
    if not np.isfinite(values).all():
        raise ValueError(f"{name}.radial: expected finite numbers, got {values[~np.isfinite(values)][0]}")
    # the weights of smoothness, and of the condition that the masses sum to one
    n, smooth, whole = len(nodes), 1e-3, 1e3
    bent = smooth * np.diff(np.eye(n), 2, axis=0)
    rows = np.concatenate([A, bent, np.full((1, n), whole)])
    masses, _ = scipy.optimize.nnls(rows, np.concatenate([values, np.zeros(n - 2), [whole]]), maxiter=30 * n)
    masses = masses / masses.sum()
    off = np.abs(A @ masses - values)
    step = nodes[1] - nodes[0]
    density = np.pad(masses / step, 1)  # the density is zero beyond both ends
    cumulative = np.concatenate([[0.0], np.cumsum(step * (density[1:] + density[:-1]) / 2)])
    low = float(nodes[0] - step - math.log(unit))
    f, F = torch.from_numpy(density), torch.from_numpy(cumulative / cumulative[-1])
    return RadialSpectrum(low, float(step), f, F, float(off.max()), float(unit * r[off.argmax()]))


def _half(g: Callable[[np.ndarray], np.ndarray], name: str) -> float:
    """The distance at which a profile first falls to a half."""
    r = 10.0 ** np.arange(-9, 9, 0.05)
    below = np.flatnonzero(g(r) < 0.5)
    if not len(below) or below[0] == 0:
        raise ValueError(
            f"{name}.radial: expected a profile that falls to 1/2 between 1e-9 and 1e9 lengthscales, got {g(r)[0]:.3g} "
            f"to {g(r)[-1]:.3g} there"
        )
    return float(r[below[0]])


@kept(8)
def _transforms(
    d: int, per_decade: int = 40, decades: tuple[float, float] = (-3.5, 4.5), finer: int = 3, parts: int = 6
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes of log u, distances r, and the transforms `[r, u]` at them of densities that are hats about each node.

    All are in units of a typical length. u and r are spaced evenly in their logarithms, so that the transforms are
    numbers of one table over log(u r).

    Args:
        per_decade: nodes in a decade of u. A sharper spectrum has an error.
        decades: of u. Beyond the last one a rough kernel has less than 1e-4 of its variance.
        finer: distances for each node.
        parts: pieces of each half of a hat, over which its transform is integrated.
    """
    h = math.log(10) / per_decade
    nodes = math.log(10) * decades[0] + h * np.arange(round((decades[1] - decades[0]) * per_decade) + 1)
    log_r = h / finer * np.arange(-4 * per_decade * finer, round(2.5 * per_decade * finer) + 1)
    table = (
        h / finer * np.arange(round((nodes[0] + log_r[0]) * finer / h), round((nodes[-1] + log_r[-1]) * finer / h) + 1)
    )
    offsets = np.arange(-parts + 1, parts) / parts
    weights = (1 - np.abs(offsets)) / parts
    hats = np.zeros_like(table)
    for offset, weight in zip(offsets, weights, strict=True):
        t = np.exp(table + h * offset)
        # The pieces are blurred by their own width. This removes waves that are finer than the pieces, which do not
        # cancel completely.
        hats += weight * sphere_kernel(t, d) * np.exp(-0.5 * (0.7 * h / parts * t) ** 2)
    # table[i finer + j] = log u_i + log r_j
    A = hats[finer * np.arange(len(nodes)) + np.arange(len(log_r))[:, None]]
    scale = math.sqrt(d)  # from distances to frequencies in d dimensions
    r = np.exp(log_r)
    return nodes + math.log(scale), np.concatenate([[0.0], r / scale]), np.concatenate([np.ones((1, len(nodes))), A])


def sphere_kernel(t: np.ndarray, d: int) -> np.ndarray:
    """Omega_d(t): the mean of cos(t . direction) over directions in d dimensions."""
    near = t < 1e-3 * math.sqrt(d)
    safe = np.where(near, 1.0, t)
    if d == 1:
        return np.cos(t)
    with np.errstate(under="ignore"):
        log_scale = scipy.special.gammaln(d / 2) + (d / 2 - 1) * np.log(2 / safe)
        value = np.exp(log_scale) * scipy.special.jv(d / 2 - 1, safe)
    return np.where(near, 1 - t**2 / (2 * d), value)
