"""More data for the same draw: one Matheron update, whatever the paths were before it."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial, singledispatch
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.checks import many, normals
from ..core.modes import transformed
from ..evaluate import Record, Recorder, values
from ..kernels import Kernel, coupled_covariance
from ..models.means import Mean, at_tasks, for_outputs
from ..models.streamed import Chunk
from ..solvers import (
    PCG,
    Auto,
    Cholesky,
    CholeskyState,
    Factor,
    Operator,
    Solver,
    State,
    Stats,
    coupled_diagonal,
    covariance,
    every_output,
)
from ..solvers.cholesky import deviations_by
from ..solvers.operator import KernelOperator
from .compress_update import folded, pays
from .matheron_rule import CorrectedOperator, Data, exact_update
from .precision import in_enough_digits, with_old_values
from .prior import PriorPaths
from .update import Inducing, UpdatePaths

if TYPE_CHECKING:
    from .paths import Paths

# The paths' spread is compared with the posterior's over a quarter of the data, the last ones, and so many at the least
# and at the most; from this many numbers on, of all paths together; and a ratio of the two below this is said. Data of
# the last quarter are predicted by fewer than all, so that the ratio comes out larger than it is given all of them: .84
# where it is .72, .56 where it is .44 (Matern-5/2 in two dimensions, 505 data, noise 1e-6).
_LEAST_ROWS, _MOST_ROWS, _FEWEST, _SMALLEST_RATIO = 32, 256, 64, 0.87
# Data that one is predicted by where there is no factor.
_NEIGHBOURS = 64
# Predictions with less than this share of the prior's variance are not looked at.
_LEAST_VARIANCE = 1e-8
_WITHIN = (__name__.split(".")[0], "torch", "functools")  # a decorator may be in between
# Beyond this many data variances are by conjugate gradients; the factor of so many, which is kept, has 512 MiB.
LARGEST_FACTOR = 8192


@singledispatch
def condition(
    solver: Solver, prior: PriorPaths, update: UpdatePaths, mean: Mean, chunk: Chunk, generator: torch.Generator
) -> tuple[PriorPaths, UpdatePaths]:
    """The same draw given more data: its prior, whose weights an engine's own solver may change, and its update.

    A solver of another kind than `init` and `solve` registers a function of its own for its class.
    """
    X, tasks, y, noise = chunk
    new = Data(X, tasks, y, noise, normals((prior.num_paths, len(noise)), generator).to(y))
    return prior, given_more(update, prior, mean, new, solver)


def update_given(
    prior: PriorPaths,
    mean: Mean,
    kernel: Kernel,
    data: Data,
    solver: Solver,
    *,
    state: State | None = None,
    old: UpdatePaths | None = None,
    grown: bool = False,
) -> UpdatePaths:
    """The update of prior paths, or of a sparse posterior's paths, given data.

    The mean comes along as one more path, the one with w = 0 and eps = 0; where each path has its own y, as s more.
    `state` is that of the data's covariance, where there is one already. `old` is an update given the first of the
    data: a sparse posterior's inducing points are its own, and iterations start from its weights. With `grown` it
    is said where the prior's basis, which was not chosen for all of the data, has too few functions for them.
    """
    X, tasks, y, noise, xi = data
    s = len(xi)
    own = y.ndim == 2
    inducing = Z = Z_tasks = before = None
    operator: Operator = KernelOperator(kernel, X, tasks, noise)
    if old is not None and old.inducing is not None:
        inducing, Z = old.inducing, old.centres[: old.num_inducing]
        Z_tasks = None if old.tasks is None else old.tasks[: old.num_inducing]
        assert inducing.root is not None and inducing.v_mean is not None
        before = UpdatePaths(kernel, Z, Z_tasks, torch.cat([inducing.v, inducing.v_mean[None]]), None)
        operator = _given_inducing(operator, Z, Z_tasks, inducing)
    state = solver.init(operator) if state is None else state
    f = at_tasks(values_at(prior, mean, before, X), tasks)  # [s + 1, n]
    f = torch.cat([f, f[s:].expand(s - 1, -1)]) if own else f  # [2 s, n] or [s + 1, n]
    start = None if isinstance(state, CholeskyState) else _guess(old, len(f), len(X))

    def solved(state: State) -> tuple[Tensor, Tensor, Stats]:
        eps = (noise + state.jitter).sqrt() * torch.cat([xi, torch.zeros_like(f[s:])])  # jitter is noise
        return eps, *exact_update(state, torch.cat([y, y]) if own else y, f, eps, start)

    eps, v, stats = solved(state)
    if grown and isinstance(state, CholeskyState):
        L = state.L
        warn_of_spread(prior, operator, state.jitter, v[:s] - v[s:], lambda p: L[-p:, -p:])
    elif grown and isinstance(operator, KernelOperator):
        warn_of_spread_nearby(prior, operator, f[:s] - f[s:] + eps[:s])
    centres, centre_tasks, all_data, on_lattice = X, tasks, operator, None
    if isinstance(operator, CorrectedOperator):
        assert Z is not None and inducing is not None and inducing.v_mean is not None
        v_Z = operator.centre_weights(v) + torch.cat([inducing.v, inducing.v_mean.expand(len(f) - s, -1)])
        v = torch.cat([v_Z, v], dim=1)
        centres = torch.cat([Z, X])
        centre_tasks = None if tasks is None or Z_tasks is None else torch.cat([Z_tasks, tasks])
        all_data = KernelOperator(kernel, centres, centre_tasks, torch.cat([noise.new_zeros(len(Z)), noise]))
    if torch.is_grad_enabled() and v.requires_grad:
        v = v.to(X)
    else:
        largest = state.largest if inducing is None else math.inf
        wide, first = v, len(centres) - len(X)
        v = in_enough_digits(all_data, wide, state.deviations, first=first, largest=largest)
        if inducing is None and isinstance(state, CholeskyState):
            if v.dtype != X.dtype == state.L.dtype:  # such weights need a better factor, too
                in_double = KernelOperator(kernel.double(), X.double(), tasks, noise.double())
                state = (state.solver if isinstance(state.solver, Cholesky) else Cholesky()).init(in_double)
                eps, v, stats = solved(state)
                wide = v
            if pays(prior.features, s, len(X)):
                args = (kernel, X, tasks, noise + state.jitter, y - f[:s] - eps[:s], wide[:s])
                factored = state
                on_lattice = folded(prior, *args, lambda rhs: factored.solve(rhs)[0], factored.lower)
    return UpdatePaths(
        kernel,
        centres,
        centre_tasks,
        v[:s],
        v[s:],
        inducing=inducing,
        y=y,
        noise=noise,
        xi=xi,
        solver_stats=stats,
        factor=_kept(state) if inducing is None else None,
        folded=on_lattice,
    )


def _given_inducing(operator: KernelOperator, Z: Tensor, Z_tasks: Tensor | None, inducing: Inducing) -> Operator:
    """The operator of data given q(u): a difference of large matrices, so in float64 where no graph is kept."""
    assert inducing.root is not None
    kernel, X, noise, root = operator.kernel, operator.X, operator.noise, inducing.root
    if not (operator.requires_graph() or (torch.is_grad_enabled() and inducing.requires_graph())):
        kernel, X, Z, noise, root = kernel.double(), X.double(), Z.double(), noise.double(), root.double()
    operator = KernelOperator(kernel, X, operator.tasks, noise)
    return CorrectedOperator(operator, Z, Z_tasks, inducing.jitter.to(Z), root)


Block = Callable[[int], Tensor]


class SpreadWarning(UserWarning):
    """Paths have, between their data, another spread than the posterior: their basis was not chosen for the data."""


@torch.no_grad()
def warn_of_spread(prior: PriorPaths, operator: Operator, jitter: float, deviation: Tensor, last_block: Block) -> None:
    """Say so where the paths' spread about their mean differs by a fifth from the posterior's, beyond chance.

    Where paths have the right law, v - v_mean has covariance (L L^T)^-1, so that z = L^T (v - v_mean) is standard
    normal: entry i is how far a path is, at datum i, from what the data before it predict, in standard deviations of
    that prediction. The last p data alone are looked at, for which the last p rows and columns of L suffice: p^2 s.
    Only data since the paths were drawn count: refreshed paths have other residuals at the data before.

    Args:
        operator: K + noise.
        jitter: what had to be added to its diagonal.
        deviation: v - v_mean `[s, n]`.
        last_block: the last p rows and columns of L, the factor of K + noise + jitter.
    """
    n = operator.size
    p = min(n - prior.drawn_given, max(_LEAST_ROWS, min(n // 4, _MOST_ROWS)))
    if p < 1:  # all was there when the paths were drawn
        return
    L = last_block(p)
    z = deviation[:, -p:].to(L) @ L  # [s, p]
    _judge(prior, z, L.diagonal().square(), operator.noise[-p:] + jitter, operator.diagonal()[-p:])


@torch.no_grad()
def warn_of_spread_nearby(prior: PriorPaths, operator: KernelOperator, deviation: Tensor) -> None:
    """The same where there is no factor: some of the last data are predicted by those near them.

    `deviation [s, n]` is that of the paths, with their noise, from their mean before the data.
    """
    n, device = operator.size, operator.device
    first = max(prior.drawn_given, 3 * n // 4)
    if n - first < 2 or prior.kept is not None:  # whose residuals at the data before are not as if from the prior
        return
    X = operator.X / operator.X.std(0).clamp_min(1e-300)
    some = torch.linspace(first, n - 1, min(_LEAST_ROWS, n - first), dtype=torch.float64, device=device).long()  # [p]
    near = torch.cdist(X[some], X).topk(min(n, _NEIGHBOURS), largest=False).indices  # [p, k], itself the first
    z, predicted = [], []
    for index in near.flip(1):
        K = operator.block(index)
        K.diagonal().add_(operator.noise[index] + 1e-10 * K.diagonal())
        L = torch.linalg.cholesky(K)
        z.append(torch.linalg.solve_triangular(L, deviation[:, index].mT.to(L), upper=False)[-1])
        predicted.append(L[-1, -1].square())
    last = near[:, 0]
    _judge(prior, torch.stack(z, 1), torch.stack(predicted), operator.noise[last], operator.diagonal()[last])


def _due(before: int, n: int) -> bool:
    """Whether the spread is looked at: once for every eighth more of the data, since it takes a tenth of a call that
    adds one datum to few."""
    every = max(8, n // 8)
    return before // every < n // every


def _judge(prior: PriorPaths, z: Tensor, predicted: Tensor, noise: Tensor, variance: Tensor) -> None:
    """Whether z `[s, p]`, errors of predictions of variances `[p]` with noise `[p]`, is standard normal."""
    if transformed():  # there are no numbers to look at yet
        return
    counted = predicted > _LEAST_VARIANCE * variance  # below that it is rounding
    of_noise = (noise / predicted).clamp_max(1)
    size, squares, noise_share = (
        torch.stack([counted, counted * z.square().mean(0), counted * of_noise]).sum(1).tolist()
    )
    count = len(z) * size
    if count < _FEWEST:
        return
    squares, share = squares / size, noise_share / size
    chance = 4 * math.sqrt(2 / count)
    nearest = min(1.0, squares * (1 + chance)) if squares < 1 else max(1.0, squares * (1 - chance))
    smallest = _SMALLEST_RATIO**2
    if smallest * (1 - share) <= nearest - share <= (1 - share) / smallest:
        return
    ratio = math.sqrt(max(0.0, squares - share) / max(1 - share, 1e-12))
    warnings.warn(
        f"condition_on: between these data the paths have about {ratio:.2g} of the posterior's standard deviation "
        f"(their mean is right): their basis, chosen given {many(prior.drawn_given, 'observation')}, has too few "
        "functions for so many precise data. Draw again given all the data; or choose a basis for the new points first "
        "with paths.refreshed(keep=points, where=x), which keeps the functions at `points`; more features "
        "(num_features=), and where=x of draw_prior, help too",
        SpreadWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """The stacklevel, where this is called, of the first caller outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _WITHIN:
        frame, level = frame.f_back, level + 1
    return level


