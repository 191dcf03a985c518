"""What frequencies by leverage are worth: Thompson sampling on functions drawn from the prior, against Sobol ones.

    python benchmarks/leverage_thompson.py --seeds 32 --results regret.jsonl   # goes on where it stopped
    python benchmarks/leverage_thompson.py --seeds 32 --results regret.jsonl --device cuda --full

Noise 1e-6, the same number of features, the same tasks and first points. Each round draws a batch of paths, minimises
each over a mesh and then by gradient steps, and evaluates the task there. Printed: medians of log10 of the simple
regret, halfway and at the end, how many seeds each kind wins, and Wilcoxon's signed-rank test over the seeds' pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import wilcoxon

import matheron
from matheron import kernels

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


def regret(d: int, case: Case, kind: str, seed: int, device: torch.device, mesh: int) -> list[float]:
    """log10 of the simple regret after every round."""
    kernel = kernels.Matern(2.5, case.lengthscale)
    task = matheron.draw_prior(
        kernel, 1, input_dim=d, num_features=4096, features="sobol", seed=1000 + seed, device=device
    )
    box = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64, device=device)
    best = float(matheron.minimize(task, box, mesh_size=1 << 16, num_starts=64, seed=seed).value[0])
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(2 * d, d, generator=generator, dtype=torch.float64).to(device)
    y = task(X)[0]
    found = []
    for round_number in range(case.rounds):
        gp = matheron.ExactGP(kernel, X, y, noise=NOISE)
        paths = matheron.draw(
            gp, case.batch, num_features=case.num_features, features=kind, seed=100 * seed + round_number
        )
        x = matheron.minimize(paths, box, mesh_size=mesh, num_starts=8, seed=round_number).x.to(X)  # [batch, d]
        X, y = torch.cat([X, x]), torch.cat([y, task(x)[0]])
        found.append(math.log10(max(float(y.min()) - best, 1e-12)))
    return found


def known(path: Path | None) -> dict[str, list[float]]:
    """The trials of earlier runs; a last line cut short by a kill does not count."""
    found = {}
    for line in path.read_text().splitlines() if path and path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["trial"]] = row["regret"]
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
    parser.add_argument("--results", type=Path, help="append each trial to this file, and skip those that it has")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cases = {d: (FULL if args.full else REDUCED)[d] for d in args.dims}
    trials = known(args.results)

    def name(d: int, kind: str, seed: int) -> str:
        return f"d={d} {kind} seed={seed} mesh={args.mesh} {'-'.join(map(str, cases[d]))}"

    for seed in range(args.seeds):  # in pairs, so that what is there when it stops can be compared
        for d in cases:
            for kind in KINDS:
                if (key := name(d, kind, seed)) in trials:
                    continue
                trials[key] = regret(d, cases[d], kind, seed, torch.device(args.device), args.mesh)
                if args.results:
                    with args.results.open("a") as file:
                        file.write(json.dumps({"trial": key, "regret": trials[key]}) + "\n")
    for d, case in cases.items():
        plain, ours = ([trials[name(d, kind, seed)] for seed in range(args.seeds)] for kind in KINDS)
        print(summary(d, case, plain, ours), flush=True)


if __name__ == "__main__":
    main()
