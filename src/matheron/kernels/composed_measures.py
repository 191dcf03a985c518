"""Spectral measures of periodic kernels, and of kernels that are made of others: products, sums, moved kernels.

`components` writes a measure as a sum of convolutions of atoms and elliptical measures.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.modes import in_graph, kept
from .base import SpectralMeasure
from .radial import Elliptical, Gaussian, Student
from .rational_quadratic import GammaScaled

# The spectral measure of a product of radial kernels whose lengthscales are proportional.
#
# RBF, Matern and RationalQuadratic are mixtures of RBFs, so that their frequencies are normal with a random
# variance. Frequencies of a product are sums, and variances of normals add: a mixture of normals again, elliptical,
# with a density that is a sum over the factors' variances.


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
        cell = at.floor().clamp(0, len(values) - 2)
        t, cell = at - cell, cell.long()
        left, right, rise = slopes[cell], slopes[cell + 1], values[cell + 1] - values[cell]
        cubic = ((left + right - 2 * rise) * t + 3 * rise - 2 * left - right) * t + left
        inside = values[cell] + cubic * t
        # Beyond both ends of the table, the density is continued by powers of the radius.
        return torch.where(t < 0, values[0] + left * t, torch.where(t > 1, values[-1] + right * (t - 1), inside))


def compound(given: Sequence[SpectralMeasure]) -> Elliptical | None:
    """Convolve measures if the result is elliptical, as the product of their kernels is then radial.

    The result is None if lengthscales are not proportional, or if derivatives with respect to shapes or ratios are
    needed. It is also None if there are shifts, except for one shifted normal among normals.
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
    """The law of a normal mixture's variance: fixed, the inverse of a Gamma variable, or a Gamma variable."""
    if isinstance(measure, Student):
        return "inverse", measure.nu
    if isinstance(measure, GammaScaled):
        return "gamma", float(measure.alpha)
    return "fixed", 1.0


def _variances(dim: int, *parts: tuple[float, str, float], least_mass: float = 1e-14) -> tuple[np.ndarray, np.ndarray]:
    """Discretise a normal mixture: variances and log masses by the trapezoidal rule in the log of each Gamma variable.

    Integrands are smooth at the scale 1 / sqrt(a + d / 2), and the rule's error falls exponentially for smaller steps.
    Variances with masses below `least_mass` are left out.
    """
    step = min(0.5, 1 / math.sqrt(dim / 2 + max(a for _, _, a in parts)))
    variance, log_mass = np.zeros(1), np.zeros(1)
    for ratio, kind, a in parts:
        v, m = np.ones(1), np.zeros(1)
        if kind != "fixed":
            constant = a * math.log(a) - math.lgamma(a)
            last = math.log1p(math.sqrt(80 / a) + 40 / a)
            first = min(-last, (math.log(least_mass) - constant) / a)
            t = np.arange(first, last + step, step)
            m = a * t - a * np.exp(t) + constant + math.log(step)
            v = np.exp(-t if kind == "inverse" else t)
        variance = (variance[:, None] + ratio**2 * v).ravel()
        log_mass = (log_mass[:, None] + m).ravel()
        kept = log_mass > math.log(least_mass)
        variance, log_mass = _joined(variance[kept], log_mass[kept])
    return variance, log_mass


def _joined(
    variance: np.ndarray, log_mass: np.ndarray, largest: int = 2000, near: float = 0.02
) -> tuple[np.ndarray, np.ndarray]:
    """Join variances whose logarithms differ by less than `near` into their mean, if there are more than `largest`."""
    if len(variance) <= largest:
        return variance, log_mass
    at = np.log(variance)
    cell = ((at - at.min()) / max(near, np.ptp(at) / largest)).astype(int)
    mass = np.exp(log_mass)
    total, mean = np.bincount(cell, mass), np.bincount(cell, mass * variance)
    kept = total > 0
    return mean[kept] / total[kept], np.log(total[kept])


