"""suggest: where to evaluate next, one point per drawn function, by each strategy of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import torch
from torch import Tensor

from ..compare.samplers import Posterior, inner_points, joint_draws, single, weight_space
from ..core.boxes import as_box
from ..core.checks import ArrayLike, Random, as_count, as_generator, as_tensor, check_names
from ..drawing import draw
from ..features import Features
from ..models import GP, ExactGP, Outputs, SparseGP, leaves
from ..models.libraries import describe, is_model
from ..paths import AbstractFunctions, AbstractPaths, PosteriorMean, require_paths, stack
from .minima import MESH_SIZE, Search, as_weights, minimize_problem, minimize_together, sobol_net
from .problem import Output, Problem, formulated, listed, solve

STRATEGIES = ("decoupled", "weight-space", "function-space", "random")
DRAWN = STRATEGIES[:2]  # the strategies whose functions can be evaluated anywhere
REGION_MESH_SIZE = 2048  # the points of a trust region that are screened for each function
# The number of an output, {number: limit}, a function of points, a model, or several of these.
ModelConstraints: TypeAlias = Any


class Drawing(TypedDict, total=False):
    """Settings of `suggest` that say how functions are drawn and minimised, by name."""

    num_features: int
    features: str | Features | None
    mesh_size: int | None
    num_starts: int
    pending: ArrayLike | None
    spread: float | Sequence[float]


def suggest(
    model: object,
    bounds: ArrayLike,
    q: int,
    *,
    constraints: ModelConstraints = None,
    strategy: str = "decoupled",
    num_features: int = 1024,
    features: str | Features | None = None,
    mesh_size: int | None = None,
    num_starts: int = 32,
    pending: ArrayLike | None = None,
    trust_region: float | None = None,
    spread: float | Sequence[float] = 1.0,
    greedy: bool = False,
    generator: Random = None,
    seed: int | None = None,
    progress: bool = False,
) -> Tensor:
    """Suggest q points to evaluate, `[q, d]`: each is the minimiser of its own function drawn from the model.

    Args:
        model: a model that `matheron.describe` understands, of one output; or of several (`matheron.Outputs` has models
            side by side). Outputs that are no constraints are objectives. Of several objectives each point is one of
            the Pareto front of functions of its own, by a random scalarisation, as in `minimize`.
        bounds: the box, `[2, d]`.
        q: how many points.
        constraints: one or several, each met where it is zero or below, as in Optuna (and not, as in BoTorch, where it
            is not negative). The number of an output of the model, or {number: limit}; another model, for whose outputs
            functions are drawn; or, where it is known, a function of points `[n, d] -> [n]`. Each point minimises its
            own function where its own constraints are met; if that is nowhere, their violation.
        strategy: what is drawn. "decoupled": this library's paths. "weight-space": paths of the random-feature linear
            model. "function-space": values on a mesh, where marginal draws keep the 2048 best points and a joint draw
            at these decides. "random": uniform points, which need no model.
        num_features: of "decoupled" and "weight-space".
        features: their kind, as for `matheron.draw`; None or "auto" is "leverage" for "decoupled", with
            frequencies chosen for the box, and None is "cosine" for "weight-space".
        mesh_size: points of the mesh, drawn anew at each call and shared by its q functions. The default is 16,384, as
            for `minimize`. For "function-space", where these points are all there is, it is the paper's 1,000,000.
        num_starts: points of the mesh that are polished, per function, with "decoupled" and "weight-space".
        pending: points `[p, d]` that are still being evaluated. This is optional, since functions are independent
            draws. Drawn functions then pass through the posterior mean at these points, so suggestions near them are
            less likely.
        trust_region: a share of the box's sides. Each function is then minimised in a region of such sides about the
            data point where it is lowest: for ten dimensions and more, see `minimize_function`.
        spread: factor for the deviations of functions from the posterior mean: one number, or one for each function.
            With 1 they are draws. With 0.5 they explore less, as averages of four draws do. Constraints are always
            draws.
        greedy: whether the first point is the minimiser of the posterior mean instead of a draw, unless it is at a
            datum. For one objective.
        generator, seed: where random numbers come from, a generator or a seed.
        progress: show a progress bar.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.3), X=[[0.2], [0.7]], y=[0.1, -0.4], noise=1e-3)
    >>> matheron.thompson.suggest(gp, [[0.0], [1.0]], q=3, mesh_size=512).shape
    torch.Size([3, 1])

    With a constraint that is known, and one that is a model too:

    >>> other = matheron.ExactGP(kernels.Matern(2.5, 0.3), X=[[0.2], [0.7]], y=[-1.0, 1.0], noise=1e-3)
    >>> x = matheron.thompson.suggest(
    ...     gp, [[0.0], [1.0]], q=3, constraints=[lambda x: 0.1 - x[..., 0], other], mesh_size=512, seed=0)
    >>> bool((x >= 0.1).all())
    True
    """
    generator = as_generator(generator, seed)
    plan = DrawingPlan(
        strategy, num_features, features, mesh_size, num_starts, pending, trust_region, spread, greedy, progress
    )
    if strategy in DRAWN:
        model = describe(model)
    if constraints is not None or (strategy in DRAWN and getattr(model, "num_outputs", 1) > 1):
        return _with_constraints(model, bounds, as_count(q, "q"), constraints, generator, plan)
    return _together([model], bounds, q, [generator], plan)[0]


def suggest_together(
    models: Sequence[object],
    bounds: ArrayLike,
    q: int,
    *,
    generators: Sequence[torch.Generator],
    strategy: str = "decoupled",
    num_features: int = 1024,
    features: str | Features | None = None,
    mesh_size: int | None = None,
    num_starts: int = 32,
    pending: ArrayLike | None = None,
    trust_region: float | None = None,
    spread: float | Sequence[float] = 1.0,
    greedy: bool = False,
    progress: bool = False,
) -> list[Tensor]:
    """`suggest` for several models, each with a generator of its own: the functions of all are minimised together.

    Each result equals that of `suggest` alone: bit for bit on a CPU, and to rounding on a GPU, where this saves the
    overhead of many small searches (`minimize_together`). Arguments are those of `suggest` without constraints.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gps = [matheron.ExactGP(kernels.Matern(2.5, 0.3), [[0.2], [0.7]], [y, 0.0], noise=1e-3) for y in (0.1, -0.4)]
    >>> generators = [torch.Generator().manual_seed(i) for i in range(2)]
    >>> points = matheron.thompson.suggest_together(gps, [[0.0], [1.0]], 3, generators=generators, mesh_size=512)
    >>> [x.shape for x in points]
    [torch.Size([3, 1]), torch.Size([3, 1])]
    """
    plan = DrawingPlan(
        strategy, num_features, features, mesh_size, num_starts, pending, trust_region, spread, greedy, progress
    )
    return _together(models, bounds, q, generators, plan)


@dataclass(frozen=True)
class DrawingPlan:
    """How functions are drawn and minimised, with the names of `suggest`."""

    strategy: str
    num_features: int
    features: str | Features | None
    mesh_size: int | None
    num_starts: int
    pending: ArrayLike | None
    trust_region: float | None
    spread: float | Sequence[float]
    greedy: bool
    progress: bool

    def size(self, usual: int) -> int:
        """The number of points of a mesh."""
        return usual if self.mesh_size is None else as_count(self.mesh_size, "mesh_size")

    def drawn(
        self, models: Sequence[object], bounds: ArrayLike, q: int, generators: Sequence[torch.Generator]
    ) -> list[AbstractPaths]:
        """q functions of each model."""
        each = list(zip(models, generators, strict=True))
        if self.strategy != "decoupled":
            if self.pending is not None:
                raise ValueError('pending: a weight-space posterior takes no more data; use strategy="decoupled"')
            return [self._in_weight_space(describe(model), q, generator) for model, generator in each]
        # Frequencies are chosen for the box. With a domain, `draw` would use a lattice in few dimensions, which is
        # meant for grids: in three dimensions, a search at separate points takes several times as long on it.
        kind = "leverage" if self.features in (None, "auto") else self.features
        lower, upper = as_box(bounds, "bounds")
        settings = {"features": kind, "num_features": self.num_features, "domain": (lower, upper)}
        many = [require_paths(draw(describe(model), q, generator=g, **settings)) for model, g in each]
        if self.pending is not None:
            many = [_given_pending(paths, self.pending, g) for paths, g in zip(many, generators, strict=True)]
        return many

    def _in_weight_space(self, gp: GP, q: int, generator: torch.Generator) -> AbstractPaths:
        if isinstance(gp, Outputs):  # independent models, each with features of its own
            return require_paths(stack([self._in_weight_space(member, q, generator) for member in gp.models]))
        kind = "cosine" if self.features is None else self.features
        return weight_space(gp, q, features=kind, num_features=self.num_features, generator=generator)


def _together(
    models: Sequence[object], bounds: ArrayLike, q: int, generators: Sequence[torch.Generator], plan: DrawingPlan
) -> list[Tensor]:
    """Suggestions without constraints, for each of several models."""
    q, strategy = as_count(q, "q"), plan.strategy
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if not models or len(models) != len(generators):
        raise ValueError(f"generators: expected one for each model, got {len(models)} models and {len(generators)}")
    _check_region(plan.trust_region, strategy)
    each_spread = spreads(plan.spread, q)
    exactly = each_spread == [1.0] * q
    if (plan.greedy or not exactly) and strategy not in DRAWN:
        name = "greedy" if plan.greedy else "spread"
        raise ValueError(f'{name}: expected a strategy that draws functions, got {strategy!r}; use "decoupled"')
    if strategy == "random":
        lower, upper = as_box(bounds, "bounds")
        uniform = [torch.rand(q, len(lower), generator=g, device=g.device, dtype=torch.float64) for g in generators]
        return [torch.addcmul(lower, each.to(lower), upper - lower) for each in uniform]
    each = list(zip(models, generators, strict=True))
    if strategy == "function-space":
        if plan.pending is not None:
            raise ValueError('pending: function-space draws are of values, not functions; use strategy="decoupled"')
        # the mesh of the paper (appendix C), because no search follows
        return [_function_space(model, bounds, q, plan.size(1_000_000), generator) for model, generator in each]
    many = plan.drawn(models, bounds, q, generators)
    functions: list[AbstractFunctions] = [*many] if exactly else [toward_mean(paths, each_spread) for paths in many]
    box = as_box(bounds, "bounds", input_dim=many[0].input_dim, names=many[0].input_names).to(
        many[0].device, many[0].dtype
    )
    if plan.trust_region is not None:
        points = [
            _near_best(_one_objective(drawn, q, box), describe(model), box, plan, g)
            for drawn, (model, g) in zip(functions, each, strict=True)
        ]
    else:
        search = Search(num_starts=plan.num_starts, mesh_size=plan.size(MESH_SIZE), progress=plan.progress)
        found = minimize_together(functions, bounds, generators=generators, **search)
        points = [minima.x for minima in found]
    if plan.greedy:
        points = [
            _with_mean_first(x, _one_objective(PosteriorMean(paths), 1, box), describe(model), box, g)
            for x, paths, (model, g) in zip(points, many, each, strict=True)
        ]
    return points


def _with_constraints(
    model: object,
    bounds: ArrayLike,
    q: int,
    constraints: ModelConstraints,
    generator: torch.Generator,
    plan: DrawingPlan,
) -> Tensor:
    """`suggest` of a problem with constraints, or with several objectives."""
    if plan.strategy not in DRAWN:
        raise ValueError(
            f'constraints: expected a strategy that draws functions, got {plan.strategy!r}; use "decoupled"'
        )
    _check_region(plan.trust_region, plan.strategy)
    each_spread, gp = spreads(plan.spread, q), describe(model)
    (paths,) = plan.drawn([gp], bounds, q, [generator])
    items = [plan.drawn([item], bounds, q, [generator])[0] if is_model(item) else item for item in listed(constraints)]
    box = as_box(bounds, "bounds", input_dim=paths.input_dim, names=paths.input_names).to(paths.device, paths.dtype)
    exactly = each_spread == [1.0] * q
    objectives, limits = formulated(paths, items, box, None if exactly else lambda own: toward_mean(own, each_spread))
    if plan.greedy and len(objectives) > 1:
        raise ValueError(f"greedy: expected one objective, of which the mean has a minimiser, got {len(objectives)}")
    of = torch.arange(q, device=box.device)
    weights = as_weights(None, len(objectives), box, of, generator)
    problem = Problem.unscaled(objectives, limits, of, weights)
    if plan.trust_region is None:
        search = Search(num_starts=plan.num_starts, mesh_size=plan.size(MESH_SIZE), progress=plan.progress)
        points = minimize_problem(problem, box, generator=generator, **search).x
    else:
        points = _near_best(problem, gp, box, plan, generator)
    if plan.greedy:
        means, _ = formulated(paths, items, box, PosteriorMean)
        points = _with_mean_first(points, Problem.unscaled(means, limits, of[:1], weights[:1]), gp, box, generator)
    return points


def _one_objective(functions: AbstractFunctions, count: int, box: Tensor) -> Problem:
    """The problems of minimising each of `count` functions, without constraints."""
    of = torch.arange(count, device=box.device)
    return Problem.unscaled([Output(functions)], [], of, box.new_ones(count, 1))


def _near_best(problem: Problem, gp: GP, box: Tensor, plan: DrawingPlan, generator: torch.Generator) -> Tensor:
    """Each problem's minimiser `[q, d]` in a region about the data point that is best for that problem.

    The region has `trust_region` times the sides of `box` `[2, d]`, longer in coordinates with long lengthscales, and
    is cut at the bounds of the box.
    """
    assert plan.trust_region is not None
    X = data_in_box(gp, box[0], box[1])
    centres = X[problem.rank_at(X).argmin(1)]  # [q, d]
    size = plan.size(REGION_MESH_SIZE)
    low, span, u = regions(centres, gp, box[0], box[1], plan.trust_region, size, generator)
    return solve(problem, [u], low, span, num_starts=as_count(plan.num_starts, "num_starts")).x


def _with_mean_first(
    points: Tensor,
    problem: Problem,
    gp: GP,
    box: Tensor,
    generator: torch.Generator,
    mesh_size: int = 4096,
    num_starts: int = 8,
) -> Tensor:
    """Points `[q, d]`, the first of which is replaced by the minimiser of the posterior mean unless that is at a datum.

    Searches for the minimiser start from the best points of a mesh and of the data: in ten dimensions a mesh has no
    point near the lowest datum.
    """
    known = data_in_box(gp, box[0], box[1])
    sizes = Search(num_starts=num_starts, mesh_size=mesh_size)
    best = minimize_problem(problem, box, generator=generator, known=known, **sizes).x  # [1, d]
    return points if is_at_datum((known - best) / (box[1] - box[0])) else torch.cat([best.to(points), points[1:]])


def _check_region(trust_region: float | None, strategy: str) -> None:
    if trust_region is not None and not (
        strategy in DRAWN and isinstance(trust_region, float | int) and trust_region > 0
    ):
        raise ValueError(
            f"trust_region: expected a share of the box above zero, for functions that are drawn whole, got "
            f'{trust_region!r} with strategy={strategy!r}; use strategy="decoupled"'
        )


def spreads(spread: float | Sequence[float], q: int) -> list[float]:
    """One for each of q functions."""
    several = as_tensor(spread, "spread").double()
    if several.ndim > 1 or (several.ndim == 1 and len(several) != q):
        raise ValueError(f"spread: expected a number, or one for each of {q} points, got shape {list(several.shape)}")
    if not bool(((several > 0) & several.isfinite()).all()):
        raise ValueError(f"spread: expected positive numbers, got {spread!r}; the mean's minimiser is greedy=True")
    return several.expand(q).tolist()


def _given_pending(paths: AbstractPaths, pending: ArrayLike, generator: torch.Generator) -> AbstractPaths:
    """The paths through their posterior mean at points that are still being evaluated."""
    check_names(pending, "pending", paths.input_names)
    x = as_tensor(pending, "pending", like=torch.empty(0, dtype=paths.dtype, device=paths.device))
    return paths.condition_on(x, paths.mean(x), noise=0.0, generator=generator)


def _function_space(
    model: object, bounds: ArrayLike, q: int, size: int, generator: torch.Generator, active_set: int = 2048
) -> Tensor:
    """Minimisers of q functions drawn on a mesh, the first list of steps on Thompson sampling in appendix C.

    The mesh and the marginal moments on it are shared by the q functions. For each, a draw from the marginals keeps the
    `active_set` lowest points of the mesh, and the lowest value of a joint draw there decides.
    """
    gp = single(describe(model))
    lower, upper = as_box(bounds, "bounds", names=gp.input_names)
    uniform = torch.rand(size, len(lower), generator=generator, device=generator.device, dtype=torch.float64)
    mesh = torch.addcmul(lower, uniform.to(lower), upper - lower)  # [M, d]
    posterior, inner = Posterior(gp), inner_points(gp, mesh)
    mean, deviation = posterior.marginals(inner)
    chosen = []
    for _ in range(q):
        zeta = torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64).to(mean)
        best = (mean + deviation * zeta).topk(min(active_set, size), largest=False).indices
        joint = joint_draws(posterior, inner[best], generator)(1)[0]  # [active_set]
        chosen.append(mesh[best[joint.argmin()]])
    return torch.stack(chosen)


# Less exploration. In ten dimensions the minimum of a draw lies where little is known, in every round, and the best
# point so far is hardly used. Two remedies use it (Do et al., epsilon-greedy Thompson sampling, 2024). The first halves
# the draws' deviations from the mean, as averages of four draws would. The second takes one point of each round at the
# minimum of the mean. `docs/results/against.md` measures both.


def toward_mean(paths: AbstractPaths, spread: float | Sequence[float]) -> AbstractFunctions:
    """mean + spread (f - mean): drawn functions with their deviations from the posterior mean on another scale, the
    same for all of them or one for each."""
    s = paths.num_paths
    w = torch.as_tensor(spread, dtype=paths.dtype, device=paths.device)
    mean = PosteriorMean(paths)
    mean = mean if mean.num_paths == s else mean[[0] * s]
    return paths * w + mean * (1 - w)


def is_at_datum(difference: Tensor, near: float = 1e-4) -> bool:
    """Whether a point is nearer than `near` to a datum in every coordinate. Differences `[n, d]` are shares of the
    box. An evaluation there would add no information."""
    return bool((difference.abs().amax(1) < near).any())


# Trust regions. In ten dimensions a box has more corners than any budget can visit, and most drawn functions have their
# minimum in one of them. TuRBO (Eriksson et al., 2019) restricts the search to a region around the best point so far,
# which grows while values fall and shrinks otherwise. Here whole functions are drawn, so their minimisers in the region
# are found by gradients and not picked from candidates.


def regions(
    centres: Tensor,
    gp: GP,
    lower: Tensor,
    upper: Tensor,
    side: float,
    mesh_size: int,
    generator: torch.Generator,
    num_moved: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes about centres `[s, d]`, from `low` with sides `span`, both `[s, d]`; and a mesh of each, `[s, n, d]` in the
    unit cube. A point of the mesh differs from the centre in about `num_moved` coordinates."""
    whole, (s, d) = upper - lower, centres.shape
    half = 0.5 * side * _relative_lengthscales(gp, lower, upper).to(lower) * whole
    low, high = torch.maximum(centres - half, lower), torch.minimum(centres + half, upper)
    span = (high - low).clamp_min(torch.finfo(lower.dtype).tiny)  # [s, d]
    mesh = sobol_net(d, generator).next(mesh_size).to(lower)
    chance = torch.rand(s, mesh_size, d, generator=generator, device=generator.device, dtype=torch.float32)
    moved = chance.to(lower.device) < num_moved / d
    u = torch.where(moved, mesh, ((centres - low) / span)[:, None])  # [s, n, d]
    u[:, 0] = (centres - low) / span
    return low, span, u


