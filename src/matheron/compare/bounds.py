"""The paper's error bounds as numbers: the constants C1, C2 and C3, and both sides of Propositions 3 and 4."""

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
    """The norm of a matrix from l-infinity to l-1; if it is not `exact`, `value` and `lower` are bounds."""

    value: float
    exact: bool
    lower: float


class Constants(NamedTuple):
    """The constants of Propositions 3 and 4 for inducing points Z (or data X) and a box."""

    C1: float
    C3: float
    inverse_norm: OperatorNorm  # of K_mm^-1, from l-infinity to l-1
    kernel_norm: float  # the largest |k|
    diameter: float
    num_centres: int


def operator_norm(A: ArrayLike, *, largest_exact: int = 20) -> OperatorNorm:
    """Compute max |A s|_1 over |s|_inf <= 1 for a symmetric positive semi-definite A `[m, m]`.

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
    """Return |A s|_1 at a fixed point of s -> sign(A s), an iteration that never decreases |A s|_1."""
    best = 0.0
    for _ in range(100):
        value = float((A @ s).abs().sum())
        if value <= best * (1 + 1e-12):
            break
        best, s = value, torch.where(A @ s < 0, -1.0, 1.0).to(A)
    return best


def constants(model: object, domain: tuple[ArrayLike, ArrayLike]) -> Constants:
    """Compute C1 and C3 of a model on the box `domain` = (lower, upper), each a number or one per dimension.

        C1 = sqrt(2 diam(X)^d (1 + ||k||^2 ||K_mm^-1||^2))           Proposition 3, equation (14)
        C3 = m (1 + ||K_mm^-1|| ||k||)^2                             Proposition 4, equation (15)

    ||k|| is the largest value of |k|, which is k(x, x) for a stationary kernel. ||K_mm^-1|| is the operator norm from
    l-infinity to l-1, which the paper's proof uses; its statement of C3 prints another norm. For an exact model, K_mm
    is K_nn + sigma^2 I.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import constants
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1.0)
    >>> round(constants(gp, (0.0, 1.0)).C3, 2)
    8.02
    """
    gp = one_output(model)
    if any(term.forms for term in gp.kernel.terms(gp.input_dim)):
        raise TypeError("model: expected a stationary kernel, which the propositions assume")
    zero = torch.zeros(1, gp.input_dim, dtype=torch.float64, device="cpu")
    variance = float(gp.kernel.to("cpu").diag(zero))  # k(x, x)
    diameter = float(box_sides(domain, gp.input_dim).norm())
    with torch.no_grad():
        norm = operator_norm(torch.cholesky_inverse(Factored(gp, PriorAt(gp)).L))
    m = gp.num_data if isinstance(gp, ExactGP) else gp.num_inducing
    C1 = math.sqrt(2 * diameter**gp.input_dim * (1 + (variance * norm.value) ** 2))
    return Constants(C1, m * (1 + norm.value * variance) ** 2, norm, variance, diameter, m)


def lebesgue_constant(model: object, x: ArrayLike) -> float:
    """Compute sup_x |K_mm^-1 k(Z, x)|_1 over the points x, often much smaller than its bound ||k|| ||K_mm^-1||.

    If the points x cover the domain and L is this value, (1 + L)^2 can replace C3 and sqrt(2 |X| (1 + L^2)) can
    replace C1.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import lebesgue_constant
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1.0)
    >>> round(lebesgue_constant(gp, [[0.0], [0.5]]), 3)
    0.501
    """
    gp = one_output(model)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        return float(solved(Factored(gp, at).L, at.K_mx).abs().sum(0).max())


def one_output(model: object) -> ExactGP | SparseGP:
    """Return the model as an exact or sparse model of one output, which the propositions cover, or raise a TypeError.

    >>> import matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import one_output
    >>> one_output(matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)).num_outputs
    1
    """
    gp = single(describe(model))
    if gp.num_outputs > 1 or gp.input_transform is not None or gp.output_transform is not None:
        raise TypeError("model: expected one output and no transforms, because the propositions only cover those")
    return gp


def box_sides(domain: tuple[ArrayLike, ArrayLike], d: int) -> Tensor:
    """Return the side lengths `[d]` of a box (lower, upper).

    >>> from matheron.compare.bounds import box_sides
    >>> box_sides(([0.0, 0.0], [1.0, 3.0]), 2).tolist()
    [1.0, 3.0]
    """
    lower, upper = as_box(domain, "domain", input_dim=d).double().cpu()
    return upper - lower


# C2: how fast the covariance of random Fourier features converges to the kernel, uniformly over a box.
#
# The argument is that of Sutherland and Schneider, On the Error of Random Fourier Features (UAI 2015), in their
# proposition on the expected maximum error: symmetrise, then bound the supremum of a sub-Gaussian process by chaining
# over covers (Dudley). The steps are computed here one by one, so that each can be checked; docs/theory.md derives
# them. The constant has the same form (a number times sigma_p times the box's diameter times sqrt(d)), but the number
# is not the one that they print.


KINDS = ("cosine", "sincos")


def fourier_constant(
    kernel: Kernel, domain: tuple[ArrayLike, ArrayLike], *, input_dim: int, kind: str = "cosine"
) -> float:
    """Compute C2 with E sup |k^(w) - k| <= C2 / sqrt(ell) over a box, for independent random frequencies.

    Args:
        kernel: a stationary kernel of one term (it may be scaled, or a product). If the kernel is not twice
            differentiable at zero, C2 is infinite.
        domain: the box, (lower, upper).
        input_dim: the number of input dimensions.
        kind: "cosine" for the paper's features cos(theta . x + tau), or "sincos" for pairs of a cosine and a sine.

    >>> from matheron import kernels
    >>> from matheron.compare.bounds import fourier_constant
    >>> fourier_constant(kernels.Matern(0.5), (0.0, 1.0), input_dim=1)
    inf
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, because the bound is for these, got {kind!r}")
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
        # ell terms 2 cos(theta . x + tau) cos(theta . x' + tau), 2 |theta|-Lipschitz in (x, x'), with variance one half
        # at x = x'.
        constant = math.sqrt(0.5) + 2 * 2 * sigma * chaining_sum(torch.cat([sides, sides]))
    return float(terms[0].variance) * constant


