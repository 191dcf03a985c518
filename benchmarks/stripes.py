"""Stripes of rough fields: is a realisation's power in few waves? And what do lattices without stripes cost?

    python benchmarks/stripes.py [--size 1000] [--dimensions 2] [--zoom 1]

A rough prior in two or three dimensions is a lattice of modes, and lattices of higher frequencies beyond them. For each
kernel a realisation is evaluated on a grid of `--size` points along each axis of the domain, or of a part of it that is
`--zoom` times shorter. The largest power of its periodogram (by Hann's window) over the mean power is printed for the
last octaves that the grid can show, over that of an exact realisation by circulant embedding. Then the variogram at a
thousandth and a ten-thousandth of the domain, over the kernel's; and processor seconds of drawing 8 paths given 200
data and of evaluating them at 100 and 100,000 scattered points, at 200 points of each path's own, and on the grid.
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
    size = 4 * n
    lag = torch.arange(size, dtype=torch.float64)
    lag = torch.minimum(lag, size - lag) * (side / (n - 1))
    r = torch.cartesian_prod(*[lag] * d)
    row = torch.cat([kernel(some, some.new_zeros(1, d))[:, 0] for some in r.split(1 << 20)]).reshape([size] * d)
    eigenvalues = np.fft.fftn(row.numpy()).real.clip(0)
    z = np.random.default_rng(seed).standard_normal((size,) * d)
    f = np.fft.ifftn(np.sqrt(eigenvalues) * np.fft.fftn(z)).real
    return f[tuple(slice(n) for _ in range(d))]


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return sorted(times)[len(times) // 2]


def costs(kernel: K.Kernel, d: int, axes: list[torch.Tensor]) -> dict[str, float]:
    """Processor seconds of a draw of 8 paths given 200 data, and of their values."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, d, generator=generator, dtype=torch.float64)
    gp = matheron.ExactGP(kernel, X, torch.sin(6 * X).sum(1), noise=1e-2)
    paths = matheron.draw(gp, 8, domain=(0, 1), seed=0)
    few, many = (torch.rand(n, d, generator=generator, dtype=torch.float64) for n in (100, 100_000))
    own = torch.rand(8, 200, d, generator=generator, dtype=torch.float64)
    return {
        "draw": seconds(lambda: matheron.draw(gp, 8, domain=(0, 1), seed=0)),
        "at 100 points": seconds(lambda: paths(few)),
        "at 100,000 points": seconds(lambda: paths(many)),
        "at 200 own points": seconds(lambda: paths(own)),
        "on the grid": seconds(lambda: paths.on_grid(axes)),
    }


def variogram(paths: matheron.Paths, kernel: K.Kernel, h: float) -> float:
    """That of a prior at a distance, over the kernel's: the mean over directions."""
    generator = torch.Generator().manual_seed(1)
    d = paths.prior.origin.shape[0]
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
    parser.add_argument("--octaves", type=int, default=3)
    parser.add_argument("--realisations", type=int, default=3, help="medians are over these")
    options = parser.parse_args()
    n, d, side, count = options.size, options.dimensions, 1 / options.zoom, options.realisations
    axes = [torch.linspace(0.3 * (1 - side), 0.3 * (1 - side) + side, n, dtype=torch.float64)] * d
    for name, kernel in KERNELS.items():
        prior = matheron.draw_prior(kernel, 8, input_dim=d, domain=(0, 1), seed=0, dtype=torch.float64)
        ours = np.median([peaks(prior[i].on_grid(axes)[0].numpy(), options.octaves) for i in range(count)], axis=0)
        theirs = np.median([peaks(exact(kernel, n, d, side, i), options.octaves) for i in range(count)], axis=0)
        print(name, prior, sep="\n  ")
        print("  peak over mean power, over that of exact draws:", *(f"{ratio:.2f}" for ratio in ours / theirs))
        print("  variogram, over the kernel's:", *(f"{variogram(prior, kernel, h):.2f} at {h:g}" for h in (1e-3, 1e-4)))
        times = costs(kernel, d, axes)
        print("  CPU s:", ", ".join(f"{what} {took:.3f}" for what, took in times.items()), flush=True)


if __name__ == "__main__":
    main()
