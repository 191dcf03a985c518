"""The adapter for scikit-learn: fitted regressors as snapshots, translated kernels, and `sample_y` in linear time.

scikit-learn has no likelihood. Its noise is `alpha`, which is added to the covariance of the data, and WhiteKernel,
which is part of the kernel. WhiteKernel adds variance at test points too: `predict` and `sample_y` describe new noisy
observations. A path is the noise-free function: here WhiteKernel is observation noise. The function `sample_y` of this
module adds that noise again, so its values have the law of scikit-learn's `sample_y`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from ..core.checks import ArrayLike, check_names
from ..core.modes import transformed
from ..drawing import draw, draw_prior
from ..kernels import Kernel
from ..models import ExactGP, Outputs
from ..models.transforms import (
    Affine,
    BoxCox,
    Chain,
    Columns,
    Exp,
    Imputed,
    Inverse,
    Log,
    Missing,
    Monomials,
    OneHot,
    Power,
    Projected,
    RowMap,
    Transform,
    YeoJohnson,
    chained,
)
from ..paths import OutputPaths
from .refusal import BY_HAND, full_name, needs, overridden, refusal

with needs("scikit-learn", "sklearn"):
    from sklearn import preprocessing
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import SelectorMixin
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process import kernels as sk
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection._search import BaseSearchCV
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.pipeline import FeatureUnion, Pipeline
    from sklearn.utils import check_array, check_random_state


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


# Transformers around a regressor. Those with a simple formula become torch transforms: paths have gradients and can be
# saved. Any other is kept and called on NumPy arrays: paths then have values but no gradients, and cannot be saved.

_OUTSIDE = "transform points yourself: paths = matheron.draw(pipeline[-1], 64), then paths(pipeline[:-1].transform(X))"


def with_transforms(
    gp: ExactGP | Outputs, *, before: Transform | None = None, undo: Transform | None = None
) -> ExactGP | Outputs:
    """Add transforms to a model: `before` in front of its input transform, `undo` behind its output transform."""
    if isinstance(gp, Outputs):
        columns = [None if undo is None else _column(undo, i) for i in range(len(gp.models))]
        each = zip(gp.models, columns, strict=True)
        return Outputs([with_transforms(g, before=before, undo=u) for g, u in each if isinstance(g, ExactGP)])
    return gp.replaced(
        input_transform=chained([before, gp.input_transform]), output_transform=chained([gp.output_transform, undo])
    )


def _column(transform: Transform, i: int) -> Transform:
    """The transform of target i: each tensor of `transform` holds one number for all targets, or one for each."""
    return transform.mapped(lambda b: b if b.numel() == 1 else b[i])


def step_transform(step: object) -> Transform | None:
    """Translate a pipeline's step before the regressor; None if the step changes nothing."""
    if step is None or isinstance(step, str):  # "passthrough"
        return None
    if overridden(step, transform_of, "transform"):  # a subclass with a formula of its own
        return called(step)
    return transform_of(step)


@singledispatch
def transform_of(transformer: object) -> Transform | None:
    """Translate a fitted transformer to a transform of points; None if it changes nothing."""
    return called(transformer)


def called(transformer: object) -> Called:
    """Wrap a transformer that is not translated, so that it is called; it must map points to points."""
    if not callable(getattr(transformer, "transform", None)):
        raise refusal("step", transformer, transform_of, _OUTSIDE)
    if not hasattr(transformer, "n_features_in_"):
        raise TypeError(
            f"step: {full_name(transformer)} does not say how many columns it takes; set n_features_in_ in its fit, as "
            f"scikit-learn's own transformers do, or {_OUTSIDE}"
        )
    return Called(transformer)


