"""Minimising drawn functions: matheron against BoTorch on the same functions, in one process, taking turns.

    python benchmarks/thompson.py                      a minute or two
    python benchmarks/thompson.py --quick              seconds, small sizes: does it run?
    python benchmarks/thompson.py --device cuda        1000 functions at once in 8 dimensions as well, on a GPU
    python benchmarks/thompson.py --out results.json   the numbers, to keep

(a) value and gradient of 64 functions at 32 points of their own; BoTorch's by autograd.
(b) the optimum of 8 functions from a mesh of 1024 points and 20 starts each, against `optimize_posterior_samples`. Both
    libraries are given the same functions: BoTorch's paths get our frequencies and weights. It maximises, and so do we
    here. A function counts as at least as good if our optimum is not below theirs by more than rounding.
(c) the paper's budget, a mesh of 250,000 points and 32 starts, for 64 functions; matheron alone.
(d) with --device cuda: the same budget for 1000 functions in 8 dimensions.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from botorch.utils.sampling import optimize_posterior_samples
from libraries import NOISE, BoTorch, Matheron, Problem
from measure import median_seconds
from rich.console import Console
from rich.table import Table
from torch import Tensor

import matheron
from matheron import kernels

TARGETS = {"gradient": "25 ms", "optimum": "5x, 95%"}
# Relative to the spread of a function's values, which is about one.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Sizes:
    """What is varied between a benchmark and a smoke test."""

    n: int = 1024
    ell: int = 1024
    num_points: int = 32
    batches: int = 8  # of 8 functions, in (b)
    mesh_size: int = 250_000
    num_paths: int = 1000  # in (d)


QUICK = Sizes(n=64, ell=64, num_points=4, batches=2, mesh_size=2000, num_paths=16)


def twins(problem: Problem, seed: int) -> tuple[Any, Any]:
    """The same functions in both libraries: ours drawn, BoTorch's with its numbers replaced by ours."""
    generator = torch.Generator().manual_seed(seed)
    theirs = BoTorch.draw(BoTorch.model(problem), problem)
    prior, update = theirs["prior_paths"], theirs["update_paths"]
    lengthscale = float(prior.feature_map.kernel.lengthscale)  # GPyTorch rounds what it is given to float32
    model = matheron.ExactGP(kernels.Matern(2.5, lengthscale), *problem.data(), NOISE)
    settings: dict[str, Any] = {"num_features": problem.ell, "features": "sincos", "paths_per_basis": None}
    ours = matheron.draw(model, problem.s, generator=generator, **settings)
    features = ours.prior.features  # type: ignore[union-attr]
    theta = features.bases[0].frequencies[0]  # [f, d]
    cos, sin = ours.prior.terms()[0].weights[:, 0].chunk(2, dim=-1)  # type: ignore[union-attr]  # [s, f] each
    q = theta @ features.origin  # our phases are theta . (x - origin)
    cos, sin = cos * q.cos() - sin * q.sin(), cos * q.sin() + sin * q.cos()
    prior.feature_map.weight.copy_(theta * lengthscale)
    prior.weight.copy_(torch.cat([sin, cos], dim=-1) * len(theta) ** 0.5)
    update.weight.copy_(ours.update.weights)  # type: ignore[union-attr]
    return ours, theirs


def difference(problem: Problem) -> float:
    """The largest difference of the twins' values at some points: rounding, or they are not twins."""
    ours, theirs = twins(problem, 0)
    x = problem.points(16)
    return float((ours(x) - BoTorch.values(theirs, x)).abs().max())


def gradients(sizes: Sizes, repeats: int) -> dict[str, Any]:
    """(a)"""
    problem = Problem(sizes.n, sizes.ell, 64, torch.float64)
    ours, theirs = twins(problem, 0)
    x = problem.points(problem.s, sizes.num_points)
    calls = [partial(Matheron.value_and_grad, ours, x), partial(BoTorch.value_and_grad, theirs, x)]
    (_, g), (_, h) = (call() for call in calls)
    seconds = median_seconds(calls, repeats)
    return {
        "case": "gradient",
        "problem": _shown(problem) | {"num_points": sizes.num_points},
        "matheron": {"seconds": seconds[0]},
        "BoTorch": {"seconds": seconds[1]},
        "largest_difference": float((g - h).abs().max()),
    }


def optima(sizes: Sizes, mesh_size: int = 1024, num_starts: int = 20) -> dict[str, Any]:
    """(b): batches of 8 functions; BoTorch's settings are its own defaults.

    The first batch, which pays for what is done once, counts for values alone.
    """
    problem = Problem(sizes.n, sizes.ell, 8, torch.float64)
    box = torch.tensor([[0.0] * problem.d, [1.0] * problem.d], dtype=torch.float64)
    times: dict[str, list[float]] = {"matheron": [], "BoTorch": []}
    gaps: list[Tensor] = []
    for seed in range(sizes.batches + 1):
        ours, theirs = twins(problem, seed)
        torch.manual_seed(seed)
        began = time.perf_counter()
        found = matheron.maximize(
            ours, box, mesh_size=mesh_size, num_starts=num_starts, generator=torch.Generator().manual_seed(seed)
        )
        between = time.perf_counter()
        x, _ = optimize_posterior_samples(theirs, box, raw_samples=1024, num_restarts=20)
        times["matheron"].append(between - began)
        times["BoTorch"].append(time.perf_counter() - between)
        gaps.append(found.value - ours(x[:, None]).flatten())  # both optima by the same arithmetic
    gap = torch.cat(gaps)
    return {
        "case": "optimum" if mesh_size == 1024 else "optimum, both by default",
        "problem": _shown(problem) | {"mesh_size": mesh_size, "num_starts": num_starts},
        **{name: {"seconds": statistics.median(t[1:])} for name, t in times.items()},
        "num_functions": len(gap),
        "share_at_least_as_good": float((gap >= -ROUNDING).double().mean()),
        "share_better": float((gap > ROUNDING).double().mean()),
        "worst_gap": float(gap.min()),
    }


