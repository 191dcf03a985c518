"""Pictures: of paths, as curves for one input, maps for two, and cuts along each for more; and of a field."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.axis import XAxis
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from ..models import ExactGP, LatentGP
from ..paths import AbstractPaths
from ..plots import EXACT, STYLE, draw_curves, draw_maps
from ..tables.encoding import EncodedColumns, dates_of
from ..tables.files import write_whole
from .data import EXACT as MOST_EXACT
from .data import TableData, deviation

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from xarray import DataArray, Dataset

Deviation = Callable[[Tensor], Tensor]
ENDINGS = (".png", ".pdf", ".svg")
_LARGEST_PANELS = 6


def check_picture(file: Path) -> None:
    if file.suffix not in ENDINGS:
        raise ValueError(f"{file}: expected a name that ends in {', '.join(ENDINGS)}")


def picture(paths: AbstractPaths, gp: ExactGP | LatentGP, dataset: TableData, box: Tensor, file: Path) -> None:
    """Write the picture: paths, their mean, bands of two standard deviations with and without noise, and the data."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = dataset.columns
    flat = len(columns.inputs) == 2 and not columns.categories
    panels = min(len(columns.inputs), _LARGEST_PANELS)
    size = (11, 3.4) if flat else (max(6.0, 2.6 * min(3, panels)), 3.2 * -(-panels // 3))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        sd_at, estimated = deviation(paths, gp), gp.num_data > MOST_EXACT
        (_maps if flat else _cuts)(figure, paths, sd_at, estimated, dataset, box)
        content = io.BytesIO()
        figure.savefig(content, format=file.suffix[1:], dpi=150)
    write_whole(file, content.getvalue())


def cut(columns: EncodedColumns, name: str, X: Tensor, box: Tensor) -> Tensor:
    """Return points `[n, d]` along one input; the others are at the data's median, or at the commonest category."""
    middle = X.median(0).values
    for other in columns.categories:
        place = columns.places[other]
        middle[place] = torch.eye(place.stop - place.start, dtype=X.dtype, device="cpu")[X[:, place].sum(0).argmax()]
    place = columns.places[name]
    low, high = box[:, place.start].tolist()
    along = torch.linspace(low, high, 300, dtype=X.dtype, device="cpu")[:, None]
    along = torch.eye(place.stop - place.start, dtype=X.dtype, device="cpu") if columns.coded(name) else along
    x = middle.repeat(len(along), 1)
    x[:, place] = along
    return x


def _cuts(
    figure: Figure, paths: AbstractPaths, sd_at: Deviation, estimated: bool, dataset: TableData, box: Tensor
) -> None:
    """Plot paths along each input, with the others at the data's median or at the commonest category."""
    columns, target, X, y = *dataset[:3], dataset.rates
    names = columns.inputs
    panels = min(len(names), _LARGEST_PANELS)
    width = min(3, panels)
    axes = figure.subplots(-(-panels // width), width, squeeze=False, sharey=True).ravel()
    normal = dataset.likelihood is None
    noise = None if paths.noise_variance is None or not normal else paths.noise_variance.detach().double().cpu()
    for axis, name in zip(axes, names, strict=False):
        place, known = columns.places[name], columns.categories.get(name)
        x = cut(columns, name, X, box)
        values, mean, sd = _at(x, paths, sd_at, dataset)
        positions, data = x[:, place.start], X[:, place.start]
        if known is not None:
            positions, data = torch.arange(len(known), device="cpu"), X[:, place].argmax(1)
            axis.set_xticks(range(len(known)), known)
        eps = None if noise is None else noise.expand(len(x))
        draw_curves(axis, positions, values, mean, sd, estimated, noise=eps, categories=known is not None)
        if len(names) == 1:
            axis.plot(data, y, "o", color=EXACT, markerfacecolor="white", markersize=4, label="data")
        _name_axis(axis.xaxis, columns, name)
    for axis in axes[panels:]:
        axis.set_visible(False)
    axes[0].set_ylabel(target)
    axes[0].legend()
    if len(names) > 1:
        more = "" if len(names) <= panels else f" (the first {panels} of {len(names)} inputs)"
        commonest = ", or the commonest category" if columns.categories else ""
        figure.suptitle(f"{target} along each input, the others at their medians{commonest}{more}", fontsize=10)


def _maps(
    figure: Figure, paths: AbstractPaths, sd_at: Deviation, estimated: bool, dataset: TableData, box: Tensor
) -> None:
    """Plot maps of the mean, two paths, and the standard deviation over the data's box."""
    columns, target, X, y = *dataset[:3], dataset.rates
    grid = [torch.linspace(float(a), float(b), 120, dtype=torch.float64, device="cpu") for a, b in box.T]
    x = torch.cartesian_prod(*grid).to(paths.dtype)
    values, mean, sd = _at(x, paths, sd_at, dataset)
    axes = figure.subplots(1, 2 + len(values[:2]), squeeze=False, sharex=True, sharey=True)[0]
    draw_maps(axes, grid, values, mean, sd, estimated, names=[*columns.inputs, target], data=(X, y))
    for axis in axes:
        _name_axis(axis.xaxis, columns, columns.inputs[0])
    _name_axis(axes[0].yaxis, columns, columns.inputs[1])


def _at(x: Tensor, paths: AbstractPaths, sd_at: Deviation, dataset: TableData) -> tuple[Tensor, Tensor, Tensor]:
    """Return paths `[s, n]`, their mean and standard deviation `[n]` at points; with a likelihood, those of rates."""
    values, mean, sd = (f(x.to(paths.dtype)).double().cpu() for f in (paths, paths.mean, sd_at))
    if dataset.likelihood is None:
        return values, mean, sd
    mean, variance = dataset.likelihood.moments(mean, sd.square())
    return dataset.likelihood.inverse_link(values), mean, variance.sqrt()


def _name_axis(axis: Axis, columns: EncodedColumns, name: str) -> None:
    """Label an axis with the name of an input; an input of dates has dates as ticks."""
    axis.set_label_text(name)
    if name in columns.dates:
        unit, since = columns.dates[name]
        form = "%Y-%m-%d" if unit == "days" else "%m-%d %H:%M" if unit == "hours" else "%H:%M:%S"
        axis.set_major_locator(MaxNLocator(4))
        axis.set_major_formatter(lambda value, _: dates_of(np.array([value]), unit, since).dt.strftime(form).iloc[0])
        axis.set_tick_params(rotation=20 if isinstance(axis, XAxis) else 0)


def thinned(axis: np.ndarray, most: int = 600) -> slice:
    """An evenly spaced selection of an axis, of at most `most` cells: more than a panel of the picture has pixels."""
    return slice(None, None, max(1, -(-len(axis) // most)))


def field_figure(
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
