"""Geostatistical models: covariances by name, fits in the plane and on the sphere, external drift."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_array, as_points, as_tensor, names_of, positive
from ..fitting import fit
from ..kernels import RBF, Kernel, Matern, Rotated, Spherical
from ..models import ExactGP, LatentGP
from ..models.likelihoods import Likelihood
from ..models.transforms import Affine
from ..solvers.cholesky import safe_cholesky
from .drift import RasterMean, as_raster
from .sphere import EARTH, OnSphere, lonlat_of, middle_of, on_plane, on_sphere
from .sphere_matern import SphereMatern
from .targets import Grid

if TYPE_CHECKING:
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
                f"SphereMatern: {part.truncated:.1%} of the variance is in waves of degrees beyond {part.degree}, "
                f"which the kernel lacks at a lengthscale of {float(part.lengthscale):.4g}; fit data of a region "
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
