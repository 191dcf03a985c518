"""Translation of GPyTorch's ApproximateGP models: the moments of q(u), and the variational strategies."""

from __future__ import annotations

import operator
from functools import reduce, singledispatch
from typing import cast

import torch
from gpytorch import variational as gv
from torch import Tensor, nn

from ... import kernels
from ...core.sites import Sites
from ...kernels import Kernel, coupled_covariance
from ...models import GP, Outputs, SelectedOutputs, SparseGP
from ...models.means import Mixed, Stacked
from ..refusal import BY_HAND, refusal, refuse_override
from .exact import assembled
from .place import tensor
from .prior import PriorOfModel

Base = gv.VariationalStrategy | gv.UnwhitenedVariationalStrategy | gv.CiqVariationalStrategy


def translate_strategy(strategy: nn.Module) -> GP:
    """Return a variational strategy as a snapshot."""
    for method in ("forward", "__call__"):
        refuse_override("variational strategy", strategy, strategy_of, method)
    return strategy_of(strategy)


@singledispatch
def strategy_of(strategy: object) -> GP:
    raise refusal("variational strategy", strategy, strategy_of)


strategy_of.register(Base, lambda strategy: assembled(*sparse_members(strategy)))


@strategy_of.register
def _(strategy: gv.IndependentMultitaskVariationalStrategy) -> GP:
    members, batch_shape = sparse_members(strategy.base_variational_strategy)
    axis = strategy.task_dim if strategy.task_dim >= 0 else strategy.task_dim + len(batch_shape)
    if not 0 <= axis < len(batch_shape):  # all tasks share one law and are independent draws from it
        return assembled([Outputs([member] * strategy.num_tasks) for member in members], batch_shape)
    groups, rest = _grouped(members, batch_shape, axis)
    return assembled([Outputs(group) for group in groups], rest)


@strategy_of.register
def _(strategy: gv.LMCVariationalStrategy) -> GP:
    members, batch_shape = sparse_members(strategy.base_variational_strategy)
    # [*batch, t]; one of the batch axes is of the latent functions
    coefficients = tensor(strategy.lmc_coefficients).expand(*batch_shape, -1).double()
    axis = strategy.latent_dim + len(batch_shape)
    groups, rest = _grouped(members, batch_shape, axis)
    mixing = coefficients.movedim(axis, -2).flatten(0, -3) if rest else coefficients[None]  # [b, latents, t]
    return assembled([_mixed(group, A) for group, A in zip(groups, mixing, strict=True)], rest)


def sparse_members(strategy: nn.Module) -> tuple[list[SparseGP], torch.Size]:
    """Return a snapshot of every member of a batch of sparse models, and the batch's shape."""
    if not isinstance(strategy, Base):
        raise refusal("variational strategy", strategy, strategy_of)
    refuse_override("variational strategy", strategy, strategy_of)
    if not getattr(strategy, "updated_strategy", torch.tensor(True, device="cpu")):
        raise ValueError(
            "model: its q(u) was loaded from a file of an old GPyTorch and is not whitened yet; call the model once"
        )
    if isinstance(strategy, gv.UnwhitenedVariationalStrategy) and not strategy.variational_params_initialized:
        raise ValueError("model: its variational distribution is not initialised; train the model, or call it once")
    q_mean, q_root = moments_of(strategy._variational_distribution)  # [*batch, m], [*batch, m, m]
    model = strategy.model
    assert isinstance(model, nn.Module)
    prior = PriorOfModel(model, (tensor(strategy.inducing_points),), q_mean.shape)
    if prior.collapsed is not None:
        raise TypeError(
            "kernel: expected a kernel of a variational model, got InducingPointKernel, which is for exact models; use "
            f"its base kernel, {BY_HAND}"
        )
    members = []
    for place in prior.places():
        Z, tasks = prior.points(place)
        kernel, mean = prior.kernel(place), prior.mean(place)
        u, root = place.pick(q_mean, 1), None if q_root is None else place.pick(q_root, 2)
        jitter = strategy.jitter_val
        if isinstance(strategy, gv.CiqVariationalStrategy):  # f(Z) = m + K_mm^1/2 u with the symmetric root
            Zd = Z.double()
            sites = Sites(Zd, tasks)
            K = coupled_covariance(kernel.to(Zd), sites, sites)  # [m, m]
            S = SymmetricRoot.apply(K + jitter * torch.eye(len(Zd), dtype=Zd.dtype, device=Zd.device))
            u, root = mean.at(sites) + S @ u.double(), None if root is None else S @ root.double()
        whitened = isinstance(strategy, gv.VariationalStrategy)
        gp = SparseGP(kernel, Z, u, root, mean, whitened, jitter, tasks=tasks)
        members.append(cast(SparseGP, prior.attached(gp)))
    return members, prior.batch_shape


