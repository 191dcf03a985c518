"""The Bayesian linear model f(.) = phi(.) . w behind a set of features, `eqn:bayes_linear`.

With t outputs the weights that are independent and standard normal, omega `[t, ell]`, are mixed into w = R omega by a
root of each basis's coupling; one row of the design is then R[task] (x) phi(x). All of it is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..bases import as_domain
from ..checks import ArrayLike, as_count
from ..features import Features, OnLattice, build_features
from ..gp import ExactGP, SparseGP
from ..paths import PriorPlusUpdate

# Columns of a wide basis made of several.
_WIDTH = 1 << 13


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
    centres = gp.centres.detach()
    per_basis = num_paths if paths_per_basis is None else as_count(paths_per_basis, "paths_per_basis")
    if not isinstance(features, Features):
        features = build_features(
            gp.kernel.owned(),
            gp.input_dim,
            as_count(num_features, "num_features"),
            kind=features,
            num_bases=math.ceil(num_paths / per_basis),
            origin=centres.double().mean(0).cpu(),
            domain=as_domain(domain, gp.input_dim, gp.input_transform, centres),
            reference=centres,
            generator=generator,
        )
    if features.origin.shape[0] != gp.input_dim:
        raise ValueError(f"features: made for {features.origin.shape[0]} dimensions, got a model of {gp.input_dim}")
    features = features.to(centres.device, torch.float64)
    return features, torch.arange(num_paths, device=centres.device) // per_basis % features.num_bases


def one_basis(features: Features, g: int) -> Features:
    """Version g of features that have several."""
    return features.with_bases([basis.select(slice(g, g + 1)) for basis in features.bases])


def design(features: Features, x: Tensor, tasks: Tensor | None) -> Tensor:
    """Phi at points `[n, d]` with tasks `[n]`: `[g, n, t ell]`, one per basis, so that f = Phi omega."""
    Phi = features(x)  # [g, n, ell]
    if tasks is None:
        return Phi
    parts = Phi.split([basis.size for basis in features.bases], dim=-1)
    blocks = zip(features.roots, parts, strict=True)
    rows = [R[tasks][:, :, None] * part[:, :, None] for R, part in blocks if R is not None]  # [g, n, t, c]
    return torch.cat(rows, dim=-1).flatten(2)


def wide_bases(features: Features, shares: Tensor) -> Iterator[Callable[[Tensor, Tensor | None], Tensor]]:
    """Some bases at a time, as one wide basis: maps (x, tasks) to `[n, g t ell]`, columns scaled by sqrt(share).

    Sums over bases of share * Phi Phi^T are then products of wide matrices, and few.
    """
    on_lattices = [isinstance(basis, OnLattice) for basis in features.bases]
    if any(on_lattices):
        for basis, root, lattice in zip(features.bases, features.roots, on_lattices, strict=True):
            for part in basis.parts(_WIDTH, features.origin.shape[0]) if lattice else [basis]:
                one = features.with_bases([part], [root])
                yield from wide_bases(one, shares if part.num_bases > 1 else shares.sum()[None])
        return
    step = max(1, _WIDTH // features.num_features)
    for start in range(0, features.num_bases, step):
        cut = slice(start, start + step)
        some = features.with_bases([basis.select(cut) for basis in features.bases])
        scale = shares[cut, None, None].sqrt()

        def wide(x: Tensor, tasks: Tensor | None, some: Features = some, scale: Tensor = scale) -> Tensor:
            return (design(some, x, tasks) * scale).transpose(0, 1).flatten(1)

        yield wide


def mixed(features: Features, omega: Tensor) -> Tensor:
    """w = R omega: `[s, t ell] -> [s, t, ell]`."""
    if features.roots[0] is None:
        return omega[:, None]
    parts = omega.reshape(len(omega), -1, features.num_features).split([b.size for b in features.bases], dim=-1)
    blocks = zip(features.roots, parts, strict=True)
    return torch.cat([R @ part for R, part in blocks if R is not None], dim=-1)


def shared_bases(basis: Features | PriorPlusUpdate, device: torch.device) -> tuple[Features, Tensor]:
    """Features in float64, and each basis's share `[g]`: that of the paths which use it, where paths are given."""
    if isinstance(basis, PriorPlusUpdate):
        features, index = basis.prior.features, basis.prior.basis_index
        counts = torch.bincount(index, minlength=features.num_bases).double()
    elif isinstance(basis, Features):
        features, counts = basis, torch.ones(basis.num_bases, dtype=torch.float64)
    else:
        raise TypeError(f"basis: expected Features or Paths, got {type(basis).__name__}")
    return features.to(device, torch.float64), (counts / counts.sum()).to(device)


def feature_covariance(basis: Features | PriorPlusUpdate, x: Tensor, tasks: Tensor | None = None) -> Tensor:
    """k^(w)(x, x), the covariance that features give the prior, `[n, n]`; over several bases, their mean.

    Points are of the model's own space; `tasks` `[n]` says which output each is of, where there are several.
    """
    features, shares = shared_bases(basis, x.device)
    x = x.detach().double()
    K = x.new_zeros(len(x), len(x))
    with torch.no_grad():
        for wide in wide_bases(features, shares):
            Phi = wide(x, tasks)  # [n, g t ell]
            K += Phi @ Phi.mT
    return K
