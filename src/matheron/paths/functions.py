"""Functions, s of them: how they are called, combined, chosen and kept, whatever they were drawn from."""

from __future__ import annotations

import itertools
import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn, Self, final, overload

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
from ..core.functionals import Functionals
from ..core.sites import Sites
from ..core.value import Value
from ..evaluate import MEMORY_BUDGET, Record, averaged_record
from ..models.observations import (
    as_functionals,
    by_quadrature,
    check_observed,
    check_outputs,
    is_observable,
    moved_inside,
)
from ..models.transforms import Transform
from .prior import observed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import DataArray, Dataset

    from ..export import FunctionModule

Index = int | slice | Sequence[int] | Tensor
# Some of the outputs, f[..., 0], f[..., [2, 0]]; and of some of the paths, f[:8, ..., 0].
OutputIndex = tuple[EllipsisType, Index] | tuple[Index, EllipsisType, Index]
# What functions are added to and multiplied with: one number for all, one for each path `[s]`, or `[s or 1, t]`.
Number = float | Tensor | np.ndarray


class Estimate(NamedTuple):
    """A value and its standard error."""

    value: Tensor
    standard_error: Tensor


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

    Functions form an algebra: `2 * f - g / 3 + 1`, `f * g`, `f.exp()`, `f.map(torch.sigmoid)`, `f.compose(g)`,
    `f.of(network)`, `matheron.stack([f, g])` and `f[..., 0]` are functions again. Those of several draws are paired,
    path by path.

    What a user calls is final here. Classes below say how values are computed: points arrive as `[1, n, d]` or
    `[s, n, d]`, and values are returned as `[s, n, t]`, whatever the number of outputs.
    """

    # Why there is no mean in closed form, and why no data can be given, where that is so.
    _without_mean: ClassVar[str] = "it is not known in closed form"
    _without_update: ClassVar[str] = "give data to the paths that these functions are made of, and combine them again"

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
    def at(self, observed: Functionals | Sequence[Functionals]) -> Tensor:
        """Linear functionals of every path, of `matheron.observe`: n of them give `[s, n]`.

        For t outputs, of which the functionals name none, `[s, n, t]`. Memory beyond the result is bounded by
        `matheron.evaluate.MEMORY_BUDGET`.

        >>> import torch, matheron
        >>> from matheron import kernels, observe
        >>> paths = matheron.draw_prior(kernels.RBF(0.5), 4, input_dim=2)
        >>> x = torch.rand(10, 2)
        >>> paths.at(observe.gradient(x)).shape
        torch.Size([4, 20])
        >>> bool((paths.at(observe.derivative(x, 1)) == paths.value_and_grad(x)[1][..., 1]).all())
        True
        """
        if not is_observable(observed):
            raise TypeError(
                f"observed: expected functionals of matheron.observe, got {type(observed).__name__}; paths(x) gives "
                "the values at points"
            )
        check_observed(observed, self.input_dim)
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        functionals, _ = as_functionals(observed, "observed", self._averaged, like)
        check_outputs(functionals, self.num_outputs)
        return self._observed(functionals).squeeze(-1)

    @final
    def _observed(self, functionals: Functionals) -> Tensor:
        """`[s, n, t]`, or `[s, n, 1]` where each of them is of one output."""
        most = max(1, MEMORY_BUDGET // (8 * self.num_paths * self.num_outputs * (self.input_dim + 1)))  # atoms at once
        firsts = torch.arange(0, len(functionals.weights), most, device=functionals.starts.device)
        rows = torch.searchsorted(functionals.starts, firsts)
        edges = sorted({0, *rows.tolist(), len(functionals)})
        blocks = [functionals[first:last] for first, last in itertools.pairwise(edges)]
        return torch.cat([self._observed_at_once(block) for block in blocks], dim=1)

    def _averaged(self, functionals: Functionals) -> Functionals:
        """Averages over boxes as they are where these functions have them in closed form, else by quadrature."""
        return functionals if self._has_averages() else by_quadrature(functionals, self._observed)

    @final
    def _has_averages(self) -> bool:
        """Whether averages over boxes are known in closed form: of one record, in coordinates that are boxes inside."""
        records = self._records()
        if records is None or len(records) > 1 or self.num_outputs > 1:
            return False
        (record,) = records
        inward, outward = record.input_transform, record.output_transform
        affine = inward is None or (inward.affine and inward.elementwise)
        affine = affine and (outward is None or outward.affine)
        return affine and record.derived(averaged_record, "averages") is not None

    def _observed_at_once(self, functionals: Functionals) -> Tensor:
        if functionals.sides is not None:
            (record,) = self._records() or []
            f = observed(record, moved_inside(functionals, record.input_transform))[..., None]  # [s, n, 1]
            level = record.outer(torch.zeros_like(f))  # L(a f + b) = a L f + b L 1
            return record.outer(f) + (functionals.of_ones()[:, None] - 1) * level
        sites = functionals.sites
        if functionals.order > 1:

            def at(some: Sites) -> Tensor:
                f = self._values(some.points[None])  # [s, m, t]
                f = f if some.outputs is None else some.own(f)[..., None]
                return f.transpose(0, 1).flatten(1)  # [m, s t]

            return functionals.features(at).unflatten(1, (self.num_paths, -1)).transpose(0, 1)
        each, place = functionals.distinct()
        if functionals.order:
            f, df = self._values_and_gradients(each.points[None])  # [s, m, t], [s, m, t, d]
            f, df = f[:, place], df[:, place]
        else:
            f = self._values(each.points[None])[:, place]
            df = f[..., None]
        if sites.outputs is not None:
            return functionals.of_gradients(f, df)[..., None]
        of_each = [functionals.of_gradients(f[..., i : i + 1], df[..., i : i + 1, :]) for i in range(f.shape[-1])]
        return torch.stack(of_each, dim=-1)

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

    @overload
    def __getitem__(self, index: Index) -> Self: ...
    @overload
    def __getitem__(self, index: OutputIndex) -> AbstractFunctions: ...
    @final
    def __getitem__(self, index: Index | OutputIndex) -> AbstractFunctions:
        """Fewer paths, `f[:8]`, where an integer keeps its axis; or fewer outputs, `f[..., 0]`, `f[..., [2, 0]]`.

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

    @final
    def to_module(self) -> FunctionModule:
        """The same functions as a plain `torch.nn.Module`: waves, profiles at centres and monomials, all of it buffers.

        `torch.export` with any number of points, `torch.compile(fullgraph=True)`, `torch.func` and ONNX take it. It has
        points `[n, d]` or `[s, n, d]` in the functions' dtype, without checks, and holds all that it needs of them at
        once: for millions of points call the functions themselves, which work in blocks. Torch modules and functions of
        one's own, as maps, networks or means, are parts of it. What has no such form (a kernel or a transform by code
        of its own) is a TypeError that says what to do.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.Matern(2.5, 0.3), 4, input_dim=2)
        >>> module, x = paths.to_module(), torch.rand(10, 2, dtype=torch.float64)
        >>> bool((module(x) - paths(x)).abs().max() < 1e-12)
        True
        >>> hessian = torch.func.hessian(lambda x: module(x[None])[0, 0])
        >>> torch.func.vmap(hessian)(x).shape
        torch.Size([10, 2, 2])
        """
        from ..export import to_module  # which comes later in the import order

        return to_module(self)

    @final
    def export(self, path: str | os.PathLike[str], *, points: Literal["shared", "own"] = "shared") -> None:
        """Write the functions for another runtime, in the form of `to_module`. The file's ending says which:

        - `.onnx` for ONNX runtimes (extra `onnx`), in one file: input `x`, output `f`;
        - `.pt2` for `torch.export.load`, and for C++ by `torch._inductor.aoti_compile_and_package`;
        - `.safetensors` for `matheron_portable`, which needs NumPy alone, and runs on JAX. It holds less than `save`
          writes: `matheron.load` does not read it.

        Args:
            path: the file.
            points: whether the graph of an `.onnx` or `.pt2` file takes points `[n, d]`, shared by all functions, or
                `[s, n, d]`, each function's own; any n.

        >>> import tempfile, torch, matheron
        >>> from matheron import kernels
        >>> paths = matheron.draw_prior(kernels.RBF(0.3), 4, input_dim=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths.export(f"{folder}/f.pt2")
        ...     f = torch.export.load(f"{folder}/f.pt2").module()
        >>> f(torch.rand(7, 2, dtype=torch.float64)).shape
        torch.Size([4, 7])
        """
        from ..export import export

        export(self, path, points)

    # The algebra: sums, products, maps, compositions.

    # NumPy's numbers leave sums and products with functions to the methods below.
    __array_ufunc__ = None

    @final
    def __add__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        from .algebra import linear_combination

        if isinstance(other, AbstractFunctions):
            return linear_combination([self, other], [1.0, 1.0])
        if not _is_number(other):
            return NotImplemented
        return self if isinstance(other, Real) and other == 0 else linear_combination([self], [1.0], other)

    __radd__ = __add__  # sum([f, g]) starts with 0 + f

    @final
    def __neg__(self) -> AbstractFunctions:
        return self * -1.0

    @final
    def __sub__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        from .algebra import linear_combination

        if isinstance(other, AbstractFunctions):
            return linear_combination([self, other], [1.0, -1.0])
        return self + -other if _is_number(other) else NotImplemented

    @final
    def __rsub__(self, other: Number) -> AbstractFunctions:
        from .algebra import linear_combination

        return linear_combination([self], [-1.0], other) if _is_number(other) else NotImplemented

    @final
    def __mul__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        from .algebra import PointwiseProduct, linear_combination

        if isinstance(other, AbstractFunctions):
            return PointwiseProduct([self, other])
        if not _is_number(other):
            return NotImplemented
        return self if isinstance(other, Real) and other == 1 else linear_combination([self], [other])

    __rmul__ = __mul__

    @final
    def __truediv__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        if isinstance(other, AbstractFunctions):
            return self * other._elementwise("reciprocal")
        if isinstance(other, Real) and other == 0:
            raise ZeroDivisionError("functions / 0")
        return self * (1 / other) if _is_number(other) else NotImplemented

    @final
    def __rtruediv__(self, other: Number) -> AbstractFunctions:
        return self._elementwise("reciprocal") * other if _is_number(other) else NotImplemented

    @final
    def __pow__(self, exponent: float) -> AbstractFunctions:
        if not isinstance(exponent, Real):
            return NotImplemented
        return self if exponent == 1 else self._elementwise("power", float(exponent))

    @final
    def __abs__(self) -> AbstractFunctions:
        return self._elementwise("abs")

    @final
    def map(self, function: Callable[[Tensor], Tensor]) -> AbstractFunctions:
        """The functions p(x) = function(f(x)), path by path and point by point; gradients follow.

        Args:
            function: of values `[..., n]`, or `[..., n, t]` for t outputs; each point and path by itself. It is made of
                torch's operations, or is a torch module, or a `matheron.transforms` of each output. It may return
                another number of outputs.

        `exp`, `log`, `sigmoid`, `softplus`, `tanh`, `abs`, `square`, `sqrt`, `clamp`, which are methods too, and
        transforms can be saved; a function of one's own cannot: a file holds no code.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=1)
        >>> probability = f.map(torch.sigmoid)
        >>> x = torch.rand(5, 1).double()
        >>> torch.equal(probability(x), torch.sigmoid(f(x)))
        True
        """
        from .algebra import mapped

        return mapped(self, function)

    @final
    def exp(self) -> AbstractFunctions:
        """exp(f)."""
        return self._elementwise("exp")

    @final
    def log(self) -> AbstractFunctions:
        """The natural logarithm of f: NaN where f is negative."""
        return self._elementwise("log")

    @final
    def sigmoid(self) -> AbstractFunctions:
        """1 / (1 + exp(-f))."""
        return self._elementwise("sigmoid")

    @final
    def softplus(self) -> AbstractFunctions:
        """log(1 + exp(f))."""
        return self._elementwise("softplus")

    @final
    def tanh(self) -> AbstractFunctions:
        """tanh(f)."""
        return self._elementwise("tanh")

    @final
    def abs(self) -> AbstractFunctions:
        """|f|, as abs(f)."""
        return self._elementwise("abs")

    @final
    def square(self) -> AbstractFunctions:
        """f^2, at the cost of f; f * f is evaluated twice."""
        return self._elementwise("square")

    @final
    def sqrt(self) -> AbstractFunctions:
        """The root of f: NaN where f is negative."""
        return self._elementwise("sqrt")

    @final
    def clamp(self, min: float | None = None, max: float | None = None) -> AbstractFunctions:
        """f, no less than `min` and no more than `max`. Where it is cut, it is flat."""
        ends = [None if end is None else float(end) for end in (min, max)]
        given = [end for end in ends if end is not None]
        if given != sorted(given) or not given or any(map(math.isnan, given)):
            raise ValueError(f"clamp: expected min, max or both, in this order, got {min} and {max}")
        return self._elementwise("clamp", *ends)

    @final
    def _elementwise(self, name: str, *arguments: float | None) -> AbstractFunctions:
        from .algebra import Elementwise, mapped

        return mapped(self, Elementwise(name, arguments))

    @final
    def derivative(self, dim: int) -> AbstractFunctions:
        """The partial derivative df/dx_dim, as functions: of the same outputs, with gradients of their own.

        Their `mean`, `variance` and `std` are those of the posterior, in closed form.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=2)
        >>> f.derivative(0).derivative(1)(torch.rand(5, 2)).shape
        torch.Size([4, 5])
        """
        from .slopes import PartialDerivatives

        return PartialDerivatives(self, self._coordinates([dim]))

    @final
    def gradient(self) -> AbstractFunctions:
        """The gradient as functions of d outputs: `[s, n, d]`; of t outputs of t d, those of the first output first.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=2)
        >>> f.gradient()(torch.rand(5, 2)).shape
        torch.Size([4, 5, 2])
        """
        from .slopes import PartialDerivatives

        return PartialDerivatives(self, self._coordinates(range(self.input_dim)))

    @final
    def _coordinates(self, dims: Iterable[int]) -> list[int]:
        """Coordinates, checked."""
        found, d = [], self.input_dim
        for dim in dims:
            i = operator.index(dim)
            if not -d <= i < d:
                raise ValueError(f"dim: expected a coordinate below {d}, got {dim!r}")
            found.append(i % d)
        return found

    @final
    def compose(self, inner: AbstractFunctions, *, with_inputs: bool = False) -> AbstractFunctions:
        """The functions f(g(x)), path i of g inside of path i of f: warps, layers of a deep process.

        With `with_inputs` they are f(x, g(x)), as in autoregressive models of several fidelities: the columns of x come
        first, g's outputs after them.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1) for _ in range(2))
        >>> deep = f.compose(g)
        >>> x = torch.rand(5, 1).double()
        >>> torch.equal(deep(x), f(g(x)[..., None]))
        True
        """
        from .algebra import Composition, Coordinates, Stack

        if callable(inner) and not isinstance(inner, PlacedFunctions):
            raise TypeError("inner: expected functions, got code of your own; f(network(x)) is f.of(network)")
        inner = require_functions(inner, "inner")
        return Composition(self, Stack([Coordinates.beside(inner), inner]) if with_inputs else inner)

    @final
    def of(self, network: Callable[[Tensor], Tensor], *, input_dim: int | None = None, detach: bool = True) -> Self:
        """The functions f(network(x)): features that a network learned, before a kernel (a deep kernel), or any other
        map of points. Of paths these are paths: they have a mean and a variance, and take data at points x.

        Args:
            network: a torch module or a function of points `[..., n, d]` that returns `[..., n, e]`, for functions f of
                e inputs; or a `matheron.transforms` of inputs. A module is copied, in evaluation mode.
            input_dim: d, where that is not the `in_features` of the network's first layer, or e.
            detach: False keeps the graph to a module's parameters.

        What calls a network cannot be saved: a file holds no code.

        >>> import torch, matheron
        >>> from matheron import kernels
        >>> network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
        >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=2)
        >>> z = f.of(network)
        >>> z.input_dim, z(torch.rand(7, 5)).shape
        (5, torch.Size([4, 7]))
        """
        from ..models.transforms import as_map

        if isinstance(network, PlacedFunctions):
            raise TypeError("network: expected a torch module or a function, got functions; f(g(x)) is f.compose(g)")
        transform = as_map(network, self.input_dim, input_dim, like=self._origin)
        return self._of(transform.owned() if detach else transform)

    # What is known of their law.

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

    def condition_on(self, x: ArrayLike, y: ArrayLike, **settings: Any) -> Self:
        """Paths alone take data: TypeError, which says what to do."""
        self._refuse_update("condition_on")

    def refreshed(self, keep: ArrayLike, **settings: Any) -> Self:
        """Paths alone are drawn afresh: TypeError, which says what to do."""
        self._refuse_update("refreshed")

    @final
    def _refuse_update(self, name: str) -> NoReturn:
        raise TypeError(f"{name}: {type(self).__name__} takes no data; {self._without_update}")

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
    def _of(self, transform: Transform) -> Self:
        """The functions of transform(x)."""

    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        """The outputs `outputs`."""
        from .algebra import Selection

        return Selection(self, outputs)

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
        """The records of which these are the outputs side by side; None where they are not so made."""
        return None

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


