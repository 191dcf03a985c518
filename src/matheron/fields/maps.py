"""One figure of a field: mean, spread, probability and a few realisations, with colour bars and the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from xarray import DataArray, Dataset


def thinned(axis: np.ndarray, most: int = 600) -> slice:
    """An evenly spaced selection of an axis, of at most `most` cells: more than a panel of the picture has pixels."""
    return slice(None, None, max(1, -(-len(axis) // most)))


def picture(
    maps: Dataset,
    realisations: DataArray,
    points: np.ndarray,
    values: np.ndarray,
    out: Path | str,
    *,
    units: str = "",
    log: bool = False,
    degrees: bool = False,
) -> None:
    """Draw `maps` (mean, std, probability of one threshold) and three realisations `(path, y, x)`: write the figure.

    Args:
        maps, realisations: as `summarise` and `simulate` give them, computed.
        points, values: the observations `[n, 2]`, `[n]`, drawn in the colours of the field.
        units: label of the values' colour bars.
        log: colours by the logarithm of the values.
        degrees: the axes are longitude and latitude; a degree of each is as long as in the middle of the map.
    """
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.figure import Figure

    shown = list(realisations)[:3]
    y_name, x_name = realisations.dims[-2:]
    x, y = np.asarray(realisations[x_name]), np.asarray(realisations[y_name])
    low, high = _limits([maps["mean"], *shown])
    colours = LogNorm(low, high) if log else Normalize(low, high)
    probability = maps["probability"].isel(threshold=0)
    threshold = float(probability["threshold"])
    top = [
        ("mean", maps["mean"], "viridis", colours, units),
        ("standard deviation", maps["std"], "magma", Normalize(0.0, _limits([maps["std"]])[1]), units),
        (f"probability of more than {threshold:.4g}", probability, "cividis", Normalize(0, 1), ""),
    ]
    panels = [*top, *((f"realisation {i}", f, "viridis", colours, units) for i, f in enumerate(shown))]
    stretch = 1 / max(0.05, float(np.cos(np.radians(y.mean())))) if degrees else 1.0
    ratio = stretch * np.ptp(y) / np.ptp(x)
    figure = Figure(figsize=(1.0, 1.0))  # the panels are placed in inches, and the figure is cut around them
    wide = 3.1  # a panel, in inches
    tall = wide * float(np.clip(ratio, 0.25, 2.0))
    size = float(
        np.clip(2000 / len(points), 0.5, 14)
    )  # many observations are drawn as small dots, so that the map remains visible
    for i, (title, values_map, scheme, norm, label) in enumerate(panels):
        row, column = divmod(i, 3)
        corner = (column * (wide + 1.1), -row * (tall + 0.45))
        axis = figure.add_axes((*corner, wide, tall))
        image = axis.pcolormesh(x, y, np.asarray(values_map), cmap=scheme, norm=norm, rasterized=True)
        if scheme == "viridis":
            axis.scatter(*points.T, c=values, norm=norm, cmap=scheme, s=size, edgecolors="white", linewidths=size / 28)
        elif len(points) <= 1000:  # more would hide the maps of spread and probability
            axis.scatter(*points.T, c="white", s=size / 3.5, edgecolors="black", linewidths=size / 48)
        axis.set_title(title, fontsize="medium")
        axis.set(aspect=stretch if 0.25 < ratio < 2 else "auto", xlim=_ends(x), ylim=_ends(y))
        axis.ticklabel_format(useOffset=False, style="plain")
        axis.locator_params(nbins=3)
        axis.set(ylabel=y_name) if column == 0 else axis.set_yticklabels([])
        axis.set(xlabel=x_name) if row == 1 else axis.set_xticklabels([])
        bar = figure.add_axes((corner[0] + wide + 0.08, corner[1], 0.12, tall))
        figure.colorbar(image, cax=bar, label=label)
    figure.savefig(out, dpi=120, bbox_inches="tight")


def _limits(maps: Sequence[DataArray]) -> tuple[float, float]:
    return min(float(v.min()) for v in maps), max(float(v.max()) for v in maps)


def _ends(axis: np.ndarray) -> tuple[float, float]:
    """From the first cell's edge to the last one's, increasing."""
    half = np.ptp(axis) / (len(axis) - 1) / 2
    return axis.min() - half, axis.max() + half
