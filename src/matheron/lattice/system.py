"""Rows of weights of a lattice, two by two: real weights as coefficients of complex waves.

Scaled so that inner products stay the same. Transforms, products and preconditioners take them as they are."""

from __future__ import annotations

import math
import warnings
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..core.convolution import convolved, fast_size
from ..core.nufft import FFT_COST, as_complex, as_real
from ..solvers.base import Stats
from ..solvers.cholesky import solved
from ..solvers.pcg import ConvergenceWarning

if TYPE_CHECKING:
    from .joint_basis import (
        Joint,
        Planes,  # which come later in the import order
    )


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


# The system that data are given by on a lattice: Toeplitz matrices, bordered by explicit functions; how it is
# solved.
#
# Real weights are kept two rows in a complex one. The system is real, and linear in these too, so
# that iterations need no other form: amplitudes, a convolution, amplitudes.


if TYPE_CHECKING:
    from .joint_basis import Joint  # which comes later in the import order
    from .solver import FourierLattice

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

    `generator` has those of the Toeplitz matrices Phi* Lambda^-1 Phi, one of each output's data. With E the explicit
    functions beside the lattice at the data, `cross` is E^T Lambda^-1 Phi D and `corner` E^T Lambda^-1 E. `rhs` has
    S^T Lambda^-1 (y - eps) for each path, S = (Phi D, E).
    """

    generator: Tensor  # complex, [t, 4 m_1 + 1, 4 m_2 + 1, ...]
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
        totals = [float(T.flatten()[T.numel() // 2].real) for T in self.generator]  # of precisions
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
                '(lattice.FourierLattice(head=...)), or solver="cholesky"',
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

    def to_single(self) -> _Operator:
        spectra = [spectrum.float() for spectrum in self.spectra]
        return _Operator(spectra, self.basis, self.cross.to(torch.complex64), self.corner.to(torch.complex64))

    def _convolved(self, V: list[Tensor]) -> list[Tensor]:
        """Coefficients of each output times its Toeplitz matrix: `[p, 2 c]` each."""
        shape = self.basis.lattice.shape
        each = [convolved(complex_rows(V_i).unflatten(1, shape), T) for V_i, T in zip(V, self.spectra, strict=True)]
        return [real_rows(G.flatten(1)) for G in each]

    def energies(self, Z: Tensor) -> Tensor:
        V = self.basis.mixed(real_rows(Z[:, : Z.shape[1] - len(self.corner)]), self.planes)
        return torch.stack([(V_i * G_i).sum() for V_i, G_i in zip(V, self._convolved(V), strict=True)])

    def __call__(self, Z: Tensor) -> Tensor:
        z, v = Z.split([Z.shape[1] - len(self.corner), len(self.corner)], dim=1)
        G = self._convolved(self.basis.mixed(real_rows(z), self.planes))
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


# Preconditioners of the solve on a lattice: exact on the heaviest weights, or in the space of few data.


if TYPE_CHECKING:
    from .joint_basis import Joint

    pass

# Ratios of the data's information to the prior's down to which weights may be in the head; and the iterations that each
# leaves, about (measured, uniform data): 28, 16, 10 and 6.
_RATIOS = (10.0, 3.0, 1.0, 0.3)


class Preconditioner(Protocol):
    def __call__(self, R: Tensor) -> Tensor:
        """About M^-1 R of packed rows (see `toeplitz`), `[p, t c + e]`."""
        ...


def largest_dense(cuda: bool) -> int:
    """Rows of a matrix that is factored for a preconditioner, at the most."""
    return 12_000 if cuda else 4000


def iterations_left(ratio: float) -> float:
    """About how many iterations there are where the head goes down to this ratio of information."""
    return 10 * ratio**0.45


def head_size(information: Tensor, rows: int, cells: int, limit: int) -> int:
    """How many of the heaviest weights are worth a dense factor, for this many right-hand sides and FFTs of `cells`."""
    fft = 5 * cells * math.log2(max(2, cells)) * FFT_COST
    best, least = 0, math.inf
    for ratio in _RATIOS:
        count = int((information > ratio).sum())
        k = min(count, limit)
        iterations = iterations_left(ratio) * math.sqrt(max(1.0, count / max(1, k)))
        cost = k**3 / 3 + iterations * rows * (2 * k**2 + fft)
        if cost < least:
            best, least = k, cost
    return best


class Head:
    """The exact Cholesky factor of the heaviest weights and of the explicit ones; the diagonal of the others."""

    def __init__(self, system: System, size: int) -> None:
        lattice, information = system.lattice, system.information
        h, e, device = lattice.num_pairs, len(system.corner), information.device
        each = information.view(-1, lattice.size)  # [t, c]
        once = torch.cat([each[:, :h], each[:, 2 * h :]], dim=1).flatten()  # a pair's cosine and sine have the same
        order = once.argsort(descending=True)[: (size + 1) // 2].sort().values
        r, q = order // (h + 1), order % (h + 1)
        pairs = q < h
        r, one, q = r[pairs], r[~pairs], q[pairs]
        index = torch.cat([r * lattice.size + q, r * lattice.size + h + q, one * lattice.size + 2 * h])
        block = dense_block(system, index)
        cross = system.cross[:, index]  # [e, k]
        corner = system.corner + torch.eye(e, dtype=block.dtype, device=device)
        block = torch.cat([torch.cat([block, cross.mT], dim=1), torch.cat([cross, corner], dim=1)])
        self.factor = torch.linalg.cholesky(block)
        # where packed rows have these: the waves j and -j of pairs, and constants and explicit functions
        self.up, self.down = r * lattice.size + h + 1 + q, r * lattice.size + h - 1 - q
        self.ones = torch.cat([one * lattice.size + h, torch.arange(e, device=device) + len(information)])
        boxed = torch.cat([each[:, :h].flip(1), each[:, 2 * h :], each[:, :h]], dim=1).flatten()
        self.diagonal = torch.cat([1 / (1 + boxed), boxed.new_ones(e)]).repeat_interleave(2)  # of M^-1

    def to_single(self) -> Head:
        """The same in single precision."""
        other = copy(self)
        other.factor, other.diagonal = self.factor.float(), self.diagonal.float()
        return other

    def __call__(self, R: Tensor) -> Tensor:
        Z = complex_rows(real_rows(R) * self.diagonal)
        if not len(self.factor):
            return Z
        up, down = R[:, self.up], R[:, self.down]
        # weights of cosines and of sines, a + i b for rows a and b
        W = torch.cat([(up + down) * 0.5**0.5, (up - down) * (1j * 0.5**0.5), R[:, self.ones]], dim=1)  # [p, k]
        columns = torch.view_as_real(W).movedim(0, 1)  # [k, p, 2]
        X = solved(self.factor, columns.flatten(1)).view(columns.shape).movedim(1, 0).contiguous()
        C, S, ones = torch.view_as_complex(X).split([up.shape[1], up.shape[1], len(self.ones)], dim=1)
        Z[:, self.up], Z[:, self.down] = (C - 1j * S) * 0.5**0.5, (C + 1j * S) * 0.5**0.5
        Z[:, self.ones] = ones
        return Z


class DataSpace:
    """M^-1 = I - S^T (S S^T + noise)^-1 S, with S the basis at few data: exact, but for rounding.

    S S^T, the prior's covariance at the data `[n, n]`, is factored densely: clusters and lines of data are no harder
    than others.
    """

    def __init__(self, basis: Joint, X: Tensor, precision: Tensor, tasks: Tensor | None = None) -> None:
        self.basis, self.X, self.tasks = basis, X, tasks
        self.factor = torch.linalg.cholesky(basis.covariance(X, tasks) + (1 / precision).diag())

    def __call__(self, R: Tensor) -> Tensor:
        rows = unpacked(self.basis, R, 2 * len(R))
        return R - packed(self.basis, self._weights(self.basis.sums(self.X, rows, self.tasks)))

    def given(self, w: Tensor, residual: Tensor) -> Tensor:
        """Weights w `[r, t c + e]` given values `[r, n]` with noise at the data: Matheron's rule."""
        return w + self._weights(residual - self.basis.sums(self.X, w, self.tasks))

    def _weights(self, v: Tensor) -> Tensor:
        return self.basis.adjoint(self.X, solved(self.factor, v.mT).mT.contiguous(), tasks=self.tasks)