def given_more(old: UpdatePaths, prior: PriorPaths, mean: Mean, new: Data, solver: Solver) -> UpdatePaths:
    """The update given all that the old one was given, and new data.

    A kept factor is extended, unless a solver without one is asked for by name; iterations start from the old weights.
    """
    n = len(old.noise)
    data = without_repeats(joined(old, new), num_old=n)
    if len(data.noise) == n and data.y.ndim == old.y.ndim:
        return old
    extend = isinstance(solver, Auto) or (isinstance(solver, Cholesky) and solver.keep)
    if extend and old.factor is not None and not (torch.is_grad_enabled() and data.y.requires_grad):
        update = extended_update(old, prior, mean, data)
        if update is not None:
            return update
        solver = Cholesky(keep=True)

    return update_given(prior, mean, old.kernel, data, solver, old=old, grown=_due(n, len(data.noise)))


def _guess(old: UpdatePaths | None, rows: int, n: int) -> Tensor | None:
    """Weights `[rows, n]` from which iterations start, of paths and of means, zero for new data; None without old."""
    if old is None or old.num_data == 0 or old.v_mean is None:
        return None
    v = torch.cat([old.v, old.v_mean.expand(rows - len(old.v), -1)])[:, old.num_inducing :]
    return torch.nn.functional.pad(v.detach(), (0, n - old.num_data))


