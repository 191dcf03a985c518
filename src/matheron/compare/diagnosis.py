"""The diagnosis of a draw: paths are compared with the exact posterior, and better settings are recommended."""

from __future__ import annotations

import html
import io
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

import torch
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor

from ..core.checks import ArrayLike, as_points
from ..drawing import draw
from ..features import LARGEST_DIM
from ..lattice.basis import Lattice
from ..models import GP, Batch, Ensemble, ExactGP, SelectedOutputs, SparseGP, leaves
from ..models.libraries import describe
from ..paths import AbstractPaths, EnsemblePaths, OutputPaths, PriorPlusUpdate, require_paths
from .metrics import EmpiricalMoments, KernelError, empirical_moments, gaussian_wasserstein, kernel_error
from .samplers import LinearModelPaths, Moments, decoupled_moments, moments, weight_space_moments
from .samplers.closed_form import select, side_by_side
from .samplers.conditionals import inner_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Settings(TypedDict, total=False):
    """Arguments of `draw` that a diagnosis may recommend."""

    features: str
    num_features: int
    paths_per_basis: int
    domain: tuple[list[float], list[float]]
    tolerance: float


@dataclass(frozen=True)
class Law:
    """How far a law is from the posterior.

    Attributes:
        w2: the 2-Wasserstein distance.
        mean_error: the root mean square difference of the means.
        covariance_error: the relative error of the covariance, in the Frobenius norm.
        effective_rank: (tr C)^2 / tr C^2 of the law's covariance C.
    """

    w2: float
    mean_error: float
    covariance_error: float
    effective_rank: float


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`, which prints as a table.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> found = matheron.diagnose(matheron.draw(gp, 64, seed=0), gp, torch.linspace(0, 1, 50)[:, None])
    >>> isinstance(found, matheron.Diagnosis), found.advice.startswith("Good enough")
    (True, True)
    """

    paths: Law  # the empirical law of these paths
    floor: Law  # the empirical law of the same number of exact draws: no sampler is expected to be closer
    # The law of infinitely many paths with these bases; None if it has no closed form.
    basis: Law | None
    kernel_error: KernelError | None  # the error of the prior's covariance with these bases
    spread: float  # sqrt(tr C) of the posterior, which has the units of W2
    effective_rank: float  # that of the posterior
    num_paths: int
    num_values: int
    num_features: int
    num_bases: int
    advice: str
    one_basis: Law | None = None  # the law of paths that share one basis; of several bases, the median
    settings: Settings = field(default_factory=Settings)  # recommended arguments for `draw`; empty if good enough
    features: str = ""  # describes the prior's basis, and for a lattice its error

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
        """Plot the distances as bars with `matheron.plots.plot_diagnosis`, and return the axes."""
        from ..plots import plot_diagnosis

        return plot_diagnosis(self, axes=axes)

    def __str__(self) -> str:
        text = io.StringIO()
        # force_jupyter=False, because rich's console for Jupyter displays its output and writes nothing to the file.
        Console(file=text, width=100, color_system=None, force_jupyter=False).print(self)
        return text.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


# diagnose(paths, model, x) decides whether a draw is good enough.


@dataclass(frozen=True)
class _GoodEnough:
    """The largest W2 that a good draw may have, as a fraction of the posterior's spread sqrt(tr C).

    Attributes:
        of_one: bound for one basis, that is, for paths that share it.
        of_all: bound for all paths together.
        margin: factor by which recommended settings must stay below the bounds, because the next random bases may be
            worse than those that were tried.
    """

    of_one: float = 0.2
    of_all: float = 0.1
    margin: float = 1.2


_GOOD = _GoodEnough()


def diagnose(paths: AbstractPaths, model: object, x: ArrayLike) -> Diagnosis:
    """Compare drawn paths with the posterior that they were drawn from, at points x `[n, d]`.

    Four laws are compared with the exact posterior:

    1. the empirical law of these paths;
    2. the empirical law of the same number of exact draws, whose distance is Monte Carlo error;
    3. the law of infinitely many paths with all bases of the draw, in closed form;
    4. the same with one of the bases.

    A draw is good enough if the last two are close, relative to the posterior's spread. This depends on the features,
    and not on the number of paths. If a draw is not good enough, `settings` of the result are arguments for `draw` that
    were tried and found good enough.

    Args:
        paths: paths from `matheron.draw`, or from a sampler of `matheron.samplers` that returns functions.
        model: the model that they were drawn from.
        x: points of interest. The cost is cubic in their number, so use at most some hundreds.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.diagnosis import diagnose
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> found = diagnose(matheron.draw(gp, 64), gp, torch.linspace(0, 1, 50)[:, None])
    >>> found.basis.w2 < found.floor.w2
    True
    """
    gp, paths = describe(model), require_paths(paths)
    x = as_points(x, "x", input_dim=gp.input_dim, names=gp.input_names)
    if isinstance(gp, Batch):
        raise TypeError("model: expected one model, got a batch; diagnose each of matheron.describe(model).models")
    if (paths.input_dim, paths.num_outputs) != (gp.input_dim, gp.num_outputs):
        raise ValueError(
            f"diagnose: expected paths of this model, {gp.num_outputs} outputs in {gp.input_dim} dimensions, got "
            f"{paths.num_outputs} in {paths.input_dim}"
        )
    if paths.num_paths < 2:
        raise ValueError("paths: expected at least two paths, because a covariance is estimated, got 1; draw more")
    count = len(x) * gp.num_outputs
    largest = 4096  # the comparison is cubic in their number
    if not 1 <= count <= largest:
        raise ValueError(f"x: expected 1 to {largest} values (points times outputs), got {count}; take fewer")
    paths, gp = _in_closed_form(paths, gp)
    exact = _without_rounding(moments(gp, x))
    C = exact.covariance.reshape(count, count)
    implied, members = _implied(paths, gp, x), _members(paths)
    found = Diagnosis(
        paths=_law(empirical_moments(paths, x, block_size=4096), exact),
        floor=_law(_floor(exact.mean, C, paths.num_paths), exact),
        basis=None if implied is None else _law(implied, exact),
        one_basis=None if implied is None else _one_basis(paths, gp, x, exact),
        kernel_error=_kernel_error(members, gp, x),
        spread=math.sqrt(max(0.0, float(C.trace()))),
        effective_rank=_effective_rank(C),
        num_paths=paths.num_paths,
        num_values=count,
        num_features=max(member.prior.num_features for member in members),
        num_bases=max(member.prior.num_bases for member in members),
        features=members[0].prior.features.description,
        advice="",
    )
    advice, settings = _advice(found, members, gp, x, exact)
    return replace(found, advice=advice, settings=settings)


def _one_basis(paths: AbstractPaths, gp: GP, x: Tensor, exact: Moments) -> Law | None:
    """Return the law of paths that share one basis: of up to three bases, the one with the median W2."""
    some = sorted({i * paths.num_paths // 3 for i in range(3)})
    implied = [_implied(paths[i : i + 1], gp, x) for i in some]
    found = sorted((_law(law, exact) for law in implied if law is not None), key=lambda law: law.w2)
    return found[len(found) // 2] if found else None


def _without_rounding(of: Moments) -> Moments:
    """Replace the covariance by the nearest positive semi-definite matrix.

    Where the variance is zero, computed entries of a covariance are rounding errors of either sign.
    """
    values, vectors = torch.linalg.eigh(of.covariance.reshape(of.mean.numel(), -1))
    return Moments(of.mean, ((vectors * values.clamp_min(0)) @ vectors.mT).reshape(of.covariance.shape))


def _law(of: Moments, exact: Moments) -> Law:
    mean, C = exact.mean.reshape(-1), exact.covariance.reshape(exact.mean.numel(), -1)
    other = of.covariance.reshape(C.shape).to(C)
    shift = of.mean.reshape(-1).to(mean) - mean
    size = float(C.norm())
    return Law(
        w2=gaussian_wasserstein(of.mean.to(mean), other, mean, C),
        mean_error=float(shift.square().mean().sqrt()),
        covariance_error=float((other - C).norm()) / size if size else math.nan,
        effective_rank=_effective_rank(other),
    )


def _effective_rank(C: Tensor) -> float:
    return float(C.trace().square() / C.square().sum()) if float(C.square().sum()) else 0.0


def _floor(mean: Tensor, C: Tensor, s: int, block: int = 4096) -> Moments:
    """Return the empirical moments of s draws from N(mean, C), with a fixed seed: a diagnosis can be repeated."""
    values, vectors = torch.linalg.eigh(C)
    R = vectors * values.clamp_min(0).sqrt()
    generator = torch.Generator().manual_seed(s)
    total = EmpiricalMoments()
    for start in range(0, s, block):
        zeta = torch.randn(min(block, s - start), len(R), generator=generator, dtype=torch.float64, device="cpu").to(R)
        total.add(zeta @ R.mT)
    return Moments(mean.reshape(-1) + total.moments.mean, total.moments.covariance)


def _implied(paths: AbstractPaths, gp: GP, x: Tensor) -> Moments | None:
    """Return the law of infinitely many paths with these bases; None if it has no closed form."""
    if isinstance(paths, OutputPaths):
        parts = [_implied(p, g, x) for p, g in zip(paths.functions, gp.models, strict=True)]
        return None if any(part is None for part in parts) else side_by_side([p for p in parts if p is not None])
    if isinstance(gp, SelectedOutputs):
        whole = _implied(paths.functions[0], gp.model, x)
        return None if whole is None else select(whole, gp.outputs)
    if isinstance(paths, EnsemblePaths) or isinstance(gp, Ensemble):
        return None  # each path belongs to a random member
    centres = gp.num_data if isinstance(gp, ExactGP) else gp.num_inducing
    if isinstance(paths, LinearModelPaths):
        return weight_space_moments(gp, paths, x) if paths.update.num_centres == 0 else None
    assert isinstance(paths, PriorPlusUpdate)
    whole = paths.update.num_centres == centres  # if not, the paths were given more data later
    return decoupled_moments(gp, paths, x) if whole and paths.prior.kept is None else None


def _kernel_error(members: list[PriorPlusUpdate], gp: GP, x: Tensor) -> KernelError | None:
    """Return the kernel's error over all outputs; None for an ensemble, whose members have different kernels."""
    models = leaves(gp)
    if isinstance(gp, Ensemble) or len(models) != len(members):
        return None
    errors = [kernel_error(p, g.kernel, inner_points(g, x)) for p, g in zip(members, models, strict=True)]
    return KernelError(math.sqrt(sum(e.rms**2 for e in errors) / len(errors)), max(e.largest for e in errors))


def _members(paths: AbstractPaths) -> list[PriorPlusUpdate]:
    if isinstance(paths, PriorPlusUpdate):
        return [paths]
    parts = paths.members if isinstance(paths, EnsemblePaths) else paths.functions
    return [leaf for part in parts for leaf in _members(part)]


def _in_closed_form(paths: AbstractPaths, gp: GP) -> tuple[AbstractPaths, GP]:
    """Remove output transforms that are not affine, so that laws are compared before the transform."""
    if not isinstance(gp, ExactGP | SparseGP) or gp.output_transform is None or gp.output_transform.affine:
        return paths, gp
    assert isinstance(paths, PriorPlusUpdate)
    return paths.in_model_units(), gp.replaced(output_transform=None)


def _advice(
    found: Diagnosis, members: list[PriorPlusUpdate], gp: GP, x: Tensor, exact: Moments
) -> tuple[str, Settings]:
    """Return advice as text, and settings for `draw` that were tried out on the model."""
    if found.basis is None or found.one_basis is None:
        if found.paths.w2 <= 1.2 * found.floor.w2:
            return "Good enough: these paths are as close to the posterior as exact draws.", {}
        return "Draw again: these paths are farther from the posterior than exact draws are.", {}
    one, every = (law.w2 / found.spread if found.spread else 0.0 for law in (found.one_basis, found.basis))
    if one <= _GOOD.of_one and every <= _GOOD.of_all:
        errors = f"within {one:.2g} of a standard deviation for one basis, {every:.2g} for all paths together"
        return f"Good enough: the law of these paths is {errors}.", {}
    s, prior = members[0].num_paths, members[0].prior
    lattice = any(isinstance(part, Lattice) for part in prior.features.bases)
    weight_space = any(isinstance(member, LinearModelPaths) for member in members)
    words, settings = "", Settings()
    since = [member for member in members if member.update.num_data > member.prior.drawn_given]
    if since and not weight_space:
        count = 1024 if lattice else prior.num_features
        settings = _advised_features(gp, x, exact, found.spread, s, count, prior.num_bases)
        given, n = since[0].prior.drawn_given, since[0].update.num_data
        words = (
            f"Draw again: the basis was chosen given {given} of these {n} observations, and has too few functions for "
            "the others. In a loop that keeps its functions, call paths.refreshed(keep=points, where=x) before "
            "paths.condition_on(x, ...). Draw with "
        )
    if not settings and not weight_space and _fits_a_lattice(gp, len(prior.features.origin)):
        words, settings = _advised_lattice(gp, x, exact, found.spread, s, lattice)
    if not settings:
        settings = _advised_features(gp, x, exact, found.spread, s, prior.num_features, prior.num_bases)
        words = "Other settings: draw with " if settings else _NOTHING
    if weight_space:
        words = "Another sampler: this one represents the data in weight space; use matheron.draw with "
    return words + ", ".join(f"{name}={value!r}" for name, value in settings.items()) + ".", settings


_NOTHING = "No settings were found: even 64 times as many leverage features are not enough; draw more paths"


def _advised_lattice(gp: GP, x: Tensor, exact: Moments, spread: float, s: int, lattice: bool) -> tuple[str, Settings]:
    """Return settings of a lattice that is good enough for s paths, with the reason; empty if there is none."""
    box = (x.amin(0).tolist(), x.amax(0).tolist())
    if not lattice:
        tried, words = [Settings(domain=box)], "Other features: a lattice has far smaller errors; draw with "
    else:
        tried = [Settings(features="lattice", domain=box, tolerance=t) for t in (1e-3, 1e-4, 1e-6)]
        words = "More modes: draw with "
    for settings in tried:
        try:
            drawn = draw(gp, min(s, 64), seed=0, **settings)  # few draws, since a path may have a million weights
        except (ValueError, TypeError):
            continue
        every, one = _implied(drawn, gp, x), _one_basis(drawn, gp, x, exact)
        if every is None or one is None:
            continue
        if max(one.w2, _law(every, exact).w2) <= _GOOD.of_all / _GOOD.margin * spread:
            return words, settings
    return words, Settings()


def _advised_features(
    gp: GP, x: Tensor, exact: Moments, spread: float, s: int, num_features: int, num_bases: int
) -> Settings:
    """Return numbers of leverage features and of bases that are good enough for s paths; empty if none was found."""
    for factor in (1, 4, 16, 64):
        count = factor * num_features
        error = _GOOD.margin * _error_of_one(gp, x, exact, count) / spread
        needed = math.ceil((error / _GOOD.of_all) ** 2)  # errors of independent bases average out
        if error <= _GOOD.of_one and needed <= s:
            together = max(1, min(math.ceil(s / num_bases), s // needed))
            return Settings(features="leverage", num_features=count, paths_per_basis=together)
    return Settings()


def _fits_a_lattice(gp: GP, d: int) -> bool:
    terms = [term for single in leaves(gp) for term in single.kernel.terms(d) if term.stationary]
    few = all(len(term.active_dims(d)) <= LARGEST_DIM and not term.forms for term in terms)
    return bool(terms) and few


def _error_of_one(gp: GP, x: Tensor, exact: Moments, num_features: int) -> float:
    """Return the largest W2 of three bases of leverage features; infinity if they cannot be drawn."""
    try:
        drawn = draw(gp, 3, paths_per_basis=1, seed=0, features="leverage", num_features=num_features)
    except (ValueError, TypeError):
        return math.inf
    return max(_law(law, exact).w2 for i in range(3) if (law := _implied(drawn[i : i + 1], gp, x)) is not None)
