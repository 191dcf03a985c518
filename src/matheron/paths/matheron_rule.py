"""Matheron's rule: residuals -> the weights of an update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import as_tensor, normals
from ..kernels import coupled_covariance
from ..models import SparseGP
from ..solvers import Cholesky, Operator, State, Stats
from ..solvers.cholesky import cholesky_solve
from ..solvers.operator import KernelOperator


def matheron(a: Tensor, b: Tensor, beta: Tensor, cov_ab: Tensor, cov_bb: Tensor) -> Tensor:
    """Matheron's rule, `eqn:matheron_finitedim`: draws of a given b = beta from joint draws of a and b.

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


def exact_update(state: State, y: Tensor, f: Tensor, eps: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
    """v = (K_nn + sigma^2 I)^-1 (y - f - eps), `eqn:matheron_gp_exact`: the weights of k(., X).

    With K_mm for K_nn + sigma^2 I and u for y it is `eqn:matheron_gp_sparse`; eps is then the noise of its jitter.
    Without a graph they come in float64: `paths/precision.py` says how many of the digits matter.
    """
    b = (y - f - eps).mT  # [n, s]
    v, stats = state.solve(b if b.requires_grad else b.double(), None if guess is None else guess.mT)  # [n, s]
    return v.mT.contiguous(), stats  # [s, n]


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
        return w + cholesky_solve(gram, residual.mT, "Phi Phi^T + noise").mT @ Phi  # [s, ell]
    weighted = Phi.mT / noise  # [ell, n]
    gram = weighted @ Phi + torch.eye(ell, dtype=Phi.dtype, device=Phi.device)  # [ell, ell]
    return w + cholesky_solve(gram, weighted @ residual.mT, "Phi^T Phi / noise + I").mT  # [s, ell]


class Data(NamedTuple):
    """Observations in the model's own space, and the standard normals behind the noise of each function."""

    X: Tensor  # [n, d]
    tasks: Tensor | None  # [n]
    y: Tensor  # [n] or [r, n]
    noise: Tensor  # [n]
    xi: Tensor  # [r, n]


class GaussianMoments(NamedTuple):
    """A Gaussian of f(Z): its mean `[m]`, and a root `[m, r]` of its covariance."""

    mean: Tensor
    root: Tensor


def moments_of_q(gp: SparseGP, prior_mean: Tensor, L: Tensor | None) -> GaussianMoments:
    """The moments of f(Z) under q(u), the prior mean `[m]` included.

    Unwhitened, u is f(Z) itself. Whitened, f(Z) = prior_mean + L u with L = chol(K_mm); L is used there alone.
    """
    if gp.q_mean is None:
        raise TypeError("this q(u) is known by its draws alone (sample_u): its moments have no closed form")
    q_mean, root = gp.q_mean.to(prior_mean), gp.q_scale_tril
    root = q_mean.new_zeros(len(q_mean), 0) if root is None else root.to(prior_mean)
    root = root.diag_embed() if root.ndim == 1 else root
    return (
        GaussianMoments(prior_mean + L @ q_mean, L @ root)
        if gp.whitened and L is not None
        else GaussianMoments(q_mean, root)
    )


def draws_of_q(
    gp: SparseGP, s: int, prior_mean: Tensor, L: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, GaussianMoments | None]:
    """Draws of f(Z) `[s, m]` under q(u), and its moments where they are known."""
    m = len(prior_mean)
    if gp.sample_u is None:
        q = moments_of_q(gp, prior_mean, L)
        xi = normals((s, m), generator).to(prior_mean)
        return (q.mean + xi @ q.root.mT if q.root.shape[1] else q.mean.expand(s, m)), q
    u = as_tensor(gp.sample_u(s, generator), "sample_u", like=prior_mean)
    if u.shape != (s, m):
        raise ValueError(f"sample_u: expected draws [{s}, {m}], got {list(u.shape)}")
    return (prior_mean + u @ L.mT if gp.whitened and L is not None else u), None


class CorrectedOperator(Operator):
    """k_q(X, X) + diag(noise), the covariance of a sparse posterior's observations, of a q(u) with covariance
    root root^T of f(Z). With L L^T = k(Z, Z) + jitter, A = L^-1 k(Z, X) and R = root^T (L L^T)^-1 k(Z, X),

        k_q(X, X)  =  k(X, X) - A^T A + R^T R

    in which no inverse of k(Z, Z) is multiplied out: its rounding would be as large as the posterior's variances.
    """

    def __init__(self, operator: KernelOperator, Z: Tensor, tasks: Tensor | None, jitter: Tensor, root: Tensor) -> None:
        self.operator, self.noise, self.root = operator, operator.noise, root
        self.state = Cholesky().init(KernelOperator(operator.kernel, Z, tasks, jitter.expand(len(Z))))
        self.Z, self.tasks = Z, tasks
        self.K_mn, self.A, self.R = self.halves(operator.X, operator.tasks)  # [m, n], [m, n], [r, n]

    def halves(self, x: Tensor, tasks: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """k(Z, x), A and R at points x `[p, d]`."""
        K_mx = coupled_covariance(self.operator.kernel, self.Z, self.tasks, x, tasks)  # [m, p]
        return K_mx, self.state.lower(K_mx), self.root.mT @ self.state.solve(K_mx)[0]

    def product(self, V: Tensor) -> Tensor:
        A, R = self.A.to(V), self.R.to(V)  # a residual is taken in more digits than the data's
        return self.operator.product(V) - A.mT @ (A @ V) + R.mT @ (R @ V)

    def rows(self, index: Tensor | slice) -> Tensor:
        return self.operator.rows(index) - self.A[:, index].mT @ self.A + self.R[:, index].mT @ self.R

    def diagonal(self) -> Tensor:
        return self.operator.diagonal() - self.A.square().sum(0) + self.R.square().sum(0)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        A, R = (each.to(dtype or self.dtype) for each in (self.A, self.R))
        return self.operator.dense(dtype) - A.mT @ A + R.mT @ R

    def magnitude(self) -> Tensor:
        return self.operator.magnitude()

    def requires_graph(self) -> bool:
        return self.operator.requires_graph() or (torch.is_grad_enabled() and self.R.requires_grad)

    def centre_weights(self, v: Tensor) -> Tensor:
        """What weights v `[r, n]` of k_q(., X) are in terms of k(., Z): `[r, m]`."""
        return self.state.solve(self.root @ (self.R @ v.mT) - self.K_mn @ v.mT)[0].mT
