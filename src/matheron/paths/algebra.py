"""Functions that are made of functions: sums, products, maps, compositions, outputs side by side, some of the outputs.

    LinearCombination   sum_i w_i f_i + b        one record, and so one evaluation, where the f_i allow it
    PointwiseProduct    f_1 f_2 ...
    Mapped              phi(f)                   torch.sigmoid, exp, a module, a transform
    Composition         f(g(x))
    Stack, Selection    (f_1, f_2, ...) and some of the outputs; of paths these are paths (`multi_model.py`)
    PosteriorMean       the posterior mean of paths, as a function

All have their parts in `functions`. If no single record represents the combination, its parts are evaluated one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import ClassVar, Self, cast, final

import torch
from torch import Tensor

from ..core.checks import Names, as_tensor, common_names
from ..core.functionals import Functionals
from ..core.jacobian import jacobian
from ..core.modes import outside
from ..core.own_function import OwnFunction
from ..core.value import Parts, Value
from ..evaluate import (
    Canonical,
    Float64Term,
    PathTerm,
    Products,
    Record,
    Recorder,
    WeightedSum,
    values,
    values_and_gradients,
)
from ..models.means import ConstantMean, LinearMean, Mean, Mixed, Stacked
from ..models.transforms import Transform, chained
from .arithmetic import AbstractFunctions, require_functions
from .grids import grid_values, slabs, write_by_points, write_by_record, write_in_slabs
from .paths import AbstractPaths


class _OverSameInputs(Value):
    """Functions over the same inputs, `_parts`. A property is that of the first part, and the others must agree."""

    @property
    def _parts(self) -> Parts[AbstractFunctions]:
        raise NotImplementedError

    def check(self) -> None:
        if len(self._parts) == 0:
            raise ValueError("expected at least one function, got none")
        dims = {f.input_dim for f in self._parts}
        if len(dims) > 1:
            raise ValueError(f"expected functions of as many inputs, got {sorted(dims)}")
        common_names(self._parts)

    @property
    def input_names(self) -> Names:
        return common_names(self._parts)

    @property
    def num_paths(self) -> int:
        return self._parts[0].num_paths

    @property
    def num_outputs(self) -> int:
        return self._parts[0].num_outputs

    @property
    def _origin(self) -> Tensor:
        return self._parts[0]._origin

    def _takes(self, x: Tensor) -> bool:
        return all(f._takes(x.to(f.dtype)) for f in self._parts)


class _Recorded(AbstractFunctions):
    """Functions that are evaluated by one record if there is one, and otherwise by methods of their own."""

    def _whole(self) -> Record | None:
        """The combination as one record; None if the functions are evaluated one by one."""
        return None

    def _records(self) -> list[Record] | None:
        whole = self._whole()
        return None if whole is None else [whole]

    def _values(self, x: Tensor) -> Tensor:
        record = self._whole()
        return self._values_of_parts(x) if record is None else record.outer(values(record, record.inner(x)))

    def _values_and_gradients(self, x: Tensor, of: Tensor | None = None) -> tuple[Tensor, Tensor]:
        record = self._whole()
        if record is None:
            return self._values_and_gradients_of_parts(x, of)
        return record.chained(x, *values_and_gradients(record, record.inner(x), of))

    def _on_grid(self, axes: list[Tensor], out: Tensor) -> None:
        record = self._whole()
        if record is None:
            return self._on_grid_of_parts(axes, out)
        write_by_record(record, axes, out)

    def _values_of_parts(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _values_and_gradients_of_parts(self, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _on_grid_of_parts(self, axes: list[Tensor], out: Tensor) -> None:
        raise NotImplementedError


class Combined(_OverSameInputs, _Recorded):
    """Functions that are made of others, path by path: `functions`, over the same inputs."""

    functions: Parts[AbstractFunctions]

    @property
    def _parts(self) -> Parts[AbstractFunctions]:
        return self.functions

    def __init__(self, functions: Sequence[AbstractFunctions], **members: Tensor | Value | None) -> None:
        for each in functions:
            require_functions(each, "functions")
        super().__init__(**members)
        self.functions = Parts(functions)

    def check(self) -> None:
        super().check()
        _check_paired(self.functions)

    @property
    def _origin(self) -> Tensor:
        """Of the first function, in the dtype with the most digits."""
        origin = self.functions[0]._origin
        return origin.double() if any(f.dtype == torch.float64 for f in self.functions) else origin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.functions))})"

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        """From each function's values `[s, n, t_i]`, or of the paths `of` `[p, n, t_i]`, to `[s or p, n, t]`."""
        raise NotImplementedError

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same with their gradients `[s or p, n, t_i, d]`."""
        raise NotImplementedError

    def _values_of_parts(self, x: Tensor) -> Tensor:
        return self._combine([f._values(x.to(f.dtype)).to(x.dtype) for f in self.functions], None)

    def _values_and_gradients_of_parts(self, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        pairs = [f._values_and_gradients(x.to(f.dtype), of) for f in self.functions]
        each, slopes = ([part.to(x.dtype) for part in parts] for parts in zip(*pairs, strict=True))
        return self._combine_gradients(each, slopes, of)

    def _on_grid_of_parts(self, axes: list[Tensor], out: Tensor) -> None:
        numbers = self.num_paths * (self.num_outputs + sum(f.num_outputs for f in self.functions))
        for cut, slab in slabs(axes, numbers):
            each = [grid_values(f, slab).to(out.dtype).flatten(1, -2) for f in self.functions]  # [s, n, t_i]
            out[:, cut] = self._combine(each, None).unflatten(1, [len(axis) for axis in slab])

    def _with(self, functions: Sequence[AbstractFunctions]) -> Self:
        return self.replaced(functions=Parts(functions))

    def _chosen(self, index: Tensor) -> Self:
        return self._with([f._chosen(index) for f in self.functions])

    def _of(self, transform: Transform) -> Self:
        return self._with([f._of(transform) for f in self.functions])


class _Linear(Combined):
    """Linear combinations of the outputs of functions: means are combined as values are."""

    def _mean(self, x: Tensor) -> Tensor:
        return self._combined(lambda f: f._mean(x.to(f.dtype)))

    def _variance(self, x: Tensor) -> Tensor:
        return self._combined(lambda f: f._variance(x.to(f.dtype)))

    def _variance_of(self, functionals: Functionals) -> Tensor:
        return self._combined(lambda f: f._variance_of(functionals))

    def _combined(self, law: Callable[[AbstractFunctions], Tensor]) -> Tensor:
        """From `[n, t_i]` of each function, or `[s, n, t_i]` where paths differ in it, to the same of all."""
        each = [law(f).to(self.dtype) for f in self.functions]
        rows = self.num_paths if any(part.ndim == 3 for part in each) else 1
        out = self._combine([part.expand(rows, *part.shape[-2:]) for part in each], None)
        return out[0] if len(out) == 1 else out


def _check_paired(functions: Iterable[AbstractFunctions]) -> None:
    """ValueError where functions cannot be paired, path by path: they have other numbers of paths, or devices."""
    counts = [f.num_paths for f in functions]
    if len(set(counts)) > 1:
        few, most = min(counts), max(counts)
        advice = f"repeat it, f[[0] * {most}]" if few == 1 else f"choose {few} of the others, g[:{few}]"
        raise ValueError(
            f"expected as many paths of every function, which are paired one by one, got {counts}; {advice}"
        )
    devices = {f.device for f in functions}
    if len(devices) > 1:
        raise ValueError(f"expected functions on one device, got {sorted(map(str, devices))}; move some with .to()")


def _common_outputs(functions: Iterable[AbstractFunctions]) -> int:
    """The number of outputs of functions that are combined output by output: as many each, or one."""
    counts = {f.num_outputs for f in functions}
    if len(counts - {1}) > 1:
        raise ValueError(f"expected functions of as many outputs, or of one, got {sorted(counts - {1})}")
    return max(counts)


# Sums.


@final
class LinearCombination(_Linear):
    """h = sum_i w_i f_i + b: weights w `[k, s or 1, t or 1]` of k functions, and a level b `[s or 1, t or 1]`.

    Where transforms, origin and dtype of the functions agree, their terms, scaled, are one record, and h costs what
    they cost together; terms with the same basis functions are added. Else they are evaluated side by side.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1) for _ in range(2))
    >>> h = 2 * f - g / 3 + 1
    >>> h(torch.rand(5, 1)).shape, h.mean([[0.0]])
    (torch.Size([4, 5]), tensor([1.], dtype=torch.float64))
    """

    shapes = "weights: k r c, level: p q"
    _without_update: ClassVar[str] = (
        "an observation of a sum does not say what each function is there. Give data to these, and add them again"
    )

    def __init__(self, functions: Sequence[AbstractFunctions], weights: Tensor, level: Tensor) -> None:
        super().__init__(functions, weights=weights, level=level)
        self.check()

    def check(self) -> None:
        super().check()
        _common_outputs(self.functions)
        s, t = self.num_paths, self.num_outputs
        shapes = [self.weights.shape[1:], self.level.shape]
        if len(self.weights) != len(self.functions) or any(r not in (1, s) or c not in (1, t) for r, c in shapes):
            raise ValueError(f"LinearCombination: expected weights of {len(self.functions)} functions, {s} paths")

    @property
    def num_outputs(self) -> int:
        return _common_outputs(self.functions)

    def __repr__(self) -> str:
        parts = [f"{_shown(w)} * {f!r}" for w, f in zip(self.weights, self.functions, strict=True)]
        return " + ".join([*parts, *([_shown(self.level)] if bool(self.level.any()) else [])])

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        weights, level = self.weights, self.level
        if of is not None:
            weights, level = (part if part.shape[-2] == 1 else part.index_select(-2, of) for part in (weights, level))
        return reduce(torch.add, (w[:, None] * f for w, f in zip(weights, each, strict=True))) + level[:, None]

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        weights = self.weights if of is None or self.weights.shape[1] == 1 else self.weights[:, of]
        slope = reduce(torch.add, (w[:, None, :, None] * df for w, df in zip(weights, slopes, strict=True)))
        return self._combine(each, of), slope

    def _whole(self) -> Record | None:
        return _merged_record(self)

    def _variance(self, x: Tensor) -> Tensor:
        return _Linear._variance(self._squared(), x)

    def _variance_of(self, functionals: Functionals) -> Tensor:
        return _Linear._variance_of(self._squared(), functionals)

    def _squared(self) -> Self:
        """The combination of variances that is the variance."""
        if len(self.functions) > 1:
            raise TypeError(
                "variance: that of a sum depends on how its functions vary together, which has no closed form; "
                "use samples=True for an estimate"
            )
        return self.replaced(weights=self.weights.square(), level=torch.zeros_like(self.level))

    def _chosen(self, index: Tensor) -> Self:
        weights, level = (
            part if part.shape[-2] == 1 else part.index_select(-2, index) for part in (self.weights, self.level)
        )
        functions = Parts([f._chosen(index) for f in self.functions])
        return self.replaced(functions=functions, weights=weights, level=level)


def linear_combination(
    functions: Sequence[AbstractFunctions], weights: Sequence[float | Tensor], level: float | Tensor = 0.0
) -> LinearCombination:
    """sum_i w_i f_i + b, where sums among the functions are taken apart, and a function that comes twice is one."""
    s, t = functions[0].num_paths, _common_outputs(functions)
    like = functions[0]._origin
    like = like.double() if any(f.dtype == torch.float64 for f in functions) else like
    total = _as_rows(level, s, t, like)
    found: dict[int, tuple[AbstractFunctions, Tensor]] = {}
    for function, number in zip(functions, weights, strict=True):
        weight = _as_rows(number, s, t, like)
        several = isinstance(function, LinearCombination) and function.num_paths == s
        parts = list(zip(function.functions, function.weights, strict=True)) if several else [(function, None)]
        if several:
            total = total + weight * function.level
        for part, own in parts:
            mine = weight if own is None else weight * own
            known = found.get(id(part))
            found[id(part)] = (part, mine if known is None else known[1] + mine)
    each = torch.broadcast_tensors(*(weight for _, weight in found.values()))
    return LinearCombination([f for f, _ in found.values()], torch.stack(each), total)


def _as_rows(number: float | Tensor, s: int, t: int, like: Tensor) -> Tensor:
    """A number, or one for each path `[s]`, or `[s or 1, t]`: `[s or 1, t or 1]`."""
    given = as_tensor(number, "number", like=like)
    if given.ndim == 0:
        return given.reshape(1, 1)
    rows = given[:, None] if given.ndim == 1 else given
    if rows.ndim != 2 or rows.shape[0] not in (1, s) or rows.shape[1] not in (1, t):
        raise ValueError(
            f"number: expected one, one for each path [{s}], or for each output too [{s} or 1, {t}], got "
            f"{list(given.shape)}"
        )
    return rows


def _shown(numbers: Tensor) -> str:
    return f"{numbers.item():.6g}" if numbers.numel() == 1 else f"<{'x'.join(map(str, numbers.shape))} numbers>"


# A linear combination of records as one record.


def _merge(combination: LinearCombination) -> Record | None:
    """One record of sum_i w_i o_i(m_i + terms_i) + b, for affine o_i: terms are scaled, means and levels added.

    None where there is no such record: the functions are evaluated side by side.
    """
    records = [f._records() or [] for f in combination.functions]
    if any(len(each) != 1 for each in records) or combination.requires_graph():
        return None
    (first, *others), t = [record for (record,) in records], combination.num_outputs
    if first.requires_grad or any(not _fit(first, other) for other in others):
        return None
    like, level = first.origin, combination.level
    terms: list[PathTerm] = []
    means: list[tuple[Mean, Tensor]] = []
    for record, w in zip([first, *others], combination.weights, strict=True):  # w [s or 1, t or 1]
        transform = record.output_transform
        if transform is not None:
            if not transform.affine:
                return None
            zero = like.new_zeros(1, t)
            level, w = level + w * transform(zero), w * transform.derivative(zero)
        scaled = [_scaled(term, w) for term in record.terms]
        if any(term is None for term in scaled):
            return None
        terms += [term for term in scaled if term is not None]
        if isinstance(record.mean, ConstantMean):
            level = level + w * record.mean.value
        elif len(w) == 1:
            means.append((record.mean, w))
        else:  # the weights differ between paths, but a record has the same mean for all of them
            return None
    if not _one_basis_each(terms):
        return None
    terms, mean = _added(terms), ConstantMean(level[0]).to(like)
    if len(level) > 1:  # each path has its own constant: it is the weight of a function that is 1 everywhere
        axes = torch.eye(len(like) + 1, dtype=like.dtype, device=like.device)
        one = Products(axes[None, None, -1:], like.new_ones(1, 1), like[None])
        terms.append(WeightedSum(one, level.expand(-1, t)[..., None], origin=like))
        mean = ConstantMean().to(like)
    mean = _sum_of_means([*means, (mean, like.new_ones(1, 1))], t, like) if means else mean
    return replace(first, terms=terms, mean=mean, output_transform=None)


_merged_record = Recorder(_merge)


def _fit(a: Record, b: Record) -> bool:
    """Whether two records agree in all but terms and means, so that their terms can be added."""
    if a.num_outputs != b.num_outputs or a.dtype != b.dtype or b.requires_grad or not torch.equal(a.origin, b.origin):
        return False
    return _same(a.domain, b.domain) and _same(a.input_transform, b.input_transform)


def _scaled(term: PathTerm, w: Tensor) -> PathTerm | None:
    """w `[s or 1, t or 1]` times a term; None for a term of unknown kind."""
    if isinstance(term, Float64Term):
        inner = _scaled(term.term, w)
        return None if inner is None else Float64Term(inner)
    if not isinstance(term, WeightedSum):
        return None
    return replace(term, weights=term.weights * w[..., None].to(term.weights.dtype))


def _one_basis_each(terms: Sequence[PathTerm]) -> bool:
    """Whether each path uses the same version of all bases that have several versions, which evaluators require."""
    sums = [term for term in terms if isinstance(term, WeightedSum) and not term.shared]
    return all(_same(sums[0].index, term.index) for term in sums)


def _added(terms: Sequence[PathTerm]) -> list[PathTerm]:
    """Combine terms with the same basis functions. The sum stays the same."""
    added: list[PathTerm] = []
    for term in terms:
        for i, other in enumerate(added):
            both = _sum_of_two(other, term)
            if both is not None:
                added[i] = both
                break
        else:
            added.append(term)
    return added


def _sum_of_two(a: PathTerm, b: PathTerm) -> PathTerm | None:
    """Two terms with the same basis functions as one; None of others."""
    if isinstance(a, Float64Term) and isinstance(b, Float64Term):
        inner = _sum_of_two(a.term, b.term)
        return None if inner is None else Float64Term(inner)
    if not isinstance(a, WeightedSum) or not isinstance(b, WeightedSum) or a.weights.shape != b.weights.shape:
        return None
    if not (_same(a.index, b.index) and _same(a.origin, b.origin) and _same_functions(a, b)):
        return None
    return replace(a, weights=a.weights + b.weights)


def _same_functions(a: WeightedSum, b: WeightedSum) -> bool:
    if a.basis is b.basis or a.basis.same_functions(b.basis):
        return True
    if isinstance(a.basis, Canonical) and isinstance(b.basis, Canonical):
        return _same(a.basis.centres, b.basis.centres) and _same(a.basis.kernel, b.basis.kernel)
    return False


def _same(a: Tensor | Value | None, b: Tensor | Value | None) -> bool:
    """Whether two tensors are equal, or two values in all of their tensors, fields and parts."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if not isinstance(a, Value) or not isinstance(b, Value) or type(a) is not type(b):
        return False
    if type(a).__module__.split(".")[0] != "matheron":  # a user's class can have more than its tensors and fields
        return False
    if isinstance(a, OwnFunction) and a.function is not b.function:
        return False
    if any(getattr(a, name) != getattr(b, name) for name in a.fields):
        return False
    for mine, others in ((a._buffers, b._buffers), (a._modules, b._modules)):
        if mine.keys() != others.keys():
            return False
        if not all(_same(cast(Value, part), cast(Value, others[name])) for name, part in mine.items()):
            return False
    return True


