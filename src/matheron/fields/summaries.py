"""Summaries of many paths: maps over cells, computed a block at a time; and functionals of whole fields."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .simulation import Chunks, Functions, simulate, whole_paths
from .sphere import EARTH
from .targets import Grid, need

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

# The first maps of a summary, in order.
_MAPS = {
    "mean": "mean",
    "mean_error": "standard error of the mean",
    "std": "standard deviation",
    "std_error": "standard error of the standard deviation",
}


def summarise(
    paths: Functions,
    grid: Grid,
    *,
    quantiles: float | Sequence[float] = (0.05, 0.5, 0.95),
    above: float | Sequence[float] = (),
    chunks: Chunks = "auto",
    inputs: Sequence[str] | None = None,
) -> Dataset:
    """Maps of the mean, standard deviation, quantiles and probabilities of paths, as a lazy `xarray.Dataset`.

    All paths are evaluated on a block of cells, summarised and discarded, so that thousands of paths take little
    memory. Quantiles are exact sample quantiles.

    Args:
        paths, grid, chunks, inputs: as for `simulate`; a block has all paths.
        quantiles: probabilities of the variable `quantile`.
        above: thresholds of the variable `probability`, the share of paths above each.

    The variables `mean_error` and `std_error` are Monte Carlo standard errors of `mean` and `std`.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 200, input_dim=2)
    >>> maps = fields.summarise(paths, {"x": np.linspace(0, 1, 9), "y": np.linspace(0, 1, 7)}, above=[1.0])
    >>> list(maps), dict(maps["probability"].sizes)
    (['mean', 'mean_error', 'std', 'std_error', 'quantile', 'probability'], {'threshold': 1, 'y': 7, 'x': 9})
    """
    if chunks == "auto":
        chunks = whole_paths(paths, grid, inputs)
    return summaries_of(simulate(paths, grid, chunks=chunks, inputs=inputs), quantiles=quantiles, above=above)


def summaries_of(
    field: DataArray, *, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95), above: float | Sequence[float] = ()
) -> Dataset:
    """`summarise` for a field from `simulate`. Its blocks should contain all paths.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2, domain=(0, 1), seed=0)
    >>> field = fields.simulate(paths, {"x": np.linspace(0, 1, 3), "y": np.linspace(0, 1, 2)})
    >>> fields.summaries_of(field)["mean"].sizes["x"]
    3
    """
    xr, array = need("xarray"), need("dask.array")
    levels, thresholds = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (quantiles, above))
    if levels.ndim != 1 or not np.all((levels >= 0) & (levels <= 1)):
        raise ValueError(f"quantiles: expected probabilities from 0 to 1, got {quantiles}")
    if thresholds.ndim != 1 or not np.isfinite(thresholds).all():
        raise ValueError(f"above: expected thresholds, got {above}")
    if field.sizes["path"] < 2:
        raise ValueError("paths: expected at least 2 for a summary; draw more")
    data = field.chunk({"path": -1}).data
    rows = 4 + len(levels) + len(thresholds)
    table = array.map_blocks(
        _statistics, data, levels, thresholds, drop_axis=0, new_axis=0, chunks=((rows,), *data.chunks[1:]), dtype="f8"
    )
    dims = field.dims[1:]
    coords = {name: coord for name, coord in field.coords.items() if "path" not in coord.dims}
    units = {key: value for key, value in field.attrs.items() if key == "units"}
    maps = {
        name: (dims, table[i], {"long_name": f"{about} of {field.name}", **units})
        for i, (name, about) in enumerate(_MAPS.items())
    }
    if len(levels):
        about = {"long_name": f"quantiles of {field.name}", **units}
        maps["quantile"] = (("quantile_level", *dims), table[4 : 4 + len(levels)], about)
        coords["quantile_level"] = levels
    if len(thresholds):
        about = {"long_name": f"probability that {field.name} is above the threshold", "units": "1"}
        maps["probability"] = (("threshold", *dims), table[4 + len(levels) :], about)
        coords["threshold"] = ("threshold", thresholds, units)
    return xr.Dataset(maps, coords, {**field.attrs, "num_paths": field.sizes["path"]})


def _statistics(values: np.ndarray, levels: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Of values `[s, ...]`: mean, its error, standard deviation, its error, quantiles, probabilities, `[rows, ...]`."""
    s = len(values)
    out = np.empty((4 + len(levels) + len(thresholds), *values.shape[1:]))
    mean = values.mean(axis=0, dtype=np.float64)
    square = (values - mean) ** 2
    std = np.sqrt(square.sum(axis=0) / (s - 1))
    spread = np.maximum((square**2).mean(axis=0) - square.mean(axis=0) ** 2, 0.0)  # the variance of (f - mean)^2
    out[0], out[1], out[2] = mean, std / np.sqrt(s), std
    out[3] = np.divide(np.sqrt(spread / s), 2 * std, out=np.zeros_like(std), where=std != 0)
    if len(levels):
        ordered = np.sort(values, axis=0)  # a masked cell is NaN in all paths
        for row, level in enumerate(levels, start=4):
            below = min(int(level * (s - 1)), s - 2)
            part = level * (s - 1) - below
            out[row] = (1 - part) * ordered[below] + part * ordered[below + 1]
    empty = np.isnan(mean)
    for row, threshold in enumerate(thresholds, start=4 + len(levels)):
        out[row] = np.where(empty, np.nan, (values > threshold).mean(axis=0))
    return out


