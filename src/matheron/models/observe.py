"""What can be observed of a function other than its values: slopes, gradients, weighted sums, averages and integrals.

    from matheron import observe

    slopes = observe.derivative(X, dim=0)
    gp = matheron.ExactGP(kernel, [observe.value(X), slopes], [y, dy], noise=[1e-4, 1e-6])
    paths = matheron.draw(gp, 64)
    paths.at(slopes)

Each function here returns n linear functionals of a function, one for each row of data. The names of a table's columns
are kept, as models keep them. Models and `condition_on` take
them in place of points, alone or several in a list; `paths.at` evaluates them. They add and scale as operators do:
`observe.derivative(X, 0) - 0.1 * observe.derivative(X, (1, 1))` is the heat operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral

import torch
from torch import Tensor

from ..core.checks import ArrayLike, Names, as_array, as_points, as_tensor, names_of
from ..core.functionals import Functionals
from ..core.sites import Sites

__all__ = [
    "Functionals",
    "QuadratureWarning",
    "combine",
    "derivative",
    "gradient",
    "integral",
    "mean",
    "stack",
    "value",
]


class QuadratureWarning(UserWarning):
    """An average over boxes was not found to the tolerance with the largest number of quadrature nodes."""


def value(X: ArrayLike, *, output: int | ArrayLike | None = None) -> Functionals:
    """Values f(x) at points X `[n, d]`: n rows.

    Args:
        X: points `[n, d]`.
        output: for functions of several outputs, the one that is observed: a number, or one for each point `[n]`.
            Without it every output is, and targets are `[n, t]`.

    >>> from matheron import observe
    >>> observe.value([[0.0], [1.0]])
    2 functionals of functions in 1 dimension
    """
    X, names = as_points(X, "X"), names_of(X)
    return Functionals.of(Sites(X, _as_outputs(output, len(X), X)), names)


def derivative(X: ArrayLike, dim: int | Sequence[int], *, output: int | ArrayLike | None = None) -> Functionals:
    """The partial derivative df/dx_dim at points X `[n, d]`: n rows.

    Args:
        X: points `[n, d]`.
        dim: the coordinate; two of them, `(0, 1)` or `(1, 1)`, for a second derivative.
        output: as for `value`.

    >>> import matheron
    >>> from matheron import kernels, observe
    >>> gp = matheron.ExactGP(kernels.RBF(), observe.derivative([[0.0]], 0), [2.0], noise=0.0)
    >>> paths = matheron.draw(gp, 2)
    >>> paths.at(observe.derivative([[0.0]], 0)).round(decimals=6)
    tensor([[2.],
            [2.]], dtype=torch.float64)
    """
    X, names = as_points(X, "X"), names_of(X)
    dims = list(dim) if isinstance(dim, Sequence) else [dim]
    n, d = X.shape
    if not 1 <= len(dims) <= 2 or any(isinstance(i, bool) or not isinstance(i, Integral) for i in dims):
        raise ValueError(f"dim: expected a coordinate, or two for a second derivative, got {dim!r}")
    if any(not -d <= int(i) < d for i in dims):
        raise ValueError(f"dim: expected coordinates below {d}, the points' dimension, got {dim!r}")
    axes = torch.eye(d, dtype=X.dtype, device=X.device)[[int(i) for i in dims]]  # [q, d]
    return _of_atoms(X, axes.expand(n, -1, -1), len(dims), output, names)


def gradient(X: ArrayLike, *, output: int | ArrayLike | None = None) -> Functionals:
    """Gradients at points X `[n, d]`: n d rows, the d partial derivatives at the first point, then at the second.

    Targets are gradients `[n, d]` flattened, or `[n d]`.

    >>> from matheron import observe
    >>> len(observe.gradient([[0.0, 1.0], [2.0, 3.0]]))
    4
    """
    X, names = as_points(X, "X"), names_of(X)
    n, d = X.shape
    axes = torch.eye(d, dtype=X.dtype, device=X.device).repeat(n, 1)[:, None]  # [n d, 1, d]
    if output is not None and not isinstance(output, Integral):
        output = as_array(output).repeat_interleave(d)
    return _of_atoms(X.repeat_interleave(d, 0), axes, 1, output, names)


def combine(points: ArrayLike, weights: ArrayLike, *, output: int | ArrayLike | None = None) -> Functionals:
    """Weighted sums of values, sum_p weights[i, p] f(points[i, p]): points `[n, p, d]`, weights `[n, p]`, n rows.

    Args:
        points: `[n, p, d]`; `[p, d]` for the same points in every row.
        weights: `[n, p]`.
        output: as for `value`: of each row.

    >>> from matheron import observe
    >>> observe.combine([[[0.0], [1.0]]], [[-1.0, 1.0]])  # the increment f(1) - f(0)
    1 functional of functions in 1 dimension
    """
    points, names = as_tensor(points, "points"), names_of(points)
    weights = as_tensor(weights, "weights", like=points)
    if points.ndim == 2 and weights.ndim == 2:
        points = points.expand(len(weights), -1, -1)
    if points.ndim != 3 or weights.ndim != 2 or points.shape[:2] != weights.shape or 0 in points.shape:
        raise ValueError(
            "points: expected [n, p, d] with weights [n, p], at least one of each, got "
            f"{list(points.shape)} and {list(weights.shape)}"
        )
    n, p, d = points.shape
    outputs = _as_outputs(output, n, points)
    outputs = None if outputs is None else outputs.repeat_interleave(p)
    orders = torch.zeros(n * p, dtype=torch.long, device=points.device)
    starts = p * torch.arange(n, device=points.device)
    directions = points.new_zeros(n * p, 0, d)
    sites = Sites(points.reshape(-1, d), outputs)
    return Functionals(sites, weights.reshape(-1), orders, directions, starts, input_names=names)


def mean(lower: ArrayLike, upper: ArrayLike, *, output: int | ArrayLike | None = None) -> Functionals:
    """Averages over boxes with corners `lower` and `upper`, `[n, d]` each: n rows.

    They are exact, in any number of dimensions, where the kernel is a sum of products of kernels of one coordinate, RBF
    or Matern with nu = 1/2, 3/2, ...: RBF always is, Matern on one coordinate. Sides of less than a hundredth of a
    lengthscale err by up to 3e-10. They are computed by Gauss-Legendre quadrature for other kernels, under transforms
    or means that are not affine, and for models of several outputs. It has as many nodes as the kernel, or the
    functions, need for six digits. A `QuadratureWarning` says where that would take too many.

    >>> import torch, matheron
    >>> from matheron import kernels, observe
    >>> paths = matheron.draw_prior(kernels.RBF(), 3, input_dim=1)
    >>> inside = torch.linspace(0, 1, 10001, dtype=torch.float64)[:, None]
    >>> average = paths.at(observe.mean([[0.0]], [[1.0]]))
    >>> bool((average[:, 0] - paths(inside).mean(1)).abs().max() < 1e-3)
    True
    """
    lower, names = as_points(lower, "lower"), names_of(lower)
    upper = as_points(upper, "upper", input_dim=lower.shape[1], like=lower, names=names)
    if lower.shape != upper.shape:
        raise ValueError(f"upper: expected corners {list(lower.shape)} as lower has, got {list(upper.shape)}")
    if not bool((upper > lower).all()):
        row = int((upper <= lower).any(-1).nonzero()[0])
        raise ValueError(f"upper: expected numbers above those of lower, got {upper[row].tolist()} in row {row}")
    return value((lower + upper) / 2, output=output).replaced(sides=upper - lower, input_names=names)


def integral(lower: ArrayLike, upper: ArrayLike, *, output: int | ArrayLike | None = None) -> Functionals:
    """Integrals over boxes: their averages (`mean`) times their volumes.

    >>> from matheron import observe
    >>> observe.integral([[0.0, 0.0]], [[1.0, 2.0]])
    1 functional of functions in 2 dimensions
    """
    averages = mean(lower, upper, output=output)
    return averages * averages.sides_or_zero.prod(-1)


def stack(parts: Iterable[Functionals]) -> Functionals:
    """Several one after another: the rows of the first, then those of the second. Targets are in the same order.

    >>> from matheron import observe
    >>> X = [[0.0], [1.0]]
    >>> observe.stack([observe.value(X), observe.derivative(X, 0)])
    4 functionals of functions in 1 dimension
    """
    parts = [parts] if isinstance(parts, Functionals) else list(parts)
    if not parts:
        raise ValueError("parts: expected at least one, got none")
    for part in parts:
        if not isinstance(part, Functionals):
            raise TypeError(
                f"parts: expected functionals, as observe.value(X) or observe.gradient(X) gives them, got "
                f"{type(part).__name__}"
            )
    dims = {part.input_dim for part in parts}
    if len(dims) > 1:
        raise ValueError(f"parts: expected functionals of functions of as many inputs, got {sorted(dims)}")
    with_outputs = {part.outputs is not None for part in parts}
    if len(with_outputs) > 1:
        raise ValueError("parts: expected output= for all of them, or for none")
    return Functionals.concatenated(parts)


def _as_outputs(output: int | ArrayLike | None, n: int, like: Tensor) -> Tensor | None:
    """The output of each row, `[n]`."""
    if output is None:
        return None
    given = as_array(output)
    if given.ndim > 1 or given.numel() not in (1, n) or bool((given != given.long()).any()) or bool((given < 0).any()):
        raise ValueError(f"output: expected a whole number from 0, or one for each row [{n}], got {given.tolist()}")
    return given.long().reshape(-1).expand(n).to(like.device)


def _of_atoms(X: Tensor, directions: Tensor, order: int, output: int | ArrayLike | None, names: Names) -> Functionals:
    """A derivative at each point, along directions `[n, q, d]`."""
    n, each = len(X), torch.arange(len(X), device=X.device)
    orders = torch.full((n,), order, device=X.device)
    sites = Sites(X, _as_outputs(output, n, X))
    return Functionals(sites, X.new_ones(n), orders, directions.contiguous(), each, input_names=names)
