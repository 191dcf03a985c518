"""What a prior has beyond the modes of its lattices: random frequencies, which are noise of data given on a lattice."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..evaluate import Basis
from ..evaluate.bases import Cosines, Pairs, Products
from ..features import Features
from ..models.streamed import Chunk
from ..paths.prior import PriorPaths
from ..paths.update import Update
from .basis import OnLattice, lattice_in

# Numbers in a block of functions at data.
_BLOCK = 1 << 23
# What lies beyond the modes counts as noise where it is no more than this share of the noise; or where data are so many
# that their covariance is not to be factored.
_LARGEST_SHARE, _LARGEST_FACTOR = 0.1, 4096


def parted(prior: PriorPaths) -> tuple[PriorPaths, PriorPaths | None]:
    """A prior without its random frequencies beyond the modes of lattices, and these alone; None if there are none."""
    if all(kept := on_modes(prior.features)):
        return prior, None

    def some(which: bool) -> PriorPaths:
        features, chosen = prior.features, [i for i, on in enumerate(kept) if on == which]
        bases, roots = [list(features.bases)[i] for i in chosen], [features.roots[i] for i in chosen]
        w = torch.cat([prior.w.split([basis.size for basis in features.bases], dim=2)[i] for i in chosen], dim=2)
        own = features.with_bases(bases, roots)
        return PriorPaths(own, w, prior.basis_index.clamp_max(own.num_bases - 1))

    return some(True), some(False)


def can_condition_on_lattice(prior: PriorPaths, update: Update, new: Chunk) -> bool:
    """Whether the lattice can represent these observations: what it leaves out is small beside their noise.

    Always, of a prior that has nothing there. Never, where other data are not on the lattice.
    """
    _, beyond = parted(prior)
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
    kept, sizes = on_modes(prior.features), [basis.size for basis in prior.features.bases]
    own = iter(on_lattice.split([size for size, on in zip(sizes, kept, strict=True) if on], dim=2))
    return torch.cat([next(own) if on else w for w, on in zip(prior.w.split(sizes, dim=2), kept, strict=True)], dim=2)


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


def on_modes(features: Features) -> list[bool]:
    """Of each basis whether it is a lattice, or exact beside one: random frequencies lie beyond a lattice's modes.

    Those of a kernel that repeats itself may lie there, too. The record tells them apart: random ones come first.
    """
    lattices, d = [basis for basis in features.bases if isinstance(basis, OnLattice)], len(features.origin)
    sampled = [c.num_features for c in features.choices if c.kind in ("leverage", "spectrum") or c.num_features is None]
    left = sum(math.inf if number is None else number for number in sampled)  # unknown of a basis of the user's own
    found = []
    for basis in features.bases:
        found.append(left <= 0 or not any(_is_beyond(basis, lattice, d) for lattice in lattices))
        left -= 0 if isinstance(basis, OnLattice) else basis.size
    return found


def _is_beyond(basis: Basis, lattice: OnLattice, input_dim: int) -> bool:
    waves = basis.fourier if isinstance(basis, Products) else basis
    if not isinstance(waves, Pairs | Cosines):
        return False
    beyond = lattice_in(lattice).beyond(input_dim).to(waves.frequencies) * (1 - 1e-6)
    far = (waves.frequencies.abs() > beyond).any(-1)
    return bool((far | (waves.amplitudes == 0)).all())
