"""Functions as plain torch modules: sums of waves, products of linear forms, functions k(., z_j), without blocks.

A module has buffers, `fields` that are JSON, and parts. It has no blocks of points and no branch that depends on data.
Therefore `torch.export`, `torch.compile(fullgraph=True)`, `torch.func` and ONNX accept it. Each part maps points
`[1, n, d]`, shared by all paths, or `[s, n, d]`, each path's own, to values `[s, n, t]`, and `nn.Sequential` composes
parts. Transforms that are not affine, and the user's own functions, become parts unchanged.

Numbers are buffers, since the ONNX exporter rounds those in the code to float32, unless they are whole or powers of
two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..paths.algebra import FUNCTIONS

# Up to this many coordinates, squared distances are sums of squared differences, which do not cancel. For more, they
# come from products in float64, as in `kernels.base.squared_distance`.
LARGEST_UNROLLED = 16


class PartModule(nn.Module):
    """A module that a file can describe: by the name of its class, `fields`, buffers and parts."""

    fields: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, parts: Sequence[nn.Module] | None = None, **buffers: Tensor | None) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, None if tensor is None else tensor.detach().clone().contiguous())
        if parts is not None:
            self.parts = nn.ModuleList(parts)


class FunctionModule(PartModule):
    """s functions as a plain module: points `[n, d]` or `[s, n, d]` to values `[s, n]`, `[s, n, t]` for t outputs."""

    fields = ("num_paths", "num_outputs", "input_dim", "dtype")

    def __init__(self, function: nn.Module, num_paths: int, num_outputs: int, input_dim: int, dtype: str) -> None:
        super().__init__()
        self.function, self.dtype = function, dtype
        self.num_paths, self.num_outputs, self.input_dim = num_paths, num_outputs, input_dim

    def forward(self, x: Tensor) -> Tensor:
        f = self.function(x[None] if x.ndim == 2 else x)  # [s, n, t]
        return f.squeeze(-1) if self.num_outputs == 1 else f


# The paths of one model: a sum of terms.


class ModelModule(PartModule):
    """The sum of terms, and of a mean that is not affine. Outside the `domain` `[2, d]` of a lattice it is NaN."""

    def __init__(
        self, terms: Sequence[TermModule], domain: Tensor | None = None, mean: nn.Module | None = None
    ) -> None:
        super().__init__(terms, domain=domain)
        self.mean = mean

    def forward(self, z: Tensor) -> Tensor:
        if self.domain is not None:
            outside = ((z < self.domain[0]) | (z > self.domain[1])).any(-1, keepdim=True)
            z = torch.where(outside, math.nan, z)
        f = reduce(torch.add, (term(z) for term in self.parts))
        return f if self.mean is None else f + self.mean(z)


class TermModule(PartModule):
    """sum_c W_c phi_c(z) of every path.

    A basis comes in g versions. Weights are `[g, m, t, c]`, the paths of each version side by side, filled up with
    zeros to m of them; `members [g, m]` says which paths these are, `place [s]` where each path's row is. With one
    version both are None.
    """

    def features(self, z: Tensor) -> Tensor:
        """phi: `[g or 1, N, d] -> [g, N, c]`."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        g, m, t, c = self.weights.shape
        if len(z) == 1:
            Phi = self.features(z).to(self.weights.dtype)  # [g, n, c]
            rows = self.weights.reshape(g, m * t, c)
        else:
            mine = z if self.members is None else z[self.members]  # [s, n, d] or [g, m, n, d]
            Phi = self.features(mine.reshape(g, -1, z.shape[-1])).to(self.weights.dtype)  # [g, m n, c]
            # in two steps, because torch.export would put a guard on n if it were one
            Phi = Phi.reshape(g, m, -1, c).flatten(0, 1)
            rows = self.weights.reshape(g * m, t, c)
        sums = (Phi @ rows.mT).to(z.dtype)  # [g, n, m t] or [g m, n, t]
        if len(z) == 1:
            sums = sums.unflatten(-1, (m, t)).transpose(1, 2).flatten(0, 1)  # [g m, n, t]
        return sums if self.place is None else sums[self.place]


