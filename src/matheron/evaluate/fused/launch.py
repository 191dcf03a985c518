"""From a plan and points to sums, gradients and vector-Jacobian products: which kernel, in which tiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from . import backward, own, shared
from .plan import Fourier, Plan, RadialPlan, power_of_two

# Up to this many sums (rows times points), one program per row is faster than tensor cores, which would have too few
# programs.
FEW_SUMS = 1 << 13
# The largest number of values that the slopes of rows may have in memory at a time.
_ROOM = 1 << 25
# `fourier_vjp` is used in float32 up to this many dimensions; `rows` is used beyond. There it gave wrong values on an
# H200 (Triton 3.6), when both of its left operands are 64 wide, although Triton's interpreter agrees with blocks.
# tests/evaluate/wide_vjp.py is the smallest case: on a GPU it prints which tiles are wrong.
WIDEST_VJP = 32
# For programs that have one row: the number of basis functions at a time, and the number of warps.
ROWS = (16, 1)


class FusedKernel(Protocol):
    """What `triton.jit` makes."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...


def run(kernel: FusedKernel, grid: tuple[int, ...], first: Tensor, *args: object, **options: object) -> None:
    with torch.cuda.device_of(first):  # Triton launches on the current device
        kernel[grid](first, *args, **options)


def sums_with_gradient(plan: Plan, x: Tensor, base: Tensor, slope: Tensor | None) -> tuple[Tensor, Tensor]:
    """`sums`, and their gradient `[s, n, t, d]`, to which `slope`, that of the base, is added."""
    out, gradient = sums(plan, x, base, gradient=True)
    assert gradient is not None
    return out, gradient if slope is None else gradient.add_(slope)


def sums(plan: Plan, x: Tensor, base: Tensor, gradient: bool = False) -> tuple[Tensor, Tensor | None]:
    """base + prior + update at x `[1, n, d]` or `[s, n, d]`; base broadcasts to the result's `[s, n, t]`. With
    `gradient`, that of all but the base, `[s, n, t, d]`."""
    s, t, (n, d) = plan.num_paths, plan.num_outputs, x.shape[1:]
    before = base.expand(s, n, t).mT  # [s, t, n]
    parts: list[Fourier | RadialPlan] = [*plan.fourier, *plan.radial]
    if n == 0 or not parts:
        return before.mT.clone(), x.new_zeros(s, n, t, d) if gradient else None
    out = torch.empty(s, t, n, dtype=x.dtype, device=x.device)
    slopes = torch.empty(d, s * t, n, dtype=x.dtype, device=x.device) if gradient else None
    for part in parts:
        first = part is parts[0]
        if _by_rows(plan, part, x):
            _rows(plan, part, x, before, out, slopes, first)
        else:
            _tiles(plan, part, x[0], before, out, slopes, first)
        before = out
    return out.mT, None if slopes is None else slopes.reshape(d, s, t, n).permute(1, 3, 2, 0)


def _by_rows(plan: Plan, part: Fourier | RadialPlan, x: Tensor) -> bool:
    alone = isinstance(part, Fourier) and max(map(len, part.groups)) == 1
    return len(x) > 1 or alone or plan.num_rows * x.shape[1] <= FEW_SUMS


def _rows(
    plan: Plan, part: Fourier | RadialPlan, x: Tensor, before: Tensor, out: Tensor, slopes: Tensor | None, first: bool
) -> None:
    """One part's sums (added to `before`) and slopes (added to what is there, but for the first), row by row."""
    n, d = x.shape[1:]
    BN = min(32, power_of_two(n))
    options = dict(
        D=d, DP=power_of_two(d), SPLIT=x.dtype == torch.float32, GRADIENT=slopes is not None, ADD=not first,
        BN=BN, BF=ROWS[0], num_warps=ROWS[1],
    )  # fmt: skip
    at = [n, part.weights.shape[-1], plan.num_outputs, 0 if len(x) == 1 else n * d, *before.stride()]
    written = out if slopes is None else slopes
    at.append(0 if slopes is None else slopes.stride(0))
    grid = (plan.num_rows * math.ceil(n / BN),)
    if isinstance(part, Fourier):
        theta, low = part.by_rows
        tau = theta if part.tau is None else part.tau
        run(
            own.fourier_rows, grid,
            x, plan.origin, theta, low, tau, part.weights, part.index, before, out, written, *at,
            0 if plan.origin.ndim == 1 else d, BITS=part.bits, PAIRS=part.tau is None, **options,
        )  # fmt: skip
    else:
        run(
            own.radial_rows, grid, x, part.centres, part.units, part.weights,
            x if part.index is None else part.index, before, out, written, *at,
            KIND=part.kind, ISOTROPIC=part.isotropic, SEVERAL=part.index is not None, **options,
        )  # fmt: skip