def _sum_of_means(means: Sequence[tuple[Mean, Tensor]], t: int, like: Tensor) -> Mean:
    """sum_i w_i m_i, with w `[1, t or 1]` the same for all paths: A of the means side by side."""
    columns = []
    for mean, w in means:
        p = mean(like.expand(1, -1)).shape[-1]  # p is 1 or t
        columns.append(w.T.expand(t, 1) if p == 1 else torch.diag(w[0].expand(t)))
    return Mixed(Stacked([mean for mean, _ in means]), torch.cat(columns, dim=1)).to(like.device, like.dtype)


# Products.


@final
class PointwiseProduct(Combined):
    """f_1 f_2 ...: products of values, point by point.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1) for _ in range(2))
    >>> x = torch.rand(5, 1)
    >>> torch.equal((f * g)(x), f(x) * g(x))
    True
    """

    _without_mean: ClassVar[str] = "the mean of a product is not the product of the means"
    _without_update: ClassVar[str] = (
        "an observation of a product does not say what each factor is there. Give data to these, and multiply again"
    )

    def __init__(self, functions: Sequence[AbstractFunctions]) -> None:
        flat = [part for f in functions for part in (f.functions if isinstance(f, PointwiseProduct) else [f])]
        super().__init__(flat)
        self.check()

    def check(self) -> None:
        super().check()
        _common_outputs(self.functions)

    @property
    def num_outputs(self) -> int:
        return _common_outputs(self.functions)

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        return reduce(torch.mul, each)

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        f, df = each[0], slopes[0]
        for g, dg in zip(each[1:], slopes[1:], strict=True):  # d(f g) = g df + f dg
            f, df = f * g, g[..., None] * df + f[..., None] * dg
        return f, df


