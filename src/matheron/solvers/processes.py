"""The processes that share the work: one alone, or those of torch.distributed's default group."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Processes:
    """A single process: sums over processes are the values themselves.

    Rows of n are shared out in equal parts, the last may be smaller. Every process must call the same methods in the
    same order, so whatever decides what comes next must itself be a sum, a maximum or the first process's.
    """

    rank, count = 0, 1

    def part(self, n: int) -> slice:
        """This process's rows of n."""
        step = -(-n // self.count)
        return slice(min(n, self.rank * step), min(n, (self.rank + 1) * step))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, the same on each."""
        return value

    def max(self, value: Tensor) -> Tensor:
        """The largest over processes, the same on each."""
        return value

    def first(self, value: Tensor) -> Tensor:
        """The first process's value."""
        return value

    def gather(self, rows: Tensor, n: int) -> Tensor:
        """All n rows `[n, ...]` from each process's part."""
        return rows


ALONE = Processes()


class Group(Processes):
    """The processes of torch.distributed's default group."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "distributed=True: expected torch.distributed to be initialised; start the script with torchrun and "
                "call torch.distributed.init_process_group() first"
            )
        self.dist = dist
        self.rank, self.count = dist.get_rank(), dist.get_world_size()

    def _all(self, collective: Callable[[Tensor], object], value: Tensor) -> Tensor:
        value = value.contiguous().clone()
        try:
            collective(value)
        except RuntimeError as error:
            raise RuntimeError(
                f"process {self.rank} of {self.count} has lost the others: one of them ended or cannot be reached. "
                f"Start all of them again ({str(error).strip().splitlines()[0]})"
            ) from error
        return value

    def sum(self, value: Tensor) -> Tensor:
        return self._all(self.dist.all_reduce, value)

    def max(self, value: Tensor) -> Tensor:
        return self._all(lambda v: self.dist.all_reduce(v, self.dist.ReduceOp.MAX), value)

    def first(self, value: Tensor) -> Tensor:
        return self._all(lambda v: self.dist.broadcast(v, 0), value)

    def gather(self, rows: Tensor, n: int) -> Tensor:
        step = -(-n // self.count)
        parts = list(rows.new_empty(self.count, step, *rows.shape[1:]))
        padded = rows.new_zeros(step, *rows.shape[1:])
        padded[: len(rows)] = rows
        self._all(lambda v: self.dist.all_gather(parts, v), padded)
        return torch.cat(parts)[:n]
