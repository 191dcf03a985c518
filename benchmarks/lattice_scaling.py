"""Cost of functions on a Fourier lattice against n, N and modes, beside others where they can do it at all.

    python benchmarks/lattice_scaling.py [--only PANEL] [--most SECONDS] [--out FILE]
    python benchmarks/lattice_scaling.py --device cuda

Times are processor seconds of one thread, which other work on the machine changes little. A line ends where a call took
more than `--most` of them. `python benchmarks/report.py` makes the figure and its section of the performance page.

With `--device` nothing is written: four rows are printed, wall seconds of the second call of each kind, whose first is
printed beside it. 64 paths given 10^6 data in one and in two dimensions and 10^5 in three, and 10^6 scattered points.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import matheron
from matheron import kernels as K

UNIT, NOISE, PATHS, POINTS = (0.0, 1.0), 1e-2, 16, 1000
OUT = Path(__file__).parent / "results" / "lattice.json"
PANELS = {
    "n": f"from n data to {PATHS} functions at {POINTS} points",
    "N": f"{PATHS} functions at N points",
    "modes": f"{PATHS} functions at 10,000 points",
}
COLOURS = ("#c1121f", "#f4845f", "#7f1d1d", "#0072b2", "#009e73", "#e69f00", "#777777")


def data(n: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return X, torch.sin(9 * X).sum(1) + NOISE**0.5 * torch.randn(n, generator=generator, dtype=torch.float64)


def kernel(d: int) -> K.Kernel:
    return K.Matern(2.5, {1: 0.1, 2: 0.1, 3: 0.5}[d])


def ours(d: int, solver: str) -> Callable[[int], Any]:
    def call(n: int) -> Any:
        X, y = data(n, d)
        gp = matheron.ExactGP(kernel(d), X, y, noise=NOISE)
        return matheron.draw(gp, PATHS, domain=UNIT, solver=solver, seed=0)(data(POINTS, d)[0])

    return call


def sklearn(n: int) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    X, y = data(n, 2)
    fixed: Any = None
    gp = GaussianProcessRegressor(kernels.Matern(0.1, "fixed", nu=2.5), alpha=NOISE, optimizer=fixed)
    return gp.fit(X.numpy(), y.numpy()).sample_y(data(POINTS, 2)[0].numpy(), PATHS)


def kiss_gp(n: int) -> Any:
    import gpytorch

    from matheron.compare.samplers.kiss_gp import fast_posterior

    X, y = data(n, 2)
    axes = [torch.linspace(-0.05, 1.05, 64, dtype=torch.float64)] * 2
    noise = torch.full((n,), NOISE, dtype=torch.float64)
    with gpytorch.settings.max_preconditioner_size(0):  # which fails on a grid's covariance from 2000 data on
        mean, root = fast_posterior(kernel(2), X, y, noise, data(POINTS, 2)[0], axes, num_iterations=100)
    return mean + torch.randn(PATHS, root.shape[1], dtype=torch.float64) @ root.mT


def gstools(n: int) -> Any:
    import gstools as gs  # pyright: ignore[reportMissingImports]

    X, y = data(n, 2)
    x, error = data(POINTS, 2)[0], NOISE
    model = gs.Matern(dim=2, var=1, len_scale=0.1, nu=2.5)
    krige = gs.krige.Ordinary(model, X.mT.numpy(), y.numpy(), cond_err=error, exact=False)  # pyright: ignore
    field = gs.CondSRF(krige)
    return [field((x[:, 0].numpy(), x[:, 1].numpy()), seed=seed) for seed in range(PATHS)]


def gstools_prior() -> Callable[[int], Any]:
    def call(N: int) -> Any:
        import gstools as gs  # pyright: ignore[reportMissingImports]

        field, x = gs.SRF(gs.Matern(dim=2, var=1, len_scale=0.1, nu=2.5)), data(N, 2)[0]
        return [field((x[:, 0].numpy(), x[:, 1].numpy()), seed=seed) for seed in range(PATHS)]

    return call


def on_lattice(**settings: Any) -> matheron.Paths:
    return matheron.draw_prior(kernel(2), PATHS, input_dim=2, domain=UNIT, features="lattice", seed=0, **settings)


def random(count: int) -> matheron.Paths:
    settings: dict[str, Any] = dict(features="sobol", num_features=count, paths_per_basis=None)
    return matheron.draw_prior(kernel(2), PATHS, input_dim=2, seed=0, **settings)


def lines() -> Iterator[tuple[str, str, Callable[[int], Any], list[int]]]:
    """The panel, the name, the call, and the sizes that it is timed at."""
    many = [300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    yield "n", "matheron", ours(2, "auto"), many
    yield "n", "matheron, one dimension", ours(1, "auto"), many
    yield "n", "matheron, dense", ours(2, "cholesky"), many[:3]
    yield "n", "scikit-learn", sklearn, many[:3]
    yield "n", "KISS-GP", kiss_gp, many[:5]
    yield "n", "GSTools", gstools, many[:3]
    paths, axes = on_lattice(), lambda N: [torch.linspace(0, 1, round(N**0.5), dtype=torch.float64)] * 2
    points = [1000, 10_000, 100_000, 1_000_000]
    yield "N", "matheron", lambda N: paths(data(N, 2)[0]), points
    yield "N", "matheron, on a grid", lambda N: paths.on_grid(axes(N)), points
    features = random(4096)
    yield "N", "4096 random features", lambda N: features(data(N, 2)[0]), points
    yield "N", "GSTools", gstools_prior(), points[:2]
    x = data(10_000, 2)[0]
    bases = {p.prior.num_features: p for p in (on_lattice(tolerance=t) for t in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5))}
    yield "modes", "matheron", lambda modes: bases[modes](x), sorted(bases)
    more = {count: random(count) for count in (256, 1024, 4096, 16_384)}
    yield "modes", "random features", lambda count: more[count](x), sorted(more)


def timed(call: Callable[[int], Any], size: int) -> float:
    start = time.process_time()
    call(size)
    return time.process_time() - start


def measured(most: float, only: str | None) -> list[dict[str, Any]]:
    rows = []
    for panel, name, call, sizes in lines():
        if only not in (None, panel):
            continue
        call(sizes[0])  # warm-up
        for size in sizes:
            seconds = timed(call, size)
            rows.append(dict(panel=panel, name=name, size=size, seconds=seconds))
            print(f"{panel:<6} {name:<26} {size:>9,} {seconds:9.3g} s", flush=True)
            if seconds > most:
                break
    return rows


def on_device(device: str, data_divided_by: int) -> None:
    """The four rows of a GPU: draws by solver="lattice", and their values at scattered points."""
    sync = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for d, n, lengthscale in ((1, 1_000_000, 0.1), (2, 1_000_000, 0.1), (3, 100_000, 0.3)):
        n //= data_divided_by
        X, y = (tensor.to(device) for tensor in data(n, d))
        gp = matheron.ExactGP(K.Matern(2.5, lengthscale), X, y, noise=NOISE)
        x = torch.rand(1_000_000 // data_divided_by, d, dtype=torch.float64, device=device)
        drawn, evaluated, paths = [], [], None
        for seed in range(2):  # the first call loads libraries, and plans transforms
            sync()
            start = time.perf_counter()
            paths = matheron.draw(gp, 64, domain=UNIT, solver="lattice", seed=seed)
            sync()
            drawn.append(time.perf_counter() - start)
            if d == 3:
                paths(x)
                sync()
                evaluated.append(time.perf_counter() - start - drawn[-1])
        assert paths is not None and paths.solver_stats is not None
        modes, steps = paths.prior.features.choices[0].modes, paths.solver_stats.iterations
        print(f"64 paths given {n:,} data, d={d}: {drawn[1]:.3g} s ({drawn[0]:.3g})  {modes} modes, {steps} iterations")
        if evaluated:
            print(f"64 paths at {len(x):,} scattered points, d={d}: {evaluated[1]:.3g} s ({evaluated[0]:.3g})")


def digest(result: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()[:16]


def figure(result: dict[str, Any], path: Path) -> None:
    """Three log-log panels."""
    import matplotlib.pyplot as plt
    from figures import STYLE

    with plt.rc_context(STYLE):
        drawn, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained", sharey=True)
        for axis, (panel, title) in zip(axes, PANELS.items(), strict=True):
            rows = [row for row in result["rows"] if row["panel"] == panel]
            for colour, name in zip(COLOURS, dict.fromkeys(row["name"] for row in rows), strict=False):
                of = [(row["size"], row["seconds"]) for row in rows if row["name"] == name]
                axis.plot(*zip(*of, strict=True), "o-", color=colour, label=name, markersize=4)
            axis.set(xscale="log", yscale="log", xlabel=f"{panel}, or features" if panel == "modes" else panel)
            axis.set_title(title, loc="left", fontsize=10)
            axis.legend(fontsize=8, frameon=False)
        axes[0].set_ylabel("processor seconds")
        drawn.savefig(path, metadata={"Date": None, "Creator": "matheron", "Description": digest(result)})
        plt.close(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(PANELS), help="this panel; the rows of the others are kept")
    parser.add_argument("--most", type=float, default=8.0, help="seconds after which a line ends")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", help="the rows of a GPU alone, such as cuda")
    parser.add_argument("--divide", type=int, default=1, help="with --device: so many times fewer data and points")
    args = parser.parse_args()
    if args.device:
        return on_device(args.device, args.divide)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kept = json.loads(args.out.read_text())["rows"] if args.only and args.out.exists() else []
    rows = [row for row in kept if row["panel"] != args.only] + measured(args.most, args.only)
    result = dict(threads=1, torch=torch.__version__, rows=rows)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
