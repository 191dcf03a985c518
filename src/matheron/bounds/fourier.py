"""C2: how fast random Fourier features find a kernel, uniformly over a box.

The argument is that of Sutherland and Schneider, On the Error of Random Fourier Features (UAI 2015), proposition on the
expected maximum error: symmetrise, then bound the supremum of a sub-Gaussian process by chaining over covers
(Dudley). Its steps are taken here with numbers, so that each can be checked; docs/theory.md writes them out. The
constant is of the same form, a number times sigma_p times the box's diameter times sqrt(d), but is not the number
that they print.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..checks import ArrayLike
from ..kernels import Kernel
from ..kernels import spectral as measures
from .norms import box_sides

KINDS = ("cosine", "sincos")


def fourier_constant(
    kernel: Kernel, domain: tuple[ArrayLike, ArrayLike], *, input_dim: int, kind: str = "cosine"
) -> float:
    """C2 with E sup |k^(w) - k| <= C2 / sqrt(ell) over a box, for independent random frequencies.

    Args:
        kernel: stationary, of one term (a scaled kernel, or a product); twice differentiable at zero, else C2 is
        infinite. domain: the box, (lower, upper).
        kind: "cosine", the paper's cos(theta . x + tau), or "sincos", pairs of an even number of features.

    >>> from matheron import kernels
    >>> from matheron.bounds import fourier_constant
    >>> fourier_constant(kernels.Matern(0.5), (0.0, 1.0), input_dim=1)
    inf
    """
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, which the bound is for, got {kind!r}")
    terms = [term for term in kernel.terms(input_dim) if float(term.variance) > 0]
    if len(terms) != 1 or terms[0].forms or terms[0].coupling is not None or not terms[0].stationary:
        raise TypeError("kernel: expected a stationary kernel of one term; bound the terms of a sum one by one")
    sides = box_sides(domain, input_dim)
    sigma = math.sqrt(second_moment(terms[0].measure(input_dim)))
    if math.isinf(sigma):
        return math.inf
    if kind == "sincos":
        # ell / 2 terms cos(theta . r), |theta|-Lipschitz in r = x - x'; no error at r = 0.
        constant = 2 * math.sqrt(2) * sigma * chaining_sum(2 * sides)
    else:
        # ell terms 2 cos(theta . x + tau) cos(theta . x' + tau), 2 |theta|-Lipschitz in (x, x'); at x = x' of variance
        # one half.
        constant = math.sqrt(0.5) + 2 * 2 * sigma * chaining_sum(torch.cat([sides, sides]))
    return float(terms[0].variance) * constant


def chaining_sum(sides: Tensor) -> float:
    """S with E sup |Z(t) - Z(centre)| <= S over a box, for Z sub-Gaussian with |t - s| for its metric.

    Nets of radius r_j = r_0 q^j, the first of them the centre alone; a link of net j has length r_{j-1} at most, and
    there are N(r_j) of them, so that S = sum_j r_{j-1} sqrt(2 log(2 N(r_j))). The best q is taken.
    """
    radius = float(sides.norm()) / 2
    best = math.inf
    for q in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        total, r, j = 0.0, radius, 0
        while r > 1e-14 * radius:  # what is left is below rounding
            link, r, j = r, radius * q ** (j + 1), j + 1
            total += link * math.sqrt(2 * (math.log(2) + log_cover(sides, r)))
        best = min(best, total)
    return best


def log_cover(sides: Tensor, r: float) -> float:
    """log N(r): how many balls of radius r, centred inside, cover a box. By cells of a grid, or by volume of a ball."""
    p = len(sides)
    cells = float((sides * math.sqrt(p) / (2 * r)).clamp_min(1).ceil().log().sum())
    return min(cells, p * math.log1p(float(sides.norm()) / r))


def second_moment(measure: measures.SpectralMeasure) -> float:
    """sigma_p^2 = E |theta|^2, which is minus the Laplacian of the kernel at zero."""
    match measure:
        case measures.Gaussian():
            shift = 0.0 if measure.shift is None else float(measure.shift.square().sum())
            return float(measure.scale.square().sum()) + shift
        case measures.Student():  # the variance of a t with 2 nu degrees of freedom
            return math.inf if measure.nu <= 1 else float(measure.scale.square().sum()) * measure.nu / (measure.nu - 1)
        case measures.GammaScaled():  # the Gamma's mean is one
            return float(measure.scale.square().sum())
        case measures.Convolution():  # independent, with a random sign
            return sum(second_moment(m) for m in measure.measures)
        case measures.Mixture():
            return sum(float(w) * second_moment(m) for w, m in zip(measure.weights, measure.measures, strict=True))
        case measures.Moved():  # frequencies keep their lengths
            return second_moment(measure.measure)
    atoms = measure.atoms()
    if atoms is None:
        raise TypeError(f"no second moment is known for {type(measure).__name__}")
    theta, mass = atoms
    return float(mass @ theta.square().sum(-1))
