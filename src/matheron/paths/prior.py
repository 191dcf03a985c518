"""PriorPaths: functions from the prior, in weight space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import Tensor

from ..evaluate import WeightedSum, sum_of
from ..features import Features, Lattice, same_modes
from ..value import Value


@final
class PriorPaths(Value):
    """f(.) = sum_i w_i phi_i(.), `eqn:bayes_linear`: features, w `[s, t, ell]`, and each path's basis `[s]`."""

    shapes = "w: s t ell, basis_index: s"

    def check(self) -> None:
        ell, index = self.features.num_features, self.basis_index
        if self.w.ndim != 3 or self.w.shape[-1] != ell or index.shape != self.w.shape[:1]:
            shapes = f"w {list(self.w.shape)} and basis_index {list(index.shape)}"
            raise ValueError(
                f"PriorPaths: expected weights of {ell} features, and the basis of each path, got {shapes}"
            )
        if index.is_floating_point() or not 0 <= int(index.min()) <= int(index.max()) < self.features.num_bases:
            raise ValueError(f"PriorPaths: expected indices of {self.features.num_bases} bases")

    def __init__(self, features: Features, w: Tensor, basis_index: Tensor) -> None:
        super().__init__(w=w, basis_index=basis_index)
        self.features = features

    @property
    def num_paths(self) -> int:
        return self.w.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.w.shape[1]

    @property
    def origin(self) -> Tensor:
        """`[d]`, of the functions' dtype and on their device: about where they are centred."""
        return self.features.origin

    @property
    def domain(self) -> Tensor | None:
        """The box `[2, d]` where the functions are right; None: everywhere."""
        return self.features.domain

    @property
    def description(self) -> str:
        """What it is made of, in words."""
        bases = f" in {self.num_bases} bases" if self.num_bases > 1 else ""
        return f"{self.features.description}{bases}"

    @property
    def weights(self) -> Tensor:
        """w: `[s, ell]`, or `[s, t, ell]` for several outputs."""
        return self.w[:, 0] if self.w.shape[1] == 1 else self.w

    @property
    def num_features(self) -> int:
        return self.features.num_features

    @property
    def num_bases(self) -> int:
        return self.features.num_bases

    def terms(self) -> list[WeightedSum]:
        """Each basis with its weights times its amplitudes."""
        bases, sums = list(self.features.bases), []
        for basis, w in zip(bases, self.w.split([basis.size for basis in bases], dim=-1), strict=True):
            scales = basis.scales()
            scales = scales if len(scales) == 1 else scales[self.basis_index]
            sums.append(WeightedSum(basis, w * scales[:, None], self.basis_index, self.origin))
        return sums

    def sums(self, x: Tensor) -> Tensor:
        """The functions at inner points `[1, n, d]`: `[s, t, n]`."""
        f = sum_of(self.terms(), x)
        return x.new_zeros(self.num_paths, self.num_outputs, x.shape[1]) if f is None else f

    def __getitem__(self, index: Tensor) -> PriorPaths:
        used, renumbered = self.basis_index[index].unique(return_inverse=True)
        features = self.features.select(used) if self.num_bases > 1 else self.features
        return PriorPaths(features, self.w[index], renumbered)


def on_same_modes(terms: Sequence[WeightedSum]) -> list[WeightedSum]:
    """The same sum, lattices with the same modes (of several couplings) as one."""
    merged: list[WeightedSum] = []
    for term in terms:
        pair = [merged[-1].basis, term.basis] if merged else []
        if pair and all(isinstance(basis, Lattice) for basis in pair) and same_modes(pair):
            last = merged[-1]
            merged[-1] = WeightedSum(last.basis, last.weights + term.weights, last.index, last.origin)
        else:
            merged.append(term)
    return merged