def budget(case: str, problem: Problem, sizes: Sizes, device: str, repeats: int) -> dict[str, Any]:
    """(c) and (d)"""
    paths = Matheron.draw(Matheron.model(problem), problem).to(device=device)
    box = torch.tensor([[0.0] * problem.d, [1.0] * problem.d], dtype=problem.dtype, device=device)
    found: list[Any] = []

    def call() -> None:
        generator = torch.Generator().manual_seed(0)
        minima = matheron.minimize(paths, box, mesh_size=sizes.mesh_size, num_starts=32, generator=generator)
        found.append((minima, minima.value.cpu()))  # a GPU has finished when its answer is here

    seconds = median_seconds([call], repeats)
    minima, value = found[-1]
    return {
        "case": case,
        "problem": _shown(problem) | {"mesh_size": sizes.mesh_size, "num_starts": 32, "device": device},
        "matheron": {"seconds": seconds[0]},
        "num_evaluations": minima.num_evaluations,
        "endings": {ending: minima.ending.count(ending) for ending in sorted(set(minima.ending))},
        "mean_value": float(value.mean()),
    }


def _shown(problem: Problem) -> dict[str, Any]:
    return asdict(problem) | {"dtype": str(problem.dtype).removeprefix("torch.")}


def table(rows: list[dict[str, Any]], quick: bool) -> Table:
    out = Table(title="small sizes: a smoke test, not a result" if quick else None, show_lines=True)
    for column in ("", "matheron", "BoTorch", "BoTorch /\nmatheron", "", "target"):
        out.add_column(column, justify="left" if column == "" else "right")
    for row in rows:
        ours, theirs = row["matheron"]["seconds"], row.get("BoTorch", {}).get("seconds")
        p = {key: value for key, value in row["problem"].items() if key != "dtype"}
        name = ", ".join(f"{key}={value}" for key, value in p.items())
        notes = []
        if "share_at_least_as_good" in row:
            notes.append(f"as good or better {row['share_at_least_as_good']:.0%} of {row['num_functions']}")
            notes.append(f"better {row['share_better']:.0%}")
        if "endings" in row:
            notes += [f"{ending}: {count}" for ending, count in row["endings"].items()]
        out.add_row(
            f"[bold]{row['case']}[/bold], {row['problem']['dtype']}\n{name}",
            _seconds(ours),
            "" if theirs is None else _seconds(theirs),
            "" if theirs is None else f"[bold]{theirs / ours:.1f}x[/bold]",
            "\n".join(notes),
            "" if quick else TARGETS.get(row["case"], ""),
        )
    return out


def _seconds(t: float) -> str:
    return f"{t:.2f} s" if t >= 1 else f"{1e3 * t:.3g} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: a smoke test")
    parser.add_argument(
        "--defaults", action="store_true", help="(b) alone, with minimize's own mesh and starts; a minute"
    )
    parser.add_argument("--device", default="cpu", help='"cuda" adds (d)')
    parser.add_argument("--repeats", type=int, help="measurements of each time, whose median counts: 5, or 1 if quick")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit(f"--device {args.device}: torch sees no CUDA device")
    torch.set_num_threads(args.threads)
    console, errors = Console(width=max(110, Console().width)), Console(stderr=True)
    sizes, repeats = QUICK if args.quick else Sizes(), args.repeats or (1 if args.quick else 5)
    problem = Problem(sizes.n, sizes.ell, 64, torch.float64)
    apart = difference(problem)
    if apart > 1e-8:
        raise SystemExit(f"the libraries' functions differ by {apart:.2g}: nothing to compare")
    steps = [
        partial(gradients, sizes, repeats),
        partial(optima, sizes),
        partial(budget, "the paper's budget", replace(problem, s=8) if args.quick else problem, sizes, "cpu", 1),
    ]
    if args.defaults:
        steps = [partial(optima, replace(sizes, n=256, ell=512, batches=12), mesh_size=16_384, num_starts=32)]
    elif args.device != "cpu":
        for dtype in (torch.float64, torch.float32):
            many = replace(problem, s=sizes.num_paths, d=8, dtype=dtype)
            steps.append(partial(budget, "many functions", many, sizes, args.device, min(repeats, 2)))
    rows = []
    for step in steps:
        with errors.status(f"{step.func.__name__}"):
            rows.append(step())
    libraries = {"matheron": matheron.__version__} | {name: version(name) for name in ("botorch", "gpytorch", "torch")}
    machine = {"platform": platform.platform(), "python": sys.version.split()[0], "threads": args.threads}
    if args.device != "cpu":
        machine["gpu"] = torch.cuda.get_device_name()
    console.print(table(rows, args.quick))
    console.print(", ".join(f"{name} {v}" for name, v in libraries.items()) + f"; {args.threads} threads")
    if args.out:
        result = {"quick": args.quick, "repeats": repeats, "versions": libraries, "machine": machine, "rows": rows}
        args.out.write_text(json.dumps(result, indent=2) + "\n")
        console.print(f"written to {args.out}")


if __name__ == "__main__":
    main()
