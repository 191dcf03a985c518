"""How kernels compose: Scaled, Sum, Product, OnDims, Coregional. The compositions nest without limit."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_tensor, positive
from ..core.modes import transformed
from ..core.own_function import as_features
from ..core.value import Parts, Value, shown
from .base import Kernel, RadialPart, SpectralMeasure, Term
from .composed_measures import Embedded, Mixture

__all__ = ["Coregional", "OnDims", "Product", "Scaled", "Sum"]


class Around(Kernel):
    """A kernel that is linear in one other, its `kernel`."""

    kernel: Kernel

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        return [(B, self.replaced(kernel=k)) for B, k in self.kernel.coupled()]


class Scaled(Around):
    """The kernel outputscale * k.

    >>> from matheron import kernels
    >>> (2.0 * kernels.RBF())([[0.0]], [[0.0]])
    tensor([[2.]], dtype=torch.float64)
    """

    units: ClassVar = {"outputscale": "y^2"}

    def __init__(self, kernel: Kernel, outputscale: ArrayLike) -> None:
        super().__init__(outputscale=positive(outputscale, "outputscale", zero=True, max_ndim=0))
        self.kernel = kernel

    def __repr__(self) -> str:
        return f"{shown(self.outputscale)} * {_factor(self.kernel)}"

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        K = self.kernel.forward(x, z)
        kept = K.requires_grad or self.outputscale.requires_grad or transformed()
        return K * self.outputscale if kept else _own(K).mul_(self.outputscale)

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, dK = self.kernel.with_gradient(x, z)
        return K * self.outputscale, dK * self.outputscale

    def weighted_with_gradient(self, x: Tensor, z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        return self.kernel.weighted_with_gradient(x, z, W * self.outputscale)

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        return self.kernel.derivative(x, z, left, right) * self.outputscale

    def diag(self, x: Tensor) -> Tensor:
        return self.kernel.diag(x) * self.outputscale

    def terms(self, input_dim: int) -> list[Term]:
        terms = self.kernel.terms(input_dim)
        return [replace(term, variance=term.variance * self.outputscale) for term in terms]

    def radial_parts(self, input_dim: int) -> list[RadialPart] | None:
        scale, parts = self.outputscale, self.kernel.radial_parts(input_dim)
        return parts and [replace(p, scale=scale if p.scale is None else scale * p.scale) for p in parts]


class _Composite(Kernel):
    """Base of `Sum` and `Product`: nested operands of the same kind are flattened."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        parts = [p for k in kernels for p in (k.parts if type(k) is type(self) else [k])]
        outputs = {p.num_outputs for p in parts} - {1}
        if len(outputs) > 1:
            raise ValueError(f"expected kernels that couple the same outputs, got {sorted(outputs)} of them")
        self.parts = Parts(parts)

    def operands(self) -> list[tuple[str, Kernel]]:
        return [(f"parts.{i}.", part) for i, part in enumerate(self.parts)]


