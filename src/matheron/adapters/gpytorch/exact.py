"""Translation of GPyTorch's ExactGP models: data, noise, several outputs, and sparse regression."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce, singledispatch

import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from gpytorch import models, settings
from linear_operator import to_dense
from torch import Tensor

from ... import kernels
from ...core.functionals import Functionals
from ...kernels import Kernel
from ...models import GP, Batch, ExactGP, Outputs, SelectedOutputs, SparseGP
from ...models.means import Mean, Mixed
from ..refusal import BY_HAND, refusal
from .place import tensor
from .prior import PriorOfModel


def translate_exact(
    model: models.ExactGP,
    inputs: tuple[Tensor, ...],
    number_tasks: Callable[[Tensor], Tensor] = Tensor.long,
    outputs: bool = False,
) -> GP:
    """Translate an exact model or a batch of them; with `outputs`, the last batch axis is of independent outputs.

    `inputs` are the training inputs as the kernel takes them, after any input transform.
    """
    if model.train_targets is None or not inputs:
        raise ValueError("model: this ExactGP has no training data; call set_train_data, or use matheron.draw_prior")
    targets = model.train_targets
    assert isinstance(targets, Tensor)
    prior = PriorOfModel(model, inputs, targets.shape, number_tasks)
    noise = noise_of(model.likelihood, targets.shape, tuple(model.train_inputs or ()), prior)
    couples = isinstance(model.likelihood, gl.MultitaskGaussianLikelihood) and _couples_tasks(model.likelihood)
    if prior.independent:
        if couples:
            raise TypeError(
                f"likelihood: a MultitaskGaussianLikelihood of rank {getattr(model.likelihood, 'rank', 0)} couples "
                f"outputs that are independent under the kernel; use rank=0, {BY_HAND}"
            )
        targets, noise = targets.mT, noise.mT  # [*batch, t, n]
    trailing = 2 if prior.coupled else 1
    prior.batch_shape = torch.broadcast_shapes(prior.batch_shape, noise.shape[: noise.ndim - trailing])
    members = []
    for place in prior.places():
        X, tasks = prior.points(place)
        kernel, mean = prior.kernel(place), prior.mean(place)
        y, variance = place.pick(targets, trailing), place.pick(noise, trailing)
        if prior.collapsed is not None:
            Z = place.pick(_inducing_points(prior.collapsed, kernel, tasks), 2)
            gp = prior.attached(_collapsed_regression(kernel, Z, X, y, variance, mean))
        elif prior.order:
            sites = Functionals.of(prior.sites(X, None, kernel))
            y, variance = y.reshape(-1), variance if couples else variance.reshape(-1)
            if couples:
                sites, y, variance = _whitened(sites, y, variance)
            gp = prior.attached(ExactGP(kernel, sites, y, variance, mean))
        elif couples:
            gp = SelectedOutputs(
                prior.attached(_correlated_noise(kernel, X, y, variance, mean)), range(kernel.num_outputs)
            )
        else:
            one = prior.coupled and kernel.num_outputs == 1
            y, variance = (y[:, 0], variance[:, 0]) if one else (y, variance)
            gp = prior.attached(ExactGP(kernel, X, y, variance, mean, tasks if kernel.num_outputs > 1 else None))
        members.append(gp)
    return assembled(members, prior.batch_shape, outputs or prior.independent)


def assembled(members: Sequence[GP], batch_shape: torch.Size, outputs: bool = False) -> GP:
    """Combine the members of a batch to one snapshot; with `outputs`, the last axis is of independent outputs."""
    if outputs:
        t = batch_shape[-1]
        members = [Outputs(members[i : i + t]) for i in range(0, len(members), t)]
        batch_shape = batch_shape[:-1]
    return Batch(members, batch_shape) if batch_shape else members[0]


@singledispatch
def noise_of(likelihood: object, shape: torch.Size, inputs: tuple[Tensor, ...], prior: PriorOfModel) -> Tensor:
    """Return the noise variances of targets with this shape, `[*batch, n]`.

    For tasks, `[*batch, n, t]`, they have that shape too. If the noise of tasks is correlated, the covariance
    `[*batch, t, t]` at each point is returned.
    """
    raise refusal("likelihood", likelihood, noise_of)


noise_of.register(
    gl.GaussianLikelihood | gl.FixedNoiseGaussianLikelihood | gl.HadamardGaussianLikelihood,
    # This is what GPyTorch adds to the covariance of the data when it predicts. It includes learned, fixed and
    # additional noise, and noise by task.
    lambda own, shape, inputs, prior: own._shaped_noise_covar(shape, list(inputs)).diagonal(dim1=-1, dim2=-2),
)


@noise_of.register
def _(
    likelihood: gl.MultitaskGaussianLikelihood, shape: torch.Size, inputs: tuple[Tensor, ...], prior: PriorOfModel
) -> Tensor:
    n, t = shape[-2:]
    if not _couples_tasks(likelihood):
        return likelihood._shaped_noise_covar(shape).diagonal(dim1=-1, dim2=-2).reshape(*shape[:-2], n, t)
    one_point = torch.Size([*shape[:-2], 1, t])
    return to_dense(likelihood._shaped_noise_covar(one_point))  # [*batch, t, t]


def _couples_tasks(likelihood: gl.MultitaskGaussianLikelihood) -> bool:
    return likelihood.has_task_noise and likelihood.rank > 0


def _correlated_noise(kernel: Kernel, X: Tensor, y: Tensor, Sigma: Tensor, mean: Mean) -> ExactGP:
    """Translate a model whose noise has covariance Sigma = L L^T between the tasks at a point.

    L^-1 y observes the functions L^-1 f with independent noise of variance one. The snapshot therefore has 2 t outputs:
    first f, then L^-1 f, and only the latter are observed.
    """
    t = kernel.num_outputs
    W = _whitening(Sigma)
    eye = torch.eye(t, dtype=W.dtype, device=W.device)
    A = torch.cat([eye, W])  # [2 t, t]
    couplings = [(torch.ones_like(eye) if B is None else B, k) for B, k in kernel.coupled()]
    both: list[Kernel] = [kernels.Coregional(k, A @ B @ A.mT) for B, k in couplings]
    tasks = (t + torch.arange(t, device="cpu")).repeat(len(X))
    return ExactGP(
        reduce(operator.add, both),
        X.repeat_interleave(t, dim=0),
        (y.double() @ W.mT).reshape(-1),
        1.0,
        Mixed(mean, A),
        tasks,
    )


def _whitening(Sigma: Tensor) -> Tensor:
    """Return L^-1 `[t, t]` for the covariance Sigma = L L^T of the tasks' noise."""
    L, failed = torch.linalg.cholesky_ex(Sigma.double())
    if bool(failed):
        raise ValueError(
            "likelihood: expected a positive definite covariance of the tasks' noise, got a singular one; give "
            "MultitaskGaussianLikelihood global noise"
        )
    return torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False)


