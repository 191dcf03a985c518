"""Checks of arguments at the public border, before any work. Errors say what was expected, what came and what to do."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, SupportsFloat, SupportsIndex, SupportsInt, TypeAlias, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from .modes import is_wrapped, transformed

F = TypeVar("F", bound=Callable[..., object])


class Table(Protocol):
    """An object that converts to a NumPy array: a DataFrame, a column of one, a DataArray, a NumPy number."""

    def __array__(self) -> np.ndarray: ...


class Named(Protocol):
    """An object that may know the names of its inputs."""

    @property
    def input_names(self) -> tuple[str, ...] | None: ...


ArrayLike: TypeAlias = Tensor | np.ndarray | Table | float | Sequence["ArrayLike"]
# The names of the columns of a model's inputs, where they were given in a table.
Names: TypeAlias = tuple[str, ...] | None
# The source of random numbers: a generator, a seed, or None for torch's default generator.
Random = torch.Generator | np.random.Generator | np.random.RandomState | int | None


def as_array(value: ArrayLike) -> Tensor:
    """Convert anything array-like to a tensor. Plain numbers become float64, not torch's default of float32.

    Arrays that torch cannot share (strides below zero, another byte order, read-only, tables of pandas) are copied.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise TypeError(f"expected a dense tensor, got layout {value.layout}; use .to_dense()")
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("expected no masked array: its mask would be lost; leave out the masked rows, or .filled(...)")
    to_numpy = getattr(value, "to_numpy", None)  # a table or a column of pandas, polars, ...
    array = np.asarray(value if to_numpy is None else to_numpy())
    if array.dtype == object:  # Python's own numbers
        try:
            array = np.array([_number(entry) for entry in array.flat], dtype=np.float64).reshape(array.shape)
        except (TypeError, ValueError) as error:
            # the dtypes of a table, by the names of its columns
            kinds = getattr(getattr(value, "dtypes", None), "items", dict)()
            names = [str(name) for name, kind in kinds if kind.kind not in "biuf"]
            hint = (
                f"; leave out {', '.join(names)}, or make numbers of them, as pandas.get_dummies does" if names else ""
            )
            raise TypeError(f"expected numbers, got {type(value).__name__} of objects ({error}){hint}") from error
    if array.dtype.kind not in "fiubc":
        raise TypeError(f"expected numbers, got {type(value).__name__} of dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # long double
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # dtypes that torch supports only in part
        array = array.astype(np.int64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _number(entry: SupportsFloat | str | bytes) -> float:
    if isinstance(entry, str | bytes):
        raise TypeError(f"a text, {entry!r}")
    return math.nan if type(entry).__name__ == "NAType" else float(entry)  # pandas.NA is a missing number


def as_real(value: ArrayLike, name: str) -> Tensor:
    """A tensor of real numbers, of whatever dtype, from anything array-like."""
    try:
        tensor = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected a tensor, a NumPy array or numbers, got {type(value).__name__}: {error}"
        ) from error
    if tensor.is_complex() or tensor.dtype == torch.bool:
        advice = f"; 1.0 * {name} has zeros and ones" if tensor.dtype == torch.bool else ""
        raise TypeError(f"{name}: expected real numbers, got dtype {tensor.dtype}{advice}")
    return tensor


def as_tensor(value: ArrayLike, name: str, *, like: Tensor | None = None, advice: str = "remove them") -> Tensor:
    """A floating tensor from anything array-like, finite throughout; of `like`'s dtype and device where given.

    `advice` ends the message where numbers are not finite.
    """
    tensor = as_real(value, name)
    if like is not None:
        tensor = tensor.to(dtype=like.dtype, device=like.device)
    elif not tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    elif tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name}: expected float32 or float64, got {tensor.dtype}; convert it, e.g. {name}.double()")
    check_finite(tensor, name, advice)
    return tensor


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def level_outside() -> int:
    """The `stacklevel` with which a warning points at the first caller outside the package."""
    frame, level = sys._getframe(1), 1
    within = (__name__.split(".")[0], "torch", "functools")  # a decorator may be in between
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in within:
        frame, level = frame.f_back, level + 1
    return level


def seeded(function: F) -> F:
    """Decorate a function that takes `seed`, so that an error explains a call with scikit-learn's `random_state`."""

    @functools.wraps(function)
    def call(*args: Any, **settings: Any) -> object:
        if "random_state" in settings:
            value = settings["random_state"]
            raise TypeError(f"{function.__name__}() has no argument 'random_state'; use seed={value!r}")
        return function(*args, **settings)

    return cast(F, call)


def column_hint(y: ArrayLike) -> str:
    """A hint on how to make targets `[n]` from a column `[n, 1]`; tables of pandas and lists have no y[:, 0]."""
    return f"; use {'y[:, 0]' if isinstance(y, Tensor | np.ndarray) else 'np.ravel(y)'}"


