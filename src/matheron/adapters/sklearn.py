"""The adapter for scikit-learn: fitted regressors as snapshots, translated kernels, and `sample_y` in linear time.

scikit-learn has no likelihood. Its noise is `alpha`, which is added to the covariance of the data, and WhiteKernel,
which is part of the kernel. WhiteKernel adds variance at test points too: `predict` and `sample_y` describe new noisy
observations. A path is the noise-free function: here WhiteKernel is observation noise. The function `sample_y` of this
module adds that noise again, so its values have the law of scikit-learn's `sample_y`.
"""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np
import torch

from .. import kernels
from ..core.checks import ArrayLike, check_names
from ..drawing import draw, draw_prior
from ..kernels import Kernel
from ..models import ExactGP, Outputs
from ..models.transforms import Affine, chained
from ..paths import OutputPaths
from .refusal import BY_HAND, needs, refusal

with needs("scikit-learn", "sklearn"):
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as sk
    from sklearn.model_selection._search import BaseSearchCV
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.utils import check_array, check_random_state

from .scalers import step_transform, target_transform, transform_of, with_transforms


@singledispatch
def describe(model: object) -> ExactGP | Outputs:
    """Return a fitted regressor as an `ExactGP`, or as `Outputs` with one kernel if y has several columns."""
    raise refusal("model", model, describe)


@describe.register
def _(model: GaussianProcessRegressor) -> ExactGP | Outputs:
    if not hasattr(model, "X_train_"):
        raise ValueError(
            "model: this GaussianProcessRegressor is not fitted; call fit, or draw from its prior with "
            "matheron.draw_prior(matheron.adapters.sklearn.translate(regressor.kernel, input_dim), ...)"
        )
    X = np.array(model.X_train_, dtype=np.float64)  # [n, d]
    y = np.array(model.y_train_, dtype=np.float64).reshape(len(X), -1)  # [n, t], normalised where the model does
    theirs = model.kernel_
    assert isinstance(theirs, sk.Kernel)
    kernel = translate(theirs, X.shape[1])
    _compare(theirs, kernel, X)
    noise = np.asarray(model.alpha, dtype=np.float64) + noise_variance(model.kernel_, X)  # [n]
    units = zip(np.ravel(model._y_train_std), np.ravel(model._y_train_mean), strict=True)  # [t]
    transforms = [Affine(float(scale), float(offset)) if model.normalize_y else None for scale, offset in units]
    columns = zip(y.T, transforms, strict=True)
    members = [ExactGP(kernel, X, y_i, noise, output_transform=transform) for y_i, transform in columns]
    return _named(members[0] if len(members) == 1 else Outputs(members), model)


@describe.register
def _(model: Pipeline) -> ExactGP | Outputs:
    """The steps before the regressor become the input transform of the paths."""
    *before, (_, regressor) = model.steps
    steps = [step for _, step in before]
    gp = with_transforms(describe(regressor), before=chained([step_transform(step) for step in steps]))
    applied = [step for step in [*steps, regressor] if step not in (None, "passthrough")]
    return _named(gp, applied[0])


@describe.register
def _(model: TransformedTargetRegressor) -> ExactGP | Outputs:
    """The inverse of the transform of the targets becomes the output transform of the paths."""
    if not hasattr(model, "regressor_"):
        raise ValueError("model: this TransformedTargetRegressor is not fitted; call fit")
    return with_transforms(describe(model.regressor_), undo=target_transform(model.transformer_))


@describe.register
def _(model: BaseSearchCV) -> ExactGP | Outputs:
    if not hasattr(model, "best_estimator_"):
        raise ValueError("model: this search has no best estimator; call fit, with refit=True")
    return describe(model.best_estimator_)


@describe.register
def _(model: MultiOutputRegressor) -> ExactGP | Outputs:
    """Each target has its own regressor, and so its own model."""
    if not hasattr(model, "estimators_"):
        raise ValueError("model: this MultiOutputRegressor is not fitted; call fit")
    members = [describe(regressor) for regressor in model.estimators_]
    return members[0] if len(members) == 1 else Outputs(members)


