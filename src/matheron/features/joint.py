"""A lattice and explicit functions beside it (a constant, monomials, harmonics) as one basis that data are given on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel
from ..nufft import series_at
from .basis import Basis, Cosines, Pairs
from .features import Features
from .lattice import Lattice
from .products import Products

# Explicit functions beside a lattice at the most: each is a transform of the data, and a row of a dense matrix.
LARGEST_BESIDE = 512
# Differences of points that a covariance is computed at together.
_BLOCK = 1 << 22


class Joint:
    """f = sum_j a_j w_j phi_j over the c functions of a lattice, and then over e explicit ones: float64, at points
    `[n, d]` about the origin."""

    def __init__(self, lattice: Lattice, beside: list[Basis]) -> None:
        self.lattice = lattice.to(torch.float64)
        self.beside = [basis.to(torch.float64) for basis in beside]
        self.scales = self.lattice.scales()  # [1, c]
        self.all_scales = torch.cat([self.scales, *(basis.scales() for basis in self.beside)], dim=1)  # [1, c + e]

    @staticmethod
    def of(features: Features, kernel: Kernel) -> Joint | None:
        """None where the features are not one lattice and few functions that are the kernel's own, not random."""
        lattices = [basis for basis in features.bases if isinstance(basis, Lattice)]
        beside = [basis for basis in features.bases if not isinstance(basis, Lattice)]
        if len(lattices) != 1 or features.bases[0] is not lattices[0] or features.num_bases > 1:
            return None
        few = sum(basis.size for basis in beside) <= LARGEST_BESIDE
        exact = all(_explicit(basis) for basis in beside) and _has_variance(beside, kernel, len(features.origin))
        return Joint(lattices[0], beside) if few and exact else None

    @property
    def num_beside(self) -> int:
        return sum(basis.size for basis in self.beside)

    def columns(self, X: Tensor) -> Tensor:
        """The explicit functions, `[n, e]`."""
        parts = [(basis.values(X[None]) * basis.scales()[:, None])[0] for basis in self.beside]
        return torch.cat([X[:, :0], *parts], dim=1)

    def sums(self, X: Tensor, W: Tensor) -> Tensor:
        """`[n, d], [r, c + e] -> [r, n]`."""
        w, v = W.split([self.lattice.size, self.num_beside], dim=1)
        f = self.lattice.weighted(X[None], (w * self.scales)[None])[0]
        return f if not self.beside else f + v @ self.columns(X).mT

    def adjoint(self, X: Tensor, v: Tensor, accuracy: float | None = None) -> Tensor:
        """The transpose: `[n, d], [r, n] -> [r, c + e]`."""
        w = self.lattice.adjoint(X, v, accuracy) * self.scales
        return torch.cat([w, v @ self.columns(X)], dim=1)

    def covariance(self, X: Tensor) -> Tensor:
        """That of f at points, `[n, n]`: the lattice's series at their differences."""
        n, columns = len(X), self.columns(X)
        h = self.lattice.num_pairs
        cosines = self.scales.square().clone()
        cosines[:, h : 2 * h] = 0  # sum_j a_j^2 cos(theta_j . r): the sines' products are in it
        F = self.lattice.coefficients(cosines)
        K = columns @ columns.mT
        i, j = torch.tril_indices(n, n, device=X.device)
        for start in range(0, len(i), _BLOCK):
            a, b = i[start : start + _BLOCK], j[start : start + _BLOCK]
            k = series_at(F, self.lattice.angles(X[a] - X[b]))[0].real
            K[a, b] += k
            K[b, a] = K[a, b]
        return K


def _explicit(basis: Basis) -> bool:
    """Whether a basis has its kernel exactly: no products with random frequencies, no random signs."""
    if basis.num_bases > 1:
        return False
    if isinstance(basis, Products):
        one_hot = bool((basis.projections.count_nonzero(-1) == 1).all())
        return basis.fourier is None and one_hot
    if isinstance(basis, Cosines):
        return not bool(basis.frequencies.any())  # a constant: other cosines have random phases
    return isinstance(basis, Pairs)


def _has_variance(beside: list[Basis], kernel: Kernel, input_dim: int) -> bool:
    """Whether waves and constants hold the variance of the terms that repeat themselves, and of no others: those of
    other terms have random frequencies."""
    held = sum(float(basis.amplitudes.square().sum()) for basis in beside if isinstance(basis, Pairs | Cosines))
    exact = 0.0
    for term in kernel.terms(input_dim):
        if not term.forms and (not term.stationary or term.measure(input_dim).atoms() is not None):
            exact += float(term.variance.detach())
    return abs(held - exact) <= 1e-3 * exact
