"""The flattening of functions: how each class of functions, bases, kernels, means and transforms is represented in a
plain module.

Each step is a function with a rule for each class (`Rules`). A class without a rule is refused, with the reason and an
alternative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from .. import kernels
from ..core.checks import per_dimension
from ..core.jacobian import jacobian
from ..core.own_function import OwnFunction
from ..core.value import Parts, Value
from ..evaluate import (
    Basis,
    Canonical,
    CanonicalSlopes,
    Cosines,
    Float64Term,
    Pairs,
    PathTerm,
    Products,
    Record,
    WeightedSum,
)
from ..features.own import MappedBasis
from ..kernels import Kernel, own
from ..kernels.covariances import Averaged
from ..kernels.spatial import rotation
from ..lattice.basis import Lattice
from ..models import means, transforms
from ..models.means import Mean
from ..models.transforms import Transform
from ..paths import (
    AbstractFunctions,
    Composition,
    EnsemblePaths,
    LinearCombination,
    Mapped,
    OutputPaths,
    PartialDerivatives,
    PointwiseProduct,
    PosteriorMean,
    SelectedPaths,
    Selection,
    Stack,
)
from ..paths.algebra import Combined, Elementwise
from . import module
from .module import FunctionModule

T = TypeVar("T")
V = TypeVar("V", bound=Value)


class Rules(Generic[T]):
    """A function of things by their class. The function itself says what to do with classes that have no rule.

    The rule of a base class does not apply to its subclasses, which may compute something else.
    """

    def __init__(self, refuse: Callable[..., T]) -> None:
        self.refuse, self.known = refuse, dict[type, Callable[..., T]]()
        self.__doc__ = refuse.__doc__

    def of(self, kind: type) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Adds the rule for a class: a decorator."""

        def add(rule: Callable[..., T]) -> Callable[..., T]:
            self.known[kind] = rule
            return rule

        return add

    def __call__(self, thing: Any, *more: Any) -> T:
        return self.known.get(type(thing), self.refuse)(thing, *more)


# For a larger nu, the kernel is nearly an RBF, and its recurrence is long.
_LARGEST_NU = 20.5
_ONE = torch.ones((), dtype=torch.float64, device="cpu")


@torch.no_grad()
def to_module(functions: AbstractFunctions) -> FunctionModule:
    """Convert functions to a plain torch module, see `AbstractFunctions.to_module`."""
    sizes = functions.num_paths, functions.num_outputs, functions.input_dim
    return FunctionModule(flattened(functions), *sizes, str(functions.dtype).removeprefix("torch.")).eval()


@Rules
def flattened(functions: AbstractFunctions) -> nn.Module:
    """Make a module from points to values `[s, n, t]` for functions that are made of records, side by side."""
    records = functions._records()
    if records is None:
        raise TypeError(
            f"{type(functions).__name__}: expected functions that are sums of waves and of functions k(., z), or "
            "ensembles and outputs of such; take apart what they are made of, and combine the modules of the parts"
        )
    models = [_model(record) for record in records]
    return models[0] if len(models) == 1 else module.SideBySideModule(models)


@flattened.of(PartialDerivatives)
def _(functions: PartialDerivatives) -> nn.Module:
    """A model for each coordinate, with the outputs of the function in the order that theirs are in."""
    records, t = functions.by_coordinate(), functions.functions[0].num_outputs
    if records is None:
        raise TypeError(
            "PartialDerivatives: those of monomials, and of what is made of several functions, do not travel; take the "
            "module of the function itself, and differentiate that: torch.func.jacrev, or value_and_grad of "
            "matheron_portable"
        )
    models = module.SideBySideModule([_model(record) for record in records])
    order = torch.arange(t * len(records), device=functions.device).reshape(-1, t).mT.reshape(-1)
    return nn.Sequential(models, module.SelectedModule(order))


def _parts(functions: Combined) -> list[nn.Module]:
    """The functions of which a combination is made."""
    return [flattened(each) for each in _of_one_dtype(functions.functions)]


