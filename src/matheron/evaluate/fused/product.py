"""k(X, X) V on a GPU: which kernels can be multiplied in one pass, and how."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.modes import kept
from ...kernels import Kernel
from .plan import LARGEST_DIM, PAD, RadialPlan, Tiles, radial_parts, tiles

# The number of rows that share a tile of the tensor cores.
TILE = 64


class FusedProducts:
    """k(X, X) V for a sum of radial kernels, coupled over tasks or not."""

    def __init__(self, parts: list[tuple[Tensor | None, RadialPlan]], X: Tensor, tasks: Tensor | None) -> None:
        self.parts, self.X, self.tasks = parts, X.contiguous(), tasks

    def rows(self, index: Tensor | slice, V: Tensor) -> Tensor:
        """Some rows of K V for V `[n, r]`, without tasks: `[k, r]`."""
        x = self.X[index].contiguous()
        return sum((_multiplied(part, x, V) for _, part in self.parts), V.new_zeros(len(x), V.shape[1]))

    def __call__(self, V: Tensor) -> Tensor:
        """K V for V `[n, r]`: `[n, r]`."""
        total = torch.zeros_like(V)
        for B, part in self.parts:
            if B is None or self.tasks is None:
                total += _multiplied(part, self.X, V)
                continue
            t, r = len(B), V.shape[1]  # a block of columns per task
            here = torch.nn.functional.one_hot(self.tasks, t).to(V)  # [n, t]
            each = _multiplied(part, self.X, (here[:, :, None] * V[:, None]).flatten(1)).unflatten(1, (t, r))
            total += torch.einsum("nt,ntr->nr", B[self.tasks], each)
        return total


def plan_products(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> FusedProducts | None:
    """How to multiply with k(X, X) in fused kernels; None where they do not serve: no GPU, or a kernel not radial."""
    from . import usable

    return make_products(kernel, X, tasks) if usable(X.device) else None


def make_products(kernel: Kernel, X: Tensor, tasks: Tensor | None) -> FusedProducts | None:
    """Fused products on any device; None where the kernel is not a sum of radial ones, or dimensions are too many."""
    if X.shape[1] > LARGEST_DIM:
        return None
    parts: list[tuple[Tensor | None, RadialPlan]] = []
    for B, k in kernel.coupled():
        made = radial_parts(k, X, X.new_ones(1, 1, len(X)))
        if made is None:
            return None
        parts += [(B, part) for part in made]
    return FusedProducts(parts, X, tasks)


@kept(32)
def _tiles(r: int, device: torch.device) -> Tiles:
    """Tiles of r rows: of 16 or of 64, since every width is a kernel to be compiled."""
    return tiles([list(range(r))], device, at_least=16 if r <= 16 else TILE)


def _multiplied(part: RadialPlan, x: Tensor, V: Tensor) -> Tensor:
    """One radial kernel's k(x, X) V. `part.weights [1, 1, M]` holds the kernel's scale, at every centre."""
    from . import shared
    from .launch import run, tile_options

    (n, d), (m, r) = x.shape, V.shape
    odd = r % TILE == 1 and r > 1
    W = torch.nn.functional.pad(V.mT * part.weights[0, :, :m], (0, -m % PAD)).contiguous()  # [r, M]
    rows = _tiles(r - odd, x.device)
    packed, scale = rows.pack(W[: r - odd, None])
    out = torch.empty(r, n, dtype=V.dtype, device=V.device)
    # the alignment of `out` does not change with r, so that Triton compiles no second kernel
    side = (W[r - 1], out[r - 1]) if odd else (W, out)
    options = tile_options(x, rows.size) | (dict(STAGES=3) if d <= 16 else {})
    run(
        shared.radial_products, (len(rows.rows) * math.ceil(n / options["BN"]),),
        x, part.centres, part.units, packed, scale, rows.rows, side[0], out, side[1], n, W.shape[1], x.new_zeros(1),
        D=d, KIND=part.kind, ISOTROPIC=part.isotropic, ODD=odd, **options,
    )  # fmt: skip
    return out.mT.contiguous()