def chaining_sum(sides: Tensor) -> float:
    """Compute S with E sup |Z(t) - Z(centre)| <= S over a box, for a sub-Gaussian process Z with the metric |t - s|.

    The chain uses nets of radius r_j = r_0 q^j, of which the first is the centre alone. Net j has N(r_j) links of
    length at most r_{j-1}, so that S = sum_j r_{j-1} sqrt(2 log(2 N(r_j))). The best of several q is used.

    >>> import torch
    >>> from matheron.compare.bounds import chaining_sum
    >>> bool(chaining_sum(torch.tensor([1.0])) < chaining_sum(torch.tensor([2.0])))
    True
    """
    radius = float(sides.norm()) / 2
    best = math.inf
    for q in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        total, r, j = 0.0, radius, 0
        while r > 1e-14 * radius:  # the remaining terms are below rounding error
            link, r, j = r, radius * q ** (j + 1), j + 1
            total += link * math.sqrt(2 * (math.log(2) + log_cover(sides, r)))
        best = min(best, total)
    return best


def log_cover(sides: Tensor, r: float) -> float:
    """Compute log N(r), where N(r) balls of radius r with centres inside cover a box.

    The smaller of two counts is used: by the cells of a grid, or by the volume of a ball.

    >>> import torch
    >>> from matheron.compare.bounds import log_cover
    >>> log_cover(torch.tensor([1.0]), 1.0)
    0.0
    """
    p = len(sides)
    cells = float((sides * math.sqrt(p) / (2 * r)).clamp_min(1).ceil().log().sum())
    return min(cells, p * math.log1p(float(sides.norm()) / r))


def second_moment(measure: SpectralMeasure) -> float:
    """Compute sigma_p^2 = E |theta|^2, which is minus the Laplacian of the kernel at zero.

    >>> from matheron import kernels
    >>> from matheron.compare.bounds import second_moment
    >>> second_moment(kernels.RBF(0.5).measure(1))
    4.0
    """
    match measure:
        case Gaussian():
            shift = 0.0 if measure.shift is None else float(measure.shift.square().sum())
            return float(measure.scale.square().sum()) + shift
        case Student():  # a t distribution with 2 nu degrees of freedom
            return math.inf if measure.nu <= 1 else float(measure.scale.square().sum()) * measure.nu / (measure.nu - 1)
        case GammaScaled():  # the Gamma's mean is one
            return float(measure.scale.square().sum())
        case Convolution():  # independent terms, with random signs
            return sum(second_moment(m) for m in measure.measures)
        case Mixture():
            return sum(float(w) * second_moment(m) for w, m in zip(measure.weights, measure.measures, strict=True))
        case Moved():  # these linear maps do not change lengths
            return second_moment(measure.measure)
    atoms = measure.atoms()
    if atoms is None:
        raise TypeError(f"measure: the second moment of {type(measure).__name__} is not implemented")
    theta, mass = atoms
    return float(mass @ theta.square().sum(-1))


