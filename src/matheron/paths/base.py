"""AbstractPaths: what all paths of one model can do. Applications know this type and nothing below it."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, final, overload

import torch
from torch import Tensor

from .. import store
from ..checks import ArrayLike, Random, as_generator, as_real, as_tensor, check_dim, check_points
from ..evaluate import Record
from ..evaluate.fused.recursion import Recursion, recursion_of
from ..solvers import Solver, as_solver
from ..value import Value
from .observations import Observations, observed
from .rows import as_index, as_rows

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from xarray import DataArray, Dataset

Index = int | slice | Sequence[int] | Tensor
# Numbers that a grid's values hold beside the result, where they cannot be written into it at once.
_SLAB = 1 << 22


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: Tensor
    standard_error: Tensor


class AbstractPaths(Value, ABC):
    """Functions drawn from a Gaussian process, s of them: a value that is never changed.

    Points `[n, d]` are every path's, and give `[s, n]`; points `[s, n, d]` are each path's own (a leading 1
    broadcasts). A model of t outputs adds a trailing axis `[..., t]`.

    What a user calls is final here. Classes below say how values, means and updates are computed: points arrive as
    `[1, n, d]` or `[s, n, d]`, and values leave as `[s, n, t]`, whatever the number of outputs.
    """

    @property
    @abstractmethod
    def num_paths(self) -> int:
        """s."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """t."""

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """d."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @final
    def __len__(self) -> int:
        return self.num_paths

    @final
    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(self.num_paths))

    @final
    def __call__(self, x: ArrayLike) -> Tensor:
        """The paths at x: `[n, d] -> [s, n]`, `[s, n, d] -> [s, n]`; a trailing `[t]` for several outputs.

        Cost is linear in the number of points; memory beyond the result is bounded by
        `matheron.evaluate.MEMORY_BUDGET`.
        """
        return self._shown(self._values(self._points(x)))

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
                f, df = self._values_and_gradients_of(*as_rows(self, x, of))
        return self._shown(f), df[..., 0, :] if self.num_outputs == 1 else df

    @final
    @torch.no_grad()
    def on_grid(self, axes: Sequence[ArrayLike], *, out: Tensor | None = None) -> Tensor:
        """The paths on a tensor grid: axes `[n1], [n2], ... -> [s, n1, n2, ...]` (and `[t]` for several outputs).

        The same values as a list of all the grid's points, for a fraction of the cost: see `evaluate.tensor_grid`.
        The list itself is never made. With `out`, a contiguous tensor of that shape, the values are written there.

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
        out = like.new_empty(shape) if out is None else out
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
        points = self._points(x)
        if len(points) > 1:
            raise ValueError(f"mean: expected points [n, {self.input_dim}], got {list(points.shape)}")
        mean = self._mean(points)
        return self._shown(mean[0] if mean.ndim == 3 and len(mean) == 1 else mean)

    @overload
    def variance(self, x: ArrayLike, *, samples: Literal[False] = False) -> Tensor: ...
    @overload
    def variance(self, x: ArrayLike, *, samples: Literal[True]) -> Estimate: ...
    @final
    def variance(self, x: ArrayLike, *, samples: bool = False) -> Tensor | Estimate:
        """The posterior's variance at x `[n, d]`, not that of these draws: `[n]`, or `[n, t]` for several outputs.

        Exact, from a factor that the draw kept, and so also after `condition_on`. With `samples=True` an estimate from
        these paths instead, with its standard error, which needs no factor. An ensemble's is that of the mixture.

        >>> import matheron
        >>> from matheron import kernels
        >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
        >>> paths = matheron.draw(gp, 1000, solver=matheron.solvers.Cholesky(keep=True), seed=0)
        >>> paths.variance([[0.0]])
        tensor([0.5000], dtype=torch.float64)
        >>> estimate, error = paths.variance([[0.0]], samples=True)
        >>> bool(abs(estimate - 0.5) < 4 * error)
        True
        """
        points = self._points(x)
        if len(points) > 1:
            raise ValueError(f"variance: expected points [n, {self.input_dim}], got {list(points.shape)}")
        if not samples:
            return self._shown(self._variance(points))
        return Estimate(*map(self._shown, self._estimated_variance(points)))

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

    @final
    def __getitem__(self, index: Index) -> Self:
        """Fewer paths; an integer keeps its axis."""
        return self._chosen(as_index(index, self.num_paths, self.device))

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
    def plot(
        self,
        x: ArrayLike | Sequence[ArrayLike],
        *,
        data: tuple[ArrayLike, ArrayLike] | None = None,
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

        return plot_paths(self, x, data=data, axes=axes)

    @final
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the paths to a safetensors file; `matheron.load` reads them back, and runs no code."""
        store.save(self, path)

    @abstractmethod
    def _values(self, x: Tensor) -> Tensor:
        """`[1 or s, n, d] -> [s, n, t]`."""

    @abstractmethod
    def _values_and_gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`[1 or s, n, d] -> [s, n, t], [s, n, t, d]`."""

    @abstractmethod
    def _values_and_gradients_of(self, x: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """Of path owner[i] at x[i]: `[p, d], [p] -> [p, t], [p, t, d]`."""

    @abstractmethod
    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        """Write the values on the grid into out `[s, n1, n2, ..., t]`."""

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
    def _chosen(self, index: Tensor) -> Self:
        """The paths `index`."""

    @abstractmethod
    def _given(self, data: Observations, solver: Solver, generator: torch.Generator) -> Self:
        """The paths given more data."""

    def _records(self) -> list[Record] | None:
        """The records of which these are the outputs side by side; None where they are not so made."""
        return None

    @final
    def recursion(self, dt: float, state: Tensor) -> Recursion | None:
        """x' = x + dt f(x) from states `[s, d_s]` on, as a GPU kernel; None where there is none for these paths."""
        records = self._records()
        return None if records is None else recursion_of(records, dt, state)

    @final
    def _points(self, x: ArrayLike) -> Tensor:
        """Points as `[1, n, d]` or `[s, n, d]`, in the paths' dtype and on their device."""
        x = as_real(x, "x").to(dtype=self.dtype, device=self.device)
        if x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[0] not in (1, self.num_paths)):
            raise ValueError(
                f"x: expected [n, {self.input_dim}] for all paths or [{self.num_paths}, n, {self.input_dim}] for each "
                f"its own, got {list(x.shape)}"
            )
        check_dim(x, "x", self.input_dim)
        check_points(x, "x")
        return x[None] if x.ndim == 2 else x

    @final
    def _shown(self, f: Tensor) -> Tensor:
        """Values as a user sees them: one output has no axis."""
        return f.squeeze(-1) if self.num_outputs == 1 else f

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
