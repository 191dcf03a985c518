"""Less exploration: draws nearer to the posterior mean, and the mean's own minimiser.

A draw in ten dimensions is lowest where little is known, round after round, and what the data say of the best point so
far is hardly used. Draws whose deviations from the mean are halved, as in an average of four draws, use it; so does one
point of a round at the mean's own minimum (Do et al., epsilon-greedy Thompson sampling, 2024, have both):
`docs/results/against.md` has what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..models import GP
from ..paths import AbstractFunctions, AbstractPaths, PosteriorMean
from .mesh import sobol_net
from .region import data_in_box, polished

# Of the search for the mean's minimiser, with constraints (`strategies`) and without.
MESH_SIZE, NUM_STARTS = 4096, 8


def graded(count: int) -> list[float]:
    """Spreads from nearly none to that of draws, evenly: some functions explore, and others use what is known."""
    return [(i + 1) / count for i in range(count)]


def toward_mean(paths: AbstractPaths, spread: float | Sequence[float]) -> AbstractFunctions:
    """mean + spread (f - mean): drawn functions with their deviations from the posterior mean on another scale, the
    same for all of them or one for each."""
    s = paths.num_paths
    w = torch.as_tensor(spread, dtype=paths.dtype, device=paths.device)
    mean = PosteriorMean(paths)
    mean = mean if mean.num_paths == s else mean[[0] * s]
    return paths * w + mean * (1 - w)


def minimizer_of_mean(paths: AbstractPaths, gp: GP, box: Tensor, *, generator: torch.Generator) -> Tensor | None:
    """The minimiser `[d]` of the paths' posterior mean in the box `[2, d]`; None where it is at a datum.

    Searches start from the best of a mesh and of the data: in ten dimensions no mesh has a point near the lowest datum.
    """
    lower, upper = box.to(paths.device, paths.dtype)
    side = upper - lower
    mesh = sobol_net(len(side), generator).next(MESH_SIZE).to(lower)
    known = (data_in_box(gp, lower, upper) - lower) / side
    with torch.no_grad():
        points = torch.cat([known, mesh])  # of the unit cube
        best = paths.mean(torch.addcmul(lower, points, side)).topk(min(NUM_STARTS, len(points)), largest=False).indices
    u = polished(PosteriorMean(paths), points[best][None], lower[None], side[None])[0]
    if is_at_datum(known - u):
        return None
    return torch.addcmul(lower, u, side).clamp(lower, upper)


def is_at_datum(difference: Tensor, near: float = 1e-4) -> bool:
    """Whether a point, by its difference from each datum `[n, d]` as a share of the box, is nearer than `near` to one
    in every coordinate: the mean's minimiser would tell nothing new there."""
    return bool((difference.abs().amax(1) < near).any())