def _tiles(
    plan: Plan, part: Fourier | RadialPlan, x: Tensor, before: Tensor, out: Tensor, slopes: Tensor | None, first: bool
) -> None:
    """The same at shared points `[n, d]`, in tiles of rows. The slopes of waves are waves."""
    n, d = x.shape
    if isinstance(part, Fourier):
        _fourier(plan, part, x, part.packed, part.tau, before, out)
    else:
        _radial(plan, part, x, before, out, gradient=False)
    if slopes is None:
        return
    if first:
        slopes.zero_()
    there = slopes.reshape(d, plan.num_paths, plan.num_outputs, n)
    if isinstance(part, RadialPlan):
        _radial(plan, part, x, there[0], slopes, gradient=True)
        return
    for k in range(d):
        weights, tau = part.derivative(k)
        _fourier(plan, part, x, part.tiles.pack(weights), tau, there[k], there[k])


def _fourier(
    plan: Plan, part: Fourier, x: Tensor, packed: tuple[Tensor, Tensor], tau: Tensor | None, before: Tensor, out: Tensor
) -> None:
    n, d = x.shape
    (K, KC), (theta, grid), (W, scale) = part.widths, part.operand, packed
    options = tile_options(x, part.tiles.size)
    run(
        shared.fourier_sums, (len(part.tiles.rows) * math.ceil(n / options["BN"]),),
        x, plan.origin, theta, grid, theta if tau is None else tau, W, scale, part.tiles.rows, part.tiles.group,
        before, out,
        n, W.shape[-1], plan.num_outputs, *before.stride(), n,
        D=d, K=K, KC=KC, BITS=part.bits, PAIRS=tau is None, **options,
    )  # fmt: skip


def _radial(plan: Plan, part: RadialPlan, x: Tensor, before: Tensor, out: Tensor, gradient: bool) -> None:
    n, d = x.shape
    W, scale = part.packed
    options = tile_options(x, part.tiles.size) | (dict(STAGES=3) if d <= 16 else {})
    grid = (len(part.tiles.rows) * math.ceil(n / options["BN"]), d if gradient else 1)
    run(
        shared.radial_sums, grid, x, part.centres, part.units, W, scale, part.tiles.rows, before, out,
        n, W.shape[-1], plan.num_rows, plan.num_outputs, *before.stride(), n, W.new_zeros(1),
        D=d, KIND=part.kind, ISOTROPIC=part.isotropic, GRADIENT=gradient, **options,
    )  # fmt: skip


def vjp(plan: Plan, x: Tensor, gradient: Tensor) -> Tensor:
    """sum over rows of gradient `[s, n, t]` times the slopes of the sums at shared x `[1, n, d]`: `[1, n, d]`."""
    n, d = x.shape[1:]
    total = torch.zeros_like(x)
    if n == 0:
        return total
    G = gradient.mT.contiguous()  # [s, t, n]
    parts: list[Fourier | RadialPlan] = [*plan.fourier, *plan.radial]
    wide = x.dtype == torch.float32 and d > WIDEST_VJP
    alone = [part for part in parts if _by_rows(plan, part, x) or (wide and isinstance(part, Fourier))]
    for part in [part for part in parts if part not in alone]:
        options = tile_options(x[0], part.tiles.size)
        options |= dict(D=d, DP=power_of_two(d))
        W, scale = part.packed
        out = torch.empty(len(part.tiles.rows), n, d, dtype=x.dtype, device=x.device)
        grid = (len(part.tiles.rows) * math.ceil(n / options["BN"]),)
        if isinstance(part, Fourier):
            (K, KC), (theta, steps) = part.widths, part.operand
            tau = theta if part.tau is None else part.tau
            run(
                backward.fourier_vjp, grid,
                x, plan.origin, theta, steps, tau, part.slopes, W, scale, part.tiles.rows, part.tiles.group, G,
                out,
                n, W.shape[-1], K=K, KC=KC, BITS=part.bits, PAIRS=part.tau is None, **options,
            )  # fmt: skip
        else:
            run(
                backward.radial_vjp, grid, x, part.centres, part.units, W, scale, part.tiles.rows, G, out,
                n, W.shape[-1], KIND=part.kind, ISOTROPIC=part.isotropic, **options,
            )  # fmt: skip
        total += out.sum(0)
    if alone:
        total += _vjp_by_rows(plan, alone, x, G)
    return total


def _vjp_by_rows(plan: Plan, parts: list[Fourier | RadialPlan], x: Tensor, G: Tensor) -> Tensor:
    """The vector-Jacobian product from the slopes of every row, some points at a time."""
    n, d = x.shape[1:]
    step = max(1, _ROOM // (plan.num_rows * d))
    total = torch.empty_like(x)
    for i in range(0, n, step):
        piece = x[:, i : i + step].contiguous()
        out = torch.empty(*G.shape[:2], piece.shape[1], dtype=x.dtype, device=x.device)
        slopes = torch.empty(d, *out.shape, dtype=x.dtype, device=x.device)  # [d, s, t, n]
        for part in parts:
            _rows(plan, part, piece, x.new_zeros(1).expand(out.shape), out, slopes.flatten(1, 2), part is parts[0])
        total[0, i : i + step] = torch.einsum("stn,kstn->nk", G[..., i : i + step], slopes)
    return total


def tile_options(x: Tensor, rows: int) -> dict[str, int]:
    """Tile sizes that fit registers and shared memory; more dimensions need more of both."""
    split, wide = x.dtype == torch.float32, x.shape[-1] > 16
    return dict(SPLIT=split, BN=64, BF=16 if wide and not split else 32, BR=rows, STAGES=1 if wide else 2, num_warps=4)
