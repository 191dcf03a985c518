"""Fourier series along one axis of a grid, for many rows at once: faster than scattered points, since rows share them.

The series of a row is made on a grid twice as fine as its shortest wavelength by an FFT, and interpolated by the window
of `nufft`. Every row has the same points, so that the windows of some neighbouring points are one small matrix, and the
interpolation is a product with it. For 1000 x 1000 points that takes a quarter to four fifths of the time of finufft's
transforms of many rows. Where the points span several periods, those at neighbouring phases are neighbours.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from ..core.arena import arena, empty
from ..core.nufft import WIDTH, grid_shape, series_at, window, window_transform


class AxisSeries:
    """sum_j F_j exp(i j x) at angles x `[n]`. The object holds what is the same for all rows of coefficients F.

    >>> import torch
    >>> from matheron.lattice.axis_series import AxisSeries
    >>> x = torch.linspace(0, 1, 5, dtype=torch.float64)
    >>> f = AxisSeries(x, 3, torch.float64)(torch.tensor([[0.5, 0, 0.5]], dtype=torch.complex128))
    >>> bool((f[0] - x.cos()).abs().max() < 1e-12)
    True
    """

    # The largest number of points that share a matrix; the number of windows of fine-grid cells that such a matrix can
    # span; and the size of the fine grids that are transformed at a time, which stay in cache (benchmarks/lattice.py).
    _tile, _span, _slab = 64, 3, 1 << 16

    def __init__(self, angles: Tensor, modes: int, dtype: torch.dtype) -> None:
        w, self.modes, self.num_points = WIDTH[dtype], modes, len(angles)
        (self.size,) = grid_shape((modes,), dtype)
        self.transform = window_transform(modes, self.size, dtype)
        u = angles.double() * (self.size / (2 * math.pi))
        if float(u.max() - u.min()) >= self.size:
            u = u % self.size
        u, order = u.sort()
        # the place of each point in sorted order, or None if they are sorted
        self.place = None if bool((order.diff() == 1).all()) else order.argsort()
        first = torch.ceil(u - w / 2).long()  # the first of the w cells nearest to each point
        taps = torch.arange(w, device="cpu")
        phi = window(((u - first)[:, None] - taps).to(dtype), w)  # [n, w]
        low = int(first.min())
        self.num_cells = int(first.max()) + w - low
        self.pieces = _unwrapped(low, self.num_cells, self.size)
        first = first - low
        step = min(self._tile, max(1, (self._span - 1) * w * len(angles) // self.num_cells))
        # slices of points and of cells, and the windows between them
        self.tiles: list[tuple[slice, slice, Tensor]] = []
        for start in range(0, len(angles), step):
            near = first[start : start + step]
            a, b = int(near.min()), int(near.max()) + w
            windows = torch.zeros(b - a, len(near), dtype=dtype, device="cpu")
            windows.scatter_(0, (near - a) + taps[:, None], phi[start : start + step].mT)
            self.tiles.append((slice(start, start + len(near)), slice(a, b), windows))

    def __call__(self, F: Tensor) -> Tensor:
        """The series of complex rows: `[r, modes] -> [r, n]`."""
        both = F.real.new_zeros(2, len(F), self.num_points)
        self.add(F, *both)
        return torch.complex(*both)

    def add(self, F: Tensor, *into: Tensor) -> None:
        """Add the series of complex rows F `[r, modes]` to their real part `[r, n]` and, where given, imaginary one.

        Rows are divided among threads of a pool, each of which works alone. With torch's own threads, products this
        small would wait for each other.
        """
        step = max(1, self._slab // self.size)
        slabs = [slice(start, start + step) for start in range(0, len(F), step)]
        threads = torch.get_num_threads()
        if threads == 1 or len(slabs) == 1:
            for rows in slabs:
                self._add(F, into, rows)
            return
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                deque(pool.map(partial(self._add, F, into), slabs), maxlen=0)
        finally:
            torch.set_num_threads(threads)

    @torch.no_grad()
    def _add(self, F: Tensor, into: Sequence[Tensor], rows: slice) -> None:
        m, F = self.modes // 2, F[rows]
        with arena():
            padded, fine = empty((len(F), self.size), F), empty((len(F), self.size), F)
            torch.div(F[:, m:], self.transform[m:], out=padded[:, : m + 1])
            padded[:, m + 1 : self.size - m] = 0
            torch.div(F[:, :m], self.transform[:m], out=padded[:, self.size - m :])
            torch.fft.ifft(padded, norm="forward", out=fine)
            near = empty((len(F), self.num_cells), self.transform)
            for part, out in zip((fine.real, fine.imag), into, strict=False):
                for here, there in self.pieces:
                    near[:, here] = part[:, there]
                to = out[rows] if self.place is None else out.new_zeros(len(F), self.num_points)
                for points, cells, windows in self.tiles:
                    to[:, points].addmm_(near[:, cells], windows)
                if self.place is not None:
                    out[rows] += to[:, self.place]


def _unwrapped(low: int, count: int, size: int) -> list[tuple[slice, slice]]:
    """Cells of a periodic grid from `low` on, piece by piece: their numbers in the count, and in the grid."""
    pieces, done = [], 0
    while done < count:
        start = (low + done) % size
        step = min(size - start, count - done)
        pieces.append((slice(done, done + step), slice(start, start + step)))
        done += step
    return pieces


def sums_along(
    angles: Tensor, modes: int, rows: int, like: Tensor, fewest_rows: int = 24
) -> Callable[[Tensor], Tensor]:
    """Choose the fastest way to evaluate series of complex rows `[r, modes]` at the angles of an axis.

    For fewer rows than `fewest_rows`, treating the points of an axis as scattered points is as fast
    (benchmarks/lattice.py).
    """
    device, dtype = like.device.type, like.dtype
    # The largest size of the axis's matrix. Beyond it, a transform is faster on a CPU; on a GPU the matrix would not
    # fit in memory (benchmarks/lattice.py).
    most_numbers = {"cpu": 1 << 16, "cuda": 1 << 26}.get(device, 0)
    if len(angles) * modes <= most_numbers:
        matrix = waves(angles, modes).to(torch.complex64 if dtype == torch.float32 else torch.complex128).mT
        return lambda F: F @ matrix
    if device == "cpu" and rows >= fewest_rows:
        return AxisSeries(angles, modes, dtype)
    return lambda F: series_at(F, angles[:, None])


def waves(angles: Tensor, modes: int) -> Tensor:
    """exp(i j x) for the modes of one axis: `[...] -> [..., modes]`."""
    j = torch.arange(-(modes // 2), modes // 2 + 1, dtype=angles.dtype, device=angles.device)
    phase = angles[..., None] * j
    return torch.complex(phase.cos(), phase.sin())
