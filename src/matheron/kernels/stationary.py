"""Stationary kernels that are not radial, with their spectral measures: Periodic, Cosine, Categorical, SpectralMixture.

They have k(x, x) = 1, except SpectralMixture, whose weights are variances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_count, as_tensor, per_dimension, positive
from ..core.modes import transformed
from .base import Kernel, SpectralMeasure, Stationary, Term, centred, squared_distance
from .composed_measures import Atom, HarmonicMeasure
from .radial import Gaussian

__all__ = ["Categorical", "Cosine", "Periodic", "SpectralMixture"]


class Periodic(Stationary):
    """The periodic kernel k = exp(-2 sum_i sin^2(pi (x_i - x'_i) / period_i) / lengthscale_i^2).

    >>> from matheron import kernels
    >>> kernels.Periodic(lengthscale=1.0, period=2.0)([[0.0]], [[4.0]])
    tensor([[1.]], dtype=torch.float64)
    """

    units: ClassVar = {"period": "x"}

    def __init__(self, lengthscale: ArrayLike = 1.0, period: ArrayLike = 1.0) -> None:
        super().__init__(lengthscale=positive(lengthscale, "lengthscale"), period=positive(period, "period"))

    def _parameters_in(self, input_dim: int) -> tuple[Tensor, Tensor]:
        lengthscale = per_dimension(self.lengthscale, input_dim, "lengthscale")
        return lengthscale, per_dimension(self.period, input_dim, "period")

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        lengthscale, period = self._parameters_in(x.shape[-1])
        exponent = x.new_zeros(())
        for i, (l_i, p_i) in enumerate(zip(lengthscale, period, strict=True)):
            turn = (x[..., :, None, i] - z[..., None, :, i]) * (math.pi / p_i)
            exponent = exponent - 2 * (turn.sin() / l_i).square()
        return torch.exp(exponent)

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        lengthscale, period = self._parameters_in(x.shape[-1])
        K = self.forward(x, z)
        dK = [
            K
            * torch.sin((x[..., :, None, i] - z[..., None, :, i]) * (2 * math.pi / p_i))
            * (-2 * math.pi / p_i / l_i**2)
            for i, (l_i, p_i) in enumerate(zip(lengthscale, period, strict=True))
        ]
        return K, torch.stack(dK)

    def axis_factors(self, input_dim: int) -> list[list[Kernel]]:
        return [[Periodic(l_i, p_i)] for l_i, p_i in zip(*self._parameters_in(input_dim), strict=True)]

    def measure(self, input_dim: int) -> SpectralMeasure:
        lengthscale, period = self._parameters_in(input_dim)
        return HarmonicMeasure(2 * math.pi / period, lengthscale)


class Cosine(Stationary):
    """The cosine kernel k = cos(2 pi (x - x') / period) in one dimension; use `.on(i)` for coordinate i of several.

    >>> from matheron import kernels
    >>> kernels.Cosine(period=4.0)([[0.0]], [[4.0]])
    tensor([[1.]], dtype=torch.float64)
    """

    units: ClassVar = {"period": "x"}

    def __init__(self, period: ArrayLike = 1.0) -> None:
        super().__init__(period=positive(period, "period", max_ndim=0))

    def _phase(self, x: Tensor, z: Tensor) -> Tensor:
        if x.shape[-1] != 1:
            raise ValueError(
                f"Cosine: expected points in one dimension, got {x.shape[-1]}, where a cosine of the distance is not "
                "positive definite; use Cosine(...).on(i), and products of these"
            )
        return (x - z.mT) * (2 * math.pi / self.period)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self._phase(x, z).cos()

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        phase = self._phase(x, z)
        return phase.cos(), (phase.sin() * (-2 * math.pi / self.period))[None]

    def measure(self, input_dim: int) -> SpectralMeasure:
        self._phase(self.period.new_zeros(1, input_dim), self.period.new_zeros(1, input_dim))
        return Atom(2 * math.pi / self.period[None])


class Categorical(Stationary):
    """The kernel of categories, k = prod_i (a_i + (1 - a_i) D(x_i - x'_i)) with a_i = exp(-1 / lengthscale_i).

    Categories are whole numbers, for which k = exp(-sum_i [x_i != x'_i] / lengthscale_i): any two categories are
    equally far apart. D is Dirichlet's kernel, D(r) = sin(pi r) / (m sin(pi r / m)), which is 1 at 0 and 0 at all
    other whole numbers below m. It makes k smooth, with m frequencies per coordinate, which features represent exactly.

    Args:
        lengthscale: how similar different categories are, one number for all coordinates or one for each.
        categories: the number of categories of a coordinate; the numbers of any two must differ by less. m is the
            smallest odd number that is not below it.

    >>> from matheron import kernels
    >>> kernels.Categorical(lengthscale=1.0, categories=3)([[0.0], [1.0], [2.0]], [[1.0]])
    tensor([[0.3679],
            [1.0000],
            [0.3679]], dtype=torch.float64)
    """

    fields = ("categories",)
    whole: ClassVar = True

    def __init__(self, lengthscale: ArrayLike = 1.0, categories: int = 8) -> None:
        super().__init__(lengthscale=positive(lengthscale, "lengthscale"))
        self.categories = as_count(categories, "categories")

    @property
    def _odd(self) -> int:
        return self.categories + 1 - self.categories % 2

    def _similarities(self, input_dim: int) -> Tensor:
        return torch.exp(-1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))  # [d]

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        K = x.new_ones(())
        for i, a in enumerate(self._similarities(x.shape[-1])):
            K = K * (a + (1 - a) * self._dirichlet(self._difference(x, z, i)))
        return K

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, dK = x.new_ones(()), []
        for i, a in enumerate(self._similarities(x.shape[-1])):
            r = self._difference(x, z, i)
            factor, slope = a + (1 - a) * self._dirichlet(r), (1 - a) * self._slope(r)
            K, dK = K * factor, [*(d * factor for d in dK), K * slope]
        return K, torch.stack(dK)

    def _difference(self, x: Tensor, z: Tensor, i: int) -> Tensor:
        r = x[..., :, None, i] - z[..., None, :, i]
        if r.device.type == "cpu" and r.numel() and not transformed():
            far = float(r.detach().abs().max())
            # Only whole numbers are checked: the lattice evaluates k between them, on a wider box.
            if far > self._odd - 0.5 and bool((r.detach() == r.detach().round()).all()):
                raise ValueError(
                    f"Categorical(categories={self.categories}): expected categories that differ by less than that, "
                    f"got a difference of {far:g}; number them 0, 1, ..., or give a larger number of categories"
                )
        return r

    def _dirichlet(self, r: Tensor) -> Tensor:
        m = self._odd
        below = torch.sin(r * (math.pi / m))
        flat = below.abs() < 1e-6  # near 0, both sines vanish and the Taylor series is used
        series = 1 + r.square() * (math.pi**2 * (1 / m**2 - 1) / 6)
        return torch.where(flat, series, torch.sin(math.pi * r) / (m * torch.where(flat, 1.0, below)))

    def _slope(self, r: Tensor) -> Tensor:
        """The derivative dD/dr = (pi cos(pi r) - D pi cos(pi r / m)) / (m sin(pi r / m))."""
        m = self._odd
        below = torch.sin(r * (math.pi / m))
        flat = below.abs() < 1e-4
        above = torch.cos(math.pi * r) - self._dirichlet(r) * torch.cos(r * (math.pi / m))
        series = r * (math.pi**2 * (1 / m**2 - 1) / 3)
        return torch.where(flat, series, math.pi * above / (m * torch.where(flat, 1.0, below)))

    def axis_factors(self, input_dim: int) -> list[list[Kernel]]:
        lengthscale = per_dimension(self.lengthscale, input_dim, "lengthscale")
        return [[Categorical(l_i, self.categories)] for l_i in lengthscale]

    def measure(self, input_dim: int) -> SpectralMeasure:
        return _Choices(self._similarities(input_dim), self._odd)


class _Choices(HarmonicMeasure):
    """The spectral measure: in each dimension, mass (1 - a) / m on each of m multiples of 2 pi / m, and a on zero."""

    def __init__(self, similarity: Tensor, m: int) -> None:
        super().__init__(torch.full_like(similarity, 2 * math.pi / m).detach(), similarity)
        self.m = m

    def _masses(self, i: int) -> Tensor:
        a, zero = self.lengthscale[i], torch.arange(self.m, device=self.lengthscale.device) == self.m // 2
        return (1 - a) / self.m + torch.where(zero, a, torch.zeros_like(a))


class SpectralMixture(Kernel):
    """The spectral mixture kernel k = sum_q w_q exp(-2 pi^2 sum_j s_qj^2 r_j^2) cos(2 pi mu_q . r), r = x - x'.

    Weights w are `[q]`, means mu and scales s are `[q, d]`; the spectral density is a mixture of Gaussians (Wilson and
    Adams, 2013).

    >>> from matheron import kernels
    >>> kernels.SpectralMixture(weights=[2.0], means=[[1.0]], scales=[[0.1]])([[0.0]], [[0.0]])
    tensor([[2.]], dtype=torch.float64)
    """

    units: ClassVar = {"weights": "y^2", "means": "1/x", "scales": "1/x"}
    signed = ("means",)

    def __init__(self, weights: ArrayLike, means: ArrayLike, scales: ArrayLike) -> None:
        super().__init__(
            weights=positive(weights, "weights", zero=True),
            means=as_tensor(means, "means").double().clone(),
            scales=positive(scales, "scales", zero=True, max_ndim=2),
        )
        shapes = [list(b.shape) for b in (self.weights, self.means, self.scales)]
        if self.weights.ndim != 1 or self.means.ndim != 2 or shapes[1] != shapes[2] or shapes[0] != shapes[1][:1]:
            raise ValueError(f"expected weights [q], means [q, d] and scales [q, d], got {shapes}")

    def _check(self, input_dim: int) -> None:
        if self.means.shape[1] != input_dim:
            raise ValueError(
                f"SpectralMixture: expected points in {self.means.shape[1]} dimensions, those of its means, got "
                f"{input_dim}"
            )

    def _components(self, x: Tensor, z: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield the mean, the scales, the Gaussian factor and the cosine's phase of each component."""
        for w, mu, s in zip(self.weights, self.means, self.scales, strict=True):
            phase = (2 * math.pi) * ((x @ mu)[..., :, None] - (z @ mu)[..., None, :])
            yield mu, s, w * torch.exp(-2 * math.pi**2 * squared_distance(x * s, z * s)), phase

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        self._check(x.shape[-1])
        return sum((g * phase.cos() for _, _, g, phase in self._components(*centred(x, z))), start=x.new_zeros(()))

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        self._check(x.shape[-1])
        x, z = centred(x, z)
        difference = torch.stack([x[..., :, None, i] - z[..., None, :, i] for i in range(x.shape[-1])])
        K, dK = x.new_zeros(()), torch.zeros_like(difference)
        for mu, s, envelope, phase in self._components(x, z):
            K = K + envelope * phase.cos()
            for i in range(x.shape[-1]):
                dK[i] -= (4 * math.pi**2 * s[i] ** 2) * difference[i] * envelope * phase.cos()
                dK[i] -= (2 * math.pi * mu[i]) * envelope * phase.sin()
        return K, dK

    def diag(self, x: Tensor) -> Tensor:
        return self.weights.sum().to(x).expand(x.shape[:-1])

    def terms(self, input_dim: int) -> list[Term]:
        self._check(input_dim)
        one = torch.ones(1, dtype=self.weights.dtype, device=self.weights.device)
        parts = [SpectralMixture(one, mu[None], s[None]) for mu, s in zip(self.means, self.scales, strict=True)]
        return [Term(w, stationary=(part,)) for w, part in zip(self.weights, parts, strict=True)]

    def measure(self, input_dim: int) -> SpectralMeasure:
        self._check(input_dim)
        if len(self.weights) != 1:
            return super().measure(input_dim)
        return Gaussian(2 * math.pi * self.scales[0], shift=2 * math.pi * self.means[0])
