"""Translation of the scikit-learn transformers around a regressor to transforms of inputs and outputs.

Transformers with a simple formula become torch transforms: paths have gradients and can be saved. Any other transformer
is kept and called on NumPy arrays: paths then have values but no gradients, and cannot be saved.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any, cast

import numpy as np
import torch
from sklearn import preprocessing
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from torch import Tensor

from ..core.modes import transformed
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
from .refusal import BY_HAND, full_name, overridden, refusal

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
        y = self.transformer.transform(_named(self.transformer, rows))
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


def _named(transformer: object, rows: np.ndarray) -> object:
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
