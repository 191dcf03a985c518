"""k(X, X) V in one GPU kernel: the product that iterative solvers ask for, nothing of size n x n in memory.

As `shared.radial_sums`, with one more row on the side: 64 rows are a tile of the tensor cores, and 64 paths with their
mean are 65. The odd row is summed by ordinary arithmetic from the same kernel values, instead of in a second tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radial import radial, squared_distance
from .shared import place
from .tile import product


@triton.jit
def radial_products(
    x, z, units, w, scale, rows, odd, out, odd_out, n, M, zero,
    D: tl.constexpr, KIND: tl.constexpr, ISOTROPIC: tl.constexpr, ODD: tl.constexpr, SPLIT: tl.constexpr,
    BN: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out `[rows, n]`: sum_j W_j k(x, z_j); and with ODD odd_out `[n]`: sum_j odd_j k(x, z_j), by the first tile."""
    tile, start, i, inside = place(n, BN)
    x += start * D
    PARTS: tl.constexpr = 2 if SPLIT else 1
    TYPE: tl.constexpr = tl.float32 if SPLIT else tl.float64
    acc = tl.zeros([BN, BR], TYPE)
    side = tl.zeros([BN, BF], TYPE)
    f = tl.arange(0, BF)
    w += tile * PARTS * BR * M + tl.arange(0, BR)[:, None] * M + f[None, :]
    alpha = tl.load(units + 2 * D)
    k16 = tl.arange(0, 16) * 0  # a product of zeros gives distances the layout of the tensor cores, as in `shared`
    left = tl.load(zero + (i * 0)[:, None] + k16[None, :])
    right = tl.load(zero + k16[:, None] + (f * 0)[None, :])
    for j in tl.range(0, M, BF, num_stages=STAGES):
        nothing = tl.dot(left, right, out_dtype=TYPE)
        q = squared_distance(nothing, x, i, inside, z, j + f, M, units, D, ISOTROPIC, False)
        value, _ = radial(q, alpha, KIND)
        acc += product(value, w + j, BR * M, tl.zeros([BN, BR], TYPE), SPLIT)
        if ODD:
            side += value * tl.load(odd + j + f)[None, :]
    r = tl.arange(0, BR)
    row = tl.load(rows + tile * BR + r).to(tl.int64)
    if SPLIT:
        acc = acc * tl.load(scale + tile * BR + r)[None, :]
    tl.store((out + start) + (row * n)[None, :] + i[:, None], acc, mask=inside[:, None] & (row >= 0)[None, :])
    if ODD:
        tl.store(odd_out + start + i, tl.sum(side, 1), mask=inside & (tile == 0))