def given_again(old: tuple[PriorPaths, UpdatePaths], new: tuple[PriorPaths, UpdatePaths], mean: Mean) -> UpdatePaths:
    """The update of new paths, the old ones in fewer digits: of the same data and noise, with the prior as it is."""
    prior, update = new
    if update.num_data and update.inducing is not None:  # the inducing points alone, then the data as they were given
        sparse = with_old_values(*((p, _without_data(u)) for p, u in (old, new)))
        m = update.num_inducing
        tasks = None if update.tasks is None else update.tasks[m:]
        data = Data(update.centres[m:], tasks, update.y, update.noise, update.xi)
        return update_given(prior, mean, update.kernel, data, Auto(), old=sparse)
    if update.num_data < update.num_centres:  # values at inducing points are not data
        return with_old_values(old, new)
    data = Data(update.centres, update.tasks, update.y, update.noise, update.xi)
    return update_given(prior, mean, update.kernel, data, Auto() if update.factor is None else Cholesky(keep=True))


def _without_data(update: UpdatePaths) -> UpdatePaths:
    m, of_u = update.num_inducing, update.inducing
    assert of_u is not None
    tasks = None if update.tasks is None else update.tasks[:m]
    v_mean = None if of_u.v_mean is None else of_u.v_mean[None]
    return UpdatePaths(update.kernel, update.centres[:m], tasks, of_u.v, v_mean, inducing=of_u)


