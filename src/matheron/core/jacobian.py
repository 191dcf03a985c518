"""Automatic derivatives of functions of points that have no closed form of them: Jacobians, and along directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .modes import transformed


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """y = function(x) and its Jacobian, row by row and without a graph: `[..., d] -> [..., e]` and `[..., e, d]`.

    Each row of y follows from that row of x alone, so that e vector-Jacobian products are all of it. A function that
    does not depend on x has zeros. It is differentiated in inference mode too, and inside transforms of torch.func.
    """
    with torch.inference_mode(False), torch.enable_grad():
        if transformed():
            y, vjp = torch.func.vjp(function, x.detach())[:2]
        else:
            at = x.detach().clone().requires_grad_()
            y = function(at)

            def vjp(cotangent: Tensor) -> tuple[Tensor]:
                if not y.requires_grad:
                    return (torch.zeros_like(at),)
                return torch.autograd.grad(y, at, cotangent, retain_graph=True, materialize_grads=True)  # type: ignore[return-value]

        axes = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
        J = torch.stack([vjp(axis.expand_as(y))[0] for axis in axes], dim=-2)
    return y.detach(), J.detach()


def derivative_along(
    function: Callable[[Tensor], Tensor], x: Tensor, directions: Sequence[Tensor], reverse: bool | None = None
) -> Tensor:
    """The derivative of a map of points x `[n, d]`, each by itself, along directions `[n, d]`: the map's value at none.

    One direction is differentiated forward. Several are by two reverse sweeps each, the second of which transposes the
    first, since forward differentiation within itself leaves out custom functions (`torch.autograd.Function.jvp`).
    """
    if not directions:
        return function(x)
    u, *more = directions
    reverse = len(directions) > 1 if reverse is None else reverse

    def inner(x: Tensor) -> Tensor:
        return derivative_along(function, x, more, reverse)

    if not reverse:
        return torch.func.jvp(inner, (x,), (u.to(x).expand_as(x),))[1]
    f, pull, *_ = torch.func.vjp(inner, x)
    transposed = torch.func.vjp(lambda cotangent: pull(cotangent)[0], torch.zeros_like(f))[1]
    return transposed(u.to(x).expand_as(x))[0]


def derivative_of_pairs(
    k: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    z: Tensor,
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    name: str,
) -> Tensor:
    """Derivatives `[n, m]` of k(x, z) of each pair of points, along directions `left` in x and `right` in z.

    Args:
        name: what errors call k, which torch may be unable to differentiate.
    """
    several = len(left) + len(right) > 1

    def at(z: Tensor) -> Tensor:
        """Row j of the result depends on z_j alone."""
        return derivative_along(lambda x: k(x, z), x, left, several).mT

    try:
        D = derivative_along(at, z, right, several).mT
    except RuntimeError as error:
        raise TypeError(
            f"{name}: expected a `forward` that torch.func differentiates, as slopes need it, got {error}. Write it "
            "with operations of torch that have forward and reverse derivatives (not torch.cdist, no NumPy), or write "
            "`derivative(x, z, left, right)`"
        ) from error
    if not transformed() and not bool(D.detach().isfinite().all()):
        raise ValueError(
            f"{name}: expected finite derivatives of order {len(left) + len(right)}, got NaN or infinite ones; the "
            "square root of a squared distance has none at coincident points. Write the kernel as a subclass of Radial "
            "with `radial`, or write `derivative(x, z, left, right)`"
        )
    return D
