"""What the arithmetic of a case takes at least, at the rates that the machine reached just before.

On a CPU one kind of operation follows the other, so a floor is the sum of its parts: cosines, exponentials, roots, and
products at a square product's rate. On a GPU the units work side by side, so it is the largest part: products of tensor
cores (three of half precision for one of float32), special functions, vector operations of float64, and bytes of inputs
and outputs. Phases, distances and launches are left out, so nothing gets there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Case
from measure import best

# Float64 has no special-function unit: the multiply-adds of a sine with its cosine; of a root, an exponential and more.
WAVE_64, RADIAL_64 = 12, 40


def floor(case: Case, rates: dict[str, float]) -> dict[str, Any]:
    """Seconds, and their parts."""
    if case.problem.device == "cuda":
        parts = _cuda_parts(case, rates)
        return {"seconds": max(parts.values()), "parts": parts}
    parts = {name: count / rates[name] for name, count in operations(case).items()}
    return {"seconds": sum(parts.values()), "parts": parts}


def operations(case: Case) -> dict[str, float]:
    """How many cosines, exponentials, roots and product operations there are, whoever does it."""
    p, N = case.problem, case.num_points
    if case.task == "draw":  # f(X), K, its Cholesky factor, and two triangular solves for every path
        products = p.n**3 / 3 + 2 * p.n * p.n * p.s + 2 * p.n * p.ell * p.s
        return {"cos": p.n * p.ell, "exp": p.n * p.n, "sqrt": p.n * p.n, "products": products}
    if case.task == "grid":  # the phases and the distances of each axis alone, then a product
        cosines, exponentials = 2 * p.d * N * p.ell, p.d * N * p.n
        return {"cos": cosines, "exp": exponentials, "products": 2 * N * N * (2 * p.ell + p.n) * p.s}
    points = N * p.s if case.task == "own" else N
    sums = _sums(case) * points * (p.ell + p.n)
    return {"cos": points * p.ell, "exp": points * p.n, "sqrt": points * p.n, "products": 2 * sums}


def _sums(case: Case) -> int:
    """Multiply-adds of one feature at one point: a value a path, and for a gradient its d parts."""
    p = case.problem
    return {"evaluate": p.s, "own": 1 + p.d, "each": p.s * (1 + p.d), "gradient": 2 * p.s + p.d}[case.task]


def _cuda_parts(case: Case, rates: dict[str, float]) -> dict[str, float]:
    p, single, size = case.problem, case.problem.dtype == torch.float32, case.problem.dtype.itemsize
    name = "float32" if single else "float64"
    if case.task in ("draw", "grid"):
        return {"products": operations(case)["products"] / rates[name]}
    points = case.num_points * (p.s if case.task == "own" else 1)
    answers = {"evaluate": p.s, "own": 1 + p.d, "each": p.s * (1 + p.d), "gradient": p.s + p.d}[case.task]
    passes = {"evaluate": 1, "own": 1, "each": 1 + p.d, "gradient": 2}[case.task]
    products = operations(case)["products"]
    parts = {"bytes": size * points * (answers + p.d) / rates["bytes"]}
    if single:
        parts["products"] = products / rates["float32"] if case.task == "own" else 3 * products / rates["float16"]
        parts["special functions"] = points * (p.ell + 2 * p.n) * passes / rates["special"]
    else:
        parts["products"] = products / rates["float64"]
        parts["vector operations"] = 2 * points * (WAVE_64 * p.ell + RADIAL_64 * p.n) * passes / rates["vector64"]
    return parts


def ceilings(dtype: torch.dtype, quick: bool) -> dict[str, float]:
    """What torch does a second on this CPU: cosines, exponentials, roots, operations of a square product."""
    block = torch.rand(512, 512 if quick else 4096, dtype=dtype) * 30
    negative, out = -block, torch.empty_like(block)
    n = 256 if quick else 2048
    a, b, c = (torch.rand(n, n, dtype=dtype) for _ in range(3))
    repeats = 3 if quick else 7
    return {
        "cos": block.numel() / best(lambda: torch.cos(block, out=out), repeats),
        "exp": block.numel() / best(lambda: torch.exp(negative, out=out), repeats),
        "sqrt": block.numel() / best(lambda: torch.sqrt(block, out=out), repeats),
        "products": 2 * n**3 / best(lambda: torch.mm(a, b, out=c), repeats),
    }


def cuda_ceilings(quick: bool) -> dict[str, float]:
    """What this GPU does a second: bytes copied, operations of products, special functions, float64 steps."""
    from chain import chain

    n, size = (2048, 1 << 26) if quick else (8192, 1 << 30)
    a = torch.empty(size, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    found = {"bytes": 2 * size / _waited(lambda: b.copy_(a))}
    for name in ("float16", "float32", "float64"):
        m = torch.randn(n, n, device="cuda").to(getattr(torch, name))
        found[name] = 2 * n**3 / _waited(lambda m=m: m @ m)
    out = torch.empty(1 << 20, device="cuda", dtype=torch.float64)
    run: Any = chain
    found["special"] = 1024 * len(out) / _waited(lambda: run[(1024,)](out.view(torch.float32), 1024, False))
    found["vector64"] = 2 * 1024 * len(out) / _waited(lambda: run[(1024,)](out, 1024, True))
    return found


def _waited(call: Callable[[], Any]) -> float:
    """Seconds between CUDA events, the least of several."""

    def elapsed() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    elapsed()
    return min(elapsed() for _ in range(5))
