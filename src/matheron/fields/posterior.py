"""A posterior on a grid: functions drawn for it, and the exact mean and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_array
from ..core.value import Value
from ..drawing import draw
from ..features import Features, spherical_features
from ..models import ExactGP
from ..models.libraries import describe
from ..models.streamed import StreamedGP
from ..models.transforms import Affine
from ..paths import AbstractPaths
from ..solvers import Cholesky
from .simulation import Chunks, simulate
from .sphere import OnSphere, box_of_grid
from .targets import Grid, need

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

# With more observations than this, the factor needs too much memory, and n^2 operations per cell take too long.
LARGEST = 8000


def krige(model: object, grid: Grid, *, chunks: Chunks = "auto", inputs: Sequence[str] | None = None) -> Dataset:
    """The kriging mean and standard deviation of the function (not of new noisy data) as a lazy `xarray.Dataset`.

    Both have a closed form, at a cost of n^2 per cell. For more than some thousands of observations, or a transformed
    outcome, use `summarise(paths, grid)`, which estimates both from paths and states the errors.

    Args:
        model: an `ExactGP`, or a model of another library that is one; or, for longitudes and latitudes,
            what `fit_sphere` returns.
        grid, chunks, inputs: as for `simulate`.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0, 0.0], [1.0, 1.0]], y=[0.0, 1.0], noise=0.0)
    >>> maps = fields.krige(gp, {"x": [0.0, 1.0], "y": [0.0, 1.0]}).compute()
    >>> round(float(maps["mean"].sel(x=1, y=1)), 6), float(maps["std"].sel(x=1, y=1)) < 1e-6
    (1.0, True)
    """
    moments = model.with_inner(KrigingMoments(model.inner)) if isinstance(model, OnSphere) else KrigingMoments(model)
    field = simulate(moments, grid, chunks=chunks, inputs=inputs)
    maps = {name: field.isel(path=i, drop=True).rename(name) for i, name in enumerate(("mean", "std"))}
    return need("xarray").Dataset(maps, attrs=field.attrs)


def mean(
    paths: AbstractPaths | OnSphere, grid: Grid, *, chunks: Chunks = "auto", inputs: Sequence[str] | None = None
) -> DataArray:
    """The exact posterior mean on a grid as a lazy `xarray.DataArray`, at the cost of evaluating one path.

    Args:
        paths: functions drawn from the posterior, such as `draw_field` returns; `paths.mean` must have a closed form.
        grid, chunks, inputs: as for `simulate`.

    >>> import matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0, 0.0], [1.0, 1.0]], y=[0.0, 1.0], noise=0.0)
    >>> fields.mean(matheron.draw(gp, 1), {"x": [0.0, 1.0], "y": [0.0, 1.0]}).values.round(3) + 0.0
    array([[0.   , 0.004],
           [0.004, 1.   ]])
    """
    whole = paths.with_inner(MeanPath(paths.inner)) if isinstance(paths, OnSphere) else MeanPath(paths)
    return simulate(whole, grid, chunks=chunks, inputs=inputs, name="mean").isel(path=0, drop=True)


class MeanPath(Value):
    """The posterior mean, evaluated like a path."""

    saveable = False
    num_paths = 1

    def __init__(self, paths: AbstractPaths) -> None:
        super().__init__()
        self.paths = paths
        self.num_outputs, self.input_dim, self.dtype = paths.num_outputs, paths.input_dim, paths.dtype

    def __getitem__(self, index: slice) -> Self:
        raise IndexError(f"{type(self).__name__}: expected all of it in a block, got {index}; leave out chunks of path")

    def on_grid(self, axes: Sequence[ArrayLike]) -> Tensor:
        numbers = [as_array(axis).to(self.dtype) for axis in axes]
        points = torch.cartesian_prod(*numbers).reshape(-1, len(axes))
        return self(points).unflatten(1, [len(axis) for axis in numbers])

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """`[1, n]`, or `[1, n, t]` for several outputs."""
        mean = self.paths.mean(x)
        if mean.ndim > 1 + (self.num_outputs > 1):
            raise TypeError("mean: these paths have a mean each; simulate them instead")
        return mean[None]


class KrigingMoments(MeanPath):
    """The mean and standard deviation of a posterior, as if they were two paths."""

    num_paths = 2

    def __init__(self, model: object) -> None:
        gp = describe(model)
        if not isinstance(gp, ExactGP) or gp.num_data > LARGEST:
            raise TypeError(
                f"krige: expected an ExactGP of at most {LARGEST} observations, got {gp!r}; estimate its moments from "
                "paths: fields.summarise(matheron.draw(model, 500), grid)"
            )
        if gp.output_transform is not None and not gp.output_transform.affine:
            raise TypeError(
                "krige: under this output transform the moments have no closed form; estimate them from paths: "
                "fields.summarise(matheron.draw(model, 500), grid)"
            )
        # Neither moment depends on the features, so one is enough.
        kept = Cholesky(keep=True)
        super().__init__(draw(gp, 1, features="cosine", num_features=1, seed=0, solver=kept, dtype=torch.float64))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Mean and standard deviation at x `[n, d]`: `[2, n]`, or `[2, n, t]` for several outputs."""
        return torch.stack([self.paths.mean(x), self.paths.std(x)])


