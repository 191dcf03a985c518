"""Learn to control a system from nothing: trials until a pendulum, or the pole of a cart, stands upright.

    python benchmarks/control.py --seeds 8               # resumes where it stopped
    python benchmarks/control.py --quick                 # a smoke test, not a result

The first trial applies random controls. After each trial a Gaussian process of the system's changes is fitted to all
that was seen (`fit_dynamics`) and systems are drawn from it. In the next trial each control is the first of a
plan: the sequence of controls whose cost, on average over the drawn systems, is least, found by the cross-entropy
method. Every trial begins at rest, hanging down; it has succeeded when the tip stays near the top for the last second.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from seeds import parser, run_and_exit
from torch import Tensor

import matheron
from matheron.dynamics import fit_dynamics
from matheron_paper import Experiment, Trial
from matheron_paper.report import Report, Table

DT = 0.1  # seconds that a control is held
SUBSTEPS = 5  # of the true system, by Runge-Kutta
Control = Callable[[int, Tensor], Tensor]  # (step, state [d_s]) -> [1]

SCALES: dict[str, dict[str, Any]] = {
    "full": {
        "trials": 8,
        "systems": ["pendulum", "cart-pole"],
        "episodes": 8,
        "systems_drawn": 6,
        "candidates": 64,
        "iterations": 3,
    },
    "quick": {
        "trials": 1,
        "systems": ["pendulum"],
        "episodes": 2,
        "systems_drawn": 2,
        "candidates": 8,
        "iterations": 1,
    },
}


@dataclass(frozen=True)
class System:
    """Equations, where a trial begins, and what is asked: angles are zero upright."""

    drift: Callable[[Tensor], Tensor]  # [n, d_s + 1] -> [n, d_s]; the control is in [-1, 1]
    start: list[float]
    cost: Callable[[Tensor], Tensor]  # [..., d_s] -> [...], in [0, 1]
    solved_below: float  # the largest cost in the last second
    steps: int  # of a trial
    horizon: int  # of a plan
    noise: list[float]  # variance of what disturbs the state, in each step


def pendulum(x: Tensor) -> Tensor:
    """A metre and a kilogram; at most 5 Nm, about half of what would lift it."""
    angle, speed, torque = x.unbind(-1)
    return torch.stack([speed, 9.81 * torch.sin(angle) - 0.1 * speed + 5.0 * torque], dim=-1)


def cart_pole(x: Tensor) -> Tensor:
    """A cart and a uniform pole of half a kilogram each, 0.6 m, friction 0.1, at most 10 N.

    The tip is at x + 0.6 sin(angle).
    """
    _, velocity, angle, speed, control = x.unbind(-1)
    M, m, length, friction, g = 0.5, 0.5, 0.6, 0.1, 9.82
    force = 10.0 * control - friction * velocity
    sin, cos = torch.sin(angle), torch.cos(angle)
    total = 4 * (M + m) - 3 * m * cos.square()
    pull = (4 * force + 2 * m * length * speed.square() * sin - 3 * m * g * sin * cos) / total
    turn = (6 * (M + m) * g * sin - 6 * force * cos - 3 * m * length * speed.square() * sin * cos) / (length * total)
    return torch.stack([velocity, pull, speed, turn], dim=-1)


def _pendulum_cost(state: Tensor) -> Tensor:
    return (1 - torch.cos(state[..., 0])) / 2  # the tip's depth below the top


def _cart_pole_cost(state: Tensor) -> Tensor:
    """A saturating function of the tip's distance from the top above the origin."""
    x, angle = state[..., 0], state[..., 2]
    distance = (x + 0.6 * torch.sin(angle)).square() + 0.36 * (1 - torch.cos(angle)).square()
    return 1 - torch.exp(-distance / (2 * 0.5**2))


SYSTEMS = {
    "pendulum": System(pendulum, [math.pi, 0.0], _pendulum_cost, 0.05, 40, 20, [1e-6, 1e-4]),
    "cart-pole": System(cart_pole, [0.0, 0.0, math.pi, 0.0], _cart_pole_cost, 0.3, 40, 20, [1e-6, 1e-4, 1e-6, 1e-4]),
}


