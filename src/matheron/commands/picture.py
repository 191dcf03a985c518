"""A picture of paths: curves for one input, maps for two, cuts along each input for more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..gp import ExactGP
from ..paths import AbstractPaths
from ..plots import EXACT, STYLE, draw_curves, draw_maps
from .data import data_of, deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".pdf", ".svg")
_LARGEST_PANELS = 6


class _Shown(NamedTuple):
    """What a picture is of, in the user's units."""

    paths: AbstractPaths
    sd_at: Callable[[Tensor], Tensor]
    names: list[str]
    target: str
    box: Tensor
    X: Tensor
    y: Tensor


def check_picture(file: Path) -> None:
    if file.suffix not in ENDINGS:
        raise ValueError(f"{file}: expected a name that ends in {', '.join(ENDINGS)}")


def picture(paths: AbstractPaths, gp: ExactGP, names: list[str], target: str, box: Tensor, file: Path) -> None:
    """Write the picture: paths, their mean, a band of two standard deviations, and the data."""
    import matplotlib
    from matplotlib.figure import Figure

    of = _Shown(paths, deviation(paths, gp), names, target, box, *data_of(gp))
    panels = min(len(names), _LARGEST_PANELS)
    size = (11, 2.9) if len(names) == 2 else (max(6.0, 2.6 * min(3, panels)), 3.2 * -(-panels // 3))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        (_maps if len(names) == 2 else _cuts)(figure, of)
        figure.savefig(file, dpi=150)


def _cuts(figure: Figure, of: _Shown) -> None:
    """Paths along each input, the others at the data's median."""
    paths, sd_at, names, target, box, X, y = of
    panels = min(len(names), _LARGEST_PANELS)
    columns = min(3, panels)
    axes = figure.subplots(-(-panels // columns), columns, squeeze=False, sharey=True).ravel()
    for i, axis in enumerate(axes[:panels]):
        x = X.median(0).values.repeat(300, 1)
        x[:, i] = torch.linspace(float(box[0, i]), float(box[1, i]), 300, dtype=torch.float64)
        values, mean, sd = (f(x.to(paths.dtype)).double().cpu() for f in (paths, paths.mean, sd_at))
        draw_curves(axis, x[:, i], values, mean, sd, "2 s.d.")
        if len(names) == 1:
            axis.plot(X[:, 0], y, "o", color=EXACT, markerfacecolor="white", markersize=4, label="data")
        axis.set_xlabel(names[i])
    for axis in axes[panels:]:
        axis.set_visible(False)
    axes[0].set_ylabel(target)
    axes[0].legend()
    if len(names) > 1:
        more = "" if len(names) <= panels else f" (the first {panels} of {len(names)} inputs)"
        figure.suptitle(f"{target} along each input, the others at their medians{more}", fontsize=10)


def _maps(figure: Figure, of: _Shown) -> None:
    """The mean, the standard deviation, and two paths over the data's box."""
    paths, sd_at, names, target, box, X, _ = of
    grid = [torch.linspace(float(a), float(b), 120, dtype=torch.float64) for a, b in box.T]
    x = torch.cartesian_prod(*grid).to(paths.dtype)
    values, mean, sd = (f(x).double().cpu() for f in (paths, paths.mean, sd_at))
    axes = figure.subplots(1, 2 + len(values[:2]), squeeze=False, sharex=True, sharey=True)[0]
    draw_maps(axes, grid, values, mean, sd, X)
    for axis in axes:
        axis.set_xlabel(names[0])
    axes[0].set(ylabel=names[1], title=f"mean of {target}")
