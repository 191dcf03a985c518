"""The one battery that every model of every library must pass.

A `Case` is a model trained with its own library, and that library's own posterior at test points. `check` describes it,
draws paths, and holds them to it: the mean to 1e-5, the covariance to sampling error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import matheron
from standard import assert_moments

NUM_PATHS = 1024
# The mean is compared relative to its largest value: near a zero of it relative errors say nothing.
MEAN_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Moments:
    """A posterior at n points: mean `[n]` or `[n, t]`, covariance `[n t, n t]`, point by point as `mean.reshape(-1)`.

    Where a library has marginal variances alone, `covariance` is `[n t]`, and those are compared.
    """

    mean: Any
    covariance: Any


@dataclass(frozen=True)
class Case:
    """One kind of model.

    Args:
        name: what pytest shows.
        fit: makes the model and trains it with a few real optimiser steps.
        moments: (model, x) -> Moments; a list of them, one per member, for a batch or an ensemble.
        x: test points, as the paths take them.
        inner: from path values to what `moments` speaks of, for a transform that is not affine (`torch.log` for a model
            of log targets): then the exact mean is compared by a test of its own.
        tolerance: of the mean, where the library itself is less exact (float32, iterative solvers).
    """

    name: str
    fit: Callable[[], Any]
    moments: Callable[[Any, Tensor], Moments | list[Moments]]
    x: Any
    inner: Callable[[Tensor], Tensor] | None = None
    tolerance: float = MEAN_TOLERANCE

    def __str__(self) -> str:
        return self.name


def check(case: Case, generator: torch.Generator, *, num_paths: int = NUM_PATHS, num_features: int = 256) -> Any:
    """The paths drawn from the case's model have its posterior's moments. Returns the model."""
    model = case.fit()
    before = _state(model)
    # A basis per path: the covariance over draws is then exact, and nothing is left but sampling error.
    paths = matheron.draw(model, num_paths, num_features=num_features, paths_per_basis=1, generator=generator)
    assert _state(model) == before, "the draw changed the model"
    expected = case.moments(model, case.x)
    several = isinstance(expected, list)
    values = _members(paths, paths(case.x)) if several else [paths(case.x)]
    means: list[Any] = [None] * len(values)
    if case.inner is None:
        means = _member_means(paths, case.x) if several else [paths.mean(case.x)]
    expected = expected if isinstance(expected, list) else [expected]
    assert len(values) == len(expected), f"{len(values)} members, expected {len(expected)}"
    for f, mean, moments in zip(values, means, expected, strict=True):
        f = f if case.inner is None else case.inner(f)
        _assert_member(f.detach(), mean, moments, case.tolerance)
    if case.inner is None:  # the library has predicted by now: its caches and modes make no difference
        paths = matheron.draw(model, len(values), num_features=8, generator=generator)
        again = _member_means(paths, case.x) if several else [paths.mean(case.x)]
        for one, other in zip(means, again, strict=True):
            assert torch.allclose(one, other, rtol=1e-6, atol=1e-9), "described anew, the mean is another"
    return model


def _state(model: Any) -> Any:
    """All that a torch model is made of, and the mode of each part; None for a model of another kind."""
    if not isinstance(model, torch.nn.Module):
        return None
    tensors = {name: str(value.tolist()) for name, value in model.state_dict().items()}  # NaN is equal to itself
    data = [getattr(m, "train_inputs", None) for m in model.modules()]
    sizes = [None if d is None else [list(torch.as_tensor(x).shape) for x in d if torch.is_tensor(x)] for d in data]
    return tensors, [m.training for m in model.modules()], sizes


def _assert_member(f: Tensor, mean: Tensor | None, expected: Moments, tolerance: float) -> None:
    target = torch.as_tensor(expected.mean).detach().double()
    assert f.shape[1:] == target.shape, f"paths {list(f.shape)}, the library's mean {list(target.shape)}"
    if mean is not None:
        assert mean.shape == target.shape, f"mean {list(mean.shape)}, expected {list(target.shape)}"
        error = (mean.detach().double() - target).abs().max() / target.abs().max()
        assert error < tolerance, f"mean: off by {float(error):.2g} of its largest value, expected {tolerance:.0e}"
    cov = torch.as_tensor(expected.covariance).detach().double()
    if cov.ndim == 1:  # variances: each point is a law of its own
        for f_i, m_i, v_i in zip(f.flatten(1).mT, target.flatten(), cov, strict=True):
            assert_moments(f_i[:, None], m_i[None], v_i[None, None], atol=_rounding(target))
        return
    assert_moments(f.flatten(1), target.flatten(), cov, atol=_rounding(target))


def _rounding(target: Tensor) -> float:
    """What the library's own jitter and rounding leave in a covariance that should be zero."""
    return 1e-5 * float(target.abs().max().clamp_min(1e-3)) ** 2


def _members(paths: Any, values: Tensor) -> list[Tensor]:
    """Each member's draws: of a batch `[b, s, ...]`, or of an ensemble `[s, ...]` by owner."""
    if isinstance(paths, matheron.EnsemblePaths):
        return [values[paths.owner == i] for i in range(len(paths.members))]
    return list(values.flatten(0, values.ndim - 3 - (paths.num_outputs > 1)))


def _member_means(paths: Any, x: Any) -> list[Tensor]:
    if isinstance(paths, matheron.EnsemblePaths):
        return [member.mean(x) for member in paths.members]
    return list(paths.mean(x).flatten(0, -2 - (paths.num_outputs > 1)))
