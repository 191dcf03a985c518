"""Functions as plain torch modules: sums of waves, products of linear forms, functions k(., z_j), without blocks.

A module has buffers, `fields` that are JSON, and parts. It has no blocks of points and no branch that depends on data.
Therefore `torch.export`, `torch.compile(fullgraph=True)`, `torch.func` and ONNX accept it. Points x are `[n, d]`,
shared by all paths, or `[s, n, d]`, each path's own; parts return `[s, n, t]`. Transforms that are not affine, and the
user's own functions, become parts unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..paths.algebra import FUNCTIONS

# Up to this many coordinates, squared distances are sums of squared differences, which do not cancel. For more, they
# come from products in float64, as in `kernels.base.squared_distance`.
LARGEST_UNROLLED = 16
# Beyond these values, exp(-s) is zero or nearly zero. s is clamped to them, so that no power of it overflows.
_FAR = {torch.float32: 87.0, torch.float64: 700.0}


class PartModule(nn.Module):
    """A module that a file can describe: by the name of its class, `fields`, buffers and parts."""

    fields: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **buffers: Tensor | None) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, None if tensor is None else tensor.detach().clone().contiguous())


class TermModule(PartModule):
    """sum_c W_c phi_c(z) of every path: `[n, d]` or `[s, n, d]` to `[s, t, n]`.

    A basis comes in g versions. Weights are `[g, m, t, c]`, the paths of each version side by side, filled up with
    zeros to m of them; `members [g, m]` says which paths these are, `place [s]` where each path's row is. With one
    version both are None.
    """

    def features(self, z: Tensor) -> Tensor:
        """phi: `[g or 1, N, d] -> [g, N, c]`."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        g, m, t, c = self.weights.shape
        if z.ndim == 2:
            Phi = self.features(z[None]).to(self.weights.dtype)  # [g, n, c]
            rows = self.weights.reshape(g, m * t, c)
        else:
            mine = z if self.members is None else z[self.members]  # [s, n, d] or [g, m, n, d]
            Phi = self.features(mine.reshape(g, -1, z.shape[-1])).to(self.weights.dtype)  # [g, m n, c]
            # in two steps, because torch.export would put a guard on n if it were one
            Phi = Phi.reshape(g, m, -1, c).flatten(0, 1)
            rows = self.weights.reshape(g * m, t, c)
        sums = (rows @ Phi.mT).reshape(g * m, t, -1)  # [g m, t, n]
        return (sums if self.place is None else sums[self.place]).to(z.dtype)


