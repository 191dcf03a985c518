"""Transforms of inputs and outputs: Paths = output o (mean + prior + update) o input.

Numbers of a transform are buffers where they are factors or summands: the ONNX exporter rounds those in the code to
float32.

Most act on each coordinate by itself. Those of inputs may also be a `RowMap`, from points of d coordinates to points of
e others: columns that are chosen, encoded, multiplied with each other.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..core.checks import ArrayLike, as_array, as_tensor, positive
from ..core.jacobian import jacobian
from ..core.modes import Sobol, transformed
from ..core.own_function import OwnFunction
from ..core.value import Parts, Value

# Points of a box by which the image of a network is found.
_IMAGE_POINTS = 1 << 12


class Transform(Value):
    """A map of each coordinate on its own, smooth and increasing or decreasing (but for `Round`, `Imputed`)."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The map, `[..., d] -> [..., d]`; of a `RowMap` `[..., d] -> [..., e]`."""

    @abstractmethod
    def inverse(self, y: Tensor) -> Tensor:
        """Its inverse."""

    @abstractmethod
    def derivative(self, x: Tensor) -> Tensor:
        """Its derivative, coordinate by coordinate."""

    @property
    def affine(self) -> bool:
        """Whether means and variances pass through it."""
        return False

    @property
    def elementwise(self) -> bool:
        """Whether it acts on each coordinate by itself; a `RowMap` does not."""
        return True

    @property
    def known(self) -> bool:
        """Whether it is tensors throughout, and calls nothing else."""
        return all(getattr(part, "saveable", True) for part in self.modules())

    def input_dim(self, output_dim: int) -> int:
        """d, given e."""
        return output_dim

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        """cotangent `[..., t, e]` times the Jacobian at x `[..., d]`: `[..., t, d]`."""
        return cotangent * self.derivative(x)[..., None, :]

    def image(self, box: Tensor) -> Tensor:
        """A box `[2, e]` that holds the image of the box `[2, d]`."""
        return self(box).sort(0).values


class Affine(Transform):
    """x -> scale * x + offset, each a number or one per coordinate."""

    def __init__(self, scale: ArrayLike = 1.0, offset: ArrayLike = 0.0) -> None:
        super().__init__(
            scale=as_tensor(scale, "scale").double().clone(), offset=as_tensor(offset, "offset").double().clone()
        )
        if bool((self.scale == 0).any()):
            raise ValueError("scale: expected numbers other than zero")

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.offset

    def inverse(self, y: Tensor) -> Tensor:
        return (y - self.offset) / self.scale

    def derivative(self, x: Tensor) -> Tensor:
        return self.scale.expand_as(x)

    @property
    def affine(self) -> bool:
        return True


class Exp(Transform):
    """x -> exp(x): undoes a model of log targets."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def derivative(self, x: Tensor) -> Tensor:
        return x.exp()


class SignedExp(Transform):
    """x -> sign(x) (exp |x| - 1): undoes a model of targets sign(y) log(1 + |y|)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, -torch.expm1(-x), torch.expm1(x))

    def inverse(self, y: Tensor) -> Tensor:
        return y.sign() * y.abs().log1p()

    def derivative(self, x: Tensor) -> Tensor:
        return x.abs().exp()


class Power(Transform):
    """x -> x^exponent."""

    fields = ("exponent",)

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = float(exponent)
        if self.exponent == 0 or not math.isfinite(self.exponent):
            raise ValueError(f"exponent: expected a number other than zero, got {exponent!r}")

    def forward(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def derivative(self, x: Tensor) -> Tensor:
        return self.exponent * x ** (self.exponent - 1)


class Masked(Transform):
    """A transform of the coordinates where `mask` is true; the others are left alone."""

    def __init__(self, transform: Transform, mask: ArrayLike) -> None:
        super().__init__(mask=as_array(mask).bool())
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, self.transform(self._inside(x)), x)

    def inverse(self, y: Tensor) -> Tensor:
        return torch.where(self.mask, self.transform.inverse(self._inside(y)), y)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, self.transform.derivative(self._inside(x)), 1.0)

    def _inside(self, x: Tensor) -> Tensor:
        """No logarithm, and no gradient of one, of what is left alone."""
        return torch.where(self.mask, x, 1.0)

    @property
    def affine(self) -> bool:
        return self.transform.affine


