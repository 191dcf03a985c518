"""The solve on a Fourier lattice: weights given data, at a cost per iteration that does not depend on how many data.

With f = Phi D w, D the amplitudes of the modes and Phi the modes at the data, the weights given y solve

    (I + D Phi* Lambda^-1 Phi D) u  =  w + D Phi* Lambda^-1 (y - eps),     Lambda the noise, eps a draw of it,

which is Matheron's rule in weight space. Phi* Lambda^-1 Phi is a Toeplitz matrix: its 2^d c numbers, and the
right-hand sides, are all that is left of the data (equispaced Fourier GPs, Greengard, Rachh and Barnett 2022).
Explicit functions of a kernel's other terms (a constant, monomials) are more columns of the same system. A datum is of
one output, so that each output has a Toeplitz matrix of its own; outputs meet in the roots L_j of the modes' couplings
(`joint_basis.Joint`), which take the place of D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..core.convolution import fast_size
from ..core.nufft import FFT_COST, adjoint_at
from ..models.means import Mean
from ..models.streamed import Chunk
from ..paths.prior import PriorPaths
from ..paths.update import Update
from ..solvers import Auto
from ..solvers.base import Operator, Solver, State, Stats
from .system import head_size, iterations_left, largest_dense

if TYPE_CHECKING:
    from .joint_basis import Joint  # which comes later in the import order

# Errors of the data's transforms, relative to their size: at the most, and at the least.
_ACCURACY, _FINEST = 1e-9, 1e-14
# Explicit functions that are transformed together.
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
    >>> from matheron import kernels, lattice
    >>> X = torch.rand(5000, 1, dtype=torch.float64)
    >>> gp = matheron.ExactGP(kernels.Matern(2.5, 0.2), X, torch.sin(9 * X[:, 0]), noise=0.01)
    >>> paths = matheron.draw(gp, 2, domain=(0, 1), solver=lattice.FourierLattice(tolerance=1e-3))
    >>> paths.solver_stats.converged
    True
    """

    shorthand: ClassVar[str] = "lattice"
    for_centres: ClassVar[bool] = False
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

    def condition(
        self, prior: PriorPaths, update: Update, mean: Mean, new: Chunk, generator: torch.Generator
    ) -> tuple[PriorPaths, Update]:
        """On the lattice; few data that are more precise than a rough prior's lattice are given exactly."""
        from .tail import can_condition_on_lattice
        from .update import LatticeUpdate, condition_on_lattice  # which come later in the import order

        if not isinstance(update, LatticeUpdate) and not can_condition_on_lattice(prior, update, new):
            return Auto().condition(prior, update, mean, new, generator)
        return condition_on_lattice(prior, update, mean, new, self, generator)


def rows_of(tasks: Tensor | None, num_outputs: int) -> list[Tensor] | list[slice]:
    """Which data are of each output."""
    return [slice(None)] if tasks is None else [(tasks == i).nonzero()[:, 0] for i in range(num_outputs)]


def accuracy_for(basis: Joint, precision: Tensor) -> float:
    """Of the data's transforms, relative to their size: errors far below one, the prior's precision."""
    largest = basis.largest_variance * float(precision.sum())
    return min(_ACCURACY, max(_FINEST, 1e-3 / max(largest, 1e-300)))


def information_of(
    basis: Joint, X: Tensor, precision: Tensor, tasks: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The generators, `cross` and `corner` of data at points `[n, d]` about the origin, of outputs `tasks`."""
    lattice, accuracy = basis.lattice, accuracy_for(basis, precision)
    shape, angles, weights = [2 * n - 1 for n in lattice.shape], lattice.angles(X), precision.to(torch.complex128)
    each = rows_of(tasks, basis.num_outputs)
    generators = [adjoint_at(weights[None, mine], angles[mine], shape, accuracy) for mine in each]
    columns = basis.columns(X, tasks)
    E = columns * precision[:, None]  # [n, e]
    cross = X.new_zeros(0, basis.num_outputs * lattice.size)
    if E.shape[1]:
        cross = torch.cat([basis.unmixed(basis.adjoints(X, rows, accuracy, tasks)) for rows in E.mT.split(_ROWS)])
    return torch.cat(generators), cross, E.mT @ columns


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
