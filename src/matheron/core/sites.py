"""Sites: where functions are observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from .checks import ArrayLike, as_array
from .value import Value

if TYPE_CHECKING:
    from .functionals import Observed


class Sites(Value):
    """Points `[n, d]` and, for functions of several outputs, the output that is observed at each, `[n]`.

    `outputs` is None where functions have one output. Points at which paths are evaluated are plain tensors; sites are
    where a model has data, inducing points or centres of basis functions.

    >>> import matheron
    >>> sites = matheron.Sites.every_output(torch.rand(5, 2), 3)
    >>> len(sites), sites.points.shape, sites[:4].outputs
    (15, torch.Size([15, 2]), tensor([0, 1, 2, 0]))
    """

    shapes: ClassVar[str] = "points: n d, outputs: n"

    points: Tensor
    outputs: Tensor | None

    def __init__(self, points: Tensor, outputs: Tensor | None = None) -> None:
        super().__init__(points=points, outputs=outputs)

    @staticmethod
    def every_output(points: Tensor, num_outputs: int) -> Sites:
        """Every output at every point: `[n, d]` becomes n t sites, the outputs of a point side by side."""
        if num_outputs == 1:
            return Sites(points)
        outputs = torch.arange(num_outputs, device=points.device).repeat(len(points))
        return Sites(points.repeat_interleave(num_outputs, dim=0), outputs)

    @staticmethod
    def empty(like: Tensor, num_outputs: int) -> Sites:
        """No sites, in the space, dtype and device of points `[*, d]`."""
        none = torch.zeros(0, dtype=torch.long, device=like.device)
        return Sites(like[:0], None if num_outputs == 1 else none)

    @property
    def places(self) -> Tensor:
        """The place of each site, `[n, d]`: the points."""
        return self.points

    def of_outputs(self, outputs: Tensor | None) -> Sites:
        """The same points with other outputs `[n]`."""
        return Sites(self.points, outputs)

    def of_ones(self) -> Tensor:
        """The values there of the constant function 1, `[n]`."""
        return torch.ones_like(self.points[:, 0])

    def features(self, phi: Callable[[Sites], Tensor]) -> Tensor:
        """The values `[n, c]` of functions phi, which are given at sites."""
        return phi(self)

    def keys(self) -> Tensor | None:
        """A row of numbers for each site; equal sites have equal rows."""
        x, outputs = self.points, self.outputs
        return x if outputs is None else torch.cat([x, outputs[:, None].to(x)], dim=1)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: Tensor | slice) -> Sites:
        outputs = self.outputs
        return Sites(self.points[index], None if outputs is None else outputs[index])

    def own(self, f: Tensor) -> Tensor:
        """Select each site's own output from values `[..., n, t]` of every output at these points: `[..., n]`.

        t may also be 1, for a value that all outputs share.
        """
        if self.outputs is None or f.shape[-1] == 1:
            return f[..., 0]
        return f.gather(-1, self.outputs[:, None].expand(*f.shape[:-1], 1))[..., 0]

    def check(self) -> None:
        if self.outputs is not None and (self.outputs.is_floating_point() or bool((self.outputs < 0).any())):
            raise ValueError("Sites: expected outputs that are whole numbers from 0")


def concatenated(*parts: Observed) -> Observed:
    """Concatenate several, in order. The result is sites if all of them are sites."""
    sites = [part for part in parts if isinstance(part, Sites)]
    if len(sites) == len(parts):
        return joined_sites(sites)
    from .functionals import Functionals  # functionals are made of sites, so this module cannot import them first

    return Functionals.concatenated(parts)


def joined_sites(parts: Sequence[Sites]) -> Sites:
    """The sites of several, in order."""
    outputs = [part.outputs for part in parts if part.outputs is not None]
    return Sites(torch.cat([part.points for part in parts]), torch.cat(outputs) if outputs else None)


def as_tasks(tasks: ArrayLike | None, n: int, num_outputs: int) -> Tensor | None:
    """Task indices `[n]`, checked; None for one output."""
    if num_outputs == 1:
        if tasks is not None:
            raise ValueError("tasks: given, but the kernel has one output; wrap it in kernels.Coregional(kernel, B)")
        return None
    if tasks is None:
        raise ValueError(f"tasks: expected [{n}] whole numbers below {num_outputs}, which output each row is of")
    tasks = as_array(tasks)
    if tasks.shape != (n,) or bool((tasks != tasks.long()).any()):
        raise ValueError(f"tasks: expected [{n}] whole numbers, got shape {list(tasks.shape)}")
    if bool((tasks < 0).any()) or bool((tasks >= num_outputs).any()):
        raise ValueError(f"tasks: expected whole numbers from 0 to {num_outputs - 1}, got up to {int(tasks.max())}")
    return tasks.long()
