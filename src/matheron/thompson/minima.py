"""minimize: the minimiser of every path, by a shared mesh and joint local searches from its best points."""

from __future__ import annotations

import html
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from ..core.boxes import Sobol, as_box
from ..core.checks import ArrayLike, Random, as_count, as_generator, as_tensor, many
from ..core.progress import progress_bar
from ..paths import AbstractFunctions, AbstractPaths, EnsemblePaths, require_functions
from .problem import Constraints, Found, Problem, formulated, simplex, solve
from .quasi_newton import ENDINGS, lowest, minimize_in_unit_box

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The default number of mesh points. The paper has fifteen times as many, with equally good optima.
MESH_SIZE = 16_384


class InfeasibleWarning(UserWarning):
    """No point was found that meets the constraints of some paths; their results have the least violation."""


class Minima(NamedTuple):
    """The minimiser of each path: points x `[s, d]`, values `[s]` (`[s, m]` for m objectives), and how each search
    ended.

    With c constraints, `violation` `[s, c]` is the amount by which each is above zero at x, and zero where it is met.

    >>> import matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=1, seed=0)
    >>> minima = matheron.minimize(paths, [[0.0], [1.0]], mesh_size=256, num_starts=4, seed=0)
    >>> bool((minima.value <= paths(minima.x[:1])[:, 0] + 1e-9).all()), minima.feasible.tolist()
    (True, [True, True, True, True])
    """

    x: Tensor
    value: Tensor
    ending: list[str]
    num_evaluations: int  # evaluations of a path with its gradient at one point, in total
    violation: Tensor | None = None

    @property
    def feasible(self) -> Tensor:
        """Whether each point meets all constraints, `[s]`."""
        if self.violation is None:
            return torch.ones(len(self.x), dtype=torch.bool, device=self.x.device)
        return (self.violation <= 0).all(1)

    def __repr__(self) -> str:
        s, d = self.x.shape
        endings = ", ".join(f"{self.ending.count(e)} {e}" for e in dict.fromkeys(self.ending))
        columns = self.value.reshape(s, -1).mT
        values = " and ".join(f"{column.min().item():.4g} to {column.max().item():.4g}" for column in columns)
        met = "" if self.violation is None else f", {int(self.feasible.sum())} of them feasible"
        return (
            f"Minima({s} points in {d} dimension{'s' * (d > 1)}{met}, values {values}; searches: {endings}; "
            f"{self.num_evaluations} evaluations)"
        )

    def _repr_html_(self) -> str:
        rows = zip(self.value.reshape(len(self.x), -1).tolist(), self.x.tolist(), self.ending, strict=True)
        cells = [
            [", ".join(f"{v:.4g}" for v in f), ", ".join(f"{c:.4g}" for c in x), html.escape(e)] for f, x, e in rows
        ]
        cells = cells[:20]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        head = "<tr><th>value</th><th>x</th><th>search</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{body}</table>"

    def plot(
        self, *, paths: AbstractFunctions | None = None, bounds: ArrayLike | None = None, axes: Axes | None = None
    ) -> Axes:
        """Plot the minimisers, on a map of the mean if paths are given (`matheron.plots.plot_minima`)."""
        from ..plots import plot_minima

        return plot_minima(self, paths=paths, bounds=bounds, axes=axes)


class Search(TypedDict, total=False):
    """The settings of `minimize`, by name."""

    num_starts: int
    mesh_size: int
    max_iterations: int
    progress: bool