# Maps of values.


def _softplus(f: Tensor) -> Tensor:
    """log(1 + exp(f)), to rounding: torch's own is f from 20 on, and ONNX runtimes know none in float64."""
    magnitude = f.abs()
    return 0.5 * (f + magnitude) + torch.log1p((-magnitude).exp())


# The functions of values that a saved file can name.
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "abs": torch.abs,
    "atan": torch.atan,
    "clamp": torch.clamp,
    "cos": torch.cos,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "ndtr": torch.special.ndtr,
    "power": torch.pow,
    "reciprocal": torch.reciprocal,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "softplus": _softplus,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}
_NAMES = {function: name for name, function in FUNCTIONS.items()} | {torch.nn.functional.softplus: "softplus"}


class Elementwise(Value):
    """A function of `FUNCTIONS` by its name, with the numbers that it takes beside a value."""

    fields = ("name", "arguments")

    def __init__(self, name: str, arguments: Sequence[float | None] = ()) -> None:
        super().__init__()
        self.name, self.arguments = name, list(arguments)
        self.check()

    def check(self) -> None:
        if self.name not in FUNCTIONS:
            raise ValueError(f"Elementwise: expected one of {', '.join(FUNCTIONS)}, got {self.name!r}")
        if not all(number is None or isinstance(number, int | float) for number in self.arguments):
            raise ValueError(f"Elementwise: expected numbers beside {self.name}, got {self.arguments}")

    def forward(self, f: Tensor) -> Tensor:
        return FUNCTIONS[self.name](f, *self.arguments)

    def __repr__(self) -> str:
        return self.name + (f" {tuple(self.arguments)}" if self.arguments else "")


