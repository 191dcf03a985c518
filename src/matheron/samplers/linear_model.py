"""The Bayesian linear model f(.) = phi(.) . w behind a set of features, `eqn:bayes_linear`.

With t outputs the weights that are independent and standard normal, omega `[t, ell]`, are mixed into w = R omega by a
root of each basis's coupling; one row of the design is then R[task] (x) phi(x). All of it is in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..bases import Basis, features_for
from ..features import Features, OnLattice
from ..gp import ExactGP, SparseGP
from ..paths import PriorPlusUpdate

# Columns of a wide basis made of several.
_WIDTH = 1 << 13


def linear_features(
    gp: ExactGP | SparseGP, s: int, basis: Basis, generator: torch.Generator
) -> tuple[Features, Tensor]:
    """Features of the model's prior in float64, and which of their bases each path uses, `[s]`."""
    centres = gp.centres.detach().double()
    features = features_for(gp.kernel.owned(), s, centres, basis, generator, input_transform=gp.input_transform)
    return features, basis.index(features, s)


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
        some = features.select(cut)
        scale = shares[cut, None, None].sqrt()

        def wide(x: Tensor, tasks: Tensor | None, some: Features = some, scale: Tensor = scale) -> Tensor:
            return (design(some, x, tasks) * scale).transpose(0, 1).flatten(1)

        yield wide


def shared_bases(basis: Features | PriorPlusUpdate, device: torch.device) -> tuple[Features, Tensor]:
    """Features in float64, and each basis's share `[g]`: that of the paths which use it, where paths are given."""
    if isinstance(basis, PriorPlusUpdate):
        features, index = basis.prior.features, basis.prior.basis_index
        counts = torch.bincount(index, minlength=features.num_bases).double()
    elif isinstance(basis, Features):
        features, counts = basis, torch.ones(basis.num_bases, dtype=torch.float64, device="cpu")
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
