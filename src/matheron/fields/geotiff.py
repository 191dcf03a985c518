"""Rasters as GeoTIFF: a band for each map and each path, with descriptions; tiled, compressed, with overviews."""

from __future__ import annotations

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
    y, x = next(v.dims[-2:] for v in dataset.data_vars.values() if v.ndim >= 2)
    if dataset[y][-1] > dataset[y][0]:  # rows go from north to south
        dataset = dataset.isel({y: slice(None, None, -1)})
    height, width, crs = dataset.sizes[y], dataset.sizes[x], dataset.rio.crs
    layers = {str(n): v for n, v in dataset.data_vars.items() if v.ndim >= 2}
    variables = {n: v if np.issubdtype(v.dtype, np.floating) else v.astype(np.float64) for n, v in layers.items()}
    bands = [(n, index) for n, v in variables.items() for index in np.ndindex(v.shape[:-2])]
    profile = dict(
        driver="GTiff",
        height=height,
        width=width,
        count=len(bands),
        dtype=np.result_type(*(v.dtype for v in variables.values())).name,
        crs=None if crs is None else crs.to_wkt(),
        transform=dataset.rio.set_spatial_dims(x, y).rio.transform(recalc=True),
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
            whole = [_in_tiles(n, max(sizes), tile) for n, sizes in ((height, rows), (width, columns))]
            for *some, down, along in core.slices_from_chunks((*lead, *whole)):
                values = np.asarray(variable[(*some, down, along)])
                for index in np.ndindex(values.shape[:-2]):
                    band = number[name, tuple(s.start + i for s, i in zip(some, index, strict=True))]
                    file.write(values[index], band, window=rasterio.windows.Window.from_slices(down, along))
    levels = [2**i for i in range(1, 16) if max(height, width) >= smallest * 2**i]
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
