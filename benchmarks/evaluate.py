"""matheron against BoTorch's draw_matheron_paths: the same Gaussian process, the same sizes, one process, taking turns.

    python benchmarks/evaluate.py                      a few minutes; BoTorch's many points are scaled up from fewer
    python benchmarks/evaluate.py --full               BoTorch at all points too: half a minute a call, 8 GB
    python benchmarks/evaluate.py --quick              seconds, small sizes: does it run?
    python benchmarks/evaluate.py --out results.json   the numbers, to keep

See benchmarks/README.md for what is measured, and how.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from libraries import LIBRARIES, Problem
from measure import ceilings, extra_bytes, median_seconds
from report import footnotes, table
from rich.console import Console

NUM_CHECKED = 256  # points at which values are checked against the formula


@dataclass(frozen=True)
class Case:
    """Something to measure; `task`: "evaluate", "draw" or "gradient", at `num_points` (each path's, in a gradient)."""

    name: str
    task: str
    problem: Problem
    num_points: int = 0
    fewer_points: int = 0  # where BoTorch is measured at fewer points and scaled up
    memory: bool = False
    target_seconds: float | None = None
    target_bytes: float | None = None

    def operations(self) -> dict[str, float]:
        """How many cosines, exponentials, roots and product operations there are, whoever does it."""
        p, N = self.problem, self.num_points
        if self.task == "draw":  # f(X), K, its Cholesky factor, and two triangular solves for every path
            products = p.n**3 / 3 + 2 * p.n * p.n * p.s + 2 * p.n * p.ell * p.s
            return {"trig": p.n * p.ell, "exp": p.n * p.n, "sqrt": p.n * p.n, "flops": products}
        if self.task == "gradient":  # each path has its own points; a pair's sine and cosine serve the gradient too
            N = N * p.s
            products = 2 * N * (p.ell + p.n) * (1 + p.d)
        else:
            products = 2 * N * (p.ell + p.n) * p.s
        return {"trig": N * p.ell, "exp": N * p.n, "sqrt": N * p.n, "flops": products}


def cases(quick: bool, full: bool) -> list[Case]:
    """The benchmark's sizes; `quick` has the same cases at small ones, and then no targets."""
    chosen = []
    for dtype, seconds in ((torch.float64, 2.2), (torch.float32, 1.0)):
        problem = Problem(n=1024, ell=4096, s=64, dtype=dtype)
        fewer = 0 if full else 10_000
        chosen.append(Case("evaluate", "evaluate", problem, 100_000, fewer, True, seconds, 300e6))
    chosen.append(Case("draw", "draw", Problem(4096, 1024, 64, torch.float64), 0, 0, True, 3.0, 1e9))
    for dtype in (torch.float64, torch.float32):
        chosen.append(Case("value and gradient, own points", "gradient", Problem(1024, 1024, 64, dtype), 32))
    chosen.append(Case("one path at one point", "evaluate", Problem(1024, 1024, 1, torch.float64), 1))
    return [_small(case) for case in chosen] if quick else chosen


def _small(case: Case) -> Case:
    p = case.problem
    problem = replace(p, n=p.n // 8, ell=p.ell // 8, s=min(p.s, 8))
    return replace(
        case,
        problem=problem,
        num_points=min(case.num_points, 2000),
        fewer_points=min(case.fewer_points, 500),
        target_seconds=None,
        target_bytes=None,
    )


def prepare(case: Case, name: str, num_points: int) -> Callable[[], Any]:
    """Everything up to the call that is measured: a model, and for all but drawing the paths and points."""
    library, problem = LIBRARIES[name], case.problem
    model = library.model(problem)
    if case.task == "draw":
        library.draw(model, replace(problem, s=1, ell=2))  # threads and workspaces are there before we look
        return partial(library.draw, model, problem)
    paths = library.draw(model, problem)
    x = problem.points(problem.s, num_points) if case.task == "gradient" else problem.points(num_points)
    call = library.value_and_grad if case.task == "gradient" else library.values
    call(paths, x[..., :1, :])
    return partial(call, paths, x)


def error(case: Case, name: str) -> float:
    """RMS difference of values from the formula in float64, written out without blocks, over the RMS value."""
    library, problem = LIBRARIES[name], case.problem
    paths = library.draw(library.model(problem), problem)
    x = problem.points(min(NUM_CHECKED, case.num_points))
    wanted = library.plainly(paths, x)
    return float((library.values(paths, x).double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())


def measured(case: Case, ceiling: dict[str, float], repeats: int, threads: int) -> dict[str, Any]:
    """All numbers of one case."""
    points = {name: case.num_points for name in LIBRARIES}
    points["BoTorch"] = case.fewer_points or case.num_points
    seconds = median_seconds([prepare(case, name, points[name]) for name in LIBRARIES], repeats)
    floor = {name: count / ceiling[name] for name, count in case.operations().items()}
    row: dict[str, Any] = {
        "case": case.name,
        "problem": asdict(case.problem) | {"dtype": str(case.problem.dtype).removeprefix("torch.")},
        "num_points": case.num_points,
        "ceilings": ceiling,
        "floor_parts": floor,
        "floor_seconds": sum(floor.values()),
        "target_seconds": case.target_seconds,
        "target_bytes": case.target_bytes,
    }
    for name, t in zip(LIBRARIES, seconds, strict=True):
        scale = case.num_points / points[name] if case.num_points else 1
        row[name] = {"seconds": t * scale, "scaled_by": scale}
        if case.memory:
            used = extra_bytes(prepare, case, name, points[name], threads=threads)
            row[name]["extra_bytes"] = None if used is None else int(used * scale)
        if case.task == "evaluate":
            row[name]["error"] = error(case, name)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: a smoke test")
    parser.add_argument("--full", action="store_true", help="BoTorch at all points, instead of scaled up from a tenth")
    parser.add_argument("--repeats", type=int, help="measurements of each time, whose median counts: 5, or 2 if quick")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the numbers here, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console, errors = Console(width=max(110, Console().width)), Console(stderr=True)
    repeats = args.repeats or (2 if args.quick else 5)
    rows = []
    for case in cases(args.quick, args.full):
        with errors.status(f"{case.name}, {case.problem.dtype}"):
            ceiling = ceilings(case.problem.dtype, args.quick)  # just before each case: a busy machine slows both
            rows.append(measured(case, ceiling, repeats, args.threads))
    libraries = {name: version(name) for name in ("matheron", "botorch", "gpytorch", "torch")}
    machine = {"platform": platform.platform(), "python": sys.version.split()[0], "threads": args.threads}
    console.print(table(rows, args.quick))
    for line in footnotes(rows, libraries, args.threads, repeats):
        console.print(line)
    if args.out:
        result = {"quick": args.quick, "repeats": repeats, "versions": libraries, "machine": machine, "rows": rows}
        args.out.write_text(json.dumps(result, indent=2) + "\n")
        console.print(f"written to {args.out}")


if __name__ == "__main__":
    main()
