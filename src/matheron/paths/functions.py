"""Functions, s of them: how they are called, chosen and kept, whatever they were drawn from."""

from __future__ import annotations

import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self, final

import numpy as np
import torch
from torch import Tensor

from ..core import saving as store
from ..core.checks import (
    ArrayLike,
    Names,
    as_array,
    as_real,
    as_tensor,
    check_dim,
    check_names,
    check_points,
    flat_hint,
)
from ..core.value import Value
from ..evaluate import Record, shares_work
from ..evaluate.fused.recursion import Recursion, recursion_of

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

Index = int | slice | Sequence[int] | Tensor
# Numbers that a grid's values hold beside the result, where they cannot be written into it at once.
_SLAB = 1 << 22


class PlacedFunctions(Value, ABC):
    """What has an origin: a dimension, a dtype and a device; and a number of paths."""

    input_names: Names = None
    """The names of the inputs' columns, where the model was made with a table: tables of points must have these."""

    @property
    @abstractmethod
    def num_paths(self) -> int:
        """s."""

    @property
    @abstractmethod
    def _origin(self) -> Tensor:
        """A point `[d]`, of the functions' dtype and on their device."""

    @property
    @final
    def input_dim(self) -> int:
        """d."""
        return self._origin.shape[0]

    @property
    @final
    def dtype(self) -> torch.dtype:
        return self._origin.dtype

    @property
    @final
    def device(self) -> torch.device:
        return self._origin.device

    @final
    def __len__(self) -> int:
        return self.num_paths


