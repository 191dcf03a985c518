"""Roll-outs: milliseconds per step and output of 1000 paths, 2 outputs, m = 32, ell = 1024, against BoTorch's paths.

    python benchmarks/rollout.py [--quick] [--device cuda] [--out results.json]
    python benchmarks/rollout.py --device cuda --actions      sequences of actions alone

One process; the libraries take turns; medians of several runs. A step evaluates each path at one point of its own. The
floor counts the step's trigonometric functions (paths x ell / 2 on a CPU, where a cosine and its sine are one cosine of
another phase; paths x ell on a GPU), its kernel values (paths x m: exp and sqrt) and its multiply-adds at rates
measured on the spot.

On a GPU whole roll-outs are timed too, in one persistent kernel and with a CUDA graph for each step, without noise and
with a generator's on either side, and with 100 sequences of actions on each of 100 paths; and, by the graph alone,
under a policy, which the kernel does not serve.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import matheron
from matheron import kernels


def clocked(function: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    """Seconds of each run, after one that does not count."""
    seconds = []
    for i in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        function()
        _wait(device)
        if i:
            seconds.append(time.perf_counter() - start)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def floor(s: int, m: int, ell: int, dtype: torch.dtype, device: torch.device) -> float:
    """Seconds that one output's step takes at the least."""
    if device.type == "cuda":
        return cuda_floor(s, m, ell, dtype, rates_of_the_device())
    x = torch.rand(1 << 20, dtype=dtype, device=device)
    out = torch.empty_like(x)
    rate = lambda f: statistics.median(clocked(f, 9, device)) / x.numel()  # noqa: E731
    trig, exp, root = (rate(lambda f=f: f(x, out=out)) for f in (torch.cos, torch.exp, torch.sqrt))
    multiply = rate(lambda: torch.addcmul(x, x, x, out=out))
    return s * (ell / 2 * (trig + multiply) + m * (exp + root + 4 * multiply))


@cache
def rates_of_the_device() -> dict[str, float]:
    from floors import cuda_ceilings

    return cuda_ceilings(quick=True)


def cuda_floor(s: int, m: int, ell: int, dtype: torch.dtype, rates: dict[str, float]) -> float:
    """On a GPU units work side by side, and special functions (float64: their polynomials) take the longest."""
    from floors import RADIAL_64, WAVE_64

    if dtype == torch.float32:
        return s * (ell + 2 * m) / rates["special"]
    return 2 * s * (WAVE_64 * ell + RADIAL_64 * m) / rates["vector64"]


def ours(
    s: int,
    m: int,
    ell: int,
    dtype: torch.dtype,
    device: torch.device,
    steps: int,
    generator: torch.Generator | None = None,
    diffusion: float | None = 0.01,
    controls: Any = None,
    actions: int = 0,
) -> Callable[[], Any]:
    """`steps` steps of `matheron.rollout` along 2 outputs."""
    Z = torch.rand(m, 3, dtype=dtype, device=device)
    gps = [
        matheron.SparseGP(kernels.Matern(2.5, 0.5), Z, 0.1 * torch.randn(m), torch.full((m,), 0.05), jitter=1e-6)
        for _ in range(2)
    ]
    paths = matheron.draw(matheron.Outputs(gps), s, num_features=ell, features="sobol", paths_per_basis=None)
    if actions:
        driven: dict[str, Any] = {"actions": torch.rand(actions, steps, 1, dtype=dtype, device=device)}
    else:
        driven = {"controls": torch.rand(steps, 1, dtype=dtype, device=device) if controls is None else controls}
    start = torch.full((2,), 0.5, dtype=dtype, device=device)
    how: dict[str, Any] = dict(diffusion=diffusion, keep_every=steps, generator=generator)
    return lambda: matheron.rollout(paths, start, steps, 0.01, **driven, **how)


def both_ways(run: Callable[[], Any], device: torch.device) -> dict[str, list[float]]:
    """Seconds of a whole roll-out on a GPU: in one persistent kernel, and with a CUDA graph for each step."""
    module: Any = importlib.import_module("matheron.dynamics.rollouts")
    fast, times = module.fused_rollout, {}
    for way, chosen in (("persistent", fast), ("graph", lambda *_: None)):
        module.fused_rollout = chosen
        times[way] = clocked(run, 9 if chosen is fast else 3, device)
    module.fused_rollout = fast
    return times


