"""How long 64 paths take where data are many, against targets: python benchmarks/large_n.py --device cuda.

Each line is one draw: prior, solver and all. Its floor is what its iterations take at least: for every product with K,
n^2 kernel values and 2 n^2 columns multiply-adds, at the rates that this machine reached just before.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from floors import ceilings, cuda_ceilings

import matheron
from matheron import Sites, kernels, solvers
from matheron.solvers.operator import KernelOperator

PATHS = 64


@dataclass(frozen=True)
class Target:
    """A model, a solver, and the seconds that it may take."""

    name: str
    gp: Callable[[], matheron.ExactGP]
    solver: solvers.Solver
    seconds: float
    asked: bool = True  # False: only where named by --only, since it takes minutes


def synthetic(n: int, d: int, lengthscale: float, noise: float, dtype: torch.dtype, device: str) -> matheron.ExactGP:
    """Normal inputs, Matern-3/2, and a function from the prior with noise."""
    generator = torch.Generator(device).manual_seed(0)
    X = torch.randn(n, d, generator=generator, dtype=dtype, device=device)
    kernel = kernels.Matern(1.5, lengthscale)
    f = matheron.draw_prior(
        kernel, 1, input_dim=d, features="sobol", num_features=4096, generator=generator, dtype=dtype, device=device
    )
    eps = torch.randn(n, generator=generator, dtype=dtype, device=device)
    return matheron.ExactGP(kernel, X, f(X)[0] + noise**0.5 * eps, noise)


def table(folder: Path, name: str, dtype: torch.dtype, device: str, num_rows: int | None) -> matheron.ExactGP:
    """The training rows of a regression table in a folder, or the first of them, standardised.

    The folder holds `NAME.csv.gz` (rows: inputs, then the target; no header) and `hyperparameters.json`: noise and
    signal as standard deviations and `ls` lengthscales of a Matern-3/2 kernel, by name.
    """
    rows = np.loadtxt(folder / f"{name}.csv.gz", delimiter=",")
    rows = (rows - rows.mean(0)) / np.where(rows.std(0) > 0, rows.std(0), 1.0)
    rows = rows[np.random.RandomState(0).permutation(len(rows))][: int(0.9 * len(rows))][:num_rows]
    data = torch.as_tensor(rows).to(device, dtype)
    known = json.loads((folder / "hyperparameters.json").read_text())[name]
    kernel = known["signal"] ** 2 * kernels.Matern(1.5, torch.tensor(known["ls"], dtype=torch.float64))
    return matheron.ExactGP(kernel.to(torch.device(device)), data[:, :-1], data[:, -1], known["noise"] ** 2)


def targets(device: str, data: Path | None) -> list[Target]:
    dtype = torch.float32 if device == "cuda" else torch.float64

    def protein(rows: int | None = None) -> matheron.ExactGP:
        if data is not None:
            return table(data, "protein", dtype, device, rows)
        return synthetic(rows or 41_157, 9, 1.0, 9e-3, dtype, device)  # of the same size and noise

    def normal(n: int, d: int, lengthscale: float, noise: float) -> Callable[[], matheron.ExactGP]:
        return lambda: synthetic(n, d, lengthscale, noise, dtype, device)

    def to_residual(noise: float) -> solvers.PCG:
        """To a relative residual of 1e-3, and no further."""
        return solvers.PCG(tolerance=2e-3 / noise**0.5)

    def little_noise(n: int, *ways: solvers.Solver) -> list[Target]:
        """Noise of 1e-4 of the variance, to a residual of 1e-3: what takes many iterations; no target is set."""
        gp = normal(n, 3, 0.3, 1e-4)
        return [Target(f"noise 1e-4, n = {n:,}, {type(way).__name__}", gp, way, math.inf, asked=False) for way in ways]

    name = "protein" if data is not None else "synthetic, protein's size"
    if device != "cuda":
        return [Target(f"{name}, first 20,000 rows", lambda: protein(20_000), solvers.Auto(), 90.0)]
    million = 1_048_576
    return [
        Target(f"{name} by PCG", protein, solvers.PCG(), 3.0),
        Target(f"{name} dense", protein, solvers.Cholesky(), 1.5),
        Target("n = 100,000 dense in float64", normal(100_000, 3, 0.3, 0.01), solvers.Cholesky(), 60.0),
        Target("n = 262,144, d = 3", normal(262_144, 3, 0.3, 0.01), to_residual(0.01), 30.0),
        Target("n = 1,048,576, d = 8", normal(million, 8, 1.5, 0.1), to_residual(0.1), 180.0, asked=False),
        Target("n = 1,048,576, d = 3", normal(million, 3, 0.3, 0.01), to_residual(0.01), 480.0, asked=False),
        *little_noise(262_144, solvers.PCG(0.2), solvers.PCG(0.2, rank=500), solvers.BlockDescent(0.2)),
        # Neither ends at 1e-3 within minutes.
        *little_noise(million, solvers.PCG(0.2, max_iterations=100), solvers.BlockDescent(0.2, max_epochs=80)),
    ]


def pass_floor(gp: matheron.ExactGP, rates: dict[str, float]) -> float:
    """Seconds of one product K V for all paths and their mean, at the machine's rates."""
    pairs, columns = gp.num_data**2, PATHS + 1
    if gp.train_inputs.device.type == "cuda":
        return max(3 * 2 * pairs * columns / rates["float16"], 2 * pairs / rates["special"])
    # A block of K serves twice, so half of the kernel values are enough.
    return 0.5 * pairs * (1 / rates["exp"] + 1 / rates["sqrt"]) + 2 * pairs * columns / rates["products"]


