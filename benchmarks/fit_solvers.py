"""Where fits on a lattice overtake dense factors: seconds of matheron.fit by number of data, dimensions and solver.

    python benchmarks/fit_solvers.py --sizes 2000 4000 8000
    python benchmarks/fit_solvers.py --device cuda --sizes 8000 16000 32000 64000

Inputs are uniform in the unit cube, targets a function drawn from a Matern-5/2 kernel (lengthscale 0.2) with noise of
standard deviation 0.1; the fit begins elsewhere, from one start. Times are of a second fit in the process where a
first one of 1000 data has compiled what there is to compile. One line per fit, with the log-likelihood per datum that
a factor finds at its end, so that a fast fit that ends elsewhere shows.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
from torch import Tensor

import matheron
from matheron import kernels

# Factors of more data than this are not made, for time and memory.
LARGEST_FACTOR = {"cpu": 8000, "cuda": 64_000}


def data(n: int, d: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + d)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    truth = kernels.Matern(2.5, 0.2)
    f = matheron.draw_prior(truth, 1, input_dim=d, num_features=4096, generator=generator, dtype=torch.float64)
    y = f(X)[0] + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X.to(device), y.to(device)


def timed(X: Tensor, y: Tensor, solver: str) -> tuple[matheron.ExactGP, float]:
    kernel = 2.0 * kernels.Matern(2.5, torch.full((X.shape[1],), 0.5, dtype=torch.float64))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", matheron.FitWarning)
        gp = matheron.fit(kernel, X, y, num_starts=1, solver=solver, seed=0)
    if X.is_cuda:
        torch.cuda.synchronize()
    return gp, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 4000, 8000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--solvers", nargs="+", default=["cholesky", "lattice"])
    options = parser.parse_args()
    largest = LARGEST_FACTOR[options.device]
    for d in options.dimensions:
        for solver in options.solvers:
            timed(*data(1000, d, options.device), solver)
        for n in options.sizes:
            X, y = data(n, d, options.device)
            for solver in options.solvers:
                if solver == "cholesky" and n > largest:
                    continue
                gp, seconds = timed(X, y, solver)
                at = float(matheron.log_marginal_likelihood(gp)) / n if n <= largest else float("nan")
                print(f"d {d}  n {n:7,}  {solver:9} {seconds:8.2f} s  log-likelihood / n {at:.5f}", flush=True)


if __name__ == "__main__":
    main()
