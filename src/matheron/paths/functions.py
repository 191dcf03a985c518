"""Functions: how a group of s functions is called, indexed and saved, whatever the functions were drawn from."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, final, overload

import numpy as np
import torch
from torch import Tensor

from ..core import saving as store
from ..core.checks import ArrayLike, Names, as_array, as_real, check_dim, check_names, check_points, flat_hint
from ..core.functionals import Functionals
from ..core.value import Value
from ..evaluate import Record

if TYPE_CHECKING:
    from .arithmetic import AbstractFunctions

Index = int | slice | Sequence[int] | Tensor
# Indices of outputs, as in f[..., 0] and f[..., [2, 0]], and of paths and outputs, as in f[:8, ..., 0].
OutputIndex = tuple[EllipsisType, Index] | tuple[Index, EllipsisType, Index]


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: Tensor
    standard_error: Tensor

    def sqrt(self) -> Estimate:
        """The square root of the value. The standard error is multiplied by the derivative of the root."""
        root = self.value.sqrt()
        return Estimate(root, self.standard_error / (2 * root))


class PlacedFunctions(Value, ABC):
    """Base of groups of functions: their number, dimension, dtype and device."""

    input_names: Names = None
    """The names of the inputs' columns, where the model was made with a table: tables of points must have these."""

    @property
    @abstractmethod
    def num_paths(self) -> int:
        """The number s of functions."""

    @property
    @abstractmethod
    def _origin(self) -> Tensor:
        """A point `[d]`, of the functions' dtype and on their device."""

    @property
    @final
    def input_dim(self) -> int:
        """The number d of inputs."""
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


class EvaluableFunctions(PlacedFunctions):
    """s functions of points: how they are called, indexed and saved, and what is known of their law.

    Methods that users call are final. Subclasses define how values are computed: points arrive as `[1, n, d]` or `[s,
    n, d]`, and values are returned as `[s, n, t]`, for any number of outputs. `AbstractFunctions` adds how functions
    are combined.
    """

    # The reasons that errors give if there is no mean in closed form, or if no data can be given.
    _without_mean: ClassVar[str] = "it is not known in closed form"
    _without_update: ClassVar[str] = "give data to the paths that these functions are made of, and combine them again"

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """The number t of outputs."""

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
        `of`: `[p]` and `[p, d]`. A path may occur several times in `of`, or not at all.

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
    def at(self, observed: Functionals | Sequence[Functionals]) -> Tensor:
        """Linear functionals of every path, of `matheron.observe`: n of them give `[s, n]`.

        For t outputs, of which the functionals name none, `[s, n, t]`. Where no derivatives are taken of these
        numbers, memory beyond the result is bounded by `matheron.evaluate.MEMORY_BUDGET`.

        >>> import torch, matheron
        >>> from matheron import kernels, observe
        >>> paths = matheron.draw_prior(kernels.RBF(0.5), 4, input_dim=2)
        >>> x = torch.rand(10, 2)
        >>> paths.at(observe.gradient(x)).shape
        torch.Size([4, 20])
        >>> bool((paths.at(observe.derivative(x, 1)) == paths.value_and_grad(x)[1][..., 1]).all())
        True
        """
        from .functionals import functionals_at

        return functionals_at(self, observed)

    @final
    @torch.no_grad()
    def on_grid(self, axes: Sequence[ArrayLike], *, out: Tensor | np.ndarray | None = None) -> Tensor:
        """The paths on a tensor grid: axes `[n1], [n2], ... -> [s, n1, n2, ...]` (and `[t]` for several outputs).

        The values are those at the list of all points of the grid, for a fraction of the cost (see `evaluate.grid`).
        The list itself is never made. With `out`, a contiguous tensor of that shape or a NumPy array (which may be
        mapped to a file), the values are written there.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.1), 2, input_dim=2)
        >>> paths.on_grid([torch.linspace(0, 1, 50), torch.linspace(0, 2, 100)]).shape
        torch.Size([2, 50, 100])
        """
        from .grids import values_on_grid

        return values_on_grid(self, axes, out)

    @overload
    def __getitem__(self, index: Index) -> Self: ...
    @overload
    def __getitem__(self, index: OutputIndex) -> AbstractFunctions: ...
    @final
    def __getitem__(self, index: Index | OutputIndex) -> AbstractFunctions | Self:
        """Select paths, `f[:8]`, or outputs, `f[..., 0]` and `f[..., [2, 0]]`. An integer index of paths keeps the
        axis.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1) for _ in range(2))
        >>> both = matheron.stack([f, g])
        >>> x = torch.rand(3, 1)
        >>> both[:2](x).shape, both[..., 1](x).shape
        (torch.Size([2, 3, 2]), torch.Size([4, 3]))
        """
        if not isinstance(index, tuple):
            return self._chosen(self._index(index))
        if len(index) not in (2, 3) or not isinstance(index[-2], EllipsisType):
            raise IndexError(f"expected f[paths], f[..., outputs] or f[paths, ..., outputs], got {index!r}")
        chosen = self if len(index) == 2 else self._chosen(self._index(index[0]))
        outputs = _picked(self.num_outputs, index[-1], "output").tolist()
        return chosen if outputs == list(range(self.num_outputs)) else chosen._outputs(outputs)

    @final
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the paths to a safetensors file; `matheron.load` reads them back, and runs no code."""
        store.save(self, path)

    # What is known of the distribution of the functions.

    @final
    def mean(self, x: ArrayLike) -> Tensor:
        """The posterior mean at x `[n, d]`, exactly, whatever the basis: `[n]`, or `[n, t]` for several outputs.

        After `condition_on` with targets of each path's own, the posteriors differ, and so do their means: `[s, n]`.
        The mean of an ensemble is the mean of its members' means, weighted by their numbers of paths.

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

        It is exact, also after `condition_on`, and uses the factor of the data's covariance. If the draw did not keep
        the factor, it is made at the first call and kept with the paths (n^2 numbers). For more than 8192 data,
        conjugate gradients are used instead, with an error of about a thousandth. They are also used on a lattice
        (`solver="lattice"`), where the tolerance of the draw adds to this error, and each point takes milliseconds. The
        variance of an ensemble is that of the mixture.

        With `samples=True`, an estimate from these paths is returned instead, with its standard error.

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
        return _estimated_variance(self, points)

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
        return self.variance(x, samples=True).sqrt()

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

    def condition_on(self, x: ArrayLike, y: ArrayLike, **settings: Any) -> Self:
        """Raise a TypeError that says what to do: only paths can be conditioned on data."""
        self._refuse_update("condition_on")

    def refreshed(self, keep: ArrayLike, **settings: Any) -> Self:
        """Raise a TypeError that says what to do: only paths can be refreshed."""
        self._refuse_update("refreshed")

    @final
    def _refuse_update(self, name: str) -> NoReturn:
        raise TypeError(f"{name}: {type(self).__name__} takes no data; {self._without_update}")

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

    @abstractmethod
    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        """The outputs `outputs`."""

    def _mean(self, x: Tensor) -> Tensor:
        """`[1, n, d] -> [n, t]`, or `[s, n, t]` where each path has a mean of its own; TypeError if unknown."""
        raise TypeError(f"mean: {type(self).__name__} has none; {self._without_mean}. Average the functions instead")

    def _variance(self, x: Tensor) -> Tensor:
        """`[1, n, d] -> [n, t]`, or `[s, n, t]` where paths have posteriors that differ in it; TypeError if unknown."""
        raise TypeError(f"variance: {type(self).__name__} has none in closed form; use samples=True for an estimate")

    def _variance_of(self, functionals: Functionals) -> Tensor:
        """The posterior variance `[n, t]` of functionals that name no output; TypeError where it is unknown."""
        raise TypeError(
            f"variance: that of derivatives of {type(self).__name__} has no closed form; samples=True gives an estimate"
        )

    def _records(self) -> list[Record] | None:
        """The records whose outputs, side by side, are those of these functions. None if there are no such records."""
        return None

    @final
    def _points(self, x: ArrayLike) -> Tensor:
        """Points as `[1, n, d]` or `[s, n, d]`, in the paths' dtype and on their device."""
        if not isinstance(x, Tensor):
            check_names(x, "x", self.input_names)
        origin = self._origin  # stored, because every call needs it several times
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
        """Raise a ValueError if a number is not finite, unless it is a missing value (NaN) that these functions fill
        in."""
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
        """The indices of the selected paths; an integer is a list of one."""
        return _picked(self.num_paths, index, "path", self.device)

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
    def _shared_points(self, x: ArrayLike, name: str) -> Tensor:
        points = self._points(x)
        if len(points) > 1:
            raise ValueError(f"{name}: expected points [n, {self.input_dim}], got {list(points.shape)}")
        return points


