"""Elliptical spectral measures, those of the radial kernels: Gaussian, Student, GammaScaled."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from ..modes import in_graph
from .measure import SpectralMeasure
from .special import gamma_quantile, log_bessel_k


class Elliptical(SpectralMeasure):
    """theta = scale * direction * radius, the direction uniform on the sphere: what orthogonal features need."""

    num_mixing_uniforms = 0
    waves = 1  # points over which the density is averaged along a small step of the radius: more where it oscillates

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale  # [d]
        self.input_dim = scale.shape[0]
        self.num_uniforms = self.input_dim + self.num_mixing_uniforms

    def mixing(self, U: Tensor) -> Tensor:
        """The random scale `[..., 1]` of a normal mixture, from `num_mixing_uniforms` uniforms."""
        return torch.ones_like(U[..., :0].sum(-1, keepdim=True))

    def radius(self, U: Tensor) -> Tensor:
        """Lengths `[...]` of theta / scale, from 1 + num_mixing_uniforms uniforms."""
        chi2 = self.input_dim * gamma_quantile(U[..., 0], self.input_dim / 2)
        return chi2.sqrt() * self.mixing(U[..., 1:])[..., 0]

    def frequencies(self, U: Tensor) -> Tensor:
        normal = torch.special.ndtri(U[..., : self.input_dim])  # [..., d]
        return self.scale * normal * self.mixing(U[..., self.input_dim :])

    @property
    def density_dims(self) -> list[int] | None:
        return list(range(self.input_dim)) if bool((self.scale > 0).all()) else None

    @property
    def shape(self) -> tuple | None:
        """What the law of theta / scale depends on; None where that is more than a few numbers."""
        own = [v for name, v in sorted(vars(self).items()) if name not in ("scale", "shift")]
        if any(isinstance(v, Tensor) and v.numel() > 1 for v in own):
            return None
        numbers = tuple(float(v.detach()) if isinstance(v, Tensor) else v for v in own)
        return numbers if all(isinstance(v, int | float) for v in numbers) else None

    @abstractmethod
    def log_radial(self, r2: Tensor) -> Tensor:
        """The log density `[...]` of theta / scale, given its squared length `[...]`."""

    def log_density(self, theta: Tensor) -> Tensor | None:
        if self.density_dims is None:
            return None
        return self.log_radial((theta / self.scale).square().sum(-1)) - self.scale.log().sum()


class Gaussian(Elliptical):
    """N(shift, diag(scale^2)): RBF without a shift, a component of SpectralMixture with one."""

    def __init__(self, scale: Tensor, shift: Tensor | None = None) -> None:
        super().__init__(scale)
        self.shift = shift

    def frequencies(self, U: Tensor) -> Tensor:
        theta = super().frequencies(U)
        return theta if self.shift is None else theta + self.shift

    def log_radial(self, r2: Tensor) -> Tensor:
        return -r2 / 2 - self.input_dim / 2 * math.log(2 * math.pi)

    def log_density(self, theta: Tensor) -> Tensor | None:
        if self.shift is None or self.density_dims is None:
            return super().log_density(theta)
        both = [self.log_radial(((theta + s * self.shift) / self.scale).square().sum(-1)) for s in (-1, 1)]
        return torch.logaddexp(*both) - math.log(2) - self.scale.log().sum()


class Student(Elliptical):
    """Multivariate t with 2 nu degrees of freedom: Matern. One Gamma(nu, nu) draw serves every coordinate."""

    num_mixing_uniforms = 1

    def __init__(self, scale: Tensor, nu: float) -> None:
        super().__init__(scale)
        self.nu = nu

    def mixing(self, U: Tensor) -> Tensor:
        return gamma_quantile(U, self.nu).rsqrt()

    def log_radial(self, r2: Tensor) -> Tensor:
        nu, d = self.nu, self.input_dim
        constant = math.lgamma(nu + d / 2) - math.lgamma(nu) - d / 2 * math.log(2 * math.pi * nu)
        return constant - (nu + d / 2) * torch.log1p(r2 / (2 * nu))


class GammaScaled(Elliptical):
    """A normal times the root of a Gamma(alpha, alpha) draw: RationalQuadratic."""

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
        r2 = r2.clamp_min(1e-100)  # at zero the density of a small alpha is infinite
        order = alpha - d / 2
        constant = alpha * alpha.log() - torch.lgamma(alpha) + math.log(2) - d / 2 * math.log(2 * math.pi)
        return constant + order / 2 * (r2 / (2 * alpha)).log() + log_bessel_k(order, (2 * alpha * r2).sqrt())
