"""One figure of a field: mean, spread, probability and a few realisations, with colour bars and the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..checks import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from xarray import DataArray, Dataset

# Cells along the longer side of a picture: more than a panel has pixels.
MOST_CELLS = 600


def thinned(axis: np.ndarray) -> slice:
    """Some of an axis, evenly: as many as a picture shows."""
    return slice(None, None, max(1, -(-len(axis) // MOST_CELLS)))


def picture(
    maps: Dataset, realisations: DataArray, points: np.ndarray, values: np.ndarray, out: Path | str, *, units: str = ""
) -> None:
    """Draw `maps` (mean, std, probability of one threshold) and realisations `(path, y, x)`, and write the figure.

    Args:
        maps, realisations: as `summarise` and `simulate` give them, computed.
        points, values: the observations `[n, 2]`, `[n]`, drawn in the colours of the field.
        units: label of the values' colour bar.
    """
    from matplotlib.figure import Figure

    shown = list(realisations)
    y_name, x_name = realisations.dims[-2:]
    x, y = np.asarray(realisations[x_name]), np.asarray(realisations[y_name])
    lowest = min(float(np.nanmin(v)) for v in (maps["mean"], *shown))
    highest = max(float(np.nanmax(v)) for v in (maps["mean"], *shown))
    columns = 3
    rows = 1 + -(-len(shown) // columns)
    tall = np.clip((y.max() - y.min()) / (x.max() - x.min()), 0.4, 1.6)
    figure = Figure(figsize=(12.5, 0.6 + rows * 3.6 * tall), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    probability = maps["probability"].isel(threshold=0)
    threshold = float(probability["threshold"])
    top = [
        ("mean", maps["mean"], "viridis", (lowest, highest)),
        ("standard deviation", maps["std"], "magma", (0.0, float(np.nanmax(maps["std"])))),
        (f"probability of more than {threshold:.4g}", probability, "cividis", (0.0, 1.0)),
    ]
    data = dict(c=values, vmin=lowest, vmax=highest, s=14, edgecolors="white", linewidths=0.5, cmap="viridis")
    for axis, (title, values_map, colours, (low, high)) in zip(axes[0], top, strict=True):
        image = _map(axis, x, y, values_map, colours, low, high)
        axis.set_title(title)
        if title == "mean":
            axis.scatter(*points.T, **data)
        else:
            axis.scatter(*points.T, s=4, color="white", edgecolors="black", linewidths=0.3)
        figure.colorbar(image, ax=axis, shrink=0.9, label=units if title == "mean" else "")
    flat = axes[1:].ravel()
    image = None
    for i, axis in enumerate(flat):
        if i < len(shown):
            image = _map(axis, x, y, shown[i], "viridis", lowest, highest)
            axis.set_title(f"realisation {i}")
            axis.scatter(*points.T, **data)
        else:
            axis.set_visible(False)
    if image is not None:
        figure.colorbar(image, ax=flat[: len(shown)].tolist(), shrink=0.9, label=units)
    for axis in axes.ravel():
        axis.ticklabel_format(useOffset=False, style="plain")
        axis.locator_params(nbins=3)
    for axis in axes[-1]:
        axis.set_xlabel(x_name)
    for axis in axes[:, 0]:
        axis.set_ylabel(y_name)
    figure.savefig(out, dpi=120)


def _map(
    axis: Axes, x: np.ndarray, y: np.ndarray, values: ArrayLike, colours: str, low: float, high: float
) -> QuadMesh:
    axis.set_aspect("equal" if 0.1 < np.ptp(y) / np.ptp(x) < 10 else "auto")
    return axis.pcolormesh(x, y, np.asarray(values), cmap=colours, vmin=low, vmax=high, rasterized=True)
