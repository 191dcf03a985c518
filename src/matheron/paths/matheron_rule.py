"""Matheron's rule: from joint draws to conditional ones, and from residuals to the weights of an update."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..solvers import State, Stats
from ..solvers.cholesky import cholesky_solve
from .update import Data


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


def update_weights(
    state: State, y: Tensor, f: Tensor, eps: Tensor, guess: Tensor | None = None
) -> tuple[Tensor, Stats]:
    """v = (K_nn + sigma^2 I)^-1 (y - f - eps), `eqn:matheron_gp_exact`: the weights of k(., X).

    With K_mm for K_nn + sigma^2 I and u for y it is `eqn:matheron_gp_sparse`; eps is then the noise of its jitter.
    Without a graph they come in float64: `precision.py` says how many of the digits matter.
    """
    b = (y - f - eps).mT  # [n, s]
    v, stats = state.solve(b if b.requires_grad else b.double(), None if guess is None else guess.mT)  # [n, s]
    return v.mT.contiguous(), stats  # [s, n]


class WeightsGivenData(NamedTuple):
    """Weights v `[s + r, n]` of s paths and of their r means, the noise eps of each, and how the solve went."""

    v: Tensor
    eps: Tensor
    stats: Stats


def weights_given_data(state: State, data: Data, f: Tensor, guess: Tensor | None = None) -> WeightsGivenData:
    """`update_weights` of s paths and of their mean, which is one more path: the one with w = 0 and eps = 0.

    Where each path has targets of its own there are s means. The jitter that a factor needed counts as noise.

    Args:
        f: values before the data, `[s + 1, n]`: those of the paths, then the prior mean.
        guess: where iterations start, `[s + r, n]`.
    """
    s, y = len(data.xi), data.y
    if data.own_targets:
        y, f = torch.cat([y, y]), torch.cat([f, f[s:].expand(s - 1, -1)])
    eps = (data.noise + state.jitter).sqrt() * torch.cat([data.xi, torch.zeros_like(f[s:])])
    v, stats = update_weights(state, y, f, eps, guess)
    return WeightsGivenData(v, eps, stats)


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