def flat_hint(given: ArrayLike, name: str, x: Tensor, input_dim: int | None = None) -> str:
    """A hint on how to make points `[n, d]` from numbers x that are given in one row."""
    if x.ndim != 1:
        return ""
    array = isinstance(given, Tensor | np.ndarray)
    if input_dim in (None, 1):
        return f"; for one dimension use {f'{name}[:, None]' if array else f'np.c_[{name}]'}"
    return f"; for one point use {f'{name}[None]' if array else f'np.atleast_2d({name})'}"


def check_finite(tensor: Tensor, name: str, advice: str = "remove them") -> None:
    """Raise a ValueError if a number is NaN or infinite. Under transforms of torch.func the numbers are not known
    yet."""
    if is_wrapped(tensor):
        return
    if tensor.numel() <= 16 and math.isfinite(sum(tensor.flatten().tolist())):  # the fastest way for few numbers
        return
    # the usual case: one pass that allocates nothing
    if tensor.is_floating_point() and math.isfinite(tensor.detach().sum()):
        return
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise ValueError(f"{name}: expected finite numbers, got {bad} NaN or infinite of {tensor.numel()}; {advice}")


def check_points(x: Tensor) -> None:
    """Raise a ValueError if a point on the CPU is NaN or infinite.

    Points on a GPU are not checked, because that would wait for the device. Under transforms of torch.func or the
    compiler the numbers are not known yet. In both cases NaN points give NaN.
    """
    if x.device.type == "cpu" and not transformed():
        check_finite(x, "x")


def positive(value: ArrayLike, name: str, *, zero: bool = False, max_ndim: int = 1) -> Tensor:
    """A float64 hyperparameter: a number, or one per dimension, all positive (`zero=True`: or zero).

    The result has memory of its own, and stays in the graph of `value` if there is one.
    """
    tensor = as_tensor(value, name).to(torch.float64).clone()
    if tensor.ndim > max_ndim:
        raise ValueError(f"{name}: expected at most {max_ndim} axis, got shape {list(tensor.shape)}")
    numbers = tensor.detach().flatten().tolist()
    if any(number < 0 or (number == 0 and not zero) for number in numbers):
        wanted = "zero or positive" if zero else "positive"
        raise ValueError(f"{name}: expected {wanted} numbers, got a smallest of {min(numbers):.4g}")
    extreme = [number for number in numbers if number and not 1e-150 <= number <= 1e150]
    if extreme:
        raise ValueError(
            f"{name}: expected numbers from 1e-150 to 1e150, whose squares a float64 can hold, got {extreme[0]:.4g}; "
            "use other units"
        )
    return tensor


def names_of(value: object) -> Names:
    """The names of a table's columns, or of the rows of one column of numbers; None where they are not all text.

    For objects made from a table, such as a model or functionals, they are the names that the object kept.
    """
    if isinstance(value, Tensor | np.ndarray | list | tuple):
        return None
    if hasattr(type(value), "input_names"):
        return cast(Named, value).input_names
    labels = getattr(value, "columns", None)
    labels = getattr(value, "index", None) if labels is None else labels
    labels = tuple(labels) if isinstance(labels, Iterable) else ()
    return labels if labels and all(isinstance(label, str) for label in labels) else None


def as_names(names: object, input_dim: int | None = None) -> Names:
    """Names of columns as a file has them, checked."""
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"input_names: expected a list of names, got {names!r}")
    if input_dim is not None and len(names) != input_dim:
        raise ValueError(f"input_names: expected {input_dim}, one per dimension, got {len(names)}")
    return tuple(names)


def common_names(models: Iterable[Named]) -> Names:
    """The names of the inputs of several models, paths or functionals of the same inputs. Raises a ValueError if they
    differ."""
    known = sorted({model.input_names for model in models if model.input_names is not None})
    if len(known) > 1:
        each = " and ".join(_listed(names) for names in known)
        raise ValueError(f"expected the same columns in the same order, got {each}")
    return known[0] if known else None


