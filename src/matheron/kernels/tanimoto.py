"""Tanimoto: the kernel of fingerprints, sets or counts, beside its random features.

    k(x, x') = sum_i min(x_i, x'_i) / sum_i max(x_i, x'_i)

Two fingerprints get the same hash with probability k, if the hash is a consistent weighted sample. That is an index i,
and a level of it, drawn in proportion to x_i by random numbers that all fingerprints share. See Ioffe, Improved
consistent sampling, weighted minhash and L1 sketching, 2010; for sets it is Broder's minhash. A random sign for each
hash is then a feature,

    phi_i(x) = sign_i(h_i(x)) / sqrt(ell),      E phi(x) . phi(x') = k(x, x'),      Var = (1 - k(x, x')^2) / ell

Tripp, Bacallado, Singh and Hernandez-Lobato introduced it (Tanimoto random features for scalable molecular machine
learning, 2023). Signs have the least variance among all independent numbers of mean zero and variance one.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..core.modes import transformed
from ..core.value import Value
from .base import Kernel

__all__ = ["Tanimoto"]


class Tanimoto(Kernel):
    """k = sum_i min(x_i, x'_i) / sum_i max(x_i, x'_i), for numbers that are not negative; 1 for two points of zeros.

    For sets, as vectors of zeros and ones, it is the number of common elements over the number of elements in either:
    the Tanimoto or Jaccard coefficient. For counts, or any other numbers, it is also called MinMax or Ruzicka. Points
    are fingerprints as arrays `[n, d]`. Draws are made of random signs of hashes. With ell of them, the error of the
    prior's covariance is sqrt((1 - k^2) / ell). Such functions are constant between fingerprints, and have no gradient.

    >>> from matheron import kernels
    >>> kernels.Tanimoto()([[1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0], [2.0, 1.0, 1.0]])
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    checked: ClassVar = True
    whole: ClassVar = True

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        total = x.sum(-1).unsqueeze(-1) + z.sum(-1).unsqueeze(-2)  # [..., n, m]
        common = overlap(x, z)
        either = total - common
        return torch.where(either > 0, common / torch.where(either > 0, either, 1.0), 1.0)

    def diag(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[:-1], dtype=x.dtype, device=x.device)

    def nearest(self, x: Tensor) -> Tensor:
        return x.round().clamp_min(0.0)

    def features(self, num_features: int, generator: torch.Generator) -> TanimotoFeatures:
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        return TanimotoFeatures(seed, num_features)


def overlap(x: Tensor, z: Tensor, largest: int = 8) -> Tensor:
    """sum_i min(x_i, z_i): `[..., n, d], [..., m, d] -> [..., n, m]`.

    With levels v_1 < v_2 < ... of z it is sum_l (min(x, v_l) - min(x, v_l-1)) . [z >= v_l], a product for each level,
    for as many as `largest`.
    """
    if not transformed() and bool((x < 0).any() | (z < 0).any()):
        raise ValueError(
            f"Tanimoto: expected numbers >= 0, got a smallest of {min(float(x.min()), float(z.min())):.4g}; "
            "fingerprints are sets or counts"
        )
    if not transformed():
        binary = bool(((z == 0) | (z == 1)).all())
        levels = z.new_ones(1) if binary else z[z > 0].unique()
        if len(levels) <= largest:
            below, common = None, x.new_zeros(())
            for v in levels:
                upto = x if below is None and not bool((x > v).any()) else x.minimum(v)
                common = common + (upto if below is None else upto - below) @ (z >= v).to(x).mT
                below = upto
            return common
    return 0.5 * (x.sum(-1).unsqueeze(-1) + z.sum(-1).unsqueeze(-2) - torch.cdist(x, z, p=1.0))


