"""Importance sampling of frequencies from proposals over cells, for all components of a pool at once.

Within a shell the direction is uniform, and so is log radius. The density of what is drawn is then known exactly, and
weights S / q make the kernel unbiased whatever the probabilities of the cells. Where several components have a density
over the same coordinates (and are multiplied with the same monomial), S and q are those of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .cells import NUM_SHELLS, Atoms, Shells
from .positions import Positions, joined, located, rows_of
from .proposal import Component

# Numbers of a table of frequencies about the components' centres that is made at once.
_BLOCK = 1 << 22


def draw(pools: Sequence[Sequence[Component]], each: Sequence[Positions]) -> tuple[list[Tensor], list[Tensor]]:
    """Frequencies `[g, n, d]` from the components' proposals and their weights S / q `[g, n]`, of each pool."""
    at = joined(each, [len(parts) for parts in pools])
    shape, component = at.component.shape, at.component.flatten()
    pool = [c for parts in pools for c in parts]
    keys = [(i, c.density_key) for i, parts in enumerate(pools) for c in parts]  # densities add within a pool
    log_S = torch.stack([c.variance for c in pool]).log()
    log_q = torch.tensor([c.share for c in pool], dtype=torch.float64, device="cpu").log()
    theta = log_q.new_zeros(len(component), pool[0].factors[0].input_dim)
    log_weight = log_q.new_zeros(len(component))
    for level, (u, within) in enumerate((u.flatten(), within.flatten(0, 1)) for u, within in at.levels):
        for kind in (Shells, Atoms):
            members = [t for t, c in enumerate(pool) if level < len(c.factors) and isinstance(c.factors[level], kind)]
            if not members:
                continue
            factors, q = [pool[t].factors[level] for t in members], [pool[t].proposal[level] for t in members]
            rows, index = rows_of(component, members, len(pool))
            u_own, within_own = (u, within) if rows is None else (u[rows], within[rows])
            cell, fraction = located(q, index, u_own)
            outer = (log_S[members], log_q[members])  # of the components, once
            outer = outer if level == 0 else tuple(torch.zeros_like(v) for v in outer)
            if shells := [f for f in factors if isinstance(f, Shells)]:
                groups = [t if keys[t][1] is None else keys[t] for t in members]
                spectra = _Spectra(shells, q, groups, *outer)
                part = spectra.drawn(index, cell, fraction, within_own)
                ratio = spectra.log_ratios(part, index)
            else:
                part, ratio = _of_atoms([f for f in factors if isinstance(f, Atoms)], q, cell)
                ratio = ratio + (outer[0] - outer[1])[index]
            theta = theta + part if rows is None else theta.index_add(0, rows, part)
            log_weight = log_weight + ratio if rows is None else log_weight.index_add(0, rows, ratio)
    sizes = [own.component.shape[1] for own in each]
    weight = log_weight.exp().unflatten(0, shape)
    return list(theta.unflatten(0, shape).split(sizes, 1)), list(weight.split(sizes, 1))


def _of_atoms(factors: Sequence[Atoms], q: list[Tensor], cell: Tensor) -> tuple[Tensor, Tensor]:
    """The frequencies `[k, d]` of cells, and log p / q."""
    theta, mass = torch.cat([f.theta for f in factors]), torch.cat([f.mass for f in factors])
    return theta[cell], (mass.log() - torch.cat(q).log())[cell]


