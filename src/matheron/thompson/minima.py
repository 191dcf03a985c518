"""minimize: every path's minimiser, by a shared mesh and a polish of all paths' best starts together."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..boxes import as_box
from ..checks import ArrayLike, Random, as_count, as_generator
from ..paths import AbstractPaths, EnsemblePaths, require_paths
from ..progress import progress_bar
from .mesh import next_points, sobol_net
from .quasi_newton import ENDINGS, lowest, minimize_in_unit_box

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Mesh points, by default: fifteen times fewer than in the paper, and optima as good.
MESH_SIZE = 16_384
# Mesh points screened at once: their values for all paths stay near 64 MiB.
_SCREENED_VALUES = 1 << 23


class Minima(NamedTuple):
    """One minimiser per path: points x `[s, d]`, values `[s]`, and how each search ended."""

    x: Tensor
    value: Tensor
    ending: list[str]
    num_evaluations: int  # of a path at a point with its gradient, in all

    def __repr__(self) -> str:
        s, d = self.x.shape
        endings = ", ".join(f"{self.ending.count(e)} {e}" for e in dict.fromkeys(self.ending))
        low, high = self.value.min().item(), self.value.max().item()
        return (
            f"Minima({s} points in {d} dimension{'s' * (d > 1)}, values {low:.4g} to {high:.4g}; searches: {endings}; "
            f"{self.num_evaluations} evaluations)"
        )

    def _repr_html_(self) -> str:
        rows = zip(self.value.tolist(), self.x.tolist(), self.ending, strict=True)
        cells = [[f"{v:.4g}", ", ".join(f"{c:.4g}" for c in x), html.escape(e)] for v, x, e in rows][:20]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        head = "<tr><th>value</th><th>x</th><th>search</th></tr>"
        return f"<p>{html.escape(repr(self))}</p><table>{head}{body}</table>"

    def plot(
        self, *, paths: AbstractPaths | None = None, bounds: ArrayLike | None = None, axes: Axes | None = None
    ) -> Axes:
        """The minimisers, on a map of the paths' mean where these are given: `matheron.plots.plot_minima`."""
        from ..plots import plot_minima

        return plot_minima(self, paths=paths, bounds=bounds, axes=axes)


class Search(TypedDict, total=False):
    """The settings of `minimize`, by name."""

    num_starts: int
    mesh_size: int
    max_iterations: int
    progress: bool


