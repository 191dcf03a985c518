"""The adapter for GPflow 2: GPR, SGPR, VGP and SVGP models as snapshots, which hold copies of their values.

A path is the latent function, as in `predict_f`, for every likelihood. In GPflow, a White kernel adds variance to
`predict_f`; here it is observation noise, and not part of the function. The column of X that a Coregion kernel reads
becomes the task: paths take the other columns and return an axis of outputs.

GPflow adds `gpflow.config.default_jitter()` to K_uu. This jitter is part of the model, and the snapshot has it too. In
GPflow, an unwhitened u is f(Z) minus the mean function; in matheron it is f(Z).

A kernel of several outputs means f = W g with independent latent functions g. W is the identity, except for
LinearCoregionalization. Shared- and SeparateIndependentInducingVariables are values of the latent functions, while
plain InducingPoints are values of all outputs.

Every translated kernel is checked at the model's points.
"""

# Where GPflow is not installed, pyright takes `import gpflow` for this file.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce, singledispatch
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag, solve_triangular

from .. import kernels
from ..core.sites import Sites
from ..kernels import Kernel, coupled_covariance
from ..models import ExactGP, Outputs, SelectedOutputs, SparseGP
from ..models.means import ConstantMean, LinearMean, Mean
from .refusal import BY_HAND, needs, refusal

with needs("GPflow", "gpflow"):
    import gpflow
    from gpflow import inducing_variables as gi
    from gpflow import kernels as gk
    from gpflow import mean_functions as gf
    from gpflow import models as gm


def value(parameter: object) -> np.ndarray:
    """Copy a parameter, a variable or a tensor to a float64 array."""
    return np.array(getattr(parameter, "numpy", lambda: parameter)(), dtype=np.float64)


def theirs(points: np.ndarray) -> np.ndarray:
    """Convert points to GPflow's precision, as its kernels and likelihoods expect them."""
    return points.astype(gpflow.default_float())


@singledispatch
def translate(kernel: object, input_dim: int, task: int | None = None) -> Kernel:
    """Translate a GPflow kernel to one of `matheron.kernels`, without its White kernels, which are noise.

    Args:
        kernel: a kernel of one output.
        input_dim: the number of columns of X.
        task: the column that Coregion kernels read; it is not an input of the translated kernel.
    """
    raise refusal("kernel", kernel, translate)


# Radial kernels: the translated kernel is multiplied by GPflow's variance.
_RADIAL = {
    gk.SquaredExponential: lambda kernel: kernels.RBF(value(kernel.lengthscales)),
    gk.Matern12: lambda kernel: kernels.Matern(0.5, value(kernel.lengthscales)),
    gk.Exponential: lambda kernel: kernels.Matern(0.5, 2 * value(kernel.lengthscales)),  # exp(-r / 2)
    gk.Matern32: lambda kernel: kernels.Matern(1.5, value(kernel.lengthscales)),
    gk.Matern52: lambda kernel: kernels.Matern(2.5, value(kernel.lengthscales)),
    gk.RationalQuadratic: lambda kernel: kernels.RationalQuadratic(value(kernel.alpha), value(kernel.lengthscales)),
}
for kind, ours in _RADIAL.items():
    translate.register(kind, lambda kernel, d, task=None, ours=ours: _scaled(ours(kernel), kernel, d, task))
translate.register(
    gk.Linear, lambda kernel, d, task=None: _placed(kernels.Linear(value(kernel.variance)), kernel, d, task)
)
# Kernels without input columns.
translate.register(gk.Constant, lambda kernel, d, task=None: kernels.Constant(value(kernel.variance)))
translate.register(gk.White, lambda kernel, d, task=None: kernels.Constant(0.0))
translate.register(
    gk.Coregion,
    lambda kernel, d, task=None: kernels.Coregional(kernels.Constant(1.0), value(kernel.output_covariance())),
)


@translate.register
def _(kernel: gk.Periodic, input_dim: int, task: int | None = None) -> Kernel:
    base = kernel.base_kernel
    if not isinstance(base, gk.SquaredExponential):
        raise TypeError(f"kernel: expected Periodic of SquaredExponential, got one of {type(base).__name__}; {BY_HAND}")
    periodic = kernels.Periodic(2 * value(base.lengthscales), value(kernel.period))  # exp(-sin^2 / (2 lengthscale^2))
    return _scaled(periodic, base, input_dim, task)


@translate.register
def _(kernel: gk.Cosine, input_dim: int, task: int | None = None) -> Kernel:
    d = len(_columns(kernel, input_dim))
    frequency = np.ones(d) / value(kernel.lengthscales)  # cos(2 pi sum_i r_i / lengthscale_i)
    if d == 1:
        return _scaled(kernels.Cosine(abs(1 / frequency[0])), kernel, input_dim, task)
    wave = kernels.SpectralMixture([1.0], frequency[None], np.zeros((1, d)))
    return _scaled(wave, kernel, input_dim, task)


