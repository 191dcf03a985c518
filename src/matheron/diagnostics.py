"""diagnose(paths, model, x): is this draw good enough, in numbers."""

from __future__ import annotations

import html
import io
import math
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor

from .checks import ArrayLike, as_points
from .describe import describe
from .features import LARGEST_DIM, Lattice
from .gp import Batch, Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP
from .metrics import EmpiricalMoments, KernelError, empirical_moments, gaussian_wasserstein, kernel_error
from .paths import AbstractPaths, EnsemblePaths, OutputPaths, PriorPlusUpdate, require_paths
from .samplers import LinearModelPaths, Moments, decoupled_moments, moments, weight_space_moments
from .samplers.closed_form import select, side_by_side
from .samplers.conditionals import inner_points

# The comparison is cubic in the number of values.
LARGEST_COUNT = 4096
_BLOCK = 4096


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
    basis: (
        Law | None
    )  # the law that the paths' basis implies, of infinitely many paths; None where it has no closed form
    kernel_error: KernelError | None  # of the prior that the basis implies
    spread: float  # the posterior's own size in W2's units, sqrt(tr C)
    effective_rank: float  # of the posterior
    num_paths: int
    num_values: int
    num_features: int
    num_bases: int
    advice: str
    features: str = ""  # what the prior's basis is, and for a lattice the error that it reached

    def __rich__(self) -> Group:
        table = Table(title=f"{self.num_paths} paths at {self.num_values} values, against the posterior")
        for column in ("", "these paths", "exact draws", "their basis"):
            table.add_column(column, justify="left" if column == "" else "right")
        laws = (self.paths, self.floor, self.basis)

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

    def plot(self, *, axes: Any = None) -> Any:
        """The distances as bars: `matheron.plots.plot_diagnosis`. Returns the axes."""
        from .plots import plot_diagnosis

        return plot_diagnosis(self, axes=axes)

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=100, color_system=None).print(self)
        return text.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def diagnose(paths: AbstractPaths, model: Any, x: ArrayLike) -> Diagnosis:
    """Compare drawn paths with the posterior they were drawn from, at points x `[n, d]`.

    Three laws are measured against the exact posterior: the empirical one of these paths; that of as many exact
    draws, which is the Monte Carlo floor; and, in closed form, the one that the paths' basis implies. Where several
    bases are used, the last is their average.

    Args:
        paths: from `matheron.draw`, or a sampler of `matheron.samplers` that answers functions.
        model: what they were drawn from.
        x: points that matter, some hundreds at the most: the cost is cubic in their number.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.diagnostics import diagnose
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> found = diagnose(matheron.draw(gp, 64), gp, torch.linspace(0, 1, 50)[:, None])
    >>> found.basis.w2 < found.floor.w2
    True
    """
    gp, paths = describe(model), require_paths(paths)
    x = as_points(x, "x", input_dim=gp.input_dim)
    if isinstance(gp, Batch):
        raise TypeError("diagnose: expected one model, got a batch; diagnose each of describe(model).models")
    if (paths.input_dim, paths.num_outputs) != (gp.input_dim, gp.num_outputs):
        raise ValueError(
            f"diagnose: expected paths of this model, {gp.num_outputs} outputs in {gp.input_dim} dimensions, got "
            f"{paths.num_outputs} in {paths.input_dim}"
        )
    if paths.num_paths < 2:
        raise ValueError("diagnose: expected at least two paths, for a covariance; draw more")
    count = len(x) * gp.num_outputs
    if not 1 <= count <= LARGEST_COUNT:
        raise ValueError(f"x: expected 1 to {LARGEST_COUNT} values (points times outputs), got {count}; take fewer")
    paths, gp = _in_closed_form(paths, gp)
    exact = _without_rounding(moments(gp, x))
    C = exact.covariance.reshape(count, count)
    implied = _implied(paths, gp, x)
    members = _members(paths)
    empirical = _law(empirical_moments(paths, x, block_size=_BLOCK), exact)
    floor = _law(_floor(exact.mean, C, paths.num_paths), exact)
    basis = None if implied is None else _law(implied, exact)
    return Diagnosis(
        paths=empirical,
        floor=floor,
        basis=basis,
        kernel_error=_kernel_error(members, gp, x),
        spread=math.sqrt(max(0.0, float(C.trace()))),
        effective_rank=_effective_rank(C),
        num_paths=paths.num_paths,
        num_values=count,
        num_features=max(member.prior.num_features for member in members),
        num_bases=max(member.prior.num_bases for member in members),
        advice=_advice(members, gp, empirical, floor, basis),
        features=members[0].prior.features.description,
    )


def _without_rounding(of: Moments) -> Moments:
    """The nearest covariance: where the data leave no variance, what is left is rounding of either sign."""
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


