"""The basis of updates given slopes: derivatives of k(x, z) in z, and in x."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.arena import frame, weigh, weigh_coordinates
from ..kernels import Kernel
from ..kernels.base import squared_distance
from .bases import Basis


class CanonicalSlopes(Basis):
    """Derivatives of k(x, z_j) in z_j along directions `[c, q, d]`, and in x along `left` `[p, d]`.

    The update given slopes is a sum of these functions, and so are the slopes of an update.
    """

    shapes = "centres: c d, directions: c q d, left: p d"

    def __init__(self, kernel: Kernel, centres: Tensor, directions: Tensor, left: Tensor | None = None) -> None:
        left = centres.new_zeros(0, centres.shape[-1]) if left is None else left
        super().__init__(centres=centres, directions=directions, left=left)
        self.kernel = kernel

    @property
    def size(self) -> int:
        return self.centres.shape[0]

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        for i in range(0, self.size, width):
            cut = slice(i, i + width)
            yield CanonicalSlopes(self.kernel, self.centres[cut], self.directions[cut], self.left), cut

    def derivative(self, W: Tensor, index: Tensor | None, direction: Tensor) -> tuple[Basis, Tensor] | None:
        left = torch.cat([self.left, direction.to(self.left)[None]])
        return CanonicalSlopes(self.kernel, self.centres, self.directions, left), W

    def values(self, x: Tensor) -> Tensor:
        return self._along(x, [])

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        radial = self._radial_with_gradient(x, W)
        if radial is not None:
            return radial
        axes = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        slopes = []
        for axis in axes:
            with frame():
                slopes.append(weigh(self._along(x, [axis]), W))
        return weigh(self.values(x), W), torch.stack(slopes, dim=-1)

    def _radial_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor] | None:
        """Sums and gradients for radial kernels k = g(r^2) and one direction per centre; None for others.

        No matrix is made for each coordinate. With u the direction and l the lengthscale,

            u . grad_z k  =  -2 g' b,     b = <u / l, (x - z) / l>,
            its gradient  =  -(2 / l) (2 g'' b (x - z) / l  +  g' u / l).
        """
        parts = self.kernel.radial_parts(x.shape[-1])
        if parts is None or self.directions.shape[1] + len(self.left) != 1:
            return None
        # k depends on x - z only, so a derivative in x is minus the derivative in z.
        u = self.directions[:, 0] if self.directions.shape[1] else -self.left.expand(self.size, -1)
        value, gradient = None, x.new_zeros(len(W), W.shape[1], *x.shape[1:])
        for part in parts:
            with frame():
                scale = 1 / part.kernel.lengthscale
                origin = self.centres[:1, part.dims]
                y, z = (x[..., part.dims] - origin) * scale, (self.centres[:, part.dims] - origin) * scale
                v = u[:, part.dims] * scale  # [c, p]
                b = y @ v.mT - (z * v).sum(-1)  # [B, n, c]
                profiles = part.kernel.profiles(squared_distance(y, z), (1, 2))
                first, second = profiles[1], profiles[2].mul_(b).mul_(2)
                factor = -2.0 if part.scale is None else -2.0 * part.scale
                own = weigh(b.mul_(first), W) * factor  # [B, r, n]
                pull = y[:, None] * weigh(second, W)[..., None] - weigh_coordinates(second, W, z[None])
                pull = (pull + weigh_coordinates(first, W, v[None])) * (factor * scale)  # [B, r, n, p]
            value = own if value is None else value + own
            gradient[..., part.dims] += pull
        assert value is not None
        return value, gradient

    def _along(self, x: Tensor, more: list[Tensor]) -> Tensor:
        """The basis functions `[B, n, c]`, differentiated in x along more directions `[d]`."""
        flat = x.reshape(-1, x.shape[-1])
        left = [u.expand(len(flat), -1) for u in [*more, *self.left]]
        return self.kernel.derivative(flat, self.centres, left, self.directions.unbind(1)).reshape(
            *x.shape[:-1], self.size
        )
