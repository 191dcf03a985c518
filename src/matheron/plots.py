"""Pictures of paths, of minima on a map, of roll-outs as fans, and of a diagnosis: one house style, axes returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from .checks import ArrayLike, as_array, as_tensor
from .paths import AbstractPaths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .diagnostics import Diagnosis
    from .thompson import Minima

    Panels = Axes | Sequence[Axes] | np.ndarray

Data = tuple[ArrayLike, ArrayLike]

PRIOR, UPDATE, POSTERIOR, EXACT = "#ee8722", "#8250b4", "#2a72c8", "#000000"  # the paper's orange, purple, blue, black
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
_SHOWN = 12  # lines of single paths: more of them hide the band
_QUANTILES = ((0.05, 0.95), (0.25, 0.75))


def plot_paths(paths: AbstractPaths, x: ArrayLike, *, data: Data | None = None, axes: Panels | None = None) -> Any:
    """Paths in one or two dimensions: some of them, their mean, and a band of two standard deviations.

    In one dimension x is a list of points `[n]` or `[n, 1]`, and each output has a panel. In two dimensions x is the
    two axes of a grid, and each output has a row of maps: the mean, the standard deviation, and two paths.

    Args:
        paths: drawn functions, from a posterior or from a prior.
        x: where to evaluate them.
        data: inputs `[n, d]` and targets `[n]` (`[n, t]` for t outputs) to show beside them.
        axes: matplotlib's axes to draw into, as many as there are panels; by default a new figure.

    Returns:
        the axes: one, or an array of them where there are several panels.

    >>> import torch, matheron
    >>> from matheron import kernels, plots
    >>> X, y = [[0.1], [0.5], [0.9]], [0.0, 1.0, 0.0]
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X, y, noise=1e-4)
    >>> axes = plots.plot_paths(matheron.draw(gp, 64), torch.linspace(0, 1, 200), data=(X, y))
    >>> axes.get_xlabel()
    'x'
    """
    if paths.input_dim == 1:
        return _lines(paths, x, data, axes)
    if paths.input_dim == 2:
        return _maps(paths, cast(Iterable[ArrayLike], x), data, axes)
    raise ValueError(
        f"plot: expected paths in 1 or 2 dimensions, got {paths.input_dim}; evaluate them along a line or a plane, "
        "paths(x), and plot the values"
    )


def plot_minima(
    minima: Minima, *, paths: AbstractPaths | None = None, bounds: ArrayLike | None = None, axes: Axes | None = None
) -> Axes:
    """The minimisers of paths: on a map of the paths' mean in two dimensions, below the paths in one.

    Args:
        minima: from `matheron.minimize`, in one or two dimensions.
        paths: what was minimised; with it the map, or the curves, are drawn too.
        bounds: the box, `[2, d]`; by default the minimisers' own.
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
    with _house() as new:
        axis: Axes = new() if axes is None else axes
        grid = [torch.linspace(float(low), float(high), 100, dtype=torch.float64) for low, high in box.T]
        if paths is not None and d == 2:
            mean = _mean(paths, torch.cartesian_prod(*grid)).reshape(100, 100)
            shown = axis.contourf(*grid, mean.T, levels=16, cmap="Blues_r")
            axis.figure.colorbar(shown, ax=axis, label="mean of the paths")
        elif paths is not None:
            axis.plot(grid[0], _numbers(paths(grid[0][:, None]))[:_SHOWN].T, color=POSTERIOR, alpha=0.5, linewidth=0.8)
        across = x[:, 1] if d == 2 else _numbers(minima.value)
        axis.plot(x[:, 0], across, "o", color=PRIOR, markeredgecolor="white", markersize=6, zorder=3)
        axis.set(xlabel="$x_1$" if d == 2 else "x", ylabel="$x_2$" if d == 2 else "f(x)")
        axis.set_title(f"{len(x)} minimisers", loc="center")
    return axis


