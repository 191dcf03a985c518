"""Radial kernels in a tile, on the device: distances, values and slopes."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from .tile import along_basis, along_points, gather

_LOG2_E = tl.constexpr(math.log2(math.e))
# The kernels by their numbers, which `plan` gives to classes.
RBF, MATERN_12, MATERN_32, MATERN_52, RATIONAL_QUADRATIC = (tl.constexpr(i) for i in range(5))


@triton.jit
def difference(x, i, inside, z, f, k, M, units, D: tl.constexpr, OWN: tl.constexpr):
    """x_k - z_k for all pairs, in units of a power of two: exact for near points, whatever their offset."""
    xk = tl.load(x + i * D + k, mask=inside, other=0.0) * tl.load(units + k)
    return along_points(xk, OWN) - along_basis(tl.load(z + k * M + f), OWN)


@triton.jit
def squared_distance(start, x, i, inside, z, f, M, units, D: tl.constexpr, ISOTROPIC: tl.constexpr, OWN: tl.constexpr):
    """sum_k (a_k (x_k - z_k))^2, added to `start`, whose layout it takes. `units` holds 2^e_k, then a_k / 2^e_k."""
    q = start
    if D <= 8:
        for k in tl.static_range(D):
            v = difference(x, i, inside, z, f, k, M, units, D, OWN)
            v = v if ISOTROPIC else v * tl.load(units + D + k)
            q += v * v
    else:
        for k in range(D):
            v = difference(x, i, inside, z, f, k, M, units, D, OWN)
            v = v if ISOTROPIC else v * tl.load(units + D + k)
            q += v * v
    if ISOTROPIC:
        a = tl.load(units + D)
        q = q * (a * a)
    return q


@triton.jit
def radial_slopes(acc, u, x, i, inside, z, f, M, units, D: tl.constexpr, DP: tl.constexpr, OWN: tl.constexpr):
    """acc plus the sums over the basis of u (x_k - z_k), for each k."""
    if D <= 8:
        for k in tl.static_range(D):
            acc = gather(acc, u * difference(x, i, inside, z, f, k, M, units, D, OWN), k, DP, OWN)
    else:
        for k in range(D):
            acc = gather(acc, u * difference(x, i, inside, z, f, k, M, units, D, OWN), k, DP, OWN)
    return acc


@triton.jit
def squared_units(units, D: tl.constexpr, DP: tl.constexpr):
    """What `radial_slopes` is due: a_k^2 / 2^e_k."""
    k = tl.arange(0, DP)
    a = tl.load(units + D + k, mask=k < D, other=0.0)
    return a * a * tl.load(units + k, mask=k < D, other=0.0)


@triton.jit
def radial(q, alpha, KIND: tl.constexpr):
    """g(q) and 2 g'(q) of a radial kernel, q = 2 nu r^2 (r^2 for RBF, r^2 / (2 alpha) for the rational quadratic)."""
    if KIND == RBF:
        value = tl.exp2(q * (-0.5 * _LOG2_E))
        slope = -value
    elif KIND == RATIONAL_QUADRATIC:
        value = tl.exp2(-alpha * tl.log2(1 + q))
        slope = -2 * alpha * value / (1 + q)
    else:
        s = tl.sqrt(q)
        decay = tl.exp2(s * -_LOG2_E)
        if KIND == MATERN_12:
            value = decay
            slope = tl.where(q > 0, -decay / tl.where(q > 0, s, 1.0), 0.0)
        elif KIND == MATERN_32:
            value = (1 + s) * decay
            slope = -decay
        else:
            value = (1 + s + q * (1 / 3)) * decay
            slope = (1 + s) * decay * (-1 / 3)
    return value, slope
