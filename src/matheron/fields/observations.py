"""Observations: points and values from a table, with what is wrong with it said in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .extras import need

FORMATS = (".csv", ".txt", ".tsv", ".parquet", ".gpkg", ".geojson", ".shp")
# The fewest that a fit can be made from.
LEAST = 3


@dataclass(frozen=True)
class Observations:
    """Points `[n, d]`, values `[n]`, the names of their columns, the points' CRS, and remarks on what was left out."""

    points: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    value_name: str
    crs: Any = None
    remarks: list[str] = field(default_factory=list)


def read_observations(path: str | os.PathLike[str], x: Sequence[str], value: str) -> Observations:
    """Observations from a CSV, Parquet or GeoPackage file.

    Args:
        path: the file. A GeoPackage (or GeoJSON, or Shapefile) has its coordinates in its geometry: there `x` may name
            columns, or be `("x", "y")` for the geometry's own.
        x: the columns of the coordinates, in order.
        value: the column of the values.

    Rows without a value or a coordinate are left out, and a remark says how many.

    >>> import tempfile, pathlib
    >>> from matheron.fields.observations import read_observations
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "wells.csv")
    ...     _ = file.write_text("east,north,level\\n0,0,1.5\\n1,0,2.0\\n0,1,\\n1,1,2.5\\n")
    ...     wells = read_observations(file, ["east", "north"], "level")
    >>> wells.values, wells.remarks
    (array([1.5, 2. , 2.5]), ['1 of 4 rows has no number in east, north or level and is left out'])
    """
    path = Path(path)
    table = _table(path)
    if hasattr(table, "geometry") and not set(x) <= set(table.columns):
        table = table.assign(**dict(zip(x, _coordinates(table, x, path), strict=True)))
    names = [*x, value]
    missing = [name for name in names if name not in table.columns]
    if missing:
        known = ", ".join(str(name) for name in table.columns if name != "geometry")
        raise ValueError(f"{path.name}: no column {', '.join(missing)}; it has {known}")
    if len(set(names)) != len(names):
        raise ValueError(f"expected different columns for coordinates and value, got {', '.join(names)}")
    if len(table) == 0:
        raise ValueError(f"{path.name}: no rows below the header")
    numbers = np.stack([_numbers(table[name], name, path) for name in names], axis=1)
    known = np.isfinite(numbers).all(axis=1)
    remarks = []
    if not known.all():
        gone = int((~known).sum())
        one = "row has" if len(table) == 1 else f"of {len(table)} rows {'has' if gone == 1 else 'have'}"
        columns = f"{', '.join(names[:-1])} or {names[-1]}"
        remarks.append(f"{gone} {one} no number in {columns} and {'is' if gone == 1 else 'are'} left out")
    numbers = numbers[known]
    if len(numbers) < LEAST:
        raise ValueError(f"{path.name}: expected at least {LEAST} rows with numbers, got {len(numbers)}")
    _check_spread(numbers, names, path)
    repeated = len(numbers) - len(np.unique(numbers[:, :-1], axis=0))
    if repeated:
        verb = "row repeats a place" if repeated == 1 else "rows repeat places"
        remarks.append(f"{repeated} {verb} of others: the fitted noise is to explain how their values differ")
    return Observations(numbers[:, :-1], numbers[:, -1], tuple(x), value, getattr(table, "crs", None), remarks)


def _table(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{path.name}: expected a file that ends in {', '.join(FORMATS)}")
    pd = need("pandas")
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path)
        if suffix in (".gpkg", ".geojson", ".shp"):
            return need("geopandas").read_file(path)
        return pd.read_csv(path, sep=None if suffix != ".csv" else ",", engine="python" if suffix != ".csv" else "c")
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path.name}: the file is empty") from None
    except (ImportError, OSError):
        raise
    except Exception as error:  # each reader has exceptions of its own
        raise ValueError(f"{path.name}: cannot be read as a table: {error}") from None


def _coordinates(table: Any, x: Sequence[str], path: Path) -> list[np.ndarray]:
    kinds = set(table.geometry.geom_type.dropna())
    if kinds - {"Point"} or len(x) != 2:
        raise ValueError(f"{path.name}: expected points and two names for their coordinates, got {', '.join(kinds)}")
    return [np.asarray(table.geometry.x), np.asarray(table.geometry.y)]


def _numbers(column: Any, name: str, path: Path) -> np.ndarray:
    pd = need("pandas")
    numbers = pd.to_numeric(column, errors="coerce")
    text = column[numbers.isna() & column.notna() & (column.astype(str).str.strip() != "")]
    if len(text):
        row = int(np.flatnonzero(column.index == text.index[0])[0]) + 1
        raise ValueError(
            f"{path.name}: expected numbers in {name}, got {str(text.iloc[0])!r} in row {row}"
            + (f" and text in {len(text) - 1} more" if len(text) > 1 else "")
        )
    return np.asarray(numbers, dtype=np.float64)


def _check_spread(numbers: np.ndarray, names: Sequence[str], path: Path) -> None:
    for column, name in zip(numbers.T, names, strict=True):
        if column.min() == column.max():
            what = "varies nowhere: there is nothing to fit" if name == names[-1] else "is the same in all rows"
            raise ValueError(f"{path.name}: {name} {what}")
