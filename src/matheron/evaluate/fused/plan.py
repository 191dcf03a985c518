"""What the GPU kernels need of paths, made once a record: rows of weights, frequencies in turns, centres in units.

Rows are outputs of paths, row = path * t + output. Float32 frequencies are split into whole numbers of a grid and
remainders (see `tile.turns`); float32 weights of shared points into two half-precision parts, scaled row by row (see
`tile.product`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...kernels import RBF, Kernel, Matern, RationalQuadratic
from ...kernels.base import RadialPart
from ...models.means import ConstantMean
from ..bases import Canonical, Cosines, Pairs
from ..record import PathTerm, Record, WeightedSum

# The number of basis functions is padded to a multiple of this. The weights of the padding are zero.
PAD = 64
LARGEST_DIM = 64
# The number of each kernel in `radial_kernels.radial`, by its class and order.
_KINDS: dict[tuple[type[Kernel], float], int] = {
    (RBF, 0.0): 0,
    (Matern, 0.5): 1,
    (Matern, 1.5): 2,
    (Matern, 2.5): 3,
    (RationalQuadratic, 0.0): 4,
}


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
            return pad(self.theta, (0, K - d)), self.weights.new_ones(1)
        grid, high, rest = self.on_grid
        low = rest.half()
        lowest = (rest - low).half()
        high = high.half()
        if KC == 0:
            return pad(torch.stack([high, low, lowest], 2), (0, K - d)).flatten(2), grid.float()
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


def has_kernel(term: PathTerm, input_dim: int) -> bool:
    """Whether there are GPU kernels for a term: Fourier features, or a sum of radial kernels that have a number."""
    if not isinstance(term, WeightedSum):
        return False
    if not isinstance(term.basis, Canonical):
        return type(term.basis) in (Pairs, Cosines)
    parts = term.basis.kernel.radial_parts(input_dim)
    return bool(parts) and all(_kind(part.kernel) is not None for part in parts)


@torch.no_grad()
def make_plan(record: Record) -> Plan | None:
    """The plan of a record; None where some of it has no kernel here, or is in a graph."""
    s, t, d = record.num_paths, record.num_outputs, record.input_dim
    if d > LARGEST_DIM or record.requires_grad or record.dtype not in (torch.float32, torch.float64):
        return None
    if not all(has_kernel(term, d) for term in record.terms):
        return None
    waves: list[WeightedSum] = []
    radial: list[RadialPlan] = []
    for term in record.terms:
        assert isinstance(term, WeightedSum)
        if isinstance(term.basis, Canonical):
            radial += radial_parts(term.basis.kernel, term.basis.centres, term.weights.reshape(s * t, 1, -1)) or []
        else:
            waves.append(term)
    return Plan(s, t, record.origin, _fourier(waves), radial)


def plan_of(record: Record) -> Plan | None:
    """The plan of a record, made once; None where `make_plan` gives none."""
    return record.derived(make_plan)


def _fourier(terms: list[WeightedSum]) -> list[Fourier]:
    """The Fourier terms. A few cosines beside pairs become pairs, so that one launch does for both."""
    parts: list[Fourier] = []
    pairs = max((term.basis.frequencies.shape[1] for term in terms if isinstance(term.basis, Pairs)), default=0)
    for term in terms:
        basis, W = term.basis, term.weights
        s, t = W.shape[:2]
        theta = basis.frequencies.double() / (2 * math.pi)
        tau = None
        if isinstance(basis, Pairs):
            W = W.reshape(s * t, 2, -1)
        elif 4 * theta.shape[1] > pairs:
            W = W.reshape(s * t, 1, -1)
            tau = basis.phases.double() / (2 * math.pi)
            tau = (tau - tau.round()).to(W.dtype)
        else:
            phases = basis.phases if term.shared else basis.phases[term.index]
            W = torch.stack([W * phases[:, None].cos(), W * -phases[:, None].sin()], dim=2).flatten(0, 1)
        groups, used = [members for _, members in term.groups], [g for g, _ in term.groups]
        if used != list(range(basis.num_bases)):
            theta, tau = theta[used], None if tau is None else tau[used]
        index = torch.empty(s, dtype=torch.int32, device="cpu")
        for g, members in enumerate(groups):
            index[members] = g
        rows = [[m * t + j for m in members for j in range(t)] for members in groups]
        parts.append(Fourier(theta, tau, W, rows, index.to(W.device)))
    return [_padded(part) for part in _merged(parts)]


def _merged(parts: list[Fourier]) -> list[Fourier]:
    """Parts with the same rows per basis, side by side."""
    merged: list[Fourier] = []
    for part in parts:
        for i, other in enumerate(merged):
            if (part.tau is None) == (other.tau is None) and part.groups == other.groups:
                taus = [each.tau for each in (other, part) if each.tau is not None]
                theta, weights = torch.cat([other.theta, part.theta], 1), torch.cat([other.weights, part.weights], -1)
                merged[i] = replace(part, theta=theta, tau=torch.cat(taus, 1) if taus else None, weights=weights)
                break
        else:
            merged.append(part)
    return merged


def _padded(part: Fourier) -> Fourier:
    extra = -part.theta.shape[1] % PAD
    tau = None if part.tau is None else pad(part.tau, (0, extra)).contiguous()
    theta, weights = pad(part.theta, (0, 0, 0, extra)).contiguous(), pad(part.weights, (0, extra)).contiguous()
    return replace(part, theta=theta, tau=tau, weights=weights)


def radial_parts(kernel: Kernel, centres: Tensor, W: Tensor) -> list[RadialPlan] | None:
    """The radial kernels of a sum of such; None where some have no kernel here."""
    parts = kernel.radial_parts(centres.shape[1])
    made = [_radial_part(part, centres, W) for part in parts or []]
    return None if not made or None in made else [part for part in made if part is not None]


def _radial_part(part: RadialPart, centres: Tensor, W: Tensor) -> RadialPlan | None:
    """One radial kernel; None where it has no number here."""
    kernel, kind = part.kernel, _kind(part.kernel)
    if kind is None:
        return None
    squared = 2 * kernel.nu if isinstance(kernel, Matern) else 0.5 / kernel.alpha if kind == 4 else 1.0
    lengthscale = kernel.lengthscale
    a = centres.new_zeros(centres.shape[1])  # q = sum_k (a_k r_k)^2
    root = squared.to(lengthscale).sqrt() if isinstance(squared, Tensor) else math.sqrt(squared)
    a[part.dims] = (root / lengthscale).to(a).expand(len(part.dims))
    isotropic = lengthscale.numel() == 1 and len(part.dims) == len(a)
    unit = two_to(torch.frexp(a).exponent, a.dtype)  # [d]
    extra = -centres.shape[0] % PAD
    W = W if part.scale is None else W * part.scale
    alpha = kernel.alpha.to(a) if kind == 4 else torch.ones_like(a[0])
    units = torch.cat([unit, a / unit, alpha.reshape(1)])
    z = pad((centres * unit).mT, (0, extra)).contiguous()
    return RadialPlan(kind, isotropic, z, units, pad(W, (0, extra)).contiguous())


def _kind(kernel: Kernel) -> int | None:
    """A radial kernel's number in `radial_kernels.radial`; None where it has none."""
    return _KINDS.get((type(kernel), getattr(kernel, "nu", 0.0)))


