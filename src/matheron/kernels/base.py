"""Kernel: k(x, x'), its derivative, its diagonal, and what a finite basis is made from: terms and spectral measures."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from ..core.arena import empty, frame, weigh
from ..core.checks import ArrayLike, as_tensor, check_dim
from ..core.jacobian import derivative_of_pairs
from ..core.modes import transformed
from ..core.sites import Sites
from ..core.value import Value

if TYPE_CHECKING:
    from ..core.functionals import Observed
    from .algebra import OnDims
    from .radial import Radial

__all__ = ["Kernel", "SpectralMeasure", "Stationary", "coupled_covariance", "coupled_diagonal"]


class Kernel(Value):
    """A covariance function k(x, x') over points of R^d.

    `k(x, z)` is `[n, d], [m, d] -> [n, m]`; leading axes broadcast. Kernels compose: `k1 + k2`, `k1 * k2`, `2.0 * k`,
    `k / 2`, `k + 1`, `k ** 2`, `sum([k1, k2])`, `k.on([0, 2])`. Hyperparameters are float64 buffers until
    a draw fixes the dtype.

    A kernel of one's own defines `forward`, and states how its prior is represented. That is a spectrum (`terms`, or
    `measure` in subclasses of `Stationary` and `Radial`), or random features of its own (`features`).

    >>> from matheron import kernels
    >>> k = 2.0 * kernels.RBF(0.5) + kernels.Linear()
    >>> isinstance(k, kernels.Kernel), k([[0.0], [1.0]], [[0.0]]).shape
    (True, torch.Size([2, 1]))
    """

    # The units of the kernel's own tensors, by name: "x" (the unit of a column), "1/x", "y^2" (the square of the
    # targets' unit) or "y^2/x^2". A tensor that is not named has no unit.
    units: ClassVar[Mapping[str, str]] = {}
    # Whether the kernel's inputs are whole numbers, such as categories or counts. They are then never rescaled.
    whole: ClassVar[bool] = False
    # Whether the features of this kernel are few and not random. In a product with another kernel, each of them is then
    # multiplied by each feature of the other.
    finite: ClassVar[bool] = False
    # Whether the features are known to be those of k. If not, a draw compares their products with k at some of the
    # data.
    checked: ClassVar[bool] = False
    # The names of the kernel's tensors that can be negative. `matheron.fit` keeps the others positive.
    signed: Sequence[str] = ()

    @abstractmethod
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """k(x, z): `[..., n, d], [..., m, d] -> [..., n, m]`, differentiable, finite at coincident points."""

    def with_gradient(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """k(x, z) `[..., n, m]` and its derivatives in each coordinate of x, `[d, ..., n, m]`.

        By forward differentiation of `forward`, where a kernel has no closed form of its own.
        """
        K = self.forward(x, z)
        axes = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        slopes = [torch.func.jvp(lambda at: self.forward(at, z), (x,), (axis.expand_as(x),))[1] for axis in axes]
        return K, torch.stack(slopes)

    def weighted_with_gradient(self, x: Tensor, z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        """sum_j W_j k(x, z_j) and its gradient in x: `[B, n, d], [m, d], [B, r, m] -> [B, r, n], [B, r, n, d]`."""
        K, dK = self.with_gradient(x, z)
        return weigh(K, W), torch.stack([weigh(dK_i, W) for dK_i in dK], dim=-1)

    def derivative(self, x: Tensor, z: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
        """Derivatives of k(x, z), `[n, d], [m, d] -> [n, m]`: along the directions `left`, each `[n, d]`, in x, and
        along `right`, each `[m, d]`, in z.

        By automatic differentiation of `forward`, where a kernel has no closed form of its own.
        """
        return derivative_of_pairs(self.forward, x, z, left, right, type(self).__name__)

    def smoothness(self, input_dim: int) -> list[float]:
        """The number of mean-square derivatives that functions of this kernel have in each coordinate."""
        if self.whole:  # between whole numbers there are no derivatives
            return [0.0] * input_dim
        each = [part.smoothness(input_dim) for _, part in self.operands()]
        return [min(of_dim) for of_dim in zip(*each, strict=True)] if each else [math.inf] * input_dim

    def diag(self, x: Tensor) -> Tensor:
        """k(x, x) point by point: `[..., n, d] -> [..., n]`."""
        return self.forward(x[..., None, :], x[..., None, :])[..., 0, 0]

    def terms(self, input_dim: int) -> list[Term]:
        """The kernel as a sum of products of stationary kernels, linear forms and kernels with features of their own.

        By default the kernel is one term, by its own `features`.
        """
        if type(self).features is Kernel.features:
            raise TypeError(
                f"{type(self).__name__}: expected a kernel that says what its prior can be made of, got one without; "
                "write `features(num_features, generator)`, which returns a map from points [n, d] to features [n, c], "
                "or `measure(input_dim)` in a subclass of Stationary or Radial"
            )
        return [Term(self._one(), own=(self,))]

    def _one(self) -> Tensor:
        """One, in float64, on the device of the kernel's tensors."""
        return torch.ones((), dtype=torch.float64, device=next(self.buffers(), torch.empty(0, device="cpu")).device)

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Draw phi, a map from points `[n, d]` to features `[n, c]`; the expectation of phi(x) . phi(x') is k(x, x').

        It is called once for every basis, and takes its random numbers from the generator; c may differ from
        `num_features`.
        """
        raise NotImplementedError

    @property
    def by_own_features(self) -> bool:
        """Whether the prior is represented by the kernel's own `features`. Its points are then neither centred nor
        scaled."""
        return type(self).features is not Kernel.features and not self.operands()

    def measure(self, input_dim: int) -> SpectralMeasure:
        """The spectral measure of a stationary kernel with k(x, x) = 1; TypeError where there is none."""
        raise TypeError(
            f"{type(self).__name__}: expected a kernel with a spectral measure of its own, got one without; write "
            "`measure(input_dim)`, which returns a kernels.SpectralMeasure, or write a subclass of kernels.Kernel with "
            "`features(num_features, generator)`; each of .terms(input_dim) of a sum or product has a measure"
        )

    def nearest(self, x: Tensor) -> Tensor:
        """Project points of R^d, `[..., d]`, onto the kernel's space: for example to whole numbers (nodes of a graph)
        or to a sphere.

        Leverage is computed at such points. By default the space is all of R^d.
        """
        for _, part in self.operands():
            x = part.nearest(x)
        return x

    def active_dims(self, input_dim: int) -> list[int]:
        """The coordinates on which the kernel depends."""
        inner = [part.active_dims(input_dim) for _, part in self.operands()]
        return inner[0] if len(inner) == 1 else sorted({*itertools.chain(*inner)} if inner else range(input_dim))

    @property
    def num_outputs(self) -> int:
        """The number of outputs that the kernel couples: 1, except for `Coregional` and kernels that contain one."""
        return max((part.num_outputs for _, part in self.operands()), default=1)

    def of_one_scale(self, dims: list[int]) -> list[int]:
        """The columns that must have the same scale, because several of them share a hyperparameter."""
        shared = [name for name, unit in self.units.items() if "x" in unit and getattr(self, name).numel() == 1]
        return dims if shared else []

    def operands(self) -> list[tuple[str, Kernel]]:
        """The kernels that this one consists of, each with the prefix of its tensors' names."""
        return [(f"{name}.", part) for name, part in self._modules.items() if isinstance(part, Kernel)]

    def inner_dims(self, dims: list[int]) -> list[int]:
        """The columns that the operands depend on, if this kernel is applied to the columns `dims`."""
        return dims

    def radial_parts(self, input_dim: int) -> list[RadialPart] | None:
        """The kernel as a sum of scaled radial ones on some coordinates; None where it is not one."""
        return None

    def axis_factors(self, input_dim: int) -> list[list[Kernel]] | None:
        """A stationary kernel as a product of kernels of one coordinate: those of each; None where it is not one."""
        return [[self]] if input_dim == 1 else None

    def coupled(self) -> list[tuple[Tensor | None, Kernel]]:
        """The kernel as a sum of B (x) k: pairs (B `[t, t]`, k), where None is a B of ones."""
        return [(None, self)]

    def __call__(self, x: ArrayLike, z: ArrayLike | None = None) -> Tensor:
        left = as_tensor(x, "x")
        right = left if z is None else as_tensor(z, "z", like=left)
        if left.ndim < 2 or right.ndim < 2:
            shapes = f"{list(left.shape)} and {list(right.shape)}"
            raise ValueError(f"expected points of shape [n, d] and [m, d], got {shapes}")
        check_dim(right, "z", left.shape[-1])
        return self.to(left.device, left.dtype).forward(left, right)

    # With this, NumPy's numbers use the methods below for products and sums with kernels.
    __array_ufunc__ = None

    def __add__(self, other: Kernel | float | Real | Tensor) -> Kernel:
        from .algebra import Sum
        from .linear import Constant

        if isinstance(other, Kernel):
            return Sum(self, other)
        if isinstance(other, Real) and other == 0:  # sum([k1, k2]) starts with 0
            return self
        return Sum(self, Constant(cast(float, other))) if isinstance(other, Real | Tensor) else NotImplemented

    __radd__ = __add__

    def __truediv__(self, other: float | Real | Tensor) -> Kernel:
        if isinstance(other, Real) and other == 0:
            raise ZeroDivisionError(f"{self!r} / 0")
        if isinstance(other, Tensor):
            return self * other.reciprocal()
        return self * (1 / float(other)) if isinstance(other, Real) else NotImplemented

    def __pow__(self, power: int) -> Kernel:
        from .algebra import Product

        if isinstance(power, bool) or not isinstance(power, Integral) or power < 1:
            raise ValueError(f"power: expected a whole number of at least 1, so that k ** n is a kernel, got {power!r}")
        return self if power == 1 else Product(*[self] * int(power))

    def __mul__(self, other: Kernel | float | Real | Tensor) -> Kernel:
        from .algebra import Product, Scaled

        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, cast(float, other)) if isinstance(other, Real | Tensor) else NotImplemented

    __rmul__ = __mul__

    def on(self, dims: int | list[int]) -> OnDims:
        """The kernel applied to some coordinates of x alone."""
        from .algebra import OnDims

        return OnDims(self, list(dims) if isinstance(dims, Iterable) else [dims])


