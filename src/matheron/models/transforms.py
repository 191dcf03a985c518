"""Transforms of inputs and outputs: Paths = output o (mean + prior + update) o input.

Most transforms act on each coordinate separately. Transforms of inputs may also be a `RowMap`, which maps points of d
coordinates to points of e coordinates, for example by selecting, encoding or multiplying columns.

Factors and summands of a transform are buffers, because the ONNX exporter rounds constants in the code to float32.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..core.boxes import Sobol
from ..core.checks import ArrayLike, as_array, as_tensor, positive
from ..core.jacobian import jacobian
from ..core.modes import transformed
from ..core.own_function import OwnFunction
from ..core.value import Parts, Value

# The number of points of a box at which a network is evaluated to find the image of the box.
_IMAGE_POINTS = 1 << 12


class Transform(Value):
    """A map of each coordinate, which is smooth and monotonic (except `Round`, `Imputed` and `Missing`).

    >>> import torch
    >>> from matheron import transforms
    >>> t = transforms.Affine(scale=2.0, offset=1.0)
    >>> x = torch.tensor([3.0])
    >>> t(x), t.inverse(t(x)), t.derivative(x)
    (tensor([7.]), tensor([3.]), tensor([2.], dtype=torch.float64))
    """

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Apply the map, `[..., d] -> [..., d]`; for a `RowMap`, `[..., d] -> [..., e]`."""

    @abstractmethod
    def inverse(self, y: Tensor) -> Tensor:
        """Apply the inverse map."""

    @abstractmethod
    def derivative(self, x: Tensor) -> Tensor:
        """Compute the derivative of each coordinate."""

    @property
    def affine(self) -> bool:
        """Whether the map is affine, so that means and variances pass through it."""
        return False

    @property
    def elementwise(self) -> bool:
        """Whether the map acts on each coordinate separately; a `RowMap` does not."""
        return True

    @property
    def known(self) -> bool:
        """Whether the map consists of torch operations only, and calls no function of another library."""
        return all(getattr(part, "saveable", True) for part in self.modules())

    def input_dim(self, output_dim: int) -> int:
        """Return d, the number of inputs, given e, the number of outputs."""
        return output_dim

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        """Compute the vector-Jacobian product: cotangent `[..., t, e]` times the Jacobian at x `[..., d]`."""
        return cotangent * self.derivative(x)[..., None, :]

    def image(self, box: Tensor) -> Tensor:
        """Return a box `[2, e]` that contains the image of the box `[2, d]`."""
        return self(box).sort(0).values


class Affine(Transform):
    """The map x -> scale * x + offset, where each is one number or one per coordinate.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Affine(2.0, [0.0, 1.0])(torch.ones(2)).tolist()
    [2.0, 3.0]
    """

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
    """The map x -> exp(x), the output transform for a model of log targets.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Exp()(torch.zeros(2))
    tensor([1., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def derivative(self, x: Tensor) -> Tensor:
        return x.exp()


class SignedExp(Transform):
    """The map x -> sign(x) (exp |x| - 1), the output transform for a model of targets sign(y) log(1 + |y|).

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.SignedExp()(torch.tensor([-1.0, 1.0]))
    tensor([-1.7183,  1.7183])
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x < 0, -torch.expm1(-x), torch.expm1(x))

    def inverse(self, y: Tensor) -> Tensor:
        return y.sign() * y.abs().log1p()

    def derivative(self, x: Tensor) -> Tensor:
        return x.abs().exp()


class Power(Transform):
    """The map x -> x^exponent.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Power(0.5)(torch.tensor([4.0, 9.0]))
    tensor([2., 3.])
    """

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
    """A transform of the coordinates where `mask` is true; the others do not change.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Masked(transforms.Exp(), [True, False])(torch.zeros(2))
    tensor([1., 0.])
    """

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
        """Replace the other coordinates by ones, so that neither a logarithm nor its gradient is computed for them."""
        return torch.where(self.mask, x, 1.0)

    @property
    def affine(self) -> bool:
        return self.transform.affine


class Log(Transform):
    """The map x -> log(x) / log(base) of the coordinates in `mask` (by default all), for inputs on a log scale.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Log(10.0)(torch.tensor([1.0, 100.0]))
    tensor([0., 2.])
    """

    def __init__(self, base: ArrayLike = math.e, mask: ArrayLike | None = None) -> None:
        super().__init__(base=positive(base, "base", max_ndim=0), mask=as_array(True if mask is None else mask).bool())

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.where(self.mask, x, 1.0)  # columns outside of the mask have no logarithm, and no gradient of one
        return torch.where(self.mask, inside.log() / self.base.log(), x)

    def inverse(self, y: Tensor) -> Tensor:
        return torch.where(self.mask, self.base**y, y)

    def derivative(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, 1 / (x * self.base.log()), 1.0)


