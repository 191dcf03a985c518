"""From paths to a plan: which parts have kernels here, and what these parts are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...features.basis import Cosines, Pairs
from ...kernels import RBF, Kernel, Matern, RationalQuadratic
from ...kernels.radial import RadialPart, radial_parts
from .plan import Fourier, Plan, Radial, two_to

# Basis functions are padded to a multiple of this, with weights of zero.
PAD = 64
LARGEST_DIM = 64
# The kernels' numbers in `radial`, by class and order.
_KINDS: dict[tuple[type[Kernel], float], int] = {
    (RBF, 0.0): 0,
    (Matern, 0.5): 1,
    (Matern, 1.5): 2,
    (Matern, 2.5): 3,
    (RationalQuadratic, 0.0): 4,
}


@torch.no_grad()
def make_plan(paths: Any) -> Plan | None:
    """The plan of a Paths; None where some of it has no kernel here, or is tied to a graph."""
    prior, update = paths.prior, paths.update
    s, t = prior.w.shape[:2]
    d = prior.features.origin.shape[0]
    if d > LARGEST_DIM or paths.requires_graph() or prior.w.dtype not in (torch.float32, torch.float64):
        return None
    fourier = _fourier(prior)
    if fourier is None:
        return None
    radial: list[Radial] = []
    for B, basis in update.coupled if update.width else []:
        W = update.coupled_weights(B, update.v).reshape(s * t, 1, -1)
        for part in radial_parts(basis.kernel, d) or [None]:
            made = None if part is None else radial_part(part, basis.centres, W)
            if made is None:
                return None
            radial.append(made)
    return Plan(s, t, prior.features.origin, fourier, radial)


def _fourier(prior: Any) -> list[Fourier] | None:
    """The prior's bases. A few cosines beside pairs become pairs, so that one launch does for both."""
    parts: list[Fourier] = []
    t = prior.w.shape[1]
    bases = list(prior.features.bases)
    if not all(type(basis) in (Pairs, Cosines) for basis in bases):
        return None
    pairs = max((basis.frequencies.shape[1] for basis in bases if isinstance(basis, Pairs)), default=0)
    for i, basis in enumerate(bases):
        W = getattr(prior, f"coefficients_{i}")
        theta = basis.frequencies.double() / (2 * math.pi)
        tau = None
        if isinstance(basis, Pairs):
            W = W.reshape(W.shape[0] * t, 2, -1)
        elif 4 * theta.shape[1] > pairs:
            W = W.reshape(W.shape[0] * t, 1, -1)
            tau = basis.phases.double() / (2 * math.pi)
            tau = (tau - tau.round()).to(W.dtype)
        else:
            phases = basis.phases if len(basis.phases) == 1 else basis.phases[prior.basis_index]
            W = torch.stack([W * phases[:, None].cos(), W * -phases[:, None].sin()], dim=2).flatten(0, 1)
        several = basis.num_bases > 1
        groups = [members for _, members in prior.groups] if several else [list(range(len(prior.w)))]
        if several and [g for g, _ in prior.groups] != list(range(basis.num_bases)):
            theta, tau = theta[[g for g, _ in prior.groups]], None if tau is None else tau[[g for g, _ in prior.groups]]
        index = torch.empty(len(prior.w), dtype=torch.int32)
        for g, members in enumerate(groups):
            index[members] = g
        rows = [[m * t + j for m in members for j in range(t)] for members in groups]
        parts.append(Fourier(theta, tau, W, rows, index.to(W.device)))
    return [_padded(part) for part in _merged(parts)]


def _merged(parts: list[Fourier]) -> list[Fourier]:
    """Parts with the same rows a basis side by side."""
    merged: list[Fourier] = []
    for part in parts:
        for i, other in enumerate(merged):
            if (part.tau is None) == (other.tau is None) and part.groups == other.groups:
                tau = None if part.tau is None or other.tau is None else torch.cat([other.tau, part.tau], dim=1)
                theta = torch.cat([other.theta, part.theta], dim=1)
                merged[i] = Fourier(theta, tau, torch.cat([other.weights, part.weights], -1), part.groups, part.index)
                break
        else:
            merged.append(part)
    return merged


def _padded(part: Fourier) -> Fourier:
    extra = -part.theta.shape[1] % PAD
    tau = None if part.tau is None else pad(part.tau, (0, extra)).contiguous()
    weights = pad(part.weights, (0, extra)).contiguous()
    return Fourier(pad(part.theta, (0, 0, 0, extra)).contiguous(), tau, weights, part.groups, part.index)


def radial_part(part: RadialPart, centres: Tensor, W: Tensor) -> Radial | None:
    """One radial kernel; None where it has no number here."""
    kernel = part.kernel
    kind = _KINDS.get((type(kernel), getattr(kernel, "nu", 0.0)))
    if kind is None:
        return None
    squared = 2 * kernel.nu if isinstance(kernel, Matern) else 0.5 / kernel.alpha if kind == 4 else 1.0
    lengthscale = kernel.lengthscale
    a = centres.new_zeros(centres.shape[1])  # q = sum_k (a_k r_k)^2
    a[part.dims] = (torch.as_tensor(squared).to(lengthscale).sqrt() / lengthscale).to(a).expand(len(part.dims))
    isotropic = lengthscale.numel() == 1 and len(part.dims) == len(a)
    unit = two_to(torch.frexp(a).exponent, a.dtype)  # [d]
    extra = -centres.shape[0] % PAD
    W = W if part.scale is None else W * part.scale
    alpha = kernel.alpha.to(a) if kind == 4 else torch.ones_like(a[0])
    units = torch.cat([unit, a / unit, alpha.reshape(1)])
    z = pad((centres * unit).mT, (0, extra)).contiguous()
    return Radial(kind, isotropic, z, units, pad(W, (0, extra)).contiguous())
