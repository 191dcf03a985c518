"""Frequencies that fill space more evenly than independent ones: Sobol nets, orthogonal directions, near-designs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..core.boxes import Sobol
from ..core.checks import normals
from ..core.modes import kept
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


def even(num_bases: int, count: int, dim: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw stratified uniforms `[g, count]` for radii, and directions `[g, count, dim]` that are even at all radii."""
    sizes, low, width = strata(count)
    u = rand((num_bases, count), generator).cpu()
    # Each basis has its own random rotation of each set.
    Q = orthogonal(normals((len(sizes), num_bases, dim, dim), generator).cpu())
    directions = [near_design(size, dim) @ rotation for size, rotation in zip(sizes, Q, strict=True)]
    return torch.addcmul(low, width, u).clamp_(2**-54, 1 - 2**-53), torch.cat(directions, 1)


@kept(128)
def strata(count: int) -> tuple[list[int], Tensor, Tensor]:
    """Split `count` directions into sets of few sizes, since sets are cached; and the radii of each set into strata."""
    sizes, left = [], count
    for size in (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1):
        sizes += [size] * (left // size)
        left %= size
    low = np.concatenate([np.arange(size) / size for size in sizes])
    return sizes, torch.from_numpy(low), torch.from_numpy(1 / np.repeat(sizes, sizes))


@kept(128)
def near_design(size: int, dim: int) -> Tensor:
    """Make directions `[size, dim]` that are even altogether and in every run of neighbours. They are always the same.

    Directions integrate polynomials of degree 2t as the sphere does if the frame potential, the sum of (u_i . u_j)^2t
    over all pairs, is least. Thirty steps of descent on the potentials of degrees 2, 4 and 6 find directions far better
    than a Sobol net's. Neighbours, which have similar radii, repel each other more. At last the signs, which the
    potential does not see, are chosen to balance neighbours. Float64 makes the descent the same everywhere.
    """
    start = torch.randn(size, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    u = torch.nn.functional.normalize(start, dim=1)
    if size == 1:
        return u
    at = torch.arange(size, dtype=torch.float64, device="cpu") / size
    near = 1 + 2 * (-(at[:, None] - at).abs() / 0.15).exp()  # [size, size]
    near.fill_diagonal_(0.0)
    expected, factors = 1.0, []
    for t in (1, 2, 3):
        expected *= (2 * t - 1) / (dim + 2 * t - 2)  # the mean of (u . v)^2t over the sphere
        factors.append(t / expected)
    for step in range(30):
        C = u @ u.mT
        C2 = C.square()
        # the derivative of the potential
        slope = (C2 * factors[2]).add_(factors[1]).mul_(C2).add_(factors[0]).mul_(C).mul_(near)
        pull = slope @ u
        pull -= (pull * u).sum(1, keepdim=True) * u
        pull *= 0.15 * (1 - step / 30) / pull.norm(dim=1).mean().clamp_min(1e-300)
        u = torch.nn.functional.normalize(u - pull, dim=1)
    balance = torch.zeros(dim, dtype=torch.float64, device="cpu")
    for direction in u:
        if direction @ balance > 0:
            direction.neg_()
        balance = 0.9 * balance + direction
    return u
