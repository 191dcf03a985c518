"""refresh: functions that keep their values at some points and are drawn afresh elsewhere.

The paths of a basis with ell functions lose spread when the number n of precise data approaches ell. Paths that are
drawn afresh, with frequencies chosen for all the data, have the posterior's spread again. The known values of the old
ones are kept.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import normals
from ..core.sites import Sites, concatenated
from ..features import FeatureSpec, make_features, posterior_at, to_come
from ..kernels import coupled_diagonal
from ..solvers import Auto, Cholesky, Solver, State
from ..solvers.cholesky import solved
from ..solvers.operator import KernelOperator
from .exact import CentredUpdate, Data, ExactUpdate, exact_update
from .paths import Paths
from .posterior import PosteriorCovariance
from .precision import choose_weight_dtype
from .prior import PriorPaths, prior_on
from .sparse import CorrectedOperator, Inducing, SparseUpdate, sparse_deviations, sparse_update_given_data
from .update import KernelSum


class _Noise(NamedTuple):
    """The standard normals of a draw, in addition to the prior's weights: of the data's noise, of u, and of the jitter
    of k(Z, Z)."""

    data: Tensor  # [s, n]
    u: Tensor  # [s, r]
    jitter: Tensor  # [s, m]


@torch.no_grad()
def refresh(paths: Paths, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Paths:
    """`AbstractPaths.refreshed` of one model's paths, at points z, `keep [p, d]`.

    With f the old function, g a fresh draw given the same data and C the posterior covariance given these data,

        f'(.)  =  g(.) + C(., z) a,        a  =  C(z, z)^-1 (f(z) - g(z))

    has f'(z) = f(z), and the posterior's law if f(z) has it. C(., z) is k(., z) minus the part that the data explain.
    So f' is also the result of Matheron's rule for the prior path g_0(.) + k(., z) a given the data, where g_0 is the
    prior path of g. This sum is the prior path of f', and the kept values are never data. More data change them as they
    change the rest of the draw, by Matheron's rule given the data alone.
    """
    update, t = _require(paths, solver), paths.num_outputs
    if isinstance(solver, Auto) and isinstance(update, ExactUpdate) and update.factor is not None:
        solver = Cholesky(keep=True)
    given, f = update.posterior(solver), paths.in_model_units()(keep).double()  # [s, p] or [s, p, t]
    z = Sites.every_output(paths.inner(keep[None])[0], t)
    variance = coupled_diagonal(update.kernel.double(), z.double())
    chosen, L = independent(given.covariance(z.double()), _least(update.centres.dtype) * variance)
    z, f = z[chosen], f.flatten(1)[:, chosen]

    prior = _fresh(paths, update, z, spec, generator)  # g_0
    r = update.inducing.root.shape[1] if isinstance(update, SparseUpdate) and update.inducing.root is not None else 0
    counts = (update.num_data, r, update.num_inducing)
    noise = _Noise(*(normals((paths.num_paths, count), generator).to(z.points) for count in counts))
    g = f
    if len(z):
        g = Paths(prior, _given_same(update, given, prior, paths, noise), paths.mean_function)(z.points).double()
        g = g if t == 1 else z.own(g)
    a = solved(L, (f - g).mT).mT  # [s, p]

    prior = prior.replaced(kept=KernelSum(update.kernel, z, a))
    if isinstance(given.operator, CorrectedOperator):  # a part of C(., z) is due to the randomness of u
        _, _, R = given.operator.halves(z.double())  # [r, p]
        noise = noise._replace(u=noise.u + (a @ R.mT).to(noise.u))
    return paths.replaced(prior=prior, update=_given_same(update, given, prior, paths, noise))


def _require(paths: Paths, solver: Solver) -> CentredUpdate:
    """Return the update of the paths. Raises a TypeError or ValueError if the paths cannot be drawn afresh with these
    values."""
    update = paths.update
    if not isinstance(update, CentredUpdate):
        raise TypeError(
            'refreshed: paths that were given data on a lattice (solver="lattice") do not keep these; draw again given '
            "all the data"
        )
    if isinstance(update, SparseUpdate) and update.inducing.root is None:
        raise TypeError("refreshed: this q(u) is known by its draws alone (sample_u), so its covariance is not")
    if not solver.for_centres:
        raise ValueError('refreshed: expected a solver for centres, got solver="lattice"; use "cholesky" or "cg"')
    if paths.requires_graph():
        raise ValueError("refreshed: keeps no graph; draw with detach=True")
    return update


def _least(dtype: torch.dtype, share: float = 1e-12) -> float:
    """The least share of the prior's variance that a kept value must have, given the data and the other kept values.

    With a smaller share the value is determined by the others, up to the rounding of the covariance.
    """
    return max(share, (30 * torch.finfo(dtype).eps) ** 2)


def independent(C: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Select those of p variables with covariance C `[p, p]` that the ones before them do not determine. Returns their
    indices `[k]` and the factor `[k, k]` of their covariance. The method is pivoted Cholesky, until no variance is
    above `least [p]`.
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


def _fresh(paths: Paths, update: CentredUpdate, z: Sites, spec: FeatureSpec, generator: torch.Generator) -> PriorPaths:
    """Draw prior paths on a basis that is chosen for the data, for the kept points, and for data to come."""
    like = update.centres
    jitter = update.noise[:0]
    if isinstance(update, SparseUpdate):
        jitter = update.inducing.jitter.expand(update.num_inducing)
    sites, noises = [update.sites, z], [jitter, update.noise, z.points.new_zeros(len(z))]
    spec = replace(spec, num_paths=paths.num_paths).inside(paths.input_transform, None)
    if spec.where is not None:
        more, noise = to_come(update.kernel, spec.where.to(like))
        sites, noises = [*sites, more], [*noises, noise]
    X, noise = concatenated(*sites), torch.cat(noises)
    spec = replace(spec, where=None).inside(None, X.points if len(X) else None)
    posterior = posterior_at(update.kernel, X, noise) if len(X) else None
    features = make_features(update.kernel.double(), spec, generator, posterior=posterior, like=like)
    index = spec.basis_index(features)
    return prior_on(features, index, paths.num_outputs, like, generator, update.num_data)


def _given_same(
    update: CentredUpdate, given: PosteriorCovariance, prior: PriorPaths, paths: Paths, noise: _Noise
) -> CentredUpdate:
    """Condition other prior paths on the data and inducing values of an update, with new noise."""
    old, kernel = update.data, update.kernel
    data = Data(old.sites, old.y, old.noise, noise.data)
    state = given.factor
    if isinstance(update, SparseUpdate):
        inducing = _given_inducing(update, given, prior, noise)
        if not update.num_data:
            return SparseUpdate.without_data(kernel, inducing)
        assert isinstance(state, State)
        return sparse_update_given_data(prior, paths.mean_function, kernel, inducing, data, state.solver, state=state)
    if not update.num_data:
        return ExactUpdate.empty(kernel, update.centres, paths.num_paths)
    assert isinstance(state, State)
    return exact_update(prior, paths.mean_function, kernel, data, state.solver, state=state)


def _given_inducing(update: SparseUpdate, given: PosteriorCovariance, prior: PriorPaths, noise: _Noise) -> Inducing:
    """v = v_mean + K_mm^-1 (root xi - f_m - eps), f_m without the mean: equation (10)."""
    of_u, operator = update.inducing, given.operator
    assert isinstance(operator, CorrectedOperator) and of_u.root is not None and of_u.v_mean is not None
    Z, root, v_mean = of_u.sites, of_u.root, of_u.v_mean
    f_m = Z.own(prior.sums(Z.points[None]).mT).double()  # [s, m]
    u = noise.u.double() @ root.double().mT - of_u.jitter.double().sqrt() * noise.jitter.double()
    v = v_mean.double() + operator.state.solve((u - f_m).mT)[0].mT  # [s, m]
    K_mm = KernelOperator(update.kernel, Z, of_u.jitter.expand(len(Z)))
    v = choose_weight_dtype(K_mm, v, partial(sparse_deviations, operator.state, root, K_mm.noise))
    return Inducing(Z, v, v_mean, root, of_u.jitter)
