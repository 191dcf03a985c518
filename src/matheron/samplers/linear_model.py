"""The Bayesian linear model f(.) = phi(.) . w behind a set of features, `eqn:bayes_linear`.

With t outputs the weights that are independent and standard normal, omega `[t, ell]`, are mixed into w = R omega by a
root of each basis's coupling; one row of the design is then R[task] (x) phi(x). All of it is in float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import ArrayLike, as_count
from ..draw import _as_domain
from ..features import Features, build_features
from ..gp import ExactGP, SparseGP
from ..paths import Paths


def features_for(
    gp: ExactGP | SparseGP,
    num_paths: int,
    num_features: int,
    features: str | Features,
    paths_per_basis: int | None,
    domain: tuple[ArrayLike, ArrayLike] | None,
    generator: torch.Generator,
) -> tuple[Features, Tensor]:
    """Features of the model's prior in float64, and which of their bases each path uses, `[s]`."""
    centres = (gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points).detach()
    per_basis = num_paths if paths_per_basis is None else as_count(paths_per_basis, "paths_per_basis")
    if not isinstance(features, Features):
        features = build_features(
            gp.kernel.owned(),
            gp.input_dim,
            as_count(num_features, "num_features"),
            kind=features,
            num_bases=math.ceil(num_paths / per_basis),
            origin=centres.double().mean(0).cpu(),
            domain=_as_domain(domain, gp.input_dim, gp.input_transform, centres),
            reference=centres,
            generator=generator,
        )
    if features.origin.shape[0] != gp.input_dim:
        raise ValueError(f"features: made for {features.origin.shape[0]} dimensions, got a model of {gp.input_dim}")
    features = features.to(centres.device, torch.float64)
    return features, torch.arange(num_paths, device=centres.device) // per_basis % features.num_bases


def one_basis(features: Features, g: int) -> Features:
    """Version g of features that have several."""
    bases = [basis.select(slice(g, g + 1)) for basis in features.bases]
    return Features(bases, features.roots, features.origin, features.domain, features.description)


def design(features: Features, x: Tensor, tasks: Tensor | None) -> Tensor:
    """Phi of one basis at points `[n, d]` with tasks `[n]`: `[n, t ell]`, so that f = Phi omega."""
    Phi = features(x)  # [1, n, ell]
    if tasks is None:
        return Phi[0]
    parts = Phi[0].split([basis.size for basis in features.bases], dim=-1)
    blocks = zip(features.roots, parts, strict=True)
    rows = [R[tasks][:, :, None] * part[:, None] for R, part in blocks if R is not None]  # [n, t, c]
    return torch.cat(rows, dim=-1).flatten(1)


def mixed(features: Features, omega: Tensor) -> Tensor:
    """w = R omega: `[s, t ell] -> [s, t, ell]`."""
    if features.roots[0] is None:
        return omega[:, None]
    parts = omega.reshape(len(omega), -1, features.num_features).split([b.size for b in features.bases], dim=-1)
    blocks = zip(features.roots, parts, strict=True)
    return torch.cat([R @ part for R, part in blocks if R is not None], dim=-1)


def weight_count(features: Features, num_outputs: int) -> int:
    """How many independent weights a function has: t ell."""
    return num_outputs * features.num_features


def shared_bases(basis: Features | Paths, device: torch.device) -> tuple[Features, Tensor]:
    """Features in float64, and each basis's share `[g]`: that of the paths which use it, where paths are given."""
    if isinstance(basis, Paths):
        features, index = basis.prior.features, basis.prior.basis_index
        counts = torch.bincount(index, minlength=features.num_bases).double()
    elif isinstance(basis, Features):
        features, counts = basis, torch.ones(basis.num_bases, dtype=torch.float64)
    else:
        raise TypeError(f"basis: expected Features or Paths, got {type(basis).__name__}")
    return features.to(device, torch.float64), (counts / counts.sum()).to(device)


def feature_covariance(basis: Features | Paths, x: Tensor, tasks: Tensor | None = None) -> Tensor:
    """k^(w)(x, x), the covariance that features give the prior, `[n, n]`; over several bases, their mean.

    Points are of the model's own space; `tasks` `[n]` says which output each is of, where there are several.
    """
    features, shares = shared_bases(basis, x.device)
    x = x.detach().double()
    K = x.new_zeros(len(x), len(x))
    with torch.no_grad():
        for g, share in enumerate(shares.tolist()):
            Phi = design(one_basis(features, g), x, tasks)  # [n, t ell]
            K += share * (Phi @ Phi.mT)
    return K
