"""The paper's FitzHugh-Nagumo figure: simulate a neuron along drawn drifts, one value at a time and as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from matheron.compare.metrics import sinkhorn

from . import neuron
from .base import Experiment, Settings, Trial, scales, stable_hash
from .neuron_simulation import FEATURES, METHODS, SETS, learn, seconds_by_steps, simulate, unlearned
from .report import Cell, Report, Row, Rows, Table, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# States of each set between which distances are taken: their cost is quadratic.
_COMPARED = 300

SCALES = scales(
    trials=(1, 1, 1),
    num_data=(10_000, 10_000, 400),
    num_inducing=(32, 32, 12),
    training_steps=(3000, 500, 40),
    num_paths=(1000, 200, 30),
    num_features=(1024, 512, 64),
    steps=(1000, 240, 20),
    timed_steps=(list(range(50, 1001, 50)), list(range(15, 241, 15)), [5, 10, 15, 20]),
    batch=(1000, 100, 16),  # of the iterative baseline, 17 GB for all 1000
    compared=(10, 8, 4),
)


def cases(settings: Settings) -> list[Row]:
    return [{"part": "law"}, *({"part": "time", "method": method} for method in METHODS[1:])]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """Compare the laws of simulated states with the truth's, or time one kind of simulation."""
    sizes: Row = {"num_features": settings["num_features"], "batch": settings["batch"], "device": device}
    if trial.case["part"] == "time":
        gps, at = unlearned(settings["num_inducing"], device), settings["timed_steps"]
        sizes["generator"] = trial.generator("noise")
        return {"seconds": seconds_by_steps(trial.case["method"], gps, settings["num_paths"], at, **sizes)}
    seed = stable_hash(trial.experiment, trial.number, trial.seed) % 2**31
    gps, noises = learn(settings["num_data"], settings["num_inducing"], settings["training_steps"], seed)
    every = max(1, settings["steps"] // settings["compared"])
    size: Row = {"num_paths": settings["num_paths"], "steps": settings["steps"], "keep_every": 1, **sizes}
    states = {name: simulate(name, gps, generator=trial.generator(name), **size)[0].cpu() for name in METHODS}
    states["floor"] = simulate("truth", gps, generator=trial.generator("floor"), **size)[0].cpu()  # a second truth
    at = list(range(every, settings["steps"] + 1, every))
    law = {
        "times": [t * neuron.STEP for t in at],
        "states": {name: states[name][:, at].transpose(0, 1).float().tolist() for name in states},
        "voltage": {name: _quartiles(states[name][..., 0]) for name in METHODS},
        "diverged": {name: int((~torch.isfinite(states[name])).any(-1).any(-1).sum()) for name in METHODS},
        "increment_variance": noises,
    }
    return with_distances(law)


def _quartiles(v: torch.Tensor) -> list[list[float]]:
    """Quartiles over paths at every step, `[3][steps + 1]`, to the digits that a figure shows."""
    q = torch.tensor([0.25, 0.5, 0.75], dtype=v.dtype)
    return [[round(x, 4) for x in line] for line in v.nanquantile(q, dim=0).tolist()]


def with_distances(law: Mapping[str, Cell]) -> Row:
    """Distances between the truth's states and each other set's, at the compared times, in place of the states.

    They need a library that not every machine with a GPU has: without it the states stay, for a report elsewhere.
    """
    if "w2" in law or not find_spec("ot"):
        return dict(law)
    sets = {
        name: [some[some.isfinite().all(-1)][:_COMPARED] for some in torch.tensor(states, dtype=torch.float64)]
        for name, states in law["states"].items()
    }
    distances = {name: list(map(sinkhorn, sets["truth"], sets[name])) for name in SETS}
    return {**{name: value for name, value in law.items() if name != "states"}, "w2": distances}


def report(records: Rows, settings: Settings) -> Report:
    laws = [with_distances(record["result"]) for record in records if record["case"]["part"] == "law"]
    times = _times(records, settings)
    times_at = [round(t / neuron.STEP) for t in laws[0]["times"]] if laws else []
    known = [law["w2"] for law in laws if "w2" in law]
    w2: dict[str, dict[int, float | None]] = {
        name: {n: quartiles([of[name][i] for of in known])[1] if known else None for i, n in enumerate(times_at)}
        for name in SETS
    }
    rows = [(f"W2 to truth, {name}", n, value) for name in SETS for n, value in w2[name].items()]
    rows += [(f"seconds, {method}", n, value) for method in times for n, value in times[method].items()]
    title = f"{settings['num_paths']} trajectories: distance to the truth, and seconds, by number of steps"
    shown = [
        (n, n * neuron.STEP, *(w2[name][n] for name in SETS), *(times.get(m, {}).get(n) for m in METHODS[1:]))
        for n in times_at
    ]
    names = ["a second truth", *METHODS[1:]]
    columns = ["steps", "time", *(f"W2, {name}" for name in names), *(f"seconds, {method}" for method in METHODS[1:])]
    compact = Table(title, columns, shown)
    shown_law = {**laws[0], "w2": {name: list(w2[name].values()) for name in SETS}} if laws else {}
    figures = {"": lambda: figure(shown_law, times, settings)} if known and times else {}
    said = remarks(laws, times, settings)
    if len(known) < len(laws):
        said.append("No distances and no figure: they need POT. The same command makes them where it is installed.")
    return Report(Table(title, ["what", "steps", "median"], rows, compact), figures, said)


def _times(records: Rows, settings: Settings) -> dict[str, dict[int, float]]:
    """Median seconds over trials by method and steps."""
    found: dict[str, list[list[float]]] = {}
    for record in records:
        if record["case"]["part"] == "time":
            found.setdefault(record["case"]["method"], []).append(record["result"]["seconds"])
    return {
        method: {n: quartiles(seconds)[1] for n, *seconds in zip(settings["timed_steps"], *found[method], strict=True)}
        for method in METHODS[1:]
        if method in found
    }


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


EXPERIMENT = Experiment("fitzhugh-nagumo", __doc__, SCALES, cases, run, report, version=2, features=FEATURES)
