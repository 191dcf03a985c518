"""scikit-learn's scalers around a regressor, as transforms of inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import numpy as np
import torch
from sklearn import preprocessing
from sklearn.pipeline import Pipeline

from ..gp import ExactGP, Outputs
from ..transforms import Affine, Chain, Exp, Power, Transform, chained
from .refusal import BY_HAND, refusal


def with_transforms(
    gp: ExactGP | Outputs, *, scalers: Sequence[Transform] = (), undo: Transform | None = None
) -> ExactGP | Outputs:
    """The model with scalers before its input transform, and with what undoes a transform after its output's."""
    if isinstance(gp, Outputs):
        columns = [None if undo is None else _column(undo, i) for i in range(len(gp.models))]
        each = zip(gp.models, columns, strict=True)
        return Outputs([with_transforms(g, scalers=scalers, undo=u) for g, u in each if isinstance(g, ExactGP)])
    return gp.replaced(
        input_transform=chained([*scalers, gp.input_transform]), output_transform=chained([gp.output_transform, undo])
    )


def _column(transform: Transform, i: int) -> Transform:
    """The transform of one target of several."""
    if isinstance(transform, Chain):
        return Chain([_column(part, i) for part in transform.transforms])
    if not isinstance(transform, Affine) or transform.scale.numel() == transform.offset.numel() == 1:
        return transform
    scale, offset = torch.broadcast_tensors(transform.scale, transform.offset)
    return Affine(scale[i], offset[i])


def scalers_in(step: object) -> list[object]:
    """The scalers of a step, one after the other: none, itself, or those of a pipeline."""
    if step is None or isinstance(step, str):  # "passthrough"
        return []
    return [inner for _, part in step.steps for inner in scalers_in(part)] if isinstance(step, Pipeline) else [step]


@singledispatch
def scaler_transform(scaler: object) -> Affine:
    """A fitted scaler, x -> scale x + offset in every column."""
    raise refusal(
        "step",
        scaler,
        scaler_transform,
        "draw from the last step and transform points yourself: paths = matheron.draw(pipeline[-1], 64), then "
        "paths(pipeline[:-1].transform(X))",
    )


@scaler_transform.register
def _(scaler: preprocessing.MinMaxScaler) -> Affine:
    if scaler.clip:
        raise TypeError(f"step: MinMaxScaler with clip=True is flat outside its range; use clip=False, {BY_HAND}")
    return Affine(scaler.scale_, scaler.min_)


def _standardised(centre: object, scale: object) -> Affine:
    """x -> (x - centre) / scale."""
    inverse = 1.0 if scale is None else 1 / np.array(scale, dtype=np.float64)
    return Affine(inverse, 0.0 if centre is None else -np.array(centre, dtype=np.float64) * inverse)


scaler_transform.register(
    preprocessing.StandardScaler,
    lambda s: _standardised(s.mean_ if s.with_mean else None, s.scale_),
)
scaler_transform.register(preprocessing.RobustScaler, lambda scaler: _standardised(scaler.center_, scaler.scale_))
scaler_transform.register(preprocessing.MaxAbsScaler, lambda scaler: _standardised(None, scaler.scale_))


# What undoes a function of targets, where its inverse is the one beside it.
_UNDONE: dict[object, tuple[object, Transform]] = {
    None: (None, Affine()),
    np.log: (np.exp, Exp()),
    np.log1p: (np.expm1, Chain([Exp(), Affine(1.0, -1.0)])),
    np.sqrt: (np.square, Power(2.0)),
}
_FROM_INSIDE = "draw from the regressor inside and undo the transform of the values: paths = matheron.draw("


def target_transform(transformer: object) -> Transform:
    """What undoes a transformer of targets: a scaler's inverse, or that of a logarithm or a root."""
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
        return Chain([target_transform(step) for step in reversed(scalers_in(transformer))])
    if scaler_transform.dispatch(type(transformer)) is scaler_transform.dispatch(object):
        raise refusal(
            "transformer",
            transformer,
            scaler_transform,
            f"{_FROM_INSIDE}model.regressor_, 64), then model.transformer_.inverse_transform of its values",
        )
    forward = scaler_transform(transformer)
    return Affine(1 / forward.scale, -forward.offset / forward.scale)
