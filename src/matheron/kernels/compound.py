"""The spectral measure of a product of radial kernels whose lengthscales are proportional.

RBF, Matern and RationalQuadratic are mixtures of RBFs, so that their frequencies are normal with a random variance.
Frequencies of a product are sums, and variances of normals add: a mixture of normals again, elliptical, with a density
that is a sum over the factors' variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..modes import in_graph, kept
from .elliptical import Elliptical, GammaScaled, Gaussian, Student
from .measure import SpectralMeasure

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