def minimize(
    paths: AbstractPaths | Altered,
    bounds: ArrayLike,
    *,
    num_starts: int = 32,
    mesh_size: int = MESH_SIZE,
    max_iterations: int = 200,
    generator: Random = None,
    seed: int | None = None,
    progress: bool = False,
) -> Minima:
    """Find the minimiser of every path in a box.

    A scrambled Sobol mesh, shared by all paths, is screened in one blocked product; each path's `num_starts` best
    points are then polished together by a bounded quasi-Newton method.

    Args:
        paths: drawn functions of one output.
        bounds: the box, `[2, d]`: lower bounds, then upper.
        num_starts: points of the mesh that are polished, per path.
        mesh_size: points of the mesh; the paper's budget is 250,000, and rarely finds a lower value.
        max_iterations: of the polish.
        generator, seed: scrambles the mesh, a generator or a seed.
        progress: show a progress bar.

    >>> import matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2)
    >>> minima = matheron.minimize(paths, [[0.0, 0.0], [1.0, 1.0]], mesh_size=1000, num_starts=8)
    >>> minima.x.shape, minima.value.shape
    (torch.Size([4, 2]), torch.Size([4]))
    """
    paths = paths if isinstance(paths, Altered) else require_paths(paths)
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
    many: Sequence[AbstractPaths | Altered],
    bounds: ArrayLike,
    *,
    generators: Sequence[torch.Generator],
    num_starts: int = 32,
    mesh_size: int = MESH_SIZE,
    max_iterations: int = 200,
    progress: bool = False,
) -> list[Minima]:
    """`minimize` of the paths of several models, all of them polished in one call; each has a generator of its own.

    On a CPU the results are those of `minimize`, bit for bit: searches go in step, and no search depends on another. On
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
    joined = many[0] if len(many) == 1 else EnsemblePaths([require_paths(paths) for paths in many], owner)
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
    x = torch.addcmul(lower, optimum.x[best], side).clamp(lower, upper)  # rounding must not leave the box
    parts = [t.split(counts) for t in (x, optimum.value[best] * unit, optimum.ending[best])]
    each = zip(*parts, num_evaluations.tolist(), strict=True)
    return [Minima(x, value, [ENDINGS[i] for i in ending.tolist()], count) for x, value, ending, count in each]


def maximize(
    paths: AbstractPaths | Altered,
    bounds: ArrayLike,
    *,
    generator: Random = None,
    seed: int | None = None,
    **settings: Unpack[Search],
) -> Minima:
    """Find the maximiser of every path in a box: `minimize` of the paths turned upside down, with its settings.

    >>> import matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=1)
    >>> bool((matheron.maximize(paths, [[0.0], [1.0]], mesh_size=100).value >= paths([[0.5]])[:, 0]).all())
    True
    """
    minima = minimize(_Negated(paths), bounds, generator=generator, seed=seed, **settings)
    return minima._replace(value=-minima.value)


class Altered(ABC):
    """Functions made of paths, one of each: as much of Paths as `minimize` needs."""

    def __init__(self, paths: AbstractPaths | Altered) -> None:
        self.paths = paths if isinstance(paths, Altered) else require_paths(paths)
        self.dtype, self.device = paths.dtype, paths.device
        self.num_paths, self.num_outputs, self.input_dim = paths.num_paths, paths.num_outputs, paths.input_dim
        self.input_names = paths.input_names

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


class _Negated(Altered):
    """Paths upside down."""

    def __call__(self, x: Tensor) -> Tensor:
        return -self.paths(x)

    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value, gradient = self.paths.value_and_grad(x, of=of)
        return -value, -gradient


class Rounded(Altered):
    """Paths at points whose coordinates `whole` `[d]` are rounded to whole numbers, and whose coordinates of `choices`,
    each a run of them, are 1 where they are largest and else 0: one of several categories.

    Gradients are those at the rounded point, in these coordinates too: a search follows them from cell to cell, and
    steps that lead to no lower value are not taken.
    """

    def __init__(self, paths: AbstractPaths, whole: Tensor, choices: Sequence[slice] = ()) -> None:
        super().__init__(paths)
        self.whole, self.choices = whole, choices

    def rounded(self, x: Tensor) -> Tensor:
        x = torch.where(self.whole, x.round(), x)
        for choice in self.choices:
            part = x[..., choice]
            x[..., choice] = torch.nn.functional.one_hot(part.argmax(-1), part.shape[-1]).to(x)
        return x

    def __call__(self, x: Tensor) -> Tensor:
        return self.paths(self.rounded(x))

    def value_and_grad(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.paths.value_and_grad(self.rounded(x), of=of)


def _as_bounds(bounds: ArrayLike, paths: AbstractPaths | Altered) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=paths.dtype, device=paths.device)
    if paths.num_outputs != 1:
        raise ValueError(f"paths: expected functions of one output, got {paths.num_outputs} outputs")
    lower, upper = as_box(bounds, "bounds", input_dim=paths.input_dim, like=like, names=paths.input_names)
    return lower, upper


def _screen(
    paths: AbstractPaths | Altered,
    mesh: SobolEngine,
    lower: Tensor,
    side: Tensor,
    size: int,
    k: int,
    advance: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """Each path's k lowest points of the mesh, `[s, k, d]`, while the mesh streams by; and its unit `[s]`.

    The polish ends by tolerances for functions that vary by one or more. Where a path varies by less its unit is about
    that: a power of two, so that nothing is rounded.
    """
    s = paths.num_paths
    best = torch.full((s, 0), torch.inf, dtype=lower.dtype, device=lower.device)
    unit = torch.ones(s, dtype=lower.dtype, device=lower.device)
    where = torch.zeros(s, 0, len(side), dtype=lower.dtype, device=lower.device)
    step = max(k, min(size, _SCREENED_VALUES // s))
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
