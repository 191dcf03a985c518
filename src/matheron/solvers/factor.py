"""Factor: a Cholesky factor that is kept, and grows by rows where data are added."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import solve_triangular

from ..value import Value

# Added rows are kept in a block of their own until there are this many: copying the large block for every few new rows
# would cost more than what they need themselves.
_LARGEST_TAIL = 1024


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

    def extended(self, cross: Tensor, corner: Tensor, smallest_pivot: float) -> tuple[Factor, Tensor, Tensor] | None:
        """The factor with m more rows: cross `[n, m]` = K(old, new), corner `[m, m]` = K(new, new) + noise + jitter.

        With it come the corner's own factor C `[m, m]`, of the new data's covariance given the old, and
        K(old, old)^-1 cross `[n, m]`. None where the new rows add rounding alone, so that all must be factored anew.
        """
        E = self.lower(cross)  # [n, m]
        C, info = torch.linalg.cholesky_ex(corner.to(E) - E.mT @ E)
        if bool(info) or not float(C.diagonal().square().min()) > smallest_pivot:
            return None
        h, t, m = len(self.head), len(self.tail), len(C)
        rows = torch.cat([self.rows, E[:h].mT])
        tail = torch.cat([torch.nn.functional.pad(self.tail, (0, m)), torch.cat([E[h:].mT, C], dim=1)])
        head = self.head
        if t + m > _LARGEST_TAIL:
            head = torch.cat([torch.nn.functional.pad(head, (0, t + m)), torch.cat([rows, tail], dim=1)])
            rows, tail = head[:0], head[:0, :0]
        return Factor(head, rows, tail, self.jitter), C, self.upper(E)