class Log(Transform):
    """x -> log(x) / log(base), in the coordinates of `mask`, all where not given: for inputs on a log scale."""

    def __init__(self, base: ArrayLike = math.e, mask: ArrayLike | None = None) -> None:
        super().__init__(base=positive(base, "base", max_ndim=0), mask=as_array(True if mask is None else mask).bool())

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.where(self.mask, x, 1.0)  # no logarithm, and no gradient of one, of what is left alone
        return torch.where(self.mask, inside.log() / self.base.log(), x)

    def inverse(self, y: Tensor) -> Tensor:
        return torch.where(self.mask, self.base**y, y)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, 1 / (x * self.base.log()), 1.0)


class Kumaraswamy(Transform):
    """x -> 1 - (1 - x^a)^b on (0, 1), concentrations a and b per coordinate: BoTorch's input warping.

    `eps` keeps x inside the open interval, as BoTorch does; coordinates not warped have a = b = 1 and `mask` False.
    """

    def __init__(self, a: ArrayLike, b: ArrayLike, mask: ArrayLike | None = None, eps: ArrayLike = 1e-7) -> None:
        super().__init__(a=positive(a, "a"), b=positive(b, "b"), eps=positive(eps, "eps", zero=True, max_ndim=0))
        self.register_buffer("mask", torch.ones_like(self.a).bool() if mask is None else as_array(mask).bool())

    def _inside(self, x: Tensor) -> Tensor:
        return (x + self.eps * (1 - 2 * x)).clamp(self.eps, 1 - self.eps)

    def forward(self, x: Tensor) -> Tensor:
        u = self._inside(x)
        return torch.where(self.mask, 1 - (1 - u**self.a) ** self.b, x)

    def inverse(self, y: Tensor) -> Tensor:
        u = (1 - (1 - y) ** (1 / self.b)) ** (1 / self.a)
        return torch.where(self.mask, (u - self.eps) / (1 - 2 * self.eps), y)

    def derivative(self, x: Tensor) -> Tensor:
        u = self._inside(x)
        slope = self.a * self.b * u ** (self.a - 1) * (1 - u**self.a) ** (self.b - 1) * (1 - 2 * self.eps)
        slope = slope * ((x >= 0) & (x <= 1))  # outside, where x is clamped, the map is flat
        return torch.where(self.mask, slope, 1.0)


class Round(Transform):
    """x -> the nearest whole number, in the coordinates of `mask`, and of each of `groups` the largest coordinate 1 and
    the others 0: BoTorch's transform of inputs that are integers, or choices.

    With `tau` steps are hyperbolic tangents of that width. Without it gradients pass straight through, as in BoTorch:
    functions of rounded inputs are flat between their steps.
    """

    fields = ("groups",)

    def __init__(self, mask: ArrayLike, groups: Sequence[Sequence[int]] = (), tau: ArrayLike | None = None) -> None:
        width = None if tau is None else positive(tau, "tau", max_ndim=0)
        super().__init__(mask=as_array(mask).bool(), tau=width)
        self.groups = [list(group) for group in groups]

    def forward(self, x: Tensor) -> Tensor:
        if self.tau is not None:
            floor = x.floor()
            return torch.where(self.mask, floor + 0.5 * (1 + torch.tanh((x - floor - 0.5) / self.tau)), x)
        with torch.no_grad():
            rounded = torch.where(self.mask, x.round(), x)
            for group in self.groups:
                largest = x[..., group].argmax(-1)
                rounded[..., group] = torch.nn.functional.one_hot(largest, len(group)).to(x)
        return rounded + (x - x.detach())

    def inverse(self, y: Tensor) -> Tensor:
        return y

    def derivative(self, x: Tensor) -> Tensor:
        if self.tau is None:
            return torch.ones_like(x)
        inner = torch.tanh((x - x.floor() - 0.5) / self.tau)
        return torch.where(self.mask, (1 - inner.square()) / (2 * self.tau), 1.0)


class Chain(Transform):
    """Several transforms, the first applied first."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        super().__init__()
        self.transforms = Parts(transforms)

    def forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def inverse(self, y: Tensor) -> Tensor:
        for transform in reversed(list(self.transforms)):
            y = transform.inverse(y)
        return y

    def derivative(self, x: Tensor) -> Tensor:
        slope = torch.ones_like(x)
        for transform in self.transforms:
            slope, x = slope * transform.derivative(x), transform(x)
        return slope

    @property
    def affine(self) -> bool:
        return all(t.affine for t in self.transforms)

    @property
    def elementwise(self) -> bool:
        return all(t.elementwise for t in self.transforms)

    def input_dim(self, output_dim: int) -> int:
        for transform in reversed(list(self.transforms)):
            output_dim = transform.input_dim(output_dim)
        return output_dim

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        points = [x]
        for transform in self.transforms:
            points.append(transform(points[-1]))
        for transform, point in zip(reversed(list(self.transforms)), reversed(points[:-1]), strict=True):
            cotangent = transform.vjp(point, cotangent)
        return cotangent

    def image(self, box: Tensor) -> Tensor:
        for transform in self.transforms:
            box = transform.image(box)
        return box


class Inverse(Transform):
    """The inverse of a transform, as a transform: undoes a model of targets that it was applied to."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        return self.transform.inverse(x)

    def inverse(self, y: Tensor) -> Tensor:
        return self.transform(y)

    def derivative(self, x: Tensor) -> Tensor:
        return 1 / self.transform.derivative(self.transform.inverse(x))

    @property
    def affine(self) -> bool:
        return self.transform.affine


