"""A lattice and explicit functions beside it (a constant, monomials, harmonics) as one basis that data are given on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..kernels import Kernel
from ..nufft import as_complex, as_real, series_at
from ..solvers.lattice import rows_of
from .basis import Basis, Cosines, Pairs
from .features import Features
from .lattice import Lattice
from .products import Products

# Explicit functions beside a lattice at the most: each is a transform of the data, and a row of a dense matrix.
LARGEST_BESIDE = 512
# Differences of points that a covariance is computed at together.
_BLOCK = 1 << 22


# L[i][r] `[c]`: None where zero.
Planes = list[list[Tensor | None]]


class Joint:
    """Functions of t outputs on the c modes of a lattice, and then on explicit functions: float64, about the origin.

        f_i(x)  =  sum_j phi_j(x) sum_r L_j[i, r] z_rj  +  sum_k e_k(x) sum_r R_k[i, r] z_rk

    One output has L_j = a_j, the amplitudes. Of several, lattices with the same modes have couplings R_q R_q^T, and
    each mode has a root of its own, L_j L_j^T = sum_q a_qj^2 R_q R_q^T: as many weights for any number of lattices.
    Weights z are rows `[t c + e]`: c for each r, and e explicit ones.
    """

    def __init__(
        self, lattices: Sequence[Lattice], beside: Sequence[Basis] = (), roots: Sequence[Tensor | None] | None = None
    ) -> None:
        self.lattices = [lattice.to(torch.float64) for lattice in lattices]
        self.lattice, self.beside = self.lattices[0], [basis.to(torch.float64) for basis in beside]
        one = torch.ones(1, 1, dtype=torch.float64, device=self.lattice.period.device)
        self.roots = [one if R is None else R.double() for R in roots or [None] * (len(lattices) + len(beside))]
        self.num_outputs, self.size = len(self.roots[0]), self.lattice.size
        self.num_beside = sum(self.num_outputs * basis.size for basis in self.beside)
        self.mixing, self.planes = self._planes()

    def _planes(self) -> tuple[list[list[Tensor]] | None, Planes]:
        """L[i][r] `[c]`, None where zero; and U[q t + r'][r] `[c]` with orthonormal columns, (a_qj R_q)^T = U_j L_j^T,
        None for a lattice that is alone."""
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
        """None where the features are not lattices of the same modes, and few functions that are the kernel's own."""
        lattices = [basis for basis in features.bases if isinstance(basis, Lattice)]
        beside = [basis for basis in features.bases if not isinstance(basis, Lattice)]
        if not lattices or list(features.bases)[: len(lattices)] != lattices or features.num_bases > 1:
            return None
        few = kernel.num_outputs * sum(basis.size for basis in beside) <= LARGEST_BESIDE
        exact = all(_explicit(basis) for basis in beside) and _has_variance(beside, kernel, len(features.origin))
        fits = same_modes(lattices) and few and exact
        return Joint(lattices, beside, features.roots) if fits else None

    @property
    def largest_power(self) -> float:
        """The largest variance of a function with one weight."""
        return max(float(plane.square().max()) for row in self.planes for plane in row if plane is not None)

    def information(self, totals: Sequence[float]) -> Tensor:
        """What data whose precisions sum to `totals`, for each output, say of the lattice's weights, over what the
        prior says: `[t c]`."""
        share = torch.full_like(self.lattice.scales()[0], 0.5)
        share[-1] = 1.0
        parts = [torch.zeros_like(share) for _ in self.planes]
        for total, row in zip(totals, self.planes, strict=True):
            for part, plane in zip(parts, row, strict=True):
                if plane is not None:
                    part += plane.square() * share * total
        return torch.cat(parts)

    # Weights of the basis, of the lattice's outputs, and of prior paths.

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
        """The transpose: `t times [r, c] -> [r, t c]`, added to rows `onto`."""
        parts, before = [], [None] * self.num_outputs if onto is None else onto.chunk(self.num_outputs, dim=1)
        for r, total in enumerate(before):
            for row, G_i in zip(self.planes if planes is None else planes, G, strict=True):
                if (plane := row[r]) is not None:
                    total = G_i * plane if total is None else torch.addcmul(total, G_i, plane)
            parts.append(torch.zeros_like(G[0]) if total is None else total)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    # Rows two by two: real weights as coefficients of complex waves, scaled so that inner products stay the same.

    def packed(self, W: Tensor) -> Tensor:
        """Real rows, two in each complex one, the lattice's in the order of its box: `[r, t c + e] -> [r / 2, ...]`."""
        w, v = W.split([self.num_outputs * self.size, self.num_beside], dim=1)
        factor = self._unitary()
        parts = [self.lattice.joined_coefficients(part).flatten(1) * factor for part in w.split(self.size, dim=1)]
        return torch.cat([*parts, as_complex(v)], dim=1)

    def unpacked(self, Z: Tensor, r: int) -> Tensor:
        """The rows that `packed` joined: `[r / 2, t c + e] -> [r, t c + e]`."""
        z, v = Z.split([self.num_outputs * self.size, self.num_beside], dim=1)
        factor = self._unitary()
        parts = [self.lattice.separated_adjoint(part * factor, r) for part in z.split(self.size, dim=1)]
        return torch.cat([*parts, as_real(v, r)], dim=1)

    def _unitary(self) -> Tensor:
        factor = torch.full_like(self.lattice.scales()[0], 2**0.5)
        factor[self.lattice.num_pairs] = 1.0
        return factor

    def box_planes(self, dtype: torch.dtype) -> Planes:
        """L for packed rows that are seen as real ones, twice as long: `[2 c]`."""
        h, factor = self.lattice.num_pairs, self._unitary()

        def boxed(plane: Tensor) -> Tensor:
            each = torch.cat([plane[:h].flip(0), plane[2 * h :], plane[:h]]) / factor
            return each.repeat_interleave(2).to(dtype)

        return [[None if plane is None else boxed(plane) for plane in row] for row in self.planes]

    def coefficients(self, z: Tensor) -> Tensor:
        """Of each output's functions, amplitudes included: `[r, t c + e] -> [r, t, c + k]`."""
        z, v = z.split([self.num_outputs * self.size, self.num_beside], dim=1)
        parts = [torch.stack(self.mixed(z), dim=1)]
        for basis, R, part in self._each_beside(v):
            parts.append((R @ part) * basis.scales())
        return torch.cat(parts, dim=2)

    def weights(self, coefficients: Tensor) -> Tensor:
        """Weights with these coefficients: `[r, t, c + k] -> [r, t c + e]`."""
        t, c = self.num_outputs, self.size
        zero = torch.zeros_like(self.lattice.scales()[0])
        L = torch.stack([torch.stack([zero if p is None else p for p in row], -1) for row in self.planes], -2)
        H = L @ L.mT  # [c, t, t]
        H.diagonal(dim1=-2, dim2=-1).add_(1e-13 * H.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) + 1e-300)
        V = coefficients[..., :c].permute(2, 1, 0)  # [c, t, r]
        parts = [(L.mT @ torch.linalg.solve(H, V)).permute(2, 1, 0).flatten(1)]
        start = c
        for basis, R in zip(self.beside, self.roots[len(self.lattices) :], strict=True):
            some = _divided(coefficients[..., start : start + basis.size], basis.scales())
            parts.append((torch.linalg.pinv(R) @ some).flatten(1))
            start += basis.size
        return torch.cat(parts, dim=1).reshape(-1, t * c + self.num_beside)

    def of_paths(self, w: Tensor) -> Tensor:
        """Weights of prior paths, `[s, t, ell] -> [s, t c + e]`."""
        own = self._own(w)
        if self.mixing is None:
            lattice = own[0].flatten(1)
        else:
            rows = torch.cat(own[: len(self.lattices)], dim=1).unbind(1)  # q t of [s, c]
            lattice = torch.cat([_sum(rows, [u[r] for u in self.mixing]) for r in range(self.num_outputs)], dim=1)
        return torch.cat([lattice, *(part.flatten(1) for part in own[len(self.lattices) :])], dim=1)

    def with_weights(self, w: Tensor, z: Tensor) -> Tensor:
        """The weights of prior paths `[s, t, ell]` with these in place of their own, `[s, t c + e]`."""
        z, v = z.split([self.num_outputs * self.size, self.num_beside], dim=1)
        z = z.unflatten(1, (-1, self.size))  # [s, t, c]
        if self.mixing is None:
            parts = [self.roots[0] @ z]
        else:  # what data say nothing of, how lattices share a mode's value, stays as it was
            change = (z - self.of_paths(w)[:, : z[0].numel()].view_as(z)).unbind(1)
            rows = torch.stack([_sum(change, u) for u in self.mixing], dim=1)  # [s, q t, c]
            parts = []
            for q, old in enumerate(w[..., : len(self.lattices) * self.size].split(self.size, dim=2)):
                more = rows[:, q * self.num_outputs : (q + 1) * self.num_outputs]
                parts.append(old + self.roots[q] @ more)
        return torch.cat([*parts, *(R @ part for _, R, part in self._each_beside(v))], dim=2)

    def _own(self, w: Tensor) -> list[Tensor]:
        """For each basis R^-1 w, `[s, t, c]`."""
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

    # Values at data: points `[n, d]`, and of which output each is, `[n]`; None for one output.

    def columns(self, X: Tensor, tasks: Tensor | None = None) -> Tensor:
        """The explicit functions, `[n, e]`."""
        parts = [X[:, :0]]
        for basis, R in zip(self.beside, self.roots[len(self.lattices) :], strict=True):
            E = (basis.values(X[None]) * basis.scales()[:, None])[0]  # [n, k]
            parts.append(E if tasks is None else (R[tasks][:, :, None] * E[:, None]).flatten(1))
        return torch.cat(parts, dim=1)

    def sums(self, X: Tensor, W: Tensor, tasks: Tensor | None = None) -> Tensor:
        """`[n, d], [r, t c + e] -> [r, n]`."""
        w, v = W.split([self.num_outputs * self.size, self.num_beside], dim=1)
        f = v @ self.columns(X, tasks).mT
        for V, mine in zip(self.mixed(w), rows_of(tasks, self.num_outputs), strict=True):
            f[:, mine] += self.lattice.weighted(X[mine][None], V[None])[0]
        return f

    def adjoint(self, X: Tensor, v: Tensor, accuracy: float | None = None, tasks: Tensor | None = None) -> Tensor:
        """The transpose: `[n, d], [r, n] -> [r, t c + e]`."""
        each = rows_of(tasks, self.num_outputs)
        w = self.unmixed([self.lattice.adjoint(X[mine], v[:, mine], accuracy) for mine in each])
        return torch.cat([w, v @ self.columns(X, tasks)], dim=1) if self.num_beside else w

    def covariance(self, X: Tensor, tasks: Tensor | None = None) -> Tensor:
        """That of f at points, `[n, n]`: the lattices' series at their differences."""
        columns, h = self.columns(X, tasks), self.lattice.num_pairs
        cosines = torch.cat([lattice.scales().square() for lattice in self.lattices])
        cosines[:, h : 2 * h] = 0  # sum_j a_j^2 cos(theta_j . r): the sines' products are in it
        F = self.lattice.coefficients(cosines)
        B = [R @ R.mT for R in self.roots[: len(self.lattices)]]
        K = columns @ columns.mT
        i, j = torch.tril_indices(len(X), len(X), device=X.device)
        for start in range(0, len(i), _BLOCK):
            a, b = i[start : start + _BLOCK], j[start : start + _BLOCK]
            for k, B_q in zip(series_at(F, self.lattice.angles(X[a] - X[b])).real, B, strict=True):
                K[a, b] += k if tasks is None else k * B_q[tasks[a], tasks[b]]
            K[b, a] = K[a, b]
        return K


