"""A factor that is kept with paths (`Cholesky(keep=True)`). It gets new rows when data are added, for n^2 operations
each.

Let A = K + noise of the old data, B = K(old, new) and S = K(new, new) + noise - B^T A^-1 B. The old data's residuals
stay what they were, so that

    v_new = S^-1 (residual_new - B^T v_old),        v = v_old - A^-1 B v_new
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from ..core.value import Value
from ..kernels import coupled_covariance
from ..models.means import Mean
from ..solvers import covariance
from ..solvers.cholesky import deviations_by, solved
from ..solvers.operator import KernelOperator
from .precision import choose_weight_dtype
from .prior import PriorPaths, observed_before
from .spread import warn_of_spread

if TYPE_CHECKING:
    from .exact import Data, ExactUpdate


class Factor(Value):
    """L L^T = K + diag(noise) + jitter I in blocks, n^2 numbers in all:

    L  =  [ head     0   ]      head [h, h]
          [ rows   tail  ]      rows [t, h], tail [t, t]
    """

    shapes = "head: h h, rows: t h, tail: t t, jitter:"

    def check(self) -> None:
        if not self.head.dtype == self.rows.dtype == self.tail.dtype:
            raise ValueError("Factor: expected blocks of one dtype")

    def __init__(self, head: Tensor, rows: Tensor, tail: Tensor, jitter: Tensor) -> None:
        super().__init__(head=head, rows=rows, tail=tail, jitter=jitter)

    @staticmethod
    def of(L: Tensor, jitter: float) -> Factor:
        return Factor(L, L[:0], L[:0, :0], L.new_tensor(jitter))

    @property
    def size(self) -> int:
        return len(self.head) + len(self.tail)

    def last_block(self, p: int) -> Tensor:
        """The last p rows and columns of L."""
        t = len(self.tail)
        if p <= t:
            return self.tail[t - p :, t - p :]
        h = len(self.head) - (p - t)
        top = torch.nn.functional.pad(self.head[h:, h:], (0, t))
        return torch.cat([top, torch.cat([self.rows[:, h:], self.tail], dim=1)])

    def lower(self, b: Tensor) -> Tensor:
        """L^-1 b for b `[n, r]`."""
        h = len(self.head)
        top = solve_triangular(self.head, b[:h].to(self.head), upper=False)
        bottom = solve_triangular(self.tail, b[h:].to(top) - self.rows @ top, upper=False)
        return torch.cat([top, bottom])

    def upper(self, b: Tensor) -> Tensor:
        """L^-T b for b `[n, r]`."""
        h = len(self.head)
        bottom = solve_triangular(self.tail.mT, b[h:].to(self.tail), upper=True)
        top = solve_triangular(self.head.mT, b[:h].to(bottom) - self.rows.mT @ bottom, upper=True)
        return torch.cat([top, bottom])

    def extended(
        self, cross: Tensor, corner: Tensor, smallest_pivot: float, largest_tail: int = 1024
    ) -> tuple[Factor, Tensor, Tensor] | None:
        """The factor with m more rows: cross `[n, m]` = K(old, new), corner `[m, m]` = K(new, new) + noise + jitter.

        Also returns the factor C `[m, m]` of the new data's covariance given the old, and K(old, old)^-1 cross `[n,
        m]`. The result is None if the new rows consist of rounding errors; all data must then be factored again.

        Added rows form a block of their own, the tail, until there are more than `largest_tail`. Copying the large
        block for every few new rows would cost more than the rows themselves. (When 300 data are added to 1,500 one by
        one, 256 takes the same time, and 64 a quarter more.)
        """
        E = self.lower(cross)  # [n, m]
        C, info = torch.linalg.cholesky_ex(corner.to(E) - E.mT @ E)
        if bool(info) or not float(C.diagonal().square().min()) > smallest_pivot:
            return None
        h, t, m = len(self.head), len(self.tail), len(C)
        rows = torch.cat([self.rows, E[:h].mT])
        tail = torch.cat([torch.nn.functional.pad(self.tail, (0, m)), torch.cat([E[h:].mT, C], dim=1)])
        head = self.head
        if t + m > largest_tail:
            head = torch.cat([torch.nn.functional.pad(head, (0, t + m)), torch.cat([rows, tail], dim=1)])
            rows, tail = head[:0], head[:0, :0]
        return Factor(head, rows, tail, self.jitter), C, self.upper(E)


def extended_weights(
    old: ExactUpdate, factor: Factor, prior: PriorPaths, mean: Mean, data: Data, watch_spread: bool
) -> tuple[Tensor, Factor] | None:
    """Weights of paths and of their mean given more data, and the factor with rows for these.

    None if S is not positive definite up to rounding, or if weights need more digits than the factor has. All data must
    then be factored again.

    Args:
        data: the old ones and then the new.
        watch_spread: as for `exact_update`.
    """
    kernel, n, s = old.kernel, old.num_data, len(data.xi)
    in_factor = kernel.to(data.noise.device, factor.head.dtype)  # in the precision of the factor
    new = data.sites[n:].to(factor.head.dtype)
    B = coupled_covariance(in_factor, old.sites.to(factor.head.dtype), new)  # [n, m]
    corner = covariance(in_factor, new)  # [m, m]
    jitter, noise = factor.jitter.to(data.noise), data.noise[n:]
    corner.diagonal().add_(noise + jitter)
    smallest = 4 * torch.finfo(factor.head.dtype).eps * float(corner.diagonal().max())
    grown = factor.extended(B, corner, smallest)
    if grown is None:
        return None
    factor, C, A_B = grown
    some = data.sites[n:]
    f = observed_before(prior, mean, some)  # [s + 1, m]
    y = data.y[..., n:]
    if data.own_targets:
        y, f = torch.cat([y, y]), torch.cat([f, f[s:].expand(s - 1, -1)])
    eps = (noise + jitter).sqrt() * torch.cat([data.xi[:, n:], torch.zeros_like(f[s:])])
    v_old = torch.cat([old.v, old.v_mean.expand(len(f) - s, -1)]).to(C)  # [s + 1, n]
    residual = (y - f - eps).to(C) - v_old @ B.to(C)  # [s + 1, m]
    v_new = solved(C, residual.mT).mT
    v = torch.cat([v_old - v_new @ A_B.mT, v_new], dim=1)
    operator = KernelOperator(kernel, data.sites, data.noise)
    if watch_spread:
        warn_of_spread(prior, operator, float(jitter), v[:s] - v[s:], factor.last_block)
    v = choose_weight_dtype(operator, v.double(), partial(deviations_by, factor.lower, operator, float(jitter)))
    return (v, factor) if v.dtype in (factor.head.dtype, data.noise.dtype) else None
