"""The paper's error bounds in numbers: the constants C1, C2 and C3 and both sides of the two propositions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.boxes import as_box
from ..core.checks import ArrayLike, Random, as_array, as_count, as_generator, as_tensor, normals
from ..features import Features, FeatureSpec
from ..kernels import Kernel
from ..kernels.base import SpectralMeasure
from ..kernels.composed_measures import Convolution, Mixture, Moved
from ..kernels.radial import Gaussian, Student
from ..kernels.rational_quadratic import GammaScaled
from ..models import ExactGP, SparseGP
from ..models.libraries import describe
from ..paths import PriorPlusUpdate
from ..solvers.cholesky import solved
from .metrics import gaussian_coupling, gaussian_wasserstein
from .samplers import decoupled_moments, moments
from .samplers.conditionals import Factored, PriorAt, inner_points, single
from .samplers.linear_model import feature_covariance, linear_features, shared_bases


class OperatorNorm(NamedTuple):
    """The norm of a matrix from l-infinity to l-1: exact, or an upper bound with a lower one beside it."""

    value: float
    exact: bool
    lower: float


class Constants(NamedTuple):
    """The constants of both propositions, for inducing points Z (or data X) and a box."""

    C1: float
    C3: float
    inverse_norm: OperatorNorm  # of K_mm^-1, from l-infinity to l-1
    kernel_norm: float  # the largest |k|
    diameter: float
    num_centres: int


def operator_norm(A: ArrayLike, *, largest_exact: int = 20) -> OperatorNorm:
    """max |A s|_1 over |s|_inf <= 1, for a symmetric positive semi-definite A `[m, m]`.

    A vector of signs attains the maximum. Up to m = `largest_exact` all sign vectors are tried, and the norm is exact.
    For larger m the problem is NP-hard. Then the value is the smaller of two upper bounds, sum_ij |A_ij| and m
    lambda_max(A), and `lower` is a lower bound found by ascent on signs.

    >>> from matheron.compare.bounds import operator_norm
    >>> operator_norm([[2.0, -1.0], [-1.0, 2.0]])
    OperatorNorm(value=6.0, exact=True, lower=6.0)
    """
    A = as_tensor(A, "A").detach().double()
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"A: expected a square matrix, got shape {list(A.shape)}")
    m = len(A)
    if m <= largest_exact:
        best, at_once = 0.0, 1 << 14
        for start in range(0, 1 << (m - 1), at_once):  # s and -s give the same norm, so the first sign is fixed
            codes = torch.arange(start, min(start + at_once, 1 << (m - 1)), device=A.device)
            signs = 1.0 - 2.0 * ((codes[:, None] >> torch.arange(m, device=A.device)) & 1)  # [c, m]
            best = max(best, float((signs.to(A) @ A).abs().sum(1).max()))
        return OperatorNorm(best, True, best)
    values, vectors = torch.linalg.eigh(A)
    upper = min(float(A.abs().sum()), m * float(values[-1]))
    starts = torch.cat([vectors[:, -4:].mT, A[:4]]).sign()
    return OperatorNorm(upper, False, max(_ascend(A, s) for s in starts))


def _ascend(A: Tensor, s: Tensor) -> float:
    """The value at a fixed point of s -> sign(A s), an iteration that never lowers |A s|_1."""
    best = 0.0
    for _ in range(100):
        value = float((A @ s).abs().sum())
        if value <= best * (1 + 1e-12):
            break
        best, s = value, torch.where(A @ s < 0, -1.0, 1.0).to(A)
    return best


def constants(model: object, domain: tuple[ArrayLike, ArrayLike]) -> Constants:
    """C1 and C3 of a model on the box `domain` = (lower, upper), each a number or one per dimension.

        C1 = sqrt(2 diam(X)^d (1 + ||k||^2 ||K_mm^-1||^2))           prop:wasserstein_bound
        C3 = m (1 + ||K_mm^-1|| ||k||)^2                             prop:covariance_error

    ||k|| is the largest value of |k|, k(x, x) of a stationary kernel; ||K_mm^-1|| is the operator norm from
    l-infinity to l-1, which the paper's proof uses (its statement of C3 prints another). For a model of data, K_mm is
    K_nn + sigma^2 I.
    """
    gp = one_output(model)
    if any(term.forms for term in gp.kernel.terms(gp.input_dim)):
        raise TypeError("expected a stationary kernel: the propositions assume one")
    zero = torch.zeros(1, gp.input_dim, dtype=torch.float64, device="cpu")
    variance = float(gp.kernel.to("cpu").diag(zero))  # k(x, x)
    diameter = float(box_sides(domain, gp.input_dim).norm())
    with torch.no_grad():
        norm = operator_norm(torch.cholesky_inverse(Factored(gp, PriorAt(gp)).L))
    m = gp.num_data if isinstance(gp, ExactGP) else gp.num_inducing
    C1 = math.sqrt(2 * diameter**gp.input_dim * (1 + (variance * norm.value) ** 2))
    return Constants(C1, m * (1 + norm.value * variance) ** 2, norm, variance, diameter, m)


def lebesgue_constant(model: object, x: ArrayLike) -> float:
    """sup_x |K_mm^-1 k(Z, x)|_1 over the points x, often much smaller than its bound ||k|| ||K_mm^-1||.

    If x covers the domain and L is this value, (1 + L)^2 can replace C3 and sqrt(2 |X| (1 + L^2)) can replace C1.
    """
    gp = one_output(model)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        return float(solved(Factored(gp, at).L, at.K_mx).abs().sum(0).max())


def one_output(model: object) -> ExactGP | SparseGP:
    """The model, if the propositions cover it: one output, exact or sparse. Otherwise a TypeError."""
    gp = single(describe(model))
    if gp.num_outputs > 1 or gp.input_transform is not None or gp.output_transform is not None:
        raise TypeError("expected a model of one output and no transforms: the propositions are of those")
    return gp


def box_sides(domain: tuple[ArrayLike, ArrayLike], d: int) -> Tensor:
    """The sides `[d]` of a box (lower, upper)."""
    lower, upper = as_box(domain, "domain", input_dim=d).double().cpu()
    return upper - lower


# C2: how fast the covariance of random Fourier features converges to the kernel, uniformly over a box.
#
# The argument is that of Sutherland and Schneider, On the Error of Random Fourier Features (UAI 2015), proposition
# on the expected maximum error: symmetrise, then bound the supremum of a sub-Gaussian process by chaining over
# covers (Dudley). Its steps are taken here with numbers, so that each can be checked; docs/theory.md writes them
# out. The constant is of the same form, a number times sigma_p times the box's diameter times sqrt(d), but is not
# the number that they print.


KINDS = ("cosine", "sincos")


def fourier_constant(
    kernel: Kernel, domain: tuple[ArrayLike, ArrayLike], *, input_dim: int, kind: str = "cosine"
) -> float:
    """C2 with E sup |k^(w) - k| <= C2 / sqrt(ell) over a box, for independent random frequencies.

    Args:
        kernel: stationary, of one term (a scaled kernel, or a product); twice differentiable at zero, else C2 is
        infinite. domain: the box, (lower, upper).
        kind: "cosine", the paper's cos(theta . x + tau), or "sincos", pairs of an even number of features.

    >>> from matheron import kernels
    >>> from matheron.compare.bounds import fourier_constant
    >>> fourier_constant(kernels.Matern(0.5), (0.0, 1.0), input_dim=1)
    inf
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, which the bound is for, got {kind!r}")
    terms = [term for term in kernel.terms(input_dim) if float(term.variance) > 0]
    if len(terms) != 1 or terms[0].forms or terms[0].coupling is not None or not terms[0].stationary:
        raise TypeError("kernel: expected a stationary kernel of one term; bound the terms of a sum one by one")
    sides = box_sides(domain, input_dim)
    sigma = math.sqrt(second_moment(terms[0].measure(input_dim)))
    if math.isinf(sigma):
        return math.inf
    if kind == "sincos":
        # ell / 2 terms cos(theta . r), |theta|-Lipschitz in r = x - x'; no error at r = 0.
        constant = 2 * math.sqrt(2) * sigma * chaining_sum(2 * sides)
    else:
        # ell terms 2 cos(theta . x + tau) cos(theta . x' + tau), 2 |theta|-Lipschitz in (x, x'); at x = x' of variance
        # one half.
        constant = math.sqrt(0.5) + 2 * 2 * sigma * chaining_sum(torch.cat([sides, sides]))
    return float(terms[0].variance) * constant


