"""Geostatistical models: covariances by name, fits in the plane and on the sphere, external drift, block averages."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from ..core.boxes import as_box
from ..core.checks import ArrayLike, as_array, as_count, as_noise, as_points, as_tensor, names_of, positive
from ..fitting import fit
from ..kernels import RBF, Kernel, Matern, Rotated, Spherical
from ..models import ExactGP, LatentGP, observe
from ..models.likelihoods import Likelihood
from ..models.means import Mean
from ..models.transforms import Affine
from ..solvers.cholesky import safe_cholesky
from ..tables.files import read_table
from .sphere import EARTH, OnSphere, SphereMatern, lonlat_of, middle_of, on_plane, on_sphere
from .targets import Grid

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataArray

# Hyperparameters are fitted to at most this many observations; all of them condition the field.
FITTED = 1000


def covariance(name: str, *, range: ArrayLike, sill: float = 1.0, angle: float = 0.0) -> Kernel:
    """Make a kernel from its name in geostatistics and its practical range, the distance where 5% of correlation is
    left.

        spherical    sill (1 - 3/2 h + 1/2 h^3), h = r / range, and 0 beyond the range
        exponential  sill exp(-3 h)
        gaussian     sill exp(-3 h^2)

    Args:
        range: a number, or one for each direction: along `angle`, then across it.
        angle: degrees counter-clockwise from the first axis to the direction of the first range.

    A nugget is the model's noise: `ExactGP(noise=nugget)`.

    >>> from matheron import fields
    >>> fields.covariance("exponential", range=300.0, sill=2.0)([[0.0, 0.0]], [[300.0, 0.0]])
    tensor([[0.0996]], dtype=torch.float64)
    """
    a = positive(range, "range")
    known = {
        "spherical": lambda: Spherical(a),
        "exponential": lambda: Matern(0.5, a / 3),
        "gaussian": lambda: RBF(a / math.sqrt(6)),
    }
    if name not in known:
        raise ValueError(f"name: expected one of {', '.join(known)}, got {name!r}; see matheron.kernels for others")
    kernel = known[name]()
    return float(sill) * (Rotated(kernel, angle) if angle else kernel)


@overload
def fit_field(
    X: ArrayLike, y: ArrayLike, kernel: Kernel | None = None, *, likelihood: None = None, **settings: Any
) -> ExactGP: ...
@overload
def fit_field(
    X: ArrayLike, y: ArrayLike, kernel: Kernel | None = None, *, likelihood: Likelihood, **settings: Any
) -> LatentGP: ...
def fit_field(
    X: ArrayLike,
    y: ArrayLike,
    kernel: Kernel | None = None,
    *,
    likelihood: Likelihood | None = None,
    seed: int = 0,
    progress: bool = False,
    **settings: Any,
) -> ExactGP | LatentGP:
    """`matheron.fit` with a kernel for fields, Matern-3/2 and a nugget, from some of the observations where many.

    The likelihood of 1000 random observations determines two lengthscales well enough for a field. It costs seconds,
    where that of 10^5 observations is out of reach. The returned model holds all observations. Several variables, and
    noise that is known for each observation, are fitted to all of them.

    Args:
        X, y: points `[n, d]` and values `[n]`, or as `matheron.fit` has them for several variables.
        kernel: where not given, a variance times Matern-3/2 with a lengthscale for each coordinate; with one for all
            directions where the points are those of a sphere (`on_sphere`).
        likelihood: of `matheron.likelihoods`, where y are outcomes; its own hyperparameters may differ from one to the
            other.
        settings: of `matheron.fit`.

    For longitudes and latitudes see `fit_sphere`.

    >>> import torch
    >>> from matheron import fields
    >>> X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> fields.fit_field(X, (5 * X[:, 0]).sin()).num_data
    60
    """
    points = as_points(X, "X")
    values = as_tensor(y, "y", like=points)
    follows = likelihood is None or likelihood.follows_targets
    if kernel is None:
        kernel = _first_guess(points, values if follows else None, isotropic=_are_on_a_sphere(points))
    generator = torch.Generator().manual_seed(seed)
    if likelihood is not None:
        usual = {"num_data": FITTED, "num_starts": 2, **settings}
        gp = fit(kernel, points, values, likelihood=likelihood, seed=generator, progress=progress, **usual)
        return gp.replaced(gaussian=gp.gaussian.replaced(input_names=names_of(X)))
    noise = settings.get("noise")
    alike = values.ndim == 1 and settings.get("tasks") is None and (noise is None or as_array(noise).ndim == 0)
    if len(points) <= FITTED or not alike:
        gp = fit(kernel, points, values, seed=generator, progress=progress, **settings)
        return gp.replaced(input_names=names_of(X))
    some = torch.randperm(len(points), generator=generator, device="cpu")[:FITTED]
    gp = fit(kernel, points[some], values[some], seed=generator, progress=progress, **settings)
    inward, outward = gp.input_transform, gp.output_transform
    assert inward is not None and outward is not None
    model_X, model_y = inward(points.double()).to(points), outward.inverse(values.double()).to(values)
    whole = ExactGP(
        gp.kernel, model_X, model_y, gp.noise[:1], gp.mean, input_transform=inward, output_transform=outward
    )
    return whole.replaced(input_names=names_of(X))


def fit_sphere(
    lonlat: ArrayLike,
    y: ArrayLike,
    kernel: Kernel | None = None,
    *,
    around: Grid | None = None,
    radius: float = EARTH,
    seed: int = 0,
    progress: bool = False,
    **settings: Any,
) -> OnSphere:
    """`fit_field` for longitudes and latitudes in degrees, with one lengthscale, in km, for all directions.

    If the data (and the grid) lie within 25 degrees of their middle, as those of a country do, the model is in a plane.
    The plane is the azimuthal equidistant projection about the middle, which changes distances by at most 3%. Otherwise
    the model is on the sphere, with chords as distances. A kernel of the sphere itself, such as `SphereMatern`, is
    exact: it depends on great-circle distances, and no data are projected. Poles and the date line need no special
    treatment.

    Args:
        lonlat, y: points `[n, 2]` and values `[n]`.
        kernel: where not given, a variance times Matern-3/2. A kernel with two lengthscales has the first from west to
            east at the middle of a region; it is refused where there is none. For great-circle distances,
            `2.0 * fields.SphereMatern(1.5, 1000.0)` or another kernel whose features are functions on a sphere of this
            radius, as those of GeometricKernels are for a radius of 1.
        around: a grid on which the model will be evaluated, if it reaches beyond the data.
        radius: of the sphere, whose units are those of lengthscales.
        settings: of `matheron.fit`.

    Returns:
        a model for `krige` and `draw_field`; its `inner` is the `ExactGP`, for `matheron.summary` and others.

    >>> import torch, matheron
    >>> from matheron import fields
    >>> g = torch.Generator().manual_seed(0)
    >>> lonlat = torch.tensor([175.0, -20.0]) + 10 * torch.rand(60, 2, generator=g, dtype=torch.float64)
    >>> model = fields.fit_sphere(lonlat, lonlat[:, 1].sin(), num_starts=1)
    >>> model.centre is not None, model.inner.num_data
    (True, 60)
    """
    points = as_points(lonlat, "lonlat", input_dim=2).double()
    reached = (
        points if around is None else torch.cat([points, torch.as_tensor(lonlat_of(around), device="cpu").double()])
    )
    middle, reach = middle_of(reached)
    # some part has functions on the sphere as features, which are exact there
    exact = kernel is not None and any(part.by_own_features for part in _parts(kernel))
    # A projection stretches distances across the radius, by 3.2% at 25 degrees.
    centre = middle if reach <= 25.0 and not exact else None
    inner = on_sphere(points, radius) if centre is None else on_plane(points, centre, radius)
    if kernel is None:
        follows = settings.get("likelihood") is None or settings["likelihood"].follows_targets
        kernel = _first_guess(inner, as_tensor(y, "y", like=inner) if follows else None, isotropic=True)
    model = fit_field(inner, y, kernel, seed=seed, progress=progress, **settings)
    for part in _parts(model.kernel):
        if isinstance(part, SphereMatern) and part.truncated > 0.005:
            warnings.warn(
                f"SphereMatern: {part.truncated:.1%} of the variance is in degrees above {part.degree}, "
                f"which the kernel leaves out, at a lengthscale of {float(part.lengthscale):.4g}; fit data of a region "
                "without a kernel of the sphere, in a projection",
                RuntimeWarning,
                stacklevel=2,
            )
    return OnSphere(model, radius, centre)


def _parts(kernel: Kernel) -> Iterator[Kernel]:
    """A kernel and all that it is made of."""
    yield kernel
    for _, part in kernel.operands():
        yield from _parts(part)


def _first_guess(points: Tensor, values: Tensor | None, isotropic: bool) -> Kernel:
    """The start of the search: a variance times Matern-3/2, with lengthscales of half the points' standard deviations.

    Without values the variance is 1.
    """
    spread = points.double().std(0).clamp_min(1e-300)
    spread = spread.square().mean().sqrt() if isotropic else spread
    variance = 1.0 if values is None else float(values.double().var().clamp_min(1e-300))
    return variance * Matern(1.5, spread / 2)


def _are_on_a_sphere(points: Tensor) -> bool:
    """Whether points `[n, 3]` are as far from the origin, all of them."""
    norms = points.double().norm(dim=-1)
    return points.shape[1] == 3 and bool(norms.max() - norms.min() <= 1e-6 * norms.max())


def fit_drift(
    X: ArrayLike, y: ArrayLike, raster: DataArray, *, kernel: Kernel | None = None, seed: int = 0, **settings: Any
) -> ExactGP:
    """A model whose mean is a + b c(x), c a raster: kriging with an external drift.

    Coefficients come from least squares, and then, with the fitted covariance of the residuals, from generalised least
    squares (`gp.mean.coefficients`). They count as known afterwards. The mean is part of the paths. It is interpolated
    bilinearly in the raster, and constant beyond its edges.

    Args:
        X, y: points `[n, 2]` and values `[n]`.
        raster: the covariate, an `xarray.DataArray` `(y, x)` without gaps.

    >>> import numpy as np, torch, xarray
    >>> from matheron import fields
    >>> c = xarray.DataArray(np.add.outer(np.arange(5.0), np.arange(6.0)), {"y": np.arange(5.0), "x": np.arange(6.0)})
    >>> X = 4 * torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> gp = fields.fit_drift(X, 3.0 + 2.0 * X.sum(1) + 0.1 * torch.sin(9 * X[:, 0]), c.rename("c"))
    >>> [round(v, 1) for v in gp.mean.coefficients]
    [3.0, 2.0]
    """
    points = as_points(X, "X", input_dim=2).double()
    values = as_tensor(y, "y", like=points)
    x_axis, y_axis, cells = as_raster(raster)
    covariate = RasterMean(x_axis, y_axis, cells)(points)[:, 0]  # [n]
    design = torch.stack([torch.ones_like(covariate), covariate], dim=1)  # [n, 2]
    beta = torch.linalg.lstsq(design, values[:, None]).solution[:, 0]
    gp = fit_field(points, values - design @ beta, kernel, seed=seed, mean=0.0, **settings)
    inward, outward = gp.input_transform, gp.output_transform
    assert isinstance(inward, Affine) and outward is not None
    # The coefficients are found from at most 4000 observations, picked at random.
    some = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed), device="cpu")[:4000]
    near = gp.train_inputs[some]
    K = gp.kernel.forward(near, near) + gp.noise[some].diag_embed()
    L, _ = safe_cholesky(K, "k(X, X) + noise")
    whitened = torch.linalg.solve_triangular(L, torch.cat([design, values[:, None]], dim=1)[some], upper=False)
    beta = torch.linalg.lstsq(whitened[:, :2], whitened[:, 2:]).solution[:, 0]
    scale, offset = inward.scale.expand(2), inward.offset.expand(2)
    drift = RasterMean(
        x_axis * scale[0] + offset[0],
        y_axis * scale[1] + offset[1],
        outward.inverse(beta[0] + beta[1] * cells),
        coefficients=beta.tolist(),
    )
    return gp.replaced(train_targets=outward.inverse(values), mean=drift)


def stations() -> DataFrame:
    """Heights above sea level, in metres, of 1200 gravity stations in and around Lesotho, as a DataFrame.

    They are a sample of the stations between 24 and 32 degrees east and 26.5 and 32.5 degrees south in the gravity data
    of southern Africa. NOAA's National Centers for Environmental Information distribute these data in the public
    domain: 14,559 records, received in January 1986. The copy used here is that of the Fatiando a Terra collection of
    open data.

    >>> from matheron import fields
    >>> table = fields.stations()
    >>> list(table.columns), len(table)
    (['longitude', 'latitude', 'height'], 1200)
    """
    return read_table(Path(__file__).with_name("stations.csv"))


class RasterMean(Mean):
    """m(x) `[..., n, 1]` from values `[n1, n2]` on a grid of two axes, each increasing; constant beyond the edges.

    >>> import torch
    >>> from matheron.fields.field_models import RasterMean
    >>> mean = RasterMean(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
    >>> mean(torch.tensor([[0.5, 1.0], [9.0, 0.0]], dtype=torch.float64))
    tensor([[1.5000],
            [1.0000]], dtype=torch.float64)
    """

    fields = ("coefficients",)

    def __init__(
        self, x_axis: Tensor, y_axis: Tensor, values: Tensor, coefficients: Sequence[float] = (0.0, 1.0)
    ) -> None:
        super().__init__(x_axis=x_axis.double(), y_axis=y_axis.double(), values=values.double())
        self.coefficients = [float(v) for v in coefficients]  # a and b of a + b c(x), in the user's units

    def forward(self, x: Tensor) -> Tensor:
        return self._interpolated(x)[0][..., None]

    def with_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, slopes = self._interpolated(x)
        return value[..., None], slopes[..., None, :]

    def _interpolated(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[..., n]` and slopes `[..., n, 2]`."""
        (i, t, dt), (j, s, ds) = (self._cell(x[..., k], axis) for k, axis in enumerate((self.x_axis, self.y_axis)))
        a, b, c, d = self.values[i, j], self.values[i + 1, j], self.values[i, j + 1], self.values[i + 1, j + 1]
        low, high = a + t * (b - a), c + t * (d - c)
        across = ((b - a) * (1 - s) + (d - c) * s) * dt
        return low + s * (high - low), torch.stack([across, (high - low) * ds], dim=-1)

    @staticmethod
    def _cell(x: Tensor, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The cell of each number, where in it, and the derivative of that: zero beyond the edges."""
        i = (torch.searchsorted(axis, x.contiguous()) - 1).clamp(0, len(axis) - 2)
        width = axis[i + 1] - axis[i]
        t = (x - axis[i]) / width
        inside = (t >= 0) & (t <= 1)
        return i, t.clamp(0, 1), inside / width


def as_raster(raster: DataArray) -> tuple[Tensor, Tensor, Tensor]:
    """The axes x, y and values `[x, y]` of an xarray raster `(y, x)`, increasing and without gaps."""
    if getattr(raster, "ndim", 0) != 2 or not hasattr(raster, "coords"):
        raise ValueError("raster: expected an xarray.DataArray of dims (y, x), e.g. rioxarray.open_rasterio(...)[0]")
    y, x = raster.dims
    raster = raster.sortby([y, x])
    values = np.asarray(raster.values, dtype=np.float64).T
    if not np.isfinite(values).all():
        raise ValueError("raster: expected values in every cell, got gaps; fill them, e.g. raster.interpolate_na(...)")
    if min(values.shape) < 2:
        raise ValueError(f"raster: expected at least two cells per side, got {list(values.T.shape)}")
    x_axis, y_axis = (torch.from_numpy(np.array(raster[name].values, dtype=np.float64)) for name in (x, y))
    return x_axis, y_axis, torch.from_numpy(values.copy())


def block(lower: ArrayLike, upper: ArrayLike, num: int = 4) -> Tensor:
    """The points `[num^d, d]` that represent a box: the midpoints of num cells along each side.

    >>> from matheron import fields
    >>> fields.block([0.0, 0.0], [1.0, 2.0], num=2)
    tensor([[0.2500, 0.5000],
            [0.2500, 1.5000],
            [0.7500, 0.5000],
            [0.7500, 1.5000]], dtype=torch.float64)
    """
    low, high = as_box((lower, upper), "lower and upper").double()
    middle = (torch.arange(as_count(num, "num"), dtype=torch.float64, device="cpu") + 0.5) / num
    axes = [a + (b - a) * middle for a, b in zip(low, high, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(low))


def given_averages(gp: ExactGP, blocks: Sequence[ArrayLike], y: ArrayLike, noise: ArrayLike) -> ExactGP:
    """Condition a model also on averages of the field over blocks: y_b = mean of f over block b + eps.

    Each average is one more observation, a weighted sum of values (`observe.combine`). A draw therefore factorises as
    many rows as there are data and blocks, however many points represent a block. Averages over boxes, with as many
    points as the kernel needs, are `observe.mean(lower, upper)`.

    Args:
        gp: the kernel, the mean, and the observations.
        blocks: for each average the points `[q, d]` whose mean it is: `fields.block(...)`, or those of a mesh that
            lie in a polygon.
        y: the averages `[b]`, in the user's units.
        noise: variance of the errors of the averages, one number or `[b]`.

    >>> import torch, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.Matern(1.5, 0.3), X=[[0.1], [0.9]], y=[0.0, 1.0], noise=1e-4)
    >>> cell = fields.block([0.4], [0.6], num=8)
    >>> paths = matheron.draw(fields.given_averages(gp, [cell], [2.0], noise=1e-6), 4, seed=0)
    >>> paths(cell).mean(-1).round(decimals=2)
    tensor([2., 2., 2., 2.], dtype=torch.float64)
    """
    if not isinstance(gp, ExactGP):
        raise TypeError(f"gp: expected an ExactGP, such as matheron.fit returns, got {type(gp).__name__}")
    if gp.num_outputs > 1:
        raise ValueError(f"gp: expected a model of one output, got {gp.num_outputs}")
    like, inward, outward = gp.sites.points.detach().double(), gp.input_transform, gp.output_transform
    if outward is not None and not outward.affine:
        raise ValueError(
            "gp: expected an affine output transform, or none; the mean of a block does not pass through it"
        )
    if len(blocks) < 1:
        raise ValueError("blocks: expected at least one")
    cells = [as_points(b, "blocks", input_dim=gp.input_dim, like=like, names=gp.input_names) for b in blocks]
    if any(len(cell) < 1 for cell in cells):
        raise ValueError("blocks: expected at least one point in each")
    y = as_tensor(y, "y", like=like)
    if y.shape != (len(cells),):
        raise ValueError(f"y: expected [{len(cells)}], one average per block, got {list(y.shape)}")
    noise = as_noise(noise, len(cells), like=like)
    if inward is not None:
        cells = [inward(cell) for cell in cells]
    if outward is not None:
        y, noise = outward.inverse(y[:, None])[:, 0], noise / outward.derivative(y[:, None])[:, 0].square()
    averages = [observe.combine(cell[None], cell.new_full((1, len(cell)), 1 / len(cell))) for cell in cells]
    known = [observe.Functionals.of(gp.sites.to(like.dtype)), *averages]
    return ExactGP(
        gp.kernel,
        observe.Functionals.concatenated(known),
        torch.cat([gp.train_targets.to(like), y]),
        torch.cat([gp.noise.to(like), noise]),
        gp.mean,
        input_transform=inward,
        output_transform=outward,
    ).replaced(input_names=gp.input_names)