class Called(RowMap):
    """A transformer that is called on NumPy arrays: it gives values without gradients, and cannot be saved."""

    saveable = False
    instead_of_saving = "Save paths of the pipeline's last step instead, and transform points yourself"

    def __init__(self, transformer: object) -> None:
        super().__init__()
        self.transformer: Any = copy.deepcopy(transformer)  # its owner may fit it again
        self.num_inputs = int(self.transformer.n_features_in_)

    def __repr__(self) -> str:
        return f"Called({type(self.transformer).__name__})"

    def forward(self, x: Tensor) -> Tensor:
        if (x.requires_grad and torch.is_grad_enabled()) or transformed():
            raise TypeError(
                f"x: {full_name(self.transformer)} works on NumPy arrays, so gradients cannot pass through it; "
                f"{_OUTSIDE}"
            )
        flat = x.detach().flatten(0, -2).double().cpu().numpy()
        y = self._rows(flat)
        if len(flat) > 1 and not np.allclose(y[:1], self._rows(flat[:1]), rtol=1e-6, equal_nan=True):
            raise TypeError(
                f"step: the result of {full_name(self.transformer)} for one row depends on the other rows, so it does "
                f"not map points to points; {_OUTSIDE}"
            )
        return torch.from_numpy(y).to(x).unflatten(0, x.shape[:-1])

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        """The transformed rows, `[n, d] -> [n, e]`."""
        if not len(rows):
            return np.zeros((0, self._rows(np.zeros((1, rows.shape[1]))).shape[1]))
        y = self.transformer.transform(_as_fitted(self.transformer, rows))
        y = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
        if y.ndim != 2 or len(y) != len(rows):
            raise TypeError(
                f"step: expected {full_name(self.transformer)} to return one row for each of {len(rows)}, got shape "
                f"{list(y.shape)}; {_OUTSIDE}"
            )
        return np.array(y, dtype=np.float64)

    def image(self, box: Tensor) -> Tensor:
        raise TypeError(
            f"domain: the box that {full_name(self.transformer)} maps the domain to is not known, because it is not "
            f"translated; leave domain out, or {_OUTSIDE}"
        )


def _width(transformer: object) -> int:
    """How many columns a fitted transformer takes."""
    return int(cast(Any, transformer).n_features_in_)


def _as_fitted(transformer: object, rows: np.ndarray) -> object:
    """Rows as a DataFrame if the transformer was fitted to one, because it may select columns by name."""
    names = getattr(transformer, "feature_names_in_", None)
    if names is None:
        return rows
    from pandas import DataFrame

    return DataFrame(rows, columns=list(names))


# A transform (None is the identity), the columns that it takes, and the weight of its outputs (None is one).
_Part = tuple[Transform | None, Sequence[int], float | None]


def _side_by_side(parts: Sequence[_Part], num_inputs: int) -> Transform:
    """One transform from several: each takes some columns, and its outputs are multiplied by its weight."""
    kept = [(t, list(columns), weight) for t, columns, weight in parts if len(columns)]
    each = [chained([t, None if weight is None else Affine(weight)]) or Affine() for t, _, weight in kept]
    return Columns(each, [columns for _, columns, _ in kept], num_inputs)


@transform_of.register
def _(transformer: Pipeline) -> Transform | None:
    return chained([step_transform(step) for _, step in transformer.steps])


@transform_of.register
def _(transformer: ColumnTransformer) -> Transform:
    indices = transformer._transformer_to_input_indices  # names, slices and masks of columns, as numbers
    weights = transformer.transformer_weights or {}
    parts = [
        (step_transform(step), indices[name], weights.get(name))
        for name, step, _ in transformer.transformers_
        if not (isinstance(step, str) and step == "drop") and len(indices[name])
    ]
    return _side_by_side(parts, _width(transformer))


@transform_of.register
def _(transformer: FeatureUnion) -> Transform:
    weights, d = transformer.transformer_weights or {}, _width(transformer)
    each = [(name, step) for name, step in transformer.transformer_list if step != "drop"]
    return _side_by_side([(step_transform(step), range(d), weights.get(name)) for name, step in each], d)


@transform_of.register
def _(transformer: SelectorMixin) -> Transform:
    chosen = np.asarray(transformer.get_support(indices=True))
    return _side_by_side([(None, chosen.tolist(), None)], _width(transformer))