class Kumaraswamy(Transform):
    """The map x -> 1 - (1 - x^a)^b on (0, 1), which is BoTorch's input warping.

    Each coordinate has its own concentrations a and b. `eps` keeps x inside the open interval, as in BoTorch.
    Coordinates that are not warped have a = b = 1 and are False in `mask`.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Kumaraswamy(2.0, 1.0)(torch.tensor([0.5]))
    tensor([0.2500])
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
        slope = slope * ((x >= 0) & (x <= 1))  # outside of [0, 1], where x is clamped, the map is constant
        return torch.where(self.mask, slope, 1.0)


class Round(Transform):
    """The map of inputs that are integers or categories to whole numbers, as in BoTorch.

    The coordinates of `mask` are rounded to the nearest whole number. In each of `groups`, the largest coordinate
    becomes 1 and the others 0. With `tau`, steps are hyperbolic tangents of that width. Without it, functions are
    constant between steps, and gradients pass straight through the rounding.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Round([True, False])(torch.tensor([1.2, 1.2]))
    tensor([1.0000, 1.2000])
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
    """Several transforms, applied in this order.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Chain([transforms.Affine(2.0), transforms.Power(2.0)])(torch.tensor([3.0]))
    tensor([36.])
    """

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
    """The inverse of a transform, the output transform for a model of transformed targets.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Inverse(transforms.Affine(2.0))(torch.tensor([6.0]))
    tensor([3.])
    """

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
    """The power transform of Yeo and Johnson (2000), with one power l for each coordinate.

    For x >= 0 the map is x -> ((x + 1)^l - 1) / l. For negative x it is x -> -((1 - x)^(2 - l) - 1) / (2 - l). If l or
    2 - l is zero, it is a logarithm.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.YeoJohnson(2.0)(torch.tensor([1.0])).tolist()
    [1.5]
    """

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
    """The power transform of Box and Cox (1964), x -> (x^l - 1) / l for x > 0, with one power l for each coordinate.

    If l is zero, it is the logarithm.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.BoxCox(2.0)(torch.tensor([3.0]))
    tensor([4.])
    """

    def __init__(self, power: ArrayLike) -> None:
        super().__init__(power=as_tensor(power, "power").double().clone())

    def forward(self, x: Tensor) -> Tensor:
        return _box_cox(x, self.power)

    def inverse(self, y: Tensor) -> Tensor:
        return _inverse_box_cox(y, self.power)

    def derivative(self, x: Tensor) -> Tensor:
        return x ** (self.power - 1)


def _box_cox(x: Tensor, power: Tensor) -> Tensor:
    """Compute (x^l - 1) / l as expm1(l log x) / l, which is accurate for small l."""
    zero = power.abs() < torch.finfo(torch.float64).eps
    safe, log = torch.where(zero, 1.0, power), x.log()
    return torch.where(zero, log, torch.expm1(safe * log) / safe)


def _inverse_box_cox(y: Tensor, power: Tensor) -> Tensor:
    zero = power.abs() < torch.finfo(torch.float64).eps
    safe = torch.where(zero, 1.0, power)
    return torch.where(zero, y, torch.log1p(safe * y) / safe).exp()


class Imputed(Transform):
    """The map that replaces `missing` coordinates (by default NaN) by `value`, one for each coordinate.

    The derivative in a missing coordinate is zero.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Imputed(0.5)(torch.tensor([torch.nan, 2.0]))
    tensor([0.5000, 2.0000])
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
    """The map to 1 where x is `missing` (by default NaN), and to 0 elsewhere; its derivative is zero.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Missing()(torch.tensor([torch.nan, 2.0]))
    tensor([1., 0.])
    """

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
    """A map of points `[..., d]` to points `[..., e]` for inputs; it need not have an inverse.

    Missing coordinates (NaN) stay missing, unless the map says otherwise.

    >>> import torch
    >>> from matheron.models.transforms import Projected, RowMap
    >>> isinstance(Projected([[1.0], [2.0]], [0.0]), RowMap)
    True
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
            f"{type(self).__name__}: this transform of inputs has no inverse, which is needed to convert the data to "
            "your units; transform inputs outside of the model"
        )

    def derivative(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__}: coordinates do not map one by one, so there is no derivative of each")

    def vjp(self, x: Tensor, cotangent: Tensor) -> Tensor:
        return cotangent @ jacobian(self, x)[1]  # [..., t, e] [..., e, d]


