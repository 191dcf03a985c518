"""prop:covariance_error: the error of the posterior covariance falls as ell^-1/2, at a rate free of dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..bases import Basis
from ..checks import ArrayLike, Random, as_count, as_generator
from ..samplers import decoupled_moments, moments
from ..samplers.linear_model import linear_features
from .fourier import KINDS, fourier_constant
from .norms import Constants, constants, one_output


class CovarianceBound(NamedTuple):
    """Both sides of `prop:covariance_error`: `measured` <= `bound` = `sparse_error` + C2 C3 / sqrt(ell).

    `measured` is a mean over bases, with its standard error.
    """

    measured: float
    standard_error: float
    bound: float
    sparse_error: float
    C2: float
    constants: Constants

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound


class Rate(NamedTuple):
    """sup |k^(d) - k^(s)| against ell, and the slope of a straight line through its logarithms."""

    num_features: list[int]
    errors: list[float]
    slope: float
    standard_error: float


def covariance_bound(
    model: object,
    num_features: int,
    x: ArrayLike,
    domain: tuple[ArrayLike, ArrayLike],
    *,
    exact: object = None,
    kind: str = "cosine",
    num_bases: int = 32,
    generator: Random = None,
    seed: int | None = None,
) -> CovarianceBound:
    """Measure both sides of `prop:covariance_error` on the box `domain`; suprema are over pairs of the points x.

    Args:
        model: an exact or sparse model of one output, with a stationary kernel of one term.
        exact: the exact model f | y that a sparse one approximates; None measures against the model itself.
        kind: "cosine" or "sincos", the random features that C2 is for.
        num_bases: over how many bases the expectation is taken.
    """
    gp, generator = one_output(model), as_generator(generator, seed)
    C2 = fourier_constant(gp.kernel, domain, input_dim=gp.input_dim, kind=kind)
    of = constants(gp, domain)
    truth = moments(gp if exact is None else exact, x).covariance
    sparse_error = 0.0 if exact is None else float((moments(gp, x).covariance - truth).abs().max())
    errors = _errors(gp, num_features, x, truth, kind, num_bases, generator)
    bound = sparse_error + C2 * of.C3 / math.sqrt(num_features)
    return CovarianceBound(float(errors.mean()), _standard_error(errors), bound, sparse_error, C2, of)


def covariance_rate(
    model: object,
    x: ArrayLike,
    num_features: Sequence[int] = (64, 256, 1024, 4096),
    *,
    kind: str = "cosine",
    num_bases: int = 16,
    generator: Random = None,
    seed: int | None = None,
) -> Rate:
    """How fast sup |k^(d) - k^(s)| over pairs of the points x falls with ell: the proposition says as ell^-1/2.

    The line is fitted by least squares weighted with the errors' own standard errors over `num_bases` bases.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.bounds import covariance_rate
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> rate = covariance_rate(gp, torch.rand(16, 1), seed=0)
    >>> -0.6 < rate.slope < -0.4
    True
    """
    gp, generator = one_output(model), as_generator(generator, seed)
    if len(set(num_features)) < 2:
        raise ValueError(f"num_features: expected at least two different numbers, got {list(num_features)}")
    truth = moments(gp, x).covariance
    found = [_errors(gp, ell, x, truth, kind, num_bases, generator) for ell in num_features]
    means = np.array([float(e.mean()) for e in found])
    spread = np.array([_standard_error(e) for e in found]) / means  # of the logarithms
    (slope, _), covariance = np.polyfit(np.log(num_features), np.log(means), 1, w=1 / spread, cov="unscaled")
    return Rate(list(num_features), means.tolist(), float(slope), math.sqrt(covariance[0, 0]))


def _errors(gp, ell: int, x: ArrayLike, truth, kind: str, num_bases: int, generator) -> torch.Tensor:
    """sup |k^(d) - truth| over pairs of x for each of several bases, `[num_bases]`."""
    g = as_count(num_bases, "num_bases")
    if g < 2:
        raise ValueError(f"num_bases: expected at least 2, for a standard error, got {g}")
    if kind == "sincos" and ell % 2:
        raise ValueError(f'num_features: expected an even number for "sincos", got {ell}')
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    features, _ = linear_features(gp, g, Basis(ell, kind, 1, None), generator)
    covariances = (decoupled_moments(gp, features.select(i), x).covariance for i in range(g))
    return torch.stack([(C - truth).abs().max() for C in covariances]).cpu()


def _standard_error(errors: torch.Tensor) -> float:
    return float(errors.std()) / math.sqrt(len(errors))
