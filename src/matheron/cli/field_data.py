"""What the field command reads: observations from a table, and the cells of its grid."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..fields.targets import EASTWARD, as_targets, crs_of, need
from ..models.likelihoods import Likelihood
from ..tables.encoding import OutcomeColumn, check_columns, copies_remark, no_data_remark, numbers
from ..tables.files import PARQUET, read_table

if TYPE_CHECKING:
    from pandas import DataFrame
    from shapely.geometry.base import BaseGeometry
    from xarray import DataArray

# Files with a geometry; others are tables, of CSV or Parquet.
GEOMETRY = (".gpkg", ".geojson", ".shp")


@dataclass(frozen=True)
class FieldData:
    """Points `[n, d]`, values `[n]`, the names of their columns, the points' CRS, and remarks on what was left out."""

    points: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    value_name: str
    crs: object = None
    remarks: list[str] = field(default_factory=list)
    likelihood: Likelihood | None = None  # where the values are outcomes

    @property
    def rates(self) -> np.ndarray:
        """The values on the scale of the field; for outcomes, counts per exposure or shares of trials."""
        return self.values if self.likelihood is None else self.likelihood.rates(self.values)


def read_observations(
    path: str | os.PathLike[str],
    x: Sequence[str],
    value: str,
    crs: object = None,
    to: object = None,
    outcomes: OutcomeColumn | None = None,
) -> FieldData:
    """Observations from a CSV, Parquet or GeoPackage file.

    Args:
        path: the file. A GeoPackage (or GeoJSON, Shapefile, GeoParquet) has its coordinates in its geometry: there `x`
            may name columns, or be `("x", "y")` for the geometry's own.
        x: the columns of the coordinates, in order.
        value: the column of the values.
        crs: of the coordinates. A geometry that is in another is brought into it.
        to: the coordinate reference system to bring the first two coordinates into.
        outcomes: how the values are read where they are outcomes under a likelihood.

    Rows without a value or a coordinate are left out, and a remark says how many.

    >>> import tempfile, pathlib
    >>> from matheron.cli.field_data import read_observations
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "wells.csv")
    ...     _ = file.write_text("east,north,level\\n0,0,1.5\\n1,0,2.0\\n0,1,\\n1,1,2.5\\n")
    ...     wells = read_observations(file, ["east", "north"], "level")
    >>> wells.values, wells.remarks
    (array([1.5, 2. , 2.5]), ['1 of 4 rows has no number in east, north or level and is left out'])
    """
    path = Path(path)
    table = _table(path)
    if hasattr(table, "total_bounds") and (list(x) == ["x", "y"] or not set(x) <= set(table.columns)):
        if crs is not None and table.crs is not None:
            table = table.to_crs(crs)
        crs = crs or table.crs
        table = table.assign(**dict(zip(x, _coordinates(table, x, path), strict=True)))
    names = [*x, value]
    try:
        check_columns(table, names, path.name)
    except ValueError as error:
        raise ValueError(f"{error}; --x and --value say which to take") from None
    if len(set(names)) != len(names):
        raise ValueError(f"expected different columns for coordinates and value, got {', '.join(names)}")
    if len(table) == 0:
        raise ValueError(f"{path.name} has no rows")
    plain = names if outcomes is None else names[:-1]
    columns = [numbers(table, name, path.name, "name another column, or correct these cells") for name in plain]
    beside, remarks = np.ones(len(table)), []
    if outcomes is not None:
        y, given, remark = outcomes.read(table, value, path.name)
        columns.append(y)
        beside = beside if given is None else given
        remarks += [] if remark is None else [remark]
    rows = np.stack(columns, axis=1)
    known = np.isfinite(rows).all(axis=1) & np.isfinite(beside)
    if not known.all():
        gone = int((~known).sum())
        one = "row has" if len(table) == 1 else f"of {len(table)} rows {'has' if gone == 1 else 'have'}"
        columns = f"{', '.join(names[:-1])} or {names[-1]}"
        remarks.append(f"{gone} {one} no number in {columns} and {'is' if gone == 1 else 'are'} left out")
    rows, beside, likelihood = rows[known], beside[known], None
    if outcomes is not None:
        outcomes.check(rows[:, -1], beside, value, path.name)
        likelihood = outcomes.likelihood(torch.from_numpy(beside))
    if len(rows) < 3:  # a fit needs at least this many
        raise ValueError(f"{path.name}: expected at least 3 rows with numbers, got {len(rows)}")
    _check_spread(rows, names, path)
    plan = rows[:, : min(2, len(x))]  # a view of the horizontal coordinates; the others are heights, depths or times
    doubt = None if crs is None else _check_crs(plan, names, crs)
    remarks += [] if doubt is None else [doubt]
    if to is not None:
        plan[:], crs = _brought_into(plan, names, crs, to), to
    doubts = no_data_remark(value, rows[:, -1]), copies_remark(rows) if outcomes is None else None
    remarks += [remark for remark in doubts if remark is not None]
    repeated = len(np.unique(rows, axis=0)) - len(np.unique(rows[:, :-1], axis=0))
    if repeated and outcomes is None:
        verb = "row repeats a place" if repeated == 1 else "rows repeat places"
        remarks.append(f"{repeated} {verb} of others: the fitted noise is to explain how their values differ")
    return FieldData(rows[:, :-1], rows[:, -1], tuple(x), value, crs, remarks, likelihood)


