"""Radial kernels, and those of the paper, each beside its spectral measure: RBF and Matern."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import ClassVar

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.arena import computed, empty, weigh, weigh_coordinates
from ..core.checks import ArrayLike, per_dimension, positive
from ..core.modes import kept, transformed
from .base import Kernel, RadialPart, SpectralMeasure, Stationary, centred, distance_at_once, squared_distance

__all__ = ["RBF", "Matern", "Radial"]


class Radial(Stationary):
    """k(x, x') = g(r^2), r^2 = sum_i (x_i - x'_i)^2 / lengthscale_i^2: the elliptical kernels.

    A kernel of one's own needs `radial` alone, its profile: the derivative is then found by automatic differentiation,
    and the spectral measure numerically, in any number of dimensions (see `ProfileMeasure`).

    >>> import torch
    >>> from matheron import kernels
    >>> class Wendland(kernels.Radial):
    ...     def radial(self, r2):
    ...         r = r2.sqrt().clamp_max(1.0)
    ...         return (1 - r) ** 4 * (4 * r + 1)
    >>> Wendland(2.0)([[0.0]], [[1.0], [3.0]])
    tensor([[0.1875, 0.0000]], dtype=torch.float64)
    >>> Wendland(2.0).measure(2).error < 1e-4
    True
    """

    units: ClassVar = {"lengthscale": "x"}

    def __init__(self, lengthscale: ArrayLike = 1.0) -> None:
        super().__init__(lengthscale=positive(lengthscale, "lengthscale"))

    @abstractmethod
    def radial(self, r2: Tensor) -> Tensor:
        """g(r^2). It may overwrite `r2` if no gradient is needed."""

    def radial_derivative(self, r2: Tensor) -> Tensor:
        """g'(r^2), zero where it is infinite (coincident points of a rough kernel)."""
        from .own import profile_slope

        return profile_slope(self.radial, r2)

    def measure(self, input_dim: int) -> SpectralMeasure:
        from .own import ProfileMeasure

        scale = 1 / per_dimension(self.lengthscale, input_dim, "lengthscale")
        return ProfileMeasure(scale, self.radial, type(self).__name__)

    def profile(self, r2: Tensor, order: int) -> Tensor:
        """The derivative of g(r^2) of some order, in memory of its own; where it is infinite (coincident points of a
        kernel that has no such derivative) it is zero.

        The default differentiates automatically, at zero from the right. A square root in the profile has no derivative
        there, and close to zero it loses too many digits for high orders.
        """

        from .own import profile_derivative

        return profile_derivative(self.radial, r2, order)

    def smoothness(self, input_dim: int) -> list[float]:
        """The smoothness of a kernel with a profile of one's own, found from the derivatives of the profile near zero,
        up to the second."""
        from .own import smoothness_of_profile

        return [smoothness_of_profile(self)] * input_dim

    def profiles(self, r2: Tensor, orders: Iterable[int]) -> dict[int, Tensor]:
        """`profile` of several orders."""
        return {order: self.profile(r2, order) for order in orders}

    def radial_parts(self, input_dim: int) -> list[RadialPart]:
        return [RadialPart(self, list(range(input_dim)))]

    def _scaled(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x and z divided by the lengthscales, relative to one of z's points, and the lengthscales."""
        lengthscale = per_dimension(self.lengthscale, x.shape[-1], "lengthscale")
        x, z = centred(x, z)
        scaled = x / lengthscale
        return scaled, scaled if z is x else z / lengthscale, lengthscale

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x, z, _ = self._scaled(x, z)
        r2 = squared_distance(x, z)
        if type(self).radial_derivative is not Radial.radial_derivative:
            return self.radial(r2)
        from .own import profile_values

        return profile_values(self, r2)

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        from .derivatives import radial_derivative

        return radial_derivative(self, x, z, left, right) if left or right else self.forward(x, z)

    def radial_with_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """g(r^2) and g'(r^2). It may overwrite `r2`."""
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
        # sum_j W_j g'_j (x - z_j) = x sum_j W_j g'_j - sum_j W_j g'_j z_j, which needs no difference for each pair and
        # each coordinate.
        pull = x[:, None] * weigh(slope, W)[..., None] - weigh_coordinates(slope, W, z[None])  # [B, r, n, d]
        return weigh(K, W), pull.mul_(2 / lengthscale)


class RBF(Radial):
    """k = exp(-r^2 / 2).

    >>> from matheron import kernels
    >>> kernels.RBF(lengthscale=[0.5, 2.0])([[0.0, 0.0]], [[0.5, 2.0]])
    tensor([[0.3679]], dtype=torch.float64)
    """

    def radial(self, r2: Tensor) -> Tensor:
        return (-0.5 * r2).exp() if r2.requires_grad else r2.mul_(-0.5 * LOG2E).exp2_()

    def radial_derivative(self, r2: Tensor) -> Tensor:
        return -0.5 * (-0.5 * r2).exp()

    def profile(self, r2: Tensor, order: int) -> Tensor:
        return (-0.5) ** order * (-0.5 * r2).exp()

    def smoothness(self, input_dim: int) -> list[float]:
        return [math.inf] * input_dim

    def profiles(self, r2: Tensor, orders: Iterable[int]) -> dict[int, Tensor]:
        k = (-0.5 * r2).exp()
        return {order: (-0.5) ** order * k for order in orders}

    def axis_factors(self, input_dim: int) -> list[list[Kernel]]:
        return [[RBF(l_i)] for l_i in per_dimension(self.lengthscale, input_dim, "lengthscale")]

    def measure(self, input_dim: int) -> SpectralMeasure:
        return Gaussian(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"))


# Exponentials are computed as powers of two. On x86, torch's exp is the one of MKL, which takes four times as long as
# exp2 on an AMD EPYC. The rounding error of the exponent has the same effect as that of the argument of exp.
LOG2E = math.log2(math.e)


def half_integer(s: Tensor, a: float) -> Tensor:
    """exp(-s) times 1 / s, 1, 1 + s or 1 + s + s^2 / 3, for a = -1/2 to 5/2; it uses the memory of s."""
    decay = torch.mul(s, -LOG2E, out=empty(s.shape, s)).exp2_()
    if a == -0.5:
        return torch.where(s > 0, decay.div_(s), 0.0)
    if a == 0.5:
        return decay
    polynomial = s if a == 1.5 else s.addcmul_(s, s, value=1 / 3)  # the polynomial without its leading one
    return decay.addcmul_(polynomial, decay)


class Matern(Radial):
    """k = 2^(1 - nu) / Gamma(nu) s^nu K_nu(s), s = sqrt(2 nu) r, for 0 < nu <= 50; closed forms for 1/2, 3/2, 5/2.

    For nu above 50 the Bessel function overflows at distances where k is not yet 1. RBF, the limit, differs from k by
    less than 0.005 there.

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
            return self.profile(r2, 0)
        return half_integer(r2.mul_(2 * self.nu).sqrt_(), self.nu)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """k(x, z), from distances that are computed directly where that is possible, without their squares."""
        x, z, _ = self._scaled(x, z)
        in_graph = torch.is_grad_enabled() and (x.requires_grad or z.requires_grad)
        if in_graph or transformed() or self.nu not in (0.5, 1.5, 2.5):
            return self.radial(squared_distance(x, z))
        r = distance_at_once(x, z)
        r = squared_distance(x, z).sqrt_() if r is None else r
        return half_integer(r.mul_(math.sqrt(2 * self.nu)), self.nu)

    def radial_derivative(self, r2: Tensor) -> Tensor:
        return self.profile(r2, 1)

    def radial_with_slope(self, r2: Tensor) -> tuple[Tensor, Tensor]:
        """g(r^2) and g'(r^2). Square roots and exponentials are most of the cost, and are computed once for both."""
        if self.nu not in (1.5, 2.5):
            return super().radial_with_slope(r2)
        q = r2.mul_(2 * self.nu)
        s = computed(torch.sqrt, q.shape, q)
        decay = computed(torch.mul, q.shape, s, -LOG2E).exp2_()
        slope = s.add_(1).mul_(decay)
        if self.nu == 1.5:  # (1 + s) e^-s, and -3/2 e^-s
            return slope, decay.mul_(-1.5)
        return torch.addcmul(slope, q, decay, value=1 / 3, out=q), slope.mul_(-5 / 6)  # (1 + s + q/3) e^-s

    def profile(self, r2: Tensor, order: int) -> Tensor:
        """F_a' = -F_(a-1) / 2 (`BesselPower`), so that the derivative of order m has F_(nu - m)."""
        from .derivatives import BesselPower

        return BesselPower.apply(2 * self.nu * r2, self.nu - order, (-self.nu) ** order * self._scale)

    def profiles(self, r2: Tensor, orders: Iterable[int]) -> dict[int, Tensor]:
        """`profile` of several orders. Square roots and exponentials are most of the cost, and are computed once for
        all."""
        orders, powers = list(orders), {-0.5, 0.5, 1.5, 2.5}
        if r2.requires_grad or transformed() or not {self.nu - order for order in orders} <= powers:
            return super().profiles(r2, orders)
        q = 2 * self.nu * r2
        s = q.sqrt()
        decay = (-s).exp_()
        polynomials = {
            0.5: lambda: decay,
            1.5: lambda: (1 + s).mul_(decay),
            2.5: lambda: (3 + 3 * s).add_(q).mul_(decay),
            -0.5: lambda: torch.where(s > 0, decay / s, 0.0),
        }
        scale = self._scale * math.sqrt(math.pi / 2)
        return {m: polynomials[self.nu - m]() * ((-self.nu) ** m * scale) for m in orders}

    def smoothness(self, input_dim: int) -> list[float]:
        return [math.ceil(self.nu) - 1.0] * input_dim

    def measure(self, input_dim: int) -> SpectralMeasure:
        return Student(1 / per_dimension(self.lengthscale, input_dim, "lengthscale"), self.nu)


# The spectral measures of radial kernels, which are elliptical: Gaussian and Student.


class Elliptical(SpectralMeasure):
    """theta = scale * direction * radius, the direction uniform on the sphere: what orthogonal features need."""

    num_mixing_uniforms = 0
    waves = 1  # the number of radii that the density is averaged over in a small step; more than one if it oscillates

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
        """The parameters of the distribution of theta / scale; None if there are more than a few."""
        own = [v for name, v in sorted(vars(self).items()) if name not in ("scale", "shift")]
        if any(isinstance(v, Tensor) and v.numel() > 1 for v in own):
            return None
        numbers = tuple(float(v.detach()) if isinstance(v, Tensor) else v for v in own)
        return numbers if all(isinstance(v, int | float) for v in numbers) else None

    @abstractmethod
    def log_radial(self, r2: Tensor) -> Tensor:
        """The log density `[...]` of theta / scale, given its squared length `[...]`."""

    def log_density_of_radius(self, t: Tensor) -> Tensor:
        """The log density `[...]` of t = log r, r = |theta / scale|: that of theta / scale, times r^d and an area."""
        d = self.input_dim
        log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        return self.log_radial((2 * t).exp()) + d * t + log_area

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


# Quantiles of the Gamma distribution. torch does not have them.


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
    cells = np.arange(-2, count + 3)  # neighbours on both sides, for the slopes at the ends
    logit = largest_logit * (2 * cells / count - 1)
    upper = scipy.special.gammainccinv(shape, scipy.special.expit(-logit))  # accurate for u near one
    with np.errstate(divide="ignore"):
        lower = np.log(scipy.special.gammaincinv(shape, scipy.special.expit(logit)))
    # u = q^shape / Gamma(shape + 1)
    first = (np.log(scipy.special.expit(logit)) + scipy.special.gammaln(shape + 1)) / shape
    lower = np.where(first < -30, first, lower)
    quantile = np.where(logit > 0, np.log(np.maximum(upper, 1e-300)), lower) - np.log(shape)
    # finite differences of fourth order
    slope = (quantile[:-4] - 8 * quantile[1:-3] + 8 * quantile[3:-1] - quantile[4:]) / 12
    left, right, rise = slope[:-1], slope[1:], np.diff(quantile[2:-2])
    cubics = [left + right - 2 * rise, 3 * rise - 2 * left - right, left, quantile[2:-3]]
    return torch.from_numpy(np.stack(cubics, axis=1))
