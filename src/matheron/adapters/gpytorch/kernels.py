"""Translation of GPyTorch's kernels and means, with its exact parametrisations, for one member of a batch of models."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce, singledispatch
from types import UnionType

import torch
from gpytorch import kernels as gk
from gpytorch import means as gm
from linear_operator import to_dense
from torch import Tensor, nn

from ... import kernels
from ...kernels import Kernel
from ...models.means import CallableMean, ConstantMean, LinearMean, Mean, Stacked
from ..refusal import BY_HAND, overridden, refusal, refuse_override


@dataclass(frozen=True)
class Place:
    """A member of a batch of models, and the columns of the inputs that a kernel takes.

    GPyTorch's parameters have the batch's axes first, and broadcast if they have fewer or smaller ones. Columns are
    counted over all inputs, concatenated. The column of task numbers is not a coordinate of paths.
    """

    batch_shape: torch.Size
    index: tuple[int, ...]
    columns: tuple[int, ...]
    num_columns: int
    task: int | None = None
    num_tasks: int = 1
    inputs: Tensor | None = field(default=None, compare=False)  # the data `[..., n, columns]`, if known

    def pick(self, parameter: Tensor | nn.Module, trailing: int) -> Tensor:
        """Return this member's part of a parameter `[*batch, ...]` with `trailing` axes after the batch's.

        It stays differentiable in the parameter.
        """
        parameter = tensor(parameter)
        own = parameter.shape[parameter.ndim - trailing :]
        return parameter.expand(self.batch_shape + own)[self.index]

    def within(self, kernel: gk.Kernel) -> Place:
        """Return the place for the columns that a kernel's active_dims select."""
        if kernel.active_dims is None:
            return self
        return replace(self, columns=tuple(self.columns[i] for i in tensor(kernel.active_dims).tolist()))

    @property
    def coordinates(self) -> list[int]:
        """The columns that are coordinates of paths, so all but the task column."""
        return [c for c in range(self.num_columns) if c != self.task]

    def on_columns(self, kernel: Kernel) -> Kernel:
        """Restrict a translated kernel to the columns of this place."""
        if self.task in self.columns:
            raise TypeError(
                f"kernel: {type(kernel).__name__} takes column {self.task} as a coordinate, but it holds task numbers; "
                f"give the kernel active_dims of the other columns, {BY_HAND}"
            )
        dims = [self.coordinates.index(c) for c in self.columns]
        return kernel if dims == list(range(len(self.coordinates))) else kernel.on(dims)


def tensor(parameter: Tensor | nn.Module) -> Tensor:
    """Check that an attribute of a module, which is typed as a tensor or a module, is a tensor."""
    assert isinstance(parameter, Tensor)
    return parameter


def translate(kernel: gk.Kernel, place: Place) -> Kernel:
    """Translate a kernel that the model calls: its active_dims choose among the columns."""
    return translate_forward(kernel, place.within(kernel))


def translate_forward(kernel: gk.Kernel, place: Place) -> Kernel:
    """Translate a kernel whose `forward` is called directly: it takes all columns, whatever its active_dims."""
    refuse_override("kernel", kernel, kernel_of)
    return kernel_of(kernel, place)


@singledispatch
def kernel_of(kernel: object, place: Place) -> Kernel:
    """Translate a GPyTorch kernel to one of `matheron.kernels`."""
    raise refusal("kernel", kernel, kernel_of)


def _register_plain(kind: type[gk.Kernel] | UnionType, ours: Callable[..., Kernel]) -> None:
    """Register the translation `ours(kernel, pick)` for kernels of a kind; `pick` is that of the `Place`."""
    kernel_of.register(kind, lambda kernel, place: place.on_columns(ours(kernel, place.pick)))


def _lengthscale(kernel: gk.Kernel, pick: Callable[[Tensor | nn.Module, int], Tensor]) -> Tensor:
    return pick(kernel.lengthscale, 2)[0]  # [d] or [1]


