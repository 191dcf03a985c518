"""The sphere: longitudes and latitudes as points of a plane, for a region, or as points in space, for all of it.

A region lies within 25 degrees (2780 km) of its middle. There the azimuthal equidistant projection about that middle
changes distances by at most 3%, which is less than the uncertainty of a fitted lengthscale. A model in the plane can
use a Fourier lattice. Larger areas stay on the sphere: distances are chords, for which every kernel is positive
definite, and features are spherical harmonics.

`SphereMatern` is the Matern kernel of the sphere itself, a function of the great-circle distance:

    k(x, x') = sum_l a_l P_l(cos angle),    a_l ~ (2 l + 1) (2 nu / s^2 + l (l + 1))^-(nu + 1),    sum_l a_l = 1

with P_l the Legendre polynomials and s = lengthscale / radius. It solves on the sphere the equation that the Matern
kernel solves in the plane (Whittle 1963; Borovitskiy, Terenin, Mostowsky and Deisenroth, Matern Gaussian processes on
Riemannian manifolds, 2020). As nu grows, a_l tends to (2 l + 1) exp(-s^2 l (l + 1) / 2), the heat kernel. All a_l are
positive, so that k is positive definite (Schoenberg 1942). The Matern formula of Euclidean space, at great-circle
distances, is not positive definite for nu above 1/2 (Gneiting 2013).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_array, as_points, positive
from ..core.modes import in_graph, kept
from ..kernels import Kernel
from ..kernels.base import squared_distance
from ..models import ExactGP, LatentGP
from ..paths import has_domain
from .simulation import Functions
from .targets import Grid, as_targets

EARTH = 6371.0  # km
# The extent of a grid is computed from at most this many cells along each axis.
_THINNED = 400


def on_sphere(lonlat: ArrayLike, radius: float = EARTH) -> Tensor:
    """Longitudes and latitudes in degrees `[n, 2]` as points of a sphere `[n, 3]`, in the units of its radius.

    Distances are chords, so that every kernel stays positive definite; up to 2,000 km a chord is less than 0.5%
    shorter than the great circle.

    >>> from matheron import fields
    >>> fields.on_sphere([[0.0, 0.0], [90.0, 0.0]], radius=1.0).round(decimals=6)
    tensor([[1., 0., 0.],
            [0., 1., 0.]], dtype=torch.float64)
    """
    points = as_points(lonlat, "lonlat", input_dim=2).double()
    if bool((points[:, 1].abs() > 90).any()):
        raise ValueError("lonlat: expected columns longitude, latitude in degrees, got latitudes beyond 90")
    lon, lat = torch.deg2rad(points).unbind(-1)
    return radius * torch.stack([lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()], dim=-1)


def on_plane(lonlat: ArrayLike, centre: Sequence[float], radius: float = EARTH) -> Tensor:
    """Longitudes and latitudes in degrees `[n, 2]` as points of a plane `[n, 2]`, in the units of the sphere's radius.

    The projection is the azimuthal equidistant one about `centre` (longitude, latitude): distances and directions from
    there are those of the sphere. At the centre the first axis goes east and the second north. Poles and the date line
    are places like others.

    >>> from matheron import fields
    >>> fields.on_plane([[180.0, 60.0], [-179.0, 60.0], [180.0, 61.0]], centre=(180.0, 60.0)).round() + 0.0
    tensor([[  0.,   0.],
            [ 56.,   0.],
            [  0., 111.]], dtype=torch.float64)
    """
    lon, lat = np.radians(centre)
    frame = [
        [-np.sin(lon), np.cos(lon), 0.0],  # east
        [-np.sin(lat) * np.cos(lon), -np.sin(lat) * np.sin(lon), np.cos(lat)],  # north
        [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)],  # up
    ]
    points = on_sphere(lonlat, 1.0)
    x, y, z = (points @ torch.tensor(frame, dtype=torch.float64, device="cpu").to(points).mT).unbind(-1)
    across = torch.hypot(x, y)
    angle = torch.atan2(across, z)
    stretch = torch.where(across > 0, angle / across.clamp_min(1e-300), 1.0)
    return radius * torch.stack([x * stretch, y * stretch], dim=-1)


def middle_of(lonlat: ArrayLike) -> tuple[tuple[float, float], float]:
    """The middle (longitude, latitude) of points `[n, 2]`, and how far from it they reach, in degrees.

    The middle is the centre of the smallest cap that holds the points, rounded to a tenth of a degree. It is found by
    moving towards whichever point is farthest (Badoiu and Clarkson 2003).

    >>> from matheron.fields.sphere import middle_of
    >>> middle_of([[170.0, 10.0], [-170.0, 10.0]])[0]
    (180.0, 10.2)
    """
    points = on_sphere(lonlat, 1.0)
    centre = points.mean(0)
    for step in range(1, 200):
        farthest = points[int((points - centre).square().sum(1).argmax())]
        centre = centre + (farthest - centre) / (step + 1)
    x, y, z = (centre / centre.norm().clamp_min(1e-300)).tolist()
    lon, lat = np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(np.clip(z, -1.0, 1.0)))
    middle = (round(float(lon), 1) + 0.0, round(float(lat), 1) + 0.0)
    return middle, _reach(points, middle)


def _reach(points: Tensor, centre: Sequence[float]) -> float:
    """The largest angle, in degrees, from a centre to points of the unit sphere `[n, 3]`."""
    chord = (points - on_sphere([centre], 1.0)).norm(dim=-1).max()
    return float(2 * torch.rad2deg((chord / 2).clamp_max(1.0).asin()))


class OnSphere:
    """Functions, or a model, of longitude and latitude in degrees, for `simulate` and `krige`.

    Args:
        inner: paths, or a model, over points on the sphere `[n, 3]`; or, with `centre`, over a region's plane `[n, 2]`.
        radius: of the sphere.
        centre: longitude and latitude of the middle of a region, whose points are those of `on_plane`.

    `fit_sphere` makes one of a model, and `draw_field` one of paths.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.Matern(1.5, 2000.0), 2, input_dim=3)
    >>> world = {"lon": np.arange(-180.0, 180.0, 10), "lat": np.arange(-80.0, 81.0, 10)}
    >>> fields.simulate(fields.OnSphere(paths), world).shape
    (2, 17, 36)
    """

    input_dim = 2
    coordinate_attrs = (  # the attributes of the CF conventions
        {"standard_name": "longitude", "units": "degrees_east"},
        {"standard_name": "latitude", "units": "degrees_north"},
    )
    num_paths: int  # these are attributes of the paths
    num_outputs: int
    dtype: torch.dtype
    named_modules: Callable[..., Iterator[tuple[str, torch.nn.Module]]]

    def __init__(
        self, inner: Functions | ExactGP | LatentGP, radius: float = EARTH, centre: Sequence[float] | None = None
    ) -> None:
        wanted = 3 if centre is None else 2
        if inner.input_dim != wanted:
            where = "on a sphere [n, 3]" if centre is None else "of a region's plane [n, 2]"
            raise ValueError(f"inner: expected functions of points {where}, got of {inner.input_dim} inputs")
        self.inner: Any = inner
        self.radius = float(radius)
        self.centre = None if centre is None else (float(centre[0]), float(centre[1]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getitem__(self, index: slice) -> OnSphere:
        return self.with_inner(self.inner[index])

    def __repr__(self) -> str:
        where = "the whole sphere" if self.centre is None else f"a region about {self.centre}"
        return f"OnSphere({self.inner!r}, {where})"

    def with_inner(self, inner: Functions | ExactGP | LatentGP) -> OnSphere:
        """Other functions of the same points."""
        return OnSphere(inner, self.radius, self.centre)

    def map(self, function: Callable[[Tensor], Tensor]) -> OnSphere:
        """The functions g(f(.)), for an elementwise function g of torch."""
        return self.with_inner(self.inner.map(function))

    def points(self, lonlat: ArrayLike) -> Tensor:
        """Longitudes and latitudes `[n, 2]` as the points that the functions within are called at."""
        if self.centre is None:
            return on_sphere(lonlat, self.radius)
        reach = _reach(on_sphere(lonlat, 1.0), self.centre) if len(as_array(lonlat)) else 0.0
        if reach > 30.0:  # in degrees; there, distances across the radius are stretched by c / sin c, which is 4.7%
            raise ValueError(
                f"lonlat: expected points within 30 degrees of the region's middle {self.centre}, got one at "
                f"{reach:.3g}; fit a model for all of them: fields.fit_sphere(lonlat, y, around=grid)"
            )
        return on_plane(lonlat, self.centre, self.radius)

    def __call__(self, x: ArrayLike) -> Tensor:
        try:
            return self.inner(self.points(x).to(self.inner.dtype))
        except ValueError as error:
            if "domain" not in str(error) or not has_domain(self.inner):
                raise
            raise ValueError(
                "lonlat: got points outside of the box, in the region's plane, that these functions were drawn for; "
                f"draw them for all of the grid: fields.draw_field(model, {self.num_paths}, grid)"
            ) from error

    def on_grid(self, axes: Sequence[ArrayLike]) -> Tensor:
        """`[s, longitudes, latitudes]`, and `[t]` for several outputs, parallel by parallel."""
        lon, lat = (as_array(axis) for axis in axes)
        points = torch.cartesian_prod(lat, lon).flip(1)
        return self(points).unflatten(1, [len(lat), len(lon)]).transpose(1, 2)


def lonlat_of(grid: Grid, inputs: Sequence[str] | None = None) -> np.ndarray:
    """Longitudes and latitudes `[n, 2]` of a grid's cells, of some of them where there are many."""
    targets = as_targets(grid, 2, inputs)
    if targets.axes is None:
        assert targets.points is not None
        return targets.points[np.isfinite(targets.points).all(axis=1)]
    lon, lat = (targets.axes[i][_thinned(len(targets.axes[i]))] for i in targets.order)
    return np.stack([v.ravel() for v in np.meshgrid(lon, lat)], axis=1)


def _thinned(n: int) -> np.ndarray:
    """Numbers of some of n cells, the first and the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, _THINNED)).round().astype(int))


def box_of_grid(
    grid: Grid, input_dim: int, place: OnSphere | None = None, inputs: Sequence[str] | None = None
) -> tuple[Tensor, Tensor]:
    """The lower and upper corner of a grid's cells, as the points where functions will be called."""
    if place is not None:
        low, high = place.points(lonlat_of(grid, inputs)).aminmax(dim=0)
        room = (high - low) / _THINNED  # cells that were left out can lie outside by less than one step
        return low - room, high + room
    targets = as_targets(grid, input_dim, inputs)
    if targets.axes is None:
        assert targets.points is not None
        known = targets.points[np.isfinite(targets.points).all(axis=1)]
        return torch.as_tensor(known.min(0), device="cpu"), torch.as_tensor(known.max(0), device="cpu")
    axes = [targets.axes[i] for i in targets.order]
    return torch.tensor([axis.min() for axis in axes], device="cpu"), torch.tensor(
        [axis.max() for axis in axes], device="cpu"
    )


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
