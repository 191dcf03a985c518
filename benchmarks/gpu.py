"""matheron's fused kernels against BoTorch's draw_matheron_paths on a CUDA device: one process, the same problem.

    python benchmarks/gpu.py                      the table; a few minutes, and 80 GB of GPU memory for BoTorch
    python benchmarks/gpu.py --quick              small sizes: does it run?
    python benchmarks/gpu.py --alone              without BoTorch
    python benchmarks/gpu.py --out results.json   the numbers, to keep

Times are medians between CUDA events, after calls that compile and warm up. Memory is the allocator's peak above what
was there before the call, the answer included. The error is that of the values at some points against the formula in
float64, RMS over RMS.

A floor is what the arithmetic would take at the rates that this device reached just before: products of tensor cores
(three of half precision for one of float32), waves, roots and exponentials of the special-function units, vector
operations of float64, and bytes of inputs and outputs. These units work side by side, so the floor is the largest of
the four, and nothing gets there.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ImportError as error:
    raise SystemExit("no Triton: pip install 'matheron[gpu]'") from error

# Float64 has no special-function unit: the multiply-adds of a sine with its cosine; of a root, an exponential and more.
WAVE_64, RADIAL_64 = 12, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without BoTorch")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA device; for a CPU use benchmarks/evaluate.py")
    names = ["torch", "triton", "matheron"] + ["botorch", "gpytorch"] * (not options.alone)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "quick": options.quick,
        "ceilings": ceilings(options.quick),
    }
    print(result["device"], result["versions"])
    print("ceilings:", {k: f"{v:.3g}" for k, v in result["ceilings"].items()}, flush=True)
    result["rows"] = []
    for case in cases(options.quick):
        row = measure(case, result["ceilings"], options)
        result["rows"].append(row)
        print(_line(row), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(result, indent=1))
    print(_table(result["rows"]))


def cases(quick: bool) -> list[dict[str, Any]]:
    """What is measured; `target` in milliseconds."""
    small = 50 if quick else 1
    chosen = []
    for dtype, target in (("float32", 12.0), ("float64", 60.0)):
        chosen.append(
            dict(task="evaluate", dtype=dtype, n=1024, ell=4096, s=64, points=1_000_000 // small, target=target)
        )
    for dtype, target in (("float32", 5.0), ("float64", None)):
        chosen.append(dict(task="own", dtype=dtype, n=1024, ell=1024, s=1000 // small, points=32, target=target))
    for dtype, target in (("float32", 15.0), ("float64", 15.0)):
        chosen.append(dict(task="draw", dtype=dtype, n=1024, ell=4096, s=64, points=0, target=target))
    chosen.append(dict(task="gradient", dtype="float32", n=1024, ell=4096, s=64, points=100_000 // small, target=None))
    chosen.append(dict(task="backward", dtype="float32", n=1024, ell=4096, s=64, points=100_000 // small, target=None))
    chosen.append(dict(task="evaluate", dtype="float32", n=1024, ell=1024, s=1, points=1, target=None))
    return chosen


def measure(case: dict[str, Any], rates: dict[str, float], options: argparse.Namespace) -> dict[str, Any]:
    from libraries import BoTorch, Matheron, Problem

    problem = Problem(case["n"], case["ell"], case["s"], getattr(torch, case["dtype"]))
    row = dict(case, **floor(case, rates))
    alone = options.alone or case["task"] == "gradient"  # of every path at shared points: BoTorch has no such call
    for library in [Matheron] if alone else [Matheron, BoTorch]:
        torch.cuda.empty_cache()
        try:
            call, check = prepare(library, problem, case)
            row[library.name] = {**timed(call, options.repeats), **check()}
        except torch.OutOfMemoryError:
            row[library.name] = {"out of memory": True}
        call = check = None
    return row


def prepare(
    library: Any, problem: Any, case: dict[str, Any]
) -> tuple[Callable[[], Any], Callable[[], dict[str, float]]]:
    """The call to be timed, and one that checks its values."""
    import matheron

    ours = library.name == "matheron"
    if ours:
        X, y = (value.cuda() for value in problem.data())
        model: Any = matheron.ExactGP(library.model(problem).kernel, X, y, library.model(problem).noise.cuda())
        generator = torch.Generator("cuda").manual_seed(2)

        def draw() -> Any:
            return matheron.draw(model, problem.s, num_features=problem.ell, paths_per_basis=None, generator=generator)
    else:
        model = library.model(problem).cuda()

        def draw() -> Any:
            return library.draw(model, problem)

    if case["task"] == "draw":
        return draw, dict
    paths = draw()
    own = case["task"] == "own"
    x = problem.points(*([case["s"]] if own else []), case["points"]).cuda()

    def check() -> dict[str, float]:
        some = x[:, :1] if own else x[:1000]
        got = library.values(paths, some).double()
        if own and not ours:
            got = got.reshape(case["s"], -1)
        if own:
            want = torch.cat([library.plainly(paths, point)[i][None] for i, point in enumerate(some[:20])])
            got = got[:20]
        else:
            want = library.plainly(paths, some)
        return {"error": float((got - want).square().mean().sqrt() / want.square().mean().sqrt())}

    if case["task"] in ("own", "gradient"):
        return lambda: library.value_and_grad(paths, x), check
    if case["task"] == "backward":
        tied = x.clone().requires_grad_()
        return lambda: torch.autograd.grad(paths(tied).sum(), tied), check
    return lambda: library.values(paths, x), check


def timed(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median, least and largest milliseconds, and the peak of memory in GiB."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    first = _elapsed(call)
    peak = torch.cuda.max_memory_allocated() - before
    if first > 2000:
        repeats = 1
    times = [_elapsed(call) for _ in range(repeats)]
    return {"ms": statistics.median(times), "least": min(times), "most": max(times), "GiB": peak / 2**30}


def _elapsed(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    answer = call()
    end.record()
    torch.cuda.synchronize()
    del answer
    return start.elapsed_time(end)


def floor(case: dict[str, Any], rates: dict[str, float]) -> dict[str, Any]:
    """The floor in milliseconds, and its parts."""
    single, d, s, n, ell = case["dtype"] == "float32", 4, case["s"], case["n"], case["ell"]
    own = case["task"] == "own"
    points = case["points"] * (s if own else 1)
    bytes_each = 4 if single else 8
    if case["task"] == "draw":  # the factor, two triangular solves a path, and the prior at the data
        flops = n**3 / 3 + 2 * n * n * (s + 1) + 2 * n * ell * s
        return {"floor": 1e3 * flops / rates["float64" if not single else "float32"], "parts": {}}
    rows = 1 if own else s
    sums = {"evaluate": 1, "own": 1 + d, "gradient": 1 + d, "backward": 2}[case["task"]]
    passes = 1 if case["task"] in ("evaluate", "own") else 2 if case["task"] == "backward" else 1 + d
    products = 2 * points * (ell + n) * rows * sums
    parts = {"bytes": bytes_each * points * (rows * sums * (1 + (case["task"] == "gradient")) + d) / rates["bytes"]}
    if single:
        parts["products"] = products / rates["float32"] if own else 3 * products / rates["float16"]
        parts["special functions"] = points * (ell + 2 * n) * passes / rates["special"]
    else:
        parts["products"] = products / rates["float64"]
        parts["vector operations"] = 2 * points * (WAVE_64 * ell + RADIAL_64 * n) * passes / rates["vector64"]
    parts = {k: 1e3 * v for k, v in parts.items()}
    return {"floor": max(parts.values()), "parts": parts}


@triton.jit
def chain(out, STEPS: tl.constexpr, DOUBLE: tl.constexpr):
    """Cosines of cosines, or float64 multiply-adds, 1024 a program and step."""
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    v = i.to(tl.float64 if DOUBLE else tl.float32) * 1e-6
    for _ in range(STEPS):
        v = v * v + 0.25 if DOUBLE else libdevice.fast_cosf(v)  # type: ignore[operator]
    tl.store(out + i, v)


def ceilings(quick: bool) -> dict[str, float]:
    """What this device reaches a second: bytes copied, operations of products, special functions, float64 steps."""
    run: Any = chain
    n, size = (2048, 1 << 26) if quick else (8192, 1 << 30)
    a = torch.empty(size, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    found = {"bytes": 2 * size / _rate(lambda: b.copy_(a))}
    for name in ("float16", "float32", "float64"):
        m = torch.randn(n, n, device="cuda").to(getattr(torch, name))
        found[name] = 2 * n**3 / _rate(lambda m=m: m @ m)
    out = torch.empty(1 << 20, device="cuda", dtype=torch.float64)
    found["special"] = 1024 * len(out) / _rate(lambda: run[(1024,)](out.view(torch.float32), 1024, False))
    found["vector64"] = 2 * 1024 * len(out) / _rate(lambda: run[(1024,)](out, 1024, True))
    return found


def _rate(call: Callable[[], Any]) -> float:
    """Seconds, the least of several."""
    call()
    return min(_elapsed(call) for _ in range(5)) / 1e3


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "from source"


def _line(row: dict[str, Any]) -> str:
    size = f"n={row['n']} ell={row['ell']} S={row['s']}" + (f" at {row['points']:,}" if row["points"] else "")
    cells = []
    for name in ("matheron", "BoTorch"):
        cell = row.get(name)
        if cell is None:
            cells.append("-")
        elif "ms" not in cell:
            cells.append("out of memory")
        else:
            error = f", error {cell['error']:.0e}" if "error" in cell else ""
            cells.append(
                f"{cell['ms']:.3f} ms ({cell['least']:.3f} to {cell['most']:.3f}), {cell['GiB']:.2f} GiB{error}"
            )
    case = f"{row['task']}, {row['dtype']}, {size}"
    return f"| {case} | {' | '.join(cells)} | {row['floor']:.3f} ms | {row['target'] or '-'} |"


def _table(rows: list[dict[str, Any]]) -> str:
    head = "| case | matheron | BoTorch | floor | target, ms |\n|---|---|---|---|---|"
    return "\n".join([head, *map(_line, rows)])


if __name__ == "__main__":
    main()
