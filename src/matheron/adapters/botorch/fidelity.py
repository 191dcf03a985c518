"""Kernels of fidelities, in [0, 1]: BoTorch's for models of several fidelities, beside features that have them.

They are smooth functions of one coordinate or two, and so of a small rank: their features are polynomials through the
kernel at Chebyshev nodes, exact to some twelve digits. A product with a stationary kernel has the products of both
kernels' features.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from botorch.models.kernels.downsampling import DownsamplingKernel
from botorch.models.kernels.exponential_decay import ExponentialDecayKernel
from botorch.models.kernels.linear_truncated_fidelity import LinearTruncatedFidelityKernel
from torch import Tensor

from ...core.checks import ArrayLike, positive
from ...kernels import Kernel, Product, Sum
from ..gpytorch.kernels import kernel_of, translate
from ..gpytorch.place import Place

# Nodes in each coordinate, and eigenvalues that count, as shares of the largest. A kernel (1 + s + s')^-1 is within
# 1e-12 with 16 nodes; twice as many change nothing in float64.
_NODES, _LEAST = 20, 1e-13


class _Fidelity(Kernel):
    """A smooth kernel of one fidelity, or two, from zero to `high`."""

    finite: ClassVar = True
    high: float = 1.0

    @abstractmethod
    def forward(self, x: Tensor, z: Tensor) -> Tensor: ...

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """T(x) M: Chebyshev polynomials T with M M^T = T^-1 K T^-T at the nodes, where K is made positive definite.

        Of the powers of `LinearTruncated` that are no whole numbers it is not quite: by some 1e-4 of its variance.
        """
        with torch.no_grad():
            own = self.double().cpu()
            d = 2 if isinstance(self, LinearTruncated) and self.pair else 1
            t = torch.arange(_NODES, dtype=torch.float64, device="cpu")
            line = 0.5 * self.high * (1 - torch.cos(math.pi * (t + 0.5) / _NODES))
            nodes = torch.cartesian_prod(*[line] * d).reshape(-1, d)
            values, vectors = torch.linalg.eigh(own.forward(nodes, nodes))
            kept = values > _LEAST * values[-1]
            M = torch.linalg.solve(self._polynomials(nodes), vectors[:, kept] * values[kept].sqrt())

        return lambda x: self._polynomials(x) @ M.to(x)

    def _polynomials(self, x: Tensor) -> Tensor:
        """Chebyshev's of each coordinate and their products: `[n, d] -> [n, nodes^d]`; constant beyond the ends."""
        u = (2 * x / self.high - 1).clamp(-1, 1)
        rows = [torch.ones_like(u), u]
        for _ in range(_NODES - 2):
            rows.append(2 * u * rows[-1] - rows[-2])
        T = torch.stack(rows, dim=-1)  # [n, d, nodes]
        first, *others = T.unbind(1)
        for other in others:
            first = (first[:, :, None] * other[:, None]).flatten(1)
        return first


class LinearTruncated(_Fidelity):
    """c(s, s') = (1 - s) (1 - s') (1 + s s')^power: what a model errs by at fidelities s below one.

    Of two fidelities the sum of both, and (1 - s_1) (1 - s_1') (1 - s_2) (1 - s_2') (1 + s_1 s_1' + s_2 s_2')^power.
    """

    fields = ("pair",)

    def __init__(self, power: ArrayLike, pair: bool = False) -> None:
        super().__init__(power=positive(power, "power", max_ndim=0))
        self.pair = bool(pair)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        s, r = x.clamp(0, 1), z.clamp(0, 1)
        products = [a[..., :, None] * b[..., None, :] for a, b in zip(s.unbind(-1), r.unbind(-1), strict=True)]
        away = [(1 - a)[..., :, None] * (1 - b)[..., None, :] for a, b in zip(s.unbind(-1), r.unbind(-1), strict=True)]
        total = away[0] * (1 + products[0]) ** self.power
        if len(products) > 1:
            total = total + away[1] * (1 + products[1]) ** self.power
            total = total + away[0] * away[1] * (1 + products[0] + products[1]) ** self.power
        return total


class Downsampling(_Fidelity):
    """c(s, s') = offset + ((1 - s) (1 - s'))^(1 + power), of two features."""

    def __init__(self, power: ArrayLike, offset: ArrayLike) -> None:
        super().__init__(power=positive(power, "power", max_ndim=0), offset=positive(offset, "offset", max_ndim=0))

    def _away(self, x: Tensor) -> Tensor:
        return (1 - x) ** (1 + self.power)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.offset + self._away(x) @ self._away(z).mT

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        own = self.owned()

        def phi(x: Tensor) -> Tensor:
            at = own.to(x.device, x.dtype)
            return torch.cat([at.offset.sqrt().expand(len(x), 1), at._away(x)], dim=-1)

        return phi


class ExponentialDecay(_Fidelity):
    """c(s, s') = offset + (1 + (s + s') / lengthscale)^-power, for s from zero to `high`."""

    fields = ("high",)

    def __init__(self, lengthscale: ArrayLike, power: ArrayLike, offset: ArrayLike, high: float = 1.0) -> None:
        named = {"lengthscale": lengthscale, "power": power, "offset": offset}
        super().__init__(**{name: positive(value, name, max_ndim=0) for name, value in named.items()})
        self.high = float(high)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.offset + (1 + (x + z.mT).abs() / self.lengthscale) ** -self.power


@kernel_of.register
def _(kernel: LinearTruncatedFidelityKernel, place: Place) -> Kernel:
    """k_0 + c k_1, with k_0 and k_1 of the other columns."""
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
