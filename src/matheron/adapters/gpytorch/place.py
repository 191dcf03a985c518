"""Place says for which member of a batch, and for which columns of the inputs, a kernel or a mean is translated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from gpytorch import kernels as gk
from torch import Tensor, nn

from ...kernels import Kernel
from ..refusal import BY_HAND


@dataclass(frozen=True)
class Place:
    """A member of a batch of models, and the columns of the inputs that a kernel takes.

    GPyTorch's parameters have the batch's axes first, and broadcast if they have fewer or smaller ones. Columns are
    counted over all inputs, concatenated. The column of task numbers is not a coordinate of paths.
    """

    batch_shape: torch.Size
    index: tuple[int, ...]
    columns: tuple[int, ...]
    num_columns: int
    task: int | None = None
    num_tasks: int = 1
    inputs: Tensor | None = field(default=None, compare=False)  # the data `[..., n, columns]`, if known

    def pick(self, parameter: Tensor | nn.Module, trailing: int) -> Tensor:
        """Return this member's part of a parameter `[*batch, ...]` with `trailing` axes after the batch's.

        It stays differentiable in the parameter.
        """
        parameter = tensor(parameter)
        own = parameter.shape[parameter.ndim - trailing :]
        return parameter.expand(self.batch_shape + own)[self.index]

    def within(self, kernel: gk.Kernel) -> Place:
        """Return the place for the columns that a kernel's active_dims select."""
        if kernel.active_dims is None:
            return self
        return replace(self, columns=tuple(self.columns[i] for i in tensor(kernel.active_dims).tolist()))

    @property
    def coordinates(self) -> list[int]:
        """The columns that are coordinates of paths, so all but the task column."""
        return [c for c in range(self.num_columns) if c != self.task]

    def on_columns(self, kernel: Kernel) -> Kernel:
        """Restrict a translated kernel to the columns of this place."""
        if self.task in self.columns:
            raise TypeError(
                f"kernel: {type(kernel).__name__} takes column {self.task} as a coordinate, but it holds task numbers; "
                f"give the kernel active_dims of the other columns, {BY_HAND}"
            )
        dims = [self.coordinates.index(c) for c in self.columns]
        return kernel if dims == list(range(len(self.coordinates))) else kernel.on(dims)


def tensor(parameter: Tensor | nn.Module) -> Tensor:
    """Check that an attribute of a module, which is typed as a tensor or a module, is a tensor."""
    assert isinstance(parameter, Tensor)
    return parameter