def _kept(state: State) -> Factor | None:
    keep = isinstance(state, CholeskyState) and isinstance(state.solver, Cholesky) and state.solver.keep
    return Factor.of(state.L, state.jitter) if keep and isinstance(state, CholeskyState) else None


def extended_update(old: UpdatePaths, prior: PriorPaths, mean: Mean, data: Data) -> UpdatePaths | None:
    """The update of an exact posterior's paths given more data, by its kept factor: n^2 m for m more observations.

    `data` are the old ones and then the new. In blocks, with A the old covariance, B = K(old, new) and
    S = K(new, new) + noise - B^T A^-1 B, the old residuals stay what they were, so that

        v_new = S^-1 (residual_new - B^T v_old),        v = v_old - A^-1 B v_new

    None where S is not positive definite beyond rounding, or weights need more digits than the factor has: all must be
    factored anew.
    """
    factor, kernel, n = old.factor, old.kernel, len(old.noise)
    assert factor is not None and old.v_mean is not None
    X, tasks, y, noise, xi = data
    s, own = len(xi), y.ndim == 2
    some = None if tasks is None else tasks[n:]
    in_factor, new = kernel.to(X.device, factor.head.dtype), X[n:].to(factor.head)  # in as many digits as it has
    B = coupled_covariance(in_factor, old.centres.to(new), old.tasks, new, some)  # [n, m]
    corner = covariance(in_factor, new, some)  # [m, m]
    jitter = factor.jitter.to(noise)
    corner.diagonal().add_(noise[n:] + jitter)
    smallest = 4 * torch.finfo(factor.head.dtype).eps * float(corner.diagonal().max())
    grown = factor.extended(B, corner, smallest)
    if grown is None:
        return None
    factor, C, A_B = grown
    f = at_tasks(values_at(prior, mean, None, X[n:]), some)  # [s + 1, m]
    f = torch.cat([f, f[s:].expand(s - 1, -1)]) if own else f
    eps = (noise[n:] + jitter).sqrt() * torch.cat([xi[:, n:], torch.zeros_like(f[s:])])
    v_old = torch.cat([old.v, old.v_mean.expand(len(f) - s, -1)]).to(C)  # [s + 1, n]
    y_new = y[..., n:]
    residual = ((torch.cat([y_new, y_new]) if own else y_new) - f - eps).to(C) - v_old @ B.to(C)  # [s + 1, m]
    v_new = torch.cholesky_solve(residual.mT, C).mT
    v = torch.cat([v_old - v_new @ A_B.mT, v_new], dim=1)
    operator = KernelOperator(kernel, X, tasks, noise)
    if _due(n, len(X)):
        warn_of_spread(prior, operator, float(jitter), v[:s] - v[s:], factor.last_block)
    v = in_enough_digits(operator, v.double(), partial(deviations_by, factor.lower, operator, float(jitter)))
    if v.dtype != factor.head.dtype and v.dtype != X.dtype:
        return None
    stats = Stats("Cholesky(keep=True), extended", jitter=float(factor.jitter))
    return UpdatePaths(kernel, X, tasks, v[:s], v[s:], y=y, noise=noise, xi=xi, solver_stats=stats, factor=factor)


