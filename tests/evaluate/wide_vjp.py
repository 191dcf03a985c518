"""The smallest case of wrong gradients from `fourier_vjp` beyond 32 dimensions; a script for a machine with a GPU.

    python tests/evaluate/wide_vjp.py

One basis, no data, eight paths, 64 points. For each number of dimensions and each choice of tiles it prints the largest
error of the gradient, relative to its scale. An error near 1e-6 is right. Where one choice is wrong and another is
right, the difference between them says where to look: stages (a load that is not waited for), warps (a layout), or the
width of the tiles (shared memory).
"""

from __future__ import annotations

import itertools

import torch

import matheron
from matheron import kernels
from matheron.evaluate.fused import launch


def error(d: int, features: str) -> float:
    paths = matheron.draw_prior(
        kernels.RBF(d**0.5), 8, input_dim=d, num_features=64, features=features, paths_per_basis=None, seed=0
    )
    x = torch.rand(64, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = gradient(paths, x)
    found = gradient(paths.to("cuda", torch.float32), x.to("cuda", torch.float32)).double().cpu()
    return float((found - exact).abs().max() / exact.abs().max())


def gradient(paths: matheron.Paths, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(paths(x).sum(), x)
    return gradient


def main() -> None:
    plain = launch.tile_options
    launch.WIDEST_VJP = launch.FEW_SUMS = 0  # by rows: what is right today
    print(f"by rows: {error(48, 'sincos'):.1e}")
    launch.WIDEST_VJP = 64
    choices = itertools.product((16, 32, 33, 48, 64), ("sincos", "cosine"), (1, 2), (4, 8), (32, 64), (16, 32))
    for d, features, stages, warps, points, width in choices:
        chosen = {"STAGES": stages, "num_warps": warps, "BN": points, "BF": width}
        launch.tile_options = lambda x, rows, chosen=chosen: plain(x, rows) | chosen
        try:
            outcome = f"{error(d, features):.1e}"
        except Exception as problem:  # too much shared memory, say
            outcome = type(problem).__name__
        print(d, features, chosen, outcome)


if __name__ == "__main__":
    main()
