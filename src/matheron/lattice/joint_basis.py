"""A lattice and explicit functions beside it (a constant, monomials, harmonics) as one basis that data are given on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.nufft import series_at
from ..evaluate.bases import Basis
from ..features.features import EXACT, Features
from ..kernels import Kernel
from .basis import Lattice, same_modes
from .solver import rows_of

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
    Weights z are rows `[t c + e]`: c for each output, and e explicit ones.
    """

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
        """U[q t + r'][r] `[c]` with orthonormal columns, (a_qj R_q)^T = U_j L_j^T, None for a lattice that is alone;
        and L[i][r] `[c]`, None where zero."""
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
        blocks = list(features.blocks)
        lattices = [block.basis for block in blocks if isinstance(block.basis, Lattice)]
        beside = blocks[len(lattices) :]
        if not lattices or features.num_bases > 1 or not all(block.role == EXACT for block in beside):
            return None
        few = kernel.num_outputs * sum(block.basis.size for block in beside) <= LARGEST_BESIDE
        if not (few and same_modes(lattices)):
            return None
        return Joint(lattices, [block.basis for block in beside], features.roots)

    @property
    def largest_variance(self) -> float:
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

    def coefficients(self, z: Tensor) -> Tensor:
        """Of each output's functions, amplitudes included: `[r, t c + e] -> [r, t, c + k]`."""
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
        """The weights of prior paths `[s, t, ell]` with these in place of their own, `[s, t c + e]`."""
        z_before = self.of_paths(w)[:, : self.num_outputs * self.size]
        z, v = z.split([z_before.shape[1], self.num_beside], dim=1)
        beside = [R @ part for _, R, part in self._each_beside(v)]
        if self.mixing is None:
            return torch.cat([self.roots[0] @ z.unflatten(1, (self.num_outputs, self.size)), *beside], dim=2)
        # what data say nothing of, how lattices share a mode's value, stays as it was
        change = (z - z_before).unflatten(1, (self.num_outputs, self.size)).unbind(1)
        rows = torch.stack([_sum(change, u) for u in self.mixing], dim=1)  # [s, q t, c]
        each = zip(w.split(self.size, dim=2), self.roots, rows.split(self.num_outputs, dim=1), strict=False)
        return torch.cat([*(part + R @ more for part, R, more in each), *beside], dim=2)

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
        for mine, V in zip(rows_of(tasks, self.num_outputs), self.mixed(w), strict=True):
            f[:, mine] += self.lattice.weighted(X[mine][None], V[None])[0]
        return f

    def adjoint(self, X: Tensor, v: Tensor, accuracy: float | None = None, tasks: Tensor | None = None) -> Tensor:
        """The transpose: `[n, d], [r, n] -> [r, t c + e]`."""
        w = self.unmixed(self.adjoints(X, v, accuracy, tasks))
        return torch.cat([w, v @ self.columns(X, tasks)], dim=1) if self.num_beside else w

    def adjoints(self, X: Tensor, v: Tensor, accuracy: float | None, tasks: Tensor | None) -> list[Tensor]:
        """The lattice's functions times values at the data, `[r, c]` for each output."""
        each = rows_of(tasks, self.num_outputs)
        return [self.lattice.adjoint(X[mine], v[:, mine], accuracy) for mine in each]

    def covariance(self, X: Tensor, tasks: Tensor | None = None) -> Tensor:
        """That of f at points, `[n, n]`."""
        K = X.new_zeros(len(X), len(X))
        i, j = torch.tril_indices(len(X), len(X), device=X.device)
        for a, b in zip(i.split(_BLOCK), j.split(_BLOCK), strict=True):
            K[a, b] = K[b, a] = self.covariances(X, a, b, tasks)
        return K

    def covariances(self, X: Tensor, a: Tensor, b: Tensor, tasks: Tensor | None = None) -> Tensor:
        """Those of f at pairs of points, whose numbers are a and b `[p]`: the lattices' series at their differences."""
        h = self.lattice.num_pairs
        cosines = torch.cat([lattice.scales().square() for lattice in self.lattices])
        cosines[:, h : 2 * h] = 0  # sum_j a_j^2 cos(theta_j . r): the sines' products are in it
        series = series_at(self.lattice.coefficients(cosines), self.lattice.angles(X[a] - X[b])).real  # [q, p]
        K = torch.zeros_like(X[a, 0])
        if self.num_beside:
            columns = self.columns(X, tasks)
            K += (columns[a] * columns[b]).sum(1)
        for k, R in zip(series, self.roots[: len(self.lattices)], strict=True):
            K += k if tasks is None else k * (R @ R.mT)[tasks[a], tasks[b]]
        return K


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