def plan(
    systems: Any,
    state: Tensor,
    guess: Tensor,
    cost: Callable[[Tensor], Tensor],
    *,
    candidates: int,
    iterations: int,
    generator: torch.Generator,
) -> Tensor:
    """Controls `[horizon, 1]` in [-1, 1] of small average cost over drawn systems, by the cross-entropy method.

    Candidates are smooth in time, and the best of an iteration are tried again in the next: after Pinneri et al.,
    Sample-efficient cross-entropy method for real-time planning, 2020.
    """
    horizon, elite = len(guess), max(2, candidates // 8)
    mean, spread = guess, torch.full_like(guess, 0.6)
    best = guess[None]
    for _ in range(iterations):
        eps = smooth(torch.randn(candidates, horizon, 1, generator=generator, dtype=torch.float64))
        tried = torch.cat([best, mean[None], mean + spread * eps]).clamp(-1, 1)  # [a, horizon, 1]
        futures = matheron.rollout(systems, state, horizon, method="change", actions=tried)  # [a, s, horizon + 1, d_s]
        costs = cost(futures[:, :, 1:].clamp(-50, 50)).nan_to_num(1.0).mean((1, 2)).double()  # [a]
        costs = costs + 1e-3 * tried.square().mean((1, 2))
        best = tried[costs.argsort()[:elite]]
        mean, spread = best.mean(0), best.std(0)
    return best[0]


def smooth(eps: Tensor, correlation: float = 0.7) -> Tensor:
    """Normal numbers `[a, horizon, 1]` with a correlation between each and the next."""
    out = [eps[:, 0]]
    for e in eps.unbind(1)[1:]:
        out.append(correlation * out[-1] + math.sqrt(1 - correlation**2) * e)
    return torch.stack(out, dim=1)


def episode(system: System, control: Control, generator: torch.Generator) -> tuple[Any, Any]:
    """States `[steps + 1, d_s]` and controls `[steps, 1]` of a trial on the true system."""
    state = torch.tensor(system.start, dtype=torch.float64)
    noise = torch.tensor(system.noise, dtype=torch.float64).sqrt()
    states, controls = [state], []
    for t in range(system.steps):
        u = control(t, state)  # [1]
        held = u.expand(SUBSTEPS, 1)
        state = matheron.rollout(system.drift, state, SUBSTEPS, DT / SUBSTEPS, method="rk4", controls=held)[0, -1]
        state = state + noise * torch.randn(len(noise), generator=generator, dtype=torch.float64)
        states.append(state)
        controls.append(u)
    return torch.stack(states), torch.stack(controls)


def learn(system: System, settings: Mapping[str, Any], generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Trials, one after the other, until one succeeds or all are spent: states and controls of each."""

    def anything(t: int, state: Tensor) -> Tensor:
        return 2 * torch.rand(1, generator=generator, dtype=torch.float64) - 1

    trials = [episode(system, anything, generator)]
    while len(trials) < settings["episodes"] and not solved(system, trials[-1][0]):
        model = fit_dynamics([s for s, _ in trials], [u for _, u in trials], seed=generator)
        systems = matheron.draw(model, settings["systems_drawn"], num_features=128, generator=generator).float()
        trials.append(episode(system, planner(system, systems, settings, generator), generator))
    return trials


def planner(system: System, systems: Any, settings: Mapping[str, Any], generator: torch.Generator) -> Control:
    """The first control of a plan made anew at each state, from what is left of the last plan."""
    size = {"candidates": settings["candidates"], "iterations": settings["iterations"]}
    guess = torch.zeros(system.horizon, 1, dtype=torch.float64)

    def control(t: int, state: Tensor) -> Tensor:
        nonlocal guess
        planned = plan(systems, state, guess, system.cost, generator=generator, **size)
        guess = torch.cat([planned[1:], planned.new_zeros(1, 1)])
        return planned[0]

    return control


def solved(system: System, states: Tensor) -> bool:
    return float(system.cost(states[-round(1 / DT) :]).max()) < system.solved_below


def cases(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"system": name} for name in settings["systems"]]


def perform(trial: Trial, settings: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    system = SYSTEMS[trial.case["system"]]
    trials = learn(system, settings, trial.generator("control"))
    costs = [[round(c, 4) for c in system.cost(states).tolist()] for states, _ in trials]
    success = len(trials) if solved(system, trials[-1][0]) else None
    return {"solved_in": success, "costs": costs, "states": [[round(v, 4) for v in s] for s in trials[-1][0].tolist()]}


def report(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Report:
    lines = []
    for name in [name for name in settings["systems"] if any(r["case"]["system"] == name for r in records)]:
        mine = [r["result"] for r in records if r["case"]["system"] == name]
        needed = sorted(r["solved_in"] for r in mine if r["solved_in"])
        seconds = SYSTEMS[name].steps * DT
        counts = [sum(n <= count for n in needed) for count in range(2, settings["episodes"] + 1)]
        middle = needed[len(needed) // 2] if 2 * len(needed) > len(mine) else None
        lines.append((name, len(mine), *counts, middle, None if middle is None else middle * seconds))
    columns = ["system", "seeds", *(f"in {k}" for k in range(2, settings["episodes"] + 1)), "median", "seconds seen"]
    title = "Seeds that had succeeded, by number of trials, the first of them random; the median, and its seconds"
    return Report(Table(title, columns, lines), {"": lambda: figure(records, settings)})


def figure(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Any:
    """A panel a system: costs over time of one seed's trials, the first pale and the last dark."""
    from matheron_paper import style

    names = [name for name in settings["systems"] if any(r["case"]["system"] == name for r in records)]
    drawing, axes = style.panels(1, len(names), width=4.2 * len(names) + 0.6, height=3.0)
    for axis, name in zip(axes[0], names, strict=True):
        first = min((r for r in records if r["case"]["system"] == name), key=lambda r: r["trial"])
        costs = first["result"]["costs"]
        for i, row in enumerate(costs):
            share = (i + 1) / len(costs)
            time = DT * torch.arange(len(row))
            axis.plot(time, row, color=style.DECOUPLED, alpha=share, linewidth=0.8 + share, label=f"trial {i + 1}")
        axis.set_title(name)
        axis.set_xlabel("seconds")
        axis.legend(fontsize=6)
    axes[0, 0].set_ylabel("cost")
    return drawing


EXPERIMENT = Experiment("control", "Trials until a system is controlled.", SCALES, cases, perform, report)


def main() -> None:
    options = parser(__doc__, "runs of each system; 8 where not given", "a few coarse plans")
    args = options.parse_args()
    run_and_exit(EXPERIMENT, args)


if __name__ == "__main__":
    # Under its own name, so that worker processes find it by that name.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import control

    control.main()
