"""GPyTorch's KISS-GP and LOVE on a given grid, with the exact covariance of the kernel on that grid."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import GridInterpolationKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from linear_operator.operators import LinearOperator
from torch import Tensor

from ...kernels import Kernel


def fast_posterior(
    kernel: Kernel, X: Tensor, y: Tensor, noise: Tensor, x: Tensor, axes: list[Tensor], num_iterations: int
) -> tuple[Tensor, Tensor]:
    """Compute the posterior mean `[n]` at x and a root `[n, r]` of the covariance by `fast_pred_samples`."""
    likelihood = FixedNoiseGaussianLikelihood(noise.clamp_min(1e-12))
    model = _Model(X, y, likelihood, _GridKernel(kernel, axes)).to(X).eval()
    likelihood.eval()
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        gpytorch.settings.fast_pred_samples(),
        gpytorch.settings.fast_pred_var(),
        gpytorch.settings.max_cholesky_size(1),  # use Lanczos for every size, as LOVE does
        gpytorch.settings.max_root_decomposition_size(num_iterations),
        gpytorch.settings.max_cg_iterations(num_iterations),
        # this setting has no effect, because the size above is the limit
        gpytorch.settings.max_lanczos_quadrature_iterations(min(num_iterations, 20)),
        gpytorch.settings.eval_cg_tolerance(1e-6),
    ):
        # GPyTorch warns that iterations end before the tolerance is met, but a fixed number is intended
        warnings.simplefilter("ignore")
        posterior: Any = model(x)
        return posterior.mean, posterior.lazy_covariance_matrix.root.to_dense()


class _Model(gpytorch.models.ExactGP):
    def __init__(
        self, X: Tensor, y: Tensor, likelihood: FixedNoiseGaussianLikelihood, kernel: GridInterpolationKernel
    ) -> None:
        super().__init__(X, y, likelihood)
        self.covar_module = kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(torch.zeros_like(x[..., 0]), self.covar_module(x))


class _GridKernel(GridInterpolationKernel):
    """Interpolation on a grid with given axes, with the kernel's covariance instead of one-dimensional products."""

    def __init__(self, kernel: Kernel, axes: list[Tensor]) -> None:
        bounds: Any = tuple((float(a[0]), float(a[-1])) for a in axes)  # one pair per axis; GPyTorch declares one
        super().__init__(gpytorch.kernels.RBFKernel(), grid_size=[len(a) for a in axes], grid_bounds=bounds)
        self.update_grid(axes)
        self.column = grid_column(kernel, axes)

    def _inducing_forward(self, last_dim_is_batch: bool, **_: object) -> LinearOperator:
        return BlockToeplitz(self.column)


def grid_column(kernel: Kernel, axes: list[Tensor]) -> Tensor:
    """Compute k(g_i - g_0) on a regular grid, `[q_1, .., q_d]`."""
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(axes))  # [m, d]
    with torch.no_grad():
        column = kernel.forward(grid, grid[:1])[:, 0]
        for i in range(len(axes)):
            mirrored = grid.clone()
            mirrored[:, i] = 2 * grid[0, i] - grid[:, i]
            if not torch.allclose(kernel.forward(mirrored, grid[:1])[:, 0], column, atol=1e-10):
                raise ValueError("model: expected a kernel that is even in every coordinate, for LOVE on a grid")
    return column.reshape([len(a) for a in axes])


class BlockToeplitz(LinearOperator):
    """The matrix k(g_i - g_j) of a regular grid's points, given k(g_i - g_0), `[q_1, .., q_d]`.

    A product with the matrix is a convolution, computed by FFT on a torus of twice the grid's size.
    """

    together = 1 << 27  # the largest number of values on tori that are transformed together, 1 GiB in float64

    def __init__(self, column: Tensor) -> None:
        super().__init__(column)
        self.column = column
        torus = column
        for axis, q in enumerate(column.shape):  # k(0), .., k(q - 1), anything, k(q - 1), .., k(1)
            index = torch.tensor([*range(q), 0, *reversed(range(1, q))], device="cpu")
            torus = torus.index_select(axis, index.to(column.device))
        self.spectrum = torch.fft.rfftn(torus)

    def _matmul(self, rhs: Tensor) -> Tensor:
        sizes = self.column.shape
        V = rhs.reshape(len(rhs), -1).mT.reshape(-1, *sizes)  # [r, q_1, .., q_d]
        dims, twice = list(range(1, V.ndim)), [2 * q for q in sizes]
        inside = (slice(None), *(slice(0, q) for q in sizes))
        parts = [  # in blocks, because a torus has 2^d times as many points as the grid
            torch.fft.irfftn(torch.fft.rfftn(some, s=twice, dim=dims) * self.spectrum, s=twice, dim=dims)[inside]
            for some in V.split(max(1, self.together // math.prod(twice)))
        ]
        out = torch.cat(parts).reshape(len(V), -1).mT  # [m, r]
        return out[:, 0] if rhs.ndim == 1 else out

    def _size(self) -> torch.Size:
        m = math.prod(self.column.shape)
        return torch.Size((m, m))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self