class WavesModule(TermModule):
    """cos(theta_i . (z - origin) + tau_i); with `paired` all cosines, then all sines, of phases without a tau.

    Frequencies `[g, f, d]`, phases tau `[g, f]`. Frequencies in float64 beside weights in float32 are those of a
    lattice, whose phases need the digits.
    """

    fields = ("paired",)

    def __init__(
        self,
        weights: Tensor,
        origin: Tensor,
        frequencies: Tensor,
        phases: Tensor | None = None,
        members: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        super().__init__(
            weights=weights, origin=origin, frequencies=frequencies, phases=phases, members=members, place=place
        )
        self.paired = phases is None

    def features(self, z: Tensor) -> Tensor:
        P = (z - self.origin).to(self.frequencies.dtype) @ self.frequencies.mT  # [g, N, f]
        if self.phases is None:
            return torch.cat([P.cos(), P.sin()], dim=-1)
        return (P + self.phases[:, None]).cos()


class ProductsModule(TermModule):
    """prod_j (a_ij . (z, 1)), monomials among others, with projections a `[g, p, c, d + 1]`; times waves, perhaps."""

    def __init__(
        self,
        weights: Tensor,
        projections: Tensor,
        origin: Tensor | None = None,
        frequencies: Tensor | None = None,
        phases: Tensor | None = None,
        members: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        super().__init__(
            weights=weights,
            projections=projections,
            origin=origin,
            frequencies=frequencies,
            phases=phases,
            members=members,
            place=place,
        )

    def features(self, z: Tensor) -> Tensor:
        Phi = z.new_ones(())
        if self.frequencies is not None:
            P = (z - self.origin) @ self.frequencies.mT + self.phases[:, None]
            Phi = P.cos()  # [g, N, c]
        for j in range(self.projections.shape[1]):
            A = self.projections[:, j]  # [g, c, d + 1]
            Phi = Phi * (z @ A[..., :-1].mT + A[:, None, :, -1])
        return Phi


class FeaturesModule(TermModule):
    """phi(z - origin) of maps by code of their own, one for each version."""

    def __init__(
        self,
        weights: Tensor,
        origin: Tensor,
        maps: Sequence[nn.Module],
        members: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        super().__init__(weights=weights, origin=origin, members=members, place=place)
        self.maps = nn.ModuleList(maps)

    def features(self, z: Tensor) -> Tensor:
        z = z - self.origin
        if len(self.maps) == 1:
            return self.maps[0](z.reshape(-1, z.shape[-1]))[None]
        return torch.stack([phi(at) for phi, at in zip(self.maps, z.expand(len(self.maps), -1, -1), strict=True)])


class CentredModule(TermModule):
    """k(z, z_j) of a kernel that is a product of `factors`, at c centres: weights `[1, s, t, c]`."""

    members = place = None

    def __init__(self, weights: Tensor, factors: Sequence[nn.Module]) -> None:
        super().__init__(weights=weights[None])
        self.factors = nn.ModuleList(factors)

    def features(self, z: Tensor) -> Tensor:
        Phi = self.factors[0](z)
        for factor in list(self.factors)[1:]:
            Phi = Phi * factor(z)
        return Phi  # [1, N, c]


class FactorModule(PartModule):
    """profile(|E(z) - E(z_j)|^2), or a power of an inner product, with an embedding E of the points.

        E(z) = [A (z - o), r cos(B (z - o)), r sin(B (z - o))]

    A `[a, d]` scales (and turns, and chooses) coordinates; B `[b, d]` and r `[b]` are of what repeats itself.
    `centres` are the embedded z_j, `[c, a + 2 b]`. Profiles, with their `numbers`:

        rbf                  exp(-q / 2)
        matern               exp(-s) P(s), s = sqrt(q); numbers are P's coefficients, the constant first
        rational_quadratic   (1 + q / (2 alpha))^-alpha; alpha
        spherical            1 - 3/2 r + 1/2 r^3, r = min(sqrt(q), 1)
        dot                  (E(z) . E(z_j) + offset)^power; offset

    Numbers are a buffer, since the ONNX exporter rounds those in the code to float32.
    """

    fields = ("profile", "power")

    def __init__(
        self,
        profile: str,
        numbers: Tensor,
        power: int,
        origin: Tensor,
        linear: Tensor,
        frequencies: Tensor,
        sizes: Tensor,
        centres: Tensor,
    ) -> None:
        super().__init__(
            numbers=numbers, origin=origin, linear=linear, frequencies=frequencies, sizes=sizes, centres=centres
        )
        self.profile, self.power = profile, power

    def forward(self, z: Tensor) -> Tensor:
        E = embedded(z.to(self.centres.dtype) - self.origin, self.linear, self.frequencies, self.sizes)
        if self.profile == "dot":
            return (E @ self.centres.mT + self.numbers[0]) ** self.power
        return radial(self.profile, self.numbers, _squared_distance(E, self.centres))


class OwnFactorModule(PartModule):
    """k(M z, c_j) of a kernel by its own code."""

    def __init__(self, kernel: nn.Module, M: Tensor | None, centres: Tensor) -> None:
        super().__init__(M=M, centres=centres)
        self.kernel = kernel

    def forward(self, z: Tensor) -> Tensor:
        return self.kernel.forward(z if self.M is None else z @ self.M.mT, self.centres)  # without checking the points


class SlopesModule(TermModule):
    """Derivatives of k(z, z_j) along directions in z_j, and in z, of a kernel that is a product of `factors`.

    A factor gives its derivatives along every set of the directions, and sets are whole numbers, a bit for each of
    them. By the product rule that of a product along a set is the sum over the ways to share the set out.
    """

    members = place = None

    def __init__(self, weights: Tensor, factors: Sequence[SlopesFactorModule]) -> None:
        super().__init__(weights=weights[None])
        self.factors = nn.ModuleList(factors)

    def features(self, z: Tensor) -> Tensor:
        first: list[Any]
        first, *others = [factor(z) for factor in self.factors]
        for other in others:
            first = [sum(first[a] * other[s ^ a] for a in _subsets(s)) for s in range(len(first))]
        return first[-1]  # [1, N, c]


class SlopesFactorModule(PartModule):
    """The derivatives of a factor (`FactorModule`) along every set of p directions in z_j and q in z.

    `centres [2^p, c, a + 2 b]` are the derivatives of the embedded z_j along every set of those in z_j, `left [q, d]`
    are the directions in z. `numbers` has a row for each order of a profile's derivatives: of matern the coefficients
    of the powers of s from `lowest` on.
    """

    fields = ("profile", "power", "lowest")

    def __init__(
        self,
        profile: str,
        numbers: Tensor,
        power: int,
        origin: Tensor,
        linear: Tensor,
        frequencies: Tensor,
        sizes: Tensor,
        centres: Tensor,
        left: Tensor,
        lowest: int = 0,
    ) -> None:
        super().__init__(
            numbers=numbers,
            origin=origin,
            linear=linear,
            frequencies=frequencies,
            sizes=sizes,
            centres=centres,
            left=left,
        )
        self.profile, self.power, self.lowest = profile, power, lowest

    def forward(self, z: Tensor) -> list[Tensor]:
        z, p, q = z.to(self.centres.dtype) - self.origin, len(self.centres), 1 << len(self.left)
        along = [[u for i, u in enumerate(self.left) if s >> i & 1] for s in range(q)]
        E = [embedded_along(z, self.linear, self.frequencies, self.sizes, some) for some in along]  # [1, N, e] each
        if self.profile == "dot":
            u = [E[s // p] @ self.centres[s % p].mT for s in range(p * q)]
            return self._composed([u[0] + self.numbers[0, 0], *u[1:]])
        total: list[Any] = [0.0] * (p * q)
        for e in range(self.centres.shape[-1]):
            # E(z) - E(z_j) in each of the sets. If a set belongs to only one of z and z_j, the difference in it is
            # zero.
            D = [E[s // p][..., e, None] if s % p == 0 else None for s in range(p * q)]
            D = [E[0][..., e, None] - self.centres[0, :, e], *(-C[:, e] for C in self.centres[1:]), *D[p:]]
            total[0] = total[0] + D[0].square()
            for s in range(1, p * q):
                pairs = [(D[a], D[s ^ a]) for a in _subsets(s) if a & s & -s]
                total[s] = total[s] + sum(2 * x * y for x, y in pairs if x is not None and y is not None)
        return self._composed(total)

    def _composed(self, q: list[Tensor]) -> list[Tensor]:
        """The derivatives of profile(q), given those of q: along a set a sum over its partitions (Faa di Bruno)."""
        values, found = self._profile(q[0]), [[0.0 * q[0]] for _ in q]
        for s in range(len(q)):
            for parts in _partitions(s):
                product = values[len(parts)]
                for part in parts:
                    product = product * q[part]
                found[s].append(product)
        return [sum(each) for each in found]  # type: ignore[misc]

    def _profile(self, q: Tensor) -> list[Tensor]:
        """The profile and its derivatives in q, as many as `numbers` has rows."""
        n, eps = len(self.numbers), torch.finfo(q.dtype).eps
        if self.profile == "rbf":
            k = (-0.5 * q).exp()
            return [(-0.5) ** i * k for i in range(n)]
        if self.profile == "dot":
            factors = [math.prod(range(self.power, self.power - i, -1)) for i in range(n)]
            return [factor * q ** max(self.power - i, 0) for i, factor in enumerate(factors)]
        if self.profile == "rational_quadratic":
            alpha, base = self.numbers[0, 0], 1 + q / (2 * self.numbers[0, 0])
            return [self.numbers[i, 1] * base ** (-alpha - i) for i in range(n)]
        if self.profile != "matern":
            raise ValueError(f"profile: expected one that has derivatives, got {self.profile!r}")
        s = (q + eps / 10).sqrt().clamp_max(_FAR[q.dtype])
        decay, found = (-s).exp() * s**self.lowest, []
        for row in self.numbers:
            P = row[-1]
            for coefficient in reversed(row.unbind()[:-1]):
                P = P * s + coefficient
            found.append(P * decay)
        return found


def _subsets(s: int) -> list[int]:
    return [a for a in range(s + 1) if a & s == a]


def _partitions(s: int) -> list[list[int]]:
    """The ways to write a set as a union of sets that do not meet."""
    if s == 0:
        return [[]]
    lowest = s & -s
    return [[a, *rest] for a in _subsets(s) if a & lowest for rest in _partitions(s ^ a)]


def embedded_along(
    z: Tensor, linear: Tensor, frequencies: Tensor, sizes: Tensor, directions: Sequence[Tensor]
) -> Tensor:
    """The derivative of E(z) along directions `[d]`, or `[.., d]` as z has: `[..., a + 2 b]`."""
    n, parts = len(directions), []
    if len(linear):
        parts.append(z @ linear.mT if n == 0 else directions[0] @ linear.mT if n == 1 else 0.0 * (z @ linear.mT))
    if len(frequencies):
        P = z @ frequencies.mT
        turn = [P.cos(), -P.sin(), -P.cos(), P.sin()]
        size = sizes * math.prod((u @ frequencies.mT for u in directions), start=torch.ones_like(sizes))
        parts += [size * turn[n % 4], size * turn[(n + 3) % 4]]
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*shape, -1) for part in parts], dim=-1)


def embedded(z: Tensor, linear: Tensor, frequencies: Tensor, sizes: Tensor) -> Tensor:
    """E(z) of points `[..., d]` about the origin: `[..., a + 2 b]`."""
    parts = [z @ linear.mT] if len(linear) else []
    if len(frequencies):
        P = z @ frequencies.mT
        parts += [sizes * P.cos(), sizes * P.sin()]
    return torch.cat(parts, dim=-1)


def _squared_distance(E: Tensor, C: Tensor) -> Tensor:
    """|E - C|^2 for all pairs, `[..., n, e], [c, e] -> [..., n, c]`, written out: `torch.cdist` does not export."""
    if E.shape[-1] > LARGEST_UNROLLED:
        wide, centres = E.double(), C.double()
        q = wide.square().sum(-1, keepdim=True) + centres.square().sum(-1) - 2 * (wide @ centres.mT)
        return q.clamp_min(0).to(E.dtype)
    q = (E[..., 0:1] - C[:, 0]).square()
    for i in range(1, E.shape[-1]):
        q = q + (E[..., i : i + 1] - C[:, i]).square()
    return q


def radial(profile: str, numbers: Tensor, q: Tensor) -> Tensor:
    """The profile at squared distances q. Roots are of q plus less than its rounding error, so that the derivatives of
    autograd are finite, and right, where a point is a centre."""
    eps = torch.finfo(q.dtype).eps
    if profile == "rbf":
        return (-0.5 * q).exp()
    if profile == "rational_quadratic":
        return (1 + q / (2 * numbers[0])) ** -numbers[0]
    if profile == "spherical":
        r = (q + eps**2).sqrt().clamp_max(1.0)
        return 1 - 1.5 * r + 0.5 * r**3
    if profile != "matern":
        raise ValueError(f"profile: expected rbf, matern, rational_quadratic or spherical, got {profile!r}")
    if len(numbers) == 1:  # nu = 1/2, for which the kernel has no derivative at a centre
        return (-(q + eps**2).sqrt()).exp()
    s = (q + eps / 10).sqrt().clamp_max(_FAR[q.dtype])
    P = numbers[-1]
    for coefficient in reversed(numbers.unbind()[:-1]):
        P = P * s + coefficient
    return P * (-s).exp()


class ModelModule(PartModule):
    """scale (level + slope . z + mean(z) + sum of terms at z) + offset, z = x M + b: the paths of one model.

    level `[s, t]` and slope `[t, d]` are of the mean, and of what is constant in each path; `mean` is a mean that is
    not affine. M is `[d, e]`, or `[d]` where coordinates are scaled one by one. Outside the `domain` `[2, e]` of a
    lattice values are NaN.
    """

    def __init__(
        self,
        terms: Sequence[TermModule],
        level: Tensor,
        slope: Tensor | None = None,
        inner: tuple[Tensor, Tensor] | None = None,
        outer: tuple[Tensor, Tensor] | None = None,
        domain: Tensor | None = None,
        mean: nn.Module | None = None,
    ) -> None:
        M, b = inner or (None, None)
        scale, offset = outer or (None, None)
        super().__init__(level=level, slope=slope, M=M, b=b, scale=scale, offset=offset, domain=domain)
        self.terms = nn.ModuleList(terms)
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        z = x.to(self.level.dtype)
        if self.M is not None:
            z = (z * self.M if self.M.ndim == 1 else z @ self.M) + self.b
        if self.domain is not None:
            outside = ((z < self.domain[0]) | (z > self.domain[1])).any(-1, keepdim=True)
            z = torch.where(outside, math.nan, z)
        f = self.level[..., None]  # [s, t, 1]
        if self.slope is not None:
            f = f + self.slope @ z.mT  # [1 or s, t, n]
        if self.mean is not None:
            f = f + self.mean(z).mT
        for term in self.terms:
            f = f + term(z)
        if self.slope is None and self.mean is None and not len(self.terms):  # the function is constant
            f = f.expand(-1, -1, x.shape[-2])
        f = f.mT  # [s, n, t]
        return f if self.scale is None else f * self.scale + self.offset


class SideBySideModule(PartModule):
    """The outputs of several parts side by side."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


class EnsembleModule(PartModule):
    """The paths of several parts: `order [s]` has the paths of the first, of the second ..., `place [s]` undoes it."""

    fields = ("counts",)

    def __init__(self, parts: Sequence[nn.Module], order: Tensor, place: Tensor, counts: Sequence[int]) -> None:
        super().__init__(order=order, place=place)
        self.parts, self.counts = nn.ModuleList(parts), list(counts)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return torch.cat([part(x) for part in self.parts])[self.place]
        shares = x[self.order].split(self.counts)
        return torch.cat([part(share) for part, share in zip(self.parts, shares, strict=True)])[self.place]


class SelectedModule(PartModule):
    """Some outputs of a part."""

    def __init__(self, part: nn.Module, outputs: Tensor) -> None:
        super().__init__(outputs=outputs)
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x).index_select(-1, self.outputs)


class SumModule(PartModule):
    """sum_i w_i f_i + b of parts: weights w `[k, s or 1, t or 1]`, level b `[s or 1, t or 1]`."""

    def __init__(self, parts: Sequence[nn.Module], weights: Tensor, level: Tensor) -> None:
        super().__init__(weights=weights, level=level)
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        total = self.level[:, None]
        for i, part in enumerate(self.parts):
            total = total + self.weights[i][:, None] * part(x)
        return total


class ProductModule(PartModule):
    """f_1 f_2 ... of parts, point by point."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        f = self.parts[0](x)
        for part in list(self.parts)[1:]:
            f = f * part(x)
        return f


class MappedModule(PartModule):
    """phi(f) of a part, phi a function of values by its name, with the numbers that it takes beside a value."""

    fields = ("name", "arguments")

    def __init__(self, part: nn.Module, name: str, arguments: Sequence[float | None], dtype: torch.dtype) -> None:
        super().__init__()
        self.part, self.name, self.arguments = part, name, list(arguments)
        for i, number in enumerate(arguments):  # ONNX needs buffers, see FactorModule; in files, the numbers are fields
            tensor = None if number is None else torch.tensor(number, dtype=dtype, device="cpu")
            self.register_buffer(f"number_{i}", tensor, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.name](self.part(x), *(getattr(self, f"number_{i}") for i in range(len(self.arguments))))


class CalledModule(PartModule):
    """phi(f) of a part, phi a function of a user's own of values `[s, n]`, or `[s, n, t]` where `several`."""

    def __init__(self, part: nn.Module, function: nn.Module, several: bool) -> None:
        super().__init__()
        self.part, self.function, self.several = part, function, several

    def forward(self, x: Tensor) -> Tensor:
        f = self.part(x)
        out = self.function(f if self.several else f.squeeze(-1))
        return out if out.ndim == f.ndim else out[..., None]


class WarpedModule(PartModule):
    """values(f(points(x))) of a part f, where transforms of points or of values are not affine."""

    def __init__(self, part: nn.Module, points: nn.Module | None = None, values: nn.Module | None = None) -> None:
        super().__init__()
        self.part, self.points, self.values = part, points, values

    def forward(self, x: Tensor) -> Tensor:
        f = self.part(x if self.points is None else self.points(x))
        return f if self.values is None else self.values(f)


class ComposedModule(PartModule):
    """f(g(x)): `outer` of `inner`, path by path."""

    def __init__(self, outer: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self.outer, self.inner = outer, inner

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


class CoordinatesModule(PartModule):
    """The coordinates of x, the same for s paths."""

    fields = ("count",)

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x if x.ndim == 3 else x[None].expand(self.count, -1, -1)


class FunctionModule(PartModule):
    """s functions as a plain module: points `[n, d]` or `[s, n, d]` to values `[s, n]`, `[s, n, t]` for t outputs."""

    fields = ("num_paths", "num_outputs", "input_dim", "dtype")

    def __init__(self, function: nn.Module, num_paths: int, num_outputs: int, input_dim: int, dtype: str) -> None:
        super().__init__()
        self.function, self.dtype = function, dtype
        self.num_paths, self.num_outputs, self.input_dim = num_paths, num_outputs, input_dim

    def forward(self, x: Tensor) -> Tensor:
        f = self.function(x[0] if x.ndim == 3 and x.shape[0] == 1 else x)  # [s, n, t]
        return f.squeeze(-1) if self.num_outputs == 1 else f
