"""suggest: where to evaluate next, one point per drawn function, by each strategy of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from ..boxes import as_box
from ..checks import ArrayLike, Random, as_count, as_generator, as_tensor, check_names
from ..drawing import draw
from ..features import Features
from ..libraries import describe
from ..paths import AbstractPaths, require_paths
from ..samplers import Posterior, inner_points, joint_draws, single, weight_space
from .altered import TowardMean
from .greedy import minimizer_of_mean
from .minima import MESH_SIZE, Search, minimize, minimize_together
from .region import MESH_SIZE as REGION_MESH_SIZE
from .region import minimizers_near_best

STRATEGIES = ("decoupled", "weight-space", "function-space", "random")
DRAWN = STRATEGIES[:2]  # of functions that are drawn whole
# Points of the mesh by default. Where the best are not polished it is the paper's, `apdx:additional_experiments_ts`.
MESH_SIZES = {"decoupled": MESH_SIZE, "weight-space": MESH_SIZE, "function-space": 1_000_000}
ACTIVE_SET = 2048


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
    """q points to evaluate, each the minimiser of a function of its own drawn from the model: `[q, d]`.

    Args:
        model: a model of one output that `matheron.describe` understands.
        bounds: the box, `[2, d]`.
        q: how many points.
        strategy: "decoupled" (this library's paths), "weight-space" (paths of the random-feature linear model),
            "function-space" (values on a mesh: marginal draws keep its 2048 best points, a joint draw there decides),
            or "random" (uniform points, which need no model).
        num_features: of the first two.
        features: their kind, as for `matheron.draw`; None or "auto" is "leverage" for the first, with frequencies
            chosen for the box, and None is "cosine" for the second.
        mesh_size: points of the mesh, drawn anew at each call and shared by its q functions; if not given 16,384 as
            for `minimize`, and for "function-space", where they are all there is, the paper's 1,000,000.
        num_starts: points of the mesh that are polished, per function; of the first two.
        pending: points `[p, d]` still being evaluated. They need nothing, since functions are independent draws; given
            here, the drawn functions pass through the posterior mean there, and so have less to find near them.
        trust_region: a share of the box's sides. Each function is then minimised in a region of such sides about the
            data point where it is lowest: for ten dimensions and more, see `minimize_function`.
        spread: how far functions are from the posterior mean, in deviations of draws: for all of them, or one number
            for each. With 1 they are draws; with 0.5 they explore less, as averages of four draws do.
        greedy: whether the first point is the minimiser of the posterior mean, where that is at no datum, instead of a
            draw's.
        generator, seed: where random numbers come from, a generator or a seed.
        progress: show a progress bar.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.3), X=[[0.2], [0.7]], y=[0.1, -0.4], noise=1e-3)
    >>> matheron.thompson.suggest(gp, [[0.0], [1.0]], q=3, mesh_size=512).shape
    torch.Size([3, 1])
    """
    return suggest_together(
        [model],
        bounds,
        q,
        generators=[as_generator(generator, seed)],
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

    What each gets is what `suggest` gives it alone: bit for bit on a CPU, to rounding on a GPU, where it saves the time
    of many small searches (`minimize_together`). Arguments are those of `suggest`.

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
    if trust_region is not None and not (
        strategy in DRAWN and isinstance(trust_region, float | int) and trust_region > 0
    ):
        raise ValueError(
            f"trust_region: expected a share of the box above zero, for functions that are drawn whole, got "
            f'{trust_region!r} with strategy={strategy!r}; use strategy="decoupled"'
        )
    each_spread = spreads(spread, q)
    exactly = each_spread == [1.0] * q
    if (greedy or not exactly) and strategy not in DRAWN:
        name = "greedy" if greedy else "spread"
        raise ValueError(f'{name}: expected a strategy that draws functions, got {strategy!r}; use "decoupled"')
    if strategy == "random":
        lower, upper = as_box(bounds, "bounds")
        uniform = [torch.rand(q, len(lower), generator=g, device=g.device, dtype=torch.float64) for g in generators]
        return [torch.addcmul(lower, each.to(lower), upper - lower) for each in uniform]
    size = MESH_SIZES[strategy] if mesh_size is None else as_count(mesh_size, "mesh_size")
    each = list(zip(models, generators, strict=True))
    if strategy == "function-space":
        if pending is not None:
            raise ValueError('pending: function-space draws are of values, not functions; use strategy="decoupled"')
        return [_function_space(model, bounds, q, size, generator) for model, generator in each]
    if strategy == "decoupled":
        # Frequencies are chosen for the box. A lattice, which a domain would bring in few dimensions, is for grids: in
        # three dimensions a search at points of its own takes several times as long on one.
        kind = "leverage" if features in (None, "auto") else features
        lower, upper = as_box(bounds, "bounds")
        many = [
            draw(model, q, features=kind, num_features=num_features, domain=(lower, upper), generator=g)
            for model, g in each
        ]
        if pending is not None:
            many = [_given_pending(paths, pending, g) for paths, g in zip(many, generators, strict=True)]
    else:
        if pending is not None:
            raise ValueError('pending: a weight-space posterior takes no more data; use strategy="decoupled"')
        kind = "cosine" if features is None else features
        many = [weight_space(model, q, features=kind, num_features=num_features, generator=g) for model, g in each]
    functions = [require_paths(paths) if exactly else TowardMean(paths, each_spread) for paths in many]
    box = as_box(bounds, "bounds", input_dim=many[0].input_dim, names=many[0].input_names)
    if trust_region is not None:
        settings = {"num_starts": num_starts, "mesh_size": REGION_MESH_SIZE if mesh_size is None else size}
        points = [
            minimizers_near_best(drawn, describe(model), box, trust_region, generator=g, **settings)
            for drawn, (model, g) in zip(functions, each, strict=True)
        ]
    else:
        search = Search(num_starts=num_starts, mesh_size=size, progress=progress)
        if exactly:
            found = minimize_together(functions, bounds, generators=generators, **search)
        else:
            found = [minimize(f, bounds, generator=g, **search) for f, g in zip(functions, generators, strict=True)]
        points = [minima.x for minima in found]
    if greedy:
        points = [_greedy(x, *of, box) for x, *of in zip(points, many, models, generators, strict=True)]
    return points


def spreads(spread: float | Sequence[float], q: int) -> list[float]:
    """One for each of q functions."""
    several = as_tensor(spread, "spread").double()
    if several.ndim > 1 or (several.ndim == 1 and len(several) != q):
        raise ValueError(f"spread: expected a number, or one for each of {q} points, got shape {list(several.shape)}")
    if not bool(((several > 0) & several.isfinite()).all()):
        raise ValueError(f"spread: expected positive numbers, got {spread!r}; the mean's minimiser is greedy=True")
    return several.expand(q).tolist()


def _greedy(x: Tensor, paths: AbstractPaths, model: object, generator: torch.Generator, box: Tensor) -> Tensor:
    """The points x `[q, d]`, the first of them the minimiser of the posterior mean where that is at no datum."""
    best = minimizer_of_mean(paths, describe(model), box, generator=generator)
    return x if best is None else torch.cat([best[None].to(x), x[1:]])


def _given_pending(paths: AbstractPaths, pending: ArrayLike, generator: torch.Generator) -> AbstractPaths:
    """The paths through their posterior mean at points that are still being evaluated."""
    check_names(pending, "pending", paths.input_names)
    x = as_tensor(pending, "pending", like=torch.empty(0, dtype=paths.dtype, device=paths.device))
    return paths.condition_on(x, paths.mean(x), noise=0.0, generator=generator)


def _function_space(model: object, bounds: ArrayLike, q: int, size: int, generator: torch.Generator) -> Tensor:
    """Steps 1 to 5 of the appendix's recipe: the mesh and its marginals are shared, what is drawn is not."""
    gp = single(describe(model))
    lower, upper = as_box(bounds, "bounds", names=gp.input_names)
    uniform = torch.rand(size, len(lower), generator=generator, device=generator.device, dtype=torch.float64)
    mesh = torch.addcmul(lower, uniform.to(lower), upper - lower)  # [M, d]
    posterior, inner = Posterior(gp), inner_points(gp, mesh)
    mean, deviation = posterior.marginals(inner)
    chosen = []
    for _ in range(q):
        zeta = torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64).to(mean)
        best = (mean + deviation * zeta).topk(min(ACTIVE_SET, size), largest=False).indices
        joint = joint_draws(posterior, inner[best], generator)(1)[0]  # [2048]
        chosen.append(mesh[best[joint.argmin()]])
    return torch.stack(chosen)
