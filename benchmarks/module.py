"""`paths.to_module()`, plain and under torch.compile, beside the library's own evaluation of the same paths.

    python benchmarks/module.py [--quick] [--device cuda] [--only own] [--out results.json]

Matern-5/2 in 4 dimensions. At shared points the module works in blocks of them, as large as are fastest on each device;
at own points, one for each of 1000 paths as in a step of a roll-out, in one piece. One process, the three take turns,
medians of several runs. Errors are those of values against the paths' in float64, relative to the largest.

On a CPU `--parts` prints the times of elementary functions in torch and compiled: they are most of the difference.
Torch's `cos`, `sin`, `exp` and `sqrt` are MKL's if torch was built with it. On an AMD EPYC they take two to five times
as long as the vector functions (SLEEF's) that the compiler puts into one loop. `exp2` is SLEEF's in torch too, so
kernels take powers of two. There is no such function for cosines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import matheron
from matheron import kernels

# Of points that a module is given at once: on a CPU 1024 rows of 1024 features stay near its caches.
BLOCK = {"cpu": 1024, "cuda": 50_000}
DIMENSIONS = 4


def paths_of(num_paths: int, num_data: int, num_features: int, dtype: torch.dtype, device: str) -> matheron.Paths:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_data, DIMENSIONS, generator=generator, dtype=torch.float64)
    y = torch.sin(4 * X).sum(1) + 0.1 * torch.randn(num_data, generator=generator, dtype=torch.float64)
    gp = matheron.ExactGP(kernels.Matern(2.5, 0.7), X, y, noise=1e-2)
    return matheron.draw(gp, num_paths, num_features=num_features, seed=0).to(device, dtype)


def in_blocks(module: Callable[[Tensor], Tensor], block: int) -> Callable[[Tensor], Tensor]:
    """A module called for some of the shared points at a time; own points `[s, n, d]` in one piece."""

    def call(x: Tensor) -> Tensor:
        if x.ndim == 3 or len(x) <= block:
            return module(x)
        return torch.cat([module(some) for some in x.split(block)], dim=1)

    return call


def clocked(calls: dict[str, Callable[[], Tensor]], repeats: int, number: int) -> dict[str, float]:
    """Median seconds of a call; they take turns of `number` calls, after one turn each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(number):
                call()
            wait()
            if turn:
                seconds[name].append((time.perf_counter() - start) / number)
    return {name: statistics.median(times) for name, times in seconds.items()}


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@torch.no_grad()
def measured(case: dict[str, Any], device: str, repeats: int) -> list[dict[str, Any]]:
    dtype = getattr(torch, case["dtype"])
    exact = paths_of(case["paths"], case["data"], case["features"], torch.float64, device)
    paths, shape = exact.to(dtype), (case["points"], DIMENSIONS)
    shape = (case["paths"], *shape) if case["own"] else shape
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device, dtype)
    module, block = paths.to_module(), BLOCK[device]
    compiled = torch.compile(module, fullgraph=True)  # once for whole blocks, and once more for the last
    calls = {"paths(x)": paths, "module": in_blocks(module, block), "torch.compile": in_blocks(compiled, block)}
    some = x[:, :1000] if case["own"] else x[:1000]
    truth = exact(some.double())
    errors = {name: float((f(some).double() - truth).abs().max() / truth.abs().max()) for name, f in calls.items()}
    seconds = clocked({name: lambda f=f: f(x) for name, f in calls.items()}, repeats, 20 if case["own"] else 1)
    return [case | {"call": name, "seconds": seconds[name], "error": errors[name]} for name in calls]


@torch.no_grad()
def print_parts(repeats: int) -> None:
    """Nanoseconds of one thread for each number, of functions that features and kernels are made of."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    functions = (torch.cos, torch.sin, torch.exp, torch.exp2, torch.sqrt)
    print("   dtype function   torch  compiled")
    for dtype in (torch.float32, torch.float64):
        x = 30 * torch.rand(100, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
        for function in functions:
            torch.compiler.reset()
            whole = torch.compile(lambda x, f=function: f(x).neg())  # in one loop with the sign
            calls = {"torch": lambda f=function, x=x: f(x), "compiled": lambda f=whole, x=x: f(x)}
            seconds = clocked(calls, repeats, 50)
            each = [f"{1e9 * seconds[name] / x.numel():8.2f}" for name in calls]
            print(f"{str(dtype).removeprefix('torch.'):>8} {function.__name__:8} {' '.join(each)}", flush=True)
    torch.set_num_threads(threads)


def cases(device: str, quick: bool) -> list[dict[str, Any]]:
    points = {"cpu": 20_000, "cuda": 1_000_000}[device]
    sizes = {"paths": 64, "data": 1024, "features": 4096 if device == "cuda" else 1024, "points": points, "own": False}
    step = {"paths": 1000, "data": 32, "features": 1024, "points": 1, "own": True}
    if quick:
        sizes |= {"paths": 4, "data": 20, "features": 64, "points": 5000}
        step |= {"paths": 10}
    return [case | {"dtype": dtype} for case in (sizes, step) for dtype in ("float32", "float64")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", choices=["shared", "own"], help="one kind of points")
    parser.add_argument("--parts", action="store_true", help="elementary functions alone, on a CPU")
    parser.add_argument("--out", help="a JSON file for the rows")
    arguments = parser.parse_args()
    if arguments.parts:
        return print_parts(3 if arguments.quick else 9)
    print("            points    dtype  paths  data features  call                 ms  ratio error")
    rows = []
    for case in cases(arguments.device, arguments.quick):
        if arguments.only and case["own"] != (arguments.only == "own"):
            continue
        found = measured(case, arguments.device, repeats=3 if arguments.quick else 5)
        rows += found
        for row in found:
            ratio = row["seconds"] / found[0]["seconds"]
            where = "one each" if row["own"] else f"{row['points']:,} shared"
            sizes = f"{where:>18} {row['dtype']:>8} {row['paths']:6} {row['data']:5} {row['features']:8}"
            print(f"{sizes}  {row['call']:13} {1e3 * row['seconds']:9.2f} {ratio:6.2f} {row['error']:.1e}", flush=True)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"device": arguments.device, "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
