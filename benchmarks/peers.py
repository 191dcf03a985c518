"""matheron and its peers on the same problem: draw, evaluate, gradient and memory, against N, n, ell and S.

    python benchmarks/peers.py                      on a CPU, some 25 minutes; benchmarks/results/cpu.json
    python benchmarks/peers.py --device cuda --out benchmarks/results/h200.json
    python benchmarks/peers.py --quick              seconds, small sizes: does it run?
    python benchmarks/report.py                     then makes docs/performance.md of the results

Results are kept case by case in a file *.part.json beside --out, which becomes --out when all is done. A run that was
stopped goes on from there if machine, versions and sources are the same; --fresh starts over. What is measured, and
how: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from calls import prepare
from cases import QUICK_REPEATS, REPEATS, Case, cases
from floors import ceilings, cuda_ceilings, floor
from limits import smaller
from measure import WARM, Meter, Worker
from others import LIBRARIES, takes
from rich.console import Console

import matheron

HERE = Path(__file__).parent
PACKAGES = ("torch", "botorch", "gpytorch", "scikit-learn", "gpjax", "jax", "gstools", "numpy", "triton")


def _same(row: dict[str, Any], case: Case) -> bool:
    return all(row[key] == value for key, value in case.sizes().items())


def measured(case: Case, names: list[str], rows: list[dict[str, Any]], repeats: int, threads: int) -> None:
    """Append a row for each library. On a CPU each has a process of its own, and they take turns."""
    todo: dict[str, Any] = {}
    found = {name: {"library": name, **case.sizes()} for name in names}
    cuda = case.problem.device == "cuda"
    for name in names:
        run, note = smaller(case, name, rows)
        found[name] |= note
        if "not_run" in note or "seconds" in note:  # too much, or known already
            continue
        if not cuda:
            todo[name] = Worker(prepare, run, name, threads=threads, warm=WARM if repeats > QUICK_REPEATS else 0)
        else:  # the device's allocator counts exactly: no process of its own is needed
            torch.cuda.empty_cache()
            attempt(found[name], lambda run=run, name=name: alone(Meter(prepare(run, name), True), repeats))
    in_turns(todo, found, repeats)
    for row in found.values():
        scale = row.get("scaled_by", 1)
        for key in {"seconds", "least", "most", "bytes"} & row.keys():
            row[key] = row[key] * scale if key != "bytes" else int(row[key] * scale)
        rows.append(row)


def alone(meter: Meter, repeats: int) -> dict[str, Any]:
    row: dict[str, Any] = {"bytes": meter.memory()}
    times: list[float] = []
    while not enough(times, repeats):
        times.append(meter.seconds())
    row |= summary(times) | {"error": meter.error()}
    meter.close()
    return row


def in_turns(workers: dict[str, Worker], found: dict[str, dict[str, Any]], repeats: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in workers}
    for name, worker in workers.items():  # all have been preparing since they were made
        attempt(found[name], lambda worker=worker: worker.ready() or {})
    for name in _left(found, times):
        attempt(found[name], lambda name=name: {"bytes": workers[name].memory()})
    while left := [name for name in _left(found, times) if not enough(times[name], repeats)]:
        for name in left:
            attempt(found[name], lambda name=name: times[name].append(workers[name].seconds()) or {})
    for name in _left(found, times):
        found[name] |= summary(times[name]) | {"error": workers[name].error()}
    for worker in workers.values():
        worker.close()


def _left(found: dict[str, dict[str, Any]], times: dict[str, list[float]]) -> list[str]:
    return [name for name in times if "failed" not in found[name]]


def attempt(row: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Add what is measured, or why there is nothing: no memory, or a covariance that is not positive definite."""
    try:
        row |= measure()
    except (EOFError, ConnectionResetError, MemoryError, torch.OutOfMemoryError):
        row["failed"] = "out of memory"
    except Exception as problem:
        said = f"{type(problem).__name__}: {problem}"
        if "allocate memory" in said:
            row["failed"] = "out of memory"
        elif "NotPSDError" in said or "LinAlgError" in said:
            row["failed"] = "not positive definite"
        else:
            raise


def enough(times: list[float], repeats: int) -> bool:
    """Several times, fewer of long calls."""
    return len(times) >= repeats or (len(times) >= 3 and sum(times) > 6) or sum(times) > 15


