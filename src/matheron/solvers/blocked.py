"""Cholesky in place, block by block: no second n x n array, so that n = 100,000 in float64 is 80 GB and no more.

The factor takes the place of the lower triangle; the upper one still holds the matrix until the end, so that a failed
attempt can be undone and tried again with jitter.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Columns of a block: large enough for products at full speed, small beside n.
BLOCK = 2048


def cholesky_in_place(K: Tensor, smallest_pivot: float) -> bool:
    """The factor of K `[n, n]` in K's own lower triangle; False, and half done, where K is not positive definite.

    Only the lower triangle is read. A pivot that is not above `smallest_pivot` is rounding noise, and a failure.
    """
    n = len(K)
    for i in range(0, n, BLOCK):
        j = min(i + BLOCK, n)
        above = K[i:j, i:j].triu(1)  # what `restore` needs
        K[i:, i:j].addmm_(K[i:, :i], K[i:j, :i].mT, alpha=-1)  # all blocks before this one, in one product
        L, info = torch.linalg.cholesky_ex(K[i:j, i:j])
        K[i:j, i:j] = above.add_(L.tril())
        if bool(info) or not float(L.diagonal().square().min()) > smallest_pivot:
            return False
        if j < n:
            K[j:, i:j] = torch.linalg.solve_triangular(L.mT, K[j:, i:j], upper=True, left=False)
    return True


def restore(K: Tensor, diagonal: Tensor) -> None:
    """Undo `cholesky_in_place`: the lower triangle from the upper one, and the diagonal as given."""
    n = len(K)
    for i in range(0, n, BLOCK):
        j = min(i + BLOCK, n)
        block = K[i:j, i:j].triu(1)
        K[i:j, i:j] = block + block.mT
        K[j:, i:j] = K[i:j, j:].mT
    K.diagonal().copy_(diagonal)
