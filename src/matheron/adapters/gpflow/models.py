"""Translation of GPflow's models to snapshots.

GPflow adds `gpflow.config.default_jitter()` to K_uu. This jitter is part of the model, and the snapshot has it too. In
GPflow, an unwhitened u is f(Z) minus the mean function; in matheron it is f(Z).

A kernel of several outputs means f = W g with independent latent functions g. W is the identity, except for
LinearCoregionalization. Shared- and SeparateIndependentInducingVariables are values of the latent functions, while
plain InducingPoints are values of all outputs.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import operator
from functools import reduce, singledispatch

import numpy as np
from gpflow import inducing_variables as gi
from gpflow import kernels as gk
from gpflow import models as gm
from scipy.linalg import block_diag, solve_triangular

from ... import kernels
from ...kernels import Kernel
from ...models import ExactGP, Outputs, SelectedOutputs, SparseGP
from ...models.means import Mean
from ..refusal import BY_HAND, refusal
from .frame import Frame, framed
from .kernels import theirs, value
from .means import linear, of_outputs, one_each

Described = ExactGP | SparseGP | Outputs | SelectedOutputs


@singledispatch
def describe(model: object) -> Described:
    """Return a GPflow model as an `ExactGP` or a `SparseGP`, or as several of these for its outputs."""
    raise refusal("model", model, describe)


@describe.register
def _(model: gm.GPR) -> Described:
    X, Y = (value(v) for v in model.data)  # [n, d], [n, t]
    frame = framed(model.kernel, X)
    noise = np.ravel(value(model.likelihood.variance_at(theirs(X)))) + frame.white  # [n]
    columns = zip(Y.T, _means(model, frame, Y.shape[1]), strict=True)
    members = [ExactGP(frame.kernel, frame.inputs, y, noise, mean, frame.tasks) for y, mean in columns]
    return members[0] if len(members) == 1 else Outputs(members)


@describe.register
def _(model: gm.SGPR) -> Described:
    """The optimal q(u), from the matrices B and c that GPflow stores.

    With A = L^-1 K_uf / sigma and L L^T = K_uu, they are B B^T = I + A A^T and c = B^-1 A y. The whitened q(u) has mean
    B^-T c and covariance (B B^T)^-1.
    """
    if isinstance(model, gm.CGLB):  # a subclass of SGPR, whose mean is found by conjugate gradients
        raise refusal("model", model, describe)
    _, B, c = (value(v) for v in model.posterior().cache)  # [m, m], [m, t]
    root = solve_triangular(B, np.eye(len(B)), lower=True).T  # B^-T
    Z = inducing_points(model.inducing_variable)[0]
    return _variational(model, Z, root @ c, np.stack([root] * c.shape[1]), whiten=True)


@describe.register
def _(model: gm.VGP) -> Described:
    return _variational(model, value(model.data[0]), value(model.q_mu), value(model.q_sqrt), whiten=True)


@describe.register
def _(model: gm.SVGP) -> Described:
    q_mu, q_sqrt = value(model.q_mu), value(model.q_sqrt)  # [m, t], [m, t] or [t, m, m]
    roots = q_sqrt.T if q_sqrt.ndim == 2 else q_sqrt  # [t, m] or [t, m, m]
    if isinstance(model.kernel, gk.MultioutputKernel):
        return _multioutput(model, q_mu, roots)
    return _variational(model, inducing_points(model.inducing_variable)[0], q_mu, roots, model.whiten)


def _variational(model: gm.GPModel, Z: np.ndarray, q_mu: np.ndarray, roots: np.ndarray, whiten: bool) -> Described:
    """Build one model for each column of q_mu `[m, t]`; all have the same kernel and inducing points."""
    frame = framed(model.kernel, Z)
    columns = zip(q_mu.T, roots, _means(model, frame, q_mu.shape[1]), strict=True)
    members = [frame.sparse(mu, root, mean, whiten) for mu, root, mean in columns]
    return members[0] if len(members) == 1 else Outputs(members)


def _means(model: gm.GPModel, frame: Frame, num_outputs: int) -> list[Mean]:
    """Return one mean for each of the model's outputs; if the kernel couples tasks, one mean of all tasks."""
    if frame.task is None:
        return one_each(model.mean_function, frame.inputs.shape[1], num_outputs)
    if num_outputs > 1:
        raise TypeError(f"model: expected one latent function with a Coregion kernel, got {num_outputs}; {BY_HAND}")
    t = frame.kernel.num_outputs
    A, b = of_outputs(model.mean_function, frame.inputs.shape[1] + 1, 1)
    weights = np.delete(A, frame.task, axis=1).repeat(t, axis=0)  # [t, d]
    return [linear(weights, b + A[0, frame.task] * np.arange(t))]


@singledispatch
def inducing_points(inducing_variable: object) -> list[np.ndarray]:
    """Return inducing points `[m, d]`: one array for all latent functions, or one for each."""
    raise refusal("inducing_variable", inducing_variable, inducing_points)


