"""Laplace's approximation: functions given outcomes under other likelihoods than the normal one.

    psi(f)     =  log p(y | f) - 1/2 (f - m)^T K^-1 (f - m)                   f^ = argmax psi, by Newton's method
    p(f | y)   ~  N(f^, (K^-1 + W)^-1),       W = -d^2 log p(y | f) / df^2 at f^,    diagonal
    log p(y)   ~  psi(f^) - 1/2 log |I + W^1/2 K W^1/2|

The same Gaussian is the posterior given pseudo-targets z = f^ + W^-1 d log p(y | f^) / df with noise W^-1, one for each
datum: an `ExactGP`. See Rasmussen and Williams, Gaussian Processes for Machine Learning, chapters 3 and 5.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_count, as_generator, many, seeded
from ..core.functionals import Observed
from ..core.sites import Sites
from ..features import FeatureSpec, make_features
from ..kernels import Kernel, coupled_diagonal
from ..kernels.own import as_kernel
from ..lattice import FourierLattice
from ..lattice.series import NoJointLattice
from ..lattice.system import Information, Joint, System, right_hand_side
from ..models import ExactGP, LatentGP
from ..models.likelihoods import Likelihood, StudentT
from ..models.means import CallableMean, ConstantMean, LinearMean, Mean, MeanLike
from ..solvers import PCG, Auto, Cholesky, FactoredPosterior, Solver, as_solver, covariance
from ..solvers.cholesky import solved
from ..solvers.operator import KernelOperator
from ..solvers.pcg import ConvergenceWarning
from .evidence import LeaveOneOut
from .hyperparameters import (
    Hyperparameters,
    Prior,
    Units,
    buffers,
    checked_priors,
    hyperparameters_of,
    prior_of,
    standardised_mean,
    standardising,
    weak_priors,
    with_tensors,
)
from .likelihood import Dense, Watch, accumulate
from .search import FitWarning, LikelihoodSearch

# Newton's method. For W and b = W (f - m) + d log p / df, a system finds the maximum of the quadratic approximation. It
# represents f - m by coordinates that f - m is linear in: a with f - m = K a, or the weights on a lattice.


class _System(Protocol):
    """Solves (K^-1 + W) h = b for the steps of Newton's method."""

    step: float  # Newton's method ends at a step of this length, in posterior standard deviations

    def solve(self, b: Tensor, W: Tensor, guess: Tensor | None) -> tuple[Tensor, Tensor]:
        """Coordinates u and h = f - m `[n]` that solve (K^-1 + W) h = b, for b and W `[n]`."""
        ...

    def energy(self, u: Tensor, h: Tensor) -> Tensor:
        """h^T K^-1 h of h = f - m `[n]`, with coordinates u."""
        ...


class _ByFactor:
    """Solves by a Cholesky factor of B = I + W^1/2 K W^1/2, whose eigenvalues are at least 1."""

    step = 1e-7  # the norm over all of f

    def __init__(self, K: Tensor) -> None:
        self.K, self._of, self._L = K, K.new_zeros(0), K

    def factor(self, W: Tensor) -> Tensor:
        """L with L L^T = B `[n, n]`; the factor is kept while W stays the same, as in Fisher scoring."""
        if not torch.equal(W, self._of):
            root = W.sqrt()
            B = root[:, None] * self.K * root
            B.diagonal().add_(1.0)
            self._of, self._L = W.clone(), torch.linalg.cholesky_ex(B).L
        return self._L

    def solve(self, b: Tensor, W: Tensor, guess: Tensor | None) -> tuple[Tensor, Tensor]:
        L, root = self.factor(W), W.sqrt()
        a = b - root * solved(L, (root * (self.K @ b))[:, None])[:, 0]  # [n]
        return a, self.K @ a

    def energy(self, u: Tensor, h: Tensor) -> Tensor:
        return u @ h


class _Iterative:
    """Solves by conjugate gradients on K + W^-1, which is never formed."""

    rms_step = 1e-2  # the root mean square over data; this is enough, because a draw solves for the mean once more

    def __init__(self, kernel: Kernel, sites: Sites, solver: Solver) -> None:
        self.kernel, self.sites, self.solver = kernel, sites, solver
        self.step = self.rms_step * math.sqrt(len(sites))

    def solve(self, b: Tensor, W: Tensor, guess: Tensor | None) -> tuple[Tensor, Tensor]:
        operator = KernelOperator(self.kernel, self.sites, 1 / W)
        a, _ = self.solver.init(operator).solve((b / W)[:, None], None if guess is None else guess[:, None])
        return a[:, 0], operator.product(a)[:, 0]

    def energy(self, u: Tensor, h: Tensor) -> Tensor:
        return u @ h