def data_in_box(gp: GP, lower: Tensor, upper: Tensor) -> Tensor:
    """The data (or inducing points) `[n, d]` in the user's units, those outside of the box at its bounds."""
    several = [_data(member, lower) for member in leaves(gp)]
    # models of an ensemble have the same data
    X = several[0] if len(several) == 1 else torch.cat(several).unique(dim=0)
    return X.clamp(lower, upper)


def _data(gp: ExactGP | SparseGP, like: Tensor) -> Tensor:
    X = gp.centres.detach().to(like)
    return X if gp.input_transform is None else gp.input_transform.to(X.device, X.dtype).inverse(X)


def _relative_lengthscales(gp: GP, lower: Tensor, upper: Tensor) -> Tensor:
    """How long each coordinate's lengthscale is, in sides of the box, over their geometric mean: `[d]`; else ones. Of
    several models it is the geometric mean of theirs."""
    each = torch.stack([_relative_lengthscales_of(member, lower, upper) for member in leaves(gp)])
    return each.log().mean(0).exp()


def _relative_lengthscales_of(gp: ExactGP | SparseGP, lower: Tensor, upper: Tensor) -> Tensor:
    d = len(lower)
    parts = gp.kernel.radial_parts(d)
    if parts is None or len(parts) != 1 or len(parts[0].dims) < d:
        return torch.ones_like(lower)
    box = torch.stack([lower, upper])
    if gp.input_transform is not None:  # lengthscales are in the model's own space, and so is the box
        box = gp.input_transform.to(box.device, box.dtype)(box)
    in_order = torch.empty_like(lower)
    in_order[parts[0].dims] = parts[0].kernel.lengthscale.detach().to(lower).expand(d)
    relative = in_order / (box[1] - box[0]).abs()
    if not bool((relative.isfinite() & (relative > 0)).all()):  # for example a logarithm's side from zero is infinite
        return torch.ones_like(lower)
    return relative / relative.log().mean().exp()
