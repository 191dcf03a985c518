"""Rasters as GeoTIFF: tiled, a band for each path (and variable), north up."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .blocks import regions
from .extras import need

if TYPE_CHECKING:
    from xarray import Dataset

# The side of a tile: a multiple of 16, as the format asks.
TILE = 256


def check_raster(dataset: Dataset) -> None:
    """ValueError where a Dataset is no raster: the last two dims must be evenly spaced, and all variables alike."""
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


def assemble_geotiff(dataset: Dataset, path: Path) -> None:
    """Write a lazy Dataset, one block at a time."""
    rasterio, _ = need("rasterio"), need("rioxarray")
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
        blockxsize=TILE,
        blockysize=TILE,
        interleave="band",
        BIGTIFF="IF_SAFER",
    )
    with rasterio.open(path, "w", **profile) as file:
        for band, (name, index) in enumerate(bands, start=1):
            dims = variables[name].dims[:-2]
            label = " ".join(f"{d} {i}" for d, i in zip(dims, index, strict=True))
            file.set_band_description(band, f"{name} {label}".strip())
        number = {band: i for i, band in enumerate(bands, start=1)}
        for name, variable in variables.items():
            whole = tuple((n,) for n in variable.shape)
            for _, region in regions(variable.chunks or whole):  # a block is read once, for all of its bands
                values = np.asarray(variable[region])
                *lead, rows, columns = region
                top_row = len(y) - rows.stop if flip else rows.start
                window = rasterio.windows.Window(columns.start, top_row, *reversed(values.shape[-2:]))
                for index in product(*(range(s.start, s.stop) for s in lead)):
                    layer = values[tuple(i - s.start for i, s in zip(index, lead, strict=True))]
                    file.write(layer[::-1] if flip else layer, number[name, index], window=window)
