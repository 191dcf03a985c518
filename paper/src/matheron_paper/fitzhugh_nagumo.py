"""The paper's FitzHugh-Nagumo figure: simulate a neuron along drawn drifts, one value at a time and as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from matheron.compare.metrics import sinkhorn

from . import neuron
from .base import Experiment, Settings, Trial, scales, stable_hash
from .neuron import FEATURES, METHODS, SETS, TIMED, learn, seconds_by_steps, simulate, unlearned
from .report import QUARTILES, Cell, Report, Row, Rows, Table, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The regularisation of Sinkhorn distances. With the default of 0.01, 1000 states take more than 2000 iterations and the
# distances change little.
_REGULARIZATION = 0.03

SCALES = scales(
    trials=(16, 2, 1),
    num_data=(10_000, 10_000, 400),
    num_inducing=(32, 32, 12),
    training_steps=(3000, 500, 40),
    num_paths=(1000, 200, 30),
    num_features=(1024, 512, 64),
    steps=(1000, 240, 20),
    # The steps at which the time is read: for the iterative baseline, and for simulations with drawn functions.
    timed_steps=(
        {"decoupled": [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000], "iterative": list(range(50, 1001, 50))},
        {"decoupled": [60, 120, 240, 480, 960, 1920], "iterative": list(range(15, 241, 15))},
        {"decoupled": [5, 10, 20, 40], "iterative": [5, 10, 15, 20]},
    ),
    batch=(1000, 100, 16),  # for the iterative baseline, which would need 17 GB for all 1000 paths
    compared=(10, 8, 4),
)


def cases(settings: Settings) -> list[Row]:
    return [{"part": "law"}, *({"part": "time", "method": method} for method in TIMED)]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """Compare the laws of simulated states with the truth's, or time one kind of simulation."""
    sizes: Row = {"num_features": settings["num_features"], "batch": settings["batch"], "device": device}
    if trial.case["part"] == "time":
        method = trial.case["method"]
        gps, at = unlearned(settings["num_inducing"], device), settings["timed_steps"][method]
        sizes["generator"] = trial.generator("noise")
        return {"seconds": seconds_by_steps(method, gps, settings["num_paths"], at, **sizes)}
    seed = stable_hash(trial.experiment, trial.number, trial.seed) % 2**31
    gps, noises = learn(settings["num_data"], settings["num_inducing"], settings["training_steps"], seed)
    every = max(1, settings["steps"] // settings["compared"])
    size: Row = {"num_paths": settings["num_paths"], "steps": settings["steps"], "keep_every": 1, **sizes}
    states = {name: simulate(name, gps, generator=trial.generator(name), **size)[0] for name in METHODS}
    # a second set of true trajectories
    states["floor"] = simulate("truth", gps, generator=trial.generator("floor"), **size)[0]
    at = list(range(every, settings["steps"] + 1, every))
    return {
        "times": [t * neuron.STEP for t in at],
        "w2": {name: [distance(states["truth"][:, t], states[name][:, t]) for t in at] for name in SETS},
        "voltage": {name: _quartiles(states[name][..., 0]) for name in METHODS},
        "diverged": {name: int((~torch.isfinite(states[name])).any(-1).any(-1).sum()) for name in METHODS},
        "increment_variance": noises,
    }


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """W2 between two sets of states `[s, 2]`, without Sinkhorn's bias. States that are not finite are left out."""
    a, b = (some[some.isfinite().all(-1)] for some in (a, b))
    return round(sinkhorn(a, b, regularization=_REGULARIZATION, debias=True), 5)


def _quartiles(v: torch.Tensor) -> list[list[float]]:
    """Quartiles over paths at every step, `[3][steps + 1]`, to the digits that a figure shows."""
    q = torch.tensor([0.25, 0.5, 0.75], dtype=v.dtype, device=v.device)
    return [[round(x, 4) for x in line] for line in v.nanquantile(q, dim=0).tolist()]


def report(records: Rows, settings: Settings) -> Report:
    laws = [record["result"] for record in records if record["case"]["part"] == "law"]
    times = _times(records, settings)
    times_at = [round(t / neuron.STEP) for t in laws[0]["times"]] if laws else []
    w2 = {name: {n: quartiles([law["w2"][name][i] for law in laws]) for i, n in enumerate(times_at)} for name in SETS}
    rows = [(f"W2 to truth, {name}", n, *values) for name in SETS for n, values in w2[name].items()]
    rows += [(f"seconds, {method}", n, *values) for method in times for n, values in times[method].items()]
    title = f"{settings['num_paths']} trajectories: distance to the truth, and seconds, by number of steps; medians"
    title += f" over {len(laws)} trials" if len(laws) > 1 else " over trials"
    shown = [(n, n * neuron.STEP, *(w2[name][n][1] for name in SETS), *_medians_at(times, n)) for n in times_at]
    names = ["a second truth", *METHODS[1:]]
    columns = ["steps", "time", *(f"W2, {name}" for name in names), *(f"seconds, {method}" for method in TIMED)]
    figures = {"": lambda: figure(laws[0], w2, times, settings)} if laws and times else {}
    table = Table(title, ["what", "steps", *QUARTILES], rows, Table(title, columns, shown))
    return Report(table, figures, remarks(laws, times, settings))


Spread = tuple[float, float, float]  # quartiles over the trials


def _times(records: Rows, settings: Settings) -> dict[str, dict[int, Spread]]:
    """Quartiles of seconds over trials, by method and steps."""
    found: dict[str, list[list[float]]] = {}
    for record in records:
        if record["case"]["part"] == "time":
            found.setdefault(record["case"]["method"], []).append(record["result"]["seconds"])
    return {
        method: {
            n: quartiles(seconds) for n, *seconds in zip(settings["timed_steps"][method], *found[method], strict=True)
        }
        for method in TIMED
        if method in found
    }


def _medians_at(times: Mapping[str, Mapping[int, Spread]], n: int) -> list[float | None]:
    """Each method's median seconds for n steps; None where they were not taken."""
    return [times[method][n][1] if n in times.get(method, {}) else None for method in TIMED]


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


def remarks(laws: Rows, times: Mapping[str, Mapping[int, Spread]], settings: Settings) -> list[str]:
    said = []
    if laws:
        truth = neuron.DIFFUSION / neuron.STEP
        learned = ", ".join(f"{v:.4f}" for v in np.median([law["increment_variance"] for law in laws], axis=0))
        lost = ", ".join(f"{name}: {sum(law['diverged'][name] for law in laws)}" for name in METHODS)
        said.append(f"Learned variance of an increment over dt: {learned} (truth {truth:.4f}). Diverged: {lost}.")
    medians = {method: {n: middle for n, (_, middle, _) in spreads.items()} for method, spreads in times.items()}
    if "iterative" in medians:
        m = settings["num_inducing"]
        fit = quadratic(medians["iterative"], m)
        text = f"Iterative: a step t takes {1e3 * fit.overhead:.3g} ms + {1e9 * fit.slope:.3g} ns (m + t)²"
        text += f" (least squares, R² = {fit.r2:.3f})"
        if fit.overhead > 0 and fit.slope > 0:
            crossing = max(0, round((fit.overhead / fit.slope) ** 0.5 - m))
            text += f"; from step {crossing} on the quadratic part is the larger"
        said.append(text + ".")
    if "decoupled" in medians:
        start, slope, r2 = line(list(medians["decoupled"]), list(medians["decoupled"].values()))
        text = f"{start:.3g} s to draw the functions and to start, {1e3 * slope:.3g} ms per step (R² = {r2:.3f})"
        said.append(f"Decoupled: {text}.")
    if len(medians) == 2:
        last = max(set(medians["iterative"]) & set(medians["decoupled"]))
        ratio = medians["iterative"][last] / medians["decoupled"][last]
        said.append(f"At {last} steps the iterative baseline takes {ratio:.3g} times as long.")
    return said


def figure(
    law: Mapping[str, Cell],
    w2: Mapping[str, Mapping[int, Spread]],
    times: Mapping[str, Mapping[int, Spread]],
    settings: Settings,
) -> Figure:
    """Four panels, as the paper's: the drift, the first trial's voltages, run time, and distance to the truth."""
    from .style import DECOUPLED, EXACT, UPDATE, WEIGHT_SPACE, band, legend_below, panels, plain_ticks

    colors = dict(zip(METHODS, (EXACT, DECOUPLED, WEIGHT_SPACE, UPDATE), strict=True)) | {"floor": EXACT}
    drawing, axes = panels(2, 2, width=9.6, height=6.4)
    (field, traces), (clock, distances) = axes
    _drift_field(field)
    t = np.arange(settings["steps"] + 1) * neuron.STEP
    for name in METHODS:
        low, middle, high = law["voltage"][name]
        traces.plot(t, middle, color=colors[name], label=name)
        if name == "truth":  # the bands of several methods would cover each other
            traces.fill_between(t, low, high, color=colors[name], alpha=0.2, linewidth=0)
        else:
            traces.plot(t, np.transpose([low, high]), color=colors[name], linewidth=0.6)
    current = [float(neuron.sinusoidal_current(s)) for s in t]
    traces.plot(t, np.array(current) - 3, color="black", linestyle="--", linewidth=1, label="current, less 3")
    traces.set(title="voltage, medians and quartiles", xlabel="time", ylabel="$v$")
    for method, spreads in times.items():
        band(clock, list(spreads), *zip(*spreads.values(), strict=True), marker="o", linewidth=0, color=colors[method])
    if "iterative" in times:
        steps, seconds = _fitted({n: middle for n, (_, middle, _) in times["iterative"].items()}, settings)
        label = "iterative, fit: $a + b\\,(m + t)^2$ a step"
        clock.plot(steps, seconds, color=colors["iterative"], linestyle="--", linewidth=1, label=label)
    clock.set(xscale="log", yscale="log")
    plain_ticks(clock, list(times.get("decoupled", times["iterative"])))
    clock.set(title=f"seconds for {settings['num_paths']} trajectories", xlabel="steps")
    for name in SETS:
        look = {"color": colors[name], "linestyle": ":" if name == "floor" else "-"}
        label = "a second set of truths" if name == "floor" else "_"
        band(distances, law["times"], *zip(*w2[name].values(), strict=True), marker="o", label=label, **look)
    distances.set(title="2-Wasserstein distance to the truth (Sinkhorn)", xlabel="time", ylim=(0, None))
    legend_below(drawing, 4)
    return drawing


def _fitted(seconds: Mapping[int, float], settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """The fit's seconds in all, from the first timed step on."""
    m = settings["num_inducing"]
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
    nullclines = {"$dv/dt = 0$": (line - line**3 / 3 + 0.5, "--"), "$dw/dt = 0$": ((line + neuron.A) / neuron.B, ":")}
    drawn = [axis.plot(line, w, color="black", linewidth=1, linestyle=style)[0] for w, style in nullclines.values()]
    axis.legend(drawn, list(nullclines), loc="upper right", frameon=True)
    axis.set(title="true drift at $I = 0.5$", xlabel="$v$", ylabel="$w$", ylim=(lower[1], upper[1]))
    axis.grid(False)


# version 3 has the paper's cosines, its baseline as it is written, and distances between all states
EXPERIMENT = Experiment("fitzhugh-nagumo", __doc__, SCALES, cases, run, report, version=3, features=FEATURES)
