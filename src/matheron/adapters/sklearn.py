"""scikit-learn: a fitted GaussianProcessRegressor as a snapshot, its kernels translated, and `sample_y` in linear time.

scikit-learn has no likelihood. Noise is `alpha`, added to the training covariance alone, and WhiteKernel, which is part
of the kernel: it is added at the data and at test points, so `predict` and `sample_y` speak of new noisy observations.
A path is the function beneath: WhiteKernel counts as noise of the data and is not part of it. `sample_y` here adds it
back and has the law of the library's.
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
    """A fitted regressor as an `ExactGP`, or `Outputs` with one kernel where y has several columns."""
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
    """What comes before a regressor is the input transform of its paths."""
    *before, (_, regressor) = model.steps
    steps = [step for _, step in before]
    gp = with_transforms(describe(regressor), before=chained([step_transform(step) for step in steps]))
    applied = [step for step in [*steps, regressor] if step not in (None, "passthrough")]
    return _named(gp, applied[0])


@describe.register
def _(model: TransformedTargetRegressor) -> ExactGP | Outputs:
    """What inverts the transform of the targets is the output transform of the paths."""
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
    """A regressor of its own for each target."""
    if not hasattr(model, "estimators_"):
        raise ValueError("model: this MultiOutputRegressor is not fitted; call fit")
    members = [describe(regressor) for regressor in model.estimators_]
    return members[0] if len(members) == 1 else Outputs(members)


def _named(gp: ExactGP | Outputs, first: object) -> ExactGP | Outputs:
    """The model with the names of the columns that `fit` was given: the first step's, later ones may have their own."""
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
    """`regressor.sample_y(X, n_samples, random_state)` in time linear in the number of points.

    The law, the arguments and the shapes are the library's: `[n, n_samples]`, or `[n, t, n_samples]` for t targets. So
    WhiteKernel's noise is included and `alpha` is not, and an unfitted regressor is sampled from its prior. The random
    numbers differ from the library's.

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
    domain = (X.min(axis=0) - 1e-3 * width, X.max(axis=0) + 1e-3 * width)  # of some width, for a single point too
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
    """A scikit-learn kernel as one of `matheron.kernels`, less its WhiteKernels, which are noise.

    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> from matheron.adapters.sklearn import translate
    >>> translate(2.0 * RBF(0.5) + WhiteKernel(0.1), input_dim=1)([[0.0]], [[0.5]])
    tensor([[1.2131]], dtype=torch.float64)
    """
    raise refusal("kernel", kernel, translate)


# Those that are ours by another name.
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
            f"kernel: ExpSineSquared is of the Euclidean distance and not positive definite in {input_dim} dimensions; "
            f"use products of one-dimensional kernels, {BY_HAND}"
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
            f"kernel: expected an Exponentiation by a whole number of at least 1, a product, got {kernel.exponent}; a "
            f"power of RBF or RationalQuadratic is one of the same family: use that, {BY_HAND}"
        )
    return _product([translate(kernel.kernel, input_dim)] * int(kernel.exponent))


def _product(factors: list[Kernel]) -> Kernel:
    """The product, its constants gathered into one scale."""
    constants = [k for k in factors if isinstance(k, kernels.Constant)]
    others = [k for k in factors if not isinstance(k, kernels.Constant)]
    value = math.prod(float(k.value) for k in constants)
    if not others or value == 0:
        return kernels.Constant(value)
    product = others[0] if len(others) == 1 else kernels.Product(*others)
    return kernels.Scaled(product, value) if constants else product


@singledispatch
def noise_variance(kernel: object, X: np.ndarray) -> np.ndarray:
    """What the WhiteKernels in a kernel add to the diagonal of k(X, X), and to nothing else: `[n]`.

    With k = s + w, w the white part, a product has s_1 s_2 between different points: the rest of its diagonal is white.
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
    """Both kernels at some of the data: a user's subclass may have a formula of its own."""
    x = X[:8]
    if not np.allclose(np.asarray(theirs(x, x)), ours(x, x).numpy(), rtol=1e-6, atol=1e-9):
        raise TypeError(
            f"kernel: {theirs} disagrees with its translation at the data, so some part of it is a subclass with a "
            f"formula of its own; {BY_HAND}"
        )


REGISTRIES = {"models": describe, "transformers": transform_of, "kernels": translate}