def plot_trajectories(states: ArrayLike, dt: float = 1.0, *, axes: Panels | None = None) -> Any:
    """Roll-outs as fans: each state's median, the middle half and the middle 90%, and a few trajectories.

    Args:
        states: from `matheron.rollout`, `[s, steps, d_s]`.
        dt: time between two of them: `rollout`'s dt times its `keep_every`.
        axes: matplotlib's axes to draw into, one per state; by default a new figure.

    >>> import matheron
    >>> from matheron import kernels, plots
    >>> drift = [matheron.draw_prior(kernels.RBF(), 32, input_dim=2) for _ in range(2)]
    >>> states = matheron.rollout(drift, [0.0, 1.0], steps=50, dt=0.1, diffusion=0.01)
    >>> len(plots.plot_trajectories(states, dt=0.1))
    2
    """
    values = _numbers(as_array(states))
    if values.ndim != 3:
        raise ValueError(f"states: expected [s, steps, d_s], as rollout returns, got {list(values.shape)}")
    time = dt * torch.arange(values.shape[1])
    with _house() as new:
        panels = _panels(new, axes, 1, values.shape[2], sharex=True)[0]
        for i, axis in enumerate(panels):
            state = values[..., i]
            for low, high in _QUANTILES:
                below, above = state.nanquantile(low, dim=0), state.nanquantile(high, dim=0)
                label = f"{high - low:.0%} of trajectories"
                axis.fill_between(time, below, above, color=POSTERIOR, alpha=0.2, linewidth=0, label=label)
            axis.plot(time, state[:4].T, color=POSTERIOR, linewidth=0.7, alpha=0.7)
            axis.plot(time, state.nanquantile(0.5, dim=0), color=EXACT, label="median")
            axis.set(xlabel="time", ylabel=f"state {i + 1}" if len(panels) > 1 else "state")
        panels[0].legend()
    return panels if len(panels) > 1 else panels[0]


def plot_diagnosis(diagnosis: Diagnosis, *, axes: Axes | None = None) -> Axes:
    """A diagnosis as bars: the W2 of these paths, of as many exact draws, and of the paths' basis, from the posterior.

    >>> import torch, matheron
    >>> from matheron import kernels, plots
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> found = matheron.diagnose(matheron.draw(gp, 64), gp, torch.linspace(0, 1, 50)[:, None])
    >>> plots.plot_diagnosis(found).get_ylabel()
    'W2 from the posterior'
    """
    laws = {"these paths": diagnosis.paths, "exact draws": diagnosis.floor, "their bases": diagnosis.basis}
    known = {name: law.w2 for name, law in laws.items() if law is not None}
    with _house() as new:
        axis: Axes = new() if axes is None else axes
        bars = axis.bar(list(known), list(known.values()), color=[POSTERIOR, "#9aa0a6", PRIOR][: len(known)], width=0.6)
        axis.bar_label(bars, fmt="%.3g", padding=2)
        axis.set_ylabel("W2 from the posterior")
        axis.set_title(f"{diagnosis.num_paths} paths at {diagnosis.num_values} values")
        axis.grid(axis="x", visible=False)
    return axis


def _lines(paths: AbstractPaths, x: ArrayLike, data: Data | None, axes: Panels | None) -> Axes | np.ndarray:
    points = as_tensor(x, "x").double()
    points = points[:, None] if points.ndim == 1 else points
    values, mean, sd, band = _law(paths, points)
    with _house() as new:
        panels = _panels(new, axes, 1, paths.num_outputs)[0]
        for i, axis in enumerate(panels):
            draw_curves(axis, points[:, 0], values[..., i], mean[:, i], sd[:, i], band)
            if data is not None:
                X, y = _observations(data, paths)
                axis.plot(X[:, 0], y[:, i], "o", color=EXACT, markerfacecolor="white", markersize=6, label="data")
            axis.set(xlabel="x", ylabel=f"output {i + 1}" if paths.num_outputs > 1 else "f(x)")
            axis.margins(x=0.01)
        panels[0].legend()
    return panels if len(panels) > 1 else panels[0]


def draw_curves(axis: Axes, x: Tensor, values: Tensor, mean: Tensor, sd: Tensor, band: str) -> None:
    """Some of the paths `[s, n]` at x `[n]`, their mean `[n]`, and a band of two standard deviations."""
    axis.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=POSTERIOR, alpha=0.18, linewidth=0, label=band)
    axis.plot(x, values[:_SHOWN].T, color=POSTERIOR, linewidth=0.8, alpha=0.7)
    axis.plot(x, mean, color=EXACT, linestyle="--", linewidth=1.2, label="mean")


