"""The paper's FitzHugh-Nagumo figure: simulate a neuron along drawn drifts, one value at a time and as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from matheron.dynamics import fitzhugh_nagumo as neuron
from matheron.metrics import sinkhorn

from .experiment import Experiment, Settings, Trial, stable_hash
from .neuron import learn, simulate, unlearned
from .report import Report, Table, quartiles

METHODS = ("truth", "decoupled", "iterative")
# States of each set between which distances are taken: their cost is quadratic.
_COMPARED = 300

SCALES: dict[str, dict[str, Any]] = {
    "paper": {
        "trials": 1,
        "num_data": 10_000,
        "num_inducing": 32,
        "training_steps": 3000,
        "num_paths": 1000,
        "num_features": 1024,
        "steps": 1000,
        "timed_steps": [50, 100, 200, 400, 700, 1000],
        "batch": 250,
        "compared": 10,
    },
    "quick": {
        "trials": 1,
        "num_data": 10_000,
        "num_inducing": 32,
        "training_steps": 500,
        "num_paths": 200,
        "num_features": 512,
        "steps": 240,
        "timed_steps": [30, 60, 120, 240],
        "batch": 100,
        "compared": 8,
    },
    "tiny": {
        "trials": 1,
        "num_data": 400,
        "num_inducing": 12,
        "training_steps": 40,
        "num_paths": 30,
        "num_features": 64,
        "steps": 20,
        "timed_steps": [5, 10, 20],
        "batch": 16,
        "compared": 4,
    },
}


def cases(settings: Settings) -> list[dict[str, Any]]:
    timed = [
        {"part": "time", "method": method, "steps": steps}
        for method in METHODS[1:]
        for steps in settings["timed_steps"]
    ]
    return [{"part": "law"}, *timed]


def run(trial: Trial, settings: Settings, device: torch.device) -> dict[str, Any]:
    """Compare the laws of simulated states with the truth's, or time one kind of simulation."""
    sizes: dict[str, Any] = {"num_features": settings["num_features"], "batch": settings["batch"], "device": device}
    if trial.case["part"] == "time":
        method, steps = trial.case["method"], trial.case["steps"]
        gps = unlearned(settings["num_inducing"], device)
        sizes["generator"] = trial.generator("noise")
        simulate(method, gps, min(settings["num_paths"], 8), 3, keep_every=3, **sizes)  # warm up
        _, seconds = simulate(method, gps, settings["num_paths"], steps, keep_every=steps, **sizes)
        return {"seconds": seconds}
    seed = stable_hash(trial.experiment, trial.number, trial.seed) % 2**31
    gps, noises = learn(settings["num_data"], settings["num_inducing"], settings["training_steps"], seed)
    every = max(1, settings["steps"] // settings["compared"])
    states, seconds = {}, {}
    for name in (*METHODS, "floor"):  # the floor is a second, independent truth
        states[name], seconds[name] = simulate(
            "truth" if name == "floor" else name,
            gps,
            settings["num_paths"],
            settings["steps"],
            keep_every=1,
            generator=trial.generator(name),
            **sizes,
        )
    states = {name: s.cpu() for name, s in states.items()}
    at = list(range(every, settings["steps"] + 1, every))
    return {
        "times": [t * neuron.STEP for t in at],
        # The states themselves, since distances between them need a library that not every machine with a GPU has.
        "states": {name: states[name][:, at].transpose(0, 1).float().tolist() for name in states},
        "voltage": {name: _quartiles(states[name][..., 0]) for name in METHODS},
        "seconds": {name: seconds[name] for name in METHODS},
        "diverged": {name: int((~torch.isfinite(states[name])).any(-1).any(-1).sum()) for name in METHODS},
        "increment_variance": noises,
    }


def _quartiles(v: torch.Tensor) -> list[list[float]]:
    """Quartiles over paths at every step, `[3][steps + 1]`."""
    q = torch.tensor([0.25, 0.5, 0.75], dtype=v.dtype)
    return v.nanquantile(q, dim=0).tolist()


def report(records: Sequence[Mapping[str, Any]], settings: Settings) -> Report:
    laws = [_with_distances(record["result"]) for record in records if record["case"]["part"] == "law"]
    times = _times(records)
    rows: list[Sequence[Any]] = []
    for name in ("floor", "decoupled", "iterative"):
        for i, t in enumerate(laws[0]["times"] if laws else []):
            rows.append((f"W2 to truth, {name}", t, quartiles([law["w2"][name][i] for law in laws])[1]))
    for (method, steps), seconds in times.items():
        rows.append((f"seconds, {method}", steps, quartiles(seconds)[1]))
    title = f"{settings['num_paths']} trajectories: distance to the truth at time t, and seconds for so many steps"
    remarks = _remarks(laws, times)
    figures = {"": lambda: figure(laws[0], times, settings)} if laws and times else {}
    return Report(Table(title, ["what", "t or steps", "median"], rows), figures, remarks)


def _with_distances(law: Mapping[str, Any]) -> dict[str, Any]:
    """Distances between the truth's states and each other set's, at the compared times; kept ones are taken as they
    are."""
    if "w2" in law:
        return dict(law)
    sets = {name: torch.tensor(states, dtype=torch.float64) for name, states in law["states"].items()}  # [times, s, 2]
    distances = {
        name: [
            sinkhorn(a[finite(a)][:_COMPARED], b[finite(b)][:_COMPARED])
            for a, b in zip(sets["truth"], sets[name], strict=True)
        ]
        for name in ("floor", "decoupled", "iterative")
    }
    return {**law, "w2": distances}


def finite(states: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(states).all(-1)


def _times(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    for record in records:
        case = record["case"]
        if case["part"] == "time":
            found.setdefault((case["method"], case["steps"]), []).append(record["result"]["seconds"])
    return dict(sorted(found.items()))


def _remarks(laws: Sequence[Mapping[str, Any]], times: Mapping[tuple[str, int], list[float]]) -> list[str]:
    remarks = []
    if laws:
        truth = neuron.DIFFUSION / neuron.STEP
        learned = ", ".join(f"{v:.4f}" for v in laws[0]["increment_variance"])
        lost = ", ".join(f"{name} {count}" for name, count in laws[0]["diverged"].items())
        taken = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in laws[0]["seconds"].items())
        remarks.append(f"The compared simulations took: {taken}.")
        remarks.append(f"Learned variance of an increment over dt: {learned} (truth {truth:.4f}). Diverged: {lost}.")
    for method in METHODS[1:]:
        steps = sorted({s for m, s in times if m == method})
        if len(steps) > 1:
            seconds = [quartiles(times[method, s])[1] for s in steps]
            slope = np.polyfit(np.log(steps[-2:]), np.log(seconds[-2:]), 1)[0]
            remarks.append(
                f"{method}: {seconds[-1]:.3g} s for {steps[-1]} steps; between the last two its time grows as steps^"
                f"{slope:.2f}"
            )
    return remarks


def figure(law: Mapping[str, Any], times: Mapping[tuple[str, int], list[float]], settings: Settings) -> Any:
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
    for method in METHODS[1:]:
        steps = sorted({s for m, s in times if m == method})
        seconds = [quartiles(times[method, s])[1] for s in steps]
        clock.loglog(steps, seconds, marker="o", color=colors[method], label=method)
    plain_ticks(clock, sorted({s for _, s in times}))
    clock.set(title=f"seconds for {settings['num_paths']} trajectories", xlabel="steps")
    for name in ("floor", "decoupled", "iterative"):
        style = {"color": colors[name], "linestyle": ":" if name == "floor" else "-"}
        label = "a second set of truths" if name == "floor" else name
        distance.plot(law["times"], law["w2"][name], marker="o", label=label, **style)
    distance.set(title="2-Wasserstein distance to the truth (Sinkhorn)", xlabel="time", ylim=(0, None))
    legend_below(drawing, 5)
    return drawing


def _drift_field(axis: Any) -> None:
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


EXPERIMENT = Experiment(
    "fitzhugh-nagumo",
    "The dynamics figure: a neuron simulated along drawn drifts, as functions and one value at a time.",
    SCALES,
    cases,
    run,
    report,
)
