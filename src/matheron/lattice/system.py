"""The system that data are solved for on a Fourier lattice: a cost per iteration that does not depend on their number.

A prior of t outputs is a sum of c functions phi_j, the modes of a lattice, and of explicit functions e_k. The latter
are those of the kernel's other terms (a constant, monomials, harmonics). All weights z are standard normal (`Joint`):

    f_i(x)  =  sum_j phi_j(x) sum_r L_j[i, r] z_rj  +  sum_k e_k(x) sum_r R_k[i, r] z_rk

One output has L_j = a_j, the amplitude of mode j. Of several, lattices with the same modes have couplings R_q R_q^T,
and each mode has a root of its own, L_j L_j^T = sum_q a_qj^2 R_q R_q^T. The number of weights is then the same for any
number of lattices.

Let S be the functions at the data, so that f(X) = S z, and Lambda the noise. Matheron's rule in weight space takes a
path's prior weights w to u, and m are the weights of the mean:

    M u  =  w + S^T Lambda^-1 (y - mean - eps),      M m  =  S^T Lambda^-1 (y - mean),      M  =  I + S^T Lambda^-1 S.

A datum is of one output and of one kind (a value, a slope, an average over a box: see `kinds`); both together are its
channel. A kind multiplies mode j by D_j. For the lattice's functions Phi at the places of one channel's data,
Phi* Lambda^-1 Phi is a Toeplitz matrix over differences of modes. Its generator has 2^d c numbers. Besides it, only the
right-hand sides and the columns of the explicit functions are kept of the data (`Information`; equispaced Fourier GPs,
Greengard, Rachh and Barnett 2022). All of these add over data. A product with M is L, then for each channel D, a
convolution by FFTs and D*, then L^T, and the border (`System`).

Conjugate gradients solve the system, preconditioned by the Cholesky factor of the rows and columns that the data
determine best (`Head`). If the data determine many more weights than a factor can have, these are eliminated exactly
(`Elimination`). The others then have a preconditioner that knows where the data are (`Local`); with a diagonal one,
waves outside the data's domain take hundreds of iterations. Where data are fewer than the weights they determine, the
preconditioner is M^-1 = I - S^T (S S^T + Lambda)^-1 S (`DataSpace`). Since |phi(x)^T e|^2 <= (phi^T M^-1 phi)
(e^T M e), the error e of a path with the residual r is at most sqrt(r^T M^-1 r) posterior standard deviations.
Iterations stop by that.

Real weights are kept two rows in a complex one, as coefficients of complex waves, scaled so that inner products stay
the same. M is real, hence linear in these too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..core.checks import level_outside
from ..core.functionals import Functionals
from ..core.nufft import FFT_COST, adjoint_at, as_complex, as_real, fast_size, series_at
from ..core.sites import Sites
from ..evaluate.bases import Basis
from ..features.features import EXACT, Features
from ..kernels import Kernel
from ..solvers.base import Stats
from ..solvers.cholesky import solved
from ..solvers.pcg import ConvergenceWarning
from .basis import Lattice, same_modes
from .kinds import OnModes, about

# The largest number of explicit functions in addition to a lattice. Each costs a transform of the data, and a row of a
# dense matrix.
LARGEST_BESIDE = 512
# Above this ratio of the data's information on a mode to its prior precision, the Toeplitz matrix loses too many
# digits.
LARGEST_INFORMATION = 1e11

# L[i][r] `[c]`, or None for zero.
Planes = list[list[Tensor | None]]


def rows_of(channels: Tensor | None, num_channels: int) -> list[Tensor] | list[slice]:
    """The indices of the data of each channel. If no channels are given, all data are of the first."""
    if channels is None:
        return [slice(None), *[slice(0, 0)] * (num_channels - 1)]
    return [(channels == i).nonzero()[:, 0] for i in range(num_channels)]


def largest_dense(device: torch.device) -> int:
    """The largest number of rows of a matrix that is factored for a preconditioner (benchmarks/lattice.py)."""
    return 12_000 if device.type == "cuda" else 4000


class Joint:
    """Functions of t outputs on the c modes of a lattice, and then on explicit functions: float64, about the origin.

        f_i(x)  =  sum_j phi_j(x) sum_r L_j[i, r] z_rj  +  sum_k e_k(x) sum_r R_k[i, r] z_rk

    Weights z are rows `[t c + e]`: c for each output, and e explicit ones. Observations have t channels for values, and
    t more for each further kind.
    """

    kinds: Functionals | None = None
    on_modes: Sequence[OnModes | None] = (None,)  # for each kind of observation, of which values are the first

    def __init__(
        self, lattices: Sequence[Lattice], beside: Sequence[Basis] = (), roots: Sequence[Tensor | None] | None = None
    ) -> None:
        self.lattices = [basis.to(torch.float64) for basis in lattices]
        self.beside = [basis.to(torch.float64) for basis in beside]
        self.lattice = self.lattices[0]
        one = torch.ones(1, 1, dtype=torch.float64, device=self.lattice.period.device)
        self.roots = [one if R is None else R.double() for R in roots or [None] * (len(lattices) + len(beside))]
        self.num_outputs, self.size = len(self.roots[0]), self.lattice.size
        self.num_beside = sum(self.num_outputs * basis.size for basis in self.beside)
        self.mixing, self.planes = self._planes()

    def _planes(self) -> tuple[list[list[Tensor]] | None, Planes]:
        """The roots of the modes: U[q t + r'][r] `[c]` with orthonormal columns, (a_qj R_q)^T = U_j L_j^T, or None for
        a single lattice; and L[i][r] `[c]`, None where zero."""
        t, R = self.num_outputs, torch.stack(self.roots[: len(self.lattices)])  # [q, t, t]
        if len(R) == 1:
            a = self.lattice.scales()[0]
            return None, [[a * r if bool(r != 0) else None for r in row] for row in R[0]]
        a = torch.stack([lattice.amplitudes for lattice in self.lattices], dim=1)  # [h + 1, q]
        U, upper = torch.linalg.qr((a[:, :, None, None] * R.mT).flatten(1, 2))  # [h + 1, q t, t], [h + 1, t, t]
        L = [[_each(upper[:, r, i]) if r <= i else None for r in range(t)] for i in range(t)]
        return [[_each(column) for column in rows.unbind(-1)] for rows in U.unbind(1)], L

    @staticmethod
    def of(features: Features, kernel: Kernel) -> Joint | None:
        """The functions of these features.

        None unless they are lattices with the same modes, and a few functions that represent their terms exactly.
        """
        blocks = list(features.blocks)
        lattices = [block.basis for block in blocks if isinstance(block.basis, Lattice)]
        beside = blocks[len(lattices) :]
        if not lattices or features.num_bases > 1 or not all(block.role == EXACT for block in beside):
            return None
        few = kernel.num_outputs * sum(block.basis.size for block in beside) <= LARGEST_BESIDE
        if not (few and same_modes(lattices)):
            return None
        return Joint(lattices, [block.basis for block in beside], features.roots)

    def with_kinds(self, kinds: Functionals | None) -> Joint:
        """The same functions, with channels for observations of these kinds."""
        if kinds is self.kinds or kinds is None:
            return self
        other = copy(self)
        other.kinds, each = kinds, [kinds[k : k + 1] for k in range(len(kinds))]
        other.on_modes = [None, *(OnModes.of(kind, self.lattice) for kind in each)]
        return other

    @property
    def num_channels(self) -> int:
        return self.num_outputs * len(self.on_modes)

    def largest_variances(self) -> list[float]:
        """The largest variance of an observation with one weight, in each channel."""
        found = []
        for kind in self.on_modes:
            power = 1.0 if kind is None else kind.power
            each = [[p.square() * power for p in row if p is not None] for row in self.planes]
            found += [max((float(p.max()) for p in row), default=0.0) for row in each]
        return found

    def information(self, totals: Sequence[float]) -> Tensor:
        """The information of data on the lattice's weights, relative to the prior's: of each channel, `[k t, t c]`.

        `totals` are the sums of the data's precisions in each channel.
        """
        share = torch.full_like(self.lattice.scales()[0], 0.5)
        share[-1] = 1.0
        rows = []
        for channel, total in enumerate(totals):
            kind, row = self.on_modes[channel // self.num_outputs], self.planes[channel % self.num_outputs]
            weight = total * (share if kind is None else share * kind.power)
            rows.append(torch.cat([torch.zeros_like(share) if p is None else p.square() * weight for p in row]))
        return torch.stack(rows)

    # Conversions between the weights of the basis, of the lattice's outputs, and of prior paths.

    def mixed(self, z: Tensor, planes: Planes | None = None) -> list[Tensor]:
        """L z, the coefficients of each output: `[r, t c] -> t times [r, c]`."""
        parts, outputs = z.chunk(self.num_outputs, dim=1), []
        for row in self.planes if planes is None else planes:
            total: Tensor | None = None
            for part, plane in zip(parts, row, strict=True):
                if plane is not None:
                    total = part * plane if total is None else total.addcmul_(part, plane)
            outputs.append(torch.zeros_like(parts[0]) if total is None else total)
        return outputs

    def unmixed(self, G: Sequence[Tensor], planes: Planes | None = None, onto: Tensor | None = None) -> Tensor:
        """The transpose of `mixed`: `t times [r, c] -> [r, t c]`, added to the rows `onto`."""
        parts, before = [], [None] * self.num_outputs if onto is None else onto.chunk(self.num_outputs, dim=1)
        for r, total in enumerate(before):
            for row, G_i in zip(self.planes if planes is None else planes, G, strict=True):
                if (plane := row[r]) is not None:
                    total = G_i * plane if total is None else torch.addcmul(total, G_i, plane)
            parts.append(torch.zeros_like(G[0]) if total is None else total)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def coefficients(self, z: Tensor) -> Tensor:
        """The coefficients of each output's functions, amplitudes included: `[r, t c + e] -> [r, t, c + k]`."""
        z, v = z.split([self.num_outputs * self.size, self.num_beside], dim=1)
        beside = [(R @ part) * basis.scales() for basis, R, part in self._each_beside(v)]
        return torch.cat([torch.stack(self.mixed(z), dim=1), *beside], dim=2)

    def weights(self, coefficients: Tensor) -> Tensor:
        """Weights with these coefficients: `[r, t, c + k] -> [r, t c + e]`."""
        start = self.size
        parts = [self.unmixed(self.normalised(coefficients[..., :start].unbind(1)))]
        for basis, R in zip(self.beside, self.roots[len(self.lattices) :], strict=True):
            some = _divided(coefficients[..., start : start + basis.size], basis.scales())
            parts.append((torch.linalg.pinv(R) @ some).flatten(1))
            start += basis.size
        return torch.cat(parts, dim=1)

    def normalised(self, V: Sequence[Tensor]) -> list[Tensor]:
        """(L L^T)^-1 V, of coefficients of each output: `t times [r, c]`."""
        zero = torch.zeros_like(self.lattice.scales()[0])
        if self.num_outputs == 1:
            L = zero if self.planes[0][0] is None else self.planes[0][0]
            return [_divided(V[0], L * L)]
        L = torch.stack([torch.stack([zero if p is None else p for p in row], -1) for row in self.planes], -2)
        H = L @ L.mT  # [c, t, t]
        H.diagonal(dim1=-2, dim2=-1).add_(1e-13 * H.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) + 1e-300)
        some = torch.stack(list(V), dim=-1).transpose(0, 1)  # [c, r, t]
        return [part.mT for part in torch.linalg.solve(H, some.mT).mT.unbind(-1)]

    def normalised_beside(self, v: Tensor) -> list[Tensor]:
        """L'^-1 v of explicit weights `[r, e]`, L = a R of each basis: `[r, t, k]` each."""
        return [_divided(torch.linalg.pinv(R).mT @ part, basis.scales()) for basis, R, part in self._each_beside(v)]

    def of_paths(self, w: Tensor) -> Tensor:
        """Weights of prior paths, `[s, t, ell] -> [s, t c + e]`."""
        own = self._own(w)
        rows, beside = torch.cat(own[: len(self.lattices)], dim=1), own[len(self.lattices) :]  # [s, q t, c]
        if self.mixing is not None:
            several = rows.unbind(1)
            rows = torch.stack([_sum(several, [u[r] for u in self.mixing]) for r in range(self.num_outputs)], dim=1)
        return torch.cat([rows.flatten(1), *(part.flatten(1) for part in beside)], dim=1)

    def with_weights(self, w: Tensor, z: Tensor) -> Tensor:
        """Replace the weights `[s, t c + e]` of these functions in weights of prior paths `[s, t, ell]`."""
        z_before = self.of_paths(w)[:, : self.num_outputs * self.size]
        z, v = z.split([z_before.shape[1], self.num_beside], dim=1)
        beside = [R @ part for _, R, part in self._each_beside(v)]
        if self.mixing is None:
            return torch.cat([self.roots[0] @ z.unflatten(1, (self.num_outputs, self.size)), *beside], dim=2)
        # Several lattices can share a mode. The data determine a combination of their weights; the other combinations
        # stay as they were.
        change = (z - z_before).unflatten(1, (self.num_outputs, self.size)).unbind(1)
        rows = torch.stack([_sum(change, u) for u in self.mixing], dim=1)  # [s, q t, c]
        each = zip(w.split(self.size, dim=2), self.roots, rows.split(self.num_outputs, dim=1), strict=False)
        return torch.cat([*(part + R @ more for part, R, more in each), *beside], dim=2)

    def _own(self, w: Tensor) -> list[Tensor]:
        """R^-1 w for each basis, `[s, t, c]`."""
        parts = w.split([basis.size for basis in (*self.lattices, *self.beside)], dim=2)
        if self.num_outputs == 1:
            return list(parts)
        return [torch.linalg.pinv(R) @ part for R, part in zip(self.roots, parts, strict=True)]

    def _each_beside(self, v: Tensor) -> Iterator[tuple[Basis, Tensor, Tensor]]:
        """Explicit bases, their roots, and their weights `[r, t, k]`."""
        start = 0
        for basis, R in zip(self.beside, self.roots[len(self.lattices) :], strict=True):
            stop = start + self.num_outputs * basis.size
            yield basis, R, v[:, start:stop].unflatten(1, (self.num_outputs, basis.size))
            start = stop

    # What is observed: places `[n, d]`, and the channel of each datum `[n]`, or None for values of one output.

    def outputs_of(self, channels: Tensor | None) -> Tensor | None:
        """The output of each datum; None where there is one output."""
        return None if channels is None or self.num_outputs == 1 else channels % self.num_outputs

    def kinds_of(self, channels: Tensor | None) -> Iterator[tuple[OnModes | None, int, Tensor | slice]]:
        """The kinds, their numbers, and which data are of each."""
        if channels is None or len(self.on_modes) == 1:
            yield None, 0, slice(None)
            return
        for k, kind in enumerate(self.on_modes):
            yield kind, k, (channels // self.num_outputs == k).nonzero()[:, 0]

    def columns(self, X: Tensor, channels: Tensor | None = None) -> Tensor:
        """Observations of the explicit functions, `[n, e]`."""
        parts, tasks = [X[:, :0]], self.outputs_of(channels)
        for basis, R in zip(self.beside, self.roots[len(self.lattices) :], strict=True):
            E = X.new_empty(len(X), basis.size)

            def values(sites: Sites, basis: Basis = basis) -> Tensor:
                return (basis.values(sites.points[None]) * basis.scales()[:, None])[0]  # [n, k]

            for kind, k, mine in self.kinds_of(channels):
                if kind is None:
                    E[mine] = values(Sites(X[mine]))
                elif self.kinds is not None and len(X[mine]):
                    rows = about(self.kinds[k - 1 : k].to(X.device), X[mine])
                    E[mine] = rows.by_nodes(8).features(values).detach()
            parts.append(E if tasks is None else (R[tasks][:, :, None] * E[:, None]).flatten(1))
        return torch.cat(parts, dim=1)

    def sums(self, X: Tensor, W: Tensor, channels: Tensor | None = None) -> Tensor:
        """`[n, d], [r, t c + e] -> [r, n]`."""
        w, v = W.split([self.num_outputs * self.size, self.num_beside], dim=1)
        f, of_outputs = v @ self.columns(X, channels).mT, self.mixed(w)
        for i, mine in enumerate(rows_of(channels, self.num_channels)):
            kind, V = self.on_modes[i // self.num_outputs], of_outputs[i % self.num_outputs]
            if len(X[mine]):
                f[:, mine] += self.lattice.weighted(X[mine][None], (V if kind is None else kind(V))[None])[0]
        return f

    def adjoint(self, X: Tensor, v: Tensor, accuracy: float | None = None, channels: Tensor | None = None) -> Tensor:
        """The transpose of `sums`: `[n, d], [r, n] -> [r, t c + e]`."""
        w = self.unmixed(self.adjoints(X, v, accuracy, channels))
        return torch.cat([w, v @ self.columns(X, channels)], dim=1) if self.num_beside else w

    def adjoints(self, X: Tensor, v: Tensor, accuracy: float | None, channels: Tensor | None) -> list[Tensor]:
        """The transpose of the observations of the lattice's functions, applied to numbers at the data: `[r, c]` for
        each output."""
        each = rows_of(channels, self.num_channels)
        t, found = self.num_outputs, []
        for i, mine in enumerate(each):
            kind = self.on_modes[i // t]
            if kind is None:
                found.append(self.lattice.adjoint(X[mine], v[:, mine], accuracy))
            elif len(X[mine]):
                found[i % t] = found[i % t] + kind.transposed(self.lattice.adjoint(X[mine], v[:, mine], accuracy))
        return found

    def covariance(self, X: Tensor, channels: Tensor | None = None, block: int = 1 << 22) -> Tensor:
        """The covariance of the data without their noise, `[n, n]`, for `block` pairs of places at a time."""
        K = X.new_zeros(len(X), len(X))
        i, j = torch.tril_indices(len(X), len(X), device=X.device)
        for a, b in zip(i.split(block), j.split(block), strict=True):
            K[a, b] = K[b, a] = self.covariances(X, a, b, channels)
        return K

    def covariances(self, X: Tensor, a: Tensor, b: Tensor, channels: Tensor | None = None) -> Tensor:
        """Covariances of the pairs of data with the indices a and b `[p]`: the series of the lattices at differences of
        places.

        Two kinds multiply the series by D and by the conjugate of the other's.
        """
        h = self.lattice.num_pairs
        cosines = torch.cat([lattice.scales().square() for lattice in self.lattices])
        cosines[:, h : 2 * h] = 0  # sum_j a_j^2 cos(theta_j . r), which includes the products of the sines
        coefficients, angles = self.lattice.coefficients(cosines), self.lattice.angles(X[a] - X[b])
        if self.kinds is None or channels is None:
            series = series_at(coefficients, angles).real  # [q, p]
        else:
            series = angles.new_zeros(len(coefficients), len(angles))
            kinds, shape = channels // self.num_outputs, self.lattice.shape
            numbers, where = (kinds[a] * len(self.on_modes) + kinds[b]).unique(return_inverse=True)
            for place, number in enumerate(numbers.tolist()):
                both, mine = coefficients, (where == place).nonzero()[:, 0]
                left, right = (self.on_modes[k] for k in divmod(number, len(self.on_modes)))
                both = both if left is None else both * left.boxed.view(shape)
                both = both if right is None else both * right.boxed.conj().view(shape)
                series[:, mine] = series_at(both, angles[mine]).real
        K, tasks = torch.zeros_like(X[a, 0]), self.outputs_of(channels)
        if self.num_beside:
            columns = self.columns(X, channels)
            K += (columns[a] * columns[b]).sum(1)
        for k, R in zip(series, self.roots[: len(self.lattices)], strict=True):
            K += k if tasks is None else k * (R @ R.mT)[tasks[a], tasks[b]]
        return K


def _chunked(numbers: Sequence[float], size: int) -> list[Sequence[float]]:
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]


def _each(pairs: Tensor) -> Tensor:
    """Expand values for the pairs and the constant, `[h + 1]`, to values for all functions, `[c]`."""
    return torch.cat([pairs[:-1], pairs[:-1], pairs[-1:]])


def _sum(rows: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    total = rows[0] * factors[0]
    for row, factor in zip(rows[1:], factors[1:], strict=True):
        total.addcmul_(row, factor)
    return total


def _divided(W: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, W / torch.where(scales > 0, scales, 1.0), 0.0)


# The information in the data: a matrix, and right-hand sides.


@dataclass(frozen=True)
class Information:
    """The parts of S^T Lambda^-1 S, which add over data.

    `generator` has the generators of the Toeplitz matrices Phi* Lambda^-1 Phi, one for each channel. With E the
    observations of the explicit functions and S_1 those of the lattice's functions, `cross` is E^T Lambda^-1 S_1 and
    `corner` is E^T Lambda^-1 E.
    """

    generator: Tensor  # complex, [k t, 4 m_1 + 1, 4 m_2 + 1, ...]
    cross: Tensor  # [e, t c]
    corner: Tensor  # [e, e]

    @staticmethod
    def none(basis: Joint) -> Information:
        """The information of no data."""
        e, zero = basis.num_beside, torch.zeros_like(basis.lattice.period[:0])
        shape = [basis.num_channels, *(2 * n - 1 for n in basis.lattice.shape)]
        generator = torch.zeros(shape, dtype=torch.complex128, device=zero.device)
        return Information(generator, zero.new_zeros(e, basis.num_outputs * basis.size), zero.new_zeros(e, e))

    @staticmethod
    def of(basis: Joint, X: Tensor, precision: Tensor, channels: Tensor | None = None) -> Information:
        """The information of data at places `[n, d]` relative to the origin, by one transform for each of their
        channels."""
        lattice, accuracy = basis.lattice, _accuracy(basis, precision, channels)
        shape, angles, weights = [2 * n - 1 for n in lattice.shape], lattice.angles(X), precision.to(torch.complex128)
        each = rows_of(channels, basis.num_channels)
        generators = [
            adjoint_at(weights[None, mine], angles[mine], shape, accuracy)
            if len(X[mine])
            else weights.new_zeros(1, *shape)
            for mine in each
        ]
        columns = basis.columns(X, channels)
        E = columns * precision[:, None]  # [n, e]
        cross = X.new_zeros(0, basis.num_outputs * lattice.size)
        if E.shape[1]:
            rows = E.mT.split(16)  # the rows that are transformed together
            cross = torch.cat([basis.unmixed(basis.adjoints(X, some, accuracy, channels)) for some in rows])
        return Information(torch.cat(generators), cross, E.mT @ columns)

    def __add__(self, other: Information) -> Information:
        return Information(self.generator + other.generator, self.cross + other.cross, self.corner + other.corner)

    def with_channels(self, basis: Joint) -> Information:
        """The same information for a basis with channels of further kinds, which have no data yet."""
        more = basis.num_channels - len(self.generator)
        if not more:
            return self
        none = self.generator.new_zeros(more, *self.generator.shape[1:])
        return Information(torch.cat([self.generator, none]), self.cross, self.corner)

    def to(self, dtype: torch.dtype) -> Information:
        """This information in another precision."""
        return Information(self.generator.to(dtype.to_complex()), self.cross.to(dtype), self.corner.to(dtype))


def right_hand_side(
    basis: Joint, X: Tensor, values: Tensor, precision: Tensor, channels: Tensor | None = None
) -> Tensor:
    """S^T Lambda^-1 values: `[n, d], [r, n] -> [r, t c + e]`."""
    return basis.adjoint(X, values * precision, _accuracy(basis, precision, channels), channels)


def _accuracy(
    basis: Joint, precision: Tensor, channels: Tensor | None, coarsest: float = 1e-9, finest: float = 1e-14
) -> float:
    """The accuracy of the data's transforms, relative to their size: errors far below one, the prior's precision."""
    totals = [float(precision[mine].sum()) for _, _, mine in basis.kinds_of(channels)]
    variances = [max(of_kind) for of_kind in _chunked(basis.largest_variances(), basis.num_outputs)]
    largest = max(v * total for v, total in zip(variances, totals, strict=False))
    return min(coarsest, max(finest, 1e-3 / max(largest, 1e-300)))


# Packed rows: two real rows of weights as one complex row.


def real_rows(Z: Tensor) -> Tensor:
    """View complex rows as real ones: `[p, c] -> [p, 2 c]`. Products with real numbers are faster in this form."""
    return torch.view_as_real(Z).flatten(1)


def complex_rows(W: Tensor) -> Tensor:
    """View real rows as complex ones: the inverse of `real_rows`."""
    return torch.view_as_complex(W.unflatten(1, (-1, 2)))


def packed(basis: Joint, W: Tensor) -> Tensor:
    """Pack real rows, two in each complex one, with the lattice's weights in the order of its box: `[r, t c + e] -> [r
    / 2, ...]`."""
    w, v = W.split([W.shape[1] - basis.num_beside, basis.num_beside], dim=1)
    factor = _unitary(basis)
    parts = [basis.lattice.joined_coefficients(part).flatten(1) * factor for part in w.split(basis.size, dim=1)]
    return torch.cat([*parts, as_complex(v)], dim=1)


def unpacked(basis: Joint, Z: Tensor, r: int) -> Tensor:
    """Separate the rows that `packed` joined: `[r / 2, t c + e] -> [r, t c + e]`."""
    z, v = Z.split([Z.shape[1] - basis.num_beside, basis.num_beside], dim=1)
    factor = _unitary(basis)
    parts = [basis.lattice.separated_adjoint(part * factor, r) for part in z.split(basis.size, dim=1)]
    return torch.cat([*parts, as_real(v, r)], dim=1)


def packed_planes(basis: Joint, dtype: torch.dtype) -> Planes:
    """L for packed rows that are viewed as real ones, which are twice as long: `[2 c]`."""
    factor = _unitary(basis)

    def boxed(plane: Tensor) -> Tensor:
        return (in_box(plane, basis.lattice) / factor).repeat_interleave(2).to(dtype)

    return [[None if plane is None else boxed(plane) for plane in row] for row in basis.planes]


def in_box(each: Tensor, lattice: Lattice) -> Tensor:
    """Numbers of the functions of a lattice, those of modes j and -j the same, in the order of its box: `[.., c]`."""
    cos, _, one = each.split([lattice.num_pairs, lattice.num_pairs, 1], dim=-1)
    return torch.cat([cos.flip(-1), one, cos], dim=-1)


def _unitary(basis: Joint) -> Tensor:
    factor = torch.full_like(basis.lattice.scales()[0], 2**0.5)
    factor[basis.lattice.num_pairs] = 1.0
    return factor


# The system, and how it is solved.


class System:
    """M = I + S^T Lambda^-1 S on real weights `[r, t c + e]`."""

    _rows = 32  # the number of right-hand sides in one run of the iterations
    # Iterations are in single precision if transforms have at least `_single_from` numbers, and if the information of
    # the data is at most `_largest_in_single` times the prior's. Residuals are in double precision, and a second solve
    # corrects the first. The last pass is one that does not reduce the squared error below `_progress` times the one
    # before (benchmarks/lattice.py).
    _single_from, _largest_in_single, _progress = 1 << 14, 1e7, 0.1

    def __init__(self, basis: Joint, information: Information) -> None:
        self.basis, self.lattice = basis, basis.lattice
        self.generator, self.cross, self.corner = information.generator, information.cross, information.corner
        self.size = [fast_size(2 * n - 1) for n in self.lattice.shape]
        totals = [float(T.flatten()[T.numel() // 2].real) for T in self.generator]  # the sums of the precisions
        self.by_channel = basis.information(totals)  # [k t, t c]: data's, over the prior's
        self.information = self.by_channel.sum(0)  # [t c]
        spectra = [self._spectrum(T) if total else None for T, total in zip(self.generator, totals, strict=True)]
        self._double = _Operator(spectra, basis, self._packed_cross(), self.corner.to(torch.complex128))

    def head(self, rows: int, size: int | None = None, iterations: int = 20, few: float = 3.0) -> Head | Elimination:
        """The preconditioner for this number of right-hand sides, which is exact on the heaviest weights.

        The heaviest weights are those that the data determine better than the prior, at most `size`. Their number is
        also limited so that their factor takes no longer than some iterations (benchmarks/lattice.py). If the data
        determine other weights more than a `few` times better than the prior, the heaviest are eliminated, and the
        others have a `Local` preconditioner.
        """
        determined, cells = int((self.information > 1).sum()), math.prod(self.size)
        transforms = iterations * rows * 5 * cells * math.log2(max(2, cells)) * FFT_COST
        affordable = round((3 * transforms) ** (1 / 3))
        head = Head(self, min(determined, affordable, largest_dense(self.generator.device) if size is None else size))
        local = Local(self, head)
        return Elimination(self._double, head, local) if local.largest > few else head

    @property
    def effective_dimension(self) -> float:
        """The number of weights that the data determine."""
        return float((self.information / (1 + self.information)).sum()) + len(self.corner)

    def _spectrum(self, T: Tensor) -> Tensor:
        """The FFT of a generator as a circulant. It is real, because the generator at -j is the conjugate of that at
        j."""
        for axis, (n, size) in enumerate(zip(T.shape, self.size, strict=True)):
            m = n // 2
            gap = list(T.shape)
            gap[axis] = size - n
            T = torch.cat([T.narrow(axis, m, m + 1), T.new_zeros(gap), T.narrow(axis, 0, m)], dim=axis)
        return torch.fft.fftn(T).real.contiguous()

    def _packed_cross(self) -> Tensor:
        """The rows of `cross`, each packed on its own: `[e, t c]`, complex."""
        if not len(self.cross):
            return self.cross.to(torch.complex128)
        # each row is paired with a row of zeros
        rows = torch.stack([self.cross, torch.zeros_like(self.cross)], dim=1).flatten(0, 1)
        rows = torch.cat([rows, rows.new_zeros(len(rows), len(self.corner))], dim=1)
        return packed(self.basis, rows)[:, : self.cross.shape[1]]

    def product(self, W: Tensor) -> Tensor:
        """`[r, t c + e] -> [r, t c + e]`."""
        return unpacked(self.basis, self._double(packed(self.basis, W)), len(W))

    def energies(self, W: Tensor) -> Tensor:
        """w^T S_i^T Lambda^-1 S_i w of each channel's data, of the lattice's weights alone, summed over rows
        `[r, t c + e]`: `[k t]`."""
        return self._double.energies(packed(self.basis, W))

    def misfit(self, energy: Tensor, b: Tensor, u: Tensor) -> float:
        """(y - mean)^T (K + noise)^-1 (y - mean), the largest of several y's.

        With energy `[r]` = y^T Lambda^-1 y it is energy - b^T M^-1 b. It is of second order in errors of u `[r, t c +
        e]`.
        """
        return float((energy + ((self.product(u) - 2 * b) * u).sum(1)).max())

    def solve(
        self,
        b: Tensor,
        guess: Tensor | None,
        precondition: Preconditioner,
        tolerance: float,
        max_iterations: int = 1000,
        name: str = "",
    ) -> tuple[Tensor, Stats]:
        """Solve for u, given right-hand sides `[r, t c + e]`. Also returns the statistics of the solve, for a solver of
        this name.

        The preconditioned residual estimates a path's largest error in posterior standard deviations, sqrt(r^T M^-1 r).
        The mean error over the directions that the data determine is this, divided by the root of their number.
        """
        directions = max(1.0, 0.1 * self.effective_dimension)
        target = tolerance**2 * directions
        single = None
        if isinstance(precondition, Head | Elimination) and self._suits_single():
            single = (self._double.to_single(), precondition.to_single())
        parts, iterations, worst = [], 0, 0.0
        for start in range(0, len(b), self._rows):
            rows = b[start : start + self._rows]
            first = None if guess is None else packed(self.basis, guess[start : start + self._rows])
            right = packed(self.basis, rows)
            u, steps, left = self._refined(right, first, target, precondition, single, max_iterations)
            parts.append(unpacked(self.basis, u, len(rows)))
            iterations, worst = max(iterations, steps), max(worst, left)
        converged, residual = worst <= target, math.sqrt(max(0.0, worst) / directions)
        if not converged:
            warnings.warn(
                f"the solve on the lattice stopped after {iterations} iterations at an estimated error of "
                f"{residual:.1e} posterior standard deviations, not {tolerance:g}; give a larger head "
                '(lattice.FourierLattice(head=...)), or solver="cholesky"',
                ConvergenceWarning,
                stacklevel=level_outside(),
            )
        return torch.cat(parts), Stats(name, iterations, residual, converged)

    def _suits_single(self) -> bool:
        large = math.prod(self.size) >= self._single_from
        return large and float(self.information.max()) <= self._largest_in_single

    def _refined(
        self,
        b: Tensor,
        u: Tensor | None,
        target: float,
        precondition: Preconditioner,
        single: tuple[_Operator, Head | Elimination] | None,
        most: int,
    ) -> tuple[Tensor, int, float]:
        """The solution for packed rows b from u, the iterations, and the largest preconditioned residual."""
        residual = b if u is None else b - self._double(u)
        u, before, steps = torch.zeros_like(b) if u is None else u, math.inf, 0
        while single is not None and steps < most:
            left = float(_inner(residual, precondition(residual)).max())
            if left <= target:
                return u, steps, left
            if left > self._progress * before:  # single precision has no more digits
                break
            change, more, _ = descend(*single, residual.to(torch.complex64), 0.5 * target, most - steps)
            u = u + change
            residual, before, steps = b - self._double(u), left, steps + more
        change, more, left = descend(self._double, precondition, residual, target, most - steps)
        return u + change, steps + more, left


class _Operator:
    """M on packed rows `[p, t c + e]`, in one precision."""

    def __init__(self, spectra: list[Tensor | None], basis: Joint, cross: Tensor, corner: Tensor) -> None:
        self.spectra, self.basis, self.cross, self.corner = spectra, basis, cross, corner
        self.planes = packed_planes(basis, cross.real.dtype)
        self.kinds = [None if kind is None else kind.boxed.to(cross.dtype) for kind in basis.on_modes]  # [c] each

    def to_single(self) -> _Operator:
        spectra = [None if spectrum is None else spectrum.float() for spectrum in self.spectra]
        return _Operator(spectra, self.basis, self.cross.to(torch.complex64), self.corner.to(torch.complex64))

    def _convolved(self, V: list[Tensor]) -> list[Tensor]:
        """Apply D* T D of each channel to coefficients `[p, 2 c]` of each output."""
        shape, found = self.basis.lattice.shape, []
        for i, T in enumerate(self.spectra):
            D, V_i = self.kinds[i // len(V)], complex_rows(V[i % len(V)])
            if T is None:
                found.append(torch.zeros_like(V[0]))
                continue
            G = convolved((V_i if D is None else V_i * D).unflatten(1, shape), T).flatten(1)
            found.append(real_rows(G if D is None else G.mul_(D.conj())))
        return found

    def energies(self, Z: Tensor) -> Tensor:
        V = self.basis.mixed(real_rows(Z[:, : Z.shape[1] - len(self.corner)]), self.planes)
        return torch.stack([(V[i % len(V)] * G_i).sum() for i, G_i in enumerate(self._convolved(V))])

    def __call__(self, Z: Tensor) -> Tensor:
        z, v = Z.split([Z.shape[1] - len(self.corner), len(self.corner)], dim=1)
        G, t = self._convolved(self.basis.mixed(real_rows(z), self.planes)), self.basis.num_outputs
        G = [sum(G[i + t :: t], start=G[i]) for i in range(t)]
        out = complex_rows(self.basis.unmixed(G, self.planes, onto=real_rows(z)))
        if not len(self.corner):
            return out
        return torch.cat([out + v @ self.cross, v + v @ self.corner + z @ self.cross.mH], dim=1)


def descend(
    operator: Callable[[Tensor], Tensor], precondition: Preconditioner, b: Tensor, target: float, most: int
) -> tuple[Tensor, int, float]:
    """Conjugate gradients for packed rows b `[p, t c + e]`: the solution, the number of iterations, and the largest
    preconditioned residual. Two real rows that are packed as one are solved for together."""
    if isinstance(precondition, Elimination):
        known, rest = precondition.reduced(b)
        u, steps, left = descend(precondition.schur, precondition.local, rest, target, most)
        return known + precondition.extended(u), steps, left
    u, residual = torch.zeros_like(b), b.clone()
    z = precondition(residual)
    p, rz = z.clone(), _inner(residual, z)  # [p]
    steps = 0
    while steps < most and bool((rz > target).any()):
        Mp = operator(p)
        curvature = _inner(p, Mp)
        step = torch.where(curvature > 0, rz / curvature.clamp_min(1e-30), 0.0)[:, None]
        real_rows(u).addcmul_(step, real_rows(p))
        real_rows(residual).addcmul_(step, real_rows(Mp), value=-1)
        z = precondition(residual)
        next_rz = _inner(residual, z)
        real_rows(p).mul_((next_rz / rz.clamp_min(1e-30))[:, None]).add_(real_rows(z))
        rz, steps = next_rz, steps + 1
    return u, steps, float(rz.max())


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """The real inner products of packed rows, `[p]`."""
    return torch.stack([torch.dot(x, y) for x, y in zip(real_rows(a), real_rows(b), strict=True)])


# Preconditioners. One is exact on the modes with the most information, and one in the space of few data.


class Preconditioner(Protocol):
    def __call__(self, R: Tensor) -> Tensor:
        """An approximation of M^-1 R for packed rows R, `[p, t c + e]`."""
        ...


class Head:
    """A preconditioner: the exact Cholesky factor for the heaviest weights and the explicit ones, and the diagonal for
    the others."""

    def __init__(self, system: System, size: int) -> None:
        lattice, information = system.lattice, system.information
        h, e, device = lattice.num_pairs, len(system.corner), information.device
        each = information.view(-1, lattice.size)  # [t, c]
        # a pair's cosine and sine have the same information
        once = torch.cat([each[:, :h], each[:, 2 * h :]], dim=1).flatten()
        order = once.argsort(descending=True)[: (size + 1) // 2].sort().values
        r, q = order // (h + 1), order % (h + 1)
        pairs = q < h
        r, one, q = r[pairs], r[~pairs], q[pairs]
        index = torch.cat([r * lattice.size + q, r * lattice.size + h + q, one * lattice.size + 2 * h])
        block = dense_block(system, index)
        cross = system.cross[:, index]  # [e, k]
        corner = system.corner + torch.eye(e, dtype=block.dtype, device=device)
        block = torch.cat([torch.cat([block, cross.mT], dim=1), torch.cat([cross, corner], dim=1)])
        self.factor = torch.linalg.cholesky(block)
        # The places of these in packed rows: the waves j and -j of pairs, then constants and explicit functions.
        self.up, self.down = r * lattice.size + h + 1 + q, r * lattice.size + h - 1 - q
        self.ones = torch.cat([one * lattice.size + h, torch.arange(e, device=device) + len(information)])
        self.places = torch.cat([self.up, self.down, self.ones])
        boxed = in_box(each, lattice).flatten()
        self.diagonal = torch.cat([1 / (1 + boxed), boxed.new_ones(e)]).repeat_interleave(2)  # the diagonal of M^-1

    def to_single(self) -> Head:
        """The same in single precision."""
        other = copy(self)
        other.factor, other.diagonal = self.factor.float(), self.diagonal.float()
        return other

    def __call__(self, R: Tensor) -> Tensor:
        Z = complex_rows(real_rows(R) * self.diagonal)
        return self.exact(R, Z) if len(self.factor) else Z

    def exact(self, R: Tensor, onto: Tensor) -> Tensor:
        """What the factor solves for: in rows `onto`, in the places of the heaviest weights."""
        up, down = R[:, self.up], R[:, self.down]
        # weights of cosines and of sines, as a + i b for two rows a and b
        W = torch.cat([(up + down) * 0.5**0.5, (up - down) * (1j * 0.5**0.5), R[:, self.ones]], dim=1)  # [p, k]
        columns = torch.view_as_real(W).movedim(0, 1)  # [k, p, 2]
        X = solved(self.factor, columns.flatten(1)).view(columns.shape).movedim(1, 0).contiguous()
        C, S, ones = torch.view_as_complex(X).split([up.shape[1], up.shape[1], len(self.ones)], dim=1)
        onto[:, self.up], onto[:, self.down] = (C - 1j * S) * 0.5**0.5, (C + 1j * S) * 0.5**0.5
        onto[:, self.ones] = ones
        return onto


class Elimination:
    """The heaviest weights c eliminated exactly, and a preconditioner of the Schur complement of the others f.

        S_f  =  M_ff - M_fc M_cc^-1 M_cf,        M^-1 r  =  H r + E S_f^-1 E^T r,        E  =  I - H M

    H is M_cc^-1 on c and zero on f. What `local` lets through to c would otherwise have the information of these
    weights, which is by orders of magnitude the largest.
    """

    def __init__(self, operator: _Operator, head: Head, local: Local) -> None:
        self.operator, self.head, self.local = operator, head, local

    def to_single(self) -> Elimination:
        return Elimination(self.operator.to_single(), self.head.to_single(), self.local.to_single())

    def reduced(self, R: Tensor) -> tuple[Tensor, Tensor]:
        """H R, and E^T R."""
        known = self._solved(R)
        return known, self._others(R - self.operator(known))

    def extended(self, U: Tensor) -> Tensor:
        """E U."""
        return U - self._solved(self.operator(U))

    def schur(self, U: Tensor) -> Tensor:
        """S_f U, of rows that are zero on c."""
        return self._others(self.operator(self.extended(U)))

    def __call__(self, R: Tensor) -> Tensor:
        known, rest = self.reduced(R)
        return known + self.extended(self.local(rest))

    def _solved(self, R: Tensor) -> Tensor:
        zero = torch.zeros_like(R)
        return self.head.exact(R, zero) if len(self.head.factor) else zero

    def _others(self, R: Tensor) -> Tensor:
        R[:, self.head.places] = 0
        return R


class Local:
    """An approximate inverse of M on the weights outside the head, which is local in place and in frequency.

    The data have the information i_j on mode j, as a mean over the box. Where their density is rho(x) times its mean, M
    multiplies a packet of waves about x and j by about 1 + i_j rho(x). Outside the data's domain that is one, and the
    diagonal is too large there. With Psi_l^2 for bands of modes that add up to one, the preconditioner is

        diag(1 / (1 + i_j r_l))  +  sum_l Psi_l F* [1 / (1 + i_l rho_l(x)) - 1 / (1 + i_l r_l)] F Psi_l.

    F are Fourier transforms, and i_l is the information at the centre of a band. Packets of the band see the density
    rho_l, with the mean r_l over the data. The bracket counts as zero where rho_l is above r_l.

    Args:
        system: with the information of all data.
        head: whose weights are left out.
        ratio: that of the information in neighbouring bands.
        width: of a packet, in waves of the shortest wavelength of its band, times 2 pi (benchmarks/lattice.py).
        least: modes of less information are not transformed.
    """

    def __init__(
        self, system: System, head: Head, *, ratio: float = 30.0, width: float = 2.0, least: float = 0.1
    ) -> None:
        lattice, t = system.lattice, system.basis.num_outputs
        self.shape = lattice.shape
        by_channel = in_box(system.by_channel.unflatten(1, (t, -1)), lattice)  # [k t, t, c]
        others = torch.ones(by_channel[0].numel() + len(system.corner), dtype=torch.bool, device=by_channel.device)
        others[head.places] = False
        others = others[: by_channel[0].numel()].view(t, *self.shape)
        information = by_channel.sum(0).view(t, *self.shape)
        self.largest = float((information * others).max())
        bands = max(1, round(math.log(max(1.0, self.largest)) / math.log(ratio)))
        step = max(math.log(max(1.0, self.largest)) / bands, 1e-3)
        diagonal = torch.zeros_like(information)
        self.bands: list[tuple[int, tuple[slice, ...], Tensor, Tensor]] = []  # a block of weights, modes, Psi, [..]
        for r, i in enumerate(information):
            number = (i.clamp_min(1e-300).log() / step).clamp(0, bands)
            for band in range(bands + 1):
                psi = (0.5 * math.pi * (number - band).abs().clamp_max(1)).cos() * others[r]
                inner = (psi > 0.1) & (i > 1)
                if self.largest <= 1 or not bool(inner.any()):
                    diagonal[r] += psi.square() / (1 + i)
                    continue
                reach, waves = self._reach((psi > 1e-6) & (i > least)), self._reach(inner)
                modes = tuple(slice(n // 2 - m, n // 2 + m + 1) for n, m in zip(self.shape, reach, strict=True))
                grid = [fast_size(2 * m + 1) for m in reach]
                each = [float(of_channel[r].view(self.shape)[inner].mean()) for of_channel in by_channel]
                spread = [width / (2 * math.pi * max(1, m)) for m in waves]
                rho, i_l = density(system, each, grid, spread), math.exp(band * step)
                mean = float(rho.square().mean() / rho.mean())
                bracket = (1 / (1 + i_l * rho) - 1 / (1 + i_l * mean)).clamp_min(0)
                diagonal[r] += psi.square() / (1 + mean * i)
                self.bands.append((r, modes, psi[modes].contiguous(), bracket))
        self.diagonal = torch.cat([diagonal.flatten(), diagonal.new_zeros(len(system.corner))]).repeat_interleave(2)

    def _reach(self, modes: Tensor) -> list[int]:
        """The largest |j| of some modes along each axis."""
        places = modes.nonzero()
        return [int((column - n // 2).abs().max()) for column, n in zip(places.unbind(1), self.shape, strict=True)]

    def to_single(self) -> Local:
        """The same in single precision."""
        other = copy(self)
        other.diagonal = self.diagonal.float()
        other.bands = [(r, modes, psi.float(), bracket.float()) for r, modes, psi, bracket in self.bands]
        return other

    def __call__(self, R: Tensor) -> Tensor:
        Z, c, axes = (
            complex_rows(real_rows(R) * self.diagonal),
            math.prod(self.shape),
            tuple(range(-len(self.shape), 0)),
        )
        for r, modes, psi, bracket in self.bands:
            of, here = slice(r * c, (r + 1) * c), (slice(None), *modes)
            # Modes that are numbered from zero are waves times another wave, which cancels.
            V = torch.fft.ifftn(R[:, of].unflatten(1, self.shape)[here] * psi, s=bracket.shape, dim=axes)
            V = torch.fft.fftn(V.mul_(bracket), dim=axes)[(slice(None), *(slice(n) for n in psi.shape))]
            Z[:, of].unflatten(1, self.shape)[here] += V * psi
        return Z


def density(system: System, information: Sequence[float], grid: Sequence[int], width: Sequence[float]) -> Tensor:
    """The density of data over its mean on a `grid` over the box: of the channels by this information of theirs.

    It is smoothed by a Gaussian whose standard deviations are a share `width` of the box along each axis.
    """
    T = torch.zeros_like(system.generator[0])
    for i, of_channel in zip(information, system.generator, strict=True):
        if i > 0:
            T += of_channel * (i / sum(information) / float(of_channel.flatten()[of_channel.numel() // 2].real))
    for axis, (n, size, sd) in enumerate(zip(T.shape, grid, width, strict=True)):
        j = torch.arange(n, device=T.device) - n // 2
        gaussian = (-0.5 * (2 * math.pi * sd * j).square()).exp().to(T).view(-1, *[1] * (T.ndim - 1 - axis))
        folded = T.new_zeros(*T.shape[:axis], size, *T.shape[axis + 1 :])
        T = folded.index_add_(axis, j % size, T * gaussian)
    return torch.fft.ifftn(T, norm="forward").real.clamp_min(0)


class DataSpace:
    """M^-1 = I - S^T (S S^T + noise)^-1 S, with S the basis at few data: exact, but for rounding.

    S S^T, the prior's covariance at the data `[n, n]`, is factored densely: clusters and lines of data are no harder
    than others.
    """

    def __init__(self, basis: Joint, X: Tensor, precision: Tensor, channels: Tensor | None = None) -> None:
        self.basis, self.X, self.channels = basis, X, channels
        self.factor = torch.linalg.cholesky(basis.covariance(X, channels) + (1 / precision).diag())

    def __call__(self, R: Tensor) -> Tensor:
        rows = unpacked(self.basis, R, 2 * len(R))
        return R - packed(self.basis, self._weights(self.basis.sums(self.X, rows, self.channels)))

    def given(self, w: Tensor, residual: Tensor) -> Tensor:
        """Weights w `[r, t c + e]` given values `[r, n]` with noise at the data: Matheron's rule."""
        return w + self._weights(residual - self.basis.sums(self.X, w, self.channels))

    def _weights(self, v: Tensor) -> Tensor:
        return self.basis.adjoint(self.X, solved(self.factor, v.mT).mT.contiguous(), channels=self.channels)


def dense_block(system: System, index: Tensor) -> Tensor:
    """Rows and columns `index` of M, for weights of the lattice: from generators at sums and differences of modes."""
    lattice, h = system.lattice, system.lattice.num_pairs
    p = index % lattice.size
    sines = (p >= h) & (p < 2 * h)  # the others are cosines and the constant
    place, inverse = torch.where(p < 2 * h, p % max(h, 1) + h + 1, torch.full_like(p, h)).unique(return_inverse=True)
    j = lattice.place_modes(place)  # [m, d]
    flat = torch.zeros_like(place)  # the index into the flattened box is linear in the mode
    for axis, n in enumerate(system.generator.shape[1:]):
        flat = flat * n + j[:, axis]
    here = inverse + sines * len(place)
    zero = torch.zeros_like(system.information[: lattice.size])
    block = torch.zeros(len(index), len(index), dtype=torch.float64, device=index.device)
    planes = [torch.cat([zero if p is None else p for p in row])[index] for row in system.basis.planes]  # [k] each
    for channel, T in enumerate(system.generator.flatten(1)):
        plane, kind = planes[channel % len(planes)], system.basis.on_modes[channel // len(planes)]
        if not bool((T != 0).any()):
            continue
        minus, plus = T[len(T) // 2 + flat[:, None] - flat], T[len(T) // 2 + flat[:, None] + flat]  # [m, m]
        # Sums over the data of cos cos, cos sin and sin sin. The generator has the sums of exp(-i theta . x).
        cosines = torch.cat([minus.real + plus.real, minus.imag - plus.imag], dim=1)
        both = torch.cat([cosines, torch.cat([-minus.imag - plus.imag, minus.real - plus.real], dim=1)])  # [2 m, 2 m]
        if kind is not None:
            D = kind.boxed[place]  # L cos = Re D cos - Im D sin, L sin = Im D cos + Re D sin
            both = _turned(_turned(both, D).mT, D)
        block += both[here][:, here] * (0.5 * plane[:, None]) * plane
    block.diagonal().add_(1)
    return block


def _turned(rows: Tensor, D: Tensor) -> Tensor:
    """Multiply rows `[2 m, k]` of cosines and of sines by complex D `[m]`."""
    cos, sin = rows.chunk(2)
    real, imaginary = D.real[:, None], D.imag[:, None]
    return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin])


def convolved(F: Tensor, spectrum: Tensor, slab: int = 1 << 16) -> Tensor:
    """Multiply coefficients `[r, *shape]` by a Toeplitz matrix, given the spectrum `[*size]` of the circulant matrix
    that contains it.

    On a CPU zeros are not transformed: one axis is transformed as a whole, and the others one slab of it at a time.

    Args:
        slab: how many numbers are transformed at once on a CPU, so that they stay in cache (benchmarks/lattice.py).
    """
    shape, size = F.shape[1:], spectrum.shape
    if len(shape) == 1 or F.device.type != "cpu" or spectrum.numel() <= slab:
        axes = tuple(range(1, F.ndim))
        H = torch.fft.fftn(F, s=tuple(size), dim=axes).mul_(spectrum)
        return torch.fft.ifftn(H, dim=axes)[tuple(slice(n) for n in (None, *shape))]
    out, step = torch.empty_like(F), max(1, slab // math.prod(size[1:]))
    inner = tuple(slice(n) for n in (None, *shape[1:]))
    for into, row in zip(out, F, strict=True):
        G = torch.fft.fft(row, n=size[0], dim=0)
        for start in range(0, size[0], step):
            cut = slice(start, start + step)
            H = G[cut]
            for axis in range(len(shape) - 1, 0, -1):
                H = torch.fft.fft(H, n=size[axis], dim=axis)
            H.mul_(spectrum[cut])
            for axis in range(1, len(shape)):
                H = torch.fft.ifft(H, dim=axis).narrow(axis, 0, shape[axis])
            G[cut] = H[inner]
        into.copy_(torch.fft.ifft(G, dim=0)[: shape[0]])
    return out
