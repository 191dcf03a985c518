"""New observations of paths: checked, one output each, and then in the model's own space."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_noise, as_points, as_real, as_tensor, column_hint
from ..core.sites import Sites
from ..models import as_tasks
from ..models.transforms import Transform

if TYPE_CHECKING:
    from .base import AbstractPaths


class Observations(NamedTuple):
    """Targets `[n]`, or `[s, n]` where each path has its own, at n sites, and noise variances `[n]`.

    They are in a user's units.
    """

    sites: Sites
    y: Tensor
    noise: Tensor

    def only(self, keep: Tensor, outputs: Tensor | None) -> Observations:
        """Some of the observations, of outputs that are numbered anew."""
        return Observations(Sites(self.sites.points[keep], outputs), self.y[..., keep], self.noise[keep])


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
    return Observations(Sites(x, None if tasks is None else tasks.to(paths.device)), y, noise)


def undone(transform: Transform | None, t: int, data: Observations) -> tuple[Tensor, Tensor]:
    """Targets and noise before the output transform; each observation has its own output's."""
    y, noise = data.y, data.noise
    if transform is None:
        return y, noise
    if not transform.affine and bool((noise > 0).any()):
        raise ValueError("noise: under an output transform that is not affine only noise-free data (0) can be undone")
    inner = transform.inverse(y[..., None].expand(*y.shape, t))  # [..., n, t]
    slope = transform.derivative(inner)
    inner, slope = data.sites.own(inner), data.sites.own(slope)
    slope = slope if slope.ndim == 1 else slope[0]  # where there is noise it is the same everywhere
    return inner, torch.where(noise > 0, noise / slope.square(), noise)
