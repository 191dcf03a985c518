"""Translation of GPflow's kernels, with its parametrisations. Every translation is checked at the model's points."""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import singledispatch

import gpflow
import numpy as np
from gpflow import kernels as gk

from ... import kernels
from ...kernels import Kernel
from ..refusal import BY_HAND, refusal


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


def _columns(kernel: gk.Kernel, input_dim: int) -> list[int]:
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
