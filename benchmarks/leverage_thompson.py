"""What frequencies by leverage are worth: Thompson sampling on functions drawn from the prior, against Sobol ones.

    python benchmarks/leverage_thompson.py --seeds 32
    python benchmarks/leverage_thompson.py --seeds 32 --device cuda --full   # all seeds in step

Noise 1e-6, the same number of features, the same tasks and first points. Each round draws a batch of paths, minimises
each over a mesh and then by gradient steps, and evaluates the task there. Printed: medians of log10 of the simple
regret, halfway and at the end, how many seeds each kind wins, and Wilcoxon's signed-rank test over the seeds' pairs.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import wilcoxon
from torch import Tensor

import matheron
from matheron import kernels
from matheron.thompson import minimize_together

KINDS = ("sobol", "leverage")
NOISE = 1e-6


class Case(NamedTuple):
    lengthscale: float
    rounds: int
    batch: int
    num_features: int


# By dimension. Reduced: what two cores do in an hour; full: what a GPU is for.
REDUCED = {4: Case(0.5, 24, 4, 256), 8: Case(1.0, 20, 8, 256)}
FULL = {4: Case(0.5, 40, 4, 256), 8: Case(1.0, 30, 8, 512)}


class Search(NamedTuple):
    """One seed's task, its lowest value, and the first points; the same for every kind of features."""

    task: matheron.AbstractPaths
    best: float
    X: Tensor


def searches(d: int, case: Case, seeds: Sequence[int], device: torch.device) -> dict[int, Search]:
    kernel = kernels.Matern(2.5, case.lengthscale)
    tasks = [
        matheron.draw_prior(kernel, 1, input_dim=d, num_features=4096, features="sobol", seed=1000 + s, device=device)
        for s in seeds
    ]
    lowest = minimize_together(tasks, (0.0, 1.0), generators=seeded(seeds), mesh_size=1 << 16, num_starts=64)
    found = {}
    for seed, task, minima, generator in zip(seeds, tasks, lowest, seeded(seeds), strict=True):
        X = torch.rand(2 * d, d, generator=generator, dtype=torch.float64).to(device)
        found[seed] = Search(task, float(minima.value[0]), X)
    return found


def seeded(seeds: Sequence[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def regrets(
    d: int, case: Case, trials: Sequence[tuple[str, int]], device: torch.device, mesh: int
) -> list[list[float]]:
    """log10 of the simple regret after every round, of each trial (kind, seed): they go in step.

    The paths of all trials are minimised in one call: on a GPU hundreds of searches take little longer than one.
    """
    kernel = kernels.Matern(2.5, case.lengthscale)
    of = searches(d, case, sorted({seed for _, seed in trials}), device)
    X = [of[seed].X for _, seed in trials]
    y = [of[seed].task(of[seed].X)[0] for _, seed in trials]
    found: list[list[float]] = [[] for _ in trials]
    for round_number in range(case.rounds):
        paths = [
            matheron.draw(
                matheron.ExactGP(kernel, X[i], y[i], noise=NOISE),
                case.batch,
                num_features=case.num_features,
                features=kind,
                domain=(0.0, 1.0),  # which plain features make nothing of
                seed=100 * seed + round_number,
            )
            for i, (kind, seed) in enumerate(trials)
        ]
        generators = seeded([round_number] * len(trials))
        minima = minimize_together(paths, (0.0, 1.0), generators=generators, mesh_size=mesh, num_starts=8)
        for i, (_, seed) in enumerate(trials):
            x = minima[i].x.to(X[i])  # [batch, d]
            X[i], y[i] = torch.cat([X[i], x]), torch.cat([y[i], of[seed].task(x)[0]])
            found[i].append(math.log10(max(float(y[i].min()) - of[seed].best, 1e-12)))
    return found


def summary(d: int, case: Case, plain: list[list[float]], ours: list[list[float]]) -> str:
    """Halfway and at the end: medians over seeds, wins, and a paired test."""
    lines = []
    for name, at in (("halfway", case.rounds // 2 - 1), ("at the end", case.rounds - 1)):
        a, b = [t[at] for t in plain], [t[at] for t in ours]
        p = float(np.asarray(wilcoxon(a, b))[1]) if a != b else 1.0
        wins = sum(y < x for x, y in zip(a, b, strict=True))
        lines.append(
            f"d={d}, {case.rounds} rounds of {case.batch}, ell={case.num_features}, {len(a)} seeds, {name}: "
            f"log10 regret, median: plain {statistics.median(a):.2f}, leverage {statistics.median(b):.2f}; leverage is "
            f"lower in {wins} of {len(a)}, Wilcoxon p = {p:.2g}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--dims", type=int, nargs="+", default=list(REDUCED))
    parser.add_argument("--full", action="store_true", help="more rounds, and more features")
    parser.add_argument("--mesh", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    at_once = args.seeds if device.type == "cuda" else 1
    for d in args.dims:
        case, ends = (FULL if args.full else REDUCED)[d], {kind: [] for kind in KINDS}
        for first in range(0, args.seeds, at_once):
            trials = [(kind, seed) for seed in range(first, min(first + at_once, args.seeds)) for kind in KINDS]
            for (kind, _), found in zip(trials, regrets(d, case, trials, device, args.mesh), strict=True):
                ends[kind].append(found)
        print(summary(d, case, ends["sobol"], ends["leverage"]), flush=True)


if __name__ == "__main__":
    main()