class YeoJohnson(Transform):
    """x -> ((x + 1)^l - 1) / l where x >= 0, and -((1 - x)^(2 - l) - 1) / (2 - l) below; logarithms where l, or 2 - l,
    is zero (Yeo and Johnson, 2000). One power l for each coordinate."""

    def __init__(self, power: ArrayLike) -> None:
        super().__init__(power=as_tensor(power, "power").double().clone())

    def forward(self, x: Tensor) -> Tensor:
        below = x < 0
        magnitude = _box_cox(torch.where(below, 1 - x, 1 + x), torch.where(below, 2 - self.power, self.power))
        return torch.where(below, -magnitude, magnitude)

    def inverse(self, y: Tensor) -> Tensor:
        below = y < 0
        magnitude = _inverse_box_cox(torch.where(below, -y, y), torch.where(below, 2 - self.power, self.power)) - 1
        return torch.where(below, -magnitude, magnitude)

    def derivative(self, x: Tensor) -> Tensor:
        return (1 + x.abs()) ** (torch.where(x < 0, 2 - self.power, self.power) - 1)


class BoxCox(Transform):
    """x -> (x^l - 1) / l, for positive x; the logarithm where l is zero (Box and Cox, 1964). One power l for each
    coordinate."""

    def __init__(self, power: ArrayLike) -> None:
        super().__init__(power=as_tensor(power, "power").double().clone())

    def forward(self, x: Tensor) -> Tensor:
        return _box_cox(x, self.power)

    def inverse(self, y: Tensor) -> Tensor:
        return _inverse_box_cox(y, self.power)

    def derivative(self, x: Tensor) -> Tensor:
        return x ** (self.power - 1)


def _box_cox(x: Tensor, power: Tensor) -> Tensor:
    """(x^l - 1) / l = expm1(l log x) / l, which has its digits for small l."""
    zero = power.abs() < torch.finfo(torch.float64).eps
    safe, log = torch.where(zero, 1.0, power), x.log()
    return torch.where(zero, log, torch.expm1(safe * log) / safe)


def _inverse_box_cox(y: Tensor, power: Tensor) -> Tensor:
    zero = power.abs() < torch.finfo(torch.float64).eps
    safe = torch.where(zero, 1.0, power)
    return torch.where(zero, y, torch.log1p(safe * y) / safe).exp()


class Imputed(Transform):
    """x, or `value` where x is `missing`: NaN where that is None. One value for each coordinate.

    A missing coordinate has no slope.
    """

    def __init__(self, value: ArrayLike, missing: ArrayLike | None = None) -> None:
        super().__init__(value=as_tensor(value, "value").double().clone(), missing=_number(missing))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(_is_missing(x, self.missing), self.value.to(x), x)

    def inverse(self, y: Tensor) -> Tensor:
        return y

    def derivative(self, x: Tensor) -> Tensor:
        return (~_is_missing(x, self.missing)).to(x)

    def image(self, box: Tensor) -> Tensor:
        value = self.value.to(box)
        return torch.stack([torch.minimum(box[0], value), torch.maximum(box[1], value)])


class Missing(Transform):
    """1 where x is `missing` (NaN where that is None), and 0 elsewhere: flat."""

    def __init__(self, missing: ArrayLike | None = None) -> None:
        super().__init__(missing=_number(missing))

    def forward(self, x: Tensor) -> Tensor:
        return _is_missing(x, self.missing).to(x)

    def inverse(self, y: Tensor) -> Tensor:
        raise TypeError("Missing: where numbers are missing does not tell what they were, so there is no inverse")

    def derivative(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def image(self, box: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(box[0]), torch.ones_like(box[1])])


def _number(missing: ArrayLike | None) -> Tensor | None:
    return None if missing is None else as_tensor(missing, "missing").double().reshape(()).clone()


def _is_missing(x: Tensor, missing: Tensor | None) -> Tensor:
    return x.isnan() if missing is None else x == missing


