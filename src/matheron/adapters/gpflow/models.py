"""GPflow's models as snapshots.

GPflow adds `gpflow.config.default_jitter()` to K_uu: it is part of the model and is passed on. Its unwhitened q(u) is
of f(Z) less the mean function, ours of f(Z).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import singledispatch

import numpy as np
from gpflow import kernels as gk
from gpflow import models as gm
from scipy.linalg import solve_triangular

from ...gp import ExactGP, Outputs, SelectedOutputs, SparseGP
from ..refusal import refusal
from .frame import Frame
from .kernels import theirs, value
from .multioutput import describe_multioutput, inducing_points

Snapshot = ExactGP | SparseGP | Outputs | SelectedOutputs


@singledispatch
def describe(model: object) -> Snapshot:
    """A GPflow model as an `ExactGP` or a `SparseGP`, or several of these as outputs."""
    raise refusal("model", model, describe)


@describe.register
def _(model: gm.GPR) -> Snapshot:
    X, Y = (value(v) for v in model.data)  # [n, d], [n, t]
    frame = Frame(model.kernel, X)
    noise = np.ravel(value(model.likelihood.variance_at(theirs(X)))) + frame.white  # [n]
    means = frame.means(model.mean_function, Y.shape[1])
    members = [
        ExactGP(frame.kernel, frame.inputs, y, noise, mean, frame.tasks) for y, mean in zip(Y.T, means, strict=True)
    ]
    return members[0] if len(members) == 1 else Outputs(members)


@describe.register
def _(model: gm.SGPR) -> Snapshot:
    """The optimal q(u). GPflow holds B and c: B B^T = I + A A^T with A = L^-1 K_uf / sigma, L L^T = K_uu; c = B^-1 A y.

    Whitened, its mean is B^-T c and its covariance (B B^T)^-1.
    """
    if isinstance(model, gm.CGLB):  # an SGPR by class, but its mean is found by conjugate gradients
        raise refusal("model", model, describe)
    _, B, c = (value(v) for v in model.posterior().cache)  # [m, m], [m, t]
    root = solve_triangular(B, np.eye(len(B)), lower=True).T  # B^-T
    Z = inducing_points(model.inducing_variable)[0]
    return _variational(model, Z, root @ c, np.stack([root] * c.shape[1]), whiten=True)


@describe.register
def _(model: gm.VGP) -> Snapshot:
    return _variational(model, value(model.data[0]), value(model.q_mu), value(model.q_sqrt), whiten=True)


@describe.register
def _(model: gm.SVGP) -> Snapshot:
    q_mu, q_sqrt = value(model.q_mu), value(model.q_sqrt)  # [m, t], [m, t] or [t, m, m]
    roots = q_sqrt.T if q_sqrt.ndim == 2 else q_sqrt  # [t, m] or [t, m, m]
    if isinstance(model.kernel, gk.MultioutputKernel):
        return describe_multioutput(model, q_mu, roots)
    return _variational(model, inducing_points(model.inducing_variable)[0], q_mu, roots, model.whiten)


def _variational(model: gm.GPModel, Z: np.ndarray, q_mu: np.ndarray, roots: np.ndarray, whiten: bool) -> Snapshot:
    """A q(u) for each column of q_mu `[m, t]`, all of one kernel and at the same points."""
    frame = Frame(model.kernel, Z)
    means = frame.means(model.mean_function, q_mu.shape[1])
    members = [frame.sparse(mu, root, mean, whiten) for mu, root, mean in zip(q_mu.T, roots, means, strict=True)]
    return members[0] if len(members) == 1 else Outputs(members)
