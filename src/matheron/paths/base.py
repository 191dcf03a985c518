"""AbstractPaths: what all paths of one model can do. Applications know this type and nothing below it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self, final

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Random, as_generator, as_points
from ..evaluate import Record
from ..features import Features, FeatureSpec, feature_spec
from ..models.single import Observations, as_observations
from ..solvers import Solver, as_solver
from .functions import AbstractFunctions, require_functions


class AbstractPaths(AbstractFunctions):
    """Functions drawn from a Gaussian process, s of them: a value that is never changed.

    What a user calls is final here and in `AbstractFunctions`. Classes below say how values, means and updates are
    computed.
    """

    @final
    def condition_on(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        noise: ArrayLike,
        tasks: ArrayLike | None = None,
        solver: str | Solver = "auto",
        generator: Random = None,
        seed: int | None = None,
    ) -> Self:
        """The same draw, given more data: new paths with the same w and noise, as if the data had always been there.

        But the basis stays the one that was chosen for the data before. Where it has too few functions for many precise
        data, paths vary less between them than the posterior does, their mean being right: a `SpreadWarning` says so.
        Draw again then, or choose a basis for the new points first, with `refreshed(keep, where=x)`.

        Args:
            x: new points `[n, d]`, shared by all paths.
            y: their targets, `[n]` or `[s, n]` (each path its own, as in fantasies); `[..., n, t]` for t outputs
                without `tasks`.
            noise: variance of their noise, one number, one per point, or `[n, t]`; with 0 the paths pass through.
            tasks: which output each observation is of.
            solver: as for `draw`.
            generator, seed: draws the new observations' noise, a generator or a seed.

        >>> import matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.5), 3, input_dim=1)
        >>> paths.condition_on([[0.2]], [1.0], noise=0.0)([[0.2]]).round(decimals=6)
        tensor([[1.],
                [1.],
                [1.]], dtype=torch.float64)
        """
        like, generator = torch.empty(0, dtype=self.dtype, device=self.device), as_generator(generator, seed)
        x = as_points(x, "x", input_dim=self.input_dim, like=like, names=self.input_names)
        data = as_observations(x, y, noise, tasks, self.num_outputs, num_paths=self.num_paths)
        return self if len(data.noise) == 0 else self._given(data, as_solver(solver), generator)

    @final
    def refreshed(
        self,
        keep: ArrayLike,
        *,
        where: ArrayLike | None = None,
        num_features: int = 1024,
        features: str | Features = "auto",
        paths_per_basis: int | None = 64,
        domain: tuple[ArrayLike, ArrayLike] | None = None,
        tolerance: float = 1e-3,
        solver: str | Solver = "auto",
        generator: Random = None,
        seed: int | None = None,
    ) -> Self:
        """The same functions at some points, drawn afresh elsewhere with a basis for all the data: the law is right.

        For draws that are conditioned again and again, as in a loop that keeps its functions. Each `condition_on` asks
        more of the same basis; a new one is chosen here for all the data, and the functions keep their values at
        `keep`, where they have been looked at. These values are part of the draw and not data: more data move them, as
        they would have moved the old functions. Refresh before the spread is lost: `keep` is kept as it is.

        Args:
            keep: points `[p, d]` at which every function keeps its value; `[0, d]` for none.
            where: points `[n, d]` of data to come: the basis is chosen for these, too.
            num_features, features, paths_per_basis, domain, tolerance: of the new basis, as for `draw`.
            solver: as for `draw`.
            generator, seed: where random numbers come from, a generator or a seed.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.Matern(2.5, 0.3), 4, input_dim=1)
        >>> X, seen = torch.linspace(0, 1, 50)[:, None], [[0.21], [0.83]]
        >>> fresh = paths.refreshed(seen, where=X)
        >>> bool((fresh(seen) - paths(seen)).abs().max() < 1e-6)
        True
        >>> fresh.condition_on(X, torch.sin(9 * X[:, 0]), noise=1e-4)
        Paths(4 paths in 1 dimension, given 50 observations; prior: 1024 by leverage, kept at 2 points)
        """
        points, generator = self._shared_points(keep, "keep")[0].detach(), as_generator(generator, seed)
        asked = (features, num_features, paths_per_basis, domain, tolerance, where)
        spec = feature_spec(*asked, num_paths=self.num_paths, input_dim=self.input_dim, names=self.input_names)
        return self._refreshed(points, spec, as_solver(solver), generator)

    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        from .multi_model import SelectedPaths

        return SelectedPaths(self, outputs)

    @abstractmethod
    def _mean(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _variance(self, x: Tensor) -> Tensor: ...

    def _mean_record(self) -> Record | None:
        """The posterior mean as a record of one function; None where it is not one, or not one for all paths."""
        return None

    @abstractmethod
    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Self:
        """The paths given more data."""

    @abstractmethod
    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        """The paths with their values at points `[p, d]`, and drawn afresh elsewhere."""


def require_paths(paths: object, name: str = "paths") -> AbstractPaths:
    """Paths of one model, or a TypeError that says what to do; for what needs a mean, or an update."""
    functions = require_functions(paths, name)
    if isinstance(functions, AbstractPaths):
        return functions
    raise TypeError(
        f"{name}: expected paths, as matheron.draw gives them, got {type(paths).__name__}, which is made of such: "
        "it has no posterior of its own to be given data, or compared with; use the paths that it is made of"
    )
