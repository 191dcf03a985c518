"""Bayesian optimisation with gradients beside without: Thompson sampling on Hartmann-6.

    python benchmarks/gradient_optimisation.py      # prints, and writes results/gradients.json

Both searches have the same six first points and the same kernel and mean, which are fitted once to 200 values
at Sobol points. In each round one function is drawn, it is minimised, and Hartmann-6 is evaluated there: its value for
the one search, its value and its gradient for the other. No seed begins after three minutes of CPU time. Printed: the
median of the simple regret, halfway and at the end, how many seeds come within 0.05 of the minimum, and for how
many gradients win.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from scipy.stats import qmc
from torch import Tensor

import matheron
from matheron import kernels, observe

RESULTS = Path(__file__).parent / "results" / "gradients.json"
WAYS = ("values", "gradients")
LOWEST = -3.32237
NOISE = 1e-6
BOX = ([0.0] * 6, [1.0] * 6)

ALPHA = torch.tensor([1.0, 1.2, 3.0, 3.2], dtype=torch.float64)
A = torch.tensor(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]],
    dtype=torch.float64,
)
P = 1e-4 * torch.tensor(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ],
    dtype=torch.float64,
)


def hartmann(x: Tensor) -> tuple[Tensor, Tensor]:
    """Values `[n]` and gradients `[n, 6]` at points `[n, 6]` of the unit cube."""
    r = x[:, None] - P  # [n, 4, 6]
    terms = ALPHA * (-(A * r.square()).sum(-1)).exp()  # [n, 4]
    return -terms.sum(1), (2 * terms[..., None] * A * r).sum(1)


def known_kernel() -> tuple[kernels.Kernel, float]:
    """The kernel, in the units of Hartmann-6, and the mean that both searches use."""
    X = torch.from_numpy(qmc.Sobol(6, rng=0).random(256))[:200]
    rows = matheron.summary(matheron.fit(None, X, hartmann(X)[0], num_starts=1, seed=0)).rows
    lengthscale = [rows[f"Matern.lengthscale[x{i}]"] for i in range(6)]
    return rows["Matern.outputscale"] * kernels.Matern(2.5, lengthscale), rows["mean"]


def regrets(way: str, seed: int, kernel: kernels.Kernel, mean: float, rounds: int) -> list[float]:
    """The simple regret after each round."""
    X = torch.rand(6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = []
    for step in range(rounds):
        y, dy = hartmann(X)
        observed = [observe.value(X)]
        targets = [y]
        if way == "gradients":
            observed, targets = [*observed, observe.gradient(X)], [y, dy]
        gp = matheron.ExactGP(kernel, observed, targets, NOISE, mean=mean)
        f = matheron.draw(gp, 1, num_features=512, seed=1000 * seed + step)
        lowest = matheron.minimize(f, BOX, num_starts=8, mesh_size=1 << 12, seed=1000 * seed + step)
        X = torch.cat([X, lowest.x])
        found.append(float(hartmann(X)[0].min()) - LOWEST)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="of CPU time: no seed is begun after these")
    parser.add_argument("--seeds", type=int, default=20, help="at most")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    kernel, mean = known_kernel()
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    seconds: dict[str, float] = dict.fromkeys(WAYS, 0.0)
    for seed in range(asked.seeds):
        if time.process_time() - began > 60 * asked.minutes:
            break
        for way in WAYS:
            start = time.process_time()
            found[way].append(regrets(way, seed, kernel, mean, asked.rounds))
            seconds[way] += time.process_time() - start
    asked.results.write_text(
        json.dumps({"rounds": asked.rounds, "seconds": seconds, "regrets": found}, indent=1) + "\n"
    )
    report(found, seconds)


def report(found: dict[str, list[list[float]]], seconds: dict[str, float]) -> None:
    seeds, rounds = len(found["values"]), len(found["values"][0])
    print(f"Hartmann-6, {seeds} seeds, 6 first points and {rounds} rounds of one:")
    print("| | median regret, halfway | at the end | seeds within 0.05 | CPU seconds a round |")
    print("|---|---|---|---|---|")
    for way in WAYS:
        half, end = (statistics.median(run[at] for run in found[way]) for at in (rounds // 2 - 1, -1))
        near = sum(run[-1] < 0.05 for run in found[way])
        print(f"| {way} | {half:.3f} | {end:.3f} | {near} | {seconds[way] / seeds / rounds:.2f} |")
    wins = sum(a[-1] > b[-1] for a, b in zip(found["values"], found["gradients"], strict=True))
    print(f"Gradients end lower for {wins} of {seeds} seeds.")


if __name__ == "__main__":
    main()
