"""Features of a kernel's own: maps from points to functions, as bases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.arena import weigh
from ..core.jacobian import jacobian
from ..core.own_function import as_features
from ..core.value import Parts, Value
from ..evaluate.bases import Basis
from ..kernels import Kernel, OnDims
from ..kernels.base import Term
from .features import fourier
from .leverage import Leverage, Reference, resampled

FeatureMap = Callable[[Tensor], Tensor]
# Fourier features beside each feature of a finite kernel, at the least.
_FEWEST = 64


class MappedBasis(Basis):
    """sqrt(variance) phi_i(x), with phi a map from points `[n, d]` to `[n, c]`: one for each version of the basis.

    Gradients are by automatic differentiation. It can be saved where the maps are values.
    """

    shapes = "amplitudes: g c, origin: d"

    def __init__(self, maps: Sequence[FeatureMap], amplitudes: Tensor, origin: Tensor) -> None:
        super().__init__(amplitudes=amplitudes, origin=origin)
        self.maps = Parts(map(as_features, maps))
        self.check()

    def check(self) -> None:
        if len(self.maps) != len(self.amplitudes):
            raise ValueError(f"MappedBasis: expected {len(self.amplitudes)} maps, got {len(self.maps)}")

    @property
    def size(self) -> int:
        return self.amplitudes.shape[1]

    @property
    def num_bases(self) -> int:
        return len(self.maps)

    def scales(self) -> Tensor:
        return self.amplitudes

    def values(self, x: Tensor) -> Tensor:
        x = x + self.origin  # points arrive about the origin; the map wants them whole
        if len(self.maps) == 1:
            return self.maps[0](x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])
        return torch.stack([phi(at) for phi, at in zip(self.maps, x.expand(len(self.maps), -1, -1), strict=True)])

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.expand(max(len(x), len(W)), -1, -1)
        f, df = jacobian(lambda at: weigh(self.values(at), W.detach()).mT, rows)  # [B, n, r], [B, n, r, d]
        return f.mT, df.transpose(1, 2)

    def select(self, index: Tensor | slice) -> Basis:
        if self.num_bases == 1:
            return self
        index = index.cpu() if isinstance(index, Tensor) else index
        chosen = torch.arange(self.num_bases, device="cpu")[index].tolist()
        return MappedBasis([self.maps[i] for i in chosen], self.amplitudes[chosen], self.origin)


def _finite(kernel: Kernel) -> bool:
    return _finite(kernel.kernel) if isinstance(kernel, OnDims) else kernel.finite


class ProductFeatures(Value):
    """Products of all features of kernels that have few, `few`, and of Fourier features `waves`, where there are any.

    It is a map of points `[n, d]`, of which the waves have those about `origin`.
    """

    shapes = "origin: d"

    def __init__(self, few: Sequence[FeatureMap], waves: Sequence[Basis], origin: Tensor) -> None:
        super().__init__(origin=origin, few=Parts(map(as_features, few)), waves=Parts(waves))

    def forward(self, x: Tensor) -> Tensor:
        features = torch.ones_like(x[:, :1])
        about = (x - self.origin)[None]
        waves = [basis.values(about)[0] * basis.scales() for basis in self.waves]
        for factor in [*(phi(x) for phi in self.few), *([torch.cat(waves, dim=-1)] if waves else [])]:
            features = (features[:, :, None] * factor[:, None]).flatten(1)
        return features  # [n, c]


def _of_product(term: Term, count: int, num_bases: int, origin: Tensor, generator: torch.Generator) -> list[FeatureMap]:
    """The maps of a product of kernels that have few features, and of a stationary one, for each of several bases."""
    few = [kernel.features(count, generator) for kernel in term.own]
    alone = ProductFeatures(few, [], origin)
    if not term.stationary:
        return [alone] * num_bases
    rank = alone(origin[None]).shape[1]
    one = replace(term, variance=torch.ones_like(term.variance))
    each = max(_FEWEST, count // rank)
    waves = fourier(one, len(origin), each + each % 2, kind="sobol", num_bases=num_bases, generator=generator)
    return [ProductFeatures(few, [basis.select(slice(g, g + 1)) for basis in waves], origin) for g in range(num_bases)]


def own_features(
    term: Term,
    count: int,
    num_bases: int,
    origin: Tensor,
    generator: torch.Generator,
    reference: Reference | None = None,
    bound: float = Leverage.far,
    settings: Leverage = Leverage(),  # noqa: B008
) -> tuple[Basis, bool]:
    """The features that a term's own kernel gives, `num_bases` times over, and whether they are chosen by leverage.

    That takes a map with a method `chosen(index)`, the map to some of its features: from several times as many those
    that matter at the reference points are chosen, within `bound`.
    """
    (kernel, *more), variance = term.own, term.variance.cpu()
    if more or term.stationary or term.forms:
        if term.forms or not all(map(_finite, term.own)):
            raise TypeError(
                f"{type(kernel).__name__}: expected a kernel with features of its own, alone, scaled, or in a sum; "
                "got a product with another kernel, whose features are not known"
            )
        maps, reference = _of_product(term, count, num_bases, origin, generator), None
    else:
        maps = [kernel.features(count, generator) for _ in range(num_bases)]
    with torch.no_grad():
        Phi = maps[0](origin[None])
    if not isinstance(Phi, Tensor) or Phi.ndim != 2 or len(Phi) != 1:
        got = list(Phi.shape) if isinstance(Phi, Tensor) else type(Phi).__name__
        raise ValueError(
            f"{type(kernel).__name__}.features: expected a map from points [n, d] to features [n, c], got {got} for a "
            f"point [1, {len(origin)}]"
        )
    amplitudes = variance.sqrt().expand(num_bases, Phi.shape[1])
    if reference is None or not hasattr(maps[0], "chosen") or Phi.shape[1] < count:
        return MappedBasis(maps, amplitudes, origin), False
    factors = []
    for i in range(num_bases):
        pool: Any = kernel.features(settings.candidates * count, generator)
        with torch.no_grad():
            values = pool(reference.points.to(origin))
        found = resampled(values, reference, count, bound, generator)
        if found is None:
            return MappedBasis(maps, amplitudes, origin), False
        maps[i] = pool.chosen(found[0])
        factors.append(found[1])
    return MappedBasis(maps, variance.sqrt() * torch.stack(factors), origin), True