inducing_points.register(gi.InducingPoints, lambda inducing_variable: [value(inducing_variable.Z)])


@inducing_points.register
def _(
    inducing_variable: gi.FallbackSharedIndependentInducingVariables
    | gi.FallbackSeparateIndependentInducingVariables
    | gi.SharedIndependentInducingVariables
    | gi.SeparateIndependentInducingVariables,
) -> list[np.ndarray]:
    return [inducing_points(part)[0] for part in inducing_variable.inducing_variables]


@singledispatch
def latent_kernels(kernel: object) -> tuple[list[gk.Kernel], np.ndarray | None]:
    """Return the kernels of the latent functions, and W `[t, l]`, or None if f = g."""
    raise refusal("kernel", kernel, latent_kernels)


latent_kernels.register(gk.SharedIndependent, lambda kernel: ([kernel.kernel] * kernel.num_latent_gps, None))
latent_kernels.register(gk.SeparateIndependent, lambda kernel: (list(kernel.kernels), None))
latent_kernels.register(gk.LinearCoregionalization, lambda kernel: (list(kernel.kernels), value(kernel.W)))


def _multioutput(model: gm.SVGP, q_mu: np.ndarray, roots: np.ndarray) -> SparseGP | Outputs | SelectedOutputs:
    """Translate an SVGP with a kernel of several outputs; q_mu is `[m, l]`, roots `[l, m]` or `[l, m, m]`."""
    latent, W = latent_kernels(model.kernel)
    Z = inducing_points(model.inducing_variable)
    Z = Z * len(latent) if len(Z) == 1 else Z
    frames = [framed(k, z) for k, z in zip(latent, Z, strict=True)]
    if any(frame.task is not None for frame in frames):
        raise TypeError(f"kernel: a Coregion kernel inside a kernel of several outputs is not understood; {BY_HAND}")
    if isinstance(model.inducing_variable, gi.InducingPoints):
        return _correlated(model, frames, np.eye(len(latent)) if W is None else W, q_mu[:, 0], roots[0])
    if W is not None:
        return _mixed(model, frames, W, q_mu, roots)
    means = one_each(model.mean_function, Z[0].shape[1], len(latent))
    parts = zip(frames, q_mu.T, roots, means, strict=True)
    return Outputs([frame.sparse(mu, root, mean, model.whiten) for frame, mu, root, mean in parts])


def _mixed(model: gm.SVGP, frames: list[Frame], W: np.ndarray, q_mu: np.ndarray, roots: np.ndarray) -> SelectedOutputs:
    """Build a model whose outputs are those of the GPflow model, then the latent functions, whose values are u."""
    t, num_latent = W.shape
    kernel = _coregional(frames, np.concatenate([W, np.eye(num_latent)]))
    A, b = of_outputs(model.mean_function, frames[0].inputs.shape[1], t)
    mean = linear(np.concatenate([A, np.zeros((num_latent, A.shape[1]))]), np.concatenate([b, np.zeros(num_latent)]))
    Z = np.concatenate([frame.inputs for frame in frames])  # [l m, d]
    tasks = np.repeat(np.arange(t, t + num_latent), [len(frame.inputs) for frame in frames])
    root = roots.reshape(-1) if roots.ndim == 2 else np.asarray(block_diag(*roots))
    whole = Frame(kernel, Z, tasks, np.concatenate([frame.white for frame in frames]))
    return SelectedOutputs(whole.sparse(q_mu.T.reshape(-1), root, mean, model.whiten), range(t))


def _correlated(model: gm.SVGP, frames: list[Frame], W: np.ndarray, q_mu: np.ndarray, root: np.ndarray) -> SparseGP:
    """Build a model with one q(u) for all outputs at all inducing points; u is `[m t]`, point by point."""
    t, Z = len(W), frames[0].inputs
    white = np.stack([frame.white for frame in frames], axis=1) @ W.T**2  # [m, t]
    tasks = np.tile(np.arange(t), len(Z))
    whole = Frame(_coregional(frames, W), Z.repeat(t, axis=0), tasks, white.reshape(-1))
    few = theirs(Z[:8])
    K = value(model.kernel(few, few, full_cov=True, full_output_cov=True))  # [m, t, m, t]
    whole.check(model.kernel, K.reshape(len(few) * t, len(few) * t))
    return whole.sparse(q_mu, root, linear(*of_outputs(model.mean_function, Z.shape[1], t)), model.whiten)


def _coregional(frames: list[Frame], W: np.ndarray) -> Kernel:
    """Return the covariance of W g, with W `[t, l]` and independent functions g that have the frames' kernels."""
    parts: list[Kernel] = [kernels.Coregional(f.kernel, np.outer(w, w)) for f, w in zip(frames, W.T, strict=True)]
    return reduce(operator.add, parts)
