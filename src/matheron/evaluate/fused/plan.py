"""What the GPU kernels need of paths, made once a Paths: rows of weights, frequencies in turns, centres in units.

Rows are outputs of paths, row = path * t + output. Float32 frequencies are split into whole numbers of a grid and
remainders (see `tile.turns`); float32 weights of shared points into two half-precision parts, scaled row by row (see
`tile.product`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(eq=False)
class Tiles:
    """Rows in tiles of `size` that share a basis: which rows `[tiles, size]` (-1: none), and which basis `[tiles]`."""

    rows: Tensor
    group: Tensor
    size: int

    def pack(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights `[r, h, c]` as `[tiles, h, parts, size, c]`, and the scale `[tiles, size]` that the sums are due."""
        W = weights[self.rows.clamp_min(0)].transpose(1, 2)  # [tiles, h, size, c]
        if weights.dtype == torch.float64:
            return W[:, :, None].contiguous(), weights.new_ones(1)
        largest = weights.abs().amax((1, 2))  # [r]
        exponent = (torch.frexp(largest).exponent - 14).clamp(-126, 126)[self.rows.clamp_min(0)]  # [tiles, size]
        W = W * two_to(-exponent, W.dtype)[:, None, :, None]
        high = W.half()
        return torch.stack([high, (W - high).half()], dim=2), two_to(exponent, W.dtype)


def tiles(groups: list[list[int]], device: torch.device, at_least: int = 16) -> Tiles:
    """Tiles of the rows of each group, no wider than the widest needs."""
    widest = max(map(len, groups))
    size = min(64, max(at_least, 2 ** math.ceil(math.log2(widest))))
    rows, group = [], []
    for g, members in enumerate(groups):
        for i in range(0, len(members), size):
            part = members[i : i + size]
            rows.append(part + [-1] * (size - len(part)))
            group.append(g)
    whole = (torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (rows, group))
    return Tiles(*whole, size)


@dataclass(eq=False)
class Fourier:
    """sum_f W_f cos(theta_f . x) + W'_f sin(theta_f . x), or sum_f W_f cos(theta_f . x + tau_f) where tau is given.

    theta `[g, F, d]` in turns, float64; tau `[g, F]` in turns; weights `[r, h, F]` with h = 2 or 1; the rows of each
    basis, and which basis each path uses `[s]`.
    """

    theta: Tensor
    tau: Tensor | None
    weights: Tensor
    groups: list[list[int]]
    index: Tensor

    @property
    def bits(self) -> int:
        """How many bits whole numbers have: few enough for the sum over dimensions to be exact in 22 of them."""
        return (22 - math.ceil(math.log2(self.theta.shape[2]))) // 2

    @property
    def widths(self) -> tuple[int, int]:
        """K and KC of `tile.points`: columns of whole numbers, and of all products of remainders; powers of two."""
        d = self.theta.shape[2]
        together = 5 * d <= 32 and self.weights.dtype == torch.float32
        return max(16, power_of_two(d)), max(16, power_of_two(5 * d)) if together else 0

    @cached_property
    def on_grid(self) -> tuple[Tensor, Tensor, Tensor]:
        """The grid `[g, F]` of each frequency, its whole numbers and its remainders `[g, F, d]`, all float64."""
        exponent = torch.frexp(self.theta.abs().amax(-1)).exponent - self.bits
        grid = two_to(exponent, torch.float64)
        v = self.theta / grid[..., None]
        return grid, v.round(), v - v.round()

    @cached_property
    def operand(self) -> tuple[Tensor, Tensor]:
        """Frequencies as the right operand of `tile.turns`, `[g, F, K + KC or 3 K]`, and their grid `[g, F]`."""
        K, KC = self.widths
        g, F, d = self.theta.shape
        if self.weights.dtype == torch.float64:
            return torch.nn.functional.pad(self.theta, (0, K - d)), self.weights.new_ones(1)
        grid, high, rest = self.on_grid
        low = rest.half()
        lowest = (rest - low).half()
        high = high.half()
        if KC == 0:
            return torch.nn.functional.pad(torch.stack([high, low, lowest], 2), (0, K - d)).flatten(2), grid.float()
        columns = torch.zeros(g, F, K + KC, dtype=torch.float16, device=high.device)
        columns[..., :d] = high
        columns[..., K : K + 5 * d] = torch.cat([low, high, low, lowest, high], dim=-1)
        return columns, grid.float()

    @cached_property
    def by_rows(self) -> tuple[Tensor, Tensor]:
        """Frequencies `[g, d, F]` in turns, on the grid, and the remainders."""
        if self.weights.dtype == torch.float64:
            theta = self.theta.mT.contiguous()
            return theta, theta
        grid, high, rest = (v if v.ndim == 3 else v[..., None] for v in self.on_grid)
        return (high * grid).mT.float().contiguous(), (rest * grid).mT.float().contiguous()

    @cached_property
    def slopes(self) -> Tensor:
        """theta in radians, `[g, d, F]`."""
        return (2 * math.pi * self.theta).mT.to(self.weights.dtype).contiguous()

    @cached_property
    def tiles(self) -> Tiles:
        return tiles(self.groups, self.theta.device)

    @cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        return self.tiles.pack(self.weights)

    def derivative(self, k: int) -> tuple[Tensor, Tensor | None]:
        """The derivative in coordinate k as a sum of the same waves: its weights, and its tau, a quarter turn on."""
        theta = self.slopes[:, k]  # [g, F]
        if len(theta) > 1:
            theta = theta[self.index].repeat_interleave(len(self.weights) // len(self.index), 0)
        if self.tau is not None:
            return self.weights * theta[:, None], self.tau + 0.25
        return torch.stack([self.weights[:, 1], -self.weights[:, 0]], dim=1) * theta[:, None], None


@dataclass(eq=False)
class RadialPlan:
    """sum_j W_j k(x, z_j): centres in units `[d, M]`, weights `[r, 1, M]`, and the kernel's number in `radial`.

    units `[2 d + 1]` holds 2^e_k, a_k / 2^e_k and alpha, where q = sum_k (a_k (x_k - z_k))^2 is what the kernel is of.
    With an index `[s]`, there are several sets of centres `[g, d, M]` and units `[g, 2 d + 1]`, and each path uses one.
    """

    kind: int
    isotropic: bool
    centres: Tensor
    units: Tensor
    weights: Tensor
    index: Tensor | None = None

    @cached_property
    def tiles(self) -> Tiles:
        return tiles([list(range(len(self.weights)))], self.weights.device)

    @cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        return self.tiles.pack(self.weights)


@dataclass(eq=False)
class Plan:
    """Everything of some paths but their mean. `origin` is `[d]`; of joined plans one per basis, `[g, d]`."""

    num_paths: int
    num_outputs: int
    origin: Tensor
    fourier: list[Fourier]
    radial: list[RadialPlan]

    @property
    def num_rows(self) -> int:
        return self.num_paths * self.num_outputs


def two_to(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent, exactly (a device's power function may be an ulp off), within the range of normal numbers."""
    if dtype == torch.float64:
        return (exponent.long().clamp(-1022, 1023) + 1023 << 52).view(torch.float64)
    return (exponent.int().clamp(-126, 127) + 127 << 23).view(torch.float32)


def power_of_two(n: int) -> int:
    """The least power of two from n."""
    return 1 << (n - 1).bit_length()
