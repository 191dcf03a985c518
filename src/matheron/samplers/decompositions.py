"""The appendix's other ways to take a sparse posterior apart, and the harm they do.

Both ask a linear model of ell features to pass exactly through given values at the m inducing points (u itself, or
zero). It has few functions that do, and these are wild elsewhere. Decoupled paths leave that task to k(., Z).
"""

from __future__ import annotations

import torch

from ..bases import Basis
from ..checks import ArrayLike, Random, as_count, as_generator
from ..features import Features
from ..gp import SparseGP
from ..libraries import describe
from ..updates import normals, weight_space_update
from .conditionals import Factored, PriorAt, single
from .linear_model import design, linear_features
from .linear_posterior import LinearModelPaths, linear_model_paths


def weight_space_sparse(
    model: object,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "cosine",
    paths_per_basis: int | None = None,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearModelPaths:
    """Draw functions phi(.) . w from a sparse model's posterior in weight space, `eqn:matheron_gp_rff_sparse`.

        w | u  =  w + Phi^T (Phi Phi^T)^-1 (u - Phi w),      u ~ q(u),  Phi = phi(Z)

    Arguments are those of `weight_space`.
    """
    basis = Basis(num_features, features, paths_per_basis, domain)
    return _draw(model, num_paths, basis, as_generator(generator, seed), dtype, device, orthogonal=False)


def orthogonal(
    model: object,
    num_paths: int,
    *,
    num_features: int = 1024,
    features: str | Features = "cosine",
    paths_per_basis: int | None = None,
    domain: tuple[ArrayLike, ArrayLike] | None = None,
    generator: Random = None,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> LinearModelPaths:
    """Draw functions from a sparse model's posterior as a sum of independent parts, f = f_par + f_perp (appendix A).

        f_par(.)   =  k(., Z) K_mm^-1 u,      u ~ q(u)
        f_perp(.)  =  phi(.) . (w - Phi^T (Phi Phi^T)^-1 Phi w)           zero at Z

    The features are of k - k(., Z) K_mm^-1 k(Z, .), the covariance of f_perp. Arguments are those of `weight_space`.
    """
    basis = Basis(num_features, features, paths_per_basis, domain)
    return _draw(model, num_paths, basis, as_generator(generator, seed), dtype, device, orthogonal=True)


def _draw(
    model: object,
    num_paths: int,
    basis: Basis,
    generator: torch.Generator,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    *,
    orthogonal: bool,
) -> LinearModelPaths:
    s, gp = as_count(num_paths, "num_paths"), single(describe(model))
    if not isinstance(gp, SparseGP):
        raise TypeError("expected a sparse model, got one of data; see samplers.weight_space")
    with torch.no_grad():
        phi, basis_index = linear_features(gp, s, basis, generator)
        at = PriorAt(gp, gp.inducing_points[:0].detach().double())
        update = Factored(gp, at)
        omega = normals((s, gp.num_outputs * phi.num_features), generator).to(at.centres)
        u = update.draws(s, generator)  # [s, m], less the prior mean
        eps = update.noise.sqrt() * normals((s, len(at.centres)), generator).to(at.centres)
        aim, known = 0 * u if orthogonal else u, gp.q_mean is not None
        mean_aim = update.target if known and not orthogonal else 0 * u[0]
        means = omega.new_zeros(phi.num_bases, omega.shape[1])
        for g in basis_index.unique().tolist():
            Phi, mine = design(phi.select(g), at.centres, at.tasks)[0], basis_index == g  # [m, t ell], [s]
            omega[mine] = weight_space_update(Phi, omega[mine], aim[mine], update.noise, eps[mine])
            means[g] = weight_space_update(Phi, 0 * omega[:1], mean_aim, update.noise, 0 * eps[:1])[0]
        v, v_mean = omega[:, :0], omega[:1, :0]
        if orthogonal:
            v = torch.cholesky_solve(u.mT, update.L).mT  # [s, m]
            v_mean = torch.cholesky_solve(update.target[:, None], update.L).mT if known else None  # [1, m]
        return linear_model_paths(gp, phi, omega, means, basis_index, (v, v_mean if known else None), dtype, device)
