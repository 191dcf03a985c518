"""The demo's numbers: what drawing and evaluating take, and how far the draws are from the exact posterior."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..drawing import draw, draw_prior
from ..gp import ExactGP
from ..metrics import gaussian_wasserstein
from ..paths import Paths
from ..samplers import decoupled_moments, location_scale, moments
from .model import DOMAIN


@dataclass(frozen=True)
class Sizes:
    """How much the demo does."""

    num_paths: int = 64
    num_features: int = 1024
    many: int = 100_000  # points at which paths are evaluated
    few: int = 2048  # points at which dense sampling still is possible
    draws: int = 10_000  # for an empirical covariance ...
    compared: int = 256  # ... at this many points


@dataclass(frozen=True)
class Row:
    """One way of sampling; times in seconds."""

    name: str
    draw: float | None  # None: there is nothing to draw before the points are known
    few: float
    many: float
    empirical: float  # W2 of as many draws as Sizes says
    closed_form: float  # W2 of the law that they are drawn from
    mean_error: float
    run: bool = True  # False: `many` was not run, it is the least that it would take


def same_draws(gp: ExactGP, sizes: Sizes, seed: int) -> tuple[Paths, Paths]:
    """Functions from the prior, and the same functions given the data."""
    generator = torch.Generator().manual_seed(seed)
    prior = draw_prior(
        gp.kernel, sizes.draws, input_dim=1, num_features=sizes.num_features, domain=DOMAIN, generator=generator
    )
    return prior, prior.condition_on(gp.train_inputs, gp.train_targets, noise=gp.noise, generator=generator)


def measure(gp: ExactGP, posterior: Paths, sizes: Sizes, seed: int) -> list[Row]:
    """Paths with the features that matheron chooses, with the paper's, and dense sampling, which is exact.

    Distances depend on the seed alone: what is drawn to be timed has a generator of its own.
    """
    timed, generator = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    chosen = partial(draw, gp, num_features=sizes.num_features, domain=DOMAIN, generator=timed)
    papers = partial(chosen, features="cosine", paths_per_basis=None)
    return [
        _paths("matheron's\npaths", gp, chosen, posterior, sizes),
        _paths("with the\npaper's features", gp, papers, papers(sizes.draws, generator=generator), sizes),
        _dense("dense\nsampling", gp, timed, generator, sizes),
    ]


def _paths(name: str, gp: ExactGP, drawn: Callable[[int], Paths], draws: Paths, sizes: Sizes) -> Row:
    drawing = seconds(lambda: drawn(sizes.num_paths))
    paths = drawn(sizes.num_paths)
    x_few, x_many, x = (grid(n) for n in (sizes.few, sizes.many, sizes.compared))
    few, many = seconds(lambda: paths(x_few)), seconds(lambda: paths(x_many), warm=True)
    exact = moments(gp, x)
    closed_form = gaussian_wasserstein(*decoupled_moments(gp, draws, x), *exact)
    mean_error = float((paths.mean(x) - exact.mean).abs().max())
    return Row(name, drawing, few, many, empirical(gp, x, draws(x)), closed_form, mean_error)


def _dense(name: str, gp: ExactGP, timed: torch.Generator, generator: torch.Generator, sizes: Sizes) -> Row:
    """Location-scale sampling. At many points its factorisation alone would take the time it takes at few, cubed."""
    few = seconds(lambda: location_scale(gp, sizes.num_paths, generator=timed)(grid(sizes.few)))
    K = gp.kernel(grid(sizes.few)).fill_diagonal_(2.0)
    many = seconds(lambda: torch.linalg.cholesky(K)) * (sizes.many / sizes.few) ** 3
    x = grid(sizes.compared)
    draws = location_scale(gp, sizes.draws, generator=generator)(x)  # [draws, n]
    return Row(name, None, few, many, empirical(gp, x, draws), closed_form=0.0, mean_error=0.0, run=False)


def empirical(gp: ExactGP, x: Tensor, values: Tensor) -> float:
    """The 2-Wasserstein distance between the draws' own mean and covariance and the exact posterior's."""
    exact = moments(gp, x)
    return gaussian_wasserstein(values.mean(0), values.T.cov(), exact.mean, exact.covariance)


def grid(n: int) -> Tensor:
    return torch.linspace(*DOMAIN, n, dtype=torch.float64)[:, None]


def seconds(call: Callable[[], object], warm: bool = False) -> float:
    """The median of a few calls, or of one that is slow, after one that does not count (unless the machine is warm)."""
    if not warm:
        call()
    times: list[float] = []
    while len(times) < 5 and sum(times) < 1:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