def _whitened(sites: Functionals, y: Tensor, Sigma: Tensor) -> tuple[Functionals, Tensor, Tensor]:
    """Decorrelate the noise of a point's value and gradient, which are t functionals of one function.

    As in `_correlated_noise`, L^-1 of them is observed with independent noise of variance one.
    """
    W, t = _whitening(Sigma), len(Sigma)
    each = torch.arange(len(sites), device=W.device).reshape(-1, t)  # [n, t]
    atoms = sites[each.repeat_interleave(t, dim=0).reshape(-1)]  # every row of W combines all t functionals of a point
    starts = t * torch.arange(len(sites), device=W.device)
    mixed = atoms.replaced(weights=W.to(atoms.weights).repeat(len(each), 1).reshape(-1), starts=starts)
    y = (y.double().reshape(-1, t) @ W.mT).reshape(-1)
    return mixed, y.to(atoms.weights), torch.ones_like(atoms.weights[: len(sites)])


def _inducing_points(outer: gk.InducingPointKernel, kernel: Kernel, tasks: Tensor | None) -> Tensor:
    """Return the inducing points Z of a sparse regression, which must have all columns of the inputs."""
    if outer.active_dims is not None:
        raise TypeError(
            "kernel: expected an InducingPointKernel without active_dims, got one with them; give them to its base "
            f"kernel, {BY_HAND}"
        )
    if tasks is not None or kernel.num_outputs > 1:
        raise TypeError(f"kernel: InducingPointKernel of a kernel of several tasks is not understood; {BY_HAND}")
    return tensor(outer.inducing_points)


def _collapsed_regression(kernel: Kernel, Z: Tensor, X: Tensor, y: Tensor, noise: Tensor, mean: Mean) -> SparseGP:
    """Build the sparse model with which GPyTorch predicts in sparse Gaussian process regression.

    With K_mm = L L^T, R = K_nm L^-T and M = I + R^T D^-1 R, the whitened q(u) is

        u ~ N(M^-1 R^T D^-1 (y - m), M^-1),    D = noise + diag(K_nn - R R^T)

    GPyTorch uses the second term of D (FITC) in predictions, unless settings.sgpr_diagonal_correction is off; it
    does not use it in the training objective.
    """
    # This is computed in float64, because K_mm is too ill-conditioned to be inverted in float32.
    Zd, Xd = Z.double(), X.double()
    K_mm = kernel(Zd)  # [m, m]
    jitter = _jitter(K_mm.detach(), Z.dtype)
    eye = torch.eye(len(Zd), dtype=Zd.dtype, device=Zd.device)
    L = torch.linalg.cholesky(K_mm + jitter * eye)  # [m, m]
    R = torch.linalg.solve_triangular(L, kernel(Zd, Xd), upper=False).mT  # [n, m]
    D = noise.double()  # [n]
    if settings.sgpr_diagonal_correction.on():
        D = D + (kernel.to(Xd).diag(Xd) - R.square().sum(-1)).clamp_min(0)
    M = eye + R.mT @ (R / D[:, None])  # [m, m]
    L_M = torch.linalg.cholesky(M)
    root = torch.linalg.solve_triangular(L_M, eye, upper=False).mT  # L_M^-T, root root^T = M^-1
    residual = (y.double() - mean.to(Xd)(Xd[None])[0, :, 0]) / D  # [n]
    q_mean = root @ (root.mT @ (R.mT @ residual))  # [m]
    return SparseGP(kernel, Z, q_mean, root, mean, whitened=True, jitter=jitter)


def _jitter(K: Tensor, dtype: torch.dtype) -> float:
    """Return the jitter that GPyTorch adds to the diagonal of K_mm, 0 unless the Cholesky factorisation fails."""
    K = K.to(dtype)
    eye = torch.eye(len(K), dtype=dtype, device=K.device)
    first, count = settings.cholesky_jitter.value(dtype) or 0.0, settings.cholesky_max_tries.value() or 0
    tries = [0.0, *(first * 10.0**i for i in range(count))]
    for jitter in tries:
        if not bool(torch.linalg.cholesky_ex(K + jitter * eye).info):
            return jitter
    return tries[-1]
