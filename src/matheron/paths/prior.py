"""PriorPaths: functions from the prior, in weight space."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..features import Features
from ..features.basis import Basis
from ..scratch import frame
from ..value import Value
from ..weigh import add
from .sums import concatenated, picked, split_rows

# Where each path has a basis of its own and points are few, this many numbers' worth of bases are evaluated together.
_BATCH = 1 << 21


class PriorPaths(Value):
    """f(.) = sum_i w_i phi_i(.), `eqn:bayes_linear`: features, w `[s, t, ell]`, and each path's basis `[s]`."""

    def __init__(self, features: Features, w: Tensor, basis_index: Tensor) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("w", w)
        self.register_buffer("basis_index", basis_index)
        self.restore()

    def restore(self) -> None:
        """What follows from the buffers: each basis's weights times amplitudes, and the paths that share a basis."""
        sizes = [basis.size for basis in self.features.bases]
        for i, (basis, w) in enumerate(zip(self.features.bases, self.w.split(sizes, dim=-1), strict=True)):
            scales = basis.scales()
            scales = scales if len(scales) == 1 else scales[self.basis_index]
            self.register_buffer(f"coefficients_{i}", w * scales[:, None], persistent=False)  # [s, t, c]
        self.indices: list[int] = self.basis_index.tolist()
        members: dict[int, list[int]] = {}
        for path, g in enumerate(self.indices):
            members.setdefault(g, []).append(path)
        self.groups = sorted(members.items())

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

    @property
    def width(self) -> int:
        """The widest basis: how many numbers a point needs."""
        return max((basis.width for basis in self.features.bases), default=1)

    def __getitem__(self, index: Tensor) -> PriorPaths:
        used, renumbered = self.basis_index[index].unique(return_inverse=True)
        features = self.features
        if features.num_bases > 1:
            bases = [basis.select(used) for basis in features.bases]
            features = Features(bases, features.roots, features.origin, features.domain, features.description)
        return PriorPaths(features, self.w[index], renumbered)

    def sums(
        self, x: Tensor, paths: slice | Tensor | None, gradient: bool = False, only: list[int] | None = None
    ) -> Any:
        """The paths at x, `[s, t, n]`, and with `gradient` their gradients `[s, t, n, d]`.

        Every path at the points `[1, n, d]`; or, where `paths` says which, some at their own points `[s, n, d]`.
        `only` names the bases to sum over, where not all.
        """
        x = x - self.features.origin
        total = None
        for i, basis in enumerate(self.features.bases):
            if only is not None and i not in only:
                continue
            with frame():
                total = add(total, self._of_basis(basis, getattr(self, f"coefficients_{i}"), x, paths, gradient))
        return total

    def _of_basis(self, basis: Basis, W: Tensor, x: Tensor, paths: slice | Tensor | None, gradient: bool) -> Any:
        s, t, c = W.shape
        if paths is not None:
            return self._of_basis_at_own(basis, W[paths], x, paths, gradient)
        if basis.num_bases == 1:  # shared points, one basis: one problem for all
            return split_rows(basis.sums(x, W.reshape(1, s * t, c), gradient), s, t)
        if len(self.groups) == s:  # shared points, a basis a path: as many paths at once as stay small
            step = max(1, _BATCH // max(1, c * x.shape[1]))
            cuts = [slice(i, i + step) for i in range(0, s, step)]
            return concatenated([basis.select(self.basis_index[cut]).sums(x, W[cut], gradient) for cut in cuts])
        parts, order = [], []
        for g, members in self.groups:  # shared points, a basis for several paths
            rows = W[members[0] : members[-1] + 1] if members[-1] - members[0] < len(members) else W[members]
            out = basis.select(slice(g, g + 1)).sums(x, rows.reshape(1, -1, c), gradient)
            parts.append(split_rows(out, len(members), t))
            order += members
        out = concatenated(parts)
        return out if order == sorted(order) else picked(out, torch.tensor(order, device=x.device).argsort())

    def _of_basis_at_own(self, basis: Basis, W: Tensor, x: Tensor, paths: slice | Tensor, gradient: bool) -> Any:
        """Own points: a problem a path. The frequencies that neighbours share are not copied for each."""
        indices = self.indices[paths] if isinstance(paths, slice) else self.basis_index[paths].tolist()
        runs = [(g, len(list(run))) for g, run in groupby(indices)]
        if basis.num_bases == 1 or len(runs) > len(W) // 4:
            return basis.select(self.basis_index[paths]).sums(x, W, gradient)
        parts, start = [], 0
        for g, length in runs:
            mine = slice(start, start + length)
            parts.append(basis.select(slice(g, g + 1)).sums(x[mine], W[mine], gradient))
            start += length
        return concatenated(parts)