def minimize(
    paths: AbstractFunctions,
    bounds: ArrayLike,
    *,
    constraints: Constraints = None,
    weights: ArrayLike | None = None,
    num_starts: int = 32,
    mesh_size: int = MESH_SIZE,
    max_iterations: int = 200,
    generator: Random = None,
    seed: int | None = None,
    progress: bool = False,
) -> Minima:
    """Find the minimiser of every path in a box, where constraints are met.

    All paths are evaluated on one scrambled Sobol mesh. From the `num_starts` best points of each path, a bounded
    quasi-Newton method searches locally, for all paths together. With constraints it minimises an augmented
    Lagrangian, and the best feasible point is returned. If a path has no feasible point, the one of least violation is
    returned, in standard deviations of the constraints over the box. `Minima.violation` and an `InfeasibleWarning`
    report that.

    Args:
        paths: drawn functions, or combinations of them (`f1 + 2 * f2.exp()`), with one or several outputs. Outputs
            that are not constraints are objectives.
        bounds: the box, `[2, d]`: lower bounds, then upper.
        constraints: one or several, each met where it is zero or below, as in Optuna. (BoTorch's, and those of SciPy's
            dictionaries, are met where they are not negative: change the sign.) A function of points `[n, d] -> [n]` is
            the same for all paths; its gradient is autograd's, or numerical where torch cannot follow it. The number of
            an output is that output, drawn jointly with the objective: each path is held to its own; {number: limit}
            for limits other than zero. The same number of paths of another model are constraints of that model.
        weights: weights of several objectives, `[m]`, or `[s, m]` for each path. The result is the minimiser of an
            augmented Chebyshev scalarisation, which is on the Pareto front of that path. None draws weights uniformly,
            so that points spread over the fronts.
        num_starts: number of points of the mesh from which local searches start, per path.
        mesh_size: number of points of the mesh. The paper uses 250,000, which rarely finds a lower value.
        max_iterations: limit for each local search.
        generator, seed: generator or seed that scrambles the mesh.
        progress: show a progress bar.

    >>> import matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2)
    >>> minima = matheron.minimize(paths, [[0.0, 0.0], [1.0, 1.0]], mesh_size=1000, num_starts=8)
    >>> minima.x.shape, minima.value.shape
    (torch.Size([4, 2]), torch.Size([4]))

    Where x_1 + x_2 is at most one:

    >>> inside = matheron.minimize(
    ...     paths, [[0.0, 0.0], [1.0, 1.0]], constraints=lambda x: x.sum(-1) - 1, mesh_size=1000, num_starts=8)
    >>> bool((inside.x.sum(1) <= 1).all()), bool(inside.feasible.all())
    (True, True)
    """
    paths = require_functions(paths)
    if constraints is not None or paths.num_outputs > 1:
        return _with_constraints(
            paths,
            bounds,
            constraints,
            weights,
            as_generator(generator, seed),
            num_starts=num_starts,
            mesh_size=mesh_size,
            max_iterations=max_iterations,
            progress=progress,
        )
    if weights is not None:
        raise ValueError("weights: given, but there is one objective; leave them out")
    return minimize_together(
        [paths],
        bounds,
        generators=[as_generator(generator, seed)],
        num_starts=num_starts,
        mesh_size=mesh_size,
        max_iterations=max_iterations,
        progress=progress,
    )[0]