def same_modes(lattices: Sequence[Lattice]) -> bool:
    """Whether lattices differ in their amplitudes alone."""
    first, *others = lattices
    return all(
        other.dims == first.dims and other.shape == first.shape and torch.equal(other.period, first.period)
        for other in others
    )


def _each(pairs: Tensor) -> Tensor:
    """Numbers of the pairs and of the constant, `[h + 1]`, as those of the functions, `[c]`."""
    return torch.cat([pairs[:-1], pairs[:-1], pairs[-1:]])


def _sum(rows: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    total = rows[0] * factors[0]
    for row, factor in zip(rows[1:], factors[1:], strict=True):
        total.addcmul_(row, factor)
    return total


def _divided(W: Tensor, scales: Tensor) -> Tensor:
    return torch.where(scales > 0, W / torch.where(scales > 0, scales, 1.0), 0.0)


def _explicit(basis: Basis) -> bool:
    """Whether a basis has its kernel exactly: no products with random frequencies, no random signs."""
    if basis.num_bases > 1:
        return False
    if isinstance(basis, Products):
        one_hot = bool((basis.projections.count_nonzero(-1) == 1).all())
        return basis.fourier is None and one_hot
    if isinstance(basis, Cosines):
        return not bool(basis.frequencies.any())  # a constant: other cosines have random phases
    return isinstance(basis, Pairs)


def _has_variance(beside: list[Basis], kernel: Kernel, input_dim: int) -> bool:
    """Whether waves and constants hold the variance of the terms that repeat themselves, and of no others: those of
    other terms have random frequencies."""
    held = sum(float(basis.amplitudes.square().sum()) for basis in beside if isinstance(basis, Pairs | Cosines))
    exact = 0.0
    for term in kernel.terms(input_dim):
        if not term.forms and (not term.stationary or term.measure(input_dim).atoms() is not None):
            exact += float(term.variance.detach())
    return abs(held - exact) <= 1e-3 * exact
