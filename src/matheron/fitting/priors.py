"""Priors that are used where none are given, in standardised units."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.distributions import LogNormal

from .hyperparameters import Leaf, Prior


def _about(mode: float, spread: float) -> LogNormal:
    """Log-normal: most likely at the mode, and log x has a standard deviation of `spread`."""
    location = torch.tensor(math.log(mode) + spread**2, dtype=torch.float64)
    return LogNormal(location, torch.tensor(spread, dtype=torch.float64))


def default_kernel_priors(input_dim: int) -> dict[str, Prior]:
    """Priors of the kernel that `fit(None, ...)` takes, all log-normal: lengthscales grow with the root of d.

    The modes are sqrt(d) standard deviations for lengthscales, the targets' variance for the scale, and a hundredth of
    it for the noise; logarithms have standard deviations of 1.25, 1.5 and 2.5.
    """
    lengthscale = _about(math.sqrt(input_dim), 1.25)
    return {"lengthscale": lengthscale, "outputscale": _about(1.0, 1.5), "noise": _about(1e-2, 2.5)}


def weak_priors(leaves: Sequence[Leaf]) -> dict[str, Prior]:
    """For fewer observations than hyperparameters: what is positive within a factor of 10 or so of its usual size."""
    priors: dict[str, Prior] = {}
    for leaf in leaves:
        if leaf.kind == "positive":
            priors[leaf.name] = _about(1e-2 if leaf.name == "noise" else 1.0, 1.5)
        elif leaf.kind == "coupling":
            priors[leaf.name] = lambda B: -0.05 * torch.trace(B)
        else:
            priors[leaf.name] = lambda value: -0.1 * value.square()
    return priors