def minimize_together(
    many: Sequence[AbstractFunctions],
    bounds: ArrayLike,
    *,
    generators: Sequence[torch.Generator],
    num_starts: int = 32,
    mesh_size: int = MESH_SIZE,
    max_iterations: int = 200,
    progress: bool = False,
) -> list[Minima]:
    """`minimize` for the paths of several models, with one call of the local search for all of them. Each has a
    generator of its own.

    On a CPU the results are those of `minimize`, bit for bit: searches run in lockstep, and none depends on another. On
    a GPU they agree to rounding, and hundreds of small searches take little longer than one.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.thompson import minimize_together
    >>> many = [matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=1, seed=i) for i in range(3)]
    >>> generators = [torch.Generator().manual_seed(i) for i in range(3)]
    >>> minima = minimize_together(many, [[0.0], [1.0]], generators=generators, mesh_size=64, num_starts=4)
    >>> alone = matheron.minimize(many[2], [[0.0], [1.0]], seed=2, mesh_size=64, num_starts=4)
    >>> torch.equal(minima[2].x, alone.x)
    True
    """
    if not many or len(many) != len(generators):
        raise ValueError(
            f"generators: expected one for each of the paths, at least one, got {len(many)} and {len(generators)}"
        )
    boxes = [_as_bounds(bounds, paths) for paths in many]
    lower, upper = boxes[0]
    k = min(as_count(num_starts, "num_starts"), as_count(mesh_size, "mesh_size"))
    side, counts = upper - lower, [paths.num_paths for paths in many]
    owner = torch.arange(len(many), device=lower.device).repeat_interleave(torch.tensor(counts, device=lower.device))
    joined = many[0] if len(many) == 1 else EnsemblePaths([require_functions(paths) for paths in many], owner)
    with progress_bar(show=progress, transient=True) as bar:
        screening = bar.add_task("screening the mesh", total=mesh_size * len(many))
        screened = []
        for paths, generator in zip(many, generators, strict=True):
            mesh = sobol_net(len(side), generator)
            screened.append(_screen(paths, mesh, lower, side, mesh_size, k, lambda n: bar.advance(screening, n)))
        starts, unit = (torch.cat(each) for each in zip(*screened, strict=True))  # [s, k, d], [s]
        polishing = bar.add_task("polishing", total=len(owner) * k)
        num_evaluations = torch.zeros(len(many), dtype=torch.long, device=lower.device)

        def objective(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            of = index // k
            num_evaluations.add_(torch.bincount(owner[of], minlength=len(many)))
            value, gradient = joined.value_and_grad(torch.addcmul(lower, u, side), of=of)
            return value / unit[of], gradient * side / unit[of, None]

        optimum = minimize_in_unit_box(
            objective,
            ((starts - lower) / side).flatten(0, 1),
            max_iterations=max_iterations,
            on_iteration=lambda running: bar.update(polishing, completed=len(owner) * k - running),
        )
    best = lowest(optimum.value, k)  # [s]
    x = torch.addcmul(lower, optimum.x[best], side).clamp(lower, upper)  # rounding must not move points out of the box
    parts = [t.split(counts) for t in (x, optimum.value[best] * unit, optimum.ending[best])]
    each = zip(*parts, num_evaluations.tolist(), strict=True)
    return [Minima(x, value, [ENDINGS[i] for i in ending.tolist()], count) for x, value, ending, count in each]


def maximize(
    paths: AbstractFunctions,
    bounds: ArrayLike,
    *,
    constraints: Constraints = None,
    weights: ArrayLike | None = None,
    generator: Random = None,
    seed: int | None = None,
    **settings: Unpack[Search],
) -> Minima:
    """Find the maximiser of every path in a box, by `minimize` for the negative paths and with its settings.

    Constraints are as for `minimize`, met where they are zero or below; outputs that are constraints stay as they are.

    >>> import matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=1)
    >>> bool((matheron.maximize(paths, [[0.0], [1.0]], mesh_size=100).value >= paths([[0.5]])[:, 0]).all())
    True
    """
    paths = require_functions(paths)
    if constraints is not None or paths.num_outputs > 1:
        generator = as_generator(generator, seed)
        minima = _with_constraints(paths, bounds, constraints, weights, generator, altered=operator.neg, **settings)
    else:
        minima = minimize(-paths, bounds, weights=weights, generator=generator, seed=seed, **settings)
    return minima._replace(value=-minima.value)


def _with_constraints(
    paths: AbstractFunctions,
    bounds: ArrayLike,
    constraints: Constraints,
    weights: ArrayLike | None,
    generator: torch.Generator,
    *,
    altered: Callable[[AbstractPaths], AbstractFunctions] | None = None,
    num_starts: int = 32,
    mesh_size: int = MESH_SIZE,
    max_iterations: int = 200,
    progress: bool = False,
) -> Minima:
    like = torch.empty(0, dtype=paths.dtype, device=paths.device)
    box = as_box(bounds, "bounds", input_dim=paths.input_dim, like=like, names=paths.input_names)
    objectives, limits = formulated(paths, constraints, box, altered)
    of = torch.arange(paths.num_paths, device=box.device)
    problem = Problem.unscaled(objectives, limits, of, as_weights(weights, len(objectives), box, of, generator))
    search = Search(num_starts=num_starts, mesh_size=mesh_size, max_iterations=max_iterations, progress=progress)
    found = minimize_problem(problem, box, generator=generator, **search)
    violation = found.C.clamp_min(0).nan_to_num(nan=torch.inf) if limits else None
    value = found.F[:, 0] if len(objectives) == 1 else found.F
    minima = Minima(found.x, value, found.ending, found.num_evaluations, violation)
    if not bool(minima.feasible.all()):
        count = many(int((~minima.feasible).sum()), "path")
        warnings.warn(
            f"no point that meets the constraints was found for {count} of {len(of)}: their points have the least "
            "violation (Minima.violation); a larger mesh_size searches more",
            InfeasibleWarning,
            stacklevel=3,
        )
    return minima


def as_weights(weights: ArrayLike | None, m: int, box: Tensor, of: Tensor, generator: torch.Generator) -> Tensor:
    """Weights `[r, m]` of objectives: as given, or uniform on the simplex, each problem's own."""
    if m == 1 and weights is not None:
        raise ValueError("weights: given, but there is one objective; leave them out")
    if m == 1:
        return box.new_ones(len(of), 1)
    if weights is None:
        return torch.stack([simplex(m, generator) for _ in of]).to(box)
    given = as_tensor(weights, "weights", like=box)
    if given.shape not in ((m,), (len(of), m)) or bool((given < 0).any()) or bool((given.sum(-1) == 0).any()):
        raise ValueError(
            f"weights: expected [{m}] or [{len(of)}, {m}] numbers, none negative and not all zero, got "
            f"{given.tolist() if given.numel() < 9 else list(given.shape)}"
        )
    return (given / given.sum(-1, keepdim=True)).expand(len(of), m)


def minimize_problem(
    problem: Problem,
    box: Tensor,
    *,
    generator: torch.Generator,
    num_starts: int = 32,
    mesh_size: int = MESH_SIZE,
    max_iterations: int = 200,
    progress: bool = False,
    known: Tensor | None = None,
) -> Found:
    """`solve` from a mesh of the box `[2, d]`, and from points `known` `[n, d]` of it."""
    lower, side = box[0], box[1] - box[0]
    k, size = as_count(num_starts, "num_starts"), as_count(mesh_size, "mesh_size")
    outputs = len(problem.objectives) + len(problem.constraints)
    step = _block_size(size, k, len(problem.of) * outputs)
    with progress_bar(show=progress, transient=True) as bar:
        screening = bar.add_task("screening the mesh", total=size)

        def blocks() -> Iterator[Tensor]:
            mesh = sobol_net(len(side), generator)
            for start in range(0, size, step):
                points = next_points(mesh, min(step, size - start), lower)
                yield points if known is None or start else torch.cat([(known - lower) / side, points])
                bar.advance(screening, len(points))

        return solve(problem, blocks(), lower[None], side[None], num_starts=k, max_iterations=max_iterations)


def _block_size(size: int, k: int, values_per_point: int, most_values: int = 1 << 23) -> int:
    """Mesh points screened at once, at least k of `size`: `most_values`, for all paths, are 64 MiB."""
    return max(k, min(size, most_values // values_per_point))


def _as_bounds(bounds: ArrayLike, paths: AbstractFunctions) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=paths.dtype, device=paths.device)
    if paths.num_outputs != 1:
        raise ValueError(f"paths: expected functions of one output, got {paths.num_outputs} outputs")
    lower, upper = as_box(bounds, "bounds", input_dim=paths.input_dim, like=like, names=paths.input_names)
    return lower, upper


def _screen(
    paths: AbstractFunctions,
    mesh: Sobol,
    lower: Tensor,
    side: Tensor,
    size: int,
    k: int,
    advance: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """The k lowest points of the mesh for each path, `[s, k, d]`, found block by block, and the unit of each path
    `[s]`.

    Local searches end by tolerances that suit functions with a range of one or more. A path with a smaller range is
    measured in a unit of about that range, which is a power of two so that nothing is rounded.
    """
    s = paths.num_paths
    best = torch.full((s, 0), torch.inf, dtype=lower.dtype, device=lower.device)
    unit = torch.ones(s, dtype=lower.dtype, device=lower.device)
    where = torch.zeros(s, 0, len(side), dtype=lower.dtype, device=lower.device)
    step = _block_size(size, k, s)
    with torch.no_grad():
        for start in range(0, size, step):
            points = lower + side * next_points(mesh, min(step, size - start), lower)  # [b, d]
            values = paths(points)  # [s, b]
            values = torch.where(torch.isnan(values), torch.inf, values)
            if start == 0:
                spread = values.median(1).values - values.amin(1)
                unit = torch.where((spread > 0) & (spread < 1), torch.exp2(spread.log2().floor()), unit)
            values, index = values.topk(min(k, len(points)), dim=1, largest=False)
            both, where = torch.cat([best, values], dim=1), torch.cat([where, points[index]], dim=1)
            best, index = both.topk(min(k, both.shape[1]), dim=1, largest=False)
            where = where.gather(1, index[..., None].expand(-1, -1, len(side)))
            advance(len(points))
    return where, unit


def sobol_net(d: int, generator: torch.Generator) -> Sobol:
    """Points that fill the unit cube evenly, scrambled as the generator says."""
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    return Sobol(d, seed)


def next_points(mesh: Sobol, count: int, like: Tensor) -> Tensor:
    """The next points `[count, d]` of a mesh. On a GPU they are computed there, with the same values as on a CPU."""
    if like.device.type == "cpu":
        return mesh.next(count).to(like)
    points = scrambled(mesh, mesh.num_generated, count, like.device).to(like)
    mesh.num_generated += count
    return points


def scrambled(mesh: Sobol, first: int, count: int, device: torch.device) -> Tensor:
    """Points `first` and on of a scrambled sequence, `[count, d]`: the direction numbers of i's Gray code, combined."""
    directions, x = mesh.sobolstate.to(device), mesh.shift.to(device)  # [d, bits], [d]
    i = torch.arange(first, first + count, device=device)
    gray = i ^ (i >> 1)
    x = x.expand(count, -1).clone()
    for bit in range(max(1, (first + count).bit_length())):
        x ^= ((gray >> bit) & 1)[:, None] * directions[:, bit]
    return x.double() / 2**Sobol.MAXBIT
