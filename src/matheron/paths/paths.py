"""Paths: functions drawn from a Gaussian process. Call them, differentiate them, condition them, save them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Self, final

import torch
from torch import Tensor

from ..core.checks import Names, as_names, many
from ..core.value import Json
from ..evaluate import Record, Recorder, inner_points, on_grid, values, values_and_gradients
from ..models.means import Mean
from ..models.transforms import Transform
from ..solvers import Solver, Stats
from .base import AbstractPaths
from .compress_update import with_folded
from .conditioning import condition, given_again, posterior_variance
from .observations import Observations, undone
from .precision import narrows_badly
from .prior import PriorPaths, with_equal_bases_merged
from .update import UpdatePaths

if TYPE_CHECKING:
    from ..features.spec import FeatureSpec  # which comes later in the import order

# Covariances of data and points that are in memory at once, where variances are asked for.
_VARIANCES = 1 << 22


class PriorPlusUpdate(AbstractPaths):
    """Functions of one model: output o (mean + prior + update) o input."""

    fields = ("input_names",)
    _internal = ("in_model_units", "record")

    def __init__(
        self,
        prior: PriorPaths,
        update: UpdatePaths,
        mean_function: Mean,
        input_transform: Transform | None = None,
        output_transform: Transform | None = None,
        input_names: Names = None,
    ) -> None:
        super().__init__()
        self.input_names = input_names
        self.prior = prior
        self.update = update
        self.mean_function = mean_function
        self.register_module("input_transform", input_transform)
        self.register_module("output_transform", output_transform)

    @classmethod
    def read_fields(cls, fields: dict[str, Json]) -> dict[str, Json]:
        return fields | {"input_names": as_names(fields.get("input_names"))}

    def check(self) -> None:
        as_names(self.input_names, self.input_dim)
        if len(self.update.v) != self.num_paths or self.update.kernel.num_outputs != self.num_outputs:
            raise ValueError("Paths: expected a prior and an update of as many paths and outputs")
        if self.update.centres.shape[1] != len(self.prior.origin) or self.update.centres.dtype != self.dtype:
            raise ValueError("Paths: expected a prior and an update in as many dimensions, and of one dtype")
        x = inner = self.update.centres.new_zeros(1, len(self.prior.origin))
        inward, _ = self.input_transform, self.output_transform
        if inward is not None and inward.known:
            inner = inward(x.new_full((1, self.input_dim), torch.nan))  # zero may be no category
        if inner.shape != x.shape or self.mean_function(x).shape not in ((1, 1), (1, self.num_outputs)):
            raise ValueError("Paths: expected a mean and transforms of as many dimensions and outputs")

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `fn` applied to every tensor. Where float32 has too few digits for the update's sums, a copy is
        given the data anew, with the rounded prior, or the values at its inducing points."""
        new = super().mapped(fn)
        old, rounded = (self.prior, self.update), (new.prior, new.update)
        if narrows_badly(old, rounded):
            new._modules["update"] = given_again(old, rounded, new.mean_function)
        return new

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        update = self.mapped(fn).update  # of a parent module that is moved
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
        origin, transform = self.prior.origin, self.input_transform
        if transform is None or transform.elementwise:
            return origin
        return origin.new_zeros(transform.input_dim(len(origin)))  # a point in the user's space

    @property
    def solver_stats(self) -> Stats | None:
        """How the update was solved for: the solver, its iterations and residual. None where there was nothing to.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=0.1)
        >>> matheron.draw(gp, 1).solver_stats
        Stats(solver='Cholesky()', iterations=0, residual=None, converged=True, jitter=0.0)
        """
        return self.update.solver_stats

    @property
    def noise_variance(self) -> Tensor | None:
        update, transform = self.update, self.output_transform
        noise, tasks = update.noise, update.tasks
        of = noise.new_zeros(len(noise)) if tasks is None else tasks[len(tasks) - len(noise) :]
        each = [noise[of == i] for i in range(self.num_outputs)]
        if any(len(own) == 0 or bool(own.max() - own.min() > 1e-6 * own.max()) for own in each):
            return None
        variance = torch.stack([own[0] for own in each])  # [t]
        if transform is None:
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
        """What evaluators read: made once, and again when a tensor has changed."""
        return _record_of(self)

    def _values(self, x: Tensor) -> Tensor:
        record = self.record
        return record.outer(values(record, record.inner(x)))

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        record = self.record
        return record.chained(x, *values_and_gradients(record, record.inner(x), of))

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        if self.input_transform is not None and not self.input_transform.elementwise:
            return self._on_points_of_grid(axes, out)
        inner = []
        for i, axis in enumerate(axes):  # a transform acts on each coordinate by itself
            x = torch.stack([other[0] for other in axes]).repeat(len(axis), 1)
            x[:, i] = axis
            inner.append(self.record.inner(x[None])[0, :, i])
        on_grid(self.record, inner, out)

    def _records(self) -> list[Record]:
        return [self.record]

    def _takes(self, x: Tensor) -> bool:
        return self.input_transform is not None and bool(self.input_transform(x).isfinite().all())

    def inner(self, x: Tensor) -> Tensor:
        """Points in the model's own space, without a record."""
        return inner_points(x, self.input_transform, self.prior.domain)

    def _affine_output(self) -> None:
        if self.output_transform is not None and not self.output_transform.affine:
            raise TypeError("mean: under this output transform the mean has no closed form; average the paths instead")


