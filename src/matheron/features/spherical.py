"""Spherical harmonics: the features of a kernel that, on a sphere, depends on the angle alone.

    k(x, x') = sum_l a_l sum_m Y_lm(x) Y_lm(x'),      f(x) = sum_l sqrt(a_l) sum_m w_lm Y_lm(x),   w_lm ~ N(0, 1)

The sum ends at a degree that leaves out a small part of the variance. There are no random frequencies, so that a
realisation has no stripes, and every direction and every place on the sphere is treated alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.jacobian import jacobian
from ..evaluate.bases import Basis
from ..kernels import Kernel
from .features import Block, Features
from .residuals import posterior_scale


class Spectrum(NamedTuple):
    """Legendre coefficients a_l `[degree + 1]` and the share of the variance beyond the degree."""

    coefficients: Tensor
    lost: float


class SphericalHarmonics(Basis):
    """Real orthonormal spherical harmonics of points `[n, 3]` about the sphere's centre, with amplitudes sqrt(a_l).

    The coefficients are a square [i, j]. On and above its diagonal are cosines of order m = i and degree l = j. Below
    the diagonal are sines of order m = degree + 1 - i and degree l = m + j.

    >>> import torch
    >>> from matheron.features.spherical import SphericalHarmonics
    >>> basis = SphericalHarmonics(torch.ones(3, dtype=torch.float64))
    >>> x = torch.nn.functional.normalize(torch.randn(5, 3, dtype=torch.float64), dim=-1)
    >>> Y = basis.values(x[None])[0]  # of degrees 0, 1 and 2
    >>> Y.shape, bool(((Y @ Y.mT).diagonal() - 9 / (4 * torch.pi)).abs().max() < 1e-12)
    (torch.Size([5, 9]), True)
    """

    shapes = "coefficients: l"

    def __init__(self, coefficients: Tensor) -> None:
        super().__init__(coefficients=coefficients.double())

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    @property
    def size(self) -> int:
        return len(self.coefficients) ** 2

    @property
    def width(self) -> int:
        return 4 * len(self.coefficients)

    def scales(self) -> Tensor:
        i, j = np.indices((self.degree + 1, self.degree + 1))
        degrees = torch.from_numpy(np.where(j >= i, j, self.degree + 1 - i + j)).to(self.coefficients.device)
        return self.coefficients[degrees].sqrt().reshape(1, -1)

    def values(self, x: Tensor) -> Tensor:
        t, cos, sin = self._angles(x.reshape(-1, 3))
        table, out = self._legendre(t), t.new_empty(len(t), self.degree + 1, self.degree + 1)  # [n, i, j]
        for m in range(self.degree + 1):
            P = table[m:, m].mT  # [n, l - m + 1]
            out[:, m, m:] = P * cos[:, m, None]
            if m:
                out[:, -m, : self.degree + 1 - m] = P * sin[:, m, None]
        return out.reshape(*x.shape[:-1], self.size).to(x.dtype)

    def weighted(self, x: Tensor, W: Tensor) -> Tensor:
        B = max(len(x), len(W))
        return torch.stack([self._sums(x[b % len(x)], W[b % len(W)]) for b in range(B)])

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.expand(max(len(x), len(W)), -1, -1)
        f, df = jacobian(lambda at: self.weighted(at, W.detach()).mT, rows)  # [B, n, r], [B, n, r, d]
        return f.mT, df.transpose(1, 2)

    def _sums(self, x: Tensor, W: Tensor) -> Tensor:
        """`[n, 3], [r, c] -> [r, n]`: Legendre functions once for every latitude, then waves along it.

        sum_m cos(m phi) (sum_l W_lm P_lm) + sin(m phi) (sum_l W'_lm P_lm)
        """
        if not len(x):
            return (self.values(x) @ W.to(x).mT).mT
        t, cos, sin = self._angles(x)
        first = rows = torch.arange(len(x), device=x.device)
        if not (x.requires_grad and torch.is_grad_enabled()):
            # the latitude of each point, up to rounding
            _, rows = torch.unique((t / 1e-12).round(), return_inverse=True)
            first = rows.new_empty(int(rows.max()) + 1).scatter_(0, rows, torch.arange(len(x), device=x.device))
        order = rows.argsort(stable=True)
        ends = torch.bincount(rows, minlength=len(first)).cumsum(0).tolist()
        C = W.double().unflatten(-1, (self.degree + 1, -1)).permute(1, 2, 0)  # [i, j, r]
        waves = torch.cat([cos, sin[:, 1:]], dim=1)  # [n, 2 degree + 1]
        parts, L = [], self.degree
        step = max(1, (1 << 23) // self.size)  # the number of latitudes whose Legendre functions are in memory at once
        for start in range(0, len(first), step):
            P = self._legendre(t[first[start : start + step]])  # [l, m, rows]
            cosines = [P[m:, m].mT @ C[m, m:] for m in range(L + 1)]  # each is [rows, r]
            sines = [P[m:, m].mT @ C[L + 1 - m, : L + 1 - m] for m in range(1, L + 1)]
            sums = torch.stack(cosines + sines, dim=1)  # [rows, 2 degree + 1, r]
            for row, of_row in enumerate(sums, start):
                points = order[ends[row - 1] if row else 0 : ends[row]]
                parts.append(waves[points] @ of_row)
        return torch.cat(parts)[order.argsort()].mT.to(x.dtype)

    def _angles(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cosine of the colatitude `[n]`, and cosines and sines of multiples of the longitude `[n, degree + 1]`."""
        x = x.double()
        phi = torch.atan2(x[:, 1], x[:, 0])[:, None] * torch.arange(self.degree + 1, device=x.device)
        return x[:, 2] / x.norm(dim=-1), phi.cos(), phi.sin()

    def _legendre(self, t: Tensor) -> Tensor:
        """Normalised associated Legendre functions at t `[n]`, those of orders above zero times sqrt(2): `[l, m, n]`.
        The recurrence goes upwards in degree from P_mm, which is stable."""
        L = self.degree
        table = t.new_zeros(L + 1, L + 1, len(t))
        m = torch.arange(L + 1, dtype=t.dtype, device=t.device)[:, None]
        s = (1 - t.square()).clamp_min(0).sqrt()
        before = last = t.new_zeros(0, len(t))
        top = t.new_full((1, len(t)), 1 / math.sqrt(4 * math.pi))  # P_ll
        for n in range(L + 1):  # n is the degree
            if n:
                # orders above zero have a factor sqrt(2)
                top = top * s * math.sqrt((2 * n + 1) / (2 * n if n > 1 else 1))
            here = t * last  # [n, points]
            if n > 1:
                b = (((n - 1) ** 2 - m[: n - 1].square()) / (4 * (n - 1) ** 2 - 1)).sqrt()
                here = torch.cat([here[:-1] - b * before, here[-1:]])
            a = ((4 * n * n - 1) / (n * n - m[:n].square())).sqrt()
            before, last = last, torch.cat([a * here, top])  # [n + 1, points]
            table[n, : n + 1] = last
        return table


@torch.no_grad()
def spherical_features(
    kernel: Kernel,
    centre: Tensor,
    radius: float,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    tolerance: float = 1e-3,
    largest: int = 512,
) -> Features | None:
    """Features of a kernel on the sphere of a centre `[3]` and a radius.

    The result is None for kernels that depend on more than the angle between two points. It is also None if the
    lengthscale is so short that more than a hundredth of the variance is beyond the largest degree.

    Args:
        data: points `[n, 3]` and the variances of their noise `[n]`.
        tolerance: the share of the posterior variance, a typical one between the data, that may be left out.
        largest: degree. One of 512 resolves waves of 80 km on the Earth, with 513^2 coefficients, 2 MB for each path.

    >>> import torch
    >>> from matheron import kernels
    >>> from matheron.features import spherical_features
    >>> spherical_features(kernels.RBF(0.5), torch.zeros(3), 1.0)
    Features(spherical harmonics to degree 8, 99.97% of the variance)
    """
    if kernel.num_outputs > 1:
        return None

    def onto(x: Tensor) -> Tensor:
        """The places of the sphere in the directions of points `[n, 3]`."""
        at = centre.to(x)
        return at + radius * torch.nn.functional.normalize(x - at, dim=-1)

    variance = float(kernel.diag(onto(centre[None].to(torch.float64) + 1.0)).max())
    scale = (
        variance if data is None else min(variance, posterior_scale(kernel, *data, at_data=True, onto=onto) or variance)
    )
    spectrum = spectrum_on_sphere(kernel, centre, radius, tolerance * scale, largest)
    if spectrum is None or spectrum.lost > 0.01:
        return None
    basis = SphericalHarmonics(spectrum.coefficients)
    words = f"spherical harmonics to degree {basis.degree}, {100 * (1 - spectrum.lost):.4g}% of the variance"
    return Features([Block(basis)], centre.double().cpu(), None, words)


def spectrum_on_sphere(
    kernel: Kernel,
    centre: Tensor,
    radius: float,
    lost: float,
    largest: int,
    *,
    nodes_per_panel: int = 16,
    degrees_per_panel: int = 8,
) -> Spectrum | None:
    """a_l = 2 pi int k(c) P_l(cos c) sin(c) dc over angles c, by quadrature; None where k depends on more than c.

    As a function of the angle, a kernel of chords is smooth to the right of zero, however rough its draws are.

    Args:
        nodes_per_panel: of Gauss' quadrature in each panel of angles.
        degrees_per_panel: what one panel is fine enough for.
    """
    centre, kernel = centre.double().cpu(), kernel.to("cpu", torch.float64)

    def profile(angle: Tensor) -> Tensor:
        arc = torch.stack([angle.sin(), 0 * angle, angle.cos()], dim=-1)
        return kernel(centre + radius * arc.new_tensor([[0.0, 0.0, 1.0]]), centre + radius * arc)[0]

    pairs = torch.randn(2, 64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    p, q = torch.nn.functional.normalize(pairs, dim=-1)
    q = torch.nn.functional.normalize(
        p + torch.logspace(-3, 1, 64, dtype=torch.float64, device="cpu")[:, None] * q, dim=-1
    )
    variance = float(kernel.diag(centre + radius * p[:1]))
    own = kernel(centre + radius * p, centre + radius * q).diagonal()
    if float((own - profile(2 * ((p - q).norm(dim=-1) / 2).asin())).abs().max()) > 1e-8 * variance:
        return None
    nodes, weights = np.polynomial.legendre.leggauss(nodes_per_panel)
    panels = largest // degrees_per_panel + 8
    width = math.pi / panels
    angle = torch.from_numpy(width * (np.arange(panels)[:, None] + (nodes + 1) / 2)).reshape(-1)
    integrand = 2 * math.pi * profile(angle) * angle.sin() * torch.from_numpy(weights * width / 2).repeat(panels)
    t, last, P = angle.cos(), torch.zeros_like(angle), torch.ones_like(angle)
    coefficients, left = [], variance
    for n in range(largest + 1):
        coefficients.append(max(float(integrand @ P), 0.0))
        left -= (2 * n + 1) / (4 * math.pi) * coefficients[-1]
        if left <= lost:
            break
        last, P = P, ((2 * n + 1) * t * P - n * last) / (n + 1)
    return Spectrum(torch.tensor(coefficients, dtype=torch.float64, device="cpu"), max(left, 0.0) / variance)
