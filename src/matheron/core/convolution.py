"""Products with Toeplitz matrices by fast Fourier transforms, and sizes that these are fast at."""

from __future__ import annotations

import math

import scipy  # SciPy imports its transforms when they are first used
import torch
from torch import Tensor

# On a CPU, convolutions are transformed in groups of at most this many numbers, which stay in cache
# (benchmarks/lattice.py).
_SLAB = 1 << 16


def fast_size(n: int) -> int:
    """The next even number with no prime factor above 5."""
    return 2 * scipy.fft.next_fast_len((n + 1) // 2, real=True)


def convolved(F: Tensor, spectrum: Tensor) -> Tensor:
    """Coefficients `[r, *shape]` times a Toeplitz matrix, given the spectrum `[*size]` of the circulant one around it.

    On a CPU zeros are not transformed: one axis whole, then the others a slab of it at a time, which stays in cache.
    """
    shape, size = F.shape[1:], spectrum.shape
    if len(shape) == 1 or F.device.type != "cpu" or spectrum.numel() <= _SLAB:
        axes = tuple(range(1, F.ndim))
        H = torch.fft.fftn(F, s=tuple(size), dim=axes).mul_(spectrum)
        return torch.fft.ifftn(H, dim=axes)[tuple(slice(n) for n in (None, *shape))]
    out, step = torch.empty_like(F), max(1, _SLAB // math.prod(size[1:]))
    inner = tuple(slice(n) for n in (None, *shape[1:]))
    for into, row in zip(out, F, strict=True):
        G = torch.fft.fft(row, n=size[0], dim=0)
        for start in range(0, size[0], step):
            cut = slice(start, start + step)
            H = G[cut]
            for axis in range(len(shape) - 1, 0, -1):
                H = torch.fft.fft(H, n=size[axis], dim=axis)
            H.mul_(spectrum[cut])
            for axis in range(1, len(shape)):
                H = torch.fft.ifft(H, dim=axis).narrow(axis, 0, shape[axis])
            G[cut] = H[inner]
        into.copy_(torch.fft.ifft(G, dim=0)[: shape[0]])
    return out
