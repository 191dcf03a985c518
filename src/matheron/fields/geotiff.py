"""Rasters as GeoTIFF: a band for each map and each path, with descriptions; tiled, compressed, with overviews."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .extras import need

if TYPE_CHECKING:
    from xarray import DataArray, Dataset


def check_raster(dataset: Dataset) -> None:
    """Raise a ValueError if a Dataset is not a raster: the last two dims must be evenly spaced and equal for all
    variables."""
    shapes = {(v.dims[-2:], v.shape[-2:]) for v in dataset.data_vars.values() if v.ndim >= 2}
    spatial = len(shapes) == 1 and not {"path", "point", "output"} & set(next(iter(shapes))[0])
    if not spatial or any(v.ndim < 2 for v in dataset.data_vars.values() if v.ndim):
        raise ValueError("field: expected one grid (y, x) for a GeoTIFF; write points to .nc or .zarr")
    for name in next(iter(shapes))[0]:
        axis = np.asarray(dataset[name], dtype=np.float64)
        steps = np.diff(axis)
        if len(steps) == 0 or steps[0] == 0 or np.abs(steps - steps[0]).max() > 1e-6 * abs(steps[0]):
            raise ValueError(
                f"field: a GeoTIFF's cells are evenly spaced, two per side or more; {name} is not; use .nc"
            )


def assemble_geotiff(dataset: Dataset, path: Path, *, tile: int = 256, smallest: int = 64) -> None:
    """Write a lazy Dataset, one block at a time.

    Args:
        tile: the side of a tile: a multiple of 16, as the format asks.
        smallest: the longer side of the smallest overview, at least.
    """
    rasterio, core, _ = need("rasterio"), need("dask.array.core"), need("rioxarray")
    crs = dataset.rio.crs
    layers = {str(n): v for n, v in dataset.data_vars.items() if v.ndim >= 2}
    variables = {n: v if np.issubdtype(v.dtype, np.floating) else v.astype(np.float64) for n, v in layers.items()}
    first = next(iter(variables.values()))
    y, x = (np.asarray(dataset[name], dtype=np.float64) for name in first.dims[-2:])
    flip = y[-1] > y[0]  # rows go from north to south
    step_x, step_y = (x[-1] - x[0]) / (len(x) - 1), (y[-1] - y[0]) / (len(y) - 1)
    top = (y[-1] if flip else y[0]) + abs(step_y) / 2
    transform = rasterio.Affine(step_x, 0, x[0] - step_x / 2, 0, -abs(step_y), top)
    bands = [(n, index) for n, v in variables.items() for index in product(*map(range, v.shape[:-2]))]
    profile = dict(
        driver="GTiff",
        height=len(y),
        width=len(x),
        count=len(bands),
        dtype=np.result_type(*(v.dtype for v in variables.values())).name,
        crs=None if crs is None else crs.to_wkt(),
        transform=transform,
        nodata=float("nan"),
        tiled=True,
        blockxsize=tile,
        blockysize=tile,
        interleave="band",
        compress="deflate",
        predictor=3,  # for floating-point numbers: their bytes are stored by significance
        BIGTIFF="IF_SAFER",
    )
    with rasterio.open(path, "w", **profile) as file:
        for band, (name, index) in enumerate(bands, start=1):
            file.set_band_description(band, _described(variables[name], name, index))
        number = {band: i for i, band in enumerate(bands, start=1)}
        for name, variable in variables.items():
            *lead, rows, columns = variable.chunks or tuple((n,) for n in variable.shape)
            # Whole tiles, about as large as the blocks: if a compressed tile is written twice, it takes the space
            # twice.
            whole = [_in_tiles(len(axis), max(sizes), tile) for axis, sizes in ((y, rows), (x, columns))]
            for *some, down, along in core.slices_from_chunks((*lead, *whole)):
                here = slice(len(y) - down.stop, len(y) - down.start) if flip else down
                values = np.asarray(variable[(*some, here, along)])
                window = rasterio.windows.Window(along.start, down.start, *reversed(values.shape[-2:]))
                for index in product(*(range(s.start, s.stop) for s in some)):
                    layer = values[tuple(i - s.start for i, s in zip(index, some, strict=True))]
                    file.write(layer[::-1] if flip else layer, number[name, index], window=window)
    levels = [2**i for i in range(1, 16) if max(len(y), len(x)) >= smallest * 2**i]
    with rasterio.Env(COMPRESS_OVERVIEW="DEFLATE", PREDICTOR_OVERVIEW="3"):
        with rasterio.open(path, "r+") as file:
            file.build_overviews(levels, rasterio.enums.Resampling.average)


def _in_tiles(n: int, size: int, tile: int) -> tuple[int, ...]:
    """The sizes of parts of n cells, each a whole number of tiles, at least as large as `size` (but for the last)."""
    step = -(-size // tile) * tile
    return tuple(min(step, n - start) for start in range(0, n, step))


def _described(variable: DataArray, name: str, index: tuple[int, ...]) -> str:
    """What a band holds: "mean", "quantile 0.05", "probability above 1600", "height path 3"."""
    words = [name]
    for dim, i in zip(variable.dims[:-2], index, strict=True):
        value = variable[dim].values[i] if dim in variable.coords else i
        label = {"quantile_level": "", "threshold": "above "}.get(str(dim), f"{dim} ")
        words.append(f"{label}{value:g}" if np.issubdtype(type(value), np.number) else f"{label}{value}")
    return " ".join(words)