class Stationary(Kernel):
    """Base of stationary kernels with k(x, x) = 1. Such a kernel is a single term.

    >>> from matheron import kernels
    >>> isinstance(kernels.RBF(), kernels.Stationary), isinstance(kernels.Linear(), kernels.Stationary)
    (True, False)
    """

    def diag(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[:-1], dtype=x.dtype, device=x.device)

    def terms(self, input_dim: int) -> list[Term]:
        measure = self.measure(input_dim)  # raises an error if the dimensions do not fit
        if not isinstance(measure, SpectralMeasure):
            raise TypeError(
                f"{type(self).__name__}.measure: expected a kernels.SpectralMeasure, got {type(measure).__name__}"
            )
        return [Term(self._one(), stationary=(self,))]


class SpectralMeasure(ABC):
    """The spectral measure of a stationary kernel: the distribution of its frequencies.

    A kernel with k(x, x) = 1 is k(x - x') = E cos(theta . (x - x')), theta drawn from its spectral measure (Bochner's
    theorem). `frequencies` maps uniforms `[..., num_uniforms]` to frequencies `[..., input_dim]`, in radians a unit of
    x. Because a measure is a map from uniforms, the same code serves plain random, quasi-random and stratified
    frequencies, on any device.
    """

    num_uniforms: int
    input_dim: int

    @abstractmethod
    def frequencies(self, U: Tensor) -> Tensor:
        """Frequencies `[..., d]` from uniforms `[..., p]` in (0, 1); differentiable in the hyperparameters."""

    def importance(self, U: Tensor) -> Tensor | None:
        """Weights `[...]` whose value is one: density / density.detach(). Their gradient is that of the log density in
        hyperparameters that no map of uniforms is differentiable in, such as a Gamma's shape. None if there are no such
        hyperparameters."""
        return None

    def atoms(self) -> tuple[Tensor, Tensor] | None:
        """The frequencies `[a, d]` and masses `[a]` of a discrete measure, up to a mass of 1e-15. None if the measure
        is not discrete."""
        return None

    @property
    def density_dims(self) -> list[int] | None:
        """The coordinates that the density is over, the measure being zero on the others; None without a density."""
        return None

    def log_density(self, theta: Tensor) -> Tensor | None:
        """The logarithm `[...]` of `density(theta)`."""
        return None

    def density(self, theta: Tensor) -> Tensor | None:
        """S(theta) `[...]` at frequencies `[..., d]`, with respect to volume in the coordinates `density_dims`.

        The density is that of the symmetric measure, S(theta) = S(-theta), and k(r) is the integral of S(theta)
        cos(theta . r). It is differentiable in the hyperparameters. It is None for atoms, sums of measures on different
        coordinates, and convolutions without a closed form.

        >>> from matheron import kernels
        >>> import torch
        >>> kernels.RBF(2.0).measure(1).density(torch.zeros(1, 1, dtype=torch.float64))
        tensor([0.7979], dtype=torch.float64)
        """
        log_density = self.log_density(theta)
        return None if log_density is None else log_density.exp()


