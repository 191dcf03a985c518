"""Kernels of one's own without a class: of a feature map, or of a function k with random features.

    k(x, x') = phi(x) . phi(x')                    `from_features(phi)`: a known map, whose kernel follows from it
    k(x, x') = E phi(x) . phi(x')                  `from_callables(k, sample_features)`: phi is drawn at random

`check_features` compares the two sides of the second line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_points, as_tensor, check_finite
from ..core.own_function import as_features
from ..core.value import Value
from .base import Kernel

__all__ = ["FeatureError", "FeatureWarning", "OwnKernel", "check_features", "from_callables", "from_features"]


class FeatureWarning(UserWarning):
    """The features of a kernel are not those of its k(x, x')."""


class FeatureError(NamedTuple):
    """How far the features of a kernel are from it, in root mean squares over all pairs of some points.

    `bias` is the difference between k and the mean over several draws of features, less what chance makes of it.
    `chance` is the error of one draw about that mean, which more features make smaller. Both are shares of k's own
    size.
    """

    bias: float
    chance: float
    num_features: int
    worst: str  # describes where the difference is largest

    @property
    def found(self) -> bool:
        """Whether the bias is more than a hundredth, and more than chance makes of the mean over the draws."""
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
    kernel = kernel.to("cpu", torch.float64)
    if type(kernel).features is Kernel.features:
        raise TypeError(
            f"kernel: expected one with features of its own, got {type(kernel).__name__}; check the parts of sums and "
            "products one by one"
        )
    K = kernel(x)
    if K.shape != (len(x), len(x)):
        raise ValueError(
            f"{type(kernel).__name__}: expected k(x, z) of shape [n, m], got {list(K.shape)} for {len(x)} points"
        )
    generator = torch.Generator().manual_seed(0)
    errors = []
    for _ in range(num_draws):
        Phi = kernel.features(num_features, generator)(x)
        errors.append(Phi @ Phi.mT - K)
    E = torch.stack(errors)  # [draws, r, r]
    mean, variance = E.mean(0), E.var(0).mean() if num_draws > 1 else E.new_zeros(())
    size = float(K.square().mean().sqrt()) or 1.0
    bias = float((mean.square().mean() - variance / num_draws).clamp_min(0).sqrt()) / size
    i, j = divmod(int(mean.abs().argmax()), len(x))
    worst = f"at points {i} and {j} of these it is {float((mean + K)[i, j]):.4g}, and k is {float(K[i, j]):.4g}"
    return FeatureError(bias, float(variance.sqrt()) / size, num_features, worst)


def say_wrong_features(kernel: Kernel, points: Tensor, num_features: int = 2048) -> None:
    """A FeatureWarning with the numbers, where a kernel's features differ from it at points `[r, d]`."""
    error = check_features(kernel, points, num_features)
    if error.found:
        warnings.warn(
            f"{type(kernel).__name__}: {error}. Draws have the features' covariance in their prior; correct "
            "`features`, or k",
            FeatureWarning,
            stacklevel=2,
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
        return MapOf(self.phi, self.tensors)(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)

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
        return self.functions[0](x, z, **self.tensors)

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
