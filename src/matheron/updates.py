"""Matheron's rule: residuals -> the weights of an update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .kernels import Kernel, coupled_covariance
from .solvers import Cholesky, Solver, factor


def matheron(a: Tensor, b: Tensor, beta: Tensor, cov_ab: Tensor, cov_bb: Tensor) -> Tensor:
    """Matheron's rule, `eqn:matheron_finitedim`: draws of a given b = beta from joint draws of a and b.

        (a | b = beta)  =  a + Cov(a, b) Cov(b, b)^-1 (beta - b)

    Args:
        a, b: joint draws `[s, p]` and `[s, q]`.
        beta: the observed value `[q]`, or one a draw `[s, q]`.
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
    return a + Cholesky(cov_bb, "Cov(b, b)").solve(residual.mT).mT @ cov_ab.mT  # [s, p]


def exact_update(solver: Solver, y: Tensor, f: Tensor, eps: Tensor) -> Tensor:
    """v = (K_nn + sigma^2 I)^-1 (y - f - eps), `eqn:matheron_gp_exact`: the weights of k(., X).

    With K_mm for K_nn + sigma^2 I and u for y it is `eqn:matheron_gp_sparse`; eps is then the noise of its jitter.
    """
    return solver.solve((y - f - eps).mT).mT.contiguous()  # [s, n]


def weight_space_update(Phi: Tensor, w: Tensor, y: Tensor, noise: Tensor, eps: Tensor) -> Tensor:
    """w + Phi^T (Phi Phi^T + sigma^2 I)^-1 (y - Phi w - eps), `eqn:matheron_gp_rff`: draws of w given y.

    Args:
        Phi: features at the data `[n, ell]`.
        w: prior weights `[s, ell]`.
        y: targets `[n]`, less the prior mean.
        noise: variances `[n]`, or one.
        eps: draws of the noise `[s, n]`.

    The smaller of the two systems, n or ell, is solved.
    """
    n, ell = Phi.shape
    residual = y - w @ Phi.mT - eps  # [s, n]
    noise = torch.as_tensor(noise, dtype=Phi.dtype, device=Phi.device).expand(n)
    if n <= ell or bool((noise == 0).any()):
        gram = Phi @ Phi.mT + torch.diag(noise)  # [n, n]
        return w + Cholesky(gram, "Phi Phi^T + noise").solve(residual.mT).mT @ Phi  # [s, ell]
    weighted = Phi.mT / noise  # [ell, n]
    gram = weighted @ Phi + torch.eye(ell, dtype=Phi.dtype, device=Phi.device)  # [ell, ell]
    return w + Cholesky(gram, "Phi^T Phi / noise + I").solve(weighted @ residual.mT).mT  # [s, ell]


class Data(NamedTuple):
    """Observations in the model's own space, and the standard normals behind the noise of each function."""

    X: Tensor  # [n, d]
    tasks: Tensor | None  # [n]
    y: Tensor  # [n] or [r, n]
    noise: Tensor  # [n]
    xi: Tensor  # [r, n]


class Correction(NamedTuple):
    """k_q(x, x') = k(x, x') + k(x, Z) C k(Z, x'): the covariance of a sparse posterior, C = K^-1 (Sigma - K) K^-1."""

    Z: Tensor  # [m, d]
    tasks: Tensor | None  # [m]
    C: Tensor  # [m, m]


def sparse_correction(kernel: Kernel, Z: Tensor, tasks: Tensor | None, jitter: Tensor, root: Tensor) -> Correction:
    """The correction of a q(u) with covariance Sigma = root root^T of f(Z)."""
    solver = factor(kernel, Z, tasks, jitter.expand(len(Z)), "cholesky")
    A = solver.solve(root)  # [m, r]
    return Correction(Z, tasks, A @ A.mT - solver.solve(torch.eye(len(Z), dtype=Z.dtype, device=Z.device)))


def condition(
    kernel: Kernel, data: Data, f: Tensor, correction: Correction | None, solver: str
) -> tuple[Tensor, Tensor]:
    """One Matheron update, on data, of functions with covariance k (or k_q) and values `f [r, n]` at the data.

    Answers the weights of k(., X), `[r, n]`, and what the correction adds to those of k(., Z), `[r, m]`.
    """
    X, tasks, y, noise, xi = data
    if correction is None:
        factored = factor(kernel, X, tasks, noise, solver)
        return exact_update(factored, y, f, (noise + factored.jitter).sqrt() * xi), f[:, :0]  # jitter is noise
    K_mn = coupled_covariance(kernel, correction.Z, correction.tasks, X, tasks)  # [m, n]
    factored = factor(kernel, X, tasks, noise, solver, K_mn.mT @ correction.C @ K_mn)
    v = exact_update(factored, y, f, (noise + factored.jitter).sqrt() * xi)  # [r, n]
    return v, v @ K_mn.mT @ correction.C.mT
