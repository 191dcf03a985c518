"""SpectralMeasure: what features need to know of a stationary kernel, and the measures of radial ones.

A kernel with k(x, x) = 1 is k(x - x') = E cos(theta . (x - x')), theta drawn from its spectral measure (Bochner's
theorem). Because a measure is a map from uniforms, the same code serves plain random, quasi-random and stratified
frequencies, on any device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import scipy  # whose special functions it imports when they are first used
import torch
from torch import Tensor

from ..core.modes import in_graph, kept, transformed


class SpectralMeasure(ABC):
    """`frequencies` maps uniforms `[..., num_uniforms]` to frequencies `[..., input_dim]`, in radians a unit of x."""

    num_uniforms: int
    input_dim: int

    @abstractmethod
    def frequencies(self, U: Tensor) -> Tensor:
        """Frequencies `[..., d]` from uniforms `[..., p]` in (0, 1); differentiable in the hyperparameters."""

    def importance(self, U: Tensor) -> Tensor | None:
        """Weights `[...]` that are one in value and carry the gradient of what no map of uniforms can (a discrete
        choice, a Gamma's shape): density / density.detach(). None where there is nothing of the kind."""
        return None

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        """A discrete measure's frequencies `[a, d]` and masses `[a]`, all but 1e-15 of it; None where not discrete."""
        return None

    @property
    def density_dims(self) -> list[int] | None:
        """The coordinates that the density is over, the measure being zero on the others; None without a density."""
        return None

    def log_density(self, theta: Tensor) -> Tensor | None:
        """The logarithm `[...]` of `density(theta)`."""
        return None

    def density(self, theta: Tensor) -> Tensor | None:
        """S(theta) `[...]` at frequencies `[..., d]`, with respect to volume in the coordinates `density_dims`.

        It is that of the symmetric measure, S(theta) = S(-theta), and k(r) is the integral of S(theta) cos(theta . r);
        differentiable in the hyperparameters. None where there is no density: atoms, sums of measures on different
        coordinates, convolutions without a closed form.

        >>> from matheron import kernels
        >>> import torch
        >>> kernels.RBF(2.0).measure(1).density(torch.zeros(1, 1, dtype=torch.float64))
        tensor([0.7979], dtype=torch.float64)
        """
        log_density = self.log_density(theta)
        return None if log_density is None else log_density.exp()


# Special functions that torch lacks, on tensors of any device: Gamma quantiles, Bessel functions of real order.


def gamma_quantile(u: Tensor, shape: float, largest_logit: float = 38.0) -> Tensor:
    """Quantiles of Gamma(shape, rate=shape), away from zero, where a root's inverse would be infinite.

    Interpolated, on the tensor's own device: the logarithm is a smooth function of logit u, and nearly linear in the
    tails. Relative errors are below 1e-8.

    Args:
        largest_logit: the table's range of log(u / (1 - u)), which is that of the uniforms of features.
    """
    powers = _gamma_table(float(shape), largest_logit).to(u.device)  # [cells, 4]
    at = (torch.logit(u.detach().double()) / largest_logit + 1) * (len(powers) / 2)
    cell = at.floor().clamp(0, len(powers) - 1)
    c3, c2, c1, c0 = powers[cell.long()].unbind(-1)
    t = at - cell
    return (((c3 * t + c2) * t + c1) * t + c0).exp().clamp_min(1e-30).to(u)


@kept(64)
def _gamma_table(shape: float, largest_logit: float, count: int = 2048) -> Tensor:
    """Cubics `[cells, 4]`, highest power first, of log quantiles over equal cells of logit u, each from 0 to 1."""
    cells = np.arange(-2, count + 3)  # with neighbours for the slopes at both ends
    logit = largest_logit * (2 * cells / count - 1)
    upper = scipy.special.gammainccinv(shape, scipy.special.expit(-logit))  # precise where u is near one
    with np.errstate(divide="ignore"):
        lower = np.log(scipy.special.gammaincinv(shape, scipy.special.expit(logit)))
    # u = q^shape / Gamma(shape + 1)
    first = (np.log(scipy.special.expit(logit)) + scipy.special.gammaln(shape + 1)) / shape
    lower = np.where(first < -30, first, lower)
    quantile = np.where(logit > 0, np.log(np.maximum(upper, 1e-300)), lower) - np.log(shape)
    slope = (quantile[:-4] - 8 * quantile[1:-3] + 8 * quantile[3:-1] - quantile[4:]) / 12  # to the fourth order
    left, right, rise = slope[:-1], slope[1:], np.diff(quantile[2:-2])
    cubics = [left + right - 2 * rise, 3 * rise - 2 * left - right, left, quantile[2:-3]]
    return torch.from_numpy(np.stack(cubics, axis=1))


def log_bessel_k(order: Tensor, s: Tensor) -> Tensor:
    """log K_a(s) for a real order a (one number) and s > 0, differentiable in both.

    K_a(s) is half the integral of exp(a t - s cosh t) over all t, which the trapezoidal rule gets to rounding in a few
    dozen nodes, once they lie where the integrand does: about its peak at sinh t = a / s.
    """
    in_graph = transformed() or (torch.is_grad_enabled() and (s.requires_grad or order.requires_grad))
    if s.device.type == "cpu" and not in_graph:
        at = s.detach().double().numpy()
        value = s.new_tensor(np.log(scipy.special.kve(float(order), at)) - at)  # faster, until it overflows
        if bool(value.isfinite().all()):
            return value
    return _log_trapezoid(order, s)


def _log_trapezoid(order: Tensor, s: Tensor, nodes: int = 160, fall: float = 37.0) -> Tensor:
    """The rule with this many nodes, where the integrand is cut when it has fallen by e^-37.

    The error falls exponentially with the nodes: it is below 1e-13 here.
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


# Elliptical spectral measures, those of the radial kernels: Gaussian, Student, GammaScaled.


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