def _named(gp: ExactGP | Outputs, first: object) -> ExactGP | Outputs:
    """Give the model the column names that `fit` was given; the first step has them, later steps may have others."""
    names = getattr(first, "feature_names_in_", None)
    names = None if names is None else tuple(map(str, names))
    if isinstance(gp, Outputs):
        return Outputs([member.replaced(input_names=names) for member in gp.models])
    return gp.replaced(input_names=names)


def sample_y(
    regressor: GaussianProcessRegressor,
    X: ArrayLike,
    n_samples: int = 1,
    random_state: int | np.random.RandomState | None = 0,
) -> np.ndarray:
    """Sample as `regressor.sample_y(X, n_samples, random_state)` does, in time linear in the number of points.

    The law, the arguments and the shapes are those of scikit-learn: `[n, n_samples]`, or `[n, t, n_samples]` for t
    targets. Samples include WhiteKernel's noise but not `alpha`, and an unfitted regressor is sampled from its prior.
    The same random_state gives other samples than in scikit-learn.

    >>> import numpy as np
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from matheron.adapters.sklearn import sample_y
    >>> regressor = GaussianProcessRegressor().fit(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]))
    >>> sample_y(regressor, np.linspace(0, 1, 5000)[:, None], n_samples=3).shape
    (5000, 3)
    """
    rng = check_random_state(random_state)
    generator = torch.Generator().manual_seed(int(rng.randint(2**31 - 1)))
    model = describe(regressor) if hasattr(regressor, "X_train_") else None
    check_names(X, "X", None if model is None else model.input_names)
    X = np.asarray(check_array(X, dtype="float64"))
    width = np.maximum(np.ptp(X, axis=0), 1e-3 * (1 + np.abs(X).max(axis=0)))
    domain = (X.min(axis=0) - 1e-3 * width, X.max(axis=0) + 1e-3 * width)  # a single point gets a box of positive width
    if model is not None:
        kernel, scale = regressor.kernel_, np.ravel(regressor._y_train_std)  # [t]
        paths = draw(model, n_samples, domain=domain, generator=generator)
    else:
        kernel = sk.ConstantKernel() * sk.RBF() if regressor.kernel is None else regressor.kernel
        scale = np.ones(regressor.n_targets or 1)
        prior, d = translate(kernel, X.shape[1]), X.shape[1]
        members = [draw_prior(prior, n_samples, input_dim=d, domain=domain, generator=generator) for _ in scale]
        paths = OutputPaths(members)
    f = paths(X).numpy()  # [s, n] or [s, n, t]
    std = np.sqrt(noise_variance(kernel, X)[:, None] * scale**2).reshape(f.shape[1:])  # [n] or [n, t]
    f = f + std * rng.standard_normal(f.shape) if std.any() else f
    return np.moveaxis(f, 0, -1)


@singledispatch
def translate(kernel: object, input_dim: int) -> Kernel:
    """Translate a scikit-learn kernel to one of `matheron.kernels`, without its WhiteKernels, which are noise.

    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> from matheron.adapters.sklearn import translate
    >>> translate(2.0 * RBF(0.5) + WhiteKernel(0.1), input_dim=1)([[0.0]], [[0.5]])
    tensor([[1.2131]], dtype=torch.float64)
    """
    raise refusal("kernel", kernel, translate)


# Kernels that matheron.kernels has under other names.
translate.register(sk.ConstantKernel, lambda kernel, _: kernels.Constant(kernel.constant_value))
translate.register(sk.WhiteKernel, lambda kernel, _: kernels.Constant(0.0))
translate.register(sk.RBF, lambda kernel, _: kernels.RBF(kernel.length_scale))
translate.register(sk.RationalQuadratic, lambda kernel, _: kernels.RationalQuadratic(kernel.alpha, kernel.length_scale))
translate.register(sk.DotProduct, lambda kernel, _: kernels.Polynomial(degree=1, offset=kernel.sigma_0**2))


@translate.register
def _(kernel: sk.Matern, input_dim: int) -> Kernel:
    if math.isinf(kernel.nu):
        return kernels.RBF(kernel.length_scale)
    return kernels.Matern(kernel.nu, kernel.length_scale)