class _OnLattice:
    """Solves for the weights z of a Fourier lattice over the data's box, h = S z: (I + S^T W S) z = S^T b."""

    def __init__(self, kernel: Kernel, sites: Sites, noise: Tensor, solver: FourierLattice) -> None:
        X = sites.points
        lower, upper = X.cpu().aminmax(dim=0)
        flat = 0.5 * (upper <= lower)  # half a unit on both sides of a constant column
        spec = FeatureSpec(domain=torch.stack([lower - flat, upper + flat]), joint=True)
        posterior = FactoredPosterior(kernel, sites, noise, None)
        generator = torch.Generator().manual_seed(0)
        features = make_features(kernel, spec, generator, posterior=posterior, like=X)
        joint = Joint.of(features, kernel)
        if joint is None:
            raise NoJointLattice(features.description)
        self.joint, self.X, self.solver = joint, X - features.origin.to(X), solver

    def solve(self, b: Tensor, W: Tensor, guess: Tensor | None) -> tuple[Tensor, Tensor]:
        joint, X = self.joint, self.X
        system = System(joint, Information.of(joint, X, W))
        rhs = right_hand_side(joint, X, (b / W)[None], W)  # S^T b, [1, c + e]
        self.step = _Iterative.rms_step * math.sqrt(max(1.0, 0.1 * system.effective_dimension))
        head, start = system.head(1, self.solver.head), None if guess is None else guess[None]
        z, _ = system.solve(rhs, start, head, self.solver.tolerance, self.solver.max_iterations, repr(self.solver))
        return z[0], joint.sums(X, z)[0]

    def energy(self, u: Tensor, h: Tensor) -> Tensor:
        return u @ u


class _Mode(NamedTuple):
    """The result of Newton's method: coordinates, f - m and psi at the mode, the number of steps, and the length of
    the last step in posterior standard deviations."""

    u: Tensor
    h: Tensor  # [n]
    value: float
    iterations: int
    error: float
    converged: bool


