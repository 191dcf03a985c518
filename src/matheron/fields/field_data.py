"""Observations from a table: points and values, with clear errors for doubtful data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..models.likelihoods import Likelihood
from ..tables.encoding import check_columns, copies_remark, no_data_remark, numbers
from ..tables.files import PARQUET, read_table
from ..tables.outcomes import OutcomeColumn
from .extras import need

if TYPE_CHECKING:
    from pandas import DataFrame

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
    >>> from matheron.fields.field_data import read_observations
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