def check_names(value: object, name: str, names: Names) -> None:
    """Raise a ValueError if a table's columns are not those that a model was made with, in the same order."""
    if names is None or isinstance(value, Tensor):
        return
    got = names_of(value)
    if got is None or got == tuple(names):
        return
    missing = [column for column in names if column not in got]
    if missing:
        advice = f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} not there"
    else:
        chosen = repr(list(names)) if len(names) <= 8 else "list(paths.input_names)"
        advice = f"use {name}[{chosen}]"
    raise ValueError(f"{name}: expected the columns {_listed(names)}, in this order, got {_listed(got)}; {advice}")


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def as_points(
    x: ArrayLike, name: str, *, input_dim: int | None = None, like: Tensor | None = None, names: Names = None
) -> Tensor:
    """Points `[n, d]`; where they are given as a table, its columns must be `names`."""
    check_names(x, name, names)
    given, x = x, as_tensor(x, name, like=like)
    if x.ndim != 2:
        hint = flat_hint(given, name, x)
        raise ValueError(f"{name}: expected points of shape [n, d], got shape {list(x.shape)}{hint}")
    if x.shape[1] == 0:
        raise ValueError(f"{name}: expected points in at least one dimension, got shape {list(x.shape)}")
    check_dim(x, name, input_dim)
    return x


def check_dim(x: Tensor, name: str, input_dim: int | None) -> None:
    if input_dim is not None and x.shape[-1] != input_dim:
        raise ValueError(f"{name}: expected points in {input_dim} dimensions, got shape {list(x.shape)}")


def as_noise(noise: ArrayLike, n: int, *, like: Tensor) -> Tensor:
    """Noise variances `[n]` from one number or one per point."""
    noise = as_tensor(noise, "noise", like=like)
    if noise.ndim > 1 or noise.numel() not in (1, n):
        raise ValueError(f"noise: expected a variance, or one per point ([{n}]), got shape {list(noise.shape)}")
    if bool((noise < 0).any()):
        raise ValueError(f"noise: expected variances >= 0, got a smallest of {noise.min().item():.4g}")
    return noise.reshape(-1).expand(n)


def as_count(value: SupportsInt, name: str) -> int:
    """A whole number of at least one."""
    try:
        count = 0 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        count = 0
    if count < 1 or count != value:
        raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return count


def as_generator(generator: Random = None, seed: int | None = None) -> torch.Generator:
    """A torch generator from a generator or a seed; torch's default one where neither is given.

    A seed, given as `seed` or in place of the generator, starts a new CPU generator. A NumPy generator draws such a
    seed; it advances, so the next call gives another result.

    >>> from matheron.core.checks import as_generator
    >>> as_generator(3).initial_seed() == as_generator(seed=3).initial_seed() == 3
    True
    """
    if seed is not None:
        if generator is not None:
            raise ValueError(f"expected generator= or seed=, got both, {generator!r} and {seed!r}; leave one out")
        return torch.Generator().manual_seed(as_seed(seed, "seed"))
    if generator is None:
        return torch.default_generator
    if isinstance(generator, torch.Generator):
        return generator
    if isinstance(generator, np.random.Generator):
        return torch.Generator().manual_seed(int(generator.integers(2**63)))
    if isinstance(generator, np.random.RandomState):
        return torch.Generator().manual_seed(int(generator.randint(2**31)))
    return torch.Generator().manual_seed(as_seed(generator, "generator"))


def normals(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normals in float64, on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)


def as_seed(value: SupportsIndex, name: str) -> int:
    """A seed for a generator: a whole number from 0 to 2^64 - 1."""
    expected = "a seed, a whole number from 0 to 2^64 - 1"
    if name == "generator":
        expected = f"a torch.Generator, a NumPy generator, or {expected}"
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected {expected}, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"{name}: expected {expected}, got {number}")
    return number


def as_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """A dtype that paths may have; None where the data decide."""
    if dtype not in (None, torch.float32, torch.float64):
        raise TypeError(f"dtype: expected torch.float32 or torch.float64, got {dtype!r}")
    return dtype


def as_device(device: torch.device | str) -> torch.device:
    """A device, checked to be available."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f'device: expected one such as "cpu", "cuda" or "cuda:1", got {device!r}') from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device: {device} is not there: PyTorch finds {torch.cuda.device_count()} CUDA devices")
    return device


def per_dimension(value: Tensor, input_dim: int, name: str) -> Tensor:
    """A hyperparameter as `[d]`, checked against the number of dimensions it meets."""
    if value.ndim == 1 and value.shape[0] not in (1, input_dim):
        raise ValueError(
            f"{name}: expected a number or one per dimension ([{input_dim}]), got {value.shape[0]} of them; "
            "use kernel.on(dims) for a kernel of some dimensions"
        )
    return value.expand(input_dim)


def missing_extra(what: str, extra: str, error: ImportError) -> ImportError:
    """The error for something that needs an extra that is not installed. There is no release yet, so it names a clone.

    >>> from matheron.core.checks import missing_extra
    >>> missing_extra("tables need pandas", "tables", ImportError("No module named 'pandas'"))
    ImportError("tables need pandas. In a clone of matheron: pip install '.[tables]' (No module named 'pandas')")
    """
    return ImportError(f"{what}. In a clone of matheron: pip install '.[{extra}]' ({error})")
