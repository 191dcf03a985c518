"""The solve on a Fourier lattice: weights given data, at a cost an iteration that does not depend on how many data.

With f = Phi D w, D the amplitudes of the modes and Phi the modes at the data, the weights given y solve

    (I + D Phi* Lambda^-1 Phi D) u  =  w + D Phi* Lambda^-1 (y - eps),     Lambda the noise, eps a draw of it,

which is Matheron's rule in weight space. Phi* Lambda^-1 Phi is a Toeplitz matrix: its 2^d c numbers, and the
right-hand sides, are all that is left of the data (equispaced Fourier GPs, Greengard, Rachh and Barnett 2022). The
preconditioner is exact on the heaviest modes (the head), and diagonal on the others.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..nufft import adjoint_at, fast_size, padded_to
from .base import Operator, Solver, State, Stats
from .pcg import ConvergenceWarning

# Errors of the data's transforms, relative to their size: far below what the solve leaves.
_ACCURACY = 1e-9
# Right-hand sides iterated on together.
_ROWS = 16
# Beyond this ratio of a mode's information to its prior precision rounding spoils the Toeplitz matrix.
LARGEST_INFORMATION = 1e11
# Fewer data than this are solved for densely, with the exact kernel.
SMALLEST_ON_LATTICE = 3000
# An operation of an FFT, or of spreading, in those of a matrix product (measured on a CPU).
FFT_COST = 8.0


@dataclass(frozen=True)
class FourierLattice(Solver):
    """Conjugate gradients on a lattice's weights; `draw(..., domain=..., solver="lattice")`.

    Args:
        tolerance: where a path may stop, as the root mean square of its error in posterior standard deviations.
        head: how many weights the preconditioner factors densely; None is 4000 on a CPU and 12,000 on a GPU.
        max_iterations: then it stops, with a warning.

    >>> import torch, matheron
    >>> from matheron import kernels, solvers
    >>> X = torch.rand(5000, 1, dtype=torch.float64)
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X, torch.sin(9 * X[:, 0]), noise=0.01)
    >>> paths = matheron.draw(gp, 2, domain=(0, 1), solver=solvers.FourierLattice(tolerance=1e-3))
    >>> paths.solver_stats.converged
    True
    """

    tolerance: float = 0.01
    head: int | None = None
    max_iterations: int = 1000

    def init(self, operator: Operator) -> State:
        raise ValueError(
            'solver="lattice" solves for the weights of a lattice, of one output of an exact model with noise: give '
            "domain=(lower, upper), or use another solver"
        )

    def solve(self, state: State, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        raise TypeError('solver="lattice" has no state of its own')


@dataclass(frozen=True)
class Information:
    """What a lattice keeps of data: the Toeplitz matrix's generator, and D Phi* Lambda^-1 (y - eps) for each path.

    Both add over data.
    """

    generator: Tensor  # complex, [4 m_1 + 1, 4 m_2 + 1, ...]
    rhs: Tensor  # [r, c]

    def __add__(self, other: Information) -> Information:
        return Information(self.generator + other.generator, self.rhs + other.rhs)


def toeplitz_generator(basis: Any, X: Tensor, precision: Tensor) -> Tensor:
    """sum_n precision_n exp(-i theta_k . x_n) for the modes k from -2 m to 2 m: points `[n, d]` about the origin."""
    shape = [2 * n - 1 for n in basis.shape]
    weights = torch.complex(precision, torch.zeros_like(precision))[None]
    return adjoint_at(weights, basis.angles(X), shape, accuracy=_ACCURACY)[0]


def right_hand_side(basis: Any, X: Tensor, values: Tensor, precision: Tensor) -> Tensor:
    """D Phi* Lambda^-1 values: `[n, d], [r, n] -> [r, c]`."""
    return basis.adjoint(X, values * precision, accuracy=_ACCURACY) * basis.scales()


class System:
    """I + D T D on real weights `[r, c]`, and its preconditioner."""

    def __init__(self, basis: Any, generator: Tensor, head: int | None) -> None:
        self.basis, self.generator = basis, generator
        self.amplitudes = basis.scales()[0]  # [c]
        self.size = [fast_size(2 * n - 1) for n in basis.shape]
        self.spectrum = self._spectrum()
        total = float(generator.flatten()[generator.numel() // 2].real)  # sum of precisions
        share = torch.full_like(self.amplitudes, 0.5)
        share[-1] = 1.0
        self.information = self.amplitudes.square() * share * total  # [c]: data's, over the prior's
        largest = head or (12_000 if generator.is_cuda else 4000)
        order = self.information.argsort(descending=True)[: min(largest, len(self.information))]
        self.head = order[self.information[order] > 10].sort().values
        self.factor = torch.linalg.cholesky(self._dense(self.head)) if len(self.head) else None
        self.diagonal = 1 + self.information

    @property
    def effective_dimension(self) -> float:
        """How many weights the data determine."""
        return float((self.information / (1 + self.information)).sum())

    def _spectrum(self) -> Tensor:
        """The FFT of the generator, wrapped around; real, since the generator is its own conjugate mirrored."""
        T = self.generator
        for axis, (n, size) in enumerate(zip(T.shape, self.size, strict=True)):
            m = n // 2
            gap = list(T.shape)
            gap[axis] = size - n
            T = torch.cat([T.narrow(axis, m, m + 1), T.new_zeros(gap), T.narrow(axis, 0, m)], dim=axis)
        return torch.fft.fftn(T).real.contiguous()

    def product(self, W: Tensor) -> Tensor:
        """`[r, c] -> [r, c]`; two real rows share a complex transform."""
        r, axes = len(W), tuple(range(1, 1 + len(self.size)))
        F = self.basis.joined_coefficients(W * self.amplitudes)  # [r / 2, *shape]
        G = torch.fft.fftn(padded_to(F, self.size), dim=axes)
        G = torch.fft.ifftn(G.mul_(self.spectrum), dim=axes)
        for axis, n in zip(axes, self.basis.shape, strict=True):
            G = G.narrow(axis, 0, n)
        return torch.addcmul(W, self.basis.separated_adjoint(G, r), self.amplitudes)

    def precondition(self, R: Tensor) -> Tensor:
        Z = R / self.diagonal
        if self.factor is not None:
            Z[:, self.head] = torch.cholesky_solve(R[:, self.head].mT, self.factor).mT
        return Z

    def _dense(self, index: Tensor) -> Tensor:
        """The rows and columns `index` of the matrix: from T at the sums and differences of their modes."""
        h = self.basis.num_pairs
        kind = torch.where(index < h, 0, torch.where(index < 2 * h, 1, 0))  # cosines (and the constant), sines
        place = torch.where(index < 2 * h, index % max(h, 1) + h + 1, torch.full_like(index, h))
        j = self.basis.place_modes(place)  # [k, d]
        T = self.generator.flatten()
        shape = torch.tensor(self.generator.shape, device=T.device)
        minus = T[_flat(j[:, None] - j[None], shape)]  # [k, k]
        plus = T[_flat(j[:, None] + j[None], shape)]
        a, b = kind[:, None], kind[None]
        # sum cos cos, sin sin, cos sin over the data, of angles whose cosines sum to the generator's real part
        same = 0.5 * (minus.real + torch.where(a == 0, 1.0, -1.0) * plus.real)
        cross = 0.5 * (-plus.imag + torch.where(a == 0, 1.0, -1.0) * minus.imag)
        block = torch.where(a == b, same, cross) * self.amplitudes[index][:, None] * self.amplitudes[index]
        block.diagonal().add_(1)
        return block

    def solve(self, b: Tensor, guess: Tensor | None, settings: FourierLattice) -> tuple[Tensor, Stats]:
        """u for right-hand sides `[r, c]`.

        |phi(x) . e|^2 <= (phi^T M^-1 phi) (e^T M e): the error of a path in posterior standard deviations is at most
        sqrt(r^T M^-1 r), which the preconditioned residual estimates, and in the mean over the directions that the
        data determine it is that over the root of their number.
        """
        target = settings.tolerance**2 * max(1.0, 0.1 * self.effective_dimension)
        parts, iterations, worst = [], 0, 0.0
        for start in range(0, len(b), _ROWS):
            cut = slice(start, start + _ROWS)
            u, steps, left = self._descend(b[cut], None if guess is None else guess[cut], target, settings)
            parts.append(u)
            iterations, worst = max(iterations, steps), max(worst, left)
        converged = worst <= target
        if not converged:
            warnings.warn(
                f"the solve on the lattice stopped after {iterations} iterations at an estimated error of "
                f"{math.sqrt(worst / max(1.0, 0.1 * self.effective_dimension)):.1e} posterior standard deviations, not "
                f'{settings.tolerance:g}; give a larger head (solvers.FourierLattice(head=...)), or solver="cholesky"',
                ConvergenceWarning,
                stacklevel=4,
            )
        residual = math.sqrt(worst / max(1.0, 0.1 * self.effective_dimension))
        return torch.cat(parts), Stats(repr(settings), iterations, residual, converged)

    def _descend(
        self, b: Tensor, guess: Tensor | None, target: float, settings: FourierLattice
    ) -> tuple[Tensor, int, float]:
        u = self.precondition(b) if guess is None else guess.clone()
        residual = b - self.product(u)
        z = self.precondition(residual)
        p, rz = z.clone(), (residual * z).sum(1)  # [r]
        steps = 0
        while steps < settings.max_iterations and bool((rz > target).any()):
            Mp = self.product(p)
            curvature = (p * Mp).sum(1)
            step = torch.where(curvature > 0, rz / curvature.clamp_min(1e-300), 0.0)[:, None]
            u.addcmul_(step, p)
            residual.addcmul_(step, Mp, value=-1)
            z = self.precondition(residual)
            next_rz = (residual * z).sum(1)
            p.mul_((next_rz / rz.clamp_min(1e-300))[:, None]).add_(z)
            rz, steps = next_rz, steps + 1
        return u, steps, float(rz.max())


def worthwhile(basis: Any, noise: Tensor, n: int, s: int) -> bool:
    """Whether the lattice takes less time than a dense factor, by the operations of each; and can be solved at all."""
    a2 = basis.scales()[0].square()
    information = 0.5 * a2 * float((1 / noise.double()).sum())
    if float(information.max()) > 0.1 * LARGEST_INFORMATION:
        return False
    head = min(int((information > 10).sum()), 12_000 if noise.is_cuda else 4000)
    hard = int((information > 10).sum()) / max(1, head)  # modes that the head leaves to the iterations
    cells = math.prod(fast_size(2 * k - 1) for k in basis.shape)
    iterations = 30 * math.sqrt(hard)
    transforms = iterations * (s + 1) * 5 * cells * math.log2(max(2, cells)) * FFT_COST
    spread = (s + 2) * n * 10 ** len(basis.shape) * FFT_COST / 2
    return transforms + spread + head**3 / 3 + 2 * iterations * head**2 * (s + 1) < n**3 / 3 + 4 * n**2 * s


def _flat(j: Tensor, shape: Tensor) -> Tensor:
    """Places in a flattened box of the modes -m to m."""
    index = torch.zeros_like(j[..., 0])
    for axis, n in enumerate(shape.tolist()):
        index = index * n + j[..., axis] + n // 2
    return index
