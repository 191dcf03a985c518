"""BatchPaths: paths of a batch of models. Not paths of one model, and so not for applications: its members are."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from .. import store
from ..checks import ArrayLike, Random, as_array, as_generator, check_names
from ..solvers import Solver
from .base import AbstractPaths
from .functions import Index, Placed
from .joined import OfMembers


@final
class BatchPaths(OfMembers, Placed):
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
