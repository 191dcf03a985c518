"""Frequencies that fill space more evenly than independent ones: Sobol nets, and orthogonal directions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..core.checks import normals
from ..core.modes import Sobol, kept
from ..kernels.base import SpectralMeasure
from ..kernels.radial import Elliptical
from .features import rand


def sobol(num_bases: int, count: int, dims: int, generator: torch.Generator) -> Tensor:
    """Draw a Sobol net `[g, count, p]` for each basis: one plain net, under random digital shifts.

    The bases are independent. All coordinates of a point (frequencies and mixing variables of all factors) come from
    one net, which makes them jointly uniform. The net's dimension is p, and not the number of features.
    """
    if dims == 0:
        return torch.zeros(num_bases, count, 0, dtype=torch.float64, device=generator.device)
    small = count * dims <= 1 << 16  # small nets are cached
    net = (_plain_net if small else _plain_net.__wrapped__)(count, dims).to(generator.device)
    shift = torch.randint(2**SobolEngine.MAXBIT, (num_bases, 1, dims), generator=generator, device=generator.device)
    return (net ^ shift).double().add_(0.5).div_(2**SobolEngine.MAXBIT)


@kept(32)
def _plain_net(count: int, dims: int) -> Tensor:
    """Make the net without a shift, as whole numbers."""
    return SobolEngine(dims).draw(count, dtype=torch.float64).mul_(2**SobolEngine.MAXBIT).long()


@kept(32)
def fixed_net(count: int, dims: int) -> Tensor:
    """Make a scrambled Sobol net `[count, dims]` that is always the same, and clamp it off the corners."""
    return Sobol(dims, seed=0).next(count).clamp_(2**-30, 1 - 2**-30)


def orthogonal(normal: Tensor) -> Tensor:
    """Make uniformly distributed orthogonal matrices of matrices `[..., d, d]` of standard normal numbers."""
    Q, R = torch.linalg.qr(normal)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def stratified_frequencies(
    measure: SpectralMeasure, count: int, num_bases: int, generator: torch.Generator, device: torch.device
) -> Tensor:
    """Draw frequencies `[g, count, d]` with directions that are orthogonal in blocks of d, and stratified radii."""
    if not isinstance(measure, Elliptical) or getattr(measure, "shift", None) is not None:
        raise ValueError(
            'features="orthogonal" needs a kernel of one distance in all dimensions (RBF, Matern, RationalQuadratic); '
            'use "sobol" or "auto" for this one'
        )
    d, blocks = measure.input_dim, -(-count // measure.input_dim)
    directions = orthogonal(normals((num_bases, blocks, d, d), generator)).flatten(1, 2)[:, :count]  # [g, count, d]
    strata = rand((num_bases, count, 1 + measure.num_mixing_uniforms), generator)
    order = torch.argsort(rand(tuple(strata.shape), generator), dim=1)
    U = ((order + strata) / count).clamp(2**-54, 1 - 2**-53)
    return measure.scale * directions.to(device) * measure.radius(U.to(device))[..., None]
