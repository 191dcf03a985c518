"""PriorPaths: functions from the prior, in weight space. Refreshed functions also have a term that keeps their values
at some points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, final

import torch
from torch import Tensor

from ..core.checks import many, normals
from ..core.functionals import Functionals, Observed
from ..core.value import Value
from ..evaluate import PathTerm, Record, WeightedSum, sum_of, values
from ..features import Features
from ..models.means import Mean
from .functionals import functionals_of_record
from .update import KernelSum


@final
class PriorPaths(Value):
    """f(.) = sum_i w_i phi_i(.), equation (6): features, w `[s, t, ell]`, and each path's basis `[s]`.

    Refreshed paths (`AbstractPaths.refreshed`) are drawn afresh, except for their values at some points z. They have in
    addition a term `kept`, sum_j a_j k(., z_j), which gives f(z) its old values. Such an f is a function from the prior
    like any other: the values at z are part of the draw, and not data.

    `drawn_given` is the number of data for which the basis was chosen when the functions were drawn. After a refresh,
    only the residuals at later data have the distribution that residuals of prior draws have.
    """

    fields = ("drawn_given",)
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
        dtypes = {tensor.dtype for tensor in (self.w, *self.features.buffers()) if tensor.is_floating_point()}
        if len(dtypes) > 1:
            raise ValueError(f"PriorPaths: expected weights and features of one dtype, got {sorted(map(str, dtypes))}")
        if not isinstance(self.drawn_given, int):
            raise ValueError(f"PriorPaths: expected a number of data, got {self.drawn_given!r}")
        kept = self.kept
        shape = (len(kept.v), kept.kernel.num_outputs) if isinstance(kept, KernelSum) else None
        if kept is not None and shape != self.w.shape[:2]:
            raise ValueError("PriorPaths: expected the kept points' weights of as many paths and outputs")

    def __init__(
        self,
        features: Features,
        w: Tensor,
        basis_index: Tensor,
        kept: KernelSum | None = None,
        drawn_given: int = 0,
    ) -> None:
        super().__init__(w=w, basis_index=basis_index, features=features)
        self._modules["kept"], self.drawn_given = kept, drawn_given

    def mapped(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `fn` applied to every tensor. The weights of the kept points are large, and stay in float64."""
        new = super().mapped(fn)
        if new.kept is not None and new.kept.v.dtype != self.kept.v.dtype:
            new._modules["kept"] = new.kept.replaced(v=self.kept.v.to(new.kept.v.device))
        return new

    @property
    def num_paths(self) -> int:
        return self.w.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.w.shape[1]

    @property
    def description(self) -> str:
        """The features in words, and the number of kept points, if any."""
        bases = f" in {self.num_bases} bases" if self.num_bases > 1 else ""
        kept = "" if self.kept is None else f", kept at {many(len(self.kept.sites), 'point')}"
        return f"{self.features.description}{bases}{kept}"

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

    def terms(self, added: Sequence[Tensor] | None = None) -> list[PathTerm]:
        """The terms of the prior: each basis with its weights times its amplitudes, and the term of the kept points.

        `added` are float64 weights, `[s, t, c]` for each basis, that are added to the prior's own.
        """
        bases, sums = list(self.features.bases), []
        for i, (basis, w) in enumerate(zip(bases, self.w.split([basis.size for basis in bases], dim=-1), strict=True)):
            scales = basis.scales()
            W = w * (scales if len(scales) == 1 else scales[self.basis_index])[:, None]
            W = W if added is None else (W.double() + added[i]).to(W.dtype)
            last = sums[-1] if sums else None
            if last is not None and last.basis.same_functions(basis):  # one basis, with several couplings
                sums[-1] = WeightedSum(last.basis, last.weights + W, last.index, last.origin)
            else:
                sums.append(WeightedSum(basis, W, self.basis_index, self.features.origin))
        return [*sums, *([] if self.kept is None else self.kept.terms())]

    def sums(self, x: Tensor) -> Tensor:
        """The functions at inner points `[1, n, d]`: `[s, t, n]`."""
        f = sum_of(self.terms(), x)
        return x.new_zeros(self.num_paths, self.num_outputs, x.shape[1]) if f is None else f

    def __getitem__(self, index: Tensor) -> PriorPaths:
        used, renumbered = self.basis_index[index].unique(return_inverse=True)
        features = self.features.select(used) if self.num_bases > 1 else self.features
        kept = None if self.kept is None else self.kept[index]
        return PriorPaths(features, self.w[index], renumbered, kept, self.drawn_given)


def observed_before(
    prior: PriorPaths,
    mean: Mean,
    sites: Observed,
    update: tuple[Sequence[PathTerm], Sequence[PathTerm]] = ((), ()),
    graph: bool = False,
) -> Tensor:
    """The values at sites (or functionals) of mean + prior + update of every path, and in the last row those of the
    path with w = 0: `[s + 1, n]`.

    `update` has the terms of an update of the paths, and of their mean. `graph` says whether the values are part of an
    autograd graph.
    """
    (s, t, _), origin, (of_paths, of_mean) = prior.w.shape, prior.features.origin, update
    graph = graph or prior.requires_graph() or mean.requires_graph()
    records = [Record(s, t, [*prior.terms(), *of_paths], mean, origin, graph)]
    records += [Record(1, t, of_mean, mean, origin, graph)] if of_mean else []
    f = [
        functionals_of_record(record, sites)
        if isinstance(sites, Functionals)
        else sites.own(values(record, sites.points[None]))
        for record in records
    ]
    return torch.cat(f if of_mean else [*f, mean.at(sites)[None]])


def prior_on(
    features: Features, index: Tensor, t: int, like: Tensor, generator: torch.Generator, num_data: int = 0
) -> PriorPaths:
    """Draw f(.) = sum_i w_i phi_i(.): weights for every path, in the dtype of a tensor. `num_data` is the number of
    data for which the basis was chosen.

    Path i has basis `index[i]`.
    """
    w = normals((len(index), t, features.num_features), generator).to(like)
    return PriorPaths(features, w if t == 1 else mixed(features, w), index, drawn_given=num_data)


def mixed(features: Features, omega: Tensor) -> Tensor:
    """w = R omega `[s, t, ell]`: independent standard normals omega, mixed over the outputs by a root R of each
    coupling."""
    if all(root is None for root in features.roots):  # one output, or no features
        return omega
    blocks = zip(features.roots, omega.split([b.size for b in features.bases], dim=-1), strict=True)
    return torch.cat([R @ part for R, part in blocks if R is not None], dim=-1)