class WavesModule(TermModule):
    """cos(theta_i . (z - origin) + tau_i) prod_j (a_ij . (z, 1)): waves, monomials, or products of both.

    Frequencies theta `[g, c, d]`, or None, and projections a `[g, p, c, d + 1]`, or None. Phases tau are `[g, c]`; if
    they are None, waves are cosines and then sines of the same c / 2 frequencies. Frequencies in float64 beside weights
    in float32 are those of a lattice, whose phases need the digits.
    """

    def __init__(
        self,
        weights: Tensor,
        origin: Tensor | None = None,
        frequencies: Tensor | None = None,
        phases: Tensor | None = None,
        projections: Tensor | None = None,
        members: Tensor | None = None,
        place: Tensor | None = None,
    ) -> None:
        super().__init__(
            weights=weights,
            origin=origin,
            frequencies=frequencies,
            phases=phases,
            projections=projections,
            members=members,
            place=place,
        )

    def features(self, z: Tensor) -> Tensor:
        Phi = z.new_ones(())
        if self.frequencies is not None:
            P = (z - self.origin).to(self.frequencies.dtype) @ self.frequencies.mT  # [g, N, c] or [g, N, c / 2]
            Phi = torch.cat([P.cos(), P.sin()], -1) if self.phases is None else (P + self.phases[:, None]).cos()
        for A in () if self.projections is None else self.projections.unbind(1):  # [g, c, d + 1]
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
        super().__init__(maps, weights=weights, origin=origin, members=members, place=place)

    def features(self, z: Tensor) -> Tensor:
        z = z - self.origin
        if len(self.parts) == 1:
            return self.parts[0](z.reshape(-1, z.shape[-1]))[None]
        return torch.stack([phi(at) for phi, at in zip(self.parts, z.expand(len(self.parts), -1, -1), strict=True)])


class CentredModule(TermModule):
    """k(z, z_j), a product of factors, at centres `[c, d]`: weights `[1, s, t, c]`.

    Given slopes they are derivatives along `right [p, c, d]` in z_j, and along `left [q, d]` in z.
    """

    members = place = None

    def __init__(
        self, weights: Tensor, centres: Tensor, left: Tensor, right: Tensor, factors: Sequence[nn.Module]
    ) -> None:
        super().__init__(factors, weights=weights, centres=centres, left=left, right=right)

    def features(self, z: Tensor) -> Tensor:
        q, p = len(self.left), len(self.right)
        at = HyperDual({0: z.to(self.centres.dtype), **{1 << i: self.left[i][None, None] for i in range(q)}})
        centres = HyperDual({0: self.centres, **{1 << (q + i): self.right[i] for i in range(p)}})
        Phi, *others = [factor(at, centres) for factor in self.parts]
        for other in others:
            Phi = Phi.times(other)
        wanted = Phi.parts.get((1 << (p + q)) - 1)
        return torch.zeros_like(Phi.parts[0]) if wanted is None else wanted  # [1, N, c]


class HyperDual:
    """A tensor with its derivatives along sets of directions: the algebra of numbers e_1, e_2, ... with e_i^2 = 0.

    `parts[s]` is the derivative along the set s, a whole number with a bit for each direction; `parts[0]` is the
    tensor itself. What is missing is zero. See Fike and Alonso (2011).
    """

    def __init__(self, parts: dict[int, Tensor]) -> None:
        self.parts = parts

    @property
    def order(self) -> int:
        """The number of directions."""
        return max(self.parts).bit_length()

    def each(self, linear: Callable[[Tensor], Tensor]) -> HyperDual:
        """A linear map of the number."""
        return HyperDual({s: linear(part) for s, part in self.parts.items()})

    def plus(self, other: HyperDual) -> HyperDual:
        parts = dict(self.parts)
        for s, part in other.parts.items():
            parts[s] = parts[s] + part if s in parts else part
        return HyperDual(parts)

    def times(self, other: HyperDual, product: Callable[[Tensor, Tensor], Tensor] = torch.mul) -> HyperDual:
        parts: dict[int, Tensor] = {}
        for s, mine in self.parts.items():
            for r, yours in other.parts.items():
                if not s & r:  # no direction comes twice
                    both = product(mine, yours)
                    parts[s | r] = parts[s | r] + both if s | r in parts else both
        return HyperDual(parts)

    def through(self, derivatives: Sequence[Tensor]) -> HyperDual:
        """g of the number, given g, g', g'', ... at the tensor: its Taylor series, which ends."""
        total = HyperDual({0: derivatives[0]})
        step = power = HyperDual({s: part for s, part in self.parts.items() if s})
        for i, slope in enumerate(derivatives[1:], 1):
            total = total.plus(power.each(lambda part, i=i, slope=slope: part * slope / math.factorial(i)))
            power = power.times(step)
        return total


