"""Translation of BoTorch's models: those of GPyTorch with transforms, with outputs as a batch axis, and ensembles.

The kernels and the likelihood that only BoTorch has are registered here with GPyTorch's.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import cast

import torch
from botorch import models
from botorch.models import fully_bayesian, map_saas
from botorch.models.approximate_gp import ApproximateGPyTorchModel
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.kernels import CategoricalKernel
from botorch.models.kernels.downsampling import DownsamplingKernel
from botorch.models.kernels.exponential_decay import ExponentialDecayKernel
from botorch.models.kernels.linear_truncated_fidelity import LinearTruncatedFidelityKernel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood, SparseOutlierNoise
from botorch.models.model import ModelList
from botorch.models.transforms import input as bi
from botorch.models.transforms import outcome as bo
from gpytorch.models import ExactGP as GPyTorchExactGP
from torch import Tensor, nn

from ... import kernels
from ...kernels import Downsampling, ExponentialDecay, Kernel, LinearTruncated, Product, Sum
from ...models import GP, Batch, Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP
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
from ..gpytorch.kernels import Place, kernel_of, tensor, translate
from ..gpytorch.models import noise_of, translate_exact, translate_strategy
from ..gpytorch.prior import PriorOfModel
from ..refusal import BY_HAND, full_name, refusal, refuse_override

# A translated CategoricalKernel has room for more categories than the data have, because test points can have others:
# at least _FEWEST, and _ROOM times the range of the data's categories.
_FEWEST, _ROOM = 8, 2


@singledispatch
def describe(model: object) -> GP:
    """Return a BoTorch model as a snapshot, differentiable in the model's parameters. The model is not changed."""
    raise refusal("model", model, describe)


describe.register(GPyTorchModel | models.KroneckerMultiTaskGP, lambda model: _exact(model))
describe.register(
    models.SingleTaskGP | map_saas.AdditiveMapSaasSingleTaskGP | map_saas.EnsembleMapSaasSingleTaskGP,
    lambda model: _exact(model, outputs=model.num_outputs > 1),
)
describe.register(ModelList | models.ModelListGP, lambda model: Outputs([describe(member) for member in model.models]))


@describe.register
def _(model: models.MultiTaskGP) -> GP:
    if model.training and len(model._unobserved_task_indices):
        raise ValueError("model: MultiTaskGP.eval() sets the covariance of tasks without data; call model.eval() first")
    gp = _exact(model, task=model._task_feature)
    tasks = torch.tensor(model._output_tasks, device=next(model.parameters()).device)
    asked = model._map_tasks(tasks).long().tolist()
    if asked == list(range(model.num_tasks)):
        return gp
    if isinstance(gp, Ensemble):
        return Ensemble([SelectedOutputs(cast(ExactGP, member), asked) for member in gp.models])
    return SelectedOutputs(cast(ExactGP, gp), asked)


@describe.register
def _(model: fully_bayesian.AbstractFullyBayesianSingleTaskGP | fully_bayesian.SaasFullyBayesianSingleTaskGP) -> GP:
    if model.covar_module is None:
        raise ValueError("model: not fitted, it has no MCMC samples; call fit_fully_bayesian_model_nuts first")
    return _exact(model)


@describe.register
def _(model: ApproximateGPyTorchModel | models.SingleTaskVariationalGP) -> GP:
    strategy = model.model.variational_strategy
    base = getattr(strategy, "base_variational_strategy", strategy)
    assert strategy is not None and base is not None
    around = _Around(model, base.inducing_points.shape[-1], getattr(model, "_input_batch_shape", torch.Size()))
    return around.attached(translate_strategy(strategy))


def _exact(model: GPyTorchModel, outputs: bool = False, task: int | None = None) -> GP:
    """Translate an exact model, or a batch or ensemble of them; with `outputs`, the last batch axis is of outputs."""
    if not isinstance(model, GPyTorchExactGP) or model.train_inputs is None:
        raise refusal("model", model, describe)
    own = model.train_inputs[0]
    assert own is not None
    raw = model._original_train_inputs if model._has_transformed_inputs else own
    assert raw is not None
    around = _Around(model, raw.shape[-1], model.batch_shape, task)
    around.check(raw)
    X = around.inner(raw)  # differentiable with respect to the transforms' parameters, in both modes of the model
    if model._has_transformed_inputs and not _same(X, own):
        X = own  # the model's data were replaced after it was made
    number_tasks = model._map_tasks if isinstance(model, models.MultiTaskGP) and task is not None else Tensor.long
    gp = around.attached(translate_exact(model, (X,), number_tasks, outputs))
    return Ensemble(gp.models) if isinstance(gp, Batch) and model._is_ensemble else gp


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b.to(a))


