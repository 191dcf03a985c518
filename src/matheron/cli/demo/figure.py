"""The demo's picture, after figure 2 of the paper: a prior draw, the update, and posterior paths."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...compare.samplers import moments
from ...models import ExactGP
from ...paths import Paths
from ...plots import EXACT, POSTERIOR, PRIOR, UPDATE
from ...tables.files import write_whole
from .numbers import Row, Sizes, grid

SHOWN_PATHS, SHOWN_FEATURES = 12, 6


def picture(gp: ExactGP, prior: Paths, posterior: Paths, rows: list[Row], sizes: Sizes, out: Path) -> None:
    """Write the picture to `out`. The posterior paths are the prior paths, conditioned on the data."""
    X = gp.train_inputs
    x = grid(512)
    figure = Figure(figsize=(13, 5), layout="constrained", dpi=150)
    axes = figure.subplots(2, 3, sharex=True, height_ratios=[4, 1])
    for ax in axes[0, 1:]:
        ax.sharey(axes[0, 0])
    f, f_given_y = prior[0](x)[0], posterior[0](x)[0]
    _prior(axes[0, 0], gp, x, f, prior[0](X)[0])
    _update(axes[0, 1], gp, x, f, f_given_y)
    _posterior(axes[0, 2], gp, x, posterior(x), rows, sizes)
    _strips(axes[1], gp, x, prior.prior.features(x)[0], posterior(x).std(0))
    content = io.BytesIO()
    figure.savefig(content, format=out.suffix[1:])
    write_whole(out, content.getvalue())


def _prior(ax: Axes, gp: ExactGP, x: Tensor, f: Tensor, at_data: Tensor) -> None:
    X, y = gp.train_inputs[:, 0], gp.train_targets
    ax.vlines(X, at_data, y, color=EXACT, linestyle=(0, (3, 2)), linewidth=1.2, label="residuals")
    ax.plot(x, f, color=PRIOR, linewidth=2, label="prior draw  $f = \\phi(\\cdot)^{\\top} w$")
    _data(ax, gp)
    _finish(ax, "1. draw a function from the prior")
    ax.set_ylabel("$f(x)$")


def _update(ax: Axes, gp: ExactGP, x: Tensor, f: Tensor, f_given_y: Tensor) -> None:
    ax.plot(x, f, color=PRIOR, linewidth=1.2, alpha=0.6, label="prior draw")
    ax.plot(x, f_given_y - f, color=UPDATE, linewidth=2, label="update  $\\sum_j v_j\\, k(\\cdot, x_j)$")
    ax.plot(x, f_given_y, color=POSTERIOR, linewidth=2, label="their sum  $f \\mid y$")
    _data(ax, gp)
    _finish(ax, "2. add what the data say")


def _posterior(ax: Axes, gp: ExactGP, x: Tensor, values: Tensor, rows: list[Row], sizes: Sizes) -> None:
    mean, sd = values.mean(0), values.std(0)
    exact = moments(gp, x)
    exact_sd = exact.covariance.diagonal().clamp_min(0).sqrt()
    ax.fill_between(
        x[:, 0], mean - 2 * sd, mean + 2 * sd, color=POSTERIOR, alpha=0.18, linewidth=0, label="2 s.d. of paths"
    )
    ax.plot(x, values[1:SHOWN_PATHS].T, color=POSTERIOR, linewidth=0.7, alpha=0.7)
    ax.plot(x, values[0], color=POSTERIOR, linewidth=2, label="paths")
    for sds in (0, -2, 2):
        label = "exact posterior" if sds == 0 else None
        ax.plot(x, exact.mean + sds * exact_sd, color=EXACT, linestyle="--", linewidth=1.2, label=label)
    _data(ax, gp)
    _finish(ax, f"3. {sizes.draws:,} functions against the exact posterior")
    ours, dense = rows[0].empirical, rows[-1].empirical
    words = f"$W_2 = {ours:.3f}$\nexact sampling: ${dense:.3f}$"
    ax.text(0.985, 0.03, words, transform=ax.transAxes, ha="right", va="bottom")


def _strips(axes, gp: ExactGP, x: Tensor, Phi: Tensor, sd: Tensor) -> None:
    """Draw the strips below the panels: the bases of both terms, and the standard deviation."""
    Phi = Phi[:, :SHOWN_FEATURES]
    axes[0].plot(x, Phi / Phi.abs().max(), color=PRIOR, linewidth=0.9, alpha=0.8)
    axes[1].plot(x, gp.kernel(x, gp.train_inputs), color=UPDATE, linewidth=0.9, alpha=0.8)
    exact_sd = moments(gp, x).covariance.diagonal().clamp_min(0).sqrt()
    axes[2].plot(x, sd, color=POSTERIOR, linewidth=2)
    axes[2].plot(x, exact_sd, color=EXACT, linestyle="--", linewidth=1.2)
    labels = ("some of the $\\phi_i(x)$, scaled", "all $k(x, x_j)$", "standard deviation")
    for ax, label in zip(axes, labels, strict=True):
        _finish(ax, label, small=True)
        ax.set_xlabel("$x$")


def _data(ax: Axes, gp: ExactGP) -> None:
    ax.plot(gp.train_inputs[:, 0], gp.train_targets, "o", color=EXACT, markerfacecolor="white", markersize=6, zorder=5)


def _finish(ax: Axes, title: str, small: bool = False) -> None:
    ax.set_title(title, loc="left", fontsize=9 if small else 11)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(x=0.01)
    if not small:
        ax.legend(loc="upper right", frameon=False, fontsize=8)
