"""C1 and C3: how an error in the prior carries over to the posterior. They depend on Z, and not on q(u)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..boxes import as_box
from ..checks import ArrayLike, as_tensor
from ..gp import ExactGP, SparseGP
from ..libraries import describe
from ..samplers.conditionals import Factored, PriorAt, inner_points, single

# Up to this many rows the operator norm is found by trying all signs.
LARGEST_EXACT = 20
_SIGNS_AT_ONCE = 1 << 14


class OperatorNorm(NamedTuple):
    """The norm of a matrix from l-infinity to l-1: exact, or an upper bound with a lower one beside it."""

    value: float
    exact: bool
    lower: float


class Constants(NamedTuple):
    """The constants of both propositions, for inducing points Z (or data X) and a box."""

    C1: float
    C3: float
    inverse_norm: OperatorNorm  # of K_mm^-1, from l-infinity to l-1
    kernel_norm: float  # the largest |k|
    diameter: float
    num_centres: int


def operator_norm(A: ArrayLike) -> OperatorNorm:
    """max |A s|_1 over |s|_inf <= 1, for a symmetric positive semi-definite A `[m, m]`.

    The maximum is at signs. Up to m = 20 all of them are tried, and the norm is exact. Beyond, finding it is NP-hard:
    the value is the smaller of two upper bounds, sum_ij |A_ij| and m lambda_max(A), and `lower` is what ascent on
    signs found.

    >>> from matheron.bounds import operator_norm
    >>> operator_norm([[2.0, -1.0], [-1.0, 2.0]])
    OperatorNorm(value=6.0, exact=True, lower=6.0)
    """
    A = as_tensor(A, "A").detach().double()
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"A: expected a square matrix, got shape {list(A.shape)}")
    m = len(A)
    if m <= LARGEST_EXACT:
        best = 0.0
        for start in range(0, 1 << (m - 1), _SIGNS_AT_ONCE):  # the first sign may be taken as plus
            codes = torch.arange(start, min(start + _SIGNS_AT_ONCE, 1 << (m - 1)), device=A.device)
            signs = 1.0 - 2.0 * ((codes[:, None] >> torch.arange(m, device=A.device)) & 1)  # [c, m]
            best = max(best, float((signs.to(A) @ A).abs().sum(1).max()))
        return OperatorNorm(best, True, best)
    values, vectors = torch.linalg.eigh(A)
    upper = min(float(A.abs().sum()), m * float(values[-1]))
    starts = torch.cat([vectors[:, -4:].mT, A[:4]]).sign()
    return OperatorNorm(upper, False, max(_ascend(A, s) for s in starts))


def _ascend(A: Tensor, s: Tensor) -> float:
    """s -> sign(A s) never lowers |A s|_1; the fixed point's value."""
    best = 0.0
    for _ in range(100):
        value = float((A @ s).abs().sum())
        if value <= best * (1 + 1e-12):
            break
        best, s = value, torch.where(A @ s < 0, -1.0, 1.0).to(A)
    return best


def constants(model: object, domain: tuple[ArrayLike, ArrayLike]) -> Constants:
    """C1 and C3 of a model on the box `domain` = (lower, upper), each a number or one per dimension.

        C1 = sqrt(2 diam(X)^d (1 + ||k||^2 ||K_mm^-1||^2))           prop:wasserstein_bound
        C3 = m (1 + ||K_mm^-1|| ||k||)^2                             prop:covariance_error

    ||k|| is the largest value of |k|, k(x, x) of a stationary kernel; ||K_mm^-1|| is the operator norm from
    l-infinity to l-1, which the paper's proof uses (its statement of C3 prints another). For a model of data, K_mm is
    K_nn + sigma^2 I.
    """
    gp = one_output(model)
    if any(term.forms for term in gp.kernel.terms(gp.input_dim)):
        raise TypeError("expected a stationary kernel: the propositions assume one")
    zero = torch.zeros(1, gp.input_dim, dtype=torch.float64, device="cpu")
    variance = float(gp.kernel.to("cpu").diag(zero))  # k(x, x)
    diameter = float(box_sides(domain, gp.input_dim).norm())
    with torch.no_grad():
        norm = operator_norm(torch.cholesky_inverse(Factored(gp, PriorAt(gp)).L))
    m = gp.num_data if isinstance(gp, ExactGP) else gp.num_inducing
    C1 = math.sqrt(2 * diameter**gp.input_dim * (1 + (variance * norm.value) ** 2))
    return Constants(C1, m * (1 + norm.value * variance) ** 2, norm, variance, diameter, m)


def lebesgue_constant(model: object, x: ArrayLike) -> float:
    """sup_x |K_mm^-1 k(Z, x)|_1 over the points x: what ||k|| ||K_mm^-1|| bounds, and often by far.

    With L for it, (1 + L)^2 may take the place of C3 and sqrt(2 |X| (1 + L^2)) for C1, where x is all of the domain.
    """
    gp = one_output(model)
    with torch.no_grad():
        at = PriorAt(gp, inner_points(gp, x))
        return float(torch.cholesky_solve(at.K_mx, Factored(gp, at).L).abs().sum(0).max())


def one_output(model: object) -> ExactGP | SparseGP:
    """A model that the propositions speak of."""
    gp = single(describe(model))
    if gp.num_outputs > 1 or gp.input_transform is not None or gp.output_transform is not None:
        raise TypeError("expected a model of one output and no transforms: the propositions are of those")
    return gp


def box_sides(domain: tuple[ArrayLike, ArrayLike], d: int) -> Tensor:
    """The sides `[d]` of a box (lower, upper)."""
    lower, upper = as_box(domain, "domain", input_dim=d).double().cpu()
    return upper - lower
