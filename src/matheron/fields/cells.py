"""The cells of the field command: evenly spaced over the data, those of a raster, or those inside polygons."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .extras import need
from .field_data import GEOMETRY, FieldData
from .targets import EASTWARD, as_targets, crs_of

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry
    from xarray import DataArray


def cells_for(
    grid: str | None, mask: Path | None, wells: FieldData, crs: object, sphere: bool
) -> DataArray | dict[str, np.ndarray]:
    """The grid, as `simulate` takes it: named axes, or a raster whose empty cells stay empty.

    Args:
        grid: number of cells along each coordinate, "1000x1000". By default the cells of the mask if it is a raster,
            else 200.
        mask: a raster, or polygons.
        crs: of the coordinates, into which polygons are brought; None where unknown.
        sphere: coordinates are longitude and latitude; grids go once round the Earth at the most, and end at the poles.
    """
    d = len(wells.names)
    if mask is not None and d != 2:
        raise ValueError(f"--mask: a map has two coordinates, got {d}")
    if mask is not None and not mask.exists():
        raise FileNotFoundError(f"--mask: no file {mask}")
    sizes = sizes_of(grid or "x".join(["200"] * d), d)
    low, high = wells.points.min(0), wells.points.max(0)
    room = 0.03 * (high - low)  # on every side of the data
    low, high = low - room, high + room
    if sphere and d == 2:
        middle = round((low[0] + high[0]) / 360) * 180.0  # a range of 360 degrees starts at -180 or at 0
        if high[0] - low[0] > 360:
            low[0], high[0] = middle - 180, middle + 180
        low[1], high[1] = max(low[1], -90.0), min(high[1], 90.0)
    if mask is not None and mask.suffix.lower() in GEOMETRY:
        return _inside(_polygons(mask, crs), wells.names, sizes)
    raster = None if mask is None else _raster(mask, crs)
    if grid is None and raster is not None:
        return raster
    axes = {name: np.linspace(a, b, n) for name, a, b, n in zip(wells.names, low, high, sizes, strict=True)}
    return axes if raster is None else _resampled(raster, axes)


def unwrapped(longitudes: np.ndarray) -> np.ndarray:
    """Longitudes without a jump at the date line or at 0, if all lie within 270 degrees.

    >>> import numpy as np
    >>> unwrapped(np.array([-179.0, 178.0, 175.0])), unwrapped(np.array([-10.0, 20.0]))
    (array([181., 178., 175.]), array([-10.,  20.]))
    """
    turned = np.sort(longitudes % 360)
    gaps = np.diff(turned, append=turned[0] + 360)
    widest = int(gaps.argmax())
    arc = 360 - gaps[widest]
    if np.ptp(longitudes) <= arc * (1 + 1e-9) or arc > 270:
        return longitudes
    start = turned[(widest + 1) % len(turned)]
    start = start - 360 if start > 180 else start
    return start + (longitudes - start) % 360


def sizes_of(grid: str, d: int) -> list[int]:
    if not re.fullmatch(r"\d+(x\d+)*", grid):
        raise ValueError(f"--grid: expected numbers of cells such as 1000x1000, got {grid!r}")
    sizes = [int(n) for n in grid.split("x")]
    if len(sizes) != d or min(sizes) < 2:
        raise ValueError(f"--grid: expected {d} numbers of at least 2, one for each coordinate, got {grid!r}")
    return sizes


def box_of(cells: DataArray | dict[str, np.ndarray], wells: FieldData) -> tuple[list[float], list[float]]:
    """The box of the cells and the data; a ValueError if the two do not overlap."""
    targets = as_targets(cells, len(wells.names))
    assert targets.axes is not None
    low, high = [], []
    for name, i, column in zip(wells.names, targets.order, wells.points.T, strict=True):
        axis = targets.axes[i]
        if axis.max() < column.min() or axis.min() > column.max():
            raise ValueError(
                f"the grid and the data do not overlap: along {name} it goes from {axis.min():.6g} to "
                f"{axis.max():.6g}, the observations from {column.min():.6g} to {column.max():.6g}; are both in one "
                "coordinate system?"
            )
        low.append(min(float(axis.min()), float(column.min())))
        high.append(max(float(axis.max()), float(column.max())))
    return low, high


def _raster(mask: Path, crs: object) -> DataArray:
    """A mask `(y, x)`: True where a raster has a value, or where it is 1 if it has values 0 and 1 only."""
    rioxarray, xr = need("rioxarray"), need("xarray")
    try:
        if mask.suffix.lower() in (".tif", ".tiff"):
            raster = rioxarray.open_rasterio(mask, masked=True)
            raster = raster.squeeze("band", drop=True) if raster.sizes["band"] == 1 else raster
        else:
            with xr.open_dataset(mask, decode_coords="all") as opened:
                raster = opened.load()
    except Exception as error:  # the readers' own exceptions differ
        raise ValueError(f"--mask: expected a GeoTIFF, NetCDF or Zarr file, got {mask}: {error!s:.80}...") from None
    if isinstance(raster, xr.Dataset):
        if len(raster.data_vars) != 1:
            raise ValueError(f"--mask: expected one variable in {mask.name}, got {', '.join(map(str, raster))}")
        raster = raster[next(iter(raster))]
    if raster.ndim != 2:
        raise ValueError(f"--mask: expected one layer (y, x), got dimensions {list(raster.dims)}")
    if str(raster.dims[0]).lower() in EASTWARD:
        raster = raster.transpose()
    raster, own = raster.astype(np.float64), crs_of(raster)
    if crs is not None and own is not None and own != crs:
        raster = raster.rio.reproject(crs)
    inside = raster.notnull()
    if bool(raster.isin([0.0, 1.0]).where(inside, True).all()) and bool((raster == 0).any()):
        inside = raster == 1
    if not bool(inside.any()):
        raise ValueError(f"--mask: {mask.name} is empty everywhere")
    return inside.drop_attrs(deep=False)


def _resampled(raster: DataArray, axes: dict[str, np.ndarray]) -> DataArray:
    """The raster's nearest cells on other axes, False beyond its edges."""
    names = dict(zip(raster.dims, reversed(axes), strict=True))
    for dim, name in names.items():
        half = np.abs(np.diff(raster[dim])).max(initial=0.0) / 2 * (1 + 1e-9)
        raster = raster.reindex({dim: axes[name]}, method="nearest", tolerance=half, fill_value=False)  # type: ignore[arg-type]
    return raster.rename(names)