def long_ones(s: int, m: int, ell: int, steps: int, device: torch.device) -> dict[str, dict[str, list[float]]]:
    """Whole roll-outs of `steps` steps, with controls and noise."""
    times = {}
    noise = {"no noise": (None, None), "noise of a CUDA generator": (torch.Generator(device), 0.01)}
    for name, (generator, diffusion) in (noise | {"noise of a CPU generator": (None, 0.01)}).items():
        for dtype in (torch.float32, torch.float64):
            row = both_ways(ours(s, m, ell, dtype, device, steps, generator, diffusion), device)
            times[f"{str(dtype)[6:]}, {name}"] = row | {"floor": [2 * steps * floor(s, m, ell, dtype, device)]}
    run = ours(s, m, ell, torch.float32, device, steps, None, None, lambda time, state: state[:, :1] * 0.1)
    least = 2 * steps * floor(s, m, ell, torch.float32, device)
    times["float32, no noise, a policy"] = {"graph": clocked(run, 3, device), "floor": [least]}
    return times


def with_actions(s: int, m: int, ell: int, steps: int, device: torch.device) -> dict[str, dict[str, list[float]]]:
    """Whole roll-outs of s sequences of actions on each of s paths."""
    times = {}
    for dtype in (torch.float32, torch.float64):
        row = both_ways(ours(s, m, ell, dtype, device, steps, None, None, actions=s), device)
        name = f"{str(dtype)[6:]}, no noise, {s} actions on {s} paths, {steps} steps"
        times[name] = row | {"floor": [2 * steps * floor(s * s, m, ell, dtype, device)]}
    return times


def botorchs(s: int, m: int, ell: int, dtype: torch.dtype, device: torch.device, steps: int) -> Callable[[], Any]:
    """The same number of evaluations, of two draws of BoTorch's, each path at a point of its own."""
    from botorch.models import SingleTaskGP
    from botorch.sampling.pathwise import draw_matheron_paths

    draws = []
    for _ in range(2):
        X = torch.rand(m, 3, dtype=dtype, device=device)
        model = SingleTaskGP(X, torch.randn(m, 1, dtype=dtype, device=device), outcome_transform=None)
        draws.append(draw_matheron_paths(model, torch.Size([s])))
    x = torch.rand(s, 1, 3, dtype=dtype, device=device)

    def run() -> None:
        with torch.no_grad():
            for _ in range(steps):
                for draw in draws:
                    draw(x)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--actions", action="store_true", help="sequences of actions alone, on a GPU")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", help="write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device(options.device)
    s, m, ell, steps, repeats = (20, 8, 64, 3, 2) if options.quick else (1000, 32, 1024, 50, 5)
    rows = []
    for dtype in (torch.float64, torch.float32) if not options.actions else ():
        least = floor(s, m, ell, dtype, device)
        for name, make in (("matheron", ours), ("BoTorch", botorchs)):
            try:
                runs = clocked(make(s, m, ell, dtype, device, steps), repeats, device)
            except ImportError:
                continue
            each = [1e3 * seconds / steps / 2 for seconds in runs]
            rows.append((str(dtype)[6:], name, statistics.median(each), min(each), max(each), 1e3 * least))
    whole: dict[str, dict[str, list[float]]] = {}
    if device.type == "cuda":
        whole = {} if options.actions else long_ones(s, m, ell, steps * 20, device)
        whole |= with_actions(s // 10, m, ell, steps, device)
    for name, row in whole.items():
        medians = ", ".join(f"{way} {1e3 * statistics.median(seconds):.2f} ms" for way, seconds in row.items())
        print(f"whole roll-outs, {name}: {medians}")
    table = Table(title=f"ms per step and output: {s} paths, m = {m}, ell = {ell}, {options.threads} threads, {device}")
    for column in ("dtype", "library", "median", "min", "max", "floor"):
        table.add_column(column, justify="left" if column in ("dtype", "library") else "right")
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else v for v in row))
    Console().print(table)
    if options.out:
        about = {"torch": torch.__version__, "machine": platform.machine(), "device": str(device), "paths": s}
        with open(options.out, "w") as file:
            json.dump({"about": about, "rows": rows, "whole": whole}, file, indent=1)


if __name__ == "__main__":
    main()
