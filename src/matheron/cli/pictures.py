"""Pictures of paths: curves for one input, maps for two, and cuts along each input for more."""

from __future__ import annotations

import io
from collections.abc import Callable
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
from .data import Dataset, deviation

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Deviation = Callable[[Tensor], Tensor]
ENDINGS = (".png", ".pdf", ".svg")
_LARGEST_PANELS = 6


def check_picture(file: Path) -> None:
    if file.suffix not in ENDINGS:
        raise ValueError(f"{file}: expected a name that ends in {', '.join(ENDINGS)}")


def picture(paths: AbstractPaths, gp: ExactGP | LatentGP, dataset: Dataset, box: Tensor, file: Path) -> None:
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
    figure: Figure, paths: AbstractPaths, sd_at: Deviation, estimated: bool, dataset: Dataset, box: Tensor
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
    figure: Figure, paths: AbstractPaths, sd_at: Deviation, estimated: bool, dataset: Dataset, box: Tensor
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


def _at(x: Tensor, paths: AbstractPaths, sd_at: Deviation, dataset: Dataset) -> tuple[Tensor, Tensor, Tensor]:
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
