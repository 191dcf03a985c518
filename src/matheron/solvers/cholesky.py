"""Dense Cholesky: factor once, solve for every path at once. Jitter is visible."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from ..core.checks import level_outside
from ..core.modes import transformed
from .base import Solver, State, Stats, floored
from .operator import Operator


class JitterWarning(UserWarning):
    """A covariance was not positive definite, and jitter was added to its diagonal."""


@dataclass(eq=False)
class CholeskyState(State):
    """The factor L L^T = K + diag(noise) + jitter I. `jitter` is the number that had to be added to the diagonal,
    usually zero.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> sites = Sites(torch.zeros(1, 1, dtype=torch.float64))
    >>> solvers.Cholesky().init(solvers.KernelOperator(kernels.RBF(), sites, torch.ones(1))).jitter
    0.0
    """

    solver: Cholesky
    operator: Operator
    L: Tensor
    jitter: float
    largest: float

    def lower(self, b: Tensor) -> Tensor:
        """L^-1 b for b `[n, r]`, in the dtype of b."""
        return solve_triangular(self.L, b.to(self.L), upper=False).to(b.dtype)

    def last_block(self, p: int) -> Tensor:
        """The last p rows and columns of L."""
        return self.L[-p:, -p:]

    def deviations(self, rows: Tensor) -> Tensor:
        return deviations_by(self.lower, self.operator, self.jitter, rows)


@dataclass(frozen=True, repr=False)
class Cholesky(Solver[CholeskyState]):
    """A dense factorisation, exact to rounding: n^2 numbers of memory and no more, n^3 / 3 multiplications.

    Data in float32 are factored in float64 if the condition number would leave too few correct digits.

    Args:
        keep: keep the factor with the paths, n^2 numbers (128 MiB at n = 4096 in float64). Then `condition_on` with few
            new observations extends the factor, at a cost of n^2 instead of n^3.

    >>> import torch, matheron
    >>> from matheron import kernels, solvers
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> matheron.draw(gp, 8, solver=solvers.Cholesky())
    Paths(8 paths in 1 dimension, given 3 observations; prior: 1024 by leverage)
    """

    shorthand: ClassVar[str] = "cholesky"
    mixed: ClassVar[bool] = True
    keep: bool = False

    def __repr__(self) -> str:
        return "Cholesky(keep=True)" if self.keep else "Cholesky()"

    def init(self, operator: Operator) -> CholeskyState:
        if self.keep and operator.requires_graph():
            raise ValueError('keep=True keeps no graph: draw with detach=True, or with solver="cholesky"')
        name, largest = "k(X, X) + noise", None
        if operator.dtype == torch.float64 or operator.requires_graph():
            K = operator.dense()
        else:
            K, largest = _in_enough_digits(operator, operator.trace())
        noise, magnitude = operator.noise.to(K.dtype), operator.magnitude(K)
        largest = float(magnitude.detach().sum()) if largest is None else largest
        if K.requires_grad or noise.requires_grad or transformed():
            L, jitter = safe_cholesky(K + noise.diag_embed(), name, magnitude)
            return CholeskyState(self, operator, L, jitter, largest)
        made = [K]
        del K  # its memory is used for the factor, or freed for a second attempt

        def attempt(jitter: float) -> tuple[Tensor, Tensor]:
            """Factor in place, in the memory of a matrix that is made anew for each attempt."""
            K = (made.pop() if made else operator.dense(noise.dtype)).mT  # column-major, as LAPACK requires
            K.diagonal().add_(noise)
            K.diagonal().add_(jitter)
            info = torch.empty((), dtype=torch.int32, device=K.device)
            return torch.linalg.cholesky_ex(K, out=(K, info))

        return CholeskyState(self, operator, *_with_jitter(attempt, name, magnitude), largest)

    def solve(self, state: CholeskyState, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        """Solve for all right-hand sides in one pass over the factor; the guess is not used."""
        return solved(state.L, b.to(state.L)).to(b.dtype), Stats(repr(self), jitter=state.jitter)


def solved(L: Tensor, b: Tensor) -> Tensor:
    """(L L^T)^-1 b for b `[n, r]`. torch.cholesky_solve is not used because it first copies L, which takes longer than
    the solve."""
    return solve_triangular(L.mT, solve_triangular(L, b, upper=False), upper=True)


def deviations_by(lower: Callable[[Tensor], Tensor], operator: Operator, jitter: float, rows: Tensor) -> Tensor:
    """sqrt(noise - noise^2 (K + noise)^-1_ii), the posterior deviation at some observations, by L^-1 of columns."""
    one = torch.zeros(operator.size, len(rows), dtype=torch.float64, device=rows.device)
    one[rows, torch.arange(len(rows), device=rows.device)] = 1
    noise = operator.noise[rows].double() + jitter
    return floored(noise * (1 - noise * lower(one).double().square().sum(0)), operator).sqrt()


def working_dtype(operator: Operator, largest: float) -> torch.dtype:
    """The dtype to factor in: float64 for float32 data where a float32 factor would keep fewer than two digits.

    `largest` bounds the eigenvalues of K + noise.
    """
    if operator.dtype == torch.float64 or operator.requires_graph():
        return operator.dtype
    kept = largest * torch.finfo(operator.dtype).eps <= 0.01 * float(operator.noise.min())
    return operator.dtype if kept else torch.float64


def _in_enough_digits(operator: Operator, trace: float, num_rows: int = 16) -> tuple[Tensor, float]:
    """K in the dtype in which it is factored, and a bound on the eigenvalues of K + noise. The bound is the trace, or a
    sharper one if the choice of the dtype needs it. `num_rows` of K may show early that float64 is needed; stopping
    there saves a quarter of the time (3,000 data in two dimensions)."""
    if working_dtype(operator, trace) == operator.dtype:
        return operator.dense(), trace
    some, noise = slice(None, None, -(-operator.size // num_rows)), float(operator.noise.max())
    typical = float(operator.rows(some).abs().sum(1).square().mean().sqrt())  # about |K 1| / |1|
    if working_dtype(operator, typical) == operator.dtype:
        K = operator.dense()
        largest = largest_eigenvalue(K) + noise
        if working_dtype(operator, largest) == operator.dtype:
            return K, largest
        del K  # so that there is only one matrix in memory
    return operator.dense(torch.float64), trace


def largest_eigenvalue(K: Tensor) -> float:
    """An upper bound on the largest eigenvalue (Collatz and Wielandt): the largest (|K| u)_i / u_i for u > 0. Here u
    are the row sums of |K|.

    It is usually less than 10% above the eigenvalue. The largest row sum is usually 50% above it.
    """
    # pieces of 64 rows, whose temporary copies fit in a cache
    u = torch.cat([rows.abs().sum(1) for rows in K.split(64)])
    u.clamp_min_(torch.finfo(u.dtype).tiny)
    return float((torch.cat([rows.abs() @ u for rows in K.split(64)]) / u).max())


def cholesky_solve(K: Tensor, b: Tensor, name: str) -> Tensor:
    """K^-1 b `[n, r]` for a dense matrix K `[n, n]`."""
    return solved(safe_cholesky(K, name)[0], b)


def safe_cholesky(K: Tensor, name: str, magnitude: Tensor | None = None) -> tuple[Tensor, float]:
    """Factor K `[n, n]`, first without jitter, then with 1e-10 of the mean of the diagonal, and ten times as much in
    each further attempt.

    With duplicate points, a factor can be finite and consist of rounding errors. A pivot below its rounding error
    therefore counts as a failure. If K is a difference of larger matrices, `magnitude [n]` is the diagonal of these, to
    which rounding errors are relative.

    >>> import torch
    >>> from matheron.solvers import safe_cholesky
    >>> safe_cholesky(4 * torch.eye(1), "K")
    (tensor([[2.]]), 0.0)
    """

    def attempt(jitter: float) -> tuple[Tensor, Tensor]:
        matrix = K if jitter == 0.0 else K + jitter * torch.eye(len(K), dtype=K.dtype, device=K.device)
        return torch.linalg.cholesky_ex(matrix)

    return _with_jitter(attempt, name, K.diagonal() if magnitude is None else magnitude)


def _with_jitter(
    attempt: Callable[[float], tuple[Tensor, Tensor]], name: str, magnitude: Tensor
) -> tuple[Tensor, float]:
    diagonal = magnitude.detach().double()
    scale, largest = float(diagonal.mean()), float(diagonal.max().clamp_min(0))
    jitter = 0.0
    for power in range(-11, 0):
        L, info = attempt(jitter)
        smallest_pivot = torch.finfo(L.dtype).eps * largest * 4
        if not bool(info) and float(L.detach().diagonal().square().min()) > smallest_pivot:
            if jitter:
                warnings.warn(
                    f"{name} is not positive definite in {str(L.dtype).split('.')[-1]}: added a jitter of {jitter:.1e} "
                    f"to its diagonal (mean {scale:.3g}), which counts as noise in the path; duplicate points without "
                    "noise are the usual cause",
                    JitterWarning,
                    stacklevel=level_outside(),
                )
            return L, jitter
        del L  # so that there is only one factor in memory
        jitter = scale * 10.0 ** (power + 1)
    raise ValueError(
        f"{name} is not positive definite even with a jitter of {jitter / 10:.1e}: check the kernel and data"
    )
