"""minimize: every path's minimiser, by a shared mesh and a polish of all paths' best starts together."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..checks import ArrayLike, Random, as_box, as_count, as_generator
from ..paths import AbstractPaths, require_paths
from ..progress import progress_bar
from .quasi_newton import ENDINGS, minimize_in_unit_box

# Mesh points, by default: fifteen times fewer than in the paper, and optima as good.
MESH_SIZE = 16_384
# Mesh points screened at once: their values for all paths stay near 64 MiB.
_SCREENED_VALUES = 1 << 23


class Minima(NamedTuple):
    """One minimiser a path: points x `[s, d]`, values `[s]`, and how each search ended."""

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

    def plot(self, *, paths: AbstractPaths | None = None, bounds: ArrayLike | None = None, axes: Any = None) -> Any:
        """The minimisers, on a map of the paths' mean where these are given: `matheron.plots.plot_minima`."""
        from ..plots import plot_minima

        return plot_minima(self, paths=paths, bounds=bounds, axes=axes)


def minimize(
    paths: AbstractPaths | _Negated,
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
        num_starts: points of the mesh that are polished, a path.
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
    paths = paths if isinstance(paths, _Negated) else require_paths(paths)
    lower, upper = _as_bounds(bounds, paths)
    generator = as_generator(generator, seed)
    k = min(as_count(num_starts, "num_starts"), as_count(mesh_size, "mesh_size"))
    side = upper - lower
    with progress_bar(show=progress, transient=True) as bar:
        screening = bar.add_task("screening the mesh", total=mesh_size)
        mesh = SobolEngine(len(side), scramble=True, seed=_seed(generator))
        starts = _screen(paths, mesh, lower, side, mesh_size, k, lambda n: bar.advance(screening, n))  # [s, k, d]
        polishing = bar.add_task("polishing", total=paths.num_paths * k)
        num_evaluations = 0

        def objective(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal num_evaluations
            num_evaluations += len(index)
            value, gradient = paths.value_and_grad(torch.addcmul(lower, u, side), of=index // k)
            return value, gradient * side

        optimum = minimize_in_unit_box(
            objective,
            ((starts - lower) / side).flatten(0, 1),
            max_iterations=max_iterations,
            on_iteration=lambda running: bar.update(polishing, completed=paths.num_paths * k - running),
        )
    values = optimum.value.unflatten(0, (-1, k))
    best = torch.where(torch.isfinite(values), values, torch.inf).argmin(1)  # [s]
    chosen = torch.arange(len(best), device=best.device) * k + best
    x = torch.addcmul(lower, optimum.x[chosen], side).clamp(lower, upper)  # rounding must not leave the box
    return Minima(x, optimum.value[chosen], [ENDINGS[i] for i in optimum.ending[chosen].tolist()], num_evaluations)


def maximize(paths: AbstractPaths, bounds: ArrayLike, **settings: Any) -> Minima:
    """Find the maximiser of every path in a box: `minimize` of the paths turned upside down.

    >>> import matheron
    >>> from matheron import kernels
    >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=1)
    >>> bool((matheron.maximize(paths, [[0.0], [1.0]], mesh_size=100).value >= paths([[0.5]])[:, 0]).all())
    True
    """
    minima = minimize(_Negated(paths), bounds, **settings)
    return minima._replace(value=-minima.value)


class _Negated:
    """Paths upside down: as much of Paths as `minimize` needs."""

    def __init__(self, paths: AbstractPaths) -> None:
        self.paths = require_paths(paths)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.paths, name)

    def __call__(self, x: Tensor) -> Tensor:
        return -self.paths(x)

    def value_and_grad(self, x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = self.paths.value_and_grad(x, of=of)
        return -value, -gradient


def _as_bounds(bounds: ArrayLike, paths: AbstractPaths | _Negated) -> tuple[Tensor, Tensor]:
    like = torch.empty(0, dtype=paths.dtype, device=paths.device)
    if paths.num_outputs != 1:
        raise ValueError(f"paths: expected functions of one output, got {paths.num_outputs} outputs")
    lower, upper = as_box(bounds, "bounds", input_dim=paths.input_dim, like=like)
    return lower, upper


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def _screen(
    paths: AbstractPaths | _Negated, mesh: SobolEngine, lower: Tensor, side: Tensor, size: int, k: int, advance: Any
) -> Tensor:
    """Each path's k lowest points of the mesh, `[s, k, d]`, while the mesh streams by."""
    s = paths.num_paths
    best = torch.full((s, 0), torch.inf, dtype=lower.dtype, device=lower.device)
    where = torch.zeros(s, 0, len(side), dtype=lower.dtype, device=lower.device)
    step = max(k, min(size, _SCREENED_VALUES // s))
    with torch.no_grad():
        for start in range(0, size, step):
            points = lower + side * mesh.draw(min(step, size - start), dtype=torch.float64).to(lower)  # [b, d]
            values = paths(points)  # [s, b]
            values = torch.where(torch.isnan(values), torch.inf, values)
            values, index = values.topk(min(k, len(points)), dim=1, largest=False)
            both, where = torch.cat([best, values], dim=1), torch.cat([where, points[index]], dim=1)
            best, index = both.topk(min(k, both.shape[1]), dim=1, largest=False)
            where = where.gather(1, index[..., None].expand(-1, -1, len(side)))
            advance(len(points))
    return where
