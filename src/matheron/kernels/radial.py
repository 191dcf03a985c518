"""Radial kernels, each beside its spectral measure: RBF, Matern, RationalQuadratic."""

from __future__ import annotations

import math
from abc import abstractmethod
from numbers import Real
from typing import ClassVar

import numpy as np
import scipy  # whose special functions it imports when they are first used
import torch
from torch import Tensor

from ..core.arena import computed, weigh, weigh_coordinates
from ..core.checks import ArrayLike, per_dimension, positive
from ..core.modes import transformed
from .base import Kernel, RadialPart, Stationary, centred, squared_distance
from .spectral import GammaScaled, Gaussian, SpectralMeasure, Student

__all__ = ["RBF", "Matern", "Radial", "RationalQuadratic"]


class Radial(Stationary):
    """k(x, x') = g(r^2), r^2 = sum_i (x_i - x'_i)^2 / lengthscale_i^2: the elliptical kernels."""

    units: ClassVar = {"lengthscale": "x"}

    def __init__(self, lengthscale: ArrayLike = 1.0) -> None:
        super().__init__(lengthscale=positive(lengthscale, "lengthscale"))

    @abstractmethod
    def radial(self, r2: Tensor) -> Tensor:
        """g(r^2). It may use the memory of `r2` where no gradient is needed."""

    @abstractmethod
    def radial_derivative(self, r2: Tensor) -> Tensor:
        """g'(r^2), zero where it is infinite (coincident points of a rough kernel)."""

    def radial_parts(self, input_dim: int) -> list[RadialPart]:
        return [RadialPart(self, list(range(input_dim)))]

    def _scaled(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both in lengthscales, about one of z's points."""
        lengthscale = per_dimension(self.lengthscale, x.shape[-1], "lengthscale")
        x, z = centred(x, z)
        scaled = x / lengthscale
        return scaled, scaled if z is x else z / lengthscale, lengthscale

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x, z, _ = self._scaled(x, z)
        return self.radial(squared_distance(x, z))

    def radial_with_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """g(r^2) and g'(r^2); it may use the memory of `r2`."""
        slope = self.radial_derivative(r2)
        return self.radial(r2), slope

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        x, z, lengthscale = self._scaled(x, z)
        K, slope = self.radial_with_slope(squared_distance(x, z))  # [..., n, m]
        slope = 2 * slope
        dK = [(x[..., :, None, i] - z[..., None, :, i]).mul_(slope).div_(l_i) for i, l_i in enumerate(lengthscale)]
        return K, torch.stack(dK)

    def weighted_with_gradient(self, x: Tensor, z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        x, z, lengthscale = self._scaled(x, z)
        K, slope = self.radial_with_slope(squared_distance(x, z))  # [B, n, m]
        # sum_j W_j g'_j (x - z_j) is x sum_j W_j g'_j - sum_j W_j g'_j z_j: no difference for every pair and coordinate
        pull = x[:, None] * weigh(slope, W)[..., None] - weigh_coordinates(slope, W, z[None])  # [B, r, n, d]
        return weigh(K, W), pull.mul_(2 / lengthscale)


class RBF(Radial):
    """k = exp(-r^2 / 2).

    >>> from matheron import kernels
    >>> kernels.RBF(lengthscale=[0.5, 2.0])([[0.0, 0.0]], [[0.5, 2.0]])
    tensor([[0.3679]], dtype=torch.float64)
    """

    def radial(self, r2: Tensor) -> Tensor:
        return (-0.5 * r2).exp() if r2.requires_grad else r2.mul_(-0.5).exp_()

    def radial_derivative(self, r2: Tensor) -> Tensor:
        return -0.5 * (-0.5 * r2).exp()

    def axis_factors(self, input_dim: int) -> list[list[Kernel]]:
        return [[RBF(l_i)] for l_i in per_dimension(self.lengthscale, input_dim, "lengthscale")]

    def measure(self, input_dim: int) -> SpectralMeasure:
        return Gaussian(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))


class _BesselPower(torch.autograd.Function):
    """F_a(q) = c s^a K_a(s) with s = sqrt(q), for any real a. It is closed under differentiation: F_a' = -F_{a-1} / 2.

    The constant c is inside because s^a K_a(s) alone overflows: float32 from a = 30.

    At q = 0, where F_a is infinite for a <= 0, the value is 0: there it only ever multiplies x - x' = 0.
    """

    @staticmethod
    def forward(q: Tensor, a: float, c: float) -> Tensor:
        if a in (-0.5, 0.5, 1.5, 2.5):
            return _half_integer(q.clone(), a).mul_((3 if a == 2.5 else 1) * c * math.sqrt(math.pi / 2))
        s64 = q.sqrt().double().cpu().numpy()
        at_zero = 2 ** (a - 1) * scipy.special.gamma(a) if a > 0 else 0.0
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            value = scipy.special.kve(a, s64) * s64**a * np.exp(-s64)
        return torch.from_numpy(c * np.where(np.isfinite(value), value, at_zero)).to(q)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, ctx.a, ctx.c = inputs
        ctx.save_for_backward(q)
        ctx.save_for_forward(q)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (q,) = ctx.saved_tensors
        return -0.5 * grad * _BesselPower.apply(q, ctx.a - 1, ctx.c), None, None

    @staticmethod
    def jvp(ctx, dq: Tensor, _a, _c):
        (q,) = ctx.saved_tensors
        return -0.5 * dq * _BesselPower.apply(q, ctx.a - 1, ctx.c)

    @staticmethod
    def vmap(info, in_dims, q: Tensor, a: float, c: float):
        return _BesselPower.apply(q, a, c), in_dims[0]  # number by number: a batch is more of them


def _half_integer(q: Tensor, a: float) -> Tensor:
    """exp(-s) times 1 / s, 1, 1 + s or 1 + s + q / 3, for a = -1/2 to 5/2; it uses the memory of q."""
    minus_s = q.sqrt_().neg_()
    decay = computed(torch.exp, q.shape, minus_s)
    if a == -0.5:
        return torch.where(minus_s < 0, decay.div_(minus_s).neg_(), 0.0)
    if a == 0.5:
        return decay
    polynomial = minus_s if a == 1.5 else minus_s.addcmul_(minus_s, minus_s, value=-1 / 3)  # less one, negative
    return decay.addcmul_(polynomial, decay, value=-1)


class Matern(Radial):
    """k = 2^(1 - nu) / Gamma(nu) s^nu K_nu(s), s = sqrt(2 nu) r, for 0 < nu <= 50; closed forms for 1/2, 3/2, 5/2.

    Beyond 50 the Bessel function overflows where k is not yet 1, and RBF, the limit, is less than 0.005 away.

    >>> from matheron import kernels
    >>> kernels.Matern(nu=0.5)([[0.0]], [[1.0]])
    tensor([[0.3679]], dtype=torch.float64)
    """

    fields = ("nu",)

    def __init__(self, nu: float = 2.5, lengthscale: ArrayLike = 1.0) -> None:
        super().__init__(lengthscale)
        if isinstance(nu, bool) or not isinstance(nu, Real) or not 0 < nu <= 50:
            raise ValueError(f"nu: expected a positive number up to 50, got {nu!r}; for the limit of large nu use RBF")
        self.nu = float(nu)

    @property
    def _scale(self) -> float:
        return 2 ** (1 - self.nu) / scipy.special.gamma(self.nu)

    def radial(self, r2: Tensor) -> Tensor:
        if r2.requires_grad or transformed() or self.nu not in (0.5, 1.5, 2.5):
            return _BesselPower.apply(2 * self.nu * r2, self.nu, self._scale)
        return _half_integer(r2.mul_(2 * self.nu), self.nu)

    def radial_derivative(self, r2: Tensor) -> Tensor:
        return _BesselPower.apply(2 * self.nu * r2, self.nu - 1, -self.nu * self._scale)

    def radial_with_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """Roots and exponentials, most of the cost, are taken once for both."""
        if self.nu not in (1.5, 2.5):
            return super().radial_with_slope(r2)
        q = r2.mul_(2 * self.nu)
        s = computed(torch.sqrt, q.shape, q)
        decay = computed(torch.neg, q.shape, s).exp_()
        slope = s.add_(1).mul_(decay)
        if self.nu == 1.5:  # (1 + s) e^-s, and -3/2 e^-s
            return slope, decay.mul_(-1.5)
        return torch.addcmul(slope, q, decay, value=1 / 3, out=q), slope.mul_(-5 / 6)  # (1 + s + q/3) e^-s

    def measure(self, input_dim: int) -> SpectralMeasure:
        return Student(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"), self.nu)


class RationalQuadratic(Radial):
    """k = (1 + r^2 / (2 alpha))^(-alpha): RBFs of Gamma(alpha, alpha) precision.

    >>> from matheron import kernels
    >>> kernels.RationalQuadratic(alpha=1.0)([[0.0]], [[1.0]])
    tensor([[0.6667]], dtype=torch.float64)
    """

    def __init__(self, alpha: ArrayLike = 1.0, lengthscale: ArrayLike = 1.0) -> None:
        super().__init__(lengthscale)
        self.register_buffer("alpha", positive(alpha, "alpha", max_ndim=0))

    def radial(self, r2: Tensor) -> Tensor:
        return (1 + r2 / (2 * self.alpha)) ** -self.alpha

    def radial_derivative(self, r2: Tensor) -> Tensor:
        return -0.5 * (1 + r2 / (2 * self.alpha)) ** (-self.alpha - 1)

    def measure(self, input_dim: int) -> SpectralMeasure:
        return GammaScaled(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"), self.alpha)
