"""Translation of BoTorch's kernels for models of several fidelities to those of `kernels.fidelity`."""

from __future__ import annotations

from dataclasses import replace

from botorch.models.kernels.downsampling import DownsamplingKernel
from botorch.models.kernels.exponential_decay import ExponentialDecayKernel
from botorch.models.kernels.linear_truncated_fidelity import LinearTruncatedFidelityKernel

from ...kernels import Downsampling, ExponentialDecay, Kernel, LinearTruncated, Product, Sum
from ..gpytorch.kernels import kernel_of, translate
from ..gpytorch.place import Place


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
