"""Translation of GPyTorch's models: exact ones (several outputs, noise, sparse regression) and variational ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce, singledispatch
from typing import cast

import torch
from gpytorch import kernels as gk
from gpytorch import likelihoods as gl
from gpytorch import models, settings
from gpytorch import variational as gv
from linear_operator import to_dense
from torch import Tensor, nn

from ... import kernels
from ...core.functionals import Functionals
from ...core.sites import Sites
from ...kernels import Kernel, coupled_covariance
from ...models import GP, Batch, ExactGP, Outputs, SelectedOutputs, SparseGP
from ...models.likelihoods import Bernoulli, Likelihood, StudentT
from ...models.means import Mean, Mixed, Stacked
from ..refusal import BY_HAND, refusal, refuse_override
from .kernels import tensor
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


# Variational models: the moments of q(u), and the variational strategies.

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


# Likelihoods that map the latent functions of a variational model to outcomes.


@singledispatch
def likelihood_of(likelihood: object) -> Likelihood:
    """Translate a GPyTorch likelihood to one of `matheron.likelihoods`; paths of its model are latent functions.

    >>> import gpytorch
    >>> from matheron.adapters.gpytorch import likelihood_of
    >>> likelihood_of(gpytorch.likelihoods.BernoulliLikelihood())
    Bernoulli('probit')
    """
    raise refusal("likelihood", likelihood, likelihood_of)


likelihood_of.register(gl.BernoulliLikelihood, lambda likelihood: Bernoulli("probit"))


@likelihood_of.register
def _(likelihood: gl.StudentTLikelihood) -> Likelihood:
    df, variance = tensor(likelihood.deg_free).detach().squeeze(), tensor(likelihood.noise).detach().squeeze()
    if df.ndim or variance.ndim:
        raise ValueError(
            f"likelihood: expected one, got a batch of {max(df.numel(), variance.numel())}; index it first"
        )
    return StudentT(df, variance.sqrt())
