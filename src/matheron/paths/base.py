"""AbstractPaths: what all paths of one model can do. Applications know this type and nothing below it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, final, overload

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Random, as_generator
from ..core.value import Value
from ..features import Features, FeatureSpec, feature_spec
from ..solvers import Solver, as_solver
from .functions import AbstractFunctions
from .observations import Observations, observed

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: Tensor
    standard_error: Tensor


class AbstractPaths(AbstractFunctions):
    """Functions drawn from a Gaussian process, s of them: a value that is never changed.

    What a user calls is final here and in `AbstractFunctions`. Classes below say how values, means and updates are
    computed.
    """

    @final
    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior mean at x `[n, d]`, exactly, whatever the basis: `[n]`, or `[n, t]` for several outputs.

        After `condition_on` with targets of each path's own the posteriors differ, and so do their means: `[s, n]`.
        An ensemble's is the mean of its members' means, each counted as often as it has paths.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=0.0)
        >>> matheron.draw(gp, 1).mean([[0.0]])
        tensor([2.], dtype=torch.float64)
        """
        mean = self._mean(self._shared_points(x, "mean"))
        return (mean[0] if mean.ndim == 3 and len(mean) == 1 else mean).squeeze(-1)

    @overload
    def variance(self, x: ArrayLike, *, samples: Literal[False] = False) -> Tensor: ...
    @overload
    def variance(self, x: ArrayLike, *, samples: Literal[True]) -> Estimate: ...
    @final
    def variance(self, x: ArrayLike, *, samples: bool = False) -> Tensor | Estimate:
        """The posterior's variance at x `[n, d]`, not that of these draws: `[n]`, or `[n, t]` for several outputs.

        Exact, also after `condition_on`, by the factor of the data's covariance. Where the draw did not keep it, it is
        made once, when first asked for, and kept beside the paths (n^2 numbers); beyond 8192 data conjugate gradients
        take its place, which err by about a thousandth. So do those on a lattice (`solver="lattice"`), in addition to
        the tolerance of the draw, and take milliseconds for each point. An ensemble's variance is that of the mixture.

        With `samples=True` an estimate from these paths instead, with its standard error.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
        >>> paths = matheron.draw(gp, 1000, seed=0)
        >>> paths.variance([[0.0]])
        tensor([0.5000], dtype=torch.float64)
        >>> estimate, error = paths.variance([[0.0]], samples=True)
        >>> bool(abs(estimate - 0.5) < 4 * error)
        True
        """
        points = self._shared_points(x, "variance")
        if not samples:
            return self._variance(points).squeeze(-1)
        return Estimate(*(each.squeeze(-1) for each in self._estimated_variance(points)))

    @overload
    def std(self, x: ArrayLike, *, samples: Literal[False] = False) -> Tensor: ...
    @overload
    def std(self, x: ArrayLike, *, samples: Literal[True]) -> Estimate: ...
    @final
    def std(self, x: ArrayLike, *, samples: bool = False) -> Tensor | Estimate:
        """The posterior's standard deviation: the root of `variance`, with the same arguments.

        >>> import matheron
        >>> from matheron import kernels
        >>> matheron.draw_prior(4.0 * kernels.RBF(), 2, input_dim=1).std([[0.3]])
        tensor([2.], dtype=torch.float64)
        """
        if not samples:
            return self.variance(x).sqrt()
        value, error = self.variance(x, samples=True)
        return Estimate(value.sqrt(), error / (2 * value.sqrt()))

    @property
    def noise_variance(self) -> Tensor | None:
        """The variance of the observations' noise, `[t]`, in the user's units: an observation at x has the variance
        `paths.variance(x) + paths.noise_variance`. None where it is not known, or differs from one to the other.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0], [1.0]], y=[2.0, 3.0], noise=0.1)
        >>> matheron.draw(gp, 1).noise_variance
        tensor([0.1000], dtype=torch.float64)
        """
        return None

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
        data, generator = observed(self, x, y, noise, tasks), as_generator(generator, seed)
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

    @final
    def plot(
        self,
        x: ArrayLike | Sequence[ArrayLike],
        *,
        data: tuple[ArrayLike, ArrayLike] | None = None,
        noise: ArrayLike | None = None,
        axes: Axes | Sequence[Axes] | np.ndarray | None = None,
    ) -> Any:
        """A picture of the paths: `matheron.plots.plot_paths`, which says what the arguments are. Returns the axes.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.2), 8, input_dim=1)
        >>> paths.plot(torch.linspace(0, 1, 100)).get_ylabel()
        'f(x)'
        """
        from ..plots import plot_paths

        return plot_paths(self, x, data=data, noise=noise, axes=axes)

    @final
    def _shared_points(self, x: ArrayLike, name: str) -> Tensor:
        points = self._points(x)
        if len(points) > 1:
            raise ValueError(f"{name}: expected points [n, {self.input_dim}], got {list(points.shape)}")
        return points

    @abstractmethod
    def _mean(self, x: Tensor) -> Tensor:
        """`[1, n, d] -> [n, t]`, or `[s, n, t]` where each path has a posterior of its own."""

    @abstractmethod
    def _variance(self, x: Tensor) -> Tensor:
        """`[1, n, d] -> [n, t]`, or `[s, n, t]` where paths have posteriors that differ in it; TypeError if unknown."""

    @final
    def _estimated_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """From these paths, and its standard error: both `[n, t]`."""
        s = self.num_paths
        if s < 2:
            raise ValueError(f"samples: expected at least two paths, got {s}; draw more")
        f = self._values(x)
        try:
            squares = (f - self._mean(x)).square()
        except TypeError:  # the mean has no closed form: theirs, and one degree of freedom less
            squares = (f - f.mean(0)).square() * (s / (s - 1))
        return squares.mean(0), squares.std(0) / math.sqrt(s)

    @abstractmethod
    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Self:
        """The paths given more data."""

    @abstractmethod
    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        """The paths with their values at points `[p, d]`, and drawn afresh elsewhere."""


def require_paths(paths: object, name: str = "paths") -> AbstractPaths:
    """Paths of one model, or a TypeError that says what to do; for applications, at their border."""
    if isinstance(paths, AbstractPaths):
        return paths
    shape = getattr(paths, "batch_shape", None)
    if isinstance(paths, Value) and shape is not None:
        raise TypeError(
            f"{name}: expected paths of one model, got a batch of {math.prod(shape)} models; ask each of paths.members"
        )
    raise TypeError(f"{name}: expected paths, as matheron.draw gives them, got {type(paths).__name__}")
