"""Kernels of fidelities in [0, 1]: the covariance of a cheap simulation at fidelity s and an expensive one at s'.

They are smooth functions of one or two coordinates, so their rank is small. Their features are polynomials that
interpolate the kernel at Chebyshev nodes, with an error of about 1e-12. A product with a stationary kernel has the
products of both kernels' features.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..core.checks import ArrayLike, positive
from ..core.value import Value
from .base import Kernel

__all__ = ["Downsampling", "ExponentialDecay", "LinearTruncated"]


class ChebyshevFeatures(Value):
    """Features T(x) M, with the Chebyshev polynomials T of each coordinate and their products `[n, nodes^d]`.

    They are constant outside [0, `high`].
    """

    fields = ("high", "nodes")

    def __init__(self, M: Tensor, high: float, nodes: int) -> None:
        super().__init__(M=M.contiguous())  # as it is in a file, so that a loaded path has the same last bits
        self.high, self.nodes = high, nodes

    def forward(self, x: Tensor) -> Tensor:
        return chebyshev(x, self.high, self.nodes) @ self.M


def chebyshev(x: Tensor, high: float, nodes: int) -> Tensor:
    """Compute Chebyshev polynomials of each coordinate on [0, high] and their products, `[n, d] -> [n, nodes^d]`."""
    u = (2 * x / high - 1).clamp(-1, 1)
    rows = [torch.ones_like(u), u]
    for _ in range(nodes - 2):
        rows.append(2 * u * rows[-1] - rows[-2])
    T = torch.stack(rows, dim=-1)  # [n, d, nodes]
    first, *others = T.unbind(1)
    for other in others:
        first = (first[:, :, None] * other[:, None]).flatten(1)
    return first


def interpolated(kernel: Kernel, d: int, high: float, nodes: int = 20, least: float = 1e-13) -> ChebyshevFeatures:
    """Return features T M of a smooth kernel, with M M^T = T^-1 K T^-T for the kernel matrix K at the nodes.

    Args:
        kernel: a kernel of d coordinates.
        d: the number of coordinates, 1 or 2.
        high: the end of each coordinate's range, which starts at zero.
        nodes: the number of nodes in each coordinate. For (1 + s + s')^-1, 16 nodes have an error below 1e-12.
        least: eigenvalues of K below this share of the largest are dropped, so that K is positive definite.
    """
    with torch.no_grad():
        t = torch.arange(nodes, dtype=torch.float64, device="cpu")
        line = 0.5 * high * (1 - torch.cos(math.pi * (t + 0.5) / nodes))
        points = torch.cartesian_prod(*[line] * d).reshape(-1, d)
        values, vectors = torch.linalg.eigh(kernel.double().cpu().forward(points, points))
        kept = values > least * values[-1]
        M = torch.linalg.solve(chebyshev(points, high, nodes), vectors[:, kept] * values[kept].sqrt())
    return ChebyshevFeatures(M, high, nodes)


class LinearTruncated(Kernel):
    """The covariance c(s, s') = (1 - s) (1 - s') (1 + s s')^power of a simulation's error at fidelities s below one.

    For two fidelities, it is the sum of both and (1 - s_1) (1 - s_1') (1 - s_2) (1 - s_2') (1 + s_1 s_1' + s_2
    s_2')^power. If `power` is not a whole number, the kernel has slightly negative eigenvalues, about 1e-4 of its
    variance.

    >>> from matheron import kernels
    >>> k = kernels.RBF(0.3).on(0) + kernels.LinearTruncated(1.0).on(1) * kernels.RBF(0.2).on(0)
    >>> k([[0.1, 1.0], [0.1, 0.5]]).diagonal()
    tensor([1.0000, 1.3125], dtype=torch.float64)
    """

    finite: ClassVar = True
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

    def features(self, num_features: int, generator: torch.Generator) -> ChebyshevFeatures:
        return interpolated(self, 2 if self.pair else 1, 1.0)


class Downsampling(Kernel):
    """The kernel c(s, s') = offset + ((1 - s) (1 - s'))^(1 + power), which has two features.

    >>> from matheron import kernels
    >>> kernels.Downsampling(1.0, 0.5)([[0.0], [1.0]]).diagonal()
    tensor([1.5000, 0.5000], dtype=torch.float64)
    """

    finite: ClassVar = True

    def __init__(self, power: ArrayLike, offset: ArrayLike) -> None:
        super().__init__(power=positive(power, "power", max_ndim=0), offset=positive(offset, "offset", max_ndim=0))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        away = DownsamplingFeatures(self.power, self.offset).away
        return self.offset + away(x) @ away(z).mT

    def features(self, num_features: int, generator: torch.Generator) -> DownsamplingFeatures:
        return DownsamplingFeatures(self.power, self.offset).owned()


class DownsamplingFeatures(Value):
    """The features [sqrt(offset), (1 - s)^(1 + power)] of Downsampling."""

    def __init__(self, power: Tensor, offset: Tensor) -> None:
        super().__init__(power=power, offset=offset)

    def away(self, x: Tensor) -> Tensor:
        return (1 - x) ** (1 + self.power)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.offset.sqrt().expand(x.shape[0], 1), self.away(x)], dim=-1)


class ExponentialDecay(Kernel):
    """The kernel c(s, s') = offset + (1 + (s + s') / lengthscale)^-power, for s from zero to `high`.

    >>> from matheron import kernels
    >>> kernels.ExponentialDecay(1.0, 1.0, 0.5)([[0.0], [1.0]]).diagonal()
    tensor([1.5000, 0.8333], dtype=torch.float64)
    """

    finite: ClassVar = True
    fields = ("high",)

    def __init__(self, lengthscale: ArrayLike, power: ArrayLike, offset: ArrayLike, high: float = 1.0) -> None:
        named = {"lengthscale": lengthscale, "power": power, "offset": offset}
        super().__init__(**{name: positive(value, name, max_ndim=0) for name, value in named.items()})
        self.high = float(high)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.offset + (1 + (x + z.mT).abs() / self.lengthscale) ** -self.power

    def features(self, num_features: int, generator: torch.Generator) -> ChebyshevFeatures:
        return interpolated(self, 1, self.high)
