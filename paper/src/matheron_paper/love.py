"""The appendix's figure: 2-Wasserstein distances as in figure 3, with LOVE, on regular grids of training points."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from matheron.compare.samplers import love

from .base import Experiment, Settings, Trial, scales
from .report import Report, Row, Rows, grouped, quartiles
from .sampling import FEATURES as ALL_FEATURES
from .sampling import Blocks, measured, problem
from .wasserstein import report as distances
from .wasserstein import samplers

if TYPE_CHECKING:
    from matheron import ExactGP

# The paper's curves, and one with bases that are drawn again for every 64 paths.
FEATURES = {name: kind for name, kind in ALL_FEATURES.items() if name != "equispaced"}
# LOVE's cost is measured at the test points, and at this many times as many.
MORE_POINTS = 4
# LOVE's cost is measured in this many trials of each case only.
COST_TRIALS = 8

SCALES = scales(
    trials=(32, 4, 1),
    sides=({"2": [2, 4, 8, 16, 32], "4": [2, 3, 4, 5]}, {"2": [2, 4, 8, 16], "4": [2, 3, 4]}, {"2": [3, 6], "4": [2]}),
    num_features=([1024, 4096, 16384], [128, 512, 2048], [16, 64]),
    num_test=(1024, 256, 32),
    num_draws=(100_000, 8192, 512),
)


def cases(settings: Settings) -> list[dict[str, int]]:
    """Grids by the number of points along a side. Kernel interpolation is hopeless in 8 dimensions: 4^8 neighbours."""
    return [{"d": int(d), "n": side ** int(d)} for d, sides in settings["sides"].items() for side in sides]


def run(trial: Trial, settings: Settings, device: torch.device) -> Row:
    """One random problem on a grid, and every sampler on it."""
    d, n = trial.case["d"], trial.case["n"]
    X = grid(d, round(n ** (1 / d)))
    gp, x = problem(X, settings["num_test"], trial.generator("problem"), device)
    rows = measured(gp, x, _samplers(gp, x, settings["num_features"]), trial, settings["num_draws"])
    return {"rows": rows, "cost": _cost(gp, x, trial) if trial.number < COST_TRIALS else []}


def _samplers(gp: ExactGP, x: torch.Tensor, sizes: Sequence[int]) -> Iterator[tuple[str, int | None, Blocks]]:
    yield "LOVE", None, lambda num_draws, generator: love(gp, num_draws, generator=generator).blocks(x)
    yield from samplers(gp, x, sizes, extensions=False)


def _cost(gp: ExactGP, x: torch.Tensor, trial: Trial) -> Rows:
    """Seconds of LOVE at x and at more points: for its root of the covariance there, and then for 1000 draws."""
    rows = []
    for times in (1, MORE_POINTS):
        generator = trial.generator("cost", device=x.device)
        points = torch.rand(times * len(x), x.shape[1], generator=generator, dtype=x.dtype, device=x.device)
        sampler = love(gp, 1000, generator=generator)
        began = _now(x.device)
        draw = sampler.at(points)
        made = _now(x.device)
        draw(1000)
        rows.append({"points": len(points), "root": made - began, "draws": _now(x.device) - made})
    return rows


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def report(records: Rows, settings: Settings) -> Report:
    """Distances as in figure 3, and what LOVE costs against the numbers of data and of test points."""
    of = distances(records, settings)
    rows = [{**record["case"], **row} for record in records for row in record["result"]["cost"]]
    remarks = []
    for what, name in (("before the first draw", "root"), ("for 1000 draws", "draws")):
        found = grouped(rows, ["d", "n", "points"], name)
        each: dict[tuple[int, int], list[str]] = {}
        for (d, n, _), seconds in sorted(found.items()):
            each.setdefault((d, n), []).append(f"{quartiles(seconds)[1]:.2g}")
        sizes = sorted({row["points"] for row in rows})
        said = "; ".join(f"d = {d}, n = {n}: {' and '.join(medians)}" for (d, n), medians in each.items())
        remarks.append(f"LOVE's median seconds {what}, at {' and '.join(map(str, sizes))} test points: {said}")
    return Report(of.table, {"": of.figures[""]}, [*of.remarks, *remarks])


def grid(d: int, side: int) -> torch.Tensor:
    """A regular grid that fills the unit cube, `[side^d, d]`."""
    axis = torch.linspace(0, 1, side, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * d).reshape(-1, d)


# version 2 has lattices as equispaced features; version 3 has the paper's curves alone, and LOVE's cost
EXPERIMENT = Experiment("wasserstein-love", __doc__, SCALES, cases, run, report, version=3, features=FEATURES)