@transform_of.register
def _(transformer: preprocessing.MinMaxScaler) -> Transform:
    if transformer.clip:
        raise TypeError(f"step: MinMaxScaler with clip=True is constant outside its range; use clip=False, {BY_HAND}")
    return Affine(transformer.scale_, transformer.min_)


def _standardised(centre: object, scale: object) -> Affine:
    """x -> (x - centre) / scale."""
    inverse = 1.0 if scale is None else 1 / np.array(scale, dtype=np.float64)
    return Affine(inverse, 0.0 if centre is None else -np.array(centre, dtype=np.float64) * inverse)


transform_of.register(
    preprocessing.StandardScaler,
    lambda s: _standardised(s.mean_ if s.with_mean else None, s.scale_),
)
transform_of.register(preprocessing.RobustScaler, lambda scaler: _standardised(scaler.center_, scaler.scale_))
transform_of.register(preprocessing.MaxAbsScaler, lambda scaler: _standardised(None, scaler.scale_))
transform_of.register(preprocessing.PolynomialFeatures, lambda features: Monomials(features.powers_))


@transform_of.register
def _(transformer: preprocessing.PowerTransformer) -> Transform | None:
    powers = np.asarray(transformer.lambdas_, dtype=np.float64)
    if not np.isfinite(powers).all():  # for such columns PowerTransformer is the identity, or returns NaN
        return called(transformer)
    power = (YeoJohnson if transformer.method == "yeo-johnson" else BoxCox)(powers)
    return chained([power, transform_of(transformer._scaler) if transformer.standardize else None])


@transform_of.register
def _(transformer: PCA) -> Transform:
    components = np.asarray(transformer.components_)  # [e, d]
    scale = np.sqrt(transformer.explained_variance_) if transformer.whiten else np.ones(len(components))
    if scale.min() < 1e-12 * scale.max():  # scikit-learn replaces scales that are nearly zero
        return called(transformer)
    W = components.T / scale  # [d, e]
    return Projected(W, -transformer.mean_ @ W)


@transform_of.register
def _(transformer: SimpleImputer) -> Transform:
    missing = transformer.missing_values
    if not isinstance(missing, float | int) or np.asarray(transformer.statistics_).dtype.kind not in "fiu":
        return called(transformer)
    missing = None if np.isnan(missing) else float(missing)
    values, d = np.asarray(transformer.statistics_, dtype=np.float64), _width(transformer)
    # Columns without any value at fit are dropped, unless keep_empty_features fills them with a constant.
    kept = np.flatnonzero(np.isfinite(values))
    if len(kept) < d and transformer.keep_empty_features:
        return called(transformer)
    parts: list[_Part] = [(Imputed(values[kept], missing), kept.tolist(), None)]
    if transformer.indicator_ is not None:
        parts.append((Missing(missing), transformer.indicator_.features_.tolist(), None))
    return Imputed(values, missing) if len(parts) == 1 and len(kept) == d else _side_by_side(parts, d)


@transform_of.register
def _(transformer: preprocessing.OneHotEncoder) -> Transform:
    values, columns = _categories(transformer)
    dropped = transformer.drop_idx_
    infrequent = getattr(transformer, "_infrequent_enabled", False)
    if values is None or infrequent or transformer.handle_unknown not in ("error", "ignore"):
        return called(transformer)
    kept = range(len(columns))
    if dropped is not None:
        first = np.cumsum([0, *map(len, transformer.categories_)])
        kept = [i for i in kept if dropped[columns[i]] is None or i != first[columns[i]] + int(dropped[columns[i]])]
    known = transformer.handle_unknown == "error"
    return OneHot(values, columns, _width(transformer), only_known=known, kept=kept)


@transform_of.register
def _(transformer: preprocessing.OrdinalEncoder) -> Transform:
    values, columns = _categories(transformer)
    infrequent = getattr(transformer, "_infrequent_enabled", False)
    if values is None or infrequent or transformer.handle_unknown != "error":
        return called(transformer)
    d = _width(transformer)
    codes = np.concatenate([np.arange(len(own)) for own in transformer.categories_])
    W = codes[:, None] * (np.array(columns)[:, None] == np.arange(d))  # [k, d]: a category's code, in its own column
    return Chain([OneHot(values, columns, d, only_known=True), Projected(W, np.zeros(d))])


