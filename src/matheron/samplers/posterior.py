"""The posterior's moments in closed form: what every sampler is measured against."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import ArrayLike, as_points
from ..describe import describe
from ..gp import Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP
from ..kernels import coupled_covariance
from ..solvers import covariance
from ..solvers.cholesky import safe_cholesky
from ..updates import draws_of_q, moments_of_q
from ..updates import normals as normals


class Moments(NamedTuple):
    """Mean `[n]` and covariance `[n, n]` at n points; `[n, t]` and `[n, t, n, t]` for t outputs. Always float64."""

    mean: Tensor
    covariance: Tensor


def moments(model: Any, x: ArrayLike) -> Moments:
    """The posterior mean and covariance of a Gaussian process at points x `[n, d]`.

    Exact, `eqn:gp_posterior_moments`:
        m = K_*n (K_nn + sigma^2 I)^-1 y        C = K_** - K_*n (K_nn + sigma^2 I)^-1 K_n*
    Sparse, `eqn:svgp_posterior_moments`:
        m = K_*m K_mm^-1 mu_u                   C = K_** + K_*m K_mm^-1 (Sigma_u - K_mm) K_mm^-1 K_m*

    They are computed and answered in float64, whatever the data's dtype: a reference must be better than what it
    judges. An ensemble's are those of the mixture.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.samplers import moments
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
    >>> moments(gp, [[0.0]])
    Moments(mean=tensor([1.], dtype=torch.float64), covariance=tensor([[0.5000]], dtype=torch.float64))
    """
    gp = describe(model)
    if isinstance(gp, Outputs):
        return side_by_side([moments(member, x) for member in gp.models])
    if isinstance(gp, Ensemble):
        return mixture([moments(member, x) for member in gp.models])
    if isinstance(gp, SelectedOutputs):
        return select(moments(gp.model, x), gp.outputs)
    gp = single(gp)
    return outer(gp, inner_moments(gp, inner_points(gp, x)))


def inner_moments(gp: ExactGP | SparseGP, x: Tensor) -> Moments:
    """The moments of one model at points x `[n, d]`, both in the model's own space: before any transform."""
    with torch.no_grad():
        at = Places(gp, x)
        update = Factored(gp, at)
        A = torch.linalg.solve_triangular(update.L, at.K_mx, upper=False)  # L^-1 K_m*, [m, n]
        C = at.K_xx - A.mT @ A
        if update.root is not None:
            S = A.mT @ torch.linalg.solve_triangular(update.L, update.root, upper=False)  # K_*m K_mm^-1 root, [n, r]
            C = C + S @ S.mT
        a = torch.linalg.solve_triangular(update.L, update.target[:, None], upper=False)  # [m, 1]
        return shaped(at.mean_x + (A.mT @ a)[:, 0], (C + C.mT) / 2, gp.num_outputs)


def single(gp: Any) -> ExactGP | SparseGP:
    """One model, exact or sparse."""
    if isinstance(gp, ExactGP | SparseGP):
        return gp
    raise TypeError(
        f"model: expected one exact or sparse model, got {gp!r}; ask each of matheron.describe(model).models"
    )


def device_of(gp: ExactGP | SparseGP) -> torch.device:
    return (gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points).device


def inner_points(gp: ExactGP | SparseGP, x: ArrayLike) -> Tensor:
    """Points `[n, d]` in the model's own space, in float64 on its device."""
    like = gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points
    x = as_points(x, "x", input_dim=gp.input_dim, like=like.detach().double()).detach()
    return x if gp.input_transform is None else gp.input_transform.to(x.device, x.dtype)(x).detach()


def outer(gp: ExactGP | SparseGP, of: Moments) -> Moments:
    """Moments as a user sees them: after the output transform, which must be affine."""
    transform = gp.output_transform
    if transform is None:
        return of
    if not transform.affine:
        raise TypeError("moments: under an output transform that is not affine they have no closed form")
    transform = transform.to(of.mean.device, torch.float64)
    mean = of.mean.reshape(-1, gp.num_outputs)  # [n, t]
    slope = transform.derivative(mean).reshape(-1).detach()  # [n t]
    C = of.covariance.reshape(len(slope), -1) * slope[:, None] * slope
    return shaped(transform(mean).detach().reshape(-1), C, gp.num_outputs)


def side_by_side(parts: list[Moments]) -> Moments:
    """The moments of independent models, one an output or several: `[n, t]` and `[n, t, n, t]`."""
    n = len(parts[0].mean)
    mean = torch.cat([part.mean.reshape(n, -1) for part in parts], dim=-1)  # [n, t]
    C = mean.new_zeros(n, mean.shape[1], n, mean.shape[1])
    first = 0
    for part in parts:
        t = part.mean.numel() // n
        C[:, first : first + t, :, first : first + t] = part.covariance.reshape(n, t, n, t)
        first += t
    return Moments(mean, C)


def select(of: Moments, outputs: list[int]) -> Moments:
    """The moments of some outputs."""
    n, t = len(of.mean), of.mean.numel() // len(of.mean)
    C = of.covariance.reshape(n, t, n, t)[:, outputs][..., outputs]
    shape = (n,) if len(outputs) == 1 else (n, len(outputs))
    return Moments(of.mean.reshape(n, t)[:, outputs].reshape(shape), C.reshape(*shape, *shape))


def selected(f: Tensor, outputs: list[int]) -> Tensor:
    """Some of the outputs on the last axis; one alone has no axis."""
    return f[..., outputs[0]] if len(outputs) == 1 else f[..., outputs]


def mixture(parts: list[Moments], weights: Tensor | None = None) -> Moments:
    """The moments of a mixture: the means' mean, and the covariances' mean plus the means' covariance."""
    shape = parts[0].covariance.shape
    means = torch.stack([part.mean.reshape(-1) for part in parts])  # [k, n]
    weights = means.new_full((len(parts),), 1 / len(parts)) if weights is None else weights.to(means)
    mean = weights @ means
    spread = means - mean
    C = spread.mT @ (weights[:, None] * spread)
    for weight, part in zip(weights, parts, strict=True):
        C += weight * part.covariance.reshape(len(mean), -1)
    return Moments(mean.reshape(parts[0].mean.shape), C.reshape(shape))


class Places:
    """A model's centres (X, or Z) and some points x of its own space, all in float64, and the prior there.

    Several outputs at a point are as many rows: x_rows `[n t, d]` with tasks 0 .. t - 1 in turn.
    """

    def __init__(self, gp: ExactGP | SparseGP, x: Tensor) -> None:
        centres = gp.train_inputs if isinstance(gp, ExactGP) else gp.inducing_points
        self.centres = centres.detach().double()  # [m, d]
        self.tasks = None if gp.tasks is None else gp.tasks.to(centres.device)
        self.kernel = gp.kernel.owned().to(centres.device, torch.float64)
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

    def __init__(self, gp: ExactGP | SparseGP, at: Places) -> None:
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
    mean = gp.mean.to(x.device, x.dtype)(x[None])[0].detach().to(x)  # [n, 1 or t]
    mean = mean.expand(-1, gp.num_outputs)
    return mean.reshape(-1) if tasks is None else mean.gather(-1, tasks[:, None])[:, 0]


def shaped(mean: Tensor, C: Tensor, t: int) -> Moments:
    """Moments of the outputs in turn, `[n t]` and `[n t, n t]`, with an axis of their own for the outputs."""
    if t == 1:
        return Moments(mean, C)
    n = len(mean) // t
    return Moments(mean.reshape(n, t), C.reshape(n, t, n, t))
