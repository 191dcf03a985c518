"""The paper's FitzHugh-Nagumo figure: simulate a neuron along drawn drifts, one value at a time and as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import torch

from matheron.dynamics import fitzhugh_nagumo as neuron
from matheron.metrics import sinkhorn

from .base import Experiment, Settings, Trial, scales, stable_hash
from .neuron import FEATURES, METHODS, SETS, learn, seconds_by_steps, simulate, unlearned
from .neuron_report import figure, remarks
from .report import Cell, Report, Row, Rows, Table, quartiles

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
    states = {}
    for name in (*METHODS, "floor"):  # the floor is a second, independent truth
        states[name], _ = simulate(
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
    sets = {name: torch.tensor(states, dtype=torch.float64) for name, states in law["states"].items()}  # [times, s, 2]
    distances = {
        name: [
            sinkhorn(a[_finite(a)][:_COMPARED], b[_finite(b)][:_COMPARED])
            for a, b in zip(sets["truth"], sets[name], strict=True)
        ]
        for name in SETS
    }
    return {**{name: value for name, value in law.items() if name != "states"}, "w2": distances}


def _finite(states: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(states).all(-1)


def report(records: Rows, settings: Settings) -> Report:
    laws = [with_distances(record["result"]) for record in records if record["case"]["part"] == "law"]
    times = _times(records, settings)
    times_at = [round(t / neuron.STEP) for t in laws[0]["times"]] if laws else []
    known = [law["w2"] for law in laws if "w2" in law]
    w2 = {name: {n: _median([of[name][i] for of in known]) for i, n in enumerate(times_at)} for name in SETS}
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


def _median(values: Sequence[float]) -> float | None:
    return quartiles(values)[1] if values else None


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


EXPERIMENT = Experiment("fitzhugh-nagumo", __doc__, SCALES, cases, run, report, version=2, features=FEATURES)
