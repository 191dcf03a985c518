"""Draws given slopes and averages by the million on a Fourier lattice: seconds, memory, iterations, and errors.

    python benchmarks/lattice_functionals.py                    # all cases
    python benchmarks/lattice_functionals.py line-rbf raster    # some of them

Values and slopes (all partial derivatives) of a function from the prior are observed at random places of the unit line
or square. The raster's cells are averages over the squares of a grid, and fields are drawn on one four times as fine.

The errors are root mean squares at 32 places, or at 4 where modes are many, in posterior standard deviations. `path` is
that of a path's distance from the function that made the data: 2^(1/2) where the law is right, as both are independent
draws from the posterior. The posterior mean's, `mean`, is 1 then. Errors are those of slopes, and for the raster of
values: given very many slopes, nearly all that remains open of the values is one constant.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

import matheron
from matheron import kernels as K
from matheron import observe


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(kernel: K.Kernel, d: int, n: int, num_slopes: int, noise: float) -> Callable[[], tuple]:
    """n values, and `num_slopes` partial derivatives, d of them at a place."""

    def made() -> tuple:
        truth = matheron.draw_prior(kernel, 1, input_dim=d, domain=(0, 1), features="lattice", tolerance=1e-10, seed=1)
        X, Z = points(n, d, 2), points(num_slopes // d, d, 3)
        generator = torch.Generator().manual_seed(4)
        y, dy = truth(X)[0], truth.value_and_grad(Z)[1][0].flatten()
        y, dy = (f + noise**0.5 * torch.randn(f.shape, generator=generator, dtype=f.dtype) for f in (y, dy))
        return truth, [observe.value(X), observe.gradient(Z)], [y, dy], [noise, noise]

    return made


def raster(kernel: K.Kernel, cells: int, noise: float) -> Callable[[], tuple]:
    """Averages over the squares of a grid of `cells` by `cells`."""

    def made() -> tuple:
        truth = matheron.draw_prior(kernel, 1, input_dim=2, domain=(0, 1), features="lattice", tolerance=1e-10, seed=1)
        edges = torch.arange(cells, dtype=torch.float64) / cells
        lower = torch.cartesian_prod(edges, edges)
        squares = observe.mean(lower, lower + 1 / cells)
        y = truth.at(squares)[0]
        y = y + noise**0.5 * torch.randn(len(y), generator=torch.Generator().manual_seed(4), dtype=y.dtype)
        return truth, squares, y, noise

    return made


CASES = {
    "line-rbf": (mixture(K.RBF(0.1), 1, 1_000_000, 1_000_000, 1e-2), K.RBF(0.1), 1),
    "line-matern": (mixture(K.Matern(2.5, 0.1), 1, 1_000_000, 1_000_000, 1e-2), K.Matern(2.5, 0.1), 1),
    "plane-rbf": (mixture(K.RBF(0.1), 2, 1_000_000, 1_000_000, 1e-2), K.RBF(0.1), 2),
    "plane-matern": (mixture(K.Matern(2.5, 0.1), 2, 100_000, 100_000, 1e-1), K.Matern(2.5, 0.1), 2),
    "plane-matern-million": (mixture(K.Matern(2.5, 0.1), 2, 1_000_000, 1_000_000, 1e-2), K.Matern(2.5, 0.1), 2),
    "raster": (raster(K.Matern(2.5, 0.1), 316, 1e-4), K.Matern(2.5, 0.1), 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--paths", type=int, default=8)
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {args.paths} paths\n")
    print("| case | data | modes | iterations | draw, s | CPU, s | path | mean | grid of 1264^d, s | peak, GiB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in args.cases or list(CASES):
        made, kernel, d = CASES[name]
        truth, observed, y, noise = made()
        gp = matheron.ExactGP(kernel, observed, y, noise=noise)
        start, cpu = time.perf_counter(), time.process_time()
        paths = matheron.draw(gp, args.paths, domain=(0, 1), solver="lattice", seed=5)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        x = points(32 if paths.update.basis.size < 1 << 18 else 4, d, 6)  # a variance takes a solve
        f, g = (truth, paths) if name == "raster" else (truth.derivative(0), paths.derivative(0))
        sd = g.variance(x).sqrt()
        error = ((g(x) - f(x)) / sd).square().mean().sqrt()
        of_mean = ((g.mean(x) - f(x)) / sd).square().mean().sqrt()
        axis = (torch.arange(1264, dtype=torch.float64) + 0.5) / 1264
        start = time.perf_counter()
        paths.on_grid([axis] * d)
        grid = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        modes = " x ".join(map(str, paths.update.basis.shape))
        stats = paths.solver_stats
        assert stats is not None
        print(
            f"| {name} | {gp.num_data:,} | {modes} | {stats.iterations} | {seconds:.1f} | {cpu:.0f} | {error:.2f} | "
            f"{of_mean:.2f} | {grid:.1f} | {peak:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
