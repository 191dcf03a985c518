"""The kernel RationalQuadratic with its spectral measure, and the Bessel function that its density needs."""

from __future__ import annotations

import math

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.checks import ArrayLike, per_dimension, positive
from ..core.modes import in_graph, transformed
from .base import SpectralMeasure
from .radial import Elliptical, Radial, gamma_quantile

__all__ = ["RationalQuadratic"]


class RationalQuadratic(Radial):
    """The rational quadratic kernel k = (1 + r^2 / (2 alpha))^(-alpha), a mixture of RBFs of different lengthscales.

    Their squared inverse lengthscales have a Gamma(alpha, alpha) distribution. r is the distance in lengthscales.

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

    def profile(self, r2: Tensor, order: int) -> Tensor:
        falling = math.prod((-0.5 / self.alpha) * (self.alpha + i) for i in range(order)) if order else 1.0
        return falling * (1 + r2 / (2 * self.alpha)) ** (-self.alpha - order)

    def smoothness(self, input_dim: int) -> list[float]:
        return [math.inf] * input_dim

    def measure(self, input_dim: int) -> SpectralMeasure:
        return GammaScaled(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"), self.alpha)


class GammaScaled(Elliptical):
    """The spectral measure of RationalQuadratic: a normal vector times the root of a Gamma(alpha, alpha) variable."""

    num_mixing_uniforms = 1

    def __init__(self, scale: Tensor, alpha: Tensor) -> None:
        super().__init__(scale)
        self.alpha = alpha

    def mixing(self, U: Tensor) -> Tensor:
        return gamma_quantile(U, float(self.alpha.detach())).sqrt()

    def importance(self, U: Tensor) -> Tensor | None:
        if not in_graph(self.alpha):
            return None
        precision = gamma_quantile(U[..., self.input_dim], float(self.alpha.detach()))
        alpha = self.alpha
        log_density = alpha * alpha.log() - torch.lgamma(alpha) + (alpha - 1) * precision.log() - alpha * precision
        return torch.exp(log_density - log_density.detach())

    def log_radial(self, r2: Tensor) -> Tensor:
        alpha, d = self.alpha, self.input_dim
        r2 = r2.clamp_min(1e-100)  # for a small alpha, the density is infinite at zero
        order = alpha - d / 2
        constant = alpha * alpha.log() - torch.lgamma(alpha) + math.log(2) - d / 2 * math.log(2 * math.pi)
        return constant + order / 2 * (r2 / (2 * alpha)).log() + log_bessel_k(order, (2 * alpha * r2).sqrt())


def log_bessel_k(order: Tensor, s: Tensor) -> Tensor:
    """Compute log K_a(s) for a real order a (one number) and s > 0, differentiable in both.

    K_a(s) is half the integral of exp(a t - s cosh t) over all t. The trapezoidal rule is accurate to rounding with
    some dozens of nodes around the integrand's peak at sinh t = a / s.
    """
    in_graph = transformed() or (torch.is_grad_enabled() and (s.requires_grad or order.requires_grad))
    if s.device.type == "cpu" and not in_graph:
        at = s.detach().double().numpy()
        value = s.new_tensor(
            np.log(scipy.special.kve(float(order), at)) - at
        )  # this is faster, but it overflows for small s
        if bool(value.isfinite().all()):
            return value
    return _log_trapezoid(order, s)


def _log_trapezoid(order: Tensor, s: Tensor, nodes: int = 160, fall: float = 37.0) -> Tensor:
    """Apply the trapezoidal rule with `nodes` nodes, up to where the integrand has fallen by exp(-`fall`).

    The error decreases exponentially with the number of nodes; with 160 it is below 1e-13.
    """
    a = order.abs()
    with torch.no_grad():
        curvature = torch.hypot(a, s)
        peak = torch.asinh(a / s)
        right = torch.acosh(1 + fall / curvature)
        left = torch.acosh(1 + fall * (curvature + a) / s.square())
        q = fall / a
        left = torch.minimum(left, (q + (q.square() + 8 * q).sqrt()) / 2) if float(a) > 0 else left
        step = (left + right) / (nodes - 1)
        t = (peak - left)[..., None] + step[..., None] * torch.arange(nodes, dtype=s.dtype, device=s.device)
    return torch.logsumexp(a * t - s[..., None] * torch.cosh(t), dim=-1) + (step / 2).log()
