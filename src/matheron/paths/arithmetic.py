"""How functions are combined and converted: operators, maps, compositions, modules, files and pictures.

The nodes that operators make are in `algebra.py`.
"""

from __future__ import annotations

import math
import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Self, final

import numpy as np
from torch import Tensor

from ..core.checks import ArrayLike, as_real
from ..core.value import Value
from ..models.transforms import Transform
from .functions import EvaluableFunctions, PlacedFunctions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import DataArray, Dataset

    from ..export import FunctionModule

# What functions can be added to or multiplied with: one number, one number for each path `[s]`, or `[s or 1, t]`.
Number = float | Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]


class AbstractFunctions(EvaluableFunctions):
    """s functions of points: a value that is never changed.

    Points `[n, d]` are every function's, and give `[s, n]`; points `[s, n, d]` are each its own (a leading 1
    broadcasts). t outputs add a trailing axis `[..., t]`.

    Functions form an algebra: `2 * f - g / 3 + 1`, `f * g`, `f.exp()`, `f.map(torch.sigmoid)`, `f.compose(g)`,
    `f.of(network)`, `matheron.stack([f, g])` and `f[..., 0]` are functions again. Those of several draws are paired,
    path by path.
    """

    # With this, NumPy's numbers use the methods below for sums and products with functions.
    __array_ufunc__ = None

    @final
    def __add__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        from .algebra import linear_combination

        if isinstance(other, AbstractFunctions):
            return linear_combination([self, other], [1.0, 1.0])
        number = _number(other)
        if number is None:
            return NotImplemented
        return self if isinstance(number, float) and number == 0 else linear_combination([self], [1.0], number)

    __radd__ = __add__  # sum([f, g]) starts with 0 + f

    @final
    def __neg__(self) -> AbstractFunctions:
        return self * -1.0

    @final
    def __sub__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        from .algebra import linear_combination

        if isinstance(other, AbstractFunctions):
            return linear_combination([self, other], [1.0, -1.0])
        number = _number(other)
        return NotImplemented if number is None else self + -number

    @final
    def __rsub__(self, other: Number) -> AbstractFunctions:
        from .algebra import linear_combination

        number = _number(other)
        return NotImplemented if number is None else linear_combination([self], [-1.0], number)

    @final
    def __mul__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        from .algebra import PointwiseProduct, linear_combination

        if isinstance(other, AbstractFunctions):
            return PointwiseProduct([self, other])
        number = _number(other)
        if number is None:
            return NotImplemented
        return self if isinstance(number, float) and number == 1 else linear_combination([self], [number])

    __rmul__ = __mul__

    @final
    def __truediv__(self, other: AbstractFunctions | Number) -> AbstractFunctions:
        if isinstance(other, AbstractFunctions):
            return self * other._elementwise("reciprocal")
        number = _number(other)
        if isinstance(number, float) and number == 0:
            raise ZeroDivisionError("functions / 0")
        return NotImplemented if number is None else self * (1 / number)

    @final
    def __rtruediv__(self, other: Number) -> AbstractFunctions:
        number = _number(other)
        return NotImplemented if number is None else self._elementwise("reciprocal") * number

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
        """The functions p(x) = function(f(x)), path by path and point by point, with gradients.

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
        """f, limited to the range from `min` to `max`. The gradient is zero where f is outside of it."""
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

        Their `mean`, `variance` and `std` are those of the posterior, in closed form. Second derivatives of drawn paths
        need a smooth kernel, such as `Matern(3.5)`, and `paths_per_basis=1`: few waves carry most of their variance.

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

        Functions that call a network cannot be saved, because a file contains no code.

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

    # Conversions to other forms.

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
    def to_module(self) -> FunctionModule:
        """The same functions as a plain `torch.nn.Module`: waves, profiles at centres and monomials, all of it buffers.

        `torch.export` with any number of points, `torch.compile(fullgraph=True)`, `torch.func` and ONNX take it. It
        takes points `[n, d]` or `[s, n, d]` in the functions' dtype, without checks. It holds all that it needs of them
        at once, so for millions of points call the functions themselves, which work in blocks. Torch modules and
        functions of one's own, as maps, networks or means, are parts of it. What has no such form (a kernel or a
        transform by code of its own) is a TypeError that says what to do.

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
        from ..export import to_module  # export comes after paths in the import order

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
    def _of(self, transform: Transform) -> Self:
        """The functions of transform(x)."""

    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        """The outputs `outputs`."""
        from .algebra import Selection

        return Selection(self, outputs)


def _number(other: object) -> float | Tensor | None:
    """The number that functions are added to or multiplied with, in float64; None where this is no number. For paths of
    a batch of models, a TypeError says to take them one by one."""
    if isinstance(other, PlacedFunctions):
        require_functions(other, "functions")
    if isinstance(other, Real):
        return float(other)
    return as_real(other, "number").double() if isinstance(other, Tensor | np.ndarray | list | tuple) else None


def require_functions(functions: object, name: str = "paths") -> AbstractFunctions:
    """Return paths of one model or functions made of such paths; raise a TypeError that says what to do for anything
    else."""
    if isinstance(functions, AbstractFunctions):
        return functions
    shape = getattr(functions, "batch_shape", None)
    if isinstance(functions, Value) and shape is not None:
        raise TypeError(
            f"{name}: expected paths of one model, got a batch of {math.prod(shape)} models; ask each of paths.members"
        )
    raise TypeError(f"{name}: expected paths, as matheron.draw gives them, got {type(functions).__name__}")
