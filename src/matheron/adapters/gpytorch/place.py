"""Place: which member of a batch, and which columns of the inputs, a kernel or a mean is translated for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from gpytorch import kernels as gk
from torch import Tensor, nn

from ...kernels import Kernel
from ..refusal import BY_HAND


@dataclass(frozen=True)
class Place:
    """A member of a batch of models, and the columns of the inputs that a kernel is given.

    GPyTorch's parameters have the batch's axes first; those of a smaller batch are broadcast. Columns are counted over
    all inputs side by side; the one that holds task numbers is no coordinate of a path.
    """

    batch_shape: torch.Size
    index: tuple[int, ...]
    columns: tuple[int, ...]
    num_columns: int
    task: int | None = None
    num_tasks: int = 1
    inputs: Tensor | None = field(default=None, compare=False)  # the data `[..., n, columns]`, where they are known

    def pick(self, parameter: Tensor | nn.Module, trailing: int) -> Tensor:
        """A parameter `[*batch, ...]` with `trailing` axes of its own, at this member. The graph is kept."""
        parameter = tensor(parameter)
        own = parameter.shape[parameter.ndim - trailing :]
        return parameter.expand(self.batch_shape + own)[self.index]

    def within(self, kernel: gk.Kernel) -> Place:
        """The columns that a kernel's active_dims select."""
        if kernel.active_dims is None:
            return self
        return replace(self, columns=tuple(self.columns[i] for i in tensor(kernel.active_dims).tolist()))

    @property
    def coordinates(self) -> list[int]:
        """The columns that are coordinates of a path."""
        return [c for c in range(self.num_columns) if c != self.task]

    def on_columns(self, kernel: Kernel) -> Kernel:
        """Our kernel, of the columns that are given here."""
        if self.task in self.columns:
            raise TypeError(
                f"kernel: {type(kernel).__name__} takes column {self.task}, which holds task numbers, as a coordinate; "
                f"give it the other columns by active_dims, {BY_HAND}"
            )
        dims = [self.coordinates.index(c) for c in self.columns]
        return kernel if dims == list(range(len(self.coordinates))) else kernel.on(dims)


def tensor(parameter: Tensor | nn.Module) -> Tensor:
    """A parameter or a buffer of a module: its attributes are declared as tensors or modules."""
    assert isinstance(parameter, Tensor)
    return parameter
