"""Variograms: half the mean squared difference of values some distance apart, from data and from a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_count, as_points, as_tensor
from ..models import ExactGP
from ..solvers.cholesky import safe_cholesky
from .sphere import OnSphere

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Variogram:
    """gamma(h) = E (f(x + h) - f(x))^2 / 2 in bins of distance: mean distance, gamma, and how many pairs."""

    lags: np.ndarray
    gamma: np.ndarray
    pairs: np.ndarray
    points: np.ndarray = field(repr=False)
    edges: np.ndarray = field(repr=False)

    def band(
        self, model: ExactGP | OnSphere, *, level: float = 0.9, num: int = 200, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """A band of variograms of data drawn from the model at these points: quantiles at every lag.

        A variogram belongs to one realisation. Its pairs share points, so dots at large distances deviate together
        from the curve of the model. A map that is some ranges wide can have half or twice the sill of the model by
        chance.

        Args:
            level: share of the variograms that is inside the band, at each lag.
            num: number of data sets to draw, at 500 or fewer of the points.

        >>> import torch, matheron
        >>> from matheron import fields, kernels
        >>> X = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> gp = matheron.ExactGP(kernels.Matern(1.5, 0.2), X, (6 * X[:, 0]).sin(), noise=0.01)
        >>> low, high = fields.variogram(X, gp.train_targets, bins=5).band(gp)
        >>> bool((low < fields.model_variogram(gp, [0.3])).all() and low.shape == high.shape == (5,))
        True
        """
        gp = _inner(model)
        if self.points.shape[1] != gp.input_dim:
            raise ValueError(
                f"model: expected one of points as those of this variogram, in {self.points.shape[1]} dimensions, got "
                f"{gp.input_dim}; for a model of longitudes and latitudes take variogram(model.points(lonlat), y)"
            )
        generator = torch.Generator().manual_seed(seed)
        some = torch.randperm(len(self.points), generator=generator, device="cpu")[:500]
        points = torch.as_tensor(self.points, device="cpu")[some]
        inner = points if gp.input_transform is None else gp.input_transform(points)
        with torch.no_grad():
            K = gp.kernel.forward(inner, inner).double() * _unit(gp)
            noise = float(gp.noise.mean()) * _unit(gp)
            L, _ = safe_cholesky(K + noise * torch.eye(len(K), device="cpu").to(K), "k(X, X) + noise")
        draws = (L @ torch.randn(len(L), num, generator=generator, dtype=torch.float64, device="cpu")).mT.numpy()
        lags, gamma, _ = _binned(points, draws, self.edges)
        low, high = np.quantile(gamma, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return np.interp(self.lags, lags, low), np.interp(self.lags, lags, high)

    def plot(self, model: ExactGP | OnSphere | None = None, *, ax: Axes | None = None, label: str = "data") -> Axes:
        """Plot the variogram, with dots by number of pairs. If a model is given, add its variogram along each
        coordinate, and the band that contains 90% of variograms of data drawn from it."""
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots()[1]
        ax.scatter(
            self.lags, self.gamma, s=10 + 90 * self.pairs / self.pairs.max(), label=label, color="black", zorder=3
        )
        if model is not None:
            h = np.linspace(0, self.lags.max() * 1.05, 200)
            every = range(1 if isinstance(model, OnSphere) else model.input_dim)
            curves = [model_variogram(model, h, direction=i) for i in every]
            if all(np.allclose(curve, curves[0], rtol=1e-6) for curve in curves):
                ax.plot(h, curves[0], label="model")
            else:
                for i, curve in enumerate(curves):
                    ax.plot(h, curve, label=f"model, along coordinate {i}")
            words = "90% of data sets drawn from the model"
            ax.fill_between(self.lags, *self.band(model), alpha=0.15, color="tab:blue", linewidth=0, label=words)
        ax.set(xlabel="distance", ylabel="semivariance", xlim=(0, None), ylim=(0, None))
        ax.legend()
        return ax


def variogram(X: ArrayLike, y: ArrayLike, *, bins: int = 15, largest: float | None = None, seed: int = 0) -> Variogram:
    """The empirical variogram of values y `[n]` at points X `[n, d]`.

    Args:
        bins: number of bins, evenly spaced in distance; empty ones are left out.
        largest: largest distance; by default half of the largest distance between two points.
        seed: random seed for choosing 3000 observations where there are more.

    >>> import torch
    >>> from matheron import fields
    >>> X = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> v = fields.variogram(X, (6 * X[:, 0]).sin(), bins=5)
    >>> bool(v.gamma[0] < v.gamma[2]), int(v.pairs.sum()) > 1000
    (True, True)
    """
    points, bins = as_points(X, "X").double(), as_count(bins, "bins")
    values = as_tensor(y, "y", like=points)
    if len(points) < 2 or values.shape != points.shape[:1]:
        raise ValueError(
            f"expected points [n, d] and values [n], at least 2, got {list(points.shape)}, {list(values.shape)}"
        )
    if len(points) > 3000:  # random pairs among at most this many points
        some = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed), device="cpu")[:3000]
        points, values = points[some], values[some]
    edges = np.linspace(0, float(torch.pdist(points).max()) / 2 if largest is None else largest, bins + 1)
    lags, gamma, pairs = _binned(points, values[None].numpy(), edges)
    if not len(pairs):
        raise ValueError(
            f"X: expected points that are more than 0 and up to {edges[-1]:.4g} apart, got no pair of such"
        )
    return Variogram(lags, gamma[0], pairs, points.numpy(), edges)


def _binned(points: Tensor, values: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean distances `[b]`, variograms `[s, b]` of values `[s, n]` and numbers of pairs `[b]`, of bins with pairs."""
    distance, bins = torch.pdist(points).numpy(), len(edges) - 1
    which = np.digitize(distance, edges, right=True) - 1
    inside = (which >= 0) & (which < bins)
    i, j = (index.numpy()[inside] for index in torch.triu_indices(len(points), len(points), offset=1, device="cpu"))
    which = which[inside]
    pairs = np.bincount(which, minlength=bins)
    some = pairs > 0
    lags = np.bincount(which, distance[inside], minlength=bins)[some] / pairs[some]
    gamma = [np.bincount(which, (v[i] - v[j]) ** 2 / 2, minlength=bins)[some] / pairs[some] for v in values]
    return lags, np.stack(gamma), pairs[some]


