"""The solve on a Fourier lattice: weights given data, at a cost an iteration that does not depend on how many data.

With f = Phi D w, D the amplitudes of the modes and Phi the modes at the data, the weights given y solve

    (I + D Phi* Lambda^-1 Phi D) u  =  w + D Phi* Lambda^-1 (y - eps),     Lambda the noise, eps a draw of it,

which is Matheron's rule in weight space. Phi* Lambda^-1 Phi is a Toeplitz matrix: its 2^d c numbers, and the
right-hand sides, are all that is left of the data (equispaced Fourier GPs, Greengard, Rachh and Barnett 2022).
Explicit functions of a kernel's other terms (a constant, monomials) are more columns of the same system. A datum is of
one output, so that each output has a Toeplitz matrix of its own; outputs meet in the roots L_j of the modes' couplings
(`features.Joint`), which take the place of D.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..nufft import adjoint_at, convolved, fast_size
from .base import Operator, Solver, State, Stats
from .lattice_preconditioner import FFT_COST, Head, Preconditioner, head_size, iterations_left, largest_dense
from .pcg import ConvergenceWarning

if TYPE_CHECKING:
    from ..features.joint import Joint  # which comes later in the import order

# Errors of the data's transforms, relative to their size: at the most, and at the least.
_ACCURACY, _FINEST = 1e-9, 1e-14
# Right-hand sides iterated on together.
_ROWS = 16
# Beyond this ratio of a mode's information to its prior precision rounding spoils the Toeplitz matrix.
LARGEST_INFORMATION = 1e11
# What the mean may err by on the lattice, in posterior standard deviations, before it is said, or solved for densely.
LARGEST_MEAN_ERROR = 0.1
# Fewer data than this, by dimension, are solved for densely, with the exact kernel: to size a lattice is what costs.
SMALLEST_ON_LATTICE = {1: 500, 2: 1000, 3: 1000}


@dataclass(frozen=True)
class FourierLattice(Solver[State]):
    """Conjugate gradients on a lattice's weights; `draw(..., domain=..., solver="lattice")`.

    Args:
        tolerance: where a path may stop, as the root mean square of its error in posterior standard deviations.
        head: how many weights the preconditioner factors densely at the most; None is 4000 on a CPU and 12,000 on a
            GPU.
        max_iterations: then it stops, with a warning.
        progress: show how far the data are read, where they come in chunks (`StreamedGP`).

    >>> import torch, matheron
    >>> from matheron import kernels, solvers
    >>> X = torch.rand(5000, 1, dtype=torch.float64)
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X, torch.sin(9 * X[:, 0]), noise=0.01)
    >>> paths = matheron.draw(gp, 2, domain=(0, 1), solver=solvers.FourierLattice(tolerance=1e-3))
    >>> paths.solver_stats.converged
    True
    """

    shorthand: ClassVar[str] = "lattice"
    tolerance: float = 0.01
    head: int | None = None
    max_iterations: int = 1000
    progress: bool = False

    def init(self, operator: Operator) -> State:
        raise ValueError(
            'solver="lattice" solves for the weights of a lattice, of an exact model with noise: give '
            "domain=(lower, upper), or use another solver"
        )

    def solve(self, state: State, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        raise TypeError('solver="lattice" has no state of its own')


@dataclass(frozen=True)
class Information:
    """What a lattice keeps of data: all of it adds over data.

    `generator` has those of the Toeplitz matrices Phi* Lambda^-1 Phi, one of each output's data; with E the explicit
    functions beside the lattice at the data, `cross` is E^T Lambda^-1 Phi D and `corner` E^T Lambda^-1 E. `rhs` has
    S^T Lambda^-1 (y - eps) for each path, S = (Phi D, E).
    """

    generator: Tensor  # complex, [t, 4 m_1 + 1, 4 m_2 + 1, ...]
    rhs: Tensor  # [r, t c + e]
    cross: Tensor  # [e, t c]
    corner: Tensor  # [e, e]

    def __add__(self, other: Information) -> Information:
        return Information(
            self.generator + other.generator,
            self.rhs + other.rhs,
            self.cross + other.cross,
            self.corner + other.corner,
        )


def rows_of(tasks: Tensor | None, num_outputs: int) -> list[Tensor] | list[slice]:
    """Which data are of each output."""
    return [slice(None)] if tasks is None else [(tasks == i).nonzero()[:, 0] for i in range(num_outputs)]


def accuracy_for(basis: Joint, precision: Tensor) -> float:
    """Of the data's transforms, relative to their size: errors far below one, the prior's precision."""
    largest = basis.largest_power * float(precision.sum())
    return min(_ACCURACY, max(_FINEST, 1e-3 / max(largest, 1e-300)))


def information_of(
    basis: Joint, X: Tensor, precision: Tensor, tasks: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The generators, `cross` and `corner` of data at points `[n, d]` about the origin, of outputs `tasks`."""
    lattice, accuracy = basis.lattice, accuracy_for(basis, precision)
    shape = [2 * n - 1 for n in lattice.shape]
    weights, angles = torch.complex(precision, torch.zeros_like(precision))[None], lattice.angles(X)
    each = rows_of(tasks, basis.num_outputs)
    generator = torch.cat([adjoint_at(weights[:, mine], angles[mine], shape, accuracy) for mine in each])
    columns = basis.columns(X, tasks)
    E = columns * precision[:, None]  # [n, e]
    cross = X.new_zeros(0, basis.num_outputs * lattice.size)
    if E.shape[1]:
        rows = [[lattice.adjoint(X[mine], v[:, mine], accuracy) for mine in each] for v in E.mT.split(_ROWS)]
        cross = torch.cat([basis.unmixed(some) for some in rows])
    return generator, cross, E.mT @ columns