class _Around:
    """The transforms around a model or a batch of models, which are attached to each member of the snapshot."""

    def __init__(self, model: nn.Module, num_columns: int, batch_shape: torch.Size, task: int | None = None) -> None:
        self.inputs, self.outcomes = (getattr(model, f"{side}_transform", None) for side in ("input", "outcome"))
        self.num_columns, self.batch_shape, self.task = num_columns, batch_shape, task
        # A multi-task model has task numbers in one column.
        self.num_outcomes = 1 if task is not None else int(getattr(model, "num_outputs", 1))
        self.task_values = (
            None if task is None else torch.tensor(sorted(getattr(model, "_expected_task_values", ())), device="cpu")
        )

    def attached(self, gp: GP, index: tuple[int, ...] = ()) -> GP:
        """Attach the transforms to a snapshot, the member at `index` (`[*batch]` or `[*batch, output]`) of a batch."""
        if isinstance(gp, Batch):
            members = zip(gp.models, itertools.product(*map(range, gp.batch_shape)), strict=True)
            return Batch([self.attached(member, i) for member, i in members], gp.batch_shape)
        if isinstance(gp, Outputs):
            return Outputs([self.attached(member, (*index, i)) for i, member in enumerate(gp.models)])
        if isinstance(gp, SelectedOutputs):
            extra = gp.model.num_outputs - gp.num_outputs
            return SelectedOutputs(self._transformed(gp.model, index, extra), gp.outputs)
        assert isinstance(gp, ExactGP | SparseGP)
        return self._transformed(gp, index)

    def _transformed(self, gp: ExactGP | SparseGP, index: tuple[int, ...], extra: int = 0) -> ExactGP | SparseGP:
        """Attach the transforms to one member, whose last `extra` outputs are not outcomes of the model."""
        b = len(self.batch_shape)
        place, output = self._place(index[:b], self.task), index[b] if len(index) > b else None
        outcomes = Outcomes(place, output, extra, self.num_outcomes, self.task_values)
        return gp.replaced(
            input_transform=chained([translate_input(self.inputs, place, "eval"), gp.input_transform]),
            output_transform=translate_outcome(self.outcomes, outcomes),
        )

    def check(self, X: Tensor) -> None:
        """Check that the translated input transform agrees with BoTorch's at points `[..., n, d]`."""
        if self.inputs is None:
            return
        with torch.no_grad():
            own = copy.deepcopy(self.inputs).eval()  # in training mode, a call may change its parameters
            theirs = own.transform(self._expanded(X)) if own.transform_on_eval else self._expanded(X)
            if not _same(self.inner(X, "eval"), theirs):
                raise TypeError(
                    f"input transform: the values of {full_name(self.inputs)} differ from those of its translation; "
                    f"apply it to your data yourself, {BY_HAND}"
                )

    def inner(self, X: Tensor, when: str = "train") -> Tensor:
        """Transform inputs `[..., n, d]` to the space of the kernel; for a batch, `[*batch, ..., n, d]`."""
        if self.inputs is None:
            return X
        X, parts = self._expanded(X), []
        for index in itertools.product(*map(range, self.batch_shape)):
            transform = translate_input(self.inputs, self._place(index), when)
            parts.append(X[index] if transform is None else transform.to(X)(X[index]))
        return torch.stack(parts).reshape(self.batch_shape + parts[0].shape)

    def _expanded(self, X: Tensor) -> Tensor:
        b = len(self.batch_shape)
        return X if X.shape[:b] == self.batch_shape and X.ndim >= b + 2 else X.expand(self.batch_shape + X.shape[-2:])

    def _place(self, index: tuple[int, ...], task: int | None = None) -> Place:
        return Place(self.batch_shape, index, tuple(range(self.num_columns)), self.num_columns, task)


@kernel_of.register
def _(kernel: CategoricalKernel, place: Place) -> Kernel:
    # exp(-mean_i [x_i != x'_i] / l_i)
    lengthscale = place.pick(kernel.lengthscale, 2)[0] * len(place.columns)  # [d] or [1]
    return place.on_columns(kernels.Categorical(lengthscale, _number(place)))


def _number(place: Place) -> int:
    """The number of categories that the translated kernel has room for."""
    if place.inputs is None:
        return _FEWEST
    choices: Tensor = place.inputs[..., list(place.columns)].detach()
    if not bool((choices == choices.round()).all()):
        raise TypeError(
            "kernel: expected whole numbers as the categories of a CategoricalKernel; number them 0, 1, ..., and apply "
            f"input transforms to the other columns only (Normalize(d, indices=[...])), {BY_HAND}"
        )
    span = float(choices.amax() - choices.amin()) + 1
    return max(_FEWEST, int(_ROOM * span))


@noise_of.register
def _(
    likelihood: SparseOutlierGaussianLikelihood, shape: torch.Size, inputs: tuple[Tensor, ...], prior: PriorOfModel
) -> Tensor:
    # Each outlier has its own variance rho, relative to the diagonal of K + noise in the convex parametrisation.
    sparse = cast(SparseOutlierNoise, likelihood.noise_covar)
    base = sparse.base_noise(list(inputs), shape=shape).diagonal(dim1=-1, dim2=-2)  # [*batch, n]
    return base + sparse.rho * (base + prior.variances() if sparse.convex_parameterization else 1.0)


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


@kernel_of.register
def _(kernel: LinearTruncatedFidelityKernel, place: Place) -> Kernel:
    """The kernel is k_0 + c k_1: c takes the columns of fidelities, k_0 and k_1 take the others."""
    of = [i % len(place.columns) for i in kernel.fidelity_dims]
    fidelities = replace(place, columns=tuple(place.columns[i] for i in of))
    others = replace(place, columns=tuple(c for i, c in enumerate(place.columns) if i not in of))
    c = fidelities.on_columns(LinearTruncated(place.pick(kernel.power, 1)[0], len(of) > 1))
    unbiased, biased = (translate(k, others) for k in (kernel.covar_module_unbiased, kernel.covar_module_biased))
    return Sum(unbiased, Product(c, biased))


@kernel_of.register
def _(kernel: DownsamplingKernel, place: Place) -> Kernel:
    power, offset = (place.pick(each, 1)[0] for each in (kernel.power, kernel.offset))
    return place.on_columns(Downsampling(power, offset))


@kernel_of.register
def _(kernel: ExponentialDecayKernel, place: Place) -> Kernel:
    lengthscale = place.pick(kernel.lengthscale, 2)[0, 0]
    power, offset = (place.pick(each, 1)[0] for each in (kernel.power, kernel.offset))
    known = place.inputs
    high = 1.0 if known is None else max(1.0, 2 * float(known[..., list(place.columns)].detach().max()))
    return place.on_columns(ExponentialDecay(lengthscale, power, offset, high))