def model_variogram(model: ExactGP | OnSphere, lags: ArrayLike, *, direction: int = 0) -> np.ndarray:
    """k(0) - k(h) + noise of a stationary model, in the user's units, along one coordinate; 0 at h = 0.

    Lags of a model of the whole sphere are chords, along a meridian from the equator.

    >>> import matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=0.5)
    >>> fields.model_variogram(gp, [0.0, 10.0]).tolist()
    [0.0, 1.5]
    """
    h = as_tensor(lags, "lags").double()
    if isinstance(model, OnSphere) and model.centre is None:
        arc = 2 * (h / (2 * model.radius)).clamp_max(1.0).asin()
        ends = model.radius * torch.stack([arc.cos(), 0 * arc, arc.sin()], dim=1)
        origin, ahead, gp = model.points([[0.0, 0.0]]), ends, _inner(model)
    else:
        gp = _inner(model)
        origin = torch.zeros(1, gp.input_dim, dtype=torch.float64, device="cpu")
        ahead = torch.zeros(len(h), gp.input_dim, dtype=torch.float64, device="cpu")
        ahead[:, direction] = h
    if gp.input_transform is not None:
        origin, ahead = gp.input_transform(origin), gp.input_transform(ahead)
    k = gp.kernel.diag(origin) - gp.kernel(origin, ahead)[0]
    return (_unit(gp) * (k + (h > 0) * float(gp.noise.mean()))).detach().numpy()


def _inner(model: ExactGP | OnSphere) -> ExactGP:
    """The model that the variogram is of; a TypeError if it is not one of values of one output."""
    gp = model.inner if isinstance(model, OnSphere) else model
    if not isinstance(gp, ExactGP) or gp.num_outputs > 1:
        raise TypeError(
            f"model: expected an ExactGP of one output, or what fit_sphere returns for measurements, got {gp!r}; other "
            "models have no variogram of the data in closed form"
        )
    return gp


def _unit(model: ExactGP) -> float:
    """A variance of the model's own space in the user's units."""
    if model.output_transform is None:
        return 1.0
    if not model.output_transform.affine:
        raise TypeError("model_variogram: expected a model of the values themselves, not of a transform of them")
    return float(model.output_transform.derivative(torch.zeros(1, 1, dtype=torch.float64, device="cpu"))) ** 2