def _newton(
    system: _System,
    likelihood: Likelihood,
    y: Tensor,
    m: Tensor,
    most: int,
    start: Tensor | None = None,
    rounding: float = 1e-2,
    patience: int = 4,
) -> _Mode:
    """The maximum of psi, by Newton's method with steps that are halved until psi increases enough.

    Args:
        start: a = K^-1 h of a dense system with similar hyperparameters. Without it the first step is from
            pseudo-targets that y alone suggests.
        rounding, patience: if `patience` steps shorter than `rounding` did not become shorter, they are taken for
            rounding errors of an ill-conditioned covariance, and the method ends.
    """

    def psi(u: Tensor, h: Tensor) -> float:
        return float(likelihood.log_density(m + h, y).sum() - 0.5 * system.energy(u, h))

    def stepped(f: Tensor, guess: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        W = _above_zero(likelihood.step_curvature(f, y))
        return *system.solve(W * (f - m) + likelihood.slope(f, y), W, guess), W

    u = h = torch.zeros_like(m)
    value = -math.inf
    if start is not None and isinstance(system, _ByFactor):
        u, h = start, system.K @ start
        value = psi(u, h)
        if not value > psi(torch.zeros_like(m), torch.zeros_like(m)):
            value = -math.inf
    if not math.isfinite(value):
        u, h, _ = stepped(likelihood.guess(y), None)
        value = psi(u, h)
        if not math.isfinite(value):  # for example, if the prior mean is far from what y suggests
            u, h = torch.zeros_like(u), torch.zeros_like(m)
            value = psi(u, h)
    error, least, stalled = math.inf, math.inf, 0
    for i in range(most):
        new_u, new_h, W = stepped(m + h, u)
        du, dh = new_u - u, new_h - h
        decrement = max(0.0, float(system.energy(du, dh) + (W * dh.square()).sum()))
        error, length = math.sqrt(decrement), 1.0
        slack = 1e-10 * (1 + abs(value))
        while length > 1e-6:
            trial = psi(u + length * du, h + length * dh)
            if trial >= value + 1e-4 * length * decrement - slack:
                break
            length /= 2
        else:
            return _Mode(u, h, value, i + 1, error, error <= max(rounding, system.step))
        u, h, value = u + length * du, h + length * dh, trial
        stalled = 0 if error < 0.5 * least else stalled + 1
        least = min(least, error)
        if length == 1.0 and (error <= system.step or (error <= rounding and stalled >= patience)):
            return _Mode(u, h, value, i + 1, error, True)
    return _Mode(u, h, value, most, error, False)


def _above_zero(W: Tensor) -> Tensor:
    """Curvatures `[n]`, at least 1e-300, which may be divided by."""
    return W.clamp_min(1e-300)


@torch.no_grad()
def _approximated(
    kernel: Kernel, X: Tensor, y: Tensor, mean: Mean, likelihood: Likelihood, solver: Solver, most: int
) -> tuple[Tensor, Tensor]:
    """Pseudo-targets and the variances of their noise, `[n]` each, of data in the model's space."""
    sites, m = Sites(X), mean.at(Sites(X)).expand(len(y)).clone()
    system = _system(kernel, sites, 1 / likelihood.curvature(likelihood.guess(y), y), solver)
    mode = _newton(system, likelihood, y, m, most)
    if not mode.converged:
        warnings.warn(
            f"Newton's method stopped after {many(mode.iterations, 'step')} of which the last was {mode.error:.1e} "
            f"posterior standard deviations long, not {system.step:.1e}: the approximation is not centred at the mode. "
            "Give max_iterations=, hyperparameters that suit the data better, or a likelihood with lighter tails",
            ConvergenceWarning,
            stacklevel=4,
        )
    f = m + mode.h
    # W has a lower bound relative to the prior variance, so that pseudo-targets with noise 1 / W stay finite.
    least = 1e-10 / coupled_diagonal(kernel, sites).clamp_min(1e-300)
    W = torch.maximum(likelihood.curvature(f, y), least)
    return f + likelihood.slope(f, y) / W, 1 / W


def _system(
    kernel: Kernel,
    sites: Sites,
    noise: Tensor,
    solver: Solver,
    largest_dense: int = 4000,
    tolerance: float = 3e-3,
) -> _System:
    """The system that computes Newton steps for a solver.

    "auto" is dense factors for up to `largest_dense` data; beyond, the lattice or conjugate gradients, with this
    tolerance.
    """
    n, d = sites.points.shape
    if isinstance(solver, Cholesky) or (isinstance(solver, Auto) and n <= largest_dense):
        return _ByFactor(covariance(kernel, sites))
    if isinstance(solver, FourierLattice) or (isinstance(solver, Auto) and d <= 3):
        settings = solver if isinstance(solver, FourierLattice) else FourierLattice(tolerance)
        try:
            return _OnLattice(kernel, sites, noise, settings)
        except NoJointLattice as reason:
            if isinstance(solver, FourierLattice):
                raise ValueError(
                    f'solver="lattice" needs a kernel whose terms fit on one lattice, got {kernel!r} ({reason}); use '
                    'solver="cholesky" or "cg"'
                ) from None
    return _Iterative(kernel, sites, PCG(tolerance) if isinstance(solver, Auto) else solver)


@seeded
def approximate(
    kernel: Kernel,
    X: ArrayLike,
    y: ArrayLike,
    *,
    likelihood: Likelihood,
    mean: MeanLike = 0.0,
    solver: str | Solver = "auto",
    max_iterations: int = 200,
) -> LatentGP:
    """Approximate the posterior of a Gaussian process given outcomes, by Laplace's method with fixed hyperparameters.

        y_i ~ p(y_i | f(x_i)),       p(f | y)  ~  N(f^, (K^-1 + W)^-1)

    Newton's method finds the mode f^. The approximation is the posterior of an `ExactGP` (`gp.gaussian`) given
    pseudo-targets with a separate noise for every datum. Paths from `matheron.draw` have the law of the approximation,
    and not of the exact posterior. The tutorial on outcomes compares the two.

    Args:
        kernel: a `matheron.kernels` kernel of one output.
        X: inputs `[n, d]`.
        y: outcomes `[n]`: 0 and 1, counts, successes, or measurements.
        likelihood: of `matheron.likelihoods`.
        mean: prior mean of f, on the scale of the link: 0 is a probability of one half, or a rate of 1.
        solver: takes Newton's steps. "cholesky": dense factors; "lattice": a Fourier lattice over the data's box, for
            kernels that have one in up to 3 dimensions; "cg": conjugate gradients. "auto" is the first for up to 4000
            data, then the second where it can be had, else the third.
        max_iterations: Newton steps; where they do not end, a `ConvergenceWarning` says so.

    >>> import torch, matheron
    >>> from matheron import kernels, likelihoods
    >>> X = torch.linspace(0, 10, 50, dtype=torch.float64)[:, None]
    >>> counts = torch.poisson(3 + 2 * X[:, 0].sin(), generator=torch.Generator().manual_seed(0))
    >>> gp = matheron.approximate(kernels.RBF(1.5), X, counts, likelihood=likelihoods.Poisson(), mean=1.0)
    >>> gp
    LatentGP(Poisson(1.0), RBF(1.5), 50 outcomes in 1 dimension)
    >>> rates = gp.likelihood.mean_of(matheron.draw(gp, 8, seed=0))
    >>> rates(X).shape, bool((rates(X) > 0).all())
    (torch.Size([8, 50]), True)
    """
    solver, most = as_solver(solver), as_count(max_iterations, "max_iterations")
    data = _checked(as_kernel(kernel), X, y, likelihood, mean)
    _say_degenerate(likelihood, data.train_targets, stacklevel=4)
    return _given_outcomes(data, likelihood, data.train_targets, solver, most)


def _checked(kernel: Kernel, X: ArrayLike, y: ArrayLike, likelihood: Likelihood, mean: MeanLike = 0.0) -> ExactGP:
    """The data as those of an exact model, checked."""
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            "likelihood: expected one of matheron.likelihoods, such as likelihoods.Poisson(), got "
            f"{likelihood.__name__ + ' itself; call it' if isinstance(likelihood, type) else type(likelihood).__name__}"
        )
    if kernel.num_outputs > 1:
        raise ValueError(
            f"kernel: expected one output, got {kernel.num_outputs}; approximate each output by itself, and draw from "
            "matheron.Outputs of their .gaussian models"
        )
    data = ExactGP(kernel, X, _as_numbers(y), 1.0, mean)
    data = data if data.train_targets.dtype == torch.float64 else data.to(torch.float64)
    likelihood.check_size(data.num_data)
    likelihood.check_outcomes(data.train_targets)
    return data


