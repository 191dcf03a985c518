"""Paths: functions drawn from a Gaussian process. Call them, differentiate them, condition them, save them.

`AbstractPaths` is the interface of all paths of one model, and the only type that applications use. `Paths` are those
of one posterior: prior + update.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, cast, final

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Names, Random, as_generator, as_names, as_points, many
from ..core.functionals import Functionals, Observed
from ..core.sites import Sites
from ..core.value import Json
from ..evaluate import Record, Recorder, inner_points, values, values_and_gradients
from ..features import Features, FeatureSpec, feature_spec
from ..kernels.covariances import averages_in_closed_form
from ..models.likelihoods import __all__ as LIKELIHOODS
from ..models.means import Mean
from ..models.observations import Observations, as_observations, is_observable
from ..models.observed_functionals import by_quadrature, check_observed, check_smooth, moved_inside, of_every_output
from ..models.transforms import Transform, chained
from ..solvers import Solver, Stats, as_solver
from .arithmetic import AbstractFunctions
from .functionals import averaged, functionals_of, undone
from .grids import write_by_record
from .prior import PriorPaths
from .update import Update


class AbstractPaths(AbstractFunctions):
    """Functions drawn from a Gaussian process, s of them: a value that is never changed.

    Methods that users call are final here and in `AbstractFunctions`. Subclasses define how values, means and updates
    are computed.
    """

    @final
    def condition_on(
        self,
        x: ArrayLike | Functionals | Sequence[Functionals],
        y: ArrayLike | Sequence[ArrayLike],
        *,
        noise: ArrayLike | Sequence[ArrayLike],
        tasks: ArrayLike | None = None,
        solver: str | Solver = "auto",
        generator: Random = None,
        seed: int | None = None,
    ) -> Self:
        """The same draw, given more data: new paths with the same w and noise, as if the data had always been there.

        The basis stays the one that was chosen for the earlier data. If it has too few functions for many precise data,
        the mean is right, but paths vary less between the data than the posterior does: a `SpreadWarning` says so. In
        that case draw again, or first choose a basis for the new points with `refreshed(keep, where=x)`.

        Args:
            x: new points `[n, d]`, shared by all paths; or functionals of `matheron.observe` (slopes, sums, averages),
                one or a list, with targets and noise as for `ExactGP`.
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
        origin, generator = self._origin, as_generator(generator, seed)
        like, d = origin[:0], len(origin)
        if is_observable(x):
            check_observed(x, d, self.input_names)
        else:
            x = as_points(cast(ArrayLike, x), "x", input_dim=d, like=like, names=self.input_names)
        data = as_observations(
            *(x, y, noise, tasks, self.num_outputs),
            averaged=self._averaged_as_data,
            num_paths=self.num_paths,
            like=like,
        )
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
        """Draw the functions afresh with a new basis, except at some points, where they keep their values. The law is
        that of the posterior.

        This is for draws that are conditioned many times, as in a loop that keeps its functions: each `condition_on`
        needs more of the same basis. Here a new basis is chosen for all the data. The functions keep their values at
        `keep`, the points where they have been used. These values are part of the draw, and not data: later data change
        them, as they would have changed the old functions. Refresh before a `SpreadWarning` appears, because values at
        `keep` stay as they are.

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
        """The posterior mean as a record: of one function, or of one for each path if each has its own posterior. None
        if it is not a single record."""
        return None

    def _averaged_as_data(self, functionals: Functionals) -> Functionals:
        """Prepare averages over boxes as data: in closed form if the kernel knows their covariances, and otherwise by
        quadrature."""
        return by_quadrature(functionals, partial(functionals_of, self))

    @abstractmethod
    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Self:
        """The paths given more data."""

    @abstractmethod
    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        """The paths with their values at points `[p, d]`, drawn afresh elsewhere."""


class PriorPlusUpdate(AbstractPaths):
    """Functions of one model: output o (mean + prior + update) o input."""

    fields = ("input_names", "outcomes")
    _internal = ("in_model_units", "inner", "outcomes", "record")
    outcomes: str | None = None
    """The likelihood of the data where these are outcomes: functions are latent then, and take no more data."""

    def __init__(
        self,
        prior: PriorPaths,
        update: Update,
        mean_function: Mean,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
        input_names: Names = None,
    ) -> None:
        super().__init__(prior=prior, update=update, mean_function=mean_function)
        self._modules["input_transform"], self._modules["output_transform"] = input_transform, output_transform
        self.input_names = input_names

    @classmethod
    def read_fields(cls, fields: dict[str, Json]) -> dict[str, Json]:
        return fields | {"input_names": as_names(fields.get("input_names")), "outcomes": fields.get("outcomes")}

    def check(self) -> None:
        as_names(self.input_names, self.input_dim)
        if self.outcomes is not None and str(self.outcomes).split("(")[0] not in LIKELIHOODS:
            raise ValueError(f"Paths.outcomes: expected one of {', '.join(LIKELIHOODS)}, got {self.outcomes!r}")
        self.update.check_beside(self.prior)
        x = inner = self.prior.features.origin.new_zeros(1, len(self.prior.features.origin))
        inward, _ = self.input_transform, self.output_transform
        if inward is not None and inward.known:
            inner = inward(x.new_full((1, self.input_dim), torch.nan))  # NaN, because zero may not be a category
        if inner.shape != x.shape or self.mean_function(x).shape not in ((1, 1), (1, self.num_outputs)):
            raise ValueError("Paths: expected a mean and transforms of as many dimensions and outputs")

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `fn` applied to every tensor. If float32 has too few digits for the sums of the update, the copy
        is conditioned again with the rounded prior. It is given the data, or the values at its inducing points."""
        new = super().mapped(fn)
        new._modules["update"] = new.update.narrowed(new.prior, (self.prior, self.update), new.mean_function)
        return new

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        update = self.mapped(fn).update  # called when a parent module is moved
        super()._apply(fn, recurse)
        self._modules["update"] = update
        return self

    def in_model_units(self) -> Self:
        """The same functions without their output transform."""
        return self.replaced(output_transform=None)

    @property
    def num_paths(self) -> int:
        return self.prior.num_paths

    @property
    def num_outputs(self) -> int:
        return self.prior.num_outputs

    @property
    def _origin(self) -> Tensor:
        origin, transform = self.prior.features.origin, self.input_transform
        if transform is None or transform.elementwise:
            return origin
        return origin.new_zeros(transform.input_dim(len(origin)))  # a point in the user's space

    @property
    def solver_stats(self) -> Stats | None:
        """The statistics of the solve for the update: the solver, its iterations and its residual. None if nothing was
        solved for.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=0.1)
        >>> matheron.draw(gp, 1).solver_stats
        Stats(solver='Cholesky()', iterations=0, residual=None, converged=True, jitter=0.0)
        """
        return self.update.solver_stats

    @property
    def noise_variance(self) -> Tensor | None:
        variance, transform = self.update.noise_variance(), self.output_transform
        if variance is None or transform is None:
            return variance
        return variance * transform.derivative(variance[None])[0].square() if transform.affine else None

    def __repr__(self) -> str:
        m, n = self.update.num_inducing, self.update.num_data
        given = [many(m, "inducing point")] * (m > 0) + [many(n, "observation")] * (n > 0) or ["no data"]
        outputs = f", {self.num_outputs} outputs" if self.num_outputs > 1 else ""
        dims = many(self.input_dim, "dimension")
        prior = f"prior: {self.prior.description}"
        return f"Paths({many(self.num_paths, 'path')} in {dims}{outputs}, given {' and '.join(given)}; {prior})"

    @property
    def record(self) -> Record:
        """The record that evaluators read. It is made once, and again after a tensor has changed."""
        return _record_of(self)

    def _values(self, x: Tensor) -> Tensor:
        record = self.record
        return record.outer(values(record, record.inner(x)))

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        record = self.record
        return record.chained(x, *values_and_gradients(record, record.inner(x), of))

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        write_by_record(self.record, axes, out)

    def _of(self, transform: Transform) -> Self:
        inward = chained([transform.to(self.device, self.dtype), self.input_transform])
        return self.replaced(input_transform=inward, input_names=None)

    def _records(self) -> list[Record]:
        return [self.record]

    def _takes(self, x: Tensor) -> bool:
        return self.input_transform is not None and bool(self.input_transform(x).isfinite().all())

    def inner(self, x: Tensor) -> Tensor:
        """Points in the model's own space, without a record."""
        return inner_points(x, self.input_transform, self.prior.features.domain)

    def _affine_output(self) -> None:
        if self.output_transform is not None and not self.output_transform.affine:
            raise TypeError("mean: under this output transform the mean has no closed form; average the paths instead")


