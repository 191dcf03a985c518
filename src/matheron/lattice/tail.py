"""What a prior has beyond the modes of its lattices: random frequencies, which are noise of data given on a lattice."""

from __future__ import annotations

import torch
from torch import Tensor

from ..features.features import BEYOND
from ..models.streamed import Chunk
from ..paths.prior import PriorPaths
from ..paths.update import Update

# Numbers in a block of functions at data.
_BLOCK = 1 << 23
# What lies beyond the modes counts as noise where it is no more than this share of the noise; or where data are so many
# that their covariance is not to be factored.
_LARGEST_SHARE, _LARGEST_FACTOR = 0.1, 4096


def split_tail(prior: PriorPaths) -> tuple[PriorPaths, PriorPaths | None]:
    """A prior without its random frequencies beyond the modes of lattices, and these alone; None if there are none."""
    blocks = list(prior.features.blocks)
    if all(block.role != BEYOND for block in blocks):
        return prior, None

    def some(beyond: bool) -> PriorPaths:
        chosen = [i for i, block in enumerate(blocks) if (block.role == BEYOND) == beyond]
        parts = prior.w.split([block.basis.size for block in blocks], dim=2)
        own = prior.features.with_blocks([blocks[i] for i in chosen])
        w = torch.cat([parts[i] for i in chosen], dim=2)
        return PriorPaths(own, w, prior.basis_index.clamp_max(own.num_bases - 1))

    return some(False), some(True)


def can_condition_on_lattice(prior: PriorPaths, update: Update, new: Chunk) -> bool:
    """Whether the lattice can represent these observations: what it leaves out is small beside their noise.

    Always, of a prior that has nothing there. Never, where other data are not on the lattice.
    """
    _, beyond = split_tail(prior)
    if beyond is None:
        return True
    if update.num_data:
        return False
    X, outputs = new.sites.points, new.sites.outputs
    if len(X) > _LARGEST_FACTOR:
        return True
    more = variances_at(beyond, X.double() - beyond.origin.double(), outputs)
    return bool((more <= _LARGEST_SHARE * new.noise.double()).all())


def together(prior: PriorPaths, on_lattice: Tensor) -> Tensor:
    """The weights of a prior with these of its lattices, and of what is exact beside them."""
    blocks = list(prior.features.blocks)
    own = iter(on_lattice.split([block.basis.size for block in blocks if block.role != BEYOND], dim=2))
    parts = prior.w.split([block.basis.size for block in blocks], dim=2)
    return torch.cat([w if b.role == BEYOND else next(own) for w, b in zip(parts, blocks, strict=True)], dim=2)


def values_at(prior: PriorPaths, X: Tensor, tasks: Tensor | None) -> Tensor:
    """Functions of a prior at data about its origin, `[s, n]`."""
    f = prior.sums((X + prior.origin).to(prior.w)[None]).double()  # [s, t, n]
    return f[:, 0] if tasks is None else f[:, tasks, torch.arange(len(X), device=X.device)]


def variances_at(prior: PriorPaths, X: Tensor, tasks: Tensor | None) -> Tensor:
    """Of a prior at data about its origin, `[n]`: the mean over its bases."""
    features, total = prior.features.to(torch.float64), torch.zeros_like(X[:, 0])
    for basis, root in zip(features.bases, features.roots, strict=True):
        blocks = X.split(max(1, _BLOCK // (basis.size * basis.num_bases)))
        powers = [(basis.values(x[None]) * basis.scales()[:, None]).square().sum(-1).mean(0) for x in blocks]
        total += torch.cat(powers) * (1.0 if tasks is None or root is None else root.square().sum(1)[tasks])
    return total
