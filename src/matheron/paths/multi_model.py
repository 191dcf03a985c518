"""Paths of several models as one: side by side as outputs, spread over an ensemble, or some outputs of a whole."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Self, final

import torch
from torch import Tensor

from ..core import saving as store
from ..core.checks import ArrayLike, Names, Random, as_array, as_generator, check_names, common_names
from ..core.value import Parts, Value
from ..evaluate import Record, joined_gradients
from ..features import FeatureSpec
from ..solvers import Solver
from .base import AbstractPaths
from .functions import Index, PlacedFunctions
from .observations import Observations


class OfMembers(Value):
    """Paths of several models over the same inputs: `members`, which agree on what is asked of the first."""

    saveable = False

    def __init__(self, members: Sequence[AbstractPaths]) -> None:
        super().__init__()
        self.members = Parts(members)
        OfMembers.check(self)

    def check(self) -> None:
        if len(self.members) == 0:
            raise ValueError("expected at least one model's paths, got none")
        dims = {member.input_dim for member in self.members}
        if len(dims) > 1:
            raise ValueError(f"expected models of one input dimension, got {sorted(dims)}")
        common_names(self.members)

    @property
    def input_names(self) -> Names:
        return common_names(self.members)

    @property
    def num_paths(self) -> int:
        return self.members[0].num_paths

    @property
    def num_outputs(self) -> int:
        return self.members[0].num_outputs

    @property
    def _origin(self) -> Tensor:
        return self.members[0]._origin

    def _takes(self, x: Tensor) -> bool:
        return all(member._takes(x.to(member.dtype)) for member in self.members)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.members)} models: {self.members[0]!r}, ...)"


class _Joined(OfMembers, AbstractPaths):
    """Paths of several models; what is asked of it is asked of each."""

    saveable = True

    def _noise_variances(self) -> list[Tensor] | None:
        """Each member's; None where one's is not known."""
        each = [member.noise_variance for member in self.members]
        known = [variance for variance in each if variance is not None]
        return known if len(known) == len(each) else None

    def _refreshed(self, keep: Tensor, spec: FeatureSpec, solver: Solver, generator: torch.Generator) -> Self:
        members = [member._refreshed(keep.to(member.dtype), spec, solver, generator) for member in self.members]
        return self.replaced(members=Parts(members))


@final
class OutputPaths(_Joined):
    """Independent models, one per output (or several): values `[s, n, t]`."""

    def __init__(self, members: Sequence[AbstractPaths]) -> None:
        super().__init__(members)
        self.check()

    def check(self) -> None:
        super().check()
        counts = {member.num_paths for member in self.members}
        if len(counts) > 1:
            raise ValueError(f"expected as many paths of every output, got {sorted(counts)}")

    @property
    def num_outputs(self) -> int:
        return sum(member.num_outputs for member in self.members)

    @property
    def noise_variance(self) -> Tensor | None:
        known = self._noise_variances()
        return None if known is None else torch.cat(known)

    def _values(self, x: Tensor) -> Tensor:
        return torch.cat([member._values(x.to(member.dtype)) for member in self.members], dim=-1)

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        pairs = [member._values_and_gradients(x.to(member.dtype), of) for member in self.members]
        values, gradients = zip(*pairs, strict=True)
        return torch.cat(values, dim=-1), torch.cat(gradients, dim=-2)

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        for member, part in zip(self.members, out.split(self._counts(), dim=-1), strict=True):
            member._on_grid(axes, part)

    def _mean(self, x: Tensor) -> Tensor:
        return self._side_by_side([member._mean(x.to(member.dtype)) for member in self.members])

    def _variance(self, x: Tensor) -> Tensor:
        return self._side_by_side([member._variance(x.to(member.dtype)) for member in self.members])

    def _side_by_side(self, parts: list[Tensor]) -> Tensor:
        if any(part.ndim == 3 for part in parts):  # some were given targets of each path's own
            parts = [part.expand(self.num_paths, -1, -1) for part in parts]
        return torch.cat(parts, dim=-1)

    def _chosen(self, index: Tensor) -> OutputPaths:
        return OutputPaths([member._chosen(index) for member in self.members])

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> OutputPaths:
        outputs = data.sites.outputs
        if outputs is None:  # one output in all
            return OutputPaths([self.members[0]._given(data, solver, generator)])
        members, first = [], 0
        for member, count in zip(self.members, self._counts(), strict=True):
            keep = ((outputs >= first) & (outputs < first + count)).nonzero()[:, 0]
            own = data.only(keep, outputs[keep] - first if count > 1 else None)
            members.append(member._given(own, solver, generator) if len(keep) else member)
            first += count
        return OutputPaths(members)

    def _records(self) -> list[Record] | None:
        records = [member._records() for member in self.members]
        return None if any(each is None for each in records) else [r for each in records for r in each or []]

    def _counts(self) -> list[int]:
        return [member.num_outputs for member in self.members]


@final
class EnsemblePaths(_Joined):
    """Paths spread over the members of an ensemble, such as MCMC samples of hyperparameters: values `[s, n]`.

    `owner [s]` says which member each path is of.
    """

    shapes = "owner: s"

    def __init__(self, members: Sequence[AbstractPaths], owner: Tensor) -> None:
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
        """That of the mixture."""
        known = self._noise_variances()
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
            if found is not None:  # on a GPU: one launch for all members
                return found
        whose, rank = self.owner[of], self._rank()[of]
        f = x.new_empty(*x.shape[:2], self.num_outputs)
        df = x.new_empty(*f.shape, x.shape[2])
        for i, member in enumerate(self.members):  # each sees what it would see alone, in the same order
            mine = (whose == i).nonzero()[:, 0]
            if len(mine):
                f[mine], df[mine] = member._values_and_gradients(x[mine], rank[mine])
        return f, df

    def _place(self) -> Tensor:
        """The place of each path among all, in the order of the members."""
        return self.owner.argsort(stable=True).argsort()

    def _counts(self) -> Tensor:
        return torch.bincount(self.owner, minlength=len(self.members))

    def _rank(self) -> Tensor:
        """The place of each path among its owner's."""
        counts = self._counts()
        return self._place() - (counts.cumsum(0) - counts)[self.owner]

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        for i, member in enumerate(self.members):
            member._in_slabs(axes, out, self.owner == i, slice(None))

    def _mean(self, x: Tensor) -> Tensor:
        return self._mixed([member._mean(x) for member in self.members])

    def _variance(self, x: Tensor) -> Tensor:
        variances, means = [member._variance(x) for member in self.members], [m._mean(x) for m in self.members]
        if any(mean.ndim == 3 for mean in means):
            return self._of_paths(variances)
        mean = self._mixed(means)
        return self._mixed([v + (m - mean).square() for v, m in zip(variances, means, strict=True)])

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        """The mean over paths of what each member says `[n, t]`; where posteriors are each path's own, its own."""
        if any(part.ndim == 3 for part in parts):
            return self._of_paths(parts)
        counts = self._counts()
        return torch.tensordot(counts.to(self.dtype) / counts.sum(), torch.stack(parts), dims=1)

    def _of_paths(self, parts: list[Tensor]) -> Tensor:
        """What each member says `[n, t]`, or of each of its paths, as rows of the paths `[s, n, t]`."""
        counts = self._counts().tolist()
        return self._in_order([part.expand(count, -1, -1) for part, count in zip(parts, counts, strict=True)])

    def _chosen(self, index: Tensor) -> EnsemblePaths:
        rank = self._rank()
        used, owner = self.owner[index].unique(return_inverse=True)
        members = [self.members[int(i)]._chosen(rank[index][owner == k]) for k, i in enumerate(used)]
        return EnsemblePaths(members, owner)

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> EnsemblePaths:
        """Every member is given the data."""
        parts = [
            data._replace(y=data.y[self.owner == i] if data.y.ndim == 2 else data.y) for i in range(len(self.members))
        ]
        members = [m._given(part, solver, generator) for m, part in zip(self.members, parts, strict=True)]
        return EnsemblePaths(members, self.owner)

    def _shares(self, x: Tensor) -> list[Tensor]:
        """Each member's points."""
        return [x if len(x) == 1 else x[self.owner == i] for i in range(len(self.members))]

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """The members' rows as those of the paths."""
        return torch.cat(parts)[self._place()]


