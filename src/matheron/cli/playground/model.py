"""The computations behind the playground, independent of the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import kernels as K
from ...compare.metrics import gaussian_wasserstein
from ...compare.samplers import decoupled_moments, feature_covariance, moments
from ...drawing import draw, draw_prior
from ...models import ExactGP
from ...paths import AbstractPaths

KERNELS = {
    "Matern 5/2": lambda lengthscale: K.Matern(2.5, lengthscale),
    "Matern 3/2": lambda lengthscale: K.Matern(1.5, lengthscale),
    "Matern 1/2": lambda lengthscale: K.Matern(0.5, lengthscale),
    "RBF": lambda lengthscale: K.RBF(lengthscale),
    "Periodic": lambda lengthscale: K.Periodic(period=0.5, lengthscale=4 * lengthscale),
}
# The arguments of `draw` for each choice of features.
FEATURES = {"plain": "sobol", "the paper's": "cosine", "leverage": "leverage"}
NUM_POINTS = 200
_MEASURED = slice(None, None, 4)  # the cost of W2 is cubic in the number of points


@dataclass(frozen=True)
class Choices:
    """The settings of the sliders and switches. `noise` is a variance."""

    kernel: str = "Matern 5/2"
    lengthscale: float = 0.15
    noise: float = 1e-4
    num_features: int = 64
    num_paths: int = 8
    features: str = "plain"
    seed: int = 0


@dataclass(frozen=True)
class Picture:
    """Values on the grid x `[n]`: prior paths, updates and their sums, each `[s, n]`, and the exact posterior."""

    x: Tensor
    prior: Tensor
    update: Tensor
    posterior: Tensor
    mean: Tensor
    deviation: Tensor
    w2: float  # the distance between the law of paths with this basis and the exact posterior
    spread: float  # the posterior's standard deviation in the same units, sqrt(tr C)


@dataclass
class Playground:
    """The draw that is shown. New observations condition it, and moved sliders make a new draw."""

    choices: Choices = field(default_factory=Choices)
    observations: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        self._redraw()

    def choose(self, choices: Choices) -> None:
        """Change kernel, noise, features or number of paths, and draw again with the same seed."""
        if choices != self.choices:
            self.choices = choices
            self._redraw()

    def observe(self, observations: tuple[tuple[float, float], ...]) -> None:
        """Change the observations. If some were only added, the same draw is conditioned on them."""
        before = len(self.observations)
        added = observations[:before] == self.observations
        self.observations = observations
        if added:
            self.posterior = self._conditioned(self.posterior, observations[before:], before)
        else:
            self.posterior = self._conditioned(self.prior, observations, 0)

    def picture(self) -> Picture:
        x = torch.linspace(0, 1, NUM_POINTS, dtype=torch.float64, device="cpu")[:, None]
        prior, posterior, features = self.prior(x), self.posterior(x), self.prior.prior.features
        if self.observations:
            mean, covariance = moments(self._model(), x)
            implied = decoupled_moments(self._model(), features, x[_MEASURED]).covariance
        else:
            mean, covariance = torch.zeros(len(x), dtype=x.dtype, device="cpu"), self._kernel()(x, x)
            implied = feature_covariance(features, x[_MEASURED])
        deviation = covariance.diagonal().clamp_min(0).sqrt()
        centre, measured = mean[_MEASURED], covariance[_MEASURED, _MEASURED]
        w2 = gaussian_wasserstein(centre, implied, centre, measured)
        spread = float(measured.trace().clamp_min(0).sqrt())
        return Picture(x[:, 0], prior, posterior - prior, posterior, mean, deviation, w2, spread)

    def _redraw(self) -> None:
        """Draw from the prior, and condition the draw on all observations."""
        at = self.choices
        settings: dict[str, Any] = {"num_features": at.num_features, "seed": at.seed}
        basis = FEATURES[at.features]
        if basis == "leverage":  # leverage features need data; without data the plain basis is used
            known = draw(self._model(), 2, features=basis, **settings) if self.observations else None
            basis = FEATURES["plain"] if known is None else known.prior.features
        self.prior: AbstractPaths = draw_prior(self._kernel(), at.num_paths, input_dim=1, features=basis, **settings)
        self.posterior = self._conditioned(self.prior, self.observations, 0)

    def _conditioned(
        self, paths: AbstractPaths, observations: tuple[tuple[float, float], ...], already: int
    ) -> AbstractPaths:
        """Condition on one observation after another, each with its own noise draw: their order is irrelevant."""
        for number, (x, y) in enumerate(observations, start=already):
            paths = paths.condition_on([[x]], [y], noise=self.choices.noise, seed=self.choices.seed + 1 + number)
        return paths

    def _kernel(self) -> K.Kernel:
        return KERNELS[self.choices.kernel](self.choices.lengthscale)

    def _model(self) -> ExactGP:
        X, y = torch.tensor(self.observations, dtype=torch.float64, device="cpu").unbind(-1)
        return ExactGP(self._kernel(), X[:, None], y, noise=self.choices.noise)