# Proposition 4: the error of the posterior covariance falls as ell^-1/2, at a rate free of dimension.


class CovarianceBound(NamedTuple):
    """Both sides of Proposition 4, equation (15): `measured` <= `bound` = `sparse_error` + C2 C3 / sqrt(ell).

    `measured` is a mean over bases, and `standard_error` is its standard error.
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
    """The errors sup |k^(d) - k^(s)| for several ell, and the slope of a straight line through their logarithms."""

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
    """Measure both sides of Proposition 4, equation (15), on the box `domain`.

    Args:
        model: an exact or sparse model of one output, with a stationary kernel of one term.
        num_features: the number of features ell.
        x: points `[n, d]`; suprema are taken over their pairs.
        domain: the box, (lower, upper).
        exact: the exact model f | y that a sparse one approximates; by default, the model itself.
        kind: "cosine" or "sincos", the random features that C2 is for.
        num_bases: number of bases over which the expectation is averaged.
        generator, seed: where random numbers come from: a generator or a seed; torch's default generator if neither.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import covariance_bound
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> covariance_bound(gp, 256, torch.rand(16, 1), (0.0, 1.0), seed=0).holds
    True
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
    """Measure how sup |k^(d) - k^(s)| over pairs of the points x falls with ell; Proposition 4 states ell^-1/2.

    The line is fitted by least squares, weighted by the standard errors over `num_bases` bases.

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
    """Compute sup |k^(d) - truth| over pairs of x for each of several bases, `[num_bases]`."""
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


# Proposition 3: the error of decoupled paths is at most that of the sparse posterior, plus C1 times that of the prior.


class PriorError(NamedTuple):
    """An upper bound on W2 in the supremum norm between prior and approximate prior, and its Monte Carlo error."""

    value: float
    standard_error: float


class WassersteinBound(NamedTuple):
    """Both sides of Proposition 3, equation (14): `measured` <= `bound` = `sparse_error` + C1 `prior_error`."""

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
    """Bound W2 in the supremum norm between a model's prior and that of a basis from above.

    Every coupling of the two priors gives an upper bound on W2. This one is explicit: f = R zeta and f^(w) = Q zeta
    with the same zeta. The roots R and Q are those that are optimal for the l2 norm (`metrics.gaussian_coupling`). The
    bound is the root of E max_x |f - f^(w)|^2, which is estimated by a mean over draws of zeta. The maximum is over the
    points x, so pass a mesh of the domain. For several bases, the squares are averaged.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import prior_error
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> x = torch.linspace(0, 1, 33)[:, None]
    >>> few, many = (matheron.draw(gp, 1, features="cosine", num_features=ell, seed=0) for ell in (16, 1024))
    >>> prior_error(gp, many, x, seed=0).value < prior_error(gp, few, x, seed=0).value
    True
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
    """Measure both sides of Proposition 3, equation (14), on the box `domain`.

    Squared norms in L2 are means over x times the box's volume. C1 is the paper's, with diam(X)^d in place of the
    volume.

    Args:
        model: an exact or sparse model of one output, with a stationary kernel.
        basis: the prior's features, or paths that have them.
        x: points `[n, d]` that are spread evenly over the box.
        domain: the box, (lower, upper).
        exact: the exact model f | y that a sparse one approximates. By default it is the model itself, and
            `sparse_error` is zero.
        num_draws: number of draws for the Monte Carlo estimate of the prior's error.
        generator, seed: where random numbers come from: a generator or a seed; torch's default generator if neither.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.bounds import wasserstein_bound
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2)
    >>> paths = matheron.draw(gp, 1, features="cosine", seed=0)
    >>> wasserstein_bound(gp, paths, torch.linspace(0, 1, 33)[:, None], (0.0, 1.0), seed=0).holds
    True
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
