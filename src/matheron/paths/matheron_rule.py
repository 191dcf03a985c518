"""Matheron's rule for finitely many variables: joint draws of values, or of the weights of a linear model."""

from __future__ import annotations

import torch
from torch import Tensor

from ..solvers.cholesky import cholesky_solve


def matheron(a: Tensor, b: Tensor, beta: Tensor, cov_ab: Tensor, cov_bb: Tensor) -> Tensor:
    """Matheron's rule, equation (8): draws of a given b = beta from joint draws of a and b.

        (a | b = beta)  =  a + Cov(a, b) Cov(b, b)^-1 (beta - b)

    Args:
        a, b: joint draws `[s, p]` and `[s, q]`.
        beta: the observed value `[q]`, or one per draw `[s, q]`.
        cov_ab, cov_bb: `[p, q]` and `[q, q]`.

    >>> import torch, matheron
    >>> a = b = torch.tensor([[1.0], [2.0]])
    >>> matheron.matheron(a, b, torch.tensor([5.0]), torch.eye(1), torch.eye(1))
    tensor([[5.],
            [5.]])
    """
    p, q = a.shape[-1], b.shape[-1]
    if cov_ab.shape != (p, q) or cov_bb.shape != (q, q):
        shapes = f"{list(cov_ab.shape)} and {list(cov_bb.shape)}"
        raise ValueError(f"expected Cov(a, b) [{p}, {q}] and Cov(b, b) [{q}, {q}], got {shapes}")
    residual = beta - b  # [s, q]
    return a + cholesky_solve(cov_bb, residual.mT, "Cov(b, b)").mT @ cov_ab.mT  # [s, p]


def weight_space_update(Phi: Tensor, w: Tensor, y: Tensor, noise: Tensor, eps: Tensor) -> Tensor:
    """w + Phi^T (Phi Phi^T + sigma^2 I)^-1 (y - Phi w - eps), equation (12): draws of w given y.

    Args:
        Phi: features at the data `[n, ell]`.
        w: prior weights `[s, ell]`.
        y: targets `[n]`, less the prior mean.
        noise: variances `[n]`, or one.
        eps: draws of the noise `[s, n]`.

    The smaller of the two systems, n or ell, is solved.

    >>> import torch
    >>> from matheron import weight_space_update
    >>> w, eps = torch.zeros(1, 3), torch.zeros(1, 2)
    >>> weight_space_update(torch.ones(2, 3), w, torch.ones(2), torch.tensor(1.0), eps).shape
    torch.Size([1, 3])
    """
    n, ell = Phi.shape
    residual = y - w @ Phi.mT - eps  # [s, n]
    noise = torch.as_tensor(noise, dtype=Phi.dtype, device=Phi.device).expand(n)
    if n <= ell or bool((noise == 0).any()):
        gram = Phi @ Phi.mT + torch.diag(noise)  # [n, n]
        return w + cholesky_solve(gram, residual.mT, "Phi Phi^T + noise").mT @ Phi  # [s, ell]
    weighted = Phi.mT / noise  # [ell, n]
    gram = weighted @ Phi + torch.eye(ell, dtype=Phi.dtype, device=Phi.device)  # [ell, ell]
    return w + cholesky_solve(gram, weighted @ residual.mT, "Phi^T Phi / noise + I").mT  # [s, ell]
