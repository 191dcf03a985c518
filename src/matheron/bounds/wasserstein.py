"""prop:wasserstein_bound: the error of decoupled paths is the sparse posterior's, plus C1 times the prior's."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..checks import ArrayLike, Random, as_array, as_count, as_generator
from ..features import Features
from ..metrics import gaussian_coupling, gaussian_wasserstein
from ..paths import PriorPlusUpdate
from ..samplers import decoupled_moments, moments
from ..samplers.conditionals import PriorAt, inner_points
from ..samplers.linear_model import feature_covariance, shared_bases
from ..updates import normals
from .norms import Constants, box_sides, constants, one_output


class PriorError(NamedTuple):
    """An upper bound of W2 in the supremum norm between prior and approximate prior, and its Monte Carlo error."""

    value: float
    standard_error: float


class WassersteinBound(NamedTuple):
    """Both sides of `eqn:wasserstein_bound`: `measured` <= `bound` = `sparse_error` + C1 `prior_error`."""

    measured: float
    bound: float
    sparse_error: float
    prior_error: PriorError
    constants: Constants

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound


def prior_error(
    model: object,
    basis: Features | PriorPlusUpdate,
    x: ArrayLike,
    *,
    num_draws: int = 4096,
    generator: Random = None,
    seed: int | None = None,
) -> PriorError:
    """W2 in the supremum norm over the points x, between a model's prior and that of a basis: an upper bound.

    Every coupling bounds W2 from above. This one is explicit: f = R zeta and f^(w) = Q zeta with the same zeta, R and Q
    the roots that are optimal for the l2 norm (`metrics.gaussian_coupling`); E max_x |f - f^(w)|^2 is then a mean
    over draws of zeta. The supremum is over the points given, so give a mesh of the domain. Over several bases, the
    mean of the squares.
    """
    gp, s = one_output(model), as_count(num_draws, "num_draws")
    generator = as_generator(generator, seed)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        K = at.K_xx
        features, shares = shared_bases(basis, K.device)
        total, variance = 0.0, 0.0
        for g, share in enumerate(shares.tolist()):
            R, Q = gaussian_coupling(K, feature_covariance(features.select(g), at.x_rows))
            largest = ((R - Q) @ normals((len(K), s), generator).to(K)).abs().amax(0).square()  # [s]
            total += share * float(largest.mean())
            variance += share**2 * float(largest.var()) / s
    value = math.sqrt(total)
    return PriorError(value, math.sqrt(variance) / (2 * value) if value else 0.0)


def wasserstein_bound(
    model: object,
    basis: Features | PriorPlusUpdate,
    x: ArrayLike,
    domain: tuple[ArrayLike, ArrayLike],
    *,
    exact: object = None,
    num_draws: int = 4096,
    generator: Random = None,
    seed: int | None = None,
) -> WassersteinBound:
    """Measure both sides of `eqn:wasserstein_bound` on the box `domain`, over points x spread evenly in it.

    Norms in L2 are means over x times the box's volume. C1 is the paper's, with diam(X)^d for the volume.

    Args:
        model: an exact or sparse model of one output, with a stationary kernel.
        basis: the prior's features, or paths that have them.
        exact: the exact model f | y that a sparse one approximates; None measures decoupled paths against the model
            itself, and `sparse_error` is zero.
    """
    gp = one_output(model)
    scale = float(box_sides(domain, gp.input_dim).prod()) / len(as_array(x))
    sparse = moments(gp, x)
    truth = sparse if exact is None else moments(exact, x)
    measured = math.sqrt(scale) * gaussian_wasserstein(*decoupled_moments(gp, basis, x), *truth)
    sparse_error = math.sqrt(scale) * gaussian_wasserstein(*sparse, *truth) if exact is not None else 0.0
    prior = prior_error(gp, basis, x, num_draws=num_draws, generator=generator, seed=seed)
    of = constants(gp, domain)
    return WassersteinBound(measured, sparse_error + of.C1 * prior.value, sparse_error, prior, of)