class FactorModule(PartModule):
    """profile(|E(z) - E(z')|^2), or a power of E(z) . E(z') + offset, with an embedding E of the points.

        E(z) = [A (z - o), r cos(B (z - o)), r sin(B (z - o))]

    A `[a, d]` scales (and turns, and chooses) coordinates; B `[b, d]` and r `[b]` are of what repeats itself. Profiles,
    of q the squared distance:

        rbf                  exp(-q / 2)
        matern               that of nu = power + 1/2
        rational_quadratic   (1 + q / (2 number))^-number
        spherical            1 - 3/2 r + 1/2 r^3, r = min(sqrt(q), 1)
        dot                  (E(z) . E(z') + number)^power
    """

    fields = ("profile", "power")

    def __init__(
        self, profile: str, power: int, number: Tensor, origin: Tensor, A: Tensor, B: Tensor, r: Tensor
    ) -> None:
        super().__init__(number=number, origin=origin, A=A, B=B, r=r)
        self.profile, self.power = profile, power

    def forward(self, z: HyperDual, centres: HyperDual) -> HyperDual:
        pairs = list(zip(self._embedded(z), self._embedded(centres), strict=True))
        q = HyperDual({})
        if self.profile == "dot":
            for E, C in pairs:
                q = q.plus(E.times(C, lambda a, b: a @ b.mT))
        elif sum(C.parts[0].shape[-1] for _, C in pairs) > LARGEST_UNROLLED and not centres.order + z.order:
            E, C = (torch.cat([each.parts[0].double() for each in side], -1) for side in zip(*pairs, strict=True))
            far = E.square().sum(-1, keepdim=True) + C.square().sum(-1) - 2 * (E @ C.mT)
            q = HyperDual({0: far.clamp_min(0).to(self.A.dtype)})
        else:
            for E, C in pairs:
                for e in range(C.parts[0].shape[-1]):
                    D = E.each(lambda a, e=e: a[..., e : e + 1]).plus(C.each(lambda a, e=e: -a[..., e]))
                    q = q.plus(D.times(D))
        return q.through(profile_derivatives(self.profile, self.power, self.number, q.parts[0], q.order))

    def _embedded(self, z: HyperDual) -> list[HyperDual]:
        z = z.plus(HyperDual({0: -self.origin}))
        found = [z.each(lambda a: a @ self.A.mT)] if len(self.A) else []
        if len(self.B):
            P = z.each(lambda a: a @ self.B.mT)
            C, S = P.parts[0].cos() * self.r, P.parts[0].sin() * self.r
            turn = [C, -S, -C, S] * (P.order // 4 + 2)
            found += [P.through(turn[i : i + P.order + 1]) for i in (0, 3)]
        return found


def profile_derivatives(profile: str, power: int, number: Tensor, q: Tensor, order: int) -> list[Tensor]:
    """The profile of a factor at q, and its derivatives in q up to an order.

    Roots are of q plus less than its rounding error, so that the derivatives of autograd are finite, and right, where a
    point is a centre.
    """
    eps = torch.finfo(q.dtype).eps
    if profile == "rbf":
        k = (-0.5 * q).exp()
        return [(-0.5) ** i * k for i in range(order + 1)]
    if profile == "dot":
        u = q + number
        return [math.perm(power, i) * u ** max(power - i, 0) for i in range(order + 1)]
    if profile == "rational_quadratic":
        base, found = 1 + q / (2 * number), [number.new_ones(())]
        for i in range(order):
            found.append(-found[-1] * (number + i) / (2 * number))
        return [factor * base ** (-number - i) for i, factor in enumerate(found)]
    if profile == "spherical":
        r = (q + eps**2).sqrt().clamp_max(1.0)
        return [1 - 1.5 * r + 0.5 * r**3, (r - 1 / r) * 3 / 4]
    if profile != "matern":
        raise ValueError(f"profile: expected rbf, matern, rational_quadratic, spherical or dot, got {profile!r}")
    # Where s is clamped, exp(-s) is zero. The profile of nu = 1/2 has no derivative at a centre.
    s = (q + (eps / 10 if power else eps**2)).sqrt().clamp_max(1e4)
    return matern_derivatives(power, s, order)


def matern_derivatives(p: int, s: Tensor, order: int) -> list[Tensor]:
    """The Matern kernel of nu = p + 1/2 at s = sqrt(q), and its derivatives in q.

    With m_p = s^nu K_nu(s), scaled so that m_p(0) = 1, the recurrences of the Bessel functions are

        m_p = m_{p-1} + s^2 m_{p-2} / ((2 p - 1) (2 p - 3)),      d m_p / dq = -m_{p-1} / (2 (2 p - 1)),

    both without cancellation, the first also from larger to smaller p below p = 0.
    """
    decay = (-s).exp()
    m = {0: decay, 1: (1 + s) * decay}
    for j in range(2, p + 1):
        m[j] = m[j - 1] + s * s * m[j - 2] / ((2 * j - 1) * (2 * j - 3))
    for j in range(-1, p - order - 1, -1):
        m[j] = -decay / s if j == -1 else (m[j + 2] - m[j + 1]) * ((2 * j + 3) * (2 * j + 1)) / (s * s)
    found, denominator = [m[p]], 1
    for i in range(1, order + 1):
        denominator *= -2 * (2 * (p - i) + 1)
        found.append(m[p - i] / denominator)
    return found


class OwnFactorModule(PartModule):
    """k(M z, M z_j) of a kernel by its own code."""

    def __init__(self, kernel: nn.Module, M: Tensor | None) -> None:
        super().__init__(M=M)
        self.kernel = kernel

    def forward(self, z: HyperDual, centres: HyperDual) -> HyperDual:
        at, Z = (each.parts[0] if self.M is None else each.parts[0] @ self.M.mT for each in (z, centres))
        return HyperDual({0: self.kernel.forward(at, Z)})  # without checking the points


# Maps of points or of values.


class AffineModule(PartModule):
    """z M + b, with M `[d, e]`."""

    def __init__(self, M: Tensor, b: Tensor) -> None:
        super().__init__(M=M, b=b)

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.M + self.b


class SelectedModule(PartModule):
    """Some outputs."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__(outputs=outputs)

    def forward(self, f: Tensor) -> Tensor:
        return f.index_select(-1, self.outputs)


class MappedModule(PartModule):
    """phi(f), phi a function of values by its name, with the numbers that it takes beside a value."""

    fields = ("name", "arguments")

    def __init__(self, name: str, arguments: Sequence[float | None]) -> None:
        super().__init__()
        self.name, self.arguments = name, list(arguments)

    def forward(self, f: Tensor) -> Tensor:
        return FUNCTIONS[self.name](f, *self.arguments)


class CalledModule(PartModule):
    """phi(f), phi a function of a user's own of values `[s, n]`, or `[s, n, t]` where `several`."""

    def __init__(self, function: nn.Module, several: bool) -> None:
        super().__init__()
        self.function, self.several = function, several

    def forward(self, f: Tensor) -> Tensor:
        out = self.function(f if self.several else f.squeeze(-1))
        return out if out.ndim == f.ndim else out[..., None]


# Several parts.


class SideBySideModule(PartModule):
    """The outputs of several parts side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


class EnsembleModule(PartModule):
    """The paths of several parts: `order [s]` has the paths of the first, of the second ..., `place [s]` undoes it."""

    fields = ("counts",)

    def __init__(self, parts: Sequence[nn.Module], order: Tensor, counts: Sequence[int]) -> None:
        super().__init__(parts, order=order, place=order.argsort())
        self.counts = list(counts)

    def forward(self, x: Tensor) -> Tensor:
        shares = [x] * len(self.counts) if len(x) == 1 else x[self.order].split(self.counts)
        return torch.cat([part(share) for part, share in zip(self.parts, shares, strict=True)])[self.place]


class SumModule(PartModule):
    """sum_i w_i f_i + b of parts: weights w `[k, s or 1, t or 1]`, level b `[s or 1, t or 1]`."""

    def __init__(self, parts: Sequence[nn.Module], weights: Tensor, level: Tensor) -> None:
        super().__init__(parts, weights=weights, level=level)

    def forward(self, x: Tensor) -> Tensor:
        each = (w[:, None] * part(x) for w, part in zip(self.weights, self.parts, strict=True))
        return reduce(torch.add, each) + self.level[:, None]


class ProductModule(PartModule):
    """f_1 f_2 ... of parts, point by point."""

    def forward(self, x: Tensor) -> Tensor:
        return reduce(torch.mul, (part(x) for part in self.parts))
