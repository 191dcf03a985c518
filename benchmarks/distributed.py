"""One draw by several processes, on one machine or many: torchrun --nproc-per-node 2 benchmarks/distributed.py.

On GPUs give --device cuda, a process per GPU; on several machines torchrun's --nnodes and --rdzv-endpoint. Every
process has the data and makes the same paths; rows of products and of the preconditioner are shared out.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import matheron
from matheron import kernels, solvers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--dims", type=int, default=3)
    parser.add_argument("--lengthscale", type=float, default=0.3)
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--paths", type=int, default=63)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--check", action="store_true", help="compare with a dense factor, for small n")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    # With a timeout, processes that lose one another end with an error instead of waiting.
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=30))
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
    dtype = torch.float32 if cuda else torch.float64
    generator = torch.Generator().manual_seed(0)  # on the CPU: the same numbers in every process
    X = torch.randn(arguments.size, arguments.dims, generator=generator, dtype=torch.float64).to(device, dtype)
    y = (3 * X).sin().sum(1) + arguments.noise**0.5 * torch.randn(arguments.size, generator=generator).to(X)
    gp = matheron.ExactGP(kernels.Matern(1.5, arguments.lengthscale), X, y, arguments.noise)

    def draw(solver: solvers.Solver) -> matheron.Paths:
        return matheron.draw(gp, arguments.paths, solver=solver, features="sobol", seed=1)

    start = time.perf_counter()
    paths = draw(solvers.PCG(rank=arguments.rank, distributed=True))
    seconds = time.perf_counter() - start
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, n = {arguments.size:,}: {seconds:.2f} s; {paths.solver_stats}")
        if arguments.check:
            x = X[:100]
            error = (paths(x) - draw(solvers.Cholesky())(x)).square().mean().sqrt() / arguments.noise**0.5
            print(f"against a dense factor: {float(error):.1e} standard deviations of the noise")
            assert error < 0.01
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