class Sum(_Composite):
    """The sum of kernels, k_1 + k_2 + ...

    >>> from matheron import kernels
    >>> (kernels.RBF() + kernels.Constant(1.0))([[0.0]], [[0.0]])
    tensor([[2.]], dtype=torch.float64)
    """

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return _accumulate((k.forward(x, z) for k in self.parts), torch.Tensor.add_, torch.add)

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, dK = zip(*(k.with_gradient(x, z) for k in self.parts), strict=True)
        return reduce(torch.add, K), reduce(torch.add, dK)

    def weighted_with_gradient(self, x: Tensor, z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = zip(*(k.weighted_with_gradient(x, z, W) for k in self.parts), strict=True)
        return reduce(torch.add, value), reduce(torch.add, gradient)

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        return reduce(torch.add, (k.derivative(x, z, left, right) for k in self.parts))

    def diag(self, x: Tensor) -> Tensor:
        return reduce(torch.add, (k.diag(x) for k in self.parts))

    def terms(self, input_dim: int) -> list[Term]:
        return [term for k in self.parts for term in k.terms(input_dim)]

    def radial_parts(self, input_dim: int) -> list[RadialPart] | None:
        several = [k.radial_parts(input_dim) for k in self.parts]
        return None if any(parts is None for parts in several) else [p for parts in several for p in parts or []]

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        return [pair for k in self.parts for pair in k.coupled()] if self.num_outputs > 1 else [(None, self)]


class Product(_Composite):
    """The product of kernels, k_1 * k_2 * ...

    >>> from matheron import kernels
    >>> (kernels.RBF() * kernels.Linear())([[2.0]], [[2.0]])
    tensor([[4.]], dtype=torch.float64)
    """

    def __repr__(self) -> str:
        return " * ".join(map(_factor, self.parts))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return _accumulate((k.forward(x, z) for k in self.parts), torch.Tensor.mul_, torch.mul)

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, dK = self.parts[0].with_gradient(x, z)
        for k in list(self.parts)[1:]:
            other, d_other = k.with_gradient(x, z)
            K, dK = K * other, dK * other + K * d_other
        return K, dK

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Leibniz's rule: each direction differentiates one of the factors, in all ways."""
        first, *rest = self.parts
        others = rest[0] if len(rest) == 1 else Product(*rest)
        total = None
        for mine in itertools.product((True, False), repeat=len(left) + len(right)):
            of_first, of_others = (
                (_where(left, mine[: len(left)], which), _where(right, mine[len(left) :], which))
                for which in (True, False)
            )
            part = first.derivative(x, z, *of_first) * others.derivative(x, z, *of_others)
            total = part if total is None else total + part
        assert total is not None
        return total

    def diag(self, x: Tensor) -> Tensor:
        return reduce(torch.mul, (k.diag(x) for k in self.parts))

    def terms(self, input_dim: int) -> list[Term]:
        factors = [k.terms(input_dim) for k in self.parts]
        # the sums of stationary kernels become mixtures, because there are too many products to multiply out
        if math.prod(map(len, factors)) > 64:
            factors = [_gathered(terms) for terms in factors]
        return [reduce(operator.mul, terms) for terms in itertools.product(*factors)]

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        if self.num_outputs == 1:
            return [(None, self)]
        pairs = []
        for combination in itertools.product(*(k.coupled() for k in self.parts)):
            couplings = [B for B, _ in combination if B is not None]
            pairs.append((reduce(torch.mul, couplings) if couplings else None, Product(*(k for _, k in combination))))
        return pairs


class OnDims(Around):
    """The kernel k of the coordinates `dims` of x.

    >>> from matheron import kernels
    >>> kernels.Linear().on([1])([[5.0, 2.0]], [[7.0, 2.0]])
    tensor([[4.]], dtype=torch.float64)
    """

    fields = ("dims",)

    def __init__(self, kernel: Kernel, dims: list[int]) -> None:
        super().__init__()
        try:
            dims = [operator.index(i) for i in dims]
        except TypeError:
            raise TypeError(f"dims: expected whole numbers, got {dims}") from None
        if not dims or min(dims) < 0 or len(set(dims)) != len(dims):
            raise ValueError(f"dims: expected different whole numbers from 0, at least one, got {dims}")
        self.kernel, self.dims = kernel, dims

    def __repr__(self) -> str:
        whole = f"({self.kernel!r})" if isinstance(self.kernel, Scaled | _Composite) else repr(self.kernel)
        return f"{whole}.on({self.dims})"

    def _check(self, input_dim: int) -> None:
        if max(self.dims) >= input_dim:
            raise ValueError(f"dims: expected coordinates below {input_dim}, the points' dimension, got {self.dims}")

    def _part(self, x: Tensor) -> Tensor:
        self._check(x.shape[-1])
        return x[..., self.dims]

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        part = self._part(x)
        return self.kernel.forward(part, part if z is x else self._part(z))

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        K, part = self.kernel.with_gradient(self._part(x), self._part(z))
        dK = K.new_zeros(x.shape[-1], *K.shape)
        dK[self.dims] = part
        return K, dK

    def weighted_with_gradient(self, x: Tensor, z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        value, part = self.kernel.weighted_with_gradient(self._part(x), self._part(z), W)
        gradient = value.new_zeros(*value.shape, x.shape[-1])
        gradient[..., self.dims] = part
        return value, gradient

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        u, v = ([w[:, self.dims] for w in each] for each in (left, right))
        return self.kernel.derivative(self._part(x), self._part(z), u, v)

    def smoothness(self, input_dim: int) -> list[float]:
        inner = self.kernel.smoothness(len(self.dims))
        return [inner[self.dims.index(i)] if i in self.dims else math.inf for i in range(input_dim)]

    def diag(self, x: Tensor) -> Tensor:
        return self.kernel.diag(self._part(x))

    def terms(self, input_dim: int) -> list[Term]:
        self._check(input_dim)
        index = torch.tensor([*self.dims, input_dim], device="cpu")
        found = []
        for term in self.kernel.terms(len(self.dims)):
            forms = tuple(c.new_zeros(input_dim + 1).index_copy(0, index.to(c.device), c) for c in term.forms)
            on = {name: tuple(k.on(self.dims) for k in getattr(term, name)) for name in ("stationary", "own")}
            found.append(replace(term, forms=forms, **on))
        return found

    def nearest(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[..., self.dims] = self.kernel.nearest(self._part(x))
        return x

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        return FeaturesOnDims(self.kernel.features(num_features, generator), self.dims)

    def measure(self, input_dim: int) -> SpectralMeasure:
        self._check(input_dim)
        return Embedded(self.kernel.measure(len(self.dims)), self.dims, input_dim)

    def radial_parts(self, input_dim: int) -> list[RadialPart] | None:
        parts = self.kernel.radial_parts(len(self.dims))
        return parts and [replace(p, dims=[self.dims[i] for i in p.dims]) for p in parts]

    def axis_factors(self, input_dim: int) -> list[list[Kernel]] | None:
        inner = self.kernel.axis_factors(len(self.dims))
        return inner and [inner[self.dims.index(i)] if i in self.dims else [] for i in range(input_dim)]

    def inner_dims(self, dims: list[int]) -> list[int]:
        return [dims[i] for i in self.dims]

    def active_dims(self, input_dim: int) -> list[int]:
        return [self.dims[i] for i in self.kernel.active_dims(len(self.dims))]


class FeaturesOnDims(Value):
    """phi(x[..., dims]), of a map phi from points to features."""

    fields = ("dims",)

    def __init__(self, phi: Callable[[Tensor], Tensor], dims: list[int]) -> None:
        super().__init__(phi=as_features(phi))
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return self.phi(x[..., self.dims])


class Coregional(Kernel):
    """The kernel k((x, i), (x', j)) = B[i, j] k(x, x') of t outputs, with B `[t, t]` positive semi-definite.

    A sum of several is a linear model of coregionalisation. A kernel of one output in such a sum is shared by all
    outputs (its B is all ones). `coupled_covariance` computes the covariance between given outputs, and paths have
    values `[..., t]`.

    >>> from matheron import kernels
    >>> kernels.Coregional(kernels.RBF(), [[1.0, 0.9], [0.9, 1.0]]).num_outputs
    2
    """

    units: ClassVar = {"B": "y^2"}

    def __init__(self, kernel: Kernel, B: ArrayLike) -> None:
        super().__init__()
        B = as_tensor(B, "B").double().clone()
        if B.ndim != 2 or B.shape[0] != B.shape[1]:
            raise ValueError(f"B: expected a square matrix [t, t], got shape {list(B.shape)}")
        if len(B) < 2:
            raise ValueError(
                f"B: expected at least two outputs, got {B.tolist()}; for one output, scale the kernel: 2.0 * k"
            )
        if not torch.allclose(B, B.mT, rtol=1e-6, atol=1e-9):
            raise ValueError("B: expected a symmetric matrix; B = W W^T + diag(kappa) is one")
        smallest = torch.linalg.eigvalsh(B.detach()).min().item()
        if smallest < -1e-8 * B.detach().diagonal().max().clamp_min(1.0).item():
            raise ValueError(
                f"B: expected a positive semi-definite matrix, got a smallest eigenvalue of {smallest:.4g}"
            )
        if kernel.num_outputs > 1:
            raise ValueError("kernel: expected a kernel of one output, got several; multiply two Coregional kernels")
        self.kernel = kernel
        self.register_buffer("B", B)

    def forward(self, x: Tensor, z: Tensor | None = None) -> NoReturn:
        raise TypeError(
            "a Coregional kernel needs the outputs of its points: call coupled_covariance(kernel, Sites(x, i), "
            "Sites(z, j))"
        )

    with_gradient = diag = forward

    def terms(self, input_dim: int) -> list[Term]:
        return [replace(term, coupling=self.B) for term in self.kernel.terms(input_dim)]

    @property
    def num_outputs(self) -> int:
        return self.B.shape[0]

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        return [(self.B, self.kernel)]


def root_of(B: Tensor | None, num_outputs: int) -> Tensor:
    """Compute a root R `[t, t]` of a coupling of several outputs, R R^T = B; None is a B of ones."""
    if B is None:
        return torch.nn.functional.pad(
            torch.ones(num_outputs, 1, dtype=torch.float64, device="cpu"), (0, num_outputs - 1)
        )
    smallest = 64 * len(B) * torch.finfo(B.dtype).eps * B.detach().diagonal().max()
    factor, failed = torch.linalg.cholesky_ex(B)
    regular = not bool(failed) and bool(factor.detach().diagonal().square().min() > smallest)
    return factor if regular else _singular_root(B, smallest)


def _singular_root(B: Tensor, smallest: Tensor) -> Tensor:
    """Compute the Cholesky factor of a singular B column by column. A pivot of zero, up to rounding, has a zero column.

    A root by eigenvectors would have no derivative, since the eigenvalue zero may be repeated.
    """
    left, columns = B, []
    for i, row in enumerate(torch.eye(len(B), dtype=B.dtype, device=B.device)):
        pivot = left[i, i]
        columns.append(left[:, i] / pivot.sqrt() if bool(pivot > smallest) else 0 * row)
        left = left - columns[-1][:, None] * columns[-1]
    return torch.stack(columns, dim=1)


class _MixtureKernel(Sum):
    """sum_q p_q k_q with the p_q summing to one, seen as one stationary kernel: its measure is a mixture."""

    def __init__(self, terms: list[Term], total: Tensor) -> None:
        super().__init__(*(Scaled(Product(*t.stationary), t.variance / total) for t in terms))

    def measure(self, input_dim: int) -> SpectralMeasure:
        terms = [Term(k.outputscale, stationary=tuple(k.kernel.parts)) for k in self.parts]
        return Mixture(torch.stack([t.variance for t in terms]), [t.measure(input_dim) for t in terms])


def _factor(kernel: Kernel) -> str:
    return f"({kernel!r})" if isinstance(kernel, Sum) else repr(kernel)


def _gathered(terms: list[Term]) -> list[Term]:
    """Combine the terms that are only stationary into one mixture. The sum of the terms stays the same."""
    plain, others = [], []
    for t in terms:
        (plain if t.stationary and not (t.forms or t.own) and t.coupling is None else others).append(t)
    if len(plain) < 2:
        return terms
    total = torch.stack([t.variance for t in plain]).sum()
    return [Term(total, stationary=(_MixtureKernel(plain, total),)), *others]


def _where(directions: Sequence[Tensor], mine: Sequence[bool], which: bool) -> list[Tensor]:
    return [u for u, own in zip(directions, mine, strict=True) if own is which]


def _own(K: Tensor) -> Tensor:
    """Return a copy of K if its entries share memory: the matrix of a `Constant` may be one number that is expanded."""
    return K.clone() if 0 in K.stride() else K


def _accumulate(matrices, in_place, out_of_place) -> Tensor:
    total = None
    for K in matrices:
        if total is None:
            total = K
        elif total.requires_grad or K.requires_grad or transformed():
            total = out_of_place(total, K)
        else:
            total = in_place(_own(total), K)
    assert total is not None
    return total
