"""Partial derivatives of functions, as functions.

A path is a sum of weighted sums. The derivative of most bases is the same basis with other weights, or a basis of the
same kind. For example d/dx cos(theta x) = -theta sin(theta x), and the derivative of k(x, z_j) is another function of
z_j. So the derivative of a path has a record like the path itself, and can be evaluated on grids, at own points and
with gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import torch
from torch import Tensor

from ..core.jacobian import derivative_along
from ..core.modes import transformed
from ..evaluate import Float64Term, PathTerm, Record, Recorder, WeightedSum, values, values_and_gradients
from ..models.means import ConstantMean, LinearMean, Mean
from ..models.observe import derivative
from .algebra import Combined, PosteriorMean
from .arithmetic import AbstractFunctions
from .grids import write_by_points, write_by_record


@final
class PartialDerivatives(Combined):
    """df/dx_i in some coordinates i, `dims`: a function with an output for each output of f and each of these.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=2)
    >>> x = torch.rand(5, 2)
    >>> slope = f.derivative(1)
    >>> bool((slope(x) - f.value_and_grad(x)[1][..., 1]).abs().max() < 1e-12)
    True
    >>> f.gradient()(x).shape
    torch.Size([4, 5, 2])
    """

    fields = ("dims",)
    _without_update: ClassVar[str] = (
        "give derivatives to the paths themselves, paths.condition_on(observe.derivative(x, dim), y, noise=...), and "
        "differentiate these again"
    )

    def __init__(self, f: AbstractFunctions, dims: Sequence[int]) -> None:
        super().__init__([f])
        self.dims = list(dims)
        self.check()

    def check(self) -> None:
        super().check()
        d = self.functions[0].input_dim
        if len(self.functions) != 1 or not self.dims or not all(isinstance(i, int) and 0 <= i < d for i in self.dims):
            raise ValueError(f"PartialDerivatives: expected coordinates below {d}, got {self.dims}")

    @property
    def num_outputs(self) -> int:
        """The number of outputs: for each output of f, one for each coordinate."""
        return self.functions[0].num_outputs * len(self.dims)

    def __repr__(self) -> str:
        return f"PartialDerivatives({self.functions[0]!r}, dims={self.dims})"

    def _values(self, x: Tensor) -> Tensor:
        f, records = self.functions[0], _records_of(self).records
        graph = transformed() or (torch.is_grad_enabled() and (x.requires_grad or self.requires_graph()))
        if records is not None and (graph or len(self.dims) == 1):
            return self._laid([values(record, record.inner(x)) for record in records])
        if graph:
            parts = []
            for i in self.dims:
                axis = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)[i]
                parts.append(derivative_along(f._values, x, [axis], reverse=True))
            return torch.stack(parts, dim=-1).flatten(-2)
        return f._values_and_gradients(x)[1][..., self.dims].flatten(-2)

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        records = _records_of(self).records
        if records is not None:
            both = [record.chained(x, *values_and_gradients(record, record.inner(x), of)) for record in records]
            f, df = zip(*both, strict=True)
            return self._laid(list(f)), torch.stack(df, dim=-2).flatten(-3, -2)
        f = self.functions[0] if of is None else self.functions[0]._chosen(of)
        axes = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        with torch.enable_grad():
            slope = f._values_and_gradients(x)[1][..., self.dims].detach()  # [s, n, t, k]
            rows = [
                torch.stack([derivative_along(f._values, x, [axes[i], axis]) for axis in axes], dim=-1)
                for i in self.dims
            ]
        return slope.flatten(-2), torch.stack(rows, dim=-2).detach().flatten(-3, -2)

    def _laid(self, parts: list[Tensor]) -> Tensor:
        """From `[s, n, t]` of each coordinate to `[s, n, t k]`."""
        return torch.stack(parts, dim=-1).flatten(-2)

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        records = _records_of(self).records
        if records is None:
            return write_by_points(self._values, axes, out)
        t, k = self.functions[0].num_outputs, len(self.dims)
        for i, record in enumerate(records):
            own = out.unflatten(-1, (t, k))[..., i]
            whole = torch.empty(own.shape, dtype=out.dtype, device=out.device)
            write_by_record(record, axes, whole)
            own.copy_(whole)

    def by_coordinate(self) -> list[Record] | None:
        """The record of the derivatives in each coordinate; None if there is none."""
        return _records_of(self).records

    def _records(self) -> list[Record] | None:
        records = _records_of(self).records
        return records if records is not None and self.functions[0].num_outputs == 1 else None

    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        if self.functions[0].num_outputs > 1:
            return super()._outputs(outputs)
        return PartialDerivatives(self.functions[0], [self.dims[i] for i in outputs])

    def _mean(self, x: Tensor) -> Tensor:
        mean, slopes = self._of_mean()
        y = slopes._values(x)
        return y if mean.own else y[0]

    def _of_mean(self) -> tuple[PosteriorMean, PartialDerivatives]:
        """The posterior mean of the functions that are differentiated, and the same derivatives of it."""
        f = self.functions[0]
        if isinstance(f, PartialDerivatives):
            mean, inner = f._of_mean()
            return mean, PartialDerivatives(inner, self.dims)
        mean = PosteriorMean(f)
        return mean, PartialDerivatives(mean, self.dims)

    def _variance(self, x: Tensor) -> Tensor:
        f, orders = self._differentiated()
        each = [f._variance_of(derivative(x[0], dims)) for dims in orders]  # [n, t], or [s, n, t]
        return torch.stack(each, dim=-1).flatten(-2)

    def _differentiated(self) -> tuple[AbstractFunctions, list[tuple[int, ...]]]:
        """The functions whose (repeated) derivatives these are, and the coordinates of each output."""
        f, dims = self.functions[0], [(i,) for i in self.dims]
        if not isinstance(f, PartialDerivatives):
            return f, dims
        base, before = f._differentiated()
        return base, [(*first, *then) for first in before for then in dims]

    def _of(self, transform: object) -> Self:
        raise TypeError(
            "of: the derivative of f at network(x) is not that of f(network(x)); take the derivative of f.of(network)"
        )


# The records of derivatives.


@dataclass(eq=False)
class _Records:
    """The record of the derivative in each coordinate; None if one of them has none."""

    records: list[Record] | None = None
    requires_grad: bool = False


def _make_records(slopes: PartialDerivatives) -> _Records:
    known = slopes.functions[0]._records()
    if known is None or len(known) != 1:
        return _Records()
    found = [derivative_record(known[0], i) for i in slopes.dims]
    graph = known[0].requires_grad
    return _Records(None if any(r is None for r in found) else [r for r in found if r is not None], graph)


_records_of = Recorder(_make_records)


def derivative_record(record: Record, dim: int) -> Record | None:
    """The record of df/dx_dim; None if the derivative of a basis, the mean or a transform is not known as a record."""
    like, t, (inward, outward) = record.origin, record.num_outputs, (record.input_transform, record.output_transform)
    if any(transform is not None and not transform.affine for transform in (inward, outward)):
        return None
    if inward is None:
        direction = torch.eye(len(like), dtype=like.dtype, device=like.device)[dim]
    else:  # J e_dim, which is constant
        identity = torch.eye(len(like), dtype=like.dtype, device=like.device)
        user = like.new_zeros(1, inward.input_dim(len(like)))
        direction = inward.vjp(user, identity[None])[0, :, dim]
    scale = like.new_ones(t) if outward is None else outward.derivative(like.new_zeros(1, t))[0]  # [t]
    mean = _derivative_of_mean(record.mean, direction, scale)
    terms = [_derivative_of_term(term, direction, scale) for term in record.terms]
    if mean is None or any(term is None for term in terms):
        return None
    kept = [term for term in terms if term is not None]
    return replace(record, terms=kept, mean=mean, output_transform=None)


def _derivative_of_mean(mean: Mean, direction: Tensor, scale: Tensor) -> Mean | None:
    if isinstance(mean, ConstantMean):
        return ConstantMean(torch.zeros_like(mean.value)).to(direction.device, direction.dtype)
    if isinstance(mean, LinearMean):
        slope = (mean.weights.to(direction) @ direction) * scale  # [t]
        return ConstantMean(slope).to(direction.device, direction.dtype)
    return None


def _derivative_of_term(term: PathTerm, direction: Tensor, scale: Tensor) -> PathTerm | None:
    if isinstance(term, Float64Term):
        inner = _derivative_of_term(term.term, direction.double(), scale.double())
        return None if inner is None else Float64Term(inner)
    if not isinstance(term, WeightedSum):
        return None
    found = term.basis.derivative(term.weights, term.index, direction)
    return None if found is None else replace(term, basis=found[0], weights=found[1] * scale[:, None])