def dense_floor(gp: matheron.ExactGP, rates: dict[str, float]) -> float:
    """Seconds of n^3 / 3 multiply-adds; the factor is made in float64."""
    return gp.num_data**3 / 3 / rates["float64" if gp.train_inputs.device.type == "cuda" else "products"]


def measure(target: Target, rates: dict[str, float], device: str) -> None:
    gp = target.gp()
    cuda = device == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    one = one_pass(gp)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", solvers.ConvergenceWarning)
        paths = matheron.draw(
            gp, PATHS, solver=target.solver, features="sobol", generator=torch.Generator(device).manual_seed(1)
        )
        if cuda:
            torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    stats = paths.solver_stats
    assert stats is not None
    floor = stats.iterations * pass_floor(gp, rates) if stats.iterations else dense_floor(gp, rates)
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if cuda else ""
    residual = "" if stats.residual is None else f", residual {stats.residual:.1e}"
    verdict = "met" if seconds <= target.seconds and stats.converged else "MISSED"
    print(
        f"{target.name:42} n {gp.num_data:9,}  {seconds:8.2f} s  target {target.seconds:5.1f} s {verdict:6}  "
        f"floor {floor:7.2f} s  one product {one:.3f} s (floor {pass_floor(gp, rates):.3f})  {stats.solver}, "
        f"{stats.iterations} iterations{residual}{memory}",
        flush=True,
    )
    for warning in said:
        print(f"  {warning.message}", flush=True)


@torch.no_grad()
def one_pass(gp: matheron.ExactGP) -> float:
    """Seconds of one product for all paths and their mean, the second of two."""
    X = gp.train_inputs
    operator = KernelOperator(gp.kernel.to(X.device, X.dtype), Sites(X), gp.noise)
    V = torch.ones(len(X), PATHS + 1, dtype=X.dtype, device=X.device)
    seconds = 0.0
    for _ in range(2 if X.device.type == "cuda" else 1):
        start = time.perf_counter()
        float(operator.product(V)[0, 0])
        seconds = time.perf_counter() - start
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--data", type=Path, help="a folder of tables; without one, normal inputs in protein's place")
    parser.add_argument("--only", default="", help="targets whose names contain this, those that take minutes too")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data: does it run?")
    arguments = parser.parse_args()
    dtype = torch.float32 if arguments.device == "cuda" else torch.float64
    rates = cuda_ceilings(arguments.quick) if arguments.device == "cuda" else ceilings(dtype, arguments.quick)
    print("rates per second:", ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items()), flush=True)
    for target in targets(arguments.device, arguments.data):
        if arguments.only in target.name and (target.asked or arguments.only):
            if arguments.quick:
                target = Target(target.name, _fewer(target.gp), target.solver, target.seconds)
            measure(target, rates, arguments.device)
            if arguments.device == "cuda":
                torch.cuda.empty_cache()


def _fewer(make: Callable[[], matheron.ExactGP]) -> Callable[[], matheron.ExactGP]:
    def made() -> matheron.ExactGP:
        gp = make()
        rows = max(100, gp.num_data // 20)
        return matheron.ExactGP(gp.kernel, gp.train_inputs[:rows], gp.train_targets[:rows], gp.noise[:rows])

    return made


if __name__ == "__main__":
    main()
