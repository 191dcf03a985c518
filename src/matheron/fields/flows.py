"""Vector fields without curl, or without divergence: the derivatives of a potential that is drawn given velocities."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..core.checks import ArrayLike, as_points, as_tensor
from ..drawing import DrawSettings, draw
from ..kernels import Coregional, Kernel
from ..kernels.own import as_kernel
from ..models import ExactGP, observe
from ..paths import AbstractFunctions, Stack


def curl_free(
    kernel: Kernel,
    X: ArrayLike,
    velocities: ArrayLike,
    noise: ArrayLike,
    num_paths: int,
    **settings: Unpack[DrawSettings],
) -> AbstractFunctions:
    """Vector fields v = grad p, given velocities: functions of d outputs whose curl is zero.

    The potential p is drawn from its posterior, in which the velocities are observed gradients, and the fields are its
    gradients in closed form.

    Args:
        kernel: kernel of the potential p. Its functions must be differentiable (RBF, Matern with nu > 1). Velocities
            vary as derivatives do: with an RBF kernel of variance 1 and lengthscale l, each component has variance
            1/l^2. `kernel + kernels.Linear()` adds a field that is the same everywhere.
        X: where velocities are observed, `[n, d]`.
        velocities: `[n, d]`.
        noise: the variance of their errors: a number, one for each place `[n]`, or one for each number `[n, d]`.
        num_paths: how many fields.
        settings: of `matheron.draw`: `seed`, `domain`, `features`, ...

    >>> import torch, matheron
    >>> from matheron import fields, kernels
    >>> X = torch.rand(10, 2, dtype=torch.float64)
    >>> forces = fields.curl_free(kernels.RBF(0.5), X, 2 * X, 1e-4, num_paths=8, seed=0)
    >>> v, dv = forces.value_and_grad(X)
    >>> v.shape, bool((dv[..., 0, 1] - dv[..., 1, 0]).abs().max() < 1e-6)
    (torch.Size([8, 10, 2]), True)
    """
    X, v, noise = _checked(kernel, X, velocities, noise)
    gp = ExactGP(kernel, observe.gradient(X), v.flatten(), noise.flatten())
    return draw(gp, num_paths, **settings).gradient()


def divergence_free(
    kernel: Kernel,
    X: ArrayLike,
    velocities: ArrayLike,
    noise: ArrayLike,
    num_paths: int,
    **settings: Unpack[DrawSettings],
) -> AbstractFunctions:
    """Vector fields in two or three dimensions, given velocities: functions of d outputs whose divergence is zero.

    In two dimensions the fields are the rotated gradients of a stream function psi, v = (dpsi/dy, -dpsi/dx). In three
    they are the curl of a vector potential, v = curl A, with three independent components of the same kernel.

    Args:
        kernel: of the stream function, or of each component of the vector potential; as for `curl_free`.
        X, velocities: `[n, d]` with d = 2 or 3.
        noise, num_paths, settings: as for `curl_free`.

    >>> import torch, matheron
    >>> from matheron import fields, kernels
    >>> X = torch.rand(10, 2, dtype=torch.float64)
    >>> around = torch.stack([-X[:, 1], X[:, 0]], dim=1)
    >>> flow = fields.divergence_free(kernels.RBF(0.5), X, around, 1e-4, num_paths=8, seed=0)
    >>> v, dv = flow.value_and_grad(X)
    >>> v.shape, bool((dv[..., 0, 0] + dv[..., 1, 1]).abs().max() < 1e-6)
    (torch.Size([8, 10, 2]), True)
    """
    X, v, noise = _checked(kernel, X, velocities, noise)
    d = X.shape[1]
    if d == 2:
        gradients, variances = torch.stack([-v[:, 1], v[:, 0]], dim=1), noise.flip(1)  # the gradient of psi
        gp = ExactGP(kernel, observe.gradient(X), gradients.flatten(), variances.flatten())
        psi = draw(gp, num_paths, **settings)
        return Stack([psi.derivative(1), -psi.derivative(0)])
    if d != 3:
        raise ValueError(f"X: expected points in two or three dimensions, where a flow has a potential, got {d}")
    turns = ((0, 1, 2), (1, 2, 0), (2, 0, 1))  # v_i = dA_k/dx_j - dA_j/dx_k
    curl = [observe.derivative(X, j, output=k) - observe.derivative(X, k, output=j) for _, j, k in turns]
    coupled = Coregional(kernel, torch.eye(3, dtype=X.dtype, device=X.device))
    gp = ExactGP(coupled, observe.stack(curl), v.mT.flatten(), noise.mT.flatten())
    A = draw(gp, num_paths, **settings)
    return Stack([A[..., k].derivative(j) - A[..., j].derivative(k) for _, j, k in turns])


def _checked(kernel: Kernel, X: ArrayLike, velocities: ArrayLike, noise: ArrayLike) -> tuple[Tensor, Tensor, Tensor]:
    """Points, velocities and the variances of their errors, all `[n, d]`."""
    kernel, X = as_kernel(kernel), as_points(X, "X")
    if kernel.num_outputs > 1:
        raise ValueError(f"kernel: expected one of a function of one output, the potential, got {kernel!r}")
    v, noise = as_tensor(velocities, "velocities", like=X), as_tensor(noise, "noise", like=X)
    if v.shape != X.shape:
        raise ValueError(f"velocities: expected {list(X.shape)}, one for each row of X, got {list(v.shape)}")
    n, d = X.shape
    if list(noise.shape) not in ([], [1], [n], [n, d]):
        raise ValueError(
            f"noise: expected a variance, one for each place [{n}], or one for each number [{n}, {d}], got shape "
            f"{list(noise.shape)}"
        )
    return X, v, (noise[:, None] if noise.ndim == 1 else noise).expand(n, d)
