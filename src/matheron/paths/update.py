"""UpdatePaths: what data adds to a prior path, in function space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from ..features import Canonical
from ..kernels import Kernel
from ..scratch import frame
from ..solvers import Factor, Stats
from ..value import Value
from ..weigh import add
from .sums import split_rows


class Inducing(Value):
    """A sparse posterior's own update: weights v `[s, m]` and their mean `[m]` on k(., Z), and a root of Cov f(Z).

    The last two are None where q(u) is known by its draws alone.
    """

    def __init__(self, v: Tensor, v_mean: Tensor | None, root: Tensor | None, jitter: Tensor) -> None:
        super().__init__()
        for name, value in dict(v=v, v_mean=v_mean, root=root, jitter=jitter).items():
            self.register_buffer(name, value)

    def __getitem__(self, index: Tensor) -> Inducing:
        return Inducing(self.v[index], self.v_mean, self.root, self.jitter)


class UpdatePaths(Value):
    """sum_j v_j k(., z_j): centres `[c, d]` and weights v `[s, c]`, and all that more data needs.

    The centres are the m inducing points of a sparse model (none for an exact one), then the n observations y `[n]` or
    `[s, n]`, whose noise in each path is sqrt(noise) xi, xi `[s, n]`. v_mean `[1 or s, c]` gives the mean.
    """

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
    ) -> None:
        super().__init__()
        self.register_module("factor", factor)
        self.kernel = kernel
        self.solver_stats = solver_stats
        self.register_module("inducing", inducing)
        empty = centres.new_zeros(0)
        y, noise, xi = empty if y is None else y, empty if noise is None else noise, v[:, :0] if xi is None else xi
        for name, value in dict(centres=centres, tasks=tasks, v=v, v_mean=v_mean, y=y, noise=noise, xi=xi).items():
            self.register_buffer(name, value)
        self.restore()

    def restore(self) -> None:
        """What follows from the buffers: the canonical bases, one a coupled kernel."""
        if "factor" not in self._modules:  # a file from before factors were kept
            self.register_module("factor", None)
        self.coupled = [(B, Canonical(k, self.centres)) for B, k in self.kernel.coupled()]

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        new = super().mapped(fn)
        new.restore()
        return new

    def _apply(self, fn: Any, recurse: bool = True) -> Self:  # a parent module moves us in place
        super()._apply(fn, recurse)
        self.restore()
        return self

    @property
    def weights(self) -> Tensor:
        """v: `[s, c]`."""
        return self.v

    @property
    def num_inducing(self) -> int:
        return 0 if self.inducing is None else self.inducing.v.shape[1]

    @property
    def width(self) -> int:
        """The number of centres: how many numbers a point needs."""
        return self.centres.shape[0]

    def __getitem__(self, index: Tensor) -> UpdatePaths:
        own = self.y.ndim == 2
        return UpdatePaths(
            self.kernel,
            self.centres,
            self.tasks,
            self.v[index],
            self.v_mean[index] if own and self.v_mean is not None else self.v_mean,
            inducing=None if self.inducing is None else self.inducing[index],
            y=self.y[index] if own else self.y,
            noise=self.noise,
            xi=self.xi[index],
            solver_stats=self.solver_stats,
            factor=self.factor,
        )

    def sums(
        self, x: Tensor, paths: slice | Tensor | None, gradient: bool = False, v: Tensor | None = None, only: Any = None
    ) -> Any:
        """As `PriorPaths.sums`; with other weights where v is given. None without centres."""
        if self.width == 0:
            return None
        weights = self.v if v is None else v
        total = None
        for B, basis in self.coupled if only is None else only:
            W = self.coupled_weights(B, weights if paths is None else weights[paths])  # [s, t, c]
            with frame():
                if paths is not None:
                    out = basis.sums(x, W, gradient)
                else:
                    s, t, c = W.shape
                    out = split_rows(basis.sums(x, W.reshape(1, s * t, c), gradient), s, t)
                total = add(total, out)
        return total

    def coupled_weights(self, B: Tensor | None, v: Tensor) -> Tensor:
        """The weights of one coupled kernel for each output, B[i, task_j] v_j: `[s, t, c]`."""
        if self.tasks is None:
            return v[:, None]
        if B is None:
            return v[:, None].expand(-1, self.kernel.num_outputs, -1)
        return v[:, None] * B[:, self.tasks]
