"""Bases of features that a kernel defines itself, as a map from points to features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..core.arena import weigh
from ..core.jacobian import jacobian
from ..core.own_function import OwnFunction, as_features
from ..core.value import Parts, Value
from ..evaluate.bases import Basis, Cosines
from ..kernels import Kernel, OnDims
from ..kernels.base import Term
from ..kernels.own import as_columns
from .explicit import as_cosines
from .features import fourier, rand
from .leverage import Leverage, resampled
from .residuals import Reference

FeatureMap = Callable[[Tensor], Tensor]
# The smallest number of Fourier features that multiply each feature of a finite kernel.
_FEWEST = 64


class MappedBasis(Basis):
    """A basis sqrt(variance) phi_i(x) with a map phi from points `[n, d]` to features `[n, c]`, one for each version.

    Gradients are by automatic differentiation. The basis can be saved if the maps are values.
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
    def width(self) -> int:
        return self.size  # a map makes all of its features at once

    @property
    def num_bases(self) -> int:
        return len(self.maps)

    def scales(self) -> Tensor:
        return self.amplitudes

    def values(self, x: Tensor) -> Tensor:
        # features are functions of points relative to the origin, but the map needs the points themselves
        x = x + self.origin
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


class DrawnFeatures(Value):
    """The map that a kernel's `features` draws with random numbers of a seed. It is saved as the kernel and the seed.

    When a file is loaded, the code of the kernel's class draws the map again. Its values at the point `probe` must then
    be those that were saved.
    """

    fields = ("count", "seed")
    shapes = "probe: d, values: c"

    def __init__(self, kernel: Kernel, count: int, seed: int, probe: Tensor, columns: Tensor | None = None) -> None:
        super().__init__(kernel=kernel, probe=probe, values=None, columns=columns)
        self.count, self.seed = count, seed
        self.map: tuple[FeatureMap, ...] = (self._drawn(),)
        with torch.no_grad():
            self._buffers["values"] = as_columns(kernel, self.map[0], probe[None])[0]

    def _drawn(self) -> FeatureMap:
        whole = self.kernel.features(self.count, torch.Generator().manual_seed(self.seed))
        return whole if self.columns is None else getattr(whole, "chosen")(self.columns)  # noqa: B009

    def check(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise ValueError("DrawnFeatures: expected a kernel")

    def restore(self) -> None:
        self.map = (self._drawn(),)
        with torch.no_grad():
            again = self.map[0](self.probe[None])[0].to(self.values)
        if again.shape != self.values.shape or not torch.allclose(again, self.values, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"{type(self.kernel).__name__}.features: expected the features that were saved; its code, or the "
                "random numbers of torch, have changed since"
            )

    @property
    def whole(self) -> FeatureMap:
        """The map itself."""
        return self.map[0]

    def chosen(self, columns: Tensor) -> DrawnFeatures:
        """Select some of the features, if the map has a method of this name."""
        return DrawnFeatures(self.kernel, self.count, self.seed, self.probe, columns)

    def forward(self, x: Tensor) -> Tensor:
        (phi,) = self.map
        try:
            return (phi.to(x.device, x.dtype) if isinstance(phi, Value) else phi)(x).to(x.dtype)
        except RuntimeError as error:
            if (x.device, x.dtype) == (self.probe.device, torch.float64):
                raise
            raise TypeError(
                f"{type(self.kernel).__name__}.features: expected a map of points in {x.dtype} on {x.device} too, got "
                f"an error ({error}); move its tensors to the points: theta.to(x)"
            ) from error


def drawn_map(kernel: Kernel, count: int, generator: torch.Generator, probe: Tensor) -> Value:
    """Draw a map of a kernel's own features. It can be saved if the kernel can.

    Args:
        probe: a point `[d]` at which the map is tried.
    """
    seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
    phi = kernel.features(count, torch.Generator().manual_seed(seed))
    if isinstance(phi, Value) and not any(isinstance(part, OwnFunction) for part in phi.modules()):
        with torch.no_grad():
            as_columns(kernel, phi, probe[None])
        return phi
    return DrawnFeatures(kernel, count, seed, probe)


class FormFeatures(Value):
    """Features of <x, x'> = sum_i c_i x_i x'_i + c_d: (x, 1) times the roots of the nonzero coefficients."""

    fields = ("dims",)

    def __init__(self, coefficients: Tensor) -> None:
        dims = coefficients.detach().nonzero()[:, 0].tolist()
        super().__init__(roots=coefficients[dims].sqrt())
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1), value=1.0)[:, self.dims] * self.roots


