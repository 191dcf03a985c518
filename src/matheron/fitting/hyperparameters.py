"""Hyperparameters as one vector: logarithms of what is positive, a root of what is positive semi-definite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal, TransformedDistribution

from ..kernels import Coregional, Kernel
from ..models.means import ConstantMean, LinearMean, Mean
from .units import Buffer, Units, buffers, with_tensors

# Bounds in standardised units. Beyond them, a hyperparameter has no effect, or the covariance is singular in float64.
# If gaps between data are smaller, lengthscales can be as small as these gaps: one input far from all others makes the
# standard deviation large, and then the gaps are small relative to it.
BOUNDS = {"lengthscale": (1e-3, 1e3), "period": (1e-3, 1e3), "alpha": (1e-3, 1e3), "noise": (1e-6, 1e2)}

Prior = Distribution | Callable[[Tensor], Tensor]  # a distribution, or a function from values to their log density


@dataclass(frozen=True)
class Leaf:
    """One tensor of hyperparameters, and how it is encoded in the vector that is fitted.

    Positive numbers are encoded by their logarithms, couplings of outputs by a Cholesky factor.
    """

    name: str
    kind: str  # "positive", "real" or "coupling"
    value: Tensor
    bounds: tuple[float, float] = (-math.inf, math.inf)  # for positive values
    dims: tuple[int, ...] = ()  # the columns that the tensor belongs to
    # the kernel has features of its own, so the units are unknown and random starts stay near the value
    own: bool = False

    @property
    def short(self) -> str:
        return self.name.split(".")[-1]

    @property
    def size(self) -> int:
        t = len(self.value) if self.kind == "coupling" else 0
        return t * (t + 1) // 2 if t else self.value.numel()

    def encode(self, value: Tensor) -> Tensor:
        """The vector `[size]` of a value."""
        value = value.detach().double()
        if self.kind == "coupling":
            ridge = (
                1e-8
                * value.diagonal().mean().clamp_min(1e-300)
                * torch.eye(len(value), dtype=value.dtype, device=value.device)
            )
            return torch.linalg.cholesky(value + ridge)[*torch.tril_indices(len(value), len(value), device="cpu")]
        flat = value.expand(self.value.shape).reshape(-1).clamp(*self.bounds)
        return flat.log() if self.kind == "positive" else flat

    def decode(self, vector: Tensor) -> Tensor:
        """The value of a vector `[size]`. What is zero in the kernel stays zero."""
        if self.kind == "positive":
            return torch.where(self.value == 0, 0.0, vector.exp().reshape(self.value.shape))
        if self.kind == "real":
            return vector.reshape(self.value.shape)
        t = len(self.value)
        index = torch.tril_indices(t, t, device=vector.device)
        L = vector.new_zeros(t, t).index_put((index[0], index[1]), vector)
        return L @ L.mT

    def limits(self) -> list[tuple[float, float]]:
        lower, upper = map(math.log, self.bounds) if self.kind == "positive" else self.bounds
        return [(lower, upper)] * self.size

    def within(self, prior: Prior | None) -> Leaf:
        """The leaf with bounds inside the support of a prior."""
        support = getattr(prior, "support", None) if isinstance(prior, Distribution) else None
        lower = float(
            torch.as_tensor(getattr(support, "lower_bound", -math.inf), dtype=torch.float64, device="cpu").max()
        )
        upper = float(
            torch.as_tensor(getattr(support, "upper_bound", math.inf), dtype=torch.float64, device="cpu").min()
        )
        if self.kind == "coupling" or not upper > lower:
            return self
        if math.isfinite(upper - lower):  # slightly inside, because logarithms are rounded
            lower, upper = lower + 1e-9 * (upper - lower), upper - 1e-9 * (upper - lower)
        bounds = (max(lower, self.bounds[0]), min(upper, self.bounds[1]))
        if bounds[0] > bounds[1]:
            raise ValueError(
                f"priors: expected one of {self.name!r} with a density between {self.bounds[0]:g} and "
                f"{self.bounds[1]:g}, in standardised units, got {prior}"
            )
        return replace(self, bounds=bounds)


def kernel_leaf(buffer: Buffer, floors: Mapping[str, float], X: Tensor | None = None) -> Leaf:
    """The leaf of a kernel's tensor, for data X `[n, d]`."""
    short, owner, value = buffer.name.split(".")[-1], buffer.owner, buffer.value.detach().double()
    if isinstance(owner, Coregional):
        return Leaf(buffer.name, "coupling", value)
    if short in owner.signed:
        return Leaf(buffer.name, "real", value, dims=tuple(buffer.dims), own=owner.by_own_features)
    if owner.by_own_features and bool((value > 0).any()):  # their units are unknown
        some = value[value > 0]
        bounds = (1e-6 * float(some.min()), 1e6 * float(some.max()))
        return Leaf(buffer.name, "positive", value, bounds, tuple(buffer.dims), own=True)
    lower, upper = BOUNDS.get(short, (1e-6, 1e6))
    if X is not None and owner.units.get(short) == "x":
        lower = min([lower, *(gap for i in buffer.dims if (gap := usual_gap(X[:, i])) > 0)])
    return Leaf(buffer.name, "positive", value, (floors.get(short, lower), upper), tuple(buffer.dims))