@translate.register
def _(kernel: gk.Polynomial, input_dim: int, task: int | None = None) -> Kernel:
    degree, variance, offset = float(kernel.degree), value(kernel.variance), float(value(kernel.offset))
    if degree != int(degree) or degree < 1:
        raise TypeError(f"kernel: expected a Polynomial with a whole degree of at least 1, got {degree}; {BY_HAND}")
    if np.all(variance == variance.flat[0]):  # (s x.x' + c)^p = s^p (x.x' + c / s)^p
        s = float(variance.flat[0])
        polynomial = s**degree * kernels.Polynomial(int(degree), offset / s)
    else:
        polynomial = kernels.Product(*[kernels.Linear(variance) + kernels.Constant(offset)] * int(degree))
    return _placed(polynomial, kernel, input_dim, task)


@translate.register
def _(kernel: gk.Sum, input_dim: int, task: int | None = None) -> Kernel:
    parts = [translate(k, input_dim, task) for k in kernel.kernels]
    parts = [k for k in parts if not _is_zero(k)] or parts[:1]
    return parts[0] if len(parts) == 1 else kernels.Sum(*parts)


@translate.register
def _(kernel: gk.Product, input_dim: int, task: int | None = None) -> Kernel:
    parts = [translate(k, input_dim, task) for k in kernel.kernels]
    return kernels.Constant(0.0) if any(map(_is_zero, parts)) else kernels.Product(*parts)


def _is_zero(kernel: Kernel) -> bool:
    return isinstance(kernel, kernels.Constant) and float(kernel.value) == 0


def _scaled(ours: Kernel, kernel: gk.Kernel, input_dim: int, task: int | None) -> Kernel:
    return _placed(kernels.Scaled(ours, value(kernel.variance)), kernel, input_dim, task)


def _placed(ours: Kernel, kernel: gk.Kernel, input_dim: int, task: int | None) -> Kernel:
    """Restrict the kernel to its active dimensions, which are counted without the task's column."""
    columns = _columns(kernel, input_dim)
    if task in columns:
        raise TypeError(
            f"kernel: expected active_dims of {type(kernel).__name__} without column {task}, which a Coregion kernel "
            "reads as the task; give active_dims that leave it out"
        )
    inputs = [i for i in range(input_dim) if i != task]
    return ours if columns == inputs else ours.on([inputs.index(i) for i in columns])


def _columns(kernel: Any, input_dim: int) -> list[int]:
    dims = kernel.active_dims
    return list(range(input_dim)[dims]) if isinstance(dims, slice) else [int(i) for i in dims]


def task_column(kernel: gk.Kernel, input_dim: int) -> int | None:
    """Return the column of X that Coregion kernels read; None if there are no such kernels."""
    columns = {tuple(_columns(k, input_dim)) for k in leaves(kernel) if isinstance(k, gk.Coregion)}
    if not columns:
        return None
    if len(columns) > 1 or input_dim == 1:
        raise TypeError(
            f"kernel: expected all Coregion kernels to read the same column of X, and at least one other column, got "
            f"columns {sorted(columns)} of {input_dim}; {BY_HAND}"
        )
    return columns.pop()[0]


def leaves(kernel: gk.Kernel) -> list[gk.Kernel]:
    return [leaf for k in kernel.kernels for leaf in leaves(k)] if isinstance(kernel, gk.Combination) else [kernel]


@singledispatch
def noise_variance(kernel: object, X: np.ndarray) -> np.ndarray:
    """Return what the White kernels in a kernel add to the diagonal of k(X, X), `[n]`.

    Write each factor of a product as k_i = s_i + w_i with white part w_i. Between different points the product is
    s_1 s_2, so the rest of its diagonal, k_1 k_2 - s_1 s_2, is white.
    """
    return np.zeros(len(X))


noise_variance.register(gk.White, lambda kernel, X: np.full(len(X), float(value(kernel.variance))))
noise_variance.register(gk.Sum, lambda kernel, X: np.sum([noise_variance(k, X) for k in kernel.kernels], axis=0))


@noise_variance.register
def _(kernel: gk.Product, X: np.ndarray) -> np.ndarray:
    white, smooth = np.zeros(len(X)), np.ones(len(X))
    for k in kernel.kernels:
        w, diagonal = noise_variance(k, X), value(k(theirs(X), full_cov=False))
        white, smooth = white * diagonal + smooth * w, smooth * (diagonal - w)
    return white