@final
class Mapped(Combined):
    """phi(f), with phi a function of values: `function`.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=1)
    >>> f.exp()
    Mapped(exp, Paths(4 paths in 1 dimension, given no data; prior: 1024 sobol))
    """

    fields = ("count",)
    _without_mean: ClassVar[str] = "the mean of a function of f is not that function of the mean"
    _without_update: ClassVar[str] = (
        "give data to the functions that are mapped, in their own units, and map them again"
    )

    def __init__(self, f: AbstractFunctions, function: Value, count: int) -> None:
        super().__init__([f], function=function)
        self.count = count
        self.check()

    def check(self) -> None:
        super().check()
        if not isinstance(self.function, Elementwise | Transform | OwnFunction) or not isinstance(self.count, int):
            raise ValueError(f"Mapped: expected a function of values, got {self.function!r}")
        if len(self.functions) != 1 or (self._by_output and self.count != self.functions[0].num_outputs):
            raise ValueError(
                f"Mapped: expected a function of {self.functions[0].num_outputs} outputs, got {self.count}"
            )

    @property
    def num_outputs(self) -> int:
        return self.count

    @property
    def _by_output(self) -> bool:
        """Whether the function acts on each output by itself."""
        return isinstance(self.function, Elementwise) or (
            isinstance(self.function, Transform) and self.function.elementwise
        )

    def __repr__(self) -> str:
        return f"Mapped({self.function!r}, {self.functions[0]!r})"

    def _phi(self, f: Tensor) -> Tensor:
        """`[..., n, t_f] -> [..., n, t]`."""
        if not isinstance(self.function, OwnFunction):
            return self.function(f)
        out = self.function(f.squeeze(-1) if self.functions[0].num_outputs == 1 else f)
        return out[..., None] if out.ndim < f.ndim else out

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        return self._phi(each[0])

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        (f,), (df,) = each, slopes
        if self._by_output:
            value, slope = jacobian(lambda f: self._phi(f[..., 0])[..., None], f[..., None])
            return value[..., 0], slope[..., 0] * df  # [s, n, t, 1] [s, n, t, d]
        value, J = jacobian(self._phi, f)
        return value, J @ df  # [s, n, t, t_f] [s, n, t_f, d]


