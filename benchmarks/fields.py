"""Conditional simulation on rasters: matheron beside GSTools, PyKrige and scikit-learn, and what scales.

    python benchmarks/fields.py                    (a), (b), (d) and (e): minutes
    python benchmarks/fields.py --quick            seconds, small sizes: does it run?
    python benchmarks/fields.py --only large       (c): one field of 10^8 cells from 10^6 data, written to Zarr
    python benchmarks/fields.py --out results.json

(a) `peers`: 10 fields on 1000 x 1000 cells from 400 data, Matern-3/2 with lengthscale .1 on the unit square, noise
    1e-2, 2 threads. GSTools' CondSRF kriges once and adds a random field for each; its cost is linear in cells, so it
    is measured on fewer. PyKrige gives the kriging mean and variance and no simulations; scikit-learn's `sample_y` is
    cubic in cells, and is measured on a grid that it can hold. Cells a second count every field.
(b) `many`: 100 fields on 2000 x 2000 cells from 100,000 data, drawn and evaluated block by block, nothing kept.
(c) `large`: one field of 10,000 x 10,000 cells from 1,000,000 data, written block by block; the peak of memory is the
    process's own (VmHWM), libraries included.
(d) `workers`: maps (mean, deviation, quantiles, a probability) of 16 fields on 2048 x 2048 cells, computed and written
    to Zarr by a Dask cluster of one worker and of two, one thread each.
(e) `rates`: what one core evaluates, in CPU seconds, which other work on the machine disturbs little: the rates that
    docs/results/scaling.md reasons from.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import matheron
from matheron import fields, kernels

LENGTHSCALE, NOISE = 0.1, 1e-2
SIZES = {
    "full": {"n": 400, "side": 1000, "paths": 10, "theirs": 200, "dense": 40, "many": (100_000, 2000, 100)},
    "quick": {"n": 50, "side": 100, "paths": 3, "theirs": 30, "dense": 10, "many": (500, 100, 4)},
}
LARGE = {"full": (1_000_000, 10_000), "quick": (2000, 400)}
WORKERS = {"full": (2048, 16), "quick": (128, 4)}
RATES = {"full": 1024, "quick": 128}


def data(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of the unit square, and noisy values of a smooth function there."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    f = (9 * X[:, 0]).sin() * (7 * X[:, 1]).cos() + (23 * X[:, 0] * X[:, 1]).sin() / 2
    return X, f + NOISE**0.5 * torch.randn(n, generator=g, dtype=torch.float64)


def model(n: int) -> matheron.ExactGP:
    X, y = data(n)
    return matheron.ExactGP(kernels.Matern(1.5, LENGTHSCALE), X, y, noise=NOISE)


def axes(side: int) -> dict[str, np.ndarray]:
    return {"x": np.linspace(0, 1, side), "y": np.linspace(0, 1, side)}


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def draw(gp: matheron.ExactGP, paths: int, **settings: Any) -> Any:
    return matheron.draw(gp, paths, domain=(0.0, 1.0), generator=torch.Generator().manual_seed(0), **settings)


def evaluate_blocks(field: Any) -> float:
    """Compute every block and drop it; the sum is to show that it was."""
    return sum(float(np.asarray(block.compute(scheduler="sync")).sum()) for block in field.data.to_delayed().ravel())


def peers(sizes: dict[str, Any]) -> list[dict[str, Any]]:
    """Cells a second, all fields counted."""
    gp, s, side = model(sizes["n"]), sizes["paths"], sizes["side"]
    rows = []
    drawn, paths = seconds(lambda: draw(gp, s))
    took, _ = seconds(lambda: evaluate_blocks(fields.simulate(paths, axes(side))))
    rows.append(_row("matheron, drawn and evaluated", side, s, drawn + took, f"drawn in {drawn:.2f} s"))
    took, _ = seconds(lambda: fields.krige(gp, axes(side // 4)).compute(scheduler="sync"))
    rows.append(_row("matheron, kriging mean and deviation", side // 4, 1, took, "no simulation"))
    X, y = data(sizes["n"])
    few = sizes["theirs"]
    line = np.linspace(0, 1, few)
    if find_spec("gstools"):
        gstools: Any = import_module("gstools")
        gstools.config.NUM_THREADS = torch.get_num_threads()

        def simulate() -> None:
            # Its Matern has sqrt(nu) r / length where ours has sqrt(2 nu) r / lengthscale.
            shape = gstools.Matern(dim=2, nu=1.5, len_scale=LENGTHSCALE / 2**0.5)
            krige = gstools.Krige(shape, X.T.numpy(), y.numpy(), unbiased=False, exact=False, cond_err=NOISE)
            field = gstools.CondSRF(krige, mode_no=1000)
            field.set_pos([line, line], "structured")
            for seed in range(s):
                field(seed=seed, store=[f"field_{seed}", False, True])  # the kriging is stored, and done once

        rows.append(_row("GSTools CondSRF", few, s, seconds(simulate)[0], "its covariance is not the posterior's"))
    if find_spec("pykrige"):
        from scipy import special

        OrdinaryKriging: Any = import_module("pykrige.ok").OrdinaryKriging

        def variogram(parameters: list[float], h: np.ndarray) -> np.ndarray:
            r = np.sqrt(3) * np.maximum(h, 1e-12) / LENGTHSCALE
            return 1 - r**1.5 * special.kv(1.5, r) * 2**-0.5 / special.gamma(1.5) + NOISE * (h > 0)

        def krige_() -> None:
            ok = OrdinaryKriging(
                *X.T.numpy(), y.numpy(), variogram_model="custom", variogram_function=variogram,
                variogram_parameters=[1.0],
            )  # fmt: skip
            ok.execute("grid", line, line)

        rows.append(_row("PyKrige, kriging mean and variance", few, 1, seconds(krige_)[0], "no simulation"))
    if find_spec("sklearn"):
        from sklearn.gaussian_process.kernels import Matern, WhiteKernel

        GaussianProcessRegressor: Any = import_module("sklearn.gaussian_process").GaussianProcessRegressor

        cells = sizes["dense"]
        grid = np.stack([v.ravel() for v in np.meshgrid(*2 * [np.linspace(0, 1, cells)])], axis=1)

        def sample() -> None:
            shape = Matern(LENGTHSCALE, nu=1.5) + WhiteKernel(NOISE)
            GaussianProcessRegressor(shape, optimizer=None).fit(X.numpy(), y.numpy()).sample_y(grid, s, random_state=0)

        rows.append(_row("scikit-learn sample_y", cells, s, seconds(sample)[0], "cubic in cells"))
    for row in rows:
        row["times_ours"] = round(rows[0]["cells_a_second"] / row["cells_a_second"], 1)
    return rows


def many(sizes: dict[str, Any]) -> list[dict[str, Any]]:
    n, side, s = sizes["many"]
    drawn, paths = seconds(lambda: draw(model(n), s))
    took, _ = seconds(lambda: evaluate_blocks(fields.simulate(paths, axes(side))))
    return [_row(f"{s} fields from {n} data", side, s, drawn + took, f"drawn in {drawn:.1f} s; {paths!r}")]


def large(scale: str) -> list[dict[str, Any]]:
    n, side = LARGE[scale]
    drawn, paths = seconds(lambda: draw(model(n), 1))
    memory_drawn = _peak()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        field = fields.simulate(paths, axes(side), chunks=1024 if scale == "full" else 100)
        took, path = seconds(lambda: fields.write(field, Path(folder, "field.zarr"), progress=True))
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    note = (
        f"drawn in {drawn:.1f} s; peak {memory_drawn:.2f} GB drawing, {_peak():.2f} GB in all; file {size / 1e9:.2f} GB"
    )
    return [_row(f"one field from {n} data, written", side, 1, took, note)]


def rates(scale: str) -> list[dict[str, Any]]:
    """Cells per CPU second of one thread: `paths.on_grid` on one block, the second of two calls."""
    side = RATES[scale]
    line = torch.linspace(0, 1, side, dtype=torch.float64)
    on_lattice = model(2000)  # how many there were does not matter once they are in the coefficients
    cases = [
        ("one path, its data in the lattice's coefficients", on_lattice, 1, {"solver": "lattice"}),
        ("16 such paths", on_lattice, 16, {"solver": "lattice"}),
        ("one path with 400 data and a dense factor", model(400), 1, {}),
        ("10 such paths", model(400), 10, {}),
    ]
    threads, rows = torch.get_num_threads(), []
    torch.set_num_threads(1)
    for what, gp, s, settings in cases:
        paths = draw(gp, s, **settings)
        block = side if s == 1 else side // 2
        paths.on_grid([line[:block], line[:block]])
        began = time.process_time()
        paths.on_grid([line[:block], line[:block]])
        rows.append(_row(what, block, s, time.process_time() - began, "CPU seconds of one thread"))
    torch.set_num_threads(threads)
    return rows


def workers(scale: str) -> list[dict[str, Any]]:
    """Maps of many fields, computed and written by the workers; each has imported, and computed other maps, before."""
    from distributed import Client, LocalCluster

    (side, s), rows = WORKERS[scale], []
    paths = draw(model(2000), s)
    maps = fields.summarise(paths, axes(side), above=[1.0], chunks=side // 4)
    for count in (1, 2):
        with (
            tempfile.TemporaryDirectory(dir=".") as folder,
            LocalCluster(n_workers=count, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            client.run(_one_thread)
            warm = fields.summarise(paths, axes(side // 8), above=[1.0], chunks=side // 16)
            fields.write(warm, Path(folder, "warm.zarr"), scheduler=client)
            took, _ = seconds(partial(fields.write, maps, Path(folder, "maps.zarr"), scheduler=client))
        rows.append(_row(f"Dask, {count} worker{'s' * (count > 1)}", side, s, took, ""))
    rows[1]["note"] = f"{rows[0]['seconds'] / rows[1]['seconds']:.2f} times one"
    return rows


def _one_thread() -> None:
    import torch

    import matheron  # noqa: F401

    torch.set_num_threads(1)


def _row(what: str, side: int, paths: int, took: float, note: str) -> dict[str, Any]:
    rate = side * side * paths / took
    return {
        "what": what,
        "side": side,
        "fields": paths,
        "seconds": round(took, 3),
        "cells_a_second": rate,
        "note": note,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    here = Path(__file__).resolve().parent  # it has a distributed.py, which is not Dask's
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--only", choices=["peers", "many", "large", "workers", "rates"], help="one of the parts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="where the numbers go, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    scale = "quick" if options.quick else "full"
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "peers": lambda: peers(SIZES[scale]),
        "many": lambda: many(SIZES[scale]),
        "large": lambda: large(scale),
        "workers": lambda: workers(scale),
        "rates": lambda: rates(scale),
    }
    chosen = [options.only] if options.only else [part for part in parts if part != "large" or options.quick]
    results: dict[str, Any] = {"threads": options.threads, "machine": platform.machine(), "scale": scale}
    results["versions"] = {p: version(p) for p in ("torch", "gstools", "pykrige", "scikit-learn") if _there(p)}
    console = Console()
    for part in chosen:
        results[part] = parts[part]()
        table = Table("", "cells a side", "fields", "seconds", "million cells a second", "", title=part)
        for row in results[part]:
            rate = f"{row['cells_a_second'] / 1e6:.3g}"
            if row.get("times_ours", 1) > 1:
                rate += f" (ours {row['times_ours']:.0f} times)"
            table.add_row(row["what"], str(row["side"]), str(row["fields"]), f"{row['seconds']:.2f}", rate, row["note"])
        console.print(table)
        if options.out is not None:
            options.out.write_text(json.dumps(results, indent=1))


def _there(package: str) -> bool:
    try:
        version(package)
    except Exception:
        return False
    return True


if __name__ == "__main__":
    main()