_register_plain(gk.RBFKernel, lambda k, pick: kernels.RBF(_lengthscale(k, pick)))
_register_plain(gk.MaternKernel, lambda k, pick: kernels.Matern(k.nu, _lengthscale(k, pick)))
_register_plain(gk.RQKernel, lambda k, pick: kernels.RationalQuadratic(pick(k.alpha, 1)[0], _lengthscale(k, pick)))
_register_plain(gk.LinearKernel, lambda k, pick: kernels.Linear(pick(k.variance, 2)[0]))
_register_plain(gk.PolynomialKernel, lambda k, pick: kernels.Polynomial(k.power, pick(k.offset, 1)[0]))
# Kernels of values and gradients are translated to the kernel of the function itself.
_register_plain(gk.RBFKernelGrad | gk.RBFKernelGradGrad, lambda k, pick: kernels.RBF(_lengthscale(k, pick)))
_register_plain(gk.Matern52KernelGrad, lambda k, pick: kernels.Matern(2.5, _lengthscale(k, pick)))
_register_plain(gk.PolynomialKernelGrad, lambda k, pick: kernels.Polynomial(k.power, pick(k.offset, 1)[0]))
# exp(-2 sum_i sin^2(pi r_i / p_i) / l_i): GPyTorch's lengthscale is the square of the one in kernels.Periodic.
_register_plain(
    gk.PeriodicKernel, lambda k, pick: kernels.Periodic(_lengthscale(k, pick).sqrt(), pick(k.period_length, 2)[0])
)


@kernel_of.register
def _(kernel: gk.CosineKernel, place: Place) -> Kernel:
    if len(place.columns) > 1:
        raise TypeError(
            f"kernel: CosineKernel, a function of the Euclidean distance, is not positive definite in "
            f"{len(place.columns)} dimensions; use a product of CosineKernels with active_dims, {BY_HAND}"
        )
    return place.on_columns(kernels.Cosine(2 * place.pick(kernel.period_length, 2)[0, 0]))  # cos(pi r / p)


@kernel_of.register
def _(kernel: gk.SpectralMixtureKernel, place: Place) -> Kernel:
    # This is not the kernel of Wilson and Adams (2013): in several dimensions, GPyTorch multiplies one-dimensional
    # mixtures.
    weights = place.pick(kernel.mixture_weights, 1)  # [q]
    means, scales = (place.pick(p, 3)[:, 0] for p in (kernel.mixture_means, kernel.mixture_scales))  # [q, d]
    each = zip(place.columns, means.split(1, dim=1), scales.split(1, dim=1), strict=True)
    factors = [replace(place, columns=(i,)).on_columns(kernels.SpectralMixture(weights, mu, s)) for i, mu, s in each]
    return reduce(operator.mul, factors)


@kernel_of.register
def _(kernel: gk.AdditiveStructureKernel | gk.ProductStructureKernel, place: Place) -> Kernel:
    """The base kernel is applied to each column, and the results are summed or multiplied."""
    each = [translate_forward(kernel.base_kernel, replace(place, columns=(column,))) for column in place.columns]
    return reduce(operator.add if isinstance(kernel, gk.AdditiveStructureKernel) else operator.mul, each)


# The constant kernel, and kernels that are made of other kernels.
kernel_of.register(gk.ConstantKernel, lambda kernel, place: kernels.Constant(place.pick(kernel.constant, 1)[0]))
kernel_of.register(
    gk.ScaleKernel,
    lambda k, place: kernels.Scaled(translate_forward(k.base_kernel, place), place.pick(k.outputscale, 0)),
)
kernel_of.register(gk.AdditiveKernel, lambda kernel, place: kernels.Sum(*(translate(k, place) for k in kernel.kernels)))
kernel_of.register(gk.ProductKernel, lambda kernel, place: product([translate(k, place) for k in kernel.kernels]))
kernel_of.register(
    gk.LCMKernel,
    lambda kernel, place: kernels.Sum(*(translate_forward(k, place) for k in kernel.covar_module_list)),
)
kernel_of.register(
    gk.MultitaskKernel,
    lambda k, place: coregional(translate_forward(k.data_covar_module, place), k.task_covar_module, place),
)
kernel_of.register(gk.IndexKernel, lambda kernel, place: coregional(None, kernel, place))


@kernel_of.register
def _(kernel: gk.InducingPointKernel, place: Place) -> Kernel:
    raise TypeError(
        "kernel: expected an InducingPointKernel as the whole kernel of an exact model, got one inside another kernel; "
        f"{BY_HAND}"
    )


def coregional(kernel: Kernel | None, tasks: gk.IndexKernel, place: Place) -> Kernel:
    """Return the kernel B (x) k of tasks, where B is that of an IndexKernel and k = None is a constant.

    For one task it is k times a number.
    """
    B = place.pick(to_dense(tasks.covar_matrix), 2).double()
    B = (B + B.mT) / 2  # symmetric to the last digit
    kernel = kernels.Constant(torch.ones_like(B[0, 0])) if kernel is None else kernel
    return kernels.Coregional(kernel, B) if len(B) > 1 else kernels.Scaled(kernel, B[0, 0])


