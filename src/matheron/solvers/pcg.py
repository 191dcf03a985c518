"""Preconditioned conjugate gradients over a batch of right-hand sides; the covariance is never formed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.checks import level_outside
from ..kernels import coupled_covariance
from .base import Solver, State, Stats, floored
from .operator import KernelOperator, Operator
from .preconditioner import LowRank, default_rank
from .processes import Group, Processes

# One run of the recursion reduces residuals at most by these factors, before it starts again from the true residual.
# Beyond them, the residual of the recursion differs from the true one.
_REACH = {torch.float32: 1e-4, torch.float64: 1e-9}
# From this many data on, a product on a GPU takes longer than compiling one for fewer columns.
_LARGE_ON_GPU = 1 << 18


OnIteration = Callable[[int, float], None]


class ConvergenceWarning(UserWarning):
    """An iterative solver did not reach the accuracy that was requested."""


@dataclass(frozen=True)
class PCG(Solver["PCGState"]):
    """Conjugate gradients with a preconditioner of low rank: products with K, which is never formed.

    The preconditioner is a block randomly pivoted Cholesky factor of K. Products are computed in the data's dtype. The
    residual that decides convergence is the true one, computed in float64. If float32 products no longer reduce the
    error, float64 products continue.

    Args:
        tolerance: a path's error in posterior standard deviations, root mean square over points. A residual acts on a
            path as an error in the data's noise would, so it is measured in standard deviations of the noise. Twice its
            root mean square and a fifth of its largest entry must be below the tolerance. So must the error at the data
            that the preconditioner estimates from it. Noise counts as at least 1e-8 of the variance.
        rank: of the preconditioner; None is 20 sqrt(n), as far as 2 GB on a CPU or half of a GPU's memory hold it. The
            rank stays lower if the variance that is left to explain, summed over the data, falls below a tenth of the
            noise.
        max_iterations: it stops after this many, with a `ConvergenceWarning`.
        progress: show a progress bar.
        patience: iterations in float32 that may lower no error before float64 takes over.
        distributed: share the work among the processes of torch.distributed's default group. Every process calls `draw`
            with the same data and seed, and gets the same paths.

    >>> import matheron
    >>> from matheron import kernels, solvers
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X=[[0.0], [0.5], [1.0]], y=[0.0, 1.0, 0.0], noise=1e-4)
    >>> paths = matheron.draw(gp, 8, solver=solvers.PCG(tolerance=1e-3))
    >>> paths.solver_stats.converged
    True
    """

    shorthand: ClassVar[str] = "cg"
    mixed: ClassVar[bool] = True
    tolerance: float = 0.01
    rank: int | None = None
    max_iterations: int = 2000
    progress: bool = False
    distributed: bool = False
    patience: int = 200

    def init(self, operator: Operator) -> PCGState:
        if operator.requires_graph():
            raise ValueError('solver="cg" keeps no graph: use solver="cholesky" here')
        if self.distributed:
            if not isinstance(operator, KernelOperator):
                raise TypeError(f"{type(operator).__name__} cannot be shared among processes")
            operator = SharedOperator(operator, Group())
        rank = default_rank(operator) if self.rank is None else self.rank
        with torch.no_grad():
            return PCGState(self, operator, LowRank(operator, min(rank, operator.size)))

    @torch.no_grad()
    def solve(self, state: PCGState, b: Tensor, guess: Tensor | None = None) -> tuple[Tensor, Stats]:
        everyone, n = state.operator.processes, state.operator.size
        mine = everyone.part(n)
        with progress_bar(self.progress and everyone.rank == 0, "conjugate gradients", self.tolerance) as report:
            x, stats = _Solve(state, self, b[mine], report).run(None if guess is None else guess[mine])
        return everyone.gather(x, n), stats


class SharedOperator(Operator):
    """A process's rows of a KernelOperator. Every process has all of X; V is gathered for each product."""

    def __init__(self, whole: KernelOperator, processes: Processes) -> None:
        self.whole, self.processes, self.part = whole, processes, processes.part(whole.size)
        self.noise = whole.noise[self.part]

    @property
    def size(self) -> int:
        return self.whole.size

    def product(self, V: Tensor) -> Tensor:
        return self.whole.product_rows(self.part, self.processes.gather(V, self.size))

    def rows(self, index: Tensor | slice) -> Tensor:
        return coupled_covariance(self.whole.kernel, self.whole.sites[index], self.whole.sites[self.part])

    def diagonal(self) -> Tensor:
        return self.whole.diagonal()[self.part]

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        raise TypeError("an operator that processes share is never made dense")


