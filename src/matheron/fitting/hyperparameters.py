"""Hyperparameters as one vector, and the standardised units that they are fitted in.

The vector has logarithms of what is positive, and Cholesky factors of what is positive semi-definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal, Transform

from ..kernels import Coregional, Kernel, Sum
from ..models.means import CallableMean, ConstantMean, LinearMean, Mean, MeanLike, as_mean
from ..models.transforms import Affine

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
            total = total + density_of(prior)(value).sum()
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
    found: dict[str, Prior] = {name: in_double(prior, leaves[0].value.device) for name, prior in priors.items()}
    for leaf in leaves:
        prior = prior_of(leaf, found)
        if prior is not None:
            _check_density(leaf, prior)
    return found


def _check_density(leaf: Leaf, prior: Prior) -> None:
    """Raise an error if the log density of a leaf's own value is not a tensor that broadcasts to the value."""
    shape = tuple(leaf.value.shape)
    wanted = f"priors: expected the log density of {leaf.name!r}, of values {list(shape)}, as a tensor"
    try:
        density = density_of(prior)(leaf.value.clone())
    except (RuntimeError, ValueError, IndexError) as error:
        raise ValueError(f"{wanted}, got an error of {prior}: {error}") from error
    if not isinstance(density, Tensor):
        raise TypeError(f"{wanted} that torch can differentiate, got {type(density).__name__}")
    if density.numel() > max(1, leaf.value.numel()):
        raise ValueError(f"{wanted} of at most as many numbers, got {list(density.shape)} from {prior}")


def density_of(prior: Prior) -> Callable[[Tensor], Tensor]:
    """The function from values to their log density."""
    return cast(Callable[[Tensor], Tensor], getattr(prior, "log_prob", prior))


def in_double(prior: Any, device: torch.device) -> Any:
    """A copy of a prior whose parameters, and those of its parts, are in float64 on a device.

    Gamma(2.0, 1.0) has parameters in float32, and would round all values that it is asked about.
    """
    if isinstance(prior, Tensor):
        return prior.to(device, torch.float64) if prior.is_floating_point() else prior.to(device)
    if isinstance(prior, list | tuple):
        return [in_double(part, device) for part in prior]
    if isinstance(prior, torch.nn.Module):
        prior = deepcopy(prior).to(device, torch.float64)
    if isinstance(prior, Distribution | Transform):
        prior = copy(prior)
        parts = {k: v for k, v in vars(prior).items() if isinstance(v, Tensor | list | Distribution | Transform)}
        vars(prior).update({name: in_double(part, device) for name, part in parts.items()})
        vars(prior)["_validate_args"] = False  # the log density of values outside the support is -inf, or not finite
    return prior


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
    if not h.leaves:
        raise ValueError(
            "kernel: expected something to fit, got a kernel without hyperparameters, and neither noise nor a mean "
            "that is unknown; make the model itself, such as matheron.ExactGP"
        )
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


# Standardised units: the scales of columns and outputs, and the units of hyperparameters.


class Units(NamedTuple):
    """x = input_scale * x_model + input_centre, and the same for y, one number per task."""

    input_centre: Tensor  # [d]
    input_scale: Tensor  # [d]
    output_centre: Tensor  # [t]
    output_scale: Tensor  # [t]

    def transforms(self) -> tuple[Affine, Affine]:
        """The input transform, into the model's units, and the output transform, out of them."""
        one = self.output_scale.numel() == 1
        scale, centre = (v[0] if one else v for v in (self.output_scale, self.output_centre))
        return Affine(1 / self.input_scale, -self.input_centre / self.input_scale), Affine(scale, centre)


class Buffer(NamedTuple):
    """A tensor of a kernel expression: where it is, and its unit: value in the user's units = unit * value."""

    name: str
    owner: Kernel
    value: Tensor
    unit: Tensor
    dims: list[int]


def standardised_mean(mean: MeanLike | str | None, units: Units) -> Mean | str | None:
    """A fixed mean in the model's units; None and "linear" are fitted."""
    if mean is None or (isinstance(mean, str) and mean == "linear"):
        return mean
    if isinstance(mean, str):
        raise ValueError(f'mean: expected None, "linear", a number, a Mean or a callable, got {mean!r}')
    fixed = as_mean(mean).owned()
    centre, scale = units.output_centre, units.output_scale
    if isinstance(fixed, ConstantMean):
        return ConstantMean((fixed.value.to(centre) - centre) / scale)
    if isinstance(fixed, LinearMean):
        weights, bias = fixed.weights.to(centre), fixed.bias.to(centre)
        level = bias + weights @ units.input_centre  # [t]
        return LinearMean(
            (weights * units.input_scale).expand(len(scale), -1) / scale[:, None], (level - centre) / scale
        )
    x_scale, x_centre = units.input_scale, units.input_centre

    def rescaled(x: Tensor) -> Tensor:
        value = fixed.to(x.device, x.dtype)(x * x_scale.to(x) + x_centre.to(x))
        return (value - centre.to(x)) / scale.to(x)

    return CallableMean(rescaled)