def _as_numbers(y: ArrayLike) -> ArrayLike:
    """Outcomes as numbers: true and false are 1 and 0."""
    if isinstance(y, Tensor) and y.dtype == torch.bool:
        return y.double()
    if not isinstance(y, Tensor) and getattr(np.asarray(y), "dtype", None) == np.bool_:
        return np.asarray(y).astype(float)
    return y


def _say_degenerate(likelihood: Likelihood, y: Tensor, stacklevel: int) -> bool:
    words = likelihood.degenerate(y)
    if words is not None:
        warnings.warn(f"y: {words}", FitWarning, stacklevel=stacklevel)
    return words is not None


def _given_outcomes(data: ExactGP, likelihood: Likelihood, y: Tensor, solver: Solver, most: int) -> LatentGP:
    """The model of outcomes y `[n]` at the inputs of `data`, with its kernel and mean."""
    kernel = data.kernel.to(data.train_inputs.device, torch.float64)
    z, noise = _approximated(kernel, data.train_inputs, y, data.mean, likelihood, solver, most)
    return LatentGP(likelihood.owned(), y, data.replaced(train_targets=z, noise=noise).owned())


# The evidence and its gradient, by dense matrices.


class _Evidence(NamedTuple):
    value: float
    a: Tensor  # [n], K^-1 (f^ - m)
    kernel_slope: Tensor  # d log p / dK, [n, n], symmetric
    mean_slope: Tensor  # d log p / dm, [n]
    f: Tensor  # [n], the mode
    share: Tensor  # [n], 1/2 the posterior variance: -d log p / dW