def chaining_sum(sides: Tensor) -> float:
    """S with E sup |Z(t) - Z(centre)| <= S over a box, for Z sub-Gaussian with |t - s| for its metric.

    Nets of radius r_j = r_0 q^j, the first of them the centre alone; a link of net j has length r_{j-1} at most, and
    there are N(r_j) of them, so that S = sum_j r_{j-1} sqrt(2 log(2 N(r_j))). The best q is taken.
    """
    radius = float(sides.norm()) / 2
    best = math.inf
    for q in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        total, r, j = 0.0, radius, 0
        while r > 1e-14 * radius:  # what is left is below rounding
            link, r, j = r, radius * q ** (j + 1), j + 1
            total += link * math.sqrt(2 * (math.log(2) + log_cover(sides, r)))
        best = min(best, total)
    return best


def log_cover(sides: Tensor, r: float) -> float:
    """log N(r): how many balls of radius r, centred inside, cover a box. By cells of a grid, or by volume of a ball."""
    p = len(sides)
    cells = float((sides * math.sqrt(p) / (2 * r)).clamp_min(1).ceil().log().sum())
    return min(cells, p * math.log1p(float(sides.norm()) / r))


def second_moment(measure: SpectralMeasure) -> float:
    """sigma_p^2 = E |theta|^2, which is minus the Laplacian of the kernel at zero."""
    match measure:
        case Gaussian():
            shift = 0.0 if measure.shift is None else float(measure.shift.square().sum())
            return float(measure.scale.square().sum()) + shift
        case Student():  # the variance of a t with 2 nu degrees of freedom
            return math.inf if measure.nu <= 1 else float(measure.scale.square().sum()) * measure.nu / (measure.nu - 1)
        case GammaScaled():  # the Gamma's mean is one
            return float(measure.scale.square().sum())
        case Convolution():  # independent, with a random sign
            return sum(second_moment(m) for m in measure.measures)
        case Mixture():
            return sum(float(w) * second_moment(m) for w, m in zip(measure.weights, measure.measures, strict=True))
        case Moved():  # frequencies keep their lengths
            return second_moment(measure.measure)
    atoms = measure.atoms()
    if atoms is None:
        raise TypeError(f"no second moment is known for {type(measure).__name__}")
    theta, mass = atoms
    return float(mass @ theta.square().sum(-1))


