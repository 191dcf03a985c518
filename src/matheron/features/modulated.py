"""Modulated: a monomial times the functions of a lattice, for products of stationary and linear kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..kernels.terms import Term
from .basis import Basis
from .explicit import as_cosines
from .lattice import Lattice
from .products import Products


class Modulated(Basis):
    """x_1^p_1 ... x_d^p_d phi_j(x - origin), with phi_j the functions of a lattice; monomials are about 0."""

    fields = ("powers",)
    shapes = "origin: d"

    def check(self) -> None:
        whole = all(type(p) is int and p >= 0 for p in self.powers)
        if not whole or len(self.powers) != len(self.origin) or not isinstance(self.lattice, Lattice):
            raise ValueError(f"Modulated: expected a lattice, and {len(self.origin)} powers, got {self.powers}")

    def __init__(self, lattice: Lattice, powers: Sequence[int], origin: Tensor) -> None:
        super().__init__(origin=origin)
        self.lattice, self.powers = lattice, list(powers)

    @property
    def size(self) -> int:
        return self.lattice.size

    @property
    def width(self) -> int:
        return self.lattice.width

    def scales(self) -> Tensor:
        return self.lattice.scales()

    def envelope(self, x: Tensor) -> Tensor:
        """The monomial at points about the origin: `[..., d] -> [...]`."""
        return monomial(x + self.origin, self.powers)

    def envelope_slope(self, x: Tensor) -> Tensor:
        """Its gradient, `[..., d] -> [..., d]`."""
        x, slopes = x + self.origin, []
        for i, p in enumerate(self.powers):
            lower = [q - (j == i) for j, q in enumerate(self.powers)]
            slopes.append(p * monomial(x, lower) if p else torch.zeros_like(x[..., i]))
        return torch.stack(slopes, dim=-1)

    def modulated(self, x: Tensor, f: Tensor, df: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The sums of the functions and their gradients from the lattice's own: `[B, r, n]` and `[B, r, n, d]`."""
        e = self.envelope(x)[:, None]  # [B, 1, n]
        slope = None if df is None else e[..., None] * df + f[..., None] * self.envelope_slope(x)[:, None]
        return e * f, slope

    def values(self, x: Tensor) -> Tensor:
        return self.envelope(x)[..., None] * self.lattice.values(x)

    def weighted(self, x: Tensor, W: Tensor) -> Tensor:
        return self.envelope(x)[:, None] * self.lattice.weighted(x, W)

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        f, df = self.modulated(x, *self.lattice.weighted_with_gradient(x, W))
        assert df is not None
        return f, df

    def add_on_axes(self, W: Tensor, axes: list[Tensor], into: list[Tensor]) -> bool:
        sums = [torch.zeros_like(view, memory_format=torch.contiguous_format) for view in into]
        if not self.lattice.add_on_axes(W, axes, sums):
            return False
        for i, (axis, p) in enumerate(zip(axes, self.powers, strict=True)):
            factor = (axis + self.origin[i]).pow(p).reshape([-1 if j == i else 1 for j in range(len(axes))])
            for part in sums if p else []:
                part *= factor
        for view, part in zip(into, sums, strict=True):
            view += part
        return True

    def adjoint(self, x: Tensor, v: Tensor, accuracy: float | None = None) -> Tensor:
        """The transpose of the sums: `[n, d], [r, n] -> [r, c]`."""
        return self.lattice.adjoint(x, v * self.envelope(x), accuracy)

    def parts(self, width: int, input_dim: int) -> Iterator[Basis]:
        """The same in plain bases of at most `width` functions each."""
        one_hot = torch.eye(input_dim + 1, dtype=self.origin.dtype, device=self.origin.device)
        factors = one_hot[[i for i, p in enumerate(self.powers) for _ in range(p)]]  # [p, d + 1]
        for part in self.lattice.parts(width, input_dim):
            A = factors[None, :, None].expand(-1, -1, part.size, -1)
            yield Products(A, A.new_ones(()), self.origin, as_cosines([part]).to(A.device))


OnLattice = Lattice | Modulated


def lattice_in(basis: Basis) -> Lattice:
    """The lattice that a basis's functions are of, as they are or times a monomial."""
    found = basis.lattice if isinstance(basis, Modulated) else basis
    assert isinstance(found, Lattice)
    return found


def same_modes(bases: Sequence[Basis]) -> bool:
    """Whether the lattices of bases differ in their amplitudes alone."""
    first, *others = map(lattice_in, bases)
    return all(
        other.dims == first.dims and other.shape == first.shape and torch.equal(other.period, first.period)
        for other in others
    )


def powers_in(basis: OnLattice) -> tuple[int, ...]:
    """The powers of the monomial before a lattice's functions; none where these are as they are."""
    return tuple(basis.powers) if isinstance(basis, Modulated) else ()


def monomial(x: Tensor, powers: Sequence[int]) -> Tensor:
    """x_1^p_1 ... x_d^p_d: `[..., d] -> [...]`."""
    factors = [x[..., i].pow(p) for i, p in enumerate(powers) if p]
    return math.prod(factors[1:], start=factors[0]) if factors else torch.ones_like(x[..., 0])


def powers_of(term: Term) -> tuple[int, ...]:
    """The powers of a term whose forms are single coordinates: its monomial's; () where it has none."""
    if not term.forms:
        return ()
    powers = torch.stack([form.detach() > 0 for form in term.forms]).sum(0)[:-1].tolist()
    return tuple(powers) if any(powers) else ()


def largest_square(powers: Sequence[int], domain: Tensor) -> float:
    """The largest square of a monomial on a box `[2, d]`."""
    return float(monomial(domain.detach().double().abs().amax(0), powers) ** 2)
