"""Paths of several models as one object: side by side as outputs, spread over an ensemble, or a selection of
outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Self, final

import torch
from torch import Tensor

from ..core import saving as store
from ..core.checks import ArrayLike, Random, as_array, as_generator, check_names
from ..core.functionals import Functionals
from ..core.value import Parts
from ..evaluate import joined_gradients
from ..features import FeatureSpec
from ..models.observations import Observations, is_observable
from ..models.transforms import Transform
from ..solvers import Solver
from .algebra import Selection, Stack, _OverSameInputs
from .arithmetic import AbstractFunctions, require_functions
from .functions import Index, PlacedFunctions
from .grids import write_in_slabs
from .paths import AbstractPaths


class OfMembers(_OverSameInputs):
    """Paths of several models over the same inputs, `members`. A property is that of the first member, and the others
    must agree."""

    saveable = False

    def __init__(self, members: Sequence[AbstractFunctions]) -> None:
        super().__init__()
        self.members = Parts(members)
        _OverSameInputs.check(self)  # only this part can be checked before the other members are set

    @property
    def _parts(self) -> Parts[AbstractFunctions]:
        return self.members

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.members)} models: {self.members[0]!r}, ...)"


@final
class OutputPaths(Stack, AbstractPaths):
    """Paths side by side, one for each output (or several): values `[s, n, t]`. `matheron.stack` of paths and draws of
    independent models are such paths.

    Data are given to the paths of their output, so the paths should be independent.
    """

    functions: Parts[AbstractPaths]

    def check(self) -> None:
        super().check()
        _check_all_paths(self.functions)

    @property
    def noise_variance(self) -> Tensor | None:
        known = _noise_variances(self.functions)
        return None if known is None else torch.cat(known)

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> OutputPaths:
        outputs = data.sites.outputs
        if outputs is None:  # there is only one output
            return OutputPaths([self.functions[0]._given(data, solver, generator)])
        functions, first = [], 0
        for paths, count in zip(self.functions, self._counts(), strict=True):
            keep = ((outputs >= first) & (outputs < first + count)).nonzero()[:, 0]
            own = data.only(keep, outputs[keep] - first if count > 1 else None).to(paths.dtype)
            functions.append(paths._given(own, solver, generator) if len(keep) else paths)
            first += count
        return OutputPaths(functions)

    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        return self._with([paths._refreshed(keep.to(paths.dtype), spec, solver, generator) for paths in self.functions])


@final
class SelectedPaths(Selection, AbstractPaths):
    """Some outputs of paths that have more: values `[s, n, t]`, or `[s, n]` for one. `paths[..., 0]` is an example."""

    functions: Parts[AbstractPaths]

    def check(self) -> None:
        super().check()
        _check_all_paths(self.functions)

    @property
    def noise_variance(self) -> Tensor | None:
        known = self.functions[0].noise_variance
        return None if known is None else known[self.outputs]

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> SelectedPaths:
        """Condition on more data, whose output numbers count the selected outputs."""
        of = data.sites.outputs
        outputs = self.outputs.expand(len(data.noise)) if of is None else self.outputs[of]
        data = data._replace(sites=data.sites.replaced(outputs=outputs))
        return SelectedPaths(self.functions[0]._given(data, solver, generator), self.outputs)

    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        return self._with([self.functions[0]._refreshed(keep, spec, solver, generator)])


def stack(functions: Sequence[AbstractFunctions]) -> AbstractFunctions:
    """Functions side by side, as the outputs of one: `[s, n, t]`. Of paths the result is paths.

    Stacked paths have a mean and a variance, and can be conditioned on data. For independent draws the law is that of
    all of them together.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1) for _ in range(2))
    >>> both = matheron.stack([f, g])
    >>> both(torch.rand(3, 1)).shape, both[..., 0] is f
    (torch.Size([4, 3, 2]), True)
    >>> matheron.stack([f, g.exp()])(torch.rand(3, 1)).shape
    torch.Size([4, 3, 2])
    """
    if isinstance(functions, AbstractFunctions):
        raise TypeError("stack: expected a list of functions, got functions; they are side by side as outputs already")
    functions = [require_functions(each, "functions") for each in functions]
    paths = [each for each in functions if isinstance(each, AbstractPaths)]
    return OutputPaths(paths) if len(paths) == len(functions) else Stack(functions)


def _check_all_paths(functions: Parts[AbstractPaths]) -> None:
    others = [type(each).__name__ for each in functions if not isinstance(each, AbstractPaths)]
    if others:
        raise TypeError(
            f"expected paths, which have a mean and take data, got {', '.join(others)}; matheron.stack takes all kinds"
        )


def _noise_variances(functions: Parts[AbstractPaths]) -> list[Tensor] | None:
    """The noise variances of each; None if one of them is not known."""
    each = [paths.noise_variance for paths in functions]
    known = [variance for variance in each if variance is not None]
    return known if len(known) == len(each) else None


@final
class EnsemblePaths(OfMembers, AbstractPaths):
    """Paths spread over the members of an ensemble, such as MCMC samples of hyperparameters: values `[s, n]`.

    `owner [s]` says which member each path is of.

    >>> import matheron
    >>> from matheron import kernels
    >>> gps = [matheron.ExactGP(kernels.RBF(s), X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-2) for s in (0.3, 0.5)]
    >>> len(matheron.draw(matheron.Ensemble(gps), 8, seed=0).owner)
    8
    """

    saveable = True
    shapes = "owner: s"

    members: Parts[AbstractPaths]

    def __init__(self, members: Sequence[AbstractFunctions], owner: Tensor) -> None:
        super().__init__(members)
        self.register_buffer("owner", owner)

    def check(self) -> None:
        super().check()
        counts = [member.num_paths for member in self.members]
        if bool((self.owner < 0).any()) or self.owner.bincount(minlength=len(counts)).tolist() != counts:
            raise ValueError(f"EnsemblePaths: expected the owners of {counts} paths, got {self.owner.tolist()}")

    @property
    def num_paths(self) -> int:
        return len(self.owner)

    @property
    def noise_variance(self) -> Tensor | None:
        """The noise variance of the mixture."""
        known = _noise_variances(self.members)
        return None if known is None else self._mixed(known)

    def _values(self, x: Tensor) -> Tensor:
        parts = [member._values(own) for member, own in zip(self.members, self._shares(x), strict=True)]
        return self._in_order(parts)

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if of is not None:
            return self._values_and_gradients_of(x, of)
        pairs = [m._values_and_gradients(own) for m, own in zip(self.members, self._shares(x), strict=True)]
        values, gradients = zip(*pairs, strict=True)
        return self._in_order(list(values)), self._in_order(list(gradients))

    def _values_and_gradients_of(self, x: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
        records = [record for member in self.members for record in member._records() or []]
        if len(records) == len(self.members):
            found = joined_gradients(records, x, self._place()[of])
            if found is not None:  # on a GPU, one launch serves all members
                return found
        whose, rank = self.owner[of], self._rank()[of]
        f = x.new_empty(*x.shape[:2], self.num_outputs)
        df = x.new_empty(*f.shape, x.shape[2])
        # each member gets its own points, in their order, as if it were alone
        for i, member in enumerate(self.members):
            mine = (whose == i).nonzero()[:, 0]
            if len(mine):
                f[mine], df[mine] = member._values_and_gradients(x[mine], rank[mine])
        return f, df

    def _place(self) -> Tensor:
        """The position of each path among all paths, in the order of the members."""
        return self.owner.argsort(stable=True).argsort()

    def _counts(self) -> Tensor:
        return torch.bincount(self.owner, minlength=len(self.members))

    def _rank(self) -> Tensor:
        """The position of each path among the paths of its member."""
        counts = self._counts()
        return self._place() - (counts.cumsum(0) - counts)[self.owner]

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        for i, member in enumerate(self.members):
            write_in_slabs(member, axes, out, self.owner == i)

    def _mean(self, x: Tensor) -> Tensor:
        return self._mixed([member._mean(x) for member in self.members])

    def _variance(self, x: Tensor) -> Tensor:
        variances, means = [member._variance(x) for member in self.members], [m._mean(x) for m in self.members]
        if any(mean.ndim == 3 for mean in means):
            return self._of_paths(variances)
        mean = self._mixed(means)
        return self._mixed([v + (m - mean).square() for v, m in zip(variances, means, strict=True)])

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        """Average a quantity `[n, t]` of each member over paths. If each path has its own posterior, the quantity of
        each path is returned."""
        if any(part.ndim == 3 for part in parts):
            return self._of_paths(parts)
        counts = self._counts()
        return torch.tensordot(counts.to(self.dtype) / counts.sum(), torch.stack(parts), dims=1)

    def _of_paths(self, parts: list[Tensor]) -> Tensor:
        """A quantity `[n, t]` of each member, or of each of its paths, as rows of the paths `[s, n, t]`."""
        counts = self._counts().tolist()
        return self._in_order([part.expand(count, -1, -1) for part, count in zip(parts, counts, strict=True)])

    def _chosen(self, index: Tensor) -> EnsemblePaths:
        rank = self._rank()
        used, owner = self.owner[index].unique(return_inverse=True)
        members = [self.members[int(i)]._chosen(rank[index][owner == k]) for k, i in enumerate(used)]
        return EnsemblePaths(members, owner)

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> EnsemblePaths:
        """Condition every member on the data."""
        parts = [
            data._replace(y=data.y[self.owner == i] if data.y.ndim == 2 else data.y) for i in range(len(self.members))
        ]
        members = [m._given(part, solver, generator) for m, part in zip(self.members, parts, strict=True)]
        return EnsemblePaths(members, self.owner)

    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        return self.replaced(members=Parts([m._refreshed(keep, spec, solver, generator) for m in self.members]))

    def _of(self, transform: Transform) -> Self:
        return self.replaced(members=Parts([member._of(transform) for member in self.members]))

    def _shares(self, x: Tensor) -> list[Tensor]:
        """Each member's points."""
        return [x if len(x) == 1 else x[self.owner == i] for i in range(len(self.members))]

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """Reorder the members' rows to the order of the paths."""
        return torch.cat(parts)[self._place()]