def dense_block(system: System, index: Tensor) -> Tensor:
    """Rows and columns of M on the lattice's weights `index`: from generators at sums and differences of modes."""
    lattice, h = system.lattice, system.lattice.num_pairs
    p = index % lattice.size
    sines = (p >= h) & (p < 2 * h)  # the others are cosines, and the constant
    place, inverse = torch.where(p < 2 * h, p % max(h, 1) + h + 1, torch.full_like(p, h)).unique(return_inverse=True)
    j = lattice.place_modes(place)  # [m, d]
    flat = torch.zeros_like(place)  # a place in the flattened box is linear in the mode
    for axis, n in enumerate(system.generator.shape[1:]):
        flat = flat * n + j[:, axis]
    here = inverse + sines * len(place)
    zero = torch.zeros_like(system.information[: lattice.size])
    block = torch.zeros(len(index), len(index), dtype=torch.float64, device=index.device)
    planes = [torch.cat([zero if p is None else p for p in row])[index] for row in system.basis.planes]  # [k] each
    for T, plane in zip(system.generator.flatten(1), planes, strict=True):
        minus, plus = T[len(T) // 2 + flat[:, None] - flat], T[len(T) // 2 + flat[:, None] + flat]  # [m, m]
        # sums over the data of cos cos, cos sin, sin sin; the generator is that of exp(-i theta . x)
        cosines = torch.cat([minus.real + plus.real, minus.imag - plus.imag], dim=1)
        both = torch.cat([cosines, torch.cat([-minus.imag - plus.imag, minus.real - plus.real], dim=1)])  # [2 m, 2 m]
        block += both[here][:, here] * (0.5 * plane[:, None]) * plane
    block.diagonal().add_(1)
    return block
