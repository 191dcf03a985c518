"""Products with Toeplitz matrices by fast Fourier transforms, and sizes that these are fast at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import scipy  # whose transforms it imports when they are first used
import torch
from torch import Tensor

# Numbers of a convolution that are transformed at a time on a CPU.
_SLAB = 1 << 16


def fast_size(n: int) -> int:
    """The next even number with no prime factor above 5."""
    return 2 * scipy.fft.next_fast_len((n + 1) // 2, real=True)


def convolved(F: Sequence[Tensor], spectra: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Coefficients `[r, *shape]` times Toeplitz matrices, G_a = sum_b T_ab F_b, given the spectra `[*size]` of the
    circulant ones around them.

    On a CPU zeros are not transformed: one axis whole, then the others a slab of it at a time, which stays in cache.
    """
    shape, size = F[0].shape[1:], spectra[0][0].shape
    if len(shape) == 1 or F[0].device.type != "cpu" or spectra[0][0].numel() <= _SLAB:
        axes = tuple(range(1, F[0].ndim))
        H = _times(spectra, [torch.fft.fftn(F_b, s=tuple(size), dim=axes) for F_b in F])
        return [torch.fft.ifftn(H_a, dim=axes)[tuple(slice(n) for n in (None, *shape))] for H_a in H]
    out, step = [torch.empty_like(F_b) for F_b in F], max(1, _SLAB // math.prod(size[1:]))
    inner = tuple(slice(n) for n in (None, *shape[1:]))
    for row in range(len(F[0])):
        G = [torch.fft.fft(F_b[row], n=size[0], dim=0) for F_b in F]
        for start in range(0, size[0], step):
            cut = slice(start, start + step)
            H = [G_b[cut] for G_b in G]
            for axis in range(len(shape) - 1, 0, -1):
                H = [torch.fft.fft(H_b, n=size[axis], dim=axis) for H_b in H]
            H = _times([[spectrum[cut] for spectrum in several] for several in spectra], H)
            for axis in range(1, len(shape)):
                H = [torch.fft.ifft(H_a, dim=axis).narrow(axis, 0, shape[axis]) for H_a in H]
            for G_a, H_a in zip(G, H, strict=True):
                G_a[cut] = H_a[inner]
        for into, G_a in zip(out, G, strict=True):
            into[row].copy_(torch.fft.ifft(G_a, dim=0)[: shape[0]])
    return out


def _times(spectra: Sequence[Sequence[Tensor]], H: list[Tensor]) -> list[Tensor]:
    """sum_b spectra_ab H_b, in place where there is one."""
    if len(H) == 1:
        return [H[0].mul_(spectra[0][0])]
    return [reduce(torch.add, (H_b * s for H_b, s in zip(H, several, strict=True))) for several in spectra]
