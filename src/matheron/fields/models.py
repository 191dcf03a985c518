"""Models of the trade: a fit for a field, of few or many observations."""

from __future__ import annotations

from typing import Any

import torch

from ..checks import ArrayLike, as_points, as_tensor
from ..fitting import fit
from ..gp import ExactGP
from ..kernels import Kernel, Matern

# Hyperparameters are fitted to at most so many observations; all of them condition the field.
FITTED = 1000


def fit_field(
    X: ArrayLike, y: ArrayLike, kernel: Kernel | None = None, *, seed: int = 0, progress: bool = False, **settings: Any
) -> ExactGP:
    """`matheron.fit` with a kernel for fields, Matern-3/2 and a nugget, from some of the observations where many.

    The likelihood of 1000 observations, picked at random, says as much about two lengthscales as a field needs, and
    costs a second where that of 10^5 cannot be had. The model that comes back is given all of them.

    Args:
        X, y: points `[n, d]` and values `[n]`.
        kernel: where not given, a variance times Matern-3/2 with a lengthscale for each coordinate.
        settings: of `matheron.fit`.

    >>> import torch
    >>> from matheron import fields
    >>> X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> fields.fit_field(X, (5 * X[:, 0]).sin())
    ExactGP(Scaled, 60 observations in 2 dimensions)
    """
    points = as_points(X, "X")
    values = as_tensor(y, "y", like=points)
    if kernel is None:
        spread = points.double().std(0).clamp_min(1e-300)
        kernel = float(values.double().var().clamp_min(1e-300)) * Matern(1.5, spread / 2)
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(points), generator=generator)[:FITTED] if len(points) > FITTED else slice(None)
    gp = fit(kernel, points[some], values[some], seed=generator, progress=progress, **settings)
    if len(points) <= FITTED:
        return gp
    inward, outward = gp.input_transform, gp.output_transform
    assert inward is not None and outward is not None
    model_X, model_y = inward(points.double()).to(points), outward.inverse(values.double()).to(values)
    return ExactGP(gp.kernel, model_X, model_y, gp.noise[:1], gp.mean, input_transform=inward, output_transform=outward)
