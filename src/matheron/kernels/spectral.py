"""Spectral measures: maps from uniforms to frequencies, and how they convolve and mix (Bochner's theorem).

A kernel with k(x, x) = 1 is k(x - x') = E cos(theta . (x - x')), theta drawn from its spectral measure. Because a
measure is a map from uniforms, the same code serves plain random, quasi-random and stratified frequencies, on any
device.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from ..modes import in_graph
from .compound import compound as compound
from .elliptical import Elliptical as Elliptical
from .elliptical import GammaScaled as GammaScaled
from .elliptical import Gaussian as Gaussian
from .elliptical import Student as Student
from .measure import SpectralMeasure as SpectralMeasure
from .special import scaled_bessel

LARGEST_ATOM_COUNT = 1 << 20


class Lattice(SpectralMeasure):
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
