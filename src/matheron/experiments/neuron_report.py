"""What the FitzHugh-Nagumo experiment shows: how its run times grow, in numbers, and the figure's four panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from matheron.dynamics import fitzhugh_nagumo as neuron

from .base import Settings
from .neuron import METHODS, SETS
from .report import Cell, Rows, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Fit(NamedTuple):
    """Seconds per step = overhead + slope * x, by least squares, between the first timed step and the last."""

    overhead: float
    slope: float
    r2: float


def quadratic(seconds: Mapping[int, float], num_inducing: int) -> Fit:
    """Of a step's seconds on x = (m + t)^2, from the means between timed steps."""
    edges = list(seconds)
    x = [np.mean((num_inducing + np.arange(i, j)) ** 2.0) for i, j in pairwise(edges)]
    y = [(seconds[j] - seconds[i]) / (j - i) for i, j in pairwise(edges)]
    return line(x, y)


def line(x: Sequence[Cell], y: Sequence[float]) -> Fit:
    slope, overhead = np.polyfit(x, y, 1)
    rest = np.asarray(y) - overhead - slope * np.asarray(x)
    return Fit(float(overhead), float(slope), float(1 - rest.var() / np.var(y)))


def remarks(laws: Rows, times: Mapping[str, Mapping[int, float]], settings: Settings) -> list[str]:
    said = []
    if laws:
        truth = neuron.DIFFUSION / neuron.STEP
        learned = ", ".join(f"{v:.4f}" for v in np.median([law["increment_variance"] for law in laws], axis=0))
        lost = ", ".join(f"{name} {sum(law['diverged'][name] for law in laws)}" for name in METHODS)
        said.append(f"Learned variance of an increment over dt: {learned} (truth {truth:.4f}). Diverged: {lost}.")
    if "iterative" in times:
        m = settings["num_inducing"]
        fit = quadratic(times["iterative"], m)
        text = f"Iterative: a step t takes {1e3 * fit.overhead:.3g} ms + {1e9 * fit.slope:.3g} ns (m + t)²"
        text += f" (least squares, R² = {fit.r2:.3f})"
        if fit.overhead > 0 and fit.slope > 0:
            crossing = max(0, round((fit.overhead / fit.slope) ** 0.5 - m))
            text += f"; from step {crossing} on the quadratic part is the larger"
        said.append(text + ".")
    if "decoupled" in times:
        start, slope, r2 = line(list(times["decoupled"]), list(times["decoupled"].values()))
        if r2 > 0.5:
            text = f"{start:.3g} s to draw the functions and to start, {1e3 * slope:.3g} ms per step (R² = {r2:.3f})"
        else:  # what is fitted is noise
            low, middle, high = quartiles(list(times["decoupled"].values()))
            text = f"{middle:.3g} s (quartiles {low:.3g} to {high:.3g}) for any number of steps: drawing and starting"
        said.append(f"Decoupled: {text}.")
    if len(times) == 2:
        last = settings["timed_steps"][-1]
        ratio = times["iterative"][last] / times["decoupled"][last]
        said.append(f"At {last} steps the iterative baseline takes {ratio:.3g} times as long.")
    return said


def figure(law: Mapping[str, Cell], times: Mapping[str, Mapping[int, float]], settings: Settings) -> Figure:
    """Four panels, as the paper's: the drift, voltage traces, run time, and distance to the truth."""
    from .style import DECOUPLED, EXACT, WEIGHT_SPACE, band, legend_below, panels, plain_ticks

    colors = {"truth": EXACT, "decoupled": DECOUPLED, "iterative": WEIGHT_SPACE, "floor": EXACT}
    drawing, axes = panels(2, 2, width=9.6, height=6.0)
    (field, traces), (clock, distance) = axes
    _drift_field(field)
    t = np.arange(settings["steps"] + 1) * neuron.STEP
    for name in METHODS:
        low, middle, high = law["voltage"][name]
        band(traces, t, low, middle, high, color=colors[name], label=name)
    current = [float(neuron.sinusoidal_current(s)) for s in t]
    traces.plot(t, np.array(current) - 3, color="black", linestyle="--", linewidth=1, label="current, less 3")
    traces.set(title="voltage, medians and quartiles", xlabel="time", ylabel="$v$")
    for method, seconds in times.items():
        clock.loglog(list(seconds), list(seconds.values()), marker="o", color=colors[method], label=method, linewidth=0)
    if "iterative" in times:
        steps, seconds = _fitted(times["iterative"], settings["num_inducing"])
        label = "iterative, fit: $a + b\\,(m + t)^2$ a step"
        clock.loglog(steps, seconds, color=colors["iterative"], linestyle="--", linewidth=1, label=label)
    ticks = [n for n in settings["timed_steps"] if settings["steps"] / n in (1, 2, 5, 8, 10, 16, 20)]
    plain_ticks(clock, ticks)
    clock.set(title=f"seconds for {settings['num_paths']} trajectories", xlabel="steps")
    for name in SETS:
        style = {"color": colors[name], "linestyle": ":" if name == "floor" else "-"}
        label = "a second set of truths" if name == "floor" else name
        distance.plot(law["times"], law["w2"][name], marker="o", label=label, **style)
    distance.set(title="2-Wasserstein distance to the truth (Sinkhorn)", xlabel="time", ylim=(0, None))
    legend_below(drawing, 5)
    return drawing


def _fitted(seconds: Mapping[int, float], m: int) -> tuple[np.ndarray, np.ndarray]:
    """The fit's seconds in all, from the first timed step on."""
    fit, first = quadratic(seconds, m), min(seconds)
    t = np.arange(first, max(seconds))
    return t + 1, seconds[first] + np.cumsum(fit.overhead + fit.slope * (m + t) ** 2.0)


def _drift_field(axis: Axes) -> None:
    """The true drift at I = 0.5, with its nullclines."""
    lower, upper = neuron.BOX
    v, w = np.meshgrid(np.linspace(lower[0], upper[0], 40), np.linspace(lower[1], upper[1], 40))
    x = torch.tensor(np.stack([v, w, np.full_like(v, 0.5)], axis=-1))
    f = neuron.drift(x).numpy()
    speed = np.log10(np.hypot(f[..., 0], f[..., 1]) + 1e-3)
    axis.streamplot(v, w, f[..., 0], f[..., 1], color=speed, cmap="viridis", density=1.1, linewidth=0.8, arrowsize=0.8)
    line = np.linspace(lower[0], upper[0], 200)
    axis.plot(line, line - line**3 / 3 + 0.5, color="black", linewidth=1, linestyle="--")
    axis.plot(line, (line + neuron.A) / neuron.B, color="black", linewidth=1, linestyle=":")
    axis.set(title="true drift at $I = 0.5$", xlabel="$v$", ylabel="$w$", ylim=(lower[1], upper[1]))
    axis.grid(False)
