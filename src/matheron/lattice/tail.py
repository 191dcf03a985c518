"""The further lattices of a prior in two or three dimensions, with frequencies above the modes of its first lattice.

The modes that memory allows leave out a share of a rough kernel's variance, which matters over short distances. With
1023 x 1023 modes alone, Matern-1/2 has .6 to .8 of its variogram at a thousandth of the box, and with 101^3 modes a
twentieth. The missing part is the spectral measure S outside a box B_0 of frequencies:

    k(r) - k_0(r)  =  int_{theta not in B_0} S(theta) cos(theta . r)  =  sum_i int_{theta in B_i, not in B_i-1} ...

Larger and larger boxes B_1, B_2, ... cut it into shells. Each shell is a lattice of its own. The higher its
frequencies, the further apart are its modes: a few hundred thousand modes reach wavelengths of some ten-thousandths of
the domain. A mode has the variance of its cell, S(theta_j) prod(2 pi / P), times the share of the cell that is not in
the previous box. The variance outside the last box is added to the outermost octave of the last lattice.

The period P of such a lattice is shorter than the domain, so its functions and its covariance repeat themselves within
the domain. Values of this lattice should be independent at points that differ by a multiple of P (to within a
wavelength of the previous lattice), but they are equal there. The lattice has a hundredth of the variance, say. At all
other differences the covariance is right.

On a grid, single waves are visible as stripes if the modes of the lattice are further apart than those of the grid. A
fine map shows the frequencies of the second lattice. Its period is therefore about half the domain, so that its modes
are two waves per domain apart. A grid aliases higher frequencies to lower ones. If the period is a whole number of grid
steps along all coordinates, many frequencies are aliased to a few. The ratio of the periods along two coordinates is
therefore the root of the golden ratio, for which this seldom happens. `benchmarks/stripes.py` prints the power of
single waves, and the cost of the lattices.

Data are not solved for on these lattices. If paths are conditioned with the first lattice, the further ones count as
noise of the data, and each path knows its own values of this noise. Data that are more precise than this noise are
conditioned on exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..features.features import BEYOND
from ..models.observations import Observations
from ..paths.prior import PriorPaths
from ..paths.update import Update
from .basis import Lattice
from .box import Box
from .coefficients import amplitudes_of, by_density, by_longer_transform, on_box, outermost
from .series import LatticeBlock, tails_along


@dataclass(frozen=True)
class Shells:
    """How the frequencies above a first lattice are divided into further lattices.

    The defaults keep the largest power of a realisation's periodogram below twice that of exact draws. This holds in
    every octave of a map of 1000 x 1000 points of the domain (`benchmarks/stripes.py`). On 100 x 100 x 100 points this
    needs more modes in the second lattice, which the planner gives it.

    Attributes:
        period: of the second lattice, over the domain's side: the geometric mean over coordinates.
        first_modes: how many times the first lattice's modes the second has.
        growth: of the frequencies from each further lattice to the next.
        modes: of each further lattice, over those of the one before.
        shortest: wavelength that the last lattice reaches, over the domain's side, unless lower frequencies leave out
            no more than is allowed.
        inside: the least number of the second lattice's steps that the box before has on each side of zero. With fewer,
            the period would be no longer than the longest wavelength. Frequencies may grow by two in any case.
        accuracy: of transforms, relative to the scale of these lattices, which have a tenth of the prior's scale.
    """

    period: float = 0.54
    first_modes: float = 4.0
    growth: float = 2.5
    modes: float = 0.6
    shortest: float = 7.5e-5
    inside: float = 4.0
    accuracy: float = 1e-9

    @property
    def total(self) -> float:
        """A bound on the modes of all lattices, over those of the first."""
        return 1 + self.first_modes / (1 - self.modes)

    def lattices(self, block: LatticeBlock, input_dim: int) -> list[Lattice]:
        """The further lattices of a block's terms, from the lowest frequencies to the highest."""
        box, k = block.box, len(block.box.dims)
        highest = [p / (self.shortest * (side or p)) for p, side in zip(box.period, box.side, strict=True)]  # in modes
        tails = _tails(box, input_dim, 4 * int(max(highest)))
        inner = first = box.edges
        shells: list[tuple[Box, Tensor]] = []
        for i, growth in enumerate(self._growths(box, tails, highest, block.allowed)):
            edges = [edge * g for edge, g in zip(first, growth, strict=True)]
            scale = (self.first_modes * self.modes**i) ** (1 / k)
            shell = _shell(box, edges, [scale * (m + 0.5) for m in box.m])
            c = _variances(shell, inner, input_dim)
            shells.append((shell, c))
            inner = shell.edges
        # The outermost octave also gets the mass beyond the last box. The marginals of the spectrum count some mass
        # twice, but by the same fraction in both.
        beyond_first, beyond_last = (
            sum(
                _beyond(tail, edge * p / (2 * math.pi) - 0.5)
                for tail, edge, p in zip(tails, edges, box.period, strict=True)
            )
            for edges in (first, inner)
        )
        held = sum(c.sum() for _, c in shells)
        rest = held * min(1.0, beyond_last / max(beyond_first - beyond_last, 1e-300))
        shell, c = shells.pop()
        outer = outermost(shell)
        shells.append((shell, c * (1 + outer * (rest / (c * outer).sum().clamp_min(1e-300)))))
        made = []
        for shell, c in shells:
            period = torch.tensor(shell.period, dtype=torch.float64, device="cpu")
            made.append(Lattice(shell.dims, shell.shape, period, amplitudes_of(c), accuracy=self.accuracy))
        return made

    def _growths(self, box: Box, tails: list[Tensor], highest: list[float], allowed: float) -> list[list[float]]:
        """The factor from the first lattice's highest frequencies to those of each further lattice, along each
        coordinate.

        All coordinates leave out the same share of variance, so that frequencies hardly grow where a spectrum ends.
        """
        k = len(tails)
        share = max([allowed / k] + [_beyond(tail, m) for tail, m in zip(tails, highest, strict=True)])
        # There is at least one more lattice.
        share = min(share, max(_beyond(tail, m) for tail, m in zip(tails, box.m, strict=True)) / self.growth)
        last = [max(m, int((tail > share).sum())) for m, tail in zip(box.m, tails, strict=True)]
        gains = [(b + 0.5) / (m + 0.5) for m, b in zip(box.m, last, strict=True)]
        # The logarithms of how much frequencies grow: in total, to the second lattice, and from each lattice to the
        # next. They are geometric means over the coordinates.
        total = sum(map(math.log, gains)) / k
        periods = math.prod(p / (side or p) for p, side in zip(box.period, box.side, strict=True))
        # the steps of the second lattice on each side of zero
        steps = 0.5 * (self.first_modes * box.num_modes) ** (1 / k)
        largest = max(2.0, steps / self.inside)
        second = math.log(min(largest, max(2.0, (self.first_modes * periods) ** (1 / k) / self.period)))
        further = math.log(min(largest, self.growth))
        count = max(0, math.ceil((total - second) / further - 0.25))
        ends = [total - i * (total - second) / max(1, count) for i in reversed(range(count + 1))]
        return [[gain ** (end / total) for gain in gains] for end in ends]