class ProductFeatures(Value):
    """All products of the features of some maps, `few`, which have few features, and of Fourier features `waves`.

    The map takes points `[n, d]`. The waves take them about `origin`.
    """

    shapes = "origin: d"

    def __init__(self, few: Sequence[Value], waves: Sequence[Basis], origin: Tensor) -> None:
        super().__init__(origin=origin, few=Parts(few), waves=Parts(waves))

    def forward(self, x: Tensor) -> Tensor:
        features = torch.ones_like(x[:, :1])
        about = (x - self.origin)[None]
        waves = [basis.values(about)[0] * basis.scales() for basis in self.waves]
        for factor in [*(phi(x) for phi in self.few), *([torch.cat(waves, dim=-1)] if waves else [])]:
            features = (features[:, :, None] * factor[:, None]).flatten(1)
        return features  # [n, c]


class SampledProducts(Value):
    """Random products of features: column i is weight_i prod_j phi_j(x)[columns_ji] times the i-th of some cosines.

    The columns are drawn independently for each factor, with probabilities p_j, and the weights are prod_j p_j^-1/2.
    Then the sum of the products at x and x' has the mean prod_j phi_j(x) . phi_j(x'), for all maps.
    """

    shapes = "columns: j c, weights: c, origin: d"

    def __init__(
        self, maps: Sequence[Value], columns: Tensor, weights: Tensor, origin: Tensor, waves: Cosines | None
    ) -> None:
        super().__init__(columns=columns, weights=weights, origin=origin, maps=Parts(maps), waves=waves)

    def chosen(self, index: Tensor) -> SampledProducts:
        """Select some of the products."""
        waves = self.waves and self.waves.mapped(lambda b: b[:, index])
        return SampledProducts(list(self.maps), self.columns[:, index], self.weights[index], self.origin, waves)

    def forward(self, x: Tensor) -> Tensor:
        features = self.weights.expand(x.shape[0], -1)
        if self.waves is not None:
            features = features * self.waves.values((x - self.origin)[None])[0] * self.waves.scales()
        for phi, columns in zip(self.maps, self.columns, strict=True):
            features = features * phi(x)[:, columns]
        return features  # [n, c]


def _finite(kernel: Kernel) -> bool:
    return _finite(kernel.kernel) if isinstance(kernel, OnDims) else kernel.finite


