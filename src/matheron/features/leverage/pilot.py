"""A pilot set of frequencies, and the leverage of a spectrum's cells from that of the pilot.

Every component of a kernel has frequencies of its own, as far out as leverage may be looking: the same at every draw.
Those of shells are kept in units of the scale, by the shape of the spectrum: all lengthscales share them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core.modes import as_numpy
from .cells import Atoms, Shells, SpectralFactor
from .proposal import Component
from .reference import net

# The pilot's frequencies follow the spectrum as it is and stretched by 1 + 3 / sqrt(d), and lie evenly along its tail.
_STRETCH = 3.0
# Frequencies of a component: alone; one of several; at least. The sum over components may be LARGEST, if that allows.
_ALONE, _EACH, _FEWEST, _LARGEST = 256, 128, 32, 384
# Runs of neighbours that leverage is averaged over: at the most, and frequencies in each.
_MOST_RUNS, _PER_RUN = 21, 4
_KEPT: dict[tuple, Part] = {}
_MOST_KEPT = 256


class Runs:
    """Places in order, in runs of neighbours."""

    def __init__(self, at: np.ndarray) -> None:
        self.order = np.argsort(at, kind="stable")
        count = max(1, min(_MOST_RUNS, len(at) // _PER_RUN))
        self.first = -(-np.arange(count) * len(at) // count)
        self.middle = self.means(at, np.ones(len(at)))

    def means(self, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Weighted means over each run, of values `[..., k]`."""
        w = weights[self.order]
        total = np.maximum(np.add.reduceat(w, self.first), 1e-300)
        return np.add.reduceat(w * values[..., self.order], self.first, axis=-1) / total

    def smooth(self, values: np.ndarray, weights: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Means of positive values `[m, k]` at these places, interpolated in logarithms; flat beyond the ends."""
        y = self.means(values, weights)
        y = np.log(np.maximum(y, np.maximum(1e-12 * y.max(-1, keepdims=True), 1e-300)))
        return np.exp([np.interp(index, self.middle, row) for row in y])


class Part(NamedTuple):
    """Of one factor: frequencies in units of its scale, about its centre; cells `[k]`, and p / q of these."""

    unit: np.ndarray  # [k, p]
    sign: np.ndarray | None  # [k, 1], of the centre
    cell: np.ndarray
    ratio: np.ndarray
    runs: Runs


def pilot(c: Component, count: int, least: float) -> tuple[np.ndarray, list[Part]]:
    """Pilot frequencies `[k, d]` of a component, and what is known of them for each of its factors.

    `least` is the share of a spectrum that lies beyond all of them.
    """
    least = 10 ** (round(2 * math.log10(max(least, 1e-300))) / 2)  # to half a decade: pilots are kept
    first = c.factors[0]
    dims = len(first.axes) if len(c.factors) == 1 and isinstance(first, Shells) else first.input_dim
    stretch = 1 + _STRETCH / math.sqrt(dims)
    U, column, parts, theta = net(count, c.num_uniforms), 0, [], []
    for f in c.factors:
        part = _part(f, U, column, least, stretch)
        parts.append(part)
        theta.append(_placed(f, part))
        column += f.num_uniforms
    return sum(theta[1:], start=theta[0]), parts


def _part(factor: SpectralFactor, U: Tensor, column: int, least: float, stretch: float) -> Part:
    key = ()
    if isinstance(factor, Shells) and factor.key:
        key = (*factor.key, factor.form, *U.shape, column, least, stretch)
    if (kept := _KEPT.get(key)) is not None:  # asked once: another thread may clear them
        return kept
    q = factor.masses + factor.stretched(stretch) + factor.tail(least)
    q = as_numpy(q / q.sum())
    u, within = (as_numpy(t) for t in factor.located(U[:, column : column + factor.num_uniforms]))
    cdf = q.cumsum()
    u = u * cdf[-1]
    cell = np.minimum(np.searchsorted(cdf, u), len(q) - 1)
    runs = Runs(as_numpy(factor.index)[cell])
    if isinstance(factor, Atoms):
        return Part(within, None, cell, as_numpy(factor.masses)[cell] / q[cell], runs)
    assert isinstance(factor, Shells)
    fraction = np.clip(1 - (cdf[cell] - u) / q[cell], 0, 1)
    log_radius = factor.low + factor.step * (cell + fraction)
    unit = within[:, : factor.own_dim] * np.exp(log_radius)[:, None]
    sign = np.where(within[:, -1:] < 0.5, -1.0, 1.0) if factor.signed else None
    density = as_numpy(factor.log_shell(torch.from_numpy(log_radius)).exp())  # of log radius
    part = Part(unit, sign, cell, density * factor.step / q[cell], runs)
    if key:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = part
    return part


def _placed(factor: SpectralFactor, part: Part) -> np.ndarray:
    """The frequencies `[k, d]` of a factor."""
    if isinstance(factor, Atoms):
        return as_numpy(factor.theta)[part.cell]
    assert isinstance(factor, Shells)
    own = part.unit * as_numpy(factor.measure.scale)
    if factor.shift is not None:
        shift = as_numpy(factor.shift)
        own = own + (shift if part.sign is None else part.sign * shift)
    return own if factor.whole else own @ as_numpy(factor.frame)


def number_of_each(spectra: int, products: int) -> int:
    """Of pilot frequencies for each of some spectra, each times so many monomials and columns of a coupling's root."""
    each = _ALONE if spectra == 1 else min(_EACH, max(_FEWEST, _LARGEST // spectra))
    return each if products <= 2 else min(each, max(2 * _FEWEST, 2 * each // products))


def by_cells(factors: list[SpectralFactor], parts: list[Part], lev: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The leverage of the cells of each factor `[m, c]`, scaled to means of one, from that `[m, k]` of frequencies of m
    components; and the means `[m]`."""
    mean, cells, alone = np.empty(0), [], len(factors) == 1  # all factors have the same mean, but for the smoothing
    # Over directions a root of the mean square is best; in a product it would count what other factors account for.
    power = 2.0 if alone else 1.0
    for factor, part in zip(factors, parts, strict=True):
        others = math.prod((p.ratio for p in parts if p is not part), start=np.ones(lev.shape[-1]))
        fitted = part.runs.smooth(lev**power, others, as_numpy(factor.index)) ** (1 / power)
        if isinstance(factor, Atoms) and alone:  # known, for those that were drawn
            fitted[:, part.cell] = lev
        mean = np.maximum(fitted @ as_numpy(factor.masses), 1e-300)
        cells.append(fitted / mean[:, None])
    return cells, mean
