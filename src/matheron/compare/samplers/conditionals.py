"""A model's prior at its centres and at some points, and the factor that one is conditioned on the other by."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.checks import ArrayLike, as_points
from ...kernels import coupled_covariance
from ...models import ExactGP, SparseGP
from ...paths.matheron_rule import draws_of_q, moments_of_q
from ...solvers import covariance
from ...solvers.cholesky import safe_cholesky


def single(gp: object) -> ExactGP | SparseGP:
    """One model, exact or sparse."""
    if isinstance(gp, ExactGP | SparseGP):
        return gp
    raise TypeError(
        f"model: expected one exact or sparse model, got {gp!r}; ask each of matheron.describe(model).models"
    )


def inner_points(gp: ExactGP | SparseGP, x: ArrayLike) -> Tensor:
    """Points `[n, d]` in the model's own space, in float64 on its device."""
    like = gp.centres.detach().double()
    x = as_points(x, "x", input_dim=gp.input_dim, like=like, names=gp.input_names).detach()
    return x if gp.input_transform is None else gp.input_transform.to(x.device, x.dtype)(x).detach()


class PriorAt:
    """A model's centres (X, or Z) and some points x of its own space, or none, all in float64, and the prior there.

    Several outputs at a point are as many rows: x_rows `[n t, d]` with tasks 0 .. t - 1 in turn.
    """

    def __init__(self, gp: ExactGP | SparseGP, x: Tensor | None = None) -> None:
        self.centres = gp.centres.detach().double()  # [m, d]
        x = self.centres[:0] if x is None else x
        self.tasks = None if gp.tasks is None else gp.tasks.to(self.centres.device)
        self.kernel = gp.kernel.owned().to(self.centres.device, torch.float64)
        t = gp.num_outputs
        self.x_rows = x if t == 1 else x.repeat_interleave(t, dim=0)
        self.x_tasks = None if t == 1 else torch.arange(t, device=x.device).repeat(len(x))
        self.mean_x = prior_mean(gp, x)  # [n t]
        self.mean_m = prior_mean(gp, self.centres, self.tasks)  # [m]

    @property
    def K_xx(self) -> Tensor:
        return covariance(self.kernel, self.x_rows, self.x_tasks)

    @property
    def K_mx(self) -> Tensor:
        return coupled_covariance(self.kernel, self.centres, self.tasks, self.x_rows, self.x_tasks)


class Factored:
    """K = L L^T at the centres, noise or jitter included, and what an update aims at there."""

    def __init__(self, gp: ExactGP | SparseGP, at: PriorAt) -> None:
        self.gp, self.mean = gp, at.mean_m
        noise = gp.noise if isinstance(gp, ExactGP) else at.centres.new_full((len(at.centres),), gp.jitter)
        self.noise = noise.detach().to(at.centres)  # [m]
        K = covariance(at.kernel, at.centres, at.tasks)
        K.diagonal().add_(self.noise)
        self.L, jitter = safe_cholesky(K, "k(X, X) + noise")
        self.noise = self.noise + jitter  # what had to be added counts as noise, as in a path

    @property
    def target(self) -> Tensor:
        """The mean of y, or of f(Z) under q(u), less the prior mean: `[m]`."""
        if isinstance(self.gp, ExactGP):
            return self.gp.train_targets.detach().to(self.L) - self.mean
        return moments_of_q(self.gp, self.mean, self.L).mean.detach() - self.mean

    @property
    def root(self) -> Tensor | None:
        """A root of the covariance of f(Z) under q(u), `[m, r]`; None for data, and for a q(u) that is a point."""
        if isinstance(self.gp, ExactGP) or self.gp.q_scale_tril is None:
            return None
        return moments_of_q(self.gp, self.mean, self.L).root.detach()

    def draws(self, s: int, generator: torch.Generator) -> Tensor:
        """Draws of f(Z) from q(u), less the prior mean: `[s, m]`."""
        assert isinstance(self.gp, SparseGP)
        return draws_of_q(self.gp, s, self.mean, self.L, generator)[0].detach() - self.mean


def prior_mean(gp: ExactGP | SparseGP, x: Tensor, tasks: Tensor | None = None) -> Tensor:
    """The prior mean at points `[n, d]`: of every output in turn `[n t]`, or of each point's own task `[n]`."""
    if tasks is not None:
        return gp.mean.at(x, tasks).detach()
    mean = gp.mean.to(x.device, x.dtype)(x[None])[0].detach().to(x)  # [n, 1 or t]
    return mean.expand(-1, gp.num_outputs).reshape(-1)
