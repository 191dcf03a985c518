"""The posterior mean's minimiser: what is known to be good, beside draws that ask what might be better.

A draw in ten dimensions is lowest where little is known, round after round, and what the data say of the best point so
far is hardly used. One point of a round at the mean's own minimum uses it (epsilon-greedy Thompson sampling, Do et al.,
2024): `docs/results/against.md` has what it is worth.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..gp import ExactGP, SparseGP
from ..paths import AbstractPaths
from .quasi_newton import minimize_in_unit_box
from .region import data_in_box

MESH_SIZE = 4096
# Nearer to a datum than this share of the box, in every coordinate, the mean's minimiser would tell nothing new.
_NEAR = 1e-4


def minimizer_of_mean(
    paths: AbstractPaths,
    gp: ExactGP | SparseGP,
    box: Tensor,
    *,
    generator: torch.Generator,
    mesh_size: int = MESH_SIZE,
    num_starts: int = 8,
) -> Tensor | None:
    """The minimiser `[d]` of the paths' posterior mean in the box `[2, d]`; None where it is at a datum.

    Searches start from the best of a mesh and of the data: in ten dimensions no mesh has a point near the lowest datum.
    """
    lower, upper = box.to(paths.device, paths.dtype)
    side = upper - lower
    seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
    mesh = SobolEngine(len(side), scramble=True, seed=seed).draw(mesh_size, dtype=torch.float64).to(lower)
    known = (data_in_box(gp, lower, upper) - lower) / side
    with torch.no_grad():
        points = torch.cat([known, mesh])  # of the unit cube
        best = paths.mean(torch.addcmul(lower, points, side)).topk(min(num_starts, len(points)), largest=False).indices

    def objective(index: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            value = paths.mean(torch.addcmul(lower, u, side))
            (gradient,) = torch.autograd.grad(value.sum(), u)
        return value.detach(), gradient

    found = minimize_in_unit_box(objective, points[best])
    u = found.x[torch.where(torch.isfinite(found.value), found.value, torch.inf).argmin()]
    if bool(((known - u).abs().amax(1) < _NEAR).any()):
        return None
    return torch.addcmul(lower, u, side).clamp(lower, upper)
