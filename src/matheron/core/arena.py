"""Memory for a block's temporaries, used again by the next block.

Fresh memory costs more to touch than a block's arithmetic saves (measured: 7 GB/s into new pages, 17 to 35 into old
ones), so a blocked evaluation on a CPU takes its temporaries from one arena: `empty` bumps a pointer, and a `frame`
puts it back. Outside an arena `empty` is `torch.empty`. What `empty` gives must not outlive its frame.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from .modes import outside

_ALIGNMENT = 64
# What a thread keeps between evaluations, in bytes: all temporaries of a block as a rule. The rest is allocated.
ARENA_SIZE = 64 * 2**20
_local = threading.local()
_NOTHING = nullcontext()


class _Arena:
    def __init__(self) -> None:
        with outside():  # memory is used again in other modes
            self.memory = torch.empty(ARENA_SIZE, dtype=torch.uint8, device="cpu")
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
    """Give back at the end of the block all that `empty` gave inside it."""
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
    current.used = start + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return current.memory[start : start + num_bytes].view(like.dtype).view(tuple(shape))


def computed(function: Callable[..., Tensor], shape: Sequence[int], *args: Tensor) -> Tensor:
    """function(*args), of that shape, in memory that `empty` gives; outside an arena torch's own is as good."""
    if getattr(_local, "arena", None) is None:
        return function(*args)
    return function(*args, out=empty(shape, args[0]))
