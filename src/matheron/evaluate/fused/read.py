"""From paths to a plan: which parts have kernels here, and what these parts are."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...kernels import RBF, Kernel, Matern, RationalQuadratic
from ...kernels.terms import RadialPart
from ..bases import Canonical, Cosines, Pairs
from ..path_terms import WeightedSum
from ..record import Record
from .plan import Fourier, Plan, RadialPlan, two_to

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
def make_plan(record: Record) -> Plan | None:
    """The plan of a record; None where some of it has no kernel here, or is in a graph."""
    s, t, d = record.num_paths, record.num_outputs, record.input_dim
    if d > LARGEST_DIM or record.requires_grad or record.dtype not in (torch.float32, torch.float64):
        return None
    sums = [term for term in record.terms if isinstance(term, WeightedSum)]
    waves = [term for term in sums if not isinstance(term.basis, Canonical)]
    if len(sums) < len(record.terms) or not all(type(term.basis) in (Pairs, Cosines) for term in waves):
        return None
    radial: list[RadialPlan] = []
    for term in sums:
        if isinstance(term.basis, Canonical):
            parts = radial_parts(term.basis.kernel, term.basis.centres, term.weights.reshape(s * t, 1, -1))
            if parts is None:
                return None
            radial += parts
    return Plan(s, t, record.origin, _fourier(waves), radial)


def _fourier(terms: list[WeightedSum]) -> list[Fourier]:
    """The Fourier terms. A few cosines beside pairs become pairs, so that one launch does for both."""
    parts: list[Fourier] = []
    pairs = max((term.basis.frequencies.shape[1] for term in terms if isinstance(term.basis, Pairs)), default=0)
    for term in terms:
        basis, W = term.basis, term.weights
        s, t = W.shape[:2]
        theta = basis.frequencies.double() / (2 * math.pi)
        tau = None
        if isinstance(basis, Pairs):
            W = W.reshape(s * t, 2, -1)
        elif 4 * theta.shape[1] > pairs:
            W = W.reshape(s * t, 1, -1)
            tau = basis.phases.double() / (2 * math.pi)
            tau = (tau - tau.round()).to(W.dtype)
        else:
            phases = basis.phases if term.shared else basis.phases[term.index]
            W = torch.stack([W * phases[:, None].cos(), W * -phases[:, None].sin()], dim=2).flatten(0, 1)
        groups, used = [members for _, members in term.groups], [g for g, _ in term.groups]
        if used != list(range(basis.num_bases)):
            theta, tau = theta[used], None if tau is None else tau[used]
        index = torch.empty(s, dtype=torch.int32, device="cpu")
        for g, members in enumerate(groups):
            index[members] = g
        rows = [[m * t + j for m in members for j in range(t)] for members in groups]
        parts.append(Fourier(theta, tau, W, rows, index.to(W.device)))
    return [_padded(part) for part in _merged(parts)]


def _merged(parts: list[Fourier]) -> list[Fourier]:
    """Parts with the same rows per basis, side by side."""
    merged: list[Fourier] = []
    for part in parts:
        for i, other in enumerate(merged):
            if (part.tau is None) == (other.tau is None) and part.groups == other.groups:
                taus = [each.tau for each in (other, part) if each.tau is not None]
                theta, weights = torch.cat([other.theta, part.theta], 1), torch.cat([other.weights, part.weights], -1)
                merged[i] = replace(part, theta=theta, tau=torch.cat(taus, 1) if taus else None, weights=weights)
                break
        else:
            merged.append(part)
    return merged


def _padded(part: Fourier) -> Fourier:
    extra = -part.theta.shape[1] % PAD
    tau = None if part.tau is None else pad(part.tau, (0, extra)).contiguous()
    theta, weights = pad(part.theta, (0, 0, 0, extra)).contiguous(), pad(part.weights, (0, extra)).contiguous()
    return replace(part, theta=theta, tau=tau, weights=weights)


def radial_parts(kernel: Kernel, centres: Tensor, W: Tensor) -> list[RadialPlan] | None:
    """The radial kernels of a sum of such; None where some have no kernel here."""
    parts = kernel.radial_parts(centres.shape[1])
    made = [_radial_part(part, centres, W) for part in parts or []]
    return None if not made or None in made else [part for part in made if part is not None]


def _radial_part(part: RadialPart, centres: Tensor, W: Tensor) -> RadialPlan | None:
    """One radial kernel; None where it has no number here."""
    kernel = part.kernel
    kind = _KINDS.get((type(kernel), getattr(kernel, "nu", 0.0)))
    if kind is None:
        return None
    squared = 2 * kernel.nu if isinstance(kernel, Matern) else 0.5 / kernel.alpha if kind == 4 else 1.0
    lengthscale = kernel.lengthscale
    a = centres.new_zeros(centres.shape[1])  # q = sum_k (a_k r_k)^2
    root = squared.to(lengthscale).sqrt() if isinstance(squared, Tensor) else math.sqrt(squared)
    a[part.dims] = (root / lengthscale).to(a).expand(len(part.dims))
    isotropic = lengthscale.numel() == 1 and len(part.dims) == len(a)
    unit = two_to(torch.frexp(a).exponent, a.dtype)  # [d]
    extra = -centres.shape[0] % PAD
    W = W if part.scale is None else W * part.scale
    alpha = kernel.alpha.to(a) if kind == 4 else torch.ones_like(a[0])
    units = torch.cat([unit, a / unit, alpha.reshape(1)])
    z = pad((centres * unit).mT, (0, extra)).contiguous()
    return RadialPlan(kind, isotropic, z, units, pad(W, (0, extra)).contiguous())
