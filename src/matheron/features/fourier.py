"""Random Fourier features of a stationary term: the paper's cosines, or pairs with plain, Sobol or orthogonal draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..core.modes import kept
from ..evaluate.bases import Basis, Cosines, Pairs
from ..kernels.base import Term
from ..kernels.spectral import Elliptical, SpectralMeasure

RANDOM_KINDS = ("cosine", "sincos", "sobol", "orthogonal")


def fourier(
    term: Term, input_dim: int, count: int, *, kind: str, num_bases: int, generator: torch.Generator
) -> list[Basis]:
    """`count` features of the term's stationary part, `num_bases` times over, independently.

    phi_i(x) = sqrt(2 variance / ell) cos(theta_i . x + tau_i) for "cosine"; otherwise pairs cos(theta_i . x),
    sin(theta_i . x) of the same amplitude, with one single cosine where the count is odd.
    """
    singles = count if kind == "cosine" else count % 2
    pairs = (count - singles) // 2
    device = term.variance.device  # the kernel's, which need not be the generator's
    theta, importance = frequencies(term.measure(input_dim), pairs + singles, kind, num_bases, generator, device)
    amplitude = (2 / count * term.variance * importance).sqrt().expand(theta.shape[:2])  # [g, f]
    bases: list[Basis] = []
    if pairs:
        bases.append(Pairs(theta[:, :pairs], amplitude[:, :pairs]))
    if singles:
        tau = 2 * math.pi * rand((num_bases, singles), generator).to(device)
        bases.append(Cosines(theta[:, pairs:], tau, amplitude[:, pairs:]))
    return bases


def frequencies(
    measure: SpectralMeasure, count: int, kind: str, num_bases: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Frequencies `[g, count, d]`, and weights that are one and carry gradients (see `SpectralMeasure.importance`).

    Uniforms come from the generator's device, and go to the measure's.
    """
    if kind == "orthogonal":
        return _stratified(measure, count, num_bases, generator, device), torch.ones(
            (), dtype=torch.float64, device="cpu"
        )
    shape = (num_bases, count, measure.num_uniforms)
    U = (sobol(*shape, generator) if kind == "sobol" else rand(shape, generator)).to(device)
    importance = measure.importance(U)
    return measure.frequencies(U), torch.ones_like(U[..., :1].sum(-1)) if importance is None else importance


def rand(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniforms in the open interval (0, 1), on the generator's device."""
    U = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return U.clamp_(2**-54, 1 - 2**-53)


def randn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Standard normal numbers, on the generator's device."""
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)


def sobol(num_bases: int, count: int, dims: int, generator: torch.Generator) -> Tensor:
    """One Sobol net per basis, `[g, count, p]`: the plain net under a digital shift of its own: independent bases.

    The coordinates of a point (frequencies and mixing variables of all factors) come from one net: that is what makes
    them jointly uniform. The net's dimension is p, never the number of features, which may therefore be any.
    """
    if dims == 0:
        return torch.zeros(num_bases, count, 0, dtype=torch.float64, device=generator.device)
    small = count * dims <= 1 << 16  # a net that is kept
    net = (_plain_net if small else _plain_net.__wrapped__)(count, dims).to(generator.device)
    shift = torch.randint(2**SobolEngine.MAXBIT, (num_bases, 1, dims), generator=generator, device=generator.device)
    return (net ^ shift).double().add_(0.5).div_(2**SobolEngine.MAXBIT)


@kept(32)
def _plain_net(count: int, dims: int) -> Tensor:
    """The net without a shift, as whole numbers."""
    return SobolEngine(dims).draw(count, dtype=torch.float64).mul_(2**SobolEngine.MAXBIT).long()


def orthogonal(normal: Tensor) -> Tensor:
    """Orthogonal matrices, uniform over all, from matrices `[..., d, d]` of standard normal numbers."""
    Q, R = torch.linalg.qr(normal)
    return Q * R.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def _stratified(
    measure: SpectralMeasure, count: int, num_bases: int, generator: torch.Generator, device: torch.device
) -> Tensor:
    """Frequencies `[g, count, d]` whose directions are orthogonal in blocks of d and whose radii are stratified."""
    if not isinstance(measure, Elliptical) or getattr(measure, "shift", None) is not None:
        raise ValueError(
            'features="orthogonal" needs a kernel of one distance in all dimensions (RBF, Matern, RationalQuadratic); '
            'use "sobol" or "auto" for this one'
        )
    d, blocks = measure.input_dim, -(-count // measure.input_dim)
    directions = orthogonal(randn((num_bases, blocks, d, d), generator)).flatten(1, 2)[:, :count]  # [g, count, d]
    strata = rand((num_bases, count, 1 + measure.num_mixing_uniforms), generator)
    order = torch.argsort(rand(tuple(strata.shape), generator), dim=1)
    U = ((order + strata) / count).clamp(2**-54, 1 - 2**-53)
    return measure.scale * directions.to(device) * measure.radius(U.to(device))[..., None]