# The normal form of a kernel: a sum of terms, each a product of stationary kernels and linear forms.


@dataclass(frozen=True)
class RadialPart:
    """scale * k(x[dims], x'[dims])."""

    kernel: Radial
    dims: list[int]
    scale: Tensor | None = None


@dataclass(frozen=True)
class Term:
    """variance * B (x) prod_i k_i(x, x') * prod_j <x, x'>_j * prod_l h_l(x, x').

    The k_i are stationary with k_i(x, x) = 1. A form <x, x'> = sum_i c_i x_i x'_i + c_d is held as its coefficients
    `[d + 1]`, zero or positive, over (x, 1). The h_l are kernels with features of their own. B `[t, t]` couples
    outputs; None is all ones.
    """

    variance: Tensor
    stationary: tuple[Kernel, ...] = ()
    forms: tuple[Tensor, ...] = ()
    coupling: Tensor | None = None
    own: tuple[Kernel, ...] = ()

    def __mul__(self, other: Term) -> Term:
        couplings = [B for B in (self.coupling, other.coupling) if B is not None]
        return Term(
            self.variance * other.variance,
            self.stationary + other.stationary,
            self.forms + other.forms,
            functools.reduce(torch.mul, couplings) if couplings else None,
            self.own + other.own,
        )

    def measure(self, input_dim: int) -> SpectralMeasure:
        """The spectral measure of the stationary part, which must not be empty."""
        from .composed_measures import Convolution

        measures = [k.measure(input_dim) for k in self.stationary]
        return measures[0] if len(measures) == 1 else Convolution(measures)

    def active_dims(self, input_dim: int) -> list[int]:
        """The coordinates on which the stationary part depends."""
        return sorted({i for k in self.stationary for i in k.active_dims(input_dim)})


