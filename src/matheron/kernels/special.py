"""Special functions that torch lacks, on tensors of any device: Gamma quantiles, Bessel functions with derivatives."""

from __future__ import annotations

import numpy as np
import scipy  # whose special functions it imports when they are first used
import torch
from torch import Tensor

from ..modes import kept, transformed

# Nodes of the trapezoidal rule for a Bessel function; its error falls exponentially, below 1e-13 here.
_NODES = 160
_DECADES = 37.0  # the integrand is cut where it has fallen by e^-37
# Quantiles are tabulated over this range of log(u / (1 - u)), which is that of the uniforms of features.
_LARGEST_LOGIT, _LOGIT_CELLS = 38.0, 2048


def gamma_quantile(u: Tensor, shape: float) -> Tensor:
    """Quantiles of Gamma(shape, rate=shape), away from zero, where a root's inverse would be infinite.

    Interpolated, on the tensor's own device: the logarithm is a smooth function of logit u, and nearly linear in the
    tails. Relative errors are below 1e-8.
    """
    powers = _gamma_table(float(shape)).to(u.device)  # [cells, 4]
    at = (torch.logit(u.detach().double()) / _LARGEST_LOGIT + 1) * (len(powers) / 2)
    cell = at.floor().clamp(0, len(powers) - 1)
    c3, c2, c1, c0 = powers[cell.long()].unbind(-1)
    t = at - cell
    return (((c3 * t + c2) * t + c1) * t + c0).exp().clamp_min(1e-30).to(u)


@kept(64)
def _gamma_table(shape: float) -> Tensor:
    """Cubics `[cells, 4]`, highest power first, of log quantiles over equal cells of logit u, each from 0 to 1."""
    cells = np.arange(-2, _LOGIT_CELLS + 3)  # with neighbours for the slopes at both ends
    logit = _LARGEST_LOGIT * (2 * cells / _LOGIT_CELLS - 1)
    upper = scipy.special.gammainccinv(shape, scipy.special.expit(-logit))  # precise where u is near one
    with np.errstate(divide="ignore"):
        lower = np.log(scipy.special.gammaincinv(shape, scipy.special.expit(logit)))
    # u = q^shape / Gamma(shape + 1)
    first = (np.log(scipy.special.expit(logit)) + scipy.special.gammaln(shape + 1)) / shape
    lower = np.where(first < -30, first, lower)
    quantile = np.where(logit > 0, np.log(np.maximum(upper, 1e-300)), lower) - np.log(shape)
    slope = (quantile[:-4] - 8 * quantile[1:-3] + 8 * quantile[3:-1] - quantile[4:]) / 12  # to the fourth order
    left, right, rise = slope[:-1], slope[1:], np.diff(quantile[2:-2])
    cubics = [left + right - 2 * rise, 3 * rise - 2 * left - right, left, quantile[2:-3]]
    return torch.from_numpy(np.stack(cubics, axis=1))


def scaled_bessel(z: Tensor, count: int) -> Tensor:
    """exp(-z) I_k(z) for k = 0 .. count, differentiable once in z."""
    values = scipy.special.ive(np.arange(-1, count + 2), float(z.detach()))
    slopes = (values[:-2] + values[2:]) / 2 - values[1:-1]
    return torch.from_numpy(values[1:-1]).to(z) + torch.from_numpy(slopes).to(z) * (z - z.detach())


def log_bessel_k(order: Tensor, s: Tensor) -> Tensor:
    """log K_a(s) for a real order a (one number) and s > 0, differentiable in both.

    K_a(s) is half the integral of exp(a t - s cosh t) over all t, which the trapezoidal rule gets to rounding in a few
    dozen nodes, once they lie where the integrand does: about its peak at sinh t = a / s.
    """
    in_graph = transformed() or (torch.is_grad_enabled() and (s.requires_grad or order.requires_grad))
    if s.device.type == "cpu" and not in_graph:
        at = s.detach().double().numpy()
        value = s.new_tensor(np.log(scipy.special.kve(float(order), at)) - at)  # faster, until it overflows
        if bool(value.isfinite().all()):
            return value
    return _log_trapezoid(order, s)


def _log_trapezoid(order: Tensor, s: Tensor) -> Tensor:
    a = order.abs()
    with torch.no_grad():
        curvature = torch.hypot(a, s)
        peak = torch.asinh(a / s)
        right = torch.acosh(1 + _DECADES / curvature)
        left = torch.acosh(1 + _DECADES * (curvature + a) / s.square())
        q = _DECADES / a
        left = torch.minimum(left, (q + (q.square() + 8 * q).sqrt()) / 2) if float(a) > 0 else left
        step = (left + right) / (_NODES - 1)
        t = (peak - left)[..., None] + step[..., None] * torch.arange(_NODES, dtype=s.dtype, device=s.device)
    return torch.logsumexp(a * t - s[..., None] * torch.cosh(t), dim=-1) + (step / 2).log()