def mapped(f: AbstractFunctions, function: Callable[[Tensor], Tensor]) -> AbstractFunctions:
    """phi(f) of what `AbstractFunctions.map` takes."""
    if isinstance(function, Elementwise):
        return Mapped(f, function, f.num_outputs)
    if isinstance(function, Transform):
        return _transformed(f, function.to(f.device, f.dtype))
    if isinstance(function, AbstractFunctions):
        raise TypeError("map: expected a function of values, got functions of points; g(f(x)) is g.compose(f)")
    if not callable(function) or isinstance(function, Value):
        raise TypeError(f"map: expected a function of values, got {type(function).__name__}")
    name = _NAMES.get(function)
    if name is not None and name not in ("clamp", "power"):
        return Mapped(f, Elementwise(name), f.num_outputs)
    called = OwnFunction(function).to(f.device, f.dtype)
    return Mapped(f, called, _count_outputs(called, f.num_outputs, f._origin))


def _transformed(f: AbstractFunctions, transform: Transform) -> AbstractFunctions:
    """A transform of each output, or of the outputs of a point together."""
    t = f.num_outputs
    count = transform(f._origin.new_full((1, t), torch.nan)).shape[-1]  # NaN, because zero may not be a category
    takes = transform.input_dim(count)
    if takes != t:
        raise ValueError(f"map: expected a transform of {t} outputs, those of the functions, got one of {takes}")
    if transform.affine:
        zero = f._origin.new_zeros(1, t)
        return linear_combination([f], [transform.derivative(zero)], transform(zero))
    return Mapped(f, transform, count)