def _of_one_dtype(functions: Iterable[AbstractFunctions]) -> list[AbstractFunctions]:
    """Functions in one dtype: a module is of one."""
    parts = list(functions)
    if len({each.dtype for each in parts}) > 1:
        raise TypeError("to_module: expected functions of one dtype to be combined; move some with .to(dtype)")
    return parts


@flattened.of(OutputPaths)
@flattened.of(Stack)
def _(functions: Stack) -> nn.Module:
    return module.SideBySideModule(_parts(functions))


@flattened.of(LinearCombination)
def _(functions: LinearCombination) -> nn.Module:
    records = functions._records()
    if records is not None:  # the functions are one sum of waves and of functions k(., z)
        return _model(records[0])
    return module.SumModule(_parts(functions), functions.weights, functions.level)


@flattened.of(PointwiseProduct)
def _(functions: PointwiseProduct) -> nn.Module:
    return module.ProductModule(_parts(functions))


@flattened.of(Mapped)
def _(functions: Mapped) -> nn.Module:
    function, (part,), t = functions.function, _parts(functions), functions.functions[0].num_outputs
    if isinstance(function, Elementwise):
        return nn.Sequential(part, module.MappedModule(function.name, function.arguments))
    if isinstance(function, OwnFunction):
        return nn.Sequential(part, module.CalledModule(function.owned(), t > 1))
    return nn.Sequential(part, *maps(function, t, functions._origin))


@flattened.of(Composition)
def _(functions: Composition) -> nn.Module:
    inner, outer = _of_one_dtype([*functions.functions, functions.outer])
    return nn.Sequential(flattened(inner), flattened(outer))


@flattened.of(PosteriorMean)
def _(functions: PosteriorMean) -> nn.Module:
    """The mean of one model, or the combination of the means of the parts."""
    (paths,), records = functions.functions, functions._records()
    if records is not None:
        return _model(records[0])
    if isinstance(paths, Stack):
        return module.SideBySideModule(_means(functions, paths.functions))
    if isinstance(paths, Selection):
        return nn.Sequential(*_means(functions, paths.functions), module.SelectedModule(paths.outputs))
    if isinstance(paths, LinearCombination):
        return module.SumModule(_means(functions, paths.functions), paths.weights, paths.level)
    if isinstance(paths, EnsemblePaths) and not functions.own:
        shares = paths.owner.bincount().to(functions.dtype) / paths.num_paths
        return module.SumModule(_means(functions, paths.members), shares[:, None, None], shares.new_zeros(1, 1))
    raise TypeError(f"PosteriorMean: that of {type(paths).__name__} cannot travel; average the module of the functions")


def _means(functions: PosteriorMean, parts: Iterable[AbstractFunctions]) -> list[nn.Module]:
    """The posterior means of the parts, repeated for each function."""
    means = [PosteriorMean(part) for part in _of_one_dtype(parts)]
    return [flattened(mean if mean.own else mean[[0] * functions.count]) for mean in means]


@flattened.of(EnsemblePaths)
def _(functions: EnsemblePaths) -> nn.Module:
    members = [flattened(member) for member in functions.members]
    counts = [member.num_paths for member in functions.members]
    return module.EnsembleModule(members, functions.owner.argsort(stable=True), counts)


@flattened.of(SelectedPaths)
@flattened.of(Selection)
def _(functions: Selection) -> nn.Module:
    return nn.Sequential(*_parts(functions), module.SelectedModule(functions.outputs))


