"""Closed-form moments: those of the posterior, and those of paths with a given basis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from ...core.checks import ArrayLike
from ...core.functionals import Functionals
from ...features import Features
from ...models import Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP
from ...models.libraries import describe
from ...models.observations import is_observable
from ...models.observed_functionals import names_outputs, of_every_output
from ...paths import PriorPlusUpdate
from ...solvers.cholesky import safe_cholesky, solved
from .conditionals import Factored, PriorAt, inner_functionals, inner_points, single
from .linear_model import design, shared_bases, wide_bases


class Moments(NamedTuple):
    """The mean `[n]` and covariance `[n, n]` at n points, or `[n, t]` and `[n, t, n, t]` for t outputs, in float64."""

    mean: Tensor
    covariance: Tensor


def moments(model: object, x: ArrayLike | Functionals | Sequence[Functionals]) -> Moments:
    """Compute the posterior mean and covariance of a Gaussian process at points x `[n, d]`, or of functionals.

    Functionals are those of `matheron.observe`, such as `observe.gradient(x)`, one or several. Functionals of one among
    several outputs have a mean `[n]` and a covariance `[n, n]`. The output transform must be affine.

    For an exact model, equation (1):

        m = K_*n (K_nn + sigma^2 I)^-1 y        C = K_** - K_*n (K_nn + sigma^2 I)^-1 K_n*

    For a sparse model, equation (4):

        m = K_*m K_mm^-1 mu_u                   C = K_** + K_*m K_mm^-1 (Sigma_u - K_mm) K_mm^-1 K_m*

    Moments are computed and returned in float64 for data of any dtype, because a reference must be more precise than
    the values that are compared with it. For an ensemble, they are the moments of the mixture.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import moments
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
    >>> moments(gp, [[0.0]])
    Moments(mean=tensor([1.], dtype=torch.float64), covariance=tensor([[0.5000]], dtype=torch.float64))
    """
    gp = describe(model)
    if isinstance(gp, Outputs | SelectedOutputs) and is_observable(x) and names_outputs(x):
        raise TypeError("x: expected functionals that name no output, of several models; ask each of .models")
    if isinstance(gp, Outputs):
        return side_by_side([moments(member, x) for member in gp.models])
    if isinstance(gp, Ensemble):
        return mixture([moments(member, x) for member in gp.models])
    if isinstance(gp, SelectedOutputs):
        return select(moments(gp.model, x), gp.outputs)
    gp = single(gp)
    if not is_observable(x):
        return outer(gp, Posterior(gp).moments(inner_points(gp, cast(ArrayLike, x))))
    of = inner_functionals(gp, cast(Functionals, x))
    return _outer_of_functionals(gp, Posterior(gp).moments(of), of)


class Posterior:
    """The posterior of one model before its transforms. The Cholesky factor is computed once for all points.

    >>> import matheron, torch
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import Posterior
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
    >>> Posterior(gp).moments(torch.zeros(1, 1, dtype=torch.float64)).mean
    tensor([1.], dtype=torch.float64)
    """

    # The largest number of covariances between points and data in memory when marginals are computed.
    block: ClassVar[dict[str, int]] = {"cpu": 1 << 22, "cuda": 1 << 26}

    def __init__(self, gp: ExactGP | SparseGP) -> None:
        self.gp = gp
        with torch.no_grad():
            update = Factored(gp, PriorAt(gp))
            self.L = update.L
            self.a = self._solved(update.target[:, None])  # [m, 1]
            self.S = None if update.root is None else self._solved(update.root)  # [m, r]

    def _solved(self, B: Tensor) -> Tensor:
        """Compute L^-1 B `[m, n]`; for many columns on a GPU, as a product with the inverse.

        On a GPU, a triangular solve with a million columns takes seconds even for two rows. For a thousand rows it has
        a sixth of the throughput of a product.
        """
        if not (B.is_cuda and B.shape[1] > len(self.L)):
            return torch.linalg.solve_triangular(self.L, B, upper=False)
        return self.inverse @ B

    @cached_property
    def inverse(self) -> Tensor:
        """The inverse of the Cholesky factor, L^-1."""
        one = torch.eye(len(self.L), dtype=self.L.dtype, device=self.L.device)
        return torch.linalg.solve_triangular(self.L, one, upper=False)

    @torch.no_grad()
    def moments(self, x: Tensor | Functionals) -> Moments:
        """Compute the moments at points x `[n, d]` (after the input transform), or of functionals."""
        at = PriorAt(self.gp, x)
        A = self._solved(at.K_mx)  # L^-1 K_m*, [m, n]
        C = at.K_xx - A.mT @ A
        if self.S is not None:
            S = A.mT @ self.S  # K_*m K_mm^-1 root, [n, r]
            C = C + S @ S.mT
        t = 1 if isinstance(x, Functionals) and x.outputs is not None else self.gp.num_outputs
        return shaped(at.mean_x + (A.mT @ self.a)[:, 0], (C + C.mT) / 2, t)

    @torch.no_grad()
    def marginals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute means and standard deviations, both `[M]`, at points `[M, d]` after the input transform, by blocks.

        The cost per point is m kernel values and m^2 / 2 multiply-adds (m^2 on a GPU).
        """
        means, variances = [], []
        for block in x.split(max(1, self.block[x.device.type] // len(self.L))):
            at = PriorAt(self.gp, block)
            A = self._solved(at.K_mx)  # [m, b]
            variance = at.kernel.diag(at.x.points) - A.square().sum(0)
            if self.S is not None:
                variance = variance + (A.mT @ self.S).square().sum(1)
            means.append(at.mean_x + (A.mT @ self.a)[:, 0])
            variances.append(variance.clamp_min(0))
        return torch.cat(means), torch.cat(variances).sqrt()


def outer(gp: ExactGP | SparseGP, of: Moments) -> Moments:
    """Transform moments by the output transform, which must be affine."""
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


def _outer_of_functionals(gp: ExactGP | SparseGP, of: Moments, functionals: Functionals) -> Moments:
    """Transform the moments of functionals by the output transform: L(a f + b) = a L f + b L 1."""
    transform = gp.output_transform
    if transform is None:
        return of
    if not transform.affine:
        raise TypeError("moments: under an output transform that is not affine they have no closed form")
    each = of_every_output(functionals, gp.num_outputs)
    zeros = of.mean.new_zeros(len(each), gp.num_outputs)
    transform = transform.to(zeros.device, torch.float64)
    slope, level = (each.own(v).detach() for v in (transform.derivative(zeros), transform(zeros)))  # [N]
    C = of.covariance.reshape(len(slope), -1) * slope[:, None] * slope
    mean = slope * of.mean.reshape(-1) + level * each.of_ones()
    return Moments(mean.reshape(of.mean.shape), C.reshape(of.covariance.shape))


def side_by_side(parts: list[Moments]) -> Moments:
    """Combine the moments of independent models of one or more outputs: `[n, t]` and `[n, t, n, t]`."""
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
    """Return the moments of some outputs."""
    n, t = len(of.mean), of.mean.numel() // len(of.mean)
    C = of.covariance.reshape(n, t, n, t)[:, outputs][..., outputs]
    shape = (n,) if len(outputs) == 1 else (n, len(outputs))
    return Moments(of.mean.reshape(n, t)[:, outputs].reshape(shape), C.reshape(*shape, *shape))


def selected(f: Tensor, outputs: list[int]) -> Tensor:
    """Select outputs on the last axis; a single output has no axis."""
    return f[..., outputs[0]] if len(outputs) == 1 else f[..., outputs]


def mixture(parts: list[Moments], weights: Tensor | None = None) -> Moments:
    """Return the moments of a mixture: the mean of means, and the mean of covariances plus the covariance of means."""
    shape = parts[0].covariance.shape
    means = torch.stack([part.mean.reshape(-1) for part in parts])  # [k, n]
    weights = means.new_full((len(parts),), 1 / len(parts)) if weights is None else weights.to(means)
    mean = weights @ means
    spread = means - mean
    C = spread.mT @ (weights[:, None] * spread)
    for weight, part in zip(weights, parts, strict=True):
        C += weight * part.covariance.reshape(len(mean), -1)
    return Moments(mean.reshape(parts[0].mean.shape), C.reshape(shape))


def shaped(mean: Tensor, C: Tensor, t: int) -> Moments:
    """Reshape moments `[n t]` and `[n t, n t]`, so that outputs have their own axis."""
    if t == 1:
        return Moments(mean, C)
    n = len(mean) // t
    return Moments(mean.reshape(n, t), C.reshape(n, t, n, t))


def marginals(gp: ExactGP | SparseGP, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute posterior means and standard deviations at points `[M, d]`, both `[M]`, before the output transform.

    Callers only use the order of values, which an affine output transform does not change.

    >>> import matheron, torch
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import marginals
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
    >>> marginals(gp, torch.zeros(1, 1, dtype=torch.float64))
    (tensor([1.], dtype=torch.float64), tensor([0.7071], dtype=torch.float64))
    """
    return Posterior(gp).marginals(inner_points(gp, x))


def decoupled_moments(model: object, basis: Features | PriorPlusUpdate, x: ArrayLike) -> Moments:
    """Compute the moments of decoupled paths, equation (13), whose prior has these features.

        m = K_*m K_mm^-1 mu_u                            the exact posterior mean, for every basis
        C = J J^T + K_*m K_mm^-1 Sigma_u K_mm^-1 K_m*    with J = Phi_* - K_*m K_mm^-1 Phi_m

    For an exact model, K_mm is K_nn + sigma^2 I and Sigma_u is sigma^2 I. If paths are given, each of their bases is
    weighted by the number of paths that use it.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import decoupled_moments, moments
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
        G = solved(update.L, at.K_mx)  # K_mm^-1 K_m*  [m, n]
        C = (G.mT * update.noise) @ G
        if update.root is not None:
            S = G.mT @ update.root  # [n, r]
            C += S @ S.mT
        for wide in wide_bases(features, shares):
            J = wide(at.x) - G.mT @ wide(at.sites)  # [n, g t ell]
            C += J @ J.mT
        return outer(gp, shaped(at.mean_x + G.mT @ update.target, C, gp.num_outputs))


def weight_space_moments(model: object, basis: Features | PriorPlusUpdate, x: ArrayLike) -> Moments:
    """Compute the moments of a weight-space posterior at points x, equation (7), or (18) for a sparse model.

    For several bases, they are the moments of the mixture.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import weight_space, weight_space_moments
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> paths = weight_space(gp, 8, num_features=64)
    >>> weight_space_moments(gp, paths, [[0.5]]).covariance.shape
    torch.Size([1, 1])
    """
    gp = single(describe(model))
    features, shares = shared_bases(basis, gp.centres.device)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        update = Factored(gp, at)
        parts = [_linear_model(features.select(g), at, update) for g in range(len(shares))]
        return outer(gp, shaped(*mixture(parts, shares), gp.num_outputs))


def _linear_model(phi: Features, at: PriorAt, update: Factored) -> Moments:
    """Compute the posterior moments for one basis; with noise, by the smaller of the two linear systems."""
    noise = update.noise
    Phi, Phi_x = design(phi, at.sites)[0], design(phi, at.x)[0]  # [m, t ell], [n, t ell]
    m, size = Phi.shape
    if m > size and bool((noise > 0).all()) and update.root is None:
        weighted = Phi.mT / noise  # [t ell, m]
        L, _ = safe_cholesky(
            weighted @ Phi + torch.eye(size, dtype=Phi.dtype, device=Phi.device), "Phi^T Phi / noise + I"
        )
        A = torch.linalg.solve_triangular(L, Phi_x.mT, upper=False)  # [t ell, n]
        mean = A.mT @ torch.linalg.solve_triangular(L, (weighted @ update.target)[:, None], upper=False)
        return Moments(at.mean_x + mean[:, 0], A.mT @ A)
    L, _ = safe_cholesky(Phi @ Phi.mT + noise.diag_embed(), "Phi Phi^T + noise")
    G = solved(L, Phi @ Phi_x.mT)  # [m, n]
    J = Phi_x - G.mT @ Phi  # [n, t ell]
    C = J @ J.mT + (G.mT * noise) @ G
    if update.root is not None:
        S = G.mT @ update.root
        C += S @ S.mT
    return Moments(at.mean_x + G.mT @ update.target, C)