def _count_outputs(function: OwnFunction, t: int, like: Tensor) -> int:
    """The number of outputs of a user's function of t outputs, found by calling it on a few values."""
    with outside(), torch.enable_grad():
        probe = torch.full((3, 4) if t == 1 else (3, 4, t), 0.5, dtype=like.dtype, device=like.device)
        probe.requires_grad_()
        shape, takes = (
            list(probe.shape),
            f"map: expected a function of torch's operations on values {list(probe.shape)}",
        )
        try:
            out = function.owned()(probe)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise TypeError(f"{takes}, got an error: {error}") from error
        if not isinstance(out, Tensor) or list(out.shape[:2]) != shape[:2] or out.ndim > 3:
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"{takes} that returns [3, 4], or [3, 4, t] for t outputs, got {got}")
        if not out.requires_grad:
            raise TypeError(f"{takes}, through which gradients flow, got one without")
        (slope,) = torch.autograd.grad(out[1, 1].sum(), probe, materialize_grads=True)
    slope[1, 1] = 0.0
    if bool((slope.abs() > 0).any()):
        raise ValueError(
            f"{takes} that takes each by itself, got one that mixes those of several points or paths: they are "
            "evaluated some at a time"
        )
    return 1 if out.ndim == 2 else out.shape[2]


# Compositions.


@final
class Composition(Combined):
    """The functions f(g(x)), where path i of `inner` (g) is inserted into path i of `outer` (f).

    >>> import matheron
    >>> from matheron import kernels
    >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1, seed=seed) for seed in (0, 1))
    >>> type(f.compose(g)).__name__, f.compose(g)([[0.5]]).shape
    ('Composition', torch.Size([4, 1]))
    """

    _without_mean: ClassVar[str] = "the mean of a composition is not that of the outer function at the inner mean"
    _without_update: ClassVar[str] = (
        "an observation of f(g(x)) does not say where f was observed. Give data to f and g, and compose them again"
    )

    def __init__(self, outer: AbstractFunctions, inner: AbstractFunctions) -> None:
        super().__init__([inner], outer=outer)
        self.check()

    def check(self) -> None:
        super().check()
        (inner,) = self.functions
        if inner.num_outputs != self.outer.input_dim:
            raise ValueError(
                f"compose: expected an inner function of {self.outer.input_dim} outputs, the inputs of the outer one, "
                f"got {inner.num_outputs}; with_inputs=True puts the inputs before them"
            )
        _check_paired([self.outer, inner])

    @property
    def num_outputs(self) -> int:
        return self.outer.num_outputs

    def __repr__(self) -> str:
        return f"Composition({self.outer!r}, of {self.functions[0]!r})"

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        (z,) = each  # [s, n, e]
        return self.outer._values(z.to(self.outer.dtype)).to(z.dtype)

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        (z,), (dz,) = each, slopes  # [s, n, e], [s, n, e, d]
        f, df = self.outer._values_and_gradients(z.to(self.outer.dtype), of)  # [s, n, t], [s, n, t, e]
        return f.to(z.dtype), df.to(z.dtype) @ dz

    def _chosen(self, index: Tensor) -> Self:
        return super()._chosen(index).replaced(outer=self.outer._chosen(index))