@kept(64)
def _table(
    dim: int, *parts: tuple[float, str, float], num_points: int = 1024, least_below: float = 1e-12
) -> tuple[float, float, Tensor, Tensor]:
    """Tabulate a log density: the first log radius, the step, and at each point the density and its change over a step.

    Args:
        num_points: the number of points along the log radius, between which the log density is interpolated.
        least_below: the share of the mass below the first point.
    """
    variance, log_mass = _variances(dim, *parts)
    low = math.log(variance.min()) / 2 + math.log(least_below) / dim
    high = math.log(variance.max()) / 2 + math.log(math.sqrt(dim) + 7)
    step = (high - low) / (num_points - 1)
    values, slopes = np.empty(num_points), np.empty(num_points)
    log_weight = log_mass - dim / 2 * np.log(2 * math.pi * variance)  # [k]
    for some in np.array_split(np.arange(num_points), max(1, num_points * len(variance) // 4_000_000)):
        exponent = np.exp(2 * (low + step * some))[:, None] / variance  # r^2 / v, [p, k]
        logs = log_weight - exponent / 2
        most = logs.max(1, keepdims=True)
        mass = np.exp(logs - most)
        total = mass.sum(1)
        values[some] = most[:, 0] + np.log(total)
        slopes[some] = -step * (mass * exponent).sum(1) / total
    return low, step, torch.from_numpy(values), torch.from_numpy(slopes)


# Discrete measures, convolutions, mixtures and moved measures.


def scaled_bessel(z: Tensor, count: int) -> Tensor:
    """Compute exp(-z) I_k(z) for k = 0 .. count, with a first derivative in z."""
    values = scipy.special.ive(np.arange(-1, count + 2), float(z.detach()))
    slopes = (values[:-2] + values[2:]) / 2 - values[1:-1]
    return torch.from_numpy(values[1:-1]).to(z) + torch.from_numpy(slopes).to(z) * (z - z.detach())


class HarmonicMeasure(SpectralMeasure):
    """The measure of Periodic: in each dimension, multiples k of a fundamental frequency.

    Their masses are exp(-z) I_k(z), with z = 1 / lengthscale^2 and the modified Bessel function I_k.
    """

    def __init__(self, fundamental: Tensor, lengthscale: Tensor) -> None:
        self.fundamental = fundamental  # [d]
        self.lengthscale = lengthscale  # [d]
        self.input_dim = self.num_uniforms = fundamental.shape[0]

    def _masses(self, i: int) -> Tensor:
        """Masses `[2 k + 1]` of the harmonics -k to k. The mass of all others is below rounding."""
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
    """The measure of Cosine: one frequency and its negative."""

    num_uniforms = 0

    def __init__(self, theta: Tensor) -> None:
        self.theta = theta  # [d]
        self.input_dim = theta.shape[0]

    def frequencies(self, U: Tensor) -> Tensor:
        return self.theta.expand(*U.shape[:-1], self.input_dim)

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        return torch.stack([self.theta, -self.theta]), self.theta.new_full((2,), 0.5)


class Convolution(SpectralMeasure):
    """The measure of a product of kernels: sums of independent frequencies.

    The factors take their coordinates side by side from one set of uniforms. A measure represents its symmetric
    version, since the cosine is even. Therefore each factor but the first has a random sign: cos a cos b is the mean of
    cos(a +- b).
    """

    def __init__(self, measures: Sequence[SpectralMeasure]) -> None:
        self.measures = measures
        self.input_dim = measures[0].input_dim
        self.num_uniforms = sum(m.num_uniforms for m in measures) + len(measures) - 1
        # Normal variables without shifts add to a normal one.
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
        # otherwise the measure is a convolution without a closed form
        return sorted(union) if len(set(union)) == len(union) else None

    def log_density(self, theta: Tensor) -> Tensor | None:
        if self.gaussian is not None:
            return self.gaussian.log_density(theta)
        if self.density_dims is None:
            return None
        parts = [part for m in self.measures if (part := m.log_density(theta)) is not None]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)


class Mixture(SpectralMeasure):
    """The measure of a sum of kernels: one of several measures, chosen by the first uniform."""

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
    """A measure whose frequencies are those of another one, moved by a linear map."""

    def __init__(self, measure: SpectralMeasure, input_dim: int) -> None:
        self.measure, self.input_dim, self.num_uniforms = measure, input_dim, measure.num_uniforms

    @abstractmethod
    def moved(self, theta: Tensor) -> Tensor:
        """Map the other measure's frequencies `[..., p]` to this one's `[..., d]`."""

    def of(self, measure: SpectralMeasure) -> Self:
        """Apply the same map to another measure."""
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
    """A measure on some coordinates. Its frequencies are zero on the others."""

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


def _sum_of_atoms(parts: Sequence[tuple[Tensor, Tensor]], largest: int = 1 << 20) -> tuple[Tensor, Tensor] | None:
    """List the atoms of a convolution with all but 1e-15 of the mass. None if there are more than `largest`."""
    theta, mass = torch.zeros_like(parts[0][0][:1]), torch.ones_like(parts[0][1][:1])
    for other_theta, other_mass in parts:
        if len(mass) * len(other_mass) > largest:
            return None
        theta = (theta[:, None] + other_theta).flatten(0, 1)
        mass = (mass[:, None] * other_mass).flatten()
        keep = mass > 1e-17
        theta, mass = theta[keep], mass[keep]
    return theta, mass


# The normal form of a measure, which is needed for importance weights.


class Component(NamedTuple):
    """A part of a measure: weight times the convolution of atoms and elliptical measures, each in a frame.

    The frame `[p, d]` of an elliptical measure has orthonormal rows: its frequencies are own @ frame. None is the
    identity.
    """

    weight: Tensor | float
    elliptical: list[tuple[Elliptical, Tensor | None]]
    atoms: tuple[Tensor, Tensor] | None  # frequencies `[a, d]` and masses `[a]`; None for the single frequency zero


def components(measure: SpectralMeasure, largest: int = 1 << 18) -> list[Component] | None:
    """Write a measure as a sum of components.

    The result is None if a part is neither elliptical nor discrete, or has more than `largest` atoms. Beside elliptical
    measures, a sixteenth of these are allowed.

    >>> from matheron import kernels
    >>> from matheron.kernels.composed_measures import components
    >>> (component,) = components((kernels.RBF(2.0) * kernels.Cosine(0.5)).terms(1)[0].measure(1)) or []
    >>> component.elliptical[0][0].scale, component.atoms[1]  # two atoms
    (tensor([0.5000], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """
    found = []
    for weight, measures in _convolutions(measure):
        elliptical: list[tuple[Elliptical, Tensor | None]] = []
        discrete: list[SpectralMeasure] = []
        for part in measures:
            inner, frame = _framed(part)
            if part.atoms() is not None:
                discrete.append(part)
            elif not isinstance(inner, Elliptical) or inner.density_dims is None:
                return None
            else:
                shift, inner = getattr(inner, "shift", None), copy(inner)
                if shift is not None:
                    discrete += [Atom(shift if frame is None else shift @ frame)] * bool(shift.any())
                    inner.shift = None  # pyright: ignore[reportAttributeAccessIssue]
                elliptical = _with(elliptical, inner, frame)
        atoms = Convolution(discrete).atoms() if discrete else None
        if discrete and (atoms is None or len(atoms[1]) * (16 if elliptical else 1) > largest):
            return None
        found.append(Component(weight, elliptical, atoms))
    return found


def _convolutions(measure: SpectralMeasure) -> list[tuple[Tensor | float, list[SpectralMeasure]]]:
    """Expand a measure as a mixture of convolutions: their weights, and the measures of each."""
    if isinstance(measure, Mixture):
        both = zip(measure.weights, measure.measures, strict=True)
        return [(w * weight, more) for w, part in both for weight, more in _convolutions(part)]
    if isinstance(measure, Convolution):
        choices: list[tuple[Tensor | float, list[SpectralMeasure]]] = [(1.0, [])]
        for part in measure.measures:
            choices = [(w * weight, [*had, *more]) for w, had in choices for weight, more in _convolutions(part)]
        return choices
    if isinstance(measure, Moved):
        return [(w, [measure.of(m) for m in more]) for w, more in _convolutions(measure.measure)]
    return [(1.0, [measure])]


def _framed(measure: SpectralMeasure) -> tuple[SpectralMeasure, Tensor | None]:
    """Split a measure into one that is not moved and its frame `[p, d]`: theta = own @ frame."""
    if not isinstance(measure, Moved):
        return measure, None
    inner, frame = _framed(measure.measure)
    p, d = measure.measure.input_dim, measure.input_dim
    frame = measure.moved(torch.eye(p, dtype=torch.float64, device="cpu") if frame is None else frame)
    return inner, None if torch.equal(frame, torch.eye(d, dtype=torch.float64, device="cpu")) else frame


def _with(
    found: list[tuple[Elliptical, Tensor | None]], inner: Elliptical, frame: Tensor | None
) -> list[tuple[Elliptical, Tensor | None]]:
    """Add a measure, convolved with one in the same frame if the result is elliptical: one radius beats two."""
    for i, (other, same) in enumerate(found):
        alike = frame is same or (frame is not None and same is not None and torch.equal(frame, same))
        if alike and (both := compound([other, inner])) is not None:
            return [*found[:i], (both, frame), *found[i + 1 :]]
    return [*found, (inner, frame)]
