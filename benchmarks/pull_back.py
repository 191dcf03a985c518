"""How many evaluations the gradient of a sum over paths costs, at points that all paths share, forward pass included.

    python benchmarks/pull_back.py

Ratios of processor time on one thread, the smallest of several turns: a busy machine changes them little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

import matheron
from matheron import kernels

NUM_POINTS, NUM_DATA, NUM_FEATURES = 2000, 1024, 4096


def seconds(call: Callable[[], object], turns: int = 5) -> float:
    """The smallest processor time of a call."""
    call()
    taken = []
    for _ in range(turns):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def gradient_of_sum(paths: matheron.AbstractPaths, x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(paths(x).sum(), x)[0]


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32):
        X, y = (torch.randn(shape, generator=generator, dtype=dtype) for shape in ((NUM_DATA, 4), (NUM_DATA,)))
        gp = matheron.ExactGP(kernels.Matern(2.5, 1.0), X, y, 0.1)
        x = torch.randn(NUM_POINTS, 4, generator=generator, dtype=dtype)
        tracked = x.clone().requires_grad_()
        for s in (8, 64, 512):
            paths = matheron.draw(gp, s, num_features=NUM_FEATURES, features="sobol", generator=generator)
            values, gradient = seconds(partial(paths, x)), seconds(partial(gradient_of_sum, paths, tracked))
            name = str(dtype).removeprefix("torch.")
            print(f"{name}, {s} paths: {values:.3f} s for values, {gradient / values:.2f} times that with the gradient")


if __name__ == "__main__":
    main()