# BatchPaths: paths of a batch of models. They are not the paths of one model, so applications take their members
# instead.


@final
class BatchPaths(OfMembers, PlacedFunctions):
    """Paths of a batch of models, `members`. All results have the batch's axes first.

    Values are `[*batch_shape, s, n]`. Points may be shared, or have the batch's axes: `[*batch_shape, s or 1, n, d]`.
    What takes paths of one model (`minimize`, `rollout`, `diagnose`) takes each of `members`.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> gps = [matheron.ExactGP(kernels.RBF(0.3), [[0.0], [1.0]], [0.0, y], noise=0.1) for y in (1.0, 2.0)]
    >>> paths = matheron.draw(matheron.Batch(gps), 5)
    >>> paths(torch.rand(7, 1)).shape, len(paths.members)
    (torch.Size([2, 5, 7]), 2)
    """

    fields = ("batch_shape",)
    saveable = True

    members: Parts[AbstractPaths]

    def __init__(self, members: Sequence[AbstractPaths], batch_shape: Sequence[int] | None = None) -> None:
        super().__init__(members)
        self.batch_shape = list(batch_shape or [len(members)])
        self.check()

    def check(self) -> None:
        super().check()
        shape = self.batch_shape
        whole = isinstance(shape, list) and len(shape) > 0 and all(type(size) is int for size in shape)
        if not whole or math.prod(shape) != len(self.members):
            raise ValueError(f"batch_shape: expected {len(self.members)} models in all, got {shape}")

    def __getattr__(self, name: str) -> Any:
        """The parts and tensors of a module; and what to do about a method that paths of one model alone have."""
        if hasattr(AbstractPaths, name):
            raise AttributeError(f"{name}: paths of a batch of models have none; ask each of paths.members")
        return super().__getattr__(name)

    def __call__(self, x: ArrayLike) -> Tensor:
        """The paths at x: `[*batch_shape, s, n]`, and a trailing `[t]` for several outputs."""
        return self._stacked([member(part) for member, part in zip(self.members, self._points(x), strict=True)])

    def value_and_grad(self, x: ArrayLike, *, of: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Values and gradients; with `of` `[p]`, of these paths of every model at a point each, `[*batch_shape, p]`.

        Then points are `[p, d]`, or `[*batch_shape, p, d]`.
        """
        check_names(x, "x", self.input_names)
        shares = self._points(x) if of is None else self._each(as_array(x), 2, "x", "p, d")
        pairs = [member.value_and_grad(part, of=of) for member, part in zip(self.members, shares, strict=True)]
        values, gradients = zip(*pairs, strict=True)
        return self._stacked(list(values)), self._stacked(list(gradients))

    def at(self, observed: Functionals | Sequence[Functionals]) -> Tensor:
        """Linear functionals of every path, of `matheron.observe`: `[*batch_shape, s, n]`."""
        return self._stacked([member.at(observed) for member in self.members])

    def on_grid(self, axes: Sequence[ArrayLike]) -> Tensor:
        """The paths on a tensor grid, `[*batch_shape, s, n1, n2, ...]`."""
        return self._stacked([member.on_grid(axes) for member in self.members])

    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior means, `[*batch_shape, n]`."""
        return self._stacked([member.mean(part) for member, part in zip(self.members, self._points(x), strict=True)])

    def __getitem__(self, index: Index) -> BatchPaths:
        """Fewer paths of every model of the batch."""
        return BatchPaths([member[index] for member in self.members], self.batch_shape)

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
    ) -> BatchPaths:
        """As `AbstractPaths.condition_on`; x, y and noise may have the batch's axes in front."""
        if is_observable(x):
            raise TypeError(
                "x: expected points, got functionals; give these to each of paths.members, and make BatchPaths of what "
                "condition_on returns"
            )
        check_names(x, "x", self.input_names)
        xs = self._each(as_array(x), 2, "x", "n, d")
        n, t = xs[0].shape[0], self.num_outputs
        single = [(n,), (self.num_paths, n)] if t == 1 or tasks is not None else [(n, t), (self.num_paths, n, t)]
        ys = self._split(as_array(y), single)
        noises = self._split(as_array(noise), [(), (1,), (n,), (n, t)], prefer_shared=True)
        generator = as_generator(generator, seed)
        given = zip(self.members, xs, ys, noises, strict=True)
        members = [
            m.condition_on(x, y, noise=noise, tasks=tasks, solver=solver, generator=generator)
            for m, x, y, noise in given
        ]
        return BatchPaths(members, self.batch_shape)

    def variance(self, x: ArrayLike) -> Tensor:
        """The posterior variances, `[*batch_shape, n]`."""
        each = zip(self.members, self._points(x), strict=True)
        return self._stacked([member.variance(part) for member, part in each])

    def std(self, x: ArrayLike) -> Tensor:
        """The posterior standard deviations, `[*batch_shape, n]`."""
        return self.variance(x).sqrt()

    def refreshed(
        self, keep: ArrayLike, *, generator: Random = None, seed: int | None = None, **settings: Any
    ) -> BatchPaths:
        """As `AbstractPaths.refreshed`; `keep` may have the batch's axes in front."""
        generator = as_generator(generator, seed)
        each = zip(self.members, self._each(as_array(keep), 2, "keep", "p, d"), strict=True)
        members = [member.refreshed(points, generator=generator, **settings) for member, points in each]
        return BatchPaths(members, self.batch_shape)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the paths to a safetensors file; `matheron.load` reads them back, and runs no code."""
        store.save(self, path)

    def _points(self, x: ArrayLike) -> list[Tensor]:
        check_names(x, "x", self.input_names)
        x = as_array(x)
        if x.ndim <= 3:
            return [x] * len(self.members)
        return self._each(x, 3, "x", "s or 1, n, d")

    def _each(self, value: Tensor, ndim: int, name: str, axes: str) -> list[Tensor]:
        """A value `[axes]` for every model, or one for each if it has the batch's axes."""
        b = len(self.batch_shape)
        if value.ndim == ndim + b and list(value.shape[:b]) == self.batch_shape:
            return list(value.reshape(-1, *value.shape[b:]))
        if value.ndim != ndim:
            shapes = f"[{axes}] or {self.batch_shape} before it"
            raise ValueError(f"{name}: expected {shapes}, got {list(value.shape)}")
        return [value] * len(self.members)

    def _split(self, value: Tensor, shapes: list[tuple[int, ...]], prefer_shared: bool = False) -> list[Tensor]:
        """The same, distinguished by the shapes that one model accepts. A shape that fits neither is refused by the
        members."""
        b = len(self.batch_shape)
        batched = list(value.shape[:b]) == self.batch_shape and tuple(value.shape[b:]) in shapes
        if batched and not (prefer_shared and tuple(value.shape) in shapes):
            return list(value.reshape(-1, *value.shape[b:]))
        return [value] * len(self.members)

    def _stacked(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).unflatten(0, self.batch_shape)