@final
class SelectedPaths(_Joined):
    """Some outputs of paths that have more: values `[s, n, t]`, or `[s, n]` for one."""

    shapes = "outputs: t"

    def __init__(self, paths: AbstractPaths, outputs: Sequence[int] | Tensor) -> None:
        super().__init__([paths])
        self.register_buffer("outputs", torch.as_tensor(outputs, device=paths.device))

    def check(self) -> None:
        super().check()
        if not bool(((self.outputs >= 0) & (self.outputs < self.members[0].num_outputs)).all()):
            raise ValueError(f"SelectedPaths: expected outputs below {self.members[0].num_outputs}")

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    @property
    def noise_variance(self) -> Tensor | None:
        known = self.members[0].noise_variance
        return None if known is None else known[self.outputs]

    def _values(self, x: Tensor) -> Tensor:
        return self.members[0]._values(x).index_select(-1, self.outputs)

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        f, df = self.members[0]._values_and_gradients(x, of)
        return f.index_select(-1, self.outputs), df.index_select(-2, self.outputs)

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        self.members[0]._in_slabs(axes, out, slice(None), self.outputs)

    def _mean(self, x: Tensor) -> Tensor:
        return self.members[0]._mean(x).index_select(-1, self.outputs)

    def _variance(self, x: Tensor) -> Tensor:
        return self.members[0]._variance(x).index_select(-1, self.outputs)

    def _chosen(self, index: Tensor) -> SelectedPaths:
        return SelectedPaths(self.members[0]._chosen(index), self.outputs)

    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> SelectedPaths:
        """The observations' outputs count the selected ones."""
        of = data.sites.outputs
        outputs = self.outputs.expand(len(data.noise)) if of is None else self.outputs[of]
        data = data._replace(sites=data.sites.replaced(outputs=outputs))
        return SelectedPaths(self.members[0]._given(data, solver, generator), self.outputs)


