"""BoTorch's models: GPyTorch's, with transforms around them, outputs in a batch, and ensembles."""

from __future__ import annotations

import itertools
from functools import singledispatch
from typing import Any

import torch
from botorch import models
from botorch.models import fully_bayesian, map_saas
from botorch.models.approximate_gp import ApproximateGPyTorchModel
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import ModelList
from gpytorch.models import ExactGP as GPyTorchExactGP
from torch import Tensor

from ...gp import GP, Batch, Ensemble, Outputs, SelectedOutputs
from ..gpytorch.exact import assembled, exact_members
from ..gpytorch.variational import translate_strategy
from ..refusal import BY_HAND, refusal
from .transforms import Coordinates, Outcomes, Pick, translate_input, translate_outcome


@singledispatch
def describe(model: Any) -> GP:
    """A BoTorch model as a snapshot, in the graph of its parameters. Neither its mode nor its data are changed."""
    raise refusal("model", model, describe)


@describe.register(GPyTorchModel)
def _(model: Any) -> GP:
    if not isinstance(model, GPyTorchExactGP):
        raise refusal("model", model, describe)
    return _exact(model)


@describe.register(models.SingleTaskGP)
@describe.register(map_saas.AdditiveMapSaasSingleTaskGP)
@describe.register(map_saas.EnsembleMapSaasSingleTaskGP)
def _(model: Any) -> GP:
    if isinstance(model, models.MixedSingleTaskGP):
        raise TypeError(
            "model: MixedSingleTaskGP has a kernel of categories, which has no spectral measure; draw from a model for "
            "each category: model = SingleTaskGP(X[rows][:, continuous], Y[rows]), then matheron.draw(model, 64), "
            f"{BY_HAND}"
        )
    return _exact(model, outputs=model.num_outputs > 1)


@describe.register(models.MultiTaskGP)
def _(model: Any) -> GP:
    if model.training and len(model._unobserved_task_indices):
        raise ValueError("model: MultiTaskGP.eval() sets the covariance of tasks without data; call model.eval() first")
    gp: Any = _exact(model, task=model._task_feature)
    asked = model._map_tasks(torch.tensor(model._output_tasks, device=model.train_targets.device)).long().tolist()
    if asked == list(range(model.num_tasks)):
        return gp
    if isinstance(gp, Ensemble):
        return Ensemble([SelectedOutputs(member, asked) for member in gp.models])
    return SelectedOutputs(gp, asked)


@describe.register(models.KroneckerMultiTaskGP)
def _(model: Any) -> GP:
    return _exact(model)


@describe.register(fully_bayesian.AbstractFullyBayesianSingleTaskGP)
@describe.register(fully_bayesian.SaasFullyBayesianSingleTaskGP)
def _(model: Any) -> GP:
    if model.covar_module is None:
        raise ValueError("model: not fitted, it has no MCMC samples; call fit_fully_bayesian_model_nuts first")
    return _exact(model)


@describe.register(ApproximateGPyTorchModel)
@describe.register(models.SingleTaskVariationalGP)
def _(model: Any) -> GP:
    strategy = model.model.variational_strategy
    base = getattr(strategy, "base_variational_strategy", strategy)
    around = _Around(model, base.inducing_points.shape[-1], getattr(model, "_input_batch_shape", torch.Size()))
    return translate_strategy(strategy, around.keywords)


@describe.register(ModelList)
@describe.register(models.ModelListGP)
def _(model: Any) -> GP:
    return Outputs([describe(member) for member in model.models])


def _exact(model: Any, outputs: bool = False, task: int | None = None) -> GP:
    """An exact model, or a batch or an ensemble of them; `outputs`: the last axis of its batch is of outputs."""
    raw = model._original_train_inputs if model._has_transformed_inputs else model.train_inputs[0]
    around = _Around(model, raw.shape[-1], model.batch_shape, task)
    X = around.inner(raw)  # in the graph of the transforms' parameters, in training mode and in evaluation mode
    if model._has_transformed_inputs and not _same(X, model.train_inputs[0]):
        X = model.train_inputs[0]  # the model's data was replaced since
    number_tasks = Tensor.long if task is None else model._map_tasks
    members, batch_shape, independent = exact_members(model, (X,), around.keywords, number_tasks)
    gp = assembled(members, batch_shape, outputs or independent)
    return Ensemble(gp.models) if isinstance(gp, Batch) and model._is_ensemble else gp


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b.to(a))


class _Around:
    """The transforms around a model, or around a batch of them: what each member of the snapshot is given."""

    def __init__(self, model: Any, num_columns: int, batch_shape: torch.Size, task: int | None = None) -> None:
        self.inputs, self.outcomes = (getattr(model, f"{side}_transform", None) for side in ("input", "outcome"))
        self.num_columns, self.batch_shape, self.task = num_columns, batch_shape, task
        self.task_values = None if task is None else torch.tensor(sorted(model._expected_task_values))

    def keywords(self, index: tuple[int, ...], extra: int = 0) -> dict[str, Any]:
        """Of the member at `index [*batch]`, or `[*batch, output]`; `extra` outputs come after its own."""
        b = len(self.batch_shape)
        pick, output = self._pick(index[:b]), index[b] if len(index) > b else None
        kept = [i for i in range(self.num_columns) if i != self.task]
        return {
            "input_transform": translate_input(self.inputs, Coordinates(self.num_columns, kept, pick, "eval")),
            "output_transform": translate_outcome(self.outcomes, Outcomes(pick, output, extra, self.task_values)),
        }

    def inner(self, X: Tensor) -> Tensor:
        """Training inputs `[..., n, d]` in the models' own space; `[*batch, ..., n, d]` where there is a batch."""
        if self.inputs is None:
            return X
        b = len(self.batch_shape)
        X = X if X.shape[:b] == self.batch_shape and X.ndim >= b + 2 else X.expand(self.batch_shape + X.shape[-2:])
        everything, parts = list(range(self.num_columns)), []
        for index in itertools.product(*map(range, self.batch_shape)):
            transform = translate_input(
                self.inputs, Coordinates(self.num_columns, everything, self._pick(index), "train")
            )
            parts.append(X[index] if transform is None else transform.to(X)(X[index]))
        return torch.stack(parts).reshape(self.batch_shape + parts[0].shape)

    def _pick(self, index: tuple[int, ...]) -> Pick:
        def pick(parameter: Tensor, trailing: int) -> Tensor:
            own = parameter.shape[parameter.ndim - trailing :]
            return parameter.expand(self.batch_shape + own)[index]

        return pick