@final
class Coordinates(_Recorded):
    """The coordinates of x as functions: d outputs, the same for s paths.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> f = matheron.draw_prior(kernels.RBF(), 4, input_dim=1)
    >>> warp = matheron.Coordinates.beside(f) + 0.1 * f
    >>> warp([[0.5]]).shape
    torch.Size([4, 1])
    """

    fields = ("count",)
    shapes = "origin: d"

    def __init__(self, origin: Tensor, count: int, input_transform: Transform | None = None) -> None:
        super().__init__(origin=as_tensor(origin, "origin").reshape(-1))
        self._modules["input_transform"] = input_transform
        self.count = count
        self.check()

    @staticmethod
    def beside(f: AbstractFunctions) -> Coordinates:
        """The coordinates of another function's inputs."""
        require_functions(f, "f")
        return Coordinates(f._origin.clone(), f.num_paths)

    def check(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"Coordinates: expected a number of paths, got {self.count!r}")

    @property
    def num_paths(self) -> int:
        return self.count

    @property
    def _origin(self) -> Tensor:
        return self.origin

    @property
    def num_outputs(self) -> int:
        return self._mean(self.origin[None, None]).shape[-1]

    def _whole(self) -> Record:
        return _coordinates_record(self)

    def _chosen(self, index: Tensor) -> Self:
        return self.replaced(count=len(index))

    def _of(self, transform: Transform) -> Self:
        inward = chained([transform.to(self.device, self.dtype), self.input_transform])
        d = transform.input_dim(self.input_dim)
        return self.replaced(origin=self.origin.new_zeros(d), input_transform=inward)

    def _mean(self, x: Tensor) -> Tensor:
        return x[0] if self.input_transform is None else self.input_transform(x)[0]

    def _variance(self, x: Tensor) -> Tensor:
        return torch.zeros_like(self._mean(x))


def _make_coordinates_record(x: Coordinates) -> Record:
    """The record of a mean alone, the identity."""
    like, e = x.origin, x.num_outputs
    identity = LinearMean(torch.eye(e, dtype=like.dtype, device=like.device), like.new_zeros(e)).to(like)
    origin = like.new_zeros(e) if x.input_transform is not None else like
    return Record(x.count, e, [], identity, origin, x.requires_graph(), input_transform=x.input_transform)


_coordinates_record = Recorder(_make_coordinates_record)


# Outputs side by side, and some of them.


class Stack(_Linear):
    """Functions side by side as outputs: values `[s, n, t]`, t the outputs of all of them.

    >>> import matheron
    >>> from matheron import kernels
    >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1, seed=seed) for seed in (0, 1))
    >>> matheron.stack([f.exp(), g])([[0.5]]).shape
    torch.Size([4, 1, 2])
    """

    _without_update: ClassVar[str] = "give data to the paths among its functions, and stack them again"

    def __init__(self, functions: Sequence[AbstractFunctions]) -> None:
        super().__init__(functions)
        self.check()

    @property
    def num_outputs(self) -> int:
        return sum(self._counts())

    def _counts(self) -> list[int]:
        return [f.num_outputs for f in self.functions]

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        return torch.cat(each, dim=-1)

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        return torch.cat(each, dim=-1), torch.cat(slopes, dim=-2)

    def _on_grid_of_parts(self, axes: list[Tensor], out: Tensor) -> None:
        for f, part in zip(self.functions, out.split(self._counts(), dim=-1), strict=True):
            if f.dtype == out.dtype:
                f._on_grid(axes, part)
            else:
                write_in_slabs(f, axes, part)

    def _records(self) -> list[Record] | None:
        records = [f._records() for f in self.functions]
        return None if any(each is None for each in records) else [r for each in records for r in each or []]

    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        """Keep only the functions that have some of these outputs."""
        owners = [(i, j) for i, count in enumerate(self._counts()) for j in range(count)]
        picked: list[tuple[int, list[int]]] = []
        for i, j in (owners[output] for output in outputs):
            if picked and picked[-1][0] == i:
                picked[-1][1].append(j)
            else:
                picked.append((i, [j]))
        functions = [self.functions[i][..., some] for i, some in picked]
        return functions[0] if len(functions) == 1 else self._with(functions)