@singledispatch
def affine(mean: object, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A `[q, d]` and b `[q]` of a mean function x -> A x + b of q outputs; q = 1 stands for all outputs."""
    raise refusal("mean_function", mean, affine, "an ExactGP or a SparseGP takes any callable as its mean")


affine.register(gf.Zero, lambda mean, input_dim: (np.zeros((1, input_dim)), np.zeros(1)))
affine.register(gf.Identity, lambda mean, input_dim: (np.eye(input_dim), np.zeros(input_dim)))


@affine.register
def _(mean: gf.Constant, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    b = value(mean.c).reshape(-1)
    return np.zeros((len(b), input_dim)), b


@affine.register
def _(mean: gf.Linear, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    A, b = value(mean.A).T, value(mean.b).reshape(-1)
    q = max(len(A), len(b))
    return np.broadcast_to(A, (q, input_dim)), np.broadcast_to(b, (q,))


@affine.register
def _(mean: gf.Additive, input_dim: int) -> tuple[np.ndarray, np.ndarray]:
    (A1, b1), (A2, b2) = (affine(part, input_dim) for part in (mean.add_1, mean.add_2))
    return A1 + A2, b1 + b2


def of_outputs(mean: gf.MeanFunction, input_dim: int, num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A `[t, d]` and b `[t]` for a model of t outputs."""
    A, b = affine(mean, input_dim)
    return np.broadcast_to(A, (num_outputs, input_dim)), np.broadcast_to(b, (num_outputs,))


def one_each(mean: gf.MeanFunction, input_dim: int, num_outputs: int) -> list[Mean]:
    """Return one mean function for each of a model's outputs."""
    A, b = of_outputs(mean, input_dim, num_outputs)
    return [linear(A[i : i + 1], b[i : i + 1]) for i in range(num_outputs)]


def linear(A: np.ndarray, b: np.ndarray) -> Mean:
    """The mean x -> A x + b, with A `[t, d]` and b `[t]`."""
    return LinearMean(A.copy(), b.copy()) if A.any() else ConstantMean(b.copy())


@dataclass(frozen=True)
class Frame:
    """A translated kernel and its points: inputs `[m, d]` and, for a kernel that couples tasks, tasks `[m]`."""

    kernel: Kernel
    inputs: np.ndarray
    tasks: np.ndarray | None
    white: np.ndarray  # [m], the variances that White kernels add at the points
    task: int | None = None  # the column of task numbers

    def check(self, kernel: gpflow.kernels.Kernel, theirs: np.ndarray) -> None:
        """Check the translation at some points, because a user's subclass of a kernel may have another formula."""
        points = torch.from_numpy(self.inputs[: len(theirs)])
        i = None if self.tasks is None else torch.from_numpy(self.tasks[: len(theirs)])
        sites = Sites(points, i)
        ours = coupled_covariance(self.kernel, sites, sites).numpy()
        if not np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * np.abs(ours).max()):
            raise TypeError(
                f"kernel: the values of {type(kernel).__name__} at the model's points differ from those of its "
                "translation: either a part of it is a subclass with its own formula, or GPflow ignores active_dims "
                f"(it does in a kernel of several outputs with plain InducingPoints); {BY_HAND}"
            )

    def sparse(self, q_mu: np.ndarray, q_root: np.ndarray, mean: Mean, whiten: bool) -> SparseGP:
        """Return the sparse model with q(u) = N(q_mu, q_root q_root^T).

        If u is not whitened, it is f(Z) minus the mean function. White noise at the inducing points becomes jitter.
        """
        white = self.white
        if not np.allclose(white, white[0], rtol=1e-9, atol=0):
            raise TypeError(
                f"kernel: expected the same White noise at all inducing points, got {white.min():.4g} to "
                f"{white.max():.4g}; {BY_HAND}"
            )
        jitter = gpflow.config.default_jitter() + float(white[0])
        if not whiten:
            i = None if self.tasks is None else torch.from_numpy(self.tasks)
            q_mu = q_mu + mean.at(Sites(torch.from_numpy(self.inputs), i)).numpy()
        return SparseGP(self.kernel, self.inputs, q_mu, q_root, mean, bool(whiten), jitter, tasks=self.tasks)


def framed(kernel: gpflow.kernels.Kernel, points: np.ndarray) -> Frame:
    """Translate a kernel, and check the translation at points `[m, columns]`."""
    task = task_column(kernel, points.shape[1])
    inputs, tasks = points, None
    if task is not None:
        inputs, tasks = np.delete(points, task, axis=1), points[:, task].astype(int)
    frame = Frame(translate(kernel, points.shape[1], task), inputs, tasks, noise_variance(kernel, points), task)
    few = theirs(points[:8])
    frame.check(kernel, value(kernel(few, few)))
    return frame


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


REGISTRIES = {
    "models": describe,
    "kernels": translate,
    "kernels of several outputs": latent_kernels,
    "inducing variables": inducing_points,
    "mean functions": affine,
}
