"""Averages of functions over boxes, as functions of the boxes.

The average of a wave over a box is the wave at the centre, times a product of sincs of the sides. The average of
k(., z) is known where the kernel is a product of kernels of one coordinate (`kernels.covariances`). So the averages of
a path are a sum of weighted sums, as the path is, at points of 2 d coordinates: a box's centre and its sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import pad

from ..core.functionals import averages_of_waves
from ..core.jacobian import jacobian
from ..kernels.covariances import Averaged, averages_in_closed_form
from ..models.means import ConstantMean, LinearMean, Mean
from .bases import Basis, Canonical, Cosines, Pairs
from .float64 import Float64Term
from .record import PathTerm, Record, WeightedSum
from .slopes import CanonicalSlopes


class AveragedWaves(Basis):
    """The averages of waves over boxes, at points `[B, n, 2 d]`."""

    def __init__(self, waves: Pairs | Cosines) -> None:
        super().__init__(waves=waves)

    @property
    def size(self) -> int:
        return self.waves.size

    @property
    def num_bases(self) -> int:
        return self.waves.num_bases

    def scales(self) -> Tensor:
        return self.waves.scales()

    def select(self, index: Tensor | slice) -> Basis:
        return AveragedWaves(self.waves.select(index))

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        for piece, columns in self.waves.pieces(width):
            yield AveragedWaves(piece), columns

    def values(self, x: Tensor) -> Tensor:
        d = x.shape[-1] // 2
        waves = self.waves.values(x[..., :d])
        shrunk = averages_of_waves(self.waves.frequencies.to(x), x[..., d:])
        each = waves.unflatten(-1, (-1, shrunk.shape[-1]))  # cosines and sines of each frequency, or cosines alone
        return (each * shrunk[..., None, :]).flatten(-2)

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        f, df = jacobian(lambda at: self.weighted(at, W).mT, x)  # [B, n, r], [B, n, r, 2 d]
        return f.mT, df.transpose(1, 2)


def averaged_record(record: Record) -> Record | None:
    """The record of a record's averages, in the model's own space; None where a basis or the mean has none that is
    known in closed form."""
    d, mean = len(record.origin), averaged_mean(record.mean)
    terms = [_averaged_term(term, d) for term in record.terms]
    if mean is None or record.domain is not None or any(term is None for term in terms):
        return None
    known = [term for term in terms if term is not None]
    return replace(
        record, terms=known, mean=mean, origin=pad(record.origin, (0, d)), input_transform=None, output_transform=None
    )


def averaged_mean(mean: Mean) -> Mean | None:
    """The averages of a constant or linear mean, which are its values at the centres."""
    if isinstance(mean, LinearMean):
        return mean.replaced(weights=pad(mean.weights, (0, mean.weights.shape[-1])))
    return mean if isinstance(mean, ConstantMean) else None


def _averaged_term(term: PathTerm, d: int) -> PathTerm | None:
    if isinstance(term, Float64Term):
        inner = _averaged_term(term.term, d)
        return None if inner is None else Float64Term(inner)
    if not isinstance(term, WeightedSum):
        return None
    basis, origin = averaged_basis(term.basis, d), term.origin
    return None if basis is None else replace(term, basis=basis, origin=None if origin is None else pad(origin, (0, d)))


def averaged_basis(basis: Basis, d: int) -> Basis | None:
    """The averages of the functions of a basis in d dimensions; None where they are not known in closed form."""
    if type(basis) in (Pairs, Cosines):
        return AveragedWaves(basis)  # pyright: ignore[reportArgumentType]
    if not isinstance(basis, Canonical | CanonicalSlopes):
        return None
    if isinstance(basis.kernel, Averaged):
        return basis
    return basis.replaced(kernel=Averaged(basis.kernel, d)) if averages_in_closed_form(basis.kernel, d) else None
