"""Variograms: half the mean squared difference of values some distance apart, from data and from a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..checks import ArrayLike, as_points, as_tensor
from ..gp import ExactGP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Pairs are taken of at most this many observations, picked at random.
MOST = 3000


@dataclass(frozen=True)
class Variogram:
    """gamma(h) = E (f(x + h) - f(x))^2 / 2 in bins of distance: mean distance, gamma, and how many pairs."""

    lags: np.ndarray
    gamma: np.ndarray
    pairs: np.ndarray

    def plot(self, model: ExactGP | None = None, *, ax: Axes | None = None, label: str = "data") -> Axes:
        """Draw it, the size of a dot by its pairs, with a fitted model's along each coordinate."""
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        ax.scatter(
            self.lags, self.gamma, s=10 + 90 * self.pairs / self.pairs.max(), label=label, color="black", zorder=3
        )
        if model is not None:
            h = np.linspace(0, self.lags.max() * 1.05, 200)
            for i in range(model.input_dim):
                ax.plot(h, model_variogram(model, h, direction=i), label=f"model, along coordinate {i}")
        ax.set(xlabel="distance", ylabel="semivariance", xlim=(0, None), ylim=(0, None))
        ax.legend()
        return ax


def variogram(X: ArrayLike, y: ArrayLike, *, bins: int = 15, largest: float | None = None, seed: int = 0) -> Variogram:
    """The empirical variogram of values y `[n]` at points X `[n, d]`.

    Args:
        bins: how many, evenly spaced in distance; those without pairs are left out.
        largest: distance; half the largest between two points where not given.
        seed: of which observations are taken where there are more than 3000.

    >>> import torch
    >>> from matheron import fields
    >>> X = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> v = fields.variogram(X, (6 * X[:, 0]).sin(), bins=5)
    >>> bool(v.gamma[0] < v.gamma[2]), int(v.pairs.sum()) > 1000
    (True, True)
    """
    points = as_points(X, "X").double()
    values = as_tensor(y, "y", like=points)
    if len(points) < 2 or values.shape != points.shape[:1]:
        raise ValueError(
            f"expected points [n, d] and values [n], at least 2, got {list(points.shape)}, {list(values.shape)}"
        )
    if len(points) > MOST:
        some = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:MOST]
        points, values = points[some], values[some]
    i, j = torch.triu_indices(len(points), len(points), offset=1)
    distance = torch.pdist(points).numpy()
    half = (values[i] - values[j]).square().numpy() / 2
    edges = np.linspace(0, distance.max() / 2 if largest is None else largest, bins + 1)
    which = np.digitize(distance, edges, right=True) - 1
    inside = (which >= 0) & (which < bins)
    which = which[inside]
    pairs = np.bincount(which, minlength=bins)
    some = pairs > 0
    lags, gamma = (np.bincount(which, v[inside], minlength=bins)[some] / pairs[some] for v in (distance, half))
    return Variogram(lags, gamma, pairs[some])


def model_variogram(model: ExactGP, lags: ArrayLike, *, direction: int = 0) -> np.ndarray:
    """k(0) - k(h) + noise of a stationary model, in the user's units, along one coordinate; 0 at h = 0."""
    h = as_tensor(lags, "lags").double()
    origin = torch.zeros(1, model.input_dim, dtype=torch.float64)
    ahead = torch.zeros(len(h), model.input_dim, dtype=torch.float64)
    ahead[:, direction] = h
    unit = 1.0
    if model.input_transform is not None:
        origin, ahead = model.input_transform(origin), model.input_transform(ahead)
    if model.output_transform is not None:
        if not model.output_transform.affine:
            raise TypeError("model_variogram: expected a model of the values themselves, not of a transform of them")
        unit = float(model.output_transform.derivative(torch.zeros(1, 1, dtype=torch.float64))) ** 2
    k = model.kernel.diag(origin) - model.kernel(origin, ahead)[0]
    return (unit * (k + (h > 0) * float(model.noise.mean()))).detach().numpy()
