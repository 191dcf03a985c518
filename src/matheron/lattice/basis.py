"""A Fourier series on a box as a basis. Its sums are fast Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..core.modes import transformed
from ..core.nufft import FFT_COST, adjoint_at, as_complex, as_real, grid_shape, series_at
from ..evaluate.bases import Basis, Cosines, Pairs
from .axis_series import AxisSeries, sums_along, waves


class Lattice(Basis):
    """cos(theta_j . x) for one j of each pair +-j, then sin(theta_j . x), then 1: theta_j = 2 pi j / period.

    The modes j run from -m_i to m_i in each of the coordinates `dims`. In the order of the box, its second half holds
    one of each pair. There are c = prod(2 m_i + 1) functions in all. Amplitudes `[(c + 1) / 2]` are those of the pairs,
    and then that of the constant.

    `error` is the largest difference from the kernel that was measured between points of the domain. `left_out` is the
    variance of frequencies above the last mode, which the outermost modes or other lattices have in addition. Both are
    relative to the variance. `accuracy` is that of non-uniform transforms, relative to the scale of these functions; 0
    is accuracy up to rounding.
    """

    fields = ("dims", "shape", "error", "left_out", "accuracy")
    shapes = "period: k, amplitudes: a"
    _in_memory = 1 << 22  # the size of a block of the sums

    def check(self) -> None:
        numbers, k = [*self.dims, *self.shape], len(self.period)
        if not all(type(i) is int and i >= 0 for i in numbers) or not len(self.dims) == len(self.shape) == k:
            raise ValueError(f"Lattice: expected dims and shape of {len(self.period)} whole numbers, got {numbers}")
        if any(n % 2 == 0 for n in self.shape) or len(self.amplitudes) != (math.prod(self.shape) + 1) // 2:
            raise ValueError(f"Lattice: expected amplitudes of a box {self.shape}, got {len(self.amplitudes)}")

    def __init__(
        self,
        dims: Sequence[int],
        shape: Sequence[int],
        period: Tensor,
        amplitudes: Tensor,
        error: float = 0.0,
        left_out: float = 0.0,
        accuracy: float = 0.0,
    ) -> None:
        super().__init__(period=period, amplitudes=amplitudes)
        self.dims, self.shape = list(dims), list(shape)
        self.error, self.left_out, self.accuracy = float(error), float(left_out), float(accuracy)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        return 8  # room for angles and temporaries; the modes are not stored for each point

    def scales(self) -> Tensor:
        a = self.amplitudes
        return torch.cat([a[:-1], a[:-1], a[-1:]])[None]

    def place_modes(self, index: Tensor) -> Tensor:
        """The whole numbers j `[..., k]` of places `[...]` in the box."""
        columns = []
        for n in reversed(self.shape):
            columns.append(index % n - n // 2)
            index = index // n
        return torch.stack(columns[::-1], dim=-1)

    def frequencies_of_pairs(self, start: int, stop: int) -> Tensor:
        """theta_j `[stop - start, k]` of the pairs `start` to `stop`, in the coordinates `dims`."""
        pairs = torch.arange(start, stop, device=self.period.device)
        return self.place_modes(pairs + (self.size + 1) // 2) * (2 * math.pi / self.period)

    def pairs(self, start: int, stop: int, input_dim: int) -> Pairs:
        """The pairs `start` to `stop` as a plain basis, for sums that need the functions themselves."""
        theta = self.period.new_zeros(stop - start, input_dim)
        theta[:, self.dims] = self.frequencies_of_pairs(start, stop)
        return Pairs(theta[None], self.amplitudes[None, start:stop])

    def parts(self, width: int, input_dim: int) -> Iterator[Basis]:
        """The lattice as plain bases of at most `width` functions each."""
        step = max(1, width // 2)
        for start in range(0, self.num_pairs, step):
            yield self.pairs(start, min(start + step, self.num_pairs), input_dim)
        zero = self.period.new_zeros(1, 1, input_dim)
        yield Cosines(zero, zero[..., 0], self.amplitudes[None, -1:])

    @property
    def num_pairs(self) -> int:
        return (self.size - 1) // 2

    def values(self, x: Tensor) -> Tensor:
        return torch.cat([self.pairs(0, self.num_pairs, x.shape[-1]).values(x), torch.ones_like(x[..., :1])], dim=-1)

    def angles(self, x: Tensor) -> Tensor:
        """Points as angles of the fundamental mode, `[..., d] -> [..., k]`, in float64, because a mode multiplies their
        rounding errors."""
        return x[..., self.dims].double() * (2 * math.pi / self.period.double())

    def coefficients(self, W: Tensor) -> Tensor:
        """Convert weights `[..., c]` to complex coefficients `[..., *shape]` of exp(i theta_j . x), with the conjugate
        at -j."""
        return torch.complex(*self._parts_of_coefficients(W))

    def _parts_of_coefficients(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """The real and imaginary parts of `coefficients`."""
        h = self.num_pairs
        cos, sin, one = 0.5 * W[..., :h], 0.5 * W[..., h : 2 * h], W[..., 2 * h :]
        real = torch.cat([cos.flip(-1), one, cos], dim=-1)
        imaginary = torch.cat([sin.flip(-1), torch.zeros_like(one), -sin], dim=-1)
        return real.unflatten(-1, self.shape), imaginary.unflatten(-1, self.shape)

    def weights(self, F: Tensor) -> Tensor:
        """Convert coefficients `[..., *shape]` to weights `[..., c]`: the inverse of `coefficients`."""
        h, F = self.num_pairs, F.flatten(-len(self.shape))
        return torch.cat([2 * F[..., h + 1 :].real, -2 * F[..., h + 1 :].imag, F[..., h : h + 1].real], dim=-1)

    def weighted(self, x: Tensor, W: Tensor) -> Tensor:
        if (torch.is_grad_enabled() and W.requires_grad) or transformed():  # differentiable in torch's own operations
            return self.summed(x, W)
        if torch.is_grad_enabled() and x.requires_grad:
            return _Weighted.apply(x, W, self)
        return self._sums(x, W)

    def weighted_with_gradient(self, x: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
        return self._sums(x, W), self._gradient(x, W)

    def _gradient(self, x: Tensor, W: Tensor) -> Tensor:
        """`[B, n, d], [B, r, c] -> [B, r, n, d]`: sums with the weights of derivatives."""
        gradient = x.new_zeros(*W.shape[:2], *x.shape[1:])
        for i, slope in zip(self.dims, self.frequencies_of_pairs(0, self.num_pairs).unbind(-1), strict=True):
            gradient[..., i] = self._sums(x, self._slopes(W, slope))
        return gradient

    def _slopes(self, W: Tensor, slope: Tensor) -> Tensor:
        """The weights of a derivative in which mode j's phase has the slope `[h]`: `[..., c] -> [..., c]`."""
        h, slope = self.num_pairs, slope.to(W.dtype)
        return torch.cat([slope * W[..., h : 2 * h], -slope * W[..., :h], torch.zeros_like(W[..., :1])], dim=-1)

    def _sums(self, x: Tensor, W: Tensor) -> Tensor:
        """The sums `[B, n, d], [B, r, c] -> [B, r, n]` in the fastest way, without a graph."""
        (B, r, _), n = W.shape, x.shape[1]
        if B == 1 and self.suits_matrix(x, r):
            return self._by_matrix(x[0], W[0])[None]
        if n <= 24:  # for few points, matrix products are faster than a transform
            return self.summed(x, W)
        angles, out = self.angles(x), torch.empty(B, r, n, dtype=x.dtype, device=x.device)
        # the number of functions whose coefficients are in memory at once
        step = max(2, self._in_memory // self.size // 2 * 2)
        for b in range(B):
            for some in (slice(i, i + step) for i in range(0, r, step)):
                rows = W[b, some]
                sums = series_at(
                    self.joined_coefficients(rows), angles[b if len(angles) > 1 else 0], self.accuracy or None
                )
                out[b, some] = as_real(sums, len(rows))
        return out

    def derivative(self, W: Tensor, index: Tensor | None, direction: Tensor) -> tuple[Basis, Tensor] | None:
        theta = self.frequencies_of_pairs(0, self.num_pairs)  # [h, k]
        return self, self._slopes(W, theta @ direction[self.dims].to(theta))

    def suits_matrix(self, x: Tensor, r: int) -> bool:
        """Whether a matrix of the modes' values is the fastest way to evaluate r functions at shared points.

        On a GPU this is so if the matrix has few entries for each function. On a CPU it is so if points are few, both
        for each function and in total (benchmarks/lattice.py).
        """
        n = x.shape[1]
        if x.device.type == "cuda":
            return n * self.size <= 5_000_000 * r
        return n <= min(4 * r, 64 if len(self.shape) == 1 else 256)

    def _by_matrix(self, x: Tensor, W: Tensor) -> Tensor:
        """`[n, d], [r, c] -> [r, n]`: the weights times the modes' values at some of the points at a time."""
        out = torch.empty(len(W), len(x), dtype=W.dtype, device=W.device)
        for some, Phi in self._functions_at(x, W.dtype):
            out[:, some] = W @ Phi.mT
        return out

    def _adjoint_by_matrix(self, x: Tensor, v: Tensor) -> Tensor:
        out = v.new_zeros(len(v), self.size)
        for some, Phi in self._functions_at(x, v.dtype):
            out.addmm_(v[:, some], Phi)
        return out

    def _functions_at(self, x: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """The modes' values at points `[n, d]`, some of the points at a time."""
        angles, step = self.angles(x), max(1, self._in_memory // self.size)
        for some in (slice(i, i + step) for i in range(0, len(x), step)):
            yield some, self._functions(angles[some], dtype)

    def _functions(self, angles: Tensor, dtype: torch.dtype) -> Tensor:
        """The modes' values at angles `[n, k]`: `[n, c]`, by products of exponentials along the axes."""
        h = self.num_pairs
        first, *others = (waves(angles[:, axis], n) for axis, n in enumerate(self.shape))
        total = first[:, self.shape[0] // 2 :]  # this half of the box has one of each pair of modes
        for wave in others:
            total = (total[..., None] * wave[:, None]).flatten(1)
        total = total[:, total.shape[1] - h :]
        out = torch.empty(len(angles), self.size, dtype=dtype, device=angles.device)
        out[:, :h], out[:, h : 2 * h], out[:, 2 * h] = total.real, total.imag, 1.0
        return out

    def summed(self, x: Tensor, W: Tensor) -> Tensor:
        """The sums by products of matrices, which autograd can differentiate and which are fast for few points."""
        F, angles = self._parts_of_coefficients(W), self.angles(x)  # [B, r, *shape] twice, [B, n, k]
        n, inner = x.shape[1], math.prod(F[0].shape[:-1])
        step = max(1, self._in_memory // inner)
        blocks = [self._block(angles[:, i : i + step], *F) for i in range(0, max(1, n), step)]
        return torch.cat(blocks, dim=-1)

    def _block(self, angles: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
        """Contract one axis after the other, beginning with the last: by a matrix product for that axis, by weighted
        sums for the others.

        It uses real arithmetic, because torch.func's vmap does not support the views in second derivatives of complex
        numbers.
        """
        (B, r), n = real.shape[:2], angles.shape[1]
        last = len(self.shape) - 1
        F = torch.stack([real, imaginary], dim=1).reshape(B, -1, self.shape[last])  # [B, 2 r ..., N_k]
        products = F @ torch.cat(_waves(angles[..., last], F, self.shape[last]), dim=-1).expand(B, -1, -1)
        products = products.reshape(B, 2, r, *self.shape[:last], 2, n)
        real = products[:, 0, ..., 0, :] - products[:, 1, ..., 1, :]  # [B, r, ..., n]
        if last:
            imaginary = products[:, 0, ..., 1, :] + products[:, 1, ..., 0, :]
        for axis in reversed(range(last)):
            shape = (len(angles), *[1] * (real.ndim - 3), self.shape[axis], n)
            cos, sin = (wave.reshape(shape) for wave in _waves(angles[..., axis], F, self.shape[axis]))
            total = (real * cos - imaginary * sin).sum(-2)
            if axis:
                imaginary = (real * sin + imaginary * cos).sum(-2)
            real = total
        return real

    def add_on_axes(self, W: Tensor, axes: list[Tensor], into: list[Tensor]) -> bool:
        """Use a product of matrices for each axis, or transforms if the matrix would have too many entries."""
        angles = [axes[i].double() * (2 * math.pi / self.period[k].double()) for k, i in enumerate(self.dims)]
        order = sorted(range(len(self.dims)), key=lambda k: self.dims[k])
        rows = math.prod(self.shape)
        sums = {k: sums_along(angles[k], self.shape[k], rows // self.shape[k], W) for k in order}
        shape = [len(axis) if i in self.dims else 1 for i, axis in enumerate(axes)]
        last = order[-1]
        for start in range(0, len(W), 2):  # one complex sum holds two real functions
            views = into[start : start + 2]
            total = self.joined_coefficients(W[start : start + 2])[0].permute(order)
            for k in order[:-1]:
                total = total.movedim(0, -1)  # the axis that is summed over is moved to the end
                total = sums[k](total.reshape(-1, self.shape[k])).unflatten(0, total.shape[:-1])
            total, by = total.movedim(0, -1).reshape(-1, self.shape[last]), sums[last]
            if isinstance(by, AxisSeries) and all(v.is_contiguous() and list(v.shape) == shape for v in views):
                by.add(total, *(view.view(len(total), -1) for view in views))
                continue
            total = by(total)
            for view, part in zip(views, (total.real, total.imag), strict=False):
                view += part.reshape(shape)
        return True

    def adjoint(self, x: Tensor, v: Tensor, accuracy: float | None = None) -> Tensor:
        """The transpose of the sums: `[n, d], [r, n] -> [r, c]`, weights with <W, adjoint> = <sums(W), v>."""
        if self.suits_matrix(x[None], len(v)):
            return self._adjoint_by_matrix(x, v.double()).to(v.dtype)
        return self.separated_adjoint(adjoint_at(as_complex(v), self.angles(x), self.shape, accuracy), len(v))

    def adjoint_cost(self, n: int) -> float | None:
        cells = math.prod(grid_shape(self.shape, torch.float64))
        return FFT_COST * (2.5 * cells * math.log2(cells) + n * 10 ** len(self.shape) / 2)

    def same_functions(self, other: Basis) -> bool:
        return isinstance(other, Lattice) and (
            (self.dims, self.shape) == (other.dims, other.shape) and torch.equal(self.period, other.period)
        )

    def joined_coefficients(self, W: Tensor) -> Tensor:
        """Coefficients of real functions, two in each complex one: `[r, c] -> [ceil(r / 2), *shape]`.

        For two functions a and b, the coefficient of a + i b at j is ((a_cos + b_sin) + i (b_cos - a_sin)) / 2. At -j
        the signs of the sines change.
        """
        h, a, b = self.num_pairs, 0.5 * W[0::2], 0.5 * W[1::2]
        b = b if len(b) == len(a) else torch.cat([b, torch.zeros_like(a[:1])])
        out = W.new_empty(len(a), self.size, 2)
        torch.add(a[:, :h], b[:, h : 2 * h], out=out[:, h + 1 :, 0])
        torch.sub(b[:, :h], a[:, h : 2 * h], out=out[:, h + 1 :, 1])
        out[:, :h, 0] = (a[:, :h] - b[:, h : 2 * h]).flip(-1)
        out[:, :h, 1] = (b[:, :h] + a[:, h : 2 * h]).flip(-1)
        out[:, h] = 2 * torch.stack([a[:, 2 * h], b[:, 2 * h]], dim=-1)
        return torch.view_as_complex(out).unflatten(-1, self.shape)

    def separated_adjoint(self, G: Tensor, r: int) -> Tensor:
        """From sum_n v_n exp(-i theta_j . x_n), two real v in each complex one, to sums with cosines, sines and one:
        `[ceil(r / 2), *shape] -> [r, c]`."""
        h, flat = self.num_pairs, G.flatten(1)
        upper, lower, one = 0.5 * flat[:, h + 1 :], 0.5 * flat[:, :h].flip(-1), flat[:, h]  # the modes j, -j and 0
        out = upper.real.new_empty(len(G), 2, self.size)
        torch.add(upper.real, lower.real, out=out[:, 0, :h])
        torch.sub(lower.imag, upper.imag, out=out[:, 0, h : 2 * h])
        torch.add(upper.imag, lower.imag, out=out[:, 1, :h])
        torch.sub(upper.real, lower.real, out=out[:, 1, h : 2 * h])
        out[:, :, 2 * h] = torch.view_as_real(one)
        return out.flatten(0, 1)[:r]


def _waves(angles: Tensor, like: Tensor, modes: int) -> tuple[Tensor, Tensor]:
    """cos(j x) and sin(j x) of the modes of one axis, `[b, n] -> [b, modes, n]`, in the dtype of `like`."""
    j = torch.arange(-(modes // 2), modes // 2 + 1, dtype=angles.dtype, device=angles.device)
    phase = j[:, None] * angles[:, None]
    return phase.cos().to(like.dtype), phase.sin().to(like.dtype)


class _Weighted(torch.autograd.Function):
    """The sums at points in an autograd graph. The backward pass computes the sums of the gradient's coefficients."""

    @staticmethod
    def forward(ctx, x: Tensor, W: Tensor, basis: Lattice) -> Tensor:
        ctx.save_for_backward(x, W)
        ctx.basis = basis
        return basis._sums(x.detach(), W)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, W = ctx.saved_tensors
        basis: Lattice = ctx.basis
        if torch.is_grad_enabled():  # for second derivatives
            with torch.enable_grad():
                f = basis.summed(x, W)
            return torch.autograd.grad(f, x, grad, create_graph=True)[0], None, None
        df = basis._gradient(x.detach(), W)  # [B, r, n, d]
        pulled = (grad[..., None] * df).sum(1)
        return pulled.sum(0, keepdim=True) if len(x) < len(pulled) else pulled, None, None


def same_modes(bases: Sequence[Lattice]) -> bool:
    """Whether lattices have the same modes, and differ at most in their amplitudes."""
    first, *others = bases
    return all(first.same_functions(other) for other in others)