class AbstractFunctions(PlacedFunctions):
    """s functions of points: a value that is never changed.

    Points `[n, d]` are every function's, and give `[s, n]`; points `[s, n, d]` are each its own (a leading 1
    broadcasts). t outputs add a trailing axis `[..., t]`.

    What a user calls is final here. Classes below say how values are computed: points arrive as `[1, n, d]` or
    `[s, n, d]`, and values are returned as `[s, n, t]`, whatever the number of outputs.
    """

    _internal = ("bounded", "categorical", "recursion", "share_work")

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """t."""

    @final
    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(self.num_paths))

    @final
    def __call__(self, x: ArrayLike) -> Tensor:
        """The paths at x: `[n, d] -> [s, n]`, `[s, n, d] -> [s, n]`; a trailing `[t]` for several outputs.

        Cost is linear in the number of points; memory beyond the result is bounded by
        `matheron.evaluate.MEMORY_BUDGET`.
        """
        return self._values(self._points(x)).squeeze(-1)

    @final
    def value_and_grad(self, x: ArrayLike, *, of: ArrayLike | None = None) -> tuple[Tensor, Tensor]:
        """Values `[s, n]` and gradients `[s, n, d]` in x, in closed form and without a graph.

        For t outputs, `[s, n, t]` and `[s, n, t, d]`. With `of` `[p]`, x `[p, d]` is one point for each of the paths
        `of`, some of them several times perhaps and others not at all: `[p]` and `[p, d]`.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.5), 4, input_dim=2)
        >>> value, gradient = paths.value_and_grad(torch.rand(10, 2))
        >>> value.shape, gradient.shape
        (torch.Size([4, 10]), torch.Size([4, 10, 2]))
        >>> paths.value_and_grad(torch.rand(3, 2), of=[0, 3, 3])[0].shape
        torch.Size([3])
        """
        with torch.no_grad():
            if of is None:
                f, df = self._values_and_gradients(self._points(x))
            else:
                x, owner = self._rows(x, of)
                f, df = (each[:, 0] for each in self._values_and_gradients(x[:, None], owner))
        return f.squeeze(-1), df.squeeze(-2)

    @final
    @torch.no_grad()
    def on_grid(self, axes: Sequence[ArrayLike], *, out: Tensor | np.ndarray | None = None) -> Tensor:
        """The paths on a tensor grid: axes `[n1], [n2], ... -> [s, n1, n2, ...]` (and `[t]` for several outputs).

        The same values as a list of all the grid's points, for a fraction of the cost: see `evaluate.grid`.
        The list itself is never made. With `out`, a contiguous tensor of that shape, the values are written there; so
        they are into a NumPy array, which may be mapped to a file.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.1), 2, input_dim=2)
        >>> paths.on_grid([torch.linspace(0, 1, 50), torch.linspace(0, 2, 100)]).shape
        torch.Size([2, 50, 100])
        """
        if len(axes) != self.input_dim:
            raise ValueError(f"axes: expected {self.input_dim}, one per dimension, got {len(axes)}")
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        grid = [as_tensor(axis, "axes", like=like) for axis in axes]
        if any(axis.ndim != 1 or len(axis) == 0 for axis in grid):
            raise ValueError(f"axes: expected lists of numbers, got shapes {[list(axis.shape) for axis in grid]}")
        outputs = [self.num_outputs] if self.num_outputs > 1 else []
        shape = [self.num_paths, *map(len, grid), *outputs]
        if isinstance(out, np.ndarray) and out.flags.writeable and out.flags.c_contiguous:
            out = torch.from_numpy(out)  # shares its memory
        out = like.new_empty(shape) if out is None else out
        if not isinstance(out, Tensor):
            what = "a read-only or strided array" if isinstance(out, np.ndarray) else type(out).__name__
            raise TypeError(f"out: expected a tensor, or a contiguous NumPy array to write to, got {what}")
        if list(out.shape) != shape or (out.dtype, out.device) != (self.dtype, self.device) or not out.is_contiguous():
            got = f"{list(out.shape)}, {out.dtype} on {out.device}"
            raise ValueError(f"out: expected contiguous {shape}, {self.dtype} on {self.device}, got {got}")
        self._on_grid(grid, out if outputs else out.unsqueeze(-1))
        return out

    @final
    def to_xarray(self, axes: Mapping[str, ArrayLike] | DataArray | Dataset, *, name: str = "field") -> DataArray:
        """The paths on a grid as an `xarray.DataArray` `(path, y, x)`, in memory; see `matheron.fields.simulate`.

        `axes` are named in the order of the inputs, `{"x": ..., "y": ...}`, or are an xarray object's coordinates.

        >>> import numpy as np, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.1), 2, input_dim=2)
        >>> paths.to_xarray({"x": np.linspace(0, 1, 50), "y": np.linspace(0, 2, 100)}).sizes
        Frozen({'path': 2, 'y': 100, 'x': 50})
        """
        from ..fields import simulate

        return simulate(self, axes, name=name).compute(scheduler="sync")

    @final
    def map(self, function: Callable[[Tensor], Tensor]) -> AbstractFunctions:
        """The functions g(f(.)), for an elementwise function g of torch, such as `torch.exp`.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(), 2, input_dim=1)
        >>> bool((paths.map(torch.exp)([[0.3]]) == paths([[0.3]]).exp()).all())
        True
        """
        from .algebra import Mapped  # which comes later in the import order

        return Mapped(self, function)

    @final
    def __getitem__(self, index: Index) -> Self:
        """Fewer paths; an integer keeps its axis."""
        return self._chosen(self._index(index))

    @final
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the paths to a safetensors file; `matheron.load` reads them back, and runs no code."""
        store.save(self, path)

    @abstractmethod
    def _values(self, x: Tensor) -> Tensor:
        """`[1 or s, n, d] -> [s, n, t]`."""

    @abstractmethod
    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`[1 or s, n, d] -> [s, n, t], [s, n, t, d]`; with `of` `[p]`, of these paths at points `[p, n, d]`."""

    @abstractmethod
    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        """Write the values on the grid into out `[s, n1, n2, ..., t]`."""

    @abstractmethod
    def _chosen(self, index: Tensor) -> Self:
        """The paths `index`."""

    def _records(self) -> list[Record] | None:
        """The records of which these are the outputs side by side; None where they are not so made."""
        return None

    @property
    @final
    def share_work(self) -> bool:
        """Whether several paths at the same points cost less than each alone; not so where all is on a lattice."""
        records = self._records()
        return records is None or any(map(shares_work, records))

    @property
    @final
    def bounded(self) -> bool:
        """Whether these are functions on a box, as on a lattice: points outside of it are refused."""
        return any(getattr(part, "domain", None) is not None for part in self.modules())

    @property
    @final
    def categorical(self) -> bool:
        """Whether inputs, or some of them, are choices, with nothing between one and the next."""
        return any(getattr(part, "whole", False) for part in self.modules())

    @final
    def recursion(self, dt: float, state: Tensor) -> Recursion | None:
        """x' = x + dt f(x) from states `[s, d_s]` on, as a GPU kernel; None where there is none for these paths."""
        records = self._records()
        return None if records is None else recursion_of(records, dt, state)

    @final
    def _points(self, x: ArrayLike) -> Tensor:
        """Points as `[1, n, d]` or `[s, n, d]`, in the paths' dtype and on their device."""
        if not isinstance(x, Tensor):
            check_names(x, "x", self.input_names)
        origin = self._origin  # asked for once: this is in every call's way
        given, x = x, as_real(x, "x").to(origin)
        if x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[0] not in (1, self.num_paths)):
            raise ValueError(
                f"x: expected [n, {self.input_dim}] for all paths or [{self.num_paths}, n, {self.input_dim}] for each "
                f"its own, got {list(x.shape)}{flat_hint(given, 'x', x, self.input_dim)}"
            )
        check_dim(x, "x", len(origin))
        self._check_points(x)
        return x[None] if x.ndim == 2 else x

    @final
    def _check_points(self, x: Tensor) -> None:
        """ValueError where a number is not finite, and not one that is missing and that these functions have a value
        for."""
        try:
            check_points(x)
        except ValueError:
            if bool(x.isinf().any()) or not self._takes(x):
                raise

    def _takes(self, x: Tensor) -> bool:
        """Whether an input transform fills in all that is missing (NaN) in points x, as an imputer does."""
        return False

    @final
    def _index(self, index: Index) -> Tensor:
        """Which paths are asked for, as whole numbers; an integer is a list of one."""
        s = self.num_paths
        if isinstance(index, slice):
            index = list(range(s)[index])  # torch knows no steps backwards
        elif not isinstance(index, Sequence) and getattr(index, "ndim", 0) == 0:
            index = operator.index(index)
            if not -s <= index < s:
                raise IndexError(f"path {index} of {s}")
            index = [index]
        chosen = torch.arange(s, device=self.device)[index]
        if len(chosen) == 0:
            raise IndexError(f"expected at least one path of {s}, got none")
        return chosen

    @final
    def _rows(self, x: ArrayLike, of: ArrayLike) -> tuple[Tensor, Tensor]:
        """A point x `[p, d]` for each of the paths `of` `[p]`."""
        of = as_array(of)
        if of.numel() == 0 or of.is_floating_point():
            raise ValueError(f"of: expected whole numbers, the paths of the points, at least one, got {of.tolist()}")
        owner = self._index(of)
        check_names(x, "x", self.input_names)
        x = as_real(x, "x").to(self._origin)
        wanted = [len(owner), self.input_dim]
        if list(x.shape) != wanted:
            raise ValueError(f"x: expected {wanted}, a point for each of `of`, got {list(x.shape)}")
        self._check_points(x)
        return x, owner

    @final
    def _on_points_of_grid(self, axes: list[Tensor], out: Tensor) -> None:
        """`_on_grid` point by point, for functions that do not come apart into factors of one axis each."""
        step = max(1, _SLAB // max(1, self.input_dim * math.prod(map(len, axes[1:]))))
        for start in range(0, len(axes[0]), step):
            slab = [axes[0][start : start + step], *axes[1:]]
            points = torch.stack(torch.meshgrid(*slab, indexing="ij"), dim=-1)  # [n1, n2, ..., d]
            out[:, start : start + step] = self._values(points.flatten(0, -2)[None]).unflatten(1, points.shape[:-1])

    @final
    def _in_slabs(self, axes: list[Tensor], out: Tensor, rows: Tensor | slice, pick: Tensor | slice) -> None:
        """This draw's values, outputs `pick` of them, written to paths `rows` of out: some of the first axis at a time.

        For results that cannot be written in place.
        """
        each = self.num_paths * self.num_outputs * math.prod(map(len, axes[1:]))
        step = max(1, _SLAB // max(1, each))
        for start in range(0, len(axes[0]), step):
            slab = [axes[0][start : start + step], *axes[1:]]
            values = out.new_empty(self.num_paths, *map(len, slab), self.num_outputs)
            self._on_grid(slab, values)
            out[rows, start : start + step] = values[..., pick]
