"""SpectralMeasure: what features need to know of a stationary kernel (Bochner's theorem)."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

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


# Special functions that torch lacks, on tensors of any device: Gamma quantiles, Bessel functions with derivatives.


# Nodes of the trapezoidal rule for a Bessel function; its error falls exponentially, below 1e-13 here.
_NODES = 160
_DECADES = 37.0  # the integrand is cut where it has fallen by e^-37
# Quantiles are tabulated over this range of log(u / (1 - u)), which is that of the uniforms of features.
_LARGEST_LOGIT, _LOGIT_CELLS = 38.0, 2048


def gamma_quantile(u: Tensor, shape: float) -> Tensor:
    """Quantiles of Gamma(shape, rate=shape), away from zero, where a root's inverse would be infinite.

    Interpolated, on the tensor's own device: the logarithm is a smooth function of logit u, and nearly linear in the
    tails. Relative errors are below 1e-8.
    """
    powers = _gamma_table(float(shape)).to(u.device)  # [cells, 4]
    at = (torch.logit(u.detach().double()) / _LARGEST_LOGIT + 1) * (len(powers) / 2)
    cell = at.floor().clamp(0, len(powers) - 1)
    c3, c2, c1, c0 = powers[cell.long()].unbind(-1)
    t = at - cell
    return (((c3 * t + c2) * t + c1) * t + c0).exp().clamp_min(1e-30).to(u)


@kept(64)
def _gamma_table(shape: float) -> Tensor:
    """Cubics `[cells, 4]`, highest power first, of log quantiles over equal cells of logit u, each from 0 to 1."""
    cells = np.arange(-2, _LOGIT_CELLS + 3)  # with neighbours for the slopes at both ends
    logit = _LARGEST_LOGIT * (2 * cells / _LOGIT_CELLS - 1)
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


def scaled_bessel(z: Tensor, count: int) -> Tensor:
    """exp(-z) I_k(z) for k = 0 .. count, differentiable once in z."""
    values = scipy.special.ive(np.arange(-1, count + 2), float(z.detach()))
    slopes = (values[:-2] + values[2:]) / 2 - values[1:-1]
    return torch.from_numpy(values[1:-1]).to(z) + torch.from_numpy(slopes).to(z) * (z - z.detach())


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


def _log_trapezoid(order: Tensor, s: Tensor) -> Tensor:
    a = order.abs()
    with torch.no_grad():
        curvature = torch.hypot(a, s)
        peak = torch.asinh(a / s)
        right = torch.acosh(1 + _DECADES / curvature)
        left = torch.acosh(1 + _DECADES * (curvature + a) / s.square())
        q = _DECADES / a
        left = torch.minimum(left, (q + (q.square() + 8 * q).sqrt()) / 2) if float(a) > 0 else left
        step = (left + right) / (_NODES - 1)
        t = (peak - left)[..., None] + step[..., None] * torch.arange(_NODES, dtype=s.dtype, device=s.device)
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


# The spectral measure of a product of radial kernels whose lengthscales are proportional.
#
# RBF, Matern and RationalQuadratic are mixtures of RBFs, so that their frequencies are normal with a random
# variance. Frequencies of a product are sums, and variances of normals add: a mixture of normals again, elliptical,
# with a density that is a sum over the factors' variances.


# Variances are kept as they are up to this many; else those that are this near (in logarithms) become one, their mean.
_LARGEST_SUM, _NEAR = 2000, 0.02
# Points along the radius between which the density is interpolated.
_POINTS = 1024
# Variances of less mass than this do not count; nor do shares of less than this below the first point.
_LEAST_MASS, _LEAST_BELOW = 1e-14, 1e-12


class Compound(Elliptical):
    """theta = scale * normal * sqrt(sum_i (ratio_i mixing_i)^2), for measures whose scales are ratio_i * scale.

    The density is tabulated once for each shape (the factors' kinds, numbers and ratios), and has no derivatives.
    """

    def __init__(self, scale: Tensor, parts: Sequence[tuple[float, Elliptical]]) -> None:
        self.parts = tuple(parts)
        self.num_mixing_uniforms = sum(part.num_mixing_uniforms for _, part in parts)
        super().__init__(scale)

    def mixing(self, U: Tensor) -> Tensor:
        widths = [part.num_mixing_uniforms for _, part in self.parts]
        own = zip(self.parts, U.split(widths, dim=-1), strict=True)
        return torch.stack([(ratio * part.mixing(u)).square() for (ratio, part), u in own]).sum(0).sqrt()

    @property
    def shape(self) -> tuple:
        return (self.input_dim, *((ratio, *_kind(part)) for ratio, part in self.parts))

    def log_radial(self, r2: Tensor) -> Tensor:
        low, step, *tables = _table(*self.shape)
        values, slopes = (table.to(r2) for table in tables)
        at = (r2.clamp_min(1e-300).log() / 2 - low) / step
        cell = at.floor().clamp(0, _POINTS - 2)
        t, cell = at - cell, cell.long()
        left, right, rise = slopes[cell], slopes[cell + 1], values[cell + 1] - values[cell]
        cubic = ((left + right - 2 * rise) * t + 3 * rise - 2 * left - right) * t + left
        inside = values[cell] + cubic * t
        # Beyond both ends: powers of the radius.
        return torch.where(t < 0, values[0] + left * t, torch.where(t > 1, values[-1] + right * (t - 1), inside))


def compound(given: Sequence[SpectralMeasure]) -> Elliptical | None:
    """The convolution of measures, where it is elliptical.

    None where lengthscales are not proportional, where derivatives in them are wanted, or where there are shifts (but
    of one normal among normals).
    """
    measures = [m for m in given if isinstance(m, Elliptical)]
    if len(measures) < len(given):
        return None
    shifts = [s for m in measures if (s := getattr(m, "shift", None)) is not None and bool(s.any())]
    if all(isinstance(m, Gaussian) for m in measures) and len(shifts) <= 1:
        return Gaussian(torch.stack([m.scale for m in measures]).norm(dim=0), *shifts)
    parts: list[tuple[float, Elliptical]] = []
    scale = measures[0].scale
    for m in measures:
        ratios = (m.scale / scale).detach()
        inner = m.parts if isinstance(m, Compound) else ((1.0, m),)
        differentiable = any(in_graph(v) for _, part in inner for v in vars(part).values() if isinstance(v, Tensor))
        mixtures = all(isinstance(part, Gaussian | Student | GammaScaled) for _, part in inner)
        proportional = bool((ratios - ratios[0]).abs().max() <= 1e-12 * ratios[0])
        if shifts or differentiable or not (mixtures and proportional):
            return None
        parts += [(float(ratios[0]) * ratio, part) for ratio, part in inner]
    return Compound(scale, parts)


def _kind(measure: Elliptical) -> tuple[str, float]:
    """What its variance is distributed like: fixed, the inverse of a Gamma variable, or one itself."""
    if isinstance(measure, Student):
        return "inverse", measure.nu
    if isinstance(measure, GammaScaled):
        return "gamma", float(measure.alpha)
    return "fixed", 1.0


def _variances(dim: int, *parts: tuple[float, str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Variances of the normals and their log masses: the trapezoidal rule in the logarithm of every Gamma variable.

    Integrands are smooth over 1 / sqrt(a + d / 2) or so of it, and the rule's error falls exponentially below that.
    """
    step = min(0.5, 1 / math.sqrt(dim / 2 + max(a for _, _, a in parts)))
    variance, log_mass = np.zeros(1), np.zeros(1)
    for ratio, kind, a in parts:
        v, m = np.ones(1), np.zeros(1)
        if kind != "fixed":
            constant = a * math.log(a) - math.lgamma(a)
            last = math.log1p(math.sqrt(80 / a) + 40 / a)
            first = min(-last, (math.log(_LEAST_MASS) - constant) / a)
            t = np.arange(first, last + step, step)
            m = a * t - a * np.exp(t) + constant + math.log(step)
            v = np.exp(-t if kind == "inverse" else t)
        variance = (variance[:, None] + ratio**2 * v).ravel()
        log_mass = (log_mass[:, None] + m).ravel()
        kept = log_mass > math.log(_LEAST_MASS)
        variance, log_mass = _joined(variance[kept], log_mass[kept])
    return variance, log_mass


def _joined(variance: np.ndarray, log_mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(variance) <= _LARGEST_SUM:
        return variance, log_mass
    at = np.log(variance)
    cell = ((at - at.min()) / max(_NEAR, np.ptp(at) / _LARGEST_SUM)).astype(int)
    mass = np.exp(log_mass)
    total, mean = np.bincount(cell, mass), np.bincount(cell, mass * variance)
    kept = total > 0
    return mean[kept] / total[kept], np.log(total[kept])


@kept(64)
def _table(dim: int, *parts: tuple[float, str, float]) -> tuple[float, float, Tensor, Tensor]:
    """The first log radius, the step, and at every point the log density and its change over a step."""
    variance, log_mass = _variances(dim, *parts)
    low = math.log(variance.min()) / 2 + math.log(_LEAST_BELOW) / dim
    high = math.log(variance.max()) / 2 + math.log(math.sqrt(dim) + 7)
    step = (high - low) / (_POINTS - 1)
    values, slopes = np.empty(_POINTS), np.empty(_POINTS)
    log_weight = log_mass - dim / 2 * np.log(2 * math.pi * variance)  # [k]
    for some in np.array_split(np.arange(_POINTS), max(1, _POINTS * len(variance) // 4_000_000)):
        exponent = np.exp(2 * (low + step * some))[:, None] / variance  # r^2 / v, [p, k]
        logs = log_weight - exponent / 2
        most = logs.max(1, keepdims=True)
        mass = np.exp(logs - most)
        total = mass.sum(1)
        values[some] = most[:, 0] + np.log(total)
        slopes[some] = -step * (mass * exponent).sum(1) / total
    return low, step, torch.from_numpy(values), torch.from_numpy(slopes)


# Spectral measures: maps from uniforms to frequencies, and how they convolve and mix (Bochner's theorem).
#
# A kernel with k(x, x) = 1 is k(x - x') = E cos(theta . (x - x')), theta drawn from its spectral measure. Because a
# measure is a map from uniforms, the same code serves plain random, quasi-random and stratified frequencies, on any
# device.


LARGEST_ATOM_COUNT = 1 << 20


class HarmonicMeasure(SpectralMeasure):
    """In each dimension multiples k of a fundamental, of mass exp(-z) I_k(z), z = 1 / lengthscale^2: Periodic."""

    def __init__(self, fundamental: Tensor, lengthscale: Tensor) -> None:
        self.fundamental = fundamental  # [d]
        self.lengthscale = lengthscale  # [d]
        self.input_dim = self.num_uniforms = fundamental.shape[0]

    def _masses(self, i: int) -> Tensor:
        """Masses `[2 k + 1]` of the harmonics -k to k; the rest weighs less than rounding."""
        z = self.lengthscale[i] ** -2
        count = math.ceil(9 * math.sqrt(float(z.detach()))) + 20
        half = scaled_bessel(z, count)  # [k + 1]
        return torch.cat([half[1:].flip(0), half])

    def _harmonics(self, U: Tensor, i: int) -> Tensor:
        cdf = self._masses(i).detach().cumsum(0)
        index = torch.searchsorted(cdf, U[..., i].contiguous() * cdf[-1])
        return index.clamp_max(len(cdf) - 1)

    def frequencies(self, U: Tensor) -> Tensor:
        k = torch.stack([self._harmonics(U, i) - len(self._masses(i)) // 2 for i in range(self.input_dim)], dim=-1)
        return k * self.fundamental

    def importance(self, U: Tensor) -> Tensor | None:
        if not in_graph(self.lengthscale):
            return None
        weight = torch.ones((), dtype=U.dtype, device=U.device)
        for i in range(self.input_dim):
            mass = self._masses(i)[self._harmonics(U, i)]
            weight = weight * mass / mass.detach()
        return weight

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        parts = []
        for i, axis in enumerate(self.fundamental.diag()):
            mass = self._masses(i)
            k = torch.arange(len(mass), dtype=mass.dtype, device=mass.device) - len(mass) // 2
            parts.append((k[:, None] * axis, mass))
        return _sum_of_atoms(parts)


class Atom(SpectralMeasure):
    """One frequency (and its negative): Cosine."""

    num_uniforms = 0

    def __init__(self, theta: Tensor) -> None:
        self.theta = theta  # [d]
        self.input_dim = theta.shape[0]

    def frequencies(self, U: Tensor) -> Tensor:
        return self.theta.expand(*U.shape[:-1], self.input_dim)

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        return torch.stack([self.theta, -self.theta]), self.theta.new_full((2,), 0.5)


class Convolution(SpectralMeasure):
    """Sums of independent frequencies: the measure of a product of kernels.

    The factors take their coordinates side by side from one set of uniforms. A measure represents its symmetric
    version (cos is even), so each factor but the first is given a random sign: cos a cos b is the mean of cos(a +- b).
    """

    def __init__(self, measures: Sequence[SpectralMeasure]) -> None:
        self.measures = measures
        self.input_dim = measures[0].input_dim
        self.num_uniforms = sum(m.num_uniforms for m in measures) + len(measures) - 1
        # Normals add to a normal, where none has a shift.
        scales = [m.scale for m in measures if isinstance(m, Gaussian) and m.shift is None]
        self.gaussian = Gaussian(torch.stack(scales).norm(dim=0)) if len(scales) == len(measures) else None

    def _split(self, U: Tensor) -> tuple[list[Tensor], Tensor]:
        widths = [m.num_uniforms for m in self.measures]
        *parts, signs = U.split([*widths, len(widths) - 1], dim=-1)
        return parts, torch.where(signs < 0.5, -1.0, 1.0).to(U)

    def frequencies(self, U: Tensor) -> Tensor:
        parts, signs = self._split(U)
        theta = self.measures[0].frequencies(parts[0])
        for i, (measure, part) in enumerate(zip(self.measures[1:], parts[1:], strict=True)):
            theta = theta + signs[..., i : i + 1] * measure.frequencies(part)
        return theta

    def importance(self, U: Tensor) -> Tensor | None:
        parts, _ = self._split(U)
        each = zip(self.measures, parts, strict=True)
        weights = [w for m, part in each if (w := m.importance(part)) is not None]
        return functools.reduce(torch.mul, weights) if weights else None

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        parts = [p for m in self.measures if (p := m.atoms()) is not None]
        return _sum_of_atoms(parts) if len(parts) == len(self.measures) else None

    @property
    def density_dims(self) -> list[int] | None:
        if self.gaussian is not None:
            return self.gaussian.density_dims
        dims = [m.density_dims for m in self.measures]
        if any(own is None for own in dims):
            return None
        union = [i for own in dims for i in own or []]
        return sorted(union) if len(set(union)) == len(union) else None  # else: a convolution without a closed form

    def log_density(self, theta: Tensor) -> Tensor | None:
        if self.gaussian is not None:
            return self.gaussian.log_density(theta)
        if self.density_dims is None:
            return None
        parts = [part for m in self.measures if (part := m.log_density(theta)) is not None]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)


class Mixture(SpectralMeasure):
    """One of several measures, chosen by the first uniform: the measure of a sum of kernels."""

    def __init__(self, weights: Tensor, measures: Sequence[SpectralMeasure]) -> None:
        self.weights = weights / weights.sum()  # [q]
        self.measures = measures
        self.input_dim = measures[0].input_dim
        self.num_uniforms = 1 + max(m.num_uniforms for m in measures)

    def _choice(self, U: Tensor) -> Tensor:
        cdf = self.weights.detach().cumsum(0)
        return torch.searchsorted(cdf, U[..., 0].contiguous()).clamp_max(len(cdf) - 1)

    def frequencies(self, U: Tensor) -> Tensor:
        choice = self._choice(U)[..., None]
        theta = [m.frequencies(U[..., 1 : 1 + m.num_uniforms]) for m in self.measures]
        return functools.reduce(torch.add, (torch.where(choice == q, own, 0.0) for q, own in enumerate(theta)))

    def importance(self, U: Tensor) -> Tensor | None:
        choice = self._choice(U)
        total = (self.weights / self.weights.detach())[choice]
        for q, measure in enumerate(self.measures):
            weight = measure.importance(U[..., 1 : 1 + measure.num_uniforms])
            total = total if weight is None else total * torch.where(choice == q, weight, 1.0)
        return total

    @property
    def density_dims(self) -> list[int] | None:
        dims = [m.density_dims for m in self.measures]
        return dims[0] if all(own == dims[0] for own in dims) else None

    def log_density(self, theta: Tensor) -> Tensor | None:
        if self.density_dims is None:
            return None
        parts = zip(self.weights.log(), (m.log_density(theta) for m in self.measures), strict=True)
        return torch.stack([w + part for w, part in parts if part is not None]).logsumexp(0)


class Moved(SpectralMeasure):
    """Another measure, whose frequencies are moved by a linear map."""

    def __init__(self, measure: SpectralMeasure, input_dim: int) -> None:
        self.measure, self.input_dim, self.num_uniforms = measure, input_dim, measure.num_uniforms

    @abstractmethod
    def moved(self, theta: Tensor) -> Tensor:
        """The other's frequencies `[..., p]`, as this one's `[..., d]`."""

    def of(self, measure: SpectralMeasure) -> Self:
        """The same map of another measure."""
        other = copy(self)
        Moved.__init__(other, measure, self.input_dim)
        return other

    def frequencies(self, U: Tensor) -> Tensor:
        return self.moved(self.measure.frequencies(U))

    def importance(self, U: Tensor) -> Tensor | None:
        return self.measure.importance(U)

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        atoms = self.measure.atoms()
        return None if atoms is None else (self.moved(atoms[0]), atoms[1])


class Embedded(Moved):
    """A measure on some coordinates, zero on the others."""

    def __init__(self, measure: SpectralMeasure, dims: Sequence[int], input_dim: int) -> None:
        super().__init__(measure, input_dim)
        self.dims = list(dims)

    def moved(self, theta: Tensor) -> Tensor:
        full = theta.new_zeros(*theta.shape[:-1], self.input_dim)
        return full.index_copy(-1, torch.tensor(self.dims, device=theta.device), theta)

    @property
    def density_dims(self) -> list[int] | None:
        dims = self.measure.density_dims
        return None if dims is None else sorted(self.dims[i] for i in dims)

    def log_density(self, theta: Tensor) -> Tensor | None:
        return self.measure.log_density(theta[..., self.dims])


def _sum_of_atoms(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """Atoms of a convolution, all but 1e-15 of the mass; None where they are too many to list."""
    theta, mass = torch.zeros_like(parts[0][0][:1]), torch.ones_like(parts[0][1][:1])
    for other_theta, other_mass in parts:
        if len(mass) * len(other_mass) > LARGEST_ATOM_COUNT:
            return None
        theta = (theta[:, None] + other_theta).flatten(0, 1)
        mass = (mass[:, None] * other_mass).flatten()
        keep = mass > 1e-17
        theta, mass = theta[keep], mass[keep]
    return theta, mass
