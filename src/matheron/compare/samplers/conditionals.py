"""The prior of a model at its centres and at other points, and the factorisation that conditions on the centres."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.checks import ArrayLike, as_points
from ...core.functionals import Functionals
from ...core.sites import Sites
from ...kernels import coupled_covariance
from ...models import ExactGP, SparseGP
from ...models.observed_functionals import (
    as_functionals,
    averaged_by,
    by_quadrature,
    check_observed,
    check_outputs,
    check_smooth,
    moved_inside,
    of_every_output,
    prior_variance,
)
from ...paths.sparse import draws_of_q, moments_of_q
from ...solvers import covariance
from ...solvers.cholesky import safe_cholesky


def single(gp: object) -> ExactGP | SparseGP:
    """Check that a model is one exact or sparse model, and return it.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import single
    >>> single(matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)).num_data
    1
    """
    if isinstance(gp, ExactGP | SparseGP):
        return gp
    raise TypeError(
        f"model: expected one exact or sparse model, got {gp!r}; ask each of matheron.describe(model).models"
    )


def inner_points(gp: ExactGP | SparseGP, x: ArrayLike) -> Tensor:
    """Return points `[n, d]` after the model's input transform, in float64 on its device.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import inner_points
    >>> inner_points(matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0), [[0.5]])
    tensor([[0.5000]], dtype=torch.float64)
    """
    like = gp.centres.detach().double()
    x = as_points(x, "x", input_dim=gp.input_dim, like=like, names=gp.input_names).detach()
    return x if gp.input_transform is None else gp.input_transform.to(x.device, x.dtype)(x).detach()


def inner_functionals(gp: ExactGP | SparseGP, x: Functionals | Sequence[Functionals]) -> Functionals:
    """Express functionals of a user's functions as functionals of the functions before the output transform."""
    check_observed(x, gp.input_dim, gp.input_names)
    like = gp.centres.detach().double()
    transform = None if gp.input_transform is None else gp.input_transform.to(like.device, like.dtype)

    def averaged(functionals: Functionals) -> Functionals:
        if transform is None or (transform.affine and transform.elementwise):
            return averaged_by(gp.kernel, gp.mean)(functionals)
        return by_quadrature(
            functionals, lambda some: prior_variance(gp.kernel, moved_inside(some, transform).mapped(torch.detach))
        )

    functionals, _ = as_functionals(x, "x", averaged, like)
    check_outputs(functionals, gp.num_outputs)
    inner = moved_inside(functionals, transform).mapped(torch.detach)
    check_smooth(gp.kernel, inner)
    return inner


class PriorAt:
    """A model's prior at its centres (X or Z) and at points x or functionals, which are optional, in float64.

    Points are those after the input transform. For t outputs, a point is t sites in `x`, for outputs 0 .. t - 1.
    """

    def __init__(self, gp: ExactGP | SparseGP, x: Tensor | Functionals | None = None) -> None:
        self.sites = gp.sites.owned().double()  # m of them
        self.centres = self.sites.points
        x = self.centres[:0] if x is None else x
        self.kernel = gp.kernel.owned().to(self.centres.device, torch.float64)
        functionals = isinstance(x, Functionals)
        self.x = of_every_output(x, gp.num_outputs) if functionals else Sites.every_output(x, gp.num_outputs)
        self.mean_x = gp.mean.at(self.x).detach()  # [n t]
        self.mean_m = gp.mean.at(self.sites).detach()  # [m]

    @property
    def K_xx(self) -> Tensor:
        return covariance(self.kernel, self.x)

    @property
    def K_mx(self) -> Tensor:
        return coupled_covariance(self.kernel, self.sites, self.x)


class Factored:
    """The factorisation K = L L^T at the centres, with noise or jitter, and the values that an update interpolates."""

    def __init__(self, gp: ExactGP | SparseGP, at: PriorAt) -> None:
        self.gp, self.mean = gp, at.mean_m
        noise = gp.noise if isinstance(gp, ExactGP) else at.centres.new_full((len(at.centres),), gp.jitter)
        self.noise = noise.detach().to(at.centres)  # [m]
        K = covariance(at.kernel, at.sites)
        K.diagonal().add_(self.noise)
        self.L, jitter = safe_cholesky(K, "k(X, X) + noise")
        self.noise = self.noise + jitter  # jitter that was added counts as noise, as for paths

    @property
    def target(self) -> Tensor:
        """The mean of y, or of f(Z) under q(u), minus the prior mean, `[m]`."""
        if isinstance(self.gp, ExactGP):
            return self.gp.train_targets.detach().to(self.L) - self.mean
        return moments_of_q(self.gp, self.mean, self.L).mean.detach() - self.mean

    @property
    def root(self) -> Tensor | None:
        """A root of the covariance of f(Z) under q(u), `[m, r]`; None for an exact model, or if q(u) is a point."""
        if isinstance(self.gp, ExactGP) or self.gp.q_scale_tril is None:
            return None
        return moments_of_q(self.gp, self.mean, self.L).root.detach()

    def draws(self, s: int, generator: torch.Generator) -> Tensor:
        """Draw f(Z) from q(u), minus the prior mean, `[s, m]`."""
        assert isinstance(self.gp, SparseGP)
        return draws_of_q(self.gp, s, self.mean, self.L, generator)[0].detach() - self.mean
