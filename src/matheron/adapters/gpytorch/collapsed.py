"""InducingPointKernel: sparse regression whose q(u) is known in closed form, given the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gpytorch import settings
from torch import Tensor

from ...gp import SparseGP
from ..refusal import BY_HAND
from .place import tensor
from .prior import Prior

if TYPE_CHECKING:
    from .exact import Around


def collapsed_regression(
    prior: Prior, index: tuple[int, ...], X: Tensor, tasks: Tensor | None, y: Tensor, noise: Tensor, transforms: Around
) -> SparseGP:
    """The q(u) with which GPyTorch predicts. With K_mm = L L^T, R = K_nm L^-T and M = I + R^T D^-1 R, whitened:

        u ~ N(M^-1 R^T D^-1 (y - m), M^-1),    D = noise + diag(K_nn - R R^T)

    The second part of D, FITC's, is in its predictions unless settings.sgpr_diagonal_correction is off; its training
    objective leaves it out.
    """
    kernel, mean = prior.kernel(index), prior.mean(index)
    Z = _inducing_points(prior, index)
    if tasks is not None or kernel.num_outputs > 1:
        raise TypeError(f"kernel: InducingPointKernel of a kernel of several tasks is not understood; {BY_HAND}")
    # All in float64: an inverse of K_mm in float32 would keep few digits.
    Zd, Xd = Z.double(), X.double()
    K_mm = kernel(Zd)  # [m, m]
    jitter = _jitter(K_mm.detach(), Z.dtype)
    eye = torch.eye(len(Zd), dtype=Zd.dtype, device=Zd.device)
    L = torch.linalg.cholesky(K_mm + jitter * eye)  # [m, m]
    R = torch.linalg.solve_triangular(L, kernel(Zd, Xd), upper=False).mT  # [n, m]
    D = noise.double()  # [n]
    if settings.sgpr_diagonal_correction.on():
        D = D + (kernel.to(Xd).diag(Xd) - R.square().sum(-1)).clamp_min(0)
    M = eye + R.mT @ (R / D[:, None])  # [m, m]
    L_M = torch.linalg.cholesky(M)
    root = torch.linalg.solve_triangular(L_M, eye, upper=False).mT  # L_M^-T, root root^T = M^-1
    residual = (y.double() - mean.to(Xd)(Xd[None])[0, :, 0]) / D  # [n]
    q_mean = root @ (root.mT @ (R.mT @ residual))  # [m]
    return SparseGP(kernel, Z, q_mean, root, mean, whitened=True, jitter=jitter, **transforms)


def _inducing_points(prior: Prior, index: tuple[int, ...]) -> Tensor:
    """Z as points of the model's inputs; an InducingPointKernel on some columns has no say on the others."""
    kernel = prior.collapsed
    assert kernel is not None
    if kernel.active_dims is not None:
        raise TypeError(
            f"kernel: InducingPointKernel with active_dims is not understood; give them to its base kernel, {BY_HAND}"
        )
    return prior.at(tensor(kernel.inducing_points), index, 2)


def _jitter(K: Tensor, dtype: torch.dtype) -> float:
    """What GPyTorch adds to K_mm's diagonal: nothing, unless its Cholesky factorisation fails."""
    K = K.to(dtype)
    eye = torch.eye(len(K), dtype=dtype, device=K.device)
    first, count = settings.cholesky_jitter.value(dtype) or 0.0, settings.cholesky_max_tries.value() or 0
    tries = [0.0, *(first * 10.0**i for i in range(count))]
    for jitter in tries:
        if not bool(torch.linalg.cholesky_ex(K + jitter * eye).info):
            return jitter
    return tries[-1]
