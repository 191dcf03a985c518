"""The posterior's moments in closed form: what every sampler is measured against."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import ArrayLike, as_points
from ..gp import ExactGP, SparseGP
from ..kernels import Kernel, coupled_covariance
from ..solvers import covariance
from ..solvers.cholesky import safe_cholesky


class Moments(NamedTuple):
    """Mean `[n]` and covariance `[n, n]` at n points; `[n, t]` and `[n, t, n, t]` for t outputs. Always float64."""

    mean: Tensor
    covariance: Tensor


def moments(model: Any, x: ArrayLike) -> Moments:
    """The posterior mean and covariance of an exact or sparse Gaussian process at points x `[n, d]`.

    Exact, `eqn:gp_posterior_moments`:
        m = K_*n (K_nn + sigma^2 I)^-1 y        C = K_** - K_*n (K_nn + sigma^2 I)^-1 K_n*
    Sparse, `eqn:svgp_posterior_moments`:
        m = K_*m K_mm^-1 mu_u                   C = K_** + K_*m K_mm^-1 (Sigma_u - K_mm) K_mm^-1 K_m*

    They are computed and answered in float64, whatever the data's dtype: a reference must be better than what it judges.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.samplers import moments
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
    >>> moments(gp, [[0.0]])
    Moments(mean=tensor([1.], dtype=torch.float64), covariance=tensor([[0.5000]], dtype=torch.float64))
    """
    gp = as_gp(model)
    if isinstance(gp, SparseGP) and gp.q_mean is None:
        raise TypeError("moments: this q(u) is known by its draws alone (sample_u), so it has no closed form")
    with torch.no_grad():
        centres, tasks, kernel, x, x_tasks = frame(gp, x)
        x_rows = _rows(x, gp.num_outputs)  # [n t, d]
        prior_mean = at_outputs(gp, x)  # [n t]
        K_xx = covariance(kernel, x_rows, x_tasks)  # [n t, n t]
        K_mx = coupled_covariance(kernel, centres, tasks, x_rows, x_tasks)  # [m, n t]
        L, target, root = factored(gp, kernel, centres, tasks)
        A = torch.linalg.solve_triangular(L, K_mx, upper=False)  # L^-1 K_m*, [m, n t]
        a = torch.linalg.solve_triangular(L, target[:, None], upper=False)  # [m, 1]
        C = K_xx - A.mT @ A
        if root is not None:
            S = A.mT @ torch.linalg.solve_triangular(L, root, upper=False)  # K_*m K_mm^-1 root, [n t, r]
            C = C + S @ S.mT
        return shaped(prior_mean + (A.mT @ a)[:, 0], (C + C.mT) / 2, gp.num_outputs)


def as_gp(model: Any) -> ExactGP | SparseGP:
    """The description of a model."""
    if isinstance(model, ExactGP | SparseGP):
        return model
    raise TypeError(
        f"model: expected a matheron.ExactGP or matheron.SparseGP, got {type(model).__module__}.{type(model).__name__}; "
        "describe it by hand with one of these"
    )


def frame(gp: ExactGP | SparseGP, x: ArrayLike) -> tuple[Tensor, Tensor | None, Kernel, Tensor, Tensor | None]:
    """Centres and their tasks, the kernel, the points and their tasks, all in float64 on the centres' device."""
    centres = (gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points).detach().double()
    tasks = None if gp.tasks is None else gp.tasks.to(centres.device)
    points = as_points(x, "x", input_dim=gp.input_dim, like=centres).detach()
    t = gp.num_outputs
    x_tasks = torch.arange(t, device=centres.device).repeat(len(points)) if t > 1 else None
    return centres, tasks, gp.kernel.owned().to(device=centres.device, dtype=centres.dtype), points, x_tasks


def factored(
    gp: ExactGP | SparseGP, kernel: Kernel, centres: Tensor, tasks: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """L with L L^T = K + noise, what the update aims at less the prior mean `[m]`, and a root of Cov u `[m, r]` or None."""
    diagonal = gp.noise.to(centres) if isinstance(gp, ExactGP) else centres.new_full((len(centres),), gp.jitter)
    L, _ = safe_cholesky(covariance(kernel, centres, tasks) + diagonal.diag_embed(), "k(X, X) + noise")
    prior = at_outputs(gp, centres, tasks)  # [m]
    if isinstance(gp, ExactGP):
        return L, gp.train_targets.detach().to(centres) - prior, None
    assert gp.q_mean is not None
    target = gp.q_mean.detach().to(centres)
    root = gp.q_scale_tril
    root = None if root is None else root.detach().to(centres)
    root = root.diag_embed() if root is not None and root.ndim == 1 else root
    if gp.whitened:
        return L, L @ target, None if root is None else L @ root
    return L, target - prior, root


def at_outputs(gp: ExactGP | SparseGP, x: Tensor, tasks: Tensor | None = None) -> Tensor:
    """The prior mean at points `[n, d]`: of every output in turn `[n t]`, or of each point's own task `[n]`."""
    mean = gp.mean.to(device=x.device, dtype=x.dtype)(x[None])[0].detach().double()  # [n, 1 or t]
    mean = mean.expand(-1, gp.num_outputs)
    return mean.reshape(-1) if tasks is None else mean.gather(-1, tasks[:, None])[:, 0]


def shaped(mean: Tensor, C: Tensor, t: int) -> Moments:
    """Moments of the outputs in turn, `[n t]` and `[n t, n t]`, with the outputs' axis of its own."""
    if t == 1:
        return Moments(mean, C)
    n = len(mean) // t
    return Moments(mean.reshape(n, t), C.reshape(n, t, n, t))


def _rows(x: Tensor, t: int) -> Tensor:
    return x if t == 1 else x.repeat_interleave(t, dim=0)
