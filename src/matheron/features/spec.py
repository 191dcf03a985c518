"""The prior's basis as a user asks for it, and functions drawn on it: f(.) = sum_i w_i phi_i(.)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.boxes import as_box
from ..core.checks import ArrayLike, as_count, as_points
from ..core.sites import Sites
from ..kernels import Kernel, coupled_diagonal
from ..models.transforms import Transform
from ..solvers import Cholesky, FactoredPosterior
from ..solvers.operator import KernelOperator
from .choose import LATTICE_KINDS, build_features
from .features import Accuracy, Asked, Features
from .leverage.reference import LARGEST_WHOLE
from .needed import posterior_scale

# The noise that data to come are taken to have, in variances of the prior.
_NOISE_TO_COME = 1e-6


class FeatureSpec(NamedTuple):
    """What a user says of the prior's basis."""

    num_features: int
    features: str | Features
    paths_per_basis: int | None
    domain: tuple[ArrayLike, ArrayLike] | None
    tolerance: float = 1e-3
    where: ArrayLike | None = None

    def shared_by(self, s: int) -> int:
        """How many of s paths share a basis."""
        return s if self.paths_per_basis is None else as_count(self.paths_per_basis, "paths_per_basis")

    def index(self, features: Features, s: int) -> Tensor:
        """Which of the bases each path uses, `[s]`."""
        return torch.arange(s, device=features.origin.device) // self.shared_by(s) % features.num_bases


def features_for(
    kernel: Kernel,
    s: int,
    centres: Tensor,
    basis: FeatureSpec,
    generator: torch.Generator,
    *,
    observed: bool = True,
    posterior: FactoredPosterior | None = None,
    input_transform: Transform | None = None,
    noise: Tensor | None = None,
    joined: bool = False,
    largest: int | None = None,
) -> Features:
    """phi: the basis that was asked for, of the centres' dtype and on their device.

    The centres are data, or inducing points, unless `observed` is False; `noise` is theirs where it is known, and
    `posterior` what else is. `joined` and `largest` are as in `Accuracy`.
    """
    d, t = centres.shape[1], kernel.num_outputs
    features = basis.features
    if isinstance(features, Features):
        if features.origin.shape[0] != d:
            raise ValueError(f"features: made for {features.origin.shape[0]} dimensions, got points in {d}")
        outputs = {1 if root is None else len(root) for root in features.roots} - {t}
        if outputs:
            raise ValueError(f"features: made for {outputs.pop()} outputs, got a kernel of {t}")
    else:
        noise = noise if posterior is None else posterior.noise
        data = centres.detach() if observed else None
        box = as_domain(basis.domain, d, input_transform, data)
        accuracy = Accuracy()
        if box is not None and features in ("auto", *LATTICE_KINDS):
            needed = None
            if data is not None and noise is not None:  # in one dimension modes for clusters of data, too, are few
                # zero where the prior has no variance at the data, which then say nothing
                needed = posterior_scale(kernel, data, noise, at_data=joined or d == 1) or None
            # Where data are solved for on the lattice too, its truncation error enters both terms and cancels to first
            # order: with ten times the share variances err by a thousandth. In one dimension, where modes are few, the
            # mean in the gaps between clusters of data needs as many as without.
            needed = None if needed is None else needed * (10 if joined and d > 1 else 1)
            accuracy = Accuracy(basis.tolerance, needed, s, joined, largest)
        asked = Asked(
            kind=features,
            num_features=as_count(basis.num_features, "num_features"),
            num_bases=math.ceil(s / basis.shared_by(s)),
            origin=centres.detach().double().mean(0).cpu(),
            generator=generator,
            domain=box,
            reference=data,
            accuracy=accuracy,
            posterior=posterior,
            where=inner_where(basis.where, d, input_transform),
        )
        features = build_features(kernel.to("cpu"), asked)  # where terms of all kinds meet; a model's may be on a GPU
    return features.to(centres.device, centres.dtype)


@torch.no_grad()
def posterior_at(kernel: Kernel, sites: Sites, noise: Tensor) -> FactoredPosterior:
    """The posterior given data at some sites, of this noise: for the choice of a basis, which needs no targets."""
    kernel, sites = kernel.to(noise.device, torch.float64), sites.double()
    operator = KernelOperator(kernel, sites, noise.double() + 1e-10 * coupled_diagonal(kernel, sites).mean())
    state = Cholesky().init(operator) if len(sites) <= LARGEST_WHOLE else None
    return FactoredPosterior(kernel, sites, operator.noise, state)


def to_come(kernel: Kernel, X: Tensor) -> tuple[Sites, Tensor]:
    """Points `[n, d]` as data to come of every output, and a noise that is as small as theirs may be.

    Frequencies for little noise also serve for more: those for much noise do not serve for less.
    """
    sites = Sites.every_output(X, kernel.num_outputs)
    return sites, _NOISE_TO_COME * coupled_diagonal(kernel.to(X.device, torch.float64), sites.double())


def as_tolerance(tolerance: float) -> float:
    """A share between 0 and 1."""
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected a number between 0 and 1, such as 1e-3, got {tolerance!r}")
    return float(tolerance)


def inner_where(where: ArrayLike | None, d: int, input_transform: Transform | None) -> Tensor | None:
    """Points `[n, d]` in the model's own space, in float64 on the CPU."""
    if where is None:
        return None
    d = d if input_transform is None else input_transform.input_dim(d)
    x = as_points(where, "where", input_dim=d).detach().double().cpu()
    return x if input_transform is None else input_transform.to("cpu", torch.float64)(x).detach()


def as_domain(
    domain: ArrayLike | None, d: int, input_transform: Transform | None, data: Tensor | None
) -> Tensor | None:
    """The box `[2, d]` where paths will be called, in the model's own space; it takes in the data."""
    if domain is None:
        return None
    d = d if input_transform is None else input_transform.input_dim(d)
    box = as_box(domain, "domain", input_dim=d).double().cpu()
    if input_transform is not None:
        lower, upper = input_transform.to("cpu", torch.float64).image(box).detach()
        flat = 0.5 * (upper <= lower)  # a column that is constant
        box = torch.stack([lower - flat, upper + flat])
    if data is not None:
        lower, upper = data.detach().double().cpu().aminmax(dim=0)
        box = torch.stack([torch.minimum(box[0], lower), torch.maximum(box[1], upper)])
    return box
