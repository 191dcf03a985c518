"""Trust regions: the minimiser of a drawn function near the best data, if the whole box is too large to explore.

In ten dimensions a box has more corners than any budget can visit, and most drawn functions have their minimum in one
of them. TuRBO (Eriksson et al., 2019) restricts the search to a region around the best point so far, which grows while
values fall and shrinks otherwise. Here whole functions are drawn, so their minimisers in the region are found by
gradients and not picked from candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..models import GP, ExactGP, SparseGP, leaves
from .mesh import sobol_net


def side_after(
    values: Sequence[float | None],
    first: int,
    q: int,
    dim: int,
    *,
    initial: float = 0.8,
    largest: float = 1.6,
    smallest: float = 0.5**7,
    successes: int = 3,
    enough: float = 1e-3,
) -> float:
    """The side of the region after rounds of q values (None: failed) that came after the `first` ones.

    The side depends on the values alone, so a search that resumes after a restart has the same region.

    Args:
        values, first, q, dim: all values, how many were there before the rounds, values per round, and dimensions.
        initial, largest, smallest: the side, as a share of the box, at first, at the most, and below which the region
            begins anew.
        successes: rounds in a row that must improve before the region doubles.
        enough: by how much of the best value a round must fall to count.

    >>> side_after([3.0, 2.0, 1.5, 1.2, 1.0], first=2, q=1, dim=4)  # three rounds that improve
    1.6
    >>> side_after([3.0, 2.0] + [2.5] * 4, first=2, q=1, dim=4)  # four that do not
    0.4
    """
    numbers = [math.inf if value is None else value for value in values]
    side, better, worse = initial, 0, 0
    best, failures = min(numbers[:first], default=math.inf), math.ceil(max(4, dim) / q)
    for i in range(first, len(numbers), q):
        lowest = min(numbers[i : i + q])
        improved = lowest < (best - enough * abs(best) if math.isfinite(best) else best)
        better, worse = (better + 1, 0) if improved else (0, worse + 1)
        if better == successes:
            side, better = min(2 * side, largest), 0
        elif worse == failures:
            side, worse = side / 2, 0
        side, best = initial if side < smallest else side, min(best, lowest)
    return side


def regions(
    centres: Tensor,
    gp: GP,
    lower: Tensor,
    upper: Tensor,
    side: float,
    mesh_size: int,
    generator: torch.Generator,
    num_moved: int = 20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes about centres `[s, d]`, from `low` with sides `span`, both `[s, d]`; and a mesh of each, `[s, n, d]` in the
    unit cube. A point of the mesh differs from the centre in about `num_moved` coordinates."""
    whole, (s, d) = upper - lower, centres.shape
    half = 0.5 * side * _relative_lengthscales(gp, whole).to(lower) * whole
    low, high = torch.maximum(centres - half, lower), torch.minimum(centres + half, upper)
    span = (high - low).clamp_min(torch.finfo(lower.dtype).tiny)  # [s, d]
    mesh = sobol_net(d, generator).next(mesh_size).to(lower)
    chance = torch.rand(s, mesh_size, d, generator=generator, device=generator.device, dtype=torch.float32)
    moved = chance.to(lower.device) < num_moved / d
    u = torch.where(moved, mesh, ((centres - low) / span)[:, None])  # [s, n, d]
    u[:, 0] = (centres - low) / span
    return low, span, u


def data_in_box(gp: GP, lower: Tensor, upper: Tensor) -> Tensor:
    """The data (or inducing points) `[n, d]` in the user's units, those outside of the box at its bounds."""
    several = [_data(member, lower) for member in leaves(gp)]
    # models of an ensemble have the same data
    X = several[0] if len(several) == 1 else torch.cat(several).unique(dim=0)
    return X.clamp(lower, upper)


def _data(gp: ExactGP | SparseGP, like: Tensor) -> Tensor:
    X = gp.centres.detach().to(like)
    return X if gp.input_transform is None else gp.input_transform.to(X.device, X.dtype).inverse(X)


def _relative_lengthscales(gp: GP, whole: Tensor) -> Tensor:
    """How long each coordinate's lengthscale is, in sides of the box, over their geometric mean: `[d]`; else ones. Of
    several models it is the geometric mean of theirs."""
    each = torch.stack([_relative_lengthscales_of(member, whole) for member in leaves(gp)])
    return each.log().mean(0).exp()


def _relative_lengthscales_of(gp: ExactGP | SparseGP, whole: Tensor) -> Tensor:
    parts = gp.kernel.radial_parts(len(whole))
    if parts is None or len(parts) != 1 or len(parts[0].dims) < len(whole):
        return torch.ones_like(whole)
    scale = torch.ones_like(whole)
    if gp.input_transform is not None:  # lengthscales are in the model's own space
        scale = gp.input_transform.to(whole.device, whole.dtype).derivative(torch.zeros_like(whole))
    in_order = torch.empty_like(whole)
    in_order[parts[0].dims] = parts[0].kernel.lengthscale.detach().to(whole).expand(len(whole))
    relative = in_order / (scale.abs() * whole)
    return relative / relative.log().mean().exp()