# prop:covariance_error: the error of the posterior covariance falls as ell^-1/2, at a rate free of dimension.


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
        num_bases: number of bases over which the expectation is averaged.
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
    """Measure how sup |k^(d) - k^(s)| over pairs of the points x falls with ell. The proposition states ell^-1/2.

    The line is fitted by least squares weighted with the errors' own standard errors over `num_bases` bases.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import covariance_rate
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
    features, _ = linear_features(gp, FeatureSpec(kind, ell, 1, num_paths=g), generator)
    covariances = (decoupled_moments(gp, features.select(i), x).covariance for i in range(g))
    return torch.stack([(C - truth).abs().max() for C in covariances]).cpu()


def _standard_error(errors: torch.Tensor) -> float:
    return float(errors.std()) / math.sqrt(len(errors))


# prop:wasserstein_bound: the error of decoupled paths is the sparse posterior's, plus C1 times the prior's.


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

    Every coupling of the two gives an upper bound of W2. This one is explicit: f = R zeta and f^(w) = Q zeta with the
    same zeta, where R and Q are the roots that are optimal for the l2 norm (`metrics.gaussian_coupling`). E max_x |f -
    f^(w)|^2 is estimated by a mean over draws of zeta. The supremum is over the given points, so pass a mesh of the
    domain. For several bases, squares are averaged.
    """
    gp, s = one_output(model), as_count(num_draws, "num_draws")
    generator = as_generator(generator, seed)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        K = at.K_xx
        features, shares = shared_bases(basis, K.device)
        total, variance = 0.0, 0.0
        for g, share in enumerate(shares.tolist()):
            R, Q = gaussian_coupling(K, feature_covariance(features.select(g), at.x))
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
