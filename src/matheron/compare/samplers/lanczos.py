"""LOVE (Pleiss et al., 2018): sampling with Lanczos iterations and kernel interpolation, through GPyTorch's KISS-GP.

As in the paper's appendix, the training locations form a regular grid, and the interpolation grid contains them. The
data are then represented exactly, and only values between grid points are interpolated. GPyTorch multiplies
one-dimensional covariances on its grid, which is another prior in several dimensions, except for RBF. Here the grid has
the kernel's own covariance, a Toeplitz matrix of Toeplitz blocks, so that only the samplers differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ...core.checks import ArrayLike, Random, as_count, as_generator, missing_extra
from ...core.sites import Sites
from ...models import ExactGP
from ...models.libraries import describe
from .conditionals import inner_points, single
from .function_space import DrawValues, ValueDraws, gaussian_draws, in_user_units


def love(
    model: object,
    num_paths: int,
    *,
    num_iterations: int | None = None,
    generator: Random = None,
    seed: int | None = None,
) -> Love:
    """Draw values of a posterior by LOVE, with GPyTorch's `fast_pred_samples`.

    Args:
        model: an exact model of one output, with a stationary kernel, whose training inputs form a regular grid.
        num_paths: the number of draws.
        num_iterations: iterations of Lanczos and of conjugate gradients in the precomputation; by default n, as in the
            paper's appendix.
        generator, seed: where random numbers come from: a generator or a seed; torch's default generator if neither.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.compare.samplers import love
    >>> X = torch.linspace(0, 1, 16, dtype=torch.float64)[:, None]
    >>> gp = matheron.ExactGP(kernels.RBF(0.3), X, X[:, 0].sin(), noise=1e-2)
    >>> love(gp, 8)(torch.rand(100, 1)).shape
    torch.Size([8, 100])
    """
    gp = single(describe(model))
    if not isinstance(gp, ExactGP) or gp.num_outputs > 1:
        raise TypeError(f"love: expected an exact model of one output, got {gp!r}")
    if any(term.forms or not term.stationary for term in gp.kernel.terms(gp.centres.shape[1])):
        raise TypeError("love: expected a stationary kernel, whose covariance on a grid is Toeplitz")
    iterations = gp.num_data if num_iterations is None else as_count(num_iterations, "num_iterations")
    return Love(gp, num_paths, iterations, as_generator(generator, seed))


class Love(ValueDraws):
    """Draws of one model by LOVE, as `love` returns them."""

    def __init__(self, gp: ExactGP, num_paths: int, num_iterations: int, generator: torch.Generator) -> None:
        super().__init__(num_paths, generator)
        self.gp, self.num_iterations = gp, num_iterations
        self.axes = regular_grid(gp.train_inputs.detach().double())

    def at(self, x: ArrayLike) -> DrawValues:
        return in_user_units(self.gp, gaussian_draws(*self.location_and_root(x), self.generator))

    def location_and_root(self, x: ArrayLike) -> tuple[Tensor, Tensor]:
        """Compute LOVE's mean `[n]` and a root `[n, r]` of its covariance at x, before the output transform."""
        try:
            from .kiss_gp import fast_posterior  # imports GPyTorch
        except ImportError as error:
            raise missing_extra("love needs GPyTorch", "gpytorch", error) from error

        gp, x = self.gp, inner_points(self.gp, x)
        X = gp.train_inputs.detach().double()
        y, noise = gp.train_targets.detach().to(X) - gp.mean.at(Sites(X)).detach(), gp.noise.detach().to(X)
        axes = [_padded(axis, x[:, i]) for i, axis in enumerate(self.axes)]
        kernel = gp.kernel.owned().to(X.device, X.dtype)
        with _seeded(self.generator, x.device):
            mean, R = fast_posterior(kernel, X, y, noise, x, axes, self.num_iterations)
        return mean + gp.mean.at(Sites(x)).detach(), R


@contextmanager
def _seeded(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Seed torch's default generator, from which GPyTorch draws Lanczos vectors, and restore it at the end."""
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def regular_grid(X: Tensor) -> list[Tensor]:
    """Return the axes of training inputs `[n, d]`, which must be all points of a regular grid, in any order."""
    axes = []
    for column in X.unbind(-1):
        axis = column.sort().values
        apart = axis.diff() > 1e-9 * (axis[-1] - axis[0])
        axis = torch.cat([axis[:1], axis[1:][apart]])
        if len(axis) < 2 or not torch.allclose(axis.diff(), axis.diff().mean(), rtol=1e-6):
            raise ValueError("love: expected training inputs on a regular grid, two or more along each dimension")
        axes.append(torch.linspace(float(axis[0]), float(axis[-1]), len(axis), dtype=X.dtype, device=X.device))
    if math.prod(len(axis) for axis in axes) != len(X):
        shape = " x ".join(str(len(axis)) for axis in axes)
        raise ValueError(f"love: expected all the points of a regular grid, got {len(X)} on one of {shape}")
    return axes


def _padded(axis: Tensor, x: Tensor, margin: int = 2) -> Tensor:
    """Extend an axis so that points x can be interpolated, for which cubic interpolation needs two more cells."""
    step = float(axis[1] - axis[0])
    below = margin + max(0, math.ceil((float(axis[0]) - float(x.min())) / step))
    above = margin + max(0, math.ceil((float(x.max()) - float(axis[-1])) / step))
    index = torch.arange(-below, len(axis) + above, dtype=axis.dtype, device=axis.device)
    return axis[0] + step * index
