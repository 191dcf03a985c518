"""Products with Toeplitz matrices by fast Fourier transforms, and sizes that these are fast at."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Numbers of a convolution that are transformed at a time on a CPU.
_SLAB = 1 << 16


def fast_size(n: int) -> int:
    """The next even number with no prime factor above 5."""
    best = 2 ** math.ceil(math.log2(n))
    for a in range(9):
        for b in range(5):
            odd = 3**a * 5**b
            if odd < best:
                best = min(best, odd * 2 ** max(1, math.ceil(math.log2(n / odd))))
    return best


def convolved(F: Tensor, spectrum: Tensor) -> Tensor:
    """Coefficients `[r, *shape]` times a Toeplitz matrix, given the spectrum `[*size]` of the circulant one around it.

    On a CPU zeros are not transformed: one axis whole, then the others a slab of it at a time, which stays in cache.
    """
    shape, size = F.shape[1:], spectrum.shape
    if len(shape) == 1 or F.device.type != "cpu" or spectrum.numel() <= _SLAB:
        axes = tuple(range(1, F.ndim))
        G = torch.fft.ifftn(torch.fft.fftn(F, s=tuple(size), dim=axes).mul_(spectrum), dim=axes)
        return G[tuple(slice(n) for n in (None, *shape))]
    out, step = torch.empty_like(F), max(1, _SLAB // math.prod(size[1:]))
    inner = tuple(slice(n) for n in (None, *shape[1:]))
    for row, into in zip(F, out, strict=True):
        G = torch.fft.fft(row, n=size[0], dim=0)
        for start in range(0, size[0], step):
            H = G[start : start + step]
            for axis in range(len(shape) - 1, 0, -1):
                H = torch.fft.fft(H, n=size[axis], dim=axis)
            H = H.mul_(spectrum[start : start + step])
            for axis in range(1, len(shape)):
                H = torch.fft.ifft(H, dim=axis).narrow(axis, 0, shape[axis])
            G[start : start + step] = H[inner]
        into.copy_(torch.fft.ifft(G, dim=0)[: shape[0]])
    return out