@torch.no_grad()
def _evidence(
    K: Tensor, m: Tensor, likelihood: Likelihood, y: Tensor, start: Tensor | None = None, most: int = 100
) -> _Evidence:
    """Laplace's log p(y) and its slopes, those by way of the mode included.

    With R = (K + W^-1)^-1 and V = (K^-1 + W)^-1, the slope in the mode is u = -1/2 diag(V) dW / df, since psi is flat
    there. The mode moves by (I + K W)^-1 (dK a + dm):

        d log p / dK  =  1/2 (a a^T - R) + 1/2 (q a^T + a q^T),     d log p / dm  =  a + q,     q = (I + W K)^-1 u

    Where W is the expected curvature, it does not depend on f, and u is zero.
    """
    system = _ByFactor(K)
    mode = _newton(system, likelihood, y, m, most, start)
    f, a = m + mode.h, mode.u
    W = _above_zero(likelihood.curvature(f, y))
    L, root = system.factor(W), W.sqrt()
    value = mode.value - float(L.diagonal().log().sum())
    inverse = torch.cholesky_inverse(L)  # B^-1
    share = 0.5 * (1 - inverse.diagonal()).clamp_min(0) / W  # 1/2 diag(V)
    with torch.enable_grad():
        at = f.detach().requires_grad_()
        bent = likelihood.curvature(at, y)
        dW = torch.autograd.grad(bent.sum(), at)[0] if bent.requires_grad else torch.zeros_like(f)
    R = inverse.mul_(root[:, None]).mul_(root)  # W^1/2 B^-1 W^1/2
    u = -share * dW
    q = u - R @ (K @ u)
    both = torch.outer(a + 2 * q, a)
    return _Evidence(value, a, 0.25 * (both + both.mT) - 0.5 * R, a + q, f, share)


def laplace_evidence(gp: LatentGP) -> Tensor:
    """log p(y) by Laplace's approximation: `matheron.log_marginal_likelihood` of a model of outcomes.

    It can be differentiated once, in whatever hyperparameters of the kernel, the mean and the likelihood require grad.
    """
    X, likelihood, y = gp.gaussian.train_inputs.double(), gp.likelihood, gp.y.double()
    K, m = covariance(gp.kernel.to(X.device, torch.float64), Sites(X)), gp.mean.at(Sites(X)).double().expand(len(y))
    found = _evidence(K.detach(), m.detach().clone(), likelihood.mapped(Tensor.detach), y)
    value = torch.tensor(found.value, dtype=torch.float64, device=X.device)
    if not torch.is_grad_enabled():
        return value
    own = _own_terms(likelihood, found, y)
    for part, slope in ((K, found.kernel_slope), (m, found.mean_slope), (own, torch.ones_like(own))):
        if part.requires_grad:
            value = value + (slope * (part - part.detach())).sum()
    return value


def _own_terms(likelihood: Likelihood, found: _Evidence, y: Tensor) -> Tensor:
    """The terms of the evidence that depend on the likelihood's own hyperparameters, for a fixed mode."""
    return (likelihood.log_density(found.f, y) - found.share * likelihood.curvature(found.f, y)).sum()


# Leave-one-out predictions of outcomes.


@dataclass(frozen=True, eq=False, repr=False)
class OutcomesLeftOut(LeaveOneOut):
    """Predictions of each outcome from all the others, the result of `matheron.leave_one_out` for a `LatentGP`.

        p(y_i | the others)  =  int p(y_i | f_i) N(f_i; the others' mean and variance) df_i

    Attributes are those of `LeaveOneOut`: `log_density`, `mean` and `variance` are of the outcomes, and `standardized`
    is (y_i - mean_i) / standard deviation_i.

    >>> import torch, matheron
    >>> from matheron import kernels, likelihoods
    >>> X = torch.linspace(0, 1, 10)[:, None]
    >>> gp = matheron.approximate(kernels.RBF(0.3), X, torch.arange(10), likelihood=likelihoods.Poisson())
    >>> matheron.leave_one_out(gp).log_density.shape
    torch.Size([10])
    """

    @property
    def coverage(self) -> Tensor:
        """TypeError: counts and classes have no normal intervals."""
        raise TypeError("coverage: counts and classes have no normal intervals; compare models by log_density")

    def lines(self) -> list[str]:
        """The scores in words."""
        return [f"RMSE {float(self.rmse):.3g}, log density {float(self.log_density.mean()):.3g} per outcome"]


