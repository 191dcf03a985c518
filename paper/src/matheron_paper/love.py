"""The appendix's figure: 2-Wasserstein distances as in figure 3, with LOVE, on regular grids of training points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from matheron.compare.samplers import love

from .base import Experiment, Settings, Trial, scales
from .report import Row
from .sampling import FEATURES, Blocks, measured, problem
from .wasserstein import report, samplers

if TYPE_CHECKING:
    from matheron import ExactGP

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
    return {"rows": measured(gp, x, _samplers(gp, x, settings["num_features"]), trial, settings["num_draws"])}


def _samplers(gp: ExactGP, x: torch.Tensor, sizes: Sequence[int]) -> Iterator[tuple[str, int | None, Blocks]]:
    yield "LOVE", None, lambda num_draws, generator: love(gp, num_draws, generator=generator).blocks(x)
    yield from samplers(gp, x, sizes)


def grid(d: int, side: int) -> torch.Tensor:
    """A regular grid that fills the unit cube, `[side^d, d]`."""
    axis = torch.linspace(0, 1, side, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * d).reshape(-1, d)


# equispaced features are a lattice since
EXPERIMENT = Experiment("wasserstein-love", __doc__, SCALES, cases, run, report, version=2, features=FEATURES)
