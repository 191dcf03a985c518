"""The prior's basis as a user asks for it, and functions drawn on it: f(.) = sum_i w_i phi_i(.)."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .checks import ArrayLike, as_box, as_count, as_points
from .features import LATTICE_KINDS, Accuracy, Features, build_features, posterior_scale
from .gp import ExactGP, SparseGP
from .kernels import Kernel
from .paths import PriorPaths
from .solvers import Posterior
from .transforms import Transform
from .updates import normals

Single = TypeVar("Single", bound=ExactGP | SparseGP)


class Basis(NamedTuple):
    """What a user says of the prior's basis."""

    num_features: int
    features: str | Features
    paths_per_basis: int | None
    domain: tuple[ArrayLike, ArrayLike] | None
    tolerance: float
    where: ArrayLike | None = None


def features_for(
    kernel: Kernel,
    s: int,
    centres: Tensor,
    basis: Basis,
    generator: torch.Generator,
    posterior: Posterior | None = None,
    input_transform: Transform | None = None,
    noise: Tensor | None = None,
    joined: bool = False,
    largest: int | None = None,
) -> Features:
    """phi: the basis that was asked for, for points like the centres; `posterior` is None where there are no data."""
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
        data = None if noise is None else centres.detach()
        box = as_domain(basis.domain, d, input_transform, data)
        accuracy = None
        if box is not None and features in ("auto", *LATTICE_KINDS):
            needed = None
            if data is not None and noise is not None:  # in one dimension modes for clusters of data, too, are few
                # zero where the prior has no variance at the data, which then say nothing
                needed = posterior_scale(kernel, data, noise, at_data=joined or d == 1) or None
            # Given data on the lattice itself, ten times the share errs as little: variances by a thousandth.
            needed = None if needed is None else needed * (10 if joined else 1)
            accuracy = Accuracy(basis.tolerance, needed, s, joined, largest)
        features = build_features(
            kernel.to("cpu"),  # where terms of all kinds meet; a model's may be on a GPU
            d,
            as_count(basis.num_features, "num_features"),
            kind=features,
            num_bases=math.ceil(s / _per_basis(basis, s)),
            origin=centres.detach().double().mean(0).cpu(),
            domain=box,
            reference=data,
            generator=generator,
            accuracy=accuracy,
            posterior=posterior,
            where=_inner(basis.where, d, input_transform),
        )
    return features.to(centres.device, centres.dtype)


def prior_on(
    features: Features, s: int, t: int, centres: Tensor, basis: Basis, generator: torch.Generator
) -> PriorPaths:
    """f(.) = sum_i w_i phi_i(.): weights for every path, and a basis for some paths each."""
    w = normals((s, t, features.num_features), generator).to(centres)
    if t > 1:  # mix the outputs' independent weights with a root of B
        parts = w.split([b.size for b in features.bases], dim=-1)
        w = torch.cat([R @ part for R, part in zip(features.roots, parts, strict=True) if R is not None], dim=-1)
    basis_index = torch.arange(s, device=centres.device) // _per_basis(basis, s) % features.num_bases
    return PriorPaths(features, w, basis_index)


def _per_basis(basis: Basis, s: int) -> int:
    return s if basis.paths_per_basis is None else as_count(basis.paths_per_basis, "paths_per_basis")


def placed(gp: Single, dtype: torch.dtype | None, device: torch.device | str | None, detach: bool) -> Single:
    """The snapshot in the paths' dtype, on their device. With `detach` it shares nothing with the model.

    The kernel stays in float64, for its features.
    """
    gp = gp.owned() if detach else gp
    dtype, device = dtype or gp.centres.dtype, torch.device(device or gp.centres.device)
    return gp.to(device, dtype).replaced(kernel=gp.kernel)


def as_tolerance(tolerance: float) -> float:
    """A share between 0 and 1."""
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected a number between 0 and 1, such as 1e-3, got {tolerance!r}")
    return float(tolerance)


def _inner(where: ArrayLike | None, d: int, input_transform: Transform | None) -> Tensor | None:
    """Points `[n, d]` in the model's own space, in float64 on the CPU."""
    if where is None:
        return None
    x = as_points(where, "where", input_dim=d).detach().double().cpu()
    return x if input_transform is None else input_transform.to("cpu", torch.float64)(x).detach()


def as_domain(
    domain: ArrayLike | None, d: int, input_transform: Transform | None, data: Tensor | None
) -> Tensor | None:
    """The box `[2, d]` where paths will be called, in the model's own space; it takes in the data."""
    if domain is None:
        return None
    box = as_box(domain, "domain", input_dim=d).double().cpu()
    if input_transform is not None:
        box = input_transform.to("cpu", torch.float64)(box).sort(0).values.detach()
    if data is not None:
        lower, upper = data.detach().double().cpu().aminmax(dim=0)
        box = torch.stack([torch.minimum(box[0], lower), torch.maximum(box[1], upper)])
    return box
