"""Ten more observations for paths given 4096: extending the kept factor, against a new draw.

python benchmarks/conditioning.py
"""

from __future__ import annotations

import argparse

import torch
from measure import best

import matheron
from matheron import kernels, solvers

TARGET = 0.1  # of a new draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--paths", type=int, default=64)
    arguments = parser.parse_args()
    n, m, device = arguments.n, arguments.new, arguments.device
    X = torch.rand(n + m, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    y, kernel, keep = (5 * X).sin().sum(1), kernels.Matern(2.5, 0.5), solvers.Cholesky(keep=True)
    old, new = matheron.ExactGP(kernel, X[:n], y[:n], 1e-2), matheron.ExactGP(kernel, X, y, 1e-2)
    paths = matheron.draw(old, arguments.paths, solver=keep, features="sobol")

    def waited(call) -> float:
        def run() -> None:
            call()
            if device == "cuda":
                torch.cuda.synchronize()

        return best(run, 3)

    drawn = waited(lambda: matheron.draw(new, arguments.paths, solver=keep, features="sobol"))
    extended = waited(lambda: paths.condition_on(X[n:], y[n:], noise=1e-2))
    verdict = "met" if extended < TARGET * drawn else "MISSED"
    print(
        f"{m} more observations to {n}, {arguments.paths} paths: a new draw {drawn:.3f} s, condition_on "
        f"{extended:.4f} s, {extended / drawn:.3f} of it (target {TARGET}: {verdict}); "
        f"the factor takes {8 * n * n / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main()
