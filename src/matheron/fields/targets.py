"""Targets: the points of a field, given as named axes, an xarray object, a table, or a list of points.

Points are written (x, y) and rasters are stored (y, x), rows first. So the axes of a grid are named in the order of the
paths' inputs, and the dimensions of a field are the same names in reverse: `{"x": ..., "y": ...}` gives `(path, y, x)`.
An xarray object has its dimensions already; reversed they are the inputs, unless `inputs` names them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Union, cast

import numpy as np
from torch import Tensor

from ..core.checks import ArrayLike, missing_extra

if TYPE_CHECKING:
    from dask.array import Array
    from pandas import DataFrame
    from xarray import DataArray, Dataset

# Names that identify the direction of a coordinate.
EASTWARD = ("x", "lon", "longitude", "easting")
NORTHWARD = ("y", "lat", "latitude", "northing")
# Attributes that describe how a template is stored, and do not apply to the field.
_STORAGE = ("_FillValue", "missing_value", "scale_factor", "add_offset", "grid_mapping")

# True where a value is wanted. It can be lazy. None means everywhere.
Mask = Union[np.ndarray, "Array", None]


@dataclass(frozen=True)
class Targets:
    """Cells of a grid, or points of a list.

    dims and shape are the field's, without the paths. A grid has `axes`, one for each dim; a list has `points [n, d]`.
    `order` has, for each of the paths' inputs, its dim (a grid) or column (a list). `mask` is True where a value is
    wanted; None is everywhere.
    """

    dims: tuple[Hashable, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    coords: Mapping[str, object] | Mapping[Hashable, object]
    axes: tuple[np.ndarray, ...] | None = None
    points: np.ndarray | None = None
    mask: Mask = None
    attrs: Mapping[Hashable, object] = field(default_factory=dict)
    crs: object = None

    @property
    def inputs(self) -> list[Hashable]:
        """The coordinate that each of the paths' inputs is."""
        names = list(self.coords) if self.axes is None else self.dims
        return [names[i] for i in self.order]


# The places where a field is wanted: named axes, an xarray object, a table, or points [n, d].
Grid = Union["DataArray", "Dataset", "DataFrame", Mapping[str, ArrayLike], ArrayLike]


