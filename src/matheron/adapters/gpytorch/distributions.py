"""GPyTorch's variational distributions: the mean of q(u) and a root of its covariance."""

from __future__ import annotations

from functools import singledispatch

import torch
from gpytorch import variational as gv
from torch import Tensor

from ..refusal import refusal
from .place import tensor


@singledispatch
def moments_of(distribution: object) -> tuple[Tensor, Tensor | None]:
    """Mean `[*batch, m]` and a root `[*batch, m, m]` of the covariance; None for a point mass.

    Written in the parameters themselves: what GPyTorch computes for its natural distributions has natural gradients,
    and a path's derivatives are to be plain ones.
    """
    raise refusal("variational distribution", distribution, moments_of)


@moments_of.register
def _(distribution: gv.CholeskyVariationalDistribution) -> tuple[Tensor, Tensor | None]:
    return tensor(distribution.variational_mean), tensor(distribution.chol_variational_covar).tril()


@moments_of.register
def _(distribution: gv.MeanFieldVariationalDistribution) -> tuple[Tensor, Tensor | None]:
    return tensor(distribution.variational_mean), tensor(distribution._variational_stddev).diag_embed()


@moments_of.register
def _(distribution: gv.DeltaVariationalDistribution) -> tuple[Tensor, Tensor | None]:
    return tensor(distribution.variational_mean), None


@moments_of.register
def _(distribution: gv.NaturalVariationalDistribution) -> tuple[Tensor, Tensor | None]:
    P = torch.linalg.cholesky(-2 * tensor(distribution.natural_mat).double())  # P P^T = S^-1
    return _from_precision_root(P.mT, tensor(distribution.natural_vec))


@moments_of.register
def _(distribution: gv.TrilNaturalVariationalDistribution) -> tuple[Tensor, Tensor | None]:
    return _from_precision_root(tensor(distribution.natural_tril_mat).double().tril(), tensor(distribution.natural_vec))


def _from_precision_root(C: Tensor, natural_vec: Tensor) -> tuple[Tensor, Tensor]:
    """S = (C^T C)^-1 with C triangular: mean S natural_vec, root C^-1."""
    root = torch.linalg.inv(C)  # [*batch, m, m]
    mean = root @ (root.mT @ natural_vec.double()[..., None])
    return mean[..., 0], root