class PCGState(State):
    """An operator and its preconditioner.

    >>> import torch
    >>> from matheron import Sites, kernels, solvers
    >>> sites = Sites(torch.zeros(1, 1, dtype=torch.float64))
    >>> state = solvers.PCG().init(solvers.KernelOperator(kernels.RBF(), sites, torch.ones(1)))
    >>> type(state).__name__
    'PCGState'
    """

    def __init__(self, solver: Solver, operator: Operator, preconditioner: LowRank) -> None:
        self.solver, self.operator, self.preconditioner = solver, operator, preconditioner

    def deviations(self, rows: Tensor) -> Tensor:
        """The posterior standard deviations that the preconditioner implies."""
        operator = self.operator
        variances = floored(operator.noise * self.preconditioner.posterior_share[:, 0], operator)
        return operator.processes.gather(variances, operator.size)[rows].sqrt()


class Errors:
    """The error that residuals `[n, r]` make in a path, in posterior standard deviations, `[r]`: see `PCG`.

    A residual with similar entries within a cluster of data does not act like independent noise. With a preconditioner
    P, the error at the data is therefore also estimated: residual - noise P^-1 residual, in the posterior standard
    deviations that P implies.
    """

    def __init__(self, operator: Operator, P: LowRank | None = None) -> None:
        self.size, self.everyone, self.P = operator.size, operator.processes, P
        self.noise = operator.noise.double()[:, None]
        self.scale = floored(operator.noise, operator).sqrt()[:, None]  # [n, 1]

    def __call__(self, residual: Tensor, z: Tensor | None = None) -> Tensor:
        """`z` is P^-1 residual, where it is known already."""
        scale = self.scale.to(residual.dtype)
        scaled = residual / scale
        found = torch.maximum(2 * self._rms(scaled), self.everyone.max(_largest(scaled)) / 5)
        if self.P is None:
            return found
        z = self.P(residual) if z is None else z
        at_data = torch.addcmul(residual, self.noise.to(z.dtype), z, value=-1)
        return torch.maximum(found, 2 * self._rms(at_data / (scale * self.P.posterior_share.to(z.dtype).sqrt())))

    def _rms(self, a: Tensor) -> Tensor:
        return (self.everyone.sum(a.square().sum(0, dtype=torch.float64)) / self.size).sqrt()


