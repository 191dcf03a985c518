"""Diagnosis: what `diagnose` found, as a table."""

from __future__ import annotations

import html
import io
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from rich.console import Console, Group
from rich.table import Table

from .metrics import KernelError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Settings(TypedDict, total=False):
    """Those of `draw` that a diagnosis may advise."""

    features: str
    num_features: int
    paths_per_basis: int
    domain: tuple[list[float], list[float]]
    tolerance: float


@dataclass(frozen=True)
class Law:
    """How far some law is from the posterior: W2, the means' root mean square difference, and the relative Frobenius
    error of the covariance; and the effective rank (tr C)^2 / tr C^2 of its own covariance."""

    w2: float
    mean_error: float
    covariance_error: float
    effective_rank: float


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. Print it for a table."""

    paths: Law  # the empirical law of these paths
    floor: Law  # that of as many independent draws from the exact posterior: no sampler is expected to do better
    # The law that all of the paths' bases imply, of infinitely many paths; None where it has no closed form.
    basis: Law | None
    kernel_error: KernelError | None  # of the prior that the basis implies
    spread: float  # the posterior's own size in W2's units, sqrt(tr C)
    effective_rank: float  # of the posterior
    num_paths: int
    num_values: int
    num_features: int
    num_bases: int
    advice: str
    one_basis: Law | None = None  # the law that one of the bases implies: the median of some
    settings: Settings = field(default_factory=Settings)  # of `draw`, where there is advice
    features: str = ""  # what the prior's basis is, and for a lattice its error

    def __rich__(self) -> Group:
        table = Table(title=f"{self.num_paths} paths at {self.num_values} values, against the posterior")
        for column in ("", "these paths", "exact draws", "their bases", "one basis"):
            table.add_column(column, justify="left" if column == "" else "right")
        laws = (self.paths, self.floor, self.basis, self.one_basis)

        def row(name: str, *cells: float | None) -> None:
            table.add_row(name, *("-" if cell is None else f"{cell:.3g}" for cell in cells))

        row("2-Wasserstein", *(law and law.w2 for law in laws))
        scale = self.spread or math.nan
        row("  as a share of the spread", *(law and law.w2 / scale for law in laws))
        row("mean, RMS error", *(law and law.mean_error for law in laws))
        row("covariance, relative error", *(law and law.covariance_error for law in laws))
        row(f"effective rank (posterior: {self.effective_rank:.3g})", *(law and law.effective_rank for law in laws))
        row("kernel, RMS error", None, None, self.kernel_error and self.kernel_error.rms)
        row("kernel, largest error", None, None, self.kernel_error and self.kernel_error.largest)
        floor = (
            f"The column of exact draws is the Monte Carlo floor: {self.num_paths} draws from the posterior itself are "
            f"{self.floor.w2:.3g} away from it."
        )
        return Group(table, floor, f"Prior: {self.features}.", self.advice)

    def plot(self, *, axes: Axes | None = None) -> Axes:
        """The distances as bars: `matheron.plots.plot_diagnosis`. Returns the axes."""
        from .plots import plot_diagnosis

        return plot_diagnosis(self, axes=axes)

    def __str__(self) -> str:
        text = io.StringIO()
        # Not Jupyter's console, which displays what it prints and writes nothing to the file.
        Console(file=text, width=100, color_system=None, force_jupyter=False).print(self)
        return text.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
