"""Functionals: slopes, sums and averages that are observed in place of values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .checks import ArrayLike, Names, as_names, as_tensor, common_names, many
from .jacobian import derivative_along
from .modes import transformed
from .sites import Sites, joined_sites
from .value import Json, Value


class Functionals(Value):
    """n linear functionals, each a weighted sum of derivatives at points, its atoms:

        L_r f  =  sum over the atoms a of row r of  weight_a  D_a f(x_a),      D_a = (u_a1 . grad) ... (u_aq . grad)

    Atoms are stored row by row. Their order q is 0 for a value, 1 for a slope and 2 for a second derivative. An atom
    with sides is the average over a box around its point. `matheron.observe` makes functionals.

    Args:
        sites: the points of the atoms `[N, d]`, and the output that each is of.
        weights: `[N]`.
        orders: q of each atom, `[N]` whole numbers.
        directions: u, `[N, p, d]` with p the largest order; those beyond an atom's own order are zero.
        starts: the first atom of each row, `[n]`.
        sides: of the boxes, `[N, d]`, zero for points; None where all are points.
        input_names: of the points' columns, where these came in a table. Models take them over.

    >>> from matheron import kernels, observe
    >>> from matheron.compare.samplers import moments
    >>> import matheron
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=1.0)
    >>> moments(gp, observe.gradient([[0.0]])).mean
    tensor([0.], dtype=torch.float64)
    """

    fields = ("input_names",)
    shapes = "weights: N, orders: N, directions: N p d, starts: n, sides: N d"

    sites: Sites
    weights: Tensor
    orders: Tensor
    directions: Tensor
    starts: Tensor
    sides: Tensor | None
    input_names: Names = None

    def __init__(
        self,
        sites: Sites,
        weights: Tensor,
        orders: Tensor,
        directions: Tensor,
        starts: Tensor,
        sides: Tensor | None = None,
        input_names: Names = None,
    ) -> None:
        sides = sides if sides is not None and bool((sides != 0).any()) else None
        atoms = dict(weights=weights, orders=orders, directions=directions, starts=starts, sides=sides)
        super().__init__(**atoms, sites=sites)
        self.input_names = input_names

    @classmethod
    def read_fields(cls, fields: dict[str, Json]) -> dict[str, Json]:
        return fields | {"input_names": as_names(fields.get("input_names"))}

    def check(self) -> None:
        as_names(self.input_names, self.input_dim)
        N = len(self.sites)
        if self.directions.shape != (N, self.directions.shape[1], self.points.shape[1]) or len(self.weights) != N:
            raise ValueError(f"Functionals: expected weights and directions of {N} atoms")
        if self.orders.is_floating_point() or self.starts.is_floating_point():
            raise ValueError("Functionals: expected orders and starts that are whole numbers")
        if N and not 0 <= int(self.orders.min()) <= int(self.orders.max()) <= self.directions.shape[1]:
            raise ValueError(f"Functionals: expected orders from 0 to {self.directions.shape[1]}")
        if self.sides is not None and (self.sides.shape != self.points.shape or bool((self.sides < 0).any())):
            raise ValueError(f"Functionals: expected sides {list(self.points.shape)} of at least zero")
        edges = torch.cat([self.starts.new_zeros(1), self.starts, self.starts.new_tensor([N])]).diff()
        if len(self.starts) and (int(edges[0]) != 0 or int(edges[1:].min()) < 1):
            raise ValueError("Functionals: expected at least one atom in each row, and rows in order")

    @staticmethod
    def of(sites: Sites | Functionals, input_names: Names = None) -> Functionals:
        """Values at sites as functionals."""
        if isinstance(sites, Functionals):
            return sites
        points, N = sites.points, len(sites)
        whole = torch.zeros(N, dtype=torch.long, device=points.device)
        each = torch.arange(N, device=points.device)
        directions = points.new_zeros(N, 0, points.shape[1])
        return Functionals(sites, points.new_ones(N), whole, directions, each, input_names=input_names)

    @staticmethod
    def concatenated(parts: Sequence[Sites | Functionals]) -> Functionals:
        """The rows of several, in order."""
        each = [Functionals.of(part) for part in parts]
        most = max(part.directions.shape[1] for part in each)
        sizes = list(itertools.accumulate((len(part.sites) for part in each), initial=0))
        return Functionals(
            joined_sites([part.sites for part in each]),
            torch.cat([part.weights for part in each]),
            torch.cat([part.orders for part in each]),
            torch.cat([_padded(part.directions, most) for part in each]),
            torch.cat([part.starts + first for part, first in zip(each, sizes[:-1], strict=True)]),
            None if all(part.sides is None for part in each) else torch.cat([part.sides_or_zero for part in each]),
            common_names(each),
        )

    def __len__(self) -> int:
        """The number n of functionals."""
        return len(self.starts)

    def __repr__(self) -> str:
        of = "" if self.outputs is None else ", each of one output"
        return f"{many(len(self), 'functional')} of functions in {many(self.points.shape[1], 'dimension')}{of}"

    def __add__(self, other: Functionals) -> Functionals:
        """The sums, row by row."""
        if not isinstance(other, Functionals):
            return NotImplemented
        of_one = (self.outputs is None) == (other.outputs is None)
        if len(self) != len(other) or self.input_dim != other.input_dim or not of_one:
            raise ValueError(
                "expected as many functionals of functions of as many inputs, with output= for both or for none, got "
                f"{self!r} and {other!r}"
            )
        both, rows = Functionals.concatenated([self, other]), torch.cat([self.rows, other.rows])
        order, counts = rows.argsort(stable=True), self.counts + other.counts
        return Functionals(
            both.sites[order],
            both.weights[order],
            both.orders[order],
            both.directions[order],
            counts.cumsum(0) - counts,
            None if both.sides is None else both.sides[order],
            both.input_names,
        )

    def __radd__(self, other: object) -> Functionals:
        """`sum` of several functionals begins with 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, factor: ArrayLike) -> Functionals:
        """The functionals times a number, or one for each row `[n]`."""
        number = as_tensor(factor, "factor", like=self.weights)
        if number.shape not in ((), (len(self),)):
            raise ValueError(f"expected a number, or one for each row [{len(self)}], got shape {list(number.shape)}")
        return self.times(number.expand(len(self)))

    __rmul__ = __mul__
    __array_ufunc__ = None  # NumPy leaves multiplying its numbers with functionals to __rmul__

    def __array__(self, *_args: object, **_options: object) -> np.ndarray:
        """TypeError: where points or numbers are expected, functionals are none."""
        raise TypeError(
            "functionals of matheron.observe are not points; models, condition_on and samplers.moments take them in "
            "place of points, and paths.at(...) evaluates them"
        )

    def __truediv__(self, divisor: ArrayLike) -> Functionals:
        """The functionals divided by a number, or by one for each row `[n]`."""
        return self * (1 / as_tensor(divisor, "divisor", like=self.weights))

    def __neg__(self) -> Functionals:
        return self * -1.0

    def __sub__(self, other: Functionals) -> Functionals:
        return self + -other if isinstance(other, Functionals) else NotImplemented

    @property
    def points(self) -> Tensor:
        """The points of the atoms, `[N, d]`."""
        return self.sites.points

    @property
    def outputs(self) -> Tensor | None:
        """The output that each row is of (that of its first atom), `[n]`; None for functions of one output."""
        outputs = self.sites.outputs
        return outputs if outputs is None or self.alone else outputs[self.starts]

    @property
    def alone(self) -> bool:
        """Whether every row has a single atom."""
        return len(self.starts) == len(self.weights)

    @property
    def input_dim(self) -> int:
        """The number d of inputs."""
        return self.sites.points.shape[1]

    @property
    def sides_or_zero(self) -> Tensor:
        """The sides `[N, d]`, zero where all atoms are points."""
        return torch.zeros_like(self.points) if self.sides is None else self.sides

    @property
    def boxes(self) -> Tensor:
        """Centres and sides side by side, `[N, 2 d]`; the points `[N, d]` where no atom has sides."""
        return self.points if self.sides is None else torch.cat([self.points, self.sides], dim=1)

    @property
    def order(self) -> int:
        """The largest order of a derivative."""
        return self.directions.shape[1]

    @property
    def counts(self) -> Tensor:
        """How many atoms each row has, `[n]`."""
        return torch.cat([self.starts, self.starts.new_tensor([len(self.weights)])]).diff()

    @property
    def rows(self) -> Tensor:
        """The row of each atom, `[N]`."""
        return torch.arange(len(self), device=self.starts.device).repeat_interleave(self.counts)

    @property
    def places(self) -> Tensor:
        """The place of each row, `[n, d]`: the mean of its points."""
        if self.alone:
            return self.points
        return self.summed(self.points.mT).mT / self.counts[:, None]

    def own(self, f: Tensor) -> Tensor:
        """Select each row's own output from numbers `[.., n, t]` for every output, or `[.., n, 1]` for all."""
        return Sites(self.points[self.starts], self.outputs).own(f)

    def of_ones(self) -> Tensor:
        """The value of each functional for the constant function 1, `[n]`."""
        return self.summed(torch.where(self.orders == 0, self.weights, 0.0))

    def __iter__(self) -> Iterator[Functionals]:
        """Each row."""
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Tensor | slice | int) -> Functionals:
        """Some of the rows; an integer gives one, as a slice of length one does."""
        if isinstance(index, int):
            first = range(len(self))[index]
            index = slice(first, first + 1)
        if self.alone:
            atoms, starts = index, torch.arange(len(self.starts[index]), device=self.starts.device)
        else:
            counts, first = self.counts[index], self.starts[index]
            starts = counts.cumsum(0) - counts
            atoms = torch.arange(int(counts.sum()), device=starts.device)
            atoms = atoms + (first - starts).repeat_interleave(counts)
        return self.atoms(atoms, starts)

    def atoms(self, index: Tensor | slice, starts: Tensor) -> Functionals:
        """Functionals of some of the atoms."""
        some = (self.sites[index], self.weights[index], self.orders[index], self.directions[index])
        return Functionals(*some, starts, None if self.sides is None else self.sides[index], self.input_names)

    def of_outputs(self, outputs: Tensor | None) -> Functionals:
        """The same functionals of other outputs, given for each row `[n]`."""
        each = outputs if outputs is None or self.alone else outputs.repeat_interleave(self.counts)
        return self.replaced(sites=Sites(self.points, each))

    def times(self, factor: Tensor) -> Functionals:
        """The functionals times numbers, one for each row `[n]`."""
        return self.replaced(weights=self.weights * (factor if self.alone else factor[self.rows]))

    def parts(self) -> list[tuple[int, slice | Tensor]]:
        """The orders that occur, with the atoms of each: points first, and then boxes."""
        found: list[tuple[int, slice | Tensor]] = []
        box = None if self.sides is None else (self.sides != 0).any(1)
        for order in range(self.order + 1):
            have = self.orders == order
            for some in [have] if box is None else [have & ~box, have & box]:
                at = some.nonzero()[:, 0]
                if len(at) == 0:
                    continue
                first, last = int(at[0]), int(at[-1])
                found.append((order, slice(first, last + 1) if last - first + 1 == len(at) else at))
        return found

    def summed(self, values: Tensor) -> Tensor:
        """The sums over each row's atoms: `[.., N] -> [.., n]`."""
        if self.alone:
            return values
        return values.new_zeros(*values.shape[:-1], len(self)).index_add(-1, self.rows, values)

    def of_parts(self, observed: Callable[[Functionals], Tensor]) -> Tensor:
        """The sums `[.., n]` over each row's atoms of `observed`, which is called for the atoms of each kind and
        returns `[.., m]`."""
        parts, N = self.parts(), len(self.weights)
        index = torch.arange(N, device=self.weights.device)
        if len(parts) == 1:
            return self.summed(observed(self if self.alone else self.atoms(slice(None), index)))
        total = None
        for order, at in parts:
            atoms = self.atoms(at, index[: len(index[at])])
            part = observed(atoms.replaced(directions=atoms.directions[:, :order]))
            total = part.new_empty(*part.shape[:-1], N) if total is None else total
            total[..., at] = part
        assert total is not None
        return self.summed(total)

    def features(self, phi: Callable[[Sites], Tensor]) -> Tensor:
        """L phi `[n, c]` of functions phi, which are given at sites: `[m, c]`. Derivatives are by automatic
        differentiation. Functions that can be averaged take `as_points` in place of these."""
        if self.sides is not None:
            raise TypeError("features: expected functionals of values and derivatives, got averages over boxes")
        values = None
        for order, at in self.parts():
            some, outputs = self.sites[at], self.sites.outputs
            outputs = None if outputs is None else outputs[at]
            function, directions = _of_points(phi, outputs), self.directions[at, :order].unbind(1)
            part = derivative_along(function, some.points, directions) * self.weights[at, None]
            if values is None:
                values = part.new_zeros(len(self.weights), part.shape[1])
            values[at] = part
        assert values is not None
        return self.summed(values.mT).mT

    def of_waves(self, waves_at: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
        """L of cos(theta . x) and sin(theta . x) for k frequencies, `[n, 2 k]`; their values at points `[p, d]` are
        waves_at, `[p, 2 k]`."""
        each, place = self.distinct()
        waves, theta = waves_at(each.points).unflatten(1, (2, -1)), theta.to(self.points)  # [p, 2, k], [k, d]
        waves = waves if len(waves) == len(self.weights) else waves[place]
        total = torch.empty_like(waves)  # [N, 2, k]
        for order, at in self.parts():
            factor, part = self.weights[at, None], waves[at]
            for u in self.directions[at, :order].unbind(1):
                factor = factor * (u @ theta.mT)  # [m, k]
            if self.sides is not None:
                factor = factor * averages_of_waves(theta, self.sides[at])
            factor = factor.to(waves)
            if order == 1:  # cos' = -sin, sin' = cos
                total[at, 0], total[at, 1] = (part[:, 1] * factor).neg_(), part[:, 0] * factor
            else:
                total[at] = part * (factor if order == 0 else -factor)[:, None]
        return self.summed(total.flatten(1).mT).mT

    def of_gradients(self, f: Tensor, df: Tensor) -> Tensor:
        """L f `[s, n]` of functions with values f `[s, N, t]` and gradients df `[s, N, t, d]` at the atoms, or with
        those of one output for all, t = 1. No order may be above 1."""
        values = self.sites.own(f)  # [s, N]
        if self.order:
            slope = torch.stack([self.sites.own(df[..., i]) for i in range(df.shape[-1])], dim=-1)  # [s, N, d]
            values = torch.where(self.orders == 0, values, (slope * self.directions[:, 0]).sum(-1))
        return self.summed(self.weights * values)

    def distinct(self) -> tuple[Sites, Tensor]:
        """The sites without repetitions of the previous one (as gradients have), and the index of each atom's site."""
        points, outputs = self.points, self.sites.outputs
        new = torch.ones(len(points), dtype=torch.bool, device=points.device)
        new[1:] = (points[1:] != points[:-1]).any(-1)
        if outputs is not None:
            new[1:] |= outputs[1:] != outputs[:-1]
        return self.sites[new], new.cumsum(0) - 1

    def keys(self) -> Tensor | None:
        """A row of numbers for each functional; equal functionals have equal rows. None if rows are sums."""
        if not self.alone:
            return None
        outputs = self.weights if self.sites.outputs is None else self.sites.outputs.to(self.weights)
        each = [self.boxes, self.weights[:, None], self.orders[:, None].to(self.weights), outputs[:, None]]
        return torch.cat([*each, self.directions.flatten(1)], dim=1)

    def moved(self, points: Tensor, jacobian: Tensor | None) -> Self:
        """Convert functionals of f(T(.)) to functionals of f: at the points T(x) `[N, e]`, along directions J u.

        The Jacobian J `[N, e, d]` of T is None for the identity, and where there are no derivatives.
        """
        directions, sides = self.directions, self.sides
        if jacobian is not None:
            directions = directions @ jacobian.mT  # [N, p, e]
            # the sides of boxes in the coordinates of T(x)
            sides = None if sides is None else (jacobian.abs() @ sides[..., None])[..., 0]
        elif not self.order:
            directions = points.new_zeros(len(points), 0, points.shape[1])
        return self.replaced(sites=Sites(points, self.sites.outputs), directions=directions, sides=sides)

    def as_points(self) -> Self:
        """Boxes as points of 2 d coordinates, centres and sides. Averages of functions are functions of these
        points."""
        directions = torch.nn.functional.pad(self.directions, (0, self.input_dim))
        return self.replaced(sites=Sites(self.boxes, self.sites.outputs), directions=directions, sides=None)

    def by_nodes(self, count: int) -> Functionals:
        """Functionals of points: averages by the Gauss-Legendre rule with `count` nodes in each dimension."""
        d, sides = self.input_dim, self.sides_or_zero
        nodes, weights = (torch.from_numpy(each).to(self.weights) for each in np.polynomial.legendre.leggauss(count))
        at = torch.cartesian_prod(*[nodes / 2] * d).reshape(-1, d)  # [p, d] in the unit box about zero
        w = torch.cartesian_prod(*[weights / 2] * d).reshape(-1, d).prod(-1)  # [p]
        box = (sides != 0).any(1)
        each = torch.where(box, len(w), 1)  # the number of nodes of each atom
        atom = torch.arange(len(each), device=each.device).repeat_interleave(each)
        offset, factor = torch.zeros_like(self.points)[atom], torch.ones_like(self.weights)[atom]
        offset[box[atom]] = (sides[box][:, None] * at).reshape(-1, d)
        factor[box[atom]] = w.repeat(int(box.sum()))
        outputs = None if self.sites.outputs is None else self.sites.outputs[atom]
        sites = Sites(self.points[atom] + offset, outputs)
        starts = (each.cumsum(0) - each)[self.starts]
        return Functionals(sites, self.weights[atom] * factor, self.orders[atom], self.directions[atom], starts)

    def at_centres(self) -> Self:
        """Replace averages by values at the centres of boxes, which are the averages of linear functions."""
        return self if self.sides is None else self.replaced(sides=None)


def averages_of_waves(theta: Tensor, sides: Tensor) -> Tensor:
    """prod_i sin(theta_i w_i / 2) / (theta_i w_i / 2), by which averages over boxes with sides w `[.., n, d]` shrink
    waves with frequencies theta `[.., f, d]`: `[.., n, f]`."""
    return functools.reduce(torch.mul, map(_average_of_waves, theta.unbind(-1), sides.unbind(-1)))


def _average_of_waves(theta: Tensor, w: Tensor) -> Tensor:
    """The same for one coordinate, `[.., f], [.., n] -> [.., n, f]`."""
    if transformed() or w.requires_grad or theta.requires_grad:
        return torch.sinc(w[..., None] * (theta[..., None, :] / (2 * torch.pi)))
    place = None
    if w.numel() == w.shape[-1]:  # sides that repeat themselves, as those of a raster's cells do, are computed once
        distinct, place = w.flatten().unique(return_inverse=True)
        w, place = (distinct, place) if 2 * len(distinct) <= w.numel() else (w, None)
    half = w[..., None] * (theta[..., None, :] / 2)
    half.masked_fill_(half == 0, torch.finfo(half.dtype).tiny)  # where sin(x) / x is one
    shrunk = half.sin().div_(half)  # takes a third of the time of torch.sinc
    return shrunk if place is None else shrunk[..., place, :]


def _padded(directions: Tensor, most: int) -> Tensor:
    return torch.nn.functional.pad(directions, (0, 0, 0, most - directions.shape[1]))


def _of_points(phi: Callable[[Sites], Tensor], outputs: Tensor | None) -> Callable[[Tensor], Tensor]:
    return lambda x: phi(Sites(x, outputs))


# What a model can observe, and what the terms of an update belong to.
Observed: TypeAlias = Sites | Functionals