def _floor(mean: Tensor, C: Tensor, s: int) -> Moments:
    """The empirical moments of s draws from N(mean, C); from a seed of its own, so that a diagnosis is repeatable."""
    values, vectors = torch.linalg.eigh(C)
    R = vectors * values.clamp_min(0).sqrt()
    generator = torch.Generator().manual_seed(s)
    total = EmpiricalMoments()
    for start in range(0, s, _BLOCK):
        zeta = torch.randn(min(_BLOCK, s - start), len(R), generator=generator, dtype=torch.float64).to(R)
        total.add(zeta @ R.mT)
    return Moments(mean.reshape(-1) + total.moments.mean, total.moments.covariance)


def _implied(paths: AbstractPaths, gp: Any, x: Tensor) -> Moments | None:
    """The law of infinitely many paths with these bases, where it has a closed form."""
    if isinstance(paths, OutputPaths):
        parts = [_implied(p, g, x) for p, g in zip(paths.members, gp.models, strict=True)]
        return None if any(part is None for part in parts) else side_by_side([p for p in parts if p is not None])
    if isinstance(gp, SelectedOutputs):
        whole = _implied(paths.members[0], gp.model, x)
        return None if whole is None else select(whole, gp.outputs)
    if isinstance(paths, EnsemblePaths) or isinstance(gp, Ensemble):
        return None  # which member a path is of was drawn too
    centres = gp.num_data if isinstance(gp, ExactGP) else gp.num_inducing
    if isinstance(paths, LinearModelPaths):
        return weight_space_moments(gp, paths, x) if paths.update.num_centres == 0 else None
    assert isinstance(paths, PriorPlusUpdate)
    return (
        decoupled_moments(gp, paths, x) if paths.update.num_centres == centres else None
    )  # else: given more data since


def _kernel_error(members: list[PriorPlusUpdate], gp: Any, x: Tensor) -> KernelError | None:
    """Over all outputs; None for an ensemble, whose members have a kernel each."""
    models = _singles(gp)
    if isinstance(gp, Ensemble) or len(models) != len(members):
        return None
    errors = [kernel_error(p, g.kernel, inner_points(g, x)) for p, g in zip(members, models, strict=True)]
    return KernelError(math.sqrt(sum(e.rms**2 for e in errors) / len(errors)), max(e.largest for e in errors))


def _members(paths: AbstractPaths) -> list[PriorPlusUpdate]:
    if isinstance(paths, PriorPlusUpdate):
        return [paths]
    return [leaf for member in paths.members for leaf in _members(member)]


def _singles(gp: Any) -> list[Any]:
    if isinstance(gp, SelectedOutputs):
        return [gp.model]
    return [leaf for g in gp.models for leaf in _singles(g)] if isinstance(gp, Outputs | Ensemble) else [gp]


def _in_closed_form(paths: AbstractPaths, gp: Any) -> tuple[AbstractPaths, Any]:
    """Both without an output transform that is not affine: then they are compared in the model's own space."""
    if not isinstance(gp, ExactGP | SparseGP) or gp.output_transform is None or gp.output_transform.affine:
        return paths, gp
    assert isinstance(paths, PriorPlusUpdate)
    return paths.in_model_units(), gp.replaced(output_transform=None)


def _advice(members: list[PriorPlusUpdate], gp: Any, empirical: Law, floor: Law, basis: Law | None) -> str:
    """One line: what to do next."""
    s, prior = members[0].num_paths, members[0].prior
    if basis is None:
        if empirical.w2 <= 1.2 * floor.w2:
            return "Good enough: these paths are as close to the posterior as exact draws."
        error = empirical.w2
    else:
        if basis.w2 <= floor.w2:
            return f"Good enough: the basis's error, {basis.w2:.3g}, is below the noise of {s} paths, {floor.w2:.3g}."
        error = basis.w2
    if any(isinstance(member, LinearModelPaths) for member in members):
        return "Another sampler: this one holds the data in weight space; matheron.draw holds them in function space."
    d = members[0].input_dim
    terms = [term for term in _singles(gp)[0].kernel.terms(d) if term.stationary]
    dims = max((len(term.active_dims(d)) for term in terms), default=d)
    lattice = any(isinstance(part, Lattice) for part in prior.features.bases)
    if dims <= LARGEST_DIM and terms and not lattice and not any(term.forms for term in terms):
        return (
            f"Other features: a lattice errs far less in {dims} dimension{'s' if dims > 1 else ''}; draw with "
            "domain=(lower, upper)."
        )
    if lattice:
        return 'More modes: draw with features="lattice" and a smaller tolerance=.'
    if prior.num_bases < s:
        needed = math.ceil(prior.num_bases * 2 * (error / floor.w2) ** 2)
        per_basis = max(1, s // needed)
        return f"Another basis more often: draw with paths_per_basis={per_basis}; what bases err by averages out."
    factor = min(64, math.ceil((error / floor.w2) ** 2))
    return f"More features: draw with num_features={prior.num_features * factor}."
