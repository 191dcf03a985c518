"""Non-uniform Fourier transforms: sums of exp(i j . x) over a box of modes j at scattered angles x, and their adjoints.

They are computed by finufft on a CPU and cufinufft on a CUDA device, where these are installed. Elsewhere the same
method is used in torch: a Fourier series on a grid twice as fine, and a narrow window to interpolate it (Barnett,
Magland and af Klinteberg 2019). Modes run from -m to m in each axis, in order; points are angles, of which only the
remainder modulo 2 pi matters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

import numpy as np
import scipy  # SciPy imports its transforms when they are first used
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from .modes import kept, transformed

# The default errors of transforms, relative to the root of the sum of squares of the coefficients. Evaluators have to
# agree to 1e-9 in float64 and 1e-5 in float32, so these are smaller.
_DOUBLE, _SINGLE = 1e-11, 1e-7
# The width of the window, in cells along each axis, of the transform in plain torch. Its error is below the two above.
WIDTH = {torch.float64: 14, torch.float32: 9}
# The cost of one operation of an FFT, or of spreading, in operations of a matrix product (measured on a CPU).
FFT_COST = 8.0


def series_at(F: Tensor, x: Tensor, accuracy: float | None = None) -> Tensor:
    """sum_j F_j exp(i j . x): complex `[r, *shape]` at angles `[n, d]` -> `[r, n]`.

    Angles should be in float64, whatever the dtype of F, because a mode multiplies their errors.

    >>> import torch
    >>> from matheron.core.nufft import series_at
    >>> series_at(torch.ones(1, 3, dtype=torch.complex128), torch.zeros(1, 1, dtype=torch.float64)).real.round()
    tensor([[3.]], dtype=torch.float64)
    """
    shape = tuple(F.shape[1:])
    if F.dtype == torch.complex64 and library_for(x):  # in float32 the library's errors grow with the modes
        return series_at(F.to(torch.complex128), x.double(), accuracy=_SINGLE).to(F.dtype)
    plan = _plan(2, shape, len(F), x, accuracy)
    if plan is None:
        at = Interpolated(torch.view_as_real(fine_grid(F)).movedim(-1, 1).flatten(0, 1))  # [2 r, ...]
        return torch.view_as_complex(at(x).unflatten(0, (len(F), 2)).movedim(1, -1).contiguous())
    return plan(F, (len(F), len(x)))


def adjoint_at(c: Tensor, x: Tensor, shape: Sequence[int], accuracy: float | None = None) -> Tensor:
    """sum_n c_n exp(-i j . x_n): complex `[r, n]` at angles `[n, d]` -> `[r, *shape]`."""
    if c.dtype == torch.complex64:
        return adjoint_at(c.to(torch.complex128), x.double(), shape, accuracy or _SINGLE).to(c.dtype)
    plan = _plan(1, tuple(shape), len(c), x, accuracy)
    if plan is None:
        return _spread(c, x, tuple(shape))
    return plan(c, (len(c), *shape))


def as_complex(real: Tensor) -> Tensor:
    """Two real rows in each complex one: `[r, ...] -> [ceil(r / 2), ...]`."""
    if len(real) % 2:
        real = torch.cat([real, torch.zeros_like(real[:1])])
    return torch.complex(real[0::2].contiguous(), real[1::2].contiguous())


def as_real(both: Tensor, r: int) -> Tensor:
    """The rows that `as_complex` joined: `[ceil(r / 2), ...] -> [r, ...]`."""
    return torch.view_as_real(both).movedim(-1, 1).flatten(0, 1)[:r]


@cache
def finufft() -> ModuleType | None:
    """The library for CPUs; None where it is not installed."""
    try:
        import finufft as library
    except ImportError:
        return None
    return library


@cache
def cufinufft() -> ModuleType | None:
    """The library for CUDA devices; None where it is not installed, or finds no CUDA."""
    try:
        import cufinufft as library  # pyright: ignore[reportMissingImports]
    except (ImportError, OSError, RuntimeError):
        return None
    return library


def library_for(x: Tensor) -> ModuleType | None:
    """The library for the device of the points, if it is installed. None under transforms of torch.func, where the
    numbers are not known."""
    if transformed():
        return None
    known = {"cpu": finufft, "cuda": cufinufft}.get(x.device.type)
    return None if known is None else known()


FourierTransform = Callable[[Tensor, tuple[int, ...]], Tensor]


def _plan(
    kind: int, shape: tuple[int, ...], count: int, x: Tensor, accuracy: float | None = None
) -> FourierTransform | None:
    """From complex128 data to a result of a shape, by the library for the device; None where there is none."""
    library = library_for(x)
    if library is None:
        return None
    settings = (kind, shape, count, _DOUBLE if accuracy is None else accuracy, -1 if kind == 1 else 1, "complex128")
    if x.device.type == "cuda":
        stream = torch.cuda.current_stream(x.device).cuda_stream
        return on_device(library, settings, x, gpu_device_id=x.device.index or 0, gpu_stream=stream)
    # A grid that is only a quarter finer than the modes has fewer cells but needs wider windows. They reach nine
    # digits.
    coarse = (accuracy or 0.0) >= 1e-9 and 64 * len(x) <= math.prod(shape)
    # showwarn=0, because the library would warn at each call if torch has more threads than OpenMP. Errors are raised.
    threads, factor = torch.get_num_threads(), 1.25 if coarse else 2.0
    plan = library.Plan(*settings, nthreads=threads, upsampfac=factor, showwarn=0)
    plan.setpts(*(np.ascontiguousarray(axis.numpy()) for axis in x.detach().double().unbind(-1)))
    return lambda data, result: torch.from_numpy(plan.execute(data.contiguous().numpy()).reshape(result))


def on_device(library: ModuleType, settings: tuple[object, ...], x: Tensor, **options: int) -> FourierTransform:
    """A plan of cufinufft, which accepts tensors. Older versions require angles between -pi and pi."""
    plan = library.Plan(*settings, **options)
    angles = torch.remainder(x.detach().double() + math.pi, 2 * math.pi) - math.pi
    plan.setpts(*(axis.contiguous() for axis in angles.unbind(-1)))

    def transform(data: Tensor, result: tuple[int, ...]) -> Tensor:
        out = torch.empty(result, dtype=torch.complex128, device=data.device)
        plan.execute(data.contiguous(), out=out)
        return out

    return transform


# The transform in plain torch: a window of w cells on a grid of at least twice as many cells as modes.


def grid_shape(shape: Sequence[int], dtype: torch.dtype) -> tuple[int, ...]:
    """Even sizes with small factors, twice the modes or more."""
    return tuple(fast_size(max(2 * n, 2 * WIDTH[dtype])) for n in shape)


def fine_grid(F: Tensor) -> Tensor:
    """The series on the fine grid, divided by the window's transform: complex `[r, *shape] -> [r, *grid]`.

    With the conjugate symmetry of a real function the result is real, up to rounding.
    """
    shape, dtype = F.shape[1:], F.real.dtype
    grid = grid_shape(shape, dtype)
    for axis, (n, size) in enumerate(zip(shape, grid, strict=True), start=1):
        F = F / window_transform(n, size, dtype).to(F.device).reshape(-1, *[1] * (len(shape) - axis))
        m = n // 2
        parts = F.split([m, m + 1], dim=axis)  # an FFT has the negative modes at the end
        gap = list(F.shape)
        gap[axis] = size - n
        F = torch.cat([parts[1], F.new_zeros(gap), parts[0]], dim=axis)
    return torch.fft.ifftn(F, dim=tuple(range(1, F.ndim)), norm="forward")


class Interpolated:
    """Real series from their fine grids `[r, *grid]`: values at angles, and each row's own with gradients, too."""

    def __init__(self, grid: Tensor, block: int = 1 << 17) -> None:
        """`block` numbers are gathered at a time, which stay in cache."""
        self.block = block
        self.size = tuple(grid.shape[1:])
        self.width = WIDTH[grid.dtype]
        # The first cells of the last axis are repeated after its last ones, so that the cells near a point are
        # contiguous.
        self.table = torch.cat([grid, grid[..., : self.width - 1]], dim=-1)  # [r, *grid + w - 1]

    def __call__(self, x: Tensor) -> Tensor:
        """All rows at shared angles `[n, d] -> [r, n]`."""
        rows = self.table.flatten(1).mT.contiguous()  # [cells, r], the numbers of a cell side by side
        out = self.table.new_empty(len(x), len(self.table))
        taps = torch.arange(self.width, device=x.device)
        step = max(1, (1 << 23) // self.width ** x.shape[1])
        for i in range(0, len(x), step):
            first, weights, _ = self._windows(x[i : i + step], False)
            index = (first[:, :, None] + taps).flatten(1)
            out[i : i + step] = embedding_bag(index, rows, per_sample_weights=_outer(weights), mode="sum")
        return out.mT

    def own(self, x: Tensor, rows: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None]:
        """Row `rows[b]` at its own angles `x[b]`: `[b, n, d] -> [b, n]`, and gradients `[b, n, d]`."""
        b, n, d = x.shape
        values = self.table.new_empty(b * n)
        slopes = self.table.new_empty(b * n, d) if gradient else None
        start = (rows * self.table[0].numel()).repeat_interleave(n)
        runs = self.table.view(-1).as_strided((self.table.numel() - self.width + 1, self.width), (1, 1))
        x = x.reshape(-1, d)
        step = max(1, self.block // self.width**d)
        for i in range(0, b * n, step):
            cut = slice(i, i + step)
            first, weights, derivatives = self._windows(x[cut], gradient)
            near = runs.index_select(0, (first + start[cut, None]).flatten())  # [n w^(d-1), w]
            values[cut] = _weighted(near, weights)
            if slopes is not None:
                for axis in range(d):
                    slopes[cut, axis] = _weighted(near, [*weights[:axis], derivatives[axis], *weights[axis + 1 :]])
        return values.view(b, n), None if slopes is None else slopes.view(b, n, d)

    def _windows(self, x: Tensor, gradient: bool) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The first cell of every run of cells near the angles, `[n, w^(d-1)]`, and `_window_at` of each axis."""
        axes = [_window_at(*each, self.table.dtype, gradient) for each in zip(x.unbind(-1), self.size, strict=True)]
        first = torch.zeros(len(x), 1, dtype=torch.long, device=x.device)
        for (cell, _, _), cells in zip(axes[:-1], self.size[:-1], strict=True):
            first = (first[:, :, None] * cells + cell[:, None]).flatten(1)
        first = first * self.table.shape[-1] + axes[-1][0][:, :1]
        return first, [phi for _, phi, _ in axes], [slope for *_, slope in axes if slope is not None]


def _window_at(
    x: Tensor, cells: int, dtype: torch.dtype, gradient: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cells of a periodic axis near each angle, the window there, and its derivative in the angle: each `[n, w]`."""
    w = WIDTH[dtype]
    u = x.double() * (cells / (2 * math.pi))
    first, taps = torch.ceil(u - w / 2), torch.arange(w, device=x.device)
    z = ((u - first)[:, None] - taps).to(dtype)  # distances from the points, in cells
    phi, slope = window(z, w), None
    if gradient:
        root = torch.sqrt((1 - (2 * z / w).square()).clamp_min(1e-12))
        slope = phi * z / root * (-9.2 / w * cells / (2 * math.pi))
    return (first.long()[:, None] + taps) % cells, phi, slope


def window(z: Tensor, w: int) -> Tensor:
    """exp(beta (sqrt(1 - (2 z / w)^2) - 1)), the "exponential of semicircle"."""
    return torch.exp(2.3 * w * (torch.sqrt((1 - (2 * z / w).square()).clamp_min(0)) - 1))


def _outer(weights: list[Tensor]) -> Tensor:
    """Products over the axes, `[n, w^d]`."""
    total = weights[0]
    for other in weights[1:]:
        total = (total[:, :, None] * other[:, None]).flatten(1)
    return total


def _weighted(near: Tensor, weights: list[Tensor]) -> Tensor:
    """Sums `[n]` of the numbers near each point, `n w^d` in all, times products of the axes' weights `[n, w]`."""
    for weight in reversed(weights):
        near = near.view(len(weight), -1, weight.shape[1]) @ weight[:, :, None]
    return near.flatten()


def _spread(c: Tensor, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The adjoint of `series_at`: every point spread over the cells near it, then a transform."""
    size, dtype = grid_shape(shape, c.real.dtype), c.real.dtype
    values = torch.view_as_real(c).movedim(-1, 1).flatten(0, 1).mT.contiguous()  # [n, 2 r]
    grid = values.new_zeros(math.prod(size), values.shape[1])
    near = [_window_at(axis, cells, dtype) for axis, cells in zip(x.unbind(-1), size, strict=True)]
    # one step for all points at a time, which takes few calls
    for taps in itertools.product(range(WIDTH[dtype]), repeat=len(size)):
        index, weight = torch.zeros_like(near[0][0][:, 0]), torch.ones_like(near[0][1][:, 0])
        for (cell, phi, _), tap, cells in zip(near, taps, size, strict=True):
            index, weight = index * cells + cell[:, tap], weight * phi[:, tap]
        grid.index_add_(0, index, values * weight[:, None])
    G = torch.view_as_complex(grid.mT.reshape(len(c), 2, *size).movedim(1, -1).contiguous())
    G = torch.fft.fftn(G, dim=tuple(range(1, G.ndim)))
    for axis, (n, cells) in enumerate(zip(shape, size, strict=True), start=1):
        m = n // 2
        G = torch.cat([G.narrow(axis, cells - m, m), G.narrow(axis, 0, m + 1)], dim=axis)
        G = G / window_transform(n, cells, dtype).to(x.device).reshape(-1, *[1] * (len(shape) - axis))
    return G


@kept(64)
def window_transform(n: int, size: int, dtype: torch.dtype) -> Tensor:
    """The window's Fourier transform at the modes -m to m of a grid of `size` cells, `[n]`."""
    w = WIDTH[dtype]
    nodes, weights = np.polynomial.legendre.leggauss(64)
    z = torch.from_numpy(nodes) * (w / 2)
    j = torch.arange(-(n // 2), n // 2 + 1, dtype=torch.float64, device="cpu")
    phi = window(z, w) * torch.from_numpy(weights) * (w / 2)
    return (phi @ torch.cos(torch.outer(z, 2 * math.pi / size * j))).to(dtype)


def fast_size(n: int) -> int:
    """The next even number with no prime factor above 5."""
    return 2 * scipy.fft.next_fast_len((n + 1) // 2, real=True)