def as_targets(
    grid: Grid, input_dim: int, inputs: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> Targets:
    """Targets from the user's argument. If a grid has coordinates with all `names` of the paths' inputs, these are
    used."""
    need("xarray")
    import xarray as xr

    if inputs is None and names is not None and len(names) == input_dim:
        of = getattr(grid, "dims", None) or getattr(grid, "columns", grid if isinstance(grid, Mapping) else ())
        inputs = names if set(names) <= set(of) else None
    if isinstance(grid, xr.DataArray | xr.Dataset):
        return _from_xarray(grid, input_dim, inputs)
    if hasattr(grid, "columns"):
        return _from_table(cast("DataFrame", grid), input_dim, inputs)
    if isinstance(grid, Mapping):
        return _from_axes(grid, input_dim, inputs)
    return _from_points(grid, input_dim)


def _from_axes(grid: Mapping[str, ArrayLike], input_dim: int, inputs: Sequence[str] | None) -> Targets:
    names = list(grid) if inputs is None else list(inputs)
    _check_names(names, list(grid), input_dim)
    dims = tuple(reversed(names))
    axes = tuple(_axis(grid[name], name) for name in dims)
    coords = {name: (name, axis, dict(getattr(grid[name], "attrs", {}))) for name, axis in zip(dims, axes, strict=True)}
    order = tuple(dims.index(name) for name in names)
    return Targets(dims, tuple(map(len, axes)), order, coords, axes)


def _from_xarray(grid: DataArray | Dataset, input_dim: int, inputs: Sequence[str] | None) -> Targets:
    import xarray as xr

    if "band" in grid.dims and "band" not in (inputs or ()) and grid.sizes["band"] == 1:
        grid = grid.squeeze("band", drop=True)
    dims = tuple(grid.dims)
    if not dims:
        raise ValueError("grid: expected an xarray object with dimensions and their coordinates, got one of none")
    missing = [name for name in dims if name not in grid.coords]
    if missing:
        raise ValueError(
            f"grid: expected coordinates for every dimension {list(dims)}, got none for {missing}; "
            f"assign them, e.g. grid.assign_coords({missing[0]}=...)"
        )
    names = list(reversed(dims)) if inputs is None else list(inputs)
    _check_names(names, list(dims), input_dim)
    if inputs is None:
        _check_directions(names)
    axes = tuple(_axis(grid[name], str(name)) for name in dims)
    coords = {name: coord for name, coord in grid.coords.items() if set(coord.dims) <= set(dims)}
    mask = _mask(grid) if isinstance(grid, xr.DataArray) else None
    attrs = {name: value for name, value in grid.attrs.items() if name not in _STORAGE}
    order = tuple(dims.index(name) for name in names)
    return Targets(dims, tuple(map(len, axes)), order, coords, axes, mask=mask, attrs=attrs, crs=crs_of(grid))


def _mask(grid: DataArray) -> Mask:
    """Where the template has values; None for everywhere. A lazy template gives a lazy mask."""
    if grid.dtype == bool:
        mask = grid.data
    elif np.issubdtype(grid.dtype, np.number):
        mask = grid.notnull().data
        nodata = grid.attrs.get("_FillValue", grid.encoding.get("_FillValue"))
        if nodata is not None and nodata == nodata:
            mask = mask & (grid.data != nodata)
    else:
        raise ValueError(f"grid: expected a template of numbers or of True and False, got dtype {grid.dtype}")
    return None if isinstance(mask, np.ndarray) and bool(mask.all()) else mask


def _from_table(table: DataFrame, input_dim: int, inputs: Sequence[str] | None) -> Targets:
    if inputs is None and hasattr(table, "geometry"):
        points = np.stack([table.geometry.x, table.geometry.y], axis=1)
        names = ["x", "y"]
        _check_names(names, names, input_dim)
        return _list(points, names, getattr(table, "crs", None))
    names = list(table.columns) if inputs is None else list(inputs)
    _check_names(names, list(table.columns), input_dim, some=True)
    points = np.stack([_numbers(table[name], f"in column {name}") for name in names], axis=1)
    return _list(points, [str(name) for name in names])


def _from_points(grid: ArrayLike, input_dim: int) -> Targets:
    points = grid.detach().cpu().numpy() if isinstance(grid, Tensor) else np.asarray(grid, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != input_dim:
        raise ValueError(
            f"grid: expected axes by name, such as {{'x': ..., 'y': ...}}, an xarray object, a table, or points "
            f"[n, {input_dim}]; got {type(grid).__name__} of shape {list(points.shape)}"
        )
    return _list(points, [f"x{i}" for i in range(input_dim)] if input_dim > 1 else ["x"])


def _list(points: np.ndarray, names: Sequence[str], crs: object = None) -> Targets:
    coords = {name: ("point", points[:, i]) for i, name in enumerate(names)}
    known = np.asarray(np.isfinite(points).all(axis=1))
    mask = None if known.all() else known
    return Targets(("point",), (len(points),), tuple(range(len(names))), coords, points=points, mask=mask, crs=crs)


def _numbers(values: ArrayLike, where: str) -> np.ndarray:
    """Numbers as float64. Dates are refused, because NumPy's unit for them differs from the model's."""
    array = np.asarray(values)
    try:
        if array.dtype.kind in "mM":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"grid: expected numbers {where}, got {array.dtype}; for times give days or years, as in the data"
        ) from None


def _axis(values: ArrayLike, name: str) -> np.ndarray:
    axis = _numbers(values, f"along {name}")
    if axis.ndim != 1 or len(axis) == 0 or not np.isfinite(axis).all():
        raise ValueError(f"grid: expected finite numbers [n] along {name}, at least one, got shape {list(axis.shape)}")
    return axis


def _check_names(names: Sequence[Hashable], known: Sequence[Hashable], input_dim: int, *, some: bool = False) -> None:
    """One name for each input, and one input for each dimension; of a table's columns, `some` will do."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"grid: expected {names}, got no {unknown} among {known}")
    if len(set(names)) != len(names) or len(names) != input_dim or (len(known) > len(names) and not some):
        raise ValueError(
            f"grid: expected {input_dim} names, one for each of the paths' inputs in their order, got {names} of "
            f"{known}; inputs= says which"
        )


def _check_directions(names: Sequence[Hashable]) -> None:
    """Raise an error for dimensions stored as (x, y), which would pass y to the input x."""
    lower = [str(name).lower() for name in names]
    east = [i for i, name in enumerate(lower) if name in EASTWARD]
    north = [i for i, name in enumerate(lower) if name in NORTHWARD]
    if east and north and north[0] < east[0]:
        raise ValueError(
            f"grid: the dimensions {list(reversed(names))} are not in a raster's order (y, x); say which of them is "
            f"each of the paths' inputs, e.g. inputs={tuple(reversed(names))!r}"
        )


def crs_of(grid: DataArray | Dataset) -> object:
    """The template's coordinate reference system, where rioxarray is there to read one."""
    try:
        need("rioxarray")
        return grid.rio.crs
    except Exception:  # rioxarray refuses grids that are not rasters, by many kinds of exceptions
        return None


def need(name: str) -> ModuleType:
    """An optional package, or an ImportError that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise missing_extra(f"fields need {name.split('.')[0]}", "fields", error) from error
