"""The Jacobian of a function that has no closed form of it: one's own, or one that torch differentiates as well."""

from __future__ import annotations

from collections.abc import Callable

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