def _model(record: Record) -> nn.Module:
    """The paths of one model, between its transforms."""
    s, t, d, origin = record.num_paths, record.num_outputs, record.input_dim, record.origin
    mean = affine(record.mean, d)
    slope, level = mean or (origin.new_zeros(d, 1), origin.new_zeros(1))  # [d, t or 1], [t or 1]
    constants = torch.cat([slope.mT.expand(t, d), level[:, None].expand(t, 1)], dim=1).to(origin).repeat(s, 1, 1)
    terms = []
    for term in record.terms:
        for part in _terms(term):
            if isinstance(part, module.TermModule):
                terms.append(part)
            else:  # a constant of each path, [s, t]
                constants[..., -1] += part.to(constants)
    if bool(constants.any()) or not terms:
        one = torch.eye(d + 1, dtype=origin.dtype, device=origin.device)
        terms.append(module.WavesModule(constants[None], projections=one[None, None]))
    domain = record.domain
    if domain is not None:  # with the same slack as `evaluate.inner_points`
        slack = 1e-6 * (domain[1] - domain[0])
        domain = torch.stack([domain[0] - slack, domain[1] + slack])
    model = module.ModelModule(terms, domain, as_it_is(record.mean) if mean is None else None)
    inward = None if record.input_transform is None else record.input_transform.input_dim(d)
    inner = maps(record.input_transform, inward or d, origin)
    outer = maps(record.output_transform, t, origin)
    return nn.Sequential(*inner, model, *outer) if inner or outer else model


# Terms: each is a basis with its weights.


def _terms(term: PathTerm) -> list[module.TermModule | Tensor]:
    """A term of a record as parts of a module, and constants `[s, t]` of the paths."""
    term = term.term if isinstance(term, Float64Term) else term
    if not isinstance(term, WeightedSum):
        raise TypeError(f"{type(term).__name__}: expected a weighted sum of basis functions")
    return of_basis(term.basis, term)


@Rules
def of_basis(basis: Basis, term: WeightedSum) -> list[module.TermModule | Tensor]:
    """A weighted sum of a basis's functions as terms of a module."""
    raise TypeError(
        f"{type(basis).__name__}: these functions are computed by code of their own, which cannot travel; draw with "
        'Fourier features (features="leverage" or "sobol") of a kernel that has a spectrum, or evaluate here'
    )


@of_basis.of(Pairs)
def _(basis: Pairs, term: WeightedSum) -> list[module.TermModule | Tensor]:
    weights, *where = _arranged(term)
    return [module.WavesModule(weights, _origin(term), basis.frequencies, None, None, *where)]


@of_basis.of(Cosines)
def _(basis: Cosines, term: WeightedSum) -> list[module.TermModule | Tensor]:
    weights, *where = _arranged(term)
    return [module.WavesModule(weights, _origin(term), basis.frequencies, basis.phases, None, *where)]


@of_basis.of(Products)
def _(basis: Products, term: WeightedSum) -> list[module.TermModule | Tensor]:
    weights, *where = _arranged(term)
    waves = basis.fourier
    cosines = (None, None, None) if waves is None else (_origin(term), waves.frequencies, waves.phases)
    return [module.WavesModule(weights, *cosines, basis.projections, *where)]


@of_basis.of(MappedBasis)
def _(basis: MappedBasis, term: WeightedSum) -> list[module.TermModule | Tensor]:
    """Features by code of one's own, which torch can trace, or says why not."""
    weights, *where = _arranged(term)
    origin = _origin(term) - basis.origin  # maps take the points themselves, not their differences from an origin
    return [module.FeaturesModule(weights, origin, [phi.owned() for phi in basis.maps], *where)]


@of_basis.of(Lattice)
def _(basis: Lattice, term: WeightedSum) -> list[module.TermModule | Tensor]:
    """The modes of a lattice as waves, with frequencies in float64, since a mode multiplies the errors of phases."""
    h, W, origin = basis.num_pairs, term.weights, _origin(term)
    exact = basis.mapped(lambda b: b.double()).pairs(0, h, len(origin))
    return [module.WavesModule(W[None, ..., : 2 * h], origin, exact.frequencies), W[..., 2 * h]]


@of_basis.of(CanonicalSlopes)
def _(basis: CanonicalSlopes, term: WeightedSum) -> list[module.TermModule | Tensor]:
    """sum_j v_j times derivatives of k(., z_j): a term for each product of which the kernel is a sum."""
    return _centred(basis.kernel, basis.centres, term.weights, basis.left, basis.directions.transpose(0, 1))


