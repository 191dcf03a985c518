"""The demo's numbers: times of drawing and evaluating, and distances from the exact posterior, in a table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.table import Table
from torch import Tensor

from ...compare.metrics import gaussian_wasserstein
from ...compare.samplers import Moments, decoupled_moments, location_scale, moments
from ...drawing import draw, draw_prior
from ...kernels import Matern
from ...models import ExactGP
from ...paths import Paths

DOMAIN = (0.0, 1.0)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the demo's problem."""

    num_paths: int = 64
    num_features: int = 1024
    many: int = 100_000  # points at which paths are evaluated
    few: int = 2048  # points at which dense sampling is still possible
    draws: int = 10_000  # draws for an empirical covariance
    compared: int = 256  # points of the empirical covariance


@dataclass(frozen=True)
class Row:
    """The measurements of one way of sampling; times are in seconds."""

    name: str
    draw: float | None  # None if nothing can be drawn before the points are known
    few: float
    many: float
    empirical: float  # W2 of the draws' empirical law
    closed_form: float  # W2 of the law that the draws are from
    mean_error: float
    run: bool = True  # False if `many` was not run, but is an estimate from below


def problem() -> ExactGP:
    """A Gaussian process with a Matern-5/2 kernel and eight observations, more on the left than on the right.

    >>> from matheron.cli.demo import problem
    >>> problem()
    ExactGP(Matern(nu=2.5, lengthscale=0.12), 8 observations in 1 dimension)
    """
    X = torch.tensor([0.05, 0.11, 0.20, 0.24, 0.35, 0.48, 0.72, 0.93], dtype=torch.float64, device="cpu")
    noise = 1e-3
    eps = noise**0.5 * torch.randn(
        len(X), generator=torch.Generator().manual_seed(3), dtype=torch.float64, device="cpu"
    )
    y = torch.sin(9 * X) + 0.6 * torch.cos(17 * X) + eps
    return ExactGP(Matern(2.5, 0.12), X[:, None], y, noise)


def same_draws(gp: ExactGP, sizes: Sizes, seed: int) -> tuple[Paths, Paths]:
    """Draw functions from the prior, and condition the same functions on the data."""
    generator = torch.Generator().manual_seed(seed)
    prior = draw_prior(
        gp.kernel, sizes.draws, input_dim=1, num_features=sizes.num_features, domain=DOMAIN, generator=generator
    )
    return prior, prior.condition_on(gp.train_inputs, gp.train_targets, noise=gp.noise, generator=generator)


def measure(gp: ExactGP, posterior: Paths, sizes: Sizes, seed: int) -> list[Row]:
    """Measure paths with matheron's default features, paths with the paper's features, and exact dense sampling.

    Distances depend only on the seed, because draws that are timed use another generator.
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
    return Row(name, drawing, few, many, empirical(draws(x), exact), closed_form, mean_error)


def _dense(name: str, gp: ExactGP, timed: torch.Generator, generator: torch.Generator, sizes: Sizes) -> Row:
    """Measure location-scale sampling; its time at many points is scaled up by the cube of their number."""
    few = seconds(lambda: location_scale(gp, sizes.num_paths, generator=timed)(grid(sizes.few)))
    K = gp.kernel(grid(sizes.few)).fill_diagonal_(2.0)
    many = seconds(lambda: torch.linalg.cholesky(K)) * (sizes.many / sizes.few) ** 3
    x = grid(sizes.compared)
    draws = location_scale(gp, sizes.draws, generator=generator)(x)  # [draws, n]
    return Row(name, None, few, many, empirical(draws, moments(gp, x)), closed_form=0.0, mean_error=0.0, run=False)


def empirical(values: Tensor, exact: Moments) -> float:
    """Compute the 2-Wasserstein distance between the empirical moments of draws and the exact posterior's."""
    return gaussian_wasserstein(values.mean(0), values.T.cov(), *exact)


def grid(n: int) -> Tensor:
    return torch.linspace(*DOMAIN, n, dtype=torch.float64, device="cpu")[:, None]


def seconds(call: Callable[[], object], warm: bool = False) -> float:
    """Return the median time of a few calls, or the time of a single slow one, after one warm-up call if not `warm`."""
    if not warm:
        call()
    times: list[float] = []
    while len(times) < 5 and sum(times) < 1:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def table(rows: list[Row], sizes: Sizes) -> Table:
    """Build the table, with a column for each way of sampling; estimates are marked."""
    out = Table("")
    for row in rows:
        out.add_column(row.name, justify="right")

    def many(row: Row) -> str:
        return f"[green]{duration(row.many)}[/green]" if row.run else f"[red]over {duration(row.many)} *[/red]"

    def line(name: str, words: Callable[[Row], str]) -> None:
        out.add_row(name, *[words(row) for row in rows])

    line(f"draw {sizes.num_paths} functions", lambda row: "[dim]none[/dim]" if row.draw is None else duration(row.draw))
    line(f"values at {sizes.few:,} points", lambda row: duration(row.few))
    line(f"values at {sizes.many:,} points", many)
    line(f"W2 of {sizes.draws:,} draws", lambda row: f"{row.empirical:.3f}")
    line("W2 of their law", lambda row: f"{row.closed_form:.2g}")
    line("error of the mean", lambda row: f"{row.mean_error:.1g}")
    return out


def notes(rows: list[Row], sizes: Sizes) -> list[str]:
    """Return the notes below the table."""
    chance, memory = rows[-1].empirical, sizes.many**2 * 8 / 1e9
    return [
        f"W2: the 2-Wasserstein distance to the exact posterior at {sizes.compared} points. 'W2 of their law' is "
        f"exact; 'W2 of {sizes.draws:,} draws' includes Monte Carlo error. Dense sampling is exact: its {chance:.3f} "
        "is Monte Carlo error alone.",
        f"* not run. The covariance needs {memory:.3g} GB. The time is that of its factorisation alone, scaled up from "
        f"{sizes.few:,} points by the cube of their number. Dense sampling gives values, not functions: one more point "
        "needs a new factorisation.",
    ]


def duration(t: float) -> str:
    """Format a time in seconds with a suitable unit."""
    for least, unit, name in ((5400, 3600, "hours"), (90, 60, "minutes"), (1, 1, "s")):
        if t >= least:
            return f"{t / unit:.2g} {name}"
    return f"{1e3 * t:.3g} ms" if t < 0.01 else f"{1e3 * t:.0f} ms"