# The plans of several models as one. With it, hundreds of small searches share their launches.


def join(records: Sequence[Record]) -> tuple[Plan, Tensor] | None:
    """The plans of models that agree in kind as one, its paths in their order, and each path's mean `[s, 1, 1]`."""
    kinds = {_kind_of_model(record) for record in records}
    if len(kinds) > 1 or None in kinds:
        return None
    plans = [plan for record in records if (plan := plan_of(record)) is not None]
    fourier = [_joined_fourier(parts) for parts in zip(*(plan.fourier for plan in plans), strict=True)]
    radial = [_joined_radial(parts) for parts in zip(*(plan.radial for plan in plans), strict=True)]
    bases = [len(plan.fourier[0].theta) if fourier else 1 for plan in plans]
    origin = torch.cat([plan.origin.expand(count, -1) for plan, count in zip(plans, bases, strict=True)])
    means = [record.mean(record.origin[None, None]).expand(record.num_paths, 1, 1) for record in records]
    return Plan(sum(plan.num_paths for plan in plans), 1, origin, fourier, radial), torch.cat(means)


def _kind_of_model(record: Record) -> tuple[object, ...] | None:
    """What plans must agree in; None for models that cannot be joined: of several outputs, with transforms, a domain, a
    mean that is not constant, or Fourier terms of two kinds."""
    plan = plan_of(record)
    plain = record.input_transform is None and record.output_transform is None and record.domain is None
    constant = record.num_outputs == 1 and isinstance(record.mean, ConstantMean)
    if plan is None or not plain or not constant or len(plan.fourier) > 1:
        return None
    fourier = [(part.theta.shape[1], part.tau is None) for part in plan.fourier]
    return *fourier, *((part.kind, part.isotropic, part.centres.shape[1]) for part in plan.radial)


def _joined_fourier(parts: Sequence[Fourier]) -> Fourier:
    groups, index, paths, bases = [], [], 0, 0
    for part in parts:
        groups += [[row + paths for row in rows] for rows in part.groups]
        index.append(part.index + bases)
        paths, bases = paths + len(part.index), bases + len(part.theta)
    taus = [part.tau for part in parts if part.tau is not None]
    theta, weights = torch.cat([part.theta for part in parts]), torch.cat([part.weights for part in parts])
    return Fourier(theta, torch.cat(taus) if taus else None, weights, groups, torch.cat(index))


def _joined_radial(parts: Sequence[RadialPlan]) -> RadialPlan:
    counts = torch.tensor([len(part.weights) for part in parts], device="cpu")
    index = torch.arange(len(parts), dtype=torch.int32, device="cpu").repeat_interleave(counts)
    return replace(
        parts[0],
        centres=torch.stack([part.centres for part in parts]),
        units=torch.stack([part.units for part in parts]),
        weights=torch.cat([part.weights for part in parts]),
        index=index.to(parts[0].weights.device),
    )
