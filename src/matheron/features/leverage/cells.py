"""One factor of a spectrum, cut into cells: shells of a radius, or single atoms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy

import numpy as np
import torch
from torch import Tensor

from ...core.modes import as_numpy, plain
from ...kernels.spectral import Elliptical
from ..harmonics import leading_signs

# Shells of one factor, and the share of its mass that may lie outside of them all.
NUM_SHELLS, LOST_MASS = 512, 1e-10
# Where the range of shells is searched: radii from 1e-35 to 1e100, in units of the measure's scale.
_SEARCHED = (-80.0, 230.0)
# Tables of shells that are kept, by the measure's shape: they are the same for all lengthscales.
_TABLES: dict[tuple | None, tuple[float, float, Tensor, Tensor]] = {}
_MOST_TABLES = 64


def identity(d: int) -> Tensor:
    """The frame of all axes."""
    return torch.eye(d, dtype=torch.float64, device="cpu")


class SpectralFactor(ABC):
    """One factor of a term's spectrum: cells with masses `[c]` that sum to one, and an index along which they lie."""

    masses: Tensor  # [c]
    index: Tensor  # [c], increasing with the frequency
    num_uniforms: int
    input_dim: int
    half: bool  # of two frequencies that are each other's negatives one is drawn
    form: tuple  # factors of one form are `located` alike
    axes: tuple[int, ...]  # coordinates that the frequencies have

    @abstractmethod
    def located(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """A uniform number `[k]` that chooses the cell, and what else of U `[k, p]` says where in it: independent."""

    @abstractmethod
    def stretched(self, factor: float) -> Tensor:
        """Masses `[c]` of the measure with its frequencies times a factor, or something as wide."""

    def tail(self, least: float) -> Tensor:
        """Even masses `[c]` from the median out to where this share of the measure lies beyond."""
        beyond = self.masses.flip(0).cumsum(0).flip(0)
        inside = ((beyond <= 0.5) & (beyond > max(least, LOST_MASS))).double()
        return inside / inside.sum() if inside.any() else self.masses


class Shells(SpectralFactor):
    """An elliptical measure in coordinates theta A^T of its own: cells are intervals of log |theta A^T / scale|.

    The rows of `frame` A `[p, d]` are orthonormal: some axes, or axes that were turned.
    """

    def __init__(self, measure: Elliptical, frame: Tensor, *, alone: bool, half: bool = True) -> None:
        self.measure, self.frame, self.input_dim = measure, frame, frame.shape[1]
        d = self.own_dim = len(frame)
        self.whole = torch.equal(frame, identity(self.input_dim))
        self.axes = tuple(range(d)) if self.whole else _axes(frame)
        # What the table depends on: the kind of measure, its dimension and shape; None where that is not numbers.
        shape = measure.shape
        self.key = None if shape is None else (type(measure), *shape)
        self.log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        self.low, self.step, self.index, self.masses = self._tabulated()
        shift = getattr(measure, "shift", None)
        self._moved(None if shift is None or not bool(shift.any()) else shift, alone, half)

    def _moved(self, shift: Tensor | None, alone: bool, half: bool) -> None:
        self.shift = shift  # there and to its negative
        self.half = half and self.shift is None
        self.signed = self.shift is not None and not alone
        self.num_uniforms = self.own_dim + self.signed
        self.form = (self.own_dim, self.half, self.signed)

    def about(self, centres: Tensor) -> list[Shells]:
        """The same shells about centres `[c, p]`, of a measure that has no shift of its own."""
        found = []
        for centre, moved in zip(centres, centres.any(1).tolist(), strict=True):
            found.append(copy(self))
            found[-1]._moved(centre if moved else None, alone=True, half=True)
        return found

    @torch.no_grad()
    def _tabulated(self) -> tuple[float, float, Tensor, Tensor]:
        """The first shell's lower end and the shells' width, in log radius; their middles `[c]` and masses `[c]`."""
        if (known := _TABLES.get(self.key)) is not None:  # asked once: another thread may clear them
            return known
        step = 0.5
        coarse = torch.arange(*_SEARCHED, step, dtype=torch.float64, device="cpu")
        mass = self.log_shell(coarse + step / 2).exp() * step
        below, above = mass.cumsum(0), mass.flip(0).cumsum(0).flip(0)
        kept = ((below > LOST_MASS * below[-1]) & (above > LOST_MASS * below[-1])).nonzero()[:, 0]
        low, high = float(coarse[kept[0]]), float(coarse[kept[-1]]) + step
        step = (high - low) / NUM_SHELLS
        index = low + step * (torch.arange(NUM_SHELLS, dtype=torch.float64, device="cpu") + 0.5)
        waves = self.measure.waves
        within = step * ((torch.arange(waves, dtype=torch.float64, device="cpu") + 0.5) / waves - 0.5)
        masses = self.log_shell(index[:, None] + within).exp().mean(-1)
        table = low, step, plain(index), plain(masses / masses.sum())
        if self.key is not None:
            if len(_TABLES) >= _MOST_TABLES:
                _TABLES.clear()
            _TABLES[self.key] = table
        return table

    def within(self, beyond: Tensor) -> Tensor:
        """The shells `[c]` all of whose frequencies have coordinates below these `[d]`."""
        if self.shift is not None:
            return torch.zeros_like(self.masses, dtype=torch.bool)
        reach = (self.measure.scale.detach()[:, None] * self.frame).norm(dim=0)  # [d], of frequencies of radius one
        radius = torch.where(reach > 0, beyond / reach.clamp_min(1e-300), math.inf).min()
        return self.index + self.step / 2 <= radius.log()

    def log_shell(self, log_radius: Tensor) -> Tensor:
        """The log density of log |theta / scale|."""
        return self.measure.log_radial((2 * log_radius).exp()) + self.own_dim * log_radius + self.log_area

    def located(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Of d uniform numbers no more than d are needed: a net of few dimensions is the more even. In three dimensions
        and more they are a standard normal vector, as for plain features; its norm and its direction are independent.
        """
        d, sign = self.own_dim, U[:, self.own_dim :]
        if d == 1:
            u = U[:, 0] if self.half else (2 * U[:, 0] - 1).abs()
            direction = torch.ones_like(U[:, :1])
            if not self.half:
                direction[U[:, :1] < 0.5] = -1.0
        elif d == 2:
            u, angle = U[:, 0], (math.pi if self.half else 2 * math.pi) * U[:, 1]
            direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        else:
            z = torch.special.ndtri(U[:, :d])
            squared = z.square().sum(-1)
            u = torch.special.gammainc(torch.full_like(squared, d / 2), squared / 2)  # of a chi-squared variable
            direction = z / squared.sqrt()[:, None]
        return u, torch.cat([direction, sign], dim=-1)

    def stretched(self, factor: float) -> Tensor:
        moved = round(math.log(factor) / self.step)
        return torch.cat([torch.zeros(moved, dtype=torch.float64, device="cpu"), self.masses])[:NUM_SHELLS]


class Atoms(SpectralFactor):
    """A discrete measure: a cell is an atom."""

    num_uniforms = 1
    form = ("atoms",)

    def __init__(self, theta: Tensor, mass: Tensor, *, half: bool) -> None:
        self.half = half
        kept = mass.detach() > 1e-14 * mass.detach().max()
        if half:
            sign = leading_signs(theta)
            mass, kept = torch.where(sign != 0, 2 * mass, mass), kept & (sign >= 0)
        self.theta, self.mass = theta[kept], mass[kept]  # [c, d], [c]
        self.input_dim = theta.shape[1]
        self.axes = _axes(self.theta.detach())
        self.index = self.theta.detach().norm(dim=-1)
        self.masses = self.mass.detach() / self.mass.detach().sum()

    def located(self, U: Tensor) -> tuple[Tensor, Tensor]:
        return U[:, 0], U[:, 1:]

    def stretched(self, factor: float) -> Tensor:
        return self.masses.sqrt() / self.masses.sqrt().sum()

    def tail(self, least: float) -> Tensor:
        """Atoms are in no order: nearly even masses over those of some weight."""
        even = self.masses**0.25 * (self.masses > 0.01 * max(least, LOST_MASS))
        return even / even.sum() if even.any() else self.masses


def _axes(vectors: Tensor) -> tuple[int, ...]:
    """The coordinates that some of the vectors `[c, d]` have."""
    return tuple(np.flatnonzero(np.any(as_numpy(vectors) != 0, axis=0)).tolist())