def standardising(kernel: Kernel, X: Tensor, y: Tensor, tasks: Tensor | None, rounding: float = 1e-13) -> Units:
    """Centre and scale of every column of X `[n, d]` and of the targets `[n]` of every task.

    Columns that share a hyperparameter (one lengthscale for several) share a scale, the root mean square of their
    standard deviations: what is isotropic in the user's units stays so. Columns of kernels with features of their own
    stay as they are: they may be numbers of nodes, or points of a sphere. Tasks share one where a part of the kernel is
    common to all of them. Scales of what does not vary are 1: numbers whose deviation is a smaller share of their size
    than `rounding` differ by it alone.
    """
    deviation = _deviation(X)
    deviation = torch.where(deviation > rounding * X.abs().amax(0), deviation, 0.0)
    scale = deviation.clone()
    columns = list(range(X.shape[1]))
    for group in _sharing_a_scale(kernel, columns):
        varying = deviation[group][deviation[group] > 0]
        scale[group] = varying.square().mean().sqrt() if len(varying) else 1.0
    scale = torch.where(scale > 0, scale, 1.0)
    as_given = [i for part, dims in _parts(kernel, columns) if part.by_own_features for i in dims]
    scale[as_given + [i for part, dims in _parts(kernel, columns) if part.whole for i in dims]] = 1.0
    level = X.mean(0)
    level[as_given] = 0.0
    t = kernel.num_outputs
    of = torch.zeros(len(y), dtype=torch.long, device=y.device) if tasks is None else tasks
    shared = t > 1 and any(B is None for B, _ in kernel.coupled())
    centre, spread = y.new_zeros(t), y.new_ones(t)
    for i in range(t):
        own = y[of == i]
        if len(own):
            centre[i] = own.mean()
            spread[i] = _deviation(own)
    spread = torch.where(spread > rounding * centre.abs(), spread, 0.0)
    if shared:
        spread = spread.square().mean().sqrt().expand(t)
    return Units(level, scale, centre, torch.where(spread > 0, spread, 1.0))


def _deviation(x: Tensor) -> Tensor:
    """The standard deviation of each column; squares of very large and very small numbers do not fit a float."""
    size = x.abs().amax(0).clamp_min(1e-300)
    return (x / size).std(0, correction=0) * size


def buffers(kernel: Kernel, units: Units) -> list[Buffer]:
    """Every tensor of a kernel expression that is a hyperparameter: all but whole numbers, and those of functions."""
    s = units.output_scale
    variance = s[0].square() if len(s) == 1 else s[:, None] * s
    return list(_walk(kernel, list(range(len(units.input_scale))), units.input_scale, variance, ""))


def with_tensors(kernel: Kernel, values: Sequence[Tensor]) -> Kernel:
    """The kernel expression with other values of the tensors that `buffers` lists."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    listed = [value for part in parts for value in part._buffers.values() if value is not None]
    listed = [value for value in listed if value.is_floating_point()]
    new = {id(old): value for old, value in zip(listed, values, strict=True)}
    return kernel.mapped(lambda old: new.get(id(old), old))


def _walk(kernel: Kernel, dims: list[int], scale: Tensor, variance: Tensor, prefix: str) -> Iterator[Buffer]:
    own, inner = _units(kernel, scale[dims], variance)
    for name, value in kernel._buffers.items():
        if value is not None and value.is_floating_point():
            yield Buffer(prefix + name, kernel, value, own.get(name, scale.new_ones(())), dims)
    for i, (where, part) in enumerate(kernel.operands()):  # the first factor of a product has its variance
        passed = inner if i == 0 or isinstance(kernel, Sum) else scale.new_ones(())
        yield from _walk(part, kernel.inner_dims(dims), scale, passed, prefix + where)


def _units(kernel: Kernel, scale: Tensor, variance: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The units of a kernel's own tensors, and the unit of variance that is left for its parts."""
    if variance.ndim and kernel.num_outputs == 1:  # a part that is shared by all tasks, whose scales are equal
        variance = variance[0, 0]
    own, inner = {}, variance
    for name, unit in kernel.units.items():
        value = getattr(kernel, name)
        if unit == "y^2" and value.ndim < variance.ndim:
            continue  # a number that multiplies a coupling, which has the variances
        number = {"x": scale, "1/x": 1 / scale, "y^2": variance}.get(unit)
        number = variance / scale.square() if number is None else number
        own[name] = number[0] if number.ndim and value.numel() == 1 else number
        inner = scale.new_ones(()) if unit == "y^2" else inner
    return own, inner


def _sharing_a_scale(kernel: Kernel, dims: list[int]) -> list[list[int]]:
    """Groups of columns that share a hyperparameter of length."""
    groups = [[i] for i in dims]
    for part, own in _parts(kernel, dims):
        shared = set(part.of_one_scale(own))
        hit = [g for g in groups if set(g) & shared]
        groups = [g for g in groups if g not in hit] + [sorted({i for g in hit for i in g})]
    return [g for g in groups if len(g) > 1]


def _parts(kernel: Kernel, dims: list[int]) -> Iterator[tuple[Kernel, list[int]]]:
    """The kernel and all parts of the expression, with the columns that each is about."""
    yield kernel, dims
    for _, part in kernel.operands():
        yield from _parts(part, kernel.inner_dims(dims))