class Conditional:
    """The covariance of f given all that an update was given, in float64:

        k_q(x, x')  =  k(x, x') - A_x^T A_x' + R_x^T R_x'                            given inducing points; else k
        C(x, x')    =  k_q(x, x') - k_q(x, X) (k_q(X, X) + noise)^-1 k_q(X, x')      given data, if there are any

    A kept factor is used; else the data's covariance is factored here, or beyond `LARGEST_FACTOR` data solved for.
    """

    def __init__(self, update: UpdatePaths, solver: Solver | None = None) -> None:
        m, jitter = update.num_inducing, 0.0 if update.solver_stats is None else update.solver_stats.jitter
        centres, kernel, tasks = update.centres.double(), update.kernel.double(), update.tasks
        of_Z, of_X = (None, None) if tasks is None else (tasks[:m], tasks[m:])
        # What had to be added to the diagonal for the paths counts as noise; it was said then.
        operator = KernelOperator(kernel, centres[m:], of_X, update.noise.double() + jitter)
        self.kernel, self.X, self.tasks, self.q = kernel, centres[m:], of_X, None
        self.operator: Operator = operator
        if update.inducing is not None:
            of_u = update.inducing.double()
            self.operator = self.q = CorrectedOperator(operator, centres[:m], of_Z, of_u.jitter, of_u.root)
        self.requires_grad = update.requires_graph()
        self.factor: Factor | State | None = update.factor if solver is None else None
        if self.factor is None and update.num_data:
            self.factor = (solver or variance_solver(update.num_data)).init(self.operator)

    def variance(self, x: Tensor, tasks: Tensor | None) -> Tensor:
        """C(x, x) `[p]`."""
        prior = coupled_diagonal(self.kernel, x, tasks)
        if self.q is not None:
            _, A, R = self.q.halves(x, tasks)
            prior = prior - A.square().sum(0) + R.square().sum(0)
        if self.factor is None:
            return prior
        B = self._cross(x, tasks)
        if isinstance(self.factor, Factor | CholeskyState):
            return prior - self.factor.lower(B).to(B).square().sum(0)
        U, _ = self.factor.solve(B)
        return prior - (U * (B + self.operator.residual(B, U))).sum(0)  # an error of U counts by its square

    def covariance(self, x: Tensor, tasks: Tensor | None) -> Tensor:
        """C(x, x) `[p, p]`."""
        C = covariance(self.kernel, x, tasks)
        if self.q is not None:
            _, A, R = self.q.halves(x, tasks)
            C = C - A.mT @ A + R.mT @ R
        if self.factor is None:
            return C
        B = self._cross(x, tasks)
        if isinstance(self.factor, Factor | CholeskyState):
            E = self.factor.lower(B).to(B)
            return C - E.mT @ E
        U, _ = self.factor.solve(B)
        explained = U.mT @ (B + self.operator.residual(B, U))
        return C - (explained + explained.mT) / 2

    def _cross(self, x: Tensor, tasks: Tensor | None) -> Tensor:
        """k_q(X, x) `[n, p]`."""
        K = coupled_covariance(self.kernel, self.X, self.tasks, x, tasks)
        if self.q is None:
            return K
        _, A, R = self.q.halves(x, tasks)
        return K - self.q.A.mT @ A + self.q.R.mT @ R


