"""Observations that models and paths are given, checked: values at points, with targets and noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_noise, as_points, as_tensor, column_hint
from ..core.functionals import Functionals, Observed
from ..core.sites import Sites, as_tasks

# A map of functionals with averages over boxes: the identity, or one that replaces averages by sums over quadrature
# nodes.
Averaging: TypeAlias = Callable[[Functionals], Functionals]


class Observations(NamedTuple):
    """Targets `[n]`, or `[s, n]` where each path has its own, at n sites, and noise variances `[n]`."""

    sites: Observed
    y: Tensor
    noise: Tensor

    def only(self, keep: Tensor, outputs: Tensor | None) -> Observations:
        """Some of the observations, of outputs that are numbered anew."""
        return Observations(self.sites[keep].of_outputs(outputs), self.y[..., keep], self.noise[keep])

    def to(self, dtype: torch.dtype) -> Observations:
        """The observations in another precision."""
        return Observations(self.sites.to(dtype), self.y.to(dtype), self.noise.to(dtype))


def as_observations(
    X: ArrayLike | Functionals | Sequence[Functionals],
    y: ArrayLike | Sequence[ArrayLike],
    noise: ArrayLike | Sequence[ArrayLike],
    tasks: ArrayLike | None,
    num_outputs: int,
    *,
    averaged: Averaging | None = None,
    num_paths: int | None = None,
    like: Tensor | None = None,
) -> Observations:
    """Check observations for a model or paths. Every output at every point becomes an observation of its own.

    Args:
        y: targets `[n]`, or `[n, t]` for t outputs without `tasks`.
        averaged: what becomes of averages over boxes, which some kernels and functions know and others do not.
        num_paths: s, where each path may have targets of its own, `[s, n]` or `[s, n, t]`.
        like: a tensor of the dtype and on the device that functionals are brought to.
    """
    if is_observable(X):
        if averaged is None:
            raise TypeError("X: expected points [n, d], got functionals, which are observed by exact models alone")
        # that module makes Observations, so this one cannot import it first
        from .observed_functionals import as_observed

        return as_observed(X, y, noise, tasks, num_outputs, averaged, num_paths, like)
    X, y, noise = (cast(ArrayLike, each) for each in (X, y, noise))
    X, t = as_points(X, "X"), num_outputs
    several, advice = t > 1 and tasks is None, "remove them"
    if several:
        advice = (
            "where some outputs of a point are missing, give those that there are one row each: "
            "row, task = np.isfinite(y).nonzero(), then X[row], y[row, task], tasks=task"
        )
    given, y = y, as_tensor(y, "y", like=X, advice=advice)
    shape = (len(X), t) if several else (len(X),)
    if y.shape != shape and (num_paths is None or y.shape != (num_paths, *shape)):
        hint = ""
        if num_paths is not None:
            wanted = f"{list(shape)} or {[num_paths, *shape]}"
        elif several:
            wanted = f"{list(shape)}, every output at every point"
            hint = "; or give tasks=, the output that each observation is of"
        else:
            wanted = f"{list(shape)}, one number per row of X {list(X.shape)}"
        if t == 1 and y.shape == (len(X), 1):
            hint = column_hint(given)
        elif t == 1 and y.ndim == 2 and len(y) == len(X) and num_paths is None:
            hint = f"; for {y.shape[1]} outputs use kernels.Coregional(kernel, B) with B [{y.shape[1]}, {y.shape[1]}]"
        raise ValueError(f"y: expected {wanted}, got {list(y.shape)}{hint}")
    noise = as_tensor(noise, "noise", like=X)
    if several:
        noise = noise.reshape(-1) if noise.shape == shape else as_noise(noise, len(X), like=X).repeat_interleave(t)
        tasks = torch.arange(t, device="cpu").repeat(len(X))
        X, y = X.repeat_interleave(t, dim=0), y.flatten(-2)
    outputs = as_tasks(tasks, len(X), t)
    return Observations(Sites(X, None if outputs is None else outputs.to(X.device)), y, as_noise(noise, len(X), like=X))


def is_observable(X: object) -> bool:
    """Whether these are functionals, or a list of some, and not points."""
    if isinstance(X, list | tuple):
        return any(is_observable(part) for part in X)
    return isinstance(X, Functionals)