def _tails(box: Box, input_dim: int, longest: int) -> list[Tensor]:
    """The variance of the terms above each mode along each coordinate, by transforms of about `longest` points."""
    totals = [torch.zeros(1, dtype=torch.float64, device="cpu") for _ in box.dims]
    for term, cut_off in zip(box.terms, box.cut_off, strict=True):
        one, active = replace(box, terms=(term,), cut_off=(cut_off,)), term.active_dims(input_dim)
        axes = [axis for axis, i in enumerate(box.dims) if i in active]
        for axis, tail in zip(axes, tails_along(one, input_dim, axes, 1e-9, longest), strict=True):
            length = max(len(totals[axis]), len(tail))
            both = (float(term.variance.detach()) * tail, totals[axis])
            totals[axis] = torch.stack([pad(each, (0, length - len(each))) for each in both]).sum(0)
    return totals


def _beyond(tail: Tensor, m: float) -> float:
    return float(tail[int(m)]) if m < len(tail) else 0.0


def _shell(box: Box, edges: list[float], modes: list[float], ratio: float = 1.272) -> Box:
    """A box of frequencies up to the edges, with about the given number of modes on each side of zero.

    The numbers of modes of neighbouring coordinates have the ratio `ratio`. If edges are equal, so have the periods.
    The default is the root of the golden ratio, which is far from fractions of small numbers.
    """
    modes = [m * ratio ** (axis - (len(modes) - 1) / 2) for axis, m in enumerate(modes)]
    periods = tuple(
        p if fixed else min(p, 2 * math.pi * m / edge)
        for p, fixed, m, edge in zip(box.period, box.fixed, modes, edges, strict=True)
    )
    m = tuple(math.ceil(edge * p / (2 * math.pi) - 0.5) for edge, p in zip(edges, periods, strict=True))
    return replace(box, period=periods, m=m)


