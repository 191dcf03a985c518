"""Translation of BoTorch's models: those of GPyTorch with transforms, with outputs as a batch axis, and ensembles.

The kernels and the likelihood that only BoTorch has are registered here with GPyTorch's.
"""

from __future__ import annotations

import copy
import itertools
from functools import singledispatch
from typing import cast

import torch
from botorch import models
from botorch.models import fully_bayesian, map_saas
from botorch.models.approximate_gp import ApproximateGPyTorchModel
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.kernels import CategoricalKernel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood, SparseOutlierNoise
from botorch.models.model import ModelList
from gpytorch.models import ExactGP as GPyTorchExactGP
from torch import Tensor, nn

from ... import kernels
from ...kernels import Kernel
from ...models import GP, Batch, Ensemble, ExactGP, Outputs, SelectedOutputs, SparseGP
from ...models.transforms import chained
from ..gpytorch.exact import noise_of, translate_exact
from ..gpytorch.kernels import kernel_of
from ..gpytorch.place import Place
from ..gpytorch.prior import PriorOfModel
from ..gpytorch.variational import translate_strategy
from ..refusal import BY_HAND, full_name, refusal
from . import fidelity as _fidelity  # noqa: F401  registers its kernels
from .transforms import Outcomes, translate_input, translate_outcome

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
