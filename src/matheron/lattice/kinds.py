"""Kinds of observations on a lattice: values, slopes, averages over equal boxes, and all other functionals that are
observed at several places.

Data that are translates of one functional L about the origin, L_r f = s_r L f(x_r + .), are of one kind. Applied to a
mode of the lattice, L is a multiplication by the number

    L exp(i theta . x)  =  D(theta)  =  sum_a w_a prod_q (i u_aq . theta) exp(i theta . z_a) sinc_a(theta),

with the weights w, directions u and points z of its atoms, and a product of sincs for atoms that are averages over
boxes. For a slope D is i theta_j, and for an average it consists of the sincs. Data of a kind are thus values of a
function whose coefficients are D times those of f.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.functionals import Functionals, Observed, averages_of_waves
from ..core.sites import Sites
from ..features import typical_variances
from ..kernels import Kernel
from ..kernels.covariances import functional_covariance
from .basis import Lattice


class TooManyKinds(ValueError):
    """Raised for functionals that are not translates of a few."""


class Located(NamedTuple):
    """Data as translates of a few functionals: L_r f = scale_r L f(place_r + .), with L of the datum's kind.

    Kind 0 is values, and `kinds` has the other kinds, one in each row. The channel of output i and kind k is k t + i,
    for t outputs. `channels` is None for values of one output.
    """

    kinds: Functionals | None
    places: Tensor  # [n, d]
    channels: Tensor | None  # [n]
    scale: Tensor | None  # [n]; None where all are one


def located(sites: Observed, num_outputs: int, known: Functionals | None = None, most: int = 16) -> Located:
    """Sort data into kinds. The `known` kinds come first; more than `most` kinds raise TooManyKinds."""
    if isinstance(sites, Sites):
        return Located(known, sites.points.double(), sites.outputs, None)
    eps, sites = torch.finfo(sites.points.dtype).eps, sites.double()
    counts, places = sites.counts, torch.empty_like(sites.points[sites.starts])
    scale, number = torch.empty_like(places[:, 0]), torch.zeros_like(sites.starts)
    kinds = [] if known is None else [known[i : i + 1].double() for i in range(len(known))]
    for count in counts.unique().tolist():
        mine = (counts == count).nonzero()[:, 0]
        atoms = sites.starts[mine, None] + torch.arange(count, device=mine.device)  # [m, p]
        points, weights = sites.points[atoms], sites.weights[atoms]
        places[mine] = points.mean(1)
        # The scale of a row is the sum of its absolute weights, with the sign of the first weight.
        scale[mine] = weights.abs().sum(1) * torch.where(weights[:, 0] < 0, -1.0, 1.0)
        rows = _Rows(
            points - places[mine, None],
            weights / scale[mine, None],
            sites.orders[atoms],
            sites.directions[atoms],
            sites.sides_or_zero[atoms],
        )
        rounding = 8 * eps * float(sites.points.abs().max())
        number[mine] = rows.numbered(kinds, rounding, max(1e-6, 16 * eps), most)
    channels = number * num_outputs if sites.outputs is None else number * num_outputs + sites.outputs
    return Located(Functionals.concatenated(kinds) if kinds else None, places, channels, scale)


class _Rows(NamedTuple):
    """m functionals of p atoms each, about places of their own."""

    points: Tensor  # [m, p, d]
    weights: Tensor  # [m, p]
    orders: Tensor  # [m, p]
    directions: Tensor  # [m, p, q, d]
    sides: Tensor  # [m, p, d]

    def numbered(self, kinds: list[Functionals], rounding: float, tolerance: float, most: int) -> Tensor:
        """The number of the kind of each functional, from 1 on; 0 is values. New kinds are appended."""
        count = self.points.shape[1]
        number = torch.full_like(self.orders[:, 0], -1)
        if count == 1:
            number[(self.orders[:, 0] == 0) & (self.sides[:, 0] == 0).all(1)] = 0
        k = 0
        while bool((number < 0).any()):
            if k == len(kinds):
                if k == most:
                    raise TooManyKinds(f"the functionals are not translates of {most} or fewer")
                kinds.append(self._one(int((number < 0).nonzero()[0])))
            if len(kinds[k].weights) == count:
                number[(number < 0) & self._equal(kinds[k], rounding, tolerance)] = k + 1
            k += 1
        return number

    def _one(self, i: int) -> Functionals:
        start = torch.zeros(1, dtype=torch.long, device=self.points.device)
        atoms = Sites(self.points[i]), self.weights[i], self.orders[i], self.directions[i]
        return Functionals(*atoms, start, self.sides[i])

    def _equal(self, kind: Functionals, rounding: float, tolerance: float) -> Tensor:
        """Which of these functionals equal a kind, `[m]`: up to rounding, or up to a share of its extent that is too
        small to matter."""
        q = max(kind.order, self.directions.shape[2])
        mine, other = (
            torch.nn.functional.pad(u, (0, 0, 0, q - u.shape[-2])) for u in (self.directions, kind.directions)
        )
        sides = kind.sides_or_zero
        near = tolerance * float(kind.points.abs().max() + sides.max()) + rounding
        same = ((self.points - kind.points).abs() <= near).flatten(1).all(1)
        same &= ((self.sides - sides).abs() <= near).flatten(1).all(1)
        same &= ((self.weights - kind.weights).abs() <= tolerance).all(1) & (self.orders == kind.orders).all(1)
        return same & ((mine - other).abs() <= tolerance * other.abs().amax()).flatten(1).all(1) if q else same


def mean_atoms(functionals: Functionals) -> float:
    """Atoms of a row, on average."""
    return len(functionals.weights) / max(1, len(functionals))


def about(kind: Functionals, places: Tensor) -> Functionals:
    """The translates of one functional to places `[n, d]`."""
    n, p = len(places), len(kind.weights)
    return Functionals(
        Sites((places[:, None] + kind.points).flatten(0, 1)),
        kind.weights.repeat(n),
        kind.orders.repeat(n),
        kind.directions.repeat(n, 1, 1),
        p * torch.arange(n, device=places.device),
        None if kind.sides is None else kind.sides.repeat(n, 1),
    )


def scale_of_functionals(
    kernel: Kernel,
    sites: Functionals,
    noise: Tensor,
    *,
    looser: float = 10.0,
    num_neighbours: int = 64,
    num_atoms: int = 1024,
) -> tuple[float, Callable[[Tensor], Tensor]]:
    """A typical posterior variance of values near the data, and the weight of each frequency in the variance that may
    be left out.

    Every kind of data has a typical posterior variance. The variance |D|^2 S that the modes leave out of a kind is
    weighted by the inverse of it.

    Args:
        looser: by how much a larger share of a slope's variance may be missing than of a value's. The missing variance
            of a slope counts as its noise. With 10, means have errors of some thousandths of a posterior standard
            deviation, and variances of a thousandth. With 1000, the errors are a tenth and a fiftieth (Matern-5/2, 200
            values and as many slopes).
        num_neighbours: as for `typical_variances`; neighbours have `num_atoms` together at the most.
    """
    kernel, t = kernel.owned().to("cpu", torch.float64), kernel.num_outputs
    sites, noise = sites.mapped(lambda b: b.detach().cpu()), noise.detach().double().cpu()
    kinds, X, channels, scale = located(sites, t)
    assert channels is not None and scale is not None
    count = 1 if kinds is None else 1 + len(kinds)

    def joint(places: Tensor, near: Tensor) -> Tensor:
        """Covariances of observations of every kind at each place (values first), of the output of the nearest datum,
        and then of the nearest data."""
        here = channels[near[:, :1]] % t + t * torch.arange(count, device="cpu")
        of = torch.cat([here, channels[near]], dim=1)
        Z = torch.cat([places[:, None].expand(-1, count, -1), X[near]], dim=1)
        index = torch.arange(of.numel(), device="cpu").view_as(of)
        return covariances_of_groups(kernel, functionals_at(kinds, Z.flatten(0, 1), of.flatten(), t), index)

    m = min(num_neighbours, max(1, round(num_atoms / mean_atoms(sites))))
    noise = noise.expand(len(X)) / scale.square()
    needed = typical_variances(joint, X, noise, at_data=True, num_places=16, num_neighbours=m).clamp_min(1e-300)

    def seen(theta: Tensor) -> Tensor:
        found = torch.ones_like(theta[:, 0])
        for k, scale in enumerate(needed[1:].tolist()):
            assert kinds is not None
            power = on_frequencies(kinds[k : k + 1], theta).abs().square()
            found = torch.maximum(found, power * (float(needed[0]) / (looser * scale)))
        return found

    return float(needed[0]), seen


def functionals_at(kinds: Functionals | None, places: Tensor, channels: Tensor | None, num_outputs: int) -> Functionals:
    """The functionals of data of these channels, at places `[n, d]`."""
    if channels is None:
        return Functionals.of(Sites(places))
    number, parts, order = channels // num_outputs, [], []
    for k in number.unique().tolist():
        mine = (number == k).nonzero()[:, 0]
        values = Sites(places[mine])
        parts.append(values if kinds is None or k == 0 else about(kinds[k - 1 : k], places[mine]))
        order.append(mine)
    joined = Functionals.concatenated(parts)[torch.cat(order).argsort()]
    return joined if num_outputs == 1 else joined.of_outputs(channels % num_outputs)


def covariances_of_groups(kernel: Kernel, functionals: Functionals, index: Tensor, atoms: int = 256) -> Tensor:
    """The covariances `[p, m, m]` within groups of functionals with the indices `[p, m]`, computed for groups with
    about `atoms` atoms at a time."""
    m, found = index.shape[1], []
    for some in index.split(max(1, round(atoms / (m * mean_atoms(functionals))))):
        rows = functionals[some.flatten()]
        blocks = functional_covariance(kernel, rows, rows).view(len(some), m, len(some), m)
        found.append(blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0))
    return torch.cat(found)


def on_frequencies(kind: Functionals, theta: Tensor) -> Tensor:
    """D(theta) of frequencies `[m, d]`: complex, `[m]`."""
    total = torch.zeros(len(theta), dtype=torch.complex128, device=theta.device)
    atoms = zip(kind.points, kind.sides_or_zero, kind.weights, kind.orders.tolist(), kind.directions, strict=True)
    for z, side, w, order, u in atoms:
        wave = torch.polar(torch.ones_like(theta[:, 0]), theta @ z) * (w * averages_of_waves(theta, side[None])[0])
        for along in u[:order]:
            wave = wave * (1j * (theta @ along))
        total += wave
    return total


@dataclass(frozen=True)
class OnModes:
    """D of one kind on the modes of a lattice, for products with weights. D `[h + 1]` is given on one mode of each
    pair, and then on the constant."""

    half: Tensor

    @staticmethod
    def of(kind: Functionals, lattice: Lattice) -> OnModes:
        """D of a kind on the modes of a lattice."""
        theta = lattice.period.new_zeros(lattice.num_pairs + 1, kind.input_dim)
        theta[:-1, lattice.dims] = lattice.frequencies_of_pairs(0, lattice.num_pairs).to(theta)
        return OnModes(on_frequencies(kind.to(theta.device, theta.dtype), theta))

    @property
    def boxed(self) -> Tensor:
        """D on all modes, in the order of the lattice's box: `[c]`."""
        return torch.cat([self.half[:-1].conj().flip(0), self.half[-1:], self.half[:-1]])

    @property
    def power(self) -> Tensor:
        """|D|^2 of each function, `[c]`."""
        power = self.half.real.square() + self.half.imag.square()
        return torch.cat([power[:-1], power])

    def __call__(self, W: Tensor) -> Tensor:
        """Weights `[.., c]` of f as those of x -> L f(x + .)."""
        return self._turned(W, self.half.imag)

    def transposed(self, W: Tensor) -> Tensor:
        """The transpose of `__call__`: `[.., c] -> [.., c]`."""
        return self._turned(W, -self.half.imag)

    def _turned(self, W: Tensor, imaginary: Tensor) -> Tensor:
        h = len(self.half) - 1
        cos, sin, one = W.split([h, h, 1], dim=-1)
        real, imaginary = self.half.real, imaginary[:-1]
        parts = [cos * real[:-1] + sin * imaginary, sin * real[:-1] - cos * imaginary, one * real[-1]]
        return torch.cat(parts, dim=-1)
