"""Held-out rows of regression tables, predicted from 64 paths: python benchmarks/uci.py --data FOLDER --device cuda.

RMSE is that of the exact posterior mean, which paths carry along; NLL is that of normal predictions with the paths'
mean and variance plus noise. It depends on the 64 draws, so its Monte Carlo error is beside it: the standard deviation
over bootstrap samples of the paths. Everything is in standardised units. Hyperparameters are the folder's.

`--solvers gpytorch` adds GPyTorch's conjugate gradients with the same hyperparameters: its mean, and the variance of
LOVE, from which its NLL is; it draws no functions.

Published numbers beside these:

- Lin et al., "Stochastic gradient descent for Gaussian processes done right" (ICLR 2024, arXiv 2310.20581), has SDD,
  SGD, CG and SVGP on these tables, with hyperparameters fitted on other splits, in its table 1. Its numbers could not
  be read where this was written, so none are repeated here.
- ADASAP (Rathore et al., "Turbocharging Gaussian process inference with approximate sketch-and-project", arXiv
  2505.13723) has none of these tables. `PUBLISHED_NLL` has its mean test NLL on larger ones, as the authors' repository
  (pratikrathore8/scalable_gp_inference, plotting/gp_inf_table.ipynb) prints them, with SDD at two of the three step
  sizes that they ran (the third diverged on every table); `--published` shows them.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from uci_tables import Table, read

import matheron
from matheron import kernels, solvers

NAMES = ("pol", "elevators", "bike", "protein", "keggdirected")
SOLVERS = {"dense": solvers.Cholesky(), "pcg": solvers.PCG()}
PATHS = 64
# Mean test NLL from posterior samples, by Rathore et al.; None: diverged.
PUBLISHED_NLL: dict[str, dict[str, float | None]] = {
    "yolanda, n 3.60e5": {"ADASAP": 1.179, "ADASAP-I": 1.196, "SDD-1": 1.225, "SDD-10": 1.187, "PCG": 1.179},
    "song, n 4.64e5": {"ADASAP": 1.121, "ADASAP-I": 1.170, "SDD-1": 1.203, "SDD-10": 1.149, "PCG": 1.121},
    "benzene, n 5.65e5": {"ADASAP": -2.673, "ADASAP-I": -0.217, "SDD-1": 0.531, "SDD-10": -0.762, "PCG": -0.124},
    "malonaldehyde, n 8.94e5": {"ADASAP": -2.259, "ADASAP-I": 0.466, "SDD-1": 0.903, "SDD-10": None, "PCG": 0.925},
    "acsincome, n 1.50e6": {"ADASAP": 1.229, "ADASAP-I": 1.235, "SDD-1": 1.242, "SDD-10": 1.232, "PCG": 1.316},
    "houseelec, n 1.84e6": {"ADASAP": -2.346, "ADASAP-I": -2.185, "SDD-1": -0.281, "SDD-10": -1.804, "PCG": 2.674},
}


def nll(f: Tensor, mean: Tensor, table: Table) -> tuple[float, float]:
    """Mean negative log density of the test targets under paths f `[s, n]`, and its Monte Carlo error."""

    def of(rows: Tensor) -> float:
        deviation = f[rows] - mean
        variance = deviation.square().mean(0) + table.noise
        return float(0.5 * ((table.y_test - mean).square() / variance + variance.log() + math.log(2 * math.pi)).mean())

    generator = torch.Generator().manual_seed(0)
    samples = [of(torch.randint(len(f), (len(f),), generator=generator).to(f.device)) for _ in range(100)]
    return of(torch.arange(len(f), device=f.device)), float(torch.tensor(samples).std())


def measure_gpytorch(table: Table, rows: int | None) -> None:
    """GPyTorch's conjugate gradients at the same hyperparameters."""
    import gpytorch

    X, y, kernel = table.X[:rows], table.y[:rows], table.gp(rows).kernel
    assert isinstance(kernel, kernels.Scaled) and isinstance(kernel.kernel, kernels.Matern)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood: Any) -> None:
            super().__init__(X, y, likelihood)
            self.mean_module: Any = gpytorch.means.ZeroMean()
            base = gpytorch.kernels.MaternKernel(1.5, ard_num_dims=X.shape[1])
            self.covar_module: Any = gpytorch.kernels.ScaleKernel(base)

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    floor = gpytorch.constraints.GreaterThan(1e-8)
    likelihood: Any = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=floor).to(X)
    model: Any = Model(likelihood).to(X)
    likelihood.noise = table.noise
    model.covar_module.outputscale = kernel.outputscale.to(X)
    model.covar_module.base_kernel.lengthscale = kernel.kernel.lengthscale.to(X)
    model.eval()
    likelihood.eval()
    settings = gpytorch.settings
    start = time.perf_counter()
    with (
        torch.no_grad(),
        settings.max_cholesky_size(0),
        settings.fast_pred_var(),
        settings.max_root_decomposition_size(100),
        settings.max_preconditioner_size(100),
        settings.cg_tolerance(0.01),
        settings.max_cg_iterations(1000),
    ):
        found = model(table.X_test)
        mean, variance = found.mean, found.variance.clamp_min(0) + table.noise
        error = table.y_test - mean
        value = float(0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi)).mean())
        rmse = float(error.square().mean().sqrt())
    print(
        f"{table.name:14} n {len(X):6,} d {X.shape[1]:3}  GPyTorch RMSE {rmse:.4f}  NLL {value:8.4f} (LOVE)  "
        f"mean and variance {time.perf_counter() - start:7.2f} s",
        flush=True,
    )


def measure(table: Table, name: str, rows: int | None) -> None:
    gp, cuda = table.gp(rows), table.X.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    paths = matheron.draw(gp, PATHS, solver=SOLVERS[name], generator=torch.Generator().manual_seed(0))
    if cuda:
        torch.cuda.synchronize()
    drawn = time.perf_counter()
    f, mean = paths(table.X_test), paths.mean(table.X_test)
    rmse = float((mean - table.y_test).square().mean().sqrt())
    value, error = nll(f, mean, table)
    done = time.perf_counter()
    peak = torch.cuda.max_memory_allocated() if cuda else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stats = paths.solver_stats
    assert stats is not None
    print(
        f"{table.name:14} n {gp.num_data:6,} d {table.X.shape[1]:3}  {name:6} RMSE {rmse:.4f}  NLL {value:8.4f} +- "
        f"{error:.4f}  draw {drawn - start:7.2f} s  predict {done - drawn:6.2f} s  {peak / 2**30:5.1f} GiB  "
        f"{stats.solver}, {stats.iterations} iterations",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of tables, see uci_tables.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--only", nargs="*", default=NAMES, help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS), choices=[*SOLVERS, "gpytorch"])
    parser.add_argument("--rows", type=int, help="train on the first rows alone")
    parser.add_argument("--published", action="store_true", help="print what others published on larger tables first")
    arguments = parser.parse_args()
    for name, row in PUBLISHED_NLL.items() if arguments.published else ():
        values = "  ".join(
            f"{solver} {'diverged' if value is None else f'{value:.3f}'}" for solver, value in row.items()
        )
        print(f"{name:24} published NLL  {values}", flush=True)
    for name in arguments.only:
        table = read(arguments.data, name, getattr(torch, arguments.dtype), arguments.device)
        for solver in arguments.solvers:
            if solver == "gpytorch":
                measure_gpytorch(table, arguments.rows)
            else:
                measure(table, solver, arguments.rows)


if __name__ == "__main__":
    main()
