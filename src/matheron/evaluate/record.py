"""Record: all that an evaluator may know of paths. Paths build it once, and again when their tensors have changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Concatenate, Generic, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..core.arena import frame
from ..core.modes import is_wrapped, outside, transformed
from ..core.value import Value
from ..models.means import ConstantMean, Mean
from ..models.transforms import Transform
from .path_terms import PathTerm, Which, Wide, summed

T = TypeVar("T")
M = TypeVar("M", bound=Value)


@dataclass(eq=False)
class Record:
    """s functions of t outputs, mean + the sum of the terms, in the model's own space; and what leads there and back.

    `origin` `[d]` is that of the Fourier terms, `domain` `[2, d]` where the functions are right (None: everywhere).
    """

    num_paths: int
    num_outputs: int
    terms: Sequence[PathTerm]
    mean: Mean
    origin: Tensor
    requires_grad: bool = False  # whether some of its tensors are in a graph, or wrapped: it serves one call
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

    def derived(self, make: Callable[[Record], T], key: Hashable = None) -> T:
        """What `make` makes of this record: once, or once per key. It lives as long as the record."""
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
        """Values and gradients of the inner functions as those of the whole, at outer points x."""
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
        """How many times as many numbers sums need where their gradients are taken."""
        return 1 + self.input_dim if any(term.by_coordinate for term in self.terms) else 2

    def width(self, x: Tensor, gradient: bool = False) -> int:
        """Numbers held per point (and per path, where each has its own): the widest term, and the sums."""
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
        """The same, and gradients `[s, n, t, d]`."""
        total = summed(self.terms, x, paths, True)  # [s, t, n], [s, t, n, d]
        if total is not None and self._zero_mean:
            return total[0].mT, total[1].transpose(1, 2)
        m, dm = self.mean.with_gradient(x)  # [1 or s, n, 1 or t], [1 or s, n, 1 or t, d]
        if total is None:
            shape = (self.num_paths if paths is None else -1, -1, self.num_outputs)
            return m.expand(shape), dm.expand(*shape, -1)
        return total[0].mT + m, total[1].transpose(1, 2) + dm

    def pulled(self, x: Tensor, G: Tensor) -> Tensor:
        """sum over paths and outputs of G `[s, n, t]` times the gradients at shared points: `[1, n, d]`."""
        total = self.mean_pulled(x, G)
        columns = G.mT.contiguous()  # [s, t, n]
        for term in self.terms:
            with frame():
                total = total + term.pulled(x, columns)
        return total

    def mean_pulled(self, x: Tensor, G: Tensor) -> Tensor:
        """The same of the mean alone."""
        _, dm = self.mean.with_gradient(x)  # [1, n, 1 or t, d]
        G = G.sum(0, keepdim=True)
        G = G.sum(-1, keepdim=True) if dm.shape[2] == 1 else G
        return (G[..., None] * dm).sum(2)


def by_digits(record: Record) -> tuple[Record, Record] | None:
    """A record less its terms that are summed in float64, and these as a record in float64; None where there are none.

    So each of the two has the evaluator that suits it: on a GPU the fused kernels of its dtype.
    """
    wide = [term.term for term in record.terms if isinstance(term, Wide)]
    if not wide:
        return None
    narrow = replace(record, terms=[term for term in record.terms if not isinstance(term, Wide)])
    origin = record.origin.double()
    mean = ConstantMean().to(origin.device)
    return narrow, Record(record.num_paths, record.num_outputs, wide, mean, origin, record.requires_grad)


def inner_points(x: Tensor, transform: Transform | None, domain: Tensor | None) -> Tensor:
    """Points `[1 or s, n, d]` in a model's own space, checked against the domain of its features."""
    inner = x if transform is None else transform(x)
    if domain is None or not x.shape[1]:
        return inner
    slack = 1e-6 * (domain[1] - domain[0])
    outside = ((inner < domain[0] - slack) | (inner > domain[1] + slack)).any(-1, keepdim=True)
    if transformed():  # there are no numbers to look at yet
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


class Recorded(Protocol):
    """What may be in a graph, or not."""

    requires_grad: bool


R = TypeVar("R", bound=Recorded)


class Recorder(Generic[M, R]):
    """The record of each module, made by `make` when first asked for, and again when the module's tensors change.

    The one place where something is kept that follows from tensors. A record in a graph, or under a transform of
    torch.func that the module itself belongs to, is made for every call.
    """

    def __init__(self, make: Callable[Concatenate[M, ...], R]) -> None:
        self.make = make
        self.made: WeakKeyDictionary[M, tuple[R, list[Source]]] = WeakKeyDictionary()

    def __call__(self, module: M, *more: object) -> R:
        """The record of a module; `make` is given `more`, which must follow from the module."""
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


# A tensor of a module as it was: where it is kept, its version (an inference tensor has none), and whether in a graph.
Source = tuple[dict[str, Tensor | None], str, Tensor, int | None, bool]


def _unchanged(sources: list[Source]) -> bool:
    """Whether tensors are still those of the module, with the same numbers, and as before in a graph or not.

    A parent module that is moved moves them in place; an optimiser writes into them.
    """
    for owner, name, tensor, version, in_graph in sources:  # a plain loop: this is in every call's way
        if owner.get(name) is not tensor or tensor.requires_grad is not in_graph:
            return False
        if version is not None and tensor._version != version:
            return False
    return True
