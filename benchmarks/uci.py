"""Held-out rows of regression tables, predicted from 64 paths: python benchmarks/uci.py --data FOLDER --device cuda.

RMSE is that of the exact posterior mean, which paths carry along; NLL is that of normal predictions with the paths'
mean and variance plus noise. It depends on the 64 draws, so its Monte Carlo error is beside it: the standard deviation
over bootstrap samples of the paths. Everything is in standardised units. Hyperparameters are the folder's.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from pathlib import Path

import torch
from tables import Table, read
from torch import Tensor

import matheron
from matheron import solvers

NAMES = ("pol", "elevators", "bike", "protein", "keggdirected")
SOLVERS = {"dense": solvers.Cholesky(), "pcg": solvers.PCG()}
PATHS = 64


def nll(f: Tensor, mean: Tensor, table: Table) -> tuple[float, float]:
    """Mean negative log density of the test targets under paths f `[s, n]`, and its Monte Carlo error."""

    def of(rows: Tensor) -> float:
        deviation = f[rows] - mean
        variance = deviation.square().mean(0) + table.noise
        return float(0.5 * ((table.y_test - mean).square() / variance + variance.log() + math.log(2 * math.pi)).mean())

    generator = torch.Generator().manual_seed(0)
    samples = [of(torch.randint(len(f), (len(f),), generator=generator).to(f.device)) for _ in range(100)]
    return of(torch.arange(len(f), device=f.device)), float(torch.tensor(samples).std())


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
    parser.add_argument("--data", type=Path, required=True, help="a folder of tables, see tables.py")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--only", nargs="*", default=NAMES, help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--solvers", nargs="*", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--rows", type=int, help="train on the first rows alone")
    arguments = parser.parse_args()
    for name in arguments.only:
        table = read(arguments.data, name, getattr(torch, arguments.dtype), arguments.device)
        for solver in arguments.solvers:
            measure(table, solver, arguments.rows)


if __name__ == "__main__":
    main()
