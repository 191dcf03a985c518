"""Rows of weights of a lattice, two by two: real weights as coefficients of complex waves.

Scaled so that inner products stay the same. Transforms, products and preconditioners take them as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..nufft import as_complex, as_real

if TYPE_CHECKING:
    from ..features.joint import Joint, Planes  # which come later in the import order


def real_rows(Z: Tensor) -> Tensor:
    """Complex rows as real ones, a view: `[p, c] -> [p, 2 c]`. Products with real numbers are faster so."""
    return torch.view_as_real(Z).flatten(1)


def complex_rows(W: Tensor) -> Tensor:
    """The reverse."""
    return torch.view_as_complex(W.unflatten(1, (-1, 2)))


def packed(basis: Joint, W: Tensor) -> Tensor:
    """Real rows, two in each complex one, the lattice's in the order of its box: `[r, t c + e] -> [r / 2, ...]`."""
    w, v = W.split([W.shape[1] - basis.num_beside, basis.num_beside], dim=1)
    factor = _unitary(basis)
    parts = [basis.lattice.joined_coefficients(part).flatten(1) * factor for part in w.split(basis.size, dim=1)]
    return torch.cat([*parts, as_complex(v)], dim=1)


def unpacked(basis: Joint, Z: Tensor, r: int) -> Tensor:
    """The rows that `packed` joined: `[r / 2, t c + e] -> [r, t c + e]`."""
    z, v = Z.split([Z.shape[1] - basis.num_beside, basis.num_beside], dim=1)
    factor = _unitary(basis)
    parts = [basis.lattice.separated_adjoint(part * factor, r) for part in z.split(basis.size, dim=1)]
    return torch.cat([*parts, as_real(v, r)], dim=1)


def packed_planes(basis: Joint, dtype: torch.dtype) -> Planes:
    """L for packed rows that are seen as real ones, twice as long: `[2 c]`."""
    h, factor = basis.lattice.num_pairs, _unitary(basis)

    def boxed(plane: Tensor) -> Tensor:
        each = torch.cat([plane[:h].flip(0), plane[2 * h :], plane[:h]]) / factor
        return each.repeat_interleave(2).to(dtype)

    return [[None if plane is None else boxed(plane) for plane in row] for row in basis.planes]


def _unitary(basis: Joint) -> Tensor:
    factor = torch.full_like(basis.lattice.scales()[0], 2**0.5)
    factor[basis.lattice.num_pairs] = 1.0
    return factor
