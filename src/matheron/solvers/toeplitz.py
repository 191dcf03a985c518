"""The system that data are given by on a lattice: Toeplitz matrices, bordered by explicit functions; how it is solved.

Real weights are kept two rows in a complex one (`lattice_rows`). The system is real, and linear in these too, so that
iterations need no other form: amplitudes, a convolution, amplitudes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..convolution import convolved, fast_size
from .base import Stats
from .lattice_preconditioner import Head, Preconditioner, head_size, largest_dense
from .lattice_rows import complex_rows, packed, packed_planes, real_rows, unpacked
from .pcg import ConvergenceWarning

if TYPE_CHECKING:
    from ..features.joint import Joint  # which comes later in the import order
    from .lattice import FourierLattice

# Right-hand sides iterated on together.
_ROWS = 32
# Iterations are in single precision where transforms have this many numbers at the least, and the data's information
# is at most this many times the prior's; residuals are in double precision, and corrected by a second solve.
_SINGLE_FROM, _LARGEST_IN_SINGLE = 1 << 14, 1e7
# A pass in single precision that reduces the squared error by less than this is the last one.
_PROGRESS = 0.1


@dataclass(frozen=True)
class Information:
    """What a lattice keeps of data: all of it adds over data.

    `generator` has those of the Toeplitz matrices Phi* h_e Lambda^-1 h_f Phi, one of each output's data for each pair
    of monomials (`Joint.pairs`; most often one pair, 1 and 1). With E the explicit functions beside the lattice at the
    data, `cross` is E^T Lambda^-1 Phi D and `corner` E^T Lambda^-1 E. `rhs` has S^T Lambda^-1 (y - eps) for each path,
    S = (Phi D, E).
    """

    generator: Tensor  # complex, [pairs, 4 m_1 + 1, 4 m_2 + 1, ...]
    rhs: Tensor  # [r, t c + e]
    cross: Tensor  # [e, t c]
    corner: Tensor  # [e, e]

    def __add__(self, other: Information) -> Information:
        return Information(*map(torch.add, vars(self).values(), vars(other).values()))

    def to(self, dtype: torch.dtype) -> Information:
        """The same in another precision."""
        parts = vars(self).values()
        return Information(*(part.to(dtype.to_complex() if part.is_complex() else dtype) for part in parts))


class System:
    """M = I + S^T Lambda^-1 S on real weights `[r, t c + e]`, S = (Phi L, E): Toeplitz matrices, bordered."""

    def __init__(self, basis: Joint, information: Information) -> None:
        self.basis, self.lattice = basis, basis.lattice
        self.generator, self.cross, self.corner = information.generator, information.cross, information.corner
        self.size = [fast_size(2 * n - 1) for n in self.lattice.shape]
        of = zip(basis.pairs, self.generator, strict=True)
        sums = {a: float(T.flatten()[T.numel() // 2].real) for (a, b), T in of if a == b}  # of precisions
        totals = [sums[a] for a in range(basis.num_channels)]
        self.information = basis.information(totals)  # [t c]: data's, over the prior's
        self._double = _Operator(
            [self._spectrum(T) for T in self.generator], basis, self._packed_cross(), self.corner.to(torch.complex128)
        )

    def head(self, rows: int, size: int | None) -> Head:
        """The preconditioner that is exact on the heaviest weights, for this many right-hand sides."""
        limit = size or largest_dense(self.generator.is_cuda)
        return Head(self, head_size(self.information, rows, math.prod(self.size), limit))

    @property
    def effective_dimension(self) -> float:
        """How many weights the data determine."""
        return float((self.information / (1 + self.information)).sum()) + len(self.corner)

    def _spectrum(self, T: Tensor) -> Tensor:
        """The FFT of a generator, wrapped around; real, since the generator is its own conjugate mirrored."""
        for axis, (n, size) in enumerate(zip(T.shape, self.size, strict=True)):
            m = n // 2
            gap = list(T.shape)
            gap[axis] = size - n
            T = torch.cat([T.narrow(axis, m, m + 1), T.new_zeros(gap), T.narrow(axis, 0, m)], dim=axis)
        return torch.fft.fftn(T).real.contiguous()

    def _packed_cross(self) -> Tensor:
        """`cross`, each row by itself: `[e, t c]`, complex."""
        if not len(self.cross):
            return self.cross.to(torch.complex128)
        rows = torch.stack([self.cross, torch.zeros_like(self.cross)], dim=1).flatten(0, 1)  # each with a row of zeros
        rows = torch.cat([rows, rows.new_zeros(len(rows), len(self.corner))], dim=1)
        return packed(self.basis, rows)[:, : self.cross.shape[1]]

    def product(self, W: Tensor) -> Tensor:
        """`[r, t c + e] -> [r, t c + e]`."""
        return unpacked(self.basis, self._double(packed(self.basis, W)), len(W))

    def energies(self, W: Tensor) -> Tensor:
        """w^T S_i^T Lambda^-1 S_i w of each output's data, of the lattice's weights alone, summed over rows
        `[r, t c + e]`: `[t]`."""
        return self._double.energies(packed(self.basis, W))

    def misfit(self, energy: Tensor, b: Tensor, u: Tensor) -> float:
        """(y - mean)^T (K + noise)^-1 (y - mean), the largest of several y's.

        With energy `[r]` = y^T Lambda^-1 y it is energy - b^T M^-1 b; errors of u `[r, t c + e]` count by the square.
        """
        return float((energy + ((self.product(u) - 2 * b) * u).sum(1)).max())

    def solve(
        self, b: Tensor, guess: Tensor | None, precondition: Preconditioner, settings: FourierLattice
    ) -> tuple[Tensor, Stats]:
        """u for right-hand sides `[r, t c + e]`.

        |phi(x) . e|^2 <= (phi^T M^-1 phi) (e^T M e): the error of a path in posterior standard deviations is at most
        sqrt(r^T M^-1 r), which the preconditioned residual estimates, and in the mean over the directions that the
        data determine it is that over the root of their number.
        """
        directions = max(1.0, 0.1 * self.effective_dimension)
        target = settings.tolerance**2 * directions
        single = None
        if isinstance(precondition, Head) and self._suits_single():
            single = (self._double.to_single(), precondition.to_single())
        parts, iterations, worst = [], 0, 0.0
        for start in range(0, len(b), _ROWS):
            rows = b[start : start + _ROWS]
            first = None if guess is None else packed(self.basis, guess[start : start + _ROWS])
            right = packed(self.basis, rows)
            u, steps, left = self._refined(right, first, target, precondition, single, settings.max_iterations)
            parts.append(unpacked(self.basis, u, len(rows)))
            iterations, worst = max(iterations, steps), max(worst, left)
        converged, residual = worst <= target, math.sqrt(max(0.0, worst) / directions)
        if not converged:
            warnings.warn(
                f"the solve on the lattice stopped after {iterations} iterations at an estimated error of "
                f"{residual:.1e} posterior standard deviations, not {settings.tolerance:g}; give a larger head "
                '(solvers.FourierLattice(head=...)), or solver="cholesky"',
                ConvergenceWarning,
                stacklevel=4,
            )
        return torch.cat(parts), Stats(repr(settings), iterations, residual, converged)

    def _suits_single(self) -> bool:
        large = math.prod(self.size) >= _SINGLE_FROM
        return large and float(self.information.max()) <= _LARGEST_IN_SINGLE

    def _refined(
        self,
        b: Tensor,
        u: Tensor | None,
        target: float,
        precondition: Preconditioner,
        single: tuple[_Operator, Head] | None,
        most: int,
    ) -> tuple[Tensor, int, float]:
        """The solution for packed rows b from u, the iterations, and the largest preconditioned residual."""
        residual = b if u is None else b - self._double(u)
        u, before, steps = torch.zeros_like(b) if u is None else u, math.inf, 0
        while single is not None and steps < most:
            left = float(_inner(residual, precondition(residual)).max())
            if left <= target:
                return u, steps, left
            if left > _PROGRESS * before:  # single precision has no more digits
                break
            change, more, _ = descend(*single, residual.to(torch.complex64), 0.5 * target, most - steps)
            u = u + change
            residual, before, steps = b - self._double(u), left, steps + more
        change, more, left = descend(self._double, precondition, residual, target, most - steps)
        return u + change, steps + more, left


class _Operator:
    """M on packed rows `[p, t c + e]`, in one precision."""

    def __init__(self, spectra: list[Tensor], basis: Joint, cross: Tensor, corner: Tensor) -> None:
        self.spectra, self.basis, self.cross, self.corner = spectra, basis, cross, corner
        self.planes = packed_planes(basis, spectra[0].dtype)
        of = {pair: spectrum for pair, spectrum in zip(basis.pairs, spectra, strict=True)}
        of |= {(b, a): spectrum for (a, b), spectrum in of.items()}
        # the channels of each output, and the matrix of their spectra
        each = [range(i, basis.num_channels, basis.num_outputs) for i in range(basis.num_outputs)]
        self.outputs = [(some, [[of[a, b] for b in some] for a in some]) for some in each]

    def to_single(self) -> _Operator:
        spectra = [spectrum.float() for spectrum in self.spectra]
        return _Operator(spectra, self.basis, self.cross.to(torch.complex64), self.corner.to(torch.complex64))

    def _convolved(self, V: list[Tensor]) -> Iterator[tuple[range, list[Tensor]]]:
        """The channels of each output, and these times their Toeplitz matrices: `[p, 2 c]` each."""
        for channels, spectra in self.outputs:
            F = [complex_rows(V[a]).unflatten(1, self.basis.lattice.shape) for a in channels]
            yield channels, [real_rows(G.flatten(1)) for G in convolved(F, spectra)]

    def energies(self, Z: Tensor) -> Tensor:
        V = self.basis.mixed(real_rows(Z[:, : Z.shape[1] - len(self.corner)]), self.planes)
        zero = V[0].new_zeros(())
        return torch.stack(
            [sum(((V[a] * G).sum() for a, G in zip(*some, strict=True)), start=zero) for some in self._convolved(V)]
        )

    def __call__(self, Z: Tensor) -> Tensor:
        z, v = Z.split([Z.shape[1] - len(self.corner), len(self.corner)], dim=1)
        G = self.basis.mixed(real_rows(z), self.planes)
        for channels, sums in self._convolved(G):
            for a, sum_a in zip(channels, sums, strict=True):
                G[a] = sum_a
        out = complex_rows(self.basis.unmixed(G, self.planes, onto=real_rows(z)))
        if not len(self.corner):
            return out
        return torch.cat([out + v @ self.cross, v + v @ self.corner + z @ self.cross.mH], dim=1)


def descend(
    operator: _Operator, precondition: Preconditioner, b: Tensor, target: float, most: int
) -> tuple[Tensor, int, float]:
    """Conjugate gradients for packed rows b `[p, t c + e]`: the solution, the iterations, and the largest
    preconditioned residual. Two real rows that are packed as one are solved for as one."""
    u, residual = torch.zeros_like(b), b.clone()
    z = precondition(residual)
    p, rz = z.clone(), _inner(residual, z)  # [p]
    steps = 0
    while steps < most and bool((rz > target).any()):
        Mp = operator(p)
        curvature = _inner(p, Mp)
        step = torch.where(curvature > 0, rz / curvature.clamp_min(1e-30), 0.0)[:, None]
        real_rows(u).addcmul_(step, real_rows(p))
        real_rows(residual).addcmul_(step, real_rows(Mp), value=-1)
        z = precondition(residual)
        next_rz = _inner(residual, z)
        real_rows(p).mul_((next_rz / rz.clamp_min(1e-30))[:, None]).add_(real_rows(z))
        rz, steps = next_rz, steps + 1
    return u, steps, float(rz.max())


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """The real inner products of packed rows, `[p]`."""
    return torch.stack([torch.dot(x, y) for x, y in zip(real_rows(a), real_rows(b), strict=True)])