def _table(path: Path) -> DataFrame:
    """A DataFrame, with a geometry where the file has one."""
    if path.suffix.lower() not in GEOMETRY:
        table = read_table(path)
        if path.suffix.lower() not in PARQUET or "geometry" not in table.columns:
            return table
        return need("geopandas").read_parquet(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    geopandas = need("geopandas")
    try:
        return geopandas.read_file(path)
    except ImportError:  # of its engine
        raise
    except Exception as error:  # the reader's own exceptions differ with its engine
        raise ValueError(f"{path} is not a table that can be read: {error}") from None


def _coordinates(table: DataFrame, x: Sequence[str], path: Path) -> list[np.ndarray]:
    kinds = set(table.geometry.geom_type.dropna())
    if kinds - {"Point"} or len(x) != 2:
        raise ValueError(f"{path.name}: expected points and two names for their coordinates, got {', '.join(kinds)}")
    return [np.asarray(table.geometry.x), np.asarray(table.geometry.y)]


def check_degrees(points: np.ndarray, names: Sequence[str]) -> None:
    """Raise a ValueError if points cannot be longitudes and latitudes."""
    if len(names) != 2:
        raise ValueError(f"--sphere: expected longitude and latitude, got {', '.join(names)}")
    if not _may_be_degrees(points):
        raise ValueError(
            f"--crs or --sphere: expected longitude and latitude in degrees, got {_ranges(points, names)}; name "
            "another --crs, or add --plane"
        )


def _may_be_degrees(points: np.ndarray) -> bool:
    return bool((np.abs(points) <= (360.0, 90.0)).all())


def _ranges(points: np.ndarray, names: Sequence[str]) -> str:
    """The least and the largest of each coordinate, in words."""
    each = zip(names, points.T, strict=False)
    return " and ".join(f"{name} from {column.min():.6g} to {column.max():.6g}" for name, column in each)


def _check_crs(points: np.ndarray, names: Sequence[str], crs: object, near: float = 1.0) -> str | None:
    """Check that points `[n, 2]` are plausible coordinates of the system `crs`.

    Points of a projected system that look like degrees raise a ValueError. A remark is returned where no point is in
    the system's area of use, nor within `near` degrees of it.

    Coordinates as small as degrees would lie within a few hundred metres of the origin of a projected system. Named
    systems have their origin outside the area of use, so that coordinates are large and positive.
    """
    pyproj = need("pyproj")
    known = pyproj.CRS.from_user_input(crs)
    if points.shape[1] < 2 or not known.is_projected or known.to_authority() is None:
        return None
    name, unit, got = ":".join(known.to_authority()), known.axis_info[0], _ranges(points, names)
    if _may_be_degrees(points) and unit.unit_conversion_factor < 10:  # for coordinates in metres or feet
        raise ValueError(
            f"--crs: expected coordinates in {unit.unit_name}s for {name}, got {got}, which look like degrees; if they "
            f"are, say --crs EPSG:4326, and --to {name} to bring them into it"
        )
    lon, lat = pyproj.Transformer.from_crs(known, known.geodetic_crs, always_xy=True).transform(*points.T)
    area = known.area_of_use
    if area is None:
        return None
    wide = (area.east - area.west) % 360 or 360.0
    east = (lon - area.west + near) % 360 <= wide + 2 * near
    if (np.isfinite(lon) & east & (lat >= area.south - near) & (lat <= area.north + near)).any():
        return None
    return f"the coordinates are not where {name} is used ({area.name:.60}): {got}; is --crs right, and their unit?"


def _brought_into(points: np.ndarray, names: Sequence[str], crs: object, to: object) -> np.ndarray:
    """Points `[n, 2]` of one coordinate reference system in another."""
    pyproj = need("pyproj")
    if crs is None:
        raise ValueError("--to: say what the coordinates are now with --crs, e.g. --crs EPSG:4326")
    if points.shape[1] < 2:
        raise ValueError(f"--to: expected two coordinates, got {', '.join(names[:-1])}")
    if pyproj.CRS.from_user_input(crs).is_geographic:
        check_degrees(points, names[:2])
    moved = np.stack(pyproj.Transformer.from_crs(crs, to, always_xy=True).transform(*points.T), axis=1)
    lost = ~np.isfinite(moved).all(axis=1)
    if lost.any():
        raise ValueError(
            f"--to: {int(lost.sum())} of {len(points)} points are outside of that coordinate reference system; the "
            f"coordinates are {_ranges(points, names)}"
        )
    return moved


def _check_spread(rows: np.ndarray, names: Sequence[str], path: Path) -> None:
    for column, name in zip(rows.T, names, strict=True):
        if column.min() == column.max():
            what = (
                "has the same value in all rows, so there is nothing to fit"
                if name == names[-1]
                else "is the same in all rows"
            )
            raise ValueError(f"{path.name}: {name} {what}")


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