def _polygons(mask: Path, crs: object) -> BaseGeometry:
    """The polygons of a file as one shape, in the coordinates' own system where both are known."""
    geopandas = need("geopandas")
    try:
        table = geopandas.read_file(mask)
    except ImportError:  # of its engine
        raise
    except Exception as error:  # the reader's own exceptions differ with its engine
        raise ValueError(f"--mask: {mask} cannot be read: {error}") from None
    if crs is not None and table.crs is not None:
        table = table.to_crs(crs)
    shape = table.geometry[table.geometry.geom_type.isin(["Polygon", "MultiPolygon"])].union_all()
    if shape.is_empty:
        raise ValueError(f"--mask: expected polygons in {mask.name}, got none")
    return shape


def _inside(shape: BaseGeometry, names: tuple[str, ...], sizes: list[int]) -> DataArray:
    """Cells of the polygons' extent, True where their centres are inside."""
    shapely, xr = need("shapely"), need("xarray")
    west, south, east, north = shape.bounds
    x, y = np.linspace(west, east, sizes[0]), np.linspace(south, north, sizes[1])
    shapely.prepare(shape)
    inside = np.stack([shapely.contains_xy(shape, x, np.full_like(x, row)) for row in y])
    if not inside.any():
        raise ValueError("--mask: no cell's centre is inside the polygons; take more cells with --grid")
    return xr.DataArray(inside, {names[1]: y, names[0]: x}, (names[1], names[0]))
