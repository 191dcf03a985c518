"""What is measured: one base problem, one sweep for each of N, n, ell and S, and the cases that have a goal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from libraries import Problem

QUICK_REPEATS, REPEATS = 2, 5


@dataclass(frozen=True)
class Case:
    """A task on a problem, at `num_points` points (each path's, of its own points; an axis's, of a grid).

    draw: from data to paths. evaluate: all paths at the same points. gradient: that, and the gradient of the values'
    sum in the points. own: values and gradients of every path at points of its own. each: values and gradients of every
    path at the same points. grid: two axes of `num_points`.
    """

    task: str
    problem: Problem
    num_points: int = 0
    goal: float | None = None  # seconds, the project's own
    headline: bool = False  # has a floor, and its values are checked against the formula

    def sizes(self) -> dict[str, Any]:
        """The case in names and numbers: what a row of results says it is of."""
        p = self.problem
        return {
            "task": self.task,
            "N": self.num_points,
            **{"n": p.n, "ell": p.ell, "S": p.s, "d": p.d, "kernel": p.kernel},
            "dtype": str(p.dtype).removeprefix("torch."),
        }

    def __str__(self) -> str:
        s = self.sizes()
        points = f"N={s['N']:,} " if s["N"] else ""
        return f"{self.task}, {points}n={s['n']} ell={s['ell']} S={s['S']}, {s['dtype']}"


@dataclass(frozen=True)
class Sweeps:
    """The base problem's sizes, and the values that each takes while the others stay."""

    N: tuple[int, ...]
    n: tuple[int, ...]
    ell: tuple[int, ...]
    S: tuple[int, ...]
    N_gradient: tuple[int, ...]
    base: tuple[int, int, int, int]  # N, n, ell, S


SWEEPS = {
    "cpu": Sweeps(
        N=(100, 1000, 3000, 10_000, 100_000),
        n=(256, 1024, 4096),
        ell=(256, 1024, 4096, 16_384),
        S=(1, 8, 64, 512),
        N_gradient=(100, 1000, 3000, 10_000),
        base=(1000, 1024, 4096, 64),
    ),
    "cuda": Sweeps(
        N=(1000, 3000, 10_000, 30_000, 100_000, 1_000_000),
        n=(256, 1024, 4096),
        ell=(256, 1024, 4096, 16_384),
        S=(1, 8, 64, 512),
        N_gradient=(1000, 10_000, 100_000),
        base=(10_000, 1024, 4096, 64),
    ),
    "quick": Sweeps(N=(20, 200), n=(32,), ell=(32,), S=(4,), N_gradient=(20,), base=(20, 32, 32, 4)),
}

# task, N, n, ell, S, dtype, goal in seconds
HEADLINES: dict[str, list[tuple[str, int, int, int, int, str, float | None]]] = {
    "cpu": [
        ("evaluate", 100_000, 1024, 4096, 64, "float64", 2.2),
        ("evaluate", 100_000, 1024, 4096, 64, "float32", 1.0),
        ("draw", 0, 1024, 4096, 64, "float64", 0.1),
        ("draw", 0, 1024, 4096, 64, "float32", None),
        ("draw", 0, 4096, 1024, 64, "float64", 3.0),
        ("own", 32, 1024, 1024, 64, "float64", 0.025),
        ("own", 32, 1024, 1024, 64, "float32", None),
        ("gradient", 10_000, 1024, 4096, 64, "float64", None),
        ("gradient", 10_000, 1024, 4096, 64, "float32", None),
        ("each", 10_000, 1024, 4096, 64, "float32", None),
        ("evaluate", 1, 1024, 1024, 1, "float64", 100e-6),
        ("grid", 1000, 256, 1024, 1, "float64", None),
    ],
    "cuda": [
        ("evaluate", 1_000_000, 1024, 4096, 64, "float32", 0.012),
        ("evaluate", 1_000_000, 1024, 4096, 64, "float64", 0.060),
        ("draw", 0, 1024, 4096, 64, "float32", 0.015),
        ("draw", 0, 1024, 4096, 64, "float64", 0.015),
        ("own", 32, 1024, 1024, 1000, "float32", 0.005),
        ("own", 32, 1024, 1024, 1000, "float64", None),
        ("gradient", 100_000, 1024, 4096, 64, "float32", None),
        ("gradient", 100_000, 1024, 4096, 64, "float64", None),
        ("each", 100_000, 1024, 4096, 64, "float32", None),
        ("evaluate", 1, 1024, 1024, 1, "float32", None),
        ("grid", 1000, 256, 1024, 1, "float64", None),
    ],
}


def cases(device: str, quick: bool) -> list[Case]:
    """All cases, headlines first; `quick` has the same kinds at small sizes, and no goals.

    Before a case come those that differ in a smaller N alone: they tell what its cost will be.
    """
    headlines, sweeps = _headlines(device, quick), _sweeps(SWEEPS["quick" if quick else device], device)
    found: dict[tuple[Any, ...], Case] = {}
    known = {_key(case): case for case in reversed([*headlines, *sweeps])}  # a headline stands for its case of a sweep
    for case in [*headlines, *sweeps]:
        smaller = [other for other in known.values() if _key(other)[1:] == _key(case)[1:]]
        for other in sorted(smaller, key=lambda other: other.num_points):
            if other.num_points <= case.num_points:
                found.setdefault(_key(other), other)
    return list(found.values())


def _key(case: Case) -> tuple[Any, ...]:
    """N, then all the rest."""
    sizes = case.sizes()
    return sizes.pop("N"), *sizes.values()


def _sweeps(sweeps: Sweeps, device: str) -> list[Case]:
    N, n, ell, S = sweeps.base
    base = Problem(n, ell, S, torch.float64, device=device)
    problems = [replace(base, n=n) for n in sweeps.n]
    problems += [replace(base, ell=ell) for ell in sweeps.ell]
    problems += [replace(base, s=S) for S in sweeps.S]
    found = [Case("evaluate", base, N) for N in sweeps.N]
    found += [Case("evaluate", problem, N) for problem in problems]
    found += [Case("gradient", base, N) for N in sweeps.N_gradient]
    found += [Case("gradient", problem, N) for problem in problems]
    found += [Case("draw", problem) for problem in problems]
    single = replace(base, dtype=torch.float32)
    return found + [Case("evaluate", single, N) for N in sweeps.N] + [Case("gradient", single, N)]


def _headlines(device: str, quick: bool) -> list[Case]:
    found = []
    for task, N, n, ell, S, dtype, goal in HEADLINES[device]:
        more: dict[str, Any] = {"d": 2, "kernel": "rbf"} if task == "grid" else {}
        problem = Problem(n, ell, S, getattr(torch, dtype), device=device, **more)
        found.append(Case(task, problem, N, goal, headline=True))
    return [_small(case) for case in found] if quick else found


def _small(case: Case) -> Case:
    p = case.problem
    problem = replace(p, n=p.n // 32, ell=p.ell // 32, s=min(p.s, 4))
    return replace(case, problem=problem, num_points=min(case.num_points, 40), goal=None)
