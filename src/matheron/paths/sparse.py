"""SparseUpdate: the update of paths of a sparse model, before and after they are given data.

    v  =  K_mm^-1 (u - f_m)          equation (10), u from q(u)

For data that are given later, the covariance is that of the variational posterior, k_q (`CorrectedOperator`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from ..core.checks import as_tensor, normals
from ..core.functionals import Observed
from ..core.sites import Sites, concatenated
from ..core.value import Value, in_own_memory
from ..evaluate import Recorder
from ..kernels import Kernel, coupled_covariance, coupled_diagonal
from ..models import SparseGP
from ..models.means import Mean
from ..models.observations import Observations
from ..solvers import Auto, Cholesky, CholeskyState, FactoredPosterior, Operator, Solver, State, Stats, covariance
from ..solvers.base import floored
from ..solvers.cholesky import cholesky_solve
from ..solvers.operator import KernelOperator
from .exact import CentredUpdate, Data, update_weights, weights_given_data
from .posterior import PosteriorCovariance, variance_in_blocks
from .precision import choose_weight_dtype, narrows_badly
from .prior import PriorPaths, observed_before
from .spread import warn_of_spread
from .update import check_sites, kernel_terms


class Inducing(Value):
    """The update of a sparse posterior without data: weights v `[s, m]` of k(., Z), their mean `[m]`, and a root of Cov
    f(Z).

    The mean and the root are None if q(u) is known only by draws.
    """

    shapes = "v: s m, v_mean: m, root: m r, jitter:"

    def __init__(self, sites: Sites, v: Tensor, v_mean: Tensor | None, root: Tensor | None, jitter: Tensor) -> None:
        super().__init__(v=v, v_mean=v_mean, root=root, jitter=jitter, sites=sites)

    def check(self) -> None:
        if (self.v_mean is None) != (self.root is None):
            raise ValueError("Inducing: expected a mean and a root of the covariance, or neither")
        if len(self.sites) != self.v.shape[1]:
            raise ValueError(f"Inducing: expected weights of {len(self.sites)} inducing points, got {self.v.shape[1]}")

    def __getitem__(self, index: Tensor) -> Inducing:
        return self.replaced(v=self.v[index])


@final
class SparseUpdate(CentredUpdate):
    """sum_j v_j k(., z_j), centred at m inducing points and, where data were given later, at n observations."""

    shapes = "v: s c, v_mean: r c"

    def __init__(
        self,
        kernel: Kernel,
        inducing: Inducing,
        data: Data,
        v: Tensor,
        v_mean: Tensor | None,
        *,
        solver_stats: Stats | None = None,
    ) -> None:
        v_mean = None if v_mean is None else in_own_memory(v_mean)
        super().__init__(v=in_own_memory(v), v_mean=v_mean, kernel=kernel, inducing=inducing, data=data)
        self.solver_stats = solver_stats

    inducing: Inducing

    @staticmethod
    def without_data(kernel: Kernel, inducing: Inducing, solver_stats: Stats | None = None) -> SparseUpdate:
        """The update of a draw from the sparse model itself."""
        data = Data.none(inducing.sites.points, kernel.num_outputs, len(inducing.v))
        v_mean = None if inducing.v_mean is None else inducing.v_mean[None]
        return SparseUpdate(kernel, inducing, data, inducing.v, v_mean, solver_stats=solver_stats)

    def check(self) -> None:
        check_sites(self.kernel, self.sites, self.v)
        rows = 0 if self.v_mean is None else len(self.v_mean)
        known = self.inducing.v_mean is not None
        if rows != ((len(self.v) if self.own_posteriors else 1) if known else 0):
            raise ValueError("SparseUpdate: expected a mean, one per path where each has its own targets")
        if len(self.inducing.v) != len(self.v) or len(self.data.xi) != len(self.v):
            raise ValueError("SparseUpdate: expected the inducing points' weights, and noise, of as many paths")

    @property
    def sites(self) -> Observed:
        return concatenated(self.inducing.sites, self.data.sites)

    @property
    def num_inducing(self) -> int:
        return len(self.inducing.sites)

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        new = super().mapped(fn)
        if new.inducing.v.dtype != self.inducing.v.dtype and new.centres.dtype == self.centres.dtype:
            for name in ("v", "v_mean"):
                weights = self.inducing._buffers[name]
                new.inducing._buffers[name] = None if weights is None else weights.to(new.v.device)
        return new

    def __getitem__(self, index: Tensor) -> SparseUpdate:
        v_mean = self.v_mean[index] if self.own_posteriors and self.v_mean is not None else self.v_mean
        return self.replaced(
            inducing=self.inducing[index], data=self.data.of_paths(index), v=self.v[index], v_mean=v_mean
        )

    def variance(self, prior: PriorPaths, sites: Observed) -> Tensor:
        self._require_covariance("variance", "; use samples=True for an estimate from these paths")
        return variance_in_blocks(_posterior_of(self), sites, self.num_centres)

    def posterior(self, solver: Solver | None = None) -> PosteriorCovariance:
        jitter = 0.0 if self.solver_stats is None or not self.num_data else self.solver_stats.jitter
        of_data = KernelOperator(self.kernel.double(), self.data.sites.double(), self.noise.double() + jitter)
        operator = CorrectedOperator(of_data, self.inducing.double())
        return PosteriorCovariance(operator, None, solver, self.requires_graph())

    def given(
        self, prior: PriorPaths, mean: Mean, new: Observations, solver: Solver, generator: torch.Generator
    ) -> tuple[PriorPaths, SparseUpdate]:
        self._require_covariance("condition_on", ", so its covariance is not")
        data = self.joined_data(prior, new, generator)
        if data is None:
            return prior, self
        watch = self.spread_is_due(data)
        return prior, sparse_update_given_data(
            prior, mean, self.kernel, self.inducing, data, solver, old=self, watch_spread=watch
        )

    def solved_again(self, prior: PriorPaths, old_prior: PriorPaths, old: CentredUpdate, mean: Mean) -> SparseUpdate:
        assert isinstance(old, SparseUpdate)
        inducing = _with_old_values((old_prior, old.inducing), (prior, self.inducing), self.kernel, old.kernel)
        if not self.num_data:
            return SparseUpdate.without_data(self.kernel, inducing, self.solver_stats)
        return sparse_update_given_data(prior, mean, self.kernel, inducing, self.data, Auto())

    def _require_covariance(self, what: str, advice: str) -> None:
        if self.inducing.root is None:
            raise TypeError(f"{what}: this q(u) is known by its draws alone (sample_u){advice}")


_posterior_of = Recorder(SparseUpdate.posterior)


class CorrectedOperator(Operator):
    """k_q(X, X) + diag(noise), the covariance of the observations of a sparse posterior. Under q(u), f(Z) has the
    covariance root root^T. With L L^T = k(Z, Z) + jitter, A = L^-1 k(Z, X) and R = root^T (L L^T)^-1 k(Z, X),

        k_q(X, X)  =  k(X, X) - A^T A + R^T R

    The inverse of k(Z, Z) is never computed: its rounding error would be as large as the posterior's variances.
    """

    def __init__(self, operator: KernelOperator, inducing: Inducing) -> None:
        assert inducing.root is not None
        self.operator, self.noise, self.root, self.Z = operator, operator.noise, inducing.root, inducing.sites
        jitter = inducing.jitter.to(self.Z.points)
        self.state = Cholesky().init(KernelOperator(operator.kernel, self.Z, jitter.expand(len(self.Z))))
        self.K_mn, self.A, self.R = self.halves(operator.sites)  # [m, n], [m, n], [r, n]

    def halves(self, x: Observed) -> tuple[Tensor, Tensor, Tensor]:
        """k(Z, x), A and R at sites x."""
        K_mx = coupled_covariance(self.operator.kernel, self.Z, x)  # [m, p]
        return K_mx, self.state.lower(K_mx), self.root.mT @ self.state.solve(K_mx)[0]

    def product(self, V: Tensor) -> Tensor:
        A, R = self.A.to(V), self.R.to(V)  # in the dtype of V: residuals are computed in higher precision
        return self.operator.product(V) - A.mT @ (A @ V) + R.mT @ (R @ V)

    def rows(self, index: Tensor | slice) -> Tensor:
        return self.operator.rows(index) - self.A[:, index].mT @ self.A + self.R[:, index].mT @ self.R

    def diagonal(self) -> Tensor:
        return self.operator.diagonal() - self.A.square().sum(0) + self.R.square().sum(0)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        A, R = (each.to(dtype or self.dtype) for each in (self.A, self.R))
        return self.operator.dense(dtype) - A.mT @ A + R.mT @ R

    def cross(self, x: Observed) -> Tensor:
        _, A, R = self.halves(x)
        return self.operator.cross(x) - self.A.mT @ A + self.R.mT @ R

    def prior_variance(self, x: Observed) -> Tensor:
        _, A, R = self.halves(x)
        return coupled_diagonal(self.operator.kernel, x) - A.square().sum(0) + R.square().sum(0)

    def prior_covariance(self, x: Observed) -> Tensor:
        _, A, R = self.halves(x)
        return covariance(self.operator.kernel, x) - A.mT @ A + R.mT @ R

    def magnitude(self, K: Tensor | None = None) -> Tensor:
        return self.operator.magnitude()  # the operator is a difference of matrices, and this is the size of the first

    def requires_graph(self) -> bool:
        return self.operator.requires_graph() or (torch.is_grad_enabled() and self.R.requires_grad)

    def centre_weights(self, v: Tensor) -> Tensor:
        """Convert weights v `[r, n]` of k_q(., X) to weights of k(., Z): `[r, m]`."""
        return self.state.solve(self.root @ (self.R @ v.mT) - self.K_mn @ v.mT)[0].mT


class GaussianMoments(NamedTuple):
    """A Gaussian distribution of f(Z): its mean `[m]`, and a root `[m, r]` of its covariance."""

    mean: Tensor
    root: Tensor


def moments_of_q(gp: SparseGP, prior_mean: Tensor, L: Tensor | None) -> GaussianMoments:
    """The moments of f(Z) under q(u), the prior mean `[m]` included.

    Unwhitened, u is f(Z) itself. Whitened, f(Z) = prior_mean + L u with L = chol(K_mm); L is used there alone.
    """
    if gp.q_mean is None:
        raise TypeError("this q(u) is known by its draws alone (sample_u): its moments have no closed form")
    q_mean, root = gp.q_mean.to(prior_mean), gp.q_scale_tril
    root = q_mean.new_zeros(len(q_mean), 0) if root is None else root.to(prior_mean)
    root = root.diag_embed() if root.ndim == 1 else root
    if gp.whitened and L is not None:
        return GaussianMoments(prior_mean + L @ q_mean, L @ root)
    return GaussianMoments(q_mean, root)


def draws_of_q(
    gp: SparseGP, s: int, prior_mean: Tensor, L: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, GaussianMoments | None]:
    """Draws of f(Z) `[s, m]` under q(u), and its moments if they are known."""
    m = len(prior_mean)
    if gp.sample_u is None:
        q = moments_of_q(gp, prior_mean, L)
        xi = normals((s, m), generator).to(prior_mean)
        return (q.mean + xi @ q.root.mT if q.root.shape[1] else q.mean.expand(s, m)), q
    u = as_tensor(gp.sample_u(s, generator), "sample_u", like=prior_mean)
    if u.shape != (s, m):
        raise ValueError(f"sample_u: expected draws [{s}, {m}], got {list(u.shape)}")
    return (prior_mean + u @ L.mT if gp.whitened and L is not None else u), None


def sparse_update(
    gp: SparseGP, prior: PriorPaths, posterior: FactoredPosterior, generator: torch.Generator
) -> SparseUpdate:
    """v = K_mm^-1 (u - f_m), equation (10), u from q(u)."""
    state, Z, jitter = posterior.state, posterior.sites, posterior.noise
    assert state is not None and isinstance(Z, Sites)
    s, m = prior.num_paths, len(Z)
    L = state.L.to(Z.points) if isinstance(state, CholeskyState) else None
    if gp.whitened and L is None:
        raise ValueError('solver: a whitened q(u) is in terms of K_mm\'s Cholesky factor; use solver="cholesky"')
    f_m = observed_before(prior, gp.mean, Z)  # [s + 1, m], the prior mean last
    u, q = draws_of_q(gp, s, f_m[s], L, generator)  # [s, m]
    eps = (jitter + state.jitter).sqrt() * normals((s, m), generator).to(Z.points)
    if q is None:
        v, stats = update_weights(state, u, f_m[:s], eps)  # [s, m]
        root = ((u - u.mean(0)) / math.sqrt(s)).mT
    else:  # the mean is computed as one more path, which has w = 0 and u at its mean
        v, stats = update_weights(state, torch.cat([u, q.mean[None]]), f_m, torch.cat([eps, 0 * eps[:1]]))  # [s + 1, m]
        root = q.root
    if torch.is_grad_enabled() and v.requires_grad:
        v = v.to(Z.points)
    else:
        deviations = partial(sparse_deviations, state, root, jitter)
        v = choose_weight_dtype(state.operator, v, deviations, largest=state.largest)
    v_mean, root = (None, None) if q is None else (v[s], q.root)
    inducing = Inducing(Z, v[:s], v_mean, root, jitter[0] + state.jitter)
    return SparseUpdate.without_data(posterior.kernel, inducing, stats)


def sparse_update_given_data(
    prior: PriorPaths,
    mean: Mean,
    kernel: Kernel,
    inducing: Inducing,
    data: Data,
    solver: Solver,
    *,
    state: State | None = None,
    old: SparseUpdate | None = None,
    watch_spread: bool = False,
) -> SparseUpdate:
    """The update of a sparse posterior's paths given data; the arguments are those of `exact_update`."""
    s, X, Z = len(data.xi), data.sites, inducing.sites
    assert inducing.v_mean is not None
    operator = _operator_given(inducing, KernelOperator(kernel, X, data.noise))
    state = solver.init(operator) if state is None else state
    before = kernel_terms(kernel, Z, inducing.v), kernel_terms(kernel, Z, inducing.v_mean[None])
    graph = kernel.requires_graph() or inducing.requires_graph()
    f = observed_before(prior, mean, X, before, graph)  # [s + 1, n]
    rows, start = 2 * s if data.own_targets else s + 1, None
    if old is not None and not isinstance(state, CholeskyState):
        start = old.guess(rows, len(X))
    v, _, stats = weights_given_data(state, data, f, start)
    if watch_spread and isinstance(state, CholeskyState):
        warn_of_spread(prior, operator, state.jitter, v[:s] - v[s:], state.last_block)
    v_Z = operator.centre_weights(v) + torch.cat([inducing.v, inducing.v_mean.expand(rows - s, -1)])
    v = torch.cat([v_Z, v], dim=1)
    if torch.is_grad_enabled() and v.requires_grad:
        v = v.to(X.points)
    else:
        noise = torch.cat([data.noise.new_zeros(len(Z)), data.noise])
        everything = KernelOperator(kernel, concatenated(Z, X), noise)
        v = choose_weight_dtype(everything, v, state.deviations, first=len(Z))
    return SparseUpdate(kernel, inducing, data, v[:s], v[s:], solver_stats=stats)


