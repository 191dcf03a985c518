"""Weighted sums at points that many functions share: a tile of basis functions serves many rows, by tensor cores.

A row is one output of one path. A program takes BN points and BR rows, goes through the basis functions BF at a time,
and keeps nothing but its sums: `[BN, BR]` in registers. Tensor cores truncate instead of rounding, and over thousands
of terms the truncation errors would add up. So each block's sums start at zero and are added by ordinary arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radial_kernels import difference, radial, squared_distance
from .tile import points, product, turns, waves, whole


@triton.jit
def place(n, BN: tl.constexpr):
    """This program's tile of rows (the slow index), its first point, its points from there, and which of them exist."""
    blocks = tl.cdiv(n, BN)
    start = (tl.program_id(0) % blocks).to(tl.int64) * BN
    i = tl.arange(0, BN)
    return (tl.program_id(0) // blocks).to(tl.int64), start, i, i < n - start


@triton.jit
def finish(acc, i, inside, start, rows, scale, base, base_s, base_t, base_n, out, out_r, T,
           BR: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    """Undo the rows' scaling, add what was there before, and write `[rows, n]`; rows of -1 are padding."""
    r = tl.arange(0, BR)
    row = tl.load(rows + r).to(tl.int64)
    if SPLIT:
        acc = acc * tl.load(scale + r)[None, :]
    keep = inside[:, None] & (row >= 0)[None, :]
    before = base + start * base_n + ((row // T) * base_s + (row % T) * base_t)[None, :]
    acc += tl.load(before + i[:, None] * base_n, mask=keep, other=0.0)
    tl.store((out + start) + (row * out_r)[None, :] + i[:, None], acc, mask=keep)


@triton.jit
def fourier_sums(
    x, origin, theta, grid, tau, w, scale, rows, group, base, out,
    n, F, T, base_s, base_t, base_n, out_r,
    D: tl.constexpr, K: tl.constexpr, KC: tl.constexpr, BITS: tl.constexpr, PAIRS: tl.constexpr, SPLIT: tl.constexpr,
    BN: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """sum_f W_f cos(theta_f . x) + W'_f sin(theta_f . x) for PAIRS, else sum_f W_f cos(theta_f . x + tau_f)."""
    tile, start, i, inside = place(n, BN)
    PARTS: tl.constexpr = 2 if SPLIT else 1
    HALVES: tl.constexpr = 2 if PAIRS else 1
    WIDTH: tl.constexpr = 3 * K if SPLIT and KC == 0 else K + KC
    main, low, lowest, unit = points(x + start * D, origin, i, inside, D, K, KC, BITS, SPLIT)
    TYPE: tl.constexpr = tl.float32 if SPLIT else tl.float64
    acc = tl.zeros([BN, BR], TYPE)
    f = tl.arange(0, BF)
    first = tl.load(group + tile).to(tl.int64) * F
    w += tile * HALVES * PARTS * BR * F + tl.arange(0, BR)[:, None] * F + f[None, :]
    step = BR * F
    for j in tl.range(0, F, BF, num_stages=STAGES):
        at = first + j + f
        t = turns(main, low, lowest, unit, theta + at * WIDTH, grid + at, K, KC, SPLIT)
        if not PAIRS:
            t = t + tl.load(tau + at)[None, :]
            t = t - whole(t)
        c, s = waves(t, SPLIT)
        part = product(c, w + j, step, tl.zeros([BN, BR], TYPE), SPLIT)
        if PAIRS:
            part = product(s, w + j + PARTS * step, step, part, SPLIT)
        acc += part
    finish(
        acc, i, inside, start, rows + tile * BR, scale + tile * BR, base, base_s, base_t, base_n,
        out, out_r, T, BR, SPLIT,
    )  # fmt: skip


@triton.jit
def radial_sums(
    x, z, units, w, scale, rows, base, out,
    n, M, R, T, base_s, base_t, base_n, out_r, zero,
    D: tl.constexpr, KIND: tl.constexpr, ISOTROPIC: tl.constexpr, GRADIENT: tl.constexpr, SPLIT: tl.constexpr,
    BN: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """sum_j W_j k(x, z_j); with GRADIENT its derivative in coordinate k, the second axis of the launch."""
    tile, start, i, inside = place(n, BN)
    k = tl.program_id(1)
    x += start * D
    PARTS: tl.constexpr = 2 if SPLIT else 1
    TYPE: tl.constexpr = tl.float32 if SPLIT else tl.float64
    acc = tl.zeros([BN, BR], TYPE)
    f = tl.arange(0, BF)
    w += tile * PARTS * BR * M + tl.arange(0, BR)[:, None] * M + f[None, :]
    alpha = tl.load(units + 2 * D)
    # Distances are added to a product of zeros. They then have the layout of the tensor cores, and need no exchange
    # between threads later.
    k16 = tl.arange(0, 16) * 0
    left = tl.load(zero + (i * 0)[:, None] + k16[None, :])
    right = tl.load(zero + k16[:, None] + (f * 0)[None, :])
    for j in tl.range(0, M, BF, num_stages=STAGES):
        nothing = tl.dot(left, right, out_dtype=TYPE)
        q = squared_distance(nothing, x, i, inside, z, j + f, M, units, D, ISOTROPIC, False)
        value, slope = radial(q, alpha, KIND)
        if GRADIENT:
            value = slope * (difference(x, i, inside, z, j + f, k, M, units, D, False) * tl.load(units + D + k))
        acc += product(value, w + j, BR * M, tl.zeros([BN, BR], TYPE), SPLIT)
    if GRADIENT:
        acc = acc * (tl.load(units + k) * tl.load(units + D + k))
    shift = k.to(tl.int64) * R * out_r  # slopes are [d, rows, n]
    finish(
        acc, i, inside, start, rows + tile * BR, scale + tile * BR, base + shift, base_s, base_t, base_n,
        out + shift, out_r, T, BR, SPLIT,
    )  # fmt: skip


@triton.jit
def radial_products(
    x, z, units, w, scale, rows, odd, out, odd_out, n, M, zero,
    D: tl.constexpr, KIND: tl.constexpr, ISOTROPIC: tl.constexpr, ODD: tl.constexpr, SPLIT: tl.constexpr,
    BN: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """k(X, X) V, the product that iterative solvers ask for. out `[rows, n]`: sum_j W_j k(x, z_j); and with ODD odd_out
    `[n]`: sum_j odd_j k(x, z_j), by the first tile.

    64 rows are a tile of the tensor cores, and 64 paths with their mean are 65. The odd row is summed by ordinary
    arithmetic from the same kernel values, instead of in a second tile.
    """
    tile, start, i, inside = place(n, BN)
    x += start * D
    PARTS: tl.constexpr = 2 if SPLIT else 1
    TYPE: tl.constexpr = tl.float32 if SPLIT else tl.float64
    acc = tl.zeros([BN, BR], TYPE)
    side = tl.zeros([BN, BF], TYPE)
    f = tl.arange(0, BF)
    w += tile * PARTS * BR * M + tl.arange(0, BR)[:, None] * M + f[None, :]
    alpha = tl.load(units + 2 * D)
    k16 = tl.arange(0, 16) * 0  # a product of zeros gives distances the layout of the tensor cores, as above
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
