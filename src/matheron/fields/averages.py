"""Observations of averages over blocks, in addition to points (in geostatistics, a change of support)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.boxes import as_box
from ..core.checks import ArrayLike, as_count, as_noise, as_points, as_tensor
from ..models import ExactGP, SparseGP
from ..solvers.cholesky import safe_cholesky


def block(lower: ArrayLike, upper: ArrayLike, num: int = 4) -> Tensor:
    """The points `[num^d, d]` that represent a box: the midpoints of num cells along each side.

    >>> from matheron import fields
    >>> fields.block([0.0, 0.0], [1.0, 2.0], num=2)
    tensor([[0.2500, 0.5000],
            [0.2500, 1.5000],
            [0.7500, 0.5000],
            [0.7500, 1.5000]], dtype=torch.float64)
    """
    low, high = as_box((lower, upper), "lower and upper").double()
    middle = (torch.arange(as_count(num, "num"), dtype=torch.float64, device="cpu") + 0.5) / num
    axes = [a + (b - a) * middle for a, b in zip(low, high, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(low))


def given_averages(gp: ExactGP, blocks: Sequence[ArrayLike], y: ArrayLike, noise: ArrayLike) -> SparseGP:
    """Condition a model also on averages of the field over blocks: y_b = mean of f over block b + eps.

    All data depend on f at the points of the data and at the points that represent the blocks. The posterior of these
    values is Gaussian with a closed form. They become the inducing values of a `SparseGP`, whose paths are as exact as
    those of an `ExactGP`. The cost is a factorisation for that number of points.

    Args:
        gp: the kernel, the mean, and the observations at points.
        blocks: for each average the points `[q, d]` whose mean it is: `fields.block(...)`, or those of a mesh that
            lie in a polygon.
        y: the averages `[b]`, in the user's units.
        noise: variance of the errors of the averages, one number or `[b]`.

    >>> import torch, matheron
    >>> from matheron import fields, kernels
    >>> gp = matheron.ExactGP(kernels.Matern(1.5, 0.3), X=[[0.1], [0.9]], y=[0.0, 1.0], noise=1e-4)
    >>> cell = fields.block([0.4], [0.6], num=8)
    >>> paths = matheron.draw(fields.given_averages(gp, [cell], [2.0], noise=1e-6), 4, seed=0)
    >>> paths(cell).mean(-1).round(decimals=2)
    tensor([2., 2., 2., 2.], dtype=torch.float64)
    """
    if not isinstance(gp, ExactGP):
        raise TypeError(f"gp: expected an ExactGP, such as matheron.fit returns, got {type(gp).__name__}")
    if gp.num_outputs > 1:
        raise ValueError(f"gp: expected a model of one output, got {gp.num_outputs}")
    X, inward, outward = gp.train_inputs.detach().double(), gp.input_transform, gp.output_transform
    if outward is not None and not outward.affine:
        raise ValueError(
            "gp: expected an affine output transform, or none; the mean of a block does not pass through it"
        )
    if len(blocks) < 1:
        raise ValueError("blocks: expected at least one")
    cells = [as_points(b, "blocks", input_dim=gp.input_dim, like=X, names=gp.input_names) for b in blocks]
    if any(len(cell) < 1 for cell in cells):
        raise ValueError("blocks: expected at least one point in each")
    y = as_tensor(y, "y", like=X)
    if y.shape != (len(cells),):
        raise ValueError(f"y: expected [{len(cells)}], one average per block, got {list(y.shape)}")
    noise = as_noise(noise, len(cells), like=X)
    if inward is not None:
        cells = [inward(cell) for cell in cells]
    if outward is not None:
        y, noise = outward.inverse(y[:, None])[:, 0], noise / outward.derivative(y[:, None])[:, 0].square()

    Z = torch.cat([X, *cells])
    n, sizes = len(X), torch.tensor([len(cell) for cell in cells], device="cpu")
    A = torch.zeros(n + len(cells), len(Z), dtype=Z.dtype, device=Z.device)  # what is observed of f(Z)
    A[:n, :n] = torch.eye(n, dtype=Z.dtype, device=Z.device)
    A[n + torch.arange(len(cells), device="cpu").repeat_interleave(sizes), torch.arange(n, len(Z), device="cpu")] = (
        1 / sizes.to(Z)
    ).repeat_interleave(sizes.to(Z.device))
    with torch.no_grad():
        K = gp.kernel.forward(Z, Z).double()
        jitter = 1e-10 * float(K.diagonal().mean())  # points of a block lie close together
        L, added = safe_cholesky(
            K + jitter * torch.eye(len(Z), dtype=K.dtype, device=K.device), "k(Z, Z) of data and blocks"
        )
        residual = torch.cat([gp.train_targets.double(), y]) - A @ gp.mean(Z)[:, 0]
        # f(Z) = mean + L u with u ~ N(0, I) before the data, and B u + eps = residual.
        B, N = A @ L, torch.cat([gp.noise.double(), noise])
        # The data's own factor is taken by QR of [B, N^1/2]: squaring it would lose half of the digits.
        R = torch.linalg.qr(torch.cat([B, N.sqrt().diag_embed()], dim=1).mT).R.mT  # [n + b, n + b], R R^T = B B^T + N
        W = torch.linalg.solve_triangular(R, B, upper=False)
        q_mean = W.mT @ torch.linalg.solve_triangular(R, residual[:, None], upper=False)[:, 0]
        # Cov u = I - W^T W, whose root is I - V (1 - sqrt(1 - s^2)) V^T.
        _, s, Vh = torch.linalg.svd(W, full_matrices=False)
        shrunk = 1 - (1 - s.square()).clamp_min(0).sqrt()
        root = torch.eye(len(Z), dtype=K.dtype, device=K.device) - (Vh.mT * shrunk) @ Vh
    return SparseGP(
        gp.kernel, Z, q_mean, root, gp.mean, whitened=True, jitter=jitter + added,
        input_transform=inward, output_transform=outward,
    ).replaced(input_names=gp.input_names)  # fmt: skip
