"""PriorOfModel finds the kernel and the mean of a GPyTorch model from what its `forward` returns.

The result is then checked: its covariance and mean at a few points must agree with those that `forward` returns.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from gpytorch import kernels as gk
from gpytorch import means as gm
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.lazy import LazyEvaluatedKernelTensor
from linear_operator import operators as lo
from linear_operator import to_dense, to_linear_operator
from torch import Tensor, nn

from ... import kernels
from ...core.functionals import Functionals, Observed
from ...core.sites import Sites
from ...kernels import Kernel, coupled_covariance
from ...models import ExactGP, SparseGP, observe
from ...models.means import ConstantMean, Mean
from ...models.transforms import Network
from ..refusal import BY_HAND, full_name, overridden
from .kernels import Place, kernel_of, order_of, product, task_columns, translate, translate_forward, translate_mean

_NUM_PROBES = 6
# A translated kernel, as a function of the place.
Reading = Callable[[Place], Kernel]


class PriorOfModel:
    """The prior of a model or a batch of models, whose `inputs [*batch, n, d_k]` are concatenated.

    `kernel(place)` is the translated kernel of one member, differentiable in the model's parameters. If `independent`
    outputs are a batch of kernels, they are the last axis of `batch_shape`. `collapsed` is the InducingPointKernel of a
    sparse regression; the prior then has its base kernel.

    If `forward` passes something else than the inputs to its kernels, the map from the inputs to it is the `network` of
    a deep kernel. In that case `inputs` are the network's outputs, and kernel and mean are functions of these.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Tensor, ...],
        target_shape: torch.Size,
        number_tasks: Callable[[Tensor], Tensor] = Tensor.long,
    ) -> None:
        """Read the prior. `target_shape` is `[*batch, n]` or `[*batch, n, t]`; `number_tasks` maps a column's values to
        task numbers 0, 1, ..."""
        self.name = full_name(model)
        self.inputs: tuple[Tensor, ...] = inputs
        self.number_tasks = number_tasks
        self.probes: tuple[Tensor, ...] = tuple(x[..., _spread(x.shape[-2]), :] for x in inputs)
        ends = list(itertools.accumulate(x.shape[-1] for x in inputs))
        self.columns = [tuple(range(end - x.shape[-1], end)) for x, end in zip(inputs, ends, strict=True)]
        self.num_columns, self.tasks = ends[-1], set[int]()  # columns of task numbers are found while reading
        # This copy shares everything but the training flag: in training mode, BoTorch's forward would change the
        # parameters of its transforms.
        model = copy.copy(model)
        model.training = False
        with settings.lazily_evaluate_kernels(True), _evaluating(model):
            law = model.forward(*self.probes)
        operator, mean = law.lazy_covariance_matrix, law.mean
        self.network = self._read_network(model, operator)
        tasks = isinstance(law, MultitaskMultivariateNormal)
        blocks = isinstance(operator, lo.BlockInterleavedLinearOperator | lo.BlockDiagLinearOperator)
        self.independent, self.coupled = tasks and blocks, tasks and not blocks
        self.order = order_of(model)
        if self.order and not self.coupled:
            raise TypeError(
                f"model: {self.name} has a kernel of values and gradients, which is only understood in exact models "
                f"whose forward returns a MultitaskMultivariateNormal; {BY_HAND}"
            )
        batch_shape = target_shape[: -2 if tasks else -1]
        if self.independent:
            operator, mean = operator.base_linear_op, mean.mT  # [*batch, t, k, k], [*batch, t, k]
            batch_shape = batch_shape + mean.shape[-2:-1]
        own = mean.shape[: -2 if self.coupled else -1]
        self.batch_shape = torch.broadcast_shapes(batch_shape, operator.shape[:-2], own)
        self.collapsed: gk.InducingPointKernel | None = None
        if self.network is not None and self.batch_shape:
            raise TypeError(
                f"model: expected a single model, because {self.name} has a network before its kernels, got a batch "
                f"{list(self.batch_shape)}; give each member as its own model, {BY_HAND}"
            )
        self.kernel = self._read_kernel(model, operator)
        self._mean = self._read_mean(model, mean.detach())

    def attached(self, gp: ExactGP | SparseGP) -> ExactGP | SparseGP:
        """Compose a model of the network's outputs with the network, if there is one."""
        return gp if self.network is None else gp.replaced(input_transform=self.network)

    def places(self) -> list[Place]:
        """Return the place of every member of the batch."""
        n = self.num_columns
        inputs = self.inputs[0] if len(self.inputs) == 1 else None
        indices = itertools.product(*map(range, self.batch_shape))
        return [Place(self.batch_shape, index, tuple(range(n)), n, self.task, inputs=inputs) for index in indices]

    def mean(self, place: Place) -> Mean:
        """Return the translated mean of one member of the batch."""
        return self._mean(replace(place, num_tasks=self.kernel(place).num_outputs))

    def points(self, place: Place, few: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of one member, all or a few, as points `[n, d]` and task numbers `[n]` (or None)."""
        inputs = self.probes if few else self.inputs
        kind = next((x.dtype for x in inputs if x.is_floating_point()), torch.get_default_dtype())
        x = torch.cat([place.pick(x, 2).to(kind) for x in inputs], dim=-1)  # [n, columns]
        return x[:, place.coordinates], None if place.task is None else self.number_tasks(x[:, place.task]).long()

    def sites(self, x: Tensor, tasks: Tensor | None, kernel: Kernel) -> Observed:
        """Return what the model's covariance at points x `[n, d]` is of, in its order.

        If there are several values at each point, they are listed point by point.
        """
        if not self.coupled:
            return Sites(x, tasks)
        if not self.order:
            return Sites.every_output(x, kernel.num_outputs)
        dims, n = kernel.active_dims(x.shape[1]), len(x)
        parts = [observe.value(x), *(observe.derivative(x, i) for i in dims)]
        parts += [observe.derivative(x, (i, i)) for i in dims] if self.order > 1 else []
        each = torch.arange(n, device=x.device)[:, None] + n * torch.arange(len(parts), device=x.device)  # [n, t]
        return Functionals.concatenated(parts)[each.reshape(-1)]

    def variances(self) -> Tensor:
        """Return k(x, x) at the inputs of every member of the batch, `[*batch, n]`."""
        rows = [self.kernel(place).diag(self.points(place)[0]) for place in self.places()]
        return torch.stack(rows).reshape(*self.batch_shape, -1)

    @property
    def task(self) -> int | None:
        """The column of task numbers."""
        if len(self.tasks) > 1:
            raise TypeError(
                f"model: expected at most one column of task numbers, got IndexKernels of columns "
                f"{sorted(self.tasks)} in {self.name}; number the combinations in one column, {BY_HAND}"
            )
        return next(iter(self.tasks), None)

    def _read_network(self, model: nn.Module, operator: object) -> Network | None:
        """Return the map that `forward` applies before its kernels; None if these take columns of the inputs."""
        self._arguments = _arguments(operator)
        if all(self._columns_given(kernel, x) is not None for kernel, x in self._arguments.lazy):
            return None
        several = len(self.inputs) > 1
        if several:
            raise TypeError(
                f"model: expected one tensor of inputs, because {self.name} has a network before its kernels, got "
                f"{len(self.inputs)}; concatenate them, {BY_HAND}"
            )
        network = Network(_Features(model), self.inputs[0].shape[-1])
        parts = self._arguments.distinct
        seen, features = torch.cat(parts, dim=-1), network(self.probes[0])
        if seen.shape != features.shape or not torch.allclose(seen, features, rtol=1e-5, atol=1e-8):
            raise TypeError(
                f"model: {self.name}.forward passes different values to its kernels when it is called twice, so they "
                f"are not a function of the inputs; {BY_HAND}"
            )
        if not network.takes_each_by_itself(self.probes[0]):
            raise TypeError(
                f"model: {self.name}.forward maps a point to something else where it is alone; if it scales "
                "features by the least and the largest of a call, scale by those of the training data, as "
                f"gpytorch.utils.grid.ScaleToBounds does, {BY_HAND}"
            )
        self.inputs, self.probes = (network(self.inputs[0]),), (features,)
        self.num_columns, self.tasks = features.shape[-1], set[int]()
        self.columns = [tuple(range(self.num_columns))]
        ends = list(itertools.accumulate(part.shape[-1] for part in parts))
        self._places = [(x, tuple(range(end - x.shape[-1], end))) for x, end in zip(parts, ends, strict=True)]
        return network

    def _read_kernel(self, model: nn.Module, operator: lo.LinearOperator) -> Reading:
        if isinstance(operator, LazyEvaluatedKernelTensor) and isinstance(operator.kernel, gk.InducingPointKernel):
            self.collapsed = outer = operator.kernel
            given = self._given(outer, operator.x1)
            operator = to_linear_operator(outer.base_kernel(operator.x1))
            readings: list[Reading] = [
                lambda place: translate(outer.base_kernel, replace(place, columns=given).within(outer))
            ]
        else:
            reading = self._read(operator)
            readings = self._combinations(model) if reading is None else [reading]
        for candidate in readings:
            ours = [(self._covariance(candidate, place), place) for place in self._some()]
            with torch.no_grad():
                K = to_dense(operator)
            if all(_agrees(value, place.pick(K, 2)) for value, place in ours):
                return candidate
        raise TypeError(
            f"model: expected {self.name}.forward to return the covariance of its kernels or of their sum or product, "
            f"got another {type(operator).__name__}; write it as one gpytorch kernel of the inputs, {BY_HAND}"
        )

    def _read(self, operator: object) -> Reading | None:
        """Read the kernel from the covariance that `forward` returns: lazy kernels, and sums and multiples of them.

        The result is None for an operator that does not store which kernels it was made with.
        """
        match operator:
            case LazyEvaluatedKernelTensor() if id(operator) in self._arguments.inner:
                return self._read(self._arguments.inner[id(operator)])
            case LazyEvaluatedKernelTensor():
                kernel, given = operator.kernel, self._given(operator.kernel, operator.x1)
                called = (
                    translate if self.network is None else translate_forward
                )  # features already have the kernel's active_dims
                return lambda place: called(kernel, replace(place, columns=given))
            case lo.SumLinearOperator() | lo.CatLinearOperator():
                parts = [part for each in operator.linear_ops if (part := self._read(each)) is not None]
                if len(parts) < len(operator.linear_ops):
                    return None
                if isinstance(operator, lo.CatLinearOperator):  # independent outputs, along the last batch axis
                    return lambda place: parts[place.index[-1]](place)
                return lambda place: kernels.Sum(*(part(place) for part in parts))
            case lo.ConstantMulLinearOperator():
                base, constant = self._read(operator.base_linear_op), operator._constant
                return base and (lambda place: kernels.Scaled(base(place), place.pick(constant, 0)))
        return None

    def _combinations(self, model: nn.Module) -> list[Reading]:
        """Return candidates for the kernel of a dense covariance: the product and the sum of the model's kernels.

        It is assumed that an IndexKernel takes the last input, and the other kernels the first.
        """
        found = [k for k in model.children() if isinstance(k, gk.Kernel)]
        own = [(k, self.columns[-1 if isinstance(k, gk.IndexKernel) else 0]) for k in found]
        for k, columns in own:
            self.tasks |= task_columns(k, Place(torch.Size(), (), columns, self.num_columns))

        def each(place: Place) -> list[Kernel]:
            return [translate(k, replace(place, columns=columns)) for k, columns in own]

        if len(own) < 2:
            return [lambda place: each(place)[0]] if own else []
        return [lambda place: product(each(place)), lambda place: kernels.Sum(*each(place))]

    def _given(self, kernel: gk.Kernel, x: Tensor) -> tuple[int, ...]:
        """Return the columns of the inputs that are in `x`, the argument of a kernel; otherwise raise an error."""
        columns = self._columns_given(kernel, x)
        if columns is None:
            raise TypeError(
                f"model: {self.name}.forward passes values to {type(kernel).__name__} that are not a function of the "
                f"inputs; {BY_HAND}"
            )
        return columns

    def _columns_given(self, kernel: gk.Kernel, x: Tensor) -> tuple[int, ...] | None:
        """Return the columns of the inputs that are in `x`, the argument of a kernel; None if it is something else."""
        if getattr(self, "network", None) is not None:
            return next((columns for part, columns in self._places if part is x), None)
        for own, columns in zip(self.probes, self.columns, strict=True):
            place = Place(torch.Size(), (), columns, self.num_columns)
            seen = place.within(kernel).columns
            tasks = task_columns(kernel, place)
            same = [i for i, c in enumerate(seen) if len(self.probes) > 1 or c not in tasks]
            part = own[..., [c - columns[0] for c in seen]]
            if part.shape[-2:] == x.shape[-2:] and bool((part[..., same] == x[..., same]).all()):
                self.tasks |= tasks
                return columns
        return None

    def _read_mean(self, model: nn.Module, mean: Tensor) -> Callable[[Place], Mean]:
        first = getattr(model, "mean_module", None)
        modules = [m for m in model.children() if isinstance(m, gm.Mean) and m is not first]
        modules = modules if first is None else [first, *modules]
        if (
            self.network is not None and len(self._places) > 1
        ):  # several kernels, each of its own features, and a mean of some
            modules += [_OfColumns(module, columns) for module in modules for _, columns in self._places]
        with_tasks = (False,) if self.task is None else (False, True)
        for module, with_task in itertools.product(modules, with_tasks):
            self._mean = partial(translate_mean, module, with_task=with_task)
            try:
                values = [(self._mean_values(place), place) for place in self._some()]
            except (RuntimeError, ValueError):  # the mean takes other columns
                continue
            if all(_agrees(value, place.pick(mean, 2 if self.coupled else 1)) for value, place in values):
                return self._mean
        if bool((mean == 0).all()):
            return lambda place: ConstantMean(0.0)
        raise TypeError(
            f"model: expected {self.name}.forward to return the mean of its mean_module, got other values; write it as "
            f"one module of {'the inputs' if self.network is None else 'what its kernel takes'}, {BY_HAND}"
        )

    def _covariance(self, reading: Reading, place: Place) -> Tensor:
        kernel = reading(place).owned()
        x, tasks = self.points(place, few=True)
        x = x.double()
        sites = self.sites(x, tasks, kernel)
        return coupled_covariance(kernel.to(x), sites, sites)

    def _mean_values(self, place: Place) -> Tensor:
        x, tasks = self.points(place, few=True)
        mean = self.mean(place).owned()
        if not self.coupled:
            return mean.at(Sites(x, tasks))
        values, kernel = mean.to(x)(x[None])[0], self.kernel(place)
        if self.order and values.shape[-1] == 1:
            return mean.at(self.sites(x, None, kernel)).reshape(len(x), -1)
        return values.expand(-1, kernel.num_outputs)

    def _some(self) -> list[Place]:
        """Return the places of the first and the last member of the batch."""
        first, *others = self.places()
        return [first, *others[-1:]]


def _agrees(ours: Tensor, theirs: Tensor) -> bool:
    # The tolerance must find a wrong formula, but not GPyTorch's rounding errors: it computes the distances of near
    # points to half of the digits.
    tolerance = 1e-5 if theirs.dtype == torch.float64 else 2e-2
    if ours.shape != theirs.shape:
        return False
    return bool((ours.double() - theirs.double()).abs().max() <= tolerance * theirs.abs().max().clamp_min(1e-8))


def _spread(n: int) -> list[int]:
    """Return the indices of a few of n rows, from first to last."""
    return sorted({round(i * (n - 1) / (_NUM_PROBES - 1)) for i in range(_NUM_PROBES)})


class _Arguments:
    """The points that the kernels of a covariance take; a user's kernel that calls others is replaced by these."""

    def __init__(self) -> None:
        self.lazy: list[tuple[gk.Kernel, Tensor]] = []
        self.inner: dict[int, object] = {}  # the covariance that a user's kernel computes, by the operator's id
        self.kept: list[object] = []  # keeps operators alive, so that no id is used twice

    @property
    def distinct(self) -> list[Tensor]:
        """Return the points, each tensor once."""
        return list({id(x): x for _, x in self.lazy}.values())


def _arguments(operator: object, found: _Arguments | None = None) -> _Arguments:
    found = _Arguments() if found is None else found
    if isinstance(operator, LazyEvaluatedKernelTensor):
        kernel = operator.kernel
        unknown = kernel_of.dispatch(type(kernel)) is kernel_of.dispatch(object) or overridden(kernel, kernel_of)
        with settings.lazily_evaluate_kernels(True):
            made = kernel.forward(operator.x1, operator.x2) if unknown and not kernel.batch_shape else None
        if made is not None and _arguments(made).lazy:  # base_kernel(network(x1), network(x2))
            found.inner[id(operator)] = made
            found.kept += [operator, made]
            return _arguments(made, found)
        found.lazy.append((kernel, operator.x1))
    elif isinstance(operator, lo.SumLinearOperator | lo.CatLinearOperator):
        for part in operator.linear_ops:
            _arguments(part, found)
    elif isinstance(operator, lo.ConstantMulLinearOperator):
        _arguments(operator.base_linear_op, found)
    return found


class _Features(nn.Module):
    """The map from inputs to what a model's `forward` passes to its kernels, `[..., n, d] -> [..., n, e]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        bare = copy.copy(model)  # a copy without data and without transforms, which are applied outside of forward
        state = bare.__dict__
        outside = ("likelihood", "variational_strategy", "input_transform", "outcome_transform")
        state["_modules"] = {name: part for name, part in model._modules.items() if name not in outside}
        held = ("_train_inputs", "_train_targets", "train_inputs", "train_targets", "_original_train_inputs")
        state |= dict.fromkeys([name for name in (*held, "prediction_strategy") if name in state])
        state |= {name: OrderedDict() for name in state if name.endswith("_hooks")}
        self.model = bare

    def forward(self, x: Tensor) -> Tensor:
        with settings.lazily_evaluate_kernels(True):
            law = self.model.forward(x)
        return torch.cat(_arguments(law.lazy_covariance_matrix).distinct, dim=-1)


class _OfColumns(nn.Module):
    """A mean that takes some of the columns."""

    def __init__(self, mean: nn.Module, columns: tuple[int, ...]) -> None:
        super().__init__()
        self.mean, self.columns = mean, list(columns)

    def forward(self, x: Tensor) -> Tensor:
        return self.mean(x[..., self.columns])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Set a model's modules to evaluation mode, in which calls do not change them, and restore the modes after."""
    before = [(part, part.training) for _, part in model.named_modules()]
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