@torch.no_grad()
def outcomes_left_out(gp: LatentGP) -> OutcomesLeftOut:
    """`matheron.leave_one_out` of a model of outcomes, by the cavities of Laplace's approximation: the mode, and W of
    the others, stay as they are."""
    X, likelihood, y = gp.gaussian.train_inputs.double(), gp.likelihood, gp.y.double()
    K, m = covariance(gp.kernel.to(X.device, torch.float64), Sites(X)), gp.mean.at(Sites(X)).double().expand(len(y))
    z, W = gp.gaussian.train_targets.double(), 1 / gp.gaussian.noise.double()
    root = W.sqrt()
    inverse = torch.cholesky_inverse(_ByFactor(K).factor(W))  # B^-1
    R = root[:, None] * inverse * root
    a = R @ (z - m)
    f = m + K @ a
    open_ = inverse.diagonal()  # 1 - W v, v the posterior variance
    # The difference is the smaller of 1 / W and the prior's variance, so that little is lost to rounding.
    v = torch.where(W * K.diagonal() > 1, (1 - open_) / W, K.diagonal() - ((K @ R) * K).sum(1)).clamp_min(1e-300)
    mean, deviation = f - a * v / open_, (v / open_).sqrt()  # mean and deviation of the cavity distribution
    # The trapezoidal rule for a normal density, out to eight standard deviations.
    t = torch.linspace(-8.0, 8.0, 257, dtype=K.dtype, device=K.device)
    # The nodes are those of the cavity distribution and of its product with the density of y, which can be much
    # narrower.
    nodes = torch.cat([mean[:, None] + deviation[:, None] * t, f[:, None] + v.sqrt()[:, None] * t], dim=1)
    nodes = nodes.sort(dim=1).values.mT  # [2 nodes, n]
    normal = -0.5 * ((nodes - mean) / deviation).square() - (deviation * math.sqrt(2 * math.pi)).log()

    def integral(log_g: Tensor) -> Tensor:
        """log int g dN, by the trapezoidal rule."""
        gaps = nodes.diff(dim=0)
        weights = 0.5 * torch.cat([gaps[:1], gaps[1:] + gaps[:-1], gaps[-1:]])
        return torch.logsumexp(log_g + normal + weights.clamp_min(1e-300).log(), dim=0)

    log_density = integral(likelihood.log_density(nodes, y))
    expectation = likelihood.expectation(nodes)
    density = (normal - integral(torch.zeros_like(nodes))).exp()
    mu = torch.trapezoid(expectation * density, nodes, dim=0)
    spread = torch.trapezoid((likelihood.variance(nodes) + (expectation - mu).square()) * density, nodes, dim=0)
    return OutcomesLeftOut(log_density, (y - mu) / spread.sqrt(), y, None, 1, mu, spread, True)


# Hyperparameters that maximise the evidence.