def _grouped(members: list[SparseGP], batch_shape: torch.Size, axis: int) -> tuple[list[list[SparseGP]], torch.Size]:
    """Group the members along one axis of the batch; return the groups and the shape of the other axes."""
    order = torch.arange(len(members), device="cpu").reshape(batch_shape).movedim(axis, -1)
    groups = [[members[i] for i in row] for row in order.reshape(-1, batch_shape[axis]).tolist()]
    return groups, order.shape[:-1]


def _mixed(latents: list[SparseGP], A: Tensor) -> SelectedOutputs:
    """Build the model f_t = sum_l A[l, t] g_l. Its process has the tasks f and the latent functions g as outputs, and
    the inducing points are of g."""
    num_latents, t = A.shape
    eye = torch.eye(num_latents, dtype=A.dtype, device=A.device)
    C = torch.cat([A.mT, eye])  # [t + latents, latents]
    parts: list[Kernel] = [kernels.Coregional(g.kernel, c[:, None] * c) for g, c in zip(latents, C.mT, strict=True)]
    sizes = torch.tensor([g.num_inducing for g in latents], device="cpu")
    q_means, roots = [g.q_mean for g in latents], [g.q_scale_tril for g in latents]
    gp = SparseGP(
        reduce(operator.add, parts),
        torch.cat([g.inducing_points for g in latents]),
        torch.cat([q for q in q_means if q is not None]),
        torch.block_diag(*(r for r in roots if r is not None)) if roots[0] is not None else None,
        Mixed(Stacked([g.mean for g in latents]), C),
        latents[0].whitened,
        latents[0].jitter,
        tasks=t + torch.arange(num_latents, device="cpu").repeat_interleave(sizes),
    )
    inward = latents[0].input_transform
    return SelectedOutputs(gp if inward is None else gp.replaced(input_transform=inward), range(t))


class SymmetricRoot(torch.autograd.Function):
    """The symmetric root S = K^1/2. Its derivative solves S dS + dS S = dK, which is stable for equal eigenvalues."""

    @staticmethod
    def forward(ctx, K: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(K)
        roots = values.clamp_min(0).sqrt()
        ctx.save_for_backward(roots, vectors)
        return (vectors * roots) @ vectors.mT

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        roots, V = ctx.saved_tensors
        G = V.mT @ ((grad + grad.mT) / 2) @ V
        return V @ (G / (roots[:, None] + roots)) @ V.mT


@singledispatch
def moments_of(q: object) -> tuple[Tensor, Tensor | None]:
    """Return the mean `[*batch, m]` of q(u) and a root `[*batch, m, m]` of its covariance, None for a point mass.

    They are computed from the parameters. GPyTorch's own computation for natural distributions returns natural
    gradients, but the derivatives of paths must be ordinary ones.
    """
    raise refusal("variational distribution", q, moments_of)


moments_of.register(gv.CholeskyVariationalDistribution, lambda q: (q.variational_mean, q.chol_variational_covar.tril()))
moments_of.register(
    gv.MeanFieldVariationalDistribution, lambda q: (q.variational_mean, q._variational_stddev.diag_embed())
)
moments_of.register(gv.DeltaVariationalDistribution, lambda q: (q.variational_mean, None))
moments_of.register(
    gv.NaturalVariationalDistribution,  # P P^T = S^-1 with P = chol(-2 natural_mat)
    lambda q: _from_precision_root(torch.linalg.cholesky(-2 * q.natural_mat.double()).mT, q.natural_vec),
)
moments_of.register(
    gv.TrilNaturalVariationalDistribution,
    lambda q: _from_precision_root(q.natural_tril_mat.double().tril(), q.natural_vec),
)


def _from_precision_root(C: Tensor, natural_vec: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean S natural_vec and root C^-1 of the covariance S = (C^T C)^-1, with C triangular."""
    root = torch.linalg.inv(C)  # [*batch, m, m]
    mean = root @ (root.mT @ natural_vec.double()[..., None])
    return mean[..., 0], root
