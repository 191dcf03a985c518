"""draw_field: functions for a grid, with features that cause no stripes in single realisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch

from ..drawing import draw
from ..features import Features, spherical_features
from ..models import ExactGP
from ..models.libraries import describe
from ..models.streamed import StreamedGP
from ..models.transforms import Affine
from ..paths import AbstractPaths
from .sphere import OnSphere, box_of_grid
from .targets import Grid


@overload
def draw_field(
    model: OnSphere, num_paths: int, grid: Grid, *, inputs: Sequence[str] | None = None, **settings: Any
) -> OnSphere: ...
@overload
def draw_field(
    model: object, num_paths: int, grid: Grid, *, inputs: Sequence[str] | None = None, **settings: Any
) -> AbstractPaths: ...
def draw_field(
    model: object, num_paths: int, grid: Grid, *, inputs: Sequence[str] | None = None, **settings: Any
) -> AbstractPaths | OnSphere:
    """Draw functions for a grid by `matheron.draw`, for use in `simulate`, `summarise` and `mean`.

    Random Fourier features cause visible stripes in single realisations, although means and covariances are right.
    Therefore features are chosen for the grid. In up to three dimensions they are a Fourier lattice over its box, and
    on the sphere they are spherical harmonics. Kernels that have neither get 16,384 random frequencies.

    Args:
        model: what `fit_sphere` returns, or anything that `matheron.draw` takes.
        num_paths: number of functions.
        grid, inputs: as for `simulate`. In the plane the functions are defined over this grid's box, and that of the
            data, alone.
        settings: of `matheron.draw`: `seed`, `features`, ...

    >>> import numpy as np, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.Matern(1.5, 0.3), X=[[0.2, 0.1], [0.7, 0.9]], y=[0.0, 1.0], noise=1e-4)
    >>> grid = {"x": np.linspace(0, 1, 30), "y": np.linspace(0, 2, 20)}
    >>> paths = fields.draw_field(gp, 8, grid, seed=0)
    >>> fields.simulate(paths, grid).shape
    (8, 20, 30)
    """
    chosen: dict[str, Any] = {"num_features": 1 << 14}  # the last choice: fewer would be visible as stripes
    if not isinstance(model, OnSphere):
        described = model.model if isinstance(model, StreamedGP) else describe(model)
        chosen["domain"] = box_of_grid(grid, described.input_dim, None, inputs)
        return draw(model, num_paths, **{**chosen, **settings})
    if model.centre is not None:
        chosen["domain"] = box_of_grid(grid, 2, model, inputs)
    elif "features" not in settings:
        harmonics = _harmonics(model.inner, model.radius, settings.get("tolerance", 1e-3))
        chosen["features"] = "auto" if harmonics is None else harmonics
    return model.with_inner(draw(model.inner, num_paths, **{**chosen, **settings}))


def _harmonics(model: object, radius: float, tolerance: float) -> Features | None:
    """Spherical harmonics for a model on the sphere, in its own space; None where they do not describe its kernel."""
    gp = describe(model)
    if not isinstance(gp, ExactGP):
        return None
    scale, centre, inward = torch.ones(1, device="cpu"), torch.zeros(3, device="cpu"), gp.input_transform
    if isinstance(inward, Affine):
        scale, centre = inward.scale.abs().reshape(-1), inward.offset.expand(3)
    if not (inward is None or isinstance(inward, Affine)) or bool(scale.max() > scale.min() * (1 + 1e-9)):
        return None
    data = (gp.train_inputs, gp.noise)
    return spherical_features(gp.kernel, centre, float(scale[0]) * radius, data, tolerance=tolerance)
