"""The backward pass at shared points: the gradients of all rows' sums, added up at each point.

With G the gradients of the sums and W the weights, H = G W is the gradient of each basis function. A tile of H is made
by tensor cores, multiplied by the basis functions' derivatives, and summed into the point's own gradient `[BN, d]`. A
program takes BN points and BR rows. The caller adds up the tiles of rows, in `out [tiles, n, d]`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radial_kernels import radial, radial_slopes, squared_distance, squared_units
from .shared import place
from .tile import halves, points, power_above, turns, wave_slopes, waves, whole


@triton.jit
def incoming(gradient, rows, scale, i, inside, n, BN: tl.constexpr, BR: tl.constexpr, SPLIT: tl.constexpr):
    """G `[BN, BR]` of these points and rows times the rows' scaling, in parts; and the unit of each point."""
    r = tl.arange(0, BR)
    row = tl.load(rows + r)
    keep = inside[:, None] & (row >= 0)[None, :]
    G = tl.load(gradient + (row.to(tl.int64) * n)[None, :] + i[:, None], mask=keep, other=0.0)
    if SPLIT:
        G = G * tl.load(scale + r)[None, :]
        unit, inverse = power_above(tl.max(tl.abs(G), 1), 0)
        high, low = halves(G * inverse[:, None])
    else:
        high, low, unit = G, G, tl.full([BN], 1.0, tl.float64)
    return high, low, unit


@triton.jit
def times_weights(high, low, w, step, SPLIT: tl.constexpr):
    """H = G W `[BN, BF]`, W at the pointers `w`, its low part `step` further on."""
    W = tl.load(w)
    if SPLIT:
        H = tl.dot(high, W)
        H = tl.dot(low, W, H)
        H = tl.dot(high, tl.load(w + step), H)
    else:
        H = tl.dot(high, W, out_dtype=tl.float64)
    return H


@triton.jit
def write(acc, unit, i, inside, out, D: tl.constexpr, DP: tl.constexpr):
    """Write `[BN, d]` where `out` points."""
    k = tl.arange(0, DP)[None, :]
    tl.store(out + i[:, None] * D + k, acc * unit[:, None], mask=inside[:, None] & (k < D))


@triton.jit
def fourier_vjp(
    x, origin, theta, grid, tau, slopes, w, scale, rows, group, gradient, out,
    n, F,
    D: tl.constexpr, DP: tl.constexpr, K: tl.constexpr, KC: tl.constexpr, BITS: tl.constexpr, PAIRS: tl.constexpr,
    SPLIT: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """sum_f theta_f (H'_f cos(theta_f . x) - H_f sin(theta_f . x)), `slopes` `[g, d, F]` being theta in radians."""
    tile, start, i, inside = place(n, BN)
    PARTS: tl.constexpr = 2 if SPLIT else 1
    HALVES: tl.constexpr = 2 if PAIRS else 1
    WIDTH: tl.constexpr = 3 * K if SPLIT and KC == 0 else K + KC
    main, low, lowest, unit = points(x + start * D, origin, i, inside, D, K, KC, BITS, SPLIT)
    G, G_low, size = incoming(gradient + start, rows + tile * BR, scale + tile * BR, i, inside, n, BN, BR, SPLIT)
    acc = tl.zeros([BN, DP], tl.float32 if SPLIT else tl.float64)
    f = tl.arange(0, BF)
    g = tl.load(group + tile).to(tl.int64)
    w += tile * HALVES * PARTS * BR * F + tl.arange(0, BR)[:, None] * F + f[None, :]
    step = BR * F
    slopes += g * D * F + f
    for j in tl.range(0, F, BF, num_stages=STAGES):
        at = g * F + j + f
        t = turns(main, low, lowest, unit, theta + at * WIDTH, grid + at, K, KC, SPLIT)
        if not PAIRS:
            t = t + tl.load(tau + at)[None, :]
            t = t - whole(t)
        c, s = waves(t, SPLIT)
        u = -s * times_weights(G, G_low, w + j, step, SPLIT)
        if PAIRS:
            u += c * times_weights(G, G_low, w + j + PARTS * step, step, SPLIT)
        acc = wave_slopes(acc, u, slopes + j, slopes, F, D, DP, False, False)
    write(acc, size, i, inside, out + (tile * n + start) * D, D, DP)


@triton.jit
def radial_vjp(
    x, z, units, w, scale, rows, gradient, out,
    n, M,
    D: tl.constexpr, DP: tl.constexpr, KIND: tl.constexpr, ISOTROPIC: tl.constexpr,
    SPLIT: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr, BR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """sum_j H_j dk(x, z_j)/dx."""
    tile, start, i, inside = place(n, BN)
    x += start * D
    PARTS: tl.constexpr = 2 if SPLIT else 1
    high, low, size = incoming(gradient + start, rows + tile * BR, scale + tile * BR, i, inside, n, BN, BR, SPLIT)
    acc = tl.zeros([BN, DP], tl.float32 if SPLIT else tl.float64)
    f = tl.arange(0, BF)
    w += tile * PARTS * BR * M + tl.arange(0, BR)[:, None] * M + f[None, :]
    alpha = tl.load(units + 2 * D)
    for j in tl.range(0, M, BF, num_stages=STAGES):
        H = times_weights(high, low, w + j, BR * M, SPLIT)
        q = squared_distance(0 * H, x, i, inside, z, j + f, M, units, D, ISOTROPIC, False)
        _, slope = radial(q, alpha, KIND)
        acc = radial_slopes(acc, H * slope, x, i, inside, z, j + f, M, units, D, DP, False)
    acc = acc * squared_units(units, D, DP)[None, :]
    write(acc, size, i, inside, out + (tile * n + start) * D, D, DP)
