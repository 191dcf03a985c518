"""New observations of paths: checked, one output each, and then in the model's own space with their noise drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_noise, as_points, as_real, as_tensor, column_hint
from ..models import as_tasks
from ..models.means import at_tasks
from ..models.transforms import Transform

if TYPE_CHECKING:
    from .base import AbstractPaths


class Observations(NamedTuple):
    """y `[n]`, or `[s, n]` where each path has its own, at x `[n, d]`: noise variances `[n]`, and the output that each
    is of, `[n]`, or None where there is one. In a user's units."""

    x: Tensor
    y: Tensor
    noise: Tensor
    tasks: Tensor | None

    def only(self, keep: Tensor, tasks: Tensor | None) -> Observations:
        """Some of the observations, of outputs that are numbered anew."""
        return Observations(self.x[keep], self.y[..., keep], self.noise[keep], tasks)


def observed(
    paths: AbstractPaths, x: ArrayLike, y: ArrayLike, noise: ArrayLike, tasks: ArrayLike | None
) -> Observations:
    """What `condition_on` was given, checked; every output at every point becomes as many observations."""
    like, t = torch.empty(0, dtype=paths.dtype, device=paths.device), paths.num_outputs
    x = as_points(x, "x", input_dim=paths.input_dim, like=like, names=paths.input_names)
    given, y = y, as_tensor(y, "y", like=like)
    several = t > 1 and tasks is None
    shape = (len(x), t) if several else (len(x),)
    if y.shape not in (shape, (paths.num_paths, *shape)):
        hint = column_hint(given) if t == 1 and y.shape == (len(x), 1) else ""
        raise ValueError(f"y: expected {list(shape)} or {[paths.num_paths, *shape]}, got {list(y.shape)}{hint}")
    if several:
        noise = as_real(noise, "noise")
        whole = noise.shape == shape
        noise = noise.reshape(-1) if whole else as_noise(noise, len(x), like=like).repeat_interleave(t)
        tasks = torch.arange(t, device="cpu").repeat(len(x))
        x, y = x.repeat_interleave(t, 0), y.flatten(-2)
    noise = as_noise(noise, len(x), like=like)
    tasks = as_tasks(tasks, len(x), t)
    return Observations(x, y, noise, None if tasks is None else tasks.to(paths.device))


def undone(transform: Transform | None, t: int, data: Observations) -> tuple[Tensor, Tensor]:
    """Targets and noise before the output transform; each observation has its own output's."""
    y, noise = data.y, data.noise
    if transform is None:
        return y, noise
    if not transform.affine and bool((noise > 0).any()):
        raise ValueError("noise: under an output transform that is not affine only noise-free data (0) can be undone")
    inner = transform.inverse(y[..., None].expand(*y.shape, t))  # [..., n, t]
    slope = transform.derivative(inner)
    inner, slope = at_tasks(inner, data.tasks), at_tasks(slope, data.tasks)
    slope = slope if slope.ndim == 1 else slope[0]  # where there is noise it is the same everywhere
    return inner, torch.where(noise > 0, noise / slope.square(), noise)