def _operator_given(inducing: Inducing, operator: KernelOperator) -> CorrectedOperator:
    """The operator of data given q(u). It is a difference of large matrices, so it is computed in float64 unless a
    graph is kept."""
    if not (operator.requires_graph() or (torch.is_grad_enabled() and inducing.requires_graph())):
        operator = KernelOperator(operator.kernel.double(), operator.sites.double(), operator.noise.double())
        inducing = inducing.double()
    return CorrectedOperator(operator, inducing)


def _with_old_values(
    old: tuple[PriorPaths, Inducing], new: tuple[PriorPaths, Inducing], kernel: Kernel, old_kernel: Kernel
) -> Inducing:
    """The update of paths that were converted to fewer digits. With it they have the old values at the inducing points.

        v'  =  (K' + jitter)^-1 ((K + jitter) v + f - f')

    Its weights are in float64 if they, too, need more digits than the dtype has.
    """
    device, inducing = new[1].v.device, new[1]  # paths can change dtype and device in one move
    prior, before = old[0].to(device), old[1].to(device)
    s, jitter = len(before.v), before.jitter
    f, f_new = (u.sites.own(p.sums(u.sites.points[None]).mT).double() for p, u in ((prior, before), new))  # [s, m]
    K = covariance(old_kernel.to(device, torch.float64), before.sites.double())
    K_new = covariance(kernel.double(), inducing.sites.double())
    K_new.diagonal().add_(jitter.to(K_new))
    V = (before.v if before.v_mean is None else torch.cat([before.v, before.v_mean[None]])).double()  # [s + 1, m]
    change = torch.nn.functional.pad(f - f_new, (0, 0, 0, len(V) - s))  # zero for the mean, which has no prior path
    V = cholesky_solve(K_new, (V @ K + jitter.to(V) * V + change).mT, "k(Z, Z) + jitter").mT.contiguous()

    def with_weights(V: Tensor) -> Inducing:
        return inducing.replaced(v=V[:s], v_mean=None if before.v_mean is None else V[s])

    def update(kernel: Kernel, inducing: Inducing) -> SparseUpdate:
        return SparseUpdate.without_data(kernel, inducing)

    narrow = with_weights(V.to(inducing.sites.points))
    exact = (prior, update(old_kernel.to(device), before))
    return with_weights(V) if narrows_badly(exact, (new[0], update(kernel, narrow))) else narrow


def sparse_deviations(state: State, root: Tensor, jitter: Tensor, rows: Tensor) -> Tensor:
    """The standard deviations of f at some inducing points, for u with a covariance that has this root `[m, r]`.

    f differs from u by the jitter J. With A = K_mm + J, f(Z) is (I - J A^-1) u plus a normal vector of covariance J - J
    A^-1 J.
    """
    some = torch.arange(len(rows), device=rows.device)
    one = torch.zeros(len(root), len(rows), dtype=torch.float64, device=rows.device)
    one[rows, some] = 1.0
    solved = state.solve(one)[0].double()  # [m, k]
    J = (jitter[rows] + state.jitter).double()
    explained = (one - J * solved).mT @ root.double()  # [k, r]
    return floored(explained.square().sum(1) + J * (1 - J * solved[rows, some]), state.operator).sqrt()