def _maps(paths: AbstractPaths, x: Iterable[ArrayLike], data: Data | None, axes: Panels | None) -> np.ndarray:
    grid = [as_tensor(axis, "x").double().cpu() for axis in x]
    if len(grid) != 2 or any(axis.ndim != 1 for axis in grid):
        shapes = [list(axis.shape) for axis in grid][:3]
        raise ValueError(f"x: expected the two axes of a grid, [n1] and [n2], for paths in 2 dimensions, got {shapes}")
    if any(len(axis) < 2 or not bool((axis.diff() > 0).all()) for axis in grid):
        ends = [[round(float(v), 6) for v in axis[:3]] for axis in grid]
        raise ValueError(f"x: expected two axes that increase, e.g. [torch.linspace(0, 1, 100)] * 2, got {ends}")
    values, mean, sd, _ = _law(paths, torch.cartesian_prod(*grid))
    X = None if data is None else _observations(data, paths)[0]
    with _house() as new:
        panels = _panels(new, axes, paths.num_outputs, 2 + len(values[:2]), sharex=True, sharey=True)
        for i, row in enumerate(panels):
            draw_maps(row, grid, values[..., i], mean[:, i], sd[:, i], X)
            row[0].set_ylabel("$x_2$")
    for axis in panels[-1]:
        axis.set_xlabel("$x_1$")
    return panels if len(panels) > 1 else panels[0]


def draw_maps(
    axes: Iterable[Axes], grid: Sequence[Tensor], values: Tensor, mean: Tensor, sd: Tensor, X: Tensor | None
) -> None:
    """Maps on the grid of two axes of a mean `[n]`, a standard deviation `[n]` and two of the paths `[s, n]`, with the
    data's points X `[n, 2]`."""
    maps = {"mean": (mean, "Blues_r"), "standard deviation": (sd, "Greys")}
    maps |= {f"path {i + 1}": (path, "Blues_r") for i, path in enumerate(values[:2])}
    for axis, (title, (shown, colours)) in zip(axes, maps.items(), strict=True):
        surface, sides = shown.reshape(len(grid[0]), len(grid[1])).T.numpy(), (side.numpy() for side in grid)
        mesh = axis.pcolormesh(*sides, surface, cmap=colours, shading="gouraud", rasterized=True)
        axis.figure.colorbar(mesh, ax=axis, shrink=0.8)
        axis.set_title(title)
        axis.grid(visible=False)
        if X is not None:
            axis.plot(X[:, 0], X[:, 1], "o", color="white", markeredgecolor=EXACT, markersize=4)


def _law(paths: AbstractPaths, x: Tensor) -> tuple[Tensor, Tensor, Tensor, str]:
    """Values `[s, n, t]`, mean and standard deviation `[n, t]`, and what to call the band: exact where it is known."""
    t = paths.num_outputs
    values = _numbers(paths(x)).reshape(paths.num_paths, -1, t)
    mean = _mean(paths, x).reshape(-1, t)
    try:
        return values, mean, _numbers(paths.std(x)).reshape(-1, t), "2 s.d."
    except (AttributeError, TypeError):  # paths that keep no factor know the spread of their draws alone
        sd = values.std(0) if paths.num_paths > 1 else torch.zeros_like(mean)
        return values, mean, sd, "2 s.d. of the paths"


def _mean(paths: AbstractPaths, x: Tensor) -> Tensor:
    try:
        mean = _numbers(paths.mean(x))
    except TypeError:  # a q(u) known by its draws, or a transform that is not affine
        return _numbers(paths(x)).mean(0)
    per_path = mean.ndim > 1 + (paths.num_outputs > 1)  # after targets of each path's own
    return mean.mean(0) if per_path else mean


def _observations(data: Data, paths: AbstractPaths) -> tuple[Tensor, Tensor]:
    X, y = (as_tensor(part, "data").double().cpu() for part in data)
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or X.shape[1] != paths.input_dim or len(y) != len(X):
        raise ValueError(
            f"data: expected inputs [n, {paths.input_dim}] and n targets, got {list(X.shape)} and {list(y.shape)}"
        )
    return X, y.reshape(len(X), -1).expand(-1, paths.num_outputs)


def _numbers(values: Tensor) -> Tensor:
    return values.detach().cpu().double()


def _panels(new: Callable[..., Any], axes: Panels | None, rows: int, columns: int, **options: bool) -> np.ndarray:
    """The caller's axes as an array `[rows, columns]`, or new ones."""
    if axes is None:
        return new(rows, columns, squeeze=False, figsize=(max(6.0, 3.4 * columns), 3.4 * rows), **options)
    given = np.asarray(axes, dtype=object).ravel()
    if given.size != rows * columns:
        raise ValueError(
            f"axes: expected {rows * columns}, one per panel, got {given.size}; pass none for a new figure"
        )
    return given.reshape(rows, columns)


@contextmanager
def _house() -> Iterator[Callable[..., Any]]:
    """Draw in the house style; what it gives makes new axes."""
    from matplotlib import pyplot as plt

    def new(*shape: int, **options: Any):
        return plt.subplots(*shape, layout="constrained", **({"figsize": (6, 3.4)} | options))[1]

    with plt.rc_context(STYLE):
        yield new