def _make_record(paths: PriorPlusUpdate) -> Record:
    prior = paths.prior
    return Record(
        prior.num_paths,
        prior.num_outputs,
        paths.update.path_terms(prior),
        paths.mean_function,
        prior.features.origin,
        paths.requires_graph(),
        prior.features.domain,
        paths.input_transform,
        paths.output_transform,
    )


_record_of = Recorder(_make_record)


@final
class Paths(PriorPlusUpdate):
    """Functions drawn from a Gaussian process, a batch of them: a value that is never changed.

        (f | u)(.)  =  mean(.) + sum_i w_i phi_i(.) + sum_j v_j k(., z_j)          equation (13)
                                 `-- prior            `-- update

    Points and values have the shapes of `AbstractFunctions`.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X=[[0.1], [0.5], [0.9]], y=[0.0, 1.0, 0.0], noise=1e-6)
    >>> paths = matheron.draw(gp, 8)
    >>> paths
    Paths(8 paths in 1 dimension, given 3 observations; prior: 1024 by leverage)
    >>> paths(torch.linspace(0, 1, 100)[:, None]).shape
    torch.Size([8, 100])
    """

    def _mean(self, x: Tensor) -> Tensor:
        means = self._mean_record()
        f = means.outer(values(means, means.inner(x)))
        return f if self.update.own_posteriors else f[0]

    def _mean_record(self) -> Record:
        self._affine_output()
        rows = self.num_paths if self.update.own_posteriors else 1
        return self.record.derived(lambda r: replace(r, num_paths=rows, terms=self.update.mean_terms()), "mean")

    def _variance(self, x: Tensor) -> Tensor:
        return self._outer_variance(Sites.every_output(self.inner(x)[0], self.num_outputs))

    def _variance_of(self, functionals: Functionals) -> Tensor:
        return self._outer_variance(self._inner_sites(of_every_output(functionals, self.num_outputs)))

    def _outer_variance(self, sites: Observed) -> Tensor:
        """The posterior variance `[n, t]` of observations of every output in turn, `[n t]` sites."""
        transform = self.output_transform
        if transform is not None and not transform.affine:
            raise TypeError("variance: no closed form under this output transform; use samples=True for an estimate")
        variance = self.update.variance(self.prior, sites).reshape(-1, self.num_outputs)
        return variance if transform is None else variance * transform.derivative(variance).square()

    def _averaged_as_data(self, functionals: Functionals) -> Functionals:
        known = averages_in_closed_form(self.update.kernel, len(self.prior.features.origin))
        return averaged(self, functionals) if known else super()._averaged_as_data(functionals)

    def _chosen(self, index: Tensor) -> Paths:
        return self._with(self.prior[index], self.update[index])

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Paths:
        if self.outcomes is not None:
            raise TypeError(
                f"condition_on: the data of these functions are outcomes under {self.outcomes}, no normal "
                "measurements; call matheron.approximate(kernel, X, y, likelihood=...) with all outcomes, and draw "
                "again. Functions of matheron.draw(gp.gaussian, ...) take measurements of the latent function itself"
            )
        if self.output_transform is not None:
            data = undone(self.output_transform, self.num_outputs, data)
        new = data._replace(sites=self._inner_sites(data.sites))
        return self._with(*solver.condition(self.prior, self.update, self.mean_function, new, generator))

    def _inner_sites(self, sites: Observed) -> Observed:
        """Express observations by the functions in the model's own space: slopes by the chain rule."""
        inner = self.inner(sites.points[None])[0]  # raises an error if points are outside of the domain
        if not isinstance(sites, Functionals):
            return Sites(inner, sites.outputs)
        moved = moved_inside(sites, self.input_transform)
        check_smooth(self.update.kernel, moved)
        return moved

    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Paths:
        from .refreshing import refresh  # `refreshing` chooses features, and comes later in the import order

        return refresh(self, keep, spec, solver, generator)

    def _with(self, prior: PriorPaths, update: Update) -> Paths:
        made = Paths(prior, update, self.mean_function, self.input_transform, self.output_transform, self.input_names)
        return made if self.outcomes is None else made.replaced(outcomes=self.outcomes)