@of_basis.of(Canonical)
def _(basis: Canonical, term: WeightedSum) -> list[module.TermModule | Tensor]:
    """sum_j v_j k(., z_j)."""
    Z = basis.centres
    return _centred(basis.kernel, Z, term.weights, Z[:0], Z[None, :0][:0])


def _centred(
    kernel: Kernel, Z: Tensor, weights: Tensor, left: Tensor, right: Tensor
) -> list[module.TermModule | Tensor]:
    """A term for each product of which the kernel is a sum."""
    parts: list[module.TermModule | Tensor] = []
    slopes = len(left) + len(right) > 0
    for product in products(kernel, Z.shape[1]):
        W = weights * product.scale.to(weights)  # [s, t, c]
        if product.factors:
            factors = [_factor(shape, Z, slopes) for shape in _merged(product.factors)]
            parts.append(module.CentredModule(W[None], Z, left, right, factors))
        elif not slopes:  # a product without factors is constant
            parts.append(W.sum(-1))
    return parts


def _origin(term: WeightedSum) -> Tensor:
    if term.origin is None:
        basis = term.basis
        d = len(basis.origin) if isinstance(basis, MappedBasis) else basis.frequencies.shape[-1]
        return term.weights.new_zeros(d)
    return term.origin


def _arranged(term: WeightedSum) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The weights of the paths of each version of a basis `[g, m, t, c]`, which paths these are, and where each is."""
    W, g = term.weights, term.basis.num_bases
    if term.shared or term.index is None:
        return W[None], None, None
    counts = torch.bincount(term.index, minlength=g)
    order, m = term.index.argsort(stable=True), int(counts.max())
    version = term.index[order]
    # the place of each path among the paths of its version
    row = torch.arange(len(W), device=W.device) - (counts.cumsum(0) - counts)[version]
    weights, members = W.new_zeros(g, m, *W.shape[1:]), order.new_zeros(g, m)
    weights[version, row], members[version, row] = W[order], order
    return weights, members, torch.empty_like(order).scatter_(0, order, version * m + row)


# Kernels: each is a sum of products of profiles.


@dataclass
class ProfileShape:
    """A factor of a kernel before it has centres: `module.FactorModule`, with A `[a, d]`, B `[b, d]`, r `[b]`.

    Where it is not stationary points are taken about zero; else about one of the centres.
    """

    profile: str
    A: Tensor
    B: Tensor
    r: Tensor
    number: float = 0.0
    power: int = 1
    stationary: bool = True

    def moved(self, M: Tensor) -> ProfileShape:
        """The factor of points x of which M x, `[e, d]`, are those of this one."""
        return replace(self, A=self.A @ M, B=self.B @ M)


@dataclass
class KernelProduct:
    """scale times a product of factors."""

    scale: Tensor
    factors: list[Shape] = field(default_factory=list)

    def __mul__(self, other: KernelProduct) -> KernelProduct:
        return KernelProduct(self.scale * other.scale, [*self.factors, *other.factors])


@dataclass
class OwnShape:
    """A factor of user code, of points M x: M `[e, d]`, None for the identity."""

    kernel: Kernel
    M: Tensor | None = None
    profile: ClassVar[str] = "own"

    def moved(self, M: Tensor) -> OwnShape:
        """The factor of points x of which M x, `[e, d]`, are those of this one."""
        return OwnShape(self.kernel, M if self.M is None else self.M @ M)


Shape = ProfileShape | OwnShape


@Rules
def products(kernel: Kernel, d: int) -> list[KernelProduct]:
    """The kernel of points in d dimensions as a sum of products, in float64."""
    writer = next(kind for kind in type(kernel).__mro__ if "forward" in vars(kind))
    # a user's code; torch traces it, or raises an error with the reason
    if not writer.__module__.startswith("matheron."):
        return _by_its_code(kernel, d)
    raise TypeError(
        f"{type(kernel).__name__}: its covariance is computed by code of its own, which cannot travel; kernels that do "
        "are RBF, Matern with nu = 1/2, 3/2, ..., RationalQuadratic, Spherical, Periodic, Cosine, SpectralMixture, "
        "Categorical, Linear, Polynomial and Constant, with their sums, products, .on(dims) and Rotated; and kernels "
        "of your own that have a `forward` of their own"
    )


@products.of(own.FeatureKernel)
@products.of(own.CallableKernel)
@products.of(kernels.Downsampling)
@products.of(kernels.ExponentialDecay)
@products.of(kernels.LinearTruncated)
def _by_its_code(kernel: Kernel, d: int) -> list[KernelProduct]:
    return [KernelProduct(_ONE, [OwnShape(kernel)])]


@products.of(Averaged)
def _(kernel: Averaged, d: int) -> list[KernelProduct]:
    raise TypeError(
        "averages over boxes with covariances in closed form do not travel; give the paths sums over points in place "
        "of them: observe.mean(lower, upper).by_nodes(4), 4 nodes along each side, or observe.combine(points, weights)"
    )


@products.of(kernels.Scaled)
def _(kernel: kernels.Scaled, d: int) -> list[KernelProduct]:
    return [KernelProduct(_number(kernel.outputscale) * p.scale, p.factors) for p in products(kernel.kernel, d)]


@products.of(kernels.Sum)
def _(kernel: kernels.Sum, d: int) -> list[KernelProduct]:
    return [product for part in kernel.parts for product in products(part, d)]


@products.of(kernels.Product)
def _(kernel: kernels.Product, d: int) -> list[KernelProduct]:
    each = [products(part, d) for part in kernel.parts]
    return [reduce(KernelProduct.__mul__, combination) for combination in itertools.product(*each)]


@products.of(kernels.OnDims)
def _(kernel: kernels.OnDims, d: int) -> list[KernelProduct]:
    M = torch.eye(d, dtype=torch.float64, device="cpu")[kernel.dims]  # [e, d]
    inner = products(kernel.kernel, len(kernel.dims))
    return [KernelProduct(p.scale, [shape.moved(M) for shape in p.factors]) for p in inner]


@products.of(kernels.Rotated)
def _(kernel: kernels.Rotated, d: int) -> list[KernelProduct]:
    R = rotation(kernel.angle, d)
    return [KernelProduct(p.scale, [shape.moved(R) for shape in p.factors]) for p in products(kernel.kernel, d)]


@products.of(kernels.Constant)
def _(kernel: kernels.Constant, d: int) -> list[KernelProduct]:
    return [KernelProduct(_number(kernel.value))]


@products.of(kernels.RBF)
def _(kernel: kernels.RBF, d: int) -> list[KernelProduct]:
    return _one("rbf", _each(1 / kernel.lengthscale, d))


@products.of(kernels.Matern)
def _(kernel: kernels.Matern, d: int) -> list[KernelProduct]:
    p = kernel.nu - 0.5
    if p != int(p) or kernel.nu > _LARGEST_NU:
        raise TypeError(
            f"Matern(nu={kernel.nu:g}): its Bessel function cannot travel; expected nu = 1/2, 3/2, 5/2, ... up to "
            f"{_LARGEST_NU:g}, whose profiles are polynomials times exponentials"
        )
    return _one("matern", _each(math.sqrt(2 * kernel.nu) / kernel.lengthscale, d), power=int(p))


@products.of(kernels.RationalQuadratic)
def _(kernel: kernels.RationalQuadratic, d: int) -> list[KernelProduct]:
    return _one("rational_quadratic", _each(1 / kernel.lengthscale, d), number=float(kernel.alpha))


@products.of(kernels.Spherical)
def _(kernel: kernels.Spherical, d: int) -> list[KernelProduct]:
    return _one("spherical", _each(1 / kernel.lengthscale, d))


@products.of(kernels.Periodic)
def _(kernel: kernels.Periodic, d: int) -> list[KernelProduct]:
    """exp(-|E(x) - E(x')|^2 / 2) on circles: 4 sin^2(turn / 2) is the squared length of a chord."""
    return _one("rbf", B=_each(2 * math.pi / kernel.period, d), r=_numbers(1 / kernel.lengthscale, d))


@products.of(kernels.Cosine)
def _(kernel: kernels.Cosine, d: int) -> list[KernelProduct]:
    """cos(a - b) is an inner product on the circle."""
    return _one("dot", B=_each(2 * math.pi / kernel.period, d))


@products.of(kernels.SpectralMixture)
def _(kernel: kernels.SpectralMixture, d: int) -> list[KernelProduct]:
    sums = []
    for w, mu, s in zip(kernel.weights, kernel.means, kernel.scales, strict=True):
        envelope = _one("rbf", _each(2 * math.pi * s, d))[0]
        wave = _one("dot", B=2 * math.pi * _number(mu)[None])[0]
        sums.append(KernelProduct(_number(w)) * envelope * wave)
    return sums


@products.of(kernels.Categorical)
def _(kernel: kernels.Categorical, d: int) -> list[KernelProduct]:
    """D(r) is the mean of the cosines 2 pi h r / m for h = -(m - 1) / 2 .. (m - 1) / 2."""
    m, whole = kernel._odd, KernelProduct(_ONE)
    h = torch.arange(1, m // 2 + 1, dtype=torch.float64, device="cpu")
    for i, a in enumerate(torch.exp(-1 / _numbers(kernel.lengthscale, d))):
        B = torch.zeros(len(h), d, dtype=torch.float64, device="cpu")
        B[:, i] = 2 * math.pi * h / m
        r = ((1 - a) * 2 / m).sqrt().expand(len(h))
        whole = whole * _one("dot", B=B, r=r, number=float(a + (1 - a) / m))[0]
    return [whole]


@products.of(kernels.Linear)
def _(kernel: kernels.Linear, d: int) -> list[KernelProduct]:
    return _one("dot", _numbers(kernel.variance, d).sqrt().diag(), stationary=False)


@products.of(kernels.Polynomial)
def _(kernel: kernels.Polynomial, d: int) -> list[KernelProduct]:
    A = torch.eye(d, dtype=torch.float64, device="cpu")
    return _one("dot", A, number=float(kernel.offset), power=kernel.degree, stationary=False)


def _number(value: Tensor) -> Tensor:
    return value.detach().double().cpu()


def _numbers(value: Tensor, d: int) -> Tensor:
    """One number for each dimension."""
    return per_dimension(_number(value), d, "hyperparameter")


def _each(scale: Tensor, d: int) -> Tensor:
    """The matrix `[d, d]` that scales each coordinate."""
    return _numbers(scale, d).diag()


def _one(
    profile: str, A: Tensor | None = None, B: Tensor | None = None, r: Tensor | None = None, **more: Any
) -> list[KernelProduct]:
    """A kernel that is one factor."""
    given = [M for M in (A, B) if M is not None]
    none = given[0][:0]
    A, B = none if A is None else A, none if B is None else B
    shape = ProfileShape(profile, A, B, torch.ones_like(B[:, 0]) if r is None else r, **more)
    return [KernelProduct(_ONE, [shape])]


def _merged(shapes: list[Shape]) -> list[Shape]:
    """The same product with one RBF: exponents add, so all RBFs become one whose embeddings lie side by side."""
    normal = [shape for shape in shapes if isinstance(shape, ProfileShape) and shape.profile == "rbf"]
    if len(normal) < 2:
        return shapes
    A, B, r = (torch.cat([getattr(shape, name) for shape in normal]) for name in ("A", "B", "r"))
    return [replace(normal[0], A=A, B=B, r=r), *(shape for shape in shapes if shape.profile != "rbf")]


def _factor(shape: Shape, Z: Tensor, slopes: bool) -> nn.Module:
    """A factor of a kernel at centres `[c, d]`."""
    if isinstance(shape, ProfileShape):
        A = shape.A[shape.A.any(1)]  # coordinates that the profile does not depend on are dropped
        if not len(A) and not len(shape.B):  # the scale is zero, so the kernel is constant
            A = shape.A[:1]
        origin = Z[0] if shape.stationary else torch.zeros_like(Z[0])
        number = torch.tensor(shape.number, dtype=Z.dtype, device=Z.device)
        matrices = (matrix.to(Z) for matrix in (A, shape.B, shape.r))
        return module.FactorModule(shape.profile, shape.power, number, origin, *matrices)
    if slopes:
        raise TypeError(
            f"{type(shape.kernel).__name__}: slopes under kernels of your own do not travel; give the paths "
            "differences of values in place of slopes, observe.combine(points, weights)"
        )
    return module.OwnFactorModule(shape.kernel.to(Z.dtype).owned(), None if shape.M is None else shape.M.to(Z))


# Means and transforms: affine ones become matrices, and the others are parts of their own.


def maps(transform: Transform | None, d: int, like: Tensor) -> list[nn.Module]:
    """A transform of points in d dimensions as parts of a module, one after the other."""
    if transform is None:
        return []
    Mb, parts = affine(transform, d), _in_turn(transform)
    if Mb is not None:
        return [module.AffineModule(*(matrix.to(like) for matrix in Mb))]
    if len(parts) == 1:
        return [as_it_is(transform)]
    found = []
    for part in parts:
        found += maps(part, d, like)
        d = part(like.new_full((1, d), math.nan)).shape[-1]
    return found


def _in_turn(transform: Transform) -> list[Transform]:
    """The transforms of which a chain, its inverse or some coordinates of it consist."""
    if type(transform) is transforms.Chain:
        return [part for each in transform.transforms for part in _in_turn(each)]
    if type(transform) is transforms.Inverse:
        return [transforms.Inverse(part) for part in reversed(_in_turn(transform.transform))]
    if type(transform) is transforms.Masked:
        return [transforms.Masked(part, transform.mask) for part in _in_turn(transform.transform)]
    return [transform]


_AFFINE = {Parts, means.ConstantMean, means.LinearMean, means.Mixed, means.Stacked, transforms.Affine}
_AFFINE |= {transforms.Chain, transforms.Columns, transforms.Inverse, transforms.Masked, transforms.Projected}
_OTHERS = {OwnFunction, means.CallableMean, transforms.BoxCox, transforms.Exp, transforms.Imputed, transforms.Log}
_OTHERS |= {transforms.Kumaraswamy, transforms.Missing, transforms.Monomials, transforms.Network, transforms.OneHot}
_OTHERS |= {transforms.Power, transforms.Round, transforms.SignedExp, transforms.YeoJohnson}


def affine(part: Mean | Transform, d: int) -> tuple[Tensor, Tensor] | None:
    """M `[d, e]` and b `[e]` in float64 of a map x M + b of points in d dimensions; None of others."""
    if any(type(each) not in _AFFINE for each in part.modules()):
        return None
    b, slope = jacobian(part.to("cpu", torch.float64), torch.zeros(1, d, dtype=torch.float64, device="cpu"))
    return slope[0].mT, b[0]


def as_it_is(value: Mean | Transform) -> Mean | Transform:
    """A mean or a transform that is not affine, unchanged, as a part of a module: torch's operations without checks of
    points."""
    for part in value.modules():
        if type(part) not in _AFFINE | _OTHERS:
            raise TypeError(
                f"{type(part).__name__}: this code cannot travel; take the functions without it, and apply it to the "
                "points or to the values where they are used"
            )
    return _unchecked(value).owned()


def _unchecked(value: V) -> V:
    """A value whose parts do not look at points before they use them."""
    if isinstance(value, transforms.OneHot):
        return value.replaced(only_known=False)
    parts = {name: _unchecked(part) for name, part in value._modules.items() if isinstance(part, Value)}
    return value.replaced(**parts) if parts else value