class Selection(_Linear):
    """Some outputs of functions that have more: values `[s, n, t]`, or `[s, n]` for one.

    >>> import matheron
    >>> from matheron import kernels
    >>> f, g = (matheron.draw_prior(kernels.RBF(), 4, input_dim=1, seed=seed) for seed in (0, 1))
    >>> matheron.stack([f.exp(), g])[..., 1]([[0.5]]).shape
    torch.Size([4, 1])
    """

    shapes = "outputs: t"

    def __init__(self, f: AbstractFunctions, outputs: Sequence[int] | Tensor) -> None:
        require_functions(f)
        super().__init__([f], outputs=torch.as_tensor(outputs, device=f.device))
        self.check()

    def check(self) -> None:
        super().check()
        if not bool(((self.outputs >= 0) & (self.outputs < self.functions[0].num_outputs)).all()):
            raise ValueError(f"{type(self).__name__}: expected outputs below {self.functions[0].num_outputs}")

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def _combine(self, each: list[Tensor], of: Tensor | None) -> Tensor:
        return each[0].index_select(-1, self.outputs)

    def _combine_gradients(self, each: list[Tensor], slopes: list[Tensor], of: Tensor | None) -> tuple[Tensor, Tensor]:
        return each[0].index_select(-1, self.outputs), slopes[0].index_select(-2, self.outputs)

    def _outputs(self, outputs: list[int]) -> AbstractFunctions:
        return self.functions[0][..., self.outputs[outputs]]


# The mean as a function.


@final
class PosteriorMean(Combined):
    """The posterior mean of paths as a function: one path, or as many equal ones as were chosen, `mean[[0] * 8]`.

    Where each path has a posterior of its own, so has it a mean of its own.

    >>> import matheron
    >>> from matheron import kernels
    >>> gp = matheron.ExactGP(kernels.RBF(), X=[[0.0]], y=[2.0], noise=0.1)
    >>> paths = matheron.draw(gp, 8)
    >>> mean = matheron.PosteriorMean(paths)
    >>> mean.num_paths, (mean([[0.3]])[0] == paths.mean([[0.3]])).all()
    (1, tensor(True))
    """

    fields = ("count",)
    _without_update: ClassVar[str] = "give data to the paths, and take their mean"

    def __init__(self, paths: AbstractFunctions, count: int | None = None) -> None:
        super().__init__([paths])
        own = paths._mean(paths._origin[None, None][:, :0]).ndim == 3
        self.count = paths.num_paths if own else 1 if count is None else count
        self.own = own
        self.check()

    def restore(self) -> None:
        f = self.functions[0]
        self.own = f._mean(f._origin[None, None][:, :0]).ndim == 3

    def check(self) -> None:
        super().check()
        if len(self.functions) != 1 or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"PosteriorMean: expected a number of paths, got {self.count!r}")

    @property
    def num_paths(self) -> int:
        return self.count

    def _mean(self, x: Tensor) -> Tensor:
        return self.functions[0]._mean(x)

    def _variance(self, x: Tensor) -> Tensor:
        return torch.zeros_like(self._mean(x))

    def _whole(self) -> Record | None:
        return _mean_record(self)

    def _at(self, x: Tensor, of: Tensor | None) -> Tensor:
        """The mean at points `[1 or s, n, d]`, or `[p, n, d]` for the paths `of`."""
        rows = self.count if of is None else len(of)
        if len(x) == 1 and of is None:
            return self._mean(x).expand(rows, -1, -1)
        mean = self._mean(x.reshape(1, -1, x.shape[-1])).unflatten(-2, x.shape[:2])  # [p, n, t], or [s, p, n, t]
        if not self.own:
            return mean
        each = torch.arange(len(x), device=x.device)
        return mean[each if of is None else of, each]

    def _values_of_parts(self, x: Tensor) -> Tensor:
        return self._at(x, None)

    def _values_and_gradients_of_parts(self, x: Tensor, of: Tensor | None) -> tuple[Tensor, Tensor]:
        return jacobian(lambda at: self._at(at, of), x.expand(self.count if of is None else len(of), -1, -1))

    def _on_grid_of_parts(self, axes: list[Tensor], out: Tensor) -> None:
        write_by_points(self._values, axes, out)

    def _chosen(self, index: Tensor) -> Self:
        if self.own:
            return self.replaced(functions=Parts([self.functions[0]._chosen(index)]), count=len(index))
        return self.replaced(count=len(index))


def _make_mean_record(mean: PosteriorMean) -> Record | None:
    paths = mean.functions[0]
    one = paths._mean_record() if isinstance(paths, AbstractPaths) else None
    if one is None or mean.own:
        return one
    return replace(one, num_paths=mean.count, terms=[_repeated(term, mean.count) for term in one.terms])


def _repeated(term: PathTerm, rows: int) -> PathTerm:
    """The term of one function, repeated for several equal ones."""
    if isinstance(term, Float64Term):
        return Float64Term(_repeated(term.term, rows))
    assert isinstance(term, WeightedSum)
    index = None if term.index is None else term.index.repeat(rows)
    return replace(term, weights=term.weights.repeat(rows, 1, 1), index=index)


_mean_record = Recorder(_make_mean_record)