class _Spectra:
    """The shells of several components side by side.

    Groups are of components whose densities add. `log_S` and `log_q` `[m]` are logarithms of what the densities are
    multiplied with: a component's variance, and its share of the draws.
    """

    def __init__(self, shells: Sequence[Shells], q: list[Tensor], groups: list, log_S: Tensor, log_q: Tensor) -> None:
        self.shells, self.one = shells, len(shells) == 1
        numbers = [(s.low, s.step, s.log_area, s.own_dim) for s in shells]
        table = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        self.low, self.step, area, self.own_dim = table.unbind(1)  # [m] each
        self.table = (q[0] if self.one else torch.cat(q)).log()
        scales = [s.measure.scale for s in shells]
        # Own coordinates in units of the scale: maps [m, p, d] there, and back.
        self.whole = all(s.whole for s in shells)
        if self.whole:
            self.scale = torch.stack(scales)  # [m, d]
            log_volume = self.scale.log().sum(-1)
        else:
            self.scale = _padded([scale[:, None] * s.frame for s, scale in zip(shells, scales, strict=True)])
            self.inverse = _padded([s.frame / scale[:, None] for s, scale in zip(shells, scales, strict=True)])
            log_volume = torch.stack([scale.log().sum() for scale in scales])
        self.log_S, self.log_q = log_S - log_volume, log_q - self.step.log() - area - log_volume.detach()
        self.shift = None
        if any(s.shift is not None for s in shells):
            zero = torch.zeros(shells[0].input_dim, dtype=torch.float64, device="cpu")
            shifts = [zero if s.shift is None else s.shift if s.whole else s.shift @ s.frame for s in shells]
            self.shift = torch.stack(shifts)  # [m, d]
            self.sign_column = torch.tensor([s.own_dim if s.signed else -1 for s in shells], device="cpu")
        together: dict = {}
        for i, group in enumerate(groups):
            together.setdefault(group, []).append(i)
        self.most = max(len(members) for members in together.values())
        partners = [together[group] for group in groups]
        padded = [p + [p[0]] * (self.most - len(p)) for p in partners]
        self.partners = torch.tensor(padded, device="cpu")  # [m, M], of which as many:
        self.numbers = None if len(together) == 1 else torch.tensor([[len(p)] for p in partners], device="cpu")

    def _of(self, table: Tensor, index: Tensor) -> Tensor:
        return table[0] if self.one else table[index]

    def drawn(self, index: Tensor, cell: Tensor, fraction: Tensor, within: Tensor) -> Tensor:
        """Frequencies `[k, d]` in cells `[k]` of the shells `[k]`, a fraction of the way through."""
        at = fraction + (cell if self.one else cell - NUM_SHELLS * index)
        radius = torch.addcmul(self._of(self.low, index), self._of(self.step, index), at).exp()[:, None]
        scale = self._of(self.scale.detach(), index)  # [k, d] or [k, p, d]
        if self.whole:
            theta = scale * within[:, : scale.shape[-1]] * radius
        else:
            own = within[:, : scale.shape[-2]] * radius
            theta = sum(
                (own[:, j, None] * scale[..., j, :] for j in range(own.shape[1])),
                start=torch.zeros((), dtype=torch.float64, device="cpu"),
            )
        if self.shift is not None:
            column = self.sign_column[index]
            sign = torch.where(within.gather(1, column.clamp_min(0)[:, None])[:, 0] < 0.5, -1.0, 1.0).double()
            theta = theta + torch.where(column < 0, 1.0, sign)[:, None] * self._of(self.shift.detach(), index)
        return theta

    def log_ratios(self, theta: Tensor, index: Tensor) -> Tensor:
        """log S / q `[k]` at frequencies `[k, d]`, by the group of the shell `[k]` each is from."""
        rows = max(1, _BLOCK // (self.most * self.scale[0].numel()))
        blocks = zip(theta.split(rows), index.split(rows), strict=True)
        ratios = [self._log_ratio(*block) for block in blocks]
        return ratios[0] if len(ratios) == 1 else torch.cat(ratios)

    def _log_ratio(self, theta: Tensor, index: Tensor) -> Tensor:
        member = self.partners[index]  # [k, M]
        r2 = self._squared_radii(theta, member)  # [1 or 2, k, M]
        log_S = self._of(self.log_S, member) + _log_mean(self._log_radial(r2, member))
        log_r = r2.detach().log() / 2
        cell = ((log_r - self._of(self.low, member)) / self._of(self.step, member)).clamp(-1, NUM_SHELLS).floor().long()
        inside = (cell >= 0) & (cell < NUM_SHELLS)
        cell = cell.clamp(0, NUM_SHELLS - 1)
        table = self.table[cell if self.one else NUM_SHELLS * member + cell]
        log_q = torch.where(inside, table - self._of(self.own_dim, member) * log_r, -math.inf)
        log_q = self._of(self.log_q, member) + _log_mean(log_q)
        if self.most == 1:
            return (log_S - log_q)[:, 0]
        if self.numbers is not None:
            missing = torch.arange(self.most, device="cpu") >= self.numbers[index]
            log_S, log_q = (v.masked_fill(missing, -math.inf) for v in (log_S, log_q))
        return log_S.logsumexp(-1) - log_q.logsumexp(-1)

    def _squared_radii(self, theta: Tensor, member: Tensor) -> Tensor:
        """|own coordinates / scale|^2 `[1 or 2, k, M]`, from each of the centres."""
        centred = [theta[:, None]]
        if self.shift is not None:
            shift = self._of(self.shift, member)  # [k, M, d]
            centred = [centred[0] - shift, centred[0] + shift]
        if self.whole:
            squares = [(z / self._of(self.scale, member)).square().sum(-1) for z in centred]
            return squares[0][None] if len(squares) == 1 else torch.stack(squares)
        inverse = self._of(self.inverse, member)  # [k, M, p, d]
        return torch.stack([(inverse @ z[..., None]).square().sum((-1, -2)) for z in centred])

    def _log_radial(self, r2: Tensor, member: Tensor) -> Tensor:
        """The log density of theta / scale, by each measure."""
        kinds: dict = {}
        for s in self.shells:  # those of one shape are one function, but for gradients
            kinds.setdefault(self._kind(s), s.measure)
        if len(kinds) == 1:
            return self.shells[0].measure.log_radial(r2)
        numbers = {kind: i for i, kind in enumerate(kinds)}
        of = torch.tensor([numbers[self._kind(s)] for s in self.shells], device="cpu")[member]  # [k, M]
        log_S = torch.empty_like(r2)
        for i, measure in enumerate(kinds.values()):
            rows, columns = (of == i).nonzero(as_tuple=True)
            log_S[:, rows, columns] = measure.log_radial(r2[:, rows, columns])
        return log_S

    def _kind(self, s: Shells) -> tuple | int:
        return id(s.measure) if s.key is None or torch.is_grad_enabled() else s.key


def _log_mean(values: Tensor) -> Tensor:
    """log mean exp over the first axis, of one or two."""
    return values[0] if len(values) == 1 else torch.logaddexp(*values) - math.log(2)


def _padded(maps: list[Tensor]) -> Tensor:
    """Maps `[p, d]` as one `[m, p, d]`, with rows of zeros where p is smaller than the largest."""
    most = max(len(A) for A in maps)
    return torch.stack([torch.nn.functional.pad(A, (0, 0, 0, most - len(A))) for A in maps])