def right_hand_side(basis: Joint, X: Tensor, values: Tensor, precision: Tensor, tasks: Tensor | None = None) -> Tensor:
    """S^T Lambda^-1 values: `[n, d], [r, n] -> [r, t c + e]`."""
    return basis.adjoint(X, values * precision, accuracy_for(basis, precision), tasks)


class MisfitWarning(UserWarning):
    """Data are far from anything that the prior expects."""


def mean_error(misfit: float | None, tolerance: float) -> float:
    """What the mean errs by at the most, in posterior standard deviations, as measured over many kernels and data.

    `misfit` is (y - mean)^T (K + noise)^-1 (y - mean) per datum: about one where the model holds.
    """
    return 0.0 if misfit is None else 20 * min(tolerance, 1e-3) * math.sqrt(max(0.0, misfit))


class System:
    """M = I + S^T Lambda^-1 S on real weights `[r, t c + e]`, S = (Phi L, E): Toeplitz matrices, bordered."""

    def __init__(self, basis: Joint, information: Information) -> None:
        self.basis, self.lattice = basis, basis.lattice
        self.generator, self.cross, self.corner = information.generator, information.cross, information.corner
        self.size = [fast_size(2 * n - 1) for n in self.lattice.shape]
        self.spectra = [self._spectrum(T) for T in self.generator]
        totals = [float(T.flatten()[T.numel() // 2].real) for T in self.generator]  # sums of precisions
        self.information = basis.information(totals)  # [t c]: data's, over the prior's

    def head(self, rows: int, size: int | None) -> Head:
        """The preconditioner that is exact on the heaviest weights, for so many right-hand sides."""
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

    def product(self, W: Tensor) -> Tensor:
        """`[r, t c + e] -> [r, t c + e]`; two real rows share a complex transform."""
        w, v = W.split([len(self.information), len(self.corner)], dim=1)
        G = [
            self.lattice.separated_adjoint(convolved(self.lattice.joined_coefficients(V), spectrum), len(W))
            for V, spectrum in zip(self.basis.mixed(w), self.spectra, strict=True)
        ]
        out = self.basis.unmixed(G, onto=w)
        if not len(self.corner):
            return out
        return torch.cat([out + v @ self.cross, v + v @ self.corner + w @ self.cross.mT], dim=1)

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
        parts, iterations, worst = [], 0, 0.0
        for start in range(0, len(b), _ROWS):
            cut = slice(start, start + _ROWS)
            u = precondition(b[cut]) if guess is None else guess[cut].clone()
            u, steps, left = self._descend(b[cut], u, target, precondition, settings.max_iterations)
            parts.append(u)
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

    def _descend(
        self, b: Tensor, u: Tensor, target: float, precondition: Preconditioner, most: int
    ) -> tuple[Tensor, int, float]:
        """Conjugate gradients from u: the weights, the iterations, and the largest preconditioned residual."""
        residual = b - self.product(u)
        z = precondition(residual)
        p, rz = z.clone(), (residual * z).sum(1)  # [r]
        steps = 0
        while steps < most and bool((rz > target).any()):
            Mp = self.product(p)
            curvature = (p * Mp).sum(1)
            step = torch.where(curvature > 0, rz / curvature.clamp_min(1e-300), 0.0)[:, None]
            u.addcmul_(step, p)
            residual.addcmul_(step, Mp, value=-1)
            z = precondition(residual)
            next_rz = (residual * z).sum(1)
            p.mul_((next_rz / rz.clamp_min(1e-300))[:, None]).add_(z)
            rz, steps = next_rz, steps + 1
        return u, steps, float(rz.max())


def dense_cost(n: int, s: int) -> float:
    """Operations of a dense solve: covariances, the factor, and right-hand sides."""
    return 150 * n**2 + n**3 / 3 + 4 * n**2 * s


def largest_worthwhile(n: int, s: int, d: int, t: int) -> int:
    """Modes beyond which a few transforms alone take longer than a dense solve."""
    return int(dense_cost(n, s) / (5 * (s + 1) * 5 * 20 * FFT_COST)) // (2**d * t)


def worthwhile(basis: Joint, noise: Tensor, s: int, tasks: Tensor | None = None) -> bool:
    """Whether the lattice takes less time than a dense factor, by the operations of each; and can be solved at all."""
    n, t, precision = len(noise), basis.num_outputs, 1 / noise.double()
    information = basis.information([float(precision[mine].sum()) for mine in rows_of(tasks, t)])
    if float(information.max()) > 0.1 * LARGEST_INFORMATION:
        return False
    limit, shape = largest_dense(noise.is_cuda), basis.lattice.shape
    if n <= min(limit, int((information > 0.1).sum())):  # a dense factor, of the lattice's covariance, in any case
        return False
    cells = t * math.prod(fast_size(2 * k - 1) for k in shape)
    head = head_size(information, s + 1, cells, limit)
    lightest = float(information.sort(descending=True).values[max(0, head - 1)])
    iterations = iterations_left(max(lightest, 0.3)) + 3
    transforms = iterations * (s + 1) * (4 * cells * math.log2(max(2, cells)) * FFT_COST + 2 * head**2)
    spread = (s + 2 + basis.num_beside) * n * 10 ** len(shape) * FFT_COST / 2
    return transforms + spread + head**3 / 3 < dense_cost(n, s)
