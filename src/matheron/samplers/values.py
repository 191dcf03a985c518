"""Samplers of values: the same call as those of functions, but every call draws anew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..checks import ArrayLike, as_array, as_count

# Draws some values of the process at points fixed beforehand: count -> [count, n], or [count, n, t].
DrawValues = Callable[[int], Tensor]


class ValueDraws(ABC):
    """Draws of a Gaussian process's values at points that must all be named at once.

    It is called as Paths are, `[n, d] -> [s, n]` or `[s, n, d] -> [s, n]`, with a trailing `[t]` for several outputs.
    But these are no functions: a second call draws again, and knows nothing of the first.
    """

    def __init__(self, num_paths: int, generator: torch.Generator) -> None:
        self.num_paths = as_count(num_paths, "num_paths")
        self.generator = generator

    @abstractmethod
    def at(self, x: ArrayLike) -> DrawValues:
        """All that can be done once for points x `[n, d]`, and from then on draws of values there."""

    def __call__(self, x: ArrayLike) -> Tensor:
        """Values at x, by the shape rule."""
        x = as_array(x)
        if x.ndim != 3:
            return self.at(x)(self.num_paths)
        if len(x) not in (1, self.num_paths):
            raise ValueError(f"x: expected [n, d] or [{self.num_paths}, n, d], got {list(x.shape)}")
        return self.at(x[0])(self.num_paths) if len(x) == 1 else torch.cat([self.at(own)(1) for own in x])

    def blocks(self, x: ArrayLike, block_size: int = 1024) -> Iterator[Tensor]:
        """As many draws at x `[n, d]`, some at a time, `[b, n]`; what the points need is done once."""
        draw, left = self.at(x), self.num_paths
        while left > 0:
            yield draw(min(block_size, left))
            left -= block_size