def _categories(encoder: object) -> tuple[np.ndarray | None, list[int]]:
    """The categories `[k]` of all columns in order, and the column of each; None instead if one of them is NaN."""
    each: list[np.ndarray] = cast(Any, encoder).categories_
    if any(own.dtype.kind not in "fiub" and not all(isinstance(c, float | int) for c in own) for own in each):
        name = type(encoder).__name__
        raise TypeError(
            f"step: expected numbers as the categories of {name}, because paths are functions of numbers, got other "
            f"values; encode categories as numbers before the pipeline, or {_OUTSIDE}"
        )
    values = np.concatenate([np.asarray(own, dtype=np.float64) for own in each])
    columns = [i for i, own in enumerate(each) for _ in own]
    return (None if np.isnan(values).any() else values), columns


# _FUNCTIONS: the functions of inputs that are translated. _UNDONE: for a function of targets, the inverse function that
# a FunctionTransformer must have with it, and the transform that this inverse is translated to.
_FUNCTIONS: dict[object, Transform | None] = {
    None: None,
    np.log: Log(),
    np.log2: Log(2.0),
    np.log10: Log(10.0),
    np.log1p: Chain([Affine(1.0, 1.0), Log()]),
    np.exp: Exp(),
    np.expm1: Chain([Exp(), Affine(1.0, -1.0)]),
    np.sqrt: Power(0.5),
    np.square: Power(2.0),
}
_UNDONE: dict[object, tuple[object, Transform]] = {
    None: (None, Affine()),
    np.log: (np.exp, Exp()),
    np.log1p: (np.expm1, Chain([Exp(), Affine(1.0, -1.0)])),
    np.sqrt: (np.square, Power(2.0)),
}


@transform_of.register
def _(transformer: preprocessing.FunctionTransformer) -> Transform | None:
    known = [f for f in _FUNCTIONS if transformer.func is f and not transformer.kw_args]
    return _FUNCTIONS[known[0]] if known else called(transformer)


_FROM_INSIDE = "draw from the regressor inside and undo the transform of the values: paths = matheron.draw("


def target_transform(transformer: object) -> Transform:
    """Return the inverse of a transformer of targets: a scaler, a logarithm, a root or a power transform."""
    if isinstance(transformer, preprocessing.FunctionTransformer):
        known = [undo for f, (inverse, undo) in _UNDONE.items()
                 if transformer.func is f and transformer.inverse_func is inverse]  # fmt: skip
        if known:
            return known[0]
        raise TypeError(
            "transformer: expected func=np.log with inverse_func=np.exp, np.log1p with np.expm1, np.sqrt with "
            f"np.square, or a scaler, got func={getattr(transformer.func, '__name__', transformer.func)}; "
            f"{_FROM_INSIDE}model.regressor_, 64), then inverse_func(paths(X))"
        )
    if isinstance(transformer, Pipeline):
        return Chain([target_transform(step) for step in reversed(list(_steps(transformer)))])
    forward = step_transform(transformer)
    forward = Affine() if forward is None else forward
    if not forward.elementwise:
        raise refusal(
            "transformer",
            transformer,
            transform_of,
            f"{_FROM_INSIDE}model.regressor_, 64), then model.transformer_.inverse_transform of its values",
        )
    if isinstance(forward, Affine):
        return Affine(1 / forward.scale, -forward.offset / forward.scale)
    return Inverse(forward)


def _steps(pipeline: Pipeline) -> Iterator[object]:
    """The transformers of a pipeline and of pipelines inside it, without steps that change nothing."""
    for _, step in pipeline.steps:
        if isinstance(step, Pipeline):
            yield from _steps(step)
        elif not (step is None or isinstance(step, str)):
            yield step


REGISTRIES = {"models": describe, "transformers": transform_of, "kernels": translate}