def _make_record(paths: PriorPlusUpdate) -> Record:
    prior, update = paths.prior, paths.update
    if update.folded is not None:
        terms = with_folded(prior, update.centres, update.tasks, update.folded)
    else:
        terms = [*with_equal_bases_merged(prior.feature_terms()), *prior.kept_terms(), *update.terms()]
    return Record(
        prior.num_paths,
        prior.num_outputs,
        terms,
        paths.mean_function,
        prior.origin,
        paths.requires_graph(),
        prior.domain,
        paths.input_transform,
        paths.output_transform,
    )


_record_of = Recorder(_make_record)


@final
class Paths(PriorPlusUpdate):
    """Functions drawn from a Gaussian process, a batch of them: a value that is never changed.

        (f | u)(.)  =  mean(.) + sum_i w_i phi_i(.) + sum_j v_j k(., z_j)          eqn:decoupled_sample_path
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
        v_mean = self.update.v_mean
        if v_mean is None:
            raise TypeError("mean: this q(u) is known by its draws alone (sample_u); average the paths instead")
        self._affine_output()
        record = self.record
        means = record.derived(lambda r: replace(r, num_paths=len(v_mean), terms=self.update.terms(v_mean)), "mean")
        f = record.outer(values(means, record.inner(x)))
        return f if self.update.y.ndim == 2 else f[0]

    def _variance(self, x: Tensor) -> Tensor:
        transform, x = self.output_transform, self.inner(x)[0]
        if transform is not None and not transform.affine:
            raise TypeError("variance: no closed form under this output transform; use samples=True for an estimate")
        step = max(1, _VARIANCES // max(1, self.update.num_centres))
        parts = [posterior_variance(self.update, self, block) for block in x.split(step)]
        variance = torch.cat([x.new_zeros(0, self.num_outputs), *parts])  # [n, t]
        return variance if transform is None else variance * transform.derivative(variance).square()

    def _chosen(self, index: Tensor) -> Paths:
        return self._with(self.prior[index], self.update[index])

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Paths:
        old = self.update
        if old.inducing is not None and old.inducing.root is None:
            raise TypeError("condition_on: this q(u) is known by its draws alone (sample_u), so its covariance is not")
        y, noise = undone(self.output_transform, self.num_outputs, data)
        chunk = (self.inner(data.x[None])[0], data.tasks, y, noise)
        return self._with(*condition(old.next_solver(solver), self.prior, old, self.mean_function, chunk, generator))

    def _refreshed(self, keep: Tensor, basis: FeatureSpec, solver: Solver, generator: torch.Generator) -> Paths:
        from .refreshing import refresh  # which comes later in the import order: it chooses features

        return refresh(self, keep, basis, solver, generator)

    def _with(self, prior: PriorPaths, update: UpdatePaths) -> Paths:
        return Paths(prior, update, self.mean_function, self.input_transform, self.output_transform, self.input_names)