def _picked(count: int, index: Index, what: str, device: torch.device | str = "cpu") -> Tensor:
    """Which of `count` paths or outputs an index asks for, as whole numbers; an integer is a list of one."""
    if isinstance(index, slice):
        index = list(range(count)[index])  # torch knows no steps backwards
    elif not isinstance(index, Sequence) and getattr(index, "ndim", 0) == 0:
        index = operator.index(index)
        if not -count <= index < count:
            raise IndexError(f"{what} {index} of {count}")
        index = [index]
    chosen = torch.arange(count, device=device)[index]
    if len(chosen) == 0:
        raise IndexError(f"expected at least one {what} of {count}, got none")
    return chosen


def _is_number(other: object) -> bool:
    """Whether functions are added to it, or multiplied with it; a batch of models' paths is told to go one by one."""
    if isinstance(other, PlacedFunctions):
        require_functions(other, "functions")
    return isinstance(other, Real | Tensor | np.ndarray)


def require_functions(functions: object, name: str = "paths") -> AbstractFunctions:
    """Paths of one model, or functions made of such; or a TypeError that says what to do. For applications."""
    if isinstance(functions, AbstractFunctions):
        return functions
    shape = getattr(functions, "batch_shape", None)
    if isinstance(functions, Value) and shape is not None:
        raise TypeError(
            f"{name}: expected paths of one model, got a batch of {math.prod(shape)} models; ask each of paths.members"
        )
    raise TypeError(f"{name}: expected paths, as matheron.draw gives them, got {type(functions).__name__}")