def product(factors: list[Kernel]) -> Kernel:
    """Multiply kernels; the matrix B of an IndexKernel becomes the outer factor: k * (B (x) 1) is B (x) k."""
    bare = [k for k in factors if isinstance(k, kernels.Coregional) and isinstance(k.kernel, kernels.Constant)]
    others = [k for k in factors if k not in bare]
    inner = reduce(operator.mul, others) if others else bare[0].kernel
    if not bare:
        return inner
    B = torch.stack([k.B for k in bare]).prod(0)
    return kernels.Coregional(inner, B) if inner.num_outputs == 1 else kernels.Product(*factors)


def order_of(model: nn.Module) -> int:
    """Return the highest order of derivatives whose covariances a model's kernels return; 0 for values only."""
    slopes = gk.RBFKernelGrad | gk.Matern52KernelGrad | gk.PolynomialKernelGrad
    second = any(isinstance(part, gk.RBFKernelGradGrad) for _, part in model.named_modules())
    return 2 if second else int(any(isinstance(part, slopes) for _, part in model.named_modules()))


def task_columns(kernel: gk.Kernel, place: Place, called: bool = True) -> set[int]:
    """Return the columns that IndexKernels inside a kernel read as task numbers.

    A MultitaskKernel has tasks without such a column. If the kernel is `called`, its active_dims choose among the
    columns; otherwise it takes all.
    """
    place = place.within(kernel) if called else place
    match kernel:
        case gk.IndexKernel():
            return set(place.columns)
        case gk.ScaleKernel():
            return task_columns(kernel.base_kernel, place, called=False)
        case gk.AdditiveKernel() | gk.ProductKernel():
            return {c for k in kernel.kernels if isinstance(k, gk.Kernel) for c in task_columns(k, place)}
        case gk.InducingPointKernel():
            return task_columns(kernel.base_kernel, place)
    return set()


# Means. Modules of classes that are not registered are copied and called.


def translate_mean(mean: nn.Module, place: Place, with_task: bool = False) -> Mean:
    """Translate a mean module for one member of a batch; `with_task` says that it takes the task column too."""
    if with_task or overridden(mean, mean_of):
        return CallableMean(_At(mean, place, with_task))
    return mean_of(mean, place)


@singledispatch
def mean_of(mean: nn.Module, place: Place) -> Mean:
    """Copy a module of any other class; the copy is called with points."""
    return CallableMean(_At(mean, place))


mean_of.register(gm.ZeroMean, lambda mean, place: ConstantMean(0.0))
mean_of.register(gm.ConstantMean, lambda mean, place: ConstantMean(place.pick(mean.constant, 0)))
mean_of.register(
    gm.ConstantMeanGrad | gm.ConstantMeanGradGrad,
    lambda mean, place: ConstantMean(place.pick(mean.constant, 1)[0]),
)
mean_of.register(gm.MultitaskMean, lambda mean, place: Stacked([translate_mean(m, place) for m in mean.base_means]))


@mean_of.register
def _(mean: gm.LinearMean | gm.LinearMeanGrad | gm.LinearMeanGradGrad, place: Place) -> Mean:
    bias = 0.0 if mean.bias is None else place.pick(mean.bias, 1)[0]
    return LinearMean(place.pick(mean.weights, 2)[:, 0], bias)


class _At(nn.Module):
    """A mean module for one member of a batch: it maps points `[..., n, d]` to `[..., n]`, or to `[..., n, t]`.

    The latter holds for a mean with a task column.
    """

    def __init__(self, mean: nn.Module, place: Place, with_task: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.batch_shape, self.index = place.batch_shape, place.index
        self.task = place.task if with_task else None
        self.num_tasks = place.num_tasks

    def forward(self, x: Tensor) -> Tensor:
        if self.task is None:
            return self._at(x)
        number = x[..., :1]
        parts = (x[..., : self.task], x[..., self.task :])
        each = [torch.cat([parts[0], torch.full_like(number, i), parts[1]], -1) for i in range(self.num_tasks)]
        return torch.stack([self._at(points) for points in each], dim=-1)

    def _at(self, x: Tensor) -> Tensor:
        b = len(self.batch_shape)
        value = self.mean(x.reshape(*x.shape[:-2], *[1] * b, *x.shape[-2:]))  # [..., *batch, n] or [..., n]
        if b == 0:
            return value
        value = value.expand(*x.shape[:-2], *self.batch_shape, value.shape[-1])
        return value[(..., *self.index, slice(None))]
