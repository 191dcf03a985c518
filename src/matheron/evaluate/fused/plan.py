"""What the GPU kernels need of paths, made once a Paths: rows of weights, frequencies in turns, centres in units.

Rows are outputs of paths, row = path * t + output. Float32 frequencies are split into whole numbers of a grid and remainders
(see `tile.turns`); float32 weights of shared points into two half-precision parts, scaled row by row (see `tile.product`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...features.basis import Cosines, Pairs
from ...kernels import RBF, Kernel, Matern, OnDims, RationalQuadratic, Scaled, Sum

# Basis functions are padded to a multiple of this, with weights of zero.
PAD = 64
# The largest number of dimensions.
LARGEST_DIM = 64
_KINDS = {(Matern, 0.5): 1, (Matern, 1.5): 2, (Matern, 2.5): 3}


@dataclass
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
        exponent = (torch.frexp(largest).exponent - 14)[self.rows.clamp_min(0)]  # [tiles, size]
        W = W * _two_to(-exponent, W.dtype)[:, None, :, None]
        high = W.half()
        return torch.stack([high, (W - high).half()], dim=2), _two_to(exponent, W.dtype)


def tiles(groups: list[list[int]], device: torch.device) -> Tiles:
    """Tiles of the rows of each group, no wider than the widest needs."""
    widest = max(map(len, groups))
    size = min(64, max(16, 2 ** math.ceil(math.log2(widest))))
    rows, group = [], []
    for g, members in enumerate(groups):
        for i in range(0, len(members), size):
            part = members[i : i + size]
            rows.append(part + [-1] * (size - len(part)))
            group.append(g)
    return Tiles(
        torch.tensor(rows, dtype=torch.int32, device=device), torch.tensor(group, dtype=torch.int32, device=device), size
    )


@dataclass
class Fourier:
    """sum_f W_f cos(theta_f . x) + W'_f sin(theta_f . x), or sum_f W_f cos(theta_f . x + tau_f) where tau is given.

    theta `[g, F, d]` in turns, float64; tau `[g, F]` in turns; weights `[r, h, F]` with h = 2 or 1; the rows of each basis.
    """

    theta: Tensor
    tau: Tensor | None
    weights: Tensor
    groups: list[list[int]]
    index: Tensor  # [s]: which basis each path uses

    @property
    def bits(self) -> int:
        """How many bits whole numbers have: few enough for the sum over dimensions to be exact in 22 of them."""
        return (22 - math.ceil(math.log2(self.theta.shape[2]))) // 2

    @property
    def widths(self) -> tuple[int, int]:
        """K and KC of `tile.points`, powers of two from 16: columns of whole numbers, and of all products of remainders."""
        d = self.theta.shape[2]
        together = 5 * d <= 32 and self.weights.dtype == torch.float32
        return max(16, _power(d)), max(16, _power(5 * d)) if together else 0

    @cached_property
    def on_grid(self) -> tuple[Tensor, Tensor, Tensor]:
        """The grid `[g, F]` of each frequency, its whole numbers and its remainders `[g, F, d]`, all float64."""
        exponent = torch.frexp(self.theta.abs().amax(-1)).exponent - self.bits
        grid = _two_to(exponent, torch.float64)
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
        """Frequencies `[g, d, F]` in turns, on the grid, and what the grid leaves."""
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
        theta = theta if len(theta) == 1 else theta[self.index].repeat_interleave(len(self.weights) // len(self.index), 0)
        if self.tau is not None:
            return self.weights * theta[:, None], self.tau + 0.25
        return torch.stack([self.weights[:, 1], -self.weights[:, 0]], dim=1) * theta[:, None], None


@dataclass
class Radial:
    """sum_j W_j k(x, z_j): centres in units `[d, M]`, units `[2 d + 1]` (2^e_k, a_k / 2^e_k, alpha), weights `[r, 1, M]`."""

    kind: int
    isotropic: bool
    centres: Tensor
    units: Tensor
    weights: Tensor

    @cached_property
    def tiles(self) -> Tiles:
        return tiles([list(range(len(self.weights)))], self.weights.device)

    @cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        return self.tiles.pack(self.weights)


@dataclass
class Plan:
    """Everything of some paths but their mean."""

    num_paths: int
    num_outputs: int
    origin: Tensor
    fourier: list[Fourier]
    radial: list[Radial]
    made_of: list[tuple[dict[str, Tensor | None], str, Tensor, int]] = field(repr=False)

    @property
    def num_rows(self) -> int:
        return self.num_paths * self.num_outputs

    def stands(self) -> bool:
        """Whether the tensors it was made of are still those of the paths, and unchanged."""
        return all(
            owner.get(name) is tensor and tensor._version == version for owner, name, tensor, version in self.made_of
        )


def make_plan(paths: Any) -> Plan | None:
    """The plan of a Paths; None where some of it has no kernel here, or is tied to a graph."""
    prior, update = paths.prior, paths.update
    s, t = prior.w.shape[:2]
    d = prior.features.origin.shape[0]
    if d > LARGEST_DIM or paths.requires_graph() or prior.w.dtype not in (torch.float32, torch.float64):
        return None
    fourier = _fourier(prior)
    radial: list[Radial] | None = []
    for B, basis in update.coupled if update.width else []:
        leaves = _leaves(basis.kernel, d)
        if leaves is None or fourier is None:
            return None
        W = update.coupled_weights(B, update.v).reshape(s * t, 1, -1)
        radial += [_radial(leaf, basis.centres, W) for leaf in leaves]
    if fourier is None:
        return None
    made_of = []
    for module in [*prior.modules(), *update.modules()]:
        made_of += [(module._buffers, name, b, b._version) for name, b in module._buffers.items() if b is not None]
    return Plan(s, t, prior.features.origin, fourier, radial, made_of)


def _fourier(prior: Any) -> list[Fourier] | None:
    """The prior's bases. A few cosines beside pairs become pairs, so that one launch does for both."""
    parts: list[Fourier] = []
    t = prior.w.shape[1]
    bases = list(prior.features.bases)
    if not all(type(basis) in (Pairs, Cosines) for basis in bases):
        return None
    pairs = max((basis.frequencies.shape[1] for basis in bases if isinstance(basis, Pairs)), default=0)
    for i, basis in enumerate(bases):
        W = getattr(prior, f"coefficients_{i}")
        theta = basis.frequencies.double() / (2 * math.pi)
        tau = None
        if isinstance(basis, Pairs):
            W = W.reshape(W.shape[0] * t, 2, -1)
        elif 4 * theta.shape[1] > pairs:
            W = W.reshape(W.shape[0] * t, 1, -1)
            tau = basis.phases.double() / (2 * math.pi)
            tau = (tau - tau.round()).to(W.dtype)
        else:
            phases = basis.phases if len(basis.phases) == 1 else basis.phases[prior.basis_index]
            W = torch.stack([W * phases[:, None].cos(), W * -phases[:, None].sin()], dim=2).flatten(0, 1)
        several = basis.num_bases > 1
        groups = [members for _, members in prior.groups] if several else [list(range(len(prior.w)))]
        if several and [g for g, _ in prior.groups] != list(range(basis.num_bases)):
            theta, tau = theta[[g for g, _ in prior.groups]], None if tau is None else tau[[g for g, _ in prior.groups]]
        index = torch.empty(len(prior.w), dtype=torch.int32)
        for g, members in enumerate(groups):
            index[members] = g
        rows = [[m * t + j for m in members for j in range(t)] for members in groups]
        parts.append(Fourier(theta, tau, W, rows, index.to(W.device)))
    return [_padded(part) for part in _merged(parts)]


