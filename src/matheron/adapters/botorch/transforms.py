"""Translation of BoTorch's input and outcome transforms, which act on each coordinate separately."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from botorch.models.transforms import input as bi
from botorch.models.transforms import outcome as bo
from torch import Tensor

from ...models.transforms import (
    Affine,
    Chain,
    Exp,
    Kumaraswamy,
    Log,
    Masked,
    Power,
    Round,
    SignedExp,
    Transform,
    chained,
)
from ..gpytorch.place import Place, tensor
from ..refusal import BY_HAND, refusal, refuse_override

# Advice in errors: this function accepts input transforms of any kind.
CALLED = "use matheron.adapters.botorch.get_matheron_path_model(model), which calls the transform"


def translate_input(transform: bi.InputTransform | None, place: Place, when: str) -> Transform | None:
    """Translate an input transform for the coordinates of a place; None if it changes nothing.

    `when` is "train" for the data and "eval" for test points: a BoTorch transform may be switched off for either.
    """
    if transform is None or not getattr(transform, f"transform_on_{when}", True):
        return None
    for method in ("transform", "_transform"):
        refuse_override("input transform", transform, input_transform_of, method)
    return input_transform_of(transform, place, when)


@singledispatch
def input_transform_of(transform: object, place: Place, when: str) -> Transform | None:
    raise refusal("input transform", transform, input_transform_of, CALLED)


@input_transform_of.register
def _(transform: bi.Normalize | bi.InputStandardize | bi.AffineInputTransform, place: Place, when: str) -> Transform:
    number = place.num_columns if getattr(transform, "indices", None) is None else len(tensor(transform.indices))
    coefficient, offset = (_row(value, number, place) for value in (transform._coefficient, transform._offset))
    scale, shift = (coefficient, offset) if transform.reverse else (1 / coefficient, -offset / coefficient)
    return Affine(_spread(scale, transform, place, 1.0), _spread(shift, transform, place, 0.0))


def _row(value: Tensor, number: int, place: Place) -> Tensor:
    """One member's values `[number]` from a tensor whose shape broadcasts with points `[*batch, n, number]`."""
    value = value.reshape((1,) * max(0, 2 - value.ndim) + value.shape)
    if value.shape[-2] != 1:
        shape = list(value.shape)
        raise TypeError(
            f"input transform: expected the same coefficient and offset for all points, got shape {shape}; {BY_HAND}"
        )
    return place.pick(value, 2)[0].double().expand(number)


@input_transform_of.register
def _(transform: bi.Warp, place: Place, when: str) -> Transform | None:
    if transform.reverse:
        raise TypeError(f"input transform: Warp with reverse=True is not understood; {CALLED}, {BY_HAND}")
    both = tensor(transform.concentration0), tensor(transform.concentration1)
    c0, c1 = (place.pick(c, c.ndim - len(transform.batch_shape)).reshape(-1) for c in both)
    a, b = (_spread(c.double(), transform, place, 1.0) for c in (c1, c0))
    mask = _spread(torch.ones_like(c0), transform, place, 0.0) > 0
    warp = Kumaraswamy(a, b, mask, transform._eps)
    return chained([translate_input(transform._normalize, place, when), warp])


@input_transform_of.register
def _(transform: bi.Log10, place: Place, when: str) -> Transform:
    if transform.reverse:
        raise TypeError(f"input transform: Log10 with reverse=True is not understood; {CALLED}, {BY_HAND}")
    indices = tensor(transform.indices)
    ones = torch.ones(len(indices), dtype=torch.float64, device=indices.device)
    return Log(10.0, _spread(ones, transform, place, 0.0) > 0)


@input_transform_of.register
def _(transform: bi.Round, place: Place, when: str) -> Transform:
    indices, kept = tensor(transform.integer_indices), place.coordinates
    whole = {i % place.num_columns for i in indices.tolist()}
    groups = [range(start, start + size) for start, size in transform.categorical_features.items()]
    if whole.union(*groups) - set(kept):
        raise TypeError(f"input transform: Round changes the task feature; leave its column out, {BY_HAND}")
    mask = torch.tensor([column in whole for column in kept], device=indices.device)
    own = [[kept.index(column) for column in group] for group in groups]
    return Round(mask, own, transform.tau if transform.approximate else None)


