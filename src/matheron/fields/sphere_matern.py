"""SphereMatern: the Matern kernel of the sphere itself, a function of the great-circle distance.

    k(x, x') = sum_l a_l P_l(cos angle),    a_l ~ (2 l + 1) (2 nu / s^2 + l (l + 1))^-(nu + 1),    sum_l a_l = 1

with P_l the Legendre polynomials and s = lengthscale / radius. It solves on the sphere the equation that the Matern
kernel solves in the plane (Whittle 1963; Borovitskiy, Terenin, Mostowsky and Deisenroth, Matern Gaussian processes on
Riemannian manifolds, 2020). As nu grows, a_l tends to (2 l + 1) exp(-s^2 l (l + 1) / 2), the heat kernel. All a_l are
positive, so that k is positive definite (Schoenberg 1942). The Matern formula of Euclidean space, at great-circle
distances, is not positive definite for nu above 1/2 (Gneiting 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, positive
from ..core.modes import in_graph, kept
from ..kernels import Kernel
from ..kernels.base import squared_distance
from .sphere import EARTH


class SphereMatern(Kernel):
    """The Matern kernel of a sphere, for points `[n, 3]` on it such as `fields.on_sphere` gives.

    With it `fit_sphere` keeps to great-circle distances: there is no projection, and no chord.

    Args:
        nu: the smoothness, above 0; `math.inf` is the heat kernel.
        lengthscale: in the units of the radius; at short lengthscales the kernel is that of `kernels.Matern`.
        radius: of the sphere. The kernel depends on the points' directions alone.
        degree: of the last term of the series. The share of the variance of the endless series beyond it is
            `truncated`; the kernel has variance 1 whatever the degree.

    >>> from matheron import fields
    >>> k = fields.SphereMatern(1.5, lengthscale=2000.0)
    >>> pole, equator = fields.on_sphere([[0.0, 90.0], [77.0, 0.0]])[:, None]
    >>> k(pole, equator), k.truncated < 1e-5
    (tensor([[0.0022]], dtype=torch.float64), True)
    """

    fields = ("nu", "radius", "degree")
    checked: ClassVar = True  # the features are the terms of the series, so they need no check

    def __init__(self, nu: float, lengthscale: ArrayLike = 1.0, *, radius: float = EARTH, degree: int = 512) -> None:
        super().__init__(lengthscale=positive(lengthscale, "lengthscale"))
        self.nu, self.radius, self.degree = float(nu), float(radius), int(degree)
        self.check()

    def check(self) -> None:
        if self.lengthscale.numel() != 1:
            raise ValueError(f"lengthscale: expected one number for all directions, got {self.lengthscale.tolist()}")
        if not (self.nu > 0 and self.radius > 0 and self.degree >= 1):
            raise ValueError(
                "SphereMatern: expected positive nu and radius, and a degree of at least 1, got "
                f"{self.nu:g}, {self.radius:g} and {self.degree}"
            )

    def shares(self, degree: int | None = None) -> Tensor:
        """a_l, the share of the variance of each degree `[degree + 1]`."""
        scale = self.lengthscale.double().reshape(()) / self.radius
        n = torch.arange((self.degree if degree is None else degree) + 1, dtype=torch.float64, device=scale.device)
        eigenvalue = scale.square() * n * (n + 1) / 2  # of the sphere's Laplacian, in lengthscales
        decay = eigenvalue if math.isinf(self.nu) else (self.nu + 1) * torch.log1p(eigenvalue / self.nu)
        return torch.softmax((2 * n + 1).log() - decay, dim=0)

    @property
    def truncated(self) -> float:
        """The share of the variance of the endless series that is beyond the degree."""
        return float(self.shares(64 * self.degree)[self.degree + 1 :].detach().sum())

    def smoothness(self, input_dim: int) -> list[float]:
        return [self.nu if math.isinf(self.nu) else math.ceil(self.nu) - 1.0] * input_dim

    def nearest(self, x: Tensor) -> Tensor:
        return self.radius * torch.nn.functional.normalize(x, dim=-1)

    def diag(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[:-1], dtype=x.dtype, device=x.device)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        p = _directions(x)
        q = p if z is x else _directions(z)
        if in_graph(x) or in_graph(z):  # the polynomial in the cosine has the right derivatives everywhere
            a, t = self.shares(), p @ q.mT
            total = torch.zeros_like(t)
            for share, P in zip(a, _legendre(t, self.degree), strict=True):
                total = total + share * P
            return total.to(x)
        root = squared_distance(p, q).sqrt() / 2  # |p - q| / 2 is the sine of half the angle
        angle = 2 * root.clamp_max(1.0).asin()
        lengthscale = self.lengthscale
        cells = (
            _cells(self.shares())
            if in_graph(lengthscale)
            else _kept_cells(self.nu, float(lengthscale) / self.radius, self.degree).to(x.device)
        )
        at = angle * (len(cells) / math.pi)
        cell = at.long().clamp_max(len(cells) - 1)
        c, t = cells[cell], at - cell  # [n, m, 4]
        return (c[..., 0] + t * (c[..., 1] + t * (c[..., 2] + t * c[..., 3]))).to(x)

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """sqrt((2 l_i + 1) / c) P_{l_i}(<x, u_i>), of random degrees l_i ~ a_l and random directions u_i.

        The mean of P_l(<x, u>) P_l(<x', u>) over all directions u is P_l(<x, x'>) / (2 l + 1).
        """
        u = torch.rand(1, generator=generator, dtype=torch.float64, device=generator.device).cpu()
        levels = (torch.arange(num_features, dtype=torch.float64, device="cpu") + u) / num_features
        degrees = torch.searchsorted(self.shares().detach().cpu().cumsum(0), levels).clamp_max(self.degree)
        directions = torch.randn(num_features, 3, generator=generator, dtype=torch.float64, device=generator.device)
        directions = _directions(directions.cpu())
        return lambda x: _zonal(x, degrees, directions)


def _zonal(x: Tensor, degrees: Tensor, directions: Tensor) -> Tensor:
    """sqrt((2 l_i + 1) / c) P_{l_i}(<x, u_i>), `[n, c]`, of c degrees l_i, increasing, and directions u_i `[c, 3]`."""
    ends = torch.bincount(degrees).cumsum(0).tolist()
    t, columns, start = _directions(x) @ directions.to(x.device).mT, [], 0
    below, P = torch.zeros_like(t), torch.ones_like(t)
    for n, end in enumerate(ends):  # columns leave when they have reached their degree
        columns.append(P[:, : end - start] * math.sqrt((2 * n + 1) / len(degrees)))
        below, P, t = below[:, end - start :], P[:, end - start :], t[:, end - start :]
        below, P, start = P, ((2 * n + 1) * t * P - n * below) / (n + 1), end
    return torch.cat(columns, dim=1).to(x)


def _directions(x: Tensor) -> Tensor:
    """Points `[..., 3]` as unit vectors in float64."""
    if x.shape[-1] != 3:
        raise ValueError(
            f"SphereMatern: expected points of a sphere [n, 3], such as fields.on_sphere gives, got {x.shape[-1]} "
            "columns"
        )
    return torch.nn.functional.normalize(x.double(), dim=-1)


def _legendre(t: Tensor, degree: int) -> Iterator[Tensor]:
    """P_0(t), .., P_degree(t), one after the other."""
    below, P = torch.zeros_like(t), torch.ones_like(t)
    for n in range(degree + 1):
        yield P
        below, P = P, ((2 * n + 1) * t * P - n * below) / (n + 1)


@kept(2)
def _tables(degree: int, cells_per_degree: int = 8) -> tuple[Tensor, Tensor]:
    """P_l(cos angle) and its slope in the angle `[cells + 1, degree + 1]`, at even angles from 0 to pi."""
    cells = cells_per_degree * degree
    angle = np.linspace(0, np.pi, cells + 1)
    t = torch.from_numpy(np.cos(angle))
    P = torch.stack(list(_legendre(t, degree)), dim=1)
    n = torch.arange(1, degree + 1, dtype=torch.float64, device="cpu")
    # dP_l/d(angle) = l (t P_l - P_{l-1}) / sin(angle), and zero at both ends
    slope = torch.zeros_like(P)
    slope[1:-1, 1:] = n * (t[1:-1, None] * P[1:-1, 1:] - P[1:-1, :-1]) / torch.from_numpy(np.sin(angle[1:-1]))[:, None]
    return P, slope


def _cells(shares: Tensor) -> Tensor:
    """The kernel as a function of the angle: four coefficients of a cubic in each cell, from values and slopes."""
    P, slope = (table.to(shares.device) for table in _tables(len(shares) - 1))
    f, df = P @ shares, slope @ shares * (math.pi / (len(P) - 1))
    rise = f[1:] - f[:-1]
    return torch.stack([f[:-1], df[:-1], 3 * rise - 2 * df[:-1] - df[1:], df[:-1] + df[1:] - 2 * rise], dim=1)


@kept(16)
def _kept_cells(nu: float, lengthscale: float, degree: int) -> Tensor:
    return _cells(SphereMatern(nu, lengthscale, radius=1.0, degree=degree).shares())