def variance_solver(n: int) -> Solver:
    """How the covariance of n data is solved with where variances are asked for."""
    return Cholesky() if n <= LARGEST_FACTOR else PCG(tolerance=1e-3)


_conditional_of = Recorder(Conditional)


@singledispatch
def posterior_variance(update: UpdatePaths, paths: Paths, x: Tensor) -> Tensor:
    """k(x, x) - k(x, X) (K + noise)^-1 k(X, x), `[n, t]`, at points `[n, d]` of the model's space.

    An update of another kind registers a function of its own for its class.
    """
    if update.inducing is not None and update.inducing.root is None:
        raise TypeError(
            "variance: this q(u) is known by its draws alone (sample_u); use samples=True for an estimate from these "
            "paths"
        )
    rows, tasks = every_output(x, update.kernel.num_outputs)
    variance = _conditional_of(update).variance(rows.double(), tasks)
    return variance.clamp_min(0).reshape(len(x), update.kernel.num_outputs).to(x)


def values_at(prior: PriorPaths, mean: Mean, update: UpdatePaths | None, X: Tensor) -> Tensor:
    """mean + prior (+ update) of every path at X and, in the last row, of the path with w = 0: `[s + 1, n, t]`."""
    s, t, origin = prior.num_paths, prior.num_outputs, prior.origin
    graph = any(part.requires_graph() for part in (prior, mean, update) if part is not None)
    rows = (None, None) if update is None else (update.v[:s], update.v[s:])  # the paths', and the mean's
    given = [[] if update is None else update.terms(v) for v in rows]
    f = values(Record(s, t, [*prior.terms(), *given[0]], mean, origin, graph), X[None])
    m = values(Record(1, t, given[1], mean, origin, graph), X[None]) if given[1] else for_outputs(mean(X[None]), t)
    return torch.cat([f, m])


def joined(old: UpdatePaths, new: Data) -> Data:
    """The data of an update and new data, in order."""
    m, s = old.num_inducing, len(new.xi)
    old_y, new_y = old.y, new.y
    if old_y.ndim == 2 or new_y.ndim == 2:
        old_y, new_y = old_y.expand(s, -1), new_y.expand(s, -1)
    return Data(
        torch.cat([old.centres[m:], new.X]),
        None if old.tasks is None or new.tasks is None else torch.cat([old.tasks[m:], new.tasks]),
        torch.cat([old_y, new_y], dim=-1),
        torch.cat([old.noise, new.noise]),
        torch.cat([old.xi, new.xi], dim=-1),
    )


def without_repeats(data: Data, num_old: int) -> Data:
    """The data less the new noise-free observations that repeat one: they say nothing new, and make K singular."""
    if not bool((data.noise[num_old:] == 0).any()):
        return data
    keys = data.X if data.tasks is None else torch.cat([data.X, data.tasks[:, None].to(data.X)], dim=1)
    # At its own data a path has the value to the solver's rounding: that is no contradiction.
    tolerance = torch.finfo(data.y.dtype).eps ** 0.4 * float(data.y.detach().abs().max()) if data.y.numel() else 0.0
    first: dict[tuple[float, ...], int] = {}
    keep = []
    for i, (key, exact) in enumerate(zip(map(tuple, keys.tolist()), (data.noise == 0).tolist(), strict=True)):
        seen = first.setdefault(key, i) if exact else i
        if seen == i or i < num_old:
            keep.append(i)
        elif float((data.y[..., seen] - data.y[..., i]).detach().abs().max()) > tolerance:
            raise ValueError(
                f"condition_on: noise-free observations at the same point {list(key)} contradict each other; "
                "give them noise"
            )
    if len(keep) == len(data.noise):
        return data
    tasks = None if data.tasks is None else data.tasks[keep]
    return Data(data.X[keep], tasks, data.y[..., keep], data.noise[keep], data.xi[:, keep])
