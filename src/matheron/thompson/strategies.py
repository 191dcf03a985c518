"""suggest: where to evaluate next, one point per drawn function, by each strategy of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict

import torch
from torch import Tensor

from ..compare.samplers import Posterior, inner_points, joint_draws, single, weight_space
from ..core.boxes import as_box
from ..core.checks import ArrayLike, Random, as_count, as_generator, as_tensor, check_names
from ..drawing import draw
from ..features import Features
from ..models import GP
from ..models.libraries import describe, is_model
from ..paths import AbstractFunctions, AbstractPaths, PosteriorMean, require_paths
from .greedy import is_at_datum, toward_mean
from .minima import MESH_SIZE, Search, as_weights, minimize_problem, minimize_together
from .problem import Output, Problem, formulated, listed, solve
from .region import data_in_box, regions

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
    if strategy in DRAWN:
        model = describe(model)
    if constraints is not None or (strategy in DRAWN and getattr(model, "num_outputs", 1) > 1):
        return _with_constraints(
            model,
            bounds,
            as_count(q, "q"),
            constraints,
            generator,
            DrawingPlan(strategy, num_features, features, pending),
            mesh_size=mesh_size,
            num_starts=num_starts,
            trust_region=trust_region,
            spread=spread,
            greedy=greedy,
            progress=progress,
        )
    return suggest_together(
        [model],
        bounds,
        q,
        generators=[generator],
        strategy=strategy,
        num_features=num_features,
        features=features,
        mesh_size=mesh_size,
        num_starts=num_starts,
        pending=pending,
        trust_region=trust_region,
        spread=spread,
        greedy=greedy,
        progress=progress,
    )[0]


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
    q = as_count(q, "q")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if not models or len(models) != len(generators):
        raise ValueError(f"generators: expected one for each model, got {len(models)} models and {len(generators)}")
    _check_region(trust_region, strategy)
    each_spread = spreads(spread, q)
    exactly = each_spread == [1.0] * q
    if (greedy or not exactly) and strategy not in DRAWN:
        name = "greedy" if greedy else "spread"
        raise ValueError(f'{name}: expected a strategy that draws functions, got {strategy!r}; use "decoupled"')
    if strategy == "random":
        lower, upper = as_box(bounds, "bounds")
        uniform = [torch.rand(q, len(lower), generator=g, device=g.device, dtype=torch.float64) for g in generators]
        return [torch.addcmul(lower, each.to(lower), upper - lower) for each in uniform]
    if mesh_size is None:  # function-space draws have the mesh of the paper (appendix C), because no search follows
        size = 1_000_000 if strategy == "function-space" else MESH_SIZE
    else:
        size = as_count(mesh_size, "mesh_size")
    each = list(zip(models, generators, strict=True))
    if strategy == "function-space":
        if pending is not None:
            raise ValueError('pending: function-space draws are of values, not functions; use strategy="decoupled"')
        return [_function_space(model, bounds, q, size, generator) for model, generator in each]
    many = DrawingPlan(strategy, num_features, features, pending).drawn(models, bounds, q, generators)
    functions: list[AbstractFunctions] = [*many] if exactly else [toward_mean(paths, each_spread) for paths in many]
    box = as_box(bounds, "bounds", input_dim=many[0].input_dim, names=many[0].input_names).to(
        many[0].device, many[0].dtype
    )
    if trust_region is not None:
        size = REGION_MESH_SIZE if mesh_size is None else size
        points = [
            _near_best(_one_objective(drawn, q, box), describe(model), box, trust_region, size, num_starts, g)
            for drawn, (model, g) in zip(functions, each, strict=True)
        ]
    else:
        search = Search(num_starts=num_starts, mesh_size=size, progress=progress)
        found = minimize_together(functions, bounds, generators=generators, **search)
        points = [minima.x for minima in found]
    if greedy:
        points = [
            _with_mean_first(x, _one_objective(PosteriorMean(paths), 1, box), describe(model), box, g)
            for x, paths, (model, g) in zip(points, many, each, strict=True)
        ]
    return points


class DrawingPlan(NamedTuple):
    """How functions are drawn."""

    strategy: str
    num_features: int
    features: str | Features | None
    pending: ArrayLike | None

    def drawn(
        self, models: Sequence[object], bounds: ArrayLike, q: int, generators: Sequence[torch.Generator]
    ) -> list[AbstractPaths]:
        """q functions of each model."""
        each = list(zip(models, generators, strict=True))
        if self.strategy != "decoupled":
            if self.pending is not None:
                raise ValueError('pending: a weight-space posterior takes no more data; use strategy="decoupled"')
            kind = "cosine" if self.features is None else self.features
            return [weight_space(m, q, features=kind, num_features=self.num_features, generator=g) for m, g in each]
        # Frequencies are chosen for the box. With a domain, `draw` would use a lattice in few dimensions, which is
        # meant for grids: in three dimensions, a search at separate points takes several times as long on it.
        kind = "leverage" if self.features in (None, "auto") else self.features
        lower, upper = as_box(bounds, "bounds")
        settings = {"features": kind, "num_features": self.num_features, "domain": (lower, upper)}
        many = [require_paths(draw(describe(model), q, generator=g, **settings)) for model, g in each]
        if self.pending is not None:
            many = [_given_pending(paths, self.pending, g) for paths, g in zip(many, generators, strict=True)]
        return many


def _with_constraints(
    model: object,
    bounds: ArrayLike,
    q: int,
    constraints: ModelConstraints,
    generator: torch.Generator,
    plan: DrawingPlan,
    *,
    mesh_size: int | None,
    num_starts: int,
    trust_region: float | None,
    spread: float | Sequence[float],
    greedy: bool,
    progress: bool,
) -> Tensor:
    """`suggest` of a problem with constraints, or with several objectives."""
    if plan.strategy not in DRAWN:
        raise ValueError(
            f'constraints: expected a strategy that draws functions, got {plan.strategy!r}; use "decoupled"'
        )
    _check_region(trust_region, plan.strategy)
    each_spread, gp = spreads(spread, q), describe(model)
    (paths,) = plan.drawn([gp], bounds, q, [generator])
    items = [plan.drawn([item], bounds, q, [generator])[0] if is_model(item) else item for item in listed(constraints)]
    box = as_box(bounds, "bounds", input_dim=paths.input_dim, names=paths.input_names).to(paths.device, paths.dtype)
    exactly = each_spread == [1.0] * q
    objectives, limits = formulated(paths, items, box, None if exactly else lambda own: toward_mean(own, each_spread))
    if greedy and len(objectives) > 1:
        raise ValueError(f"greedy: expected one objective, of which the mean has a minimiser, got {len(objectives)}")
    of = torch.arange(q, device=box.device)
    weights = as_weights(None, len(objectives), box, of, generator)
    problem = Problem.unscaled(objectives, limits, of, weights)
    if trust_region is None:
        size = MESH_SIZE if mesh_size is None else mesh_size
        found = minimize_problem(
            problem, box, generator=generator, num_starts=num_starts, mesh_size=size, progress=progress
        )
        points = found.x
    else:
        size = REGION_MESH_SIZE if mesh_size is None else as_count(mesh_size, "mesh_size")
        points = _near_best(problem, gp, box, trust_region, size, num_starts, generator)
    if greedy:
        means, _ = formulated(paths, items, box, PosteriorMean)
        points = _with_mean_first(points, Problem.unscaled(means, limits, of[:1], weights[:1]), gp, box, generator)
    return points


def _one_objective(functions: AbstractFunctions, count: int, box: Tensor) -> Problem:
    """The problems of minimising each of `count` functions, without constraints."""
    of = torch.arange(count, device=box.device)
    return Problem.unscaled([Output(functions)], [], of, box.new_ones(count, 1))


def _near_best(
    problem: Problem, gp: GP, box: Tensor, side: float, size: int, num_starts: int, generator: torch.Generator
) -> Tensor:
    """Each problem's minimiser `[q, d]` in a region about the data point that is best for that problem.

    The region has `side` times the sides of `box` `[2, d]`, longer in coordinates with long lengthscales, and is cut at
    the bounds of the box. A mesh of `size` points of it is screened.
    """
    X = data_in_box(gp, box[0], box[1])
    centres = X[problem.rank_at(X).argmin(1)]  # [q, d]
    low, span, u = regions(centres, gp, box[0], box[1], side, size, generator)
    return solve(problem, [u], low, span, num_starts=as_count(num_starts, "num_starts")).x


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
