"""From many data to functions on a Fourier lattice, against the targets. `lattice_scaling.py` has others beside it.

    python benchmarks/lattice.py [--device cuda] [--quick] [--only NAME] [--json FILE]
    python benchmarks/lattice.py --out-of-core 100000000 [--folder DIR]

Every case is timed in this process, once after a small warm-up; memory is the process's largest so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import matheron
from matheron import kernels as K
from matheron.lattice import FourierLattice

UNIT = (0.0, 1.0)


@dataclass(frozen=True)
class Case:
    """n data in d dimensions of a kernel and a noise, s paths; and the seconds that a draw may take on two cores."""

    name: str
    kernel: Any
    d: int
    n: int
    noise: float
    s: int
    target: float


CASES = [
    Case("d=1", K.Matern(2.5, 0.1), 1, 1_000_000, 1e-2, 64, 15.0),
    Case("d=2", K.Matern(2.5, 0.1), 2, 1_000_000, 1e-2, 64, 40.0),
    Case("d=3", K.Matern(2.5, 0.2), 3, 100_000, 1e-2, 8, 90.0),
]


def data(case: Case, n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, case.d, generator=generator, dtype=torch.float64)
    y = torch.sin(9 * X).sum(1) + case.noise**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X.to(device), y.to(device)


def timed(device: str, call: Callable[[], Any]) -> tuple[Any, float]:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    out = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return out, time.perf_counter() - start


def memory(device: str) -> float:
    """GB: of the GPU, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def drawn(case: Case, n: int, device: str) -> tuple[Any, dict[str, Any]]:
    X, y = data(case, n, device)
    gp = matheron.ExactGP(case.kernel, X, y, noise=case.noise)
    generator = torch.Generator(device).manual_seed(1)
    paths, seconds = timed(
        device, lambda: matheron.draw(gp, case.s, domain=UNIT, solver="lattice", generator=generator)
    )
    row = dict(
        what=f"draw {case.s} paths, {case.name}",
        n=n,
        modes=paths.prior.num_features,
        iterations=paths.solver_stats.iterations,
        seconds=seconds,
        target=case.target,
        gigabytes=memory(device),
    )
    return paths, row


def evaluated(paths: Any, case: Case, device: str, quick: bool) -> list[dict[str, Any]]:
    """Values on a grid of a million points, and at a million scattered ones, beside 4096 random features."""
    side = 300 if quick else 1000
    axes = [torch.linspace(0, 1, side, dtype=torch.float64, device=device)] * 2
    _, on_grid = timed(device, lambda: paths.on_grid(axes))
    rows = [dict(what=f"{case.s} paths on {side} x {side}", n=side**2, seconds=on_grid, target=5.0)]
    x = torch.rand(side**2, 2, dtype=torch.float64, device=device)
    timed(device, lambda: paths(x[:1000]))
    _, ours = timed(device, lambda: paths(x))
    random = matheron.draw_prior(
        case.kernel, case.s, input_dim=2, features="sobol", num_features=4096, paths_per_basis=None, device=device
    )
    _, theirs = timed(device, lambda: random(x))
    rows.append(dict(what="scattered points, lattice", n=side**2, seconds=ours, target=theirs / 3))
    rows.append(dict(what="scattered points, 4096 random features", n=side**2, seconds=theirs))
    some = x[:100]
    _, own = timed(device, lambda: paths.value_and_grad(some.expand(case.s, -1, -1)))
    _, again = timed(device, lambda: paths.value_and_grad(some.expand(case.s, -1, -1)))
    rows.append(dict(what="own points, 100 each, value and gradient: first call (tables)", n=100, seconds=own))
    rows.append(dict(what="own points, 100 each, value and gradient: next call", n=100, seconds=again))
    return rows


def converged(case: Case, n: int, device: str) -> dict[str, Any]:
    """The mean with the tolerance cut by ten, in differences of the paths' own standard deviation."""
    X, y = data(case, n, device)
    gp, x = matheron.ExactGP(case.kernel, X, y, noise=case.noise), torch.rand(2000, case.d, dtype=torch.float64)
    means, spread = [], None
    for settings in (dict(tolerance=1e-3), dict(tolerance=1e-4)):
        solver = FourierLattice(tolerance=0.01 if not means else 0.001)
        paths = matheron.draw(gp, 16, domain=UNIT, solver=solver, seed=0, **settings)  # type: ignore[arg-type]
        means.append(paths.mean(x))
        spread = paths(x).std(0) if spread is None else spread
    error = (means[0] - means[1]) / spread
    return dict(what=f"mean, tolerance cut by ten, {case.name}: rms and largest change in sd", n=n,
                seconds=float(error.square().mean().sqrt()), largest=float(error.abs().max()))  # fmt: skip