def _picked(count: int, index: Index, what: str, device: torch.device | str = "cpu") -> Tensor:
    """The indices of the selected ones of `count` paths or outputs; an integer is a list of one."""
    try:
        given = as_array(list(range(count)[index]) if isinstance(index, slice) else index)  # slices may go backwards
    except TypeError:
        given = None
    if given is None or given.ndim > 1 or ((given.is_floating_point() or given.is_complex()) and given.numel()):
        raise TypeError(f"expected {what}s as a number, a slice, a list of numbers or {count} booleans, got {index!r}")
    if given.dtype == torch.bool:
        if list(given.shape) != [count]:
            raise IndexError(f"expected {count} booleans, one for each {what}, got {list(given.shape)}")
        given = given.nonzero()
    chosen = given.reshape(-1).to(device, torch.int64)
    beyond = chosen[(chosen < -count) | (chosen >= count)]
    if len(beyond):
        raise IndexError(f"{what} {int(beyond[0])} of {count}")
    if len(chosen) == 0:
        raise IndexError(f"expected at least one {what} of {count}, got none")
    return chosen % count


def _estimated_variance(f: EvaluableFunctions, x: Tensor) -> Estimate:
    """The variance at points `[1, n, d]`, from the functions' values there: `[n]`, or `[n, t]` for several outputs."""
    s = f.num_paths
    if s < 2:
        raise ValueError(f"samples: expected at least two paths, got {s}; draw more")
    values = f._values(x)
    try:
        squares = (values - f._mean(x)).square()
    except TypeError:  # the mean has no closed form, so the paths' own mean is used, which costs a degree of freedom
        squares = (values - values.mean(0)).square() * (s / (s - 1))
    return Estimate(squares.mean(0).squeeze(-1), (squares.std(0) / math.sqrt(s)).squeeze(-1))