class _Solve:
    """One batch of right-hand sides `[n, r]`; x and its residual are in float64."""

    def __init__(self, state: PCGState, settings: PCG, b: Tensor, report: OnIteration) -> None:
        self.operator, self.precondition, self.settings = state.operator, state.preconditioner, settings
        self.b, self.dtype, self.report = b.double(), b.dtype, report
        self.everyone, self.errors = self.operator.processes, Errors(self.operator, self.precondition)
        self.iterations = 0

    def _dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner products, column by column, `[r]`, added up in float64."""
        return self.everyone.sum((a * b).sum(0, dtype=torch.float64))

    def run(self, guess: Tensor | None) -> tuple[Tensor, Stats]:
        tolerance, left = self.settings.tolerance, self.settings.max_iterations
        x, residual = torch.zeros_like(self.b), self.b
        if guess is not None:
            start = guess.to(self.dtype).double()
            trial = self.operator.residual(self.b, start)
            better = self.errors(trial) < self.errors(residual)
            x, residual = torch.where(better, start, x), torch.where(better, trial, residual)
        work, errors = self._first_dtype(), self.errors(residual)
        while self.iterations < left and bool((errors > tolerance).any()):
            open_ = (errors > tolerance).nonzero()[:, 0]
            step = self._descend(residual[:, open_].to(work), _REACH[work])
            # the solution in the dtype that is returned is the one whose error counts
            trial_x = (x[:, open_] + step).to(self.dtype).double()
            trial = self.operator.residual(self.b[:, open_], trial_x)
            trial_errors = self.errors(trial)
            better = trial_errors < errors[open_]  # NaN is not better
            x[:, open_] = torch.where(better, trial_x, x[:, open_])
            residual = residual.index_copy(1, open_, torch.where(better, trial, residual[:, open_]))
            progress = (trial_errors < 0.5 * errors[open_]) | (trial_errors <= tolerance)
            errors = self.errors(residual)
            if not bool(progress.any()):
                if work == torch.float64:
                    break
                work = torch.float64  # the limit is the rounding error of float32 products
        return x.to(self.dtype), self._stats(residual, errors)

    def _first_dtype(self) -> torch.dtype:
        """The operator's dtype, or float64 on a CPU if the condition number may leave no correct digits in float32.

        On a CPU a float64 product costs twice as much, and a tenth of the iterations are needed. On a GPU it would cost
        more.
        """
        operator = self.operator
        trace = self.everyone.sum(operator.magnitude().double().sum())
        least = -self.everyone.max(-operator.noise.double().amin() if len(operator.noise) else -trace)
        lost = torch.finfo(operator.dtype).eps * float(trace) > float(least)
        return torch.float64 if lost and operator.device.type == "cpu" else operator.dtype

    def _descend(self, b: Tensor, factor: float) -> Tensor:
        """Conjugate gradients from zero, until every residual has fallen to 0.9 of its target or by `factor`.

        A right-hand side stops if the curvature along its direction is lost to rounding. Finished columns leave the
        batch.
        """
        x = torch.zeros_like(b, dtype=torch.float64)
        columns = torch.arange(b.shape[1], device=b.device)
        p = z = self.precondition(b)
        errors = self.errors(b, z)
        target = torch.maximum(torch.full_like(errors, 0.9 * self.settings.tolerance), factor * errors)  # [r]
        noise = self.errors.noise.to(b.dtype)
        y, r = torch.zeros_like(b), b
        rz = self._dot(r, z)
        is_open = errors > target
        count = int(is_open.sum())
        least, since = float("inf"), self.iterations
        while self.iterations < self.settings.max_iterations and count:
            if self._may_leave(count, len(columns)):  # drop the columns that have converged
                x[:, columns] = y.double()
                keep = is_open.nonzero()[:, 0]
                columns, target, rz, is_open = columns[keep], target[keep], rz[keep], is_open[keep]
                y, r, p = y[:, keep], r[:, keep], p[:, keep]
            Ap = self.operator.product(p).addcmul_(noise, p)
            curvature = self._dot(p, Ap)
            is_open = is_open & (curvature > 0) & (rz > 0)
            step = torch.where(is_open, rz / torch.where(is_open, curvature, 1.0), 0.0).to(b.dtype)
            y, r = torch.addcmul(y, p, step), torch.addcmul(r, Ap, step, value=-1)
            z = self.precondition(r)
            rz_next = self._dot(r, z)
            p = torch.addcmul(z, p, torch.where(is_open, rz_next / torch.where(is_open, rz, 1.0), 0.0).to(b.dtype))
            rz = rz_next
            self.iterations += 1
            errors = self.errors(r, z)
            is_open = is_open & (errors > target)
            worst = torch.where(is_open, errors, 0.0).max()
            # one synchronisation with the GPU
            number, largest = torch.stack([is_open.sum().double(), worst.double()]).tolist()
            count = int(number)
            self.report(self.iterations, largest)
            if largest < least:
                least, since = largest, self.iterations
            elif b.dtype != torch.float64 and self.iterations - since >= self.settings.patience:
                break  # the limit is rounding, so float64 is used next
        x[:, columns] = y.double()
        return x

    def _may_leave(self, count: int, columns: int) -> bool:
        """Whether continuing with only `count` of the columns saves work.

        A GPU multiplies tiles of 64 columns, and compiles a kernel for each width. With few data, compiling takes as
        long as many products.
        """
        if self.b.is_cuda and self.operator.size < _LARGE_ON_GPU and -(-count // 64) == -(-(columns - 1) // 64):
            return False
        return count <= 0.75 * columns

    def _stats(self, residual: Tensor, errors: Tensor) -> Stats:
        tiny = torch.finfo(torch.float64).tiny
        relative = (self._dot(residual, residual) / self._dot(self.b, self.b).clamp_min(tiny)).sqrt()
        worst, error = float(relative.max()), float(errors.max())
        converged = error <= self.settings.tolerance
        name = f"PCG(tolerance={self.settings.tolerance:g}, rank={self.precondition.rank})"
        if not converged:
            advice = "raise rank or max_iterations"
            # otherwise rounding errors stopped the iterations
            if self.iterations < self.settings.max_iterations and self.dtype != torch.float64:
                advice = "rounding to float32 is the limit: draw(..., dtype=torch.float64)"
            warnings.warn(
                f"conjugate gradients stopped after {self.iterations} iterations at a relative residual of "
                f"{worst:.1e}, an error of {error:.1e} posterior standard deviations, above "
                f"the tolerance of {self.settings.tolerance:g}: the noise is small for this kernel; {advice}, or use "
                'solver="cholesky" if memory allows',
                ConvergenceWarning,
                stacklevel=level_outside(),
            )
        return Stats(name, self.iterations, worst, converged)


def _largest(a: Tensor) -> Tensor:
    """The largest entry of each column in absolute value, `[r]`; a process may have no rows."""
    return a.abs().amax(0) if len(a) else a.new_zeros(a.shape[1])


@contextmanager
def progress_bar(show: bool, title: str, tolerance: float) -> Iterator[OnIteration]:
    """A callback for each iteration and its largest error: a progress bar, in powers of ten, or nothing."""
    if not show:
        yield lambda iterations, error: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    from ..core.progress import progress_bar as shown

    columns = (TextColumn(title), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with shown(*columns) as bar:
        task, errors = bar.add_task("", total=1.0), [0.0]

        def report(iterations: int, error: float) -> None:
            errors[0] = max(errors[0], error)
            way = math.log(errors[0] / tolerance) if errors[0] > tolerance else 1.0
            done = 1 - math.log(max(error, tolerance) / tolerance) / way
            bar.update(task, completed=done, description=f"{iterations} iterations, error {error:.1e} (sd)")

        yield report
