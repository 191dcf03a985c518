"""Low-rank preconditioners: block randomly pivoted Cholesky, and P^-1 by Woodbury's identity in a symmetric form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .cholesky import largest_eigenvalue
from .operator import Operator, memory_of
from .processes import Processes


def default_rank(operator: Operator) -> int:
    """20 sqrt(n), or the rank that memory allows. Making the preconditioner then costs about as much as a handful of
    products with K for 64 paths."""
    return max(1, min(operator.size, math.ceil(20 * operator.size**0.5), largest_rank(operator)))


def largest_rank(operator: Operator, on_cpu: int = 2_000_000_000, share_of_gpu: float = 0.5) -> int:
    """The largest rank of a preconditioner in the memory that it may take on a CPU, or in this share of a GPU's
    memory."""
    column = -(-operator.size // operator.processes.count) * torch.finfo(operator.dtype).bits // 8
    return memory_of(operator.device, on_cpu, share_of_gpu) // column


class LowRank:
    """P = F F^T + D with F `[n, k]` from K and D = noise + share (diagonal(K) - diagonal(F F^T)).

    Args:
        share: how much of the variance that the factor does not explain counts as noise in P. With 0.1 the iterations
            are few; with 1, P is close to K.
        wide_from: where P's largest eigenvalue is this many times its D, float32 has too few digits to apply it. At a
            million times, P^-1 errs by more than a tenth (tests/solvers/test_preconditioner.py).

    It is applied as P^-1 = D^-1/2 (I - Q Q^T) D^-1/2 with Q = D^-1/2 F L^-T, where L L^T = I + F^T D^-1 F in float64.
    This is symmetric to the last bit whatever Q's rounding, and takes one product each way.
    """

    def __init__(self, operator: Operator, rank: int, share: float = 0.1, wide_from: float = 1e5) -> None:
        diagonal = operator.diagonal()
        F, left = pivoted_cholesky(operator, diagonal, rank)
        self.processes = operator.processes
        mean = self.processes.sum(diagonal.sum()) / operator.size
        floor = max(1e-8, 10 * torch.finfo(F.dtype).eps) * mean
        D = operator.noise + share * left.to(F.dtype) + floor
        self.root_D = D.sqrt()[:, None]  # [n, 1]
        F.div_(self.root_D)
        gram = self.processes.sum(_gram(F))
        self.wide = F.dtype != torch.float64 and largest_eigenvalue(gram) > wide_from
        gram.diagonal().add_(1)
        L = torch.linalg.cholesky(gram)
        for piece in _pieces(F):  # in place, because F is the largest array
            piece.copy_(torch.linalg.solve_triangular(L, piece.double().mT, upper=False).mT)
        self.Q, self.L = F, L
        self.C = _middle(F, L, self.processes) if self.wide else None
        # 1 - noise P^-1_ii, which is the posterior variance at each observation under P in units of its noise, [n, 1].
        # Where the prior variance is close to zero, as for a linear kernel at zero, rounding can make it zero or
        # negative.
        left_open = (D - operator.noise + operator.noise * _squares(F)).div(D)
        self.posterior_share = left_open.clamp_min(torch.finfo(F.dtype).eps)[:, None]
        # I - Q Q^T must stay positive definite although Q has rounding errors.
        self.shrink = 1 - 8 * torch.finfo(F.dtype).eps

    @property
    def rank(self) -> int:
        return self.Q.shape[1]

    def probes(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws u `[n, count]` from N(0, P), and v = P^-1 u, without cancellation:

        u = D^1/2 (xi - Q L^T omega),      v = D^-1/2 (xi - Q (Q^T xi + L^-1 omega)),      xi and omega standard normal
        """
        Q, L = self.Q, self.L
        shape = [(len(Q), count), (len(L), count)]
        xi, omega = (torch.randn(size, generator=generator, dtype=torch.float64, device="cpu").to(L) for size in shape)
        inner = torch.linalg.solve_triangular(L, omega, upper=False).to(Q)
        xi, outer = xi.to(Q), (L.mT @ omega).to(Q)
        return self.root_D * (xi - Q @ outer), (xi - Q @ (Q.mT @ xi + inner)) / self.root_D

    def inverse(self, rows: slice, columns: slice) -> Tensor:
        """Some rows and columns of P^-1; the columns begin where the rows do."""
        block = (self.Q[rows] @ self.Q[columns].mT).mul_(-self.shrink)
        block.diagonal().add_(1)
        return block.div_(self.root_D[rows]).div_(self.root_D[columns, 0])

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of P^-1, `[n]`."""
        return (1 - self.shrink * _squares(self.Q)) / self.root_D[:, 0].square()

    def __call__(self, V: Tensor) -> Tensor:
        """P^-1 V for V `[n, r]`, in V's dtype.

        Within the span of Q, V - Q Q^T V is as small as D is relative to P. The rounding error that remains is
        multiplied by K in the next step. From a ratio of about 10^6 on, conjugate gradients then stagnate, so the sums
        are computed in float64.
        """
        dtype, V = V.dtype, V / self.root_D
        if dtype == self.Q.dtype and not self.wide:
            V = V.addmm(self.Q, self.processes.sum(self._inner(V)).to(dtype), alpha=-self.shrink)
            return V.div_(self.root_D)
        V, parts = V.double(), self.Q.split(512, dim=1)
        inner = self.processes.sum(torch.cat([part.double().mT @ V for part in parts]))
        inner = self.shrink * inner if self.C is None else self.C @ inner
        for part, weights in zip(parts, inner.split(512), strict=True):
            V = V.addmm(part.double(), weights, alpha=-1)
        return V.to(dtype).div_(self.root_D)

    def _inner(self, V: Tensor, rows: int = 1 << 10, block: int = 1 << 18) -> Tensor:
        """Q^T V `[k, r]`, with sums over blocks of rows added in float64, because a float32 sum over a million rows
        loses four digits.

        `rows` are added up in float32, and the sums of `block` rows are in memory at once.
        """
        if V.dtype == torch.float64 or len(V) < 2 * rows:
            return self.Q.mT @ V
        inner = V.new_zeros(self.rank, V.shape[1], dtype=torch.float64)
        for Q, W in zip(self.Q.split(block), V.split(block), strict=True):
            whole = len(W) // rows * rows
            Q_parts, W_parts = (a[:whole].reshape(-1, rows, a.shape[1]) for a in (Q, W))
            inner += (Q_parts.mT @ W_parts).sum(0, dtype=torch.float64)
            inner += Q[whole:].mT @ W[whole:]
        return inner


def pivoted_cholesky(operator: Operator, diagonal: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """F `[n, k]` with F F^T near K, k <= rank, and the diagonal of K - F F^T `[n]`, in float64.

    The method is block randomly pivoted Cholesky: blocks of pivots are drawn in proportion to the diagonal of the
    residual. Factoring a block of the residual in float32 would fail, so this is done in float64, with the rounding
    error added to the diagonal. Pivots have a generator of their own, so they are the same in every run and on every
    device.
    """
    n, device, everyone = operator.size, operator.device, operator.processes
    mine = everyone.part(n)
    generator = torch.Generator().manual_seed(0)
    eps = torch.finfo(operator.dtype).eps
    left = diagonal.double()
    largest = float(everyone.max(diagonal.double().amax() if len(diagonal) else left.new_zeros(())))
    F = torch.zeros(len(left), rank, dtype=operator.dtype, device=device)
    block, k = min(512, max(16, rank // 8)), 0
    noise = float(everyone.sum(operator.noise.double().sum())) / n
    # the pivots end when the sum of the remaining diagonal is below this
    enough = max(0.1 * noise, 100 * eps * largest)
    while k < rank:
        total, choices = everyone.sum(torch.stack([left.sum(), (left > 0).sum().double()])).tolist()
        if total <= enough:
            break
        size = min(block, rank - k, int(choices))
        chance = torch.empty(n, dtype=torch.float64, device="cpu").exponential_(generator=generator)
        keys = left / chance[mine].to(device)
        pivots = everyone.first(everyone.gather(keys, n).topk(size).indices)  # sampling without replacement
        here = ((pivots >= mine.start) & (pivots < mine.stop)).nonzero()[:, 0]  # those that belong to this process
        own = pivots[here] - mine.start

        C = operator.rows(pivots).mT - F[:, :k] @ _from_owners(F[:, :k], here, own, size, everyone).mT  # [n, size]
        new = C @ _inverse_root(_from_owners(C, here, own, size, everyone), largest, everyone)
        F[:, k : k + new.shape[1]] = new
        k += new.shape[1]
        left = (left - new.double().square().sum(1)).clamp_min_(0)
        left[own] = 0
    return F[:, :k] if k == rank else F[:, :k].contiguous(), left


def _inverse_root(block: Tensor, largest: float, everyone: Processes) -> Tensor:
    """R `[size, k]` with R R^T near the inverse of a block `[size, size]` that rounding may have made indefinite."""
    A, eps = (block.double() + block.double().mT) / 2, torch.finfo(block.dtype).eps
    ridge = torch.clamp(1e-9 * A.diagonal().sum(), min=64 * eps * largest)
    one = torch.eye(len(A), dtype=A.dtype, device=A.device)
    L, info = torch.linalg.cholesky_ex(A + ridge * one)
    if not int(everyone.max(info.double())):
        return everyone.first(torch.linalg.solve_triangular(L, one, upper=False).mT).to(block.dtype)
    values, vectors = (everyone.first(part) for part in torch.linalg.eigh(A))
    keep = values > ridge
    return (vectors[:, keep] / values[keep].sqrt()).to(block.dtype)


def _from_owners(rows: Tensor, here: Tensor, own: Tensor, size: int, everyone: Processes) -> Tensor:
    """The pivots' rows `[size, c]` of an array that is shared: pivots `here` are rows `own` of this one's part."""
    return everyone.sum(rows.new_zeros(size, rows.shape[1]).index_copy(0, here, rows[own]))


def _middle(Q: Tensor, L: Tensor, everyone: Processes) -> Tensor:
    """C `[k, k]` such that I - Q C Q^T is the inverse of I + Q L^T L Q^T for the rounded Q. It is near I, in float64.

    Without C, the rounding of Q gives P^-1 a relative error of about eps times the ratio of P's largest eigenvalue to
    D.
    """
    root = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False)
    return torch.linalg.inv(torch.addmm(everyone.sum(_gram(Q)), root, root.mT))


def _gram(F: Tensor) -> Tensor:
    """F^T F `[k, k]` in float64, since float32 has too few digits."""
    gram = torch.zeros(F.shape[1], F.shape[1], dtype=torch.float64, device=F.device)
    for piece in _pieces(F):
        wide = piece.double()
        gram.addmm_(wide.mT, wide)
    return gram


def _pieces(F: Tensor) -> tuple[Tensor, ...]:
    """Views of blocks of F's rows, whose float64 copies are small compared with F."""
    return F.split(max(1, (1 << 25) // max(1, F.shape[1])))


def _squares(F: Tensor) -> Tensor:
    """The sum of squares of each row, without a copy of F, which may be half of the memory."""
    return torch.linalg.vector_norm(F, dim=1).square()