def _variances(shell: Box, inner: list[float], input_dim: int, fewest: int = 1 << 18) -> Tensor:
    """The variance of each mode of a shell, `[*shape]`: of the part of its cell outside a box with the edges `inner`.

    Where modes are few, a cell is cut into equal parts along each coordinate, until there are `fewest` of them.
    """
    k, parts = len(shell.m), 1
    while shell.num_modes * (parts + 2) ** k <= fewest:
        parts += 2  # the number stays odd, so that one part is at the centre of the cell
    by = [1 if fixed else parts for fixed in shell.fixed]
    fine = replace(
        shell,
        period=tuple(p * q for p, q in zip(shell.period, by, strict=True)),
        m=tuple(q * m + q // 2 for m, q in zip(shell.m, by, strict=True)),
    )
    c = _coefficients(fine, input_dim)
    inside = torch.ones_like(c.detach())
    for axis, (m, p, edge) in enumerate(zip(fine.m, fine.period, inner, strict=True)):
        j = torch.arange(-m, m + 1, dtype=torch.float64, device="cpu").abs()
        overlap = (edge * p / (2 * math.pi) - j + 0.5).clamp(0, 1)
        inside = inside * overlap.reshape([-1 if a == axis else 1 for a in range(k)])
    cells = [size for n, q in zip(shell.shape, by, strict=True) for size in (n, q)]
    return (c * (1 - inside)).reshape(cells).sum(list(range(1, 2 * k, 2)))


def _coefficients(shell: Box, input_dim: int) -> Tensor:
    """The variance of each mode of a shell's box, `[*shape]`.

    They are found by the density if it is known, and otherwise by a transform of the kernel, which is cut off smoothly
    within half a period.
    """
    total = torch.zeros(shell.shape, dtype=torch.float64, device="cpu")
    for term in shell.terms:
        mine = [axis for axis, i in enumerate(shell.dims) if i in term.active_dims(input_dim)]
        part = replace(shell.along(mine), side=(0.0,) * len(mine))
        c = by_density(term, part, input_dim, whole=False)
        if c is None:
            c = by_longer_transform(term, True, part, input_dim, times=3)
        total = total + term.variance.cpu() * on_box(c, mine, shell)
    return total


# Conditioning of a prior with a tail: the data are given to its lattice.


def split_tail(prior: PriorPaths) -> tuple[PriorPaths, PriorPaths | None]:
    """Split a prior into one without its further lattices, and these alone. None if there are none."""
    blocks = list(prior.features.blocks)
    if all(block.role != BEYOND for block in blocks):
        return prior, None

    def some(beyond: bool) -> PriorPaths:
        chosen = [i for i, block in enumerate(blocks) if (block.role == BEYOND) == beyond]
        parts = prior.w.split([block.basis.size for block in blocks], dim=2)
        own = prior.features.with_blocks([blocks[i] for i in chosen])
        w = torch.cat([parts[i] for i in chosen], dim=2)
        return PriorPaths(own, w, prior.basis_index.clamp_max(own.num_bases - 1))

    return some(False), some(True)


def with_tail(prior: PriorPaths, on_lattice: Tensor) -> Tensor:
    """Replace the weights of the first lattice and of exact functions in the weights of a prior."""
    blocks = list(prior.features.blocks)
    own = iter(on_lattice.split([block.basis.size for block in blocks if block.role != BEYOND], dim=2))
    parts = prior.w.split([block.basis.size for block in blocks], dim=2)
    return torch.cat([w if b.role == BEYOND else next(own) for w, b in zip(parts, blocks, strict=True)], dim=2)


def can_condition_on_lattice(
    prior: PriorPaths, update: Update, new: Observations, largest_share: float = 0.1, largest_factor: int = 4096
) -> bool:
    """Whether the lattice can represent these observations: the variance that it leaves out is small compared with
    their noise.

    This is always true for a prior without further lattices, and if there are too many data to factor their covariance.
    It is never true if earlier data are not on the lattice.
    """
    _, tail = split_tail(prior)
    if tail is None:
        return True
    if update.num_data:
        return False
    X, outputs = new.sites.points, new.sites.outputs
    if len(X) > largest_factor:
        return True
    more = variances_at(tail, X.double() - tail.features.origin.double(), outputs)
    return bool((more <= largest_share * new.noise.double()).all())


def values_at(tail: PriorPaths, X: Tensor, tasks: Tensor | None) -> Tensor:
    """Values of the further lattices at data, given relative to their origin: `[s, n]`."""
    f = tail.sums((X + tail.features.origin).to(tail.w)[None]).double()  # [s, t, n]
    return f[:, 0] if tasks is None else f[:, tasks, torch.arange(len(X), device=X.device)]


def variances_at(tail: PriorPaths, X: Tensor, tasks: Tensor | None) -> Tensor:
    """Variances of the further lattices at data, `[n]`."""
    total = torch.zeros_like(X[:, 0])
    for basis, root in zip(tail.features.bases, tail.features.roots, strict=True):
        power = basis.amplitudes.double().square().sum()
        total += power * (1.0 if tasks is None or root is None else root.double().square().sum(1)[tasks])
    return total