def same_coupling(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two couplings B are equal, so that their functions may share a root of B."""
    if a is b:
        return True
    if a is None or b is None or a.requires_grad or b.requires_grad or transformed():
        return False
    return torch.equal(a, b)


def coupled_covariance(kernel: Kernel, a: Observed, b: Observed) -> Tensor:
    """The covariance `[n, m]` of the observations at sites a and b: values of given outputs, or functionals.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> kernel = kernels.Coregional(kernels.RBF(), [[1.0, 0.5], [0.5, 1.0]])
    >>> sites = matheron.Sites.every_output(torch.zeros(1, 1, dtype=torch.float64), 2)
    >>> kernels.coupled_covariance(kernel, sites, sites)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    """
    if not (isinstance(a, Sites) and isinstance(b, Sites)):
        from .covariances import functional_covariance

        return functional_covariance(kernel, a, b)
    x, i = a.points, a.outputs
    z, j = (x, i) if b is a else (b.points, b.outputs)
    if i is None or j is None:
        return kernel.forward(x, z)
    return functools.reduce(
        torch.add, (k.forward(x, z) if B is None else k.forward(x, z) * B[i[:, None], j] for B, k in kernel.coupled())
    )


def coupled_diagonal(kernel: Kernel, sites: Observed) -> Tensor:
    """The variance `[n]` of the observation at each site.

    >>> import torch
    >>> from matheron import Sites, kernels
    >>> kernels.coupled_diagonal(2.0 * kernels.RBF(), Sites(torch.zeros(1, 1, dtype=torch.float64)))
    tensor([2.], dtype=torch.float64)
    """
    if not isinstance(sites, Sites):
        from .covariances import functional_diagonal

        return functional_diagonal(kernel, sites)
    x, i = sites.points, sites.outputs
    if i is None:
        return kernel.diag(x)
    total = x.new_zeros(len(x))
    for B, k in kernel.coupled():
        total = total + (k.diag(x) if B is None else k.diag(x) * B.diagonal()[i])
    return total


def centred(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Both about one of z's points: a far offset must not cost the digits of a difference."""
    if z.shape[-2] == 0:
        return x, z
    origin = z[..., :1, :].detach()
    shifted = x - origin
    return shifted, shifted if z is x else z - origin


def squared_distance(x: Tensor, z: Tensor, few: int = 1 << 14) -> Tensor:
    """|x - z|^2 for all pairs, `[..., n, d], [..., m, d] -> [..., n, m]`, in memory of its own.

    By differences up to 16 dimensions: no cancellation, so nearby points keep their distance. Beyond, by the product
    about z's centre, whose cancellation float64 has the digits for. Below `few` differences the overhead of a call
    counts more than its memory.
    """
    if x.shape[-1] > 16:
        return _by_product(x, z)
    if torch.is_grad_enabled() and (x.requires_grad or z.requires_grad):
        from .derivatives import SquaredDistance

        return SquaredDistance.apply(x, z)
    if transformed():  # torch.func allows neither writing in place nor memory that is used again
        return (x.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1)
    columns = z.mT.contiguous()  # each coordinate is then contiguous, which is twice as fast
    shape = (*x.shape[:-1], z.shape[-2])
    if z.ndim > 2:  # torch's own broadcast_shapes would import SymPy
        shape = np.broadcast_shapes((*x.shape[:-1], 1), (*z.shape[:-2], 1, z.shape[-2]))
    if math.prod(shape) * x.shape[-1] < few:
        return (x.unsqueeze(-1) - (columns if z.ndim == 2 else columns.unsqueeze(-3))).square_().sum(-2)
    r = distance_at_once(x, z)
    if r is not None:
        return r.square_()
    r2 = torch.sub(x[..., :, None, 0], columns[..., None, 0, :], out=empty(shape, x)).square_()
    with frame():
        difference = empty(shape, x) if x.shape[-1] > 1 else r2
        for i in range(1, x.shape[-1]):
            torch.sub(x[..., :, None, i], columns[..., None, i, :], out=difference)
            r2.addcmul_(difference, difference)
    return r2


def _by_product(x: Tensor, z: Tensor) -> Tensor:
    dtype, same = x.dtype, x is z
    centre = z.detach().mean(dim=-2, keepdim=True)
    x = (x - centre).double()
    z = x if same else (z - centre).double()
    x2, z2 = x.square().sum(-1).unsqueeze(-1), z.square().sum(-1).unsqueeze(-2)
    if (torch.is_grad_enabled() and (x.requires_grad or z.requires_grad)) or transformed():
        r2 = (x2 + z2 - 2 * x @ z.mT).clamp_min(0).to(dtype)
        return r2 * (1 - torch.eye(x.shape[-2], dtype=dtype, device=x.device)) if same else r2
    r2 = (x @ z.mT).mul_(-2).add_(x2 + z2).clamp_min_(0).to(dtype)  # symmetric to the last bit if x is z
    if same:
        r2.diagonal(dim1=-2, dim2=-1).zero_()
    return r2


def distance_at_once(x: Tensor, z: Tensor, narrow: int = 16) -> Tensor | None:
    """|x - z| by `torch.cdist`, in one pass over all coordinates of points of more than `narrow` bytes on a CPU.

    None where others are faster: one coordinate at a time for narrower points and on GPUs, a product beyond 16
    coordinates.
    """
    d = x.shape[-1]
    if x.device.type != "cpu" or z.ndim > 2 or d > 16 or d * x.element_size() <= narrow:
        return None
    r = torch.cdist(x.reshape(-1, d), z, compute_mode="donot_use_mm_for_euclid_dist")
    return r.view(*x.shape[:-1], len(z))
