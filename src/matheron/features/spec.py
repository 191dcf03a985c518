"""FeatureSpec: what is asked of the basis of a prior, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.boxes import BoxLike, as_box
from ..core.checks import ArrayLike, Names, as_count, as_points
from ..models.transforms import Transform
from .features import Features
from .fourier import RANDOM_KINDS

# Kinds that only an engine can make; and the dimensions of a lattice, at the most.
LATTICE_KINDS, LARGEST_DIM = ("lattice", "equispaced"), 3
KINDS = ("auto", "leverage", *RANDOM_KINDS, *LATTICE_KINDS)


@dataclass(frozen=True, eq=False)
class FeatureSpec:
    """What is asked of the basis of a prior, from the arguments of `draw` to the basis itself.

    `feature_spec` makes one from a user's arguments. `domain` and `where` are in a user's space until `inside` takes
    them to the model's.
    """

    kind: str | Features = "auto"  # "auto", "leverage", ..., or a basis that is there already
    num_features: int = 1024
    paths_per_basis: int | None = 64
    domain: Tensor | None = None  # [2, d], the box where functions will be called; float64, on the CPU
    tolerance: float = 1e-3  # the fraction of the posterior variance that may lie beyond a lattice's modes
    where: Tensor | None = None  # [r, d], points like those where functions will be called; float64, on the CPU
    num_paths: int = 1
    joint: bool = False  # all terms on one lattice, on which data are solved for
    largest_lattice: int | None = None  # modes beyond which no such lattice is made

    @property
    def paths_together(self) -> int:
        """How many of the paths share a basis."""
        return self.num_paths if self.paths_per_basis is None else self.paths_per_basis

    @property
    def num_bases(self) -> int:
        return math.ceil(self.num_paths / self.paths_together)

    def basis_index(self, features: Features) -> Tensor:
        """Which of the bases each path uses, `[s]`."""
        return torch.arange(self.num_paths, device=features.origin.device) // self.paths_together % features.num_bases

    def of_paths(self, num_paths: int) -> FeatureSpec:
        """The same, for another number of paths."""
        return replace(self, num_paths=num_paths)

    def inside(self, transform: Transform | None, data: Tensor | None) -> FeatureSpec:
        """The same in the model's own space; the domain takes in the data `[n, d]`."""
        domain, where = self.domain, self.where
        if transform is not None and (domain is not None or where is not None):
            transform = transform.to("cpu", torch.float64)
            if where is not None:
                where = transform(where).detach()
            if domain is not None:
                lower, upper = transform.image(domain).detach()
                flat = 0.5 * (upper <= lower)  # a column that is constant
                domain = torch.stack([lower - flat, upper + flat])
        if data is not None and domain is not None:
            lower, upper = data.detach().double().cpu().aminmax(dim=0)
            domain = torch.stack([torch.minimum(domain[0], lower), torch.maximum(domain[1], upper)])
        return replace(self, domain=domain, where=where)


def feature_spec(
    features: str | Features,
    num_features: int,
    paths_per_basis: int | None,
    domain: BoxLike | None = None,
    tolerance: float = 1e-3,
    where: ArrayLike | None = None,
    *,
    num_paths: int,
    input_dim: int,
    names: Names = None,
) -> FeatureSpec:
    """A `FeatureSpec` of a user's arguments, checked; tables of points and boxes must have the columns `names`."""
    if not isinstance(features, Features) and features not in KINDS:
        raise ValueError(f"features: expected one of {', '.join(KINDS)} or a Features object, got {features!r}")
    if features in LATTICE_KINDS and domain is None:
        raise ValueError(f'features="{features}" needs domain=(lower, upper): the box where the paths will be called')
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected a number between 0 and 1, such as 1e-3, got {tolerance!r}")
    box = points = None
    if domain is not None:
        box = as_box(domain, "domain", input_dim=input_dim, names=names).double().cpu()
    if where is not None:
        points = as_points(where, "where", input_dim=input_dim, names=names).detach().double().cpu()
    return FeatureSpec(
        features,
        as_count(num_features, "num_features"),
        None if paths_per_basis is None else as_count(paths_per_basis, "paths_per_basis"),
        box,
        float(tolerance),
        points,
        num_paths,
    )
