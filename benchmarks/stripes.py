"""Stripes of rough fields: is a realisation's power in few waves? And what do lattices without stripes cost?

    python benchmarks/stripes.py [--size 1000] [--dimensions 2] [--zoom 1] [--sizes 25] [--tolerance 1e-3]

A rough prior in two or three dimensions is a lattice of modes, and lattices of higher frequencies beyond them. For each
kernel a realisation is evaluated on a grid of `--size` points along each axis of the domain, or of a part of it that is
`--zoom` times shorter. The largest power of its periodogram (by Hann's window) over the mean power is printed for the
last octaves that the grid can show, over that of an exact realisation by circulant embedding: the median over
realisations. A grid whose step is a simple fraction of a lattice's period could show stripes where others do not, so
the largest of single realisations on `--sizes` grids is printed, too, each with one point less along an axis. Then the
variogram at a thousandth and a ten-thousandth of the domain, over the kernel's; and processor seconds of evaluating 8
paths of the prior on the grid, of drawing 8 paths given 200 data, and of evaluating these at 100 and 100,000 scattered
points, at 200 points of each path's own, and on the grid.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

import matheron
from matheron import kernels as K

KERNELS = {
    "Matern 1/2 of lengthscale .15": K.Matern(0.5, 0.15),
    "Matern 1/2 of lengthscale .3": K.Matern(0.5, 0.3),
    "spherical of range .5": K.Spherical(0.5),
    "Matern 3/2 of lengthscale .05": K.Matern(1.5, 0.05),
}


def peaks(f: np.ndarray, octaves: int) -> list[float]:
    """The largest power over the mean power in the last octaves of a periodogram, the finest last."""
    n, d = f.shape[0], f.ndim
    for axis in range(d):
        f = f * np.hanning(n).reshape([-1 if a == axis else 1 for a in range(d)])
    power = np.abs(np.fft.rfftn(f - f.mean())) ** 2
    k = [np.fft.fftfreq(n, 1 / n)] * (d - 1) + [np.fft.rfftfreq(n, 1 / n)]
    radius = np.sqrt(sum(np.square(axis) for axis in np.meshgrid(*k, indexing="ij", sparse=True)))
    ends = [n / 2 ** (octave + 1) for octave in range(octaves + 1)]
    rings = [power[(radius >= low) & (radius < high)] for high, low in pairwise(ends)]
    return [float(ring.max() / ring.mean()) for ring in rings][::-1]


def exact(kernel: K.Kernel, n: int, d: int, side: float, seed: int) -> np.ndarray:
    """A realisation on a grid by circulant embedding: eigenvalues below zero are set to zero."""
    size = (4 if n**d <= 1 << 22 else 2) * n
    lag = torch.arange(size, dtype=torch.float64)
    lag = torch.minimum(lag, size - lag) * (side / (n - 1))
    r = torch.cartesian_prod(*[lag] * d)
    row = torch.cat([kernel(some, some.new_zeros(1, d))[:, 0] for some in r.split(1 << 20)]).reshape([size] * d)
    axes = list(range(d))
    eigenvalues = np.fft.rfftn(row.numpy(), axes=axes).real.clip(0)
    z = np.random.default_rng(seed).standard_normal((size,) * d)
    f = np.fft.irfftn(np.sqrt(eigenvalues) * np.fft.rfftn(z, axes=axes), row.shape, axes)
    return f[tuple(slice(n) for _ in range(d))]


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return sorted(times)[len(times) // 2]


def costs(
    prior: matheron.Paths, kernel: K.Kernel, d: int, axes: list[torch.Tensor], tolerance: float
) -> dict[str, float]:
    """Processor seconds of a prior's values, of a draw of 8 paths given 200 data, and of their values."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, d, generator=generator, dtype=torch.float64)
    gp = matheron.ExactGP(kernel, X, torch.sin(6 * X).sum(1), noise=1e-2)
    paths = matheron.draw(gp, 8, domain=(0, 1), tolerance=tolerance, seed=0)
    few, many = (torch.rand(n, d, generator=generator, dtype=torch.float64) for n in (100, 100_000))
    own = torch.rand(8, 200, d, generator=generator, dtype=torch.float64)
    return {
        "the prior on the grid": seconds(lambda: prior.on_grid(axes)),
        "draw": seconds(lambda: matheron.draw(gp, 8, domain=(0, 1), tolerance=tolerance, seed=0)),
        "at 100 points": seconds(lambda: paths(few)),
        "at 100,000 points": seconds(lambda: paths(many)),
        "at 200 own points": seconds(lambda: paths(own)),
        "on the grid": seconds(lambda: paths.on_grid(axes)),
    }


def variogram(paths: matheron.Paths, kernel: K.Kernel, h: float) -> float:
    """That of a prior at a distance, over the kernel's: the mean over directions."""
    generator = torch.Generator().manual_seed(1)
    d = paths.prior.features.origin.shape[0]
    x = 0.1 + 0.8 * torch.rand(2, d, generator=generator, dtype=torch.float64)
    z = x + h * torch.nn.functional.normalize(torch.randn(2, d, generator=generator, dtype=torch.float64))
    Phi = paths.prior.features(torch.cat([x, z]))  # [g, 2 n, ell]
    ours = (Phi[:, : len(x)] - Phi[:, len(x) :]).square().sum(-1).mean(0)
    return float((ours / (2 * (kernel.diag(x) - kernel(x, z).diagonal()))).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--dimensions", type=int, default=2, choices=(2, 3))
    parser.add_argument("--zoom", type=float, default=1.0)
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the prior: a smaller one has finer lattices")
    parser.add_argument("--octaves", type=int, default=3)
    parser.add_argument("--realisations", type=int, default=3, help="medians are over these")
    parser.add_argument("--sizes", type=int, default=25, help="grids for the largest of single realisations")
    options = parser.parse_args()
    n, d, side, count = options.size, options.dimensions, 1 / options.zoom, options.realisations

    def grid(n: int) -> list[torch.Tensor]:
        return [torch.linspace(0.3 * (1 - side), 0.3 * (1 - side) + side, n, dtype=torch.float64)] * d

    for name, kernel in KERNELS.items():
        prior = matheron.draw_prior(
            kernel, 8, input_dim=d, domain=(0, 1), tolerance=options.tolerance, seed=0, dtype=torch.float64
        )
        theirs = np.median([peaks(exact(kernel, n, d, side, i), options.octaves) for i in range(count)], axis=0)

        def ratios(i: int, n: int, prior: matheron.Paths = prior, theirs: np.ndarray = theirs) -> np.ndarray:
            return peaks(prior[i % 8].on_grid(grid(n))[0].numpy(), options.octaves) / theirs

        print(name, prior, sep="\n  ")
        ours = np.median([ratios(i, n) for i in range(count)], axis=0)
        print("  peak over mean power, over that of exact draws:", *(f"{ratio:.2f}" for ratio in ours))
        if options.sizes:
            largest = np.max([ratios(i, n - i) for i in range(options.sizes)], axis=0)
            print(f"  the largest on {options.sizes} grids:", *(f"{ratio:.2f}" for ratio in largest))
        print("  variogram, over the kernel's:", *(f"{variogram(prior, kernel, h):.2f} at {h:g}" for h in (1e-3, 1e-4)))
        times = costs(prior, kernel, d, grid(n), options.tolerance)
        print("  CPU s:", ", ".join(f"{what} {took:.3f}" for what, took in times.items()), flush=True)


if __name__ == "__main__":
    main()
