"""refresh: functions that stay what they are at some points, and are drawn afresh elsewhere.

A basis of ell functions that has to meet n precise data loses spread as n grows towards ell. Drawn afresh, with
frequencies chosen for all the data, paths have the posterior's spread again; what is known of the old ones is kept.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import normals
from ..features.spec import FeatureSpec, features_for, inner_where, posterior_at, to_come
from ..models.means import at_tasks
from ..solvers import Auto, Cholesky, Solver, State, coupled_diagonal, every_output
from ..solvers.operator import KernelOperator
from .conditioning import Conditional, update_given
from .matheron_rule import Data
from .paths import Paths
from .precision import in_enough_digits, sparse_deviations
from .prior import PriorPaths, prior_on
from .update import Inducing, UpdatePaths

# Kept values are met where the other kept values and the data leave open this share of the prior's variance, at the
# least; where they leave less, they say what the value is.
_LEAST_OPEN = 1e-12


class _Noise(NamedTuple):
    """The standard normals of a draw, beside the prior's weights: of the data, of u, and of the jitter of k(Z, Z)."""

    data: Tensor  # [s, n]
    u: Tensor  # [s, r]
    jitter: Tensor  # [s, m]


@torch.no_grad()
def refresh(paths: Paths, keep: Tensor, basis: FeatureSpec, solver: Solver, generator: torch.Generator) -> Paths:
    """`AbstractPaths.refreshed` of one model's paths, at points z, `keep [p, d]`.

    With f the old function, g a fresh draw given the same data and C the posterior covariance given these data,

        f'(.)  =  g(.) + C(., z) a,        a  =  C(z, z)^-1 (f(z) - g(z))

    has f'(z) = f(z), and the posterior's law where f(z) has it. Since C(., z) is k(., z) less what the data explain of
    it, f' is also what Matheron's rule makes of the prior path g_0(.) + k(., z) a given the data, where g_0 is that of
    g. So this sum is the prior path of f', and the kept values are never data: more data move them as they move the
    rest of the draw, by Matheron's rule given the data alone.
    """
    update, t, like = paths.update, paths.num_outputs, paths.update.centres
    _require(paths, solver)
    if isinstance(solver, Auto) and update.factor is not None:
        solver = Cholesky(keep=True)
    given, f = Conditional(update, solver), paths.in_model_units()(keep).double()  # [s, p] or [s, p, t]
    z, tasks = every_output(paths.inner(keep[None])[0], t)  # [p t, d]
    variance = coupled_diagonal(given.kernel, z.double(), tasks)
    chosen, L = independent(given.covariance(z.double(), tasks), _least(like.dtype) * variance)
    z, tasks, f = z[chosen], None if tasks is None else tasks[chosen], f.flatten(1)[:, chosen]

    prior = _fresh(paths, z, tasks, basis, generator)  # g_0
    n, m = update.num_data, update.num_inducing
    r = 0 if update.inducing is None else update.inducing.root.shape[1]
    noise = _Noise(*(normals((paths.num_paths, count), generator).to(z) for count in (n, r, m)))
    g = Paths(prior, _given_same(update, given, prior, paths, noise), paths.mean_function)(z) if len(z) else f
    residual = f - (g if t == 1 else at_tasks(g, tasks)).double()  # [s, p]
    a = torch.cholesky_solve(residual.mT, L).mT  # [s, p]

    kept = UpdatePaths(update.kernel, z, tasks, a, None)
    prior = prior.replaced(kept=kept)
    if given.q is not None:  # C(., z) has a part that is due to u
        _, _, R = given.q.halves(z.double(), tasks)  # [r, p]
        noise = noise._replace(u=noise.u + (a @ R.mT).to(noise.u))
    return paths.replaced(prior=prior, update=_given_same(update, given, prior, paths, noise))


def _require(paths: Paths, solver: Solver) -> None:
    """TypeError or ValueError where paths cannot be drawn afresh given what they keep of their data."""
    update = paths.update
    if not update.keeps_data:
        raise TypeError(
            'refreshed: paths that were given data on a lattice (solver="lattice") do not keep these; draw again given '
            "all the data"
        )
    if update.inducing is not None and update.inducing.root is None:
        raise TypeError("refreshed: this q(u) is known by its draws alone (sample_u), so its covariance is not")
    if not solver.for_centres:
        raise ValueError('refreshed: expected a solver for centres, got solver="lattice"; use "cholesky" or "cg"')
    if paths.requires_graph():
        raise ValueError("refreshed: keeps no graph; draw with detach=True")


