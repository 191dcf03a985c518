"""What is checked at the public border, before any work: errors say expected, got, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

ArrayLike = Any  # a tensor, a NumPy array, a number, or nested lists of numbers


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
