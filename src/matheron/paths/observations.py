"""New observations of paths: checked, in the model's own space, with their noise drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checks import as_noise, as_points, as_real, as_tensor
from ..gp import as_tasks
from ..transforms import Transform
from ..updates import Data


def observed(paths: Any, x: Any, y: Any, noise: Any, tasks: Any, generator: torch.Generator) -> Data:
    """What `condition_on` was given, checked, in the model's own space, with its noise drawn."""
    like, t = paths.prior.w, paths.num_outputs
    x = as_points(x, "x", input_dim=paths.input_dim, like=like)
    y = as_tensor(y, "y", like=like)
    several = t > 1 and tasks is None
    shape = (len(x), t) if several else (len(x),)
    if y.shape not in (shape, (paths.num_paths, *shape)):
        raise ValueError(f"y: expected {list(shape)} or {[paths.num_paths, *shape]}, got {list(y.shape)}")
    if several:  # every output at every point
        noise = as_real(noise, "noise")
        whole = noise.shape == shape
        noise = noise.reshape(-1) if whole else as_noise(noise, len(x), like=like).repeat_interleave(t)
        tasks = torch.arange(t).repeat(len(x))
        x, y = x.repeat_interleave(t, 0), y.flatten(-2)
    noise = as_noise(noise, len(x), like=like)
    tasks = as_tasks(tasks, len(x), t, "tasks")
    tasks = None if tasks is None else tasks.to(paths.device)
    y, noise = _undone(paths.output_transform, paths.num_outputs, y, noise, tasks)
    xi = torch.randn(paths.num_paths, len(x), generator=generator, device=generator.device, dtype=torch.float64)
    return Data(paths._inner(x[None])[0], tasks, y, noise, xi.to(like))


def _undone(
    transform: Transform | None, t: int, y: Tensor, noise: Tensor, tasks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Targets and noise before the output transform; each observation has its own output's."""
    if transform is None:
        return y, noise
    if not transform.affine and bool((noise > 0).any()):
        raise ValueError("noise: under an output transform that is not affine only noise-free data (0) can be undone")
    inner = transform.inverse(y[..., None].expand(*y.shape, t))  # [..., n, t]
    slope = transform.derivative(inner)
    own = torch.zeros_like(noise, dtype=torch.long) if tasks is None else tasks
    pick = own[:, None].expand(*inner.shape[:-1], 1)
    inner, slope = inner.gather(-1, pick)[..., 0], slope.gather(-1, pick)[..., 0]
    slope = slope if slope.ndim == 1 else slope[0]  # where there is noise it is the same everywhere
    return inner, torch.where(noise > 0, noise / slope.square(), noise)