def _merged(parts: list[Fourier]) -> list[Fourier]:
    """Parts with the same rows a basis side by side."""
    merged: list[Fourier] = []
    for part in parts:
        for i, other in enumerate(merged):
            if (part.tau is None) == (other.tau is None) and part.groups == other.groups:
                tau = None if part.tau is None or other.tau is None else torch.cat([other.tau, part.tau], dim=1)
                theta = torch.cat([other.theta, part.theta], dim=1)
                merged[i] = Fourier(theta, tau, torch.cat([other.weights, part.weights], -1), part.groups, part.index)
                break
        else:
            merged.append(part)
    return merged


def _padded(part: Fourier) -> Fourier:
    extra = -part.theta.shape[1] % PAD
    pad = torch.nn.functional.pad
    tau = None if part.tau is None else pad(part.tau, (0, extra)).contiguous()
    weights = pad(part.weights, (0, extra)).contiguous()
    return Fourier(pad(part.theta, (0, 0, 0, extra)).contiguous(), tau, weights, part.groups, part.index)


@dataclass
class _Leaf:
    kind: int
    a: Tensor  # [d]: q = sum_k (a_k r_k)^2
    isotropic: bool
    alpha: Tensor
    outputscale: Tensor | None = None


def _leaves(kernel: Kernel, d: int) -> list[_Leaf] | None:
    """A kernel as a sum of scaled radial ones; None where it is not one."""
    if isinstance(kernel, Sum):
        parts = [_leaves(k, d) for k in kernel.parts]
        return None if any(p is None for p in parts) else [leaf for p in parts for leaf in p or []]
    if isinstance(kernel, Scaled):
        leaves = _leaves(kernel.kernel, d)
        for leaf in leaves or []:
            scale = kernel.outputscale
            leaf.outputscale = scale if leaf.outputscale is None else scale * leaf.outputscale
        return leaves
    if isinstance(kernel, OnDims):
        leaves = _leaves(kernel.kernel, len(kernel.dims))
        for leaf in leaves or []:
            a = leaf.a.new_zeros(d)
            a[kernel.dims] = leaf.a
            leaf.a, leaf.isotropic = a, leaf.isotropic and sorted(kernel.dims) == list(range(d))
        return leaves
    kind = 0 if type(kernel) is RBF else 4 if type(kernel) is RationalQuadratic else None
    kind = _KINDS.get((type(kernel), getattr(kernel, "nu", None))) if kind is None else kind
    if kind is None:
        return None
    squared = 2 * kernel.nu if isinstance(kernel, Matern) else 0.5 / kernel.alpha if kind == 4 else 1.0
    lengthscale = kernel.lengthscale
    a = (torch.as_tensor(squared, dtype=lengthscale.dtype, device=lengthscale.device).sqrt() / lengthscale).expand(d)
    return [_Leaf(kind, a, lengthscale.numel() == 1, kernel.alpha if kind == 4 else torch.ones_like(a[0]))]


def _radial(leaf: _Leaf, centres: Tensor, W: Tensor) -> Radial:
    a = leaf.a.to(centres)
    unit = _two_to(torch.frexp(a).exponent, a.dtype)  # [d]
    extra = -centres.shape[0] % PAD
    pad = torch.nn.functional.pad
    W = W if leaf.outputscale is None else W * leaf.outputscale
    units = torch.cat([unit, a / unit, leaf.alpha.to(a).reshape(1)])
    z = pad((centres * unit).mT, (0, extra)).contiguous()
    return Radial(leaf.kind, leaf.isotropic, z, units, pad(W, (0, extra)).contiguous())


def _two_to(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent, exactly (a device's power function may be an ulp off), within the range of normal numbers."""
    if dtype == torch.float64:
        return (exponent.long().clamp(-1022, 1023) + 1023 << 52).view(torch.float64)
    return (exponent.int().clamp(-126, 127) + 127 << 23).view(torch.float32)


def _power(n: int) -> int:
    """The least power of two from n."""
    return 1 << (n - 1).bit_length()