class Columns(RowMap):
    """Several transforms of some columns each: [T_1(x[..., columns_1]), T_2(x[..., columns_2]), ...].

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
    """The map to 1 where coordinate `columns[i]` equals `values[i]` and to 0 elsewhere, for each i.

    Numbers name categories. With `only_known`, numbers other than `values` are refused; otherwise they become zeros
    only. Where x is missing (NaN), the result is missing.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.OneHot([0.0, 1.0], [0, 0], 1, only_known=True)(torch.tensor([[1.0]]))
    tensor([[0., 1.]])
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
        return x.new_zeros(*cotangent.shape[:-1], self.num_inputs)  # the map is piecewise constant

    def image(self, box: Tensor) -> Tensor:
        return torch.tensor([[0.0], [1.0]], device="cpu").to(box).repeat(1, len(self.kept))


class Monomials(RowMap):
    """The map x -> prod_j x_j^powers[i, j], for each row i of the whole numbers `powers` `[e, d]`.

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
        """Multiply intervals, coordinate by coordinate."""
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
    """The map x -> x W + b with W `[d, e]` and b `[e]`, for example to principal components.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Projected([[1.0], [2.0]], [0.5])(torch.ones(3, 2))
    tensor([[3.5000],
            [3.5000],
            [3.5000]])
    """

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
    """A torch module or a function that maps points `[..., n, d]` to points `[..., n, e]`, as in deep kernels.

    It cannot be saved, because a file contains no code.

    >>> import torch
    >>> from matheron import transforms
    >>> transforms.Network(torch.sin, num_inputs=2)(torch.zeros(3, 2)).shape
    torch.Size([3, 2])
    """

    saveable = False
    instead_of_saving = OwnFunction.instead_of_saving

    def __init__(self, function: Callable[[Tensor], Tensor], num_inputs: int) -> None:
        super().__init__(called=OwnFunction(function))
        self.num_inputs = int(num_inputs)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.called(x.flatten(0, -2))  # layers such as BatchNorm1d take the second of three axes for channels
        return rows.unflatten(0, x.shape[:-1])

    @torch.no_grad()
    def takes_each_by_itself(self, x: Tensor) -> bool:
        """Whether the last of points `[..., n, d]` is mapped to the same where it is alone, as in blocks of points."""
        beside, alone = self(x)[..., -1:, :], self(x[..., -1:, :])
        return torch.allclose(beside, alone, rtol=1e-3, atol=1e-5, equal_nan=True)

    def image(self, box: Tensor) -> Tensor:
        """Estimate the image from points in the box, widened by a tenth, because a network has no known bounds."""
        u = Sobol(box.shape[1], seed=0).next(_IMAGE_POINTS).to(box)
        low, high = self(torch.cat([box, torch.lerp(box[0], box[1], u)])).aminmax(dim=0)
        return torch.stack([low - 0.1 * (high - low), high + 0.1 * (high - low)])


def as_map(
    function: Callable[[Tensor], Tensor], output_dim: int, input_dim: int | None = None, *, like: Tensor
) -> Transform:
    """Make a transform of inputs to `output_dim` coordinates from a module, a function or a transform.

    It has the dtype and the device of `like`.

    >>> import torch
    >>> from matheron.models.transforms import as_map
    >>> as_map(torch.sin, 2, like=torch.zeros(1))(torch.zeros(3, 2)).shape
    torch.Size([3, 2])
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
    some = torch.linspace(0, 0.9, 6 * d, dtype=like.dtype, device=like.device).reshape(-1, d)
    if isinstance(transform, Network) and not transform.takes_each_by_itself(some):
        raise ValueError(
            "network: expected a map of each point by itself, got one that maps a point to something else where it is "
            "alone; scale points by numbers of the training data, not by those of the points it is called with"
        )
    return transform


def chained(transforms: Sequence[Transform | None]) -> Transform | None:
    """Chain the transforms that are not None; the result is None if there are none.

    >>> from matheron.models.transforms import Exp, chained
    >>> chained([None, Exp(), None])
    Exp()
    """
    parts = [t for t in transforms if t is not None]
    return Chain(parts) if len(parts) > 1 else parts[0] if parts else None
