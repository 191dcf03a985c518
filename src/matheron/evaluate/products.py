"""Products: monomials, random products of linear forms, and both times Fourier features."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.arena import weigh
from .bases import Basis, Cosines, phases_at


class Products(Basis):
    """prod_j (a_ij . (x, 1)) cos(theta_i . (x - origin) + tau_i).

    Monomials, random products, and both times Fourier features. Projections `[g, p, c, d + 1]`; without frequencies the
    cosine is absent. Only the cosine is taken about the origin: a polynomial's is its own.
    """

    shapes = "projections: g p c e, amplitudes: g c, origin: g d"

    def check(self) -> None:
        if self.fourier is not None and self.fourier.amplitudes.shape != self.amplitudes.shape:
            raise ValueError("Products: expected as many cosines as products")

    def __init__(self, projections: Tensor, amplitudes: Tensor, origin: Tensor, fourier: Cosines | None = None) -> None:
        super().__init__(
            projections=projections,
            amplitudes=amplitudes.expand(projections.shape[0], projections.shape[2]),
            origin=origin.expand(projections.shape[0], -1),
        )
        self.register_module("fourier", fourier)

    def scales(self) -> Tensor:
        return self.amplitudes if self.fourier is None else self.amplitudes * self.fourier.amplitudes

    @property
    def size(self) -> int:
        return self.projections.shape[2]

    @property
    def num_bases(self) -> int:
        return self.projections.shape[0]

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        for i in range(0, self.size, width):
            cut = slice(i, i + width)
            f = self.fourier
            some = None if f is None else Cosines(f.frequencies[:, cut], f.phases[:, cut], f.amplitudes[:, cut])
            yield Products(self.projections[:, :, cut], self.amplitudes[:, cut], self.origin, some), cut

    def _factors(self, x: Tensor) -> list[Tensor]:
        """a_ij . (x, 1) for each j, `[B, n, c]`. Points are relative to the origin, which is added again for the
        polynomials."""
        x = x + self.origin[:, None]
        return [x @ A[..., :-1].mT + A[..., None, :, -1] for A in self.projections.unbind(1)]

    def values(self, x: Tensor) -> Tensor:
        factors = self._factors(x)
        if self.fourier is not None:
            factors.append(self.fourier.values(x))
        return _product(factors)

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        factors = self._factors(x)
        # for each factor, and each dimension
        slopes = [A[:, None, :, :-1].unbind(-1) for A in self.projections.unbind(1)]
        if self.fourier is not None:
            P = phases_at(x, self.fourier.frequencies, self.fourier.phases)
            factors.append(P.cos())
            S = P.sin_()
            slopes.append([-S * theta for theta in self.fourier.frequencies[:, None].unbind(-1)])
        others = [_product(factors[:j] + factors[j + 1 :]) for j in range(len(factors))]
        gradient = []
        for i in range(x.shape[-1]):
            parts = (slope[i] * other for slope, other in zip(slopes, others, strict=True))
            gradient.append(weigh(sum(parts, start=x.new_zeros(())).expand_as(factors[0]), W))
        return weigh(_product(factors), W), torch.stack(gradient, dim=-1)


def _product(factors: list[Tensor]) -> Tensor:
    total = factors[0] if factors else torch.ones((), dtype=torch.float64, device="cpu")
    for factor in factors[1:]:
        total = total * factor
    return total