@overload
def draw_field(
    model: OnSphere, num_paths: int, grid: Grid, *, inputs: Sequence[str] | None = None, **settings: Any
) -> OnSphere: ...
@overload
def draw_field(
    model: object, num_paths: int, grid: Grid, *, inputs: Sequence[str] | None = None, **settings: Any
) -> AbstractPaths: ...
def draw_field(
    model: object, num_paths: int, grid: Grid, *, inputs: Sequence[str] | None = None, **settings: Any
) -> AbstractPaths | OnSphere:
    """Draw functions for a grid by `matheron.draw`, for use in `simulate`, `summarise` and `mean`.

    Random Fourier features cause visible stripes in single realisations, although means and covariances are right.
    Therefore features are chosen for the grid. In up to three dimensions they are a Fourier lattice over its box, and
    on the sphere they are spherical harmonics. Kernels that have neither get 16,384 random frequencies.

    Args:
        model: what `fit_sphere` returns, or anything that `matheron.draw` takes.
        num_paths: number of functions.
        grid, inputs: as for `simulate`. In the plane the functions are defined over this grid's box, and that of the
            data, alone.
        settings: of `matheron.draw`: `seed`, `features`, ...

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.Matern(1.5, 0.3), X=[[0.2, 0.1], [0.7, 0.9]], y=[0.0, 1.0], noise=1e-4)
    >>> grid = {"x": np.linspace(0, 1, 30), "y": np.linspace(0, 2, 20)}
    >>> paths = fields.draw_field(gp, 8, grid, seed=0)
    >>> fields.simulate(paths, grid).shape
    (8, 20, 30)
    """
    chosen: dict[str, Any] = {"num_features": 1 << 14}  # the last choice: fewer would be visible as stripes
    if not isinstance(model, OnSphere):
        described = model.model if isinstance(model, StreamedGP) else describe(model)
        chosen["domain"] = box_of_grid(grid, described.input_dim, None, inputs)
        return draw(model, num_paths, **{**chosen, **settings})
    if model.centre is not None:
        chosen["domain"] = box_of_grid(grid, 2, model, inputs)
    elif "features" not in settings:
        harmonics = _harmonics(model.inner, model.radius, settings.get("tolerance", 1e-3))
        chosen["features"] = "auto" if harmonics is None else harmonics
    return model.with_inner(draw(model.inner, num_paths, **{**chosen, **settings}))


def _harmonics(model: object, radius: float, tolerance: float) -> Features | None:
    """Spherical harmonics for a model on the sphere, in its own space; None where they do not describe its kernel."""
    gp = describe(model)
    if not isinstance(gp, ExactGP):
        return None
    scale, centre, inward = torch.ones(1, device="cpu"), torch.zeros(3, device="cpu"), gp.input_transform
    if isinstance(inward, Affine):
        scale, centre = inward.scale.abs().reshape(-1), inward.offset.expand(3)
    if not (inward is None or isinstance(inward, Affine)) or bool(scale.max() > scale.min() * (1 + 1e-9)):
        return None
    data = (gp.train_inputs, gp.noise)
    return spherical_features(gp.kernel, centre, float(scale[0]) * radius, data, tolerance=tolerance)