class TanimotoFeatures(Value):
    """sign_i(h_i(x)) / sqrt(ell), of `count` hashes that a seed stands for.

    The winner among the indices of x is the one of the least weight a. Let r and c be Gamma(2, 1), and b uniform. The
    level is t = floor(ln x / r + b), and the weight is given by ln a = ln c - r (t - b + 1). A weight is kept as the
    bits of a float32, which have the order of the numbers. The last bit is the sign of the weight's hash, so that the
    least weight is the feature, too.
    """

    fields = ("seed", "count")

    def __init__(self, seed: int, count: int) -> None:
        super().__init__()
        self.seed, self.count = seed, count
        self.restore()

    def check(self) -> None:
        if not isinstance(self.seed, int) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(
                f"TanimotoFeatures: expected a seed and a number of features, got {self.seed}, {self.count}"
            )

    def restore(self) -> None:
        self.kept: dict[object, tuple[Tensor, ...]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad or transformed():
            raise TypeError(
                "Tanimoto: a function of fingerprints is constant between them and has no gradient; choose from a list "
                "of them with matheron.thompson.best_of"
            )
        weights = self._least(x)
        return (1 - 2 * (weights & 1).to(x)) / math.sqrt(self.count)

    def _least(self, x: Tensor, at_once: int = 1 << 20) -> Tensor:
        """The least of the weights of each point, `[n, c]`, with about `at_once` of them in memory together."""
        # the row of each point's weights in the table; points without weights have the last row
        rows, table = self._rows(x)
        widths = (rows < len(table) - 1).sum(1)
        order = widths.argsort()
        least, start = torch.empty(len(x), table.shape[1], dtype=torch.int32, device=x.device), 0
        while start < len(x):
            some = order[start : start + max(1, at_once // (table.shape[1] * max(1, int(widths[order[start]]))))]
            width = max(1, int(widths[some[-1]]))
            weights = table.index_select(0, rows[some, :width].reshape(-1))
            least[some] = weights.view(len(some), width, -1).amin(1)
            start += len(some)
        return least

    def _rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows `[n, k]` of a table of weights `[u, c]`, one for every index and number that occur."""
        d, (n, i) = x.shape[1], x.nonzero(as_tuple=True)
        values = x[n, i]
        counts = torch.bincount(n, minlength=len(x))
        place = torch.arange(len(n), device=x.device) - (counts.cumsum(0) - counts)[n]
        if bool((values == 1).all()):
            table, at = self._whole(d, x.device), i
        else:
            key, at = torch.unique(torch.stack([i.double(), values.double()]), dim=1, return_inverse=True)
            table = torch.cat([self._weights(d, x.device, key[0].long(), key[1]), self._whole(d, x.device)[-1:]])
        rows = torch.full((len(x), max(1, int(counts.max()) if len(x) else 1)), len(table) - 1, device=x.device)
        rows[n, place] = at
        return rows, table

    def _whole(self, d: int, device: torch.device) -> Tensor:
        """The weights of ones at every index, and of an empty point, which lose against all others: `[d + 1, c]`."""
        if ("whole", d, device) not in self.kept:
            every = torch.arange(d, device=device)
            ones = self._weights(d, device, every, torch.ones(d, dtype=torch.float64, device=device))
            generator = torch.Generator().manual_seed(self.seed + 1)
            empty = torch.randint(2, (1, self.count), generator=generator, device="cpu")
            largest = torch.iinfo(torch.int32).max - 1
            self.kept["whole", d, device] = (torch.cat([ones, (largest + empty).to(ones)]),)
        return self.kept["whole", d, device][0]

    def _weights(self, d: int, device: torch.device, i: Tensor, x: Tensor) -> Tensor:
        """Weights `[u, c]` of numbers x `[u]` at indices i `[u]`."""
        r, c, b, s = (of_index[i] for of_index in self._random(d, device))  # [u, c] each
        t = (x.log()[:, None] / r + b).floor()
        a = torch.exp(c.log() - r * (t - b + 1)).float().clamp_min(1e-37)
        sign = _mixed(s + t.long() * 0x1E3779B97F4A7C15) & 1
        return (a.view(torch.int32) & ~1) | sign.int()

    def _random(self, d: int, device: torch.device) -> tuple[Tensor, ...]:
        """r, c, b and a whole number for each index and each hash, `[d, c]`."""
        if ("random", d, device) not in self.kept:
            generator = torch.Generator().manual_seed(self.seed)
            U = torch.rand(d, 5, self.count, generator=generator, dtype=torch.float64, device="cpu")
            U = U.clamp_min(2**-54)
            r, c = -(U[:, 0] * U[:, 1]).log(), -(U[:, 2] * U[:, 3]).log()  # Gamma(2, 1)
            bits = (U[:, 4] * 2.0**52).long()
            b = torch.remainder(U[:, 4] * 2.0**20, 1.0)
            self.kept["random", d, device] = tuple(v.to(device) for v in (r, c, b, bits))
        return self.kept["random", d, device]


def _mixed(z: Tensor) -> Tensor:
    """Whole numbers of 64 bits, each bit of which depends on all bits of z (the finaliser of SplitMix64)."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * -0x40A7B892E31B1A47
    z = (z ^ ((z >> 27) & (2**37 - 1))) * -0x6B2FB644ECCEEE15
    return z ^ ((z >> 31) & (2**33 - 1))