@translate.register
def _(kernel: sk.ExpSineSquared, input_dim: int) -> Kernel:
    if input_dim > 1:
        raise TypeError(
            f"kernel: ExpSineSquared, a function of the Euclidean distance, is not positive definite in {input_dim} "
            f"dimensions; use products of one-dimensional kernels, {BY_HAND}"
        )
    return kernels.Periodic(kernel.length_scale, kernel.periodicity)


@translate.register
def _(kernel: sk.Sum, input_dim: int) -> Kernel:
    parts = [translate(k, input_dim) for k in (kernel.k1, kernel.k2)]
    parts = [k for k in parts if not (isinstance(k, kernels.Constant) and float(k.value) == 0)] or parts[:1]
    return parts[0] if len(parts) == 1 else kernels.Sum(*parts)


@translate.register
def _(kernel: sk.Product, input_dim: int) -> Kernel:
    return _product([translate(k, input_dim) for k in (kernel.k1, kernel.k2)])


@translate.register
def _(kernel: sk.Exponentiation, input_dim: int) -> Kernel:
    if kernel.exponent != int(kernel.exponent) or kernel.exponent < 1:
        raise TypeError(
            f"kernel: expected an Exponentiation by a whole number of at least 1, got {kernel.exponent}; a power of "
            f"RBF or RationalQuadratic is again of that class: use that kernel, {BY_HAND}"
        )
    return _product([translate(kernel.kernel, input_dim)] * int(kernel.exponent))


def _product(factors: list[Kernel]) -> Kernel:
    """The product of kernels, with its constants collected in one scale."""
    constants = [k for k in factors if isinstance(k, kernels.Constant)]
    others = [k for k in factors if not isinstance(k, kernels.Constant)]
    value = math.prod(float(k.value) for k in constants)
    if not others or value == 0:
        return kernels.Constant(value)
    product = others[0] if len(others) == 1 else kernels.Product(*others)
    return kernels.Scaled(product, value) if constants else product


@singledispatch
def noise_variance(kernel: object, X: np.ndarray) -> np.ndarray:
    """Return what the WhiteKernels in a kernel add to the diagonal of k(X, X), `[n]`.

    Write each factor of a product as k_i = s_i + w_i with white part w_i. Between different points the product is
    s_1 s_2, so the rest of its diagonal, k_1 k_2 - s_1 s_2, is white.
    """
    return np.zeros(len(X))


noise_variance.register(sk.WhiteKernel, lambda kernel, X: np.full(len(X), float(kernel.noise_level)))
noise_variance.register(sk.Sum, lambda kernel, X: noise_variance(kernel.k1, X) + noise_variance(kernel.k2, X))


@noise_variance.register
def _(kernel: sk.Product, X: np.ndarray) -> np.ndarray:
    w1, w2 = noise_variance(kernel.k1, X), noise_variance(kernel.k2, X)
    return w1 * kernel.k2.diag(X) + (kernel.k1.diag(X) - w1) * w2  # k1 k2 - s1 s2


@noise_variance.register
def _(kernel: sk.Exponentiation, X: np.ndarray) -> np.ndarray:
    k, w = kernel.kernel.diag(X), noise_variance(kernel.kernel, X)
    p = int(kernel.exponent)
    return sum((w * k**i * (k - w) ** (p - 1 - i) for i in range(p)), np.zeros(len(X)))  # k^p - s^p


def _compare(theirs: sk.Kernel, ours: Kernel, X: np.ndarray) -> None:
    """Check a translation at a few data points, because a user's subclass of a kernel may have another formula."""
    x = X[:8]
    if not np.allclose(np.asarray(theirs(x, x)), ours(x, x).numpy(), rtol=1e-6, atol=1e-9):
        raise TypeError(
            f"kernel: the values of {theirs} at the data differ from those of its translation, so some part of it is a "
            f"subclass with its own formula; {BY_HAND}"
        )


REGISTRIES = {"models": describe, "transformers": transform_of, "kernels": translate}
