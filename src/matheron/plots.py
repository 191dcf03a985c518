"""Plots of paths, minima, roll-outs and diagnoses in one style. Each function returns matplotlib's axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from .core.checks import ArrayLike, as_array, as_noise, as_tensor, check_names, names_of
from .paths import AbstractFunctions, has_choices

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .compare.diagnosis import Diagnosis
    from .thompson import Minima

    Panels = Axes | Sequence[Axes] | np.ndarray

Observed = tuple[ArrayLike, ArrayLike]

PRIOR, UPDATE, POSTERIOR, EXACT = "#ee8722", "#8250b4", "#2a72c8", "#000000"  # the paper's orange, purple, blue, black
NOISE = "#9aa0a6"
STYLE: Any = {  # matplotlib's settings, by name
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}
# The colour maps of values and of standard deviations. Low values are dark, and high values light.
VALUES, DEVIATIONS = "viridis", "magma"
FUNCTION, OBSERVATION = "function: mean ± 2 s.d.", "new observation: mean ± 2 s.d."
_SHOWN = 12  # the number of single paths that are drawn; more would hide the band
_QUANTILES = ((0.05, 0.95), (0.25, 0.75))


def plot_paths(
    paths: AbstractFunctions,
    x: ArrayLike,
    *,
    data: Observed | None = None,
    noise: ArrayLike | None = None,
    axes: Panels | None = None,
) -> Any:
    """Plot paths in one or two dimensions: some of them, their mean, and bands of two standard deviations.

    In one dimension, x is a list of points `[n]` or `[n, 1]`. Each output has a panel with two bands: one for the
    function, and one for a new observation with its noise. Categories (`kernels.Categorical`) are shown as separate
    bars. In two dimensions, x is the two axes of a grid, and each output has a row of maps. The mean, two paths and the
    data share a colour scale. The last map is the standard deviation of the function, without noise.

    Axis labels are the names of columns, if the model, the points or the data came from a table.

    Args:
        paths: drawn functions, from a posterior or from a prior.
        x: the points, or the two axes of the grid.
        data: inputs `[n, d]` and targets `[n]` (`[n, t]` for t outputs) to show in the same panels.
        noise: the noise variance of a new observation, one number or one per point of x. By default it is that of the
            data, if all have the same. A noise that is too small to be seen is not drawn.
        axes: matplotlib's axes to draw into, one per panel; by default a new figure.

    Returns:
        The axes, or an array of axes if there are several panels.

    >>> import torch, matheron
    >>> from matheron import kernels, plots
    >>> X, y = [[0.1], [0.5], [0.9]], [0.0, 1.0, 0.0]
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X, y, noise=1e-4)
    >>> axes = plots.plot_paths(matheron.draw(gp, 64), torch.linspace(0, 1, 200), data=(X, y))
    >>> axes.get_xlabel()
    'x'
    """
    if paths.input_dim == 1:
        return _lines(paths, x, data, noise, axes)
    if paths.input_dim == 2:
        return _maps(paths, cast(Iterable[ArrayLike], x), data, axes)
    raise ValueError(
        f"plot: expected paths in 1 or 2 dimensions, got {paths.input_dim}; evaluate paths(x) along a line or on a "
        "plane, and plot the values"
    )


def plot_minima(
    minima: Minima, *, paths: AbstractFunctions | None = None, bounds: ArrayLike | None = None, axes: Axes | None = None
) -> Axes:
    """Plot the minimisers of paths: on a map of the mean in two dimensions, below the paths in one dimension.

    Args:
        minima: the result of `matheron.minimize`, in one or two dimensions.
        paths: the functions that were minimised; if given, their map or curves are drawn too.
        bounds: the box `[2, d]` that is shown; by default the smallest box around the minimisers.
        axes: matplotlib's axes to draw into; by default a new figure.

    >>> import matheron
    >>> from matheron import kernels, plots
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 16, input_dim=2)
    >>> box = [[0.0, 0.0], [1.0, 1.0]]
    >>> minima = matheron.minimize(paths, box, mesh_size=500, num_starts=4)
    >>> plots.plot_minima(minima, paths=paths, bounds=box).get_title()
    '16 minimisers'
    """
    x, d = _numbers(minima.x), minima.x.shape[1]
    if d > 2:
        raise ValueError(f"plot: expected minimisers in 1 or 2 dimensions, got {d}; plot two columns of minima.x")
    box = torch.stack([x.amin(0), x.amax(0)]) if bounds is None else as_tensor(bounds, "bounds").cpu()
    names = [*(_input_names(paths, [], None) if paths is not None else _UNNAMED[d]), "f(x)"]
    with _house(axes) as panels:
        axis: Axes = panels[0, 0]
        grid = [torch.linspace(float(low), float(high), 100, dtype=torch.float64, device="cpu") for low, high in box.T]
        if paths is not None and d == 2:
            mean = _mean(paths, torch.cartesian_prod(*grid)).reshape(100, 100)
            shown = axis.contourf(*grid, mean.T, levels=16, cmap=VALUES)
            axis.figure.colorbar(shown, ax=axis, label="mean of the paths")
        elif paths is not None:
            axis.plot(grid[0], _numbers(paths(grid[0][:, None]))[:_SHOWN].T, color=POSTERIOR, alpha=0.5, linewidth=0.8)
        across = x[:, 1] if d == 2 else _numbers(minima.value)
        axis.plot(x[:, 0], across, "o", color=PRIOR, markeredgecolor="white", markersize=6, zorder=3)
        axis.set(xlabel=names[0], ylabel=names[1])
        axis.set_title(f"{len(x)} minimisers", loc="center")
    return axis


def plot_trajectories(
    states: ArrayLike, dt: float = 1.0, *, names: Sequence[str] | None = None, axes: Panels | None = None
) -> Any:
    """Plot roll-outs as fans: the median of each state, its central 50% and 90%, and a few trajectories.

    Args:
        states: the result of `matheron.rollout`, `[s, steps, d_s]`.
        dt: the time between two states, which is `dt` of `rollout` times its `keep_every`.
        names: names of the states; by default state 1, state 2, ...
        axes: matplotlib's axes to draw into, one per state; by default a new figure.

    >>> import matheron
    >>> from matheron import kernels, plots
    >>> drift = [matheron.draw_prior(kernels.RBF(), 32, input_dim=2) for _ in range(2)]
    >>> states = matheron.rollout(drift, [0.0, 1.0], steps=50, dt=0.1, diffusion=0.01)
    >>> [axes.get_ylabel() for axes in plots.plot_trajectories(states, dt=0.1, names=["angle", "speed"])]
    ['angle', 'speed']
    """
    values = _numbers(as_array(states))
    if values.ndim != 3:
        raise ValueError(f"states: expected [s, steps, d_s], as rollout returns, got {list(values.shape)}")
    time, count = dt * torch.arange(values.shape[1], device="cpu"), values.shape[2]
    names = [f"state {i + 1}" if count > 1 else "state" for i in range(count)] if names is None else list(names)
    if len(names) != count:
        raise ValueError(f"names: expected {count}, one per state, got {len(names)}")
    with _house(axes, 1, count, sharex=True) as rows:
        panels = rows[0]
        for i, axis in enumerate(panels):
            state = values[..., i]
            for low, high in _QUANTILES:
                below, above = state.nanquantile(low, dim=0), state.nanquantile(high, dim=0)
                label = f"{high - low:.0%} of trajectories"
                axis.fill_between(time, below, above, color=POSTERIOR, alpha=0.2, linewidth=0, label=label)
            axis.plot(time, state[:4].T, color=POSTERIOR, linewidth=0.7, alpha=0.7)
            axis.plot(time, state.nanquantile(0.5, dim=0), color=EXACT, label="median")
            axis.set(xlabel="time", ylabel=names[i])
        panels[0].legend()
    return panels if len(panels) > 1 else panels[0]


def plot_diagnosis(diagnosis: Diagnosis, *, axes: Axes | None = None) -> Axes:
    """Plot a diagnosis as bars: the W2 to the posterior from the paths, from as many exact draws, and from the basis.

    >>> import torch, matheron
    >>> from matheron import kernels, plots
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> found = matheron.diagnose(matheron.draw(gp, 64), gp, torch.linspace(0, 1, 50)[:, None])
    >>> plots.plot_diagnosis(found).get_ylabel()
    'W2 from the posterior'
    """
    laws = {"these paths": diagnosis.paths, "exact draws": diagnosis.floor, "their bases": diagnosis.basis}
    known = {name: law.w2 for name, law in laws.items() if law is not None}
    with _house(axes) as panels:
        axis: Axes = panels[0, 0]
        bars = axis.bar(list(known), list(known.values()), color=[POSTERIOR, "#9aa0a6", PRIOR][: len(known)], width=0.6)
        axis.bar_label(bars, fmt="%.3g", padding=2)
        axis.set_ylabel("W2 from the posterior")
        axis.set_title(f"{diagnosis.num_paths} paths at {diagnosis.num_values} values")
        axis.grid(axis="x", visible=False)
    return axis


class _Law(NamedTuple):
    """Values `[s, n, t]`, mean and standard deviation `[n, t]`; `estimated` says whether the latter is from paths."""

    values: Tensor
    mean: Tensor
    sd: Tensor
    estimated: bool


def _lines(
    paths: AbstractFunctions, x: ArrayLike, data: Observed | None, noise: ArrayLike | None, axes: Panels | None
) -> Axes | np.ndarray:
    if getattr(x, "ndim", 0) == 2:
        check_names(x, "x", paths.input_names)
    given, points = x, as_tensor(x, "x").double()
    points = points[:, None] if points.ndim == 1 else points
    law, categories = _law(paths, points), has_choices(paths)
    variances = paths.noise_variance if noise is None else as_noise(noise, len(points), like=points)[:, None]
    observed = None if data is None else _observations(data, paths)
    inputs = _input_names(paths, [given], data)
    outputs = _output_names(paths, data, inputs)
    with _house(axes, 1, paths.num_outputs) as rows:
        panels = rows[0]
        for i, axis in enumerate(panels):
            one = _Law(law.values[..., i], law.mean[:, i], law.sd[:, i], law.estimated)
            eps = None if variances is None else _numbers(variances).expand(len(points), paths.num_outputs)[:, i]
            draw_curves(axis, points[:, 0].cpu(), *one, noise=eps, categories=categories)
            if observed is not None:
                X, y = observed
                axis.plot(X[:, 0], y[:, i], "o", color=EXACT, markerfacecolor="white", markersize=6, label="data")
            if categories:
                axis.set_xticks(sorted(set(points[:, 0].tolist())))
            axis.set(xlabel=inputs[0], ylabel=outputs[i])
        below: Any = {
            "loc": "upper center",
            "bbox_to_anchor": (0.5, -0.15),
            "ncols": 2,
        }  # below the panel, which has no colour bar there
        panels[0].legend(**(below if categories else {}))
    return panels if len(panels) > 1 else panels[0]


def draw_curves(
    axis: Axes,
    x: Tensor,
    values: Tensor,
    mean: Tensor,
    sd: Tensor,
    estimated: bool = False,
    *,
    noise: Tensor | None = None,
    categories: bool = False,
) -> None:
    """Draw some of the paths `[s, n]` at x `[n]`, their mean `[n]`, and bands of two standard deviations, into an axis.

    The first band is that of the function. With noise variances `[n]`, a wider band is that of a new observation. If x
    are categories, bands are bars, and paths are points.

    >>> import matplotlib.pyplot as plt, torch
    >>> from matheron.plots import draw_curves
    >>> x = torch.linspace(0, 1, 50)
    >>> axis = plt.figure().add_subplot()
    >>> draw_curves(axis, x, torch.stack([x, -x]), 0 * x, x)
    >>> len(axis.lines) > 2
    True
    """
    bands = [(FUNCTION + (" of the paths" if estimated else ""), sd, POSTERIOR)]
    wider = sd if noise is None else (sd.square() + noise).sqrt()
    height = float((mean + 2 * wider).max() - (mean - 2 * wider).min())
    if float((wider - sd).max()) > 0.005 * height:  # the noise is large enough to be seen
        bands.insert(0, (OBSERVATION, wider, NOISE))
    few = values[:_SHOWN]
    for label, spread, colour in bands:
        if categories:
            axis.errorbar(x, mean, 2 * spread, fmt="none", ecolor=colour, elinewidth=7, alpha=0.4, label=label)
        else:
            below, above = mean - 2 * spread, mean + 2 * spread
            axis.fill_between(x, below, above, color=colour, alpha=0.2, linewidth=0, label=label)
    if categories:
        beside = 0.4 * (torch.arange(len(few), device="cpu") / max(1, len(few) - 1) - 0.5)
        axis.plot((x + beside[:, None]).T, few.T, ".", color=POSTERIOR, markersize=4, alpha=0.7)
        axis.plot(x, mean, "_", color=EXACT, markersize=18, markeredgewidth=1.5, label="mean")
        axis.margins(x=0.1)
    else:
        axis.plot(x, few.T, color=POSTERIOR, linewidth=0.8, alpha=0.7)
        axis.plot(x, mean, color=EXACT, linestyle="--", linewidth=1.2, label="mean")
        axis.margins(x=0.01)


def _maps(paths: AbstractFunctions, x: Iterable[ArrayLike], data: Observed | None, axes: Panels | None) -> np.ndarray:
    sides = list(x)
    grid = [as_tensor(axis, "x").double().cpu() for axis in sides]
    if len(grid) != 2 or any(axis.ndim != 1 for axis in grid):
        shapes = [list(axis.shape) for axis in grid][:3]
        raise ValueError(f"x: expected the two axes of a grid, [n1] and [n2], for paths in 2 dimensions, got {shapes}")
    if any(len(axis) < 2 or not bool((axis.diff() > 0).all()) for axis in grid):
        ends = [[round(float(v), 6) for v in axis[:3]] for axis in grid]
        raise ValueError(f"x: expected two axes that increase, e.g. [torch.linspace(0, 1, 100)] * 2, got {ends}")
    law = _law(paths, torch.cartesian_prod(*grid))
    observed = None if data is None else _observations(data, paths)
    inputs = _input_names(paths, sides, data)
    outputs = _output_names(paths, data, inputs)
    with _house(axes, paths.num_outputs, 2 + len(law.values[:2]), sharex=True, sharey=True) as panels:
        for i, row in enumerate(panels):
            one = _Law(law.values[..., i], law.mean[:, i], law.sd[:, i], law.estimated)
            points = None if observed is None else (observed[0], observed[1][:, i])
            draw_maps(row, grid, *one, names=[*inputs, outputs[i]], data=points, smooth=not has_choices(paths))
    return panels if len(panels) > 1 else panels[0]


def draw_maps(
    axes: Sequence[Axes] | np.ndarray,
    grid: Sequence[Tensor],
    values: Tensor,
    mean: Tensor,
    sd: Tensor,
    estimated: bool = False,
    *,
    names: Sequence[str],
    data: tuple[Tensor, Tensor] | None = None,
    smooth: bool = True,
) -> None:
    """Draw maps on the grid of two axes: the mean `[n]`, some of the paths `[s, n]`, and the standard deviation `[n]`.

    All maps but the last share a colour scale and a colour bar. The data, X `[m, 2]` and y `[m]`, are shown in that
    scale. `names` are the names of both inputs and of the values.

    >>> import matplotlib.pyplot as plt, torch
    >>> from matheron.plots import draw_maps
    >>> grid = [torch.linspace(0, 1, 4), torch.linspace(0, 1, 5)]
    >>> values = torch.rand(1, 20)
    >>> panels = plt.figure().subplots(1, 3)
    >>> draw_maps(panels, grid, values, values[0], values[0], names=["x", "y", "f"])
    >>> [panel.get_title() for panel in panels[:2]]
    ['mean', 'path 1']
    """
    *shown, last = list(axes)
    surfaces = [mean, *values[: len(shown) - 1]]
    all_values = torch.cat([*surfaces, *([] if data is None else data[1:])])
    span: Any = {"vmin": float(all_values.min()), "vmax": float(all_values.max())}
    titles = ["mean", *(f"path {i + 1}" for i in range(len(surfaces) - 1))]
    panels = [(*each, VALUES, span) for each in zip(shown, titles, surfaces, strict=True)]
    panels.append((last, "standard deviation", sd, DEVIATIONS, {"vmin": 0.0, "vmax": max(float(sd.max()), 1e-300)}))
    sides, shape, meshes = [side.numpy() for side in grid], [len(side) for side in grid], []
    for axis, title, surface, colours, scale in panels:
        cells = surface.reshape(shape).T.numpy()
        shading = "gouraud" if smooth else "nearest"
        meshes.append(axis.pcolormesh(*sides, cells, cmap=colours, shading=shading, rasterized=True, **scale))
        axis.set(title=title, xlabel=names[0])
        axis.grid(visible=False)
        if data is not None and axis is last:
            axis.plot(*data[0].T, "o", color="white", markeredgecolor=EXACT, markersize=4)
        elif data is not None:
            axis.scatter(*data[0].T, c=data[1], cmap=colours, s=22, edgecolors="white", linewidths=0.8, **scale)
    shown[0].set_ylabel(names[1])
    own = [axis for axis in shown if axis.figure is shown[0].figure]
    shown[0].figure.colorbar(meshes[0], ax=own, location="bottom", aspect=20 * len(own), label=names[2])
    whose = f"of the {'paths' if estimated else 'function'}, without noise"
    last.figure.colorbar(meshes[-1], ax=last, location="bottom", aspect=20, label=whose)


def _law(paths: AbstractFunctions, x: Tensor) -> _Law:
    """Return the law at points `[n, d]`, in closed form if there is one, and otherwise estimated from the paths."""
    t = paths.num_outputs
    values = _numbers(paths(x)).reshape(paths.num_paths, -1, t)
    mean = _mean(paths, x).reshape(-1, t)
    try:
        variance = _numbers(paths.variance(x)).reshape(
            -1, *mean.shape
        )  # [1, n, t], or [s, n, t] if paths have different laws
        if len(variance) > 1:  # the paths are draws from a mixture, whose variance is shown
            variance = variance + (_numbers(paths.mean(x)).reshape(variance.shape) - mean).square()
        return _Law(values, mean, variance.mean(0).sqrt(), False)
    except (AttributeError, TypeError):  # there is no closed form: the spread is estimated from the paths
        return _Law(values, mean, values.std(0) if paths.num_paths > 1 else torch.zeros_like(mean), True)


def _mean(paths: AbstractFunctions, x: Tensor) -> Tensor:
    try:
        mean = _numbers(paths.mean(x))
    except TypeError:  # q(u) is only known by draws, or a transform is not affine
        return _numbers(paths(x)).mean(0)
    per_path = mean.ndim > 1 + (paths.num_outputs > 1)  # paths were given their own targets
    return mean.mean(0) if per_path else mean


_UNNAMED = {1: ["x"], 2: ["$x_1$", "$x_2$"]}


def _input_names(paths: AbstractFunctions, x: Sequence[ArrayLike], data: Observed | None) -> list[str]:
    """Return the names of the inputs: those of the model, else of the data, else of the columns of x."""
    d = paths.input_dim
    known = paths.input_names or (None if data is None else names_of(data[0]))
    if known is None:
        columns = x if d > 1 or data is None else [*x, data[0]]
        known = [name for name in map(_name, columns) if name is not None][:d]
    return list(known) if len(known) == d else _UNNAMED[d]


def _output_names(paths: AbstractFunctions, data: Observed | None, inputs: list[str]) -> list[str]:
    """Return the names of the outputs: those of the data's targets, if these are a column or a table."""
    t = paths.num_outputs
    y = None if data is None else data[1]
    named = names_of(y) if getattr(y, "ndim", 0) == 2 else [name for name in [_name(y)] if name is not None]
    if named is not None and len(named) == t:
        return list(named)
    return [f"output {i + 1}" for i in range(t)] if t > 1 else [f"f({', '.join(inputs)})"]