class RowMap(Transform):
    """A map of points `[..., d]` to points `[..., e]`, each by itself, of inputs: it need not have an inverse.

    What is missing (NaN) stays missing, unless the map says what to do with it.
    """

    fields = ("num_inputs",)
    num_inputs: int

    @property
    def elementwise(self) -> bool:
        return False

    def input_dim(self, output_dim: int) -> int:
        return self.num_inputs

    def inverse(self, y: Tensor) -> Tensor:
        raise TypeError(
            f"{type(self).__name__}: this transform of inputs has no inverse, which is needed to know the data in your "
            "units; transform inputs outside of the model"
        )

    def derivative(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__}: coordinates do not map one by one, so there is no derivative of each")

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent @ jacobian(self, x)[1]  # [..., t, e] [..., e, d]


class Columns(RowMap):
    """Transforms of some columns each, side by side: [T_1(x[..., columns_1]), T_2(x[..., columns_2]), ...].

    >>> import torch
    >>> from matheron.models.transforms import Columns, Exp, Affine
    >>> Columns([Exp(), Affine(2.0)], [[0], [2, 0]], num_inputs=3)(torch.tensor([[0.0, 1.0, 4.0]]))
    tensor([[1., 8., 0.]])
    """

    fields = ("num_inputs", "columns")

    def __init__(self, transforms: Sequence[Transform], columns: Sequence[Sequence[int]], num_inputs: int) -> None:
        super().__init__()
        self.transforms = Parts(transforms)
        self.columns = [[int(c) for c in some] for some in columns]
        self.num_inputs = int(num_inputs)
        self.check()

    def check(self) -> None:
        if len(self.transforms) != len(self.columns):
            raise ValueError(f"columns: expected {len(self.transforms)} lists, one a transform, got {self.columns}")
        if any(not 0 <= c < self.num_inputs for some in self.columns for c in some):
            raise ValueError(f"columns: expected whole numbers below {self.num_inputs}, got {self.columns}")

    def _each(self) -> list[tuple[Transform, list[int]]]:
        return list(zip(self.transforms, self.columns, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([transform(x[..., some]) for transform, some in self._each()], dim=-1)

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        total, first = x.new_zeros(*cotangent.shape[:-1], self.num_inputs), 0
        for transform, some in self._each():
            own = x[..., some]
            count = transform(own).shape[-1]
            mine = cotangent[..., first : first + count]
            total.index_add_(-1, torch.tensor(some, device=x.device), transform.vjp(own, mine))
            first += count
        return total

    def image(self, box: Tensor) -> Tensor:
        return torch.cat([transform.image(box[:, some]) for transform, some in self._each()], dim=-1)


class OneHot(RowMap):
    """1 where coordinate `columns[i]` equals `values[i]`, and else 0, for each i: numbers that name categories.

    With `only_known` other numbers than `values` are refused; else they are zeros throughout. Where x is missing (NaN),
    so is y.
    """

    fields = ("num_inputs", "columns", "kept", "only_known")

    def __init__(
        self,
        values: ArrayLike,
        columns: Sequence[int],
        num_inputs: int,
        *,
        only_known: bool,
        kept: Sequence[int] | None = None,
    ) -> None:
        super().__init__(values=as_tensor(values, "values").double().clone())
        self.columns, self.num_inputs, self.only_known = [int(c) for c in columns], int(num_inputs), bool(only_known)
        self.kept = list(range(len(self.columns))) if kept is None else [int(k) for k in kept]
        self.check()

    def check(self) -> None:
        if len(self.values) != len(self.columns) or any(not 0 <= k < len(self.columns) for k in self.kept):
            raise ValueError(f"columns: expected {len(self.values)}, one a category, got {len(self.columns)}")
        if any(not 0 <= c < self.num_inputs for c in self.columns):
            raise ValueError(f"columns: expected whole numbers below {self.num_inputs}, got {self.columns}")

    def forward(self, x: Tensor) -> Tensor:
        each = x[..., self.columns]  # [..., k]
        equal = each == self.values.to(x)
        if self.only_known and not transformed():
            for column in dict.fromkeys(self.columns):
                own = [i for i, c in enumerate(self.columns) if c == column]
                unknown = ~equal[..., own].any(-1) & ~x[..., column].isnan()
                if bool(unknown.any()):
                    raise ValueError(
                        f"x: expected a category of column {column}, one of {self.values[own].tolist()}, got "
                        f"{x[..., column][unknown][0].item():g}"
                    )
        return torch.where(each.isnan(), each, equal.to(x))[..., self.kept]

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        return x.new_zeros(*cotangent.shape[:-1], self.num_inputs)  # flat

    def image(self, box: Tensor) -> Tensor:
        return torch.tensor([[0.0], [1.0]], device="cpu").to(box).repeat(1, len(self.kept))


class Monomials(RowMap):
    """x -> prod_j x_j^powers[i, j], for each of the rows i of whole `powers` `[e, d]`.

    >>> import torch
    >>> from matheron.models.transforms import Monomials
    >>> Monomials([[0, 0], [1, 0], [1, 2]])(torch.tensor([[2.0, 3.0]]))
    tensor([[ 1.,  2., 18.]])
    """

    def __init__(self, powers: ArrayLike) -> None:
        super().__init__(powers=as_array(powers).long())
        self.num_inputs = self.powers.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        return (x[..., None, :] ** self.powers).prod(-1)

    def image(self, box: Tensor) -> Tensor:
        """Products of intervals, coordinate by coordinate."""
        ends = box[:, None] ** self.powers  # [2, e, d]
        low, high = ends.amin(0), ends.amax(0)
        inside = (box[0] < 0) & (box[1] > 0) & (self.powers > 0)
        low = torch.where(inside & (self.powers % 2 == 0), 0.0, low)
        lower = upper = torch.ones_like(low[:, 0])
        for j in range(self.num_inputs):
            products = torch.stack([a * b for a in (lower, upper) for b in (low[:, j], high[:, j])])
            lower, upper = products.amin(0), products.amax(0)
        return torch.stack([lower, upper])


class Projected(RowMap):
    """x -> x W + b, with W `[d, e]` and b `[e]`: principal components, whitening."""

    def __init__(self, W: ArrayLike, b: ArrayLike) -> None:
        super().__init__(W=as_tensor(W, "W").double().clone(), b=as_tensor(b, "b").double().clone())
        self.num_inputs = self.W.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.W.to(x) + self.b.to(x)

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent @ self.W.to(x).mT

    def image(self, box: Tensor) -> Tensor:
        centre, half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2
        middle, reach = self(centre), half @ self.W.to(box).abs()
        return torch.stack([middle - reach, middle + reach])


class Network(RowMap):
    """A torch module, or a function of one's own, from points `[..., n, d]` to points `[..., n, e]`.

    These are the features that a network learned, before a kernel. It cannot be saved: a file holds no code.
    """

    saveable = False
    instead_of_saving = OwnFunction.instead_of_saving

    def __init__(self, function: Callable[[Tensor], Tensor], num_inputs: int) -> None:
        super().__init__(called=OwnFunction(function))
        self.num_inputs = int(num_inputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.called(x)

    def image(self, box: Tensor) -> Tensor:
        """Of points that fill the box, and a tenth of its sides more: a network says no bounds."""
        u = Sobol(box.shape[1], seed=0).next(_IMAGE_POINTS).to(box)
        low, high = self(torch.cat([box, torch.lerp(box[0], box[1], u)])).aminmax(dim=0)
        return torch.stack([low - 0.1 * (high - low), high + 0.1 * (high - low)])


def as_map(
    function: Callable[[Tensor], Tensor], output_dim: int, input_dim: int | None = None, *, like: Tensor
) -> Transform:
    """A transform of inputs from a module, a function or a transform, to points of `output_dim` coordinates.

    It is of the dtype and on the device of `like`.
    """
    if not callable(function):
        raise TypeError(f"network: expected a torch module or a function of points, got {type(function).__name__}")
    if isinstance(function, Transform):
        transform, d = function, function.input_dim(output_dim)
    else:
        layers = function.modules() if isinstance(function, nn.Module) else []
        widths = [int(width) for layer in layers if (width := getattr(layer, "in_features", None)) is not None]
        d = input_dim if input_dim is not None else (widths or [output_dim])[0]
        transform = Network(function, d)
    transform = transform.to(like.device, like.dtype)
    try:
        with torch.no_grad():
            shape = list(transform(like.new_zeros(2, 3, d)).shape)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"network: expected a map of points [..., n, {d}], got an error for [2, 3, {d}]: {error}; give input_dim="
        ) from error
    if shape != [2, 3, output_dim] or input_dim not in (None, d):
        raise ValueError(
            f"network: expected a map from [..., n, {input_dim or d}] to [..., n, {output_dim}], the functions' own, "
            f"got {shape} for [2, 3, {d}]; input_dim= says what it takes"
        )
    return transform


def chained(transforms: Sequence[Transform | None]) -> Transform | None:
    """Those that are not None, one after the other; None where there are none."""
    parts = [t for t in transforms if t is not None]
    return Chain(parts) if len(parts) > 1 else parts[0] if parts else None
