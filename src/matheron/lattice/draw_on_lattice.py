"""Draws whose data are solved for on a Fourier lattice: data in memory, or data that are read in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..core.sites import Sites
from ..features import FeatureSpec, make_features
from ..models import ExactGP, SparseGP, cast_model
from ..models.observations import Observations
from ..models.streamed import StreamedGP
from ..paths import ExactUpdate, Paths, prior_on
from ..solvers import Auto, Cholesky, FactoredPosterior, Solver
from ..solvers.operator import KernelOperator
from .kinds import TooManyKinds, located
from .series import NoJointLattice
from .system import LARGEST_INFORMATION, Joint, largest_dense, rows_of
from .update import LARGEST_MEAN_ERROR, Conditioning, FourierLattice, given_on_lattice, warn_of_misfit

_NO_LATTICE = (
    "a solve on a lattice needs a kernel whose stationary terms, of up to 3 dimensions, fit on one lattice, and whose "
    "others are constant, linear, polynomial or periodic; products of stationary and linear kernels have no series; "
    'got {kernel!r} ({why}); use an ExactGP with solver="cholesky" or "cg"'
)
_TOO_MANY_KINDS = (
    'solver="lattice": {why}, such as values, gradients and averages over boxes of equal size are; use solver="cg" or '
    '"cholesky"'
)


def drawn_on_lattice(
    gp: ExactGP | SparseGP, s: int, spec: FeatureSpec, solver: Solver, detach: bool, generator: torch.Generator
) -> Paths | None:
    """Draw paths with the data solved for on a lattice. None if that is not requested, would not be faster, or would
    not be accurate.

    The mean, which is solved for first, decides whether it is accurate. No random number is drawn before that is known.
    """
    asked = isinstance(solver, FourierLattice)
    # With fewer data, dense solves with the exact kernel are faster than choosing the size of a lattice
    # (benchmarks/lattice.py).
    enough = isinstance(gp, ExactGP) and len(gp.sites) >= (500 if gp.sites.points.shape[1] == 1 else 1000)
    if not asked and not (isinstance(solver, Auto) and enough):
        return None
    if not (_fits(spec, detach) and isinstance(gp, ExactGP) and bool((gp.noise > 0).all())):
        if asked:
            raise ValueError(
                'solver="lattice" needs an exact model with noise, domain=(lower, upper), features '
                '"auto" or "lattice", and detach=True; use solver="cholesky"'
            )
        return None
    with torch.no_grad():
        X, kernel, n = gp.sites.points, gp.kernel.to(gp.sites.points.device, gp.sites.points.dtype), len(gp.sites)
        try:  # errors that are raised here come before any factorisation, because this posterior needs no factor
            kinds, _, channels, scale = located(gp.sites, gp.num_outputs)
            noise = gp.noise if scale is None else gp.noise.double() / scale.square()
            num_channels = gp.num_outputs * (1 if kinds is None else 1 + len(kinds))
            largest = None if asked else largest_worthwhile(n, s, X.shape[1], num_channels)
            given = FactoredPosterior(gp.kernel, gp.sites, gp.noise, None)
            on_one = replace(spec, joint=True, largest_lattice=largest)
            # none of these features is random
            features = make_features(gp.kernel, on_one, generator, posterior=given, like=X)
            joint, why = Joint.of(features, gp.kernel), features.description
        except (NoJointLattice, TooManyKinds) as reason:
            if asked and isinstance(reason, TooManyKinds):
                raise ValueError(_TOO_MANY_KINDS.format(why=reason)) from None
            features, joint, why = None, None, reason
        if features is None or joint is None:
            if asked:
                raise ValueError(_NO_LATTICE.format(kernel=gp.kernel, why=why))
            return None
        joint = joint.with_kinds(kinds)
        if not (asked or can_be_solved(joint, noise, channels)):
            return None
        settings = solver if isinstance(solver, FourierLattice) else FourierLattice()
        conditioning = Conditioning(joint, kernel, gp.mean, features.origin, settings)
        data = conditioning.add(Observations(gp.sites, gp.train_targets, gp.noise))
        conditioning.solve_mean(s)
        dense = isinstance(solver, Auto) and isinstance(
            solver.choose(KernelOperator(kernel, gp.sites, gp.noise)), Cholesky
        )
        if dense and conditioning.mean_error(spec.tolerance) > LARGEST_MEAN_ERROR:
            return None
        prior = prior_on(features, spec.basis_index(features), gp.num_outputs, X, generator, n)
        conditioning.add_noise(data, s, generator)
        prior, update = conditioning.paths(prior)
        warn_of_misfit(update, spec.tolerance)
    return Paths(prior, update, gp.mean, gp.input_transform, gp.output_transform, gp.input_names)


def largest_worthwhile(n: int, s: int, d: int, num_channels: int, operations: int = 8000) -> int:
    """The number of modes above which a lattice takes longer than a dense solve, with its covariances, its factor and
    right-hand sides.

    `operations` are those of a lattice's solve for each entry of its transforms and each path, relative to an operation
    of a dense solve (benchmarks/lattice.py).
    """
    dense = 150 * n**2 + n**3 / 3 + 4 * n**2 * s
    return int(dense / (operations * (s + 1) * 2**d * num_channels))


def can_be_solved(basis: Joint, noise: Tensor, channels: Tensor | None) -> bool:
    """Whether a lattice can be solved accurately for data with this noise, and whether there are more data than weights
    that they determine.

    For fewer data, a dense factor is made in any case.
    """
    precision = 1 / noise.double()
    totals = [float(precision[mine].sum()) for mine in rows_of(channels, basis.num_channels)]
    information = basis.information(totals).sum(0)
    determined = min(largest_dense(noise.device), int((information > 0.1).sum()))
    return float(information.max()) <= 0.1 * LARGEST_INFORMATION and len(noise) > determined


def _fits(spec: FeatureSpec, detach: bool) -> bool:
    """Whether a lattice can provide the features that the prior is asked for."""
    return spec.domain is not None and spec.kind in ("auto", "lattice") and detach


@torch.no_grad()
def drawn_from_stream(
    streamed: StreamedGP,
    s: int,
    spec: FeatureSpec,
    solver: Solver,
    detach: bool,
    generator: torch.Generator,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> Paths:
    """Draw paths given data that are read twice in chunks: first for the size of the lattice, and then for the
    statistics that it keeps."""
    if not _fits(spec, detach) or not isinstance(solver, Auto | FourierLattice):
        raise ValueError(
            "draw: a StreamedGP is solved for on a lattice: it needs domain=(lower, upper), features and solver "
            '"auto" or "lattice", and detach=True'
        )
    settings = solver if isinstance(solver, FourierLattice) else FourierLattice(progress=solver.progress)
    gp: ExactGP = cast_model(streamed.model, dtype or torch.float64, device, True)

    def reading(label: str, total: int | None) -> Iterator[Observations]:
        from ..core.progress import tracked

        return tracked(streamed.chunks(), total, label, "chunks", show=settings.progress)

    survey = streamed.survey(reading("sizing the lattice", streamed.num_chunks))
    # the corners of the data's box, as two more data, because the lattice must cover them
    corners = survey.noise.mean().expand(2)
    centres, noise = torch.cat([survey.sample, survey.box]), torch.cat([survey.noise, corners])
    try:
        spec = replace(spec.inside(gp.input_transform, centres), joint=True)
        given = FactoredPosterior(gp.kernel, Sites(centres), noise, None)
        features = make_features(gp.kernel, spec, generator, posterior=given, like=gp.train_inputs)
    except NoJointLattice as reason:
        raise ValueError(_NO_LATTICE.format(kernel=gp.kernel, why=reason)) from None
    like = gp.train_inputs
    prior = prior_on(features, spec.basis_index(features), gp.num_outputs, like, generator, survey.num_data)
    empty = ExactUpdate.empty(gp.kernel, like, s)
    mean, again = gp.mean.to(torch.float64), reading("reading data", survey.num_chunks)
    device = like.device
    chunks = (Observations(each.sites.to(device), each.y.to(device), each.noise.to(device)) for each in again)
    prior, update = given_on_lattice(prior, empty, mean, chunks, settings, generator)
    if update.num_data != survey.num_data:
        raise ValueError(
            f"data: expected the same on a second reading, got {survey.num_data} observations, then {update.num_data}"
        )
    warn_of_misfit(update, spec.tolerance)
    return Paths(prior, update, gp.mean, gp.input_transform, gp.output_transform, gp.input_names)
