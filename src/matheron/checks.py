"""What is checked at the public border, before any work: errors say expected, got, and what to do."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

ArrayLike = Any  # a tensor, a NumPy array, a number, or nested lists of numbers
# Where random numbers come from: a generator, a seed, or None for torch's default generator.
Random = torch.Generator | np.random.Generator | np.random.RandomState | int | None


def as_array(value: ArrayLike) -> Tensor:
    """A tensor of what is array-like; plain numbers become float64, not torch's default of float32."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value)
    return torch.as_tensor(np.asarray(value))


def as_real(value: ArrayLike, name: str) -> Tensor:
    """A tensor of real numbers, of whatever dtype, from anything array-like."""
    try:
        tensor = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected a tensor, a NumPy array or numbers, got {type(value).__name__}") from error
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: expected real numbers, got dtype {tensor.dtype}")
    return tensor


def as_tensor(value: ArrayLike, name: str, *, like: Tensor | None = None) -> Tensor:
    """A floating tensor from anything array-like, finite throughout; of `like`'s dtype and device where given."""
    tensor = as_real(value, name)
    if like is not None:
        tensor = tensor.to(dtype=like.dtype, device=like.device)
    elif not tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    elif tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name}: expected float32 or float64, got {tensor.dtype}; convert it, e.g. {name}.double()")
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{name}: expected finite numbers, got {bad} NaN or infinite of {tensor.numel()}; remove them")
    return tensor


def positive(value: ArrayLike, name: str, *, zero: bool = False, max_ndim: int = 1) -> Tensor:
    """A float64 hyperparameter: a number, or one a dimension, all positive (`zero=True`: or zero)."""
    tensor = as_tensor(value, name).to(torch.float64)
    if tensor.ndim > max_ndim:
        raise ValueError(f"{name}: expected at most {max_ndim} axis, got shape {list(tensor.shape)}")
    if bool((tensor < 0).any()) or (not zero and bool((tensor == 0).any())):
        wanted = "zero or positive" if zero else "positive"
        raise ValueError(f"{name}: expected {wanted} numbers, got a smallest of {tensor.min().item():.4g}")
    return tensor


def as_points(x: ArrayLike, name: str, *, input_dim: int | None = None, like: Tensor | None = None) -> Tensor:
    """Points `[n, d]`."""
    x = as_tensor(x, name, like=like)
    if x.ndim != 2:
        hint = f"; for one dimension use {name}[:, None]" if x.ndim == 1 else ""
        raise ValueError(f"{name}: expected points of shape [n, d], got shape {list(x.shape)}{hint}")
    check_dim(x, name, input_dim)
    return x


def check_dim(x: Tensor, name: str, input_dim: int | None) -> None:
    if input_dim is not None and x.shape[-1] != input_dim:
        raise ValueError(f"{name}: expected points in {input_dim} dimensions, got shape {list(x.shape)}")


def as_noise(noise: ArrayLike, n: int, *, like: Tensor) -> Tensor:
    """Noise variances `[n]` from one number or one a point."""
    noise = as_tensor(noise, "noise", like=like)
    if noise.ndim > 1 or noise.numel() not in (1, n):
        raise ValueError(f"noise: expected a variance, or one a point ([{n}]), got shape {list(noise.shape)}")
    if bool((noise < 0).any()):
        raise ValueError(f"noise: expected variances >= 0, got a smallest of {noise.min().item():.4g}")
    return noise.reshape(-1).expand(n)


def as_count(value: Any, name: str) -> int:
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

    A seed, given as `seed` or in place of the generator, starts a new CPU generator. So does a NumPy generator, by a
    seed drawn from it: it moves on, and the next call differs.

    >>> from matheron.checks import as_generator
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


def as_seed(value: Any, name: str) -> int:
    """A whole number from which a generator can start: below 2^64, and not negative."""
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


def per_dimension(value: Tensor, input_dim: int, name: str) -> Tensor:
    """A hyperparameter as `[d]`, checked against the number of dimensions it meets."""
    if value.ndim == 1 and value.shape[0] not in (1, input_dim):
        raise ValueError(
            f"{name}: expected a number or one a dimension ([{input_dim}]), got {value.shape[0]} of them; "
            "use kernel.on(dims) for a kernel of some dimensions"
        )
    return value.expand(input_dim)