def summary(times: list[float]) -> dict[str, Any]:
    return {"seconds": statistics.median(times), "least": min(times), "most": max(times), "repeats": len(times)}


def header(device: str, quick: bool, threads: int) -> dict[str, Any]:
    """The machine and the versions, and a digest of the library's sources."""
    machine: dict[str, Any] = {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()}
    machine |= {"cpu": _cpu(), "python": platform.python_version(), "threads": threads}
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    sources = hashlib.sha256()
    for file in sorted(Path(matheron.__file__).parent.rglob("*.py")):
        sources.update(file.read_bytes())
    versions = {"matheron": matheron.__version__}
    for name in PACKAGES:
        if name == "jax" and "gpjax" not in versions:
            continue
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"quick": quick, "machine": machine, "versions": versions, "sources": sources.hexdigest()[:12]}


def _cpu() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: a smoke test; kept only with --out")
    parser.add_argument("--fresh", action="store_true", help="start over instead of going on with a stopped run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this, such as 'draw' or 'S=512'")
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="start no case after this many seconds")
    parser.add_argument("--out", type=Path, help="benchmarks/results/cpu.json, or gpu.json")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no CUDA device")
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before the workers' server starts
        os.environ[variable] = str(args.threads)
    torch.set_num_threads(args.threads)
    console, start = Console(width=max(110, Console().width)), time.perf_counter()
    out = args.out or HERE / "results" / ("cpu.json" if args.device == "cpu" else "gpu.json")
    part = None if args.quick and args.out is None else out.with_suffix(".part.json")
    result = begin(header(args.device, args.quick, args.threads), part, args.fresh, console)
    chosen = [case for case in cases(args.device, args.quick) if args.only in str(case)]
    for i, case in enumerate(chosen, 1):
        names = [name for name in LIBRARIES if takes(LIBRARIES[name], case.task, case.problem)]
        done = {row["library"] for row in result["rows"] if _same(row, case)}
        names = [name for name in names if name not in done]
        if not names:
            continue
        if time.perf_counter() - start > args.stop_after:
            raise SystemExit(f"stopped after {i - 1} of {len(chosen)} cases, which are in {part}")
        with console.status(f"{i} of {len(chosen)}: {case}"):
            rates = ceilings_of(case, result) if case.headline else None
            measured(case, names, result["rows"], QUICK_REPEATS if args.quick else REPEATS, args.threads)
        new = result["rows"][-len(names) :]
        if rates is not None:
            new[0] |= {"floor": floor(case, rates), "goal": case.goal, "rates": rates}
        cells = ", ".join(f"{row['library']} {_cell(row)}" for row in new)
        console.print(f"{i} of {len(chosen)}: {case}: {cells}", highlight=False)
        if part is not None:
            _write(part, result)
    console.print(f"{len(chosen)} cases in {time.perf_counter() - start:.0f} s")
    if part is not None and not args.only:
        part.replace(out)
        console.print(f"written to {out}")


def begin(head: dict[str, Any], part: Path | None, fresh: bool, console: Console) -> dict[str, Any]:
    """A stopped run's results, if they are of the same machine, versions and sources, or none."""
    if part is not None and part.exists() and not fresh:
        kept = json.loads(part.read_text())
        if all(kept[key] == value for key, value in head.items()):
            console.print(f"going on with {len(kept['rows'])} rows of {part.name}")
            return kept
        console.print(f"{part.name} is of another machine or version: starting over")
    return {**head, "rows": []}


def ceilings_of(case: Case, result: dict[str, Any]) -> dict[str, float]:
    """The machine's rates just before the case; a GPU's, which are steady, once."""
    if case.problem.device == "cpu":
        return ceilings(case.problem.dtype, result["quick"])
    if "rates" not in result:
        result["rates"] = cuda_ceilings(result["quick"])
    return result["rates"]


def _cell(row: dict[str, Any]) -> str:
    if "seconds" not in row:
        return row.get("failed", "not run")
    return f"{1e3 * row['seconds']:.3g} ms {row['bytes'] / 1e6:.0f} MB"


def _write(path: Path, result: dict[str, Any]) -> None:
    """All at once, so that a run that is stopped here leaves the former file."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    rows = ",\n".join(f"  {json.dumps(row)}" for row in result["rows"])
    head = json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1)
    new.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')
    new.replace(path)


if __name__ == "__main__":
    main()
