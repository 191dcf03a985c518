"""Arithmetic in blocks: reusable memory for temporaries, and weighted sums of basis functions.

Writing to fresh memory is slow (measured: 7 GB/s into new pages, 17 to 35 into used ones). So a blocked evaluation on
a CPU takes its temporaries from one arena: `empty` advances a pointer, and a `frame` resets it. Outside an arena
`empty` is `torch.empty`. A tensor from `empty` must not be used after its frame.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from .modes import outside, transformed

_local = threading.local()
_NOTHING = nullcontext()


class _Arena:
    """The memory that a thread keeps between evaluations, normally enough for all temporaries of a block. The rest is
    allocated."""

    num_bytes = 64 * 2**20

    def __init__(self) -> None:
        with outside():  # the memory is used again outside of inference mode
            self.memory = torch.empty(self.num_bytes, dtype=torch.uint8, device="cpu")
        self.used = 0


@contextmanager
def arena() -> Iterator[None]:
    """Serve `empty` from this thread's arena inside the block."""
    outer: _Arena | None = getattr(_local, "arena", None)
    spare: _Arena | None = None if outer is not None else getattr(_local, "spare", None)
    _local.arena = _local.spare = outer or spare or _Arena()
    with frame():
        try:
            yield
        finally:
            _local.arena = outer


class _Frame:
    """Puts an arena's pointer back where it was."""

    def __init__(self, arena: _Arena) -> None:
        self.arena, self.used = arena, arena.used

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.arena.used = self.used


def frame() -> AbstractContextManager[None]:
    """Release, at the end of the `with` block, all memory that `empty` returned inside it."""
    current: _Arena | None = getattr(_local, "arena", None)
    return _NOTHING if current is None else _Frame(current)


def empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """An uninitialised tensor of `like`'s dtype and device, from the arena where there is one with room."""
    current: _Arena | None = getattr(_local, "arena", None)
    if current is None or like.device.type != "cpu":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    num_bytes = math.prod(shape) * like.element_size()
    start = current.used
    if start + num_bytes > current.memory.numel():
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    current.used = start + -(-num_bytes // 64) * 64  # the next tensor begins at a cache line
    return current.memory[start : start + num_bytes].view(like.dtype).view(tuple(shape))


def computed(function: Callable[..., Tensor], shape: Sequence[int], first: Tensor, *more: Tensor | float) -> Tensor:
    """function(first, *more), a result of the given shape, in memory from `empty` inside an arena."""
    if getattr(_local, "arena", None) is None:
        return function(first, *more)
    return function(first, *more, out=empty(shape, first))


# Weighted sums of basis functions, for several problems at once.

Sums = Tensor | tuple[Tensor, Tensor]  # weighted sums, and with a gradient a pair


def weigh(Phi: Tensor, W: Tensor) -> Tensor:
    """W Phi^T: `[B, n, c], [B, r, c] -> [B, r, n]`.

    The order of the product is the faster of the two on a CPU, measured: weights first in float64, features first in
    float32 and where each problem has few sums.
    """
    if Phi.shape[0] == 1 and Phi.dtype == torch.float64:
        return torch.bmm(W, Phi.mT)
    return torch.bmm(Phi, W.mT).mT if Phi.shape[0] == 1 else (Phi @ W.mT).mT


def weigh_coordinates(
    Phi: Tensor, W: Tensor, A: Tensor, *, fewer: int = 4, several: int = 4, many: int = 1 << 17
) -> Tensor:
    """sum_i W_i a_ij Phi_i for each coordinate j: `[B, n, c], [B, r, c], [1 or B, c, d] -> [B, r, n, d]`.

    One product per problem where there are many, so that Phi is read once. Where there is one, functions are multiplied
    by coordinates if there are few points, and weights otherwise. That is one product per coordinate if coordinates are
    few, or if weights are so many that they should not be held d times.

    The defaults are what benchmarks/pull_back.py and benchmarks/calls.py measured on a CPU.

    Args:
        fewer: points are few if there are this many times fewer than sums.
        several: number of coordinates from which one product for all is faster than one for each.
        many: number of weights beyond which one product for all is not faster.
    """
    (n, d), r = (Phi.shape[1], A.shape[-1]), W.shape[1]
    if len(Phi) == 1 and fewer * n <= r:
        return weigh((Phi[:, :, None] * A.mT[:, None]).flatten(1, 2), W).unflatten(2, (n, d))
    if len(Phi) == 1 and (d < several or W.numel() * d > many):
        return torch.stack([weigh(Phi, W * a[:, None]) for a in A.unbind(-1)], dim=-1)
    weights = (W[:, :, None] * A.mT[:, None]).flatten(1, 2)  # [B, r d, c]
    return weigh(Phi, weights).unflatten(1, (r, d)).transpose(2, 3)


def add(total: Sums, part: Sums) -> Sums:
    """Sums of tensors, or of (value, gradient) pairs; in place where no graph is kept."""
    if isinstance(total, tuple):
        return _plus(total[0], part[0]), _plus(total[1], part[1])
    assert not isinstance(part, tuple)
    return _plus(total, part)


def _plus(a: Tensor, b: Tensor) -> Tensor:
    return a + b if a.requires_grad or b.requires_grad or transformed() else a.add_(b)
