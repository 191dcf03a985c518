"""What a GPU kernel does with one tile of points and basis functions: phases, waves, products.

Every function here runs on the device, inside the kernels of `shared`, `backward` and `own`. SPLIT says float32, where
a product of tensor cores takes its operands as a high and a low half-precision part (three products keep 22 bits); else
float64.
"""

from __future__ import annotations

import math
import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Triton's interpreter runs the kernels on a CPU in tests. It has no hardware cosine.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HARDWARE = tl.constexpr(not INTERPRETED)

# Adding and then subtracting 1.5 2^23 (or 1.5 2^52) rounds a float32 (or float64) to a whole number.
_ROUND = tl.constexpr(12582912.0)
_ROUND_DOUBLE = tl.constexpr(6755399441055744.0)
TWO_PI = tl.constexpr(2 * math.pi)
# The Taylor series of cos(2 pi u) and sin(2 pi u) in u^2. For |u| <= 1/8 the truncation error is below 1e-17.
_C = [tl.constexpr((-1) ** k * (2 * math.pi) ** (2 * k) / math.factorial(2 * k)) for k in range(9)]
_S = [tl.constexpr((-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1)) for k in range(8)]
C1, C2, C3, C4, C5, C6, C7, C8 = _C[1:]
S0, S1, S2, S3, S4, S5, S6, S7 = _S


@triton.jit
def whole(v):
    """The nearest whole number."""
    if v.dtype == tl.float64:
        r = (v + _ROUND_DOUBLE) - _ROUND_DOUBLE
    else:
        r = (v + _ROUND) - _ROUND
    return r


@triton.jit
def power_above(big, BITS: tl.constexpr):
    """h and 1 / h, h the power of two for which |v| <= big means |v / h| < 2^BITS; float32."""
    exponent = ((tl.maximum(big, 1e-30).to(tl.int32, bitcast=True) >> 23) & 255) + 1 - BITS
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def about(x, origin):
    """x - origin, and what rounding took from it."""
    v = x - origin
    t = v - x
    return v, (x - (v - t)) - (origin + t)


