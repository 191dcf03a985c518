"""Paths of several models at once: one an output, an ensemble, or a batch. They have all the members of Paths."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from .. import store
from ..checks import ArrayLike, Random, as_array, as_generator
from ..gp import as_tasks
from ..solvers import Solver
from ..value import Parts, Value
from .paths import Paths
from .rows import as_index, as_rows, padded_value_and_grad

AnyPaths = Any  # Paths, or one of the classes below


class _Joined(Value):
    """Paths of several models; what is asked of it is asked of each."""

    def __init__(self, members: Sequence[AnyPaths]) -> None:
        super().__init__()
        if not members:
            raise ValueError("expected at least one model's paths, got none")
        self.members = Parts(members)
        dims = {member.input_dim for member in self.members}
        if len(dims) > 1:
            raise ValueError(f"expected models of one input dimension, got {sorted(dims)}")

    @property
    def input_dim(self) -> int:
        return self.members[0].input_dim

    @property
    def num_outputs(self) -> int:
        return self.members[0].num_outputs

    @property
    def num_paths(self) -> int:
        return self.members[0].num_paths

    @property
    def dtype(self) -> torch.dtype:
        return self.members[0].dtype

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def __len__(self) -> int:
        return self.num_paths

    def __call__(self, x: ArrayLike) -> Tensor:
        """The paths at x, by the shape rule."""
        return self._join([member(part) for member, part in zip(self.members, self._points(x), strict=True)])

    def value_and_grad(self, x: ArrayLike, *, of: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Values and gradients in x, by the shape rule, without a graph; with `of`, of these paths at a point each."""
        if of is not None:
            return padded_value_and_grad(self, *as_rows(self, x, of))
        pairs = [member.value_and_grad(part) for member, part in zip(self.members, self._points(x), strict=True)]
        values, gradients = zip(*pairs, strict=True)
        return self._join(list(values)), self._join(list(gradients), gradient=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the paths to a safetensors file; `matheron.load` reads them back, and runs no code."""
        store.save(self, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.members)} models: {self.members[0]!r}, ...)"

    @abstractmethod
    def _points(self, x: ArrayLike) -> list[Tensor]:
        """Each member's share of the points."""

    @abstractmethod
    def _join(self, parts: list[Tensor], gradient: bool = False) -> Tensor:
        """The members' answers as one."""

    def _each(self, ask: Callable[[AnyPaths], AnyPaths]) -> Self:
        new = self.mapped(lambda b: b)
        new.members = Parts([ask(member) for member in self.members])
        return new


class OutputPaths(_Joined):
    """Independent models, one an output (or several): values `[s, n, t]`."""

    @property
    def num_outputs(self) -> int:
        return sum(member.num_outputs for member in self.members)

    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior mean, `[n, t]`."""
        return self._join([member.mean(x) for member in self.members])

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> OutputPaths:
        return self._each(lambda member: member[index])

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
    ) -> OutputPaths:
        """As `Paths.condition_on`: y `[n, t]` or `[s, n, t]`, noise also `[n, t]`; with `tasks`, `[n]` or `[s, n]`."""
        x, y, noise, generator = as_array(x), as_array(y), as_array(noise), as_generator(generator, seed)
        owners = [(i, j) for i, member in enumerate(self.members) for j in range(member.num_outputs)]
        if tasks is None and y.shape[-1:] != (len(owners),):
            raise ValueError(f"y: expected [n, {len(owners)}], every output at every point, got {list(y.shape)}")
        tasks = None if tasks is None else as_tasks(tasks, len(x), self.num_outputs, "tasks")
        members = list(self.members)
        for i, member in enumerate(members):
            mine = [task for task, (owner, _) in enumerate(owners) if owner == i]
            keep = slice(None)
            own_tasks = None
            if tasks is not None:
                keep = torch.isin(tasks, torch.tensor(mine)).nonzero()[:, 0]
                if len(keep) == 0:
                    continue
                own_tasks = tasks[keep] - mine[0] if len(mine) > 1 else None
                part_y, part_noise = y[..., keep], noise[keep] if noise.ndim else noise
            else:
                part_y = y[..., mine] if len(mine) > 1 else y[..., mine[0]]
                part_noise = noise if noise.ndim < 2 else noise[:, mine] if len(mine) > 1 else noise[:, mine[0]]
            members[i] = member.condition_on(
                x[keep], part_y, noise=part_noise, tasks=own_tasks, solver=solver, generator=generator
            )
        return OutputPaths(members)

    def _points(self, x: ArrayLike) -> list[Tensor]:
        return [as_array(x)] * len(self.members)

    def _join(self, parts: list[Tensor], gradient: bool = False) -> Tensor:
        axis = -2 if gradient else -1
        if self.num_outputs == 1:
            return parts[0]
        shaped = [p.unsqueeze(axis) if m.num_outputs == 1 else p for m, p in zip(self.members, parts, strict=True)]
        return torch.cat(shaped, dim=axis)


class EnsemblePaths(_Joined):
    """Paths spread over the members of an ensemble, such as MCMC samples of hyperparameters: values `[s, n]`.

    `owner [s]` says which member each path is of.
    """

    def __init__(self, members: Sequence[AnyPaths], owner: Tensor) -> None:
        super().__init__(members)
        self.register_buffer("owner", owner)

    @property
    def num_paths(self) -> int:
        return len(self.owner)

    def mean(self, x: ArrayLike) -> Tensor:
        """The mean of the members' posterior means, each counted as often as it has paths."""
        counts = torch.bincount(self.owner, minlength=len(self.members)).to(self.dtype)
        means = torch.stack([member.mean(x) for member in self.members])
        return torch.tensordot(counts / counts.sum(), means, dims=1)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> EnsemblePaths:
        chosen = as_index(index, self.num_paths, self.device)
        rank = self._rank()[chosen]
        used, owner = self.owner[chosen].unique(return_inverse=True)
        members = [self.members[int(i)][rank[owner == k]] for k, i in enumerate(used)]
        return EnsemblePaths(members, owner)

    def condition_on(
        self, x: ArrayLike, y: ArrayLike, *, generator: Random = None, seed: int | None = None, **settings: Any
    ) -> EnsemblePaths:
        """As `Paths.condition_on`; every member is given the data."""
        settings["generator"] = as_generator(generator, seed)  # one for all: a seed each would give equal noise
        y = as_array(y)
        outputs = 1 if self.num_outputs > 1 and settings.get("tasks") is None else 0
        own = y.ndim == 2 + outputs
        parts = [y[self.owner == i] if own else y for i in range(len(self.members))]
        members = [m.condition_on(x, part, **settings) for m, part in zip(self.members, parts, strict=True)]
        return EnsemblePaths(members, self.owner)

    def _rank(self) -> Tensor:
        """The place of each path among its owner's, `[s]`."""
        rank = torch.zeros_like(self.owner)
        for i in range(len(self.members)):
            mine = self.owner == i
            rank[mine] = torch.arange(int(mine.sum()), device=rank.device)
        return rank

    def _points(self, x: ArrayLike) -> list[Tensor]:
        x = as_array(x)
        own = x.ndim == 3 and x.shape[0] > 1
        if own and x.shape[0] != self.num_paths:
            raise ValueError(f"x: expected [n, d] or [{self.num_paths}, n, d], got {list(x.shape)}")
        return [x[self.owner.to(x.device) == i] if own else x for i in range(len(self.members))]

    def _join(self, parts: list[Tensor], gradient: bool = False) -> Tensor:
        return torch.cat(parts)[self.owner.argsort(stable=True).argsort()]


class BatchPaths(_Joined):
    """Paths of a batch of models: values `[b, s, n]`. Points may be `[b, s or 1, n, d]` too."""

    fields = ("batch_shape",)

    def __init__(self, members: Sequence[AnyPaths], batch_shape: Sequence[int] | None = None) -> None:
        super().__init__(members)
        self.batch_shape = list(batch_shape or [len(members)])
        if math.prod(self.batch_shape) != len(members):
            raise ValueError(f"batch_shape: expected {len(members)} models in all, got {self.batch_shape}")

    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior means, `[b, n]`."""
        return self._join([member.mean(part) for member, part in zip(self.members, self._points(x), strict=True)])

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> BatchPaths:
        """Fewer paths of every model of the batch."""
        return self._each(lambda member: member[index])

    def condition_on(
        self, x: ArrayLike, y: ArrayLike, *, generator: Random = None, seed: int | None = None, **settings: Any
    ) -> BatchPaths:
        """As `Paths.condition_on`; x, y and noise may have the leading batch axes."""
        settings["generator"] = as_generator(generator, seed)  # one for all: a seed each would give equal noise
        x, y = as_array(x), as_array(y)
        b = len(self.batch_shape)
        xs = x.reshape(-1, *x.shape[b:]) if x.ndim == 2 + b else [x] * len(self.members)
        ys = (
            y.reshape(-1, *y.shape[b:])
            if list(y.shape[:b]) == self.batch_shape and y.ndim > b
            else [y] * len(self.members)
        )
        members = [m.condition_on(p, q, **settings) for m, p, q in zip(self.members, xs, ys, strict=True)]
        return BatchPaths(members, self.batch_shape)

    def _points(self, x: ArrayLike) -> list[Tensor]:
        x = as_array(x)
        if x.ndim <= 3:
            return [x] * len(self.members)
        b = len(self.batch_shape)
        if list(x.shape[:b]) != self.batch_shape or x.ndim != b + 3:
            raise ValueError(
                f"x: expected [n, d], [s, n, d] or {[*self.batch_shape, 's or 1', 'n', 'd']}, got {list(x.shape)}"
            )
        return list(x.reshape(-1, *x.shape[b:]))

    def _join(self, parts: list[Tensor], gradient: bool = False) -> Tensor:
        joined = torch.stack(parts)
        return joined.reshape(*self.batch_shape, *joined.shape[1:])


class SelectedPaths(_Joined):
    """Some outputs of paths that have more: values `[s, n, t]`, or `[s, n]` for one."""

    def __init__(self, paths: AnyPaths, outputs: Sequence[int]) -> None:
        super().__init__([paths])
        self.register_buffer("outputs", torch.as_tensor(outputs, device=paths.device))

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior mean, `[n, t]`, or `[n]` for one output."""
        return self._join([self.members[0].mean(x)])

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> SelectedPaths:
        return self._each(lambda member: member[index])

    def condition_on(
        self, x: ArrayLike, y: ArrayLike, *, noise: ArrayLike, tasks: ArrayLike | None = None, **settings: Any
    ) -> SelectedPaths:
        """As `Paths.condition_on`; tasks count the selected outputs."""
        x, y, noise = as_array(x), as_array(y), as_array(noise)
        n, t = len(x), self.num_outputs
        if t > 1 and tasks is None:  # every selected output at every point
            if list(y.shape) not in ([n, t], [self.num_paths, n, t]):
                raise ValueError(f"y: expected {[n, t]} or {[self.num_paths, n, t]}, got {list(y.shape)}")
            tasks = torch.arange(t).repeat(n)
            x, y = x.repeat_interleave(t, 0), y.flatten(-2)
            noise = noise.repeat_interleave(t) if noise.ndim else noise
        tasks = as_tasks(tasks, len(x), t, "tasks")  # None for one output
        own = self.outputs.expand(len(x)) if tasks is None else self.outputs[tasks]
        return self._each(lambda member: member.condition_on(x, y, noise=noise, tasks=own, **settings))

    def _points(self, x: ArrayLike) -> list[Tensor]:
        return [as_array(x)]

    def _join(self, parts: list[Tensor], gradient: bool = False) -> Tensor:
        chosen = parts[0].index_select(-2 if gradient else -1, self.outputs)
        return chosen.squeeze(-2 if gradient else -1) if self.num_outputs == 1 else chosen


__all__ = ["AnyPaths", "BatchPaths", "EnsemblePaths", "OutputPaths", "Paths", "SelectedPaths"]
