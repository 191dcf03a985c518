"""Record: what evaluators are given of paths. Also the terms whose sum a path is.

Points are `[1, n, d]`, shared by all paths, or `[B, n, d]`, each path's own; sums are `[s, t, n]`, and with gradients a
pair with `[s, t, n, d]`. Paths build their record once, and again when their tensors have changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Concatenate, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..core.arena import Sums, add, frame
from ..core.modes import is_wrapped, outside, transformed
from ..core.value import Value
from ..models.means import ConstantMean, Mean
from ..models.transforms import Transform
from . import bases
from .bases import Basis

T = TypeVar("T")
M = TypeVar("M", bound=Value)
R = TypeVar("R")

# The paths that are evaluated at these points: a slice, or the path of each problem `[B]`. None stands for all paths at
# shared points.
Which = slice | Tensor | None


class PathTerm(ABC):
    """A summand of every path: a function `[s, t]` of points in the model's own space."""

    shared: bool = True  # whether all paths use one version of its basis
    by_coordinate: bool = True  # whether gradients take, for each coordinate, as much memory as the sums

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that one point (of one path) needs while its sums are taken."""

    @abstractmethod
    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        """`[s, t, n]`, and with `gradient` a pair with `[s, t, n, d]`."""

    def vjp(self, x: Tensor, G: Tensor) -> Tensor:
        """sum over paths and outputs of G `[s, t, n]` times the gradient of the sums at shared points: `[1, n, d]`."""
        _, df = self.sums(x, None, True)  # [s, t, n, d]
        return (G[..., None] * df).sum((0, 1))[None]


@dataclass(eq=False)
class WeightedSum(PathTerm):
    """sum_i W_i phi_i(x - origin): weights `[s, t, c]`, and which version of the basis each path uses, `[s]`.

    Without an origin points are taken as they are; without an index all paths use the one version there is.
    """

    basis: Basis
    weights: Tensor
    index: Tensor | None = None
    origin: Tensor | None = None

    @property
    def width(self) -> int:
        return self.basis.width

    @cached_property
    def shared(self) -> bool:
        """Whether all paths use one version."""
        return self.index is None or self.basis.num_bases == 1

    @cached_property
    def indices(self) -> list[int]:
        """Each path's version."""
        return [0] * len(self.weights) if self.index is None else self.index.tolist()

    @cached_property
    def groups(self) -> list[tuple[int, list[int]]]:
        """The versions in use, and the paths that use each."""
        members: dict[int, list[int]] = {}
        for path, g in enumerate([0] * len(self.weights) if self.shared else self.indices):
            members.setdefault(g, []).append(path)
        return sorted(members.items())

    def sums(self, x: Tensor, paths: Which, gradient: bool = False) -> Sums:
        x, W = x if self.origin is None else x - self.origin, self.weights
        s, t, c = W.shape
        if paths is not None:
            return self._sums_at_own(x, paths, gradient)
        if self.shared:  # shared points and one basis are one problem for all paths
            return _split_rows(self.basis.sums(x, W.reshape(1, s * t, c), gradient), s, t)
        # shared points and a basis per path: several paths at once, as long as their bases are small
        if len(self.groups) == s:
            assert self.index is not None
            step = max(1, bases.LARGEST_BATCH // max(1, c * x.shape[1]))
            cuts = [slice(i, i + step) for i in range(0, s, step)]
            return _concatenated([self.basis.select(self.index[cut]).sums(x, W[cut], gradient) for cut in cuts])
        parts, order = [], []
        for basis, rows, members in self.versions():  # shared points, and bases that are each shared by several paths
            parts.append(_split_rows(basis.sums(x, rows.reshape(1, -1, c), gradient), len(members), t))
            order += members
        out, place = _concatenated(parts), torch.tensor(order, device=x.device).argsort()
        return out if order == sorted(order) else of_each(lambda o: o[place], out)

    def _sums_at_own(self, x: Tensor, paths: slice | Tensor, gradient: bool) -> Sums:
        """Own points: a problem per path. The frequencies that neighbours share are not copied for each."""
        W = self.weights[paths]
        if self.shared:
            return self.basis.sums(x, W, gradient)
        assert self.index is not None
        indices = self.indices[paths] if isinstance(paths, slice) else self.index[paths].tolist()
        runs = [(g, len(list(run))) for g, run in groupby(indices)]
        if len(runs) > len(W) // 4:
            return self.basis.select(self.index[paths]).sums(x, W, gradient)
        parts, start = [], 0
        for g, length in runs:
            mine = slice(start, start + length)
            parts.append(self.basis.select(slice(g, g + 1)).sums(x[mine], W[mine], gradient))
            start += length
        return _concatenated(parts)

    def vjp(self, x: Tensor, G: Tensor) -> Tensor:
        x, c, n = x if self.origin is None else x - self.origin, self.weights.shape[-1], x.shape[1]
        total = torch.zeros_like(x)
        for basis, W, members in self.versions():
            rows = G if self.shared else G[members]
            with frame():
                total += basis.vjp(x, *_merged_if_equal(W.reshape(1, -1, c), rows.reshape(1, -1, n)))
        return total

    def versions(self) -> Iterator[tuple[Basis, Tensor, list[int]]]:
        """The versions of the basis that are in use, the weights that go with each, and the paths that use it."""
        for g, members in self.groups:
            first, last = members[0], members[-1]
            rows = slice(first, last + 1) if last - first < len(members) else members
            yield self.basis if self.shared else self.basis.select(slice(g, g + 1)), self.weights[rows], members


def _merged_if_equal(W: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[1, r, c]` and cotangents `[1, r, n]`, reduced to one row with the same vector-Jacobian product if
    possible.

    The cotangents of a sum or a mean over paths and points are equal at all points. In this case the product is the
    gradient of one function, whose weights are sum_r G_r W_r.
    """
    if G.device.type != "cpu" or G.shape[1] == 1 or not bool((G == G[..., :1]).all()):
        return W, G
    return G[..., :1].mT @ W, torch.ones_like(G[:, :1])


def summed(terms: Sequence[PathTerm], x: Tensor, paths: Which, gradient: bool) -> Sums | None:
    """The sum of some terms; None where there are none."""
    total = None
    for term in terms:
        with frame():
            part = term.sums(x, paths, gradient)
            total = part if total is None else add(total, part)
    return total


def sum_of(terms: Sequence[PathTerm], x: Tensor, paths: Which = None) -> Tensor | None:
    """The sum of some terms without gradients, `[s, t, n]`; None where there are none."""
    return cast(Tensor | None, summed(terms, x, paths, False))


def _split_rows(out: Sums, s: int, t: int) -> Sums:
    """`[1, s t, n, ...] -> [s, t, n, ...]`, of a tensor or of a pair."""
    if isinstance(out, tuple):
        return out[0].reshape(s, t, out[0].shape[2]), out[1].reshape(s, t, *out[1].shape[2:])
    return out.reshape(s, t, out.shape[2])


def _concatenated(parts: list[Sums]) -> Sums:
    if isinstance(parts[0], tuple):
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    return torch.cat(cast(list[Tensor], parts))


def of_each(function: Callable[[Tensor], Tensor], out: Sums) -> Sums:
    """Apply a function to the sums, and to their gradients if there are any."""
    return (function(out[0]), function(out[1])) if isinstance(out, tuple) else function(out)


@dataclass(eq=False)
class Record:
    """s functions of t outputs: mean + the sum of the terms, in the model's own space, and the transforms to and from
    that space.

    `origin` `[d]` is that of the Fourier terms, `domain` `[2, d]` where the functions are right (None: everywhere).
    """

    num_paths: int
    num_outputs: int
    terms: Sequence[PathTerm]
    mean: Mean
    origin: Tensor
    requires_grad: bool = False  # whether a tensor is in a graph, or wrapped; such a record is used for one call only
    domain: Tensor | None = None
    input_transform: Transform | None = None
    output_transform: Transform | None = None
    _derived: dict[Hashable, object] = field(default_factory=dict, repr=False, init=False)

    @property
    def input_dim(self) -> int:
        return self.origin.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.origin.dtype

    def parted(self, taken: Sequence[PathTerm], with_mean: bool) -> tuple[Record, Record | None]:
        """Split the record in two: some of the terms, with or without the mean, and the rest. A part without terms is
        None."""
        zero = ConstantMean().to(self.origin)
        mine = replace(self, terms=taken, mean=self.mean if with_mean else zero)
        left = [term for term in self.terms if not any(term is other for other in taken)]
        if not left and (with_mean or self._zero_mean):
            return mine, None
        return mine, replace(self, terms=left, mean=zero if with_mean else self.mean)

    def derived(self, make: Callable[[Record], T], key: Hashable = None) -> T:
        """The result of `make(record)`, which is computed once (or once for each key) and stored with the record."""
        name = make if key is None else key
        try:
            return cast(T, self._derived[name])
        except KeyError:
            pass
        with nullcontext() if self.requires_grad else outside():
            made = self._derived[name] = make(self)
        return made

    def inner(self, x: Tensor) -> Tensor:
        """Points in the model's own space."""
        return inner_points(x, self.input_transform, self.domain)

    def outer(self, f: Tensor) -> Tensor:
        """Outputs `[s, n, t]` in a user's units."""
        return f if self.output_transform is None else self.output_transform(f)

    def chained(self, x: Tensor, f: Tensor, df: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the chain rule: from values and gradients of the inner functions to those of the transformed functions
        at outer points x."""
        if self.input_transform is not None:
            df = self.input_transform.vjp(x, df)
        if self.output_transform is not None:
            df = df * self.output_transform.derivative(f)[..., None]
        return self.outer(f), df

    @cached_property
    def _widest(self) -> int:
        return max((term.width for term in self.terms), default=1)

    @cached_property
    def _several_bases(self) -> bool:
        return any(not term.shared for term in self.terms)

    @cached_property
    def _zero_mean(self) -> bool:
        return not self.requires_grad and isinstance(self.mean, ConstantMean) and not bool(self.mean.value.any())

    @cached_property
    def _with_slopes(self) -> int:
        """The factor by which sums need more memory if gradients are computed too."""
        return 1 + self.input_dim if any(term.by_coordinate for term in self.terms) else 2

    def width(self, x: Tensor, gradient: bool = False) -> int:
        """The number of floats held per point (per point and path, for own points): those of the widest term and of the
        sums."""
        slopes = self._with_slopes if gradient else 1
        if len(x) == 1:
            return (self._widest + self.num_paths * self.num_outputs) * slopes
        gathered = self.input_dim // max(1, x.shape[1]) + 1 if self._several_bases else 1
        return (self._widest * gathered + self.num_outputs) * slopes

    def values(self, x: Tensor, paths: Which) -> Tensor:
        """mean + terms at some points (of some paths), `[s, n, t]`."""
        f = cast(Tensor | None, summed(self.terms, x, paths, False))  # [s, t, n]
        if f is not None and self._zero_mean:
            return f.mT
        m = self.mean(x)  # [1 or s, n, 1 or t]
        if f is None:
            return m.expand(self.num_paths if paths is None else -1, -1, self.num_outputs)
        return f.mT + m

    def values_and_gradients(self, x: Tensor, paths: Which) -> tuple[Tensor, Tensor]:
        """mean + terms `[s, n, t]`, and their gradients `[s, n, t, d]`."""
        total = summed(self.terms, x, paths, True)  # [s, t, n], [s, t, n, d]
        if total is not None and self._zero_mean:
            return total[0].mT, total[1].transpose(1, 2)
        m, dm = self.mean.with_gradient(x)  # [1 or s, n, 1 or t], [1 or s, n, 1 or t, d]
        if total is None:
            shape = (self.num_paths if paths is None else -1, -1, self.num_outputs)
            return m.expand(shape), dm.expand(*shape, -1)
        return total[0].mT + m, total[1].transpose(1, 2) + dm

    def vjp(self, x: Tensor, G: Tensor) -> Tensor:
        """sum over paths and outputs of G `[s, n, t]` times the gradients at shared points: `[1, n, d]`."""
        total = self.mean_vjp(x, G)
        columns = G.mT.contiguous()  # [s, t, n]
        for term in self.terms:
            with frame():
                total = total + term.vjp(x, columns)
        return total

    def mean_vjp(self, x: Tensor, G: Tensor) -> Tensor:
        """`vjp` of the mean alone."""
        _, dm = self.mean.with_gradient(x)  # [1, n, 1 or t, d]
        G = G.sum(0, keepdim=True)
        G = G.sum(-1, keepdim=True) if dm.shape[2] == 1 else G
        return (G[..., None] * dm).sum(2)


def inner_points(x: Tensor, transform: Transform | None, domain: Tensor | None) -> Tensor:
    """Points `[1 or s, n, d]` in a model's own space, checked against the domain of its features."""
    inner = x if transform is None else transform(x)
    if domain is None or not x.shape[1]:
        return inner
    slack = 1e-6 * (domain[1] - domain[0])
    outside = ((inner < domain[0] - slack) | (inner > domain[1] + slack)).any(-1, keepdim=True)
    if transformed():  # inside a transform of torch.func, the values are not known yet
        return torch.where(outside, torch.nan, inner)
    if bool(outside.any()):
        box, points = domain, x
        if transform is not None and transform.elementwise:
            box = transform.inverse(domain)
        elif transform is not None:
            points = inner
        raise ValueError(
            f"x: expected points inside the domain {box[0].tolist()} to {box[1].tolist()} of this lattice, got "
            f"{points.amin((0, 1)).tolist()} to {points.amax((0, 1)).tolist()}; draw with a larger domain=, or with "
            "features='leverage'"
        )
    return inner


class Recorder(Generic[M, R]):
    """Stores the record of each module. It is made by `make` when first used, and again after the module's tensors have
    changed.

    This is the only cache of values derived from tensors. A record that is in an autograd graph, or under a transform
    of torch.func to which the module itself belongs, is made for every call.
    """

    def __init__(self, make: Callable[Concatenate[M, ...], R]) -> None:
        self.make = make
        self.made: WeakKeyDictionary[M, tuple[R, list[Source]]] = WeakKeyDictionary()

    def __call__(self, module: M, *more: object) -> R:
        """Return the record of a module. `make` is called with `more`, which must be determined by the module."""
        known = self.made.get(module)
        if known is not None and _unchanged(known[1]):
            return known[0]
        if module.requires_graph() or (transformed() and any(map(is_wrapped, module.buffers()))):
            made = self.make(module, *more)
            return replace(made, requires_grad=True) if isinstance(made, Record) else made
        with outside():
            record = self.make(module, *more)
        sources = [
            (part._buffers, name, b, None if b.is_inference() else b._version, b.requires_grad)
            for part in module.modules()
            for name, b in part._buffers.items()
            if b is not None
        ]
        self.made[module] = (record, sources)
        return record


# A tensor of a module when a record was made: where it is kept, its version (None for an inference tensor), and whether
# it is in a graph.
Source = tuple[dict[str, Tensor | None], str, Tensor, int | None, bool]


def _unchanged(sources: list[Source]) -> bool:
    """Whether tensors are still those of the module, with the same numbers, and as before in a graph or not.

    A parent module that is moved moves them in place; an optimiser writes into them.
    """
    for owner, name, tensor, version, in_graph in sources:  # a plain loop, because every call runs it
        if owner.get(name) is not tensor or tensor.requires_grad is not in_graph:
            return False
        if version is not None and tensor._version != version:
            return False
    return True