class _LaplaceEvidence(Dense):
    """log p(y | hyperparameters) by Laplace's approximation + log prior, and its gradient in the vector.

    Newton's method starts from the mode at the last vector. If the scale of a likelihood is fitted, its square is the
    hyperparameter called noise.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        sites: Observed,
        y: Tensor,
        priors: Mapping[str, Prior],
        likelihood: Likelihood,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(hyperparameters, sites, y, priors, watch)
        self.likelihood = likelihood
        self.start: Tensor | None = None

    def some(self, rows: Tensor) -> _LaplaceEvidence:
        data = self.hyperparameters.at(rows), self.sites[rows], self.y[rows]
        return _LaplaceEvidence(*data, self.priors, self.likelihood.some(rows), self.watch)

    def log_likelihood(self, values: list[Tensor]) -> float:
        kernel, noise, mean = self.hyperparameters.model(values, len(self.y), None)
        likelihood = self.likelihood
        likelihood = likelihood.replaced(scale=noise[0].sqrt()) if fits_scale(likelihood) else likelihood
        m = mean.at(self.sites).expand(len(self.y))
        with torch.no_grad():
            K = covariance(kernel, self.sites)
        found = _evidence(K, m.detach().clone(), likelihood.mapped(Tensor.detach), self.y, self.start)
        if not math.isfinite(found.value):
            return -math.inf
        self.start, G = found.a, found.kernel_slope
        accumulate(kernel, self.sites, lambda rows, columns: G[rows, columns])
        rest = (found.mean_slope * m).sum()
        if fits_scale(self.likelihood):
            rest = rest + _own_terms(likelihood, found, self.y)
        if rest.requires_grad:
            rest.backward()
        return found.value


def fits_scale(likelihood: Likelihood) -> bool:
    """Whether the scale of measurements with outliers is to be fitted."""
    return isinstance(likelihood, StudentT) and likelihood.scale is None


def fit_outcomes(
    kernel: Kernel,
    X: ArrayLike,
    y: ArrayLike,
    likelihood: Likelihood,
    *,
    mean: MeanLike | str | None,
    priors: Mapping[str, Prior] | None,
    default_priors: bool,
    num_starts: int,
    num_data: int | str | None,
    solver: str | Solver,
    seed: int | torch.Generator | None,
    progress: bool,
    largest: int = 2000,
) -> LatentGP:
    """`matheron.fit` of outcomes: the hyperparameters that maximise Laplace's evidence.

    Inputs are standardised; measurements (Student-t) only during the fit. num_data="auto" uses up to `largest`
    outcomes, for which a step of the search takes about 2 seconds. If the data determine hyperparameters poorly, and
    the user gave no priors, those without a default prior get a weak one.
    """
    data = _checked(kernel, X, y, likelihood)
    likelihood = likelihood.owned()
    user_X, outcomes = data.train_inputs.detach().clone(), data.train_targets.detach().clone()
    poor = _say_degenerate(likelihood, outcomes, stacklevel=6)
    units = standardising(kernel, user_X, outcomes, None)
    if not likelihood.follows_targets:
        units = units._replace(
            output_centre=torch.zeros_like(units.output_centre), output_scale=torch.ones_like(units.output_scale)
        )
    scale, centre = units.output_scale[0], units.output_centre[0]
    inner, model_y = _in_units(likelihood, 1 / scale), (outcomes - centre) / scale
    model_X = (user_X - units.input_centre) / units.input_scale
    fixed = None if fits_scale(likelihood) else torch.ones_like(model_y)
    model_mean, level = standardised_mean(mean, units), float(inner.level(model_y))
    h, as_given = hyperparameters_of(kernel, model_X, fixed, model_mean, {}, 1e-2, units, level=level)
    priors = dict(priors or {})
    if default_priors and (poor or len(model_y) < h.size):
        for leaf in h.leaves:
            if prior_of(leaf, priors) is None:
                priors |= weak_priors([leaf])
    priors = checked_priors(priors, h.leaves)
    h = h.within(priors)
    objective = _LaplaceEvidence(h, Sites(model_X), model_y, priors, inner)
    most, count = (largest, None) if num_data == "auto" else (None, cast("int | None", num_data))
    start, generator = h.clamped(as_given), as_generator(seed)
    best = LikelihoodSearch(objective, start, num_starts, count, most, "cholesky", generator, True).maximum(progress)
    with torch.no_grad():
        values = [value.detach().clone() for value in h.decode(best)]
        fitted, _, found_mean = h.model(values, len(model_y), None)
        if fits_scale(likelihood):
            likelihood = likelihood.replaced(scale=values[h.count].sqrt()[0] * scale)
        fitted, found_mean = _out_of_units(fitted, found_mean, units)
    gp = ExactGP(fitted, model_X, outcomes, 1.0, found_mean, input_transform=units.transforms()[0])
    whole = _given_outcomes(gp, likelihood, outcomes, as_solver(solver), 200)
    return whole.replaced(gaussian=whole.gaussian.replaced(input_names=data.input_names))


def _in_units(likelihood: Likelihood, factor: Tensor) -> Likelihood:
    """The likelihood of outcomes times a factor."""
    if not isinstance(likelihood, StudentT) or likelihood.scale is None:
        return likelihood
    return likelihood.replaced(scale=likelihood.scale * factor.cpu())


def _out_of_units(kernel: Kernel, mean: Mean, units: Units) -> tuple[Kernel, Mean]:
    """Kernel and mean of a function in the user's units, from those of one that was standardised; inputs stay."""
    scale, centre = units.output_scale[0], units.output_centre[0]
    if bool(scale == 1) and bool(centre == 0):
        return kernel, mean
    one = torch.ones_like(units.input_scale)
    listed = buffers(kernel, Units(one, one, units.output_centre, units.output_scale))
    scaled = with_tensors(kernel, [b.value * b.unit for b in listed])
    x = torch.stack([0.3 * one, one])
    # some part of the kernel has no scale
    if not torch.allclose(scaled.forward(x, x), scale.square() * kernel.forward(x, x)):
        scaled = float(scale.square()) * kernel
    if isinstance(mean, ConstantMean):
        return scaled, ConstantMean(mean.value * scale + centre)
    if isinstance(mean, LinearMean):
        return scaled, LinearMean(mean.weights * scale, mean.bias * scale + centre)
    inner, factor, level = mean, float(scale), float(centre)
    return scaled, CallableMean(lambda x: inner.to(x.device, x.dtype)(x) * factor + level)
