"""UpdatePaths: what data adds to a prior path, in function space."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..core.value import Value, in_own_memory
from ..evaluate import Canonical, PathTerm, WeightedSum, Wide, sum_of
from ..kernels import Kernel
from ..solvers import Factor, Solver, Stats


class Inducing(Value):
    """A sparse posterior's own update: weights v `[s, m]` and their mean `[m]` on k(., Z), and a root of Cov f(Z).

    The last two are None where q(u) is known by its draws alone.
    """

    shapes = "v: s m, v_mean: m, root: m r, jitter:"

    def check(self) -> None:
        if (self.v_mean is None) != (self.root is None):
            raise ValueError("Inducing: expected a mean and a root of the covariance, or neither")

    def __init__(self, v: Tensor, v_mean: Tensor | None, root: Tensor | None, jitter: Tensor) -> None:
        super().__init__(v=v, v_mean=v_mean, root=root, jitter=jitter)

    def __getitem__(self, index: Tensor) -> Inducing:
        return self.replaced(v=self.v[index])


class UpdatePaths(Value):
    """sum_j v_j k(., z_j): centres `[c, d]` and weights v `[s, c]`, and all that more data needs.

    The centres are the m inducing points of a sparse model (none for an exact one), then the n observations y `[n]` or
    `[s, n]`, whose noise in each path is sqrt(noise) xi, xi `[s, n]`. v_mean `[1 or s, c]` gives the mean. `folded
    [s, c]`, where there are such, are weights for the kernel of the lattice that the prior is on, and then evaluators
    see no centres (`compress_update.py`). Weights are in float64 where the dtype of the centres has too few digits for
    their sums (`precision.py`).
    """

    shapes = "centres: c d, tasks: c, v: s c, v_mean: r c, noise: n, xi: s n, folded: s c"

    def check(self) -> None:
        s, c, n, t = *self.v.shape, len(self.noise), self.kernel.num_outputs
        self.kernel.terms(self.centres.shape[1])  # says whether it fits the dimensions
        keeps = (
            n + self.num_inducing == 0 and self.v_mean is None
        )  # values that refreshed paths keep, which are not data
        if self.y.shape not in ((n,), (s, n)) or self.xi is None or not (keeps or n + self.num_inducing == c):
            raise ValueError(
                f"UpdatePaths: expected targets of {n} observations, and a centre for each of these and of "
                f"{self.num_inducing} inducing points, got {list(self.y.shape)} and {c}"
            )
        for parts in ((self.centres, self.y, self.noise, self.xi), (self.v, self.v_mean)):
            dtypes = {tensor.dtype for tensor in parts if tensor is not None}
            if len(dtypes) > 1:
                raise ValueError(f"UpdatePaths: expected tensors of one dtype, got {sorted(map(str, dtypes))}")
        known = not keeps and (self.inducing is None or self.inducing.v_mean is not None)
        rows = 0 if self.v_mean is None else len(self.v_mean)
        if rows != ((1 if self.y.ndim == 1 else s) if known else 0):
            raise ValueError("UpdatePaths: expected a mean, one per path where each has its own targets")
        if (self.tasks is None) != (t == 1):
            raise ValueError(f"UpdatePaths: expected tasks for a kernel of {t} outputs, and for no other")
        if self.tasks is not None and bool(((self.tasks < 0) | (self.tasks >= t)).any()):
            raise ValueError(f"UpdatePaths: expected tasks below {t}")
        if self.factor is not None and self.factor.size != n:
            raise ValueError(f"UpdatePaths: expected a factor of {n} observations, got one of {self.factor.size}")
        if self.inducing is not None and (len(self.inducing.v) != s or self.inducing.v.shape[1] > c):
            raise ValueError("UpdatePaths: expected the inducing points' weights of as many paths")

    # What has a row per path; and, where each path has its own targets, what else has.
    of_paths: ClassVar = ("v", "xi", "folded", "inducing")
    of_posteriors: ClassVar = ("v_mean", "y")
    keeps_data: ClassVar[bool] = True  # so that other functions can be given the same
    solver_stats: Stats | None = None  # how the weights were solved for; files do not keep it

    def __init__(
        self,
        kernel: Kernel,
        centres: Tensor,
        tasks: Tensor | None,
        v: Tensor,
        v_mean: Tensor | None,
        *,
        inducing: Inducing | None = None,
        y: Tensor | None = None,
        noise: Tensor | None = None,
        xi: Tensor | None = None,
        solver_stats: Stats | None = None,
        factor: Factor | None = None,
        folded: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_module("factor", factor)
        self.kernel = kernel
        self.solver_stats = solver_stats
        self.register_module("inducing", inducing)
        empty = centres.new_zeros(0)
        y, noise, xi = empty if y is None else y, empty if noise is None else noise, v[:, :0] if xi is None else xi
        folded = None if folded is None else folded.to(v.dtype)
        buffers = dict(centres=centres, tasks=tasks, v=v, v_mean=v_mean, y=y, noise=noise, xi=xi, folded=folded)
        for name, value in buffers.items():
            self.register_buffer(name, None if value is None else in_own_memory(value))

    @classmethod
    def empty(cls, kernel: Kernel, like: Tensor, s: int) -> Self:
        """The update of s paths that are given no data yet, of the dtype and on the device of points `[*, d]`."""
        tasks = None if kernel.num_outputs == 1 else torch.zeros(0, dtype=torch.long, device=like.device)
        return cls(kernel.to(like.device, like.dtype), like[:0], tasks, like.new_zeros(s, 0), like.new_zeros(1, 0))

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `fn` applied to every tensor. Weights that need float64 beside centres in float32 keep it where
        the centres' dtype stays the same: `.to(torch.float32)` changes nothing."""
        new = super().mapped(fn)
        if new.v.dtype != self.v.dtype and new.centres.dtype == self.centres.dtype:
            pairs = [(self, new)] if self.inducing is None else [(self, new), (self.inducing, new.inducing)]
            for name, (old, moved) in product(("v", "v_mean"), pairs):
                weights = old._buffers[name]
                moved._buffers[name] = None if weights is None else weights.to(new.v.device)
        return new

    @property
    def weights(self) -> Tensor:
        """v: `[s, c]`."""
        return self.v

    @property
    def num_inducing(self) -> int:
        return 0 if self.inducing is None else self.inducing.v.shape[1]

    @property
    def num_data(self) -> int:
        """n, the observations that the paths are given."""
        return len(self.noise)

    @property
    def num_centres(self) -> int:
        return self.centres.shape[0]

    def next_solver(self, solver: Solver) -> Solver:
        """The solver by which these paths are given more data, where this one is asked for."""
        return solver

    def __getitem__(self, index: Tensor) -> Self:
        names = [*self.of_paths, *(self.of_posteriors if self.y.ndim == 2 else ())]
        rows = {name: getattr(self, name)[index] for name in names if getattr(self, name) is not None}
        return self.replaced(**rows)

    def terms(self, v: Tensor | None = None) -> list[PathTerm]:
        """What evaluators sum: a weighted sum of k(., z_j) per coupled kernel; with other weights where v is given."""
        if self.num_centres == 0:
            return []
        weights: Tensor = self.v if v is None else v
        kernel, centres = self.kernel, self.centres
        wide = weights.dtype != centres.dtype  # `precision.py`
        if wide:
            kernel, centres = kernel.to(weights.dtype), centres.to(weights.dtype)
        terms = [WeightedSum(Canonical(k, centres), self._coupled_weights(B, weights)) for B, k in kernel.coupled()]
        return [Wide(term) if wide else term for term in terms]

    def sums(self, x: Tensor) -> Tensor | None:
        """The updates at inner points `[1, n, d]`: `[s, t, n]`; None without centres."""
        return sum_of(self.terms(), x)

    def _coupled_weights(self, B: Tensor | None, v: Tensor) -> Tensor:
        """The weights of one coupled kernel for each output, B[i, task_j] v_j: `[s, t, c]`."""
        if self.tasks is None:
            return v[:, None]
        if B is None:
            return v[:, None].expand(-1, self.kernel.num_outputs, -1)
        return v[:, None] * B[:, self.tasks]
