"""Leaving torch's modes: tensors that are kept must not belong to the mode in which they were made.

Inside `torch.func.grad` every operation returns a wrapped tensor, which cannot be used after the transform has
returned. Inside `torch.inference_mode` it returns one that no autograd graph may contain. Tensors that are stored for
later calls are therefore made outside of both. `kept` makes those that follow from plain arguments, and `outside` those
that follow from a module's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import _lru_cache_wrapper, lru_cache
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_level,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack, temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

T = TypeVar("T")


def transformed() -> bool:
    """Whether a transform of torch.func, forward differentiation or compilation is active.

    This holds for operations on plain tensors too, since inside `grad` their results are wrapped.
    """
    return is_compiling() or maybe_current_level() is not None or forward_ad._current_level >= 0


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor belongs to an active transform of torch.func."""
    return is_functorch_wrapped_tensor(tensor)


def in_graph(tensor: Tensor) -> bool:
    """Whether derivatives are being taken through a tensor: by autograd, forward, or by a transform of torch.func."""
    if tensor.requires_grad or (forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None):
        return True
    if not is_functorch_wrapped_tensor(tensor):
        return False
    inner = get_unwrapped(tensor) if maybe_get_level(tensor) == maybe_current_level() else tensor
    with temporarily_pop_interpreter_stack():  # ask the same about the transform around this one
        return in_graph(inner)


@contextmanager
def outside() -> Iterator[None]:
    """Leave inference mode and all transforms of torch.func. Only tensors that are not wrapped may be used inside."""
    if maybe_current_level() is None and not torch.is_inference_mode_enabled():
        yield
        return
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False):
        yield


def kept(maxsize: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """`functools.lru_cache` for functions of plain arguments that return tensors: these are made `outside`."""

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        return lru_cache(maxsize)(outside()(function))

    return decorate


@overload
def plain(tensor: Tensor) -> Tensor: ...
@overload
def plain(tensor: Tensor | None) -> Tensor | None: ...


def plain(tensor: Tensor | None) -> Tensor | None:
    """A tensor without its graph and outside of every mode, for decisions that are not differentiated."""
    if tensor is None:
        return None
    if not (transformed() or is_functorch_wrapped_tensor(tensor) or tensor.is_inference()):  # the usual case
        return tensor.detach()
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise TypeError("expected one model, got a batch of torch.func.vmap; use one after another")
        tensor = get_unwrapped(tensor)
    with outside():
        return tensor.clone() if tensor.is_inference() else forward_ad.unpack_dual(tensor.detach()).primal


def as_numpy(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor as a NumPy array, also inside `torch.func.grad`, where `tensor.numpy()` fails."""
    if not (transformed() or is_functorch_wrapped_tensor(tensor)):  # the usual case
        return tensor.detach().cpu().numpy()
    with outside():
        return plain(tensor).cpu().numpy()