def _sampled(sizes: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` columns in random order, half in proportion to their mean squares `[c]` and half evenly.

    Returns the columns and their probabilities, `[count]` each.
    """
    sizes = sizes.nan_to_num(0.0).clamp_min(1e-300)
    p = 0.5 * sizes / sizes.sum() + 0.5 / len(sizes)
    u = (torch.arange(count, dtype=torch.float64, device="cpu") + rand((1,), generator).cpu()) / count
    columns = torch.searchsorted(p.cumsum(0), u).clamp_max(len(p) - 1)
    columns = columns[torch.randperm(count, generator=generator, device=generator.device).cpu()]
    return columns, p[columns]


def _of_product(
    term: Term, count: int, num_bases: int, points: Tensor, origin: Tensor, generator: torch.Generator
) -> list[Value]:
    """Make the maps of a product of kernels with features of their own, linear forms and a stationary kernel.

    If the kernels and forms have few features, all of their products are taken, each times Fourier features of its own.
    Otherwise `count` products are drawn at random, each times a cosine or a sine of one frequency.
    """
    one = replace(term, variance=torch.ones_like(term.variance))
    forms: list[Value] = [FormFeatures(c.cpu()) for c in term.forms]
    finite, found = all(map(_finite, term.own)), []
    drawn: list[Value] = []
    for g in range(num_bases):
        if g == 0 or not finite:
            drawn = [*(drawn_map(kernel, count, generator, points[0]) for kernel in term.own), *forms]
        with torch.no_grad():
            sizes = [phi(points).square().mean(0).double().cpu() for phi in drawn]  # [c] of each
        rank = math.prod(map(len, sizes))
        if (finite and not term.forms) or rank * (16 if term.stationary else 1) <= count:
            each = max(_FEWEST, count // rank)
            waves = _waves(one, len(origin), each + each % 2, generator) if term.stationary else []
            found.append(ProductFeatures(drawn, waves, origin))
            continue
        pairs = -(-count // 2) if term.stationary else count  # a cosine and its sine have the same product
        sampled = [_sampled(size, pairs, generator) for size in sizes]
        columns = torch.stack([columns for columns, _ in sampled])  # [j, pairs]
        weights = torch.stack([p for _, p in sampled]).prod(0).rsqrt()
        if not term.stationary:
            found.append(SampledProducts(drawn, columns, weights / math.sqrt(pairs), origin, None))
            continue
        cosines = as_cosines(_waves(one, len(origin), 2 * pairs, generator))
        columns, weights = columns.repeat_interleave(2, dim=1), weights.repeat_interleave(2)
        found.append(SampledProducts(drawn, columns, weights, origin, cosines))
    return found


def _waves(term: Term, input_dim: int, count: int, generator: torch.Generator) -> list[Basis]:
    """Make Fourier features of a term's stationary part, for one basis."""
    return fourier(term, input_dim, count, kind="sobol", num_bases=1, generator=generator)


def own_features(
    term: Term,
    count: int,
    num_bases: int,
    origin: Tensor,
    generator: torch.Generator,
    data: Tensor | None = None,
    reference: Reference | None = None,
    bound: float = Leverage.far,
    candidates: int = 32,
) -> tuple[Basis, bool]:
    """Make the features that a term's own kernels define, for `num_bases` bases; say whether leverage chose them.

    Features are chosen by leverage if the map has a method `chosen(index)`, which returns the map to some of its
    features. They are then chosen from a pool (`leverage.resampled`). Otherwise the features are plain.

    Args:
        data: points `[n, d]`, at which the features of a product are weighed.
        reference: the reference points of leverage; None for plain features.
        bound: bound on the squared error far from the data, relative to plain features.
        candidates: the number of features in the pool for each that is chosen.
    """
    points = origin[None] if data is None or not len(data) else some_of(data)
    variance = term.variance.cpu()
    first, *more = term.own
    product = bool(more or term.stationary or term.forms)

    def drawn(size: int, how_many: int) -> list[Value]:
        if product:
            return _of_product(term, size, how_many, points, origin, generator)
        return [drawn_map(first, size, generator, points[0]) for _ in range(how_many)]

    maps = drawn(count, num_bases)
    widths = {phi(points[:1]).shape[1] for phi in maps}
    if len(widths) > 1:
        raise ValueError(
            f"{type(first).__name__}.features: expected maps of equally many features, got {sorted(widths)} of them"
        )
    width = widths.pop()
    amplitudes = variance.sqrt().expand(num_bases, width)
    if reference is None or not _has_choice(maps[0]) or width < count:
        return MappedBasis(maps, amplitudes, origin), False
    factors = []
    for i in range(num_bases):
        (pool,) = drawn(candidates * count, 1)
        with torch.no_grad():
            values = reference.sites.to(origin).features(lambda sites, pool=pool: pool(sites.points))
        found = resampled(values, reference, count, bound, generator) if _has_choice(pool) else None
        if found is None:
            return MappedBasis(maps, amplitudes, origin), False
        maps[i] = getattr(pool, "chosen")(found[0])  # noqa: B009
        factors.append(found[1])
    return MappedBasis(maps, variance.sqrt() * torch.stack(factors), origin), True


def _has_choice(phi: Value) -> bool:
    return hasattr(phi.whole if isinstance(phi, DrawnFeatures) else phi, "chosen")


def some_of(points: Tensor, most: int = 32) -> Tensor:
    """Select points `[r, d]` evenly among the rows of `[n, d]`, in float64 on the CPU."""
    index = torch.linspace(0, len(points) - 1, min(most, len(points)), device="cpu").long()
    return points.detach()[index.to(points.device)].double().cpu()
