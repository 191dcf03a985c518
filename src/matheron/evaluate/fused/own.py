"""Weighted sums row by row: each path at its own points, or with a basis of its own. No product is shared.

A row is one output of one path. A program takes BN points of one row and goes through the basis functions BF at a time.
In its tiles `[BF, BN]` each point has one thread. With GRADIENT it writes the gradient in x beside the value.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radial_kernels import radial, radial_slopes, squared_distance, squared_units
from .shared import place
from .tile import TWO_PI, about, power_above, wave_slopes, waves, whole


@triton.jit
def largest_distance(x, origin, i, inside, D: tl.constexpr):
    """How far each point is from the origin, in the coordinate where it is farthest."""
    big = tl.abs(tl.load(x + i * D, mask=inside, other=0.0) - tl.load(origin))
    for k in range(1, D):
        big = tl.maximum(big, tl.abs(tl.load(x + i * D + k, mask=inside, other=0.0) - tl.load(origin + k)))
    return big


@triton.jit
def add_turns(main, rest, x, origin, i, inside, theta, low, k, unit, inverse, D: tl.constexpr, SPLIT: tl.constexpr):
    """The phase's coordinate k: whole numbers exactly into `main`, remainders into `rest` (see `tile.turns`)."""
    v, lost = about(tl.load(x + i * D + k, mask=inside, other=0.0), tl.load(origin + k))
    th = tl.load(theta)[:, None]
    if SPLIT:
        lo = tl.load(low)[:, None]
        high = whole(v * inverse)
        remainder = (((v * inverse - high) + lost * inverse) * unit)[None, :]
        high = (high * unit)[None, :]
        main += th * high
        rest += (th + lo) * remainder + lo * high
    else:
        main += th * v[None, :]
    return main, rest


@triton.jit
def write(acc, total, row, start, i, inside, base, base_s, base_t, base_n, out, slopes, s_k, T, n,
          D: tl.constexpr, DP: tl.constexpr, GRADIENT: tl.constexpr, ADD: tl.constexpr):  # fmt: skip
    """The sums `[rows, n]`, added to the base, and the slopes `[d, rows, n]`, added to what is there where ADD."""
    base += (row // T) * base_s + (row % T) * base_t + start * base_n
    before = tl.load(base + i * base_n, mask=inside, other=0.0)
    tl.store(out + row * n + start + i, total + before, mask=inside)
    if GRADIENT:
        k = tl.arange(0, DP)[:, None]
        at = slopes + row * n + start + k.to(tl.int64) * s_k + i[None, :]
        keep = inside[None, :] & (k < D)
        if ADD:
            acc += tl.load(at, mask=keep, other=0.0)
        tl.store(at, acc, mask=keep)


@triton.jit
def fourier_rows(
    x, origin, theta, low, tau, w, group, base, out, slopes,
    n, F, T, x_s, base_s, base_t, base_n, s_k, origin_g,
    D: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, PAIRS: tl.constexpr, SPLIT: tl.constexpr,
    GRADIENT: tl.constexpr, ADD: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """As `shared.fourier_sums`. Frequencies in turns `[g, d, F]` on a grid, and the remainders, `low`.

    Each basis has an origin of its own where `origin_g`, the step from one to the next, is not zero.
    """
    TYPE: tl.constexpr = tl.float32 if SPLIT else tl.float64
    HALVES: tl.constexpr = 2 if PAIRS else 1
    row, start, i, inside = place(n, BN)
    path = row // T
    x += path * x_s + start * D
    g = tl.load(group + path).to(tl.int64)
    origin += g * origin_g
    if SPLIT:
        unit, inverse = power_above(largest_distance(x, origin, i, inside, D), BITS)
    else:
        unit, inverse = 0, 0
    theta += g * D * F
    low += g * D * F
    w += row * HALVES * F
    total = tl.zeros([BF, BN], TYPE)
    acc = tl.zeros([DP, BN], TYPE)
    for j in range(0, F, BF):
        f = j + tl.arange(0, BF)
        main = tl.zeros([BF, BN], TYPE)
        rest = tl.zeros([BF, BN], TYPE)
        if D <= 8:
            for k in tl.static_range(D):
                at = k * F + f
                main, rest = add_turns(
                    main, rest, x, origin, i, inside, theta + at, low + at, k, unit, inverse, D, SPLIT
                )
        else:
            for k in range(D):
                at = k * F + f
                main, rest = add_turns(
                    main, rest, x, origin, i, inside, theta + at, low + at, k, unit, inverse, D, SPLIT
                )
        t = (main - whole(main)) + rest
        if not PAIRS:
            t += tl.load(tau + g * F + f)[:, None]
            t = t - whole(t)
        c, s = waves(t, SPLIT)
        a = tl.load(w + f)[:, None]
        total += a * c
        u = -a * s
        if PAIRS:
            a = tl.load(w + F + f)[:, None]
            total += a * s
            u += a * c
        if GRADIENT:
            acc = wave_slopes(acc, u, theta + f, low + f, F, D, DP, SPLIT, True)
    write(acc * TWO_PI, tl.sum(total, 0), row, start, i, inside, base, base_s, base_t, base_n, out, slopes, s_k, T, n,
          D, DP, GRADIENT, ADD)  # fmt: skip


@triton.jit
def radial_rows(
    x, z, units, w, group, base, out, slopes,
    n, M, T, x_s, base_s, base_t, base_n, s_k,
    D: tl.constexpr, DP: tl.constexpr, KIND: tl.constexpr, ISOTROPIC: tl.constexpr, SPLIT: tl.constexpr,
    SEVERAL: tl.constexpr,
    GRADIENT: tl.constexpr, ADD: tl.constexpr, BN: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """As `shared.radial_sums`; with SEVERAL, centres `[g, d, M]` and units `[g, 2 d + 1]`, one of each path's own."""
    TYPE: tl.constexpr = tl.float32 if SPLIT else tl.float64
    row, start, i, inside = place(n, BN)
    x += (row // T) * x_s + start * D
    w += row * M
    if SEVERAL:
        g = tl.load(group + row // T).to(tl.int64)
        z += g * D * M
        units += g * (2 * D + 1)
    alpha = tl.load(units + 2 * D)
    total = tl.zeros([BF, BN], TYPE)
    acc = tl.zeros([DP, BN], TYPE)
    for j in range(0, M, BF):
        f = j + tl.arange(0, BF)
        q = squared_distance(tl.zeros([BF, BN], TYPE), x, i, inside, z, f, M, units, D, ISOTROPIC, True)
        value, slope = radial(q, alpha, KIND)
        a = tl.load(w + f)[:, None]
        total += a * value
        if GRADIENT:
            acc = radial_slopes(acc, a * slope, x, i, inside, z, f, M, units, D, DP, True)
    acc = acc * squared_units(units, D, DP)[:, None]
    write(acc, tl.sum(total, 0), row, start, i, inside, base, base_s, base_t, base_n, out, slopes, s_k, T, n,
          D, DP, GRADIENT, ADD)  # fmt: skip
