"""SVGP models with kernels of several outputs: SharedIndependent, SeparateIndependent, LinearCoregionalization.

All are f = W g with independent latent functions g, W = I but for LinearCoregionalization. Inducing variables are of
each latent function (SharedIndependent-, SeparateIndependentInducingVariables), or of all outputs (InducingPoints).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import singledispatch

import numpy as np
from gpflow import inducing_variables as gi
from gpflow import kernels as gk
from gpflow.models import SVGP
from scipy.linalg import block_diag

from ... import kernels
from ...gp import Outputs, SelectedOutputs, SparseGP
from ...kernels import Kernel
from ..refusal import BY_HAND, refusal
from .frame import Frame, compare, sparse
from .kernels import theirs, value
from .means import linear, of_outputs, one_each


@singledispatch
def inducing_points(inducing_variable: object) -> list[np.ndarray]:
    """Inducing points `[m, d]`, one array for all latent functions, or one for each."""
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
    """The latent functions' kernels, one each, and W `[t, l]`, None where f = g."""
    raise refusal("kernel", kernel, latent_kernels)


latent_kernels.register(gk.SharedIndependent, lambda kernel: ([kernel.kernel] * kernel.num_latent_gps, None))
latent_kernels.register(gk.SeparateIndependent, lambda kernel: (list(kernel.kernels), None))
latent_kernels.register(gk.LinearCoregionalization, lambda kernel: (list(kernel.kernels), value(kernel.W)))


def describe_multioutput(model: SVGP, q_mu: np.ndarray, roots: np.ndarray) -> SparseGP | Outputs | SelectedOutputs:
    """An SVGP with a kernel of several outputs; q_mu `[m, l]`, roots `[l, m]` or `[l, m, m]`."""
    latent, W = latent_kernels(model.kernel)
    Z = inducing_points(model.inducing_variable)
    if isinstance(model.inducing_variable, gi.InducingPoints):
        return _correlated(model, latent, np.eye(len(latent)) if W is None else W, Z[0], q_mu[:, 0], roots[0])
    Z = Z * len(latent) if len(Z) == 1 else Z
    frames = [_frame(k, z) for k, z in zip(latent, Z, strict=True)]
    if W is not None:
        return _mixed(model, frames, W, q_mu, roots)
    means = one_each(model.mean_function, Z[0].shape[1], len(latent))
    parts = zip(frames, q_mu.T, roots, means, strict=True)
    return Outputs([frame.sparse(mu, root, mean, model.whiten) for frame, mu, root, mean in parts])


def _frame(kernel: gk.Kernel, Z: np.ndarray) -> Frame:
    frame = Frame(kernel, Z)
    if frame.task is not None:
        raise TypeError(f"kernel: a Coregion kernel inside a kernel of several outputs is not understood; {BY_HAND}")
    return frame


def _mixed(model: SVGP, frames: list[Frame], W: np.ndarray, q_mu: np.ndarray, roots: np.ndarray) -> SelectedOutputs:
    """The latent functions are outputs too, after those of the model: there u is observed."""
    t, num_latent = W.shape
    kernel = _coregional([frame.kernel for frame in frames], np.concatenate([W, np.eye(num_latent)]))
    A, b = of_outputs(model.mean_function, frames[0].columns, t)
    mean = linear(np.concatenate([A, np.zeros((num_latent, A.shape[1]))]), np.concatenate([b, np.zeros(num_latent)]))
    Z = np.concatenate([frame.inputs for frame in frames])  # [l m, d]
    tasks = np.repeat(np.arange(t, t + num_latent), [len(frame.inputs) for frame in frames])
    root = roots.reshape(-1) if roots.ndim == 2 else np.asarray(block_diag(*roots))
    white = np.concatenate([frame.white for frame in frames])
    return SelectedOutputs(sparse(kernel, Z, tasks, q_mu.T.reshape(-1), root, mean, model.whiten, white), range(t))


def _correlated(
    model: SVGP, latent: list[gk.Kernel], W: np.ndarray, Z: np.ndarray, q_mu: np.ndarray, root: np.ndarray
) -> SparseGP:
    """One q(u) of all outputs at all points, point by point: u `[m t]`."""
    t, m = len(W), len(Z)
    frames = [_frame(k, Z) for k in latent]
    kernel = _coregional([frame.kernel for frame in frames], W)
    points, tasks = Z.repeat(t, axis=0), np.tile(np.arange(t), m)
    few = min(m, 8)
    z = theirs(Z[:few])
    K = value(model.kernel(z, z, full_cov=True, full_output_cov=True))  # [m, t, m, t]
    compare(model.kernel, K.reshape(few * t, few * t), kernel, points[: few * t], tasks)
    mean = linear(*of_outputs(model.mean_function, Z.shape[1], t))
    white = np.stack([frame.white for frame in frames], axis=1) @ W.T**2  # [m, t]
    return sparse(kernel, points, tasks, q_mu, root, mean, model.whiten, white.reshape(-1))


def _coregional(parts: list[Kernel], W: np.ndarray) -> Kernel:
    """The covariance of W g, W `[t, l]`, for independent functions g with the kernels `parts`."""
    coupled = [kernels.Coregional(k, np.outer(w, w)) for k, w in zip(parts, W.T, strict=True)]
    return coupled[0] if len(coupled) == 1 else kernels.Sum(*coupled)
