"""Basis functions: what a path is a weighted sum of, and how the sum is taken without ever storing it whole.

Every basis here takes x `[B, n, d]` and weights `[B, r, c]`: B problems with r weighted sums each, of c basis
functions. One method gives the sums `[B, r, n]`, another the sums with their gradients `[B, r, n, d]`. At shared
points, B = 1 and r counts all paths. At own points, B counts all paths and r = 1. The caller keeps B * n * c small (see
`matheron.evaluate`)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.arena import Sums, add, computed, empty, frame, weigh, weigh_coordinates
from ..core.modes import in_graph, transformed
from ..core.value import Value
from ..kernels import Kernel
from ..kernels.base import squared_distance

# How many functions of a basis are evaluated at once: enough for fast products, and few enough for many points per
# block. With half or twice as many, 64 paths of 32,768 features take the same time within 6% (benchmarks/peers.py,
# sweep of ell).
LARGEST_WIDTH = 1 << 13
# Where there are few points, bases are evaluated whole, and those of several paths together, up to this many numbers.
# With half or twice as many, calls take the same time within 5%.
LARGEST_BATCH = 1 << 21


class Basis(Value):
    """c basis functions; the frequencies of a random basis may come in `num_bases` independent versions."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number c of basis functions."""

    @property
    def num_bases(self) -> int:
        return 1

    @property
    def width(self) -> int:
        """The number of floats that one point needs while its sums are computed. It decides the size of blocks of
        points."""
        return min(self.size, LARGEST_WIDTH)

    def scales(self) -> Tensor:
        """Amplitudes `[g, c]` of the basis functions as features; `values` and the sums are without them."""
        raise NotImplementedError

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """The basis functions at x: `[B, n, d] -> [B, n, c]`."""

    def weighted(self, x: Tensor, W: Tensor) -> Tensor:
        """sum_i W_i phi_i(x): `[B, n, d], [B, r, c] -> [B, r, n]`."""
        return weigh(self.values(x), W)

    @abstractmethod
    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """The sums `[B, r, n]` and their gradients in x `[B, r, n, d]`; not for autograd."""

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        """The basis in pieces of at most `width` functions, with the weights that belong to each; one piece if it
        cannot be divided."""
        yield self, slice(None)

    def sums(self, x: Tensor, W: Tensor, gradient: bool) -> Sums:
        """`weighted`, or `weighted_with_gradient`, piece by piece where there are many functions and points."""
        if self.size <= max(LARGEST_WIDTH, LARGEST_BATCH // max(1, x.numel())):
            return self.weighted_with_gradient(x, W) if gradient else self.weighted(x, W)
        total = None
        for piece, columns in self.pieces(LARGEST_WIDTH):
            with frame():
                w = W[..., columns]
                part = piece.weighted_with_gradient(x, w) if gradient else piece.weighted(x, w)
                total = part if total is None else add(total, part)
        assert total is not None
        return total

    def vjp(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        """sum_r G_r times the gradient of the sums of one problem: `[1, n, d], [1, r, c], [1, r, n] -> [1, n, d]`.

        It keeps no graph.
        """
        if self.size <= max(LARGEST_WIDTH, LARGEST_BATCH // max(1, x.numel())):
            return self._vjp(x, W, G)
        total = torch.zeros_like(x)
        for piece, columns in self.pieces(LARGEST_WIDTH):
            with frame():
                total += piece._vjp(x, W[..., columns], G)
        return total

    def _vjp(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        """`vjp` of all functions together."""
        return self._shared_vjp(x, W, G) if W.shape[1] > 1 else self._slope(x, W[0, 0]) * G.mT

    def _slope(self, x: Tensor, w: Tensor) -> Tensor:
        """The gradient of one sum: `[1, n, d], [c] -> [1, n, d]`."""
        return self.weighted_with_gradient(x, w[None, None])[1][:, 0]

    def _shared_vjp(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        """`vjp` of several sums."""
        _, df = self.weighted_with_gradient(x, W)
        return (G[..., None] * df).sum(1)

    def add_on_axes(self, W: Tensor, axes: list[Tensor], into: list[Tensor]) -> bool:
        """Add the sums on the tensor grid of some axes, of weights `[r, c]`, to r views `[n1, n2, ...]`; False where a
        basis has no way of its own to do it."""
        return False

    def adjoint(self, x: Tensor, v: Tensor) -> Tensor:
        """The transpose of the sums: `[n, d], [r, n] -> [r, c]`, weights with <W, adjoint> = <sums(W), v>."""
        return v @ self.values(x[None])[0]

    def adjoint_cost(self, n: int) -> float | None:
        """Operations that `adjoint` takes for a row at n points by fast transforms; None where it has none."""
        return None

    def derivative(self, W: Tensor, index: Tensor | None, direction: Tensor) -> tuple[Basis, Tensor] | None:
        """A basis and weights `[s, t, c']` of the derivative along a direction `[d]` of sums with weights `[s, t, c]`.

        None where there is none in closed form. `index` `[s]` is the version of the basis that each sum has.
        """
        return None

    def same_functions(self, other: Basis) -> bool:
        """Whether another basis is known to have the same functions, with amplitudes of its own perhaps."""
        return False

    def select(self, index: Tensor | slice) -> Basis:
        """The versions `index` of a basis that has several; a basis with one serves all."""
        if self.num_bases == 1:
            return self
        return self.mapped(lambda b: b[index])


class Pairs(Basis):
    """cos(theta_i . x) for i = 1 .. f, then sin(theta_i . x): c = 2 f. Frequencies `[g, f, d]`, amplitudes `[g, f]`."""

    shapes = "frequencies: g f d, amplitudes: g f"

    def __init__(self, frequencies: Tensor, amplitudes: Tensor) -> None:
        super().__init__(frequencies=frequencies, amplitudes=amplitudes.expand(frequencies.shape[:2]))

    def scales(self) -> Tensor:
        return self.amplitudes.repeat(1, 2)

    @property
    def size(self) -> int:
        return 2 * self.frequencies.shape[1]

    @property
    def num_bases(self) -> int:
        return self.frequencies.shape[0]

    def derivative(self, W: Tensor, index: Tensor | None, direction: Tensor) -> tuple[Basis, Tensor] | None:
        slope = _along_frequencies(self.frequencies, index, direction, W)  # theta . u
        cos, sin = W.chunk(2, dim=-1)
        return self, torch.cat([sin * slope, -cos * slope], dim=-1)

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        f, step = self.frequencies.shape[1], max(1, width // 2)
        for i in range(0, f, step):
            cosines = torch.arange(i, min(i + step, f), device=self.frequencies.device)
            piece = Pairs(self.frequencies[:, i : i + step], self.amplitudes[:, i : i + step])
            yield piece, torch.cat([cosines, cosines + f])

    def _shared_vjp(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        H_cos, H_sin = (feature_cotangents(w, G) for w in W.chunk(2, dim=-1))  # [n, f]
        P = phases_at(x, self.frequencies)[0]
        slope = _cos(P).mul_(H_sin).addcmul_(P.sin_(), H_cos, value=-1)
        return (slope @ self.frequencies[0])[None]

    def _slope(self, x: Tensor, w: Tensor) -> Tensor:
        """A cosine and a sine with weights are one cosine with a phase: half the trigonometric functions."""
        cos, sin = w.chunk(2)
        return _slope_of_cosines(x, self.frequencies, torch.atan2(-sin, cos)[None], torch.hypot(cos, sin))

    def values(self, x: Tensor) -> Tensor:
        P = phases_at(x, self.frequencies)
        return torch.cat([P.cos(), P.sin()], dim=-1)

    def weighted(self, x: Tensor, W: Tensor) -> Tensor:
        W_cos, W_sin = W.chunk(2, dim=-1)
        P = phases_at(x, self.frequencies)  # [B, n, f]
        if in_graph(P):
            return weigh(P.cos(), W_cos) + weigh(P.sin(), W_sin)
        return weigh(_cos(P), W_cos).add_(weigh(P.sin_(), W_sin))

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        W_cos, W_sin = W.chunk(2, dim=-1)
        P = phases_at(x, self.frequencies)
        C, S = _cos(P), P.sin_()  # [B, n, f]
        gradient = weigh_coordinates(C, W_sin, self.frequencies) - weigh_coordinates(S, W_cos, self.frequencies)
        return weigh(C, W_cos) + weigh(S, W_sin), gradient


class Cosines(Basis):
    """cos(theta_i . x + tau_i), the paper's basis. Frequencies `[g, c, d]`, phases and amplitudes `[g, c]`."""

    shapes = "frequencies: g c d, phases: g c, amplitudes: g c"

    def __init__(self, frequencies: Tensor, phases: Tensor, amplitudes: Tensor) -> None:
        super().__init__(frequencies=frequencies, phases=phases, amplitudes=amplitudes.expand(frequencies.shape[:2]))

    def scales(self) -> Tensor:
        return self.amplitudes

    @property
    def size(self) -> int:
        return self.frequencies.shape[1]

    @property
    def num_bases(self) -> int:
        return self.frequencies.shape[0]

    def derivative(self, W: Tensor, index: Tensor | None, direction: Tensor) -> tuple[Basis, Tensor] | None:
        turned = Cosines(self.frequencies, self.phases + math.pi / 2, self.amplitudes)  # -sin(P) = cos(P + pi / 2)
        return turned, W * _along_frequencies(self.frequencies, index, direction, W)

    def pieces(self, width: int) -> Iterator[tuple[Basis, slice | Tensor]]:
        for i in range(0, self.size, width):
            cut = slice(i, i + width)
            yield Cosines(self.frequencies[:, cut], self.phases[:, cut], self.amplitudes[:, cut]), cut

    def _shared_vjp(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        slope = phases_at(x, self.frequencies, self.phases)[0].sin_().mul_(feature_cotangents(W, G))  # [n, f]
        return (slope @ self.frequencies[0]).neg_()[None]

    def _slope(self, x: Tensor, w: Tensor) -> Tensor:
        return _slope_of_cosines(x, self.frequencies, self.phases, w)

    def values(self, x: Tensor) -> Tensor:
        P = phases_at(x, self.frequencies, self.phases)
        return P.cos() if in_graph(P) else P.cos_()

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        P = phases_at(x, self.frequencies, self.phases)
        value = weigh(_cos(P), W)
        return value, weigh_coordinates(P.sin_(), -W, self.frequencies)


def _along_frequencies(theta: Tensor, index: Tensor | None, direction: Tensor, W: Tensor) -> Tensor:
    """theta . u for each path's frequencies: `[g, f, d], [s], [d] -> [s or 1, 1, f]`, in the dtype of W."""
    slope = (theta @ direction.to(theta))[:, None].to(W.dtype)
    return slope if index is None or len(slope) == 1 else slope[index]


def phases_at(x: Tensor, theta: Tensor, tau: Tensor | None = None) -> Tensor:
    """theta . x + tau: `[B, n, d], [g, c, d], [g, c] -> [B, n, c]`, in memory of its own; g is 1 or B."""
    if theta.shape[0] > 1:
        x = x.expand(theta.shape[0], -1, -1)
        return x @ theta.mT if tau is None else torch.baddbmm(tau[:, None], x, theta.mT)
    flat, shape = x.reshape(-1, x.shape[-1]), (*x.shape[:-1], theta.shape[1])
    if torch.is_grad_enabled() or transformed() or torch.compiler.is_compiling():
        P = flat @ theta[0].mT if tau is None else torch.addmm(tau[0], flat, theta[0].mT)
    else:
        out = empty((len(flat), theta.shape[1]), x)
        P = torch.mm(flat, theta[0].mT, out=out) if tau is None else torch.addmm(tau[0], flat, theta[0].mT, out=out)
    return P.reshape(shape)


def _slope_of_cosines(x: Tensor, theta: Tensor, tau: Tensor, w: Tensor) -> Tensor:
    """The gradient of sum_i w_i cos(theta_i . x + tau_i): `[1, n, d], [1, c, d], [1, c], [c] -> [1, n, d]`."""
    return phases_at(x, theta, tau).sin_() @ (-w[:, None] * theta[0])


def feature_cotangents(W: Tensor, G: Tensor) -> Tensor:
    """H = G^T W, the gradient of each basis function at each point: `[1, r, c], [1, r, n] -> [n, c]`."""
    return torch.mm(G[0].mT, W[0], out=empty((G.shape[2], W.shape[2]), W))


def _cos(P: Tensor) -> Tensor:
    return computed(torch.cos, P.shape, P)


# Canonical: the functions k(., z_j) of a kernel and its centres, which are the basis of an update.


class Canonical(Basis):
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

    def derivative(self, W: Tensor, index: Tensor | None, direction: Tensor) -> tuple[Basis, Tensor] | None:
        from .slopes import CanonicalSlopes

        z, d = self.centres, self.centres.shape[1]
        return CanonicalSlopes(self.kernel, z, z.new_zeros(len(z), 0, d), direction.to(z)[None]), W

    def _shared_vjp(self, x: Tensor, W: Tensor, G: Tensor) -> Tensor:
        """sum_j H_j dk(x, z_j)/dx with H = G^T W. For radial kernels these are products with slopes; for others, each
        point is a problem of its own."""
        H = feature_cotangents(W, G)  # [n, c]
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
