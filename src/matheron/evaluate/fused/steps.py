"""Many steps of a recursion x' = x + f(x), or x' = f(x), in one launch.

A program keeps the state of a trajectory and goes from step to step. Each step evaluates the path's own functions at
one point, all outputs in one tile `[outputs, basis]`, so that one reduction per step is all that threads wait for.
Frequencies and weights are read again at every step, from the caches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .radial_kernels import radial
from .tile import about, power_above, waves, whole


@triton.jit
def pick(v, k, DP: tl.constexpr):
    """Entry k of a vector, for every thread."""
    return tl.sum(tl.where(tl.arange(0, DP) == k, v, 0.0), 0)


@triton.jit
def prior_sums(total, v, lost, theta, low, w, F, D: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr,
               SPLIT: tl.constexpr, BF: tl.constexpr):  # fmt: skip
    """total plus W_f cos(theta_f . v) + W'_f sin(theta_f . v), a block of features at a time (see `tile.turns`)."""
    if SPLIT:
        unit, inverse = power_above(tl.max(tl.abs(v), 0), BITS)
        high = whole(v * inverse)
        remainder = ((v * inverse - high) + lost * inverse) * unit
        high = high * unit
    for j in range(0, F, BF):
        main = tl.zeros_like(total)
        rest = tl.zeros_like(total)
        for k in tl.static_range(D):
            th = tl.load(theta + k * F + j)
            if SPLIT:
                main += th * pick(high, k, DP)
                rest += th * pick(remainder, k, DP) + tl.load(low + k * F + j) * pick(v, k, DP)
            else:
                main += th * pick(v, k, DP)
        cosine, sine = waves((main - whole(main)) + rest, SPLIT)
        total += tl.load(w + j) * cosine
        total += tl.load(w + F + j) * sine
    return total


@triton.jit
def update_sums(total, x, z, a, alpha, w, M, D: tl.constexpr, DP: tl.constexpr, KIND: tl.constexpr, BF: tl.constexpr):
    """total plus W_j k(x, z_j), a block of centres at a time."""
    for j in range(0, M, BF):
        q = tl.zeros_like(total)
        for k in tl.static_range(D):
            u = (pick(x, k, DP) - tl.load(z + k * M + j)) * tl.load(a + k)
            q += u * u
        value, _ = radial(q, tl.load(alpha), KIND)
        total += tl.load(w + j) * value
    return total


@triton.jit(do_not_specialize=["each", "driven", "count", "first", "every", "kept_s"])
def advance(
    x, drive, kept, origin, theta, low, at, w, z, a, alpha, v, slope, gain, level,
    each, driven, count, first, every, kept_s, F, M,
    T: tl.constexpr, TP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BITS: tl.constexpr, KINDS: tl.constexpr,
    SLOTS: tl.constexpr, LINEAR: tl.constexpr, DRIVEN: tl.constexpr, ADDS: tl.constexpr, SPLIT: tl.constexpr,
    BF: tl.constexpr,
):  # fmt: skip
    """`count` steps of the inputs x `[r, D]`, of which the first T are states, from step `first` on.

    There are `each` trajectories per path, one after the other. A step adds f to the states, or replaces them by f, and
    puts zero in place of the other inputs. Then it adds `drive[step] [driven, D]` to all inputs, repeated over the
    trajectories. Every `every`-th state is kept. See `recursion.Recursion` for the rest.
    """
    trajectory = tl.program_id(0).to(tl.int64)
    path = trajectory // each
    k = tl.arange(0, DP)
    o = tl.load(origin + k, mask=k < D, other=0.0)
    state = tl.load(x + trajectory * D + k, mask=k < D, other=0.0)
    r = tl.arange(0, TP)
    row = tl.minimum(r, T - 1)[:, None]  # rows beyond the last are copies of it, which are not used
    c = tl.arange(0, BF)[None, :]
    offset = tl.load(at + path * T + row) + c
    w += (path * T + row) * 2 * F + c
    drive += (trajectory % driven) * D
    for i in range(count):
        if DRIVEN:
            push = tl.load(drive + k, mask=k < D, other=0.0)
            drive += driven * D
        from_origin, lost = about(state, o)
        total = tl.zeros([TP, BF], w.dtype.element_ty)
        if LINEAR:
            for j in tl.static_range(D):
                total += tl.where(c == 0, tl.load(slope + row * D + j) * pick(from_origin, j, DP), 0.0)
        total = prior_sums(total, from_origin, lost, theta + offset, low + offset, w, F, D, DP, BITS, SPLIT, BF)
        for slot in tl.static_range(SLOTS):
            q = slot * T + row
            total = update_sums(
                total, state, z + q * D * M + c, a + q * D, alpha + q, v + ((path * SLOTS + slot) * T + row) * M + c,
                M, D, DP, (KINDS >> (3 * slot)) & 7, BF,
            )  # fmt: skip
        f = tl.sum(total, 1)[:, None] * tl.load(gain + row) + tl.load(level + row)
        following = tl.sum(tl.where(r[:, None] == k[None, :], f, 0.0), 0)
        if ADDS:
            following += state
        state = tl.where(k < T, following, 0.0)
        if DRIVEN:
            state += push
        step = first + i + 1
        if step % every == 0:
            tl.store(kept + trajectory * kept_s + (step // every) * T + k, state, mask=k < T)
    tl.store(x + trajectory * D + k, state, mask=k < D)
