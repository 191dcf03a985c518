"""Gaussian processes fitted to evaluations, for Thompson sampling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Gamma

from ..core.sites import Sites
from ..fitting import FitWarning as FitWarning
from ..fitting import maximised
from ..kernels import Matern
from ..models import ExactGP
from ..models.transforms import Affine


def fitted(X: Tensor, y: Tensor, bounds: Tensor | None = None, noise: float | None = None) -> ExactGP:
    """A model of values y `[n]` at X `[n, d]`, in the unit cube or in the box `bounds`: Matern-5/2, a lengthscale per
    coordinate, noise known or learned.

    Kernel, priors and the floor under the noise are those of Optuna's GPSampler. The search has one start, and a second
    one with more or less noise where that may end higher, so it draws no random numbers. Where it fails, the model has
    the hyperparameters that it starts from. Values whose squares a float64 cannot hold are in units of the largest.
    """
    d, unit = X.shape[1], _unit(y)
    y, noise = y / unit, None if noise is None else noise / float(unit) ** 2
    lower, upper = (X.new_zeros(d), X.new_ones(d)) if bounds is None else bounds.to(X)
    inward = Affine(1 / (upper - lower), -lower / (upper - lower))
    centre, deviation = y.mean(), y.std() if len(y) > 1 else y.new_ones(())
    # Values that differ only by rounding count as equal.
    outward = Affine(deviation if float(deviation) > 1e-13 * float(y.abs().max()) else y.new_ones(()), centre)
    model_X, model_y = inward(X), outward.inverse(y)
    priors = {"lengthscale": _lengthscale_density, "outputscale": _gamma(2.0, 1.0)}
    kernel, variances, mean = maximised(
        1.0 * Matern(2.5, torch.ones(d, dtype=torch.float64, device="cpu")),
        model_X,
        model_y,
        noise=None if noise is None else y.new_full((len(y),), noise) / outward.scale.square(),
        priors=priors if noise is not None else priors | {"noise": _gamma(1.1, 30.0)},
        # With a higher lower bound on the noise (BoTorch's is 1e-4), draws of a noise-free function would still vary
        # where its value is known, and the search would never leave these points.
        floors={"lengthscale": 1e-3, "outputscale": 1e-4, "noise": 1e-6},
        first_noise=1e-3,
    )
    return ExactGP(kernel, model_X, model_y, variances, mean, input_transform=inward, output_transform=outward)


class Refits:
    """Models of a growing study: hyperparameters are refitted from time to time, and every model has all data.

    Up to EVERY observations, hyperparameters are fitted anew whenever there are new observations. Beyond, they are
    fitted to the first n observations, for sizes n that grow by the factor GROWTH, and to at most MOST of these. The
    hyperparameters therefore depend on the observations alone, and not on when a process was started.
    """

    EVERY, GROWTH, MOST = 100, 1.05, 500

    def __init__(self) -> None:
        self._last: tuple[tuple[Tensor, Tensor], ExactGP] | None = None

    def model(self, X: Tensor, y: Tensor) -> ExactGP:
        """A model of values y `[n]` at points X `[n, d]` of the unit cube."""
        size = len(y) if len(y) <= self.EVERY else self._size_for(len(y))
        first = (X[:size], y[:size])
        last = self._last  # data and their model, read at once, because trials of several threads ask for models
        if last is None or not all(map(torch.equal, last[0], first)):
            step = -(-size // self.MOST)
            self._last = last = first, fitted(X[:size:step], y[:size:step])
        known = last[1]
        if len(y) <= self.EVERY:
            return known
        assert known.input_transform is not None and known.output_transform is not None
        inner_y = known.output_transform.inverse(y[:, None])[:, 0]
        return known.replaced(
            sites=Sites(known.input_transform(X)), train_targets=inner_y, noise=known.noise[:1].repeat(len(y))
        )

    def _size_for(self, n: int) -> int:
        size = self.EVERY
        while (following := int(size * self.GROWTH)) <= n:
            size = following
        return size


def representable(values: Tensor) -> Tensor:
    """Scale columns whose squares overflow float64 by their largest number, and leave the others unchanged."""
    return values / _unit(values)


def _unit(values: Tensor) -> Tensor:
    largest = values.nan_to_num(0.0).abs().amax(dim=0, keepdim=True)
    return torch.where((largest > 1e100) | ((largest > 0) & (largest < 1e-100)), largest, 1.0)


def _gamma(shape: float, rate: float) -> Gamma:
    """A gamma distribution in float64 on the CPU; from plain numbers torch takes its default dtype and device."""
    alpha, beta = torch.tensor([shape, rate], dtype=torch.float64, device="cpu")
    return Gamma(alpha, beta)


def _lengthscale_density(x: Tensor) -> Tensor:
    """log p = -(l^2 + l^-2) / 10: that of Optuna's GPSampler.

    Long lengthscales are unlikely under this prior. With a heavy tail, a parameter of small effect could get a
    lengthscale so long that draws never vary it again. All later trials would then agree in it, and no data could
    correct the lengthscale.
    """
    return -0.1 * (x.square() + x.square().reciprocal())