@triton.jit
def halves(v):
    """v as the sum of two half-precision numbers."""
    high = v.to(tl.float16)
    return high, (v - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product(phi, w, step, acc, SPLIT: tl.constexpr):
    """acc + phi W, W^T at the pointers `w` (and its low part `step` further on)."""
    W = tl.load(w).T
    if SPLIT:
        low = tl.load(w + step).T
        a, b = halves(phi)
        acc = tl.dot(a, W, acc)
        acc = tl.dot(b, W, acc)
        acc = tl.dot(a, low, acc)
    else:
        acc = tl.dot(phi, W, acc, out_dtype=tl.float64)
    return acc


@triton.jit
def load_points(x, origin, i, inside, k, there, D: tl.constexpr):
    """Coordinates k of points i about the origin, and what rounding took; zero where there is none."""
    keep = inside[:, None] & there[None, :]
    xk = tl.load(x + i[:, None] * D + k[None, :], mask=keep, other=0.0)
    v, lost = about(xk, tl.load(origin + k, mask=there, other=0.0)[None, :])
    return tl.where(keep, v, 0.0), tl.where(keep, lost, 0.0)


@triton.jit
def points(
    x, origin, i, inside, D: tl.constexpr, K: tl.constexpr, KC: tl.constexpr, BITS: tl.constexpr, SPLIT: tl.constexpr
):
    """Points as the left operand of `turns`, and the unit of each: one far off takes no digits from the others.

    In float32 points are whole numbers of the unit, `[BN, K]`, and remainders in two half-precision parts. Where
    dimensions are few, the five products of these with the frequencies' parts fit beside each other into KC columns.
    They are then one operand (see `plan.Fourier.operand` for the other). Otherwise KC is 0, and the two parts are
    operands of their own.
    """
    k = tl.arange(0, K)
    v, lost = load_points(x, origin, i, inside, k, k < D, D)
    if SPLIT:
        unit, inverse = power_above(tl.max(tl.abs(v), 1), BITS)
        inverse = inverse[:, None]
        high = whole(v * inverse)
        main = high.to(tl.float16)
        if KC > 0:
            c = tl.arange(0, KC)
            slot = c // D
            v, lost = load_points(x, origin, i, inside, c % D, slot < 5, D)
            high = whole(v * inverse)
            low, lowest = halves((v * inverse - high) + lost * inverse)
            slot = slot[None, :]
            low = tl.where((slot == 0) | (slot == 3), high.to(tl.float16), tl.where(slot == 4, lowest, low))
        else:
            low, lowest = halves((v * inverse - high) + lost * inverse)
    else:
        main, low, lowest, unit = v, v, v, v
    return main, low, lowest, unit


@triton.jit
def turns(main, low, lowest, unit, theta, grid, K: tl.constexpr, KC: tl.constexpr, SPLIT: tl.constexpr):
    """theta . x in turns, less the nearest whole number, `[BN, BF]`; `theta` and `grid` point at a block.

    In float32 both sides are whole numbers (of a unit of x, of a grid of theta) and remainders. The product of the
    whole numbers is exact, so any number of turns is subtracted from it without loss. The remainders' products are
    small.
    """
    k = theta[None, :] + tl.arange(0, K)[:, None]
    if SPLIT:
        step = unit[:, None] * tl.load(grid)[None, :]
        th = tl.load(k)
        t = tl.dot(main, th) * step
        if KC > 0:
            rest = tl.dot(low, tl.load(theta[None, :] + K + tl.arange(0, KC)[:, None]))
        else:
            th_low = tl.load(k + K)
            rest = tl.dot(low, th)
            rest = tl.dot(main, th_low, rest)
            rest = tl.dot(low, th_low, rest)
            rest = tl.dot(lowest, th, rest)
            rest = tl.dot(main, tl.load(k + 2 * K), rest)
        t = (t - whole(t)) + rest * step
    else:
        t = tl.dot(main, tl.load(k), out_dtype=tl.float64)
        t = t - whole(t)
    return t


@triton.jit
def waves(t, SPLIT: tl.constexpr):
    """cos and sin of t turns, |t| <= 1/2."""
    if SPLIT and HARDWARE:
        c, s = libdevice.fast_cosf(t * TWO_PI), libdevice.fast_sinf(t * TWO_PI)
    else:
        quarter = whole(4 * t)
        u = t - 0.25 * quarter
        v = u * u
        a = 1 + v * (C1 + v * (C2 + v * (C3 + v * (C4 + v * (C5 + v * (C6 + v * (C7 + v * C8)))))))
        b = u * (S0 + v * (S1 + v * (S2 + v * (S3 + v * (S4 + v * (S5 + v * (S6 + v * S7)))))))
        q = quarter.to(tl.int32)
        odd = (q & 1) == 1
        c, s = tl.where(odd, b, a), tl.where(odd, a, b)
        c = tl.where(((q + 1) & 2) == 0, c, -c)
        s = tl.where((q & 2) == 0, s, -s)
    return c, s


@triton.jit
def along_points(v, OWN: tl.constexpr):
    """A vector over points as a side of a tile: `[points, basis]`, or `[basis, points]` where rows are OWN."""
    return v[None, :] if OWN else v[:, None]


@triton.jit
def along_basis(v, OWN: tl.constexpr):
    return v[:, None] if OWN else v[None, :]


@triton.jit
def gather(acc, v, k, DP: tl.constexpr, OWN: tl.constexpr):
    """acc `[points, DP]` with the sums of v over the basis added to column k; all is transposed where rows are OWN."""
    here = along_basis(tl.arange(0, DP) == k, OWN)
    return acc + tl.where(here, along_points(tl.sum(v, 0 if OWN else 1), OWN), 0.0)


@triton.jit
def wave_slopes(acc, u, theta, low, F, D: tl.constexpr, DP: tl.constexpr, LOW: tl.constexpr, OWN: tl.constexpr):
    """acc plus the sums over the basis of u theta_k (theta + low where LOW), for each k; both point at the block."""
    if D <= 8:
        for k in tl.static_range(D):
            th = tl.load(theta + k * F)
            th = th + tl.load(low + k * F) if LOW else th
            acc = gather(acc, u * along_basis(th, OWN), k, DP, OWN)
    else:
        for k in range(D):
            th = tl.load(theta + k * F)
            th = th + tl.load(low + k * F) if LOW else th
            acc = gather(acc, u * along_basis(th, OWN), k, DP, OWN)
    return acc