# BatchPaths: paths of a batch of models. Not paths of one model, and so not for applications: its members are.


@final
class BatchPaths(OfMembers, PlacedFunctions):
    """Paths of a batch of models, `members`: what each returns, with the batch's axes before it.

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
        """A value `[axes]` for every model, or one each where it has the batch's axes."""
        b = len(self.batch_shape)
        if value.ndim == ndim + b and list(value.shape[:b]) == self.batch_shape:
            return list(value.reshape(-1, *value.shape[b:]))
        if value.ndim != ndim:
            shapes = f"[{axes}] or {self.batch_shape} before it"
            raise ValueError(f"{name}: expected {shapes}, got {list(value.shape)}")
        return [value] * len(self.members)

    def _split(self, value: Tensor, shapes: list[tuple[int, ...]], prefer_shared: bool = False) -> list[Tensor]:
        """The same, told apart by the shapes that one model takes; members refuse what fits neither way."""
        b = len(self.batch_shape)
        batched = list(value.shape[:b]) == self.batch_shape and tuple(value.shape[b:]) in shapes
        if batched and not (prefer_shared and tuple(value.shape) in shapes):
            return list(value.reshape(-1, *value.shape[b:]))
        return [value] * len(self.members)

    def _stacked(self, parts: list[Tensor]) -> Tensor:
        return torch.stack(parts).unflatten(0, self.batch_shape)