# Functionals of whole fields: one number per path. Their distribution cannot be computed from maps of cells.


def area_above(field: DataArray, threshold: float) -> DataArray:
    """The area where each path is above a threshold, in the units of the axes: lazily, one number per path.

    Longitudes and latitudes, which a field has by `OnSphere` or `with_crs`, give km^2 of the Earth's surface.

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2)
    >>> field = fields.simulate(paths, {"x": np.linspace(0, 1, 9), "y": np.linspace(0, 1, 7)})
    >>> fields.area_above(field, 0.0).compute().shape
    (4,)
    """
    return ((field > threshold) * _cell_sizes(field)).sum(_cells(field))


def volume_above(field: DataArray, threshold: float) -> DataArray:
    """The integral of the excess of each path over a threshold: lazily, one number per path.

    >>> import matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2, domain=(0, 1), seed=0)
    >>> field = paths.to_xarray({"x": [0.0, 0.5, 1.0], "y": [0.0, 1.0]})
    >>> fields.volume_above(field, 0.0).shape
    (4,)
    """
    return ((field - threshold).clip(min=0) * _cell_sizes(field)).sum(_cells(field))


def maximum(field: DataArray) -> DataArray:
    """Each path's largest value on the grid: lazily, one number per path.

    >>> import matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2, domain=(0, 1), seed=0)
    >>> field = paths.to_xarray({"x": [0.0, 0.5, 1.0], "y": [0.0, 1.0]})
    >>> fields.maximum(field).shape
    (4,)
    """
    return field.max(_cells(field))


def connected_area(field: DataArray, threshold: float) -> DataArray:
    """The largest connected area where each path is above a threshold: lazily, one number per path.

    Cells that share a side are connected. A path's whole field is in memory at a time.

    >>> import matheron
    >>> from matheron import fields, kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2, domain=(0, 1), seed=0)
    >>> field = paths.to_xarray({"x": [0.0, 0.5, 1.0], "y": [0.0, 1.0]})
    >>> fields.connected_area(field, 0.0).shape
    (4,)
    """
    cells = _cells(field)
    whole = field.chunk({"path": 1, **dict.fromkeys(cells, -1)}) if field.chunks is not None else field
    return need("xarray").apply_ufunc(
        _largest_component,
        whole > threshold,
        _cell_sizes(field),
        input_core_dims=[cells, cells],
        vectorize=True,
        dask="parallelized",
        output_dtypes=[np.float64],
    )


def _largest_component(above: np.ndarray, sizes: np.ndarray) -> float:
    from scipy import ndimage

    labels = np.empty(above.shape, dtype=np.int64)
    ndimage.label(above, output=labels)
    count = labels.max(initial=0)
    return float(ndimage.sum_labels(sizes, labels, np.arange(1, count + 1)).max()) if count else 0.0


def _cells(field: DataArray) -> list[Hashable]:
    if "point" in field.dims:
        raise ValueError("field: expected a grid, whose cells have a size, got a list of points")
    return [dim for dim in field.dims if dim not in ("path", "output")]


def _cell_sizes(field: DataArray) -> DataArray:
    """Every cell's area (or length, or volume), a cell ending halfway to its neighbours.

    Degrees of longitude and latitude, known by their units, are km of the Earth's surface.
    """
    xr = need("xarray")
    cells = _cells(field)
    units = {dim: field[dim].attrs.get("units") for dim in cells}
    on_earth = {"degrees_east", "degrees_north"} <= set(units.values())
    sizes = xr.DataArray(1.0)
    for dim in cells:
        axis = field[dim].values.astype(np.float64)
        steps = np.gradient(axis) if len(axis) > 1 else np.ones(1)
        if on_earth and units[dim] == "degrees_east":
            width = EARTH * np.radians(np.abs(steps))
        elif on_earth and units[dim] == "degrees_north":  # the area between two parallels
            south, north = (np.sin(np.radians(np.clip(axis + side * steps / 2, -90, 90))) for side in (-1, 1))
            width = EARTH * np.abs(north - south)
        else:
            width = np.abs(steps)
        sizes = sizes * xr.DataArray(width, {dim: field[dim].values}, dim)
    return sizes
