"""The law that a basis implies, in closed form: a sampler's error without the noise of sampling."""

from __future__ import annotations

import torch

from ..checks import ArrayLike
from ..features import Features
from ..libraries import describe
from ..paths import PriorPlusUpdate
from ..solvers.cholesky import safe_cholesky
from .closed_form import Moments, mixture, outer, shaped
from .conditionals import Factored, PriorAt, inner_points, single
from .linear_model import design, shared_bases, wide_bases


def decoupled_moments(model: object, basis: Features | PriorPlusUpdate, x: ArrayLike) -> Moments:
    """The moments of decoupled paths, `eqn:decoupled_sample_path`, whose prior has these features.

        m = K_*m K_mm^-1 mu_u                            the posterior's own, whatever the basis
        C = J J^T + K_*m K_mm^-1 Sigma_u K_mm^-1 K_m*    with J = Phi_* - K_*m K_mm^-1 Phi_m

    For an exact model K_mm is K_nn + sigma^2 I, and Sigma_u is sigma^2 I. Given paths, their bases count as often as
    they are used.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.samplers import decoupled_moments, moments
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> x = torch.rand(5, 1)
    >>> paths = matheron.draw(gp, 8, num_features=512)
    >>> error = decoupled_moments(gp, paths, x).covariance - moments(gp, x).covariance
    >>> bool(error.abs().max() < 0.1)
    True
    """
    gp = single(describe(model))
    features, shares = shared_bases(basis, gp.centres.device)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        update = Factored(gp, at)
        G = torch.cholesky_solve(at.K_mx, update.L)  # K_mm^-1 K_m*, [m, n]
        C = (G.mT * update.noise) @ G
        if update.root is not None:
            S = G.mT @ update.root  # [n, r]
            C += S @ S.mT
        for wide in wide_bases(features, shares):
            J = wide(at.x_rows, at.x_tasks) - G.mT @ wide(at.centres, at.tasks)  # [n, g t ell]
            C += J @ J.mT
        return outer(gp, shaped(at.mean_x + G.mT @ update.target, C, gp.num_outputs))


def weight_space_moments(model: object, basis: Features | PriorPlusUpdate, x: ArrayLike) -> Moments:
    """The moments at x of the weight-space posterior, `eqn:blm_posterior_moments`; for a sparse model, of
    `eqn:matheron_gp_rff_sparse`. Over several bases they are those of the mixture.
    """
    gp = single(describe(model))
    features, shares = shared_bases(basis, gp.centres.device)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        update = Factored(gp, at)
        parts = [_linear_model(features.select(g), at, update) for g in range(len(shares))]
        return outer(gp, shaped(*mixture(parts, shares), gp.num_outputs))


def _linear_model(phi: Features, at: PriorAt, update: Factored) -> Moments:
    """The moments of one basis's posterior, by the smaller of the two systems where there is noise."""
    noise = update.noise
    Phi, Phi_x = design(phi, at.centres, at.tasks)[0], design(phi, at.x_rows, at.x_tasks)[0]  # [m, t ell], [n, t ell]
    m, size = Phi.shape
    if m > size and bool((noise > 0).all()) and update.root is None:
        weighted = Phi.mT / noise  # [t ell, m]
        L, _ = safe_cholesky(weighted @ Phi + torch.eye(size).to(Phi), "Phi^T Phi / noise + I")
        A = torch.linalg.solve_triangular(L, Phi_x.mT, upper=False)  # [t ell, n]
        mean = A.mT @ torch.linalg.solve_triangular(L, (weighted @ update.target)[:, None], upper=False)
        return Moments(at.mean_x + mean[:, 0], A.mT @ A)
    L, _ = safe_cholesky(Phi @ Phi.mT + noise.diag_embed(), "Phi Phi^T + noise")
    G = torch.cholesky_solve(Phi @ Phi_x.mT, L)  # [m, n]
    J = Phi_x - G.mT @ Phi  # [n, t ell]
    C = J @ J.mT + (G.mT * noise) @ G
    if update.root is not None:
        S = G.mT @ update.root
        C += S @ S.mT
    return Moments(at.mean_x + G.mT @ update.target, C)