def crossing(device: str, sizes: list[int]) -> list[dict[str, Any]]:
    """Dense and lattice solves as n grows, which of the two "auto" takes, and how much longer than the faster."""
    rows = []
    for case in CASES:
        kernel = K.Matern(2.5, 0.5) if case.d == 3 else case.kernel  # modes by the ten thousand
        for n in sizes:
            X, y = data(case, n, device)
            gp, taken = matheron.ExactGP(kernel, X, y, noise=case.noise), {}
            for solver in ("cholesky", "lattice", "auto"):
                call = lambda s=solver, g=gp: matheron.draw(g, 16, domain=UNIT, solver=s, seed=0)  # noqa: E731
                paths, taken[solver] = timed(device, call)
                kind = paths.solver_stats.solver.split("(")[0]  # type: ignore[union-attr]
                rows.append(dict(what=f"{solver} ({kind}), 16 paths, {case.name}", n=n, seconds=taken[solver]))
            rows[-1]["target"] = 1.5 * min(taken["cholesky"], taken["lattice"])
    return rows


def out_of_core(n: int, folder: str | None) -> dict[str, Any]:
    """8 functions given n data in two dimensions that lie in files: 24 n bytes, which are deleted at the end."""
    case, step, rng = CASES[1], 1 << 22, np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=folder) as where:
        X = np.lib.format.open_memmap(f"{where}/X.npy", "w+", np.float64, (n, 2))
        y = np.lib.format.open_memmap(f"{where}/y.npy", "w+", np.float64, (n,))
        for i in range(0, n, step):
            X[i : i + step] = rng.random((min(step, n - i), 2))
            noise = case.noise**0.5 * rng.standard_normal(min(step, n - i))
            y[i : i + step] = np.sin(9 * X[i : i + step]).sum(1) + noise
        del X, y
        files = [np.load(f"{where}/{name}.npy", mmap_mode="r") for name in ("X", "y")]
        gp = matheron.StreamedGP(case.kernel, tuple(files), noise=case.noise)
        paths, seconds = timed("cpu", lambda: matheron.draw(gp, 8, domain=UNIT, seed=0, progress=True))
    return dict(
        what="draw 8 paths, d=2, data in files",
        n=n,
        modes=paths.prior.num_features,
        iterations=paths.solver_stats.iterations,
        seconds=seconds,
        target=900.0 * n / 1e8,
        data_per_second=n / seconds,
        gigabytes=memory("cpu"),
    )


def show(row: dict[str, Any]) -> None:
    target = row.get("target")
    verdict = "" if target is None else f"   target {target:.3g}: {'met' if row['seconds'] <= target else 'MISSED'}"
    rest = {k: v for k, v in row.items() if k not in ("what", "n", "seconds", "target")}
    print(f"{row['what']:<72} n={row['n']:<9} {row['seconds']:9.3g} s{verdict}  {rest or ''}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the data")
    parser.add_argument("--only", help="the name of one case")
    parser.add_argument("--json")
    parser.add_argument("--out-of-core", type=int, metavar="N", help="this alone: N data in two dimensions, from files")
    parser.add_argument("--folder", help="where those files are; a temporary folder")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.out_of_core:
        rows.append(out_of_core(args.out_of_core, args.folder))
        show(rows[-1])
        if args.json:
            with open(args.json, "w") as file:
                json.dump(rows, file, indent=1)
        return
    factor = 100 if args.quick else 1
    for case in CASES:
        if args.only not in (None, case.name):
            continue
        drawn(case, 4000, args.device)  # warm-up
        paths, row = drawn(case, max(5000, case.n // factor), args.device)
        rows.append(row)
        show(row)
        if case.d == 2:
            rows += evaluated(paths, case, args.device, args.quick)
            for each in rows[-5:]:
                show(each)
    if args.only is None:
        extra = crossing(args.device, [300, 1000, 3000] if args.quick else [300, 1000, 3000, 6000, 12_000, 20_000])
        if not args.quick and args.device == "cpu":
            extra.append(converged(CASES[1], CASES[1].n, args.device))
        rows += extra
        for each in extra:
            show(each)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