def _name(column: object) -> str | None:
    name = None if isinstance(column, Tensor) else getattr(column, "name", None)
    return name if isinstance(name, str) else None


def _observations(data: Observed, paths: AbstractFunctions) -> tuple[Tensor, Tensor]:
    if getattr(data[0], "ndim", 0) == 2:
        check_names(data[0], "data", paths.input_names)
    X, y = (as_tensor(part, "data").double().cpu() for part in data)
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or X.shape[1] != paths.input_dim or len(y) != len(X):
        raise ValueError(
            f"data: expected inputs [n, {paths.input_dim}] and n targets, got {list(X.shape)} and {list(y.shape)}"
        )
    return X, y.reshape(len(X), -1).expand(-1, paths.num_outputs)


def _numbers(values: Tensor) -> Tensor:
    return values.detach().cpu().double()


@contextmanager
def _house(axes: Panels | None, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[np.ndarray]:
    """Yield axes `[rows, columns]`, the caller's or those of a new figure, while this module's style is active."""
    from matplotlib import pyplot as plt

    if axes is None:
        # Creating the first figure loads matplotlib's backend, which changes settings (in a notebook, it makes plots
        # interactive). It must be loaded before the style is set, or its settings would be undone together with it.
        figure = plt.figure(figsize=(max(6.0, 3.2 * columns), 3.6 * rows), layout="constrained")
        with plt.rc_context(STYLE):
            yield figure.subplots(rows, columns, squeeze=False, **options)
        return
    given = np.asarray(axes, dtype=object).ravel()
    if given.size != rows * columns:
        raise ValueError(
            f"axes: expected {rows * columns}, one per panel, got {given.size}; leave axes out for a new figure"
        )
    with plt.rc_context(STYLE):
        yield given.reshape(rows, columns)
