"""The paper's baseline for roll-outs, `apdx:additional_experiments_dyn`: each drift value given all those before it.

At each step the current input joins the inducing points and the value drawn there joins the inducing values, exactly.
The prior covariance of inducing points and visited inputs is kept as a Cholesky factor that grows by a row, and the
inducing covariance as one that is downdated, so that step t costs (m + t)^2 and all of them cost their cube.

(The paper's augmented q keeps the mean of u as it was; conditioning u on the value just drawn moves it too, and here it
does: the law would be wrong without.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..gp import SparseGP

# The smallest share of the prior variance that a pivot may have left: visited points crowd together.
_SMALLEST_PIVOT = 1e-10


class IterativeDrift:
    """A drift for `rollout`: a function of inputs `[s, d]` that remembers every input and value, one GP a state.

    >>> import torch, matheron
    >>> from matheron import kernels
    >>> from matheron.dynamics import IterativeDrift
    >>> gp = matheron.SparseGP(kernels.RBF(), Z=[[0.0], [1.0]], q_mean=[-0.1, 0.1], q_scale_tril=[0.1, 0.1])
    >>> drift = IterativeDrift([gp], num_paths=3, steps=10)
    >>> matheron.rollout(drift, torch.zeros(3, 1, dtype=torch.float64), steps=10, dt=0.1).shape
    torch.Size([3, 11, 1])
    """

    def __init__(
        self,
        gps: Sequence[SparseGP],
        num_paths: int,
        steps: int,
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.outputs = [_Conditional(gp, num_paths, steps, dtype, torch.device(device)) for gp in gps]
        self.generator = generator or torch.default_generator

    def __call__(self, x: Tensor) -> Tensor:
        """A value of each drift at each path's own input, given all before: `[s, d] -> [s, d_s]`."""
        g = self.generator
        xi = torch.randn(len(self.outputs), len(x), generator=g, device=g.device, dtype=torch.float64).to(x)
        return torch.stack([output.draw(x, normal) for output, normal in zip(self.outputs, xi, strict=True)], dim=1)


class _Conditional:
    """One output: the sparse posterior given the values drawn so far, each path's at its own inputs."""

    def __init__(self, gp: SparseGP, s: int, steps: int, dtype: torch.dtype, device: torch.device) -> None:
        if gp.q_mean is None or gp.num_outputs > 1:
            raise TypeError("IterativeDrift: expected a SparseGP of one output with a Gaussian q(u)")
        self.gp, self.m = gp, gp.num_inducing
        self.kernel, self.mean = gp.kernel.to(device, dtype), gp.mean.to(device, dtype)
        Z = gp.inducing_points.to(device, dtype)
        K = self.kernel.forward(Z, Z) + gp.jitter * torch.eye(self.m, dtype=dtype, device=device)
        L = torch.linalg.cholesky(K)
        mu, root = _moments(gp, L, self.mean(Z)[:, 0])
        self.mu = mu.expand(s, -1).clone()  # [s, m], mean of f(Z) less the prior mean
        self.S = root.expand(s, -1, -1).clone()  # [s, m, m], lower factor of its covariance
        self.L = torch.zeros(s, self.m + steps, self.m + steps, dtype=dtype, device=device)
        self.L[:, : self.m, : self.m] = L
        self.X = torch.zeros(s, self.m + steps, Z.shape[1], dtype=dtype, device=device)
        self.X[:, : self.m] = Z
        self.f = torch.zeros(s, steps, dtype=dtype, device=device)  # values drawn, less the prior mean
        self.t = 0

    def draw(self, x: Tensor, xi: Tensor) -> Tensor:
        """f(x) given the values before, which it then joins: `[s, d] -> [s]`."""
        gp, m, n = self.gp, self.m, self.m + self.t
        inner = x if gp.input_transform is None else gp.input_transform.to(x.device, x.dtype)(x)
        L = self.L[:, :n, :n]
        k = self.kernel.forward(self.X[:, :n], inner[:, None])  # [s, n, 1]
        a = torch.linalg.solve_triangular(L, k, upper=False)  # [s, n, 1]
        b = torch.linalg.solve_triangular(L.mT, a, upper=True)[..., 0]  # [s, n], K^-1 k
        prior = self.kernel.diag(inner)  # [s]
        left = (prior - a.square().sum((1, 2))).clamp_min(_SMALLEST_PIVOT * prior)
        spread = (self.S.mT @ b[:, :m, None])[..., 0]  # [s, m]
        mean = (b[:, :m] * self.mu).sum(1) + (b[:, m:] * self.f[:, : self.t]).sum(1)
        variance = left + spread.square().sum(1)
        f = mean + variance.sqrt() * xi
        covariance = (self.S @ spread[..., None])[..., 0]  # [s, m], Cov(u, f)
        self.mu = self.mu + covariance * ((f - mean) / variance)[:, None]
        self.S = downdate(self.S, covariance / variance.sqrt()[:, None])
        self.L[:, n, :n], self.L[:, n, n] = a[..., 0], left.sqrt()
        self.X[:, n], self.f[:, self.t] = inner, f
        self.t += 1
        value = f + self.mean(inner[:, None])[:, 0, 0]
        return value if gp.output_transform is None else gp.output_transform.to(x.device, x.dtype)(value[:, None])[:, 0]


def downdate(S: Tensor, v: Tensor) -> Tensor:
    """The lower factor of S S^T - v v^T, column by column (Gill et al., 1974), at a cost of m^2 a path.

    `[s, m, m], [s, m] -> [s, m, m]`
    """
    S, v = S.clone(), v.clone()
    for j in range(S.shape[-1]):
        pivot = S[:, j, j]
        r = (pivot.square() - v[:, j].square()).clamp_min(0).sqrt()
        safe = pivot.abs() > 0
        c, s = torch.where(safe, r / pivot, 0.0)[:, None], torch.where(safe, v[:, j] / pivot, 0.0)[:, None]
        S[:, j, j] = r
        below = torch.where(c > 0, (S[:, j + 1 :, j] - s * v[:, j + 1 :]) / c.clamp_min(1e-30), 0.0)
        v[:, j + 1 :] = c * v[:, j + 1 :] - s * below
        S[:, j + 1 :, j] = below
    return S


def _moments(gp: SparseGP, L: Tensor, prior_mean: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and lower factor of the covariance of f(Z) - mean(Z)."""
    assert gp.q_mean is not None
    mu, root = gp.q_mean.detach().to(L), gp.q_scale_tril
    root = torch.zeros_like(L) if root is None else root.detach().to(L)
    root = root.diag_embed() if root.ndim == 1 else root
    if gp.whitened:
        mu, root = L @ mu, L @ root
    else:
        mu = mu - prior_mean
    _, R = torch.linalg.qr(root.mT)  # root root^T = R^T R, and R^T is lower
    return mu, R.mT * R.diagonal().sign()
