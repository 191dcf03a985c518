"""A log-Gaussian Cox process on a grid of counts, and binary data in two dimensions: how long, and how near the truth.

    python benchmarks/latent.py                      counts on 128 x 128 cells, and 10,000 binary data
    python benchmarks/latent.py --cells 512 --binary 100000
    python benchmarks/latent.py --cells 512 --binary 0 --raster rate.nc     the rate's mean and quantiles, as a raster
    python benchmarks/latent.py --fit 500            fits of 500 binary data, beside scikit-learn's

The intensity is known: counts are drawn from exp(f), f a draw of the prior. It prints the error of the posterior's mean
of log intensity and of the intensity, in the truth's standard deviations, and how many of the cells a 90% interval of
the drawn functions covers.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

import matheron
from matheron import kernels, likelihoods


def truth(kernel: kernels.Kernel, seed: int) -> matheron.Paths:
    return matheron.draw_prior(kernel, 1, input_dim=2, domain=(0, 1), tolerance=1e-5, seed=seed)


def counts_on_a_grid(side: int, num_paths: int, raster: str | None) -> None:
    """Counts with 3 events to a cell on average, of a Matern-3/2 process with a lengthscale of a tenth of the side."""
    kernel, level = 1.0 * kernels.Matern(1.5, 0.1), np.log(3.0) - 0.5
    axis = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    f = (truth(kernel, 1).on_grid([axis, axis])[0] + level).flatten()  # [side^2]
    X = torch.cartesian_prod(axis, axis)
    y = torch.poisson(f.exp(), generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    gp = matheron.approximate(kernel, X, y, likelihood=likelihoods.Poisson(), mean=level)
    mode = time.perf_counter()
    paths = matheron.draw(gp, num_paths, domain=(0, 1), seed=2)
    drawn = time.perf_counter()
    rates = gp.likelihood.mean_of(paths)
    values = rates.on_grid([axis, axis]).flatten(1)  # [s, side^2]
    evaluated = time.perf_counter()
    print(f"{side} x {side} cells, {int(y.sum()):,} events, {num_paths} functions: {paths.solver_stats}")
    each = {"mode": mode - began, "draw": drawn - mode, "fields": evaluated - drawn}
    print("  " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in each.items()))
    report(f, paths.mean(X), values, f.exp())
    if raster is not None:
        sys.path.pop(0)  # this folder, whose distributed.py hides the package of that name
        from matheron import fields

        grid = {"x": axis.numpy(), "y": axis.numpy()}
        fields.write(fields.summarise(rates, grid).assign(intensity=(("y", "x"), f.exp().view(side, side).mT)), raster)
        print(f"  written: {raster}, {time.perf_counter() - evaluated:.1f} s")


def binary(n: int, num_paths: int) -> None:
    """Yes and no at uniform points, of a Matern-3/2 process with a variance of 4."""
    kernel, g = 4.0 * kernels.Matern(1.5, 0.2), torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    f = truth(kernel, 3)(X)[0]
    y = torch.bernoulli(torch.sigmoid(f), generator=g)
    began = time.perf_counter()
    gp = matheron.approximate(kernel, X, y, likelihood=likelihoods.Bernoulli())
    mode = time.perf_counter()
    paths = matheron.draw(gp, num_paths, domain=(0, 1), seed=2)
    values = gp.likelihood.mean_of(paths)(X)
    print(f"{n:,} binary data, {num_paths} functions: {paths.solver_stats}")
    print(f"  mode {mode - began:.1f} s, draw and values {time.perf_counter() - mode:.1f} s")
    report(f, paths.mean(X), values, torch.sigmoid(f))


def report(f: torch.Tensor, mean: torch.Tensor, values: torch.Tensor, rate: torch.Tensor) -> None:
    """Errors of the latent mean, of the mean of rates `[s, n]`, and the coverage of their intervals."""
    rms = float((mean - f).square().mean().sqrt() / f.std())
    error = float((values.mean(0) - rate).square().mean().sqrt() / rate.std())
    low, high = (torch.quantile(values[:, :: max(1, values.shape[1] // 20_000)], q, dim=0) for q in (0.05, 0.95))
    some = rate[:: max(1, values.shape[1] // 20_000)]
    inside = float(((some >= low) & (some <= high)).double().mean())
    print(
        f"  RMS error over the truth's deviation: latent {rms:.3f}, rate {error:.3f}; 90% intervals cover {inside:.1%}"
    )


def fits(n: int) -> None:
    """Two lengthscales and a variance, by the evidence."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    g = np.random.default_rng(0)
    X = g.uniform(0, 5, (n, 2))
    y = (g.uniform(size=n) < 1 / (1 + np.exp(-3 * np.sin(2 * X[:, 0]) * np.cos(X[:, 1])))).astype(float)
    began = time.perf_counter()
    model = GaussianProcessClassifier(ConstantKernel(1.0) * RBF([1.0, 1.0])).fit(X, y)  # type: ignore[arg-type]
    print(f"scikit-learn: {time.perf_counter() - began:.2f} s, evidence {model.log_marginal_likelihood_value_:.4f}")
    for starts in (1, 4):
        began = time.perf_counter()
        kernel = kernels.Scaled(kernels.RBF([1.0, 1.0]), 1.0)
        gp = matheron.fit(kernel, X, y, likelihood=likelihoods.Bernoulli(), mean=0.0, num_starts=starts, seed=0)
        took = time.perf_counter() - began
        print(f"matheron, num_starts={starts}: {took:.2f} s, evidence {matheron.log_marginal_likelihood(gp):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=128, help="cells along a side; 0 for none")
    parser.add_argument("--binary", type=int, default=10_000, help="binary data; 0 for none")
    parser.add_argument("--fit", type=int, default=0, help="binary data of the fits; 0 for none")
    parser.add_argument("--paths", type=int, default=64)
    parser.add_argument("--raster", help="a file for the rate's maps")
    settings = parser.parse_args()
    if settings.fit:
        return fits(settings.fit)
    if settings.cells:
        counts_on_a_grid(settings.cells, settings.paths, settings.raster)
    if settings.binary:
        binary(settings.binary, settings.paths)


if __name__ == "__main__":
    main()