input_transform_of.register(
    bi.ChainedInputTransform,
    lambda transform, place, when: chained([translate_input(t, place, when) for t in transform.values()]),
)


def _spread(values: Tensor, transform: bi.InputTransform, place: Place, otherwise: float) -> Tensor:
    """One value per coordinate of a path, from values for the transform's indices; a task column must not change."""
    indices = getattr(transform, "indices", None)
    n = place.num_columns
    if indices is not None:
        values = values.new_full((n,), otherwise).index_copy(0, indices.to(values.device) % n, values)
    values = values.expand(n)
    if place.task is not None and bool(values[place.task] != otherwise):
        raise TypeError(
            f"input transform: {type(transform).__name__} changes the task feature, column {place.task}; pass the "
            f"other columns as its indices=, {BY_HAND}"
        )
    return values[place.coordinates]


@dataclass(frozen=True)
class Outcomes:
    """Which outcomes an inverse transform is for: those of one member of a batch, one output or all of them."""

    place: Place
    output: int | None
    extra: int  # how many outputs after the model's own are not outcomes
    number: int  # how many outcomes the transform takes
    tasks: Tensor | None = None  # the value of the task column for each task number


def translate_outcome(transform: bo.OutcomeTransform | None, at: Outcomes) -> Transform | None:
    """Return the inverse of an outcome transform; None if there is no transform."""
    if transform is None:
        return None
    for method in ("forward", "untransform"):
        refuse_override("outcome transform", transform, outcome_transform_of, method)
    return outcome_transform_of(transform, at)


@singledispatch
def outcome_transform_of(transform: object, at: Outcomes) -> Transform:
    hint = "draw from a model of transformed outcomes and undo the transform of the values"
    raise refusal("outcome transform", transform, outcome_transform_of, hint)


@outcome_transform_of.register
def _(transform: bo.Standardize, at: Outcomes) -> Transform:
    return _affine(at.place.pick(transform.stdvs, 2)[0], at.place.pick(transform.means, 2)[0], at)  # [m]


@outcome_transform_of.register
def _(transform: bo.StratifiedStandardize, at: Outcomes) -> Transform:
    if at.tasks is None:
        raise TypeError(f"outcome transform: StratifiedStandardize is only understood for MultiTaskGP; {BY_HAND}")
    assert transform.strata_mapping is not None
    strata = transform.strata_mapping.to(transform.means.device)[at.tasks]
    seen = ~torch.isnan(strata.double())
    rows = torch.where(seen, strata, 0).long()
    scale, offset = (at.place.pick(value, 2)[rows, 0] for value in (transform.stdvs, transform.means))  # [tasks]
    return _affine(torch.where(seen, scale, 1.0), torch.where(seen, offset, 0.0), at)


outcome_transform_of.register(bo.Log, lambda transform, at: _of_some(Exp(), transform, at))
outcome_transform_of.register(bo.Power, lambda transform, at: _of_some(Power(1 / transform.power), transform, at))
outcome_transform_of.register(bo.Bilog, lambda transform, at: _of_some(SignedExp(), transform, at))


@outcome_transform_of.register
def _(transform: bo.ChainedOutcomeTransform, at: Outcomes) -> Transform:
    parts = [t for t in transform.values() if isinstance(t, bo.OutcomeTransform)]
    return Chain([undone for t in reversed(parts) if (undone := translate_outcome(t, at)) is not None])


def _of_some(undone: Transform, transform: bo.Log | bo.Power | bo.Bilog, at: Outcomes) -> Transform:
    """Apply the inverse `undone` to the outputs that a transform names, or to all if it names none."""
    if transform._outputs is None:
        return undone
    chosen = {i % at.number for i in transform._outputs}
    outputs = range(at.number + at.extra) if at.output is None else [at.output]
    return Masked(undone, [i in chosen for i in outputs])


def _affine(scale: Tensor, offset: Tensor, at: Outcomes) -> Transform:
    if at.output is not None and len(scale) > 1:
        return Affine(scale[at.output], offset[at.output])
    if at.extra and len(scale) > 1:
        scale = torch.cat([scale, scale.new_ones(at.extra)])
        offset = torch.cat([offset, offset.new_zeros(at.extra)])
    return Affine(scale, offset)