def _least(dtype: torch.dtype) -> float:
    return max(_LEAST_OPEN, (30 * torch.finfo(dtype).eps) ** 2)


def independent(C: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Of p variables with covariance C `[p, p]`, those that the ones before them do not determine: their indices
    `[k]`, and the factor `[k, k]` of their covariance. By pivoted Cholesky, until no variance is above `least [p]`.
    """
    L, info = torch.linalg.cholesky_ex(C)
    if not bool(info) and bool((L.diagonal().square() > least).all()):
        return torch.arange(len(C), device=C.device), L
    left, rows, chosen = C.diagonal().clone(), C.new_zeros(len(C), len(C)), []
    for k in range(len(C)):
        i = int((left - least).argmax())
        if not float(left[i]) > float(least[i]):
            break
        row = (C[i] - rows[:k, i] @ rows[:k]) / left[i].sqrt()
        rows[k], left = row, left - row.square()
        left[i] = -torch.inf
        chosen.append(i)
    index = torch.tensor(chosen, dtype=torch.long, device=C.device)
    return index, rows[: len(chosen), index].mT.tril()


def _fresh(paths: Paths, z: Tensor, tasks: Tensor | None, basis: FeatureSpec, generator: torch.Generator) -> PriorPaths:
    """Prior paths on a basis that is chosen for the data, for the kept points, and for data to come."""
    update, like, s, t = paths.update, paths.update.centres, paths.num_paths, paths.num_outputs
    jitter = update.noise[:0] if update.inducing is None else update.inducing.jitter.expand(update.num_inducing)
    sites = [(like, update.tasks, torch.cat([jitter, update.noise])), (z, tasks, z.new_zeros(len(z)))]
    where = inner_where(basis.where, paths.input_dim, paths.input_transform)
    sites += [] if where is None else [to_come(update.kernel, where.to(like))]
    X, noise = (torch.cat([site[i] for site in sites]) for i in (0, 2))
    of = None if tasks is None else torch.cat([each for _, each, _ in sites if each is not None])
    basis = basis._replace(where=None)
    centres = X if len(X) else like.new_zeros(1, paths.input_dim)
    features = features_for(
        update.kernel.double(),
        s,
        centres,
        basis,
        generator,
        observed=len(X) > 0,
        posterior=posterior_at(update.kernel, X, of, noise) if len(X) else None,
        input_transform=paths.input_transform,
    ).to(like.device, like.dtype)
    return prior_on(features, basis.index(features, s), t, like, generator, update.num_data)


def _given_same(update: UpdatePaths, given: Conditional, prior: PriorPaths, paths: Paths, noise: _Noise) -> UpdatePaths:
    """The update of other prior paths given all that an update was given, with noise of their own."""
    m, tasks, sparse = update.num_inducing, update.tasks, None
    if update.inducing is not None:
        sparse = _given_inducing(update, given, prior, noise)
        if not update.num_data:
            return sparse
    elif not update.num_data:
        return UpdatePaths.empty(update.kernel, update.centres, paths.num_paths)
    data = Data(update.centres[m:], None if tasks is None else tasks[m:], update.y, update.noise, noise.data)
    assert isinstance(given.factor, State)
    state = given.factor
    return update_given(prior, paths.mean_function, update.kernel, data, state.solver, state=state, old=sparse)


def _given_inducing(update: UpdatePaths, given: Conditional, prior: PriorPaths, noise: _Noise) -> UpdatePaths:
    """v = v_mean + K_mm^-1 (root xi - f_m - eps), f_m without the mean: `eqn:matheron_gp_sparse`."""
    of_u, m, tasks = update.inducing, update.num_inducing, update.tasks
    assert of_u is not None and given.q is not None
    Z, tasks = update.centres[:m], None if tasks is None else tasks[:m]
    f_m = at_tasks(prior.sums(Z[None]).mT, tasks).double()  # [s, m]
    u = noise.u.double() @ of_u.root.double().mT - of_u.jitter.double().sqrt() * noise.jitter.double()
    v = of_u.v_mean.double() + given.q.state.solve((u - f_m).mT)[0].mT  # [s, m]
    operator = KernelOperator(update.kernel, Z, tasks, of_u.jitter.expand(m))
    v = in_enough_digits(operator, v, partial(sparse_deviations, given.q.state, of_u.root, operator.noise))
    inducing = Inducing(v, of_u.v_mean, of_u.root, of_u.jitter)
    return UpdatePaths(update.kernel, Z, tasks, v, of_u.v_mean[None], inducing=inducing)
