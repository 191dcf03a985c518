"""Canonical: the functions k(., z_j) of a kernel and its centres, the update's basis."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..kernels import Kernel
from ..kernels.base import squared_distance
from ..scratch import frame
from .basis import Basis, CutBasis, pulled_weights


class Canonical(CutBasis):
    """k(x, z_j), the canonical basis functions of centres z `[c, d]`: the update's basis."""

    def __init__(self, kernel: Kernel, centres: Tensor) -> None:
        super().__init__(centres=centres)
        self.kernel = kernel

    @property
    def size(self) -> int:
        return self.centres.shape[0]

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        for i in range(0, self.size, width):
            yield Canonical(self.kernel, self.centres[i : i + width]), slice(i, i + width)

    def _pulled(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        """sum_j H_j dk(x, z_j)/dx, H = G^T W: of a radial kernel slopes and products, of others a problem per point."""
        H = pulled_weights(W, G)  # [n, c]
        total = self._radial_slopes(x[0], H)
        if total is None:
            return self.kernel.weighted_with_gradient(x[0][:, None], self.centres, H[:, None])[1][None, :, 0, 0]
        return total[None]

    def _slope(self, x: Tensor, w: Tensor) -> Tensor:
        total = self._radial_slopes(x[0], w[None])
        return super()._slope(x, w) if total is None else total[None]

    def _radial_slopes(self, x: Tensor, H: Tensor) -> Tensor | None:
        """sum_j H_j dk(x, z_j)/dx, `[n, d], [n or 1, c] -> [n, d]`; None where the kernel is not radial."""
        parts = self.kernel.radial_parts(x.shape[-1])
        if parts is None:
            return None
        total = torch.zeros_like(x)
        for part in parts:
            scale = 1 / part.kernel.lengthscale
            origin = self.centres[:1, part.dims]
            y, z = (x[:, part.dims] - origin) * scale, (self.centres[:, part.dims] - origin) * scale
            with frame():
                slope = part.kernel.radial_with_slope(squared_distance(y, z))[1].mul_(H)  # [n, c]
                pull = (y * slope.sum(1, keepdim=True) - slope @ z) * (2 * scale)
            total[:, part.dims] += pull if part.scale is None else pull * part.scale
        return total

    def values(self, x: Tensor) -> Tensor:
        return self.kernel.forward(x, self.centres)

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel.weighted_with_gradient(x, self.centres, W)
