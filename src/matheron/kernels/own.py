"""Kernels of one's own, from functions or from a radial profile.

    k(x, x') = phi(x) . phi(x')                    `from_features(phi)`: a known map, whose kernel follows from it
    k(x, x') = E phi(x) . phi(x')                  `from_callables(k, sample_features)`: phi is drawn at random
    k(x, x') = g(|x - x'|^2 / lengthscale^2)       a subclass of `Radial` that defines its profile g alone

`check_features` compares the two sides of the second line. For a profile, derivatives are found by automatic
differentiation, and the spectral measure is computed numerically (`ProfileMeasure`).
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # SciPy imports its special functions when they are first used
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_points, as_tensor, check_finite, level_outside
from ..core.jacobian import derivative_along
from ..core.modes import as_numpy, in_graph, kept, outside
from ..core.own_function import as_features
from ..core.value import REGISTRY, Value
from .algebra import OnDims
from .base import Kernel, Stationary
from .radial import Elliptical, Radial

__all__ = ["FeatureError", "FeatureWarning", "OwnKernel", "check_features", "from_callables", "from_features"]


def as_kernel(kernel: Kernel) -> Kernel:
    """Return the kernel, or raise a TypeError that lists the known ones."""
    if not isinstance(kernel, Kernel):
        kinds = [kind for kind in REGISTRY.values() if issubclass(kind, Kernel) and not inspect.isabstract(kind)]
        got = f"{type(kernel).__module__}.{type(kernel).__name__}"
        if (library := got.split(".")[0]) in ("gpytorch", "sklearn", "gpflow"):
            got += f"; matheron.adapters.{library}.translate(kernel, input_dim) makes one of it"
        elif library == "geometric_kernels":
            got += "; matheron.adapters.geometric.translate(kernel, params) makes one of it"
        if isinstance(kernel, type):
            got = f"the class {kernel.__name__}: make one of it, as in kernels.RBF(1.0)"
        raise TypeError(
            f"kernel: expected a kernel of matheron.kernels ({', '.join(sorted(kind.__name__ for kind in kinds))}), "
            f"got {got}"
        )
    return kernel


class FeatureWarning(UserWarning):
    """The features of a kernel are not those of its k(x, x')."""


class FeatureError(NamedTuple):
    """The error of a kernel's features: root mean squares over all pairs of some points.

    `bias` is the difference between k and the mean over several draws of features, corrected for Monte Carlo error.
    `chance` is the error of one draw around that mean, which more features reduce. Both are relative to the size of k.
    """

    bias: float
    chance: float
    num_features: int
    worst: str  # describes where the difference is largest

    @property
    def found(self) -> bool:
        """Whether the bias is more than a hundredth, and larger than the Monte Carlo error of the mean over the
        draws."""
        return self.bias > max(0.01, 1.5 * self.chance)

    def __str__(self) -> str:
        return (
            f"the mean of {self.num_features} features differs from k by {self.bias:.2g} of its size, where chance "
            f"makes {self.chance:.2g} of one draw; {self.worst}"
        )


@torch.no_grad()
def check_features(kernel: Kernel, points: ArrayLike, num_features: int = 2048, num_draws: int = 8) -> FeatureError:
    """Compare the features of a kernel with k(x, x') at points `[r, d]`, over independent draws; seeded.

    Draws of paths do this at some of the data for kernels of one's own. They warn where the errors say that features
    and kernel do not belong together: a lengthscale in one of them, a forgotten sqrt(2), a series cut short.

    >>> import torch
    >>> from matheron import kernels
    >>> def wrong(num_features, generator):  # of lengthscale 1, not 1/2
    ...     theta = torch.randn(1, num_features, generator=generator, dtype=torch.float64)
    ...     return lambda x: torch.cat([(x @ theta).cos(), (x @ theta).sin()], dim=1) / num_features**0.5
    >>> kernel = kernels.from_callables(lambda x, z: (-2 * (x - z.mT) ** 2).exp(), wrong)
    >>> kernels.check_features(kernel, torch.linspace(0, 2, 9)[:, None]).found
    True
    """
    x = as_points(points, "points").detach().double().cpu()
    kernel = as_kernel(kernel).to("cpu", torch.float64)
    name, K = type(kernel).__name__, kernel(x)
    if K.shape != (len(x), len(x)):
        raise ValueError(f"{name}: expected k(x, z) of shape [n, m], got {list(K.shape)} for {len(x)} points")
    generator = torch.Generator().manual_seed(0)
    Phi = [as_columns(kernel, _drawn_features(kernel, num_features, generator), x) for _ in range(num_draws)]
    E = torch.stack([each @ each.mT - K for each in Phi])  # [draws, r, r]
    check_finite(K, f"{name}, k(x, x')", "correct k")
    check_finite(E, f"{name}.features", "correct them")
    mean, variance = E.mean(0), E.var(0).mean() if num_draws > 1 else E.new_zeros(())
    size = float(K.square().mean().sqrt()) or 1.0
    bias = float((mean.square().mean() - variance / num_draws).clamp_min(0).sqrt()) / size
    i, j = divmod(int(mean.abs().argmax()), len(x))
    worst = f"at points {i} and {j} of these it is {float((mean + K)[i, j]):.4g}, and k is {float(K[i, j]):.4g}"
    return FeatureError(bias, float(variance.sqrt()) / size, num_features, worst)


def _drawn_features(kernel: Kernel, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """A kernel's own features, or cosines and sines of frequencies from its spectral measure."""
    if type(kernel).features is not Kernel.features and _innermost(kernel).by_own_features:
        return kernel.features(num_features, generator)
    if not isinstance(_innermost(kernel), Stationary):
        raise TypeError(
            f"kernel: expected one with features or a spectral measure of its own, got {type(kernel).__name__}; check "
            "the parts of sums and products one by one"
        )

    def waves(x: Tensor) -> Tensor:
        measure = kernel.measure(x.shape[1])
        pairs = max(1, num_features // 2)
        U = torch.rand(pairs, measure.num_uniforms, generator=generator, dtype=torch.float64, device="cpu")
        P = x @ measure.frequencies(U.clamp_(2**-54, 1 - 2**-53)).mT
        return torch.cat([P.cos(), P.sin()], dim=1) / math.sqrt(pairs)

    return waves


def as_columns(kernel: Kernel, phi: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The features `[n, c]` of points x `[n, d]`, checked."""
    Phi = phi(x) if callable(phi) else phi
    if not callable(phi) or not isinstance(Phi, Tensor) or Phi.ndim != 2 or len(Phi) != len(x):
        got = f"a map to {list(Phi.shape)}" if isinstance(Phi, Tensor) else type(Phi).__name__
        raise ValueError(
            f"{type(kernel).__name__}.features: expected a map from points [n, d] to features [n, c], a tensor, got "
            f"{got if callable(phi) else type(phi).__name__} for points {list(x.shape)}"
        )
    return Phi


def _innermost(kernel: Kernel) -> Kernel:
    return _innermost(kernel.kernel) if isinstance(kernel, OnDims) else kernel


def is_unchecked(kernel: Kernel) -> bool:
    """Whether the features of a kernel, or its spectral measure, come from a user and have not been compared with
    it."""
    kernel = _innermost(kernel)
    own_measure = type(kernel).__module__.split(".")[0] != "matheron" and type(kernel).measure is not Radial.measure
    return not kernel.checked and (kernel.by_own_features or own_measure)


def say_wrong_features(kernel: Kernel, points: Tensor, num_features: int = 2048) -> None:
    """Give a FeatureWarning with the numbers if a kernel's features differ from it at points `[r, d]`."""
    error = check_features(kernel, points, num_features)
    if error.found:
        warnings.warn(
            f"{type(kernel).__name__}: {error}. Draws have the features' covariance in their prior; correct "
            "`features` or `measure`, or k",
            FeatureWarning,
            stacklevel=level_outside(),
        )


class OwnKernel(Kernel):
    """Base of kernels made of functions: tensors by name, which are hyperparameters and are passed to the functions.

    >>> import torch
    >>> from matheron import kernels
    >>> k = kernels.from_features(lambda x: torch.cat([x, x**2], -1))
    >>> isinstance(k, kernels.OwnKernel), k([[1.0]], [[2.0]])
    (True, tensor([[6.]], dtype=torch.float64))
    """

    fields = ("tensor_names", "signed")

    def __init__(self, tensors: dict[str, ArrayLike]) -> None:
        taken = [name for name in tensors if hasattr(Kernel, name) or name in ("phi", "k", "sample", "fields")]
        if taken:
            raise ValueError(f"{type(self).__name__}: expected other names for tensors than {', '.join(taken)}")
        values = {name: as_tensor(value, name).double().clone() for name, value in tensors.items()}
        for name, value in values.items():
            check_finite(value, name)
        super().__init__(**values)
        self.tensor_names = list(values)
        # Positive tensors are fitted on a logarithmic scale, so that they stay positive.
        self.signed = [name for name, value in values.items() if bool((value <= 0).any())]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.tensor_names}


class FeatureKernel(OwnKernel):
    """k(x, x') = phi(x) . phi(x'), of a map phi from points `[n, d]` to features `[n, c]`."""

    finite = True
    checked = True  # the kernel is defined by its features

    def __init__(self, phi: Value, tensors: dict[str, ArrayLike]) -> None:
        super().__init__(tensors)
        self.phi = phi

    def check(self) -> None:
        if sorted(self.tensor_names) != sorted(self._buffers) or not set(self.signed) <= set(self.tensor_names):
            raise ValueError(f"FeatureKernel: expected tensors {self.tensor_names}, got {sorted(self._buffers)}")

    def _features(self, x: Tensor) -> Tensor:
        """`[..., n, d] -> [..., n, c]`."""
        return MapOf(self.phi, self.tensors)(x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        left = self._features(x)
        return left @ (left if z is x else self._features(z)).mT

    def diag(self, x: Tensor) -> Tensor:
        return self._features(x).square().sum(-1)

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        return MapOf(self.phi, self.tensors)


class MapOf(Value):
    """x -> phi(x, **tensors)."""

    def __init__(self, phi: Value, tensors: dict[str, Tensor]) -> None:
        super().__init__(phi=phi, **tensors)

    def check(self) -> None:
        if not isinstance(self._modules.get("phi"), Value):
            raise ValueError("MapOf: expected a map from points to features")

    def forward(self, x: Tensor) -> Tensor:
        Phi = self.phi(x, **self._buffers)
        if not isinstance(Phi, Tensor) or Phi.ndim != 2 or Phi.shape[0] != x.shape[0]:
            got = list(Phi.shape) if isinstance(Phi, Tensor) else type(Phi).__name__
            raise ValueError(
                f"phi: expected a map from points [n, d] to features [n, c], got {got} for points {list(x.shape)}"
            )
        return Phi


class CallableKernel(OwnKernel):
    """k(x, x') of a function, with features of another."""

    saveable = False
    instead_of_saving = "Write the kernel as a subclass of kernels.Kernel, which is found by its name"

    def __init__(
        self, k: Callable[..., Tensor], sample: Callable[..., Callable[[Tensor], Tensor]], tensors: dict[str, ArrayLike]
    ) -> None:
        super().__init__(tensors)
        self.functions = (k, sample)

    def _k(self, x: Tensor, z: Tensor) -> Tensor:
        K = self.functions[0](x, z, **self.tensors)
        if not isinstance(K, Tensor) or K.shape != (len(x), len(z)):
            got = list(K.shape) if isinstance(K, Tensor) else type(K).__name__
            raise ValueError(f"k: expected a tensor {[len(x), len(z)]} for {len(x)} and {len(z)} points, got {got}")
        return K

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return pairwise(self._k, x, z)

    def diag(self, x: Tensor) -> Tensor:
        points = x.reshape(-1, x.shape[-1]).split(32)  # a diagonal is taken of small matrices only
        return torch.cat([self._k(block, block).diagonal() for block in points]).reshape(x.shape[:-1])

    def features(self, num_features: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        return self.functions[1](num_features, generator, **self.tensors)

    def __repr__(self) -> str:
        named = [getattr(self.functions[0], "__name__", "k"), *(f"{name}=..." for name in self.tensor_names)]
        return f"CallableKernel({', '.join(named)})"


def pairwise(k: Callable[[Tensor, Tensor], Tensor], x: Tensor, z: Tensor) -> Tensor:
    """k of points `[..., n, d]` and `[..., m, d]`, `[..., n, m]`, of a function that takes `[n, d]` and `[m, d]`."""
    if z.ndim == 2:  # all problems share the centres, so their points can be put together
        return k(x if x.ndim == 2 else x.reshape(-1, x.shape[-1]), z).reshape(*x.shape[:-1], len(z))
    # torch's own function would import SymPy, which takes a second
    batch = np.broadcast_shapes(x.shape[:-2], z.shape[:-2])
    left, right = (side.expand(*batch, *side.shape[-2:]).reshape(-1, *side.shape[-2:]) for side in (x, z))
    return torch.stack([k(a, b) for a, b in zip(left, right, strict=True)]).reshape(*batch, x.shape[-2], z.shape[-2])


def from_features(phi: Callable[..., Tensor], **tensors: ArrayLike) -> FeatureKernel:
    """k(x, x') = phi(x) . phi(x'), the kernel of a linear model in known features; draws have it exactly.

    Args:
        phi: a map from points `[n, d]` to features `[n, c]`: a function, a torch module, or a `Value`, which can be
            saved.
        tensors: numbers that phi is called with by name, phi(x, **tensors). `matheron.fit` fits them: those that are
            positive stay so. The tensors of a torch module are kept as they are.

    >>> import torch
    >>> from matheron import kernels
    >>> waves = lambda x, period: torch.cat([torch.sin(6.283 * x / period), torch.cos(6.283 * x / period)], dim=1)
    >>> kernels.from_features(waves, period=2.0)([[0.0]], [[0.0], [1.0]])
    tensor([[ 1.0000, -1.0000]], dtype=torch.float64)
    """
    if not callable(phi):
        raise TypeError(f"phi: expected a map from points [n, d] to features [n, c], got {type(phi).__name__}")
    return FeatureKernel(as_features(phi).double(), tensors)  # kernels are float64 until a draw fixes the dtype


def from_callables(
    k: Callable[..., Tensor],
    sample_features: Callable[..., Callable[[Tensor], Tensor]],
    *,
    check_at: ArrayLike | None = None,
    **tensors: ArrayLike,
) -> CallableKernel:
    """A kernel of a function k(x, z), and of one that draws random features of it.

    Args:
        k: `[n, d], [m, d] -> [n, m]`, differentiable by autograd.
        sample_features: takes a number of features and a generator of random numbers. It returns a map phi from points
            `[n, d]` to features `[n, c]` with E phi(x) . phi(x') = k(x, x').
        check_at: points `[r, d]` at which features and k are compared at once, with a `FeatureWarning` where they do
            not belong together. None compares them at some of the data when paths are drawn.
        tensors: numbers that both functions are called with by name. `matheron.fit` fits them: those that are positive
            stay so.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> def k(x, z, rate):  # of two events in time
    ...     return (-(x - z.mT).abs() * rate).exp()
    >>> def sample_features(num_features, generator, rate):
    ...     theta = rate * torch.empty(num_features, dtype=torch.float64).cauchy_(generator=generator)
    ...     return lambda x: torch.cat([(x * theta).cos(), (x * theta).sin()], dim=1) / num_features**0.5
    >>> kernel = kernels.from_callables(k, sample_features, rate=2.0, check_at=torch.linspace(0, 2, 9)[:, None])
    >>> matheron.draw(matheron.ExactGP(3.0 * kernel, X=[[0.0], [1.0]], y=[0.0, 1.0], noise=1e-4), 8)([[0.5]]).shape
    torch.Size([8, 1])
    """
    for name, function in (("k", k), ("sample_features", sample_features)):
        if not callable(function):
            raise TypeError(f"{name}: expected a function, got {type(function).__name__}")
    kernel = CallableKernel(k, sample_features, tensors)
    if check_at is not None:
        say_wrong_features(kernel, as_points(check_at, "check_at"))
    return kernel


# A radial profile alone: its derivatives, and its spectral measure.


def profile_values(kernel: Radial, r2: Tensor) -> Tensor:
    """g(r^2), checked. A square root in it has an infinite derivative at zero, which is replaced by zero."""
    K = kernel.radial(r2.clamp_min(1e-30))
    if not isinstance(K, Tensor) or K.shape != r2.shape:
        got = list(K.shape) if isinstance(K, Tensor) else type(K).__name__
        raise ValueError(
            f"{type(kernel).__name__}.radial: expected g(r2) of each of the numbers r2, by torch's functions, a tensor "
            f"{list(r2.shape)}, got {got}"
        )
    return K


def profile_slope(radial: Callable[[Tensor], Tensor], r2: Tensor, least: float = 1e-12, steep: float = 1e3) -> Tensor:
    """g'(r^2) by forward differentiation, and at zero from the right; where that is steep, it is taken as infinite."""
    at = r2.clamp_min(least)
    slope = torch.func.jvp(radial, (at,), (torch.ones_like(at),))[1]
    return torch.where((r2 > least) | (slope.abs() < steep), slope, 0.0)


def profile_derivative(radial: Callable[[Tensor], Tensor], r2: Tensor, order: int) -> Tensor:
    """The derivative of some order of a profile of one's own, g(r^2), by automatic differentiation."""

    def at(numbers: Tensor) -> Tensor:
        return radial(numbers.reshape(r2.shape).clone()).reshape(-1, 1)

    column = r2.reshape(-1, 1).clamp_min(torch.finfo(r2.dtype).eps ** (1 / max(order, 1)))
    return derivative_along(at, column, [torch.ones_like(column)] * order).reshape(r2.shape)


def smoothness_of_profile(kernel: Radial) -> float:
    """The number of mean-square derivatives of functions with a user's profile: 0, 1, or infinitely many."""
    for order, near in ((1, 1e-10), (2, 1e-6)):
        at = torch.tensor([near, 100 * near], dtype=torch.float64, device=kernel.lengthscale.device)
        close, far = kernel.double().profile(at, order).abs().tolist()
        if not close < 2 * far:
            return order - 1.0
    return math.inf


class RadialSpectrum(NamedTuple):
    """A density of log u, linear between nodes, and the largest difference between its transform and the profile."""

    low: float  # log u of the first node
    step: float
    density: Tensor  # [n], of log u
    cumulative: Tensor  # [n]
    error: float
    where: float  # the distance, in lengthscales, at which the difference is largest


class ProfileMeasure(Elliptical):
    """The spectral measure of a radial kernel that is defined only by its profile g.

    In d dimensions g is a covariance if and only if it is a mixture of the kernels of spheres of frequencies,

        g(r) = int Omega_d(u r) dF(u),    Omega_d(t) = Gamma(d / 2) (2 / t)^(d/2 - 1) J_(d/2 - 1)(t)

    with a distribution F of the frequencies' lengths u (Schoenberg 1938). F is found as the non-negative density whose
    transform is nearest to g, by least squares. It is therefore always the measure of a covariance, which differs from
    g by `error`: little where g is a covariance in d dimensions, and much where it is none.

    It is computed when it is first used. A difference of more than `worth_saying` gives a warning. One of more than
    `largest` is an error: then g is no covariance in these dimensions, or its spectrum is too sharp.
    """

    def __init__(
        self,
        scale: Tensor,
        profile: Callable[[Tensor], Tensor],
        name: str,
        worth_saying: float = 1e-3,
        largest: float = 1e-2,
    ) -> None:
        super().__init__(scale)
        self.profile, self.name, self.worth_saying, self.largest = profile, name, worth_saying, largest

    @cached_property
    def spectrum(self) -> RadialSpectrum:
        found = spectrum_of(self.profile, self.input_dim, self.name)
        said = (
            f"{self.name} in {self.input_dim} dimensions: the nearest kernel with a spectrum differs from its profile "
            f"by {found.error:.2g}, at a distance of {found.where:.3g} lengthscales"
        )
        if found.error > self.largest:
            raise ValueError(
                f"{said}; expected at most {self.largest:g}. It is no covariance in so many dimensions (use it "
                ".on(dims) of fewer), or its spectrum is sharper than this can find: then write `measure(input_dim)`"
            )
        if found.error > self.worth_saying:
            warnings.warn(f"{said}; draws have that error in their prior", RuntimeWarning, stacklevel=level_outside())
        return found

    @property
    def error(self) -> float:
        """The largest difference between the profile and the kernel of the features."""
        return self.spectrum.error

    def radius(self, U: Tensor) -> Tensor:
        return self._quantile(U[..., 0])

    def frequencies(self, U: Tensor) -> Tensor:
        if self.input_dim == 1:  # both signs are equally likely
            return self.scale * (2 * U - 1).sign() * self._quantile((2 * U - 1).abs())
        normal = torch.special.ndtri(U)  # [..., d]
        squared = normal.square().sum(-1)
        u = torch.special.gammainc(torch.full_like(squared, self.input_dim / 2), squared / 2)  # uniform
        return self.scale * (self._quantile(u) / squared.sqrt())[..., None] * normal

    def _quantile(self, u: Tensor) -> Tensor:
        """Lengths at which the distribution is u: the density is linear in each cell, its integral quadratic."""
        s = self.spectrum
        f, F, v = s.density.to(u.device), s.cumulative.to(u.device), u.detach().double().contiguous()
        cell = torch.searchsorted(F, v).clamp(1, len(F) - 1)
        left, right = f[cell - 1], f[cell]
        rest = ((v - F[cell - 1]) / s.step).clamp_min(0)
        # solves left t + (right - left) t^2 / 2 = rest in a form without cancellation
        root = (left.square() + 2 * (right - left) * rest).clamp_min(0).sqrt()
        t = (2 * rest / (left + root).clamp_min(1e-300)).clamp(0, 1)
        return (s.low + s.step * (cell - 1 + t)).exp().to(u)

    def log_radial(self, r2: Tensor) -> Tensor:
        s, d = self.spectrum, self.input_dim
        log_u = 0.5 * r2.clamp_min(1e-200).log()
        at = ((log_u - s.low) / s.step).clamp(0, len(s.density) - 1)
        cell = at.detach().floor().clamp(0, len(s.density) - 2)
        density, t = s.density.to(r2), at - cell
        f = density[cell.long()] * (1 - t) + density[cell.long() + 1] * t
        # the logarithm of the area of the unit sphere
        area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        return f.clamp_min(1e-30).log() - d * log_u - area


@outside()
@torch.no_grad()
def spectrum_of(profile: Callable[[Tensor], Tensor], input_dim: int, name: str) -> RadialSpectrum:
    """The density of log u whose transform is nearest to a profile of squared distances, in lengthscales."""
    with torch.enable_grad():
        probe = profile(torch.zeros(1, dtype=torch.float64, device="cpu"))
    if in_graph(probe):
        raise TypeError(
            f"{name}: expected detach=True, since the gradient of a spectrum that is found numerically is not known; "
            "write `measure(input_dim)` for it"
        )
    if probe.shape != (1,) or not abs(float(probe) - 1) < 1e-6:
        got = f"{float(probe):.6g}" if probe.shape == (1,) else f"shape {list(probe.shape)}"
        raise ValueError(
            f"{name}.radial: expected 1 at a distance of zero, got {got}; scale the kernel instead: 2.0 * k"
        )

    def g(r: np.ndarray) -> np.ndarray:
        return as_numpy(profile(torch.from_numpy(r).square())).astype(np.float64)

    unit = _half(g, name)
    nodes, r, A = _transforms(input_dim)
    values = g(unit * r)
    if not np.isfinite(values).all():
        raise ValueError(f"{name}.radial: expected finite numbers, got {values[~np.isfinite(values)][0]}")
    # the weights of smoothness, and of the condition that the masses sum to one
    n, smooth, whole = len(nodes), 1e-3, 1e3
    bent = smooth * np.diff(np.eye(n), 2, axis=0)
    rows = np.concatenate([A, bent, np.full((1, n), whole)])
    masses, _ = scipy.optimize.nnls(rows, np.concatenate([values, np.zeros(n - 2), [whole]]), maxiter=30 * n)
    masses = masses / masses.sum()
    off = np.abs(A @ masses - values)
    step = nodes[1] - nodes[0]
    density = np.pad(masses / step, 1)  # the density is zero beyond both ends
    cumulative = np.concatenate([[0.0], np.cumsum(step * (density[1:] + density[:-1]) / 2)])
    low = float(nodes[0] - step - math.log(unit))
    f, F = torch.from_numpy(density), torch.from_numpy(cumulative / cumulative[-1])
    return RadialSpectrum(low, float(step), f, F, float(off.max()), float(unit * r[off.argmax()]))


def _half(g: Callable[[np.ndarray], np.ndarray], name: str) -> float:
    """The distance at which a profile first falls to a half."""
    r = 10.0 ** np.arange(-9, 9, 0.05)
    below = np.flatnonzero(g(r) < 0.5)
    if not len(below) or below[0] == 0:
        raise ValueError(
            f"{name}.radial: expected a profile that falls to 1/2 between 1e-9 and 1e9 lengthscales, got {g(r)[0]:.3g} "
            f"to {g(r)[-1]:.3g} there"
        )
    return float(r[below[0]])


@kept(8)
def _transforms(
    d: int, per_decade: int = 40, decades: tuple[float, float] = (-3.5, 4.5), finer: int = 3, parts: int = 6
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes of log u, distances r, and the transforms `[r, u]` at them of densities that are hats about each node.

    All are in units of a typical length. u and r are spaced evenly in their logarithms, so that the transforms are
    numbers of one table over log(u r).

    Args:
        per_decade: nodes in a decade of u. A sharper spectrum has an error.
        decades: of u. Beyond the last one a rough kernel has less than 1e-4 of its variance.
        finer: distances for each node.
        parts: pieces of each half of a hat, over which its transform is integrated.
    """
    h = math.log(10) / per_decade
    nodes = math.log(10) * decades[0] + h * np.arange(round((decades[1] - decades[0]) * per_decade) + 1)
    log_r = h / finer * np.arange(-4 * per_decade * finer, round(2.5 * per_decade * finer) + 1)
    table = (
        h / finer * np.arange(round((nodes[0] + log_r[0]) * finer / h), round((nodes[-1] + log_r[-1]) * finer / h) + 1)
    )
    offsets = np.arange(-parts + 1, parts) / parts
    weights = (1 - np.abs(offsets)) / parts
    hats = np.zeros_like(table)
    for offset, weight in zip(offsets, weights, strict=True):
        t = np.exp(table + h * offset)
        # The pieces are blurred by their own width. This removes waves that are finer than the pieces, which do not
        # cancel completely.
        hats += weight * sphere_kernel(t, d) * np.exp(-0.5 * (0.7 * h / parts * t) ** 2)
    # table[i finer + j] = log u_i + log r_j
    A = hats[finer * np.arange(len(nodes)) + np.arange(len(log_r))[:, None]]
    scale = math.sqrt(d)  # from distances to frequencies in d dimensions
    r = np.exp(log_r)
    return nodes + math.log(scale), np.concatenate([[0.0], r / scale]), np.concatenate([np.ones((1, len(nodes))), A])


def sphere_kernel(t: np.ndarray, d: int) -> np.ndarray:
    """Omega_d(t): the mean of cos(t . direction) over directions in d dimensions."""
    near = t < 1e-3 * math.sqrt(d)
    safe = np.where(near, 1.0, t)
    if d == 1:
        return np.cos(t)
    with np.errstate(under="ignore"):
        log_scale = scipy.special.gammaln(d / 2) + (d / 2 - 1) * np.log(2 / safe)
        value = np.exp(log_scale) * scipy.special.jv(d / 2 - 1, safe)
    return np.where(near, 1 - t**2 / (2 * d), value)
