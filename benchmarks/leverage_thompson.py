"""What frequencies by leverage are worth: Thompson sampling on functions drawn from the prior, against Sobol ones.

    python benchmarks/leverage_thompson.py                       # some minutes, few seeds
    python benchmarks/leverage_thompson.py --seeds 32 --device cuda

Noise 1e-6, the same number of features, the same tasks and first points. Each round draws a batch of paths, minimises
each over a mesh and then by gradient steps, and evaluates the task there. Printed: mean log10 of the simple regret,
halfway and at the end, and the standard error of the difference over seeds.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

import matheron
from matheron import kernels

CASES = {  # dimensions: lengthscale, rounds, batch, features
    4: (0.5, 40, 4, 256),
    8: (1.0, 30, 8, 512),
}
NOISE = 1e-6


def regret(d: int, kind: str, seed: int, rounds: int, device: torch.device, mesh: int) -> list[float]:
    """log10 of the simple regret after every round."""
    lengthscale, _, batch, ell = CASES[d]
    kernel = kernels.Matern(2.5, lengthscale)
    task = matheron.draw_prior(
        kernel, 1, input_dim=d, num_features=4096, features="sobol", seed=1000 + seed, device=device
    )
    box = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64, device=device)
    best = float(matheron.minimize(task, box, mesh_size=1 << 16, num_starts=64, seed=seed).value[0])
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(2 * d, d, generator=generator, dtype=torch.float64).to(device)
    y = task(X)[0]
    found = []
    for round_number in range(rounds):
        gp = matheron.ExactGP(kernel, X, y, noise=NOISE)
        paths = matheron.draw(gp, batch, num_features=ell, features=kind, seed=100 * seed + round_number)
        x = matheron.minimize(paths, box, mesh_size=mesh, num_starts=8, seed=round_number).x.to(X)  # [batch, d]
        X, y = torch.cat([X, x]), torch.cat([y, task(x)[0]])
        found.append(math.log10(max(float(y.min()) - best, 1e-12)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--dims", type=int, nargs="+", default=list(CASES))
    parser.add_argument("--rounds", type=int, help="fewer rounds than the case has")
    parser.add_argument("--mesh", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    for d in args.dims:
        rounds = args.rounds or CASES[d][1]
        curves: dict[str, Tensor] = {}
        for kind in ("sobol", "leverage"):
            trials = [regret(d, kind, seed, rounds, device, args.mesh) for seed in range(args.seeds)]
            curves[kind] = torch.tensor(trials)
        for name, at in (("halfway", rounds // 2), ("at the end", rounds - 1)):
            plain, ours = curves["sobol"][:, at], curves["leverage"][:, at]
            error = float((ours - plain).std() / math.sqrt(args.seeds)) if args.seeds > 1 else math.nan
            print(
                f"d={d}, {rounds} rounds of {CASES[d][2]}, ell={CASES[d][3]}, {args.seeds} seeds, {name}: "
                f"plain {float(plain.mean()):.2f}, leverage {float(ours.mean()):.2f}, "
                f"difference {float((ours - plain).mean()):.2f} (standard error {error:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