def usual_gap(x: Tensor) -> float:
    """The lower quartile of gaps between neighbours among numbers `[n]`; 0 where all are equal."""
    gaps = x.unique().diff().sort().values
    return float(gaps[len(gaps) // 4]) if len(gaps) else 0.0


class NoiseBlocks(NamedTuple):
    """For each observation, the number of its noise variance `[n]`, and the unit of that variance `[n]`."""

    index: Tensor
    unit: Tensor


class Hyperparameters:
    """All that is fitted as one vector: the kernel's tensors, then the noise's, then the mean's.

    Args:
        kernel: the expression, in the model's units.
        leaves: of its tensors, in the order of `buffers`.
        noise: a leaf of one variance per task, or for each of `blocks`; or fixed variances `[n]`.
        mean: leaves of a constant (`mean`) or a linear function (`mean.weights`, `mean.bias`), or a fixed Mean.
    """

    def __init__(
        self,
        kernel: Kernel,
        leaves: Sequence[Leaf],
        noise: Leaf | Tensor,
        mean: Sequence[Leaf] | Mean,
        blocks: NoiseBlocks | None = None,
    ) -> None:
        self.kernel, self.noise, self.mean, self.blocks = kernel, noise, mean, blocks
        self.count = len(leaves)
        self.leaves = [*leaves]
        self.leaves += [noise] if isinstance(noise, Leaf) else []
        self.leaves += [] if isinstance(mean, Mean) else list(mean)

    def at(self, rows: Tensor) -> Hyperparameters:
        """These hyperparameters for some of the observations."""
        noise = self.noise if isinstance(self.noise, Leaf) else self.noise[rows]
        blocks = None if self.blocks is None else NoiseBlocks(*(each[rows] for each in self.blocks))
        return Hyperparameters(self.kernel, self.leaves[: self.count], noise, self.mean, blocks)

    def within(self, priors: Mapping[str, Prior]) -> Hyperparameters:
        """These hyperparameters, moved to within the supports of priors."""
        leaves = [leaf.within(prior_of(leaf, priors)) for leaf in self.leaves]
        rest = leaves[self.count :]
        noise = rest.pop(0) if isinstance(self.noise, Leaf) else self.noise
        return Hyperparameters(
            self.kernel, leaves[: self.count], noise, self.mean if isinstance(self.mean, Mean) else rest, self.blocks
        )

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    def encode(self, values: Mapping[str, Tensor] | None = None) -> Tensor:
        """The vector of the leaves' own values, or of others by name."""
        values = values or {}
        return torch.cat([leaf.encode(values.get(leaf.name, leaf.value)) for leaf in self.leaves])

    def split(self, vector: Tensor) -> list[Tensor]:
        """The part of a vector that is each leaf's."""
        return list(vector.split([leaf.size for leaf in self.leaves]))

    def decode(self, vector: Tensor) -> list[Tensor]:
        """A value per leaf."""
        return [leaf.decode(part) for leaf, part in zip(self.leaves, self.split(vector), strict=True)]

    def pulled_back(self, vector: Tensor, slopes: Callable[[list[Tensor]], Sequence[Tensor | None]]) -> Tensor:
        """The gradient `[size]` in the vector of a function with the given gradients in the values of the leaves.

        `slopes` is called with the values as leaves of autograd graphs, and returns a gradient for each, or None for
        zero. The chain rule through `decode` is applied once, however often the values were used.
        """
        vector = vector.detach().requires_grad_()
        with torch.enable_grad():
            values = self.decode(vector)
            found = slopes([value.detach().requires_grad_() for value in values])
            parts = [(v * g.detach()).sum() for v, g in zip(values, found, strict=True) if g is not None]
            if not parts:
                return torch.zeros_like(vector)
            (gradient,) = torch.autograd.grad(torch.stack(parts).sum(), vector)
        return gradient

    def are_lengthscales(self, like: Tensor) -> Tensor:
        """Which entries of a vector are logarithms of lengthscales, `[size]`."""
        each = [leaf.short == "lengthscale" for leaf in self.leaves for _ in range(leaf.size)]
        return torch.tensor(each, device=like.device)

    def limits(self) -> list[tuple[float, float]]:
        return [limit for leaf in self.leaves for limit in leaf.limits()]

    def clamped(self, vector: Tensor) -> Tensor:
        """The nearest vector within the limits."""
        return vector.clamp(*vector.new_tensor(self.limits()).unbind(1))

    def model(self, values: Sequence[Tensor], n: int, tasks: Tensor | None) -> tuple[Kernel, Tensor, Mean]:
        """The kernel, the noise `[n]` and the mean function that values of the leaves make."""
        kernel = with_tensors(self.kernel, values[: self.count])
        rest = list(values[self.count :])
        noise = rest.pop(0) if isinstance(self.noise, Leaf) else self.noise
        if isinstance(self.noise, Leaf):
            if self.blocks is not None:
                noise = noise[self.blocks.index] * self.blocks.unit
            else:
                noise = noise.expand(n) if tasks is None else noise[tasks]
        if isinstance(self.mean, Mean):
            return kernel, noise, self.mean
        mean: Mean = (
            ConstantMean()
            if len(rest) == 1
            else LinearMean(torch.zeros(1, rest[0].shape[-1], dtype=torch.float64, device="cpu"))
        )
        fill = iter(rest)
        return kernel, noise, mean.mapped(lambda _: next(fill))


def prior_of(leaf: Leaf, priors: Mapping[str, Prior]) -> Prior | None:
    return priors.get(leaf.name, priors.get(leaf.short))


def log_prior(leaves: Sequence[Leaf], values: Sequence[Tensor], priors: Mapping[str, Prior]) -> Tensor:
    """The log density of all values that have a prior; a prior is found by the leaf's full name, or its last part."""
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for leaf, value in zip(leaves, values, strict=True):
        prior = prior_of(leaf, priors)
        if prior is not None:
            density = cast(Callable[[Tensor], Tensor], getattr(prior, "log_prob", prior))
            total = total + density(value).sum()
    return total


def checked_priors(priors: Mapping[str, Prior], leaves: Sequence[Leaf]) -> dict[str, Prior]:
    """Priors of hyperparameters that there are, in float64."""
    if not isinstance(priors, Mapping):
        raise TypeError(
            'priors: expected them by name, as in {"lengthscale": torch.distributions.Gamma(2.0, 1.0)}, got '
            f"{type(priors).__name__}"
        )
    names = [leaf.name for leaf in leaves]
    for name, prior in priors.items():
        if not any(name in (leaf.name, leaf.short) for leaf in leaves):
            raise ValueError(f"priors: no hyperparameter is called {name!r}; there are {', '.join(names)}")
        if not hasattr(prior, "log_prob") and not callable(prior):
            raise TypeError(
                f"priors[{name!r}]: expected a torch distribution, or a function from values to their log density, "
                f"got {type(prior).__name__}"
            )
    return {name: _in_double(prior) for name, prior in priors.items()}


def _in_double(prior: Prior) -> Prior:
    """A distribution of float64 parameters. Gamma(2.0, 1.0) has float32 ones, and rounds all that it is asked about."""
    if not isinstance(prior, Distribution) or type(prior) is TransformedDistribution:
        return prior
    parameters = {name: getattr(prior, name) for name in prior.arg_constraints if name in prior.__dict__}
    if not parameters or not all(isinstance(v, Tensor) for v in parameters.values()):
        parameters = {name: getattr(prior, name) for name in prior.arg_constraints}
    return type(prior)(**{name: v.double() for name, v in parameters.items()}, validate_args=False)


def hyperparameters_of(
    kernel: Kernel,
    X: Tensor,
    noise: Tensor | None,
    mean: Mean | str | None,
    floors: Mapping[str, float],
    first_noise: float,
    units: Units | None,
    blocks: NoiseBlocks | None = None,
    level: float = 0.0,
) -> tuple[Hyperparameters, Tensor]:
    """The hyperparameters, whose own values are the kernel's numbers in the model's units; and the vector of the same
    numbers read in the user's units.

    `level` is where the search for a constant mean, or the constant of a linear one, begins.
    """
    t, d = kernel.num_outputs, X.shape[1]
    kernel = kernel.owned().to(X.device)
    ones = Units(*(torch.ones(size, dtype=torch.float64, device=X.device) for size in (d, d, t, t)))
    listed = buffers(kernel, units or ones)
    leaves = [kernel_leaf(buffer, floors, X) for buffer in listed]
    lower, upper = BOUNDS["noise"]
    variances = t if blocks is None else int(blocks.index.max()) + 1
    start = torch.full((variances,), first_noise, dtype=torch.float64, device=X.device)
    fitted_noise = Leaf("noise", "positive", start, (floors.get("noise", lower), upper))
    levels = torch.full((t,), level, dtype=torch.float64, device=X.device)
    means: Sequence[Leaf] | Mean = [Leaf("mean", "real", levels)]
    if isinstance(mean, Mean):
        means = mean
    elif mean is not None:  # the mean is "linear"
        means = [Leaf("mean.weights", "real", levels.new_zeros(t, d)), Leaf("mean.bias", "real", levels)]
    h = Hyperparameters(kernel, leaves, fitted_noise if noise is None else noise, means, blocks)
    return h, h.encode({b.name: b.value.double() / b.unit for b in listed})


# The default priors, in standardised units.


def _about(mode: float, spread: float) -> LogNormal:
    """The log-normal distribution with this mode, for which log x has standard deviation `spread`."""
    location = torch.tensor(math.log(mode) + spread**2, dtype=torch.float64, device="cpu")
    return LogNormal(location, torch.tensor(spread, dtype=torch.float64, device="cpu"))


def default_kernel_priors(input_dim: int) -> dict[str, Prior]:
    """Priors of the kernel that `fit(None, ...)` takes, all log-normal: lengthscales grow with the root of d.

    The modes are sqrt(d) standard deviations for lengthscales, the targets' variance for the scale, and a hundredth of
    it for the noise. The logarithms have standard deviations of 1.25, 1.5 and 2.5.
    """
    lengthscale = _about(math.sqrt(input_dim), 1.25)
    return {"lengthscale": lengthscale, "outputscale": _about(1.0, 1.5), "noise": _about(1e-2, 2.5)}


def weak_priors(leaves: Sequence[Leaf]) -> dict[str, Prior]:
    """Priors for fits with fewer observations than hyperparameters: positive numbers within about a factor of 10 of
    their usual size."""
    priors: dict[str, Prior] = {}
    for leaf in leaves:
        if leaf.kind == "positive":
            priors[leaf.name] = _about(1e-2 if leaf.name == "noise" else 1.0, 1.5)
        elif leaf.kind == "coupling":
            priors[leaf.name] = lambda B: -0.05 * torch.trace(B)
        else:
            priors[leaf.name] = lambda value: -0.1 * value.square()
    return priors
